"""The parts of an open transaction, in pages: a staged one's chunks, an inline one's extents.

A part is 24 bytes: its place (the position of a chunk's frame, or the first offset of an extent),
its stream, how many messages it has, and of a chunk a digest of those. Pages are frozen, so that a
checkpoint may refer to them.
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


def push_chunk(pages: list[bytes], place: int, stream: int, count: int, digest: int = 0) -> int:
    """Add a part; answer the page that changed."""
    packed = _CHUNK.pack(place, stream, count, digest)
    if not pages or len(pages[-1]) >= BLOCK_BYTES:
        pages.append(packed)
    else:
        pages[-1] += packed
    return len(pages) - 1


def push_extent(pages: list[bytes], first: int, stream: int, count: int) -> int:
    """Add offsets; those that follow the last ones become one with them."""
    if pages:
        last_first, last_stream, last_count, _ = _CHUNK.unpack_from(pages[-1], -CHUNK_BYTES)
        if last_stream == stream and last_first + last_count == first:
            pages[-1] = pages[-1][:-CHUNK_BYTES]
            first, count = last_first, last_count + count
            if not pages[-1]:
                pages.pop()
    return push_chunk(pages, first, stream, count)


def chunks_in(pages: list[bytes]) -> Iterator[tuple[int, int, int]]:
    """List all parts: place, stream, count."""
    for page in pages:
        for place, stream, count, _ in _CHUNK.iter_unpack(page):
            yield place, stream, count


def chunk_at(pages: list[bytes], seq: int) -> tuple[int, int]:
    """Find the stream and the digest of a staged transaction's chunk by its number."""
    page, part = divmod(seq, _BLOCK_CHUNKS)
    _, stream, _, digest = _CHUNK.unpack_from(pages[page], part * CHUNK_BYTES)
    return stream, digest


def lsns_of(page: bytes) -> set[int]:
    """List the places of a page."""
    return set(memoryview(page).cast("Q")[::3])


def pack_extent(lsn: int, stream: int, base: int, count: int) -> bytes:
    """Pack where a decision puts a chunk."""
    return _EXTENT.pack(lsn, stream, base, count, 0)


def extents_of(packed: bytes) -> Iterator[tuple[int, int, int, int]]:
    """List the extents of a decision: position of the chunk, stream, base offset, count."""
    for lsn, stream, base, count, _ in _EXTENT.iter_unpack(packed):
        yield lsn, stream, base, count
