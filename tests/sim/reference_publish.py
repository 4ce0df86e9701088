"""Appends in a transaction: check 6, and the later checks that differ."""

from typing import TYPE_CHECKING

from msgspec.structs import replace

from semel.model import outcomes as out
from semel.model import outcomes_txn as txn_out
from semel.model.commands import DENSE, TXN_INLINE, Append, ProducerTag, TxnTag
from semel.model.outcomes import Outcome
from tests.sim import reference_producers as rules
from tests.sim.reference_streams import Stream
from tests.sim.reference_txn import Chunk, Txn

if TYPE_CHECKING:
    from tests.sim.reference import Model


def publish(model: "Model", stream: Stream, c: Append, tag: TxnTag) -> Outcome:
    """Return the outcome of an append that names a transaction."""
    txns, by = model.txns, c.producer
    claim = (None, None) if by is None else (by.id, by.epoch)
    txn = txns.find_undecided(tag.id, tag.epoch, claim)
    if isinstance(txn, Outcome):
        return txn  # 6a
    if txn.is_prepared:
        return txn_out.InvalidTxnState("prepared")  # 6b
    if c.close or c.key is not None:
        return out.InvalidRequest("close" if c.close else "idempotency_key")  # 6c
    is_named = stream.number in txn.streams or stream.topic_number in txn.streams
    if not (is_named or txn.is_implicit):
        return txn_out.PartitionNotInTxn()  # 6d
    if txn.kind == TXN_INLINE:
        return _publish_inline(model, stream, c, txn)
    return _stage(model, stream, c, tag, txn)


def _no_room(model: "Model", stream: Stream, txn: Txn) -> Outcome | None:
    maximum = model.txns.bounds.streams
    topics = [s.number for s in model.streams.values() if s.topic is not None]
    count = sum(number not in topics for number in txn.streams)
    is_full = stream.number not in txn.streams and count >= maximum
    return out.LimitReached("transaction_streams", maximum) if is_full else None


def _publish_inline(model: "Model", stream: Stream, c: Append, txn: Txn) -> Outcome:
    by = c.producer
    if by is None or by.mode != DENSE or by.epoch is None:
        return out.InvalidRequest("producer")
    if by.cursor is not None:
        return out.InvalidRequest("producer_cursor")
    if stream.dedup_from is None:
        answer = _judge_unguarded(model, stream, c, txn)
    else:
        answer = _judge_inline(model, stream, c, by, txn)
    if answer is not None:
        return answer
    if stream.number not in txn.streams:
        txn.streams.append(stream.number)
    txn.touched_ms = model.now(c)
    if stream.dedup_from is None:
        done = model.accept(stream, replace(c, producer=None), txn.number)
        return replace(done, is_unguarded=True, epoch=by.epoch, seq=by.last_seq)
    return model.accept(stream, c, txn.number)


def _judge_unguarded(model: "Model", stream: Stream, c: Append, txn: Txn) -> Outcome | None:
    return (
        model.closed_or_other_type(stream, c)
        or model.precondition(stream, c)
        or _no_room(model, stream, txn)
    )


def _judge_inline(
    model: "Model", stream: Stream, c: Append, by: ProducerTag, txn: Txn
) -> Outcome | None:
    known, digest = stream.producers.get(by.id), model.digest_claimed(stream, c)
    # Messages it wrote while deduplication was off have no producer, and do not count.
    is_again = any(m.producer is not None for m in stream.data_of(txn.number))
    if stream.topic_number:  # messages that came by the topic have the topic's sequence
        is_again = is_again and known is not None and known.txn == txn.number
    is_first = not is_again
    return (
        rules.identity(known, by, model.registry.get(by.id))
        or (
            rules.repeat_inline(known, by, txn.number, digest, model.receipts) if is_again else None
        )
        or model.closed_or_other_type(stream, c)
        or rules.sequence_inline(known, by, is_first)
        or model.precondition(stream, c)
        or model.no_room(stream, by)
        or _no_room(model, stream, txn)
    )


def _stage(model: "Model", stream: Stream, c: Append, tag: TxnTag, txn: Txn) -> Outcome:
    for name in ("producer", "stream_seq", "if_match"):
        if getattr(c, name) is not None:
            return out.InvalidRequest(name)
    if tag.seq is None:
        return out.InvalidRequest("transaction_seq")
    answer = _judge_chunk(model, stream, c, tag, tag.seq, txn)
    if answer is not None:
        return answer
    now = model.write(c)
    assert c.batch is not None
    txn.chunks.append(Chunk(tag.seq, stream.number, c.batch))
    digest = model.digest_claimed(stream, c)
    assert digest is not None
    txn.sent.append((stream.number, digest))
    model.topics.note_key(stream, c.batch)
    txn.next_seq, txn.touched_ms = tag.seq + 1, now
    if stream.number not in txn.streams:
        txn.streams.append(stream.number)
    if txn.timeout_ms is not None:
        txn.deadline_ms = now + txn.timeout_ms
    return txn_out.Staged(txn.next_seq)


def _judge_chunk(
    model: "Model", stream: Stream, c: Append, tag: TxnTag, seq: int, txn: Txn
) -> Outcome | None:
    if seq < txn.next_seq:
        # Which chunks are those of `seq` is not known after an append to several partitions.
        is_known = len(txn.sent) == txn.next_seq
        is_other = is_known and txn.sent[seq] != (stream.number, model.digest_claimed(stream, c))
        if is_other and tag.is_strict:
            return out.PayloadMismatch()
        return out.Duplicate(None, None, stream.is_closed, is_mismatch=is_other)  # 8
    if (refusal := model.closed_or_other_type(stream, c)) is not None:
        return refusal
    if seq > txn.next_seq:
        return out.SequenceGap(txn.next_seq, seq)  # 11
    if (refusal := model.precondition(stream, c)) is not None:
        return refusal
    if (refusal := _no_room(model, stream, txn)) is not None:
        return refusal
    maximum = model.txns.bounds.chunks
    return out.LimitReached("chunks", maximum) if len(txn.sent) >= maximum else None
