"""Members of groups: they join, release, leave, expire, and streams move between them.

The numbers are rows of `docs/reference/groups.md`.
"""

from unittest.mock import patch

import pytest
from msgspec.structs import replace

from semel.journal import appender
from semel.journal.frame import encode_meta, frame_bytes
from semel.machine import MachineLimits, State, groups
from semel.machine.rows import GroupRow, MemberRow, ShareRow
from semel.machine.shared_events import Assigned, GroupChanged
from semel.model.commands import Delete, PinSnapshot, SnapshotRange
from semel.model.group_commands import LATEST, DeleteGroup, JoinGroup
from semel.model.limits import GROUP_STREAMS_MAX
from semel.model.outcomes import InvalidRequest, LimitReached, NotFound, StillAlive
from semel.model.outcomes_groups import (
    GroupDeleted,
    GroupInUse,
    IllegalGeneration,
    Joined,
    Left,
    Rebalanced,
    Released,
    UnknownGroup,
    UnknownMember,
)
from semel.model.outcomes_topics import TopicNotFound
from semel.model.outcomes_txn import Pinned, StreamRefused, UnstableOffsets
from semel.model.rights import retries_of
from semel.model.topic_commands import DeleteTopic
from tests.unit.machine.builders import append, create, reloaded, rows_of, snapshot, unchanged
from tests.unit.machine.topic_builders import (
    TopicMachine,
    create_topic,
    expire,
    grow,
    join,
    leave,
    move,
    rebalance,
    release,
    set_positions,
    take,
    topic_machine,
)
from tests.unit.machine.txn_builders import add_positions, begin, commit, prepare


def machine_with(*commands: object, streams: int = 4, **more: object) -> TopicMachine:
    """Return a machine with the topic t and the streams s0, s1 and so on."""
    made = [create(f"s{number}") for number in range(streams)]
    return topic_machine(*made, *commands, **more)  # type: ignore[arg-type]


def owners(machine: TopicMachine, group: str = "g") -> dict[str, str | None]:
    """Return the owner of each stream of a group that has been given to somebody."""
    by_number = machine.state.by_number
    rows = machine.state.shares[group].streams.items()
    return {by_number[number].row.path: row.owner for number, row in rows}


def row(machine: TopicMachine, path: str, group: str = "g") -> ShareRow:
    return machine.state.shares[group].streams[machine.stream(path).row.number]


def settle(machine: TopicMachine, group: str = "g") -> None:
    """Let the members release what they must, until nothing changes any more."""
    for _ in range(10):
        share = machine.state.shares[group]
        asked: dict[str, list[str]] = {}
        for number, each in share.streams.items():
            if each.is_revoking and each.owner in share.members:
                path = machine.state.by_number[number].row.path
                asked.setdefault(each.owner or "", []).append(path)
        for member, paths in asked.items():
            machine.execute(release(member, *paths, group=group))
        if machine.execute(rebalance(group)) == Rebalanced() and not asked:
            return


PATHS = ("s0", "s1", "s2", "s3")


# ---- join ----------------------------------------------------------------------------------------


def test_the_first_member_gets_every_stream() -> None:
    machine = machine_with()
    assert machine.execute(join("m1", *PATHS, now=5)) == Joined("g", "m1")
    assert owners(machine) == dict.fromkeys(PATHS, "m1")
    assert row(machine, "s0") == ShareRow("m1", 1)
    share = machine.state.shares["g"]
    assert share.row == GroupRow(1, machine.state.next_stream)
    member = MemberRow("m1", PATHS, (), (), 30_000, 30_000, None, "earliest", 5)
    assert share.members == {"m1": member}


# H19
def test_the_same_join_again_changes_nothing() -> None:
    machine = machine_with(join("m1", *PATHS))
    assert unchanged(machine, join("m1", *PATHS)) == Joined("g", "m1")


def test_a_member_shares_streams_topics_and_patterns() -> None:
    machine = machine_with(create("a/b"), join("m1", "s0", topics=("t",), patterns=("a/*",)))
    assert set(owners(machine)) == {"s0", "t/0", "t/1", "t/2", "t/3", "a/b"}


def test_names_that_are_not_there_are_refused() -> None:
    machine = machine_with()
    assert unchanged(machine, join("m1", "none")) == StreamRefused("none", NotFound())
    missing = StreamRefused("s0", TopicNotFound())
    assert unchanged(machine, join("m1", topics=("s0",))) == missing
    assert isinstance(machine.execute(join("m1", patterns=("none/*",))), Joined)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"group": ""}, "group"),
        ({"group": "x" * 242}, "group"),
        ({"group": "\u65e5" * 27}, "group"),
        ({"member": ""}, "member"),
        ({"member": "a\0b"}, "member"),
        ({"streams": ()}, "streams"),
        ({"streams": ("s0",) * 1_001}, "streams"),
        ({"streams": ("",)}, "path"),
        ({"topics": ("",)}, "path"),
        ({"patterns": ("a//b",)}, "patterns"),
        ({"session_timeout_ms": 999}, "session_timeout_ms"),
        ({"session_timeout_ms": 1_800_001}, "session_timeout_ms"),
        ({"rebalance_timeout_ms": 999}, "session_timeout_ms"),
        ({"instance": ""}, "instance"),
        ({"start": "middle"}, "start"),
    ],
)
def test_an_invalid_join_names_its_field(change: dict[str, object], field: str) -> None:
    assert unchanged(machine_with(), replace(join("m1", "s0"), **change)) == InvalidRequest(field)


def test_a_group_whose_replays_have_a_valid_name_can_have_members() -> None:
    for group in ("x" * 241, "\u65e5" * 26):
        outcome = machine_with().execute(replace(join("m1", "s0"), group=group))
        assert isinstance(outcome, Joined)


def test_invalid_commands_of_members_name_their_field() -> None:
    machine = machine_with()
    many = release("m1", *["s0"] * (GROUP_STREAMS_MAX + 1))
    assert unchanged(machine, many) == InvalidRequest("released")
    assert unchanged(machine, release("m1", "")) == InvalidRequest("path")
    assert unchanged(machine, release("", "s0")) == InvalidRequest("member")
    assert unchanged(machine, take("")) == InvalidRequest("path")
    assert unchanged(machine, take("s0", group="")) == InvalidRequest("group")
    assert unchanged(machine, rebalance("")) == InvalidRequest("group")
    assert unchanged(machine, expire("", group="g")) == InvalidRequest("member")


def test_members_and_streams_of_a_group_are_limited() -> None:
    with (
        patch.object(groups, "GROUP_MEMBERS_MAX", 2),
        patch.object(groups, "shared_streams_max", lambda _: 3),
    ):
        machine = machine_with(join("m1", "s0", instance="i"), join("m2", "s0", "s1"))
        assert unchanged(machine, join("m3", "s0")) == LimitReached("group_members", 2)
        assert isinstance(machine.execute(join("m3", "s0", instance="i")), Joined)
        machine.execute(leave("m2"))
        too_many = unchanged(machine, join("m4", "s0", "s2", "s3"))
        assert too_many == LimitReached("group_streams", 3)


# ---- streams move, cooperatively -----------------------------------------------------------------


# H2, H4, H5
def test_a_stream_is_given_to_another_member_only_after_its_owner_has_released_it() -> None:
    machine = machine_with(join("m1", *PATHS), join("m2", *PATHS))
    assert set(owners(machine).values()) == {"m1"}
    asked = [path for path in PATHS if row(machine, path).is_revoking]
    assert len(asked) == 2
    assert machine.execute(release("m1", asked[0])) == Released()
    assert row(machine, asked[0]) == ShareRow("m2", 2)
    assert row(machine, asked[1]).owner == "m1"
    assert machine.execute(release("m1", asked[1])) == Released()
    assert sorted(owners(machine).values(), key=str) == ["m1", "m1", "m2", "m2"]
    kept = [path for path in PATHS if path not in asked]
    assert [row(machine, path) for path in kept] == [ShareRow("m1", 1)] * 2


def test_a_release_of_what_somebody_else_owns_is_ignored() -> None:
    machine = machine_with(join("m1", *PATHS), join("m2", *PATHS))
    assert unchanged(machine, release("m2", "s0", "none", "t")) == Released()
    assert unchanged(machine, release("m3", "s0")) == UnknownMember()
    assert unchanged(machine, release("m1", "s0", group="h")) == UnknownMember()


def test_a_member_that_releases_what_it_was_not_asked_for_can_get_it_again() -> None:
    machine = machine_with(join("m1", "s0"))
    assert machine.execute(release("m1", "s0", "s0")) == Released()
    assert row(machine, "s0") == ShareRow("m1", 2)


# H7
def test_a_leaving_member_gives_up_everything() -> None:
    machine = machine_with(join("m1", *PATHS), join("m2", *PATHS))
    settle(machine)
    lost = [path for path, owner in owners(machine).items() if owner == "m1"]
    assert machine.execute(leave("m1")) == Left()
    assert set(owners(machine).values()) == {"m2"}
    assert [row(machine, path).epoch for path in lost] == [2, 2]
    assert machine.execute(leave("m2")) == Left()
    assert set(owners(machine).values()) == {None}
    assert unchanged(machine, leave("m2")) == UnknownMember()
    assert machine.state.shares["g"].members == {}


# H8
def test_epochs_go_on_after_everybody_has_left() -> None:
    machine = machine_with(join("m1", "s0"), leave("m1"), join("m2", "s0"), leave("m2"))
    assert row(machine, "s0") == ShareRow(None, 2)
    machine.execute(join("m3", "s0"))
    assert row(machine, "s0") == ShareRow("m3", 3)


def test_a_stream_that_no_member_shares_any_more_is_released() -> None:
    machine = machine_with(join("m1", "s0", "s1"), join("m2", "s1"), leave("m1"))
    assert owners(machine) == {"s0": None, "s1": "m2"}


def test_members_with_different_subscriptions_get_what_they_asked_for() -> None:
    machine = machine_with(join("m1", "s0", "s1"), join("m2", "s2", "s3"), join("m3", *PATHS))
    settle(machine)
    counts = list(owners(machine).values())
    assert sorted({counts.count(name) for name in ("m1", "m2", "m3")}) == [1, 2]
    assert owners(machine)["s0"] in ("m1", "m3")
    assert owners(machine)["s2"] in ("m2", "m3")


# ---- expiry --------------------------------------------------------------------------------------


# H9
def test_a_member_expires_after_its_session_timeout() -> None:
    machine = machine_with(join("m1", *PATHS, timeout=5_000), join("m2", *PATHS))
    assert unchanged(machine, expire("m1", 4_999)) == StillAlive()
    assert machine.execute(expire("m1", 5_000)) == Left()
    assert set(owners(machine).values()) == {"m2"}
    assert unchanged(machine, expire("m1", 5_000)) == UnknownMember()
    assert unchanged(machine, expire("m1", 5_000, group="h")) == UnknownMember()


# H3
def test_a_stream_that_is_not_released_in_time_is_taken_away() -> None:
    machine = machine_with(join("m1", "s0", "s1", rebalance=7_000), join("m2", "s0", "s1"))
    (asked,) = [path for path in ("s0", "s1") if row(machine, path).is_revoking]
    other = "s0" if asked == "s1" else "s1"
    assert unchanged(machine, take(asked, 6_999)) == StillAlive()
    assert unchanged(machine, take(other, 7_000)) == Rebalanced()
    assert unchanged(machine, take("none", 7_000)) == Rebalanced()
    assert unchanged(machine, take("s2", 7_000)) == Rebalanced()
    assert unchanged(machine, take(asked, 7_000, group="h")) == Rebalanced()
    assert machine.execute(take(asked, 7_000)) == Rebalanced()
    assert row(machine, asked) == ShareRow("m2", 2)
    assert "m1" in machine.state.shares["g"].members


# H10
def test_an_instance_takes_over_the_streams_of_its_predecessor_at_once() -> None:
    machine = machine_with(join("m1", *PATHS, instance="host"))
    assert machine.execute(join("m2", *PATHS, instance="host")) == Joined("g", "m2")
    assert [row(machine, path) for path in PATHS] == [ShareRow("m2", 2)] * 4
    assert list(machine.state.shares["g"].members) == ["m2"]
    assert unchanged(machine, release("m1", "s0")) == UnknownMember()
    narrow = join("m3", "s0", instance="host")
    assert machine.execute(narrow) == Joined("g", "m3")
    assert owners(machine) == {"s0": "m3", "s1": None, "s2": None, "s3": None}


# ---- starts --------------------------------------------------------------------------------------


# H11
def test_starts_count_crashes_while_the_position_stands_still() -> None:
    machine = machine_with(append(path="s0"), append(path="s0"))
    for number in range(3):
        machine.execute(join(f"m{number}", "s0"))
        assert row(machine, "s0").starts == number
        assert machine.execute(expire(f"m{number}")) == Left()
    machine.execute(join("m9", "s0"))
    given = row(machine, "s0")
    assert given.starts == 3
    machine.execute(set_positions(move("s0", 1, "m9", given.epoch)))
    machine.execute(expire("m9"))
    machine.execute(join("m10", "s0"))
    assert row(machine, "s0").starts == 1


# H11
def test_a_member_that_leaves_or_has_read_everything_has_not_crashed() -> None:
    machine = machine_with(append(path="s0"), join("m1", "s0"), leave("m1"), join("m2", "s0"))
    assert row(machine, "s0").starts == 0
    machine.execute(set_positions(move("s0", 1, "m2", 2)))
    machine.execute(expire("m2"))
    machine.execute(join("m3", "s0"))
    assert row(machine, "s0").starts == 0


# ---- patterns, topics and streams that come and go -----------------------------------------------


# H12
def test_a_new_stream_that_matches_marks_the_group() -> None:
    machine = machine_with(join("m1", patterns=("a/*",)), join("m2", patterns=("b/**",)))
    machine.state.unsettled.clear()
    machine.execute(create("a/new"))
    assert machine.state.unsettled == {"g"}
    assert machine.execute(rebalance()) == Rebalanced()
    assert owners(machine) == {"a/new": "m1"}
    assert unchanged(machine, rebalance()) == Rebalanced()
    machine.state.unsettled.clear()
    machine.execute(create("c/new"))
    assert machine.state.unsettled == set()


# H12
def test_a_topic_that_grows_marks_the_groups_that_share_it() -> None:
    machine = machine_with(join("m1", topics=("t",)), join("h1", "s0", group="h"))
    machine.state.unsettled.clear()
    machine.execute(grow())
    assert machine.state.unsettled == {"g"}
    machine.execute(rebalance())
    assert len(owners(machine)) == 6


# H13
def test_a_deleted_stream_drops_its_row_in_the_same_frame() -> None:
    machine = machine_with(join("m1", "s0", "s1", patterns=("s/*",)), join("h1", "s0", group="h"))
    machine.state.unsettled.clear()
    number = machine.stream("s0").row.number
    machine.execute(Delete("s0", 0))
    assert owners(machine) == {"s1": "m1"}
    assert machine.state.unsettled == {"g", "h"}
    assert machine.state.dirty.shares[number, "g"] is None
    machine.execute(create("s0"))
    machine.execute(rebalance())
    assert row(machine, "s0") == ShareRow("m1", 1)


# H13
def test_a_deleted_topic_drops_the_rows_of_its_partitions() -> None:
    machine = machine_with(join("m1", "s0", topics=("t",)))
    machine.execute(DeleteTopic("t", 0))
    assert owners(machine) == {"s0": "m1"}
    assert machine.execute(rebalance()) == Rebalanced()
    machine.execute(create_topic())
    assert "g" in machine.state.unsettled
    machine.execute(rebalance())
    assert len(owners(machine)) == 5


# H13
def test_a_stream_is_not_shared_as_a_topic_nor_a_topic_as_a_stream() -> None:
    machine = machine_with(join("m1", "s0", topics=("t",)))
    machine.execute(DeleteTopic("t", 0))
    machine.execute(Delete("s0", 0))
    machine.execute(create("t"))
    machine.execute(create_topic("s0", 1))
    assert unchanged(machine, rebalance()) == Rebalanced()
    assert owners(machine) == {}


# H14
def test_members_also_share_the_retries_of_their_group() -> None:
    path = retries_of("g")
    machine = machine_with(join("m1", "s0"))
    machine.state.unsettled.clear()
    machine.execute(create(path))
    assert machine.state.unsettled == {"g"}
    machine.execute(rebalance())
    assert owners(machine) == {"s0": "m1", path: "m1"}
    other = machine_with(create(retries_of("h")), join("m1", patterns=("**",)))
    assert retries_of("h") not in owners(other)


# H15
def test_a_group_can_begin_at_the_end_of_streams_that_exist() -> None:
    machine = machine_with(append(path="s0"), append(path="s1"), join("m0", "s2"))
    machine.execute(set_positions(move("s1", 0)))
    machine.execute(join("m1", "s0", "s1", "s2", start=LATEST))
    positions = {path: machine.stream(path).positions or {} for path in PATHS}
    assert "g" in positions["s0"]
    assert positions["s0"]["g"].offset == 1
    assert positions["s1"]["g"].offset == 0
    assert "g" not in positions["s2"]


# H15
def test_a_stream_that_is_created_later_is_read_from_its_beginning() -> None:
    machine = machine_with(join("m1", patterns=("a/*",), start=LATEST, now=5))
    machine.execute(create("a/b", now=5))  # in the same millisecond
    machine.execute(append(path="a/b", now=9))
    machine.execute(rebalance())
    assert machine.stream("a/b").positions is None


# ---- held positions ------------------------------------------------------------------------------


def holding_machine(*more: object) -> TopicMachine:
    """Return a machine in which a prepared transaction of m1 holds the position in s0."""
    machine = machine_with(append(path="s0"), join("m1", "s0", "s1"))
    machine.execute(begin("x", streams=("s1",)))
    named = replace(
        add_positions(txn="x"), positions=(move("s0", 1, "m1", row(machine, "s0").epoch),)
    )
    machine.execute(named)
    machine.execute(prepare("x"))
    for command in more:
        machine.execute(command)  # type: ignore[arg-type]
    return machine


# H6
def test_a_held_stream_is_not_released() -> None:
    machine = holding_machine()
    assert unchanged(machine, release("m1", "s1", "s0")) == UnstableOffsets("g", "s0", "x", 1)
    assert machine.execute(release("m1", "s1")) == Released()


# G6
def test_a_held_stream_stays_with_a_member_that_is_gone_until_it_is_decided() -> None:
    machine = holding_machine(join("m2", "s0", "s1"), expire("m1"))
    assert row(machine, "s0").owner == "m1"
    assert row(machine, "s0").is_revoking
    assert row(machine, "s1").owner == "m2"
    assert unchanged(machine, rebalance()) == Rebalanced()
    assert unchanged(machine, take("s0")) == Rebalanced()
    machine.state.unsettled.clear()
    machine.execute(commit("x"))
    assert machine.state.unsettled == {"g"}
    positions = machine.stream("s0").positions
    assert positions is not None
    assert positions["g"].offset == 1
    machine.execute(rebalance())
    assert row(machine, "s0") == ShareRow("m2", 2, starts=0, counted_version=1)


# G6
def test_a_stream_that_nobody_holds_any_more_is_taken_from_a_gone_member_after_a_restart() -> None:
    machine = holding_machine(expire("m1"), commit("x"))
    assert row(machine, "s0").owner == "m1"
    assert reloaded(machine.state).unsettled == {"g"}
    machine.execute(rebalance())
    assert row(machine, "s0").owner is None
    assert reloaded(machine.state).unsettled == set()


def test_a_held_stream_is_not_taken_from_a_slow_member() -> None:
    machine = holding_machine(join("m2", "s0"))
    assert row(machine, "s0").is_revoking
    before = row(machine, "s0")
    assert unchanged(machine, take("s0")) == Rebalanced()
    assert machine.execute(expire("m1")) == Left()
    assert row(machine, "s0") == before


# ---- large groups --------------------------------------------------------------------------------


# H16
def test_a_frame_moves_a_limited_number_of_streams() -> None:
    machine = machine_with(streams=0, limits=MachineLimits(txn_streams=3))
    for number in range(8):
        machine.execute(create(f"s{number}"))
    paths = tuple(f"s{number}" for number in range(8))
    machine.execute(join("m1", *paths))
    assert list(owners(machine).values()) == ["m1"] * 3
    assert machine.state.unsettled == {"g"}
    for _ in range(2):
        machine.execute(rebalance())
    assert list(owners(machine).values()) == ["m1"] * 8
    before = len(machine.journal)
    machine.execute(join("m2", *paths))
    machine.execute(rebalance())
    assert sum(each.is_revoking for each in machine.state.shares["g"].streams.values()) == 4
    assert len(machine.journal) == before + 2
    event = machine.journal[before].event
    assert isinstance(event, GroupChanged)
    assert event.is_partial


def test_the_frame_that_frees_all_streams_of_a_group_fits_into_the_smallest_segments() -> None:
    for segment_bytes in (4_096, 65_536, 655_360, 64 * 1024 * 1024):
        limits = MachineLimits(txn_streams=min(1_000, appender.streams_max(segment_bytes)))
        maximum = groups.shared_streams_max(State(limits))
        assert maximum <= GROUP_STREAMS_MAX
        freed = tuple((2**40 + number, 2**16) for number in range(maximum))
        event = GroupChanged("g" * 256, None, ("m" * 64,), freed)
        size = frame_bytes(encode_meta(event), ())
        assert size <= appender.frame_bytes_max(segment_bytes)
    assert groups.shared_streams_max(State()) == GROUP_STREAMS_MAX


# H16
def test_streams_beyond_the_limit_of_a_group_are_not_given() -> None:
    with patch.object(groups, "shared_streams_max", lambda _: 3):
        machine = machine_with(join("m1", patterns=("a/*", "s0")))
        for number in range(5):
            machine.execute(create(f"a/{number}"))
            machine.execute(rebalance())
        assert list(owners(machine)) == ["s0", "a/0", "a/1"]
        assert unchanged(machine, rebalance()) == Rebalanced()
        machine.execute(Delete("a/0", 0))
        machine.execute(rebalance())
        assert list(owners(machine)) == ["s0", "a/1", "a/2"]


def test_what_does_not_change_is_not_written() -> None:
    machine = machine_with(join("m1", *PATHS))
    before = machine.journal[-1].event
    assert before == GroupChanged(
        "g",
        machine.state.shares["g"].members["m1"],
        assigned=tuple(Assigned(n, "m1", 1) for n in sorted(machine.state.shares["g"].streams)),
    )
    assert unchanged(machine, rebalance()) == Rebalanced()
    assert unchanged(machine, rebalance("none")) == UnknownGroup()


# ---- delete --------------------------------------------------------------------------------------


def delete(group: str = "g") -> DeleteGroup:
    return DeleteGroup(0, group)


# H17
def test_a_group_is_deleted_with_all_that_is_stored_about_it() -> None:
    machine = machine_with(append(path="s0"), join("m1", "s0", "s1"))
    assert unchanged(machine, delete()) == GroupInUse(1)
    machine.execute(set_positions(move("s0", 1, "m1", 1)))
    machine.execute(pin())
    machine.execute(leave("m1"))
    machine.execute(begin("x", streams=("s1",)))
    machine.execute(add_positions(("s0", 1), txn="x"))
    assert unchanged(machine, delete()) == GroupInUse(0)
    machine.execute(commit("x"))
    assert machine.execute(delete()) == GroupDeleted()
    state = machine.state
    assert (state.shares, state.groups, state.snapshots) == ({}, {}, {})
    assert not machine.stream("s0").positions
    assert not machine.stream("s0").sharing
    assert state.dirty.groups == {"g": None}
    assert state.dirty.snapshots == {"g": None}
    assert state.unsettled == set()
    assert unchanged(machine, delete()) == UnknownGroup()


def pin() -> PinSnapshot:
    return PinSnapshot(0, "g", 1, (SnapshotRange("s1", "i-s1-0", 0, 0),), "x")


# H17
def test_a_group_without_members_is_deleted_as_well() -> None:
    machine = machine_with(append(path="s0"), set_positions(move("s0", 1)))
    assert machine.execute(delete()) == GroupDeleted()
    assert machine.state.dirty.groups == {}
    assert isinstance(machine.execute(pin()), Pinned)
    assert machine.execute(delete()) == GroupDeleted()
    assert unchanged(machine, delete()) == UnknownGroup()


# ---- the stored state ----------------------------------------------------------------------------


# H18
def test_members_owners_and_epochs_are_there_after_a_restart() -> None:
    machine = machine_with(
        create("a/b"),
        append(path="s0"),
        join("m1", *PATHS, patterns=("a/*",)),
        join("m2", topics=("t",), instance="i"),
        join("h1", "s0", group="h"),
        leave("h1", group="h"),
        join("m3", *PATHS),
    )
    twin = reloaded(machine.state)
    assert rows_of(twin) == rows_of(machine.state)
    assert twin.unsettled == {"g"}
    for group in ("g", "h"):
        ours, theirs = machine.state.shares[group], twin.shares[group]
        assert snapshot(sorted(ours.members)) == snapshot(sorted(theirs.members))
        assert ours.matches == theirs.matches
    for number, stream in machine.state.by_number.items():
        assert (stream.sharing or set()) == (twin.by_number[number].sharing or set())
    for group in ("g", "h"):
        wanted = {path for path, names in machine.state.wanted.items() if group in names}
        assert wanted >= {path for path, names in twin.wanted.items() if group in names}


def test_patterns_that_no_member_has_any_more_are_forgotten() -> None:
    machine = machine_with(join("m1", patterns=("a/*", "b/*")), join("m2", patterns=("a/*",)))
    assert set(machine.state.shares["g"].matches) == {"a/*", "b/*"}
    machine.execute(leave("m1"))
    assert set(machine.state.shares["g"].matches) == {"a/*"}


# G2
def test_a_member_that_has_joined_anew_does_not_own_what_it_owned() -> None:
    machine = machine_with(append(path="s0"), join("m1", "s0"), expire("m1"), join("m2", "s0"))
    late = unchanged(machine, set_positions(move("s0", 1, "m1", 1)))
    assert late == IllegalGeneration("g", "s0", 2, 1)


def test_a_join_has_defaults() -> None:
    assert JoinGroup(0, "g", "m").session_timeout_ms == 30_000
    assert JoinGroup(0, "g", "m").start == "earliest"
