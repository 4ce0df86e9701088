"""Ranges split into tasks: every message once, in order."""

from itertools import pairwise

import pytest

from semel.client.values import Message
from semel.pipeline.error_stream import RETRIES
from semel.pipeline.spark.reading import split_join_parts, split_parts
from semel.pipeline.values import Range


def message(offset: int) -> Message:
    return Message(b"1", "application/json", offset, offset + 1)


@pytest.mark.parametrize("tasks", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("messages_min", [1, 4, 1000])
def test_alternatives_are_cut_in_the_order_of_bindings_then_offsets(
    tasks: int, messages_min: int
) -> None:
    ranges = [Range("a", "i", 5, 15), Range("b", "j", 0, 3), Range("c", "k", 2, 2)]
    parts = split_parts({"y": "b", "x": "a", "z": "c"}, ranges, tasks, messages_min)
    taken = [
        (binding, offset)
        for part in parts
        for binding, one in part.ranges.items()
        for offset in range(one.start, one.to)
    ]
    assert taken == [("y", n) for n in range(3)] + [("x", n) for n in range(5, 15)]
    assert len(parts) <= min(tasks, 13) + 2
    assert all(one.to > one.start for part in parts for one in part.ranges.values())


def test_the_range_of_the_retry_stream_is_split_on_its_own() -> None:
    ranges = [Range("a", "i", 0, 4), Range("retries", "j", 3, 7)]
    (own,) = split_parts({"in": "a"}, ranges, 2, 3)
    assert own.ranges == {"in": ranges[0]}
    (retried,) = split_parts({RETRIES: "retries"}, ranges, 2, 3)
    assert retried.ranges == {RETRIES: ranges[1]}
    nothing: dict[str, list[Message]] = {"x": [], "y": [], RETRIES: [message(3)]}
    pair = [Range("a", "i", 2, 2), Range("b", "k", 5, 5), ranges[1]]
    assert split_join_parts({"x": "a", "y": "b"}, pair, nothing, 2, 1) == []


def test_a_step_of_nothing_has_no_parts() -> None:
    assert split_parts({"in": "a"}, [Range("a", "i", 5, 5)], 4, 1) == []


@pytest.mark.parametrize("tasks", [1, 2, 3, 5, 100])
def test_a_join_is_cut_by_messages_and_not_by_offsets(tasks: int) -> None:
    offsets = {"x": [0, 1, 2, 3, 4], "y": [10, 13, 14, 20, 29]}  # y has gaps
    ranges = [Range("a", "i", 0, 5), Range("b", "j", 10, 30)]
    found = {binding: [message(offset) for offset in each] for binding, each in offsets.items()}
    parts = split_join_parts({"x": "a", "y": "b"}, ranges, found, tasks, 1)
    assert len(parts) == min(tasks, 5)
    pairs = []
    for part in parts:
        taken = [
            [offset for offset in offsets[binding] if one.start <= offset < one.to]
            for binding, one in part.ranges.items()
        ]
        pairs += list(zip(*taken, strict=True))
    assert pairs == list(zip(offsets["x"], offsets["y"], strict=True))
    for binding in offsets:
        edges = [(part.ranges[binding].start, part.ranges[binding].to) for part in parts]
        assert all(before[1] == after[0] for before, after in pairwise(edges))
        assert (edges[0][0], edges[-1][1]) == ((0, 5) if binding == "x" else (10, 30))
