"""Who may move a position in a group that shares work: table G of `docs/reference/groups.md`."""

import pytest
from msgspec.structs import replace

from semel.machine.events import (
    PositionsNamed,
    PositionsNamedByMembers,
    PositionsNamedWithMetadata,
)
from semel.machine.rows import NamedPosition
from semel.model.commands import AddPositions, Commit, PositionMove
from semel.model.group_commands import JoinGroup
from semel.model.outcomes import InvalidRequest, Refusal
from semel.model.outcomes_groups import GroupIsShared, IllegalGeneration
from semel.model.outcomes_txn import (
    BY_GROWTH,
    CommitDone,
    ExtendDone,
    PositionConflict,
    PositionsSet,
)
from tests.unit.machine.builders import append, create, reloaded, unchanged
from tests.unit.machine.topic_builders import (
    TopicMachine,
    append_topic,
    expire,
    grow,
    join,
    leave,
    move,
    release,
    set_positions,
    topic_machine,
)
from tests.unit.machine.txn_builders import begin, by, commit, one_shot, prepare


def shared(*commands: object) -> TopicMachine:
    """Return a machine in which m1 owns s at epoch 1, and the group has read nothing."""
    first = (create("s"), create("r"), append(path="s"), append(path="s"), join("m1", "s", "r"))
    return topic_machine(*first, *commands)  # type: ignore[arg-type]


def naming(*moves: PositionMove, txn: str = "x") -> AddPositions:
    return AddPositions(0, txn, 1, positions=moves)


def one_shot_with(*moves: PositionMove, seq: int = 0) -> Commit:
    return one_shot(("r", b"out"), seq=seq, positions=moves)


def position(machine: TopicMachine, path: str = "s", group: str = "g") -> int:
    rows = machine.stream(path).positions or {}
    return rows[group].offset if group in rows else 0


def refused(machine: TopicMachine, *moves: PositionMove) -> set[object]:
    """Return the refusals of moves: alone, in a one-shot commit, and named by a transaction."""
    machine.execute(begin("other", by("q"), streams=("r",)))
    commands = (set_positions(*moves), one_shot_with(*moves), naming(*moves, txn="other"))
    outcomes = {unchanged(machine, command) for command in commands}
    assert all(isinstance(outcome, Refusal) for outcome in outcomes)
    return outcomes  # type: ignore[return-value]


# ---- G1: the owner -------------------------------------------------------------------------------


def test_the_owner_moves_its_position() -> None:
    machine = shared(begin("x", streams=("r",)))
    assert machine.execute(set_positions(move("s", 1, "m1", 1))) == PositionsSet((1,))
    moved = one_shot_with(move("s", 2, "m1", 1, expected=1))
    assert isinstance(machine.execute(moved), CommitDone)
    named = naming(move("s", 1, "m1", 1, expected=2))
    assert machine.execute(named) == ExtendDone("x", 1)
    assert isinstance(machine.execute(commit("x")), CommitDone)
    assert position(machine) == 1


def test_the_rules_of_positions_hold_for_the_owner_too() -> None:
    machine = shared()
    conflict = unchanged(machine, set_positions(move("s", 1, "m1", 1, expected=2)))
    assert isinstance(conflict, PositionConflict)


def test_the_owner_may_move_what_it_must_release() -> None:
    machine = shared(join("m2", "s"))
    number = machine.stream("s").row.number
    assert machine.state.shares["g"].streams[number].is_revoking
    assert machine.execute(set_positions(move("s", 1, "m1", 1))) == PositionsSet((1,))


def test_the_owner_does_not_move_past_a_growth_of_the_topic_before_its_time() -> None:
    machine = topic_machine(create("r"), join("m1", topics=("t",)), partitions=2)
    for partition in (0, 1):
        machine.execute(append_topic((b"k", b"1"), partition=partition))
    machine.execute(grow(partitions=3, moves=True))
    machine.execute(append_topic((b"k", b"2"), partition=0))
    (refusal,) = refused(machine, move("t/0", 2, "m1", 1))
    assert isinstance(refusal, PositionConflict)
    assert refusal.reason == BY_GROWTH
    assert machine.execute(set_positions(move("t/0", 1, "m1", 1))) == PositionsSet((1,))
    assert machine.execute(set_positions(move("t/1", 1, "m1", 1))) == PositionsSet((1,))
    assert machine.execute(set_positions(move("t/0", 2, "m1", 1))) == PositionsSet((2,))


def test_moves_in_several_partitions_pass_a_growth_one_decision_later() -> None:
    machine = topic_machine(join("m1", topics=("t",)), partitions=2)
    for partition in (0, 1):
        machine.execute(append_topic((b"k", b"1"), partition=partition))
    machine.execute(grow(partitions=3, moves=True))
    machine.execute(append_topic((b"k", b"2"), partition=0))
    both = move("t/0", 1, "m1", 1), move("t/1", 1, "m1", 1)
    too_far = machine.execute(set_positions(both[1], move("t/0", 2, "m1", 1)))
    assert isinstance(too_far, PositionConflict), "the limits are those before the decision"
    assert machine.execute(set_positions(*both)) == PositionsSet((1, 1))
    assert machine.execute(set_positions(move("t/0", 2, "m1", 1))) == PositionsSet((2,))


@pytest.mark.parametrize(
    ("other", "is_refused"),
    [
        (join("m2", "r"), False),
        (join("m2", "t/1"), True),
        (join("m2", topics=("t",)), True),
        (join("m2", patterns=("t/*",)), True),
        (join("m2", patterns=("r/*",)), False),
    ],
)
def test_a_growth_is_passed_in_the_partitions_that_the_group_shares(
    other: JoinGroup, is_refused: bool
) -> None:
    machine = topic_machine(create("r"), join("m1", "t/0"), partitions=2)
    for partition in (0, 1):
        machine.execute(append_topic((b"k", b"1"), partition=partition))
    machine.execute(grow(partitions=3, moves=True))
    machine.execute(append_topic((b"k", b"2"), partition=0))
    machine.execute(other)
    machine.execute(leave("m2"))  # it may come back
    outcome = machine.execute(set_positions(move("t/0", 2, "m1", 1)))
    if is_refused:
        assert isinstance(outcome, PositionConflict)
        machine.execute(set_positions(move("t/1", 1), operator=True))
        outcome = machine.execute(set_positions(move("t/0", 2, "m1", 1)))
    assert outcome == PositionsSet((1,))


# ---- G2, G3: another owner, or none --------------------------------------------------------------


def test_a_member_that_has_lost_the_stream_moves_nothing() -> None:
    machine = shared(expire("m1"), join("m2", "s", "r"))
    old = IllegalGeneration("g", "s", 2, 1)
    assert refused(machine, move("s", 1, "m1", 1)) == {old}
    assert refused(machine, move("s", 1, "m2", 1)) == {old}
    newer = IllegalGeneration("g", "s", 2, 3)
    assert refused(machine, move("s", 1, "m2", 3)) == {newer}
    assert position(machine) == 0


def test_nobody_moves_the_position_in_a_free_stream_as_a_member() -> None:
    machine = shared(leave("m1"))
    free = IllegalGeneration("g", "s", 1, 1)
    assert refused(machine, move("s", 1, "m1", 1)) == {free}
    assert machine.execute(set_positions(move("s", 1))) == PositionsSet((1,))


def test_a_stream_that_is_not_shared_has_no_owner() -> None:
    machine = shared(create("q"), append(path="q"))
    unknown = IllegalGeneration("g", "q", 0, 1)
    assert refused(machine, move("q", 1, "m1", 1)) == {unknown}
    alone = IllegalGeneration("h", "s", 0, 1)
    assert refused(machine, move("s", 1, "m1", 1, group="h")) == {alone}
    assert machine.execute(set_positions(move("q", 1))) == PositionsSet((1,))
    assert machine.execute(set_positions(move("s", 1, group="h"))) == PositionsSet((1,))


def test_one_stream_that_is_lost_does_not_disturb_the_others() -> None:
    machine = shared(append(path="r"), join("m2", "s", "r"))
    numbers = {path: machine.stream(path).row.number for path in ("s", "r")}
    rows = machine.state.shares["g"].streams
    (lost,) = [path for path, number in numbers.items() if rows[number].is_revoking]
    kept = "r" if lost == "s" else "s"
    machine.execute(release("m1", lost))
    assert machine.execute(set_positions(move(kept, 1, "m1", 1))) == PositionsSet((1,))
    assert refused(machine, move(lost, 1, "m1", 1)) == {IllegalGeneration("g", lost, 2, 1)}
    both = set_positions(move(kept, 0, "m1", 1), move(lost, 1, "m1", 1))
    assert unchanged(machine, both) == IllegalGeneration("g", lost, 2, 1)
    assert position(machine, kept) == 1


# ---- G4, G5: without a member --------------------------------------------------------------------


def test_who_is_no_member_moves_nothing_that_a_member_owns() -> None:
    machine = shared()
    assert refused(machine, move("s", 1)) == {GroupIsShared("g", "s")}


def test_an_operator_moves_everything_and_defeats_what_was_named() -> None:
    machine = shared(begin("x", streams=("r",)), naming(move("s", 2, "m1", 1)))
    assert machine.execute(set_positions(move("s", 1), operator=True)) == PositionsSet((1,))
    assert isinstance(unchanged(machine, commit("x")), PositionConflict)


def test_an_operator_with_a_member_is_checked_like_one() -> None:
    machine = shared()
    wrong = set_positions(move("s", 1, "m1", 2), operator=True)
    assert unchanged(machine, wrong) == IllegalGeneration("g", "s", 1, 2)


def test_a_transaction_from_before_the_group_had_members_is_refused() -> None:
    machine = topic_machine(
        create("s"), create("r"), append(path="s"), begin("x", streams=("r",)), naming(move("s", 1))
    )
    machine.execute(join("m1", "s"))
    assert unchanged(machine, commit("x")) == GroupIsShared("g", "s")


# ---- G6, G7: transactions ------------------------------------------------------------------------


@pytest.mark.parametrize("ending", [commit("x"), prepare("x")])
@pytest.mark.parametrize("loss", [expire("m1"), leave("m1"), release("m1", "s")])
def test_a_transaction_of_a_member_that_lost_the_stream_is_refused_at_its_end(
    ending: object, loss: object
) -> None:
    machine = shared(begin("x", streams=("r",)), naming(move("s", 1, "m1", 1)), loss)
    if loss != release("m1", "s"):
        machine.execute(join("m2", "s", "r"))
    outcome = unchanged(machine, ending)  # type: ignore[arg-type]
    assert outcome == IllegalGeneration("g", "s", 2, 1)
    assert position(machine) == 0


def test_a_prepared_transaction_is_never_compared_again() -> None:
    machine = shared(begin("x", streams=("r",)), naming(move("s", 1, "m1", 1)), prepare("x"))
    machine.execute(expire("m1"))
    assert isinstance(machine.execute(commit("x")), CommitDone)
    assert position(machine) == 1


def test_naming_again_needs_the_owner_again() -> None:
    machine = shared(begin("x", streams=("r",)), naming(move("s", 1, "m1", 1)))
    assert unchanged(machine, naming(move("s", 1, "m1", 1))) == ExtendDone("x", 1)
    assert machine.execute(naming(move("s", 2, "m1", 1))) == ExtendDone("x", 1)
    (named,) = machine.state.transactions["x"].row.positions
    assert named == NamedPosition(
        "g", machine.stream("s").row.number, 2, member="m1", member_epoch=1
    )
    assert unchanged(machine, naming(move("s", 2))) == GroupIsShared("g", "s")


# ---- what is stored ------------------------------------------------------------------------------


def test_the_event_stores_members_only_if_there_are_some() -> None:
    machine = shared(begin("x", streams=("r",)))
    mine, free = move("s", 1, "m1", 1), move("s", 1, group="h")
    noted = replace(free, group="i", metadata=(("k", "v"),))
    expected = {
        (free,): PositionsNamed,
        (noted,): PositionsNamedWithMetadata,
        (mine,): PositionsNamedByMembers,
        (mine, noted): PositionsNamedByMembers,
    }
    for moves, kind in expected.items():
        decided = shared(begin("x", streams=("r",)))
        decided.execute(naming(*moves))
        event = decided.journal[-1].event
        assert type(event) is kind
        row = decided.state.transactions["x"].row
        members = {(each.group, each.member, each.member_epoch) for each in row.positions}
        assert members == {(each.group, each.member, each.member_epoch) for each in moves}
        assert row == reloaded(decided.state).transactions["x"].row
        assert [note for _, _, note in row.metadata] == [m.metadata for m in moves if m.metadata]
    assert machine.state.transactions["x"].row.positions == ()


@pytest.mark.parametrize(
    "change",
    [{"member": None}, {"member_epoch": None}, {"member": ""}, {"member_epoch": -1}],
)
def test_a_move_has_a_member_and_an_epoch_or_neither(change: dict[str, object]) -> None:
    wrong = replace(move("s", 1, "m1", 1), **change)
    assert unchanged(shared(), set_positions(wrong)) == InvalidRequest("member")
