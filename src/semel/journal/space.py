"""How many bytes of each segment are still needed, and what needs them.

A segment is removed when nothing in it is needed any more. One small message that is retained keeps
the whole segment. This module finds such segments. It reads the index of the checkpoint and the
headers of some frames, so its figures describe the last checkpoint and are estimates:

- Of an index block with many frames, only some frames are measured. The others count as the mean.
- A frame that contains messages of several streams counts once for each of them.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from time import monotonic
from typing import Final

import msgspec
from msgspec import Struct

from semel.journal.checkpoint import CheckpointPosition, read_position
from semel.journal.disk import File, Files
from semel.journal.frame import HEADER_BYTES, peek_length
from semel.journal.index import IndexBlock, decode_block, split_key
from semel.journal.segments import segment_name
from semel.journal.store import BadSeal, StoreReader, TableReader, unseal
from semel.machine.rows import PAIR_KEY, ChunkBlockRow
from semel.machine.txn.draft import lsns_of
from semel.model.errors import EngineError

_MEASURED_MAX: Final = 16
_OPEN_FILES_MAX: Final = 64
# A survey begins only if this multiple of the duration of the last one has passed since.
_PAUSE: Final = 50


class SegmentSpace(Struct):
    """One segment: its size on disk, the bytes that are needed, and the bytes of each owner.

    `streams` and `transactions` have numbers as keys. They are empty if `survey` did not collect
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


class _FrameLengths:
    """Reads the lengths of frames. It keeps a limited number of files open."""

    def __init__(self, disk: Files) -> None:
        self._disk = disk
        self._files: dict[int, File] = {}

    def size(self, segment: int) -> int:
        return self._file(segment).size()

    def mean(self, segment: int, positions: list[int]) -> float:
        """Return the mean length of the frames at these positions. Damaged frames count as 0."""
        file = self._file(segment)
        lengths = [peek_length(file.read(at, HEADER_BYTES), 0) or 0 for at in positions]
        return sum(lengths) / len(lengths)

    def _file(self, segment: int) -> File:
        file = self._files.pop(segment, None)
        if file is None:
            if len(self._files) >= _OPEN_FILES_MAX:
                self._files.pop(next(iter(self._files))).close()
            file = self._disk.open(segment_name(segment))
        self._files[segment] = file
        return file

    def close(self) -> None:
        for file in self._files.values():
            file.close()


def survey(view: StoreReader, disk: Files, *, with_owners: bool = False) -> list[SegmentSpace]:
    """Return the use of every segment that the checkpoint lists, in the order of the journal.

    Damaged rows and missing files are left out. Raises OSError, BadSeal or DecodeError if there is
    no way to continue.
    """
    position = read_position(view)
    if position is None:
        return []
    lengths = _FrameLengths(disk)
    try:
        spaces = {space.first: space for space in _listed(position, lengths)}
        for stream, block in _blocks(view):
            space = spaces.get(block.segment)
            if space is not None and not space.is_open:
                live = _block_bytes(block, lengths)
                space.live_bytes += live
                if with_owners:
                    space.streams[stream] += live
        firsts = list(spaces)
        for txn, lsn in _chunks(view):
            at = bisect_right(firsts, lsn) - 1
            space = spaces[firsts[at]] if at >= 0 else None
            if space is not None and not space.is_open:
                live = round(lengths.mean(space.first, [lsn - space.first]))
                space.live_bytes += live
                if with_owners:
                    space.transactions[txn] += live
    finally:
        lengths.close()
    for space in spaces.values():
        space.live_bytes = min(space.live_bytes, space.disk_bytes)
    return list(spaces.values())


def _listed(position: CheckpointPosition, lengths: _FrameLengths) -> Iterator[SegmentSpace]:
    for first, end in position.segments:
        with suppress(FileNotFoundError):
            size = lengths.size(first)
            is_open = end > position.lsn
            yield SegmentSpace(first, size, size if is_open else 0, is_open)


def _blocks(view: StoreReader) -> Iterator[tuple[int, IndexBlock]]:
    for key, sealed in view.scan("index"):
        with suppress(BadSeal):
            yield split_key(key)[0], decode_block(key, sealed)


def _block_bytes(block: IndexBlock, lengths: _FrameLengths) -> int:
    positions = list(block.positions)
    step = -(-len(positions) // _MEASURED_MAX)
    return round(lengths.mean(block.segment, positions[::step]) * len(positions))


def _chunks(view: StoreReader) -> Iterator[tuple[int, int]]:
    """Yield the transaction and the LSN of every chunk of a pending transaction."""
    decode = msgspec.msgpack.Decoder(ChunkBlockRow).decode
    for key, sealed in view.scan("parts"):
        with suppress(BadSeal):
            for lsn in lsns_of(decode(unseal("parts", key, sealed)).packed):
                yield PAIR_KEY.decode(key)[0], lsn


class SpaceSurvey:
    """The result of the last survey of the segments.

    The space that is needed changes only with checkpoints. So the thread that commits checkpoints
    makes the survey after a checkpoint, but never for more than about 2 % of its time.
    """

    def __init__(self, disk: Files, store: TableReader) -> None:
        self._disk = disk
        self._store = store
        self._next_at = 0.0
        self.segments: list[SegmentSpace] = []

    def refresh(self) -> None:
        """Make a survey, unless the last one was too recent.

        If the checkpoint or a segment cannot be read, the last result stays: reads report damage.
        """
        started = monotonic()
        if started < self._next_at:
            return
        try:
            with self._store.read() as view:
                self.segments = survey(view, self._disk)
        except (OSError, BadSeal, EngineError, msgspec.DecodeError):
            return
        finally:
            finished = monotonic()
            self._next_at = finished + _PAUSE * (finished - started)
