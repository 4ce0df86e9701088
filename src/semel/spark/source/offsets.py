"""Where a query stands: the offsets Spark keeps in its checkpoint, and the options that begin it.

A source offset is `{"orders": {"id": "<incarnation>", "next": 5000}}`. Spark compares offsets as
texts, so the keys are always in order. `{"pin": "latest"}` stands for "the end, when the query was
first planned": the first batch is empty and writes the real offsets into Spark's own log, so that a
crash before it is done cannot move the start.
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
    """What startingOffsets or endingOffsets say: offsets by stream, and `default` for the others.

    An offset of -2 is the first message that is kept, -1 the end.
    """

    default: int
    by_stream: Mapping[str, int] = {}

    def of(self, stream: str) -> int:
        """Give the offset a stream begins or ends at."""
        return self.by_stream.get(stream, self.default)

    def has_latest(self, streams: Iterable[str]) -> bool:
        """Tell whether one of these streams begins at its end, which moves."""
        return self.default == LATEST_NUMBER or any(
            self.of(stream) == LATEST_NUMBER for stream in streams
        )


EARLIEST: Final = StartOffsets(EARLIEST_NUMBER)
LATEST: Final = StartOffsets(LATEST_NUMBER)
_WORDS: Final = {"earliest": EARLIEST, "latest": LATEST}
_EXAMPLE: Final = 'write earliest, latest, or JSON such as {"orders": 23}'


def parse_starts(text: str, default: int = EARLIEST_NUMBER) -> StartOffsets:
    """Read startingOffsets or endingOffsets; ValueError with a cure if they make no sense.

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
        raise ValueError(f"{text!r} is no place to begin or end; {_EXAMPLE}")
    by_stream = {name: _ordinal(name, value) for name, value in document.items()}
    return StartOffsets(default, by_stream)


def _ordinal(stream: str, value: object) -> int:
    if isinstance(value, str):
        value = parse_offset(value)
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if not is_number or not EARLIEST_NUMBER <= value <= NUMBER_MAX:  # type: ignore[operator]
        raise ValueError(
            f"{stream} needs a number, an offset as printed, -1 for the end or -2 for the start"
        )
    assert isinstance(value, int)
    return value


# ---- what Spark keeps ----------------------------------------------------------------------------


def to_document(positions: Mapping[str, StreamPosition]) -> dict[str, Any]:
    """Make the offset that Spark writes down: keys in order, so that equal ones are equal texts."""
    return {
        stream: {"id": position.id, "next": position.next}
        for stream, position in sorted(positions.items())
    }


def is_pin(document: Mapping[str, Any]) -> bool:
    """Tell whether an offset is the pin: the end, not yet known. No stream's entry is a text."""
    return document.get("pin") == PIN["pin"]


def from_document(document: Mapping[str, Any]) -> dict[str, StreamPosition]:
    """Read an offset that Spark has kept; ValueError if it is none of ours."""
    try:
        return {
            stream: StreamPosition(str(entry["id"]), int(entry["next"]))
            for stream, entry in document.items()
        }
    except (TypeError, KeyError, ValueError):
        raise ValueError(
            f"the checkpoint holds {json.dumps(document)[:200]}, which is no offset of semel:"
            " it belongs to another source, start with a new checkpointLocation"
        ) from None
