"""The decision on an append: the one order of checks.

The numbers in the comments are the rows of the table in `docs/reference/machine.md`.
"""

from typing import Final

from semel.machine.draft import Draft
from semel.machine.events import Decision, Mark, ProducerRaised, Section, StreamAppended
from semel.machine.keys import judge_key
from semel.machine.producers import judge
from semel.machine.sections import section_of
from semel.machine.state import State, Stream
from semel.model.checksum import digest_of
from semel.model.commands import Append, Batch, ProducerTag
from semel.model.extras import fault_in_extras
from semel.model.limits import SEQUENCE_SPAN_MAX
from semel.model.media import is_json, same_media_type
from semel.model.names import adds_up
from semel.model.outcomes import (
    Appended,
    BadBody,
    ContentTypeConflict,
    Gone,
    InvalidRequest,
    LimitReached,
    NotFound,
    Outcome,
    PreconditionFailed,
    StreamClosed,
    StreamSeqConflict,
)
from semel.model.txn_outcomes import StreamInTransaction

_NOT_FOUND: Final = Decision(NotFound())
_GONE: Final = Decision(Gone())
_NO_BODY: Final = digest_of(b"")
_BAD_BODY: Final = -1  # equals no digest


def decide_append(state: State, command: Append) -> Decision:
    """Decide an append, a close, or both."""
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
    repeat = judge_key(state, stream, key, digest=digest, now_ms=command.now_ms)
    if repeat is not None:
        return Decision(repeat)  # 8
    refusal = refuse_stream(state, stream, command) or refuse_content(stream, command)
    if refusal is not None:
        return Decision(refusal)
    event = StreamAppended(stream.row.number, command.close, command.stream_seq, None, key, digest)
    return _accept(stream, command, event)


def _decide_plain(state: State, stream: Stream, command: Append) -> Decision:
    """Decide an append without an identity, or on a stream that does not look at it."""
    tail = stream.tail
    if tail.is_closed and is_close_only(command):
        return Decision(_appended(command, tail.tail, tail.tail, is_closed=True))  # 9
    refusal = refuse_stream(state, stream, command) or refuse_content(stream, command)
    if refusal is not None:
        return Decision(refusal)
    event = StreamAppended(stream.row.number, command.close, command.stream_seq)
    return _accept(stream, command, event)


def _decide_produced(state: State, stream: Stream, command: Append) -> Decision:
    tag = command.producer
    assert tag is not None
    digest = digest_of_append(stream, command)
    verdict = judge(state, stream, tag, digest)
    if verdict.at_once is not None:
        return Decision(verdict.at_once)  # 7, 8
    refusal = (
        refuse_stream(state, stream, command)
        or verdict.later  # 11
        or refuse_content(stream, command)
        or refuse_room(state, stream, tag)
    )
    if refusal is not None:
        return Decision(refusal)
    mark = Mark(
        tag.id,
        tag.mode,
        verdict.epoch,
        tag.session,
        tag.first_seq,
        tag.last_seq,
        digest,
        tag.cursor,
    )
    event = StreamAppended(stream.row.number, command.close, command.stream_seq, mark)
    decision = _accept(stream, command, event)
    if state.owned and (True, tag.id) in state.owned:
        return _fence_older(state, stream, decision)
    return decision


def _fence_older(state: State, stream: Stream, decision: Decision) -> Decision:
    """Abort the transactions that older instances of the producer left open, in the same frame."""
    event = decision.event
    assert isinstance(event, StreamAppended)
    assert event.mark is not None
    draft = Draft(state)
    draft.advance(stream, sum(section.count for section in decision.sections))
    draft.fence(event.mark.id, event.mark.epoch)
    if not draft.ended:
        return decision
    raised = ProducerRaised(tuple(draft.ended), event)
    sections = (*decision.sections, *draft.sections)
    return Decision(decision.outcome, raised, sections, grows=decision.grows)


def is_close_only(command: Append) -> bool:
    """Tell whether the command brings no body."""
    return command.batch is None and command.body_error is None


def digest_of_append(stream: Stream, command: Append) -> int:
    """Digest what an append brings; a body that is wrong equals no other."""
    batch = command.batch
    if batch is None:
        return _NO_BODY if command.body_error is None else _BAD_BODY
    if batch.count > 1 and not is_json(stream.row.content_type):
        return digest_of(batch.payload, batch.extras + batch.lengths)  # `ab`, `c` or `a`, `bc`
    return digest_of(batch.payload, batch.extras)


def refuse_stream(state: State, stream: Stream, command: Append) -> Outcome | None:
    """Refuse what the stream cannot take, whoever brings it."""
    if stream.tail.is_closed:
        return StreamClosed(stream.tail.tail)  # 9
    if command.close and stream.open:
        oldest = state.by_txn[min(stream.open)]
        return StreamInTransaction(oldest.row.id)  # 9
    if command.content_type == stream.row.content_type or is_close_only(command):
        return None
    given = command.content_type
    if not given or not same_media_type(given, stream.row.content_type):
        return ContentTypeConflict(stream.row.content_type)  # 10
    return None


def refuse_content(stream: Stream, command: Append) -> Outcome | None:
    """Refuse what does not follow what is there, or is no sound body."""
    tail = stream.tail
    last = tail.stream_seq
    # Byte-wise: str compares code points, and UTF-8 keeps their order.
    if command.stream_seq is not None and last is not None and command.stream_seq <= last:
        return StreamSeqConflict(last)  # 12
    if command.if_match is not None and command.if_match != tail.tail:
        return PreconditionFailed(tail.tail)  # 13
    return refuse_body(command.batch, command.body_error, stream.row.content_type)


def refuse_body(batch: Batch | None, error: str | None, content_type: str) -> Outcome | None:
    """Refuse a body that is not what the stream's media type wants."""
    if error is not None:
        return BadBody(error)  # 14
    if batch is None:
        return None
    if batch.count > 1 and not adds_up(batch, is_joined=is_json(content_type)):
        return InvalidRequest("batch")
    if batch.extras:
        fault = fault_in_extras(batch.extras, batch.count)
        return None if fault is None else BadBody(fault)  # 14
    return None


def refuse_room(state: State, stream: Stream, tag: ProducerTag) -> Outcome | None:
    """Refuse what there is no room to remember."""
    if tag.last_seq - tag.first_seq > SEQUENCE_SPAN_MAX:
        return LimitReached("sequence_span", SEQUENCE_SPAN_MAX)  # 15
    known = stream.producers
    maximum = state.limits.producers_per_stream
    if known is None or tag.id in known or len(known) < maximum:
        return None
    return LimitReached("producers_per_stream", maximum)  # 15


def _accept(stream: Stream, command: Append, event: StreamAppended) -> Decision:
    base = stream.tail.tail
    sections: tuple[Section, ...] = ()
    next_offset = base
    if command.batch is not None:
        sections = (section_of(stream.row.number, base, command.batch, stream.row.content_type),)
        next_offset += command.batch.count
    mark = event.mark
    if mark is not None:
        outcome = Appended(base, next_offset, command.close, mark.epoch, mark.last_seq)
    elif event.key is not None:
        outcome = Appended(base, next_offset, command.close)
    else:
        outcome = _appended(command, base, next_offset, is_closed=command.close)
    return Decision(outcome, event, sections, grows=command.batch is not None)


def _appended(command: Append, first: int, next_offset: int, *, is_closed: bool) -> Appended:
    """Answer an append of which only the data is remembered."""
    tag = command.producer
    if tag is not None:
        return Appended(first, next_offset, is_closed, tag.epoch, tag.last_seq, is_unguarded=True)
    return Appended(first, next_offset, is_closed, is_unguarded=command.key is not None)
