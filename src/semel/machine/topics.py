"""Topics: the decisions that create, grow, close and delete them, and their application.

The partitions of the topic `orders` are the streams `orders/0`, `orders/1` and so on. The topic has
a number, a path and a row like a stream, so that producers, idempotency keys, owners and policies
are stored for it in the same tables. The comment at a check names its row in
`docs/reference/topics.md`.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from semel.machine.checks import holding_txn
from semel.machine.events import Decision, Sections
from semel.machine.policies import dedup_source, find_dedup
from semel.machine.rows import StreamRow, TailRow, TopicRow
from semel.machine.shared_events import (
    PartitionsAdded,
    PartitionsClosed,
    TopicAdded,
    TopicRemoved,
)
from semel.machine.shares import note_new_stream
from semel.machine.state import Effects, State, Stream, set_tail
from semel.machine.subscribers import note_linked_stream
from semel.model.commands import TXN_STAGED
from semel.model.limits import TOPIC_GROWTHS_MAX
from semel.model.messages import DEFAULT_MEDIA_TYPE, same_media_type
from semel.model.outcomes import Gone, LimitReached, Outcome, Refusal, StreamClosed
from semel.model.outcomes_topics import (
    KeysWouldMove,
    StreamExists,
    StreamInTopic,
    TooFewPartitions,
    TopicClosed,
    TopicConflict,
    TopicCreated,
    TopicDeleted,
    TopicGrown,
    TopicNotFound,
)
from semel.model.policies import DedupSource
from semel.model.rights import RESERVED
from semel.model.topic_commands import CloseTopic, CreateTopic, DeleteTopic, GrowTopic


def find_topic(state: State, path: str) -> Stream | Refusal:
    """Return the topic at `path`, or a refusal if there is none or it is soft-deleted."""
    topic = state.by_path.get(path)
    if topic is None or topic.topic is None:
        return TopicNotFound()
    return Gone() if topic.tail.is_deleted else topic


def partitions_of(state: State, topic: Stream) -> list[Stream]:
    """Return the partitions of a topic that is not deleted."""
    assert topic.topic is not None
    return [state.by_number[number] for number in topic.topic.partitions]


def in_topic(state: State, stream: Stream) -> StreamInTopic | None:
    """Return the refusal of a command that is not possible for one partition alone."""
    if stream.row.partition < 0:
        return None
    return StreamInTopic(state.by_number[stream.row.topic].row.path)


# ---- create --------------------------------------------------------------------------------------


def decide_create_topic(state: State, command: CreateTopic) -> Decision:
    """Decide a command that creates a topic with all its partitions, or none of them."""
    old = state.by_path.get(command.path)
    if old is not None and old.topic is not None and not old.tail.is_deleted:
        return Decision(_compare(state, old, old.topic, command))  # T1
    paths = (command.path, *_paths(command.path, 0, command.partitions))
    refusal = _refuse_paths(state, paths) or _refuse_room(state, len(paths))
    if refusal is not None:
        return Decision(refusal)
    number = state.next_stream
    row = StreamRow(
        number=number,
        path=command.path,
        incarnation=command.incarnation,
        content_type=command.content_type or DEFAULT_MEDIA_TYPE,
        created_ms=state.frame_time(command.now_ms),
        ttl_ms=command.ttl_ms,
        expires_at_ms=command.expires_at_ms,
        topic=number,
    )
    own = command.dedup
    dedup, policy = find_dedup(state.policies, row.path) if own is None else (own, None)
    dedup_from = 0 if dedup else None
    unguarded = _unguarded(state, command.path, 0, command.partitions)
    event = TopicAdded(
        row, command.partitioner, command.partitions, dedup_from, own is not None, unguarded
    )
    outcome = TopicCreated(
        command.partitions,
        command.partitioner,
        row.content_type,
        row.incarnation,
        is_new=True,
        dedup_from=dedup_from,
        source=DedupSource(is_own=own is not None, prefix=policy),
    )
    return Decision(outcome, event, grows=True)


def _paths(path: str, start: int, end: int) -> list[str]:
    return [f"{path}/{partition}" for partition in range(start, end)]


def _refuse_paths(state: State, paths: Iterable[str]) -> Refusal | None:
    """Refuse paths that are in use, also by soft-deleted streams, or that are reserved."""
    taken = [path for path in paths if path in state.by_path or path.startswith(RESERVED)]
    return StreamExists(tuple(sorted(taken))) if taken else None  # T2


def _refuse_room(state: State, count: int) -> Refusal | None:
    maximum = state.limits.streams
    is_full = len(state.by_number) + count > maximum
    return LimitReached("streams", maximum) if is_full else None  # T3


def _unguarded(state: State, path: str, start: int, end: int) -> tuple[int, ...]:
    """Return the partitions that policies exempt from duplicate detection."""
    if not state.policies:
        return ()
    return tuple(
        partition
        for partition in range(start, end)
        if not find_dedup(state.policies, f"{path}/{partition}")[0]
    )


def _compare(state: State, topic: Stream, row: TopicRow, command: CreateTopic) -> Outcome:
    stored, tail = topic.row, topic.tail
    own = (tail.dedup_from is not None) if tail.dedup_own else None
    for field, is_equal in (
        ("content_type", same_media_type(command.content_type, stored.content_type)),
        ("partitioner", command.partitioner == row.partitioner),
        ("partitions", command.partitions == len(row.partitions)),
        ("ttl", command.ttl_ms == stored.ttl_ms),
        ("expires_at", command.expires_at_ms == stored.expires_at_ms),
        ("dedup", command.dedup is None or command.dedup == own),
    ):
        if not is_equal:
            return TopicConflict(field)
    return TopicCreated(
        len(row.partitions),
        row.partitioner,
        stored.content_type,
        stored.incarnation,
        is_new=False,
        dedup_from=tail.dedup_from,
        source=dedup_source(state.policies, stored.path, tail),
    )


# ---- grow, close, delete -------------------------------------------------------------------------


def decide_grow_topic(state: State, command: GrowTopic) -> Decision:
    """Return the decision on a command that adds partitions to a topic."""
    topic = find_topic(state, command.path)
    if not isinstance(topic, Stream):
        return Decision(topic)
    row = topic.topic
    assert row is not None
    count = len(row.partitions)
    if command.partitions < count:
        return Decision(TooFewPartitions(count))  # T5
    if command.partitions == count:
        moved_at = row.fences[-1] if row.fences else ()
        return Decision(TopicGrown(count, moved_at, is_new=False))
    if topic.tail.is_closed:
        return Decision(StreamClosed(None))
    if row.is_keyed and not command.keys_may_move:
        return Decision(KeysWouldMove())  # T6
    staging = _staging_txns(state, topic, row)
    if staging:
        return Decision(holding_txn(state, staging))  # T25
    paths = _paths(command.path, count, command.partitions)
    refusal = _refuse_paths(state, paths) or _refuse_room(state, len(paths))
    if refusal is None and len(row.fences) >= TOPIC_GROWTHS_MAX:
        refusal = LimitReached("topic_growths", TOPIC_GROWTHS_MAX)
    if refusal is not None:
        return Decision(refusal)
    fence = tuple(stream.tail.tail for stream in partitions_of(state, topic))
    event = PartitionsAdded(
        topic.row.number,
        command.partitions,
        command.incarnation,
        fence,
        _unguarded(state, command.path, count, command.partitions),
    )
    return Decision(TopicGrown(command.partitions, fence, is_new=True), event, grows=True)


def _staging_txns(state: State, topic: Stream, row: TopicRow) -> set[int]:
    """Return the staged transactions that must end before a topic grows.

    These are those that name the topic: they can rely on the number of its partitions. If the topic
    is keyed, they are also those with messages for its partitions. Such messages get their offsets
    at the commit, so they would come after the fence of the growth.
    """
    found = {txn for txn in topic.txns or () if state.by_txn[txn].row.kind == TXN_STAGED}
    for stream in partitions_of(state, topic) if row.is_keyed else ():
        number = stream.row.number
        for txn in stream.txns or ():
            joined = state.by_txn[txn].streams.get(number)
            if joined is not None and joined.chunks:
                found.add(txn)
    return found


def decide_close_topic(state: State, command: CloseTopic) -> Decision:
    """Return the decision on a command that closes a topic and all its partitions."""
    topic = find_topic(state, command.path)
    if not isinstance(topic, Stream):
        return Decision(topic)
    if topic.tail.is_closed:
        return Decision(TopicClosed())
    pending = [min(stream.open) for stream in partitions_of(state, topic) if stream.open]
    if pending:
        return Decision(holding_txn(state, pending))
    return Decision(TopicClosed(), PartitionsClosed(topic.row.number))


def decide_delete_topic(state: State, command: DeleteTopic) -> Decision:
    """Return the decision on a command that deletes a topic and all its partitions."""
    topic = find_topic(state, command.path)
    if not isinstance(topic, Stream):
        return Decision(topic)
    is_soft = any(stream.forks for stream in partitions_of(state, topic))
    return Decision(TopicDeleted(is_soft), TopicRemoved(topic.row.number))


# ---- apply ---------------------------------------------------------------------------------------


def apply_topic_added(
    state: State, event: TopicAdded, _sections: Sections, time_ms: int
) -> Effects:
    """Create a topic and its partitions."""
    row = event.row
    topic = _add_row(state, row, time_ms, event.dedup_from, is_own=event.is_own)
    numbers = range(row.number + 1, row.number + 1 + event.partitions)
    topic.topic = TopicRow(event.partitioner, tuple(numbers))
    state.dirty.topics[row.number] = topic.topic
    added = _add_partitions(state, row, row.incarnation, 0, event.partitions, time_ms)
    _switch_off(state, added, event.unguarded)
    return Effects((topic, *added))


def apply_partitions_added(
    state: State, event: PartitionsAdded, _sections: Sections, time_ms: int
) -> Effects:
    """Add partitions to a topic, and remember where the old partitions ended."""
    topic = state.by_number[event.topic]
    row = topic.topic
    assert row is not None
    start = len(row.partitions)
    added = _add_partitions(state, topic.row, event.incarnation, start, event.partitions, time_ms)
    _switch_off(state, added, [partition - start for partition in event.unguarded])
    numbers = (*row.partitions, *(stream.row.number for stream in added))
    set_topic(state, topic, replace(row, partitions=numbers, fences=(*row.fences, event.fence)))
    state.unsettled |= state.wanted.get(topic.row.path, set())
    return Effects((topic, *added))


def set_topic(state: State, topic: Stream, row: TopicRow) -> None:
    """Store the row of a topic."""
    topic.topic = state.dirty.topics[topic.row.number] = row


def _add_partitions(
    state: State, topic: StreamRow, incarnation: str, start: int, end: int, time_ms: int
) -> list[Stream]:
    added = []
    for partition in range(start, end):
        row = StreamRow(
            number=state.next_stream,
            path=f"{topic.path}/{partition}",
            incarnation=f"{incarnation}-{partition}",
            content_type=topic.content_type,
            created_ms=time_ms,
            topic=topic.number,
            partition=partition,
        )
        added.append(_add_row(state, row, time_ms, 0, is_own=False))
    return added


def _add_row(
    state: State, row: StreamRow, time_ms: int, dedup_from: int | None, *, is_own: bool
) -> Stream:
    tail = TailRow(
        head=0,
        tail=0,
        is_closed=False,
        is_deleted=False,
        stream_seq=None,
        written_ms=time_ms,
        dedup_from=dedup_from,
        stable=0,
        dedup_own=is_own,
        controls=0,
    )
    stream = state.by_number[row.number] = state.by_path[row.path] = Stream(row, tail)
    state.next_stream += 1
    state.dirty.streams[row.number] = row
    set_tail(state, stream, tail)
    note_new_stream(state, stream)
    note_linked_stream(state, stream)
    return stream


def _switch_off(state: State, added: list[Stream], partitions: Iterable[int]) -> None:
    for partition in partitions:
        stream = added[partition]
        set_tail(state, stream, replace(stream.tail, dedup_from=None))


def apply_partitions_closed(
    state: State, event: PartitionsClosed, _sections: Sections, time_ms: int
) -> Effects:
    """Close a topic and its partitions."""
    topic = state.by_number[event.topic]
    streams = [topic, *partitions_of(state, topic)]
    for stream in streams:
        set_tail(state, stream, replace(stream.tail, is_closed=True, written_ms=time_ms))
    return Effects(streams)
