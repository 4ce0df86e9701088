"""The rules as a plain program: the outcome that the engine must return for each command.

Written from `docs/reference/machine.md`; there are no frames, files or write groups. Where the
rules leave a choice, a comment marked CHOICE states it.
"""

from dataclasses import replace
from typing import Any

from msgspec.structs import replace as replace_fields

from semel.model import commands as ask
from semel.model import commands as txn_ask
from semel.model import limits
from semel.model import outcomes as out
from semel.model import outcomes_topics as topic_out
from semel.model import outcomes_txn as txn_out
from semel.model import sink_commands as sink_ask
from semel.model.access_commands import AccessCommand
from semel.model.checksum import digest_of
from semel.model.commands import (
    DENSE,
    Append,
    Batch,
    Create,
    EngineCommand,
    ProducerOwner,
    ProducerTag,
    TxnCommand,
)
from semel.model.group_commands import GroupCommand
from semel.model.outcomes import Outcome
from semel.model.policies import PolicyCommand
from semel.model.producer_commands import LifeCommand
from semel.model.subscription_commands import SubscriptionCommand
from semel.model.topic_commands import TopicCommand
from tests.sim import reference_producers as rules
from tests.sim.reference_access import Access, TakeOwners
from tests.sim.reference_commit import Commits, bad_batch
from tests.sim.reference_groups import Groups, Shared
from tests.sim.reference_lives import Lives
from tests.sim.reference_policies import Policies, set_switch
from tests.sim.reference_producers import Producer, Receipt
from tests.sim.reference_publish import publish
from tests.sim.reference_rights import Who
from tests.sim.reference_streams import (
    KeyUse,
    Label,
    Message,
    Origin,
    Stream,
    Topic,
    media_type,
)
from tests.sim.reference_subscriptions import Subscriptions
from tests.sim.reference_topics import Topics
from tests.sim.reference_txn import Bounds, Transactions, Txn

CommitCommand = (
    txn_ask.Commit
    | txn_ask.SetPositions
    | txn_ask.PinSnapshot
    | sink_ask.RebindSink
    | sink_ask.ForgetSink
)


def digest_stored(stream: Stream, append: Append) -> int:
    batch = append.batch
    if batch is None:
        return digest_of(b"")
    has_bounds = batch.count > 1 and not stream.is_json
    return digest_of(batch.payload + batch.extras + (batch.lengths if has_bounds else b""))


class Model:
    """The state that the engine must keep, and the outcomes that it must return."""

    def __init__(
        self,
        receipts: int = limits.RECEIPTS_DEFAULT,
        streams_max: int = limits.STREAMS_MAX,
        producers_max: int = limits.PRODUCERS_PER_STREAM_MAX,
        keys_max: int = limits.IDEMPOTENCY_KEYS_MAX,
        key_hours: int = limits.IDEMPOTENCY_HOURS,
        registry_max: int = limits.REGISTRY_MAX,
        bounds: Bounds | None = None,
        *,
        expiring_max: int = limits.EXPIRING_PRODUCERS_PER_STREAM_MAX,
        tombstones_max: int = limits.TOMBSTONES_PER_STREAM_MAX,
    ) -> None:
        self.receipts, self.streams_max, self.producers_max = receipts, streams_max, producers_max
        self.keys_max, self.key_hours = keys_max, key_hours
        self.registry_max = registry_max
        self.time_ms = 0  # of the last write
        self.hours = 0
        self.next_stream = 1
        self.next_producer = 1
        self.streams: dict[str, Stream] = {}  # soft-deleted ones included: they keep their path
        self.registry: dict[str, int] = {}
        self.bounds = (bounds or Bounds())._replace(registry=registry_max)
        self.lives = Lives(self, expiring_max, tombstones_max)
        self.txns = Transactions(self, self.bounds)
        self.commits = Commits(self.txns)
        self.policies = Policies(self)
        self.topics = Topics(self)
        self.groups = self.txns.positions.generations = Groups(self)
        self.subscriptions = self.txns.subscriptions = Subscriptions(self)
        self.access = Access(self, self.bounds.tokens, self.bounds.tokens_per_principal)

    def copy(self) -> "Model":
        """Return an independent copy; values that are never changed in place are shared."""
        bounds = (self.receipts, self.streams_max, self.producers_max)
        twin = Model(*bounds, self.keys_max, self.key_hours, self.registry_max, self.bounds)
        twin.time_ms, twin.hours = self.time_ms, self.hours
        twin.next_stream, twin.next_producer = self.next_stream, self.next_producer
        twin.registry = dict(self.registry)
        twin.lives = self.lives.copy(twin)
        for path, old in self.streams.items():
            new = replace(old, messages=list(old.messages))
            new.producers, new.keys = dict(old.producers), dict(old.keys)
            if old.topic is not None:
                new.topic = replace(old.topic, parts=dict(old.topic.parts))
            twin.streams[path] = new
        twin.txns = self.txns.copy(twin)
        twin.commits = self.commits.copy(twin.txns)
        twin.policies = self.policies.copy(twin)
        twin.groups = twin.txns.positions.generations = self.groups.copy(twin)
        twin.subscriptions = twin.txns.subscriptions = self.subscriptions.copy(twin)
        twin.access = self.access.copy(twin)
        return twin

    def execute(self, asked: EngineCommand | Shared, who: Who | None = None) -> Outcome:
        """Execute a command, unless it is refused or a repeat; return its outcome.

        Without a caller, everything is allowed.
        """
        command = asked.command if isinstance(asked, Shared) else asked
        refusal = None if who is None else self.access.judge(command, who)
        if refusal is not None:
            return refusal
        expiring, before = self.lives.expiring(), self.access.before()
        outcome = self._execute_any(asked)
        self.lives.note_ends(expiring)
        self.access.drop_orphans(before)
        if who is not None:
            self.access.note_use(command, who, outcome)
        return outcome

    def _execute_any(self, asked: EngineCommand | Shared) -> Outcome:
        return self.groups.execute(asked) if isinstance(asked, Shared) else self._execute(asked)

    def replay(self, command: EngineCommand | Shared | TakeOwners) -> None:
        """Execute what was accepted before: a command, or the owners that followed it."""
        if isinstance(command, TakeOwners):
            self.access.take(command)
        else:
            self.execute(command)

    def _execute(self, command: EngineCommand) -> Outcome:
        if isinstance(command, TxnCommand):
            return self._execute_txn(command)
        if isinstance(command, PolicyCommand):
            return self.policies.execute(command)
        if isinstance(command, AccessCommand):
            return self.access.execute(command)
        if isinstance(command, TopicCommand):
            return self.topics.execute(command)
        if isinstance(command, Create):
            return self._create(command)
        if isinstance(command, ask.Register):
            return self._register(command)
        if isinstance(command, LifeCommand):
            return self.lives.execute(command)
        if isinstance(command, GroupCommand):  # refused, or nothing was to be changed
            return self.groups.execute(Shared(command, None))
        if isinstance(command, SubscriptionCommand):
            return self.subscriptions.execute(command)
        return self._execute_on_stream(command)

    def _execute_on_stream(
        self,
        command: Append
        | ask.Delete
        | ask.Trim
        | ask.Expire
        | ask.SwitchDedup
        | ask.ClaimProducer
        | ask.ForgetProducer
        | ask.ExpireProducer,
    ) -> Outcome:
        stream = self.streams.get(command.path)
        if stream is None:
            return out.NotFound()
        if stream.is_deleted:
            return out.Gone()
        if (refusal := self.topics.refuse_as_stream(stream, command)) is not None:
            return refusal
        if isinstance(command, Append):
            return self._append(stream, command)
        if isinstance(command, ask.Delete):
            return self._delete(command)
        if isinstance(command, ask.Trim):
            return self._trim(stream, command)
        return self._end_something(stream, command)

    def _end_something(
        self,
        stream: Stream,
        command: ask.Expire
        | ask.SwitchDedup
        | ask.ClaimProducer
        | ask.ForgetProducer
        | ask.ExpireProducer,
    ) -> Outcome:
        if isinstance(command, ask.Expire):
            return self._expire(stream, command)
        if isinstance(command, ask.SwitchDedup):
            return self.policies.switch(stream, command)
        return self._change_producer(stream, command)

    def _execute_txn(self, c: TxnCommand) -> Outcome:
        txns = self.txns
        match c:
            case txn_ask.Begin():
                return txns.begin(c)
            case txn_ask.AddStreams():
                return txns.add_streams(c)
            case txn_ask.AddPositions():
                return txns.add_positions(c)
            case txn_ask.Prepare():
                return txns.prepare(c)
            case txn_ask.CommitTxn():
                return txns.commit(c)
            case txn_ask.AbortTxn() | txn_ask.FenceTxn():
                return txns.abort(c)
            case txn_ask.ExpireTxn():
                return txns.expire(c)
            case _:
                return self._execute_commit(c)

    def _execute_commit(self, c: CommitCommand) -> Outcome:
        commits = self.commits
        match c:
            case txn_ask.Commit():
                return commits.commit(c)
            case txn_ask.SetPositions():
                return commits.set_positions(c)
            case txn_ask.PinSnapshot():
                return commits.pin(c)
            case sink_ask.RebindSink():
                return commits.rebind(c)
            case sink_ask.ForgetSink():
                return commits.forget(c)

    def now(self, command: EngineCommand) -> int:
        """Return the time of a frame written now."""
        return max(command.now_ms, self.time_ms)

    def write(self, command: EngineCommand) -> int:
        """Advance the time of the last write to now, and return it."""
        self.time_ms = self.now(command)
        return self.time_ms

    # ---- create ----------------------------------------------------------------------------------

    def _create(self, c: Create) -> Outcome:
        if c.path in self.streams:
            return self._create_again(self.streams[c.path], c)
        refusal = None if c.fork is None else self._fork_refusal(c.fork, c.content_type)
        if refusal is not None:
            return refusal
        if (bad := bad_batch(c.batch, c.body_error)) is not None:
            return bad
        if len(self.streams) >= self.streams_max:
            return out.LimitReached("streams", self.streams_max)
        now = self.write(c)
        kind = c.content_type or "application/octet-stream"
        stream = Stream(self.next_stream, c.incarnation, kind, c.ttl_ms, c.expires_at_ms, now)
        own = c.dedup
        if c.fork is not None:
            self._inherit(stream, c, c.fork)
            source = self.streams[c.fork.source]
            if own is None and source.is_own and not c.inherits:
                own = source.dedup_from is not None
        stream.is_own = own is not None
        is_on = self.policies.wanted(c.path)[0] if own is None else own
        stream.dedup_from = 0 if is_on else None
        stream.store(c.batch)
        stream.is_closed = c.closed
        self.next_stream += 1
        self.streams[c.path] = stream
        self.subscriptions.link_new_stream(c.path)
        return self._created(c.path, stream, is_new=True)

    def _created(self, path: str, stream: Stream, is_new: bool) -> Outcome:
        return out.Created(
            stream.incarnation,
            stream.content_type,
            stream.tail,
            stream.is_closed,
            is_new,
            stream.dedup_from,
            self.policies.source(path, stream),
        )

    def _create_again(self, stream: Stream, c: Create) -> Outcome:
        if stream.is_deleted:
            return out.ConfigConflict("deleted")
        if stream.topic is not None:
            return topic_out.IsTopic()
        wanted = c.content_type or "application/octet-stream"
        is_type_free = c.fork is not None and c.content_type is None
        is_expiry_free = stream.inherits_expiry and c.ttl_ms is None and c.expires_at_ms is None
        is_equal = {
            "content_type": is_type_free or media_type(wanted) == media_type(stream.content_type),
            "ttl": is_expiry_free or c.ttl_ms == stream.ttl_ms,
            "expires_at": is_expiry_free or c.expires_at_ms == stream.expires_at_ms,
            "closed": c.closed == stream.is_closed,
            "fork": self._is_same_fork(stream.fork, c.fork),
            "dedup": self._is_same_switch(stream, c),
        }
        for name, is_same in is_equal.items():
            if not is_same:
                is_topics = c.closed if name == "closed" else name in ("ttl", "expires_at", "dedup")
                refusal = self.topics.not_alone(stream) if is_topics else None
                return refusal or out.ConfigConflict(name)
        return self._created(c.path, stream, is_new=False)

    def _is_same_switch(self, stream: Stream, c: Create) -> bool:
        if c.dedup is not None:
            return stream.is_own and c.dedup == (stream.dedup_from is not None)
        return not (c.inherits and stream.is_own)

    def _is_same_fork(self, origin: Origin | None, fork: ask.ForkRequest | None) -> bool:
        if origin is None or fork is None:
            return origin is None and fork is None
        is_equal = fork.source == origin.path and fork.sub_offset == origin.sub_offset
        return is_equal and fork.offset in (None, origin.offset)

    def _fork_refusal(self, fork: ask.ForkRequest, content_type: str | None) -> Outcome | None:
        source = self.streams.get(fork.source)
        if source is None:
            return out.NotFound()
        if source.is_deleted or source.topic is not None:
            return out.ForkSourceGone() if source.topic is None else topic_out.IsTopic()
        if content_type and media_type(content_type) != media_type(source.content_type):
            return out.ContentTypeConflict(source.content_type)
        stable = self.txns.stable(source)
        offset = stable if fork.offset is None else fork.offset
        if offset > source.tail:
            return out.OffsetBeyondTail(source.tail)
        if offset > stable or (offset == stable < source.tail and fork.sub_offset > 0):
            return txn_out.OffsetUnstable(stable)
        if offset < source.head:
            return out.OffsetTrimmed(source.head)
        if fork.sub_offset > self.units_left(source, offset):
            return out.SubOffsetInvalid()
        if 1 + self._sources_of(source) > limits.FORK_DEPTH_MAX:
            return out.LimitReached("fork_depth", limits.FORK_DEPTH_MAX)
        forks = [s for s in self.streams.values() if s.fork and s.fork.number == source.number]
        if len(forks) >= limits.FORKS_PER_STREAM_MAX:
            return out.LimitReached("forks_per_stream", limits.FORKS_PER_STREAM_MAX)
        return None

    def units_left(self, stream: Stream, offset: int) -> int:
        """Return how much is left of the append at an offset: messages in JSON, else bytes."""
        if offset == stream.tail:
            return 0
        message = stream.messages[offset - stream.head]
        if not self._is_committed(message):
            return 0
        return message.append_end - offset if stream.is_json else len(message.body)

    def _sources_of(self, stream: Stream) -> int:
        return 0 if stream.fork is None else 1 + self._sources_of(self.streams[stream.fork.path])

    def _inherit(self, stream: Stream, c: Create, fork: ask.ForkRequest) -> None:
        source = self.streams[fork.source]
        offset = self.txns.stable(source) if fork.offset is None else fork.offset
        stream.fork = Origin(fork.source, source.number, offset, fork.sub_offset)
        stream.content_type = c.content_type or source.content_type
        if c.ttl_ms is None and c.expires_at_ms is None:
            stream.inherits_expiry = True
            stream.ttl_ms, stream.expires_at_ms = source.ttl_ms, source.expires_at_ms
        stream.head = source.head
        cut = offset + fork.sub_offset if stream.is_json else offset
        for message in source.messages[: cut - source.head]:
            # CHOICE: an append inherited in part ends, for the fork, where the inherited part ends:
            # a fork of the fork cannot contain what the fork does not contain.
            stream.messages.append(message._replace(append_end=min(message.append_end, cut)))
        if fork.sub_offset > 0 and not stream.is_json:
            whole = source.messages[offset - source.head].body
            stream.store(Batch(whole[: fork.sub_offset]))

    # ---- append ----------------------------------------------------------------------------------

    def _append(self, stream: Stream, c: Append) -> Outcome:
        assert c.batch is not None or c.body_error is not None or c.close
        if c.transaction is not None:
            return publish(self, stream, c, c.transaction)
        assert c.producer is None or c.key is None
        due = self.policies.due(c.path, stream)
        if due is None:
            return self._append_outside(stream, c)
        before = (stream.dedup_from, stream.producers, stream.keys)
        set_switch(stream, due)
        answer = self._append_outside(stream, c)
        if not isinstance(answer, out.Appended):
            stream.dedup_from, stream.producers, stream.keys = before
        return answer

    def _append_outside(self, stream: Stream, c: Append) -> Outcome:
        if stream.dedup_from is None:
            return self._append_unguarded(stream, c)
        tag, digest = c.producer, self.digest_claimed(stream, c)
        known = None if tag is None else stream.producers.get(tag.id)
        registered = None if tag is None else self.registry.get(tag.id)
        answer = (
            (tag and rules.identity(known, tag, registered))
            or (tag and rules.repeat(known, tag, digest, stream.is_closed))
            or self._key_seen(stream, c)
            or self.closed_or_other_type(stream, c)
            or (tag and rules.sequence(known, tag, registered))
            or self.precondition(stream, c)
            or (tag and self.no_room(stream, tag))
        )
        return answer or self.accept(stream, c)

    def digest_claimed(self, stream: Stream, append: Append) -> int | None:
        """Return the digest by which an append is compared; None equals no stored digest."""
        return None if append.body_error is not None else digest_stored(stream, append)

    def _append_unguarded(self, stream: Stream, c: Append) -> Outcome:
        """Append without deduplication: producer and key are only used for the outcome."""
        answer = self._append_anonymous(stream, replace_fields(c, producer=None, key=None))
        if not isinstance(answer, out.Appended) or (c.producer is None and c.key is None):
            return answer
        if c.producer is None:
            return replace_fields(answer, is_unguarded=True)
        named = {"epoch": c.producer.epoch, "seq": c.producer.last_seq}
        return replace_fields(answer, is_unguarded=True, **named)

    def _append_anonymous(self, stream: Stream, c: Append) -> Outcome:
        refusal = self.closed_or_other_type(stream, c) or self.precondition(stream, c)
        return refusal or self.accept(stream, c)

    def _key_seen(self, stream: Stream, c: Append) -> Outcome | None:
        use = None if c.key is None else stream.keys.get(c.key)
        if use is None or self.is_old(use):
            return None
        if use.digest != self.digest_claimed(stream, c):
            return out.KeyReused()
        return out.Duplicate(use.first_offset, use.next_offset, stream.is_closed)

    def is_old(self, use: KeyUse) -> bool:
        """Return True if `key_hours` complete hours have passed since the use of a key."""
        return self.hours - (use.hour + 1) >= self.key_hours

    def closed_or_other_type(self, stream: Stream, c: Append) -> Outcome | None:
        """Checks 9 and 10."""
        is_close_only = c.batch is None and c.body_error is None
        if stream.is_closed:
            if is_close_only and c.producer is None and c.key is None:
                return out.Appended(stream.tail, stream.tail, True)
            return out.StreamClosed(stream.tail)
        if c.close and (refusal := self.topics.not_alone(stream)) is not None:
            return refusal
        if c.close and (holders := self.txns.open_in(stream)):
            return txn_out.StreamInTransaction(holders[0].id)
        is_type_equal = media_type(c.content_type or "") == media_type(stream.content_type)
        if is_close_only or is_type_equal:
            return None
        return out.ContentTypeConflict(stream.content_type)

    def precondition(self, stream: Stream, c: Append) -> Outcome | None:
        """Checks 12 to 14."""
        last = stream.stream_seq
        if c.stream_seq is not None and last is not None and c.stream_seq.encode() <= last.encode():
            return out.StreamSeqConflict(last)
        if c.if_match is not None and c.if_match != stream.tail:
            return out.PreconditionFailed(stream.tail)
        return bad_batch(c.batch, c.body_error)

    def no_room(self, stream: Stream, tag: ProducerTag) -> Outcome | None:
        """Check 15."""
        if tag.last_seq - tag.first_seq > limits.SEQUENCE_SPAN_MAX:
            return out.LimitReached("sequence_span", limits.SEQUENCE_SPAN_MAX)
        return self.lives.no_room(stream, tag.id, tag.expires_ms)

    def accept(self, stream: Stream, c: Append, txn: int = 0) -> Outcome:
        """Store an append; `txn` is the number of the inline transaction it is part of."""
        now, first = self.write(c), stream.tail
        stream.store(c.batch, txn)
        if c.batch is not None:
            self.topics.note_key(stream, c.batch)
        stream.is_closed, stream.written_ms = c.close, now
        if c.stream_seq is not None:
            stream.stream_seq = c.stream_seq
        digest = digest_stored(stream, c)
        if c.key is not None:
            self.remember_key(stream, c.key, KeyUse(digest, first, stream.tail, now, self.hours))
        if c.producer is None:
            return out.Appended(first, stream.tail, stream.is_closed)
        tag, registered = c.producer, self.registry.get(c.producer.id)
        receipt = Receipt(tag.first_seq, tag.last_seq, first, stream.tail, digest)
        known = stream.producers.get(tag.id)
        if txn:
            producer = rules.after_inline(known, tag, receipt, txn, now)
        else:
            producer = rules.after(known, tag, registered, receipt, self.receipts, now)
        idle = self.lives.idle_of(known, tag.id, tag.expires_ms)
        stream.producers[tag.id] = producer._replace(expires_ms=idle, hour=self.hours)
        stream.sign(first, (tag.id, producer.epoch, tag.first_seq, tag.last_seq))
        done = out.Appended(first, stream.tail, stream.is_closed, producer.epoch, tag.last_seq)
        if registered is not None:
            self.txns.raise_epoch(tag.id, producer.epoch, now)
        return done

    def remember_key(self, stream: Stream, key: str, use: KeyUse) -> None:
        """Store the use of an idempotency key."""
        stream.keys.pop(key, None)  # an expired one becomes the newest
        stream.keys[key] = use
        if len(stream.keys) > self.keys_max:
            del stream.keys[next(iter(stream.keys))]

    # ---- producers -------------------------------------------------------------------------------

    def _register(self, c: ask.Register) -> Outcome:
        name = c.producer_id
        is_new = name is None or not (rules.is_issued_name(name) or name in self.registry)
        if is_new and len(self.registry) >= self.registry_max:
            return out.LimitReached("registry", self.registry_max)
        if name is None:
            while str(self.next_producer) in self.registry:
                self.next_producer += 1
            name = str(self.next_producer)
            self.next_producer += 1
        elif rules.is_issued_name(name) and name not in self.registry:
            return out.UnknownProducer()
        elif self.registry.get(name, 0) >= limits.NUMBER_MAX:
            return out.EpochExhausted(self.registry[name])
        known = self.registry.get(name)
        first = c.first_epoch
        if known is None and c.producer_id is not None:
            rows = [s.producers[name] for s in self.streams.values() if name in s.producers]
            first = max([first, *(row.epoch + 1 for row in rows)])
            if first > limits.NUMBER_MAX:
                return out.EpochExhausted(first - 1)
        if known is None and c.expires_ms:
            self.lives.idle[name] = c.expires_ms
        self.txns.raise_epoch(name, first if known is None else known + 1, self.write(c))
        return out.Registered(name, self.registry[name])

    def _change_producer(
        self,
        stream: Stream,
        c: ask.ClaimProducer | ask.ForgetProducer | ask.ExpireProducer,
    ) -> Outcome:
        if isinstance(c, ask.ClaimProducer):
            return self._claim(stream, c)
        return self._drop_producer(stream, c)

    def _claim(self, stream: Stream, c: ask.ClaimProducer) -> Outcome:
        if stream.dedup_from is None:
            return out.DedupOff()
        known, registered = stream.producers.get(c.producer_id), self.registry.get(c.producer_id)
        refusal = rules.claim_refusal(known, c, registered)
        if refusal is not None:
            return refusal
        if known is not None and known.session == c.session:
            return rules.claimed(known, c, known.epoch)  # a repeat: nothing is written
        owners = [txn.owner for txn in self.txns.pending_of(c.producer_id)]
        writing = [owner.epoch for owner in owners if isinstance(owner, ProducerOwner)]
        epoch = rules.claim_epoch(known, registered, writing)
        full = self.lives.no_room(stream, c.producer_id, c.expires_ms)
        if full is not None:
            return full
        if epoch > limits.NUMBER_MAX:
            return out.EpochExhausted(registered or 0 if known is None else known.epoch)
        now = self.write(c)
        idle = self.lives.idle_of(known, c.producer_id, c.expires_ms)
        taken = rules.after_claim(known, c, epoch, now)
        stream.producers[c.producer_id] = taken._replace(expires_ms=idle, hour=self.hours)
        if registered is not None:
            self.txns.raise_epoch(c.producer_id, epoch, now)
        return rules.claimed(known, c, epoch)

    def _drop_producer(self, stream: Stream, c: ask.ForgetProducer | ask.ExpireProducer) -> Outcome:
        known = stream.producers.get(c.producer_id)
        if known is None:
            return out.UnknownProducer()
        if isinstance(c, ask.ForgetProducer):
            if writing := self.writing(stream, c.producer_id):
                return txn_out.StreamInTransaction(writing[0].id)
            self.write(c)
            del stream.producers[c.producer_id]
        elif known.is_tombstone:
            return out.UnknownProducer()
        elif c.elapsed_ms < (known.expires_ms or c.idle_ms) or self.writing(stream, c.producer_id):
            return out.StillAlive()
        else:
            self.lives.bury(stream, c.producer_id, known.expires_ms > 0, self.write(c))
        return out.Forgotten()

    def writing(self, stream: Stream, producer_id: str) -> list[Txn]:
        """Return the pending transactions of a producer that have messages in a stream."""
        own = self.txns.pending_of(producer_id)
        return [txn for txn in self.txns.open_in(stream) if txn in own]

    # ---- the end of streams ----------------------------------------------------------------------

    def _delete(self, c: ask.Delete | ask.Expire) -> Outcome:
        self.write(c)
        self.txns.drop_stream(c.path, self.streams[c.path].number)
        self.groups.drop_stream(self.streams[c.path].number)
        self.subscriptions.drop_stream(self.streams[c.path].number)
        if self.has_forks(c.path):
            self.streams[c.path].is_deleted = True
            self.streams[c.path].producers = {}
            return out.Deleted(is_soft=True)
        origin = self.streams.pop(c.path).fork
        while origin and self.streams[origin.path].is_deleted and not self.has_forks(origin.path):
            origin = self.streams.pop(origin.path).fork
        self.topics.drop_empty()
        return out.Deleted(is_soft=False)

    def has_forks(self, path: str) -> bool:
        """Return whether a stream has forks."""
        # CHOICE: a soft-deleted fork counts, because its own forks still need its source.
        return any(s.fork is not None and s.fork.path == path for s in self.streams.values())

    def _trim(self, stream: Stream, c: ask.Trim) -> Outcome:
        if c.before > stream.tail:
            return out.OffsetBeyondTail(stream.tail)
        if c.before > (stable := self.txns.stable(stream)):
            return txn_out.OffsetUnstable(stable)
        if c.before > stream.head:
            self.write(c)
            del stream.messages[: c.before - stream.head]
            stream.head = c.before
        return out.Trimmed(stream.head)

    def _expire(self, stream: Stream, c: ask.Expire) -> Outcome:
        is_dated = stream.expires_at_ms is not None and c.now_ms >= stream.expires_at_ms
        is_idle = stream.ttl_ms is not None and c.elapsed_ms >= stream.ttl_ms
        if not is_dated and not is_idle:
            return out.StillAlive()
        if stream.topic is None:
            self._delete(c)
        else:
            self.topics.delete(c.path, self.write(c))
        return out.Expired()

    # ---- inspection ------------------------------------------------------------------------------

    def messages(self, path: str, *, committed: bool = False) -> list[tuple[int, bytes]]:
        """Return the readable messages with their offsets; none if there is no such stream."""
        return [(message.offset, message.body) for message in self._visible(path, committed)]

    def labels(self, path: str, *, committed: bool = False) -> list[Label]:
        """Return the extras and the producer of each readable message."""
        return [Label(m.offset, *m.extra, m.producer) for m in self._visible(path, committed)]

    def _visible(self, path: str, committed: bool) -> list[Message]:
        stream = self.streams.get(path)
        if stream is None or stream.is_deleted or stream.topic is not None:
            return []
        data = [message for message in stream.messages if not message.is_control]
        if not committed:
            return data
        stable = self.txns.stable(stream)
        return [m for m in data if m.offset < stable and self._is_committed(m)]

    def _is_committed(self, message: Message) -> bool:
        return not message.is_control and message.txn not in self.txns.aborted

    def view(self) -> dict[str, object]:
        """Dump everything but the messages, as plain dicts, lists and tuples."""
        return {
            "time_ms": self.time_ms,
            "hours": self.hours,
            "next_stream": self.next_stream,
            "next_producer": self.next_producer,
            "registry": dict(self.registry),
            "policies": dict(self.policies.by_prefix),
            "registrations": self.lives.view(),
            "tombstones": self.lives.tombstone_count,
            "streams": {path: self._stream_view(s) for path, s in sorted(self.streams.items())},
            "transactions": self._txn_views(),
            "groups": self.groups.view(),
            "subscriptions": self.subscriptions.view(),
            **self.access.view(),
        }

    def _txn_views(self) -> dict[str, object]:
        txns, commits = self.txns, self.commits
        return {
            "next": txns.next_number,
            "open": {name: self._txn_view(txn) for name, txn in sorted(txns.open.items())},
            "positions": {key: tuple(row) for key, row in txns.positions.stored.items()},
            "seqs": dict(txns.commit_seqs),
            "results": {
                name: tuple((seq, result, txns.digests[name][seq]) for seq, result in held)
                for name, held in txns.results.items()
            },
            "sinks": dict(commits.sinks),
            "snapshots": dict(commits.snapshots),
        }

    def _txn_view(self, txn: Txn) -> dict[str, object]:
        plain = {name: value for name, value in vars(txn).items() if name != "chunks"}
        alive = self.txns.positions.alive(txn.positions)
        return plain | {
            "streams": {number: self._share(txn, number) for number in txn.streams},
            "positions": [(*key, n.to, n.guard, n.expected, n.version) for key, n in alive],
            "metadata": {key: n.metadata for key, n in alive if n.metadata},
            "members": {key: (n.member, n.member_epoch) for key, n in alive if n.member},
            "lost": self.txns.positions.lost(txn.positions),
            "deleted": tuple(sorted(set(txn.deleted))),
            "sent": [(number, digest >> 32) for number, digest in txn.sent],
        }

    def _share(self, txn: Txn, number: int) -> tuple[int, int, int]:
        """Return first offset, messages and chunks of a transaction in a stream.

        A topic has none: they are in its partitions.
        """
        _, stream = self.txns.by_number(number)
        data = [] if stream.topic is not None else stream.data_of(txn.number)
        staged = [chunk.batch.count for chunk in txn.chunks if chunk.stream == number]
        first = data[0].offset if data else -1
        return first, len(data) + sum(staged), len(staged)

    def _stream_view(self, stream: Stream) -> dict[str, object]:
        if stream.topic is not None:
            return self._topic_view(stream, stream.topic)
        plain = {name: value for name, value in vars(stream).items() if name != "messages"}
        # Only keys that have not expired: when the others are removed is not specified.
        return plain | {
            "tail": stream.tail,
            "stable": self.txns.stable(stream),
            "fork": None if stream.fork is None else stream.fork._asdict(),
            "producers": {
                name: self._producer_view(p) for name, p in sorted(stream.producers.items())
            },
            "keys": [(key, *use) for key, use in stream.keys.items() if not self.is_old(use)],
        }

    def _topic_view(self, stream: Stream, topic: Topic) -> dict[str, object]:
        """Dump a topic; a receipt and a key have the parts of their append, not offsets."""
        plain = self._stream_view(replace(stream, topic=None))
        uses = {key: use for key, use in stream.keys.items() if not self.is_old(use)}
        return plain | {
            "topic": {n: value for n, value in vars(topic).items() if n != "parts"},
            "stable": stream.tail,
            "producers": {
                name: self._with_parts(self._producer_view(p), topic)
                for name, p in sorted(stream.producers.items())
            },
            "keys": [
                (key, use.digest, topic.parts[use.first_offset], use.time_ms, use.hour)
                for key, use in uses.items()
            ],
        }

    def _with_parts(self, view: dict[str, Any], topic: Topic) -> dict[str, object]:
        for name in ("receipts", "txn_receipts"):
            view[name] = tuple(
                (first, last, None if view["is_tombstone"] else topic.parts[ordinal], digest)
                for first, last, ordinal, _, digest in view[name]
            )
        return view

    def _producer_view(self, producer: Producer) -> dict[str, object]:
        plain = producer._asdict()
        other_mode = ("forgotten", "stored_from") if producer.mode == DENSE else ("plain",)
        for name in (*other_mode, "accepted"):
            del plain[name]
        is_open = any(txn.number == producer.txn for txn in self.txns.open.values())
        held = rules.held_of_txn(producer.txn_receipts, self.receipts)
        return plain | {"txn": producer.txn * is_open, "txn_receipts": held if is_open else ()}
