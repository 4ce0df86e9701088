"""Claims: a new instance of a producer fences the previous instance and takes over from it.

A claim reports the last append of the previous instance. That instance must be fenced first.
Otherwise its delayed requests could be stored after the report, and the new instance would store
the same messages again.

The comment at a check names the check's row in the table in `docs/reference/machine.md`.
"""

from msgspec.structs import replace

from semel.machine.checks import idle_time_of, refuse_producer_room
from semel.machine.events import (
    Decision,
    ProducerClaimed,
    ProducerRaised,
    ProducerRegistered,
)
from semel.machine.lifetimes import declare, with_idle_time
from semel.machine.producers import (
    FIRST_EPOCH,
    RECEIPT_BYTES,
    highest_seq,
    pack_receipt,
    retained_sessions,
    unpack_receipt,
)
from semel.machine.rows import ProducerRow
from semel.machine.state import State, Stream, find_producer
from semel.machine.txn.draft import Draft
from semel.model.commands import (
    DENSE,
    ClaimProducer,
    ProducerOwner,
    Register,
)
from semel.model.limits import NUMBER_MAX
from semel.model.outcomes import (
    Claimed,
    DedupOff,
    EpochExhausted,
    LimitReached,
    ModeConflict,
    Outcome,
    ProducerStateExpired,
    Registered,
    SessionConflict,
    StaleEpoch,
    StaleSession,
    UnknownProducer,
)
from semel.model.validation import is_assigned_id


def decide_claim(state: State, stream: Stream, command: ClaimProducer) -> Decision:
    """Decide a claim, which fences a producer's older instances and reports its last append."""
    if stream.tail.dedup_from is None:
        return Decision(DedupOff())
    registered = state.registry.get(command.producer_id)
    floor = -1 if registered is None else registered.epoch
    row = find_producer(stream, command.producer_id)
    refusal = _identity(command, row, floor)
    if refusal is not None:
        return Decision(refusal)
    if row is not None and row.session == command.session:
        return _decide_again(command, row, floor)
    return _decide_new(state, stream, command, row, floor)


def _identity(command: ClaimProducer, row: ProducerRow | None, floor: int) -> Outcome | None:
    if floor < 0 and is_assigned_id(command.producer_id):
        return UnknownProducer()  # a
    if row is None:
        return None
    if row.mode != command.mode:
        return ModeConflict(row.mode)  # b
    if row.is_expired and command.session in (row.session, *row.old_sessions):
        return ProducerStateExpired(row.epoch)  # c
    return StaleSession(row.epoch) if command.session in row.old_sessions else None  # d


def _decide_again(command: ClaimProducer, row: ProducerRow, floor: int) -> Decision:
    """Decide a claim that repeats an earlier claim by the same session.

    After a claim, a dense producer begins at sequence 0 again. If its session has already stored
    messages, the claim is refused, because new messages would look like duplicates of them.
    """
    if row.epoch < floor:
        return Decision(StaleEpoch(floor))  # e
    if row.mode == DENSE and highest_seq(row) >= 0:
        return Decision(SessionConflict(row.epoch))  # f
    return Decision(_claimed(command.producer_id, row.epoch, row))  # g


def _decide_new(
    state: State, stream: Stream, command: ClaimProducer, row: ProducerRow | None, floor: int
) -> Decision:
    producer_id, asked_ms = command.producer_id, command.expires_ms
    if row is None or row.is_expired or (asked_ms and not row.expires_ms):
        expires_ms = idle_time_of(state, row, producer_id, asked_ms)
        refusal = refuse_producer_room(state, stream, expires_ms)
        if refusal is not None:
            return Decision(refusal)  # h
    first = floor if floor >= 0 else FIRST_EPOCH
    epoch = first if row is None else max(row.epoch + 1, floor)
    epoch = max(epoch, _epoch_of_transactions(state, command.producer_id) + 1)
    if epoch > NUMBER_MAX:
        return Decision(EpochExhausted(floor if row is None else row.epoch))  # i
    event = ProducerClaimed(stream.row.number, producer_id, command.mode, epoch, command.session)
    decision = _raise_epoch(state, _claimed(producer_id, epoch, row), event)  # j
    return declare(state, row, producer_id, asked_ms, decision)


def _epoch_of_transactions(state: State, producer_id: str) -> int:
    """Return the highest producer epoch among the producer's pending transactions.

    If there are no such transactions, return -1. A claim must abort these transactions, so the
    claim's epoch must be higher than theirs.
    """
    numbers = state.owned.get((True, producer_id), ())
    owners = (state.by_txn[number].row.owner for number in numbers)
    return max((owner.epoch for owner in owners if isinstance(owner, ProducerOwner)), default=-1)


def _claimed(producer_id: str, epoch: int, row: ProducerRow | None) -> Claimed:
    """Return the outcome of a claim.

    The outcome contains the producer's last sequence, the offset after its last append, and its
    cursor. A value that is not stored is None.
    """
    if row is None:
        return Claimed(producer_id, epoch)
    packed = last_receipt(row)
    if not packed:
        return Claimed(producer_id, epoch, cursor=row.cursor)
    last = unpack_receipt(packed, 0)
    last_offset = last.next_offset if last.first_offset >= 0 else None
    return Claimed(producer_id, epoch, last.last_seq, last_offset, row.cursor)


def claimed_row(
    state: State, old: ProducerRow | None, event: ProducerClaimed, time_ms: int
) -> ProducerRow:
    """Return the row that a producer has after a claim. `old` is its row before the claim."""
    is_dense = event.mode == DENSE
    if old is None:
        old = new_producer(event.mode, 0, time_ms)
    return ProducerRow(
        mode=event.mode,
        epoch=event.epoch,
        session=event.session,
        old_sessions=retained_sessions(old, event.session),
        last_seq=-1 if is_dense else old.last_seq,
        receipts=bytearray() if is_dense else old.receipts,
        first_receipt=last_receipt(old) if is_dense else b"",
        cursor=old.cursor,
        updated_ms=time_ms,
        forgotten_seq=old.forgotten_seq,
        stored_from=old.stored_from,
        expires_ms=old.expires_ms,
        hour=state.hours,
        parts=old.parts,
    )


def new_producer(mode: str, epoch: int, time_ms: int) -> ProducerRow:
    """Return the row of a producer that has not appended any messages yet."""
    return ProducerRow(
        mode=mode,
        epoch=epoch,
        session=None,
        old_sessions=(),
        last_seq=-1,
        receipts=bytearray(),
        first_receipt=b"",
        cursor=None,
        updated_ms=time_ms,
    )


def last_receipt(old: ProducerRow) -> bytes:
    """Return the packed receipt of the producer's last append outside transactions.

    If there is no such append, the result is empty. If `old` has expired, its receipts were
    dropped, so the result contains the last sequence, but no offset.
    """
    if old.last_seq < 0:
        return old.first_receipt
    if old.receipts:
        return bytes(old.receipts[-RECEIPT_BYTES:])
    return pack_receipt(old.last_seq, old.last_seq, -1, 0, 0)


# ---- register ------------------------------------------------------------------------------------


def decide_register(state: State, command: Register) -> Decision:
    """Decide a registration.

    A registration assigns a new producer id, registers a given id, or raises the epoch of a
    registered producer. A higher epoch fences older instances.
    """
    producer_id = command.producer_id
    row = None if producer_id is None else state.registry.get(producer_id)
    if row is not None:
        current = row.epoch
    elif producer_id is not None and is_assigned_id(producer_id):
        return Decision(UnknownProducer())
    elif len(state.registry) >= state.limits.registry:
        return Decision(LimitReached("registry", state.limits.registry))
    else:
        current = -1 if producer_id is None else _highest_epoch(state, producer_id)
    epoch = current + 1 if row is not None else max(command.first_epoch, current + 1)
    if epoch > NUMBER_MAX:
        return Decision(EpochExhausted(current))
    is_assigned = producer_id is None
    event = ProducerRegistered(producer_id or str(state.next_producer), epoch, is_assigned)
    decision = _raise_epoch(state, Registered(event.id, epoch), event)
    if row is not None or not command.expires_ms:
        return decision
    return replace(decision, event=with_idle_time(command.expires_ms, event))


def _highest_epoch(state: State, producer_id: str) -> int:
    """Return the highest epoch of a producer's rows and tombstones in all streams, or -1.

    All streams are searched: an index would take memory for every producer, and only the first
    registration of a name needs it.
    """
    if not (state.producer_counts.live or state.producer_counts.tombstones):
        return -1
    rows = (
        stream.producers[producer_id]
        for stream in state.by_number.values()
        if stream.producers and producer_id in stream.producers
    )
    return max((row.epoch for row in rows), default=-1)


def _raise_epoch(
    state: State, outcome: Outcome, event: ProducerClaimed | ProducerRegistered
) -> Decision:
    """Return a decision that stores `event`, which is a claim or a registration.

    The same frame aborts the pending transactions of the producer's older instances.
    """
    draft = Draft(state)
    draft.fence(event.id, event.epoch)
    ended = tuple(draft.ended)
    if not ended:
        return Decision(outcome, event, grows=True)
    if isinstance(event, ProducerClaimed):
        raised = ProducerRaised(ended, claimed=event)
    else:
        raised = ProducerRaised(ended, registered=event)
    return Decision(outcome, raised, tuple(draft.sections), grows=True)
