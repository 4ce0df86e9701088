"""What members and operators see of a group."""

import pytest

from semel.machine.group_views import (
    FREE,
    OWNED,
    REVOKING,
    UNSHARED,
    AssignedView,
    MemberView,
    group_names,
    has_group,
    member_view,
    share_view,
)
from semel.model.commands import PinSnapshot, SnapshotRange, Trim
from tests.unit.machine.builders import append, create
from tests.unit.machine.topic_builders import (
    TopicMachine,
    append_topic,
    expire,
    grow,
    join,
    leave,
    move,
    rebalance,
    release,
    set_positions,
    topic_machine,
)
from tests.unit.machine.txn_builders import begin, commit, publish


def machine_with(*commands: object) -> TopicMachine:
    """Return a machine with the topic t, the stream s with two messages, and the stream r."""
    first = (create("s"), create("r"), append(path="s"), append(path="s"))
    return topic_machine(*first, *commands)  # type: ignore[arg-type]


def view_of(machine: TopicMachine, member: str = "m1") -> MemberView:
    view = member_view(machine.state, "g", member)
    assert view is not None
    return view


# ---- groups --------------------------------------------------------------------------------------


def test_groups_are_those_with_positions_members_or_a_pinned_step() -> None:
    pin = PinSnapshot(0, "c", 1, (SnapshotRange("r", "i-r-0", 0, 0),), "x")
    machine = machine_with(set_positions(move("s", 1, group="b")), join("m", "s", group="a"), pin)
    assert group_names(machine.state) == ["a", "b", "c"]
    assert [has_group(machine.state, name) for name in "abcd"] == [True, True, True, False]
    assert share_view(machine.state, "d") is None
    pinned = share_view(machine.state, "c")
    assert pinned is not None
    assert (pinned.version, pinned.members, pinned.streams) == (0, (), ())


def test_a_group_shows_the_owner_the_position_and_the_end_of_each_stream() -> None:
    machine = machine_with(
        create("q"),
        append(path="q"),
        join("m1", "s", "r"),
        join("m2", "s"),
        set_positions(move("q", 1)),
        Trim("s", 0, 1),
        begin("x", streams=("s",)),
        publish(0, txn="x", path="s"),
    )
    shown = share_view(machine.state, "g")
    assert shown is not None
    assert (shown.group, shown.version) == ("g", 2)
    assert [member.id for member in shown.members] == ["m1", "m2"]
    facts = [
        (view.path, view.owner, view.epoch, view.phase, view.position, view.version)
        for view in shown.streams
    ]
    assert facts == [
        ("q", None, 0, UNSHARED, 1, 1),
        ("r", "m1", 1, OWNED, 0, 0),
        ("s", "m1", 1, REVOKING, 0, 0),
    ]
    stream = shown.streams[-1]
    assert (stream.head, stream.end, stream.controls, stream.starts) == (1, 2, 0, 0)
    machine.execute(commit("x"))
    machine.execute(leave("m1"))
    machine.execute(leave("m2"))
    later = share_view(machine.state, "g")
    assert later is not None
    stream = later.streams[-1]
    assert (stream.owner, stream.phase, stream.epoch) == (None, FREE, 2)
    assert (stream.end, stream.controls) == (4, 1)


# ---- members -------------------------------------------------------------------------------------


def test_a_member_sees_its_streams_with_all_it_needs_to_read_them() -> None:
    machine = machine_with(join("m0", "s"), expire("m0"), join("m1", "s", "r"))
    machine.execute(set_positions(move("r", 0, "m1", 1)))
    view = view_of(machine)
    assert view.group == "g"
    assert view.member.id == "m1"
    assert view.assigned == (
        AssignedView("r", "i-r-0", 1, 0, 1, 0, None),
        AssignedView("s", "i-s-0", 2, 0, 0, 1, None),
    )
    assert view.release == ()


def test_a_member_sees_what_it_must_release() -> None:
    machine = machine_with(join("m1", "s", "r"), join("m2", "s", "r"))
    view = view_of(machine)
    assert len(view.assigned) == 2
    (path,) = view.release
    assert view_of(machine, "m2").assigned == ()
    machine.execute(release("m1", path))
    assert view_of(machine).release == ()
    assert [each.path for each in view_of(machine, "m2").assigned] == [path]


@pytest.mark.parametrize(("group", "member"), [("g", "m9"), ("h", "m1")])
def test_there_is_no_view_of_a_member_that_is_not_there(group: str, member: str) -> None:
    machine = machine_with(join("m1", "s"))
    assert member_view(machine.state, group, member) is None


def test_the_signature_changes_with_streams_and_epochs_and_not_with_positions() -> None:
    machine = machine_with(join("m1", "s", "r"))
    first = view_of(machine).signature
    machine.execute(set_positions(move("s", 1, "m1", 1)))
    assert view_of(machine).signature == first
    machine.execute(join("m2", "s", "r"))
    second = view_of(machine).signature
    machine.execute(release("m1", *view_of(machine).release))
    third = view_of(machine).signature
    machine.execute(release("m1", *(each.path for each in view_of(machine).assigned)))
    assert len({first, second, third, view_of(machine).signature}) == 4


def test_starts_are_zero_once_the_position_has_moved() -> None:
    machine = machine_with(join("m0", "s"), expire("m0"), join("m1", "s"))
    assert [each.starts for each in view_of(machine).assigned] == [1]
    machine.execute(set_positions(move("s", 1, "m1", 2)))
    assert [each.starts for each in view_of(machine).assigned] == [0]
    shown = share_view(machine.state, "g")
    assert shown is not None
    assert shown.streams[0].starts == 0


# ---- topics that have grown ----------------------------------------------------------------------


def limits_of(machine: TopicMachine) -> dict[str, int | None]:
    return {each.path: each.limit for each in view_of(machine).assigned}


def test_messages_after_a_growth_are_read_when_all_before_it_have_been() -> None:
    machine = topic_machine(create("s"), partitions=2)
    for partition in (0, 0, 1):
        machine.execute(append_topic((b"k", b"1"), partition=partition))
    machine.execute(join("m1", "s", topics=("t",)))
    assert set(limits_of(machine).values()) == {None}
    before = view_of(machine).signature
    machine.execute(grow(partitions=3, moves=True))
    assert view_of(machine).signature != before
    assert limits_of(machine) == {"s": None, "t/0": 2, "t/1": 1}
    machine.execute(set_positions(move("t/0", 2, "m1", 1)))
    # All that comes after the growth in t/1 may be read: nothing before it is left elsewhere.
    assert limits_of(machine) == {"s": None, "t/0": 2, "t/1": None}
    machine.execute(set_positions(move("t/1", 1, "m1", 1)))
    assert limits_of(machine) == {"s": None, "t/0": None, "t/1": None}


def test_each_growth_is_passed_before_the_next_one() -> None:
    machine = topic_machine(join("m1", topics=("t",)), partitions=1)
    machine.execute(append_topic((b"k", b"1")))
    machine.execute(grow(partitions=2, moves=True))
    machine.execute(append_topic((b"k", b"1"), partition=1))
    machine.execute(grow(partitions=3, moves=True))
    machine.execute(rebalance())
    assert limits_of(machine) == {"t/0": 1, "t/1": 0, "t/2": 0}
    machine.execute(set_positions(move("t/0", 1, "m1", 1)))
    assert limits_of(machine) == {"t/0": 1, "t/1": None, "t/2": 0}
    machine.execute(set_positions(move("t/1", 1, "m1", 1)))
    assert limits_of(machine) == dict.fromkeys(("t/0", "t/1", "t/2"))


def test_messages_that_were_trimmed_need_not_be_read() -> None:
    machine = topic_machine(join("m1", topics=("t",)), partitions=1)
    machine.execute(append_topic((b"k", b"1")))
    machine.execute(grow(partitions=2, moves=True))
    machine.execute(rebalance())
    assert limits_of(machine)["t/1"] == 0
    machine.execute(Trim("t/0", 0, 1))
    assert set(limits_of(machine).values()) == {None}
