"""The draft of a frame that changes several streams, and how chunks and extents are packed.

Only a draft assigns the offsets of chunks and control records.
"""

from collections.abc import Iterator
from struct import Struct as Layout
from typing import Final

from semel.machine.checks import section_of
from semel.machine.events import SECTION_CONTROL, Ended, Section
from semel.machine.rows import RegistryRow
from semel.machine.state import State, Stream, Txn
from semel.model.commands import BY_FENCE, BY_OPERATOR, TXN_INLINE, Batch, ProducerOwner

# ---- packed chunks and extents -------------------------------------------------------------------
# The chunks of a staged transaction, or the extents of an inline one, in chunk blocks. An entry is
# 24 bytes: the LSN of a chunk's frame or the first offset of an extent, the stream, the number of
# messages, and for a chunk its digest. Blocks are immutable, so that a checkpoint can refer to
# them.


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


# ---- draft ---------------------------------------------------------------------------------------


class Draft:
    """The sections and ends of one frame: messages first, then control records."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._tails: dict[int, int] = {}
        self._extents: list[bytes] = []
        self.sections: list[Section] = []
        self.ended: list[Ended] = []

    @property
    def extents(self) -> bytes:
        """The extents of all chunks, packed."""
        return b"".join(self._extents)

    def tail_of(self, stream: Stream) -> int:
        """Return the tail of a stream after the draft."""
        return self._tails.get(stream.row.number, stream.tail.tail)

    def append(self, stream: Stream, batch: Batch) -> None:
        row, base = stream.row, self.tail_of(stream)
        self.sections.append(section_of(row.number, base, batch, row.content_type))
        self._tails[row.number] = base + batch.count

    def advance(self, stream: Stream, count: int) -> None:
        """Count messages for which the caller makes the section."""
        self._tails[stream.row.number] = self.tail_of(stream) + count

    def place_chunks(self, txn: Txn) -> None:
        """Assign offsets to the chunks of a staged transaction, except those of ended streams.

        The loop runs once per chunk, of which there may be a million.
        """
        if txn.row.kind == TXN_INLINE:
            return
        tails, streams, by_number = self._tails, txn.streams, self._state.by_number
        for lsn, number, count in chunks_in(txn.chunk_blocks):
            if number in streams:
                base = tails.get(number, by_number[number].tail.tail)
                self._extents.append(pack_extent(lsn, number, base, count))
                tails[number] = base + count

    def end(self, txn: Txn, *, is_committed: bool, reason: str = "") -> None:
        """End a transaction, with a control record in each stream that has messages of it."""
        markers: list[tuple[int, int]] = []
        if txn.row.kind == TXN_INLINE:
            for number, row in txn.streams.items():
                if row.first >= 0:
                    base = self.tail_of(self._state.by_number[number])
                    self.sections.append(Section(number, base, 1, b"", kind=SECTION_CONTROL))
                    self._tails[number] = base + 1
                    markers.append((number, base))
        self.ended.append(Ended(txn.row.number, is_committed, reason, tuple(markers)))

    def fence(self, producer_id: str, epoch: int, *, named: int = 0) -> None:
        """Abort pending transactions of older instances; an operator has `named` one of them."""
        for number in sorted(self._state.owned.get((True, producer_id), ())):
            txn = self._state.by_txn[number]
            owner = txn.row.owner
            assert isinstance(owner, ProducerOwner)
            if owner.epoch < epoch:
                reason = BY_OPERATOR if number == named else BY_FENCE
                self.end(txn, is_committed=False, reason=reason)


def is_raised(registered: RegistryRow | None, epoch: int) -> bool:
    """Return whether an epoch is above that of the registry, or the producer not in it."""
    return registered is None or epoch > registered.epoch
