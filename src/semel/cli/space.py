"""The part of `semel doctor` about disk space: what keeps each segment of the journal."""

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec
from msgspec import Struct
from rich.console import Console
from rich.table import Table
from rich.text import Text

from semel.cli.output import printable, size_text
from semel.journal.disk import Files
from semel.journal.segments import segment_name
from semel.journal.space import SegmentSpace, Survey
from semel.journal.store import BadSeal, StoreReader, TableReader, read_row, unseal
from semel.machine.rows import NUMBER_KEY, StreamRow, TailRow, TxnRow
from semel.model.errors import CorruptData

T = TypeVar("T")

_OWNERS_MAX: Final = 3
_NEARLY_EMPTY: Final = 0.1


class SegmentUse(Struct, frozen=True):
    """One segment: its size, the bytes that are needed, and what needs most of them.

    `kept_by` has at most three names, such as `stream orders`. `owner_count` is the number of
    streams and transactions that need the segment. A deleted stream is one of them, but is shown
    with the names of its forks.
    """

    segment: str
    disk_bytes: int
    live_bytes: int
    is_open: bool
    kept_by: list[str]
    owner_count: int


def segment_uses(
    store: TableReader, disk: Files, progress: Callable[[str, int, int], None]
) -> list[SegmentUse]:
    """Return the use of every segment. Return an empty list if the checkpoint cannot be read.

    `progress` is called with the name of the work, and how many of how many rows are done.
    """
    survey = Survey(store, disk, with_owners=True)
    shown = 0
    try:
        for _ in survey.steps():
            if survey.rows_done != shown:
                shown = survey.rows_done
                progress("segments", shown, survey.rows_total)
        with store.read() as view:
            names = _Names(view)
            return [_use_of(names, space) for space in survey.segments]
    except (OSError, BadSeal, CorruptData, msgspec.DecodeError):
        return []  # other checks report the damage


def _use_of(names: "_Names", space: SegmentSpace) -> SegmentUse:
    owners: Counter[tuple[str, int]] = Counter()
    owners.update({("streams", number): size for number, size in space.streams.items()})
    owners.update({("transactions", number): size for number, size in space.transactions.items()})
    return SegmentUse(
        segment=segment_name(space.first),
        disk_bytes=space.disk_bytes,
        live_bytes=space.live_bytes,
        is_open=space.is_open,
        kept_by=[names.name_of(*owner) for owner, _ in owners.most_common(_OWNERS_MAX)],
        owner_count=len(owners),
    )


class _Names:
    """Finds the names of the streams and transactions that keep segments."""

    def __init__(self, view: StoreReader) -> None:
        self._view = view
        self._forks: dict[int, list[int]] | None = None  # numbers of forks, by their source

    def name_of(self, table: str, number: int) -> str:
        """Return the name of a stream or transaction.

        A deleted stream is retained only for its forks. Only they can be trimmed or deleted, so
        they are named. If a row is damaged or missing, return the number instead of the name.
        """
        kind = table.removesuffix("s")
        try:
            if table == "transactions":
                txn = self._row(table, number, TxnRow)
                return f"{kind} {number if txn is None else txn.id}"
            stream = self._row(table, number, StreamRow)
            tail = self._row("tails", number, TailRow)
            if stream is None or tail is None:
                return f"{kind} {number}"
            return self._forks_text(stream) if tail.is_deleted else f"{kind} {stream.path}"
        except (BadSeal, msgspec.DecodeError):
            return f"{kind} {number}"

    def _forks_text(self, deleted: StreamRow) -> str:
        paths = self._fork_paths(deleted.number)
        names = ", ".join(paths[:_OWNERS_MAX])
        more = len(paths) - _OWNERS_MAX
        if more > 0:
            names += f" and {more:,} more"
        if len(paths) == 1:
            return f"stream {names} (a fork of the deleted stream {deleted.path})"
        return f"streams {names} (forks of the deleted stream {deleted.path})"

    def _fork_paths(self, number: int) -> list[str]:
        """Return the paths of the forks, and of the forks of forks that are deleted too."""
        if self._forks is None:
            self._forks = _forks_by_source(self._view)
        paths = []
        waiting = list(reversed(self._forks.get(number, [])))
        while waiting:
            fork = waiting.pop()
            stream = self._row("streams", fork, StreamRow)
            tail = self._row("tails", fork, TailRow)
            if tail is not None and tail.is_deleted:
                waiting += reversed(self._forks.get(fork, []))
            elif stream is not None:
                paths.append(stream.path)
        return paths

    def _row(self, table: str, number: int, row: type[T]) -> T | None:
        value = read_row(self._view, table, NUMBER_KEY.encode(number))
        return None if value is None else msgspec.msgpack.decode(value, type=row)


def _forks_by_source(view: StoreReader) -> dict[int, list[int]]:
    """Return the numbers of all forks, by the number of their source. Raises BadSeal."""
    decode = msgspec.msgpack.Decoder(StreamRow).decode
    found: defaultdict[int, list[int]] = defaultdict(list)
    for key, sealed in view.scan("streams"):
        stream = decode(unseal("streams", key, sealed))
        if stream.fork is not None:
            found[stream.fork.source].append(stream.number)
    return found


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
