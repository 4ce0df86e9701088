"""Declared idle times, registrations and tombstones end by the clocks of the broker."""

from semel.machine.events import TombstonesDropped
from semel.machine.rows import ProducerRow
from semel.machine.state import find_producer
from semel.model.commands import (
    AbortTxn,
    Append,
    Batch,
    Begin,
    Delete,
    ExpireProducer,
    ForgetProducer,
    ProducerOwner,
    ProducerTag,
    Register,
)
from semel.model.limits import TOMBSTONE_HOURS, TOMBSTONE_MS
from semel.model.producer_commands import RetiredProducer, RetireProducers
from tests.unit.broker.bed import Bed

IDLE_MS = 60_000


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


def test_a_tombstone_that_was_used_again_or_forgotten_is_left_alone() -> None:
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


def test_only_so_many_end_in_one_sweep() -> None:
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
