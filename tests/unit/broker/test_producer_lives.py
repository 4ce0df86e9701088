"""Declared idle times, registrations and tombstones end by the clocks of the broker."""

from collections.abc import Callable
from random import Random

import pytest

from semel.journal.checkpoint import commit_cut
from semel.machine.events import TombstonesDropped
from semel.machine.rows import ProducerRow
from semel.machine.state import find_producer
from semel.model.commands import (
    AbortTxn,
    Append,
    Batch,
    Begin,
    Create,
    Delete,
    ExpireProducer,
    ForgetProducer,
    ForkRequest,
    ProducerOwner,
    ProducerTag,
    Register,
)
from semel.model.limits import HOUR_MS, TOMBSTONE_HOURS, TOMBSTONE_MS
from semel.model.outcomes import Appended, Registered
from semel.model.producer_commands import RetiredProducer, RetireProducers
from tests.unit.broker.bed import Bed

IDLE_MS = MINUTE_MS = 60_000


class LivesBed(Bed):
    """A test bed with one stream."""

    def __init__(self, producer_idle_ms: int = 0) -> None:
        super().__init__(producer_idle_ms=producer_idle_ms)
        self.execute(self.create())

    def write(self, seq: int, name: str = "p", expires_ms: int = IDLE_MS) -> None:
        tag = ProducerTag(name, seq, seq, 0, expires_ms=expires_ms)
        self.execute(Append("s", self.now_ms, "text/plain", Batch(b"%d" % seq), producer=tag))

    def retire(self, *names: str) -> None:
        entries = tuple(RetiredProducer(name, "s", 0) for name in names)
        self.execute(RetireProducers(self.now_ms, entries))

    def row(self, name: str = "p") -> ProducerRow | None:
        return find_producer(self.broker.state.by_path["s"], name)

    def is_live(self, name: str = "p") -> bool:
        row = self.row(name)
        return row is not None and not row.is_expired


def test_an_expiring_producer_ends_when_it_is_silent() -> None:
    bed = LivesBed()
    bed.write(0)
    bed.sweep()
    for _ in range(3):
        bed.sweep(IDLE_MS // 4)
    assert bed.is_live()
    bed.sweep(IDLE_MS // 4)
    assert not bed.is_live()


def test_a_producer_that_begins_again_has_its_whole_time() -> None:
    bed = LivesBed()
    bed.write(0)
    bed.sweep()
    for _ in range(3):
        bed.sweep(IDLE_MS // 4)
    bed.execute(ForgetProducer("s", bed.now_ms, "p"))
    bed.write(0)
    for _ in range(4):
        assert bed.is_live()
        bed.sweep(IDLE_MS // 4)
    bed.sweep(IDLE_MS // 4)
    assert not bed.is_live()


def test_a_producer_that_begins_again_many_times_takes_the_room_of_one() -> None:
    bed = LivesBed()
    lives = bed.broker._lives
    for name, expires_ms in (("expiring", IDLE_MS), ("lasting", 0)):
        for epoch in range(3_000):
            tag = ProducerTag(name, 0, 0, epoch, expires_ms=expires_ms)
            bed.submit(Append("s", bed.now_ms, "text/plain", Batch(b"x"), producer=tag))
            bed.submit(ExpireProducer("s", bed.now_ms, name, 0, IDLE_MS))
            bed.sweep()
    assert len(lives._queue) < 1_100
    assert len(lives._by_hour) == 1
    for _ in range(4):
        bed.sweep(TOMBSTONE_MS // 4, count_max=1_000)
    assert bed.row("expiring") is None, "it is still watched"
    bed.run_for(TOMBSTONE_HOURS + 1)
    bed.sweep()
    assert bed.row("lasting") is None
    bed.run_for(1)
    bed.sweep(count_max=1_000)
    assert (lives._queue, lives._by_hour, lives._watched, lives._hourly) == ([], [], {}, set())


def test_tombstones_that_have_left_before_their_hour_take_no_room() -> None:
    bed = LivesBed()
    lives = bed.broker._lives
    for number in range(3_000):
        bed.write(0, f"p{number}", expires_ms=0)
        bed.submit(ExpireProducer("s", bed.now_ms, f"p{number}", 0, IDLE_MS))
        bed.sweep()
        if number > 5:
            bed.submit(ForgetProducer("s", bed.now_ms, f"p{number}"))
    assert len(lives._by_hour) < 1_100
    assert len(lives._hourly) < 1_100
    bed.run_for(TOMBSTONE_HOURS + 1)
    bed.sweep(count_max=2_000)
    assert not bed.broker.state.by_path["s"].producers, "the others are still watched"


def test_a_use_restarts_its_time() -> None:
    bed = LivesBed()
    bed.write(0)
    for seq in range(1, 12):
        bed.sweep(IDLE_MS // 4)
        bed.write(seq)
    bed.sweep(IDLE_MS // 4)  # sees the last use
    for _ in range(3):
        bed.sweep(IDLE_MS // 4)
        assert bed.is_live()
    bed.sweep(IDLE_MS // 4)
    assert not bed.is_live()


def test_the_idle_time_of_the_server_is_not_that_of_an_expiring_producer() -> None:
    bed = LivesBed(producer_idle_ms=100)
    bed.write(0)
    bed.write(0, "q", 0)
    bed.sweep(101)
    assert (bed.is_live(), bed.is_live("q")) == (True, False)


def test_a_brief_tombstone_leaves_after_its_time() -> None:
    bed = LivesBed()
    bed.write(0)
    bed.retire("p")
    bed.sweep()
    for _ in range(3):
        bed.sweep(TOMBSTONE_MS // 4)
        assert bed.row() is not None
    bed.sweep(TOMBSTONE_MS // 4)
    assert bed.row() is None
    assert bed.sweep(TOMBSTONE_MS) == 0


def test_after_a_restart_a_brief_tombstone_stays_for_its_whole_time() -> None:
    bed = LivesBed()
    bed.write(0)
    bed.retire("p")
    bed.now_ms += TOMBSTONE_MS
    bed.restart()
    bed.sweep(TOMBSTONE_MS - 1)
    assert bed.row() is not None
    bed.sweep(1)
    for _ in range(4):
        bed.sweep(TOMBSTONE_MS // 4)
    assert bed.row() is None


def test_the_tombstone_of_an_idle_producer_leaves_by_hours_also_after_restarts() -> None:
    bed = LivesBed()
    bed.write(0, expires_ms=0)
    bed.execute(ExpireProducer("s", bed.now_ms, "p", 0))
    bed.sweep(100 * TOMBSTONE_MS)
    bed.run_for(TOMBSTONE_HOURS // 2)
    bed.restart()
    bed.run_for(TOMBSTONE_HOURS // 2)
    bed.sweep()
    assert bed.row() is not None
    bed.run_for(1)
    bed.sweep()
    assert bed.row() is None


def test_a_tombstone_that_was_used_again_or_removed_is_left_alone() -> None:
    bed = LivesBed()
    for name in ("p", "q", "r"):
        bed.write(0, name, 0)
        bed.execute(ExpireProducer("s", bed.now_ms, name, 0))
    bed.sweep()
    tag = ProducerTag("p", 0, 0, 1)
    bed.execute(Append("s", bed.now_ms, "text/plain", Batch(b"x"), producer=tag))
    bed.execute(ForgetProducer("s", bed.now_ms, "q"))
    bed.run_for(100)
    tag = ProducerTag("r", 0, 0, 1)
    bed.execute(Append("s", bed.now_ms, "text/plain", Batch(b"x"), producer=tag))
    bed.execute(ExpireProducer("s", bed.now_ms, "r", 0))
    bed.run_for(TOMBSTONE_HOURS - 99)
    bed.sweep()
    assert bed.is_live()
    assert bed.row("r") is not None, "its hours began again"
    bed.run_for(100)
    bed.sweep()
    assert bed.row("r") is None


def test_tombstones_leave_in_frames_that_fit_into_the_smallest_segments() -> None:
    bed = LivesBed()
    names = [f"{number:03d}" + "n" * 200 for number in range(12)]
    for name in names:
        bed.write(0, name)
    for name in names:
        bed.retire(name)
    bed.sweep()
    frames: list[TombstonesDropped] = []
    note = bed.broker._note_event

    def noted(event: object, *rest: object) -> None:
        if isinstance(event, TombstonesDropped):
            frames.append(event)
        note(event, *rest)  # type: ignore[arg-type]

    bed.broker._note_event = noted  # type: ignore[method-assign, assignment]
    for _ in range(4):
        bed.sweep(TOMBSTONE_MS // 4, count_max=100)
    assert sorted(name for frame in frames for _, name in frame.tombstones) == names
    assert len(frames) > 2


def test_a_sweep_ends_at_most_a_fixed_number() -> None:
    bed = LivesBed()
    for name in "abc":
        bed.write(0, name)
    bed.sweep()
    for _ in range(4):
        bed.sweep(IDLE_MS // 4, count_max=1)
    ended = [name for name in "abc" if not bed.is_live(name)]
    assert 0 < len(ended) < 3


def test_the_producers_of_a_deleted_stream_are_left_alone() -> None:
    bed = LivesBed()
    bed.write(0)
    bed.sweep()
    bed.execute(Delete("s", bed.now_ms))
    assert bed.sweep(10 * IDLE_MS) == 0


# ---- restarts ------------------------------------------------------------------------------------
# A run is shorter than every idle time below. What passed before a restart is known in hours.


def run(bed: LivesBed, ms: int, *, is_killed: bool = False) -> None:
    """Let a process run for some time, with checkpoints and sweeps, and restart it."""
    end_ms = bed.now_ms + ms
    while bed.now_ms < end_ms:
        bed.now_ms = min(bed.now_ms + 2 * MINUTE_MS, end_ms)
        bed.sweep(count_max=10)
        bed.broker.count_hour(bed.now_ms)
        bed.flush()
        is_last = bed.now_ms == end_ms
        cut = None if is_last and is_killed else bed.broker.cut(is_last=is_last)
        if cut is not None:
            bed.flush()
            bed.broker.cut_done(commit_cut(bed.store, cut))
    bed.restart()
    bed.sweep()


def hours_until(bed: LivesBed, is_over: Callable[[], bool], ms: int, **how: bool) -> float:
    """Run again and again for `ms`, until something is over; return the hours that this took."""
    began_ms = bed.now_ms
    while not is_over():
        run(bed, ms, **how)
        assert bed.now_ms < began_ms + 100 * HOUR_MS, "it never ends"
    return (bed.now_ms - began_ms) / HOUR_MS


@pytest.mark.parametrize(
    ("idle_ms", "run_ms", "is_killed"),
    [
        (24 * HOUR_MS, 5 * HOUR_MS, False),
        (24 * HOUR_MS, 5 * HOUR_MS, True),
        (HOUR_MS, HOUR_MS // 2, False),
        (HOUR_MS, HOUR_MS // 2, True),
        (60_000, 59_000, False),  # killed before its first checkpoint, a process stores nothing
    ],
)
def test_restarts_delay_the_end_of_a_producer_by_few_hours(
    idle_ms: int, run_ms: int, is_killed: bool
) -> None:
    bed = LivesBed()
    bed.write(0, expires_ms=idle_ms)
    idle_hours, run_hours = idle_ms / HOUR_MS, run_ms / HOUR_MS
    hours = hours_until(bed, lambda: not bed.is_live(), run_ms, is_killed=is_killed)
    lost = 1 + (7 / 60 / run_hours if is_killed else 0)  # what a killed process did not store
    assert idle_hours <= hours <= (idle_hours + 2) * lost + run_hours


def test_restarts_never_end_a_producer_early() -> None:
    rng = Random(14)
    for _ in range(60):
        bed = LivesBed()
        idle_ms = rng.choice([1, 30, 90, 200]) * MINUTE_MS
        bed.write(0, expires_ms=idle_ms)
        used_ms, seq = bed.now_ms, 0
        for _ in range(rng.randrange(1, 40)):
            run(bed, rng.randrange(1, 80) * MINUTE_MS, is_killed=rng.random() < 0.5)
            assert bed.is_live() or bed.now_ms - used_ms >= idle_ms
            if not bed.is_live():
                break
            if rng.random() < 0.6:
                seq += 1
                bed.write(seq, expires_ms=idle_ms)
                used_ms = bed.now_ms


def test_restarts_delay_the_server_s_own_idle_time_by_few_hours() -> None:
    bed = LivesBed(producer_idle_ms=6 * HOUR_MS)
    bed.write(0, expires_ms=0)
    assert 6 <= hours_until(bed, lambda: not bed.is_live(), 5 * HOUR_MS) <= 15


def test_restarts_delay_the_end_of_a_brief_tombstone_by_few_hours() -> None:
    bed = LivesBed()
    bed.write(0)
    bed.retire("p")
    assert hours_until(bed, lambda: bed.row() is None, 9 * MINUTE_MS) <= 2.5


def test_restarts_delay_the_end_of_a_registration_by_few_hours() -> None:
    bed = LivesBed()
    register(bed, expires_ms=3 * HOUR_MS)
    ended = hours_until(bed, lambda: not bed.broker.state.registry, HOUR_MS)
    assert 3 <= ended <= 6


def test_a_registration_has_its_whole_time_after_the_end_of_its_last_producer() -> None:
    bed = LivesBed()
    register(bed, expires_ms=3 * HOUR_MS)
    bed.write(0, "1")
    bed.run_for(5)
    bed.write(1, "1")
    bed.sweep()
    for _ in range(5):
        bed.sweep(IDLE_MS // 4)
    assert not bed.is_live("1")
    bed.checkpoint()
    bed.restart()
    bed.sweep()
    assert "1" in bed.broker.state.registry
    assert 3 <= hours_until(bed, lambda: not bed.broker.state.registry, HOUR_MS) <= 6


def test_the_time_of_a_quiet_process_is_stored_for_the_hours() -> None:
    bed = LivesBed()
    bed.checkpoint()
    bed.now_ms += 4 * MINUTE_MS
    assert bed.broker.cut() is None
    bed.now_ms += MINUTE_MS
    assert bed.broker.cut() is not None
    bed.now_ms += 999
    assert bed.broker.cut(is_last=True) is None
    bed.now_ms += 1
    assert bed.broker.cut(is_last=True) is not None


# ---- registrations -------------------------------------------------------------------------------


def register(bed: LivesBed, name: str | None = None, expires_ms: int = IDLE_MS) -> None:
    bed.execute(Register(bed.now_ms, name, 0, expires_ms))


def test_an_unused_registration_ends() -> None:
    bed = LivesBed()
    register(bed)
    register(bed, "named")
    register(bed, "lasting", 0)
    bed.sweep()
    for _ in range(4):
        assert list(bed.broker.state.registry) == ["1", "named", "lasting"]
        bed.sweep(IDLE_MS // 4)
    assert list(bed.broker.state.registry) == ["named", "lasting"]
    bed.run_for(TOMBSTONE_HOURS + 25)
    bed.sweep()
    assert list(bed.broker.state.registry) == ["lasting"]


def test_a_registration_in_use_does_not_end() -> None:
    bed = LivesBed()
    register(bed)
    begin = Begin(bed.now_ms, "t", ProducerOwner("1", 0), timeout_ms=900_000, streams=("s",))
    bed.execute(begin)
    for _ in range(8):
        bed.sweep(IDLE_MS // 4)
    assert "1" in bed.broker.state.registry
    bed.execute(AbortTxn(bed.now_ms, "t", 1, "1", 0))
    bed.write(0, "1")
    for seq in range(1, 9):
        bed.sweep(IDLE_MS // 4)
        bed.write(seq, "1")
    assert "1" in bed.broker.state.registry
    for _ in range(12):
        bed.sweep(IDLE_MS // 4)
    assert "1" not in bed.broker.state.registry


def test_a_named_registration_that_is_used_again_stays() -> None:
    bed = LivesBed()
    register(bed, "named", 0)
    bed.execute(RetireProducers(bed.now_ms, (RetiredProducer("named", None, 0),)))
    bed.sweep()
    bed.execute(Register(bed.now_ms, "named"))
    bed.run_for(TOMBSTONE_HOURS + 25)
    bed.sweep()
    assert "named" in bed.broker.state.registry


def test_a_registration_ends_although_a_soft_deleted_stream_had_a_row_of_it() -> None:
    bed = LivesBed()
    register(bed)
    bed.write(0, "1")
    bed.write(0, "2", 0)
    bed.execute(Create("f", bed.now_ms, "if", fork=ForkRequest("s")))
    bed.execute(Delete("s", bed.now_ms))
    bed.sweep()
    for _ in range(4):
        assert "1" in bed.broker.state.registry
        bed.sweep(IDLE_MS // 4)
    assert "1" not in bed.broker.state.registry
    counts = bed.broker.state.producer_counts
    assert (counts.live, counts.tombstones, counts.expiring) == (0, 0, {})


def test_a_registration_that_has_left_begins_again_above_the_epochs_of_its_streams() -> None:
    bed = LivesBed()
    for epoch in range(6):
        assert bed.execute(Register(bed.now_ms, "named")) == Registered("named", epoch)
    tag = ProducerTag("named", 0, 0, 5)
    bed.execute(Append("s", bed.now_ms, "text/plain", Batch(b"x"), producer=tag))
    bed.execute(RetireProducers(bed.now_ms, (RetiredProducer("named", None, 5),)))
    bed.run_for(TOMBSTONE_HOURS + 25)
    bed.sweep()
    assert "named" not in bed.broker.state.registry
    assert bed.execute(Register(bed.now_ms, "named")) == Registered("named", 6)
    tag = ProducerTag("named", 0, 0, 6)
    again = Append("s", bed.now_ms, "text/plain", Batch(b"y"), producer=tag)
    assert isinstance(bed.execute(again), Appended)
