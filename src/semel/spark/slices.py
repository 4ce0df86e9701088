"""Cutting ranges of offsets into slices, one for each task."""

import os
from collections.abc import Mapping
from itertools import pairwise
from typing import Final

from msgspec import Struct
from pyspark.sql.datasource import InputPartition

# A task costs some 50 ms by itself. So a batch is cut for as many cores as the planner sees, if
# each gets enough; and a task never has so much that its failure is dear.
OFFSETS_MIN: Final = 50_000
OFFSETS_MAX: Final = 1_000_000


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


def cut(spans: Mapping[str, Span], min_partitions: int, cores: int | None = None) -> list[Slice]:
    """Cut spans into slices in order, at least `min_partitions` if there are as many offsets."""
    total = sum(span.end - span.begin for span in spans.values())
    cores = cores or os.cpu_count() or 1
    wanted = max(min_partitions, min(total // OFFSETS_MIN, cores), total // OFFSETS_MAX)
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
