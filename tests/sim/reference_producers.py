"""The producers of the reference model: the tables of the rules, row by row.

Plain functions of what a stream stores about a producer (`known`, or None), the identity that an
append carries (`tag`) and the epoch of that id in the registry (`registered`, or None).
"""

from typing import NamedTuple

from semel.model import outcomes as out
from semel.model.commands import DENSE, ClaimProducer, ProducerTag
from semel.model.limits import NUMBER_MAX, SESSIONS_REMEMBERED
from semel.model.outcomes import Outcome


class Receipt(NamedTuple):
    first_seq: int
    last_seq: int
    first_offset: int
    next_offset: int
    digest: int


class Producer(NamedTuple):
    """What a stream stores about a producer.

    A tombstone has no receipts; a dense one keeps that of sequence 0. `forgotten` is F in the
    sparse rows: the last sequence of the newest dropped receipt. `stored_from` is S: all sequences
    from it to F are stored (-1: there is no such run). `past` is the last append before a
    dense claim (its sequence and, if known, its next offset), until an append follows the claim.

    `last` is the last accepted sequence, `plain` the last one outside transactions at this epoch (P
    in the rules). `txn` is the latest inline transaction, `txn_receipts` all of its receipts.

    `expires_ms` is its declared idle time. A tombstone has the number and the hour at its beginning
    (`order`, `hour`), and `is_brief` if the producer was retired or had an idle time.

    `accepted` has the sequences and the number of messages of every sparse append. No rule uses it:
    it is for `was_stored`, by which every confirmation is checked.
    """

    mode: str
    epoch: int
    last: int
    session: str | None = None
    older_sessions: tuple[str, ...] = ()
    receipts: tuple[Receipt, ...] = ()
    cursor: bytes | None = None
    updated_ms: int = 0
    is_tombstone: bool = False
    forgotten: int = -1
    past: tuple[int, int | None] | None = None
    plain: int = -1
    txn: int = 0
    txn_receipts: tuple[Receipt, ...] = ()
    stored_from: int = -1
    expires_ms: int = 0
    is_brief: bool = False
    hour: int = -1
    order: int = 0
    ended_ms: int = 0
    accepted: tuple[tuple[int, int, int], ...] = ()

    @property
    def highest(self) -> int:
        return max(self.last, self.plain)


def is_bare(tag: ProducerTag) -> bool:
    return tag.epoch is None and tag.session is None


def is_issued_name(producer_id: str) -> bool:
    return producer_id.isascii() and producer_id.isdigit()


def is_dense_start(tag: ProducerTag) -> bool:
    return tag.mode == DENSE and tag.first_seq == 0


def is_known_session(known: Producer, tag: ProducerTag) -> bool:
    if tag.session is None:
        return False
    return tag.session == known.session or tag.session in known.older_sessions


def is_new_session(known: Producer, tag: ProducerTag) -> bool:
    """Return whether the tag has no epoch, and a session that is new here."""
    if tag.epoch is not None or tag.session is None:
        return False
    return not is_known_session(known, tag)


def is_restart(known: Producer, tag: ProducerTag) -> bool:
    """Return whether the tag begins a new epoch by itself; it must not be a repeat."""
    if is_new_session(known, tag):
        return tag.mode != DENSE or tag.first_seq == 0
    return is_bare(tag) and is_dense_start(tag)


def next_epoch(known: Producer | None, tag: ProducerTag, registered: int | None) -> int:
    """Return the epoch that the append would get."""
    if tag.epoch is not None:
        return tag.epoch
    if known is None:
        return 1 if registered is None else registered
    if known.is_tombstone or is_restart(known, tag):
        return max(known.epoch + 1, registered or 0)
    return known.epoch


# ---- check 7: identity ---------------------------------------------------------------------------


def identity(known: Producer | None, tag: ProducerTag, registered: int | None) -> Outcome | None:
    if is_issued_name(tag.id) and registered is None:
        return out.UnknownProducer()  # a
    if known is not None and known.mode != tag.mode:
        return out.ModeConflict(known.mode)  # b
    if tag.epoch is not None and registered is not None and tag.epoch < registered:
        return out.StaleEpoch(registered, tag.epoch)  # c
    if known is None:
        return None
    if known.is_tombstone:
        return _identity_over_tombstone(known, tag)
    if tag.epoch is None:
        return _identity_without_epoch(known, tag, registered)
    if tag.epoch < known.epoch:
        return out.StaleEpoch(known.epoch, tag.epoch)  # f
    has_both = tag.session is not None and known.session is not None
    if tag.epoch == known.epoch and has_both and tag.session != known.session:
        return out.SessionConflict(known.epoch)  # g
    return None


def _identity_over_tombstone(known: Producer, tag: ProducerTag) -> Outcome | None:
    # CHOICE: row d ends the table: f to i are about producers without a tombstone. (Only i could
    # differ: a sparse bare append over a tombstone whose epoch is below the registry's.)
    if tag.epoch is None:
        is_successor = not is_known_session(known, tag)
    else:
        is_successor = tag.epoch > known.epoch
    if is_successor and (tag.mode != DENSE or tag.first_seq == 0):
        return None  # d
    return out.ProducerStateExpired(known.epoch)  # e


def _identity_without_epoch(
    known: Producer, tag: ProducerTag, registered: int | None
) -> Outcome | None:
    if tag.session in known.older_sessions:
        return out.StaleSession(known.epoch)  # h
    if registered is None or known.epoch >= registered or is_new_session(known, tag):
        return None
    # CHOICE: "but not dense with seq 0" applies to "there is none" only: the stored session of an
    # epoch below the registry's is refused with any sequence.
    if is_bare(tag) and is_dense_start(tag):
        return None
    return out.StaleEpoch(registered)  # i


# ---- check 8: repeats ----------------------------------------------------------------------------


def repeat(
    known: Producer | None, tag: ProducerTag, digest: int | None, is_closed: bool
) -> Outcome | None:
    if known is None or tag.last_seq > (known.plain if tag.mode == DENSE else known.last):
        return None
    spans = {(r.first_seq, r.last_seq): r for r in known.receipts}
    receipt = spans.get((tag.first_seq, tag.last_seq))
    is_equal = receipt is not None and receipt.digest == digest
    if tag.mode == DENSE:
        if not _is_dense_repeat(known, tag, is_equal):
            return None
        if is_bare(tag) and not is_equal:
            return out.RestartAmbiguous(known.epoch, known.highest)  # dense 7, 8
    elif receipt is None and tag.last_seq > known.forgotten:
        return None
    elif receipt is None and not is_proven(known, tag):
        return out.ReceiptExpired(known.last, known.forgotten)  # sparse 6
    if receipt is None:
        return out.Duplicate(None, None, is_closed, known.epoch, known.highest)  # dense 8, sparse 5
    return _repeated(known, tag, receipt, is_equal, is_closed)


def is_proven(known: Producer, tag: ProducerTag) -> bool:
    """Return whether a sparse append below F is within the run that ends at F."""
    return known.stored_from != -1 and tag.first_seq >= known.stored_from


def held_of_txn(receipts: tuple[Receipt, ...], receipts_max: int) -> tuple[Receipt, ...]:
    """Return the retained receipts of a transaction: the first and the newest ones."""
    return (*receipts[:1], *receipts[1:][1 - receipts_max :])


def repeat_inline(
    known: Producer | None,
    tag: ProducerTag,
    txn: int,
    digest: int | None,
    receipts_max: int,
) -> Outcome | None:
    """Return the outcome of a repeat in an inline transaction: only its own receipts count."""
    if known is None or known.txn != txn:
        return None
    held = held_of_txn(known.txn_receipts, receipts_max)
    for receipt in known.txn_receipts:
        if receipt.first_seq == tag.first_seq:
            if receipt not in held:
                if known.plain >= known.txn_receipts[0].first_seq:
                    return None  # perhaps written outside the transaction since
                return out.Duplicate(None, None, False, known.epoch, known.highest)
            return _repeated(known, tag, receipt, receipt.digest == digest, False)
    return None


def _repeated(
    known: Producer, tag: ProducerTag, receipt: Receipt, is_equal: bool, is_closed: bool
) -> Outcome:
    if tag.is_strict and not is_equal:
        return out.PayloadMismatch()  # dense 7, sparse 2
    return out.Duplicate(
        receipt.first_offset,
        receipt.next_offset,
        is_closed,
        known.epoch,
        known.highest,
        is_mismatch=not is_equal,
    )


def _is_dense_repeat(known: Producer, tag: ProducerTag, is_equal: bool) -> bool:
    if is_bare(tag) and tag.first_seq == 0:
        return is_equal  # dense 4, also for a tombstone; else dense 5
    # Over a tombstone, only a raised epoch or a new session passes the checks before.
    is_raised = tag.epoch is not None and tag.epoch > known.epoch
    return not is_raised and not is_new_session(known, tag)


# ---- check 11: sequence --------------------------------------------------------------------------


def sequence(known: Producer | None, tag: ProducerTag, registered: int | None) -> Outcome | None:
    if known is None:
        is_gap = tag.mode == DENSE and tag.first_seq > 0
        return out.SequenceGap(0, tag.first_seq) if is_gap else None  # dense 1, sparse 1
    if tag.mode == DENSE:
        refusal = _dense_sequence(known, tag, tag.first_seq)
    else:
        refusal = _sparse_sequence(known, tag.first_seq, tag.last_seq)
    if refusal is None and next_epoch(known, tag, registered) > NUMBER_MAX:
        return out.EpochExhausted(known.epoch)
    return refusal


def _dense_sequence(known: Producer, tag: ProducerTag, n: int) -> Outcome | None:
    if n == 0 and (known.is_tombstone or is_restart(known, tag)):
        return None  # repeats were handled before
    if tag.epoch is not None and tag.epoch > known.epoch:
        return out.EpochMustStartAtZero(n) if n > 0 else None  # 2
    if is_new_session(known, tag):
        return out.SessionUnknown(known.epoch, known.highest)  # 3
    expected = known.highest + 1
    return None if n == expected else out.SequenceGap(expected, n)  # 9


def sequence_inline(known: Producer | None, tag: ProducerTag, is_first: bool) -> Outcome | None:
    """Check a sequence in an inline transaction; `is_first` if its first on this stream."""
    is_here = known is not None and known.epoch == tag.epoch
    expected = known.last + 1 if is_here and known is not None else 0
    if tag.first_seq == expected or (is_first and tag.first_seq == 0):
        return None
    return out.SequenceGap(expected, tag.first_seq)


def _sparse_sequence(known: Producer, a: int, b: int) -> Outcome | None:
    if a > known.last:
        return None  # 1
    if b > known.last:
        return out.BatchOverlap(known.last)  # 3
    is_met = any(a <= r.last_seq and r.first_seq <= b for r in known.receipts)
    if is_met or a <= known.forgotten < b:
        return out.BatchOverlap(known.last)  # 4
    return out.SequenceHole(known.last)  # 7


# ---- accepted ------------------------------------------------------------------------------------


def after(
    known: Producer | None,
    tag: ProducerTag,
    registered: int | None,
    receipt: Receipt,
    receipts_max: int,
    now_ms: int,
) -> Producer:
    """Return what is stored about the producer after the append."""
    epoch = next_epoch(known, tag, registered)
    if known is None:
        known = Producer(tag.mode, epoch, -1)
    is_raised = epoch > known.epoch
    session, older = known.session, known.older_sessions
    if tag.session is not None or is_raised:
        session = tag.session
        if known.session is not None and known.session != session:
            older = (*older, known.session)
        older = tuple(s for s in older if s != session)[-SESSIONS_REMEMBERED:]
    kept, accepted = known.receipts, known.accepted
    forgotten, stored_from = known.forgotten, known.stored_from
    if is_raised and tag.mode == DENSE:
        kept = ()
    kept = (*kept, receipt)
    if tag.mode == DENSE:
        kept = _with_zero(kept, receipts_max)
    else:
        accepted = (*accepted, (tag.first_seq, tag.last_seq, _count(receipt)))
        forgotten, stored_from = _run_after(known, kept[:-receipts_max])
        kept = kept[-receipts_max:]
    cursor = known.cursor if tag.cursor is None else tag.cursor
    last = tag.last_seq
    made = Producer(
        tag.mode, epoch, last, session, older, kept, cursor, now_ms, False, forgotten, plain=last
    )
    made = made._replace(stored_from=stored_from, accepted=accepted)
    return made if is_raised else made._replace(txn=known.txn, txn_receipts=known.txn_receipts)


def _count(receipt: Receipt) -> int:
    return receipt.next_offset - receipt.first_offset


def _run_after(known: Producer, dropped: tuple[Receipt, ...]) -> tuple[int, int]:
    """Return F and S of a sparse producer after some receipts were dropped."""
    forgotten, stored_from = known.forgotten, known.stored_from
    for receipt in dropped:
        width = receipt.last_seq - receipt.first_seq + 1
        is_complete = width in (1, _count(receipt))
        if not is_complete:
            stored_from = -1
        elif stored_from == -1 or receipt.first_seq > forgotten + 1:
            stored_from = receipt.first_seq
        forgotten = receipt.last_seq
    return forgotten, stored_from


def was_stored(known: Producer, tag: ProducerTag) -> bool:
    """Return whether all sequences of a sparse append were stored before, in any appends.

    An append of a range that has fewer messages than sequences only proves its own range.
    """
    missing = tag.first_seq
    for first, last, count in known.accepted:
        if (first, last) == (tag.first_seq, tag.last_seq):
            return True
        if first <= missing <= last and last - first + 1 in (1, count):
            missing = last + 1
    return missing > tag.last_seq


def after_inline(
    known: Producer | None, tag: ProducerTag, receipt: Receipt, txn: int, now_ms: int
) -> Producer:
    """Return what is stored about the producer after an append in a transaction."""
    # Like an append outside transactions, but without a receipt or `plain` of its own.
    made = after(known, tag, None, receipt, 1, now_ms)
    if known is None or made.epoch > known.epoch:
        made = made._replace(receipts=(), plain=-1, past=past(known))
        return made._replace(txn=txn, txn_receipts=(receipt,))
    mine = known.txn_receipts if known.txn == txn else ()
    made = made._replace(receipts=known.receipts, plain=known.plain, past=known.past)
    return made._replace(txn=txn, txn_receipts=(*mine, receipt))


def _with_zero(kept: tuple[Receipt, ...], receipts_max: int) -> tuple[Receipt, ...]:
    """Keep the newest receipts and always that of sequence 0, the first of an epoch."""
    rest = kept[1:] if kept[0].first_seq == 0 else kept
    return (*kept[: len(kept) - len(rest)], *rest[-receipts_max:])


def tombstone(known: Producer) -> Producer:
    receipts = tuple(r for r in known.receipts if known.mode == DENSE and r.first_seq == 0)
    dropped = () if known.mode == DENSE else known.receipts
    forgotten, stored_from = _run_after(known, dropped)
    kept = known._replace(receipts=receipts, forgotten=forgotten, is_tombstone=True)
    kept = kept._replace(stored_from=stored_from)
    last = known.plain if known.mode == DENSE else known.last
    return kept._replace(last=last, txn=0, txn_receipts=())


# ---- claims --------------------------------------------------------------------------------------


def claim_refusal(
    known: Producer | None, claim: ClaimProducer, registered: int | None
) -> Outcome | None:
    if is_issued_name(claim.producer_id) and registered is None:
        return out.UnknownProducer()  # a
    if known is None:
        return None
    if known.mode != claim.mode:
        return out.ModeConflict(known.mode)  # b
    is_older = claim.session in known.older_sessions
    is_own = claim.session == known.session
    if known.is_tombstone and (is_own or is_older):
        return out.ProducerStateExpired(known.epoch)  # c
    if is_older:
        return out.StaleSession(known.epoch)  # d
    if is_own and registered is not None and known.epoch < registered:
        return out.StaleEpoch(registered)  # e
    if is_own and known.mode == DENSE and known.highest >= 0:
        return out.SessionConflict(known.epoch)  # f
    return None


def claim_epoch(known: Producer | None, registered: int | None, writing: list[int]) -> int:
    """Return the epoch of a claim; `writing` are those of pending transactions."""
    if known is None:
        epoch = 1 if registered is None else registered
    else:
        epoch = max(known.epoch + 1, registered or 0)
    return max([epoch, *(open_epoch + 1 for open_epoch in writing)])


def past(known: Producer | None) -> tuple[int, int | None] | None:
    """Return the sequence of the last append and, if known, its next offset."""
    if known is None or known.past is not None:
        return None if known is None else known.past
    if known.plain < 0:
        return None
    if known.is_tombstone or not known.receipts:
        return known.plain, None
    return known.plain, known.receipts[-1].next_offset


def claimed(known: Producer | None, claim: ClaimProducer, epoch: int) -> Outcome:
    last, offset = past(known) or (None, None)
    cursor = None if known is None else known.cursor
    return out.Claimed(claim.producer_id, epoch, last, offset, cursor)


def after_claim(known: Producer | None, claim: ClaimProducer, epoch: int, now_ms: int) -> Producer:
    """Return what is stored about the producer after the claim."""
    before = Producer(claim.mode, epoch, -1) if known is None else known
    older = before.older_sessions
    if before.session is not None:
        older = (*older, before.session)
    taken = before._replace(
        epoch=epoch,
        session=claim.session,
        older_sessions=older[-SESSIONS_REMEMBERED:],
        updated_ms=now_ms,
        is_tombstone=False,
        is_brief=False,
        hour=-1,
        order=0,
        ended_ms=0,
    )
    if claim.mode != DENSE:
        return taken
    taken = taken._replace(last=-1, plain=-1, receipts=(), past=past(known))
    return taken._replace(txn=0, txn_receipts=())
