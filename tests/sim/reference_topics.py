"""Topics of the reference model: one name for several streams, its partitions.

Written from table T of the design and from the contract of topics, not from the engine. A topic is
a `Stream` of the model with a `Topic`. Its producers, keys, switch and life are those of a stream.
Its `messages` are one for each append outside commits, without content: so the rules that ask which
transactions have messages in a stream hold for topics too. What was stored by each append is in
`Topic.parts`, which forgets nothing: what is retained is decided by the receipts.

Where table T leaves something open, a comment marked CHOICE states what is modelled. In one list:

- Existence comes first, then that the path has the right kind. A soft-deleted topic is `Gone` for
  commands on streams, `ConfigConflict("deleted")` for `Create`, and not found for its own commands.
- `SwitchDedup`, `Expire`, claims, and the ends of producers take the path of a topic. `Append`,
  `Delete`, `Trim`, forks of it, positions, pins and `expects` do not: `IsTopic`.
- `Append` with `close` to a partition is `StreamInTopic` before every other check.
- `Claimed.last_offset` is None: a topic has no offsets. `StreamClosed` has none either.
- A message that carries a key makes the topic keyed, whatever has selected its partition; also in
  transactions (when it is appended or staged) and in one-shot commits.
- A repeat is recognised by the digest of the messages. Hint and partition are no part of it.
- Room: producers of the topic first, then streams of the transaction, then its chunks.
- A topic and the partitions that an append touches join the transaction, the topic too.
- A repeated chunk is `TopicStored` without parts.
- `CloseTopic` is refused for the oldest transaction that has messages in any partition, also if
  they were appended to the partition directly.
- Growth of a closed topic is refused (`StreamClosed`), after the number of partitions was compared.
- `KeysWouldMove` comes before `StreamInTransaction`, that before `StreamExists`, and that before
  the limits.
- A policy that is due takes effect on the topic with an append to the topic, and on a partition
  with one to the partition.
"""

import struct
from typing import TYPE_CHECKING

from msgspec.structs import replace

from semel.model import commands as ask
from semel.model import limits
from semel.model import outcomes as out
from semel.model import outcomes_topics as topic_out
from semel.model import outcomes_txn as txn_out
from semel.model.checksum import digest_of
from semel.model.commands import DENSE, TXN_INLINE, Batch, ProducerTag, TxnTag
from semel.model.messages import encode_extras
from semel.model.outcomes import Outcome
from semel.model.outcomes_topics import PartResult
from semel.model.topic_commands import (
    AppendTopic,
    CloseTopic,
    CreateTopic,
    DeleteTopic,
    GrowTopic,
    TopicCommand,
)
from tests.sim import reference_producers as rules
from tests.sim.reference_commit import bad_batch
from tests.sim.reference_policies import set_switch
from tests.sim.reference_producers import Producer, Receipt
from tests.sim.reference_rights import RESERVED
from tests.sim.reference_routing import Routed, note_keys, route
from tests.sim.reference_streams import (
    Extra,
    KeyUse,
    Message,
    Rows,
    Stream,
    Topic,
    media_type,
    rows_of,
)
from tests.sim.reference_txn import Chunk, Txn

if TYPE_CHECKING:
    from tests.sim.reference import Model


def digest_of_append(stream: Stream, c: AppendTopic) -> int | None:
    """Return the digest by which an append is compared; None equals no stored digest."""
    if c.body_error is not None:
        return None
    batches = [c.batch] if c.batch is not None else [batch for _, batch in c.parts]
    has_bounds = sum(batch.count for batch in batches) > 1 and not stream.is_json
    text = (b"," if stream.is_json else b"").join(batch.payload for batch in batches)
    text += b"".join(batch.extras for batch in batches)
    for batch in batches if has_bounds else []:
        text += batch.lengths or struct.pack("<I", len(batch.payload))
    return digest_of(text)


def digest_of_rows(rows: Rows, is_json: bool) -> int:
    """Return the digest of a chunk, which has the messages of one partition."""
    bodies, extras = [body for body, _ in rows.rows], [extra for _, extra in rows.rows]
    block = encode_extras(
        len(bodies),
        keys=[extra.key for extra in extras],
        headers=[extra.headers for extra in extras],
        timestamps=[extra.timestamp_ms for extra in extras],
    )
    has_bounds = len(bodies) > 1 and not is_json
    lengths = b"".join(struct.pack("<I", len(body)) for body in bodies) if has_bounds else b""
    return digest_of((b"," if is_json else b"").join(bodies) + block + lengths)


# ---- topics --------------------------------------------------------------------------------------


class Topics:
    """The rules of commands on topics."""

    def __init__(self, model: "Model") -> None:
        self._model = model

    def execute(self, c: TopicCommand) -> Outcome:
        """Execute a command on a topic."""
        if isinstance(c, CreateTopic):
            return self._create(c)
        stream = self._model.streams.get(c.path)
        if stream is None or stream.topic is None:
            return topic_out.TopicNotFound()
        if stream.is_deleted:
            return out.Gone()
        match c:
            case GrowTopic():
                return self._grow(stream, stream.topic, c)
            case CloseTopic():
                return self._close(stream, stream.topic, c)
            case DeleteTopic():
                return topic_out.TopicDeleted(self.delete(c.path, self._model.write(c)))
            case AppendTopic():
                return self._append(stream, stream.topic, c)

    def streams_of(self, topic: Topic) -> list[tuple[str, Stream]]:
        """Return the partitions with their paths, without those that are gone."""
        by_number = {s.number: (path, s) for path, s in self._model.streams.items()}
        return [by_number[n] for n in topic.partitions if n in by_number]

    def path_of(self, number: int) -> str:
        """Return the path of a topic."""
        return self._model.txns.by_number(number)[0]

    def refuse_as_stream(self, stream: Stream, c: ask.EngineCommand) -> Outcome | None:
        """Refuse what is not possible for a topic, or for one partition of a topic."""
        if stream.topic is not None:
            is_for_streams = isinstance(c, ask.Append | ask.Delete | ask.Trim)
            return topic_out.IsTopic() if is_for_streams else None
        if not stream.topic_number:
            return None
        is_for_topics = isinstance(c, ask.Delete | ask.SwitchDedup)
        return self.not_alone(stream) if is_for_topics else None

    def note_key(self, stream: Stream, batch: Batch) -> None:
        """Note the keys of messages that were appended to a partition."""
        if stream.topic_number:
            topic = self._model.txns.by_number(stream.topic_number)[1].topic
            assert topic is not None
            note_keys(topic, {0: Rows(rows_of(batch, stream.is_json))})

    def not_alone(self, stream: Stream) -> Outcome | None:
        """Refuse what is not possible for one partition, but for the whole topic."""
        number = stream.topic_number
        return topic_out.StreamInTopic(self.path_of(number)) if number else None

    # ---- create and grow -------------------------------------------------------------------------

    def _create(self, c: CreateTopic) -> Outcome:
        model = self._model
        stream = model.streams.get(c.path)
        if stream is not None and stream.topic is not None and not stream.is_deleted:
            return self._create_again(stream, stream.topic, c)
        paths = [c.path, *(f"{c.path}/{n}" for n in range(c.partitions))]
        if (refusal := self._in_the_way(paths)) is not None:
            return refusal
        now = model.write(c)
        kind = c.content_type or "application/octet-stream"
        stream = Stream(model.next_stream, c.incarnation, kind, c.ttl_ms, c.expires_at_ms, now)
        stream.is_own = c.dedup is not None
        is_on = model.policies.wanted(c.path)[0] if c.dedup is None else c.dedup
        stream.dedup_from = 0 if is_on else None
        model.next_stream += 1
        model.streams[c.path] = stream
        stream.topic = Topic(c.partitioner, ())
        self._add_partitions(stream, stream.topic, c, paths[1:], now)
        return self._created(c.path, stream, stream.topic, is_new=True)

    def _in_the_way(self, paths: list[str]) -> Outcome | None:
        model = self._model
        taken = [path for path in paths if path in model.streams or path.startswith(RESERVED)]
        if taken:
            return topic_out.StreamExists(tuple(sorted(taken)))
        if len(model.streams) + len(paths) > model.streams_max:
            return out.LimitReached("streams", model.streams_max)
        return None

    def _add_partitions(
        self, stream: Stream, topic: Topic, c: CreateTopic | GrowTopic, paths: list[str], now: int
    ) -> None:
        model = self._model
        for path in paths:
            name = f"{c.incarnation}-{len(topic.partitions)}"
            made = Stream(model.next_stream, name, stream.content_type, None, None, now)
            made.topic_number = stream.number
            made.dedup_from = 0 if model.policies.wanted(path)[0] else None
            model.next_stream += 1
            model.streams[path] = made
            topic.partitions = (*topic.partitions, made.number)
            model.subscriptions.link_new_stream(path)

    def _created(self, path: str, stream: Stream, topic: Topic, *, is_new: bool) -> Outcome:
        return topic_out.TopicCreated(
            len(topic.partitions),
            topic.partitioner,
            stream.content_type,
            stream.incarnation,
            is_new,
            stream.dedup_from,
            self._model.policies.source(path, stream),
        )

    def _create_again(self, stream: Stream, topic: Topic, c: CreateTopic) -> Outcome:
        wanted = c.content_type or "application/octet-stream"
        is_on = stream.dedup_from is not None
        is_equal = {
            "content_type": media_type(wanted) == media_type(stream.content_type),
            "partitioner": c.partitioner == topic.partitioner,
            "partitions": c.partitions == len(topic.partitions),
            "ttl": c.ttl_ms == stream.ttl_ms,
            "expires_at": c.expires_at_ms == stream.expires_at_ms,
            "dedup": c.dedup is None or (stream.is_own and c.dedup == is_on),
        }
        for name, is_same in is_equal.items():
            if not is_same:
                return topic_out.TopicConflict(name)
        return self._created(c.path, stream, topic, is_new=False)

    def _grow(self, stream: Stream, topic: Topic, c: GrowTopic) -> Outcome:
        count = len(topic.partitions)
        if c.partitions < count:
            return topic_out.TooFewPartitions(count)
        if c.partitions == count:
            newest = topic.fences[-1] if topic.fences else ()
            return topic_out.TopicGrown(count, newest, is_new=False)
        if stream.is_closed:
            return out.StreamClosed(None)
        if topic.is_keyed and not c.keys_may_move:
            return topic_out.KeysWouldMove()
        staging = [
            txn
            for txn in self._model.txns.open.values()
            if (txn.kind == ask.TXN_STAGED and stream.number in txn.streams)
            or (topic.is_keyed and any(chunk.stream in topic.partitions for chunk in txn.chunks))
        ]
        if staging:  # its messages would come after the fences
            oldest = min(staging, key=lambda txn: txn.number)
            return txn_out.StreamInTransaction(oldest.id)
        paths = [f"{c.path}/{n}" for n in range(count, c.partitions)]
        if (refusal := self._in_the_way(paths)) is not None:
            return refusal
        if len(topic.fences) >= limits.TOPIC_GROWTHS_MAX:
            return out.LimitReached("topic_growths", limits.TOPIC_GROWTHS_MAX)
        fence = tuple(partition.tail for _, partition in self.streams_of(topic))
        topic.fences = (*topic.fences, fence)
        self._add_partitions(stream, topic, c, paths, self._model.write(c))
        return topic_out.TopicGrown(c.partitions, fence, is_new=True)

    # ---- the end ---------------------------------------------------------------------------------

    def _close(self, stream: Stream, topic: Topic, c: CloseTopic) -> Outcome:
        if stream.is_closed:
            return topic_out.TopicClosed()
        model = self._model
        partitions = [partition for _, partition in self.streams_of(topic)]
        holders = [txn for partition in partitions for txn in model.txns.open_in(partition)]
        if holders:
            oldest = min(holders, key=lambda txn: txn.number)
            return txn_out.StreamInTransaction(oldest.id)
        now = model.write(c)
        for each in (stream, *partitions):
            each.is_closed, each.written_ms = True, now
        return topic_out.TopicClosed()

    def delete(self, path: str, _now: int) -> bool:
        """Delete a topic with its partitions; return whether some are kept for forks."""
        model = self._model
        stream = model.streams[path]
        assert stream.topic is not None
        for name, each in [(path, stream), *self.streams_of(stream.topic)]:
            model.txns.drop_stream(name, each.number)
            model.groups.drop_stream(each.number)
            model.subscriptions.drop_stream(each.number)
            each.is_deleted, each.producers = True, {}
        for name, _ in self.streams_of(stream.topic):
            if not model.has_forks(name):
                del model.streams[name]
        self.drop_empty()
        return path in model.streams

    def drop_empty(self) -> None:
        """Remove the deleted topics of which no partition is left."""
        for path, stream in list(self._model.streams.items()):
            topic = stream.topic
            if topic is not None and stream.is_deleted and not self.streams_of(topic):
                del self._model.streams[path]

    # ---- append ----------------------------------------------------------------------------------

    def _append(self, stream: Stream, topic: Topic, c: AppendTopic) -> Outcome:
        assert c.batch is not None or c.parts or c.body_error is not None
        if c.transaction is not None:
            return self._publish(stream, topic, c, c.transaction)
        assert c.producer is None or c.key is None
        due = self._model.policies.due(c.path, stream)
        if due is None:
            return self._append_outside(stream, topic, c)
        before = (stream.dedup_from, stream.producers, stream.keys)
        set_switch(stream, due)
        answer = self._append_outside(stream, topic, c)
        if not isinstance(answer, topic_out.TopicStored) or answer.is_duplicate:
            stream.dedup_from, stream.producers, stream.keys = before
        return answer

    def _append_outside(self, stream: Stream, topic: Topic, c: AppendTopic) -> Outcome:
        model, tag = self._model, c.producer
        if stream.dedup_from is None:
            return self._append_unguarded(stream, topic, c)
        digest = digest_of_append(stream, c)
        known = None if tag is None else stream.producers.get(tag.id)
        registered = None if tag is None else model.registry.get(tag.id)
        answer = (
            (tag and rules.identity(known, tag, registered))
            or (known and tag and self._repeat(topic, known, tag, digest))
            or self._told(topic, self._key_seen(stream, c, digest))
            or self._closed_or_other_type(stream, c)
            or (tag and rules.sequence(known, tag, registered))
            or self._bad_parts(topic, c)
            or (tag and model.no_room(stream, tag))
        )
        return answer or self._accept(stream, topic, c)

    def _append_unguarded(self, stream: Stream, topic: Topic, c: AppendTopic) -> Outcome:
        """Append without recognition: producer and key are only used for the outcome."""
        refusal = self._closed_or_other_type(stream, c) or self._bad_parts(topic, c)
        return refusal or self._accept_unguarded(stream, topic, c)

    def _accept_unguarded(
        self, stream: Stream, topic: Topic, c: AppendTopic, txn: int = 0
    ) -> Outcome:
        done = self._accept(stream, topic, replace(c, producer=None, key=None), txn)
        if c.producer is None:
            return replace(done, is_unguarded=c.key is not None)
        return replace(done, is_unguarded=True, epoch=c.producer.epoch, seq=c.producer.last_seq)

    def _repeat(
        self, topic: Topic, known: Producer, tag: ProducerTag, digest: int | None
    ) -> Outcome | None:
        told = self._told(topic, rules.repeat(known, tag, digest, False))
        if known.is_tombstone and isinstance(told, topic_out.TopicStored):
            return replace(told, parts=None)
        return told

    def _told(self, topic: Topic, answer: Outcome | None) -> Outcome | None:
        """Return what a repeat of an append to a topic is told: the first parts."""
        if not isinstance(answer, out.Duplicate):
            return answer
        first = answer.first_offset
        return topic_out.TopicStored(
            None if first is None else topic.parts[first],
            answer.epoch,
            answer.seq,
            is_duplicate=True,
            is_mismatch=answer.is_mismatch,
        )

    def _key_seen(self, stream: Stream, c: AppendTopic, digest: int | None) -> Outcome | None:
        use = None if c.key is None else stream.keys.get(c.key)
        if use is None or self._model.is_old(use):
            return None
        if use.digest != digest:
            return out.KeyReused()
        return out.Duplicate(use.first_offset, use.next_offset, stream.is_closed)

    def _closed_or_other_type(self, stream: Stream, c: AppendTopic) -> Outcome | None:
        """Checks 9 and 10."""
        if stream.is_closed:
            return out.StreamClosed(None)
        is_equal = media_type(c.content_type or "") == media_type(stream.content_type)
        return None if is_equal else out.ContentTypeConflict(stream.content_type)

    def _bad_parts(self, topic: Topic, c: AppendTopic) -> Outcome | None:
        """Check the partitions that the client has selected, and check 14."""
        count = len(topic.partitions)
        is_other = c.partitioner is not None and c.partitioner != topic.partitioner
        if is_other or c.partitions not in (None, count):
            return topic_out.PartitionsChanged(count, topic.partitioner)
        named = [n for n, _ in c.parts] + ([] if c.partition is None else [c.partition])
        for partition in named:
            if partition >= count:
                return topic_out.NoSuchPartition(partition, count)
        bodies: list[Batch | None] = [c.batch, *(batch for _, batch in c.parts)]
        for batch in bodies:
            if (bad := bad_batch(batch, c.body_error)) is not None:
                return bad
        return None

    def _accept(self, stream: Stream, topic: Topic, c: AppendTopic, txn: int = 0) -> Outcome:
        """Store an append; `txn` is the number of the inline transaction it is part of."""
        model, tag = self._model, c.producer
        now, ordinal, routed = model.write(c), stream.tail, route(stream, c)
        by = self._sign(stream, c, ordinal, routed, txn, now)
        parts = []
        for partition, rows in routed.items():
            _, target = model.txns.by_number(topic.partitions[partition])
            first = target.tail
            target.store(rows, txn)
            target.written_ms = now
            if by is not None:
                target.sign(first, by)
            parts.append(PartResult(partition, first, target.tail))
        end = ordinal + sum(rows.count for rows in routed.values())
        for number in range(ordinal, end):
            stream.messages.append(Message(number, b"", end, Extra(), by, txn))
        stream.written_ms = now
        topic.parts[ordinal] = tuple(parts)
        note_keys(topic, routed)
        if tag is None or by is None:
            return topic_out.TopicStored(tuple(parts))
        if tag.id in model.registry:
            model.txns.raise_epoch(tag.id, by[1], now)
        return topic_out.TopicStored(tuple(parts), by[1], tag.last_seq)

    def _sign(
        self, stream: Stream, c: AppendTopic, ordinal: int, routed: Routed, txn: int, now: int
    ) -> tuple[str, int, int, int] | None:
        """Store the producer or the key of an append; return how its messages are labelled."""
        model, tag = self._model, c.producer
        digest = digest_of_append(stream, c)
        assert digest is not None
        # The offsets of receipts and keys are the topic's numbers: `parts` has the real ones.
        end = ordinal + sum(rows.count for rows in routed.values())
        if c.key is not None:
            model.remember_key(stream, c.key, KeyUse(digest, ordinal, end, now, model.hours))
        if tag is None:
            return None
        receipt = Receipt(tag.first_seq, tag.last_seq, ordinal, end, digest)
        known, registered = stream.producers.get(tag.id), model.registry.get(tag.id)
        if txn:
            row = rules.after_inline(known, tag, receipt, txn, now)
        else:
            row = rules.after(known, tag, registered, receipt, model.receipts, now)
        idle = model.lives.idle_of(known, tag.id, tag.expires_ms)
        stream.producers[tag.id] = row._replace(expires_ms=idle, hour=model.hours)
        return tag.id, row.epoch, tag.first_seq, tag.last_seq

    # ---- transactions ----------------------------------------------------------------------------

    def _publish(self, stream: Stream, topic: Topic, c: AppendTopic, tag: TxnTag) -> Outcome:
        by = c.producer
        claim = (None, None) if by is None else (by.id, by.epoch)
        txn = self._model.txns.find_undecided(tag.id, tag.epoch, claim)
        if isinstance(txn, Outcome):
            return txn  # 6a
        if txn.is_prepared:
            return txn_out.InvalidTxnState("prepared")  # 6b
        if c.key is not None:
            return out.InvalidRequest("idempotency_key")  # 6c
        if stream.number not in txn.streams and not txn.is_implicit:
            return txn_out.PartitionNotInTxn()  # 6d
        if txn.kind == TXN_INLINE:
            return self._publish_inline(stream, topic, c, txn)
        return self._stage(stream, topic, c, tag, txn)

    def _publish_inline(self, stream: Stream, topic: Topic, c: AppendTopic, txn: Txn) -> Outcome:
        by = c.producer
        if by is None or by.mode != DENSE or by.epoch is None:
            return out.InvalidRequest("producer")
        if by.cursor is not None:
            return out.InvalidRequest("producer_cursor")
        is_guarded = stream.dedup_from is not None
        if is_guarded:
            answer = self._judge_inline(stream, topic, c, by, txn)
        else:
            answer = self._closed_or_other_type(stream, c) or self._bad_parts(topic, c)
        answer = answer or self._no_streams_left(stream, topic, c, txn)
        if answer is not None:
            return answer
        self._join(stream, topic, c, txn)
        txn.touched_ms = self._model.now(c)
        if is_guarded:
            return self._accept(stream, topic, c, txn.number)
        return self._accept_unguarded(stream, topic, c, txn.number)

    def _judge_inline(
        self, stream: Stream, topic: Topic, c: AppendTopic, by: ProducerTag, txn: Txn
    ) -> Outcome | None:
        model, digest = self._model, digest_of_append(stream, c)
        known = stream.producers.get(by.id)
        is_again = any(m.producer is not None for m in stream.data_of(txn.number))
        repeated = None
        if is_again:
            repeated = rules.repeat_inline(known, by, txn.number, digest, model.receipts)
        return (
            rules.identity(known, by, model.registry.get(by.id))
            or self._told(topic, repeated)
            or self._closed_or_other_type(stream, c)
            or rules.sequence_inline(known, by, not is_again)
            or self._bad_parts(topic, c)
            or model.no_room(stream, by)
        )

    def _touched(self, stream: Stream, topic: Topic, c: AppendTopic) -> list[int]:
        return [topic.partitions[n] for n in route(stream, c)]

    def _no_streams_left(
        self, stream: Stream, topic: Topic, c: AppendTopic, txn: Txn
    ) -> Outcome | None:
        maximum = self._model.txns.bounds.streams
        topics = {s.number for s in self._model.streams.values() if s.topic is not None}
        before = {*txn.streams} - topics
        is_full = len(before | {*self._touched(stream, topic, c)}) > max(maximum, len(before))
        return out.LimitReached("transaction_streams", maximum) if is_full else None

    def _join(self, stream: Stream, topic: Topic, c: AppendTopic, txn: Txn) -> None:
        for number in self._touched(stream, topic, c):
            if number not in txn.streams:
                txn.streams.append(number)

    def _stage(
        self, stream: Stream, topic: Topic, c: AppendTopic, tag: TxnTag, txn: Txn
    ) -> Outcome:
        if c.producer is not None:
            return out.InvalidRequest("producer")
        if tag.seq is None:
            return out.InvalidRequest("transaction_seq")
        answer = self._judge_chunk(stream, topic, c, tag.seq, txn)
        if answer is not None:
            return answer
        now, routed = self._model.write(c), route(stream, c)
        for partition, rows in routed.items():
            number = topic.partitions[partition]
            txn.chunks.append(Chunk(tag.seq, number, rows))
            txn.sent.append((number, digest_of_rows(rows, stream.is_json)))
        txn.next_seq, txn.touched_ms = tag.seq + 1, now
        self._join(stream, topic, c, txn)
        note_keys(topic, routed)
        if txn.timeout_ms is not None:
            txn.deadline_ms = now + txn.timeout_ms
        return txn_out.Staged(txn.next_seq)

    def _judge_chunk(
        self, stream: Stream, topic: Topic, c: AppendTopic, seq: int, txn: Txn
    ) -> Outcome | None:
        bounds = self._model.txns.bounds
        if seq < txn.next_seq:
            return topic_out.TopicStored(None, is_duplicate=True)  # 8, not compared
        if (refusal := self._closed_or_other_type(stream, c)) is not None:
            return refusal
        if seq > txn.next_seq:
            return out.SequenceGap(txn.next_seq, seq)  # 11
        if (refusal := self._bad_parts(topic, c)) is not None:
            return refusal
        if (refusal := self._no_streams_left(stream, topic, c, txn)) is not None:
            return refusal
        is_full = len(txn.sent) + len(route(stream, c)) > bounds.chunks
        return out.LimitReached("chunks", bounds.chunks) if is_full else None
