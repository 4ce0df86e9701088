"""Helpers that build commands on topics and on groups that share work."""

from msgspec.structs import replace

from semel.machine import MachineLimits, State
from semel.model.commands import (
    Batch,
    EngineCommand,
    PositionMove,
    ProducerTag,
    SetPositions,
    TxnTag,
)
from semel.model.group_commands import (
    EARLIEST,
    ExpireMember,
    JoinGroup,
    LeaveGroup,
    RebalanceGroup,
    ReleaseStreams,
    TakeStream,
)
from semel.model.messages import encode_extras
from semel.model.outcomes import Refusal
from semel.model.outcomes_topics import PartResult, Parts, TopicStored
from semel.model.partitioners import CRC32
from semel.model.topic_commands import AppendTopic, CreateTopic, GrowTopic
from tests.unit.machine.builders import JSON, json_batch, snapshot
from tests.unit.machine.txn_builders import TxnMachine


class TopicMachine(TxnMachine):
    """A machine that also adds the outcomes of transactions to appends to topics."""

    def with_facts(self, command: EngineCommand) -> EngineCommand:
        if isinstance(command, AppendTopic) and command.transaction is not None:
            tag = command.transaction
            remembered, last = self.facts(tag.id, tag.epoch)
            tag = replace(tag, remembered=remembered, last_epoch=last)
            return replace(command, transaction=tag)
        return super().with_facts(command)

    def tails(self, topic: str = "t") -> list[int]:
        """Return the tails of all partitions of a topic."""
        row = self.stream(topic).topic
        assert row is not None
        return [self.state.by_number[number].tail.tail for number in row.partitions]

    def stables(self, topic: str = "t") -> list[int]:
        """Return the stable offsets of all partitions of a topic."""
        row = self.stream(topic).topic
        assert row is not None
        return [self.state.by_number[number].tail.stable for number in row.partitions]


def topic_machine(
    *commands: EngineCommand, partitions: int = 4, limits: MachineLimits | None = None
) -> TopicMachine:
    """Return a machine with the topic t that has executed the given commands."""
    machine = TopicMachine(limits)
    for command in (create_topic(partitions=partitions), *commands):
        outcome = machine.execute(command)
        assert not isinstance(outcome, Refusal), (command, outcome)
    return machine


def streams_of(state: State) -> dict[int, object]:
    """Return all streams of a state as comparable values, by number.

    A collection that has become empty equals None, and the order of rows does not count.
    """
    streams: dict[int, object] = {}
    for number, stream in state.by_number.items():
        fields = snapshot(stream)
        assert isinstance(fields, list)
        streams[number] = [(name, value if value != [] else None) for name, value in fields]
    return streams


# ---- topics --------------------------------------------------------------------------------------


def create_topic(
    path: str = "t",
    partitions: int = 4,
    *,
    kind: str | None = JSON,
    partitioner: str = CRC32,
    ttl: int | None = None,
    expires_at: int | None = None,
    dedup: bool | None = None,
    now: int = 0,
) -> CreateTopic:
    name = f"i-{path}-{now}"
    return CreateTopic(path, now, name, partitions, kind, partitioner, ttl, expires_at, dedup)


def grow(path: str = "t", partitions: int = 6, *, moves: bool = False, now: int = 0) -> GrowTopic:
    return GrowTopic(path, now, f"g-{path}-{now}", partitions, moves)


def keyed_batch(*pairs: tuple[bytes | None, bytes], kind: str = JSON) -> Batch:
    """Return a batch of (key, body)."""
    bodies = [body for _, body in pairs]
    if kind == JSON:
        batch = json_batch(*bodies)
    else:
        lengths = b"".join(len(body).to_bytes(4, "little") for body in bodies)
        batch = Batch(b"".join(bodies), len(bodies), lengths if len(bodies) > 1 else b"")
    keys = [key for key, _ in pairs]
    return replace(batch, extras=encode_extras(len(pairs), keys=keys))


def append_topic(
    *pairs: tuple[bytes | None, bytes],
    path: str = "t",
    now: int = 0,
    kind: str | None = JSON,
    by: ProducerTag | None = None,
    key: str | None = None,
    txn: TxnTag | None = None,
    hint: int | None = None,
    partition: int | None = None,
    partitions: int | None = None,
    partitioner: str | None = None,
    error: str | None = None,
) -> AppendTopic:
    """Return an append of messages with keys; the server selects their partitions."""
    batch = keyed_batch(*pairs, kind=kind or JSON) if pairs else None
    return AppendTopic(
        path,
        now,
        kind,
        batch,
        (),
        error,
        partition,
        hint,
        partitions,
        partitioner,
        by,
        key,
        txn,
    )


def append_parts(
    *parts: tuple[int, Batch],
    of: int | None = 4,
    path: str = "t",
    kind: str | None = JSON,
    by: ProducerTag | None = None,
    txn: TxnTag | None = None,
) -> AppendTopic:
    """Return an append whose partitions the client has selected."""
    return AppendTopic(path, 0, kind, parts=parts, partitions=of, producer=by, transaction=txn)


def stored(*parts: tuple[int, int, int], **fields: object) -> TopicStored:
    """Return the outcome of an append with (partition, first offset, next offset) of each part."""
    packed: Parts = tuple(PartResult(*part) for part in parts)
    return TopicStored(packed, **fields)  # type: ignore[arg-type]


# ---- groups --------------------------------------------------------------------------------------


def join(
    member: str = "m1",
    *streams: str,
    group: str = "g",
    topics: tuple[str, ...] = (),
    patterns: tuple[str, ...] = (),
    timeout: int = 30_000,
    rebalance: int | None = None,
    instance: str | None = None,
    start: str = EARLIEST,
    now: int = 0,
) -> JoinGroup:
    return JoinGroup(
        now, group, member, streams, topics, patterns, timeout, rebalance, instance, start
    )


def release(member: str, *streams: str, group: str = "g") -> ReleaseStreams:
    return ReleaseStreams(0, group, member, streams)


def leave(member: str, *, group: str = "g") -> LeaveGroup:
    return LeaveGroup(0, group, member)


def expire(member: str, elapsed: int = 30_000, *, group: str = "g") -> ExpireMember:
    return ExpireMember(0, group, member, elapsed)


def take(path: str, elapsed: int = 30_000, *, group: str = "g") -> TakeStream:
    return TakeStream(0, group, path, elapsed)


def rebalance(group: str = "g") -> RebalanceGroup:
    return RebalanceGroup(0, group)


def move(
    path: str,
    to: int,
    member: str | None = None,
    epoch: int | None = None,
    *,
    group: str = "g",
    expected: int | None = None,
) -> PositionMove:
    return PositionMove(group, path, to, expected, member=member, member_epoch=epoch)


def set_positions(*moves: PositionMove, operator: bool = False) -> SetPositions:
    return SetPositions(0, moves, operator)
