"""Seeded bugs in transactions: each breaks one promise on purpose."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from semel.broker import broker as broker_module
from semel.broker import durable_view, lookups
from semel.broker.endings import Endings
from semel.broker.timers import Deadlines
from semel.journal import checkpoint, frame
from semel.journal.index import Index
from semel.journal.txn_history import TxnHistoryCut, put_txn_history
from semel.machine import append, commits, positions
from semel.machine import state as state_module
from semel.machine.events import Decided, Ended
from semel.machine.pending import mark_open_in
from semel.machine.positions import move_positions
from semel.machine.rows import AbortedRow, OutcomeRow
from semel.machine.state import State, Stream, Txn
from semel.machine.txn import apply_end, apply_open, lookup
from semel.machine.txn.decide_end import deadline_of, timeout_of
from semel.machine.txn.draft import EXTENT_BYTES, Draft
from semel.model.commands import Append
from tests.sim.mutants_positions import POSITION_MUTANTS

Mutant = Callable[[], Any]


def forget_a_marker() -> Any:
    """A commit omits the control record of one stream."""
    real = Draft.end

    def end(self: Draft, txn: Txn, **how: Any) -> None:
        real(self, txn, **how)
        ended = self.ended[-1]
        if ended.is_committed and ended.markers:
            self.sections.pop()
            number, _ = ended.markers[-1]
            self._tails[number] -= 1
            self.ended[-1] = replace(ended, markers=ended.markers[:-1])

    return patch.object(Draft, "end", end)


def write_half_a_decision() -> Any:
    """A decision frame omits its last extent: after a crash the commit is partial."""
    real = frame.encode_meta

    def encode(event: Any) -> bytes:
        if isinstance(event, Decided) and len(event.extents) > EXTENT_BYTES:
            event = replace(event, extents=event.extents[:-EXTENT_BYTES])
        return real(event)

    return patch.object(broker_module, "encode_meta", encode)


def decide_one_stream_at_a_time() -> Any:
    """Readers see the end of a transaction stream by stream."""
    real = state_module.advance_tail

    def advance_tail(state: State, stream: Stream, tail: int, time_ms: int) -> None:
        held = stream.tail.stable
        real(state, stream, tail, time_ms)
        if stream.row.number % 2 and stream.open is not None and held < stream.tail.stable:
            stream.tail = replace(stream.tail, stable=held)

    return patch.object(apply_end, "advance_tail", advance_tail)


def overlook_an_open_transaction() -> Any:
    """The stable offset ignores open transactions."""
    return patch.object(state_module, "stable_of", lambda stream, tail: tail)


def let_the_second_hold_nothing_up() -> Any:
    """Only the first open transaction in a stream limits its stable offset."""

    def open_first(stream: Stream, txn_number: int, first: int) -> None:
        if not stream.open:
            mark_open_in(stream, txn_number, first)

    return patch.object(apply_open, "mark_open_in", open_first)


def lose_aborted_offsets_at_a_checkpoint() -> Any:
    """A checkpoint does not store aborted ranges."""
    return _patched_memory(lambda memory: TxnHistoryCut(memory.outcomes, {}))


def lose_outcomes_at_a_checkpoint() -> Any:
    """A checkpoint does not store transaction outcomes."""
    return _patched_memory(lambda memory: TxnHistoryCut({}, memory.aborted))


def let_a_late_call_end_the_next_transaction() -> Any:
    """The transaction epoch of a call is not compared."""
    real = lookup.find_txn

    def find(state: State, named: Any) -> Any:
        txn = state.transactions.get(named.id)
        return real(state, named) if txn is None else txn

    return patch.object(lookup, "find_txn", find)


def take_the_receipts_of_another_transaction() -> Any:
    """A sequence of the previous transaction counts as a duplicate in the next one."""
    real = append._decide_inline

    def decide(state: State, txn: Txn, stream: Stream, command: Append) -> Any:
        tag = command.producer
        row = None if tag is None or not stream.producers else stream.producers.get(tag.id)
        if tag is None or row is None or stream.producers is None:
            return real(state, txn, stream, command)
        with patch.dict(stream.producers, {tag.id: replace(row, txn=txn.row.number)}):
            return real(state, txn, stream, command)

    return patch.object(append, "_decide_inline", decide)


def unlink_the_segment_of_a_chunk() -> Any:
    """The segments of chunks are removed although their transaction is open."""
    return patch.object(checkpoint, "_held_segments", lambda cut: set())


def move_positions_without_the_commit() -> Any:
    """An abort moves the positions too."""
    real = apply_end._end

    def end(
        state: State, ended: Ended, extents: Any, time_ms: int, aborted: list[AbortedRow]
    ) -> OutcomeRow:
        txn = state.by_txn[ended.txn]
        outcome = real(state, ended, extents, time_ms, aborted)
        if not ended.is_committed:
            moves = [(named.group, named.stream, named.to) for named in txn.row.positions]
            move_positions(state, moves, time_ms)
        return outcome

    return patch.object(apply_end, "_end", end)


def move_in_a_stream_made_anew() -> Any:
    """The incarnation of a move is not compared."""
    return patch.object(positions, "_refuse_incarnation", lambda *_: None)


def commit_a_version_twice() -> Any:
    """A sink's version is not compared with the last one."""
    return patch.object(commits, "check_version", lambda state, tag: None)


def commit_a_sequence_twice() -> Any:
    """The sequence of a one-shot commit is not checked."""
    return patch.object(commits, "_check_producer", lambda state, command: None)


def show_control_records() -> Any:
    """Readers get control records."""
    return patch.object(durable_view, "SECTION_CONTROL", -1)


def never_time_out() -> Any:
    """Transactions never time out."""
    return patch.object(Deadlines, "is_due", lambda self, txn: False)


@contextmanager
def time_out_by_frame_time() -> Iterator[None]:
    """Timeouts are measured in frame time, which one wrong time stops for years."""
    sweep, end_txn = Endings.sweep, Endings.end_txn
    frame_ms = [0]

    def sweep_at(self: Endings, now_ms: int, count_max: int) -> int:
        frame_ms[0] = self._state.frame_time(now_ms)
        return sweep(self, now_ms, count_max)

    def end_at(self: Endings, txn: Txn, now_ms: int) -> bool:
        frame_ms[0] = self._state.frame_time(now_ms)
        return end_txn(self, txn, now_ms)

    def elapsed(_self: Deadlines, txn: Txn) -> int:
        due_ms, timeout_ms = deadline_of(txn), timeout_of(txn)
        return 0 if due_ms is None or timeout_ms is None else frame_ms[0] - (due_ms - timeout_ms)

    with (
        patch.object(Endings, "sweep", sweep_at),
        patch.object(Endings, "end_txn", end_at),
        patch.object(Deadlines, "elapsed_ms", elapsed),
    ):
        yield


def let_zombies_live() -> Any:
    """A raised epoch does not abort the transactions of older ones."""
    return patch.object(Draft, "fence", lambda self, producer_id, epoch, **_: None)


def forget_how_it_ended() -> Any:
    """Transaction outcomes are not looked up."""

    def find(self: Any, txn_id: str, epoch: int) -> tuple[None, int]:
        return None, 0

    return patch.object(lookups.Lookups, "find_outcome", find)


def show_chunks_that_are_not_indexed() -> Any:
    """Readers can see the chunks of a commit before all of them are in the index."""
    return patch.object(Index, "catch_up_with_all", lambda self: None)


def place_a_chunk_twice() -> Any:
    """A commit gives offsets to each chunk twice."""
    real = Draft.place_chunks

    def place(self: Draft, txn: Txn) -> None:
        real(self, txn)
        real(self, txn)

    return patch.object(Draft, "place_chunks", place)


def _patched_memory(change: Callable[[TxnHistoryCut], TxnHistoryCut]) -> Any:
    def put(tables: Any, memory: TxnHistoryCut, *rest: Any) -> None:
        put_txn_history(tables, change(memory), *rest)

    return patch.object(checkpoint, "put_txn_history", put)


TXN_MUTANTS: tuple[Mutant, ...] = (
    forget_a_marker,
    write_half_a_decision,
    decide_one_stream_at_a_time,
    overlook_an_open_transaction,
    let_the_second_hold_nothing_up,
    lose_aborted_offsets_at_a_checkpoint,
    lose_outcomes_at_a_checkpoint,
    let_a_late_call_end_the_next_transaction,
    take_the_receipts_of_another_transaction,
    unlink_the_segment_of_a_chunk,
    move_positions_without_the_commit,
    move_in_a_stream_made_anew,
    commit_a_version_twice,
    commit_a_sequence_twice,
    show_control_records,
    never_time_out,
    time_out_by_frame_time,
    let_zombies_live,
    forget_how_it_ended,
    show_chunks_that_are_not_indexed,
    place_a_chunk_twice,
    *POSITION_MUTANTS,
)
