"""The options of the format "semel": read once, refused early, each error with its cure.

Spark hands them over as texts, with names in lower case. Names are compared without case.
Those that Spark adds by itself are let through.
"""

import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Final, NoReturn, TypeVar

from msgspec import Struct

from semel.client.requests import checked_path, parse_address
from semel.model.limits import NUMBER_MAX
from semel.model.media import JSON_MEDIA_TYPE
from semel.spark.source.offsets import (
    EARLIEST,
    EARLIEST_NUMBER,
    LATEST_NUMBER,
    StartOffsets,
    parse_starts,
)

# ---- option values -------------------------------------------------------------------------------
# The texts of options as values: each reader is given the option's name, for its error.


_DURATION: Final = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)(ms|s|m|h)?")
_UNIT_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_WORDS: Final = {"true": True, "false": False}


class Secret(str):
    """A text that is not shown with the options it stands among."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'...'"


class SparkOptionError(ValueError):
    """An option is missing, unknown or makes no sense; the message says what to write."""


def read_path(name: str, text: str) -> str:
    """Read the path of a stream."""
    try:
        return checked_path(text)
    except ValueError as error:
        raise SparkOptionError(f"{name}: {text!r} is no name of a stream: {error}") from None


def read_paths(name: str, text: str) -> tuple[str, ...]:
    """Read paths with commas between them."""
    paths = [read_path(name, part.strip()) for part in text.split(",") if part.strip()]
    if not paths:
        raise SparkOptionError(
            f'{name} is empty: write paths with commas between, "orders,refunds"'
        )
    return tuple(sorted(set(paths)))


def read_pattern(name: str, text: str) -> str:
    """Read a regular expression."""
    try:
        re.compile(text)
    except re.error as error:
        raise SparkOptionError(f"{name}: {text!r} is no regular expression: {error}") from None
    return text


def read_natural(name: str, text: str) -> int:
    """Read a number from 0."""
    if not (text.isascii() and text.isdigit()) or int(text) > NUMBER_MAX:
        raise SparkOptionError(f"{name} is a number from 0, not {text!r}")
    return int(text)


def read_positive(name: str, text: str) -> int:
    """Read a number from 1."""
    number = read_natural(name, text)
    if not number:
        raise SparkOptionError(f"{name} is a number from 1, not {text!r}")
    return number


def read_flag(name: str, text: str) -> bool:
    """Read a true or false."""
    value = _WORDS.get(text.lower())
    if value is None:
        raise SparkOptionError(f"{name} is true or false, not {text!r}")
    return value


def read_secret(name: str, text: str) -> Secret | None:
    """Read what nobody is to see; an empty text is as none."""
    del name
    return Secret(text) if text else None


def read_seconds(name: str, text: str) -> float:
    """Read a time such as `120s`."""
    found = _DURATION.fullmatch(text)
    seconds = float(found[1]) * _UNIT_SECONDS[found[2] or "s"] if found else 0.0
    if not seconds:
        raise SparkOptionError(f"{name} is a time such as 120s, 500ms or 2m, not {text!r}")
    return seconds


# ---- options -------------------------------------------------------------------------------------


__all__ = ["SinkOptions", "SourceOptions", "SparkOptionError", "parse_sink", "parse_source"]

T = TypeVar("T")
RETRY_SECONDS_DEFAULT: Final = 120.0

_COMMON: Final = ("url", "path", "token", "stream", "retryTimeout")
_SOURCE: Final = (
    *_COMMON,
    "subscribe",
    "subscribePattern",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "maxOffsetsPerTrigger",
    "minPartitions",
    "failOnDataLoss",
    "includeHeaders",
)
_SINK: Final = (
    *_COMMON,
    "txnAppId",
    "txnVersion",
    "createStream",
    "contentType",
    "checkpointLocation",
    "queryName",
)
_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname"})


class SourceOptions(Struct, frozen=True):
    """What to read, and how. Of `streams` and `pattern` exactly one is there."""

    url: str
    token: Secret | None
    streams: tuple[str, ...]
    pattern: str | None
    starts: StartOffsets
    ends: StartOffsets | None
    starting_timestamp_ms: int | None
    max_offsets_per_trigger: int | None
    min_partitions: int
    is_loss_fatal: bool
    has_headers: bool
    retry_seconds: float


class SinkOptions(Struct, frozen=True):
    """Where to write, and under which name. Without `stream` each row names its own."""

    url: str
    token: Secret | None
    stream: str | None
    app_id: str | None
    version: int | None
    is_creating: bool
    content_type: str
    checkpoint: str | None
    query_name: str | None
    retry_seconds: float


def parse_source(options: Mapping[str, str]) -> SourceOptions:
    """Read the options of a read; raises SparkOptionError."""
    given = _OptionReader(options, _SOURCE, _SINK, "read")
    streams, pattern = _subscription(given)
    timestamp_ms = given.take("startingTimestamp", read_natural)
    if timestamp_ms is not None and given.has("startingOffsets"):
        raise SparkOptionError("startingTimestamp and startingOffsets exclude each other: drop one")
    return SourceOptions(
        url=given.url(),
        token=given.take("token", read_secret),
        streams=streams,
        pattern=pattern,
        starts=_starts(given, "startingOffsets", streams) or EARLIEST,
        ends=_ends(given, streams),
        starting_timestamp_ms=timestamp_ms,
        max_offsets_per_trigger=given.take("maxOffsetsPerTrigger", read_positive),
        min_partitions=given.take("minPartitions", read_positive) or 1,
        is_loss_fatal=given.flag("failOnDataLoss", default=True),
        has_headers=given.flag("includeHeaders", default=False),
        retry_seconds=given.take("retryTimeout", read_seconds) or RETRY_SECONDS_DEFAULT,
    )


def parse_sink(options: Mapping[str, str]) -> SinkOptions:
    """Read the options of a write; raises SparkOptionError."""
    given = _OptionReader(options, _SINK, _SOURCE, "write")
    app_id, version = given.text("txnAppId"), given.take("txnVersion", read_natural)
    if version is not None and app_id is None:
        raise SparkOptionError(
            'txnVersion needs a name it counts for: add .option("txnAppId", ...)'
        )
    return SinkOptions(
        url=given.url(),
        token=given.take("token", read_secret),
        stream=given.take("stream", read_path),
        app_id=app_id,
        version=version,
        is_creating=given.flag("createStream", default=True),
        content_type=given.text("contentType") or JSON_MEDIA_TYPE,
        checkpoint=given.text("checkpointLocation"),
        query_name=given.text("queryName"),
        retry_seconds=given.take("retryTimeout", read_seconds) or RETRY_SECONDS_DEFAULT,
    )


class _OptionReader:
    """The options as they came, by their names in lower case."""

    def __init__(
        self, options: Mapping[str, str], known: tuple[str, ...], others: tuple[str, ...], verb: str
    ) -> None:
        self._values = {name.lower(): str(value) for name, value in options.items()}
        names = {name.lower(): name for name in known}
        for name in self._values:
            if name not in names and name not in _SPARKS_OWN:
                _refuse_unknown(name, names, others, verb)

    def has(self, name: str) -> bool:
        """Tell whether the option is there."""
        return name.lower() in self._values

    def text(self, name: str) -> str | None:
        """Give the text of an option; an empty one is as none."""
        return self._values.get(name.lower(), "").strip() or None

    def take(self, name: str, read: Callable[[str, str], T]) -> T | None:
        """Read an option if it is there; `read` is given its name and text."""
        if not self.has(name):
            return None
        return read(name, self._values[name.lower()].strip())

    def flag(self, name: str, *, default: bool) -> bool:
        """Read a true or false."""
        value = self.take(name, read_flag)
        return default if value is None else value

    def url(self) -> str:
        """Give the server's address, by either of its names."""
        url, path = self.text("url"), self.text("path")
        if url is None and path is None:
            raise SparkOptionError(
                'the address of the server is missing: add .option("url", "http://127.0.0.1:4437")'
            )
        if url is not None and path is not None and url != path:
            raise SparkOptionError(f"url is {url} and path is {path}: give one of the two")
        address = url or path
        assert address is not None
        try:
            parse_address(address)
        except ValueError as error:
            raise SparkOptionError(f"url: {error}") from None
        return address


def _refuse_unknown(
    name: str, names: Mapping[str, str], others: tuple[str, ...], verb: str
) -> NoReturn:
    if name in {other.lower() for other in others}:
        raise SparkOptionError(f"the option {name} has no meaning in a {verb}: remove it")
    near = get_close_matches(name, names, n=1, cutoff=0.6)
    hint = f"did you mean {names[near[0]]}?" if near else f"known are {', '.join(names.values())}"
    raise SparkOptionError(f"unknown option {name}: {hint}")


def _subscription(given: _OptionReader) -> tuple[tuple[str, ...], str | None]:
    """Find what to read: the paths, or a pattern of them."""
    named = [name for name in ("stream", "subscribe", "subscribePattern") if given.has(name)]
    if len(named) != 1:
        found = f"{' and '.join(named)} are given" if named else "none is given"
        raise SparkOptionError(
            f"exactly one of stream, subscribe and subscribePattern says what to read; {found}"
        )
    pattern = given.take("subscribePattern", read_pattern)
    if pattern is not None:
        return (), pattern
    stream = given.take("stream", read_path)
    if stream is not None:
        return (stream,), None
    paths = given.take("subscribe", read_paths)
    assert paths is not None
    return paths, None


def _starts(
    given: _OptionReader, name: str, streams: tuple[str, ...], default: int = EARLIEST_NUMBER
) -> StartOffsets | None:
    text = given.text(name)
    if text is None:
        return None
    try:
        starts = parse_starts(text, default)
    except ValueError as error:
        raise SparkOptionError(f"{name}: {error}") from None
    strangers = sorted(set(starts.by_stream) - set(streams)) if streams else []
    if strangers:
        raise SparkOptionError(
            f"{name} names {strangers[0]}, which is not read; read are {', '.join(streams)}"
        )
    return starts


def _ends(given: _OptionReader, streams: tuple[str, ...]) -> StartOffsets | None:
    ends = _starts(given, "endingOffsets", streams, LATEST_NUMBER)
    if ends is not None and EARLIEST_NUMBER in (ends.default, *ends.by_stream.values()):
        raise SparkOptionError("endingOffsets: a read cannot end at the start; write latest")
    return ends
