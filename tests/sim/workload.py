"""The commands of the simulated clients.

Each command is drawn from the state of the reference model, so that all outcomes occur often: a
generator whose commands are refused 99 times in 100 tests nothing.
"""

import struct
from collections import deque
from collections.abc import Callable
from random import Random
from typing import TypeVar

from msgspec.structs import replace

from semel.model import commands as ask
from semel.model.commands import (
    DENSE,
    SPARSE,
    Append,
    Batch,
    Create,
    EngineCommand,
    ProducerTag,
    TxnCommand,
)
from semel.model.limits import NUMBER_MAX
from semel.model.messages import encode_extras
from semel.model.policies import DeletePolicy, SetPolicy
from semel.model.producer_commands import (
    DropTombstones,
    ExpireRegistration,
    RetiredProducer,
    RetireProducers,
    Tombstone,
)
from tests.sim.reference import Model
from tests.sim.reference_streams import BAD_EXTRAS, Stream
from tests.sim.workload_access import Names
from tests.sim.workload_groups import GroupWorkload
from tests.sim.workload_subscriptions import SubscriptionWorkload
from tests.sim.workload_topics import TOPICS, Tools, TopicWorkload
from tests.sim.workload_txn import TxnWorkload

JSON = "application/json"
TEXT = "text/plain"
# For policies: some are below others, and some only begin with the same bytes.
PATHS = ("s", "s/a", "s2", "s/a/b", "sa", "t", "s/ab", "u/s")
PREFIXES = ("", "s", "s", "s/a", "s/a", "s2", "u", "s/none")
POLICY_SHARE = 0.02
MINUTE_MS = 60_000
STAYED_MS = (0, 10 * MINUTE_MS - 1, 10 * MINUTE_MS)  # how long a tombstone has stayed, as drawn
T = TypeVar("T")


class Workload:
    """A seeded generator of commands; `txn_share` of them, drawn by `txn_rng`, use transactions.

    With `policy_rng`, some of them set and delete policies. With `group_rng`, members share groups.
    With `topic_rng`, some of the commands are on topics, with `wake_rng`, on subscriptions.
    """

    def __init__(
        self,
        rng: Random,
        *,
        payload_bytes_max: int,
        txn_rng: Random | None = None,
        txn_share: float = 0.0,
        policy_rng: Random | None = None,
        group_rng: Random | None = None,
        topic_rng: Random | None = None,
        wake_rng: Random | None = None,
    ) -> None:
        self._rng = rng
        self._payload_bytes_max = payload_bytes_max
        self._paths = list(PATHS[: rng.randint(2, 8)])
        self._ids = [f"p{i}" for i in range(rng.randint(1, 4))]
        self._sessions = [f"n{i}" for i in range(4)]
        self._keys = [f"k{i}" for i in range(12)]
        self._recent: deque[EngineCommand] = deque(maxlen=12)
        self._count = 0
        self._txn_rng, self._txn_share = txn_rng or Random(0), txn_share
        self._policy_rng, self._policy_share = policy_rng or Random(0), 0.0
        if policy_rng is not None:
            self._policy_share = POLICY_SHARE
        self._txns = TxnWorkload(self._txn_rng, self._paths, self._batch)
        self.groups = GroupWorkload(group_rng or Random(0), self._paths, is_off=group_rng is None)
        self.subscriptions = SubscriptionWorkload(
            wake_rng or Random(0), self._paths, self._batch, is_off=wake_rng is None
        )
        self._txns.sign = self._signed
        self._topic_rng = topic_rng or Random(0)
        self._topic_share = 0.0 if topic_rng is None else topic_rng.choice([0.05, 0.1, 0.25])
        tools = Tools(self._tag, self._append, self._claim, self._keys, self._ids, self._paths)
        self._topics = TopicWorkload(self._topic_rng, tools)
        # A separate generator: without these commands a seed draws what it drew before.
        self._lives_rng = Random(f"lives {rng.getstate()[1][:4]}")

    def draw(self, model: Model, now_ms: int) -> EngineCommand:
        """Return the next command: sometimes one that was sent before, like a retry."""
        self._count += 1
        shared = self.groups.draw(model, now_ms)
        if shared is not None:
            return shared
        on_subscription = self.subscriptions.draw(model, now_ms)
        if on_subscription is not None:
            return on_subscription
        if self._topic_share and self._topic_rng.random() < self._topic_share:
            return self._topics.draw(model, now_ms)
        if self._txn_share and self._txn_rng.random() < self._txn_share:
            command = self._txns.draw(model, now_ms)
            self._recent.append(command)
            return command
        if self._policy_share and self._policy_rng.random() < self._policy_share:
            return self._policy(model, now_ms)
        if self._lives_rng.random() < 0.03:
            command = self._end(model, now_ms)
            self._recent.append(command)
            return command
        if self._rng.random() < 0.005:
            return self._broken(now_ms)
        if self._recent and self._rng.random() < 0.2:
            return replace(self._rng.choice(self._recent), now_ms=now_ms)
        command = self._fresh(model, now_ms)
        self._recent.append(command)
        return command

    def _signed(self, model: Model, command: EngineCommand) -> EngineCommand:
        """Return a command with the members that move positions, and with acks of wakes."""
        return self.subscriptions.acked(model, self.groups.signed(model, command))

    def _policy(self, model: Model, now_ms: int) -> EngineCommand:
        """Return a command that sets or deletes a policy, or that removes an own setting."""
        rng = self._policy_rng
        prefix, kind = rng.choice(PREFIXES), rng.random()
        if kind < 0.25:
            return ask.SwitchDedup(rng.choice(self._paths), now_ms, None)
        if kind < 0.4:
            return DeletePolicy(now_ms, prefix)
        known = model.policies.by_prefix.get(prefix)
        is_off = known is not None and not known[0]
        return SetPolicy(now_ms, prefix, is_off if rng.random() < 0.7 else rng.random() < 0.5)

    def _broken(self, now_ms: int) -> EngineCommand:
        if self._rng.random() < 0.5:
            return ask.Delete("", now_ms)
        return ask.Register(now_ms, "p" * 257)

    def names(self) -> Names:
        """Return the names that the commands use."""
        topics = TOPICS if self._topic_share else ()
        names = (tuple(self._ids), *self._txns.names(), self.subscriptions.ids)
        return Names((*self._paths, *topics), *names)

    def path(self) -> str:
        """Choose a stream's path."""
        return self._rng.choice(self._paths)

    def path_to_read(self, model: Model) -> str:
        """Choose the path of a stream, with topics also that of a partition."""
        if self._topic_share and self._topic_rng.random() < 0.5:
            return self._topics.partition(model)
        return self.path()

    def _fresh(self, model: Model, now_ms: int) -> EngineCommand:
        path = self.path()
        stream = model.streams.get(path)
        if stream is None and self._rng.random() < 0.8:
            return self._create(model, path, now_ms)
        if stream is not None and stream.is_closed and self._rng.random() < 0.2:
            return ask.Delete(path, now_ms)
        kind = self._rng.choices(
            [
                "append",
                "create",
                "delete",
                "trim",
                "register",
                "forget",
                "expire",
                "switch",
                "claim",
            ],
            [80, 6, 3, 4, 2, 1, 2, 2, 3],
        )[0]
        if kind == "append":
            return self._append(model, path, now_ms)
        if kind == "create":
            return self._create(model, path, now_ms)
        return self._rare(kind, model, path, now_ms)

    def _rare(self, kind: str, model: Model, path: str, now_ms: int) -> EngineCommand:
        rng = self._rng
        if kind == "delete":
            return ask.Delete(path, now_ms)
        if kind == "trim":
            stream = model.streams.get(path)
            tail = 5 if stream is None else stream.tail
            return ask.Trim(path, now_ms, rng.randint(0, tail + (rng.random() < 0.1)))
        if kind == "register":
            first_epoch = rng.choice([0, 0, 1])
            return ask.Register(now_ms, rng.choice([None, *self._ids, "1", "99"]), first_epoch)
        if kind == "switch":
            return ask.SwitchDedup(path, now_ms, self._switches_on(model, path))
        if kind == "claim":
            return self._claim(model, path, now_ms)
        if kind == "forget":
            return ask.ForgetProducer(path, now_ms, rng.choice(self._ids))
        return ask.ExpireProducer(
            path, now_ms, rng.choice(self._ids), rng.choice([0, 50, 10_000]), rng.choice([0, 50])
        )

    # ---- the ends of producers -------------------------------------------------------------------

    def _idle_ms(self) -> int:
        """Draw an idle time for a producer; most declare none."""
        return self._lives_rng.choice([0, 0, 0, MINUTE_MS, 10 * MINUTE_MS])

    def _end(self, model: Model, now_ms: int) -> EngineCommand:
        """Return a command that ends producers or tombstones, or registers one that ends."""
        rng = self._lives_rng
        match rng.choices(["retire", "drop", "registration", "register"], [55, 25, 10, 10])[0]:
            case "retire":
                entries = [self._retired(model) for _ in range(rng.choice([1, 1, 2, 4]))]
                return RetireProducers(now_ms, tuple(entries))
            case "drop":
                rows = [self._tombstone(model) for _ in range(rng.choice([1, 2, 5]))]
                return DropTombstones(now_ms, tuple(dict.fromkeys(rows)), rng.choice([0, 1, 168]))
            case "registration":
                name = rng.choice([*self._ids, *model.registry, "99"])
                elapsed_ms = rng.choice([0, MINUTE_MS, 10 * MINUTE_MS])
                return ExpireRegistration(now_ms, name, elapsed_ms)
            case _:
                return ask.Register(now_ms, rng.choice([None, *self._ids]), 0, self._idle_ms())

    def _retired(self, model: Model) -> RetiredProducer:
        """Draw a producer to retire; its identity is the current one, mostly."""
        rng = self._lives_rng
        path = rng.choice([*self._paths, None])
        name = rng.choice([*self._ids, "1", "2"])
        off = rng.choice([0] * 8 + [1, -1])
        if path is None:
            return RetiredProducer(name, None, max(model.registry.get(name, 0) + off, 0))
        stream = model.streams.get(path)
        known = None if stream is None else stream.producers.get(name)
        epoch = None if known is None else max(known.epoch + off, 0)
        session = None if known is None else known.session
        if session is None or rng.random() < 0.1:
            session = rng.choice(
                [*self._sessions, *(() if known is None else known.older_sessions)]
            )
        style = rng.choice(["epoch", "epoch", "session", "both"])
        if epoch is None or style == "session":
            return RetiredProducer(name, path, None, session)
        return RetiredProducer(name, path, epoch, session if style == "both" else None)

    def _tombstone(self, model: Model) -> Tombstone:
        rng = self._lives_rng
        stream = model.streams.get(rng.choice(self._paths))
        names = [*self._ids, "1"]
        if stream is None or rng.random() < 0.3:
            return Tombstone(0, rng.choice(names))
        buried = [name for name, row in stream.producers.items() if row.is_tombstone]
        return Tombstone(stream.number, rng.choice(buried or names), rng.choice(STAYED_MS))

    def _claim(self, model: Model, path: str, now_ms: int) -> ask.ClaimProducer:
        rng = self._rng
        producer_id = rng.choice([*self._ids, *self._ids, "1"])
        stream = model.streams.get(path)
        known = None if stream is None else stream.producers.get(producer_id)
        mode = rng.choice([DENSE, SPARSE]) if known is None or rng.random() < 0.05 else known.mode
        fresh = f"c{self._count}"
        session = rng.choice([*self._sessions, fresh, fresh, fresh])
        return ask.ClaimProducer(path, now_ms, producer_id, session, mode, self._idle_ms())

    def _switches_on(self, model: Model, path: str) -> bool:
        """Return whether to switch deduplication on; most switches change the setting."""
        stream = model.streams.get(path)
        is_off = stream is not None and stream.dedup_from is None
        return is_off if self._rng.random() < 0.9 else not is_off

    # ---- create ----------------------------------------------------------------------------------

    def _create(self, model: Model, path: str, now_ms: int) -> Create:
        rng = self._rng
        content_type = rng.choice([TEXT, TEXT, JSON, None, "Text/Plain; charset=utf-8"])
        ttl_ms = rng.choice([None, None, None, 40, 400])
        expires_at_ms = None
        if ttl_ms is None and rng.random() < 0.15:
            expires_at_ms = now_ms + rng.choice([-10, 100, 1_000])
        fork = self._fork(model) if rng.random() < 0.3 else None
        if fork is not None and rng.random() < 0.7:
            content_type = None
        batch = self._batch(_is_json(model, fork, content_type)) if rng.random() < 0.4 else None
        inherits = self._count % 8 == 0
        return Create(
            path,
            now_ms,
            f"i{self._count}",
            content_type,
            ttl_ms,
            expires_at_ms,
            rng.random() < 0.05,
            batch,
            "bad" if batch is None and rng.random() < 0.05 else None,
            fork,
            rng.choice([None] * 8 + [True, False]) if rng.random() < 0.95 else False,
            inherits,
        )

    def _fork(self, model: Model) -> ask.ForkRequest:
        rng = self._rng
        source = self.path()
        stream = model.streams.get(source)
        if stream is None or rng.random() < 0.2:
            return ask.ForkRequest(source)
        offset = rng.randint(max(stream.head - 1, 0), stream.tail + (rng.random() < 0.1))
        sub_offset = rng.choice([0, 0, 1, 2, 3])
        return ask.ForkRequest(source, offset, sub_offset)

    # ---- append ----------------------------------------------------------------------------------

    def _append(self, model: Model, path: str, now_ms: int) -> Append:
        rng = self._rng
        stream = model.streams.get(path)
        content_type = TEXT if stream is None else stream.content_type
        close = rng.random() < 0.01
        batch = None if close and rng.random() < 0.5 else self._batch(content_type == JSON)
        body_error = None
        if rng.random() < 0.03:
            batch, body_error = None, "bad"
        if rng.random() < 0.03:
            content_type = rng.choice([TEXT, JSON, "a/b"])
            if batch is not None and batch.count > 1:
                batch = self._batch(is_json=False)
        command = Append(path, now_ms, content_type, batch, body_error, close)
        identity = rng.random()
        if identity < 0.7:
            command = replace(command, producer=self._tag(stream))
        elif identity < 0.8:
            command = replace(command, key=rng.choice(self._keys))
        if rng.random() < 0.05:
            command = replace(command, stream_seq=f"{rng.randint(0, self._count):05d}")
        if stream is not None and rng.random() < 0.08:
            command = replace(command, if_match=max(stream.tail - (rng.random() < 0.3), 0))
        return command

    def _batch(self, is_json: bool) -> Batch:
        batch = self._plain_batch(is_json)
        luck = self._rng.random()
        if luck < 0.3:
            batch = replace(batch, extras=self._extras(batch.count))
        elif luck < 0.31:
            batch = replace(batch, extras=BAD_EXTRAS)
        return batch

    def _extras(self, count: int) -> bytes:
        """Encode random keys, headers and timestamps; columns and single values may be missing."""
        rng = self._rng

        def some(value: Callable[[], T], nothing: T) -> list[T] | None:
            if rng.random() < 0.3:
                return None
            return [value() if rng.random() < 0.7 else nothing for _ in range(count)]

        return encode_extras(
            count,
            keys=some(lambda: rng.randbytes(rng.choice([0, 1, 9])), None),
            headers=some(lambda: [("h", rng.randbytes(3))] * rng.randint(1, 2), []),
            timestamps=some(lambda: rng.randint(-NUMBER_MAX, NUMBER_MAX), None),
        )

    def _plain_batch(self, is_json: bool) -> Batch:
        rng = self._rng
        self._count += 1
        if not is_json:
            size = rng.choice([0, 3, 20, self._payload_bytes_max // 8])
            if rng.random() < 0.02:
                size = rng.randint(0, self._payload_bytes_max)
            return Batch(b"m%d." % self._count + rng.randbytes(size))
        bodies = [b'{"n":%d,"i":%d}' % (self._count, i) for i in range(rng.randint(1, 4))]
        if len(bodies) == 1:
            return Batch(bodies[0])
        lengths = struct.pack(f"<{len(bodies)}I", *map(len, bodies))
        return Batch(b",".join(bodies), len(bodies), lengths)

    def _tag(self, stream: Stream | None) -> ProducerTag:
        rng = self._rng
        producer_id = rng.choice(self._ids) if rng.random() < 0.93 else rng.choice(["1", "2"])
        known = None if stream is None else stream.producers.get(producer_id)
        mode = rng.choice([DENSE, DENSE, SPARSE]) if known is None else known.mode
        if known is not None and rng.random() < 0.02:
            mode = DENSE if known.mode == SPARSE else SPARSE
        last = -1 if known is None else known.last
        seq = max(last + rng.choices([1, 0, -1, 2, -5, -70], [60, 12, 8, 5, 5, 2])[0], 0)
        epoch: int | None = None if known is None else known.epoch
        session: str | None = None if known is None else known.session
        style = rng.choices(["epoch", "session", "bare", "both"], [45, 25, 20, 10])[0]
        if style == "both" and rng.random() < 0.3:
            session = rng.choice(self._sessions)
        if rng.random() < 0.08:  # a restart, an old instance, or a very high epoch
            seq = 0 if rng.random() < 0.8 else seq
            session = rng.choice(self._sessions)
            epoch = rng.choice([0, (epoch or 0) + 1, (epoch or 0) + 2, NUMBER_MAX // 10**6])
        if style in {"session", "both"} and session is None:
            session = rng.choice(self._sessions)
        return ProducerTag(
            producer_id,
            seq,
            seq + (rng.choice([0, 0, 1, 3]) if mode == SPARSE else 0),
            (epoch or 0) if style in {"epoch", "both"} else None,
            session if style in {"session", "both"} else None,
            mode,
            b"c%d" % self._count if rng.random() < 0.2 else None,
            rng.random() < 0.1,
            self._idle_ms(),
        )


def _is_json(model: Model, fork: ask.ForkRequest | None, content_type: str | None) -> bool:
    if content_type is None and fork is not None and fork.source in model.streams:
        return model.streams[fork.source].is_json
    return content_type == JSON


def is_broken(command: EngineCommand) -> bool:
    """Return whether a command is invalid, and so must be refused before it is decided."""
    if isinstance(command, TxnCommand):
        return False
    if isinstance(command, ask.Register):
        return command.producer_id is not None and len(command.producer_id) > 256
    return isinstance(command, ask.StreamCommand) and not command.path
