"""Server bugs that a run must detect, each with the anomalies that the checker reports for it."""

import importlib
from collections.abc import Callable, Collection, Iterator
from itertools import count
from typing import Any, Final

import pytest
from msgspec.structs import replace

from semel.broker import durable_view
from semel.broker.durable_view import BrokerReader
from semel.machine import commits, positions
from semel.machine.positions import move_positions
from semel.machine.rows import TailRow
from semel.machine.state import State, Stream, Txn, advance_tail, set_tail
from semel.machine.txn import apply_end, decide_end
from semel.machine.txn.decide_end import decide_abort_txn
from semel.machine.txn.draft import Draft
from semel.model.commands import COMMITTED, TXN_INLINE, AbortTxn, Batch, TxnOutcome
from semel.model.outcomes import Outcome, Refusal
from semel.server import event_stream

Mutant = Callable[[pytest.MonkeyPatch], None]
_SELDOM: Final = 10


def readers_do_not_wait_for_decisions(patch: pytest.MonkeyPatch) -> None:
    """Let readers read up to the tail, even if transactions are open."""

    def end_of(tail: TailRow, is_committed: bool) -> int:
        return tail.tail

    for module in (durable_view, event_stream):
        patch.setattr(module, "tail_of_view", end_of)


def readers_are_given_what_was_aborted(patch: pytest.MonkeyPatch) -> None:
    """Let readers read aborted messages."""

    def visible(
        self: BrokerReader, number: int, offset: int, end: int, *, is_committed: bool
    ) -> Iterator[tuple[int, int]]:
        yield offset, end

    patch.setattr(BrokerReader, "_visible", visible)


def a_commit_skips_a_stream(patch: pytest.MonkeyPatch) -> None:
    """Leave out the third append of a one-shot commit."""
    append = Draft.append

    def skipping(self: Draft, stream: Stream, batch: Batch) -> None:
        if len(self.sections) < 2:
            append(self, stream, batch)

    patch.setattr(Draft, "append", skipping)


def a_commit_is_written_as_an_abort(patch: pytest.MonkeyPatch) -> None:
    """Abort every tenth inline transaction whose commit is confirmed to the client.

    The frame of a staged transaction also contains the offsets of its chunks, so that such an abort
    would be an invalid frame.
    """
    end, number = Draft.end, count()

    def aborting(self: Draft, txn: Txn, *, is_committed: bool, reason: str = "") -> None:
        is_hit = txn.row.kind == TXN_INLINE and next(number) % _SELDOM == 0
        end(self, txn, is_committed=is_committed and not is_hit, reason=reason)

    patch.setattr(Draft, "end", aborting)


def an_abort_after_the_commit_counts(patch: pytest.MonkeyPatch) -> None:
    """Hide messages of a committed transaction after a late abort request."""
    hidden: dict[int, set[int]] = {}
    visible = BrokerReader._visible

    def deciding(state: State, command: AbortTxn) -> Any:
        found = command.remembered
        if isinstance(found, TxnOutcome) and found.decision == COMMITTED:
            for part in found.result.streams:
                number = state.by_path[part.path].row.number
                hidden.setdefault(number, set()).add(part.first_offset)
        return decide_abort_txn(state, command)

    def hiding(
        self: BrokerReader, number: int, offset: int, end: int, *, is_committed: bool
    ) -> Iterator[tuple[int, int]]:
        for first, last in visible(self, number, offset, end, is_committed=is_committed):
            for gap in sorted(hidden.get(number, ())):
                if is_committed and first <= gap < last:
                    if first < gap:
                        yield first, gap
                    first = gap + 1  # noqa: PLW2901 - after the gap
            if first < last:
                yield first, last

    deciders = importlib.import_module("semel.machine.decide")  # not the function
    patch.setitem(deciders._DECIDERS, AbortTxn, deciding)
    patch.setattr(BrokerReader, "_visible", hiding)


def a_repeated_commit_is_done_again(patch: pytest.MonkeyPatch) -> None:
    """Do not check the sequence of a one-shot commit."""
    patch.setattr(commits, "_check_producer", lambda state, command: None)


def positions_stay(patch: pytest.MonkeyPatch) -> None:
    """Move the positions of groups with only one of ten commits."""
    number = count()

    def forgetting(state: State, moves: Any, time_ms: int, *more: Any) -> None:
        if next(number) % _SELDOM == 0:
            move_positions(state, moves, time_ms, *more)

    patch.setattr(apply_end, "move_positions", forgetting)


def messages_are_seen_stream_by_stream(patch: pytest.MonkeyPatch) -> None:
    """Make the messages of every second stream visible one decision too late."""

    def late(state: State, stream: Stream, tail: int, time_ms: int) -> None:
        held = max(stream.tail.stable, stream.tail.tail)
        advance_tail(state, stream, tail, time_ms)
        if stream.row.number % 2:
            set_tail(state, stream, replace(stream.tail, stable=min(stream.tail.stable, held)))

    patch.setattr(apply_end, "advance_tail", late)


def commits_compare_no_guards(patch: pytest.MonkeyPatch) -> None:
    """Commit even if positions have moved since the transaction named them."""
    for module in (decide_end, commits):
        patch.setattr(module, "refuse_guards", lambda *_: None)


def what_is_prepared_holds_nothing(patch: pytest.MonkeyPatch) -> None:
    """Let others move the positions of a prepared transaction."""
    patch.setattr(positions, "refuse_held", lambda *_: None)


def what_is_prepared_is_compared_again(patch: pytest.MonkeyPatch) -> None:
    """Let others move the positions of a prepared transaction, and then refuse its commit."""
    refuse_closed, refuse_guards = decide_end.refuse_closed, positions.refuse_guards

    def refuse(state: State, txn: Txn) -> Outcome | None:
        refusal = refuse_closed(state, txn)
        return refuse_guards(state, txn) if refusal is None else refusal

    patch.setattr(positions, "refuse_held", lambda *_: None)
    patch.setattr(decide_end, "refuse_closed", refuse)


def a_position_is_dropped_with_its_stream(patch: pytest.MonkeyPatch) -> None:
    """Commit a transaction without its positions in streams that were deleted meanwhile."""
    refuse_guards = positions.refuse_guards

    def refuse(state: State, txn: Txn, ending: Collection[int] = ()) -> Refusal | None:
        kept = Txn(replace(txn.row, lost=()), txn.streams, txn.chunk_blocks)
        return refuse_guards(state, kept, ending)

    for module in (decide_end, commits):
        patch.setattr(module, "refuse_guards", refuse)


# Each bug, and the anomalies of which at least one must be reported.
MUTANTS: Final[tuple[tuple[Mutant, str], ...]] = (
    (readers_do_not_wait_for_decisions, "G1a|G1b"),
    (readers_are_given_what_was_aborted, "G1a"),
    (a_commit_skips_a_stream, "torn"),
    (a_commit_is_written_as_an_abort, "lost"),
    (an_abort_after_the_commit_counts, "torn|lost"),
    (a_repeated_commit_is_done_again, "duplicate"),
    (positions_stay, "torn"),
    (messages_are_seen_stream_by_stream, "torn|stale"),
)

# Bugs in the positions of shared groups. A run needs more worker transactions to detect them.
SHARED_MUTANTS: Final[tuple[tuple[Mutant, str], ...]] = (
    (commits_compare_no_guards, "double"),
    (what_is_prepared_holds_nothing, "double|position"),
    (what_is_prepared_is_compared_again, "position"),
    (a_position_is_dropped_with_its_stream, "double|position"),
)
