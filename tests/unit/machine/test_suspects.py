"""Crashes of members that say which message they process alone, and of those that do not."""

from msgspec.structs import replace

from semel.model.group_commands import ExpireMember
from semel.model.outcomes_groups import Joined, Left
from tests.unit.machine.builders import append, create
from tests.unit.machine.topic_builders import (
    TopicMachine,
    expire,
    join,
    move,
    set_positions,
    take,
    topic_machine,
)

PATHS = ("s0", "s1", "s2")


def machine() -> TopicMachine:
    """Return a machine with three streams, of which the last one is empty."""
    made = [create(path) for path in PATHS]
    return topic_machine(*made, append(path="s0"), append(path="s0"), append(path="s1"))


def crash(member: str, *suspects: str) -> ExpireMember:
    """Return the end of a member that has said what it processed alone."""
    return replace(expire(member), suspects=suspects)


def starts_after(found: TopicMachine, *crashes: ExpireMember) -> list[int]:
    """Let one member after another crash, and return the crashes that are counted at the end."""
    for end in crashes:
        assert found.execute(join(end.member, *PATHS)) == Joined("g", end.member)
        assert found.execute(end) == Left()
    rows = found.state.shares["g"].streams
    return [rows[found.state.by_path[path].row.number].starts for path in PATHS]


def test_the_first_crash_counts_for_each_stream_in_which_something_is_left_to_read() -> None:
    assert starts_after(machine(), crash("m1")) == [1, 1, 0]
    assert starts_after(machine(), crash("m1", "s1")) == [1, 1, 0]


def test_later_crashes_count_only_for_the_message_that_was_processed_alone() -> None:
    ends = [crash("m1"), crash("m2", "s0"), crash("m3"), crash("m4", "s0"), crash("m5", "s2")]
    assert starts_after(machine(), *ends) == [3, 1, 0]


def test_each_crash_of_a_member_that_says_nothing_counts_for_all_its_streams() -> None:
    assert starts_after(machine(), crash("m1"), expire("m2"), expire("m3")) == [3, 3, 0]


def test_a_move_of_the_position_ends_the_suspicion() -> None:
    found = machine()
    assert starts_after(found, crash("m1"), crash("m2", "s0")) == [2, 1, 0]
    found.execute(join("m3", *PATHS))
    epoch = found.state.shares["g"].streams[found.state.by_path["s0"].row.number].epoch
    found.execute(set_positions(move("s0", 1, "m3", epoch)))
    found.execute(crash("m3", "s0"))
    assert starts_after(found) == [1, 1, 0]


def test_a_stream_that_is_taken_from_a_slow_member_does_not_count_as_after_a_crash() -> None:
    for crashes in (0, 1):
        found = machine()
        for number in range(crashes):
            assert starts_after(found, crash(f"m{number}")) == [1, 1, 0]
        found.execute(join("m2", "s0", "s1"))
        found.execute(join("m3", "s0", "s1"))
        rows = found.state.shares["g"].streams
        (asked,) = [n for n, row in rows.items() if row.is_revoking]
        found.execute(take(found.state.by_number[asked].row.path))
        row = found.state.shares["g"].streams[asked]
        assert (row.owner, row.starts) == ("m3", crashes)


def test_the_replacement_of_an_instance_is_a_crash_of_its_predecessor() -> None:
    found = machine()
    assert starts_after(found, crash("m1")) == [1, 1, 0]
    found.execute(join("m2", *PATHS, instance="host"))
    found.execute(replace(join("m3", *PATHS, instance="host"), suspects=("s1",)))
    assert starts_after(found) == [1, 2, 0]
