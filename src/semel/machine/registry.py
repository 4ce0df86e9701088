"""Decisions on producer identities: register, forget, expire."""

from semel.machine.checks import held_by
from semel.machine.draft import Draft
from semel.machine.events import (
    Decision,
    ProducerExpired,
    ProducerForgotten,
    ProducerRaised,
    ProducerRegistered,
)
from semel.machine.producers import is_assigned_id
from semel.machine.rows import ProducerRow
from semel.machine.state import State, Stream
from semel.machine.streams import find_stream
from semel.model.commands import ExpireProducer, ForgetProducer, Register
from semel.model.limits import NUMBER_MAX
from semel.model.outcomes import (
    EpochExhausted,
    Forgotten,
    LimitReached,
    Outcome,
    Registered,
    StillAlive,
    UnknownProducer,
)


def decide_register(state: State, command: Register) -> Decision:
    """Give out an identity, or fence the older instances of a known one."""
    producer_id = command.producer_id
    row = None if producer_id is None else state.registry.get(producer_id)
    if row is None:
        return _decide_new(state, command)
    assert producer_id is not None
    if row.epoch >= NUMBER_MAX:
        return Decision(EpochExhausted(row.epoch))
    decision = _grant(producer_id, row.epoch + 1, is_assigned=False)
    draft = Draft(state)
    draft.fence(producer_id, row.epoch + 1)
    if not draft.ended:
        return decision
    assert isinstance(decision.event, ProducerRegistered)
    raised = ProducerRaised(tuple(draft.ended), None, decision.event)
    return Decision(decision.outcome, raised, tuple(draft.sections), grows=True)


def _decide_new(state: State, command: Register) -> Decision:
    producer_id = command.producer_id
    if producer_id is not None and is_assigned_id(producer_id):
        return Decision(UnknownProducer())
    if len(state.registry) >= state.limits.registry:
        return Decision(LimitReached("registry", state.limits.registry))
    if producer_id is None:
        return _grant(str(state.next_producer), command.first_epoch, is_assigned=True)
    return _grant(producer_id, command.first_epoch, is_assigned=False)


def _grant(producer_id: str, epoch: int, *, is_assigned: bool) -> Decision:
    event = ProducerRegistered(producer_id, epoch, is_assigned)
    return Decision(Registered(producer_id, epoch), event, grows=True)


def decide_forget(state: State, command: ForgetProducer) -> Decision:
    """Reset one producer of one stream."""
    found = _find(state, command.path, command.producer_id)
    if isinstance(found, Outcome):
        return Decision(found)
    stream, _ = found
    writing = _writing(state, stream, command.producer_id)
    if writing:
        return Decision(held_by(state, writing))
    return Decision(Forgotten(), ProducerForgotten(stream.row.number, command.producer_id))


def decide_expire_producer(state: State, command: ExpireProducer) -> Decision:
    """Leave a tombstone of a producer that was idle too long."""
    found = _find(state, command.path, command.producer_id)
    if isinstance(found, Outcome):
        return Decision(found)
    stream, row = found
    if row.is_expired:
        return Decision(UnknownProducer())
    is_busy = _writing(state, stream, command.producer_id)
    if is_busy or state.frame_time(command.now_ms) < row.updated_ms + command.idle_ms:
        return Decision(StillAlive())
    return Decision(Forgotten(), ProducerExpired(stream.row.number, command.producer_id))


def _writing(state: State, stream: Stream, producer_id: str) -> set[int]:
    """Find the producer's transactions that have messages in the stream."""
    return state.owned.get((True, producer_id), set()).intersection(stream.open or ())


def _find(state: State, path: str, producer_id: str) -> tuple[Stream, ProducerRow] | Outcome:
    stream = find_stream(state, path)
    if not isinstance(stream, Stream):
        return stream
    row = stream.producers.get(producer_id) if stream.producers else None
    return UnknownProducer() if row is None else (stream, row)
