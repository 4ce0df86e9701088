"""The commands of the simulated clients on topics and on their partitions.

Appends are retried much more often than elsewhere, also after the topic has grown: a repeat must
get the parts of the first time, wherever its keys belong now.
"""

import struct
from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from semel.model import commands as ask
from semel.model.commands import (
    DENSE,
    TXN_INLINE,
    TXN_STAGED,
    Append,
    Batch,
    Create,
    EngineCommand,
    ForkRequest,
    ProducerOwner,
    ProducerTag,
    TxnTag,
)
from semel.model.messages import encode_extras
from semel.model.producer_commands import RetiredProducer, RetireProducers
from semel.model.topic_commands import (
    AppendTopic,
    CloseTopic,
    CreateTopic,
    DeleteTopic,
    GrowTopic,
)
from tests.sim.reference import Model
from tests.sim.reference_routing import partition_of
from tests.sim.reference_streams import BAD_EXTRAS, Stream
from tests.sim.reference_txn import Txn

JSON = "application/json"
TEXT = "text/plain"
# One of them is below a prefix of the policies.
TOPICS = ("o", "s/o")
PARTITIONS_MAX = 5
KEYS = (b"", b"a", b"b", "ключ".encode(), b"key 4", b"\x00\xff", b"seven..")
T = TypeVar("T")

Weights = dict[Callable[[Model, int], EngineCommand], float]


class Tools(NamedTuple):
    """What the generator of other commands lends to that of topics."""

    tag: Callable[[Stream | None], ProducerTag]
    append: Callable[[Model, str, int], Append]
    claim: Callable[[Model, str, int], ask.ClaimProducer]
    keys: Sequence[str]  # idempotency keys
    ids: Sequence[str]  # of producers
    paths: Sequence[str]  # of streams


class TopicWorkload:
    """A seeded generator of commands on topics."""

    def __init__(self, rng: Random, tools: Tools) -> None:
        self._rng, self._tools = rng, tools
        self._recent: deque[EngineCommand] = deque(maxlen=10)
        self._count = 0
        self._weights: Weights = {
            self._append: 55,
            self._create: 3,
            self._grow: 4,
            self._end: 1,
            self._append_to_partition: 8,
            self._disturb: 4,
            self._fork: 2,
            self._change_producer: 4,
            self._publish: 14,
            self._stage: 20,
            self._begin: 5,
            self._one_shot: 5,
            self._fence: 2,
        }

    def draw(self, model: Model, now_ms: int) -> EngineCommand:
        """Return the next command: sometimes one that was sent before, like a retry."""
        rng = self._rng
        self._count += 1
        if self._recent and rng.random() < 0.2:
            return replace(rng.choice(self._recent), now_ms=now_ms)
        if not self._live(model) and rng.random() < 0.8:
            return self._create(model, now_ms)
        make = rng.choices(list(self._weights), list(self._weights.values()))[0]
        command = make(model, now_ms)
        if isinstance(command, AppendTopic | CreateTopic):
            self._recent.append(command)
        return command

    def partition(self, model: Model) -> str:
        """Choose the path of a partition, mostly of one that is there."""
        path, stream = self._choose(model)
        count = 2 if stream is None or stream.topic is None else len(stream.topic.partitions)
        return f"{path}/{self._rng.randrange(count + (self._rng.random() < 0.05))}"

    # ---- choosing --------------------------------------------------------------------------------

    def _often(self, usual: T, *others: T, rate: float = 0.9) -> T:
        return usual if self._rng.random() < rate else self._rng.choice(others)

    def _live(self, model: Model) -> list[str]:
        found = [(path, model.streams.get(path)) for path in TOPICS]
        return [p for p, s in found if s is not None and s.topic is not None and not s.is_deleted]

    def _choose(self, model: Model) -> tuple[str, Stream | None]:
        live = self._live(model)
        others = (*TOPICS, *self._tools.paths) if self._rng.random() < 0.03 else TOPICS
        path = self._rng.choice(live if live and self._rng.random() < 0.95 else others)
        return path, model.streams.get(path)

    # ---- the life of topics ----------------------------------------------------------------------

    def _create(self, model: Model, now_ms: int) -> EngineCommand:
        rng = self._rng
        path = rng.choice(TOPICS if rng.random() < 0.95 else self._tools.paths)
        ttl_ms = rng.choice([None, None, None, None, 400, 4_000])
        expires_at_ms = None
        if ttl_ms is None and rng.random() < 0.08:
            expires_at_ms = now_ms + rng.choice([-10, 300, 3_000])
        command = CreateTopic(
            path,
            now_ms,
            f"topic{self._count}",
            rng.choice([1, 2, 3, 3, 4]),
            rng.choice([TEXT, JSON, JSON, None]),
            rng.choice(["crc32", "crc32", "murmur2"]),
            ttl_ms,
            expires_at_ms,
            rng.choice([None] * 8 + [True, False]),
        )
        stream = model.streams.get(path)
        if stream is None or stream.topic is None:
            return command
        # Mostly the configuration that it has, with one difference or none.
        same = replace(
            command,
            partitions=len(stream.topic.partitions),
            content_type=stream.content_type,
            partitioner=stream.topic.partitioner,
            ttl_ms=stream.ttl_ms,
            expires_at_ms=stream.expires_at_ms,
            dedup=None,
        )
        name = rng.choice(["partitions", "content_type", "partitioner", "ttl_ms", "dedup", None])
        return same if name is None else replace(same, **{name: getattr(command, name)})

    def _grow(self, model: Model, now_ms: int) -> EngineCommand:
        rng = self._rng
        path, stream = self._choose(model)
        count = 1 if stream is None or stream.topic is None else len(stream.topic.partitions)
        wanted = max(1, count + rng.choices([1, 2, 0, -1], [60, 20, 12, 8])[0])
        if wanted > PARTITIONS_MAX:
            return DeleteTopic(path, now_ms)
        return GrowTopic(path, now_ms, f"grown{self._count}", wanted, rng.random() < 0.75)

    def _end(self, model: Model, now_ms: int) -> EngineCommand:
        path, stream = self._choose(model)
        is_closed = stream is not None and stream.is_closed
        is_close = not is_closed and self._rng.random() < 0.4
        return CloseTopic(path, now_ms) if is_close else DeleteTopic(path, now_ms)

    # ---- partitions and topics as streams --------------------------------------------------------

    def _append_to_partition(self, model: Model, now_ms: int) -> EngineCommand:
        command = self._tools.append(model, self.partition(model), now_ms)
        if command.batch is not None and self._rng.random() < 0.3:
            txn = self._open(model, None)
            if txn is not None:
                command = self._in_txn(model, command, txn)
        return command

    def _in_txn(self, model: Model, command: Append, txn: Txn) -> Append:
        """Send an append to a partition in a transaction that may name the topic."""
        plain = replace(command, key=None, close=False, producer=None, stream_seq=None)
        plain = replace(plain, if_match=None)
        if txn.kind == TXN_STAGED or not isinstance(txn.owner, ProducerOwner):
            return replace(plain, transaction=TxnTag(txn.id, txn.epoch, txn.next_seq))
        seq = self._next_seq(model.streams.get(command.path), txn.owner, txn)
        by = ProducerTag(txn.owner.id, seq, seq, txn.owner.epoch)
        return replace(plain, producer=by, transaction=TxnTag(txn.id, txn.epoch))

    def _disturb(self, model: Model, now_ms: int) -> EngineCommand:
        """Use a partition as if it belonged to nothing, or a topic as if it were a stream."""
        rng = self._rng
        is_topic = rng.random() < 0.35
        path = self._choose(model)[0] if is_topic else self.partition(model)
        stream = model.streams.get(path)
        match rng.choice(["delete", "close", "switch", "switch", "trim", "create", "path", "set"]):
            case "delete":
                return ask.Delete(path, now_ms)
            case "close":
                return Append(path, now_ms, close=True)
            case "switch":
                is_off = stream is not None and stream.dedup_from is None
                return ask.SwitchDedup(path, now_ms, self._often(is_off, not is_off, None))
            case "trim":
                tail = 1 if stream is None else stream.tail
                return ask.Trim(path, now_ms, rng.randint(0, tail))
            case "create":
                kind = TEXT if stream is None else stream.content_type
                return Create(path, now_ms, f"j{self._count}", self._often(kind, "a/b"))
            case "path":  # in the way of a topic, or of its growth
                name = rng.choice([*TOPICS, *(f"{p}/{n}" for p in TOPICS for n in range(6))])
                if name in model.streams and rng.random() < 0.7:
                    return ask.Delete(name, now_ms)
                return Create(name, now_ms, f"w{self._count}", TEXT)
            case _:
                move = ask.PositionMove(rng.choice(["g0", "g1"]), path, 0)
                return ask.SetPositions(now_ms, (move,))

    def _fork(self, model: Model, now_ms: int) -> EngineCommand:
        """Fork a partition, or delete a fork of one."""
        rng = self._rng
        partitions = {s.number for s in model.streams.values() if s.topic_number}
        forks = [p for p, s in model.streams.items() if s.fork and s.fork.number in partitions]
        if forks and rng.random() < 0.5:
            return ask.Delete(rng.choice(forks), now_ms)
        path = self.partition(model) if rng.random() < 0.95 else self._choose(model)[0]
        stream = model.streams.get(path)
        offset = None if stream is None else rng.choice([None, rng.randint(0, stream.tail)])
        fork = ForkRequest(path, offset, rng.choice([0, 0, 1, 2]))
        target = rng.choice(self._tools.paths)
        return Create(target, now_ms, f"fork{self._count}", fork=fork)

    def _change_producer(self, model: Model, now_ms: int) -> EngineCommand:
        """Claim, forget, expire or retire a producer of a topic."""
        rng = self._rng
        path, stream = self._choose(model)
        known = [] if stream is None else list(stream.producers)
        name = rng.choice([*known, *self._tools.ids])
        match rng.choice(["claim", "claim", "claim", "forget", "expire", "retire"]):
            case "claim":
                return self._tools.claim(model, path, now_ms)
            case "forget":
                return ask.ForgetProducer(path, now_ms, name)
            case "expire":
                return ask.ExpireProducer(path, now_ms, name, rng.choice([0, 50]), 50)
            case _:
                row = None if stream is None else stream.producers.get(name)
                epoch = 0 if row is None else row.epoch
                return RetireProducers(now_ms, (RetiredProducer(name, path, epoch),))

    # ---- append ----------------------------------------------------------------------------------

    def _append(self, model: Model, now_ms: int) -> EngineCommand:
        rng = self._rng
        path, stream = self._choose(model)
        command = self._body(AppendTopic(path, now_ms), stream)
        luck = rng.random()
        if luck < 0.6:
            return replace(command, producer=self._tools.tag(stream))
        if luck < 0.8:
            return replace(command, key=rng.choice(self._tools.keys))
        return command

    def _body(self, command: AppendTopic, stream: Stream | None) -> AppendTopic:
        """Add messages: of the server's choice of partitions, by hand, or grouped here."""
        rng = self._rng
        kind = TEXT if stream is None else stream.content_type
        topic = None if stream is None else stream.topic
        count = 2 if topic is None else len(topic.partitions)
        partitioner = "crc32" if topic is None else topic.partitioner
        command = replace(command, content_type=self._often(kind, TEXT, "a/b", rate=0.98))
        if rng.random() < 0.02:
            return replace(command, body_error="bad", partitions=rng.choice([None, count]))
        is_json = stream is not None and stream.is_json
        bodies, keys = self._messages(is_json)
        counted = self._often(count, count + 1, max(1, count - 1), rate=0.93)
        if rng.random() < 0.5:  # a client that says with what partitioner it has grouped
            partitioner = self._often(partitioner, "crc32", "murmur2", rate=0.95)
            command = replace(command, partitioner=partitioner)
        luck = rng.random()
        if luck < 0.4:
            parts = self._grouped(bodies, keys, counted, partitioner, is_json)
            return replace(command, parts=parts, partitions=counted)
        command = replace(command, batch=self._batch(bodies, keys, is_json))
        if luck < 0.55:
            return replace(command, partition=self._often(rng.randrange(count), count, rate=0.95))
        if luck < 0.65:
            return replace(command, hint=rng.randrange(100))
        return command if luck < 0.9 else replace(command, partitions=counted)

    def _messages(self, is_json: bool) -> tuple[list[bytes], list[bytes | None]]:
        rng = self._rng
        count = rng.choice([1, 1, 2, 3, 5])
        bodies = [b"m%d.%d" % (self._count, i) for i in range(count)]
        if is_json:
            bodies = [b'{"n":%d,"i":%d}' % (self._count, i) for i in range(count)]
        has_keys = rng.random() < 0.75
        keys = [rng.choice(KEYS) if has_keys and rng.random() < 0.9 else None for _ in bodies]
        return bodies, keys

    def _batch(self, bodies: list[bytes], keys: list[bytes | None], is_json: bool) -> Batch:
        rng, count = self._rng, len(bodies)
        times = [rng.choice([None, self._count]) for _ in bodies] if rng.random() < 0.2 else None
        extras = encode_extras(count, keys=keys, timestamps=times)
        if rng.random() < 0.01:
            extras = BAD_EXTRAS
        if count == 1:
            return Batch(bodies[0], extras=extras)
        lengths = struct.pack(f"<{count}I", *map(len, bodies))
        return Batch((b"," if is_json else b"").join(bodies), count, lengths, extras)

    def _grouped(
        self,
        bodies: list[bytes],
        keys: list[bytes | None],
        count: int,
        partitioner: str,
        is_json: bool,
    ) -> tuple[tuple[int, Batch], ...]:
        """Group messages as a client does, which selects the partitions itself."""
        rng = self._rng
        sticky = rng.randrange(count)
        found: dict[int, tuple[list[bytes], list[bytes | None]]] = {}
        for body, key in zip(bodies, keys, strict=True):
            at = sticky if key is None else partition_of(partitioner, key, count)
            rows = found.setdefault(at, ([], []))
            rows[0].append(body)
            rows[1].append(key)
        if rng.random() < 0.01:
            found[count] = found.pop(max(found))
        return tuple((at, self._batch(*found[at], is_json)) for at in sorted(found))

    # ---- transactions ----------------------------------------------------------------------------

    def _open(self, model: Model, kind: str | None) -> Txn | None:
        txns = [t for t in model.txns.open.values() if kind in (None, t.kind)]
        return self._rng.choice(txns) if txns else None

    def _begin(self, model: Model, now_ms: int) -> EngineCommand:
        rng = self._rng
        name = rng.choice(["q0", "q1", "p0"])
        return ask.Begin(
            now_ms,
            rng.choice(["t0", "t1", "topics"]),
            ProducerOwner(name, model.registry.get(name, 0)),
            rng.choice([TXN_INLINE, TXN_STAGED]),
            rng.choice([None, 200, 60_000]),
            (self._choose(model)[0],) if rng.random() < 0.7 else (self.partition(model),),
            rng.random() < 0.4,
        )

    def _publish(self, model: Model, now_ms: int) -> EngineCommand:
        rng = self._rng
        txn = self._open(model, TXN_INLINE)
        if txn is None or not isinstance(txn.owner, ProducerOwner):
            return self._begin(model, now_ms)
        path, stream = self._choose(model)
        command = self._body(AppendTopic(path, now_ms), stream)
        seq = self._next_seq(stream, txn.owner, txn)
        epoch = self._often(txn.owner.epoch, txn.owner.epoch + 1, None, rate=0.98)
        by = ProducerTag(
            txn.owner.id, seq, seq, epoch, None, DENSE, None, is_strict=rng.random() < 0.1
        )
        tag = TxnTag(txn.id, max(0, txn.epoch - (rng.random() < 0.02)))
        command = replace(command, producer=self._often(by, None, rate=0.99), transaction=tag)
        return replace(command, key="k0", producer=None) if rng.random() < 0.01 else command

    def _fence(self, model: Model, now_ms: int) -> EngineCommand:
        """Append to a topic as a newer instance of a producer with an open transaction in it."""
        path, stream = self._choose(model)
        topic = None if stream is None else stream.topic
        numbers = set() if topic is None else {*topic.partitions}
        owners = [
            txn.owner
            for txn in model.txns.open.values()
            if txn.kind == TXN_INLINE and isinstance(txn.owner, ProducerOwner)
            if numbers.intersection(txn.streams)
        ]
        if not owners:
            return self._publish(model, now_ms)
        owner = self._rng.choice(owners)
        command = self._body(AppendTopic(path, now_ms), stream)
        return replace(command, producer=ProducerTag(owner.id, 0, 0, owner.epoch + 1))

    def _next_seq(self, stream: Stream | None, owner: ProducerOwner, txn: Txn) -> int:
        known = None if stream is None else stream.producers.get(owner.id)
        last = -1 if known is None or known.epoch != owner.epoch else known.last
        is_first = stream is None or not stream.data_of(txn.number)
        if is_first and self._rng.random() < 0.4:
            return 0
        return max(0, last + self._rng.choices([1, 0, -1, 2], [80, 12, 5, 3])[0])

    def _stage(self, model: Model, now_ms: int) -> EngineCommand:
        txn = self._open(model, TXN_STAGED)
        if txn is None:
            return self._begin(model, now_ms)
        path, stream = self._choose(model)
        command = self._body(AppendTopic(path, now_ms), stream)
        seq = max(0, txn.next_seq + self._rng.choices([0, -1, 1], [88, 8, 4])[0])
        tag = TxnTag(txn.id, txn.epoch, self._often(seq, None, rate=0.99), is_strict=seq % 4 == 3)
        return replace(command, transaction=tag)

    def _one_shot(self, model: Model, now_ms: int) -> EngineCommand:
        """Append to a topic in a one-shot commit, sometimes to one of its partitions too."""
        rng = self._rng
        name = rng.choice(["q0", "q1"])
        epoch, seq = model.registry.get(name), model.txns.commit_seqs.get(name, -1) + 1
        path, stream = self._choose(model)
        paths = [path, self.partition(model)] if rng.random() < 0.4 else [path]
        appends = []
        for each in paths:
            target = model.streams.get(each)
            kind = TEXT if target is None else target.content_type
            is_json = target is not None and target.is_json
            batch = self._batch(*self._messages(is_json), is_json)
            appends.append(ask.CommitAppend(each, kind, batch))
        tail = 0 if stream is None else stream.tail
        expects = ((path, tail),) if rng.random() < 0.03 else ()
        return ask.Commit(
            now_ms,
            name,
            epoch or 0,
            0 if epoch is None else max(0, seq - (rng.random() < 0.1)),
            appends=tuple(appends),
            expects=expects,
            digest=self._count,
        )
