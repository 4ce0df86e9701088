"""The part of `semel doctor` about disk space: what keeps each segment of the journal."""

from collections import Counter
from typing import Final

import msgspec
from msgspec import Struct
from rich.console import Console
from rich.table import Table
from rich.text import Text

from semel.cli.output import printable, size_text
from semel.journal.disk import Files
from semel.journal.segments import segment_name
from semel.journal.space import SegmentSpace, survey
from semel.journal.store import BadSeal, StoreReader, read_row
from semel.machine.rows import NUMBER_KEY, StreamRow, TxnRow

_OWNERS_MAX: Final = 3
_NEARLY_EMPTY: Final = 0.1


class SegmentUse(Struct, frozen=True):
    """One segment: its size, the bytes that are needed, and what needs most of them.

    `kept_by` has at most three names, such as `stream orders`. `owner_count` is the number of
    streams and transactions that need the segment.
    """

    segment: str
    disk_bytes: int
    live_bytes: int
    is_open: bool
    kept_by: list[str]
    owner_count: int


def segment_uses(view: StoreReader, disk: Files) -> list[SegmentUse]:
    """Return the use of every segment. Return an empty list if the checkpoint cannot be read."""
    try:
        spaces = survey(view, disk, with_owners=True)
    except (OSError, BadSeal, msgspec.DecodeError):
        return []  # other checks report the damage
    return [_use_of(view, space) for space in spaces]


def _use_of(view: StoreReader, space: SegmentSpace) -> SegmentUse:
    owners: Counter[tuple[str, int]] = Counter()
    owners.update({("streams", number): size for number, size in space.streams.items()})
    owners.update({("transactions", number): size for number, size in space.transactions.items()})
    return SegmentUse(
        segment=segment_name(space.first),
        disk_bytes=space.disk_bytes,
        live_bytes=space.live_bytes,
        is_open=space.is_open,
        kept_by=[_name_of(view, *owner) for owner, _ in owners.most_common(_OWNERS_MAX)],
        owner_count=len(owners),
    )


def _name_of(view: StoreReader, table: str, number: int) -> str:
    kind = table.removesuffix("s")
    try:
        value = read_row(view, table, NUMBER_KEY.encode(number))
        if value is None:
            return f"{kind} {number}"
        if table == "streams":
            return f"{kind} {msgspec.msgpack.decode(value, type=StreamRow).path}"
        return f"{kind} {msgspec.msgpack.decode(value, type=TxnRow).id}"
    except (BadSeal, msgspec.DecodeError):
        return f"{kind} {number}"


def space_text(segments: list[SegmentUse]) -> str:
    """Return one line about the use of all segments, and what to do if most of it is not needed."""
    disk_bytes = sum(segment.disk_bytes for segment in segments)
    live_bytes = sum(segment.live_bytes for segment in segments)
    text = f"{size_text(live_bytes)} of {size_text(disk_bytes)} are needed"
    empty = [each for each in segments if each.live_bytes < _NEARLY_EMPTY * each.disk_bytes]
    if not empty:
        return text
    keepers = Counter(name for segment in empty for name in segment.kept_by)
    names = ", ".join(name for name, _ in keepers.most_common(_OWNERS_MAX))
    return (
        f"{text}; {len(empty):,} segments are less than {_NEARLY_EMPTY:.0%} needed and are kept by:"
        f" {names}. To free them, trim or delete these streams, or end these transactions"
    )


def print_segments(segments: list[SegmentUse]) -> None:
    """Print a table with one row for each segment."""
    table = Table(title="segments", title_justify="left", box=None, pad_edge=False)
    for name in ("segment", "size", "needed", "kept by"):
        table.add_column(name, justify="right" if name in {"size", "needed"} else "left")
    for segment in segments:
        more = segment.owner_count - len(segment.kept_by)
        kept_by = ", ".join(segment.kept_by) + (f" and {more:,} more" if more else "")
        table.add_row(
            segment.segment,
            size_text(segment.disk_bytes),
            size_text(segment.live_bytes),
            Text(printable("it is being written" if segment.is_open else kept_by)),
        )
    console = Console(highlight=False)
    console.print()
    console.print(table, soft_wrap=True)
