"""Bugs of the server. The name of the row that a bug breaks is in `registry.py`."""

import importlib
from collections.abc import Callable
from typing import Any, Final

import pytest
from msgspec.structs import replace

from semel.broker import lookups
from semel.journal import frame, recovery
from semel.journal.disk import Disk
from semel.journal.segments import Segments
from semel.journal.writer import JournalWriter
from semel.machine import commits, needs, topic_append
from semel.machine.append import decide_append
from semel.machine.events import (
    Decision,
    PositionsMoved,
    PositionsMovedWithMetadata,
    StreamAppended,
)
from semel.machine.state import State, Txn, find_producer
from semel.machine.topics import partitions_of
from semel.machine.txn import begin
from semel.model.commands import DENSE, Append, Commit, SetPositions, SinkTag
from semel.model.outcomes import Appended, Duplicate, Outcome
from semel.model.outcomes_topics import PartResult, TopicStored
from semel.model.outcomes_txn import CheckpointDiverged
from semel.model.partitioners import HASHES
from semel.model.rights import STREAM
from semel.model.topic_commands import AppendTopic
from semel.wire import gate
from semel.wire.routes import STREAM_APPEND
from semel.wire.topics import TopicPlan

_MONTH_MS: Final = 30 * 24 * 60 * 60 * 1000
_LONG_TIMEOUT_MS: Final = 10 * 60 * 1000

# The functions of these names are attributes of the package and hide its modules.
_apply: Final[Any] = importlib.import_module("semel.machine.apply")
_decide: Final[Any] = importlib.import_module("semel.machine.decide")
_server_topics: Final[Any] = importlib.import_module("semel.server.topics")


DecideAppend = Callable[[State, Append], Decision]


def _change_appends(patch: pytest.MonkeyPatch, decide: DecideAppend) -> None:
    """Replace the function that decides appends, wherever it is called."""
    patch.setitem(_decide._DECIDERS, Append, decide)
    patch.setattr(lookups, "decide_append", decide)


# ---- sequences -----------------------------------------------------------------------------------


def sequences_count_messages(patch: pytest.MonkeyPatch) -> None:
    """Advance the sequence of a producer by the number of messages of its batch."""

    def counting(state: State, command: Append) -> Decision:
        decision, batch = decide_append(state, command), command.batch
        event = decision.event
        if isinstance(event, StreamAppended) and event.stamp is not None and batch is not None:
            first, mode = event.stamp.first_seq, event.stamp.mode
            if mode == DENSE:
                stamp = replace(event.stamp, last_seq=first + batch.count - 1)
                return replace(decision, event=replace(event, stamp=stamp))
        return decision

    _change_appends(patch, counting)


def a_retry_gets_the_last_offset(patch: pytest.MonkeyPatch) -> None:
    """Answer a duplicate with the end of the stream instead of its own offset."""

    def guessing(state: State, command: Append) -> Decision:
        decision = decide_append(state, command)
        if not isinstance(decision.outcome, Duplicate):
            return decision
        tail = state.by_path[command.path].tail.tail
        return replace(decision, outcome=replace(decision.outcome, next_offset=tail))

    _change_appends(patch, guessing)


def older_epochs_are_kept(patch: pytest.MonkeyPatch) -> None:
    """Keep the last sequence and the receipts of the older epoch when an epoch is raised."""
    real = _apply._APPLIERS[StreamAppended]

    def keeping(state: State, event: StreamAppended, sections: Any, time_ms: int) -> Any:
        stream, stamp = state.by_number[event.stream], event.stamp
        old = None if stamp is None else find_producer(stream, stamp.id)
        effects = real(state, event, sections, time_ms)
        if stamp is not None and old is not None and stamp.epoch > old.epoch:
            assert stream.producers is not None
            row = stream.producers[stamp.id]
            last, receipts = max(old.last_seq, row.last_seq), old.receipts + row.receipts
            stream.producers[stamp.id] = replace(row, last_seq=last, receipts=receipts)
        return effects

    patch.setitem(_apply._APPLIERS, StreamAppended, keeping)


def equal_appends_are_stored_once(patch: pytest.MonkeyPatch) -> None:
    """Treat a plain append with the payload of the one before as a repeat."""
    last: dict[str, bytes] = {}

    def comparing(state: State, command: Append) -> Decision:
        batch = command.batch
        if command.producer is None and batch is not None and command.path in state.by_path:
            if last.get(command.path) == batch.payload:
                tail = state.by_path[command.path].tail.tail
                return Decision(Appended(tail - batch.count, tail, False))
            last[command.path] = batch.payload
        return decide_append(state, command)

    _change_appends(patch, comparing)


def if_match_may_be_older(patch: pytest.MonkeyPatch) -> None:
    """Accept an append whose `If-Match` names an offset before the end of the stream."""

    def lenient(state: State, command: Append) -> Decision:
        stream, expected = state.by_path.get(command.path), command.if_match
        if stream is not None and expected is not None and expected < stream.tail.tail:
            command = replace(command, if_match=None)
        return decide_append(state, command)

    _change_appends(patch, lenient)


def a_commit_stores_what_it_can(patch: pytest.MonkeyPatch) -> None:
    """Leave out the refused appends of a one-shot commit, and commit the others."""

    def partial(state: State, command: Commit) -> Any:
        good = [
            one
            for one in command.appends
            if one.path not in state.by_path
            or commits._refuse_append(state.by_path[one.path], one) is None
        ]
        return commits.decide_commit(state, replace(command, appends=tuple(good)))

    patch.setitem(_decide._DECIDERS, Commit, partial)


# ---- transactions and sinks ----------------------------------------------------------------------


def transactions_have_ten_minutes(patch: pytest.MonkeyPatch) -> None:
    """Use ten minutes for a transaction that names no timeout."""
    patch.setattr(begin, "TXN_TIMEOUT_MS_DEFAULT", _LONG_TIMEOUT_MS)


def a_position_keeps_no_properties(patch: pytest.MonkeyPatch) -> None:
    """Move the position of a group, and leave out the properties that belong to it."""
    real = _decide._DECIDERS[SetPositions]

    def forgetting(state: State, command: SetPositions) -> Decision:
        decision: Decision = real(state, command)
        event = decision.event
        if isinstance(event, PositionsMovedWithMetadata):
            return replace(decision, event=PositionsMoved(event.positions))
        return decision

    patch.setitem(_decide._DECIDERS, SetPositions, forgetting)


def a_sink_belongs_to_everyone(patch: pytest.MonkeyPatch) -> None:
    """Do not compare the query of a commit with the query that the sink is bound to."""
    check_version = commits.check_version

    def unbound(state: State, tag: SinkTag) -> Outcome | None:
        sink = state.sinks.get(tag.app)
        return check_version(state, tag if sink is None else replace(tag, query_id=sink.query_id))

    patch.setattr(commits, "check_version", unbound)


def what_is_not_prepared_is_committed(patch: pytest.MonkeyPatch) -> None:
    """Let a sink commit transactions that are not prepared."""
    find_staged = commits._find_staged

    def unsealed(state: State, txn: Any, *more: Any) -> Any:
        if isinstance(txn, Txn):
            txn = Txn(replace(txn.row, is_prepared=True), txn.streams, txn.chunk_blocks)
        return find_staged(state, txn, *more)

    patch.setattr(commits, "_find_staged", unsealed)


def versions_have_no_gaps(patch: pytest.MonkeyPatch) -> None:
    """Refuse a version of a sink that is not the next one."""
    check_version = commits.check_version

    def dense(state: State, tag: SinkTag) -> Outcome | None:
        sink = state.sinks.get(tag.app)
        last = -1 if sink is None else sink.last_version
        return CheckpointDiverged(last) if tag.version > last + 1 else check_version(state, tag)

    patch.setattr(commits, "check_version", dense)


def idle_sinks_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Drop sinks without a commit in the last month, at the next append."""
    real = _apply._APPLIERS[StreamAppended]
    seen: dict[tuple[str, int], int] = {}

    def forgetting(state: State, event: Any, sections: Any, time_ms: int) -> Any:
        for app, row in list(state.sinks.items()):
            if time_ms - seen.setdefault((app, row.last_version), time_ms) > _MONTH_MS:
                del state.sinks[app]
        return real(state, event, sections, time_ms)

    patch.setitem(_apply._APPLIERS, StreamAppended, forgetting)


# ---- rights --------------------------------------------------------------------------------------


def the_cluster_has_no_rights(patch: pytest.MonkeyPatch) -> None:
    """Do not ask for `IdempotentWrite` on the cluster."""
    patch.setattr(needs, "_idempotent", lambda *_: iter(()))


def everybody_may_publish(patch: pytest.MonkeyPatch) -> None:
    """Do not ask for `write` on the stream of an append, neither before nor when it is decided."""
    rules: Any = needs.RULES
    real = rules[Append]

    def without_write(state: State, command: Append, caller: Any) -> Any:
        return [check for check in real(state, command, caller) if check.kind != STREAM]

    patch.setitem(rules, Append, without_write)
    gates: Any = gate.GATE
    patch.setitem(gates, STREAM_APPEND, gate.Rule(gate.VALID))


# ---- topics --------------------------------------------------------------------------------------


def keys_select_no_partition(patch: pytest.MonkeyPatch) -> None:
    """Send all messages with a key to partition 0."""
    patch.setattr(topic_append, "HASHES", dict.fromkeys(HASHES, lambda _key: 0))


def a_chosen_partition_is_ignored(patch: pytest.MonkeyPatch) -> None:
    """Let the key select the partition although the request names one."""
    real: Any = topic_append._route

    def by_key(topic: Any, row: Any, command: AppendTopic) -> Any:
        return real(topic, row, replace(command, partition=None))

    patch.setattr(topic_append, "_route", by_key)


def a_repeat_gets_the_ends_of_the_partitions(patch: pytest.MonkeyPatch) -> None:
    """Answer a duplicate with the present tails of its partitions."""

    def guessing(state: State, command: AppendTopic) -> Decision:
        decision = topic_append.decide_append_topic(state, command)
        outcome, topic = decision.outcome, state.by_path.get(command.path)
        if not (isinstance(outcome, TopicStored) and outcome.is_duplicate and outcome.parts):
            return decision
        assert topic is not None
        streams = partitions_of(state, topic)
        ends = [(part.partition, streams[part.partition].tail.tail) for part in outcome.parts]
        parts = tuple(PartResult(number, end - 1, end) for number, end in ends)
        return replace(decision, outcome=replace(outcome, parts=parts))

    patch.setitem(_decide._DECIDERS, AppendTopic, guessing)
    patch.setattr(lookups, "decide_append_topic", guessing)


def leader_epochs_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    """Store what is sent with the generation of another copy of the data."""
    real: Any = _server_topics.plan_topic_post

    def without(*arguments: Any, **options: Any) -> Any:
        plan = real(*arguments, **options)
        return replace(plan, leader_epoch=None) if isinstance(plan, TopicPlan) else plan

    patch.setattr(_server_topics, "plan_topic_post", without)


# ---- the journal ---------------------------------------------------------------------------------


def answers_come_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    """Respond when the frame is written, without a sync."""

    def counting(self: JournalWriter) -> None:
        self.sync_count += 1

    patch.setattr(JournalWriter, "_sync", counting)


def checksums_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    """Read frames whatever their checksum is."""

    class Any32(int):
        def __ne__(self, other: object) -> bool:
            return False

        __hash__ = int.__hash__

    patch.setattr(frame, "crc32c", lambda *_: Any32())


def a_torn_tail_stays_in_the_file(patch: pytest.MonkeyPatch) -> None:
    """Do not cut what follows the last intact frame."""
    make_durable = recovery._make_durable

    def whole(disk: Disk, segments: Segments, tail: list[int], data: bytes, room: Any) -> None:
        file = segments.file(tail[-1])
        make_durable(disk, segments, tail, file.read(0, file.size()), room)

    patch.setattr(recovery, "_make_durable", whole)
