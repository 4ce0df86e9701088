"""Parses the options of the format "semel", and creates clients for the server.

The case of option names is ignored, because Spark sometimes changes names to lower case.
"""

import os
import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Final, NoReturn, TypeVar

from msgspec import Struct

from semel.client.addresses import checked_path, parse_address
from semel.client.credentials import (
    CredentialsError,
    Secret,
    TokenFile,
    checked_token,
    environment_token,
)
from semel.client.sync.client import Client
from semel.model.limits import NUMBER_MAX, TOPIC_PARTITIONS_MAX
from semel.model.messages import JSON_MEDIA_TYPE
from semel.model.partitioners import CRC32, HASHES
from semel.spark.offsets import EARLIEST, EARLIEST_NUMBER, LATEST_NUMBER, StartOffsets, parse_starts
from semel.spark.topics import checked_topic, partition_number

# ---- values --------------------------------------------------------------------------------------
# Each function parses the value `text` of the option `name`. If the value is invalid, the function
# raises SparkOptionError with a message that contains the name.


_DURATION: Final = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)(ms|s|m|h)?")
_UNIT_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_BOOLS: Final = {"true": True, "false": False}


class SparkOptionError(ValueError):
    """Raised if an option is missing, unknown or invalid. The message says how to correct it."""


def read_path(name: str, text: str) -> str:
    try:
        return checked_path(text)
    except ValueError as error:
        raise SparkOptionError(f"{name}: {text!r} is not a valid stream path: {error}") from None


def read_topic(name: str, text: str) -> str:
    try:
        return checked_topic(text)
    except ValueError as error:
        raise SparkOptionError(f"{name}: {text!r} is not a valid topic name: {error}") from None


def read_partitioner(name: str, text: str) -> str:
    if text.lower() not in HASHES:
        raise SparkOptionError(f"{name} must be {' or '.join(HASHES)}, not {text!r}")
    return text.lower()


def read_paths(name: str, text: str) -> tuple[str, ...]:
    """Parse comma-separated paths. Return the paths sorted and without duplicates."""
    paths = [read_path(name, part.strip()) for part in text.split(",") if part.strip()]
    if not paths:
        raise SparkOptionError(
            f'the option {name!r} is empty: write comma-separated paths, such as "orders,refunds"'
        )
    return tuple(sorted(set(paths)))


def read_pattern(name: str, text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise SparkOptionError(f"{name}: {text!r} is not a regular expression: {error}") from None
    return text


def read_natural(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) > NUMBER_MAX:
        raise SparkOptionError(f"{name} must be an integer of at least 0, not {text!r}")
    return int(text)


def read_positive(name: str, text: str) -> int:
    number = read_natural(name, text)
    if not number:
        raise SparkOptionError(f"{name} must be an integer of at least 1, not {text!r}")
    return number


def read_partitions(name: str, text: str) -> int:
    number = read_positive(name, text)
    if number > TOPIC_PARTITIONS_MAX:
        raise SparkOptionError(
            f"{name} must be an integer of at most {TOPIC_PARTITIONS_MAX:,}, not {text!r}"
        )
    return number


def read_bool(name: str, text: str) -> bool:
    if text.lower() not in _BOOLS:
        raise SparkOptionError(f"{name} must be true or false, not {text!r}")
    return _BOOLS[text.lower()]


def read_secret(name: str, text: str) -> Secret | None:
    """Return a token, or None if `text` is empty. No error contains `text`."""
    try:
        return checked_token(text.encode(errors="replace"), f"the option {name}") if text else None
    except CredentialsError as error:
        raise SparkOptionError(str(error)) from None


def read_token_file(name: str, text: str) -> TokenFile:
    if not os.path.isabs(text):
        raise SparkOptionError(
            f"{name} must be an absolute path, because every executor reads the file, not {text!r}"
        )
    return TokenFile(text)


def read_seconds(name: str, text: str) -> float:
    """Parse a duration such as `500ms` and return it in seconds. The default unit is seconds."""
    match = _DURATION.fullmatch(text)
    seconds = float(match[1]) * _UNIT_SECONDS[match[2] or "s"] if match else 0.0
    if not seconds:
        raise SparkOptionError(f"{name} must be a duration such as 120s, 500ms or 2m, not {text!r}")
    return seconds


# ---- options -------------------------------------------------------------------------------------


__all__ = ["SinkOptions", "SourceOptions", "SparkOptionError", "parse_sink", "parse_source"]

T = TypeVar("T")
Token = Secret | TokenFile
RETRY_SECONDS_DEFAULT: Final = 120.0

_COMMON: Final = ("url", "path", "token", "stream", "topic", "retryTimeout", "tokenFile")
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
    "partitions",
    "partitioner",
    "checkpointLocation",
    "queryName",
)
_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname"})


class ServerOptions(Struct, frozen=True):
    """The options about the server: its address, its token, and how long requests are retried.

    The options are pickled for the executors, so they contain the token. A token that is a
    TokenFile is read where it is used.
    """

    url: str
    token: Token | None
    retry_seconds: float


class SourceOptions(ServerOptions, frozen=True):
    """The options of a read: `streams` lists the streams, `pattern` selects them, or `topic` does.

    The streams of `topic` are its partitions.
    """

    streams: tuple[str, ...]
    pattern: str | None
    topic: str | None
    starts: StartOffsets
    ends: StartOffsets | None
    starting_timestamp_ms: int | None
    max_offsets_per_trigger: int | None
    min_partitions: int
    is_loss_fatal: bool
    has_headers: bool


class SinkOptions(ServerOptions, frozen=True):
    """The options of a write.

    If both `stream` and `topic` are None, a column names the stream of each row. With `partitions`,
    a topic that does not exist is created.
    """

    stream: str | None
    topic: str | None
    partitions: int | None
    partitioner: str
    app_id: str | None
    version: int | None
    is_creating: bool
    content_type: str
    checkpoint: str | None
    query_name: str | None


def parse_source(options: Mapping[str, str]) -> SourceOptions:
    """Parse the options of a read. Raises SparkOptionError if an option is wrong."""
    values = _OptionReader(options, _SOURCE, _SINK, "read")
    subscription = _subscription(values)
    timestamp_ms = values.take("startingTimestamp", read_natural)
    if timestamp_ms is not None and values.has("startingOffsets"):
        raise SparkOptionError(
            "startingTimestamp and startingOffsets cannot be used together: remove one"
        )
    return SourceOptions(
        url=values.url(),
        token=values.token(),
        streams=subscription.streams,
        pattern=subscription.pattern,
        topic=subscription.topic,
        starts=_starts(values, "startingOffsets", subscription) or EARLIEST,
        ends=_ends(values, subscription),
        starting_timestamp_ms=timestamp_ms,
        max_offsets_per_trigger=values.take("maxOffsetsPerTrigger", read_positive),
        min_partitions=values.take("minPartitions", read_positive) or 1,
        is_loss_fatal=values.flag("failOnDataLoss", default=True),
        has_headers=values.flag("includeHeaders", default=False),
        retry_seconds=values.take("retryTimeout", read_seconds) or RETRY_SECONDS_DEFAULT,
    )


def parse_sink(options: Mapping[str, str]) -> SinkOptions:
    """Parse the options of a write. Raises SparkOptionError if an option is wrong."""
    values = _OptionReader(options, _SINK, _SOURCE, "write")
    app_id, version = values.text("txnAppId"), values.take("txnVersion", read_natural)
    if version is not None and app_id is None:
        raise SparkOptionError(
            'txnVersion works only together with txnAppId: add .option("txnAppId", ...)'
        )
    _check_topic(values)
    return SinkOptions(
        url=values.url(),
        token=values.token(),
        stream=values.take("stream", read_path),
        topic=values.take("topic", read_topic),
        partitions=values.take("partitions", read_partitions),
        partitioner=values.take("partitioner", read_partitioner) or CRC32,
        app_id=app_id,
        version=version,
        is_creating=values.flag("createStream", default=True),
        content_type=values.text("contentType") or JSON_MEDIA_TYPE,
        checkpoint=values.text("checkpointLocation"),
        query_name=values.text("queryName"),
        retry_seconds=values.take("retryTimeout", read_seconds) or RETRY_SECONDS_DEFAULT,
    )


class _OptionReader:
    """Looks up and parses the options of one read or write.

    `verb` is "read" or "write". `allowed` lists the options for this verb. `others` lists the
    options for the opposite verb. Every option must be in `allowed` or belong to Spark itself.
    Otherwise SparkOptionError is raised.
    """

    def __init__(
        self,
        options: Mapping[str, str],
        allowed: tuple[str, ...],
        others: tuple[str, ...],
        verb: str,
    ) -> None:
        self._values = {name.lower(): str(value) for name, value in options.items()}
        names = {name.lower(): name for name in allowed}
        for name in self._values:
            if name not in names and name not in _SPARKS_OWN:
                _refuse_unknown(name, names, others, verb)

    def has(self, name: str) -> bool:
        return name.lower() in self._values

    def text(self, name: str) -> str | None:
        """Return the text of an option, or None if the option is missing or empty."""
        return self._values.get(name.lower(), "").strip() or None

    def take(self, name: str, read: Callable[[str, str], T]) -> T | None:
        """Parse an option with `read(name, text)`. Return None if the option is missing."""
        if not self.has(name):
            return None
        return read(name, self._values[name.lower()].strip())

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.take(name, read_bool)
        return default if value is None else value

    def token(self) -> Token | None:
        """Return the token, or the file that contains it, or None if there is none.

        Without the options `token` and `tokenFile`, it is the token of the environment variable
        SEMEL_TOKEN in this process, which is on the driver. An empty `token` means none.
        """
        if self.text("token") is not None and self.text("tokenFile") is not None:
            raise SparkOptionError("token and tokenFile cannot be used together: remove one")
        if self.text("tokenFile") is not None:
            return self.take("tokenFile", read_token_file)
        if self.has("token"):
            return self.take("token", read_secret)
        try:
            return environment_token()
        except CredentialsError as error:
            raise SparkOptionError(str(error)) from None

    def url(self) -> str:
        """Return the address of the server. It is the value of the option `url` or `path`."""
        url, path = self.text("url"), self.text("path")
        address = url or path
        if address is None:
            raise SparkOptionError(
                'the address of the server is missing: add .option("url", "http://127.0.0.1:4437")'
            )
        if path not in (None, address):
            raise SparkOptionError(f"'url' is {url}, but 'path' is {path}: set only one of them")
        try:
            parse_address(address)
        except ValueError as error:
            raise SparkOptionError(f"url: {error}") from None
        return address


def _refuse_unknown(
    name: str, names: Mapping[str, str], others: tuple[str, ...], verb: str
) -> NoReturn:
    if name in {other.lower() for other in others}:
        raise SparkOptionError(f"the option {name!r} cannot be used in a {verb}: remove the option")
    near = get_close_matches(name, names, n=1, cutoff=0.6)
    listed = ", ".join(names.values())
    hint = f"did you mean {names[near[0]]}?" if near else f"expected one of {listed}"
    raise SparkOptionError(f"unknown option {name!r}: {hint}")


class _Subscription(Struct, frozen=True):
    """What a read covers: a list of streams, the streams that match a pattern, or a topic."""

    streams: tuple[str, ...]
    pattern: str | None
    topic: str | None

    def may_read(self, stream: str) -> bool:
        if self.topic is not None:
            return partition_number(self.topic, stream) is not None
        return self.pattern is not None or stream in self.streams

    def __str__(self) -> str:
        if self.topic is not None:
            return f'the partitions of {self.topic}: write {{"{self.topic}": {{"0": 23}}}}'
        return ", ".join(self.streams)


_SUBSCRIPTIONS: Final = ("stream", "subscribe", "subscribePattern", "topic")


def _subscription(values: _OptionReader) -> _Subscription:
    named = [name for name in _SUBSCRIPTIONS if values.has(name)]
    if len(named) != 1:
        present = " and ".join(named) if named else "none of them"
        raise SparkOptionError(
            "set exactly one of the options 'stream', 'subscribe', 'subscribePattern' and 'topic';"
            f" you set {present}"
        )
    stream = values.take("stream", read_path)
    paths = values.take("subscribe", read_paths) or ()
    return _Subscription(
        streams=paths if stream is None else (stream,),
        pattern=values.take("subscribePattern", read_pattern),
        topic=values.take("topic", read_topic),
    )


def _check_topic(values: _OptionReader) -> None:
    """Raise SparkOptionError if options of a write about topics do not match."""
    if values.has("stream") and values.has("topic"):
        raise SparkOptionError("stream and topic cannot be used together: remove one")
    for name, needed in (("partitions", "topic"), ("partitioner", "partitions")):
        if values.has(name) and not values.has(needed):
            raise SparkOptionError(
                f'{name} works only together with {needed}: add .option("{needed}", ...)'
            )
    if values.has("partitions") and not values.flag("createStream", default=True):
        raise SparkOptionError(
            "with partitions a missing topic is created, but createStream is false: remove one"
        )


def _starts(
    values: _OptionReader, name: str, covered: _Subscription, default: int = EARLIEST_NUMBER
) -> StartOffsets | None:
    text = values.text(name)
    if text is None:
        return None
    try:
        starts = parse_starts(text, default)
    except ValueError as error:
        raise SparkOptionError(f"{name}: {error}") from None
    for stream in sorted(starts.by_stream):
        if not covered.may_read(stream):
            raise SparkOptionError(
                f"{name}: this query does not read {stream!r}; it reads only {covered}"
            )
    return starts


def _ends(values: _OptionReader, covered: _Subscription) -> StartOffsets | None:
    ends = _starts(values, "endingOffsets", covered, LATEST_NUMBER)
    if ends is not None and EARLIEST_NUMBER in (ends.default, *ends.by_stream.values()):
        raise SparkOptionError(
            "endingOffsets cannot be 'earliest' (-2), because no messages are before the start of a"
            " stream: use 'latest' (-1) or an offset"
        )
    return ends


# ---- clients -------------------------------------------------------------------------------------


_clients: Final[dict[tuple[int, str, Token | None, float], Client]] = {}


def client_for(options: ServerOptions) -> Client:
    """Return the client that this process uses for the server of `options`.

    The client is never closed. Spark reuses its worker processes, so later tasks reuse the client's
    connections. A forked process gets its own client.
    """
    key = (os.getpid(), options.url, options.token, options.retry_seconds)
    client = _clients.get(key)
    if client is None:
        # If two threads do this at the same time, one of the two clients is dropped. That is
        # harmless, because a new client has no connections yet.
        token = options.token or ""  # an executor has no token of its own
        client = Client(options.url, token=token, timeout=options.retry_seconds)
        client = _clients.setdefault(key, client)
    return client
