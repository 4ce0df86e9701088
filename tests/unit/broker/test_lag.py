"""The lag of groups: messages without control records and aborted ones, within a budget."""

import pytest

from semel.broker import lag as module
from semel.broker.lag import LagCounter
from semel.machine.group_views import Lag, share_view
from semel.model.commands import (
    AbortTxn,
    Append,
    Batch,
    Begin,
    CommitTxn,
    Create,
    Delete,
    ForkRequest,
    PositionMove,
    ProducerOwner,
    ProducerTag,
    SetPositions,
    Trim,
    TxnTag,
)
from semel.model.errors import CorruptRead
from semel.model.steps import finish
from tests.unit.broker.bed import Bed


@pytest.fixture
def bed() -> Bed:
    found = Bed(segment_bytes=65_536)
    found.execute(found.create())
    return found


def move(bed: Bed, to: int, path: str = "s") -> None:
    bed.execute(SetPositions(bed.now_ms, (PositionMove("g", path, to),)))


def lag(bed: Bed, path: str = "s") -> Lag:
    view = share_view(bed.broker.state, "g")
    assert view is not None
    (stream,) = [each for each in view.streams if each.path == path]
    counter = LagCounter(bed.broker.durable_view, bed.broker.reader, lambda: bed.now_ms)
    return finish(counter.steps(stream))


def transaction(bed: Bed, name: str, *, commits: bool) -> None:
    """Append one message in a transaction of a producer with the same name."""
    bed.execute(Begin(bed.now_ms, name, ProducerOwner(name, 0), streams=("s",)))
    bed.execute(
        Append(
            "s",
            bed.now_ms,
            "text/plain",
            Batch(b"x"),
            producer=ProducerTag(name, 0, 0, 0),
            transaction=TxnTag(name, 1),
        )
    )
    end = CommitTxn if commits else AbortTxn
    bed.execute(end(bed.now_ms, name, 1, name, 0))


def test_messages_are_counted_up_to_the_end(bed: Bed) -> None:
    for _ in range(3):
        bed.execute(bed.append())
    move(bed, 0)
    bed.now_ms += 1_500
    assert lag(bed) == Lag(3, 3, 1.5)
    move(bed, 2)
    assert lag(bed) == Lag(1, 1, 1.5)
    move(bed, 3)
    assert lag(bed) == Lag(0, 0, 0.0)


def test_what_was_trimmed_does_not_count(bed: Bed) -> None:
    for _ in range(3):
        bed.execute(bed.append())
    move(bed, 0)
    bed.execute(Trim("s", bed.now_ms, 2))
    assert lag(bed) == Lag(1, 1, 0.0)


def test_control_records_and_aborted_messages_do_not_count(bed: Bed) -> None:
    transaction(bed, "a", commits=True)
    transaction(bed, "b", commits=False)
    bed.execute(bed.append())
    move(bed, 0)
    assert lag(bed) == Lag(2, 5, 0.0)
    move(bed, 1)
    assert lag(bed) == Lag(1, 4, 0.0)


def test_only_control_records_are_no_lag(bed: Bed) -> None:
    transaction(bed, "a", commits=True)
    move(bed, 1)
    assert lag(bed) == Lag(0, 1, 0.0)


def test_too_many_appends_are_a_bound(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SPANS_MAX", 3)
    transaction(bed, "a", commits=True)
    for _ in range(3):
        bed.execute(bed.append())
    move(bed, 0)
    assert lag(bed) == Lag(None, 5, 0.0)
    move(bed, 2)
    assert lag(bed) == Lag(3, 3, 0.0)


def test_the_frames_that_are_read_are_limited(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    transaction(bed, "a", commits=True)
    bed.execute(bed.append())
    move(bed, 0)
    monkeypatch.setattr(module, "_FRAMES_IN_ALL", 1)
    assert lag(bed) == Lag(None, 3, 0.0)
    monkeypatch.setattr(module, "_FRAMES_IN_ALL", 0)
    assert lag(bed) == Lag(None, 3, None)


def test_a_plain_stream_needs_one_frame(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(9):
        bed.execute(bed.append())
    move(bed, 0)
    monkeypatch.setattr(module, "_FRAMES_IN_ALL", 1)
    monkeypatch.setattr(module, "SPANS_MAX", 1)
    assert lag(bed) == Lag(9, 9, 0.0)
    monkeypatch.setattr(module, "_FRAMES_IN_ALL", 0)
    assert lag(bed) == Lag(9, 9, None), "the age is not known"


def test_only_the_first_frame_is_read_if_it_is_long(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed.execute(bed.append(b"x" * 1_000))
    bed.now_ms += 2_000
    move(bed, 0)
    monkeypatch.setattr(module, "_FRAME_BYTES_MAX", 100)
    assert lag(bed) == Lag(1, 1, 2.0)
    monkeypatch.setattr(module, "_LONG_BYTES_IN_ALL", 1_000)
    assert lag(bed) == Lag(1, 1, None)
    monkeypatch.undo()
    monkeypatch.setattr(module, "_FRAME_BYTES_MAX", 100)
    monkeypatch.setattr(module, "_FIRST_FRAME_BYTES_MAX", 1_000)
    assert lag(bed) == Lag(1, 1, None)


def test_a_long_frame_is_read_alone_in_a_step(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    transaction(bed, "a", commits=True)
    bed.execute(bed.append())
    move(bed, 0)
    view = share_view(bed.broker.state, "g")
    assert view is not None
    monkeypatch.setattr(module, "_FRAME_BYTES_MAX", 100)
    counter = LagCounter(bed.broker.durable_view, bed.broker.reader, lambda: bed.now_ms)
    assert sum(1 for _ in counter.steps(view.streams[0])) == 1


def test_the_source_of_a_fork_can_have_control_records(bed: Bed) -> None:
    transaction(bed, "a", commits=True)
    bed.execute(bed.append())
    bed.execute(Create("f", bed.now_ms, "if", "text/plain", fork=ForkRequest("s", 3)))
    bed.execute(bed.append(path="f"))
    move(bed, 0, "f")
    assert lag(bed, "f") == Lag(3, 4, 0.0)


def test_a_deleted_stream_has_no_lag_that_is_known(bed: Bed) -> None:
    bed.execute(bed.append())
    move(bed, 0)
    view = share_view(bed.broker.state, "g")
    assert view is not None
    bed.execute(Delete("s", bed.now_ms))
    counter = LagCounter(bed.broker.durable_view, bed.broker.reader, lambda: bed.now_ms)
    assert finish(counter.steps(view.streams[0])) == Lag(None, 1, None)


def test_damage_is_not_counted(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    transaction(bed, "a", commits=True)
    move(bed, 0)

    def fail(*_: object) -> object:
        raise CorruptRead("damaged", file="f", position=0)

    monkeypatch.setattr(bed.broker.reader, "look", fail)
    assert lag(bed) == Lag(None, 2, None)


def test_a_long_walk_is_done_in_steps(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STEP_ROWS", 2)
    transaction(bed, "a", commits=True)
    for _ in range(5):
        bed.execute(bed.append())
    move(bed, 0)
    view = share_view(bed.broker.state, "g")
    assert view is not None
    counter = LagCounter(bed.broker.durable_view, bed.broker.reader, lambda: bed.now_ms)
    steps = counter.steps(view.streams[0])
    assert sum(1 for _ in steps) >= 3
    assert lag(bed) == Lag(6, 7, 0.0)
