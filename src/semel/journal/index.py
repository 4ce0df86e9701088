"""Where each stream's messages are: (stream, offset) -> position of the frame.

Positions since the last checkpoint are in memory, packed in chunks; older ones are rows of the
checkpoint store. An entry is only a hint: the frame's own header has the last word.
"""

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import Struct

from semel.journal.identity import BadSeal, seal, unseal
from semel.journal.segments import Segments
from semel.journal.store import Store
from semel.machine.events import SECTION_CONTROL, SECTION_STAGED, Section
from semel.machine.rows import PlacedChunkRow
from semel.model.errors import CorruptRead
from semel.model.limits import INDEX_CHUNK_FRAMES_MAX

_KEY: Final = struct.Struct(">QQ")
KEY_BYTES: Final = _KEY.size
_HEAD: Final = struct.Struct("<QQI")
_ENTRY: Final = struct.Struct("<II")
_ENTRIES_BYTES_MAX: Final = _ENTRY.size * INDEX_CHUNK_FRAMES_MAX
_TABLE: Final = "index"


class IndexBlock(Struct, gc=False, eq=False):
    """Neighbouring frames of one stream in one segment.

    `entries` holds two little-endian u32 for each: its first offset counted from `first`, and its
    position counted from the start of the segment. `older`: the chunk before it, if that is in
    memory too.
    """

    first: int
    next: int
    segment: int
    entries: bytearray
    older: "IndexBlock | None" = None

    @property
    def offsets(self) -> "array[int]":
        """The frames' first offsets, counted from `first`."""
        return array("I", self.entries)[::2]

    @property
    def positions(self) -> "array[int]":
        """The frames' positions, counted from the start of the segment."""
        return array("I", self.entries)[1::2]

    def frames(self, offset: int, end: int) -> Iterator[tuple[int, int]]:
        """List the frames that hold `offset` up to `end`: position, and first offset.

        What was aborted cuts reads into many small ranges: it must not cost a copy of the chunk.
        """
        entries = range(len(self.entries) // _ENTRY.size)
        start = bisect_right(entries, offset - self.first, key=self._offset_of) - 1
        stop = bisect_left(entries, end - self.first, key=self._offset_of)
        some = self.entries[_ENTRY.size * start : _ENTRY.size * stop]
        for base, position in _ENTRY.iter_unpack(some):
            yield self.segment + position, self.first + base

    def _offset_of(self, entry: int) -> int:
        base: int = _ENTRY.unpack_from(self.entries, _ENTRY.size * entry)[0]
        return base


def block_key(stream: int, first: int) -> bytes:
    """Make the key of a chunk's row."""
    return _KEY.pack(stream, first)


def split_key(key: bytes) -> tuple[int, int]:
    """Read stream and first offset from a key; raises BadSeal if it is no key of the index."""
    if len(key) != KEY_BYTES:
        raise BadSeal(_TABLE, key)
    stream, first = _KEY.unpack(key)
    return stream, first


def encode_block(stream: int, chunk: IndexBlock) -> bytes:
    """Make the value of a chunk's row."""
    head = _HEAD.pack(chunk.next, chunk.segment, len(chunk.entries) // _ENTRY.size)
    return seal(_TABLE, block_key(stream, chunk.first), head + chunk.entries)


def decode_block(key: bytes, value: bytes) -> IndexBlock:
    """Read a chunk's row; raises BadSeal if it is not what was written."""
    body = unseal(_TABLE, key, value)
    next_offset, segment, count = _HEAD.unpack_from(body)
    if len(body) != _HEAD.size + _ENTRY.size * count:
        raise BadSeal(_TABLE, key)
    return IndexBlock(split_key(key)[1], next_offset, segment, bytearray(body[_HEAD.size :]))


class Index:
    """The index of a running journal."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._fresh: dict[int, IndexBlock] = {}
        self._sealing: dict[int, IndexBlock] = {}

    def add(self, stream: int, base: int, count: int, lsn: int, segment: int) -> None:
        """Note where a frame's section went."""
        chunk = self._fresh.get(stream)
        if chunk is None or chunk.segment != segment or len(chunk.entries) >= _ENTRIES_BYTES_MAX:
            chunk = IndexBlock(base, base, segment, bytearray(), chunk)
            self._fresh[stream] = chunk
        chunk.entries += _ENTRY.pack(base - chunk.first, lsn - segment)
        chunk.next = base + count

    def add_frame(
        self,
        lsn: int,
        sections: Iterable[Section],
        placed: Iterable[PlacedChunkRow],
        segments: Segments,
    ) -> None:
        """Add a frame, in the order of offsets: messages, placed chunks, then control records."""
        segment = segments.first_of(lsn)
        controls = []
        for section in sections:
            if section.kind == SECTION_CONTROL:
                controls.append(section)
            elif section.kind != SECTION_STAGED:
                self.add(section.stream, section.base, section.count, lsn, segment)
        for chunk in placed:
            self.add(chunk.stream, chunk.base, chunk.count, chunk.lsn, segments.first_of(chunk.lsn))
        for section in controls:
            self.add(section.stream, section.base, 1, lsn, segment)

    def forget(self, stream: int) -> None:
        """Drop what is in memory of a removed stream."""
        self._fresh.pop(stream, None)

    def cut(self) -> dict[int, IndexBlock]:
        """Hand over all chunks in memory for a checkpoint; they stay readable until it is done."""
        self._sealing, self._fresh = self._fresh, {}
        return self._sealing

    def finish_cut(self) -> None:
        """The checkpoint holds the chunks now."""
        self._sealing = {}

    def undo_cut(self) -> None:
        """The checkpoint did not happen: take the chunks back."""
        for stream, chunk in self._fresh.items():
            oldest = chunk
            while oldest.older is not None:
                oldest = oldest.older
            oldest.older = self._sealing.get(stream)
        self._fresh, self._sealing = self._sealing | self._fresh, {}

    def frames(self, stream: int, offset: int, end: int) -> Iterator[tuple[int, int]]:
        """List the frames that hold a stream's offsets from `offset` to `end`.

        Each with its position and the first offset it has of the stream: a staged chunk does not
        know that by itself. A hole in the offsets is corruption, never skipped.
        """
        while offset < end:
            chunk = self._find(stream, offset)
            if chunk is None or not chunk.first <= offset < chunk.next:
                raise CorruptRead(
                    f"the index has a hole at offset {offset}",
                    file=f"stream {stream}",
                    position=offset,
                )
            yield from chunk.frames(offset, end)
            offset = chunk.next

    def _find(self, stream: int, offset: int) -> IndexBlock | None:
        for table in (self._fresh, self._sealing):
            chunk = table.get(stream)
            while chunk is not None:
                if offset >= chunk.first:
                    return chunk
                chunk = chunk.older
        with self._store.read() as view:
            found = view.last_before(_TABLE, block_key(stream, offset))
        try:
            if found is None or split_key(found[0])[0] != stream:
                return None
            return decode_block(*found)
        except BadSeal as error:
            raise CorruptRead(str(error), file="checkpoint", position=offset) from error
