"""Wakes in the running process: when they are issued, leases, and the delays of deliveries."""

from typing import Any

import pytest
from msgspec.structs import replace

from semel.broker.wakes import Wakes, retry_ms
from semel.machine.subscription_events import SubscriptionRow, WakeRow
from semel.model.commands import Batch, Commit, CommitAppend, Create
from semel.model.limits import RETRY_MS_MAX, RETRY_MS_MIN, WAKES_PER_GROUP_MAX
from semel.model.outcomes import DiskFull, Outcome
from semel.model.outcomes_subscriptions import (
    Fenced,
    InvalidOffset,
    NoPendingWork,
    WakeAcked,
    WakeChanged,
    WakeClaimed,
    WakeStreamRefused,
)
from semel.model.subscription_commands import (
    PULL_WAKE,
    WEBHOOK,
    AckWake,
    ClaimWake,
    CreateSubscription,
    DeleteSubscription,
    ExpireWake,
    LinkStreams,
    NoteDelivery,
    ReleaseWake,
    ResumeSubscription,
    WakeAck,
)
from tests.unit.broker.bed import Bed

LEASE_MS = 30_000


class WakeBed(Bed):
    """A broker with a stream, and a subscription for each type, `hook` and `pull`."""

    def __init__(self, **options: int) -> None:
        super().__init__(**options)
        self.execute(self.create())
        self.execute(Create("wakes", self.now_ms, "iw", "application/json", None))

    @property
    def wakes(self) -> Wakes:
        return self.broker.wakes

    def subscribe(self, name: str, kind: str = WEBHOOK, path: str = "s") -> Outcome:
        if kind == WEBHOOK:
            command = CreateSubscription(
                self.now_ms, name, kind, None, (path,), url="https://example.org/"
            )
        else:
            command = CreateSubscription(
                self.now_ms, name, kind, None, (path,), wake_stream="wakes"
            )
        return self.execute(command)

    def row(self, name: str) -> SubscriptionRow:
        return self.broker.state.subscriptions.by_id[name].row

    def wake(self, name: str) -> WakeRow:
        return self.broker.state.subscriptions.by_id[name].wake

    def note(self, name: str, error: str | None, **options: Any) -> Outcome:
        generation = self.wake(name).generation
        return self.execute(NoteDelivery(self.now_ms, name, generation, error, **options))

    def ack_of(self, name: str, *, done: bool = False, offset: int | None = None) -> WakeAck:
        wake = self.wake(name)
        acks = () if offset is None else (("s", offset),)
        return WakeAck(name, wake.wake_id, wake.generation, acks, done)

    def ack(self, name: str, *, done: bool = False, offset: int | None = None) -> Outcome:
        return self.execute(AckWake(self.now_ms, self.ack_of(name, done=done, offset=offset)))

    def claim(self, name: str = "pull", worker: str = "w") -> Outcome:
        return self.execute(ClaimWake(self.now_ms, name, worker))


def woken(kind: str = WEBHOOK) -> WakeBed:
    """Return a bed whose subscription has a wake in flight."""
    bed = WakeBed()
    bed.subscribe("hook" if kind == WEBHOOK else "pull", kind)
    bed.execute(bed.append())
    return bed


# ---- issuing -------------------------------------------------------------------------------------


def test_a_wake_is_in_the_write_group_of_the_append_that_makes_it_necessary() -> None:
    bed = WakeBed()
    bed.subscribe("pull", PULL_WAKE)
    answers = bed.submit(bed.append())
    group = bed.broker.next_group()
    assert group is not None
    assert not answers
    assert bed.wake("pull").generation == 1
    assert bed.wake("pull").wake_id.startswith("w_")
    bed.writer.write(group)
    bed.broker.written(group)
    assert answers
    assert bed.broker.end == group.end


def test_wakes_are_issued_in_several_write_groups_and_each_only_once() -> None:
    bed = WakeBed(segment_bytes=1 << 20)
    count = WAKES_PER_GROUP_MAX + 7
    for number in range(count):
        bed.subscribe(f"h{number:03}")
    bed.submit(bed.append())
    group = bed.broker.next_group()
    assert group is not None
    assert bed.wakes.issued == WAKES_PER_GROUP_MAX
    assert group.frames == WAKES_PER_GROUP_MAX + 1
    bed.writer.write(group)
    bed.broker.written(group)
    bed.flush()
    assert bed.wakes.issued == count
    assert not bed.broker.state.subscriptions.due
    bed.execute(bed.append())
    assert bed.wakes.issued == count


def test_a_write_group_has_fewer_wakes_if_these_have_very_many_pending_streams(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("semel.broker.wakes._SEARCHED_MAX", 1)
    bed = WakeBed()
    for name in ("a", "b", "c"):
        bed.subscribe(name)
    bed.submit(bed.append())
    assert bed.broker.next_group() is not None
    assert bed.wakes.issued == 2


@pytest.mark.parametrize(("idle_ms", "messages"), [(999, 1), (1_000, None)])
def test_a_message_about_a_wake_does_not_keep_an_expired_wake_stream(
    idle_ms: int, messages: int | None
) -> None:
    bed = WakeBed(segment_bytes=1 << 20)
    bed.execute(Create("short", bed.now_ms, "i", "application/json", 1_000))
    bed.execute(CreateSubscription(bed.now_ms, "p", PULL_WAKE, None, ("s",), wake_stream="short"))
    bed.now_ms += idle_ms
    bed.execute(bed.append())
    stream = bed.broker.state.by_path.get("short")
    assert (None if stream is None else stream.tail.tail) == messages
    assert bed.wake("p").generation == 1
    bed.sweep(999)
    assert bed.broker.state.by_path.get("short") is stream


def test_an_expired_stream_is_neither_followed_nor_acked_nor_a_wake_stream() -> None:
    bed = woken()
    state, ttl_ms = bed.broker.state, 1_000
    for path in ("a", "b", "c", "d"):
        bed.execute(bed.create(path, ttl_ms=ttl_ms))
    bed.execute(Create("short", bed.now_ms, "i", "application/json", ttl_ms))
    bed.execute(LinkStreams(bed.now_ms, "hook", ("c", "d")))
    bed.now_ms += ttl_ms
    refused = CreateSubscription(bed.now_ms, "x", PULL_WAKE, None, ("a",), wake_stream="short")
    assert isinstance(bed.execute(refused), WakeStreamRefused)
    assert {"a", "short"}.isdisjoint(state.by_path)
    bed.execute(LinkStreams(bed.now_ms, "hook", ("b",)))
    assert "b" not in state.by_path
    wake = bed.wake("hook")
    ack = WakeAck("hook", wake.wake_id, wake.generation, (("c", 0),))
    assert bed.execute(AckWake(bed.now_ms, ack)) == InvalidOffset("hook", "c")
    commit = Commit(bed.now_ms, "p", 0, 0, wakes=(replace(ack, acks=(("d", 0),)),))
    assert bed.execute(commit) == InvalidOffset("hook", "d")
    assert list(state.subscriptions.by_id["hook"].links) == [state.by_path["s"].row.number]


def test_a_claim_issues_the_wake_that_an_expired_one_left(monkeypatch: pytest.MonkeyPatch) -> None:
    bed = woken(PULL_WAKE)
    first = bed.claim()
    assert isinstance(first, WakeClaimed)
    bed.now_ms += LEASE_MS
    second = bed.claim(worker="other")
    assert isinstance(second, WakeClaimed)
    assert second.generation == first.generation + 1
    assert second.wake_id != first.wake_id
    assert bed.wakes.expired == 1


def test_a_claim_without_pending_messages_is_refused() -> None:
    bed = WakeBed()
    bed.subscribe("pull", PULL_WAKE)
    assert bed.claim() == NoPendingWork()


def test_on_a_full_disk_no_wake_is_issued_and_later_it_is() -> None:
    bed = WakeBed()
    bed.subscribe("pull", PULL_WAKE)
    bed.submit(bed.append())
    bed.broker.is_full = True
    group = bed.broker.next_group()
    assert group is not None
    assert bed.wake("pull").wake_id == ""
    bed.writer.write(group)
    bed.broker.written(group)
    answers = bed.submit(ClaimWake(bed.now_ms, "pull", "w"))
    assert answers == [DiskFull()]
    bed.broker.is_full = False
    bed.flush()
    assert bed.wake("pull").generation == 1


def test_wakes_that_have_no_room_are_issued_later_in_the_same_order() -> None:
    bed = WakeBed()
    for name in ("a", "b"):
        bed.subscribe(name)
    bed.submit(bed.append())
    wakes = Wakes(bed.broker.state, lambda _command: False, bed.broker.memberships.clock, bytes)
    wakes.issue_due()
    assert bed.broker.state.subscriptions.due == {"a", "b"}
    bed.flush()
    assert bed.wakes.issued == 2


# ---- leases --------------------------------------------------------------------------------------


def test_a_claimed_wake_ends_when_its_lease_has_expired_and_the_next_one_is_issued() -> None:
    bed = woken(PULL_WAKE)
    bed.claim()
    assert bed.wakes.leased == 1
    bed.sweep(LEASE_MS - 1)
    assert bed.wake("pull").worker == "w"
    bed.sweep(1)
    assert (bed.wake("pull").worker, bed.wake("pull").generation) == ("", 2)
    assert bed.wakes.leased == 0


@pytest.mark.parametrize("offset", [None, 1])
def test_an_ack_renews_the_lease_also_without_offsets(offset: int | None) -> None:
    bed = woken(PULL_WAKE)
    bed.execute(bed.append())
    bed.claim()
    bed.now_ms += LEASE_MS - 1
    assert bed.ack("pull", offset=offset) == WakeAcked(next_wake=False)
    bed.sweep(LEASE_MS - 1)
    assert bed.wake("pull").worker == "w"
    bed.sweep(1)
    assert bed.wake("pull").worker == ""


def test_a_refused_ack_does_not_renew_the_lease() -> None:
    bed = woken(PULL_WAKE)
    bed.claim()
    bed.now_ms += LEASE_MS - 1
    assert isinstance(bed.execute(AckWake(bed.now_ms, WakeAck("pull", "x", 1))), Fenced)
    bed.sweep(1)
    assert bed.wake("pull").worker == ""


@pytest.mark.parametrize("kind", ["ack", "release", "commit"])
def test_a_worker_whose_lease_has_expired_is_fenced_before_any_sweep(kind: str) -> None:
    bed = woken(PULL_WAKE)
    bed.claim()
    ack = bed.ack_of("pull", offset=1)
    bed.now_ms += LEASE_MS
    now_ms = bed.now_ms
    commit = Commit(
        now_ms,
        "p",
        0,
        0,
        appends=(CommitAppend("s", "text/plain", Batch(b"x")),),
        wakes=(ack,),
    )
    outcome = {
        "ack": lambda: bed.execute(AckWake(now_ms, ack)),
        "release": lambda: bed.execute(ReleaseWake(now_ms, "pull", ack.wake_id, 1)),
        "commit": lambda: bed.execute(commit),
    }[kind]()
    assert isinstance(outcome, Fenced)
    assert bed.broker.state.by_path["s"].tail.tail == 1


def test_a_done_ack_a_release_and_a_deletion_end_the_lease() -> None:
    bed = woken(PULL_WAKE)
    bed.claim()
    assert bed.ack("pull", done=True, offset=1) == WakeAcked(next_wake=False)
    assert bed.wakes.leased == 0
    bed.execute(bed.append())
    bed.claim()
    wake = bed.wake("pull")
    release = ReleaseWake(bed.now_ms, "pull", wake.wake_id, wake.generation)
    assert bed.execute(release) == WakeChanged()
    assert bed.wakes.leased == 0
    bed.claim()
    bed.execute(DeleteSubscription(bed.now_ms, "pull"))
    assert bed.wakes.leased == 0
    assert bed.sweep(LEASE_MS) == 0


@pytest.mark.parametrize("is_done", [False, True])
def test_an_ack_in_a_commit_renews_or_ends_the_lease(is_done: bool) -> None:
    bed = woken(PULL_WAKE)
    bed.claim()
    bed.now_ms += LEASE_MS - 1
    ack = bed.ack_of("pull", done=is_done, offset=1)
    bed.execute(
        Commit(
            bed.now_ms,
            "p",
            0,
            0,
            appends=(CommitAppend("wakes", "application/json", Batch(b"{}")),),
            wakes=(ack,),
        )
    )
    assert bed.wakes.leased == (0 if is_done else 1)
    bed.sweep(1)
    assert bed.wakes.expired == 0


def test_after_a_restart_a_claimed_wake_stays_with_its_worker_and_its_lease_starts_again() -> None:
    bed = woken(PULL_WAKE)
    bed.claim()
    bed.now_ms += LEASE_MS - 1
    bed.restart()
    bed.sweep(LEASE_MS - 1)
    assert bed.wake("pull").worker == "w"
    bed.sweep(1)
    assert bed.wake("pull").worker == ""


def test_an_expiry_of_a_wake_that_is_over_changes_nothing() -> None:
    bed = woken(PULL_WAKE)
    bed.claim()
    bed.wakes._leases.start("gone", 0)
    bed.sweep()
    assert "gone" not in bed.wakes._leases
    early = ExpireWake(bed.now_ms, "pull", bed.wake("pull").generation, 0)
    bed.execute(early)
    assert bed.wake("pull").worker == "w"


# ---- deliveries ----------------------------------------------------------------------------------


def test_a_delivery_is_due_when_its_wake_is_durable() -> None:
    bed = WakeBed()
    bed.subscribe("hook")
    bed.submit(bed.append())
    group = bed.broker.next_group()
    assert group is not None
    assert bed.wakes.take_deliveries(10) == []
    bed.writer.write(group)
    bed.broker.written(group)
    assert bed.wakes.take_deliveries(10) == ["hook"]
    assert bed.wakes.take_deliveries(10) == []


def test_a_delivery_calls_the_server_if_it_wants_to_be_called() -> None:
    bed = WakeBed()
    called: list[str] = []
    bed.wakes.on_deliverable = called.append
    bed.subscribe("hook")
    bed.subscribe("pull", PULL_WAKE)
    bed.execute(bed.append())
    assert called == ["hook"]
    assert bed.wakes.take_deliveries(10) == []


def test_a_failed_delivery_is_due_again_after_a_delay_that_grows() -> None:
    bed = woken()
    for attempts in range(1, 4):
        assert bed.wakes.take_deliveries(1) == ["hook"]
        bed.note("hook", "connection refused")
        delay_ms = retry_ms("hook", attempts)
        bed.sweep(delay_ms - 1)
        assert bed.wakes.take_deliveries(1) == []
        bed.sweep(1)
    assert bed.wakes.take_deliveries(1) == ["hook"]
    assert bed.wake("hook").attempts == bed.wakes.failed == 3


def test_the_delay_of_the_receiver_holds_if_it_is_longer() -> None:
    bed = woken()
    bed.wakes.take_deliveries(1)
    bed.note("hook", "status 503", retry_after_ms=5_000)
    bed.sweep(4_999)
    assert bed.wakes.take_deliveries(1) == []
    bed.sweep(1)
    assert bed.wakes.take_deliveries(1) == ["hook"]


def test_a_failure_is_repeated_later_also_if_the_disk_is_too_full_to_record_it() -> None:
    bed = woken()
    bed.wakes.take_deliveries(1)
    bed.broker.is_full = True
    assert bed.note("hook", "status 500") == DiskFull()
    bed.sweep(2 * RETRY_MS_MIN)
    assert bed.wakes.take_deliveries(1) == ["hook"]


def test_a_successful_delivery_begins_the_lease_and_its_end_delivers_the_next_wake() -> None:
    bed = woken()
    bed.wakes.take_deliveries(1)
    assert bed.note("hook", None) == WakeChanged()
    assert (bed.wakes.delivered, bed.wakes.leased) == (1, 1)
    assert not bed.wakes.is_deliverable("hook")
    bed.sweep(LEASE_MS)
    assert bed.wake("hook").generation == 2
    assert bed.wakes.take_deliveries(1) == ["hook"]
    assert bed.wakes.is_deliverable("hook")


def test_a_callback_during_a_delivery_that_fails_afterwards_is_not_delivered_again() -> None:
    bed = woken()
    bed.wakes.take_deliveries(1)
    assert bed.ack("hook") == WakeAcked(next_wake=False)
    bed.note("hook", "the connection was lost")
    bed.sweep(RETRY_MS_MAX // 3)
    assert bed.wakes.take_deliveries(1) == []
    assert bed.wakes.leased == 1


def test_a_suspended_wake_is_not_delivered_until_it_is_resumed() -> None:
    bed = woken()
    bed.wakes.take_deliveries(1)
    bed.note("hook", "status 410", attempts_max=1)
    assert bed.wake("hook").is_suspended
    bed.sweep(10 * RETRY_MS_MAX)
    assert bed.wakes.take_deliveries(1) == []
    assert not bed.wakes.is_deliverable("hook")
    bed.restart()
    assert bed.wakes.take_deliveries(1) == []
    bed.execute(ResumeSubscription(bed.now_ms, "hook"))
    assert bed.wakes.take_deliveries(1) == ["hook"]
    assert bed.wake("hook").generation == 1


def test_a_suspension_ends_the_lease_and_not_the_wake() -> None:
    bed = woken()
    bed.ack("hook")
    assert bed.wakes.leased == 1
    bed.note("hook", "status 500", attempts_max=1)
    bed.sweep(2 * LEASE_MS)
    assert (bed.wakes.leased, bed.wakes.expired) == (0, 0)
    assert (bed.wake("hook").generation, bed.wake("hook").is_suspended) == (1, True)


def test_the_delay_of_a_wake_that_has_ended_does_not_deliver_the_next_one_again() -> None:
    bed = woken()
    bed.execute(bed.append())
    bed.wakes.take_deliveries(1)
    bed.note("hook", "status 500")
    assert bed.ack("hook", done=True, offset=1) == WakeAcked(next_wake=True)
    assert bed.wakes.take_deliveries(1) == ["hook"]
    bed.sweep(2 * RETRY_MS_MIN)
    assert bed.wakes.take_deliveries(1) == []


def test_a_deleted_subscription_is_not_delivered() -> None:
    bed = woken()
    bed.execute(DeleteSubscription(bed.now_ms, "hook"))
    assert bed.wakes.take_deliveries(1) == []
    assert not bed.wakes.is_deliverable("hook")
    bed.wakes._retries.start("hook", 0)
    bed.wakes.offer_due()
    assert bed.wakes.take_deliveries(1) == []


@pytest.mark.parametrize("error", [None, "status 500"])
def test_a_late_delivery_to_a_deleted_subscription_starts_no_time_of_a_new_one(
    error: str | None,
) -> None:
    bed = woken()
    bed.wakes.take_deliveries(1)
    old = bed.wake("hook")
    late = NoteDelivery(bed.now_ms, "hook", old.generation, error, 1, wake_id=old.wake_id)
    bed.execute(DeleteSubscription(bed.now_ms, "hook"))
    bed.subscribe("hook")
    bed.execute(bed.append())
    assert bed.execute(late) == Fenced("hook", old.generation)
    assert (bed.wakes.leased, bed.wake("hook").is_suspended) == (0, False)
    assert bed.wakes.take_deliveries(1) == ["hook"]


def test_after_a_restart_wakes_in_flight_are_delivered_again_with_their_generation() -> None:
    bed = WakeBed()
    for name in ("a", "b"):
        bed.subscribe(name)
    bed.subscribe("pull", PULL_WAKE)
    bed.execute(bed.append())
    bed.wakes.take_deliveries(10)
    bed.note("a", "status 500")
    before = bed.wake("b")
    bed.restart()
    assert bed.wakes.take_deliveries(10) == ["b"]
    assert bed.wake("b") == before
    bed.sweep(2 * RETRY_MS_MIN)
    assert bed.wakes.take_deliveries(10) == ["a"]


def test_delays_double_up_to_a_minute_and_differ_by_a_fifth_at_most() -> None:
    for attempts in range(1, 2_000):
        expected = min(RETRY_MS_MIN * 2 ** min(attempts - 1, 20), RETRY_MS_MAX)
        assert 0.8 * expected <= retry_ms("h", attempts) <= 1.2 * expected
    delays = {retry_ms(f"h{number}", 10) for number in range(100)}
    assert len(delays) > 90
    assert max(delays) - min(delays) > 0.3 * RETRY_MS_MAX
