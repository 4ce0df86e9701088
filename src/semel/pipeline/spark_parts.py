"""The ranges of a step, cut into what each task takes: in the order of the outputs. Pure."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from msgspec import Struct

from semel.client.values import Message
from semel.pipeline.delivery import Range


class Part(Struct, frozen=True):
    """What one task takes, by binding: of a join a range of every input, else of one.

    `is_open`: its step begins where the stream does, so that what is trimmed is not missing.
    """

    ranges: Mapping[str, Range]
    is_open: bool = False


def cut(
    inputs: Mapping[str, str], ranges: Sequence[Range], tasks: int, messages_min: int
) -> list[Part]:
    """Cut ranges for that many tasks, each with so many offsets at least if there is a choice.

    They stand in the order of the bindings, then of offsets.
    """
    by_stream = {one.stream: one for one in ranges}
    total = sum(one.to - one.start for one in ranges)
    wanted = max(min(tasks, total // messages_min), 1)
    parts = []
    for binding, path in inputs.items():
        one = by_stream[path]
        length = one.to - one.start
        count = min(length, -(-length * wanted // max(total, 1)))
        for start, to in pairwise(_edges(length, count)):
            piece = one._replace(start=one.start + start, to=one.start + to)
            parts.append(Part({binding: piece}, is_open=one.start == 0))
    return parts


def cut_join(
    inputs: Mapping[str, str],
    ranges: Sequence[Range],
    messages: Mapping[str, Sequence[Message]],
    tasks: int,
    messages_min: int,
) -> list[Part]:
    """Cut a join so that a task has the same messages of every input, counted from the first.

    Offsets may have holes, so only the messages themselves tell where to cut.
    """
    by_stream = {one.stream: one for one in ranges}
    (length,) = {len(found) for found in messages.values()}
    count = min(max(min(tasks, length // messages_min), 1), length)
    parts = []
    for first, end in pairwise(_edges(length, count)):
        found = {}
        for binding, path in inputs.items():
            one, places = by_stream[path], [message.place for message in messages[binding]]
            start = places[first] if first else one.start
            to = places[end] if end < length else one.to
            assert isinstance(start, int)
            assert isinstance(to, int)
            found[binding] = one._replace(start=start, to=to)
        parts.append(Part(found))
    return parts


def _edges(length: int, count: int) -> list[int]:
    return [length * number // count for number in range(count + 1)] if count else []
