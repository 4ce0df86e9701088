"""The decision on an append: all checks, in their order.

The numbers in the comments are the rows of the table in `docs/reference/machine.md`.
"""

from typing import Final

from semel.machine.checks import (
    check_content,
    check_key,
    check_room,
    check_stream,
    digest_of_append,
    is_close_only,
    section_of,
)
from semel.machine.events import Decision, ProducerRaised, ProducerStamp, Section, StreamAppended
from semel.machine.producers import check_sequence
from semel.machine.state import State, Stream
from semel.machine.txn.draft import Draft
from semel.machine.txn.publish import decide_publish
from semel.model.commands import Append
from semel.model.outcomes import Appended, Gone, NotFound

_NOT_FOUND: Final = Decision(NotFound())
_GONE: Final = Decision(Gone())


def decide_append(state: State, command: Append) -> Decision:
    """Decide an append, a close, or both."""
    if command.transaction is not None:
        return decide_publish(state, command)  # 6
    stream = state.by_path.get(command.path)
    if stream is None:
        return _NOT_FOUND  # 5
    if stream.tail.is_deleted:
        return _GONE  # 5
    if stream.tail.dedup_from is None:
        return _decide_plain(state, stream, command)
    if command.producer is not None:
        return _decide_produced(state, stream, command)
    if command.key is None:
        return _decide_plain(state, stream, command)
    return _decide_keyed(state, stream, command, command.key)


def _decide_keyed(state: State, stream: Stream, command: Append, key: str) -> Decision:
    digest = digest_of_append(stream, command)
    repeat = check_key(state, stream, key, digest=digest, now_ms=command.now_ms)
    if repeat is not None:
        return Decision(repeat)  # 8
    refusal = check_stream(state, stream, command) or check_content(stream, command)
    if refusal is not None:
        return Decision(refusal)
    event = StreamAppended(stream.row.number, command.close, command.stream_seq, None, key, digest)
    return _accept(stream, command, event)


def _decide_plain(state: State, stream: Stream, command: Append) -> Decision:
    """Decide an append without an identity, or to a stream without duplicate detection."""
    tail = stream.tail
    if tail.is_closed and is_close_only(command):
        return Decision(_appended(command, tail.tail, tail.tail, is_closed=True))  # 9
    refusal = check_stream(state, stream, command) or check_content(stream, command)
    if refusal is not None:
        return Decision(refusal)
    event = StreamAppended(stream.row.number, command.close, command.stream_seq)
    return _accept(stream, command, event)


def _decide_produced(state: State, stream: Stream, command: Append) -> Decision:
    tag = command.producer
    assert tag is not None
    digest = digest_of_append(stream, command)
    check = check_sequence(state, stream, tag, digest)
    if check.at_once is not None:
        return Decision(check.at_once)  # 7, 8
    refusal = (
        check_stream(state, stream, command)
        or check.later  # 11
        or check_content(stream, command)
        or check_room(state, stream, tag)
    )
    if refusal is not None:
        return Decision(refusal)
    stamp = ProducerStamp(  # positional: this runs once per append
        tag.id,
        tag.mode,
        check.epoch,
        tag.session,
        tag.first_seq,
        tag.last_seq,
        digest,
        tag.cursor,
    )
    event = StreamAppended(stream.row.number, command.close, command.stream_seq, stamp)
    decision = _accept(stream, command, event)
    if state.owned and (True, tag.id) in state.owned:
        return _fence_older(state, stream, decision)
    return decision


def _fence_older(state: State, stream: Stream, decision: Decision) -> Decision:
    """Abort the pending transactions of older instances of the producer, in the same frame."""
    event = decision.event
    assert isinstance(event, StreamAppended)
    assert event.stamp is not None
    draft = Draft(state)
    draft.advance(stream, sum(section.count for section in decision.sections))
    draft.fence(event.stamp.id, event.stamp.epoch)
    if not draft.ended:
        return decision
    raised = ProducerRaised(tuple(draft.ended), event)
    sections = (*decision.sections, *draft.sections)
    return Decision(decision.outcome, raised, sections, grows=decision.grows)


def _accept(stream: Stream, command: Append, event: StreamAppended) -> Decision:
    base = stream.tail.tail
    sections: tuple[Section, ...] = ()
    next_offset = base
    if command.batch is not None:
        sections = (section_of(stream.row.number, base, command.batch, stream.row.content_type),)
        next_offset += command.batch.count
    stamp = event.stamp
    if stamp is not None:
        outcome = Appended(base, next_offset, command.close, stamp.epoch, stamp.last_seq)
    elif event.key is not None:
        outcome = Appended(base, next_offset, command.close)
    else:
        outcome = _appended(command, base, next_offset, is_closed=command.close)
    return Decision(outcome, event, sections, command.batch is not None)


def _appended(command: Append, first: int, next_offset: int, *, is_closed: bool) -> Appended:
    """Return the outcome of an append that stores nothing to recognise a repeat."""
    tag = command.producer
    if tag is not None:
        return Appended(first, next_offset, is_closed, tag.epoch, tag.last_seq, is_unguarded=True)
    return Appended(first, next_offset, is_closed, is_unguarded=command.key is not None)
