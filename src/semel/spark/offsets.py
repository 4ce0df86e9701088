"""The offsets at which a read starts and ends, as the options set them."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec import Struct

from semel.model.limits import NUMBER_MAX
from semel.model.offsets import parse_offset
from semel.spark.topics import partition_path

EARLIEST_NUMBER: Final = -2
LATEST_NUMBER: Final = -1


class StartOffsets(Struct, frozen=True):
    """The value of the option startingOffsets or endingOffsets.

    `by_stream` maps streams to offsets. `default` is the offset for all other streams. The
    offset -2 means the head of a stream, and -1 means its stable offset.
    """

    default: int
    by_stream: Mapping[str, int] = {}

    def of(self, stream: str) -> int:
        return self.by_stream.get(stream, self.default)

    def has_latest(self, streams: Iterable[str]) -> bool:
        """Return True if `default`, or the offset of at least one of `streams`, is -1 (latest)."""
        return self.default == LATEST_NUMBER or any(
            self.of(stream) == LATEST_NUMBER for stream in streams
        )


EARLIEST: Final = StartOffsets(EARLIEST_NUMBER)
LATEST: Final = StartOffsets(LATEST_NUMBER)
_START_WORDS: Final = {"earliest": EARLIEST, "latest": LATEST}
_EXAMPLE: Final = (
    'write "earliest", "latest", or JSON such as {"orders": 23}, or for a topic {"orders": {"0":'
    ' 23, "1": -2}}'
)


def parse_starts(text: str, default: int = EARLIEST_NUMBER) -> StartOffsets:
    """Parse startingOffsets or endingOffsets. Raises ValueError if the text is not valid.

    `default` is the offset for each stream that the text does not name. The offsets of partitions
    are by the paths of their streams, whichever form the text has.
    """
    word = _START_WORDS.get(text.lower())
    if word is not None:
        return word
    try:
        document = json.loads(text)
    except ValueError:
        document = None
    if not isinstance(document, dict) or not document:
        raise ValueError(f"{text!r} is not valid; {_EXAMPLE}")
    by_stream: dict[str, int] = {}
    for stream, value in _flat(document):
        if stream in by_stream:
            raise ValueError(f"{stream} has two offsets; remove one of them")
        by_stream[stream] = _ordinal(stream, value)
    return StartOffsets(default, by_stream)


def _flat(document: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    """Yield each stream with its offset. A topic can have an object with its partitions."""
    for name, value in document.items():
        if isinstance(value, dict):
            for number, offset in value.items():
                yield partition_path(name, number), offset
        else:
            yield name, value


def _ordinal(stream: str, value: object) -> int:
    if isinstance(value, str):
        value = parse_offset(value)
    if (
        not isinstance(value, int)
        or isinstance(value, bool)
        or not EARLIEST_NUMBER <= value <= NUMBER_MAX
    ):
        raise ValueError(
            f"the offset of {stream} is not valid; expected a number such as 23, an offset in the"
            " form that semel prints, -1 (latest) or -2 (earliest)"
        )
    return value
