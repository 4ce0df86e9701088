"""The offsets that Spark stores in its checkpoint, and the options that set the first ones.

A source offset is `{"orders": {"id": "<incarnation>", "next": 5000}}`. Spark compares offsets as
texts, so the keys are always sorted. `{"pin": "latest"}` means the tail at the time the query was
first planned: the first batch is empty and stores the actual offsets in Spark's log, so that a
crash before it has ended cannot move the start.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec import Struct

from semel.model.limits import NUMBER_MAX
from semel.model.offsets import parse_offset

EARLIEST_NUMBER: Final = -2
LATEST_NUMBER: Final = -1
PIN: Final = {"pin": "latest"}


class StreamPosition(Struct, frozen=True, order=True):
    """The next offset to read, in the stream of this incarnation."""

    id: str
    next: int


class StartOffsets(Struct, frozen=True):
    """The value of startingOffsets or endingOffsets: offsets by stream, `default` for the others.

    An offset of -2 is the first message that is kept, -1 the tail.
    """

    default: int
    by_stream: Mapping[str, int] = {}

    def of(self, stream: str) -> int:
        return self.by_stream.get(stream, self.default)

    def has_latest(self, streams: Iterable[str]) -> bool:
        """Return whether one of these streams starts at its tail, which moves."""
        return self.default == LATEST_NUMBER or any(
            self.of(stream) == LATEST_NUMBER for stream in streams
        )


EARLIEST: Final = StartOffsets(EARLIEST_NUMBER)
LATEST: Final = StartOffsets(LATEST_NUMBER)
_WORDS: Final = {"earliest": EARLIEST, "latest": LATEST}
_EXAMPLE: Final = 'write earliest, latest, or JSON such as {"orders": 23}'


def parse_starts(text: str, default: int = EARLIEST_NUMBER) -> StartOffsets:
    """Parse startingOffsets or endingOffsets; raise ValueError if they are not valid.

    `default` is for the streams that a JSON document does not name.
    """
    word = _WORDS.get(text.lower())
    if word is not None:
        return word
    try:
        document = json.loads(text)
    except ValueError:
        document = None
    if not isinstance(document, dict) or not document:
        raise ValueError(f"{text!r} is not valid; {_EXAMPLE}")
    by_stream = {name: _ordinal(name, value) for name, value in document.items()}
    return StartOffsets(default, by_stream)


def _ordinal(stream: str, value: object) -> int:
    if isinstance(value, str):
        value = parse_offset(value)
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if not is_number or not EARLIEST_NUMBER <= value <= NUMBER_MAX:  # type: ignore[operator]
        raise ValueError(
            f"the offset of {stream} is not valid; expected a number, an offset as semel prints it,"
            " -1 for the end or -2 for the start"
        )
    assert isinstance(value, int)
    return value


# ---- offsets in the checkpoint -------------------------------------------------------------------


def to_document(positions: Mapping[str, StreamPosition]) -> dict[str, Any]:
    """Return the offset for Spark; keys are sorted, so that equal offsets are equal texts."""
    return {
        stream: {"id": position.id, "next": position.next}
        for stream, position in sorted(positions.items())
    }


def is_pin(document: Mapping[str, Any]) -> bool:
    """Return whether an offset is the pin. The entry of a stream is never a string."""
    return document.get("pin") == PIN["pin"]


def from_document(document: Mapping[str, Any]) -> dict[str, StreamPosition]:
    """Parse an offset from Spark's checkpoint; raise ValueError if it is of another source."""
    try:
        return {
            stream: StreamPosition(str(entry["id"]), int(entry["next"]))
            for stream, entry in document.items()
        }
    except (TypeError, KeyError, ValueError):
        raise ValueError(
            f"the checkpoint has {json.dumps(document)[:200]}, which is not an offset of semel: it"
            " belongs to another source, start with a new checkpointLocation"
        ) from None
