"""Bugs of the server. The name of the row that a bug breaks is in `registry.py`."""

import importlib
from typing import Any, Final

import pytest
from msgspec.structs import replace

from semel.journal import frame, recovery
from semel.journal.disk import Disk
from semel.journal.segments import Segments
from semel.journal.writer import JournalWriter
from semel.machine import append, commits, producers
from semel.machine.checks import check_content
from semel.machine.events import Decision, ProducerStamp, StreamAppended
from semel.machine.rows import ProducerRow
from semel.machine.state import State, Stream, Txn
from semel.machine.txn import begin
from semel.model.commands import DENSE, Append, Commit, SinkTag
from semel.model.outcomes import Duplicate, Outcome
from semel.model.outcomes_txn import CheckpointDiverged

_MONTH_MS: Final = 30 * 24 * 60 * 60 * 1000
_LONG_TIMEOUT_MS: Final = 10 * 60 * 1000

# The functions of these names are attributes of the package and hide its modules.
_apply: Final[Any] = importlib.import_module("semel.machine.apply")
_decide: Final[Any] = importlib.import_module("semel.machine.decide")


# ---- sequences -----------------------------------------------------------------------------------


def sequences_count_messages(patch: pytest.MonkeyPatch) -> None:
    """Advance the sequence of a producer by the number of messages of its batch."""
    accept = append._accept

    def counting(stream: Stream, command: Append, event: StreamAppended) -> Any:
        stamp, batch = event.stamp, command.batch
        if stamp is not None and stamp.mode == DENSE and batch is not None:
            stamp = replace(stamp, last_seq=stamp.first_seq + batch.count - 1)
            event = replace(event, stamp=stamp)
        return accept(stream, command, event)

    patch.setattr(append, "_accept", counting)


def a_retry_gets_the_last_offset(patch: pytest.MonkeyPatch) -> None:
    """Answer a duplicate with the end of the stream instead of its own offset."""
    repeat_of = producers.repeat_of

    def guessing(stream: Stream, *given: Any, **more: Any) -> Outcome:
        outcome = repeat_of(stream, *given, **more)
        if isinstance(outcome, Duplicate):
            return replace(outcome, next_offset=stream.tail.tail)
        return outcome

    patch.setattr(producers, "repeat_of", guessing)


def older_epochs_are_kept(patch: pytest.MonkeyPatch) -> None:
    """Keep the last sequence and the receipts of the older epoch when an epoch is raised."""
    go_on = _apply._continue_producer

    def keeping(old: ProducerRow, stamp: ProducerStamp, receipt: bytes, *more: Any) -> ProducerRow:
        row: ProducerRow = go_on(old, stamp, receipt, *more)
        if stamp.epoch > old.epoch:
            last = max(old.last_seq, row.last_seq)
            return replace(row, last_seq=last, receipts=old.receipts + receipt)
        return row

    patch.setattr(_apply, "_continue_producer", keeping)


def equal_appends_are_stored_once(patch: pytest.MonkeyPatch) -> None:
    """Take a plain append with the payload of the one before for a repeat."""
    decide_plain = append._decide_plain
    last: dict[int, bytes] = {}

    def comparing(state: State, stream: Stream, command: Append) -> Any:
        batch, tail = command.batch, stream.tail.tail
        if command.producer is None and batch is not None:
            if last.get(stream.row.number) == batch.payload:
                outcome = append._appended(command, tail - batch.count, tail, is_closed=False)
                return Decision(outcome)
            last[stream.row.number] = batch.payload
        return decide_plain(state, stream, command)

    patch.setattr(append, "_decide_plain", comparing)


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


def if_match_may_be_older(patch: pytest.MonkeyPatch) -> None:
    """Accept an append whose `If-Match` names an offset before the end of the stream."""

    def lenient(stream: Stream, command: Append) -> Outcome | None:
        expected = command.if_match
        if expected is not None and expected < stream.tail.tail:
            command = replace(command, if_match=None)
        return check_content(stream, command)

    patch.setattr(append, "check_content", lenient)


# ---- transactions and sinks ----------------------------------------------------------------------


def transactions_have_ten_minutes(patch: pytest.MonkeyPatch) -> None:
    """Give a transaction that names no timeout ten minutes."""
    patch.setattr(begin, "TXN_TIMEOUT_MS_DEFAULT", _LONG_TIMEOUT_MS)


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
