"""A step: which ranges of the inputs it takes, its number, and the hash that names it for ever."""

import json
from collections.abc import Iterable
from hashlib import sha256
from typing import Final, NamedTuple

_VERSION: Final = 1


class Range(NamedTuple):
    """Messages of one stream: from the ordinal `start` up to, and without, `to`."""

    stream: str
    incarnation: str
    start: int
    to: int


class Step(NamedTuple):
    """A step as the server has pinned it; `ranges` in the order of their streams' names."""

    number: int
    ranges: tuple[Range, ...]
    hash: str


class Delivery(NamedTuple):
    """What a sink is told of a step: the same on every retry, and never the same for two steps.

    `number` grows by one with each step of the processor.
    """

    graph: str
    processor: str
    number: int
    ranges: tuple[Range, ...]
    hash: str


def step_of(graph: str, processor: str, number: int, ranges: Iterable[Range]) -> Step:
    """Name a step."""
    ordered = tuple(sorted(ranges))
    return Step(number, ordered, delivery_hash(graph, processor, number, ordered))


def delivery_hash(graph: str, processor: str, number: int, ranges: Iterable[Range]) -> str:
    """SHA-256 of the canonical JSON `[1, graph, processor, number, [[stream, ...], ...]]`.

    Canonical: ranges by name of stream, no spaces, UTF-8 without escapes.
    """
    named = [_VERSION, graph, processor, number, sorted(map(list, ranges))]
    text = json.dumps(named, separators=(",", ":"), ensure_ascii=False)
    return sha256(text.encode()).hexdigest()
