"""The decision on an append.

The checks have the same order as the rows of the table in `docs/reference/machine.md`. The
comment at a check gives the number of the check's row.
"""

from collections.abc import Iterable
from typing import Final

from semel.machine.checks import (
    check_content,
    check_key,
    check_room,
    check_stream,
    digest_of_append,
    is_close_only,
    is_simple,
    section_of,
)
from semel.machine.events import (
    SECTION_STAGED,
    ChunkStaged,
    Decision,
    ProducerDeclared,
    ProducerRaised,
    ProducerStamp,
    Section,
    StreamAppended,
    StreamConfigured,
    TxnPublished,
    declared_event,
)
from semel.machine.lifetimes import declare
from semel.machine.policies import due_switch
from semel.machine.producers import (
    check_sequence,
    find_sparse,
    highest_seq,
    identity,
    is_between,
    is_current,
    latest_seq,
    repeat_of,
    unpack_receipt,
)
from semel.machine.rows import ProducerRow
from semel.machine.state import State, Stream, Txn, find_producer
from semel.machine.streams import find_stream
from semel.machine.txn.draft import Draft, chunk_at, chunk_count
from semel.machine.txn.lookup import ended_refusal, find_txn, refuse_owner
from semel.model.checksum import crc32, crc32c
from semel.model.commands import DENSE, TXN_INLINE, Append, ProducerTag, TxnOutcome, TxnTag
from semel.model.outcomes import (
    Appended,
    Duplicate,
    Gone,
    InvalidRequest,
    LimitReached,
    NotFound,
    Outcome,
    PayloadMismatch,
    SequenceGap,
)
from semel.model.outcomes_topics import IsTopic
from semel.model.outcomes_txn import InvalidTxnState, PartitionNotInTxn, Staged

_NOT_FOUND: Final = Decision(NotFound())
_GONE: Final = Decision(Gone())
_IS_TOPIC: Final = Decision(IsTopic())
_DIGITS_END: Final = ":"  # the character after "9": an id that the server assigned is less


def decide_append(state: State, command: Append) -> Decision:
    """Return the decision on a command that appends messages, closes the stream, or does both."""
    if command.transaction is not None:
        return decide_publish(state, command, command.transaction)  # 6
    stream = state.by_path.get(command.path)
    if stream is None:
        return _NOT_FOUND  # 5
    if stream.tail.is_deleted:
        return _GONE  # 5
    if stream.policy_version != state.policy_version:
        if stream.topic is not None:  # a topic never agrees with a version of the policies
            return _IS_TOPIC  # 5
        due = due_switch(state, stream)
        if due is not None:
            return _decide_switching(state, stream, command, is_on=due)
    if stream.tail.dedup_from is None:
        return _decide_plain(state, stream, command)
    if command.producer is not None:
        return _decide_produced(state, stream, command, command.producer)
    if command.key is None:
        return _decide_plain(state, stream, command)
    return _decide_keyed(state, stream, command, command.key)


def decide_outside(state: State, topic: Stream, command: Append) -> Decision:
    """Decide an append to a topic outside transactions, as if the topic were a stream."""
    due = due_switch(state, topic)
    if due is not None:
        return _decide_switching(state, topic, command, is_on=due)
    if topic.tail.dedup_from is None:
        return _decide_plain(state, topic, command)
    if command.producer is not None:
        return _decide_produced(state, topic, command, command.producer)
    if command.key is None:
        return _decide_plain(state, topic, command)
    return _decide_keyed(state, topic, command, command.key)


def _decide_switching(state: State, stream: Stream, command: Append, *, is_on: bool) -> Decision:
    """Decide an append with which duplicate detection starts or stops, as a policy requires.

    If it starts, the stream has no producers and no keys yet. If it stops, they are not looked at.
    A refused append changes nothing.
    """
    if is_on and command.producer is not None:
        decision = _decide_produced(state, stream, command, command.producer)
    elif is_on and command.key is not None:
        decision = _decide_keyed(state, stream, command, command.key)
    else:
        decision = _decide_plain(state, stream, command)
    event = decision.event
    if event is None:
        return decision
    declared = event if isinstance(event, ProducerDeclared) else None
    inner = declared_event(event)
    raised = inner if isinstance(inner, ProducerRaised) else None
    append = inner if raised is None else raised.append
    assert isinstance(append, StreamAppended)
    configured = StreamConfigured(
        stream.row.number,
        stream.tail.tail if is_on else None,
        is_own=False,
        append=append,
        ended=() if raised is None else raised.ended,
        expires_ms=0 if declared is None else declared.expires_ms,
    )
    return Decision(decision.outcome, configured, decision.sections, grows=decision.grows)


def _decide_keyed(state: State, stream: Stream, command: Append, key: str) -> Decision:
    digest = digest_of_append(stream, command)
    repeat = check_key(state, stream, key, digest=digest)
    if repeat is not None:
        return Decision(repeat)  # 8
    refusal = check_stream(state, stream, command) or check_content(stream, command)
    if refusal is not None:
        return Decision(refusal)
    event = StreamAppended(stream.row.number, command.close, command.stream_seq, None, key, digest)
    return _accept(stream, command, event)


def _decide_plain(state: State, stream: Stream, command: Append) -> Decision:
    """Decide an append that is not checked for duplicates.

    Such an append has no producer and no idempotency key, or its stream has no duplicate detection.
    """
    if not is_simple(stream, command):
        tail = stream.tail
        if tail.is_closed and is_close_only(command):
            return Decision(_appended(command, tail.tail, tail.tail, is_closed=True))  # 9
        refusal = check_stream(state, stream, command) or check_content(stream, command)
        if refusal is not None:
            return Decision(refusal)
    event = StreamAppended(stream.row.number, command.close, command.stream_seq)
    return _accept(stream, command, event)


def _decide_produced(state: State, stream: Stream, command: Append, tag: ProducerTag) -> Decision:
    batch, producers = command.batch, stream.producers
    row = producers.get(tag.id) if producers else None
    if (
        row is not None
        and batch is not None
        and tag.last_seq == row.last_seq + 1
        and (tag.epoch == row.epoch or tag.epoch is None)
        and (tag.session is None or tag.session == row.session)
        and (not tag.expires_ms or tag.expires_ms == row.expires_ms)
        and tag.mode == DENSE
        and row.mode == DENSE
        and row.last_seq >= 0
        and row.latest_seq < 0  # it has not appended inside a transaction
        and not row.is_expired
        and not (state.owned and (True, tag.id) in state.owned)
        and ((not state.registry and tag.id > _DIGITS_END) or is_current(state, tag.id, row.epoch))
        and is_simple(stream, command)
    ):
        # The common case: a dense producer continues, with one message and no conditions. The
        # checks below would accept the append too. This runs for most appends, so it calls fewer
        # functions.
        payload, epoch, seq = batch.payload, row.epoch, tag.last_seq
        number, base = stream.row.number, stream.tail.tail
        digest = crc32c(payload) << 32 | crc32(payload)  # as `digest_of`
        stamp = ProducerStamp(tag.id, DENSE, epoch, tag.session, seq, seq, digest, tag.cursor)
        outcome = Appended(base, base + 1, False, epoch, seq)
        event = StreamAppended(number, False, None, stamp)
        return Decision(outcome, event, (Section(number, base, 1, payload),), True)
    return _decide_checked(state, stream, command, tag, row)


def _decide_checked(
    state: State, stream: Stream, command: Append, tag: ProducerTag, row: ProducerRow | None
) -> Decision:
    """Decide an append of a producer by all checks. `row` is the stored state of the producer."""
    digest = digest_of_append(stream, command)
    check = check_sequence(state, stream, tag, digest)
    if check.at_once is not None:
        return Decision(check.at_once)  # 7, 8
    refusal = (
        check_stream(state, stream, command)
        or check.later  # 11
        or check_content(stream, command)
        or check_room(state, stream, tag, row)
    )
    if refusal is not None:
        return Decision(refusal)
    stamp = ProducerStamp(
        id=tag.id,
        mode=tag.mode,
        epoch=check.epoch,
        session=tag.session,
        first_seq=tag.first_seq,
        last_seq=tag.last_seq,
        digest=digest,
        cursor=tag.cursor,
    )
    event = StreamAppended(stream.row.number, command.close, command.stream_seq, stamp)
    decision = _accept(stream, command, event)
    if (True, tag.id) in state.owned:
        decision = _fence_older(state, stream, stamp, event, decision)
    if row is None or row.is_expired or (tag.expires_ms and tag.expires_ms != row.expires_ms):
        return declare(state, row, tag.id, tag.expires_ms, decision)
    return decision


def _fence_older(
    state: State, stream: Stream, stamp: ProducerStamp, event: StreamAppended, decision: Decision
) -> Decision:
    """Return `decision`, extended so that its frame also aborts older transactions.

    These are the pending transactions of the producer's older instances.
    """
    draft = Draft(state)
    draft.advance(stream, sum(section.count for section in decision.sections))
    draft.fence(stamp.id, stamp.epoch)
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
    elif event.key is not None or (command.producer is None and command.key is None):
        outcome = Appended(base, next_offset, command.close)
    else:
        outcome = _appended(command, base, next_offset, is_closed=command.close)
    return Decision(outcome, event, sections, command.batch is not None)


def _appended(command: Append, first: int, next_offset: int, *, is_closed: bool) -> Appended:
    """Return the outcome of an append that is not checked for duplicates."""
    tag = command.producer
    if tag is not None:
        return Appended(first, next_offset, is_closed, tag.epoch, tag.last_seq, is_unguarded=True)
    return Appended(first, next_offset, is_closed, is_unguarded=command.key is not None)


# ---- inside a transaction ------------------------------------------------------------------------
# Check 6, and the later checks as far as they are different inside a transaction.


def decide_publish(state: State, command: Append, tag: TxnTag) -> Decision:
    """Decide an append inside a transaction. `tag` names the transaction."""
    stream = find_stream(state, command.path)
    if not isinstance(stream, Stream):
        return Decision(stream)  # 5
    return decide_publish_on(state, stream, command, tag)


def decide_publish_on(state: State, stream: Stream, command: Append, tag: TxnTag) -> Decision:
    """Decide an append inside a transaction to a stream, or to a topic as if it were a stream."""
    txn = _find(state, command, tag)
    if not isinstance(txn, Txn):
        return Decision(txn)
    refusal = _refuse_in_txn(txn, stream, command)
    if refusal is not None:
        return Decision(refusal)
    if txn.row.kind == TXN_INLINE:
        return _decide_inline(state, txn, stream, command)
    return _decide_staged(state, txn, stream, command, tag)


def _find(state: State, command: Append, tag: TxnTag) -> Txn | Outcome:
    txn = find_txn(state, tag)
    if isinstance(txn, TxnOutcome):
        return ended_refusal(txn)  # 6a
    producer = command.producer
    if isinstance(txn, Txn) and producer is not None:
        return refuse_owner(txn, producer.id, producer.epoch) or txn  # 6a
    return txn


def _refuse_in_txn(txn: Txn, stream: Stream, command: Append) -> Outcome | None:
    if txn.row.is_prepared:
        return InvalidTxnState("prepared")  # 6b
    if command.close:
        return InvalidRequest("close")  # 6c
    if command.key is not None:
        return InvalidRequest("idempotency_key")  # 6c
    if is_close_only(command):
        return InvalidRequest("batch")  # 6c
    row = stream.row
    is_named = txn.row.is_implicit or row.number in txn.streams or row.topic in txn.streams
    return None if is_named else PartitionNotInTxn()  # 6d


def count_streams(state: State, numbers: Iterable[int]) -> int:
    """Return how many of the streams and topics with these numbers are streams."""
    return sum(state.by_number[number].topic is None for number in numbers)


def _refuse_more_streams(state: State, txn: Txn, stream: Stream) -> Outcome | None:
    maximum = state.limits.txn_streams
    is_counted = stream.row.number not in txn.streams and stream.topic is None
    has_room = not is_counted or len(txn.streams) < maximum  # saves a call
    has_room = has_room or count_streams(state, txn.streams) < maximum
    return None if has_room else LimitReached("transaction_streams", maximum)  # 15


# ---- inline --------------------------------------------------------------------------------------


def _decide_inline(state: State, txn: Txn, stream: Stream, command: Append) -> Decision:
    tag = command.producer
    if tag is None or tag.mode != DENSE or tag.epoch is None:
        return Decision(InvalidRequest("producer"))
    if tag.cursor is not None:
        return Decision(InvalidRequest("producer_cursor"))  # an abort would not undo the cursor
    if stream.tail.dedup_from is None:
        return _decide_unguarded(state, txn, stream, command, tag)
    row = find_producer(stream, tag.id)
    refusal = identity(tag, row, state.registry[tag.id].epoch)
    if refusal is not None:
        return Decision(refusal)  # 7
    digest = digest_of_append(stream, command)
    current = row if row is not None and row.epoch == tag.epoch and not row.is_expired else None
    if current is not None and current.txn == txn.row.number:
        repeat = _repeat(stream, tag, current, digest, state.limits.receipts)
        if repeat is not None:
            return Decision(repeat)  # 8
    refusal = (
        check_stream(state, stream, command)
        or _refuse_sequence(txn, tag, current)  # 11
        or check_content(stream, command)
        or check_room(state, stream, tag, row)
        or _refuse_more_streams(state, txn, stream)
    )
    if refusal is not None:
        return Decision(refusal)
    stamp = ProducerStamp(
        id=tag.id,
        mode=DENSE,
        epoch=tag.epoch,
        session=tag.session,
        first_seq=tag.first_seq,
        last_seq=tag.last_seq,
        digest=digest,
        cursor=None,
    )
    decision = _accept_inline(txn, stream, command, tag, stamp)
    return declare(state, row, tag.id, tag.expires_ms, decision)


def _decide_unguarded(
    state: State, txn: Txn, stream: Stream, command: Append, tag: ProducerTag
) -> Decision:
    """Decide an inline transaction's append to a stream that has no duplicate detection."""
    refusal = (
        check_stream(state, stream, command)
        or check_content(stream, command)
        or _refuse_more_streams(state, txn, stream)
    )
    return Decision(refusal) if refusal else _accept_inline(txn, stream, command, tag, None)


def _accept_inline(
    txn: Txn, stream: Stream, command: Append, tag: ProducerTag, stamp: ProducerStamp | None
) -> Decision:
    number, base, batch = stream.row.number, stream.tail.tail, command.batch
    assert batch is not None
    append = StreamAppended(number, stream_seq=command.stream_seq, stamp=stamp)
    outcome = Appended(
        base, base + batch.count, False, tag.epoch, tag.last_seq, is_unguarded=stamp is None
    )
    section = section_of(number, base, batch, stream.row.content_type)
    return Decision(outcome, TxnPublished(txn.row.number, append), (section,), grows=True)


def _repeat(
    stream: Stream, tag: ProducerTag, row: ProducerRow, digest: int, receipts_max: int
) -> Outcome | None:
    """Return the outcome of an append that repeats an earlier append of the same transaction.

    Return None if the append is new.
    """
    receipt = find_sparse(row.txn_receipts, first_seq=tag.first_seq, last_seq=tag.last_seq)
    if receipt is not None:
        return repeat_of(stream, tag, row, receipt, is_equal=receipt.digest == digest)
    if not is_between(row.txn_receipts, tag.first_seq, receipts_max):
        return None
    # If the producer has also appended outside the transaction, it may have used the sequence for
    # that append.
    if row.last_seq >= unpack_receipt(row.txn_receipts, 0).first_seq:
        return None
    return Duplicate(None, None, stream.tail.is_closed, row.epoch, highest_seq(row))


def _refuse_sequence(txn: Txn, tag: ProducerTag, row: ProducerRow | None) -> Outcome | None:
    expected = 0 if row is None else latest_seq(row) + 1
    is_first = row is None or row.txn != txn.row.number
    is_next = tag.first_seq == expected or (is_first and tag.first_seq == 0)
    return None if is_next else SequenceGap(expected, tag.first_seq)


# ---- staged --------------------------------------------------------------------------------------


def _decide_staged(
    state: State, txn: Txn, stream: Stream, command: Append, tag: TxnTag
) -> Decision:
    if command.producer is not None:
        return Decision(InvalidRequest("producer"))
    if command.stream_seq is not None:
        return Decision(InvalidRequest("stream_seq"))
    if command.if_match is not None:
        return Decision(InvalidRequest("if_match"))
    seq, expected = tag.seq, txn.row.next_seq
    if seq is None:
        return Decision(InvalidRequest("transaction_seq"))
    if seq < expected:
        # Appends to topics stage several chunks each. Then it is not known which chunks are those
        # of this append, so that they cannot be compared.
        is_equal = chunk_count(txn.chunk_blocks) != expected or stream.topic is not None
        if not is_equal:
            digest = digest_of_append(stream, command) >> 32
            is_equal = chunk_at(txn.chunk_blocks, seq) == (stream.row.number, digest)
        if tag.is_strict and not is_equal:
            return Decision(PayloadMismatch())  # 8
        # A chunk has no offsets yet, so the outcome Duplicate has no offsets either.
        closed = stream.tail.is_closed
        return Decision(Duplicate(None, None, closed, is_mismatch=not is_equal))  # 8
    refusal = (
        check_stream(state, stream, command)
        or (SequenceGap(expected, seq) if seq > expected else None)  # 11
        or check_content(stream, command)
        or _refuse_more_streams(state, txn, stream)
    )
    if refusal is not None:
        return Decision(refusal)
    # An append to a topic has a chunk for each partition. They are counted when these are known.
    if stream.topic is None and chunk_count(txn.chunk_blocks) >= state.limits.chunks:
        return Decision(LimitReached("chunks", state.limits.chunks))  # 15
    batch, row = command.batch, stream.row
    assert batch is not None
    section = section_of(row.number, 0, batch, row.content_type, SECTION_STAGED)
    return Decision(Staged(expected + 1), ChunkStaged(txn.row.number, seq), (section,), grows=True)
