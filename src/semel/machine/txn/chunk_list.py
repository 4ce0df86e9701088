"""The chunks of a staged transaction, or the extents of an inline one, packed in chunk blocks.

An entry is 24 bytes: the LSN of a chunk's frame or the first offset of an extent, the stream, the
number of messages, and for a chunk its digest. Blocks are immutable, so that a checkpoint can refer
to them.
"""

from collections.abc import Iterator
from struct import Struct as Layout
from typing import Final

_CHUNK: Final = Layout("<QQII")
CHUNK_BYTES: Final = _CHUNK.size
_BLOCK_CHUNKS: Final = 256
BLOCK_BYTES: Final = _BLOCK_CHUNKS * CHUNK_BYTES

_EXTENT: Final = Layout("<QQQII")
EXTENT_BYTES: Final = _EXTENT.size

assert CHUNK_BYTES == 24
assert EXTENT_BYTES == 32


def push_chunk(blocks: list[bytes], start: int, stream: int, count: int, digest: int = 0) -> int:
    """Add an entry; return the index of the block that changed."""
    packed = _CHUNK.pack(start, stream, count, digest)
    if not blocks or len(blocks[-1]) >= BLOCK_BYTES:
        blocks.append(packed)
    else:
        blocks[-1] += packed
    return len(blocks) - 1


def push_extent(blocks: list[bytes], first: int, stream: int, count: int) -> int:
    """Add an extent, merged with the last one if it continues that; return the block's index."""
    if blocks:
        last_first, last_stream, last_count, _ = _CHUNK.unpack_from(blocks[-1], -CHUNK_BYTES)
        if last_stream == stream and last_first + last_count == first:
            blocks[-1] = blocks[-1][:-CHUNK_BYTES]
            first, count = last_first, last_count + count
            if not blocks[-1]:
                blocks.pop()
    return push_chunk(blocks, first, stream, count)


def chunks_in(blocks: list[bytes]) -> Iterator[tuple[int, int, int]]:
    """Yield all entries: LSN or first offset, stream, count."""
    for block in blocks:
        for start, stream, count, _ in _CHUNK.iter_unpack(block):
            yield start, stream, count


def chunk_at(blocks: list[bytes], seq: int) -> tuple[int, int]:
    """Return the stream and the digest of chunk `seq` of a staged transaction."""
    block, index = divmod(seq, _BLOCK_CHUNKS)
    _, stream, _, digest = _CHUNK.unpack_from(blocks[block], index * CHUNK_BYTES)
    return stream, digest


def lsns_of(block: bytes) -> set[int]:
    """Return the LSNs of the chunks in a block."""
    return set(memoryview(block).cast("Q")[::3])


def pack_extent(lsn: int, stream: int, base: int, count: int) -> bytes:
    return _EXTENT.pack(lsn, stream, base, count, 0)


def extents_of(packed: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Yield the extents of a decision frame: LSN of the chunk, stream, first offset, count."""
    for lsn, stream, base, count, _ in _EXTENT.iter_unpack(packed):
        yield lsn, stream, base, count
