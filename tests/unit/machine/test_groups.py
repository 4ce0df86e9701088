"""Groups: their positions, and what their next step reads."""

from msgspec.structs import replace

from semel.machine.rows import PositionRow
from semel.model.commands import (
    AddPositions,
    Delete,
    PinSnapshot,
    PositionMove,
    SetPositions,
    SnapshotRange,
)
from semel.model.limits import SNAPSHOTS_MAX
from semel.model.outcomes import LimitReached, NotFound, OffsetBeyondTail
from semel.model.outcomes_txn import (
    BY_INCARNATION,
    BY_OFFSET,
    IncarnationConflict,
    Pinned,
    PositionConflict,
    PositionsSet,
    SnapshotConflict,
    StreamRefused,
)
from tests.unit.machine.builders import append, create, fork, unchanged
from tests.unit.machine.txn_builders import begin, one_shot, txn_machine


def moves(*positions: PositionMove) -> SetPositions:
    return SetPositions(0, positions)


def test_positions_move_all_or_none() -> None:
    machine = txn_machine(append())
    both = moves(PositionMove("g", "s", 1), PositionMove("g", "r", 0))
    assert machine.execute(both) == PositionsSet((1, 1))
    refusal = unchanged(machine, moves(PositionMove("g", "r", 0), PositionMove("g", "s", 0, 0)))
    assert refusal == PositionConflict("g", "s", 1, version=1, reason=BY_OFFSET)
    beyond = StreamRefused("s", OffsetBeyondTail(1))
    assert unchanged(machine, moves(PositionMove("g", "s", 2))) == beyond
    assert unchanged(machine, moves(PositionMove("g", "x", 0))) == StreamRefused("x", NotFound())
    assert machine.execute(moves(PositionMove("g", "s", 0, 1))) == PositionsSet((2,))


def test_a_position_goes_with_its_stream() -> None:
    machine = txn_machine(append(), moves(PositionMove("g", "s", 1), PositionMove("g", "r", 0)))
    machine.execute(fork("f"))
    machine.execute(Delete("s", 0))
    assert machine.state.groups == {"g": {"r": PositionRow(0, 0, 1)}}
    assert machine.stream().positions is None
    machine.execute(Delete("r", 0))
    assert not machine.state.groups


def test_a_position_read_in_another_stream_of_the_path_is_refused() -> None:
    machine = txn_machine(append(), moves(PositionMove("g", "s", 1, None, "i-s-0")))
    machine.execute(Delete("s", 0))
    machine.execute(create("s", now=7))
    machine.execute(append())
    incarnation = machine.stream().row.incarnation
    assert incarnation != "i-s-0"
    # In the new stream the group is at 0, as it was at first in the old stream.
    refusal = unchanged(machine, moves(PositionMove("g", "s", 1, 0, "i-s-0")))
    assert refusal == PositionConflict("g", "s", 0, incarnation, 0, None, BY_INCARNATION)
    machine.execute(moves(PositionMove("g", "s", 1, 0, incarnation)))
    conflict = PositionConflict("g", "s", 1, incarnation, 1, None, BY_INCARNATION)
    old = PositionMove("g", "s", 1, None, "i-s-0")
    assert unchanged(machine, moves(old)) == conflict
    machine.execute(begin())
    added = AddPositions(0, "t", 1, positions=(old,))
    assert unchanged(machine, added) == conflict
    one = one_shot(("r", b"a"), positions=(old,))
    assert unchanged(machine, one) == conflict


RANGE = SnapshotRange("s", "i-s-0", 0, 5)


def pin(number: int, *ranges: SnapshotRange, digest: str = "h") -> PinSnapshot:
    return PinSnapshot(0, "g", number, ranges, digest)


def test_the_first_pin_of_a_step_wins() -> None:
    machine = txn_machine()
    assert machine.execute(pin(4, RANGE)) == Pinned(4, (RANGE,), "h", is_new=True)
    first = Pinned(4, (RANGE,), "h", is_new=False)
    assert unchanged(machine, pin(4, digest="other")) == first
    assert unchanged(machine, pin(6)) == SnapshotConflict(4)
    assert unchanged(machine, pin(3)) == SnapshotConflict(4)
    assert machine.execute(pin(5)) == Pinned(5, (), "h", is_new=True)


def test_a_step_reads_streams_that_are_there() -> None:
    machine = txn_machine()
    other = replace(RANGE, incarnation="other")
    assert unchanged(machine, pin(0, other)) == IncarnationConflict("s", "i-s-0")
    missing = replace(RANGE, path="x")
    assert unchanged(machine, pin(0, RANGE, missing)) == StreamRefused("x", NotFound())


def test_there_is_an_end_to_groups_that_pin() -> None:
    machine = txn_machine()
    known = dict.fromkeys(map(str, range(SNAPSHOTS_MAX)))
    machine.state.snapshots.update(known)  # type: ignore[arg-type]
    assert unchanged(machine, pin(0)) == LimitReached("snapshots", SNAPSHOTS_MAX)
