"""Cutting ranges of offsets into portions, one for each task."""

import os
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

from msgspec import Struct
from msgspec.structs import astuple
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


class Slice(Struct, frozen=True):
    """A piece of one stream."""

    stream: str
    span: Span

    def __len__(self) -> int:
        return self.span.end - self.span.begin


class Portion(InputPartition):
    """What one task reads, slice after slice."""

    def __init__(self, slices: Sequence[Slice]) -> None:
        super().__init__(tuple((one.stream, *astuple(one.span)) for one in slices))
        self.slices = tuple(slices)

    def __repr__(self) -> str:
        return f"Portion({', '.join(map(_shown, self.slices))})"


def _shown(part: Slice) -> str:
    return f"{part.stream} {part.span.begin}-{part.span.end}"


def cut(spans: Mapping[str, Span], min_partitions: int, cores: int | None = None) -> list[Portion]:
    """Cut spans into portions in order, at least `min_partitions` if there are as many offsets."""
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
    return _packed(slices, total // max(wanted, cores))


def _packed(slices: list[Slice], offsets_max: int) -> list[Portion]:
    """Put small slices together: a thousand streams with a message each are no thousand tasks."""
    portions: list[list[Slice]] = []
    room = 0
    for one in slices:
        room -= len(one)
        if room < 0:
            portions.append([])
            room = offsets_max - len(one)
        portions[-1].append(one)
    return [Portion(portion) for portion in portions]
