"""Idle producers are expired after their idle time, never before."""

from semel.machine.rows import ProducerRow
from semel.model.commands import (
    Append,
    Batch,
    Begin,
    ClaimProducer,
    Delete,
    ForgetProducer,
    ProducerOwner,
    ProducerTag,
)
from semel.model.outcomes import Duplicate, ProducerStateExpired
from tests.unit.broker.bed import Bed

IDLE_MS = 100


class IdleBed(Bed):
    """A test bed whose broker expires idle producers."""

    def __init__(self) -> None:
        super().__init__(producer_idle_ms=IDLE_MS)

    def write(self, seq: int, name: str = "p", path: str = "s") -> object:
        tag = ProducerTag(name, seq, seq, 0)
        batch = Batch(b"%d" % seq)
        return self.execute(Append(path, self.now_ms, "text/plain", batch, producer=tag))

    def row(self, name: str = "p") -> ProducerRow | None:
        producers = self.broker.state.by_path["s"].producers
        return None if producers is None else producers.get(name)

    def is_expired(self, name: str = "p") -> bool:
        row = self.row(name)
        return row is not None and row.is_expired


def bed_with(*names: str) -> IdleBed:
    bed = IdleBed()
    bed.execute(bed.create())
    for name in names:
        bed.write(0, name)
    return bed


# rows: D16, P24, X12
def test_a_silent_producer_leaves_a_tombstone_that_refuses_its_late_retry() -> None:
    bed = bed_with("p")
    assert bed.sweep(IDLE_MS - 1) == 0
    assert bed.sweep(1) == 1
    assert bed.is_expired()
    assert bed.sweep(IDLE_MS) == 0, "a producer expires only once"
    assert bed.write(1) == ProducerStateExpired(0)


# rows: D16
def test_a_producer_that_writes_lives_on() -> None:
    bed = bed_with("p", "q")
    bed.now_ms += IDLE_MS - 1
    bed.write(1)
    assert bed.sweep(1) == 1
    assert (bed.is_expired("p"), bed.is_expired("q")) == (False, True)
    assert isinstance(bed.write(1), Duplicate)
    assert bed.sweep(IDLE_MS) == 1
    assert bed.is_expired("p")


def test_the_successor_over_a_tombstone_is_watched_again() -> None:
    bed = bed_with("p")
    bed.sweep(IDLE_MS)
    tag = ProducerTag("p", 0, 0, 1)
    bed.execute(Append("s", bed.now_ms, "text/plain", Batch(b"x"), producer=tag))
    assert not bed.is_expired()
    assert bed.sweep(IDLE_MS) == 1
    assert bed.is_expired()


def test_producers_are_watched_again_after_a_restart() -> None:
    bed = bed_with("p")
    bed.restart()
    assert bed.sweep(IDLE_MS) == 1
    bed.restart()
    assert bed.sweep(IDLE_MS) == 0


def test_a_producer_that_only_claimed_is_watched_too() -> None:
    bed = bed_with()
    bed.execute(ClaimProducer("s", bed.now_ms, "p", "session"))
    assert bed.sweep(IDLE_MS - 1) == 0
    assert bed.sweep(1) == 1


def test_a_producer_that_claimed_over_a_transaction_is_watched_too() -> None:
    bed = bed_with()
    bed.execute(Begin(bed.now_ms, "t", ProducerOwner("p", 0)))
    bed.execute(ClaimProducer("s", bed.now_ms, "p", "session"))
    assert bed.sweep(IDLE_MS) == 1


def test_few_are_let_go_at_a_time() -> None:
    bed = bed_with(*(f"p{number}" for number in range(5)))
    assert [bed.sweep(IDLE_MS, 2), bed.sweep(1, 2), bed.sweep(1, 2)] == [2, 2, 1]


def test_what_is_gone_is_no_longer_watched() -> None:
    bed = bed_with("p", "q")
    bed.execute(ForgetProducer("s", bed.now_ms, "p"))
    assert bed.sweep(IDLE_MS) == 1
    bed.write(0, "r")
    bed.execute(Delete("s", bed.now_ms))
    assert bed.sweep(IDLE_MS) == 0


def test_without_the_setting_nothing_is_let_go() -> None:
    bed = Bed()
    bed.execute(bed.create())
    tag = ProducerTag("p", 0, 0, 0)
    bed.execute(Append("s", bed.now_ms, "text/plain", Batch(b"x"), producer=tag))
    assert bed.sweep(10**12) == 0
