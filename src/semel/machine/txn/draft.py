"""This module builds frames that change several streams, and computes the results of commits.

Only this module assigns offsets to chunks and control records.
"""

from array import array
from collections.abc import Iterable, Iterator, Mapping
from itertools import compress
from struct import Struct as Layout
from typing import Final

import msgspec

from semel.machine.checks import section_of
from semel.machine.events import SECTION_CONTROL, SECTION_DATA, Decided, Ended, Section
from semel.machine.rows import RegistryRow, TxnRow
from semel.machine.state import State, Stream, Txn
from semel.model.commands import (
    BY_FENCE,
    BY_OPERATOR,
    TXN_INLINE,
    Batch,
    PositionResult,
    ProducerOwner,
    StreamResult,
    TxnResult,
)
from semel.model.limits import RESULTS_BYTES_MAX, RESULTS_KEPT

# ---- packed chunks and extents -------------------------------------------------------------------
# Chunk blocks store the chunks of a staged transaction, or the extents of an inline transaction.
# An entry has 24 bytes and four fields: the LSN of the chunk's frame (for an extent: its first
# offset), the stream, the number of messages, and the digest of the chunk (for an extent: 0).
# Blocks are immutable because a checkpoint keeps references to them.


_CHUNK: Final = Layout("<QQII")
CHUNK_BYTES: Final = _CHUNK.size
_BLOCK_CHUNKS: Final = 256
BLOCK_BYTES: Final = _BLOCK_CHUNKS * CHUNK_BYTES

_EXTENT: Final = Layout("<QQQII")
EXTENT_BYTES: Final = _EXTENT.size

assert CHUNK_BYTES == 24
assert EXTENT_BYTES == 32


def push_chunk(blocks: list[bytes], start: int, stream: int, count: int, digest: int = 0) -> int:
    """Add a chunk or an extent to `blocks` and return the index of the block that changed."""
    packed = _CHUNK.pack(start, stream, count, digest)
    if not blocks or len(blocks[-1]) >= BLOCK_BYTES:
        blocks.append(packed)
    else:
        blocks[-1] += packed
    return len(blocks) - 1


def push_extent(blocks: list[bytes], first: int, stream: int, count: int) -> int:
    """Add an extent (`count` offsets from `first`) to `blocks`. Return the changed block's index.

    If the last extent in `blocks` is in the same stream and ends at `first`, the two are merged.
    """
    if blocks:
        last_first, last_stream, last_count, _ = _CHUNK.unpack_from(blocks[-1], -CHUNK_BYTES)
        if last_stream == stream and last_first + last_count == first:
            blocks[-1] = blocks[-1][:-CHUNK_BYTES]
            first, count = last_first, last_count + count
            if not blocks[-1]:
                blocks.pop()
    return push_chunk(blocks, first, stream, count)


def chunks_in(blocks: list[bytes]) -> Iterator[tuple[int, int, int]]:
    """Yield each chunk as (LSN, stream, count), or each extent as (first offset, stream, count)."""
    for block in blocks:
        for start, stream, count, _ in _CHUNK.iter_unpack(block):
            yield start, stream, count


def chunk_count(blocks: list[bytes]) -> int:
    """Return the number of chunks or extents in `blocks`."""
    return (len(blocks) - 1) * _BLOCK_CHUNKS + len(blocks[-1]) // CHUNK_BYTES if blocks else 0


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


def _chunk_columns(blocks: list[bytes]) -> "tuple[array[int], array[int], array[int]]":
    """Return the LSNs, the streams and the numbers of messages of all chunks in `blocks`."""
    packed = b"".join(blocks)
    words = array("Q", packed)
    return words[0::3], words[1::3], array("I", packed)[4::6]


def _pack_extents(
    lsns: "array[int]", streams: "array[int]", bases: Iterable[int], counts: "array[int]"
) -> bytes:
    words = array("Q", [0]) * (4 * len(lsns))
    words[0::4], words[1::4], words[2::4] = lsns, streams, array("Q", bases)
    with memoryview(words) as view:  # a count has 4 bytes, and the 4 bytes after it are 0
        view.cast("B").cast("I")[6::8] = memoryview(counts)
    return words.tobytes()


def extent_columns(packed: bytes) -> "tuple[array[int], array[int], array[int]]":
    """Return the streams, the first offsets and the counts of all extents of a decision frame."""
    words = array("Q", packed)
    return words[1::4], words[2::4], array("I", packed)[6::8]


def extents_of(packed: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Yield each extent of a decision frame as (LSN of the chunk, stream, first offset, count)."""
    for lsn, stream, base, count, _ in _EXTENT.iter_unpack(packed):
        yield lsn, stream, base, count


# The offsets that the chunks of a transaction get in each stream: the first one, and the one after
# the last one.
Spans = Mapping[int, tuple[int, int]]


# ---- draft ---------------------------------------------------------------------------------------


class Draft:
    """A frame that is being built: its sections and the transactions that it ends.

    Sections with messages come first, then control records.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._tails: dict[int, int] = {}
        self._extents: list[bytes] = []
        self.spans: list[Spans] = []  # of each transaction whose chunks were placed
        self.sections: list[Section] = []
        self.ended: list[Ended] = []

    @property
    def extents(self) -> bytes:
        """The packed extents of all chunks to which this draft has assigned offsets."""
        return b"".join(self._extents)

    def tail_of(self, stream: Stream) -> int:
        """Return the tail that `stream` will have after this frame."""
        return self._tails.get(stream.row.number, stream.tail.tail)

    def append(self, stream: Stream, batch: Batch) -> None:
        row, base = stream.row, self.tail_of(stream)
        self.sections.append(section_of(row.number, base, batch, row.content_type))
        self._tails[row.number] = base + batch.count

    def advance(self, stream: Stream, count: int) -> None:
        """Reserve `count` offsets at the tail of `stream` for messages that the caller adds."""
        self._tails[stream.row.number] = self.tail_of(stream) + count

    def place_chunks(self, txn: Txn) -> None:
        """Assign offsets to the chunks of a staged transaction.

        Chunks for deleted streams are skipped. This method must be fast, because a transaction can
        have hundreds of thousands of chunks.
        """
        if txn.row.kind == TXN_INLINE:
            self.spans.append({})
            return
        lsns, numbers, counts = _chunk_columns(txn.chunk_blocks)
        if txn.row.deleted:
            kept = [number in txn.streams for number in numbers]
            lsns, numbers = array("Q", compress(lsns, kept)), array("Q", compress(numbers, kept))
            counts = array("I", compress(counts, kept))
        firsts = first_offsets(self._state, txn, self._tails)
        tails: dict[int, int] = dict(firsts)
        bases: list[int] = []
        add = bases.append
        for number, count in zip(numbers, counts, strict=True):
            base = tails[number]
            add(base)
            tails[number] = base + count
        self._extents.append(_pack_extents(lsns, numbers, bases, counts))
        self._tails |= tails
        self.spans.append({number: (first, tails[number]) for number, first in firsts.items()})

    def end(self, txn: Txn, *, is_committed: bool, reason: str = "") -> None:
        """End a transaction.

        An inline transaction gets a control record in each stream in which it has messages.
        """
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
        """Abort the producer's pending transactions that have a producer epoch below `epoch`.

        `named` is the number of the transaction that an operator's command names, or 0. The reason
        for aborting this transaction is BY_OPERATOR. For all others, the reason is BY_FENCE.
        """
        for number in sorted(self._state.owned.get((True, producer_id), ())):
            txn = self._state.by_txn[number]
            owner = txn.row.owner
            assert isinstance(owner, ProducerOwner)
            if owner.epoch < epoch:
                reason = BY_OPERATOR if number == named else BY_FENCE
                self.end(txn, is_committed=False, reason=reason)


def first_offsets(state: State, txn: Txn, tails: Mapping[int, int]) -> dict[int, int]:
    """Return the first offset that the chunks of a transaction get in each stream.

    `tails` has the tails of the streams to which the same frame has already added messages.
    """
    return {
        number: tails.get(number, state.by_number[number].tail.tail)
        for number, row in txn.streams.items()
        if row.chunks
    }


def is_raised(registered: RegistryRow | None, epoch: int) -> bool:
    """Return True if `epoch` is above the registered epoch or the producer is not registered."""
    return registered is None or epoch > registered.epoch


# ---- the result of a commit ----------------------------------------------------------------------
# The result is computed from the frame, because it must be the same when the frame is replayed.

Moves = Iterable[tuple[str, int, int]]


def result_of(state: State, txn: Txn, ended: Ended, chunks: Spans) -> TxnResult:
    """Return the result of an ended transaction. `chunks` has the offsets of its chunks."""
    if not ended.is_committed:
        return TxnResult(deleted=deleted_of(txn.row))
    spans = {number: (txn.streams[number].first, at + 1) for number, at in ended.markers}
    counts = {number: txn.streams[number].messages for number in spans}
    for number, (first, end) in chunks.items():
        spans[number], counts[number] = (first, end), end - first
    return TxnResult(
        _sorted(
            StreamResult(state.by_number[number].row.path, *span, counts[number])
            for number, span in spans.items()
        ),
        _positions(state, _moves_of(txn.row)),
        deleted_of(txn.row),
    )


def deleted_of(row: TxnRow) -> tuple[str, ...]:
    """Return the paths of the transaction's streams that were deleted while it was pending."""
    return tuple(sorted({*row.deleted, *(path for _, path in row.lost)}))


def _moves_of(row: TxnRow) -> list[tuple[str, int, int]]:
    return [(named.group, named.stream, named.to) for named in row.positions]


def result_of_commit(
    state: State, event: Decided, sections: Iterable[Section], chunks: Iterable[Spans]
) -> TxnResult:
    """Return the result of a one-shot commit. Call this before the event is applied.

    `chunks` has the offsets of the chunks of each transaction that it commits.
    """
    added = [(s.stream, s.base, s.base + s.count) for s in sections if s.kind == SECTION_DATA]
    added += [(number, *span) for spans in chunks for number, span in spans.items()]
    listed = [state.by_txn[ended.txn].row for ended in event.ended if ended.is_committed]
    moves = [move for row in listed for move in _moves_of(row)]
    return TxnResult(
        _sorted(
            StreamResult(state.by_number[number].row.path, first, end, end - first)
            for number, first, end in _joined(added)
        ),
        _positions(state, [*moves, *event.positions]),
        tuple(sorted({path for row in listed for path in deleted_of(row)})),
    )


def _joined(added: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Merge the ranges (stream, first, end) into one range per stream.

    Each range of a stream must begin where the previous range of that stream ends.
    """
    spans: dict[int, tuple[int, int]] = {}
    for number, base, end in added:
        first, _ = spans.get(number, (base, base))
        spans[number] = (first, end)
    return [(number, first, end) for number, (first, end) in spans.items()]


def _positions(state: State, moves: Moves) -> tuple[PositionResult, ...]:
    by_number = state.by_number
    last = {(group, by_number[number].row.path): offset for group, number, offset in moves}
    return tuple(PositionResult(*name, offset) for name, offset in sorted(last.items()))


def _sorted(results: Iterable[StreamResult]) -> tuple[StreamResult, ...]:
    return tuple(sorted(results, key=lambda result: result.path))


# ---- packed results ------------------------------------------------------------------------------
# The registry retains the results of each producer's newest one-shot commits. A sink retains one
# result for each retained version.


pack_result: Final = msgspec.msgpack.Encoder().encode
unpack_result: Final = msgspec.msgpack.Decoder(TxnResult).decode


def push_result(kept: tuple[bytes, ...], packed: bytes) -> tuple[bytes, ...]:
    """Return the results in `kept` with the new result `packed` added at the end.

    The oldest results are dropped if there are more than RESULTS_KEPT results, or more than
    RESULTS_BYTES_MAX bytes in total. The new result is always retained.
    """
    results = [*kept[1 - RESULTS_KEPT :], packed]
    size = sum(map(len, results))
    while size > RESULTS_BYTES_MAX and len(results) > 1:
        size -= len(results.pop(0))
    return tuple(results)
