"""Appends to topics: the decision, the choice of partitions, and the receipts.

An append to a topic is first decided like an append to a stream, with the rows that are stored for
the topic: identity, duplicates, sequence and content. Then each message gets its partition. All
messages are in one frame, so they are stored together. The comment at a check names its row in
`docs/reference/topics.md`.
"""

from collections.abc import Sequence
from struct import Struct as Layout
from typing import Final
from zlib import crc32

from msgspec.structs import replace

from semel.machine.append import count_streams, decide_outside, decide_publish_on
from semel.machine.checks import is_batch_consistent, section_of
from semel.machine.events import (
    SECTION_CONTROL,
    SECTION_DATA,
    SECTION_STAGED,
    Decision,
    Event,
    ProducerDeclared,
    ProducerRaised,
    Section,
    StreamAppended,
    StreamConfigured,
)
from semel.machine.policies import is_settled
from semel.machine.rows import TopicRow
from semel.machine.state import State, Stream, find_producer
from semel.machine.topic_receipts import unpack_parts
from semel.machine.topics import find_topic
from semel.machine.txn.draft import Draft, chunk_count
from semel.model.commands import Append, Batch
from semel.model.limits import MESSAGE_KEY_BYTES_MAX
from semel.model.messages import (
    HAS_KEYS,
    encode_extras,
    find_extras_fault,
    headers_of,
    is_json,
    keys_of,
    split_messages,
    timestamps_of,
)
from semel.model.outcomes import (
    Appended,
    BadBody,
    Duplicate,
    InvalidRequest,
    LimitReached,
    Outcome,
    Refusal,
)
from semel.model.outcomes_topics import (
    NoSuchPartition,
    PartitionsChanged,
    PartResult,
    TopicStored,
)
from semel.model.outcomes_txn import Staged
from semel.model.partitioners import HASHES
from semel.model.policies import BUILT_IN_DEDUP
from semel.model.topic_commands import AppendTopic

# How the extras of one message begin that has only a key: the columns, and the length of the key.
_ONE_KEY: Final = Layout("<II")
_KEY_SIZES: Final = range(MESSAGE_KEY_BYTES_MAX + 1)

# The messages of an append for each partition, sorted by partition.
Routed = Sequence[tuple[int, Batch]]


def decide_append_topic(state: State, command: AppendTopic) -> Decision:
    """Return the decision on an append to a topic."""
    return _decide_simple(state, command) or _decide_checked(state, command)


def _decide_simple(state: State, command: AppendTopic) -> Decision | None:
    """Return the decision on one message with at most a key, to an open topic of its content type.

    Return None for any other append. The checks in `_decide_checked` would accept this one too, and
    `route` would select the same partition. It is the most frequent append, so it calls fewer
    functions.
    """
    batch, topic = command.batch, state.by_path.get(command.path)
    if (
        batch is None
        or batch.count != 1
        or command.producer is not None
        or command.key is not None
        or command.transaction is not None
        or command.partition is not None
        or command.hint is not None
        or command.parts
        or command.body_error is not None
        or topic is None
        or topic.topic is None
        or command.content_type != topic.row.content_type
    ):
        return None
    row, tail, extras = topic.topic, topic.tail, batch.extras
    partitions = row.partitions
    if tail.is_closed or tail.is_deleted:
        return None
    if command.partitions not in (None, len(partitions)):
        return None
    if command.partitioner not in (None, row.partitioner):
        return None
    key_bytes = len(extras) - _ONE_KEY.size
    if not extras:
        chosen = crc32(batch.payload)
    elif key_bytes in _KEY_SIZES and extras.startswith(_ONE_KEY.pack(HAS_KEYS, key_bytes)):
        chosen = HASHES[row.partitioner](extras[_ONE_KEY.size :])
    else:
        return None
    has_default = not state.policies and (tail.dedup_from is not None) == BUILT_IN_DEDUP
    if not (has_default or is_settled(state, topic)):  # the first saves two calls
        return None
    chosen %= len(partitions)
    number = partitions[chosen]
    base = state.by_number[number].tail.tail
    return Decision(  # positional arguments are faster
        TopicStored((PartResult(chosen, base, base + 1),)),
        StreamAppended(topic.row.number, False, None),
        (Section(number, base, 1, batch.payload, extras=extras),),
        True,
    )


def _decide_checked(state: State, command: AppendTopic) -> Decision:
    """Decide an append to a topic by all checks."""
    topic = find_topic(state, command.path)
    if not isinstance(topic, Stream):
        return Decision(topic)
    row = topic.topic
    assert row is not None
    append = _as_append(topic, command)
    if command.transaction is None:
        decision = decide_outside(state, topic, append)
    else:
        decision = decide_publish_on(state, topic, append, command.transaction)
    refusal = _refuse_partitions(row, command)
    if refusal is not None and _is_later(decision):
        return Decision(refusal)  # T12, T13
    if decision.event is None:
        return Decision(outcome_on_topic(topic, append, decision.outcome))
    routed = _route(topic, row, command)
    return _accept(state, topic, routed, decision, append)


def _as_append(topic: Stream, command: AppendTopic) -> Append:
    """Return the append to the topic as a whole, by which the command is decided first."""
    batch = command.batch
    if command.parts:
        batches = [each for _, each in command.parts]
        comma = b"," if is_json(topic.row.content_type) else b""
        batch = Batch(
            comma.join([each.payload for each in batches]),
            sum(each.count for each in batches),
            b"".join([_lengths_of(each) for each in batches]),
            b"".join([each.extras for each in batches]),
            is_checked=True,  # `_refuse_parts` checks each part
        )
        if batch.count == 1:
            batch = batches[0]
    return Append(
        command.path,
        command.now_ms,
        command.content_type,
        batch,
        command.body_error or _refuse_parts(topic, command),
        producer=command.producer,
        key=command.key,
        transaction=command.transaction,
    )


def _lengths_of(batch: Batch) -> bytes:
    return batch.lengths if batch.count > 1 else len(batch.payload).to_bytes(4, "little")


def _refuse_parts(topic: Stream, command: AppendTopic) -> str | None:
    """Return what is wrong with the parts that the client has made, or None if they are valid."""
    is_joined = is_json(topic.row.content_type)
    for _, batch in command.parts:
        if batch.count > 1 and not is_batch_consistent(batch, is_joined=is_joined):
            return "the lengths of the messages do not add up to the length of the body"
        if batch.extras and not batch.is_checked:
            fault = find_extras_fault(batch.extras, batch.count)
            if fault is not None:
                return fault
    return None


def _refuse_partitions(row: TopicRow, command: AppendTopic) -> Refusal | None:
    count = len(row.partitions)
    is_same = command.partitioner in (None, row.partitioner)
    if command.partitions not in (None, count) or not is_same:
        return PartitionsChanged(count, row.partitioner)  # T12
    chosen = [partition for partition, _ in command.parts]
    if command.partition is not None:
        chosen.append(command.partition)
    wrong = next((partition for partition in chosen if partition >= count), None)
    return None if wrong is None else NoSuchPartition(wrong, count)  # T13


def _is_later(decision: Decision) -> bool:
    """Return True if the checks of partitions come before what the decision says."""
    outcome = decision.outcome
    is_later = isinstance(outcome, BadBody | LimitReached) or outcome == InvalidRequest("batch")
    return decision.event is not None or is_later


# ---- partitions ----------------------------------------------------------------------------------


def _route(topic: Stream, row: TopicRow, command: AppendTopic) -> Routed:
    if command.parts:
        return command.parts
    batch = command.batch
    assert batch is not None
    if command.partition is not None:
        return ((command.partition, batch),)
    return route(row, batch, is_joined=is_json(topic.row.content_type), hint=command.hint)


def route(row: TopicRow, batch: Batch, *, is_joined: bool, hint: int | None = None) -> Routed:
    """Return the messages of a batch for each partition of a topic.

    A message with a key goes where the topic's partitioner sends the key. Other messages go to the
    partition `hint`, or where a checksum of the message sends them, so that a retry goes there too.
    """
    count, key_hash = len(row.partitions), HASHES[row.partitioner]
    if batch.count == 1:
        key = keys_of(batch.extras, 1)[0] if batch.extras else None
        if key is not None:
            return ((key_hash(key) % count, batch),)
        return (((crc32(batch.payload) if hint is None else hint) % count, batch),)
    keys: list[bytes | None] = [None] * batch.count
    if batch.extras:
        keys = keys_of(batch.extras, batch.count)
    messages = list(split_messages(batch.payload, batch.count, batch.lengths, is_joined=is_joined))
    chosen: dict[int, list[int]] = {}
    for index, key in enumerate(keys):
        if key is not None:
            partition = key_hash(key) % count
        else:
            partition = (crc32(messages[index]) if hint is None else hint) % count
        indexes = chosen.get(partition)
        if indexes is None:
            chosen[partition] = [index]
        else:
            indexes.append(index)
    if len(chosen) == 1:
        return ((next(iter(chosen)), batch),)
    comma = b"," if is_joined else b""
    select = _Extras(batch, keys)
    return [
        (partition, _pick(messages, indexes, comma, select.of(indexes)))
        for partition, indexes in sorted(chosen.items())
    ]


def _pick(messages: list[bytes], indexes: list[int], comma: bytes, extras: bytes) -> Batch:
    picked = [messages[index] for index in indexes]
    lengths = b""
    if len(picked) > 1:
        lengths = b"".join([len(message).to_bytes(4, "little") for message in picked])
    return Batch(comma.join(picked), len(picked), lengths, extras, is_checked=True)


class _Extras:
    """The extras of a batch, from which those of some messages are taken."""

    def __init__(self, batch: Batch, keys: list[bytes | None]) -> None:
        self._keys = keys
        self._has_extras = bool(batch.extras)
        columns = int.from_bytes(batch.extras[:4], "little")
        has_more = self._has_extras and columns != HAS_KEYS
        self._times = timestamps_of(batch.extras, batch.count) if has_more else None
        self._headers = headers_of(batch.extras, batch.count) if has_more else None

    def of(self, indexes: list[int]) -> bytes:
        """Return the extras of the messages with these indexes."""
        if not self._has_extras:
            return b""
        times, headers = self._times, self._headers
        return encode_extras(
            len(indexes),
            keys=[self._keys[index] for index in indexes],
            timestamps=None if times is None else [times[index] for index in indexes],
            headers=None if headers is None else [headers[index] for index in indexes],
        )


# ---- the frame -----------------------------------------------------------------------------------


def _accept(
    state: State, topic: Stream, routed: Routed, decision: Decision, append: Append
) -> Decision:
    """Return the decision with a section for each partition instead of one for the topic."""
    row, event, outcome = topic.topic, decision.event, decision.outcome
    assert row is not None
    is_staged = isinstance(outcome, Staged)
    txn = append.transaction and state.transactions.get(append.transaction.id)
    if txn:
        touched = {row.partitions[partition] for partition, _ in routed}
        maximum = state.limits.txn_streams
        joined = touched.union(txn.streams)
        if len(joined) > maximum and count_streams(state, joined) > maximum:
            return Decision(LimitReached("transaction_streams", maximum))  # 15
        maximum = state.limits.chunks
        if is_staged and chunk_count(txn.chunk_blocks) + len(routed) > maximum:
            return Decision(LimitReached("chunks", maximum))  # 15
    kind, sections, parts = SECTION_STAGED if is_staged else SECTION_DATA, [], []
    for partition, batch in routed:
        stream = state.by_number[row.partitions[partition]]
        base = stream.tail.tail
        sections.append(section_of(stream.row.number, base, batch, stream.row.content_type, kind))
        parts.append(PartResult(partition, base, base + batch.count))
    if any(section.kind == SECTION_CONTROL for section in decision.sections):
        event, controls = _fence_again(state, event, sections)
        sections += controls
    if isinstance(outcome, Appended):
        outcome = TopicStored(
            tuple(parts), outcome.epoch, outcome.seq, is_unguarded=outcome.is_unguarded
        )
    return Decision(outcome, event, tuple(sections), grows=True)


def _fence_again(
    state: State, event: Event | None, sections: list[Section]
) -> tuple[Event, list[Section]]:
    """Return the event, and the control records of the transactions that it aborts.

    The control records come after the messages of this frame in the same partitions.
    """
    raised = event
    if isinstance(event, ProducerDeclared):
        raised = event.raised
    assert isinstance(raised, ProducerRaised | StreamConfigured)
    assert raised.append is not None
    stamp = raised.append.stamp
    assert stamp is not None
    draft = Draft(state)
    for section in sections:
        draft.advance(state.by_number[section.stream], section.count)
    draft.fence(stamp.id, stamp.epoch)
    again = replace(raised, ended=tuple(draft.ended))
    if isinstance(event, ProducerDeclared):
        assert isinstance(again, ProducerRaised)
        return replace(event, raised=again), draft.sections
    return again, draft.sections


def outcome_on_topic(topic: Stream, append: Append, outcome: Outcome) -> Outcome:
    """Return the outcome of an append that is refused or repeated, with the parts of a repeat."""
    if not isinstance(outcome, Duplicate):
        return outcome
    packed = None
    if outcome.next_offset is None:
        pass
    elif append.producer is not None:
        row = find_producer(topic, append.producer.id)
        packed = row.parts.get(outcome.next_offset) if row is not None and row.parts else None
    else:
        assert append.key is not None
        assert topic.keys is not None
        packed = topic.keys[append.key].parts
    parts = None if not packed else unpack_parts(packed)
    return TopicStored(
        parts, outcome.epoch, outcome.seq, is_duplicate=True, is_mismatch=outcome.is_mismatch
    )
