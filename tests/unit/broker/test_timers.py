"""Timeouts and dates when the wall clock jumps: timeouts follow the monotonic clock."""

import logging

import pytest
from msgspec.structs import replace

from semel.broker.timers import ClockWatch
from semel.machine.txn.views import TxnDates
from semel.model.commands import (
    TXN_STAGED,
    Append,
    Batch,
    Begin,
    Delete,
    Prepare,
    ProducerOwner,
    SinkOwner,
    Trim,
    TxnTag,
)
from semel.model.limits import HOUR_MS, SINK_IDLE_MS
from semel.model.outcomes_txn import Begun
from tests.unit.broker.bed import Bed

TEN_YEARS_MS = 10 * 365 * 24 * 3_600_000
TIMEOUT_MS = 2_000


class ClockBed(Bed):
    """A test bed with one stream."""

    def __init__(self) -> None:
        super().__init__()
        self.execute(self.create())

    def be_wrong_once(self) -> None:
        """Append once with a clock that is ten years ahead."""
        self.jump(TEN_YEARS_MS)
        self.execute(self.append())
        self.jump(-TEN_YEARS_MS)

    def begin(self, name: str = "t", *, kind: str = TXN_STAGED) -> Begun:
        owner = ProducerOwner(f"p-{name}", 0)
        command = Begin(self.now_ms, name, owner, kind, TIMEOUT_MS, ("s",))
        outcome = self.execute(command)
        assert isinstance(outcome, Begun)
        return outcome

    def stage(self, seq: int) -> None:
        tag = TxnTag("t", 1, seq)
        self.execute(Append("s", self.now_ms, "text/plain", Batch(b"x"), transaction=tag))

    def dates(self, name: str = "t") -> TxnDates:
        txn = self.broker.state.transactions[name]
        return self.broker.deadlines.dates(txn, self.now_ms)


# ---- timeouts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_restart", [False, True])
def test_after_one_wrong_time_a_transaction_ends_at_its_timeout(has_restart: bool) -> None:
    bed = ClockBed()
    bed.be_wrong_once()
    bed.begin()
    if has_restart:
        bed.restart()
    bed.now_ms += TIMEOUT_MS - 1
    assert bed.sweep() == 0
    bed.now_ms += 1
    assert bed.sweep() == 1


@pytest.mark.parametrize("jump_ms", [TEN_YEARS_MS, -TEN_YEARS_MS])
def test_a_jump_ends_nothing_and_keeps_nothing(jump_ms: int) -> None:
    bed = ClockBed()
    bed.execute(bed.create("mortal", ttl_ms=TIMEOUT_MS))
    bed.begin()
    bed.jump(jump_ms)
    bed.now_ms += TIMEOUT_MS - 1
    assert bed.sweep() == 0
    bed.now_ms += 1
    assert bed.sweep() == 2


def test_while_frame_time_does_not_change_uses_still_count() -> None:
    bed = ClockBed()
    bed.be_wrong_once()
    bed.execute(bed.create("mortal", ttl_ms=TIMEOUT_MS))
    bed.begin()
    for seq in range(3):
        bed.now_ms += TIMEOUT_MS - 1
        bed.stage(seq)
        bed.execute(bed.append(path="mortal"))
        assert bed.sweep() == 0
    bed.now_ms += TIMEOUT_MS
    assert bed.sweep() == 2


def test_a_trim_does_not_prolong_a_ttl() -> None:
    bed = ClockBed()
    bed.execute(bed.create("mortal", ttl_ms=TIMEOUT_MS))
    bed.execute(bed.append(path="mortal"))
    bed.now_ms += TIMEOUT_MS - 1
    bed.execute(Trim("mortal", bed.now_ms, 1))
    bed.now_ms += 1
    assert bed.sweep() == 1


def test_a_date_follows_the_wall_clock_and_nothing_else() -> None:
    bed = ClockBed()
    for path in ("dated", "deleted"):
        date_ms = bed.now_ms + TIMEOUT_MS
        bed.execute(replace(bed.create(path), expires_at_ms=date_ms))
    bed.execute(Delete("deleted", bed.now_ms))
    bed.be_wrong_once()
    bed.now_ms += TIMEOUT_MS - 1
    assert bed.sweep() == 0
    bed.jump(1)
    assert bed.sweep() == 1
    assert list(bed.broker.state.by_path) == ["s"]


def test_what_was_deleted_does_not_expire() -> None:
    bed = ClockBed()
    bed.execute(bed.create("mortal", ttl_ms=TIMEOUT_MS))
    bed.execute(Delete("mortal", bed.now_ms))
    bed.now_ms += TIMEOUT_MS
    assert bed.sweep() == 0


def test_a_stream_that_was_deleted_is_not_prolonged_by_a_late_read() -> None:
    bed = ClockBed()
    bed.broker._expiry.touch(99)
    assert not bed.broker._expiry.uses


# ---- dates ---------------------------------------------------------------------------------------


def test_dates_are_the_stored_ones_while_the_clock_is_right() -> None:
    bed = ClockBed()
    began_ms = bed.now_ms
    begun = bed.begin()
    assert begun.deadline_ms == began_ms + TIMEOUT_MS
    bed.now_ms += 300
    bed.stage(0)
    bed.jump(-2)  # the clock was corrected a little
    assert bed.dates() == TxnDates(began_ms, began_ms + 300, began_ms + 300 + TIMEOUT_MS)


def test_after_one_wrong_time_dates_follow_the_clock_as_it_is_now() -> None:
    bed = ClockBed()
    bed.be_wrong_once()
    began_ms = bed.now_ms
    begun = bed.begin()
    assert begun.deadline_ms == began_ms + TIMEOUT_MS
    bed.now_ms += 300
    bed.stage(0)
    bed.now_ms += 500
    expected = TxnDates(began_ms, began_ms + 300, began_ms + 300 + TIMEOUT_MS)
    assert bed.dates() == expected
    assert bed.begin() == Begun("t", 1, expected.due_ms, is_new=False)
    bed.jump(TEN_YEARS_MS)
    assert bed.dates().begun_ms == bed.now_ms - 800


def test_after_a_restart_a_stored_date_is_believed_unless_it_lies_in_the_future() -> None:
    bed = ClockBed()
    began_ms = bed.now_ms
    bed.begin("early")
    bed.be_wrong_once()
    bed.begin("late")
    bed.now_ms += 1_500
    bed.restart()
    started_ms = bed.now_ms
    bed.now_ms += 700
    assert bed.dates("early") == TxnDates(began_ms, began_ms, started_ms + TIMEOUT_MS)
    assert bed.dates("late") == TxnDates(started_ms, started_ms, started_ms + TIMEOUT_MS)


def test_a_prepared_transaction_has_no_deadline_and_one_of_a_sink_has() -> None:
    bed = ClockBed()
    bed.begin()
    bed.execute(Prepare(bed.now_ms, "t", 1))
    assert bed.dates().due_ms is None
    bed.execute(Begin(bed.now_ms, "k", SinkOwner("app", 1, 0), TXN_STAGED))
    assert bed.dates("k").due_ms == bed.now_ms + SINK_IDLE_MS


# ---- the warning ---------------------------------------------------------------------------------


def test_a_frame_ahead_of_the_clock_is_reported_once_each_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch = ClockWatch()
    with caplog.at_level(logging.WARNING, "semel"):
        for now_ms in (5_000, 4_000, 3_999, 1_000, 5_000, 0):
            watch.check(frame_ms=5_000, now_ms=now_ms)
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == 2
    assert "1 s ahead of the clock" in texts[0]
    assert "5 s ahead of the clock" in texts[1]


# ---- hours ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("is_stored", "rest_ms"), [(True, HOUR_MS // 4), (False, HOUR_MS)])
def test_a_checkpoint_stores_the_part_of_an_hour_that_has_passed(
    is_stored: bool, rest_ms: int
) -> None:
    bed = Bed()
    bed.execute(bed.create())
    bed.run_for(1)
    bed.now_ms += 3 * HOUR_MS // 4
    if is_stored:
        bed.checkpoint()
    bed.restart()
    bed.now_ms += rest_ms - 1
    assert not bed.broker.count_hour(bed.now_ms)
    bed.now_ms += 1
    assert bed.broker.count_hour(bed.now_ms)
    bed.flush()
    bed.restart()
    assert bed.broker.state.hours == 2
    bed.now_ms += HOUR_MS - 1
    assert not bed.broker.count_hour(bed.now_ms), "the part of the hour has counted twice"
