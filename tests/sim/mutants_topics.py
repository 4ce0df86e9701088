"""Seeded bugs in topics: appends that are stored in part, twice, or elsewhere."""

import importlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from semel.broker import broker as broker_module
from semel.broker.broker import Broker
from semel.broker.timers import Expiry
from semel.journal import checkpoint, frame, recovery, scan
from semel.machine import Decision, commits, topic_append, topics
from semel.machine import apply as real_apply
from semel.machine.append import decide_outside
from semel.machine.events import (
    SECTION_CONTROL,
    ChunkStaged,
    StreamAppended,
    TxnPublished,
)
from semel.machine.shared_events import PartitionsAdded, TopicAdded
from semel.machine.state import NO_EFFECTS, Dirty, Effects, State, Stream
from semel.machine.topic_receipts import unpack_parts
from semel.machine.txn import apply_open
from semel.model import partitioners
from semel.model.commands import Append, Batch
from semel.model.outcomes import Duplicate, Outcome
from semel.model.topic_commands import AppendTopic, GrowTopic

# ---- duplicates ----------------------------------------------------------------------------------


def store_a_duplicate_elsewhere_after_growth() -> Any:
    """After a growth, a repeat is only looked for where its keys belong now, and stored there."""
    real = decide_outside

    def decide(state: State, topic: Stream, command: Append) -> Decision:
        decision = real(state, topic, command)
        has_grown = topic.topic is not None and bool(topic.topic.fences)
        if has_grown and isinstance(decision.outcome, Duplicate) and command.batch is not None:
            return real(state, topic, replace(command, producer=None, key=None))
        return decision

    return patch.object(topic_append, "decide_outside", decide)


def answer_a_duplicate_with_where_it_belongs_now() -> Any:
    """A repeat gets the ends of the partitions, and not the parts of the first time."""
    real = unpack_parts

    def unpack(packed: bytes) -> Any:
        return tuple(replace(part, partition=part.partition + 1) for part in real(packed))

    return patch.object(topic_append, "unpack_parts", unpack)


def keep_only_the_newest_parts() -> Any:
    """Only the parts of the last append are stored with the receipts of a producer."""
    machine_apply = importlib.import_module("semel.machine.apply")
    real = machine_apply.store_parts

    def store(state: State, row: Any, old: Any, next_number: int, packed: bytes) -> None:
        real(state, row, old, next_number, packed)
        row.parts = {next_number: packed}

    return patch.object(machine_apply, "store_parts", store)


def checkpoint_without_parts() -> Any:
    """The checkpoint omits the parts of a producer's receipts."""

    def change(dirty: Dirty) -> None:
        for key, row in dirty.producers.items():
            if row is not None and row.parts is not None:
                dirty.producers[key] = replace(row, parts=None)

    return _changed_rows(change)


def checkpoint_without_the_parts_of_keys() -> Any:
    """The checkpoint omits the parts of appends with an idempotency key."""

    def change(dirty: Dirty) -> None:
        for key, row in dirty.keys.items():
            if row is not None:
                dirty.keys[key] = replace(row, parts=b"")

    return _changed_rows(change)


def publish_without_parts() -> Any:
    """The parts of an append in an inline transaction are not stored."""
    return patch.object(apply_open, "store_parts", lambda *_: None)


# ---- one request, one frame ----------------------------------------------------------------------


def write_a_frame_for_each_partition() -> Any:
    """Each partition of an append gets a frame of its own: a crash can come between them."""
    real = Broker._commit

    def commit(self: Broker, decision: Decision, now_ms: int, reply: Any, more: int = 0) -> bool:
        event, sections = decision.event, decision.sections
        if type(event) is not StreamAppended or len(sections) < 2 or event.key is not None:
            return real(self, decision, now_ms, reply, more)
        first = Decision(decision.outcome, replace(event, stamp=None), sections[:1], grows=True)
        if not real(self, first, now_ms, lambda _outcome: None, more):
            return False
        rest = Decision(decision.outcome, event, sections[1:], grows=True)
        return real(self, rest, now_ms, reply, more)

    return patch.object(Broker, "_commit", commit)


def replay_without_the_last_partition() -> Any:
    """After a crash, the messages of one partition of an append are missing."""

    def replay(state: State, event: Any, sections: Any, *rest: Any) -> Effects:
        is_append = isinstance(event, StreamAppended | TxnPublished | ChunkStaged)
        if is_append and len(sections) > 1:
            sections = sections[:-1]
        return real_apply(state, event, sections, *rest)

    return patch.object(recovery, "apply", replay)


def append_only_to_the_first_partition() -> Any:
    """Of the messages for several partitions, those for the first are stored."""
    real = topic_append._route

    def route(*arguments: Any) -> Any:
        return real(*arguments)[:1]

    return patch.object(topic_append, "_route", route)


def take_a_frame_for_one_chunk() -> Any:
    """Recovery refuses a frame that has chunks for several partitions."""
    real = scan.holds_chunk

    def holds(read: Any, stream: int, count: int) -> bool:
        return len(read.sections) == 1 and real(read, stream, count)

    return patch.object(scan, "holds_chunk", holds)


# ---- which partition -----------------------------------------------------------------------------


def hash_with_the_count_of_the_client() -> Any:
    """A client that does not know of a growth is not refused."""
    real = topic_append._refuse_partitions
    return patch.object(
        topic_append,
        "_refuse_partitions",
        lambda row, command: real(row, replace(command, partitions=None)),
    )


def hash_with_the_partitioner_of_the_client() -> Any:
    """A client that has grouped with another partitioner is not refused."""
    real = topic_append._refuse_partitions
    return patch.object(
        topic_append,
        "_refuse_partitions",
        lambda row, command: real(row, replace(command, partitioner=None)),
    )


def take_partitions_that_do_not_exist() -> Any:
    """A partition beyond the last one is taken for one of those that exist."""
    real = topic_append.decide_append_topic

    def decide(state: State, command: AppendTopic) -> Decision:
        topic = state.by_path.get(command.path)
        row = None if topic is None else topic.topic
        if row is None or command.partition is None:
            return real(state, command)
        return real(state, replace(command, partition=command.partition % len(row.partitions)))

    decisions = importlib.import_module("semel.machine.decide")
    return patch.dict(decisions._DECIDERS, {AppendTopic: decide})


def hash_every_topic_with_crc32() -> Any:
    """The partitioner of a topic is ignored."""
    hashes = dict.fromkeys(partitioners.HASHES, partitioners.HASHES["crc32"])
    return patch.object(topic_append, "HASHES", hashes)


def ignore_the_hint() -> Any:
    """Messages without a key go where their content sends them, whatever the client says."""
    real = topic_append.route

    def route(row: Any, batch: Batch, **how: Any) -> Any:
        return real(row, batch, **how | {"hint": None})

    return patch.object(topic_append, "route", route)


def commit_to_one_partition() -> Any:
    """A one-shot commit stores all messages for a topic in its first partition."""

    def route(row: Any, batch: Batch, **_how: Any) -> Any:
        return ((0, batch),)

    return patch.object(commits, "route", route)


# ---- the topic as a whole ------------------------------------------------------------------------


def move_keys_without_asking() -> Any:
    """A topic with keyed messages grows although nobody has agreed that keys move."""
    real = topics.decide_grow_topic

    def decide(state: State, command: Any) -> Decision:
        return real(state, replace(command, keys_may_move=True))

    return _patched_grow(decide)


def grow_beside_staged_messages() -> Any:
    """A topic grows although a transaction has staged messages, which get later offsets."""
    return patch.object(topics, "_staging_txns", lambda state, topic, row: set())


def forget_that_a_topic_has_keys() -> Any:
    """A key in a message does not mark its topic."""
    receipts = importlib.import_module("semel.machine.topic_receipts")
    return patch.object(receipts, "note_key", lambda state, section: None)


def forget_where_a_topic_grew() -> Any:
    """The frame of a growth omits the ends of the partitions that were there before."""

    def change(event: Any) -> Any:
        is_growth = isinstance(event, PartitionsAdded)
        return replace(event, fence=(0,) * len(event.fence)) if is_growth else event

    return _changed_event(change)


def create_partitions_without_their_setting() -> Any:
    """The frame of a topic omits which partitions recognise no duplicates."""

    def change(event: Any) -> Any:
        is_topic = isinstance(event, TopicAdded | PartitionsAdded)
        return replace(event, unguarded=()) if is_topic else event

    return _changed_event(change)


def delete_one_partition() -> Any:
    """A partition can be deleted alone."""
    decisions = importlib.import_module("semel.machine.decide")
    return _all(
        *(
            patch.object(module, "in_topic", lambda state, stream: None)
            for module in (decisions, importlib.import_module("semel.machine.streams"))
            if hasattr(module, "in_topic")
        )
    )


def expire_a_topic_in_use() -> Any:
    """An append to a partition or a read of one does not renew the life of its topic."""
    return _all(
        patch.object(Expiry, "note_partition", lambda self, stream: None),
        patch.object(Expiry, "touch", lambda self, number: None),
    )


def checkpoint_without_topics() -> Any:
    """The checkpoint omits what a topic has beside its row of a stream."""
    return _changed_rows(lambda dirty: dirty.topics.clear())


def checkpoint_topics_without_growths() -> Any:
    """The checkpoint omits where a topic has grown."""

    def change(dirty: Dirty) -> None:
        for number, row in dirty.topics.items():
            dirty.topics[number] = replace(row, fences=())

    return _changed_rows(change)


def checkpoint_topics_as_if_without_keys() -> Any:
    """The checkpoint omits that a topic has messages with keys."""

    def change(dirty: Dirty) -> None:
        for number, row in dirty.topics.items():
            dirty.topics[number] = replace(row, is_keyed=False)

    return _changed_rows(change)


def forget_growths_in_a_replay() -> Any:
    """Recovery does not apply the frames of growths."""

    def replay(state: State, event: Any, *rest: Any) -> Effects:
        is_left_out = isinstance(event, PartitionsAdded)
        return NO_EFFECTS if is_left_out else real_apply(state, event, *rest)

    return patch.object(recovery, "apply", replay)


def end_a_transaction_in_one_partition() -> Any:
    """A transaction that has written to a topic gets a control record in one partition only."""
    real = apply_open._publish_to_topic

    def publish(state: State, txn: Any, topic: Stream, *rest: Any) -> Effects:
        before = set(txn.streams)
        effects: Effects = real(state, txn, topic, *rest)
        for number in [n for n in txn.streams if n not in before][1:]:
            row = txn.streams[number]
            txn.streams[number] = replace(row, first=-1)
        return effects

    return patch.object(apply_open, "_publish_to_topic", publish)


def fence_in_front_of_the_messages() -> Any:
    """An append that fences a transaction in the same partition has the offset of its marker."""

    def again(_state: State, event: Any, _sections: Any) -> Any:
        return event, _controls

    real = topic_append._accept
    _controls: list[Any] = []

    def accept(
        state: State, topic: Stream, routed: Any, decision: Decision, append: Append
    ) -> Outcome | Decision:
        _controls[:] = [s for s in decision.sections if s.kind == SECTION_CONTROL]
        return real(state, topic, routed, decision, append)

    return _all(
        patch.object(topic_append, "_accept", accept),
        patch.object(topic_append, "_fence_again", again),
    )


def _patched_grow(decide: Callable[[State, Any], Decision]) -> Any:
    decisions = importlib.import_module("semel.machine.decide")
    return patch.dict(decisions._DECIDERS, {GrowTopic: decide})


def _changed_event(change: Callable[[Any], Any]) -> Any:
    real = frame.encode_meta
    return patch.object(broker_module, "encode_meta", lambda event: real(change(event)))


def _changed_rows(change: Callable[[Dirty], None]) -> Any:
    real = checkpoint._put_rows

    def put(tables: Any, dirty: Dirty) -> None:
        change(dirty)
        real(tables, dirty)

    return patch.object(checkpoint, "_put_rows", put)


@contextmanager
def _all(*patches: Any) -> Iterator[None]:
    with ExitStack() as stack:
        for each in patches:
            stack.enter_context(each)
        yield


TOPIC_MUTANTS: tuple[Callable[[], Any], ...] = (
    store_a_duplicate_elsewhere_after_growth,
    answer_a_duplicate_with_where_it_belongs_now,
    keep_only_the_newest_parts,
    checkpoint_without_parts,
    checkpoint_without_the_parts_of_keys,
    publish_without_parts,
    write_a_frame_for_each_partition,
    replay_without_the_last_partition,
    append_only_to_the_first_partition,
    take_a_frame_for_one_chunk,
    hash_with_the_count_of_the_client,
    hash_with_the_partitioner_of_the_client,
    take_partitions_that_do_not_exist,
    hash_every_topic_with_crc32,
    ignore_the_hint,
    commit_to_one_partition,
    move_keys_without_asking,
    grow_beside_staged_messages,
    forget_that_a_topic_has_keys,
    forget_where_a_topic_grew,
    create_partitions_without_their_setting,
    delete_one_partition,
    expire_a_topic_in_use,
    checkpoint_without_topics,
    checkpoint_topics_without_growths,
    checkpoint_topics_as_if_without_keys,
    forget_growths_in_a_replay,
    end_a_transaction_in_one_partition,
    fence_in_front_of_the_messages,
)
