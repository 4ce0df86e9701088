"""The ends of producers: forgotten, expired, retired, and the removal of their tombstones.

A tombstone refuses late copies of a producer's appends. It does not count as a producer, and leaves
after a stated time. Only frames decide when: nothing here reads a clock or a setting.

The comment at a check names the check's row in the table in `docs/reference/machine.md`.
"""

from msgspec.structs import replace

from semel.machine.checks import holding_txn, idle_time_of
from semel.machine.events import (
    Decision,
    ProducerClaimed,
    ProducerDeclared,
    ProducerExpired,
    ProducerForgotten,
    ProducerRaised,
    ProducerRegistered,
    ProducersRetired,
    Sections,
    StreamAppended,
    TombstonesDropped,
    TxnPublished,
    producer_in,
)
from semel.machine.policies import open_txns
from semel.machine.producer_counts import note_unused
from semel.machine.producers import drop_receipts, receipts_of
from semel.machine.rows import ProducerRow
from semel.machine.state import State, Stream, drop_owner, find_producer, put_producer
from semel.machine.streams import find_any
from semel.machine.txn.apply_end import set_registered
from semel.model.commands import DENSE, ExpireProducer, ForgetProducer
from semel.model.limits import REGISTRATION_MORE_HOURS, TOMBSTONE_MS
from semel.model.outcomes import (
    DropDone,
    Forgotten,
    Refusal,
    Retired,
    RetireResult,
    StaleEpoch,
    StaleSession,
    StillAlive,
    UnknownProducer,
)
from semel.model.outcomes_txn import ConcurrentTransactions
from semel.model.producer_commands import (
    DropTombstones,
    ExpireRegistration,
    RetiredProducer,
    RetireProducers,
    Tombstone,
)
from semel.model.rights import PRODUCER
from semel.model.validation import is_assigned_id

# ---- declared idle times -------------------------------------------------------------------------


def declare(
    state: State, row: ProducerRow | None, producer_id: str, asked_ms: int, decision: Decision
) -> Decision:
    """Return `decision`, extended so that its frame also declares the producer's idle time.

    `row` is the producer's row in the stream. If its idle time does not change, return `decision`.
    """
    expires_ms = idle_time_of(state, row, producer_id, asked_ms)
    event = decision.event
    if expires_ms == (0 if row is None else row.expires_ms) or event is None:
        return decision
    return replace(decision, event=with_idle_time(expires_ms, event))


def with_idle_time(expires_ms: int, event: object) -> ProducerDeclared:
    """Return an event that does the same as `event`, and declares an idle time."""
    match event:
        case StreamAppended():
            return ProducerDeclared(expires_ms, append=event)
        case TxnPublished():
            return ProducerDeclared(expires_ms, published=event)
        case ProducerClaimed():
            return ProducerDeclared(expires_ms, claimed=event)
        case ProducerRegistered():
            return ProducerDeclared(expires_ms, registered=event)
    assert isinstance(event, ProducerRaised)
    return ProducerDeclared(expires_ms, raised=event)


def apply_idle_time(state: State, event: ProducerDeclared) -> None:
    """Store the idle time in the row that the event's own append, claim or registration made."""
    found = producer_in(event)
    assert found is not None
    number, producer_id = found
    if number == 0:
        registration = replace(state.registry[producer_id], expires_ms=event.expires_ms)
        set_registered(state, producer_id, registration)
        state.producer_counts.to_watch.append(found)
        return
    stream = state.by_number[number]
    assert stream.producers is not None
    row = replace(stream.producers[producer_id], expires_ms=event.expires_ms)
    _set(state, stream, producer_id, row)


def _set(state: State, stream: Stream, producer_id: str, row: ProducerRow) -> None:
    state.dirty.producers[stream.row.number, producer_id] = row
    put_producer(state, stream, producer_id, row)


# ---- forget, expire ------------------------------------------------------------------------------


def decide_forget(state: State, stream: Stream, command: ForgetProducer) -> Decision:
    """Return the decision on a command that drops a producer's row in a stream."""
    if command.producer_id not in (stream.producers or ()):
        return Decision(UnknownProducer())
    txns = _txns_in(state, stream, command.producer_id)
    if txns:
        return Decision(holding_txn(state, txns))
    return Decision(Forgotten(), ProducerForgotten(stream.row.number, command.producer_id))


def decide_expire_producer(state: State, stream: Stream, command: ExpireProducer) -> Decision:
    """Return the decision on a command that expires a producer in a stream.

    The row becomes a tombstone (it is marked as expired) if the producer has been idle for long
    enough and has no pending transaction with messages in the stream.
    """
    row = find_producer(stream, command.producer_id)
    if row is None or row.is_expired:
        return Decision(UnknownProducer())
    is_busy = _txns_in(state, stream, command.producer_id)
    if is_busy or command.elapsed_ms < (row.expires_ms or command.idle_ms):
        return Decision(StillAlive())
    return Decision(Forgotten(), ProducerExpired(stream.row.number, command.producer_id))


def _txns_in(state: State, stream: Stream, producer_id: str) -> set[int]:
    """Return the numbers of a producer's pending transactions that have messages in a stream."""
    return state.owned.get((True, producer_id), set()).intersection(open_txns(state, stream))


def apply_forgotten(
    state: State, event: ProducerForgotten, _sections: Sections, _time_ms: int
) -> None:
    """Drop a producer's row in a stream."""
    _drop(state, state.by_number[event.stream], event.id)


def _drop(state: State, stream: Stream, producer_id: str) -> None:
    assert stream.producers is not None
    state.producer_counts.drop(stream.producers, producer_id)
    note_unused(state)
    state.dirty.producers[stream.row.number, producer_id] = None
    drop_owner(state, (PRODUCER, stream.row.number, producer_id))


def apply_expired(state: State, event: ProducerExpired, _sections: Sections, time_ms: int) -> None:
    """Turn the row of an idle producer into a tombstone."""
    stream = state.by_number[event.stream]
    assert stream.producers is not None
    is_brief = stream.producers[event.id].expires_ms > 0
    _make_tombstone(state, stream, event.id, time_ms, is_brief=is_brief)


def _make_tombstone(
    state: State, stream: Stream, producer_id: str, time_ms: int, *, is_brief: bool
) -> None:
    """Turn a row into a tombstone. If the stream has too many tombstones, drop the oldest."""
    assert stream.producers is not None
    old = stream.producers[producer_id]
    dropped = 0 if old.mode == DENSE else receipts_of(old.receipts)
    forgotten_seq, stored_from = drop_receipts(old, dropped)
    row = replace(
        old,
        receipts=bytearray(),
        forgotten_seq=forgotten_seq,
        is_expired=True,
        txn=0,
        txn_receipts=b"",
        latest_seq=-1,
        stored_from=stored_from,
        expires_ms=0,
        tombstone=state.next_tombstone,
        hour=state.hours,
        is_brief=is_brief,
        ended_ms=time_ms,
        parts=None,
    )
    state.next_tombstone += 1
    _set(state, stream, producer_id, row)
    while len(stream.producers.tombstones) > state.limits.tombstones_per_stream:
        _drop(state, stream, next(iter(stream.producers.tombstones)))


# ---- retire --------------------------------------------------------------------------------------


def decide_retire(state: State, command: RetireProducers) -> Decision:
    """Decide a retirement. Each producer is retired or refused on its own, all in one frame."""
    results: list[RetireResult] = []
    ended: dict[tuple[int, str], None] = {}
    for item in command.producers:
        refusal, number = _refuse(state, item)
        results.append(RetireResult(item.id, item.path, refusal))
        if refusal is None and not _is_retired(state, number, item.id):
            ended[number, item.id] = None
    event = ProducersRetired(tuple(ended)) if ended else None
    return Decision(Retired(tuple(results)), event)


def _refuse(state: State, item: RetiredProducer) -> tuple[Refusal | None, int]:
    """Return the refusal for one producer, or None, and the number of its stream, or 0."""
    if item.path is None:
        return _refuse_registration(state, item), 0
    stream = find_any(state, item.path)
    if not isinstance(stream, Stream):
        assert isinstance(stream, Refusal)
        return stream, 0  # a
    row = find_producer(stream, item.id)
    refusal = UnknownProducer() if row is None else _refuse_row(state, stream, row, item)  # b
    return refusal, stream.row.number


def _refuse_row(
    state: State, stream: Stream, row: ProducerRow, item: RetiredProducer
) -> Refusal | None:
    registered = state.registry.get(item.id)
    current = row.epoch if registered is None else max(row.epoch, registered.epoch)
    epoch, session = item.epoch, item.session
    if (row.epoch if epoch is None else epoch) < current:
        return StaleEpoch(current, epoch)  # c
    if session in row.old_sessions:
        return StaleSession(row.epoch)  # d
    if epoch not in (None, row.epoch) or session not in (None, row.session):
        return UnknownProducer()  # e
    txns = _txns_in(state, stream, item.id)
    return holding_txn(state, txns) if txns else None  # f


def _refuse_registration(state: State, item: RetiredProducer) -> Refusal | None:
    row = state.registry.get(item.id)
    epoch = item.epoch
    assert epoch is not None
    if row is None or epoch > row.epoch:
        return UnknownProducer()  # b, e
    if epoch < row.epoch:
        return StaleEpoch(row.epoch, epoch)  # c
    txns = state.owned.get((True, item.id))
    return ConcurrentTransactions(state.by_txn[min(txns)].row.id) if txns else None  # f


def _is_retired(state: State, number: int, producer_id: str) -> bool:
    if number == 0:
        return state.registry[producer_id].retired_hour >= 0
    row = find_producer(state.by_number[number], producer_id)
    return row is not None and row.is_expired


def decide_expire_registration(state: State, command: ExpireRegistration) -> Decision:
    """Return the decision on a command that retires a registration which was idle for too long.

    A registration is in use while a transaction of it is pending, and while it is an expiring
    producer in a stream.
    """
    row = state.registry.get(command.id)
    if row is None or not row.expires_ms or row.retired_hour >= 0:
        return Decision(UnknownProducer())
    is_used = (True, command.id) in state.owned or command.id in state.producer_counts.expiring
    if is_used or command.elapsed_ms < row.expires_ms:
        return Decision(StillAlive())
    return Decision(Forgotten(), ProducersRetired(((0, command.id),)))


def apply_retired(state: State, event: ProducersRetired, _sections: Sections, time_ms: int) -> None:
    """Turn rows into brief tombstones, and end registrations."""
    for number, producer_id in event.producers:
        if number:
            _make_tombstone(state, state.by_number[number], producer_id, time_ms, is_brief=True)
        elif is_assigned_id(producer_id):
            _unregister(state, producer_id)  # refused from now on, because only servers assign ids
        else:
            row = replace(state.registry[producer_id], retired_hour=state.hours)
            state.registry[producer_id] = state.dirty.registry[producer_id] = row
            state.producer_counts.to_watch.append((0, producer_id))


def _unregister(state: State, producer_id: str) -> None:
    del state.registry[producer_id]
    state.dirty.registry[producer_id] = None
    drop_owner(state, (PRODUCER, 0, producer_id))


# ---- the end of tombstones -----------------------------------------------------------------------


def decide_drop_tombstones(state: State, command: DropTombstones) -> Decision:
    """Return the decision on a command that drops those tombstones which are due."""
    found = (
        (tombstone.stream, tombstone.id)
        for tombstone in command.tombstones
        if is_due(state, tombstone, command.hours)
    )
    due = tuple(dict.fromkeys(found))
    return Decision(DropDone(len(due)), TombstonesDropped(due) if due else None)


def is_due(state: State, tombstone: Tombstone, hours: int) -> bool:
    """Return True if a tombstone or a retired registration has stayed for long enough.

    `hours` is how long the tombstones of idle producers stay.
    """
    stream = state.by_number.get(tombstone.stream)
    row = None if stream is None else find_producer(stream, tombstone.id)
    if row is not None and row.is_expired and row.is_brief:
        return tombstone.elapsed_ms >= TOMBSTONE_MS
    hour = leave_hour(state, tombstone.stream, tombstone.id, hours)
    is_pending = tombstone.stream == 0 and (True, tombstone.id) in state.owned
    return hour is not None and state.hours >= hour and not is_pending


def leave_hour(state: State, number: int, producer_id: str, hours: int) -> int | None:
    """Return the number of counted hours at which a tombstone or a retired registration leaves.

    Return None if there is none, or if it does not leave by hours. The hour in which it began is
    not complete, so it does not count.
    """
    if number == 0:
        registered = state.registry.get(producer_id)
        if registered is None or registered.retired_hour < 0:
            return None
        # If a registration with the same name follows, its transactions are numbered from 0 again.
        # So no outcome of the old one may be stored then.
        stays = max(hours, state.limits.outcome_hours + REGISTRATION_MORE_HOURS)
        return registered.retired_hour + stays + 1
    stream = state.by_number.get(number)
    row = None if stream is None else find_producer(stream, producer_id)
    if row is None or not row.is_expired or row.is_brief:
        return None
    return row.hour + hours + 1


def apply_tombstones_dropped(
    state: State, event: TombstonesDropped, _sections: Sections, _time_ms: int
) -> None:
    """Drop tombstones and retired registrations."""
    for number, producer_id in event.tombstones:
        if number == 0:
            _unregister(state, producer_id)
        elif find_producer(state.by_number[number], producer_id) is not None:
            # An older version has dropped tombstones in soft-deleted streams too.
            _drop(state, state.by_number[number], producer_id)
