from typing import Any

import msgspec

from semel.pipeline.trace import (
    DONE,
    PINNED,
    TAKEN,
    Outputs,
    TracedStep,
    offsets_record,
    pinned_step,
    printed_ranges,
    read_trace,
    step_record,
)
from semel.pipeline.values import Range, step_of

STEP = step_of("g", "p", 3, [Range("a", "i", 5, 9)])


def traced(number: int, processor: str = "p", outcome: str = DONE, **written: int) -> TracedStep:
    return TracedStep(
        processor=processor,
        number=number,
        ranges=printed_ranges(STEP.ranges),
        hash=f"hash-{number}",
        outcome=outcome,
        read=4,
        written=written,
    )


def through_a_stream(*records: Any) -> list[Any]:
    return [msgspec.json.decode(msgspec.json.encode(one)) for one in records]


def test_a_record_tells_where_the_outputs_of_the_step_before_are() -> None:
    records = through_a_stream(
        step_record(traced(1, out=2), None),
        step_record(traced(2, out=1), Outputs(1, {"out": ["0", "2"]})),
        step_record(traced(1, "q"), None),
        offsets_record("p", Outputs(2, {"out": ["2", "3"]})),
        step_record(traced(3, out=1), None),
    )
    found = read_trace(records)
    assert [(one.processor, one.number, one.outputs) for one in found] == [
        ("p", 1, {"out": ["0", "2"]}),
        ("p", 2, {"out": ["2", "3"]}),
        ("q", 1, {}),
        ("p", 3, None),
    ]
    assert found[0].ranges == printed_ranges(STEP.ranges)
    assert [one.processor for one in read_trace(records, "q")] == ["q"]


def test_a_taken_step_is_done_when_its_outputs_are_told() -> None:
    taken, done = (step_record(traced(1, outcome=outcome), None) for outcome in (TAKEN, DONE))
    assert [one.outcome for one in read_trace(through_a_stream(taken))] == [TAKEN]
    assert [one.outcome for one in read_trace(through_a_stream(taken, done))] == [DONE]


def test_what_others_write_there_and_what_is_trimmed_is_passed_over() -> None:
    records = through_a_stream(5, offsets_record("p", Outputs(1, {})), step_record(traced(2), None))
    assert [one.number for one in read_trace(records)] == [2]


def test_a_step_that_is_begun_is_told_so() -> None:
    found = pinned_step("p", STEP)
    assert (found.outcome, found.number, found.hash) == (PINNED, 3, STEP.hash)
