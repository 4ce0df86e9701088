"""The index: it maps a stream and an offset to the LSN of the frame that contains the message.

Index entries are packed in index blocks. New blocks are in memory until a checkpoint stores them.
An index entry can be wrong. Therefore readers check the frame to which the entry points.
"""

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import Struct

from semel.journal.segments import Segments
from semel.journal.store import BadSeal, Store, reading, seal, unseal
from semel.machine.events import SECTION_CONTROL, SECTION_STAGED, Section
from semel.machine.txn.draft import EXTENT_BYTES, extents_of
from semel.model.errors import CorruptRead
from semel.model.limits import INDEX_CHUNK_FRAMES_MAX

_KEY: Final = struct.Struct(">QQ")
KEY_BYTES: Final = _KEY.size
_HEAD: Final = struct.Struct("<QQI")
_ENTRY: Final = struct.Struct("<II")
_ENTRIES_BYTES_MAX: Final = _ENTRY.size * INDEX_CHUNK_FRAMES_MAX
_TABLE: Final = "index"
STEP_CHUNKS: Final = 10_000  # chunks that are indexed in one step, which takes 5 to 10 milliseconds


class IndexBlock(Struct, gc=False, eq=False):
    """The index entries for consecutive frames of one stream in one segment.

    The block covers the offsets from `first` up to, but not including, `next`. For each frame,
    `entries` contains two little-endian u32 numbers: the frame's first offset and its position
    (see `offsets` and `positions`). The blocks that a stream got since the last cut are linked:
    `older` is the previous one, or None.
    """

    first: int
    next: int
    segment: int
    entries: bytearray
    older: "IndexBlock | None" = None

    @property
    def offsets(self) -> "array[int]":
        """The first offset of each frame, counted from the block's `first`."""
        return array("I", self.entries)[::2]

    @property
    def positions(self) -> "array[int]":
        """The position of each frame, relative to the start of the segment."""
        return array("I", self.entries)[1::2]

    def frames(self, offset: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the LSN and first offset of each frame with messages from `offset` to `end`.

        The offset `end` is excluded. Only the needed entries are copied, because one client read
        can call this method for many small ranges.
        """
        entries = range(len(self.entries) // _ENTRY.size)
        start = bisect_right(entries, offset - self.first, key=self._offset_of) - 1
        stop = bisect_left(entries, end - self.first, key=self._offset_of)
        entries_between = self.entries[_ENTRY.size * start : _ENTRY.size * stop]
        for base, position in _ENTRY.iter_unpack(entries_between):
            yield self.segment + position, self.first + base

    def _offset_of(self, entry: int) -> int:
        base: int = _ENTRY.unpack_from(self.entries, _ENTRY.size * entry)[0]
        return base


def block_key(stream: int, first: int) -> bytes:
    return _KEY.pack(stream, first)


def split_key(key: bytes) -> tuple[int, int]:
    """Return the stream number and the first offset that a key of the index contains.

    Raises BadSeal if `key` is not a key of the index.
    """
    if len(key) != KEY_BYTES:
        raise BadSeal(_TABLE, key)
    return _KEY.unpack(key)


def encode_block(stream: int, block: IndexBlock) -> bytes:
    """Return the sealed value to store in the row of an index block."""
    head = _HEAD.pack(block.next, block.segment, len(block.entries) // _ENTRY.size)
    return seal(_TABLE, block_key(stream, block.first), head + block.entries)


def decode_block(key: bytes, value: bytes) -> IndexBlock:
    """Return the index block that a row contains. Raises BadSeal if the row is damaged."""
    body = unseal(_TABLE, key, value)
    next_offset, segment, count = _HEAD.unpack_from(body)
    if len(body) != _HEAD.size + _ENTRY.size * count:
        raise BadSeal(_TABLE, key)
    return IndexBlock(split_key(key)[1], next_offset, segment, bytearray(body[_HEAD.size :]))


class Index:
    """The index of a running engine."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._fresh: dict[int, IndexBlock] = {}
        self._sealing: dict[int, IndexBlock] = {}
        self.late: Final[deque[Iterator[int]]] = deque()  # frames with entries to add, in order

    def add(self, stream: int, base: int, count: int, lsn: int, segment: int) -> None:
        """Add an entry for the `count` messages that start at offset `base`, in the frame at `lsn`.

        `segment` is the first LSN of the segment that contains the frame.
        """
        block = self._fresh.get(stream)
        if block is None or block.segment != segment or len(block.entries) >= _ENTRIES_BYTES_MAX:
            block = IndexBlock(base, base, segment, bytearray(), block)
            self._fresh[stream] = block
        block.entries += _ENTRY.pack(base - block.first, lsn - segment)
        block.next = base + count

    def add_frame(
        self,
        lsn: int,
        sections: Iterable[Section],
        placed: bytes,
        segments: Segments,
    ) -> None:
        """Add the entries for a frame, in the order of offsets.

        In each stream, the messages in the frame come first, then the chunks that the frame commits
        (their packed extents are in `placed`), and then the control records.
        """
        for _ in self._frame_steps(lsn, sections, placed, segments):
            pass

    def add_frame_in_steps(
        self, lsn: int, sections: Iterable[Section], placed: bytes, segments: Segments
    ) -> None:
        """Do the same as `add_frame`, or leave it to `catch_up` if there are very many chunks.

        Until then, further frames must also be added with this method, because the entries of a
        stream must be in order.
        """
        if self.late or len(placed) > EXTENT_BYTES * STEP_CHUNKS:
            self.late.append(self._frame_steps(lsn, sections, placed, segments))
        else:
            self.add_frame(lsn, sections, placed, segments)

    def catch_up(self) -> bool:
        """Add about STEP_CHUNKS entries of `late` frames. Return True if none is left."""
        added = 0
        while self.late and added < STEP_CHUNKS:
            step = next(self.late[0], None)
            if step is None:
                self.late.popleft()
            else:
                added += step
        return not self.late

    def catch_up_with_all(self) -> None:
        """Add all entries of `late` frames."""
        while not self.catch_up():
            pass

    def _frame_steps(
        self, lsn: int, sections: Iterable[Section], placed: bytes, segments: Segments
    ) -> Iterator[int]:
        """Add the entries for a frame. Yield how many were added since the last time."""
        segment = segments.first_of(lsn)
        controls = []
        for section in sections:
            if section.kind == SECTION_CONTROL:
                controls.append(section)
            elif section.kind != SECTION_STAGED:
                self.add(section.stream, section.base, section.count, lsn, segment)
        added = 1
        for chunk_lsn, stream, base, count in extents_of(placed):
            self.add(stream, base, count, chunk_lsn, segments.first_of(chunk_lsn))
            added += 1
            if added >= STEP_CHUNKS:
                yield added
                added = 0
        for section in controls:
            self.add(section.stream, section.base, 1, lsn, segment)
        yield added + len(controls)

    def forget(self, stream: int) -> None:
        """Drop the blocks of a removed stream from memory."""
        self._fresh.pop(stream, None)

    def cut(self) -> dict[int, IndexBlock]:
        """Return the newest block of each stream that has blocks in memory.

        A checkpoint stores these blocks and all blocks that can be reached from them by `older`.
        All of them stay readable until the checkpoint is done.
        """
        self.catch_up_with_all()
        self._sealing, self._fresh = self._fresh, {}
        return self._sealing

    def finish_cut(self) -> None:
        """Drop the blocks that `cut` returned, because the checkpoint now contains them."""
        self._sealing = {}

    def undo_cut(self) -> None:
        """Restore the blocks that `cut` returned, because the checkpoint was not made."""
        for stream, newest in self._fresh.items():
            oldest = newest
            while oldest.older is not None:
                oldest = oldest.older
            oldest.older = self._sealing.get(stream)
        self._fresh, self._sealing = self._sealing | self._fresh, {}

    def frames(self, stream: int, offset: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the LSN and first offset of each frame with messages from `offset` to `end`.

        The offset `end` is excluded. The first offset is yielded because the frame of a staged
        chunk does not store any offset. Raises CorruptRead if an offset in the range has no entry.
        """
        while offset < end:
            block = self._find(stream, offset)
            if block is None or not block.first <= offset < block.next:
                raise CorruptRead(
                    f"the index has no entry for offset {offset}",
                    file=f"stream {stream}",
                    position=offset,
                )
            yield from block.frames(offset, end)
            offset = block.next

    def _find(self, stream: int, offset: int) -> IndexBlock | None:
        for table in (self._fresh, self._sealing):
            block = table.get(stream)
            while block is not None:
                if offset >= block.first:
                    return block
                block = block.older
        with reading(self._store) as view:
            row = view.last_before(_TABLE, block_key(stream, offset))
            if row is None or split_key(row[0])[0] != stream:
                return None
            return decode_block(*row)
