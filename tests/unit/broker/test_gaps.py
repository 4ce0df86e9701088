"""An append that arrives too early waits a short time for the sequences before it."""

from collections.abc import Callable
from typing import Any

import pytest

from semel.broker import gap_hold
from semel.broker.gap_hold import GapHold
from semel.model.commands import SPARSE, Append, Batch, ProducerTag
from semel.model.outcomes import Appended, Duplicate, Outcome, SequenceGap
from semel.model.outcomes_topics import PartResult
from semel.model.topic_commands import AppendTopic, CreateTopic
from tests.unit.broker.bed import Bed


class Timers:
    """Timers that fire when the test calls `ring`."""

    def __init__(self) -> None:
        self.set: list[Timer] = []

    def call_later(self, seconds: float, call: Callable[[], object]) -> "Timer":
        assert seconds == 0.5
        timer = Timer(call)
        self.set.append(timer)
        return timer

    def ring(self) -> None:
        waiting, self.set = self.set, []
        for timer in waiting:
            if not timer.is_cancelled:
                timer.call()


class Timer:
    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class HeldBed(Bed):
    """A test bed with a `GapHold` in front of the broker."""

    def __init__(self) -> None:
        super().__init__()
        self.timers = Timers()
        self.hold = GapHold(self.broker.submit, self.timers.call_later, seconds=0.5)
        self.execute(self.create())
        self.replies: dict[str, list[Outcome]] = {}

    def send(self, seq: int, label: str = "", **more: Any) -> None:
        """Submit an append without flushing."""
        tag = ProducerTag("p", seq, seq, more.pop("epoch", 0), **more)
        command = Append("s", self.now_ms, "text/plain", Batch(b"%d" % seq), producer=tag)
        self.hold.submit(command, self.replies.setdefault(label or str(seq), []).append)

    def seqs(self) -> list[str]:
        """Return the labels of the accepted appends in the order of their offsets."""
        accepted = [
            (outcomes[0].first_offset, label)
            for label, outcomes in self.replies.items()
            if isinstance(outcomes[0], Appended)
        ]
        return [label for _, label in sorted(accepted)]


@pytest.fixture
def bed() -> HeldBed:
    return HeldBed()


# rows: D20
def test_five_appends_in_reverse_order_are_all_accepted_in_order(bed: HeldBed) -> None:
    for seq in (4, 3, 2, 1):
        bed.send(seq)
    assert bed.hold.count == 4
    assert bed.replies["1"] == []
    bed.send(0)
    bed.flush()
    assert bed.seqs() == ["0", "1", "2", "3", "4"]
    assert bed.hold.count == 0
    assert all(timer.is_cancelled for timer in bed.timers.set)


def test_every_order_of_arrival_and_flushing_ends_the_same(bed: HeldBed) -> None:
    for seq, is_flushed in ((3, False), (0, False), (4, True), (1, False), (2, True)):
        bed.send(seq)
        if is_flushed:
            bed.flush()
    bed.flush()
    assert bed.seqs() == ["0", "1", "2", "3", "4"]


def test_a_gap_decided_between_an_append_and_its_answer_is_released_too(bed: HeldBed) -> None:
    bed.send(1)
    bed.send(0)  # accepted, not durable yet
    bed.send(2)  # still a gap, because 1 is held
    bed.flush()
    assert bed.seqs() == ["0", "1", "2"]


# rows: D08, D17
def test_when_the_time_is_over_the_gap_is_told(bed: HeldBed) -> None:
    bed.send(2)
    bed.timers.ring()
    bed.flush()
    assert bed.replies["2"] == [SequenceGap(0, 2)]
    assert bed.hold.count == 0


def test_a_duplicate_of_the_predecessor_releases_as_well(bed: HeldBed) -> None:
    bed.send(0)
    bed.flush()
    bed.send(2)
    bed.send(0, "again")
    bed.send(1)
    bed.flush()
    assert isinstance(bed.replies["again"][0], Duplicate)
    assert bed.seqs() == ["0", "1", "2"]


def test_a_sequence_that_waits_already_is_refused_at_once(bed: HeldBed) -> None:
    bed.send(2)
    bed.send(2, "twice")
    bed.flush()
    assert bed.replies["twice"] == [SequenceGap(0, 2)]
    assert bed.hold.count == 1


@pytest.mark.parametrize(("name", "limit"), [("GAPS_HELD_MAX", 2), ("GAPS_HELD_BYTES_MAX", 2)])
def test_only_so_many_wait(
    bed: HeldBed, monkeypatch: pytest.MonkeyPatch, name: str, limit: int
) -> None:
    monkeypatch.setattr(gap_hold, name, limit)
    for seq in (3, 4, 5):
        bed.send(seq)
    bed.flush()
    assert bed.hold.count == 2
    assert bed.replies["5"] == [SequenceGap(0, 5)]


def test_other_refusals_and_other_producers_do_not_wait(bed: HeldBed) -> None:
    bed.send(0, mode=SPARSE)
    bed.flush()
    bed.send(3, "mode")
    anonymous: list[Outcome] = []
    bed.hold.submit(Append("s", 0, "text/plain", Batch(b"x")), anonymous.append)
    closing = ProducerTag("q", 1, 1, 0)
    bed.hold.submit(Append("s", 0, close=True, producer=closing), anonymous.append)
    bed.flush()
    assert type(bed.replies["mode"][0]).__name__ == "ModeConflict"
    assert [type(one).__name__ for one in anonymous] == ["Appended"]
    assert bed.hold.count == 1, "a close has a sequence like every append"


def test_at_the_end_everybody_is_answered(bed: HeldBed) -> None:
    bed.send(3)
    bed.send(2)
    bed.hold.drain()
    bed.flush()
    assert (bed.replies["2"], bed.replies["3"]) == ([SequenceGap(0, 2)], [SequenceGap(0, 3)])
    bed.timers.ring()
    bed.flush()
    assert len(bed.replies["2"]) == 1


# ---- topics --------------------------------------------------------------------------------------


def test_appends_to_a_topic_are_held_too(bed: HeldBed) -> None:
    bed.execute(CreateTopic("t", bed.now_ms, "it", 2, "text/plain"))
    replies: dict[int, list[Outcome]] = {}

    def send(seq: int, **more: Any) -> None:
        tag = ProducerTag("p", seq, seq, 0)
        command = AppendTopic("t", bed.now_ms, "text/plain", producer=tag, **more)
        bed.hold.submit(command, replies.setdefault(seq, []).append)

    send(2, batch=Batch(b"2"), partition=1)
    send(1, parts=((0, Batch(b"x")), (1, Batch(b"y"))), partitions=2)
    bed.flush()
    assert (bed.hold.count, replies[1], replies[2]) == (2, [], [])
    send(0, batch=Batch(b"0"), partition=0)
    bed.flush()
    assert bed.hold.count == 0
    stored = [replies[seq][0] for seq in (0, 1, 2)]
    assert [getattr(each, "parts", None) for each in stored] == [
        (PartResult(0, 0, 1),),
        (PartResult(0, 1, 2), PartResult(1, 0, 1)),
        (PartResult(1, 1, 2),),
    ]
