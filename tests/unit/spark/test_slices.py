"""Splitting a batch into tasks."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from semel.spark.source.slices import (
    OFFSETS_MAX,
    OFFSETS_MIN,
    OffsetRange,
    Span,
    TaskInput,
    split_range,
)


def slices_of(portions: list[TaskInput]) -> list[OffsetRange]:
    return [one for portion in portions for one in portion.ranges]


def test_a_small_batch_has_about_as_many_portions_as_there_are_cores() -> None:
    spans = {"b": Span("j", 5, 9), "a": Span("i", 0, 3), "c": Span("k", 0, 1)}
    portions = split_range(spans, 1, cores=2)
    assert [repr(portion) for portion in portions] == [
        "TaskInput(a 0-3)",
        "TaskInput(b 5-9)",
        "TaskInput(c 0-1)",
    ]
    assert [repr(portion) for portion in split_range(spans, 1, cores=1)] == [
        "TaskInput(a 0-3, b 5-9, c 0-1)"
    ]


def test_many_small_streams_are_a_few_portions() -> None:
    spans = {f"s{number:04}": Span("i", 0, 1) for number in range(3000)}
    portions = split_range(spans, 1, cores=4)
    assert [len(portion.ranges) for portion in portions] == [750] * 4
    assert [one.stream for one in slices_of(portions)] == sorted(spans)
    assert len(split_range(spans, 100, cores=4)) == 100


def test_a_large_batch_is_cut_so_that_every_core_has_something_to_do() -> None:
    def count(offsets: int, min_partitions: int = 1) -> int:
        return len(split_range({"a": Span("i", 0, offsets)}, min_partitions, cores=4))

    assert [count(offsets) for offsets in (10, 2 * OFFSETS_MIN, 10 * OFFSETS_MIN)] == [1, 2, 4]
    assert count(50 * OFFSETS_MAX) == 50
    assert count(50 * OFFSETS_MAX, 300) == 300


def test_nothing_to_read_is_no_slice() -> None:
    assert split_range({}, 4) == []
    assert split_range({"a": Span("i", 7, 7)}, 4) == []


def test_only_the_first_slice_of_an_open_span_may_begin_later() -> None:
    slices = slices_of(split_range({"a": Span("i", 0, 10, is_open=True)}, 2, cores=2))
    assert [each.span.is_open for each in slices] == [True, False]


@given(
    st.dictionaries(
        st.sampled_from("abcd"), st.tuples(st.integers(0, 99), st.integers(0, 400_000)), max_size=4
    ),
    st.integers(1, 20),
)
def test_slices_cover_every_offset_once_and_in_order(
    ranges: dict[str, tuple[int, int]], min_partitions: int
) -> None:
    spans = {stream: Span("i", begin, begin + size) for stream, (begin, size) in ranges.items()}
    portions = split_range(spans, min_partitions)
    slices = slices_of(portions)
    for stream, span in spans.items():
        mine = [each.span for each in slices if each.stream == stream]
        assert all(before.end == after.begin for before, after in pairwise(mine))
        assert all(each.begin < each.end for each in mine)
        if span.begin < span.end:
            assert (mine[0].begin, mine[-1].end) == (span.begin, span.end)
    total = sum(span.end - span.begin for span in spans.values())
    assert len(portions) >= min(min_partitions, total)
    assert all(portion.ranges for portion in portions)
