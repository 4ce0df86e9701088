"""The topology of a graph: which processor feeds which, levels, cycles, and isomorphism. Pure."""

from collections import Counter
from collections.abc import Hashable, Iterator
from typing import TYPE_CHECKING

from semel.pipeline.graph.processors import Processor

if TYPE_CHECKING:
    from semel.pipeline.graph.graph import Graph

Edge = tuple[Hashable, Hashable, str]


def writers(graph: "Graph") -> dict[str, list[str]]:
    """Return the ids of the processors that write to each stream, also as their error stream."""
    by_stream: dict[str, list[str]] = {}
    for one in graph.processors:
        for path in written(graph, one):
            by_stream.setdefault(path, []).append(one.id)
    return by_stream


def written(graph: "Graph", processor: Processor) -> list[str]:
    """Return the streams a processor may write to."""
    errors = graph.errors_of(processor) if processor.inputs else None
    paths = [*processor.outputs.values(), *([errors] if errors else [])]
    return list(dict.fromkeys(paths))


def upstream(graph: "Graph") -> dict[str, set[str]]:
    """Return, for each processor, the ids of those whose messages it reads."""
    by_stream = writers(graph)
    return {
        one.id: {name for path in one.inputs.values() for name in by_stream.get(path, ())}
        for one in graph.processors
    }


def dependencies(graph: "Graph", id: str) -> set[str]:
    """Return the ids of all processors whose messages reach this one; raise KeyError if unknown."""
    graph.processor(id)
    above = upstream(graph)
    reached: set[str] = set()
    pending = [id]
    while pending:
        fresh = above[pending.pop()] - reached
        reached |= fresh
        pending.extend(fresh)
    return reached


def cycle(graph: "Graph") -> list[str] | None:
    """Return processors that feed each other in a circle, the first one again at the end."""
    above = upstream(graph)
    done: set[str] = set()
    for first in above:
        circle = _walk(first, above, done, [])
        if circle is not None:
            return circle[::-1]
    return None


def _walk(
    name: str, above: dict[str, set[str]], done: set[str], path: list[str]
) -> list[str] | None:
    if name in path:
        return [*path[path.index(name) :], name]
    if name in done:
        return None
    path.append(name)
    for other in sorted(above[name]):
        circle = _walk(other, above, done, path)
        if circle is not None:
            return circle
    done.add(path.pop())
    return None


def levels(graph: "Graph") -> dict[str, int]:
    """Return the length of the longest path to each processor; the graph must have no cycle."""
    above = upstream(graph)
    by_id: dict[str, int] = {}

    def level(name: str) -> int:
        if name not in by_id:
            by_id[name] = max((level(other) + 1 for other in above[name]), default=0)
        return by_id[name]

    for name in above:
        level(name)
    return by_id


# ---- isomorphism ---------------------------------------------------------------------------------


def isomorphic(one: "Graph", other: "Graph") -> bool:
    """Return whether the graphs are equal except for the names of processors and streams."""
    left, right = _Shape(one), _Shape(other)
    if left.signature() != right.signature():
        return False
    return _match(left, right, list(left.colours), {})


class _Shape:
    """The nodes of a graph, processors and streams, with a colour each, and its edges."""

    def __init__(self, graph: "Graph") -> None:
        self.edges = set(_edges(graph))
        self.colours: dict[Hashable, Hashable] = {
            ("p", one.id): (
                str(one.role),
                one.is_alternatives,
                graph.strategy_of(one) if one.inputs else "",
                one.stateful,
                *sorted((name, *sorted(texts)) for name, texts in one.types.items()),
                *sorted((name, *sorted(texts)) for name, texts in one.topics.items()),
            )
            for one in graph.processors
        }
        for _, stream, _ in self.edges:
            self.colours[stream] = "stream"
        for _ in self.colours:
            self._refine()

    def signature(self) -> Counter[Hashable]:
        """Count the colours: equal for isomorphic graphs, and rarely for others."""
        return Counter(self.colours.values())

    def _refine(self) -> None:
        """Mix the colours of the neighbours into the colour of each node."""
        near: dict[Hashable, list[tuple[str, str, int]]] = {node: [] for node in self.colours}
        for processor, stream, label in self.edges:
            near[processor].append(("to", label, hash(self.colours[stream])))
            near[stream].append(("of", label, hash(self.colours[processor])))
        self.colours = {
            node: hash((colour, *sorted(near[node]))) for node, colour in self.colours.items()
        }


def _edges(graph: "Graph") -> Iterator[Edge]:
    for one in graph.processors:
        node = ("p", one.id)
        for binding, path in one.inputs.items():
            yield node, ("s", path), f"in {binding}"
        for binding, path in one.outputs.items():
            yield node, ("s", path), f"out {binding}"
        errors = graph.errors_of(one) if one.inputs else None
        if errors:
            yield node, ("s", errors), "errors"


def _match(
    left: _Shape, right: _Shape, nodes: list[Hashable], paired: dict[Hashable, Hashable]
) -> bool:
    """Pair nodes of the same colour one by one, and backtrack where the edges do not match."""
    if len(paired) == len(nodes):
        return {(paired[a], paired[b], label) for a, b, label in left.edges} == right.edges
    node = nodes[len(paired)]
    taken = set(paired.values())
    for candidate, colour in right.colours.items():
        if colour == left.colours[node] and candidate not in taken:
            paired[node] = candidate
            if _fits(left, right, paired) and _match(left, right, nodes, paired):
                return True
            del paired[node]
    return False


def _fits(left: _Shape, right: _Shape, paired: dict[Hashable, Hashable]) -> bool:
    return all(
        (paired[a], paired[b], label) in right.edges
        for a, b, label in left.edges
        if a in paired and b in paired
    )
