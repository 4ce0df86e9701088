"""The values that the run of a graph uses: ranges, steps, deliveries and errors."""

import json
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Final, NamedTuple

from semel.model.errors import SemelError

_VERSION: Final = 1


class Range(NamedTuple):
    """The messages of one stream from ordinal `start` up to, but not including, ordinal `to`."""

    stream: str
    incarnation: str
    start: int
    to: int


class Step(NamedTuple):
    """A step, as the server stores it. `ranges` are sorted by stream."""

    number: int
    ranges: tuple[Range, ...]
    hash: str


class Delivery(NamedTuple):
    """The identity of a step, which is passed to the function of a sink.

    A retry of the step has the same identity, and no other step has that identity. `number`
    increases by one with each step of the processor.
    """

    graph: str
    processor: str
    number: int
    ranges: tuple[Range, ...]
    hash: str


def step_of(graph: str, processor: str, number: int, ranges: Iterable[Range]) -> Step:
    """Return a step. Sort its ranges by stream, and compute its hash."""
    ordered = tuple(sorted(ranges))
    return Step(number, ordered, delivery_hash(graph, processor, number, ordered))


def delivery_hash(graph: str, processor: str, number: int, ranges: Iterable[Range]) -> str:
    """Return the hash of a step: the SHA-256 of its identity, in hexadecimal.

    The identity is the JSON array `[1, graph, processor, number, ranges]`. Each range is an array
    `[stream, incarnation, start, to]`, and the ranges are sorted. The JSON text is UTF-8 without
    spaces, and non-ASCII characters are not escaped.
    """
    identity = [_VERSION, graph, processor, number, sorted(map(list, ranges))]
    text = json.dumps(identity, separators=(",", ":"), ensure_ascii=False)
    return sha256(text.encode()).hexdigest()


class GraphError(SemelError):
    """Raised if a graph cannot run. In that case no processor was started.

    Each of the `complaints` says what is wrong and how to correct it.
    """

    code = "bad_graph"

    def __init__(self, graph: str, complaints: Sequence[str]) -> None:
        self.complaints = tuple(complaints)
        listed = "".join(f"\n  - {complaint}" for complaint in self.complaints)
        super().__init__(f"the graph {graph!r} cannot run:{listed}")


class ProcessorStopped(SemelError):
    """Raised if a processor cannot continue. `reason` says why.

    The server still stores the processor's current step. A restart repeats that step, unless the
    processor is at-most-once.
    """

    code = "processor_stopped"

    def __init__(self, processor: str, reason: str) -> None:
        self.processor = processor
        self.reason = reason
        super().__init__(f"{processor} stopped: {reason}")


class EngineFailed(SemelError):
    """Raised if an engine cannot run a step for a reason other than a failed message."""

    code = "engine_failed"
