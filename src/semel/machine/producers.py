"""Duplicate detection finds out whether an append is new, a repeat, or from a fenced instance.

A letter or number in a comment refers to a row of the tables in `docs/reference/machine.md`. The
functions in this module do not change the state.
"""

from struct import Struct as Layout
from typing import Final

from msgspec import Struct

from semel.machine.rows import ProducerRow
from semel.machine.state import State, Stream
from semel.model.commands import DENSE, ProducerTag
from semel.model.limits import NUMBER_MAX, SESSIONS_REMEMBERED
from semel.model.outcomes import (
    BatchOverlap,
    Duplicate,
    EpochExhausted,
    EpochMustStartAtZero,
    ModeConflict,
    Outcome,
    PayloadMismatch,
    ProducerStateExpired,
    ReceiptExpired,
    RestartAmbiguous,
    SequenceGap,
    SequenceHole,
    SessionConflict,
    SessionUnknown,
    StaleEpoch,
    StaleSession,
    UnknownProducer,
)
from semel.model.validation import is_assigned_id

# ---- receipts ------------------------------------------------------------------------------------
# The receipts of a producer's last appends are packed into one bytearray, the ring. By default,
# a producer has up to 64 receipts. As Python objects, they would take 16 KB. Packed, they take
# 2 KB. Most appends add their receipt to the ring itself (ADR 0027), others to a copy of it.


# The fields are: last sequence, next offset, digest, message count, sequence span.
_LAYOUT: Final = Layout("<QQQII")
RECEIPT_BYTES: Final = _LAYOUT.size
PACK_RECEIPT: Final = _LAYOUT.pack  # for code that runs for every append; else `pack_receipt`


class Receipt(Struct, frozen=True, gc=False):
    """The sequences, offsets and digest of one accepted append."""

    first_seq: int
    last_seq: int
    first_offset: int
    next_offset: int
    digest: int


def pack_receipt(
    first_seq: int, last_seq: int, first_offset: int, next_offset: int, digest: int
) -> bytes:
    count, span = next_offset - first_offset, last_seq - first_seq
    return _LAYOUT.pack(last_seq, next_offset, digest, count, span)


def unpack_receipt(ring: bytes | bytearray, index: int) -> Receipt:
    """Return the receipt at `index`. The oldest receipt has index 0."""
    last_seq, next_offset, digest, count, span = _LAYOUT.unpack_from(ring, index * RECEIPT_BYTES)
    return Receipt(last_seq - span, last_seq, next_offset - count, next_offset, digest)


def receipts_of(ring: bytes | bytearray) -> int:
    """Return the number of receipts in a ring."""
    return len(ring) // RECEIPT_BYTES


def push_receipt(ring: bytearray, packed: bytes, limit: int) -> bytearray:
    """Return a copy of the ring with a new receipt added.

    If the ring would have more than `limit` receipts, the oldest is dropped.
    """
    surplus = len(ring) + RECEIPT_BYTES - limit * RECEIPT_BYTES
    return (ring[surplus:] if surplus > 0 else ring) + packed


def find_dense(ring: bytes | bytearray, zero: bytes, *, seq: int, last_seq: int) -> Receipt | None:
    """Return the receipt for `seq` of a dense producer (sequences 0, 1, 2, ...), or None.

    `ring` contains the newest receipts. `zero` is the packed receipt of sequence 0, or empty.
    `last_seq` is the last sequence that the producer used outside transactions.
    """
    if seq > last_seq:
        return None
    # Usually the sequences are consecutive, and the index can be calculated. If transactions have
    # used some of the sequences, the ring must be searched.
    index = receipts_of(ring) - 1 - (last_seq - seq)
    receipt = unpack_receipt(ring, index) if index >= 0 else None
    if receipt is None or receipt.last_seq != seq:
        receipt = find_sparse(ring, first_seq=seq, last_seq=seq)
    if receipt is not None:
        return receipt
    return unpack_receipt(zero, 0) if seq == 0 and zero else None


def find_sparse(ring: bytes | bytearray, *, first_seq: int, last_seq: int) -> Receipt | None:
    """Return the newest receipt that overlaps the sequences from `first_seq` to `last_seq`.

    Return None if there is no such receipt.
    """
    for index in range(receipts_of(ring) - 1, -1, -1):
        receipt = unpack_receipt(ring, index)
        if receipt.first_seq <= last_seq and first_seq <= receipt.last_seq:
            return receipt
        if receipt.last_seq < first_seq:
            break
    return None


def drop_receipts(row: ProducerRow, count: int) -> tuple[int, int]:
    """Return `forgotten_seq` and `stored_from` without the oldest `count` receipts of a ring.

    `row` is the row of a sparse producer. Its receipts are dropped by the caller.
    """
    forgotten_seq, stored_from = row.forgotten_seq, row.stored_from
    for index in range(count):
        receipt = unpack_receipt(row.receipts, index)
        span = receipt.last_seq - receipt.first_seq
        if span and receipt.next_offset - receipt.first_offset != span + 1:
            stored_from = -1  # the append had a range, and left out some of its sequences
        elif stored_from < 0 or receipt.first_seq != forgotten_seq + 1:
            stored_from = receipt.first_seq
        forgotten_seq = receipt.last_seq
    return forgotten_seq, stored_from


def push_after_first(ring: bytes, packed: bytes, limit: int) -> bytes:
    """Return the ring with a new receipt added. The first receipt is always kept.

    If the ring would have more than `limit` receipts, the second receipt is dropped.
    """
    if receipts_of(ring) < max(limit, 2):
        return ring + packed
    return ring[:RECEIPT_BYTES] + ring[2 * RECEIPT_BYTES :] + packed


def is_between(ring: bytes, seq: int, limit: int) -> bool:
    """Return True if `push_after_first` may have dropped the receipt of `seq` from the ring."""
    if receipts_of(ring) < max(limit, 2):
        return False
    return unpack_receipt(ring, 0).last_seq < seq < unpack_receipt(ring, 1).first_seq


# ---- sessions ------------------------------------------------------------------------------------


def retained_sessions(old: ProducerRow, session: str | None) -> tuple[str, ...]:
    """Return the older sessions that a producer's row keeps when `session` becomes current."""
    older = tuple(other for other in old.old_sessions if other != session)
    if old.session is not None:
        older = (*older, old.session)
    return older[-SESSIONS_REMEMBERED:]


# ---- producers -----------------------------------------------------------------------------------


FIRST_EPOCH: Final = 1


class SequenceCheck(Struct, frozen=True, gc=False):
    """The result of checking the identity and the sequence of an append.

    - If `at_once` is set, the append is a repeat, or its identity is refused. `at_once` is the
      outcome of the append, and no other check is made.
    - If `later` is set, the sequence is refused. `later` is the outcome of the append, unless the
      checks of the stream refuse the append first.
    - If both are None, the append is new. If no other check refuses it, it is stored with `epoch`.
    """

    epoch: int = 0
    at_once: Outcome | None = None
    later: Outcome | None = None


def is_current(state: State, producer_id: str, epoch: int) -> bool:
    """Return True if no registration refuses this epoch of a producer.

    An id that the server assigned must be registered. If it is retired, its row can remain.
    """
    registered = state.registry.get(producer_id)
    if registered is None:
        return not is_assigned_id(producer_id)
    return registered.epoch <= epoch


def check_sequence(state: State, stream: Stream, tag: ProducerTag, digest: int) -> SequenceCheck:
    """Check a producer's append.

    First the identity is checked, then whether the append is a repeat, then its sequence.
    """
    registered = state.registry.get(tag.id)
    floor = -1 if registered is None else registered.epoch
    row = stream.producers.get(tag.id) if stream.producers else None
    refusal = identity(tag, row, floor)
    if refusal is not None:
        return SequenceCheck(at_once=refusal)
    if row is None:
        return _newcomer(tag, floor)
    if row.is_expired:
        return _successor(stream, tag, row, digest=digest, floor=floor)
    epoch = _epoch(tag, row, floor)
    if tag.mode != DENSE:
        return _sparse(stream, tag, row, digest=digest, epoch=epoch)
    is_repeat = tag.first_seq <= row.last_seq or _begins_bare(tag)
    if epoch == row.epoch and is_repeat:
        return _dense_repeat(stream, tag, row, digest=digest, restart=_next_epoch(row, floor))
    return _dense(tag, row, epoch)


def latest_seq(row: ProducerRow) -> int:
    """Return the sequence of a producer's last append, inside or outside transactions."""
    return row.last_seq if row.latest_seq < 0 else row.latest_seq


def highest_seq(row: ProducerRow) -> int:
    """Return the highest sequence that a producer has used in a stream.

    Sequences that were used inside transactions are included.
    """
    return max(row.last_seq, row.latest_seq)


# ---- identity, check 7 ---------------------------------------------------------------------------


def identity(tag: ProducerTag, row: ProducerRow | None, floor: int) -> Outcome | None:
    """Return a refusal if the producer of an append is not accepted, otherwise None.

    A producer is refused if it is unknown, fenced or expired, or if its mode or session conflicts
    with `row`. `floor` is the producer's epoch in the registry, or -1 if it is not registered.
    """
    if floor < 0 and is_assigned_id(tag.id):
        return UnknownProducer()  # a
    if row is not None and row.mode != tag.mode:
        return ModeConflict(row.mode)  # b
    if tag.epoch is not None and tag.epoch < floor:
        return StaleEpoch(floor, tag.epoch)  # c
    if row is None:
        return None
    if row.is_expired:
        return None if _may_succeed(tag, row) else ProducerStateExpired(row.epoch)  # d, e
    if tag.epoch is not None:
        return _identity_with_epoch(tag, row)
    return _identity_without(tag, row, floor)


def _may_succeed(tag: ProducerTag, row: ProducerRow) -> bool:
    if tag.epoch is not None:
        is_newer = tag.epoch > row.epoch
    else:
        is_newer = tag.session is None or tag.session not in (row.session, *row.old_sessions)
    return is_newer and (tag.mode != DENSE or tag.first_seq == 0)


def _identity_with_epoch(tag: ProducerTag, row: ProducerRow) -> Outcome | None:
    assert tag.epoch is not None
    if tag.epoch < row.epoch:
        return StaleEpoch(row.epoch, tag.epoch)  # f
    if tag.epoch > row.epoch or tag.session is None or row.session is None:
        return None
    return SessionConflict(row.epoch) if tag.session != row.session else None  # g


def _identity_without(tag: ProducerTag, row: ProducerRow, floor: int) -> Outcome | None:
    if tag.session is not None and tag.session in row.old_sessions:
        return StaleSession(row.epoch)  # h
    if row.epoch >= floor:
        return None
    if tag.session is None:
        is_own = tag.mode != DENSE or tag.first_seq > 0
    else:
        is_own = tag.session == row.session
    return StaleEpoch(floor) if is_own else None  # i


# ---- the epoch of a new append -------------------------------------------------------------------


def _newcomer(tag: ProducerTag, floor: int) -> SequenceCheck:
    if tag.mode == DENSE and tag.first_seq > 0:
        return SequenceCheck(later=SequenceGap(0, tag.first_seq))  # dense 1
    if tag.epoch is not None:
        return SequenceCheck(tag.epoch)
    return SequenceCheck(floor if floor >= 0 else FIRST_EPOCH)


def _successor(
    stream: Stream, tag: ProducerTag, row: ProducerRow, *, digest: int, floor: int
) -> SequenceCheck:
    """Check the append of a producer that has only a tombstone in the stream."""
    epoch = tag.epoch if tag.epoch is not None else _next_epoch(row, floor)
    if tag.mode != DENSE:
        return _sparse(stream, tag, row, digest=digest, epoch=epoch)
    if tag.epoch is None and tag.session is None:
        return _dense_repeat(stream, tag, row, digest=digest, restart=epoch)
    return _accept(row, epoch)


def _epoch(tag: ProducerTag, row: ProducerRow, floor: int) -> int:
    """Return the epoch that the request names, or else the epoch that the append gets.

    If the request names no epoch, the append gets the next epoch if its session is new, otherwise
    the epoch in `row`. A result higher than the epoch in `row` fences the older instance.
    """
    if tag.epoch is not None:
        return tag.epoch
    if tag.session is None or tag.session == row.session:
        return row.epoch
    return _next_epoch(row, floor)


def _next_epoch(row: ProducerRow, floor: int) -> int:
    return max(row.epoch + 1, floor)


def _accept(row: ProducerRow, epoch: int) -> SequenceCheck:
    if epoch > NUMBER_MAX:
        return SequenceCheck(later=EpochExhausted(row.epoch))
    return SequenceCheck(epoch)


# ---- dense ---------------------------------------------------------------------------------------


def _dense(tag: ProducerTag, row: ProducerRow, epoch: int) -> SequenceCheck:
    seq = tag.first_seq
    if epoch > row.epoch:
        if seq == 0:
            return _accept(row, epoch)  # 10
        if tag.epoch is not None:
            return SequenceCheck(later=EpochMustStartAtZero(seq))  # 2
        return SequenceCheck(later=SessionUnknown(row.epoch, highest_seq(row)))  # 3
    if seq != highest_seq(row) + 1:
        return SequenceCheck(later=SequenceGap(highest_seq(row) + 1, seq))  # 9
    return SequenceCheck(epoch)  # 10


def _begins_bare(tag: ProducerTag) -> bool:
    """Return True if the append has sequence 0 and is bare (it has no epoch and no session).

    An instance that made a claim always sends its session, so it never sends a bare append. If the
    producer already has a row, a bare append with sequence 0 is therefore a repeat or a restart.
    """
    return tag.first_seq == 0 and tag.epoch is None and tag.session is None


def _dense_repeat(
    stream: Stream, tag: ProducerTag, row: ProducerRow, *, digest: int, restart: int
) -> SequenceCheck:
    seq = tag.first_seq
    receipt = find_dense(row.receipts, row.first_receipt, seq=seq, last_seq=row.last_seq)
    is_equal = receipt is not None and receipt.digest == digest
    if tag.epoch is None and tag.session is None and not is_equal:
        # A bare append is identified only by its sequence. If its payload does not match a receipt,
        # it can be a retry or a restart. If it were acknowledged as a duplicate, a new message
        # could be lost.
        if seq == 0:
            return _accept(row, restart)  # 5
        return SequenceCheck(at_once=RestartAmbiguous(row.epoch, highest_seq(row)))  # 7, 8
    return SequenceCheck(
        at_once=repeat_of(stream, tag, row, receipt, is_equal=is_equal)
    )  # 4, 6, 7, 8


def repeat_of(
    stream: Stream, tag: ProducerTag, row: ProducerRow, receipt: Receipt | None, *, is_equal: bool
) -> Outcome:
    """Return the outcome of a repeated append.

    `receipt` is the receipt of the stored append, or None if the receipt is no longer retained.
    `is_equal` is True if the repeat has the same payload as the stored append.
    """
    is_closed = stream.tail.is_closed
    if receipt is None:
        return Duplicate(None, None, is_closed, row.epoch, highest_seq(row))
    if tag.is_strict and not is_equal:
        return PayloadMismatch()
    return Duplicate(
        receipt.first_offset,
        receipt.next_offset,
        is_closed,
        row.epoch,
        highest_seq(row),
        not is_equal,
    )


# ---- sparse --------------------------------------------------------------------------------------


def _sparse(
    stream: Stream, tag: ProducerTag, row: ProducerRow, *, digest: int, epoch: int
) -> SequenceCheck:
    first, last, forgotten = tag.first_seq, tag.last_seq, row.forgotten_seq
    if first > row.last_seq:
        return _accept(row, epoch)  # 1
    if last > row.last_seq:
        return SequenceCheck(later=BatchOverlap(row.last_seq))  # 3
    receipt = find_sparse(row.receipts, first_seq=first, last_seq=last)
    if receipt is not None and (receipt.first_seq, receipt.last_seq) == (first, last):
        is_equal = receipt.digest == digest
        return SequenceCheck(at_once=repeat_of(stream, tag, row, receipt, is_equal=is_equal))  # 2
    if receipt is not None or first <= forgotten < last:
        return SequenceCheck(later=BatchOverlap(row.last_seq))  # 4
    if last > forgotten:
        return SequenceCheck(later=SequenceHole(row.last_seq))  # 7
    if is_proven(row, first):
        return SequenceCheck(at_once=repeat_of(stream, tag, row, None, is_equal=False))  # 5
    # The append may be stored. So this outcome precedes those that say that it is not.
    return SequenceCheck(at_once=ReceiptExpired(row.last_seq, forgotten))  # 6


def is_proven(row: ProducerRow, first_seq: int) -> bool:
    """Return True if every sequence from `first_seq` to `row.forgotten_seq` is stored."""
    return 0 <= row.stored_from <= first_seq
