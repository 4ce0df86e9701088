"""What an application sees of a run: the ranges and the name of a step, and the errors."""

import json
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Final, NamedTuple

from semel.model.errors import SemelError

_VERSION: Final = 1


class Range(NamedTuple):
    """Messages of one stream: from the ordinal `start` up to `to`, which is excluded."""

    stream: str
    incarnation: str
    start: int
    to: int


class Step(NamedTuple):
    """A step as the server has pinned it; `ranges` are sorted by stream."""

    number: int
    ranges: tuple[Range, ...]
    hash: str


class Delivery(NamedTuple):
    """A step as a sink gets it: the same on every retry, and different for every other step.

    `number` grows by one with each step of the processor.
    """

    graph: str
    processor: str
    number: int
    ranges: tuple[Range, ...]
    hash: str


def step_of(graph: str, processor: str, number: int, ranges: Iterable[Range]) -> Step:
    """Return the step with these ranges, sorted, and its hash."""
    ordered = tuple(sorted(ranges))
    return Step(number, ordered, delivery_hash(graph, processor, number, ordered))


def delivery_hash(graph: str, processor: str, number: int, ranges: Iterable[Range]) -> str:
    """Return the SHA-256 of canonical JSON: `[1, graph, processor, number, [[stream, ...], ...]]`.

    Canonical: ranges sorted by stream, no spaces, UTF-8 without escapes.
    """
    identity = [_VERSION, graph, processor, number, sorted(map(list, ranges))]
    text = json.dumps(identity, separators=(",", ":"), ensure_ascii=False)
    return sha256(text.encode()).hexdigest()


class GraphError(SemelError):
    """A graph cannot run; nothing was started. `complaints` lists everything that is wrong."""

    code = "bad_graph"

    def __init__(self, graph: str, complaints: Sequence[str]) -> None:
        self.complaints = tuple(complaints)
        listed = "".join(f"\n  - {complaint}" for complaint in self.complaints)
        super().__init__(f"the graph {graph!r} cannot run:{listed}")


class ProcessorStopped(SemelError):
    """A processor cannot continue. Its step stays pinned: a restart repeats the same step."""

    code = "processor_stopped"

    def __init__(self, processor: str, reason: str) -> None:
        self.processor = processor
        self.reason = reason
        super().__init__(f"{processor} stopped: {reason}")


class EngineFailed(SemelError):
    """An engine could not carry out a step, for a reason that is not about one message."""

    code = "engine_failed"
