"""Where each stream's messages are: (stream, offset) -> position of the frame.

Positions since the last checkpoint are in memory, packed in chunks; older ones are rows of the
checkpoint store. An entry is only a hint: the frame's own header has the last word.
"""

import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import Final

from semel.journal.seal import BadSeal, seal, unseal
from semel.journal.store import Store
from semel.model.errors import CorruptRead
from semel.model.limits import INDEX_CHUNK_FRAMES_MAX

_KEY: Final = struct.Struct(">QQ")
_HEAD: Final = struct.Struct("<QQI")
_TABLE: Final = "index"


class Chunk:
    """Neighbouring frames of one stream in one segment.

    Offsets count from `first`, positions from the start of the segment.
    """

    __slots__ = ("first", "next", "offsets", "positions", "segment")

    def __init__(self, first: int, segment: int) -> None:
        self.first = first
        self.next = first
        self.segment = segment
        self.offsets = array("I")
        self.positions = array("I")

    def add(self, base: int, count: int, lsn: int) -> None:
        """Note one more frame."""
        self.offsets.append(base - self.first)
        self.positions.append(lsn - self.segment)
        self.next = base + count

    def frames(self, offset: int) -> Iterator[int]:
        """List the positions of the frames from the one that holds `offset` on."""
        start = (
            max(bisect_right(self.offsets, offset - self.first) - 1, 0)
            if offset > self.first
            else 0
        )
        for index in range(start, len(self.positions)):
            yield self.segment + self.positions[index]


def chunk_key(stream: int, first: int) -> bytes:
    """Make the key of a chunk's row."""
    return _KEY.pack(stream, first)


def split_key(key: bytes) -> tuple[int, int]:
    """Read stream and first offset from a key; raises BadSeal if it is no key of the index."""
    if len(key) != _KEY.size:
        raise BadSeal(_TABLE, key)
    stream, first = _KEY.unpack(key)
    return stream, first


def encode_chunk(stream: int, chunk: Chunk) -> bytes:
    """Make the value of a chunk's row."""
    head = _HEAD.pack(chunk.next, chunk.segment, len(chunk.offsets))
    value = head + chunk.offsets.tobytes() + chunk.positions.tobytes()
    return seal(_TABLE, chunk_key(stream, chunk.first), value)


def decode_chunk(key: bytes, value: bytes) -> Chunk:
    """Read a chunk's row; raises BadSeal if it is not what was written."""
    body = unseal(_TABLE, key, value)
    next_offset, segment, count = _HEAD.unpack_from(body)
    if len(body) != _HEAD.size + 8 * count:
        raise BadSeal(_TABLE, key)
    chunk = Chunk(split_key(key)[1], segment)
    chunk.next = next_offset
    middle = _HEAD.size + 4 * count
    chunk.offsets.frombytes(body[_HEAD.size : middle])
    chunk.positions.frombytes(body[middle:])
    return chunk


class Index:
    """The index of a running journal."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._fresh: dict[int, list[Chunk]] = {}
        self._sealing: dict[int, list[Chunk]] = {}

    def add(self, stream: int, base: int, count: int, lsn: int, segment: int) -> None:
        """Note where a frame's section went."""
        chunks = self._fresh.get(stream)
        if chunks is None:
            chunk = Chunk(base, segment)
            self._fresh[stream] = [chunk]
        else:
            chunk = chunks[-1]
            if chunk.segment != segment or len(chunk.offsets) >= INDEX_CHUNK_FRAMES_MAX:
                chunk = Chunk(base, segment)
                chunks.append(chunk)
        chunk.add(base, count, lsn)

    def forget(self, stream: int) -> None:
        """Drop what is in memory of a removed stream."""
        self._fresh.pop(stream, None)

    def cut(self) -> dict[int, list[Chunk]]:
        """Hand over all chunks in memory for a checkpoint; they stay readable until it is done."""
        self._sealing, self._fresh = self._fresh, {}
        return self._sealing

    def finish_cut(self) -> None:
        """The checkpoint holds the chunks now."""
        self._sealing = {}

    def undo_cut(self) -> None:
        """The checkpoint did not happen: take the chunks back."""
        for stream, chunks in self._fresh.items():
            self._sealing.setdefault(stream, []).extend(chunks)
        self._fresh, self._sealing = self._sealing, {}

    def frames(self, stream: int, offset: int, end: int) -> Iterator[int]:
        """List the positions of the frames that hold a stream's offsets from `offset` to `end`.

        A hole in the offsets is corruption, never skipped.
        """
        while offset < end:
            chunk = self._find(stream, offset)
            if chunk is None or not chunk.first <= offset < chunk.next:
                raise CorruptRead(
                    f"the index has a hole at offset {offset}",
                    file=f"stream {stream}",
                    position=offset,
                )
            yield from chunk.frames(offset)
            offset = chunk.next

    def _find(self, stream: int, offset: int) -> Chunk | None:
        for table in (self._fresh, self._sealing):
            chunks = table.get(stream)
            if chunks and offset >= chunks[0].first:
                return chunks[bisect_right(chunks, offset, key=_first) - 1]
        with self._store.read() as view:
            found = view.last_before(_TABLE, chunk_key(stream, offset))
        try:
            if found is None or split_key(found[0])[0] != stream:
                return None
            return decode_chunk(*found)
        except BadSeal as error:
            raise CorruptRead(str(error), file="checkpoint", position=offset) from error


def _first(chunk: Chunk) -> int:
    return chunk.first
