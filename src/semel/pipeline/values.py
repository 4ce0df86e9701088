"""The values of a run: ranges, steps, deliveries and errors."""

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
    """A step as it is pinned on the server; `ranges` are sorted by stream."""

    number: int
    ranges: tuple[Range, ...]
    hash: str


class Delivery(NamedTuple):
    """The identity of a step, as a sink gets it.

    It is the same on every retry of the step, and no other step has it. `number` grows by one with
    each step of the processor.
    """

    graph: str
    processor: str
    number: int
    ranges: tuple[Range, ...]
    hash: str


def step_of(graph: str, processor: str, number: int, ranges: Iterable[Range]) -> Step:
    """Return a step with its hash and its ranges, sorted by stream."""
    ordered = tuple(sorted(ranges))
    return Step(number, ordered, delivery_hash(graph, processor, number, ordered))


def delivery_hash(graph: str, processor: str, number: int, ranges: Iterable[Range]) -> str:
    """Return the SHA-256 of a step: of `[1, graph, processor, number, [[stream, ...], ...]]`.

    The array is encoded as canonical JSON: ranges sorted by stream, no spaces, non-ASCII characters
    as UTF-8 without escapes.
    """
    identity = [_VERSION, graph, processor, number, sorted(map(list, ranges))]
    text = json.dumps(identity, separators=(",", ":"), ensure_ascii=False)
    return sha256(text.encode()).hexdigest()


class GraphError(SemelError):
    """Raised if a graph cannot run; no processor was started.

    `complaints` lists everything that is wrong, and how to correct it.
    """

    code = "bad_graph"

    def __init__(self, graph: str, complaints: Sequence[str]) -> None:
        self.complaints = tuple(complaints)
        listed = "".join(f"\n  - {complaint}" for complaint in self.complaints)
        super().__init__(f"the graph {graph!r} cannot run:{listed}")


class ProcessorStopped(SemelError):
    """Raised if a processor cannot continue; `reason` says why.

    Its step stays pinned. A restart repeats that step, unless the processor is at-most-once.
    """

    code = "processor_stopped"

    def __init__(self, processor: str, reason: str) -> None:
        self.processor = processor
        self.reason = reason
        super().__init__(f"{processor} stopped: {reason}")


class EngineFailed(SemelError):
    """Raised if an engine cannot run a step, and the cause is not a single message."""

    code = "engine_failed"
