"""Receipts: what the last appends of a producer returned, packed into bytes.

A producer has 64 of them by default. As objects they would take 16 KB; packed they take 2 KB, and
replacing the whole ring for a new receipt costs one small copy.
"""

from struct import Struct as Layout
from typing import Final

from msgspec import Struct

from semel.machine.rows import ProducerRow
from semel.model.limits import SESSIONS_REMEMBERED

# last sequence, next offset, digest, message count, sequence span
_LAYOUT: Final = Layout("<QQQII")
RECEIPT_BYTES: Final = _LAYOUT.size


class Receipt(Struct, frozen=True, gc=False):
    """What one accepted append returned."""

    first_seq: int
    last_seq: int
    first_offset: int
    next_offset: int
    digest: int


def pack(first_seq: int, last_seq: int, first_offset: int, next_offset: int, digest: int) -> bytes:
    count, span = next_offset - first_offset, last_seq - first_seq
    return _LAYOUT.pack(last_seq, next_offset, digest, count, span)


def unpack(ring: bytes, index: int) -> Receipt:
    """Return the receipt at `index`, oldest first."""
    last_seq, next_offset, digest, count, span = _LAYOUT.unpack_from(ring, index * RECEIPT_BYTES)
    return Receipt(last_seq - span, last_seq, next_offset - count, next_offset, digest)


def receipts_of(ring: bytes) -> int:
    """Return the number of receipts."""
    return len(ring) // RECEIPT_BYTES


def push(ring: bytes, packed: bytes, limit: int) -> bytes:
    """Return the ring with a new receipt; beyond `limit` the oldest is dropped."""
    surplus = len(ring) + RECEIPT_BYTES - limit * RECEIPT_BYTES
    return (ring[surplus:] if surplus > 0 else ring) + packed


def find_dense(ring: bytes, zero: bytes, *, seq: int, last_seq: int) -> Receipt | None:
    """Return the receipt of a dense producer for a sequence, if it is retained.

    Sequences are consecutive, so its index is known, unless transactions used some in between: then
    it is searched for. `zero` is the receipt of sequence 0.
    """
    if seq > last_seq:
        return None
    index = receipts_of(ring) - 1 - (last_seq - seq)
    receipt = unpack(ring, index) if index >= 0 else None
    if receipt is None or receipt.last_seq != seq:
        receipt = find_sparse(ring, first_seq=seq, last_seq=seq)
    if receipt is not None:
        return receipt
    return unpack(zero, 0) if seq == 0 and zero else None


def find_sparse(ring: bytes, *, first_seq: int, last_seq: int) -> Receipt | None:
    """Return the newest receipt that overlaps the range first_seq..last_seq."""
    for index in range(receipts_of(ring) - 1, -1, -1):
        receipt = unpack(ring, index)
        if receipt.first_seq <= last_seq and first_seq <= receipt.last_seq:
            return receipt
        if receipt.last_seq < first_seq:
            break
    return None


def push_after_first(ring: bytes, packed: bytes, limit: int) -> bytes:
    """Return the ring with a new receipt; beyond `limit` the oldest but the first is dropped."""
    if receipts_of(ring) < max(limit, 2):
        return ring + packed
    return ring[:RECEIPT_BYTES] + ring[2 * RECEIPT_BYTES :] + packed


def is_between(ring: bytes, seq: int, limit: int) -> bool:
    """Return whether a sequence belongs to a receipt that `push_after_first` dropped."""
    if receipts_of(ring) < max(limit, 2):
        return False
    return unpack(ring, 0).last_seq < seq < unpack(ring, 1).first_seq


# ---- sessions ------------------------------------------------------------------------------------


def retained_sessions(old: ProducerRow, session: str | None) -> tuple[str, ...]:
    """Return the older sessions of a producer once `session` replaces its current one."""
    older = tuple(other for other in old.old_sessions if other != session)
    if old.session is not None:
        older = (*older, old.session)
    return older[-SESSIONS_REMEMBERED:]
