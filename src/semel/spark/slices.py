"""Cutting ranges of offsets into slices, one for each task."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Final

from msgspec import Struct
from pyspark.sql.datasource import InputPartition

# About 20 MB of usual messages: enough to make the cost of a task small, and to use every core.
OFFSETS_PER_SLICE: Final = 100_000
SLICES_MAX: Final = 200  # unless minPartitions asks for more


class Span(Struct, frozen=True):
    """Offsets of the stream of this incarnation, up to `end`.

    `is_open`: it begins with whatever is the first message, so that nothing before it is missing.
    """

    id: str
    begin: int
    end: int
    is_open: bool = False


class Slice(InputPartition):
    """What one task reads."""

    def __init__(self, stream: str, span: Span) -> None:
        super().__init__((stream, span.id, span.begin, span.end))
        self.stream = stream
        self.span = span

    def __repr__(self) -> str:
        return f"Slice({self.stream!r}, {self.span.begin}, {self.span.end})"


def cut(spans: Mapping[str, Span], min_partitions: int) -> list[Slice]:
    """Cut spans into slices in order, at least `min_partitions` if there are as many offsets."""
    total = sum(span.end - span.begin for span in spans.values())
    if not total:
        return []
    wanted = max(min_partitions, min(total // OFFSETS_PER_SLICE, SLICES_MAX))
    slices: list[Slice] = []
    for stream, span in sorted(spans.items()):
        length = span.end - span.begin
        if not length:
            continue
        # Rounded up, so that together they are not fewer than what was asked for.
        count = min(length, -(-length * wanted // total))
        edges = [span.begin + length * number // count for number in range(count + 1)]
        for begin, end in pairwise(edges):
            is_open = span.is_open and begin == span.begin
            slices.append(Slice(stream, Span(span.id, begin, end, is_open)))
    return slices
