"""How many bytes of each segment are still needed, and what needs them.

A segment is removed when nothing in it is needed any more. One small message that is retained keeps
the whole segment. This module finds such segments. It reads the index of the checkpoint and the
headers of some frames, so its figures are estimates:

- Of an index block with many frames, only some frames are measured. The others count as the mean.
- A frame that contains messages of several streams counts once for each of them.
- A survey takes many short steps. Checkpoints between the steps may change what is still to be
  read.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from itertools import groupby, islice
from operator import attrgetter
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from semel.journal.checkpoint import BLOCK_COUNT, CheckpointPosition, read_position
from semel.journal.disk import File, Files
from semel.journal.frame import HEADER_BYTES, peek_length
from semel.journal.index import decode_block, split_key
from semel.journal.segments import segment_name
from semel.journal.store import BadSeal, Row, TableReader, unseal
from semel.machine.rows import NUMBER_KEY, PAIR_KEY, ChunkBlockRow
from semel.machine.txn.draft import lsns_of

# The most frames that are measured: of one row of the checkpoint, and of one segment. But at least
# one frame of each row is measured.
_MEASURED_MAX: Final = 16
_MEASURED_PER_SEGMENT: Final = 256
_ROWS_AT_ONCE: Final = 512

_decode_chunks: Final = msgspec.msgpack.Decoder(ChunkBlockRow).decode


class SegmentSpace(Struct):
    """One segment: its size on disk, the bytes that are needed, and the bytes of each owner.

    `streams` and `transactions` have numbers as keys. They are empty if the survey did not collect
    them. If `is_open`, the segment contains frames that no checkpoint covers, or it will get more
    frames. Then all of its bytes count as needed.
    """

    first: int
    disk_bytes: int
    live_bytes: int = 0
    is_open: bool = False
    streams: Counter[int] = msgspec.field(default_factory=Counter)
    transactions: Counter[int] = msgspec.field(default_factory=Counter)

    @property
    def live_share(self) -> float:
        return self.live_bytes / self.disk_bytes if self.disk_bytes else 1.0


class _Frames(NamedTuple):
    """Frames of one stream or transaction in one segment, and the positions that are measured."""

    owner: int
    is_staged: bool  # then the owner is a transaction
    segment: int
    total: int
    measured: Sequence[int]


class Survey:
    """One survey of the segments that the checkpoint lists."""

    def __init__(self, store: TableReader, disk: Files, *, with_owners: bool = False) -> None:
        self._store = store
        self._disk = disk
        self._with_owners = with_owners
        self._spaces: dict[int, SegmentSpace] = {}
        self._block_counts: dict[int, int] = {}
        self.rows_done = 0
        self.rows_total = 0  # the number of rows of the index when the survey began

    @property
    def segments(self) -> list[SegmentSpace]:
        """The use of every segment, in the order of the journal. Read it after the last step."""
        return list(self._spaces.values())

    def steps(self) -> Iterator[None]:
        """Make the survey. Yield after each short step.

        Between two steps no view of the checkpoint is open, and at most one segment. So checkpoints
        can be made, and the space of what they remove becomes free.

        Damaged rows and missing files are left out. Raises OSError, BadSeal, DecodeError or
        EngineError if there is no way to continue.
        """
        position = self._read_position()
        for rows in self._rows("segments"):
            for key, sealed in rows:
                count = BLOCK_COUNT.unpack(unseal("segments", key, sealed))[0]
                self._block_counts[NUMBER_KEY.decode(key)] = count
            yield
        self.rows_total = sum(self._block_counts.values())
        for first, end in position.segments:
            self._add_segment(first, is_open=end > position.lsn)
            yield
        for rows in self._rows("index"):
            yield from self._measure([frames for row in rows for frames in self._indexed(*row)])
            self.rows_done += len(rows)
        for rows in self._rows("parts"):
            yield from self._measure([frames for row in rows for frames in self._staged(*row)])
        listed = {first for first, _ in self._read_position().segments}
        self._spaces = {first: space for first, space in self._spaces.items() if first in listed}
        for space in self._spaces.values():
            space.live_bytes = min(space.live_bytes, space.disk_bytes)

    def _read_position(self) -> CheckpointPosition:
        with self._store.read() as view:
            return read_position(view) or CheckpointPosition(0, 0, ())

    def _rows(self, table: str) -> Iterator[list[Row]]:
        """Yield the rows of a table, some at a time. Each time a new view is used."""
        start = b""
        while True:
            with self._store.read() as view:
                rows = list(islice(view.scan(table, start), _ROWS_AT_ONCE))
            if not rows:
                return
            yield rows
            if rows[-1][0] < start:  # a damaged key; to continue there would never end
                raise BadSeal(table, rows[-1][0])
            start = rows[-1][0] + b"\0"

    def _add_segment(self, first: int, *, is_open: bool) -> None:
        with suppress(FileNotFoundError), closing(self._open(first)) as file:
            size = file.size()
            self._spaces[first] = SegmentSpace(first, size, size if is_open else 0, is_open)

    def _open(self, segment: int) -> File:
        return self._disk.open(segment_name(segment))

    def _indexed(self, key: bytes, sealed: bytes) -> Iterator[_Frames]:
        """Yield the frames of an index block. A damaged row has none."""
        with suppress(BadSeal):
            block = decode_block(key, sealed)
            yield self._frames(split_key(key)[0], block.segment, block.positions)

    def _staged(self, key: bytes, sealed: bytes) -> Iterator[_Frames]:
        """Yield the chunks of a pending transaction by segment. A damaged row has none."""
        with suppress(BadSeal):
            by_segment: defaultdict[int, list[int]] = defaultdict(list)
            firsts = list(self._spaces)
            for lsn in sorted(lsns_of(_decode_chunks(unseal("parts", key, sealed)).packed)):
                at = bisect_right(firsts, lsn)
                if at:
                    by_segment[firsts[at - 1]].append(lsn - firsts[at - 1])
            for segment, positions in by_segment.items():
                yield self._frames(PAIR_KEY.decode(key)[0], segment, positions, is_staged=True)

    def _frames(
        self, owner: int, segment: int, positions: Sequence[int], *, is_staged: bool = False
    ) -> _Frames:
        block_count = max(1, self._block_counts.get(segment, 1))
        measured_max = max(1, min(_MEASURED_MAX, _MEASURED_PER_SEGMENT // block_count))
        step = -(-len(positions) // measured_max)
        return _Frames(owner, is_staged, segment, len(positions), positions[step // 2 :: step])

    def _measure(self, frames: list[_Frames]) -> Iterator[None]:
        """Add the lengths of these frames to their segments. Yield after each element."""
        frames.sort(key=_segment_of)  # so each file is opened once
        for segment, same in groupby(frames, key=_segment_of):
            space = self._spaces.get(segment)
            if space is None or space.is_open:
                continue
            try:
                file = self._open(segment)
            except FileNotFoundError:  # a checkpoint has removed it since the survey began
                del self._spaces[segment]
                continue
            with closing(file):
                for each in same:
                    live = round(_mean_length(file, each.measured) * each.total)
                    space.live_bytes += live
                    if self._with_owners:
                        owners = space.transactions if each.is_staged else space.streams
                        owners[each.owner] += live
                    yield


_segment_of: Final = attrgetter("segment")


def _mean_length(file: File, positions: Sequence[int]) -> float:
    """Return the mean length of the frames at these positions. Damaged frames count as 0."""
    lengths = [peek_length(file.read(at, HEADER_BYTES), 0) or 0 for at in positions]
    return sum(lengths) / len(lengths) if lengths else 0.0
