"""Positions, row by row: who may move a group, and from where."""

import pytest

from semel.machine import apply
from semel.machine.events import TxnExtended as OldExtended
from semel.machine.events import TxnPrepared
from semel.machine.rows import NamedPosition, PositionRow
from semel.machine.state import Txn
from semel.machine.txn import views
from semel.model.commands import Delete, Metadata
from semel.model.limits import GROUPS_PER_STREAM_MAX
from semel.model.outcomes import LimitReached, Refusal
from semel.model.outcomes_txn import (
    BY_MOVE,
    CommitDone,
    ExtendDone,
    PositionConflict,
)
from tests.unit.machine.builders import create, reloaded, unchanged
from tests.unit.machine.position_stories import STORIES
from tests.unit.machine.position_words import (
    HELD_BY_U,
    MOVED_BY_Q,
    THREE,
    Expected,
    Story,
    held,
    move,
    name,
    once,
    sets,
    start,
    version_of,
)
from tests.unit.machine.test_txn_state import comparable
from tests.unit.machine.txn_builders import TxnMachine, abort, commit, prepare, txn_machine


@pytest.mark.parametrize("story", STORIES, ids=lambda story: f"{story.row}: {story.name}")
def test_a_row_of_the_table(story: Story) -> None:
    machine = txn_machine()
    for step in story.steps:
        if not isinstance(step, Expected):
            outcome = machine.execute(step)
            assert not isinstance(outcome, Refusal), (step, outcome)
        elif step.leaves_no_trace:
            assert unchanged(machine, machine.with_facts(step.command)) == step.outcome, step
        else:
            assert machine.execute(step.command) == step.outcome, step


# ---- stored positions ----------------------------------------------------------------------------


def row_of(machine: TxnMachine, path: str = "s", group: str = "g") -> PositionRow:
    positions = machine.stream(path).positions
    assert positions is not None
    return positions[group]


def test_a_move_of_any_kind_counts_and_has_its_mover() -> None:
    machine = txn_machine(*THREE, start(), name(move(1)), commit())
    assert row_of(machine) == PositionRow(1, 0, 1, (True, "p"))
    machine.execute(once(move(2), producer="p"))
    assert row_of(machine) == PositionRow(2, 0, 2, (True, "p"))
    machine.execute(version_of(1, move(3, 2)))
    assert row_of(machine) == PositionRow(3, 0, 3, (False, "app"))
    machine.execute(sets(move(3)))
    assert row_of(machine) == PositionRow(3, 0, 4, (False, "app"))
    assert machine.state.dirty.positions == {(1, "g"): row_of(machine)}


NOTE: Metadata = (("batch", 7), ("worker", "a"))
OTHER: Metadata = (("batch", 8),)


def test_every_move_replaces_the_metadata() -> None:
    machine = txn_machine(*THREE, sets(move(1, metadata=NOTE)))
    assert row_of(machine).metadata == NOTE
    machine.execute(sets(move(1)))
    assert row_of(machine).metadata == ()
    machine.execute(once(move(2, metadata=OTHER), producer="p"))
    assert row_of(machine).metadata == OTHER
    assert reloaded(machine.state).by_path["s"].positions == {"g": row_of(machine)}
    machine.execute(version_of(1, move(3, 2)))
    assert row_of(machine).metadata == ()
    both = sets(move(1, metadata=NOTE), move(1, group="h"))
    machine.execute(both)
    assert (row_of(machine).metadata, row_of(machine, group="h").metadata) == (NOTE, ())


def test_metadata_of_a_named_position_is_stored_by_the_commit_only() -> None:
    machine = txn_machine(*THREE, sets(move(1, metadata=NOTE)))
    machine.execute(start())
    machine.execute(name(move(2, 1, metadata=OTHER)))
    assert row_of(machine).metadata == NOTE
    assert machine.state.transactions["t"].row.metadata == (("g", 1, OTHER),)
    twin = reloaded(machine.state)
    assert twin.transactions["t"].row == machine.state.transactions["t"].row
    machine.execute(abort())
    assert row_of(machine).metadata == NOTE
    machine.execute(start())
    machine.execute(name(move(2, 1, metadata=OTHER), epoch=2))
    machine.execute(commit(epoch=2))
    assert row_of(machine).metadata == OTHER


def noted(machine: TxnMachine) -> tuple[tuple[str, int, Metadata], ...]:
    return machine.state.transactions["t"].row.metadata


def test_naming_again_replaces_the_metadata_and_a_repeat_changes_nothing() -> None:
    machine = txn_machine(*THREE, start(), name(move(1, metadata=NOTE)))
    row = machine.state.transactions["t"].row
    again = machine.with_facts(name(move(1, metadata=NOTE)))
    assert unchanged(machine, again) == ExtendDone("t", 1)
    machine.execute(name(move(1, metadata=OTHER)))
    assert machine.state.transactions["t"].row.positions == row.positions
    assert noted(machine) == (("g", 1, OTHER),)
    machine.execute(name(move(1)))
    assert noted(machine) == ()
    machine.execute(name(move(1, metadata=NOTE)))
    machine.execute(Delete("s", 0))
    assert noted(machine) == ()


def test_what_a_transaction_names_is_known_until_it_ends() -> None:
    machine = txn_machine(*THREE, start(), name(move(1, 0, version=0)), *HELD_BY_U)
    row = machine.state.transactions["t"].row
    assert row.positions == (NamedPosition("g", 1, 1, 0, 0, 0),)
    assert machine.state.named == {"g": {1: {1, 2}}}
    assert machine.stream().holds == {"g": 2}
    machine.execute(abort())
    assert machine.state.named == {"g": {1: {2}}}
    machine.execute(commit("u"))
    assert (machine.state.named, machine.stream().holds) == ({}, {})


def test_a_deleted_stream_leaves_what_was_named_as_lost() -> None:
    machine = txn_machine(*THREE, start(), name(move(0, path="r"), move(1, group="h"), move(1)))
    machine.execute(prepare())
    machine.execute(Delete("s", 0))
    row = machine.state.transactions["t"].row
    assert row.positions == (NamedPosition("g", 2, 0),)
    assert row.lost == (("g", "s"), ("h", "s"))
    assert row.deleted == ()
    assert machine.state.named == {"g": {2: {1}}}
    assert machine.stream("r").holds == {"g": 1}
    machine.execute(abort())
    assert not machine.state.named


def test_a_stream_knows_so_many_groups_and_those_of_a_call_take_their_room() -> None:
    machine = txn_machine(start())
    rows = {str(n): PositionRow(0, 0) for n in range(GROUPS_PER_STREAM_MAX - 1)}
    machine.stream().positions = rows
    limit = LimitReached("groups_per_stream", GROUPS_PER_STREAM_MAX)
    two = move(0, group="a"), move(0, group="b")
    assert unchanged(machine, name(*two)) == limit
    assert unchanged(machine, sets(*two)) == limit
    assert unchanged(machine, once(*two)) == limit
    again = move(0, group="a"), move(0, 0, group="a"), move(0, group="1")
    assert machine.execute(name(*again)) == ExtendDone("t", 2)
    rows["c"] = PositionRow(0, 0)
    assert unchanged(machine, name(move(0, group="b"))) == limit
    assert machine.execute(name(move(0, group="a"))) == ExtendDone("t", 2)


# ---- positions stored before versions existed ----------------------------------------------------


def old_names(machine: TxnMachine, txn: int, *moves: tuple[str, int, int]) -> None:
    """Apply a frame in the old format, without guards."""
    apply(machine.state, OldExtended(txn, (), moves), (), 0)


def test_a_transaction_of_before_has_a_guard_too() -> None:
    machine = txn_machine(*THREE, sets(move(1)), start())
    old_names(machine, 1, ("g", 1, 2), ("g", 2, 0))
    old_names(machine, 1, ("g", 1, 3))
    row = machine.state.transactions["t"].row
    assert row.positions == (NamedPosition("g", 1, 3, 1), NamedPosition("g", 2, 0, 0))
    machine.execute(sets(move(0)))
    conflict = PositionConflict("g", "s", 0, version=2, reason=BY_MOVE)
    assert unchanged(machine, commit()) == conflict


def test_of_two_prepared_before_there_were_holds_the_older_one_holds() -> None:
    machine = txn_machine(*THREE, start(), start("u", "q"), start("v", "x"))
    for number in (3, 2, 1):
        old_names(machine, number, ("g", 1, number))
    for number in (2, 1):
        apply(machine.state, TxnPrepared(number), (), 0)
    assert machine.stream().holds == {"g": 1}
    assert comparable(reloaded(machine.state)) == comparable(machine.state)
    machine.execute(commit())
    assert machine.stream().holds == {"g": 2}, "the next one gets the hold"
    assert unchanged(machine, sets(move(0))) == held("u")
    machine.execute(commit("u"))
    assert row_of(machine) == PositionRow(2, 0, 2, (True, "q"))
    assert unchanged(machine, commit("v")) == PositionConflict(
        "g", "s", 2, version=2, reason=BY_MOVE
    )


def test_a_row_of_before_is_at_version_0_without_a_mover() -> None:
    machine = txn_machine(*THREE, start("u", "q"))
    machine.stream().positions = {"g": PositionRow(2, 0)}
    machine.execute(name(move(3, version=0), txn="u"))
    assert isinstance(machine.execute(commit("u")), CommitDone)
    assert row_of(machine) == PositionRow(3, 0, 1, (True, "q"))


# ---- views ---------------------------------------------------------------------------------------


def test_a_group_is_shown_with_what_is_pending() -> None:
    machine = txn_machine(*THREE, *MOVED_BY_Q, sets(move(0, path="r")))
    machine.execute(start())
    machine.execute(name(move(3, 2)))
    state = machine.state
    in_r, in_s = {"r": PositionRow(0, 0, 1)}, {"s": PositionRow(2, 0, 1, (True, "q"))}
    pending = views.PendingView("s", "t", 1, views.OPEN, 3, 60_000)
    assert views.group_view(state, "g") == views.GroupView("g", {**in_r, **in_s}, (pending,))
    assert views.group_view(state, "g", stream="s").positions == in_s
    assert views.group_view(state, "g", stream="r") == views.GroupView("g", in_r, ())
    assert views.group_view(state, "g", stream="nope") == views.GroupView("g", {}, ())
    own = views.group_view(state, "g", stream="s", transaction="t")
    assert own == views.GroupView("g", in_s, ())


def test_a_view_of_a_group_does_not_change_with_the_state() -> None:
    machine = txn_machine(*THREE, *MOVED_BY_Q)
    view = views.group_view(machine.state, "g")
    machine.execute(sets(move(0), move(0, path="r")))
    assert view.positions == {"s": PositionRow(2, 0, 1, (True, "q"))}
    assert views.group_view(machine.state, "g").positions.keys() == {"r", "s"}


def test_the_moves_of_a_transaction_are_looked_at_once() -> None:
    """Otherwise the time would be in proportion to the square of the number of moves."""
    machine = txn_machine(*THREE, start(), name(move(1)), name(move(0, path="r")))
    dated: list[int] = []

    def dates(txn: Txn) -> views.TxnDates:
        dated.append(txn.row.number)
        return views.stored_dates(txn)

    view = views.group_view(machine.state, "g", dates=dates)
    assert [(move.path, move.to) for move in view.pending] == [("r", 0), ("s", 1)]
    assert len(dated) == 1


def test_who_holds_a_position_is_shown_before_who_names_it() -> None:
    machine = txn_machine(*THREE, start(), name(move(1)), start("v", "x"), name(move(3), txn="v"))
    (pending,) = views.group_view(machine.state, "g").pending
    assert (pending.id, pending.to, pending.state) == ("t", 1, views.OPEN)
    machine.execute(prepare("v"))
    assert views.group_view(machine.state, "g") == views.GroupView(
        "g", {}, (views.PendingView("s", "v", 1, views.PREPARED, 3, None),)
    )
    (pending,) = views.group_view(machine.state, "g", transaction="v").pending
    assert pending.id == "t"


def test_a_stream_that_ended_is_shown_as_deleted_under_a_transaction() -> None:
    machine = txn_machine(*THREE, start(), name(move(1)), Delete("s", 0), create("s", now=7))
    view = views.transaction(machine.state, "t")
    assert view is not None
    assert (view.positions, view.deleted) == ((), ("s",))
    assert views.group_view(machine.state, "g") == views.GroupView("g", {}, ())
