"""Members of groups in the broker: sessions, releases, waits, and what writes no frame."""

import pytest

from semel.broker import memberships as module
from semel.broker.memberships import Leases
from semel.broker.timers import QUEUE_SLACK
from semel.machine.group_views import MemberView, member_view
from semel.model.commands import Begin, CommitTxn, PositionMove, ProducerOwner, SetPositions
from semel.model.group_commands import DeleteGroup, JoinGroup, LeaveGroup, ReleaseStreams
from semel.model.outcomes import DiskFull, NotFound
from semel.model.outcomes_groups import GroupDeleted, Joined, Released, UnknownMember
from semel.model.outcomes_topics import StreamExists
from semel.model.outcomes_txn import PositionsSet, StreamRefused
from semel.model.subscription_commands import WEBHOOK, CreateSubscription
from semel.model.topic_commands import CreateTopic, GrowTopic
from tests.unit.broker.bed import Bed

SESSION_MS = 10_000


@pytest.fixture
def bed() -> Bed:
    found = Bed(segment_bytes=65_536)
    found.execute(CreateTopic("t", found.now_ms, "i", 4))
    return found


def join(
    bed: Bed, member: str, *, instance: str | None = None, timeout_ms: int = SESSION_MS
) -> None:
    command = JoinGroup(
        bed.now_ms,
        "g",
        member,
        topics=("t",),
        session_timeout_ms=timeout_ms,
        instance=instance,
    )
    assert bed.execute(command) == Joined("g", member)


def view(bed: Bed, member: str) -> MemberView:
    found = member_view(bed.broker.state, "g", member)
    assert found is not None
    return found


def owned(bed: Bed, member: str) -> set[str]:
    return {each.path for each in view(bed, member).assigned}


def beat(bed: Bed, member: str) -> None:
    bed.broker.endings.hear("g", member, bed.now_ms)
    bed.flush()


def wait(bed: Bed, log: list[str], name: str, *, has_limits: bool = False) -> None:
    found = bed.broker.memberships.wait("g", lambda: log.append(name), has_limits=has_limits)
    assert found is not None


# ---- sessions ------------------------------------------------------------------------------------


def test_a_heartbeat_renews_a_session_and_writes_nothing(bed: Bed) -> None:
    join(bed, "m")
    end = bed.broker.end
    for _ in range(5):
        bed.now_ms += SESSION_MS - 1
        assert bed.sweep() == 0
        beat(bed, "m")
    assert bed.broker.memberships.heard_ms_ago("g", "m") == 0
    bed.now_ms += 7
    assert bed.broker.memberships.heard_ms_ago("g", "m") == 7
    assert bed.broker.memberships.heard_ms_ago("g", "nobody") is None
    assert bed.broker.end == end


def test_a_member_that_is_not_heard_is_removed(bed: Bed) -> None:
    join(bed, "m")
    join(bed, "n", timeout_ms=10 * SESSION_MS)
    assert owned(bed, "n") == set()
    bed.sweep(SESSION_MS)
    assert member_view(bed.broker.state, "g", "m") is None
    assert len(owned(bed, "n")) == 4
    assert (len(bed.broker.memberships), bed.broker.memberships.expired) == (1, 1)


def test_a_late_heartbeat_does_not_revive_a_member(bed: Bed) -> None:
    join(bed, "m")
    bed.now_ms += SESSION_MS
    beat(bed, "m")
    assert member_view(bed.broker.state, "g", "m") is None


def test_a_late_release_is_refused(bed: Bed) -> None:
    join(bed, "m")
    bed.now_ms += SESSION_MS
    command = ReleaseStreams(bed.now_ms, "g", "m", ("t/0",))
    assert bed.execute(command) == UnknownMember()


def test_a_commit_counts_as_a_heartbeat(bed: Bed) -> None:
    join(bed, "m")
    for _ in range(3):
        bed.now_ms += SESSION_MS - 1
        move = PositionMove("g", "t/0", 0, member="m", member_epoch=1)
        assert isinstance(bed.execute(SetPositions(bed.now_ms, (move,))), PositionsSet)
    bed.now_ms += SESSION_MS - 1
    refused = PositionMove("g", "t/0", 0, member="m", member_epoch=9)
    bed.execute(SetPositions(bed.now_ms, (refused,)))
    bed.sweep(1)
    assert member_view(bed.broker.state, "g", "m") is None, "a refused one does not count"


def test_after_a_restart_every_session_starts_anew(bed: Bed) -> None:
    join(bed, "m")
    bed.now_ms += SESSION_MS - 1
    bed.restart()
    bed.now_ms += SESSION_MS - 1
    assert bed.sweep() == 0
    beat(bed, "m")
    bed.sweep(SESSION_MS)
    assert member_view(bed.broker.state, "g", "m") is None


def test_a_jump_of_the_wall_clock_expires_nobody(bed: Bed) -> None:
    join(bed, "m")
    bed.jump(10**9)
    assert bed.sweep() == 0
    assert len(owned(bed, "m")) == 4


def test_an_instance_replaces_a_session(bed: Bed) -> None:
    join(bed, "m", instance="i")
    join(bed, "n", instance="i")
    assert len(bed.broker.memberships) == 1
    assert bed.broker.memberships.expired == 0
    assert len(owned(bed, "n")) == 4


# ---- releases and rebalances ---------------------------------------------------------------------


def test_a_stream_that_is_not_released_is_taken(bed: Bed) -> None:
    join(bed, "m")
    join(bed, "n")
    assert len(view(bed, "m").release) == 2
    for _ in range(2):
        bed.now_ms += SESSION_MS - 1
        beat(bed, "m")
        beat(bed, "n")
    bed.sweep()
    assert (len(owned(bed, "m")), len(owned(bed, "n"))) == (2, 2)


def test_a_release_in_time_is_not_taken_again(bed: Bed) -> None:
    join(bed, "m")
    join(bed, "n")
    released = view(bed, "m").release
    command = ReleaseStreams(bed.now_ms, "g", "m", released)
    assert bed.execute(command) == Released()
    epochs = {each.epoch for each in view(bed, "n").assigned}
    assert epochs == {2}
    for _ in range(3):
        bed.now_ms += SESSION_MS - 1
        beat(bed, "m")
        beat(bed, "n")
        bed.sweep()
    assert {each.epoch for each in view(bed, "n").assigned} == {2}


def test_releases_are_awaited_again_after_a_restart(bed: Bed) -> None:
    join(bed, "m", timeout_ms=2 * SESSION_MS)
    join(bed, "n", timeout_ms=9 * SESSION_MS)
    bed.restart()
    bed.sweep(SESSION_MS)
    assert len(owned(bed, "m")) == 4
    beat(bed, "m")
    bed.sweep(SESSION_MS)
    assert len(owned(bed, "m")) == 2


def test_a_growth_is_rebalanced_once_per_second(bed: Bed) -> None:
    join(bed, "m")
    bed.sweep()
    frames = bed.broker.end
    for partitions in (5, 6, 7):
        bed.execute(GrowTopic("t", bed.now_ms, f"i{partitions}", partitions))
    bed.sweep(1)
    assert len(owned(bed, "m")) == 7
    assert bed.broker.end > frames
    bed.execute(GrowTopic("t", bed.now_ms, "i8", 8))
    bed.sweep(1)
    assert len(owned(bed, "m")) == 7, "it was rebalanced less than a second ago"
    bed.sweep(module.REBALANCE_MS)
    assert len(owned(bed, "m")) == 8
    assert bed.broker.memberships.rebalances == 3


# ---- a sweep in steps ----------------------------------------------------------------------------


def test_each_step_of_a_sweep_ends_one_member(bed: Bed) -> None:
    for member in "abc":
        join(bed, member)
    bed.now_ms += SESSION_MS
    steps = bed.broker.sweep_groups(bed.now_ms, 10)
    for left in (2, 1, 0):
        assert next(steps) == 1
        assert len(bed.broker.memberships) == left
    assert list(steps) == []


def test_a_member_that_is_gone_before_its_step_is_left_out(bed: Bed) -> None:
    for member in "abc":
        join(bed, member)
    bed.now_ms += SESSION_MS
    steps = bed.broker.sweep_groups(bed.now_ms, 10)
    next(steps)
    bed.execute(LeaveGroup(bed.now_ms, "g", "b"))
    bed.execute(LeaveGroup(bed.now_ms, "g", "a"))
    assert list(steps) == [1]
    assert bed.broker.memberships.expired == 3, "those who left too late were removed before"


def test_a_stream_that_is_released_before_its_step_is_left_out(bed: Bed) -> None:
    join(bed, "m", timeout_ms=SESSION_MS)
    join(bed, "n", timeout_ms=9 * SESSION_MS)
    released = view(bed, "m").release
    for _ in range(2):
        bed.now_ms += SESSION_MS - 1
        beat(bed, "m")
    steps = bed.broker.sweep_groups(bed.now_ms, 10)
    assert next(steps) == 1
    bed.execute(ReleaseStreams(bed.now_ms, "g", "m", released))
    assert list(steps) == []
    assert {each.epoch for each in view(bed, "n").assigned} == {2}


def test_a_group_that_is_deleted_before_its_step_is_left_out(bed: Bed) -> None:
    for group in "gh":
        bed.execute(JoinGroup(bed.now_ms, group, "m", topics=("t",)))
    bed.sweep()
    bed.execute(GrowTopic("t", bed.now_ms, "i5", 5))
    steps = bed.broker.sweep_groups(bed.now_ms + module.REBALANCE_MS, 10)
    bed.now_ms += module.REBALANCE_MS
    assert next(steps) == 0
    bed.execute(LeaveGroup(bed.now_ms, "h", "m"))
    assert bed.execute(DeleteGroup(bed.now_ms, "h")) == GroupDeleted()
    assert list(steps) == []


# ---- heartbeats that wait ------------------------------------------------------------------------


def test_a_change_of_the_group_wakes_those_who_wait(bed: Bed) -> None:
    join(bed, "m")
    log: list[str] = []
    wait(bed, log, "m")
    command = JoinGroup(bed.now_ms, "g", "n", topics=("t",))
    bed.submit(command)
    assert log == [], "the change is not durable yet"
    bed.flush()
    assert log == ["m"]
    assert bed.broker.memberships.wait_count == 0
    bed.execute(LeaveGroup(bed.now_ms, "g", "n"))
    assert log == ["m"], "it is woken once"


def test_a_growth_wakes_before_the_rebalance(bed: Bed) -> None:
    join(bed, "m")
    bed.sweep()
    log: list[str] = []
    wait(bed, log, "m")
    bed.execute(GrowTopic("t", bed.now_ms, "i5", 5))
    assert log == ["m"]
    wait(bed, log, "again")
    bed.sweep(module.REBALANCE_MS)
    assert log == ["m", "again"]


def test_only_those_with_limits_hear_of_moves(bed: Bed) -> None:
    join(bed, "m")
    log: list[str] = []
    wait(bed, log, "limited", has_limits=True)
    wait(bed, log, "plain")
    move = PositionMove("g", "t/0", 0, member="m", member_epoch=1)
    bed.execute(SetPositions(bed.now_ms, (move,)))
    assert log == ["limited"]
    assert (bed.broker.memberships.wait_count, bed.broker.memberships.limited_count) == (1, 0)


def test_all_hear_that_an_operator_has_moved_the_group(bed: Bed) -> None:
    join(bed, "m")
    log: list[str] = []
    wait(bed, log, "m")
    memberships = bed.broker.memberships
    memberships.displace("h")
    assert (memberships.displacements("h"), log) == (0, []), "there is no such group"
    memberships.displace("g")
    assert (memberships.displacements("g"), log) == (1, ["m"])
    bed.execute(LeaveGroup(bed.now_ms, "g", "m"))
    bed.execute(DeleteGroup(bed.now_ms, "g"))
    assert memberships.displacements("g") == 0


def test_those_with_limits_hear_of_the_end_of_a_transaction(bed: Bed) -> None:
    """Its decision can move the position past a growth."""
    join(bed, "m")
    bed.execute(Begin(bed.now_ms, "x", ProducerOwner("p", 0), streams=("t",)))
    log: list[str] = []
    wait(bed, log, "limited", has_limits=True)
    bed.execute(CommitTxn(bed.now_ms, "x", 1, "p", 0))
    assert log == ["limited"]


def test_a_wait_can_be_cancelled_and_their_number_is_limited(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WAITS_MAX", 1)
    log: list[str] = []
    found = bed.broker.memberships.wait("g", lambda: log.append("m"), has_limits=True)
    assert found is not None
    assert bed.broker.memberships.wait("g", lambda: None, has_limits=False) is None
    for _ in range(2):
        bed.broker.memberships.stop_waiting(found)
    assert bed.broker.memberships.wait_count == 0
    join(bed, "m")
    assert log == []


# ---- an event loop that stands still -------------------------------------------------------------


class Stall:
    """A bed whose clock is also that of an event loop, which calls `tick` while it runs."""

    def __init__(self, bed: Bed) -> None:
        self.bed = bed
        self.tick = bed.broker.memberships.clock.watch(lambda: bed.now_ms / 1000)

    def run_for(self, ms: int) -> None:
        for _ in range(ms // module.TICK_MS):
            self.bed.now_ms += module.TICK_MS
            self.tick()
            self.bed.sweep()


def test_a_heartbeat_that_waited_while_the_loop_stood_still_is_in_time(bed: Bed) -> None:
    loop = Stall(bed)
    join(bed, "m", timeout_ms=1_000)
    loop.run_for(250)
    bed.now_ms += 6_900
    beat(bed, "m")
    assert bed.broker.memberships.heard_ms_ago("g", "m") == 0
    loop.tick()
    loop.run_for(750)
    assert len(bed.broker.memberships) == 1
    loop.run_for(250)
    assert (len(bed.broker.memberships), bed.broker.memberships.expired) == (0, 1)


def test_nobody_expires_at_the_end_of_a_time_in_which_the_loop_stood_still(bed: Bed) -> None:
    loop = Stall(bed)
    join(bed, "m", timeout_ms=1_000)
    join(bed, "n", timeout_ms=60_000)
    bed.now_ms += 30_000
    bed.sweep()
    bed.execute(LeaveGroup(bed.now_ms, "g", "n"))
    loop.tick()
    bed.sweep()
    assert len(bed.broker.memberships) == 1
    assert bed.broker.memberships.heard_ms_ago("g", "m") == 2 * module.TICK_MS
    loop.run_for(500)
    assert bed.broker.memberships.expired == 1, "what was left out is not left out again"


# ---- the format of the directory -----------------------------------------------------------------


def test_the_format_is_raised_before_the_first_frame_of_each_kind_and_not_for_a_refusal(
    bed: Bed,
) -> None:
    asked: list[tuple[int, int]] = []

    def allow_format(version: int) -> bool:
        asked.append((version, bed.broker.end))
        return True

    bed.broker.memberships.allow_format = allow_format
    bed.execute(bed.create("s"))
    bed.execute(bed.append())
    assert isinstance(bed.execute(CreateTopic("s", bed.now_ms, "i", 4)), StreamExists)
    unknown = JoinGroup(bed.now_ms, "g", "m", ("none",))
    assert bed.execute(unknown) == StreamRefused("none", NotFound())
    assert asked == []
    end = bed.broker.end
    join(bed, "m")
    bed.execute(CreateTopic("u", bed.now_ms, "i", 4))
    assert asked[0] == (3, end), "it is raised before the frame"
    end = bed.broker.end
    bed.execute(CreateSubscription(bed.now_ms, "a", WEBHOOK, "*", url="https://example.com"))
    assert [version for version, _ in asked] == [3, 3, 4]
    assert asked[2] == (4, end)


def test_nothing_is_shared_if_the_disk_has_no_space_for_the_format(bed: Bed) -> None:
    bed.broker.memberships.allow_format = lambda _version: False
    end = bed.broker.end
    assert bed.execute(CreateTopic("u", bed.now_ms, "i", 4)) == DiskFull()
    assert bed.execute(JoinGroup(bed.now_ms, "g", "m", topics=("t",))) == DiskFull()
    subscribe = CreateSubscription(bed.now_ms, "a", WEBHOOK, "*", url="https://example.com")
    assert bed.execute(subscribe) == DiskFull()
    assert bed.broker.end == end
    assert bed.broker.state.shares == {}
    assert bed.broker.state.subscriptions.by_id == {}


# ---- leases --------------------------------------------------------------------------------------


def test_leases_are_due_in_order_and_renewed() -> None:
    now = [0]
    leases: Leases[tuple[str, str]] = Leases(lambda: now[0])
    leases.start(("g", "a"), 10)
    leases.start(("g", "b"), 20)
    assert leases.due(9) == []
    now[0] = 10
    assert leases.due(9) == [("g", "a")]
    assert leases.is_due(("g", "a"))
    leases.renew(("g", "a"))
    assert leases.is_due(("g", "a")), "what has passed is not renewed"
    leases.stop(("g", "a"))
    assert not leases.is_due(("g", "a"))
    leases.renew(("g", "a"))
    leases.renew(("g", "b"))
    now[0] = 29
    assert leases.due(9) == []
    assert leases.elapsed_ms(("g", "b")) == 19
    now[0] = 30
    assert leases.due(9) == [("g", "b")]
    now[0] = 31
    assert leases.due(9) == [("g", "b")], "it stays due until it is stopped"
    assert (("g", "b") in leases, len(leases)) == (True, 1)


def test_the_queue_of_leases_does_not_grow_without_limit() -> None:
    leases: Leases[tuple[str, str]] = Leases(lambda: 0)
    for _ in range(5_000):
        leases.start(("g", "a"), 10)
    assert len(leases._queue) <= 2 + QUEUE_SLACK + 1
    assert len(leases) == 1
