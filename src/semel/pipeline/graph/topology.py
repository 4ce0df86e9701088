"""The topology of a graph: dependencies between processors, isomorphism, and drawings. No I/O."""

from collections import Counter
from collections.abc import Hashable, Iterator
from graphlib import CycleError, TopologicalSorter
from html import escape
from typing import TYPE_CHECKING, Final, NamedTuple

from semel.pipeline.graph.processors import AT_MOST_ONCE, Processor, Role

if TYPE_CHECKING:
    from semel.pipeline.graph.graph import Graph

Node = tuple[str, str]  # "p" and the id of a processor, or "s" and the path of a stream
Edge = tuple[Node, Node, str]  # a processor, a stream, and how the processor uses it


def writers(graph: "Graph") -> dict[str, list[str]]:
    """Return a mapping from each stream to the ids of the processors that write to it.

    Processors that use the stream as their error stream are included.
    """
    by_stream: dict[str, list[str]] = {}
    for processor in graph.processors:
        for path in written(graph, processor):
            by_stream.setdefault(path, []).append(processor.id)
    return by_stream


def written(graph: "Graph", processor: Processor) -> list[str]:
    """Return the streams that a processor can write to, including its error stream."""
    errors = graph.errors_of(processor)
    return list(dict.fromkeys([*processor.outputs.values(), *([errors] if errors else [])]))


def upstream(graph: "Graph") -> dict[str, set[str]]:
    """Return a mapping from each processor's id to the ids of the processors it reads from."""
    by_stream = writers(graph)
    return {
        processor.id: {id for path in processor.inputs.values() for id in by_stream.get(path, ())}
        for processor in graph.processors
    }


def dependencies(graph: "Graph", id: str) -> set[str]:
    """Return the ids of all processors whose messages can reach the processor `id`.

    Raises KeyError if there is no processor with this id.
    """
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
    """Return the ids of processors that form a cycle, or None if there is no cycle.

    The first id is repeated at the end.
    """
    try:
        TopologicalSorter({id: sorted(above) for id, above in upstream(graph).items()}).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]
        return circle
    return None


def levels(graph: "Graph") -> dict[str, int]:
    """Return a mapping from each processor id to the processor's level.

    The level is the number of processors before this one, in the longest chain that leads to it.
    Raises CycleError if the graph has a cycle.
    """
    above = upstream(graph)
    by_id: dict[str, int] = {}
    for id in TopologicalSorter(above).static_order():
        by_id[id] = max((by_id[other] + 1 for other in above[id]), default=0)
    return by_id


def _edges(graph: "Graph") -> Iterator[Edge]:
    for processor in graph.processors:
        node = ("p", processor.id)
        for binding, path in processor.inputs.items():
            yield node, ("s", path), f"in {binding}"
        for binding, path in processor.outputs.items():
            yield node, ("s", path), f"out {binding}"
        errors = graph.errors_of(processor)
        if errors:
            yield node, ("s", errors), "errors"


# ---- isomorphism ---------------------------------------------------------------------------------


def isomorphic(graph: "Graph", other: "Graph") -> bool:
    """Return True if the graphs are equal except for the names of processors and streams."""
    left, right = _Shape(graph), _Shape(other)
    # Isomorphic graphs have the same number of nodes of each colour. Other graphs rarely do.
    if Counter(left.colours.values()) != Counter(right.colours.values()):
        return False
    return _match(left, right, list(left.colours), {})


class _Shape:
    """A graph prepared for comparison: its edges, and a colour for each node.

    The nodes are the processors and the streams. If two graphs are isomorphic, nodes that
    correspond to each other have the same colour.
    """

    def __init__(self, graph: "Graph") -> None:
        self.edges = set(_edges(graph))
        self.colours: dict[Node, Hashable] = {
            ("p", processor.id): (
                str(processor.role),
                processor.is_alternatives,
                graph.strategy_of(processor) if processor.inputs else "",
                processor.stateful,
                processor.many,
                *sorted((name, *sorted(texts)) for name, texts in processor.types.items()),
                *sorted((name, *sorted(texts)) for name, texts in processor.topics.items()),
            )
            for processor in graph.processors
        }
        for _, stream, _ in self.edges:
            self.colours[stream] = "stream"
        for _ in self.colours:
            self._refine()

    def _refine(self) -> None:
        """Replace each node's colour with a hash of its colour and its neighbours' colours."""
        near: dict[Node, list[tuple[str, str, int]]] = {node: [] for node in self.colours}
        for processor, stream, label in self.edges:
            near[processor].append(("to", label, hash(self.colours[stream])))
            near[stream].append(("of", label, hash(self.colours[processor])))
        self.colours = {
            node: hash((colour, *sorted(near[node]))) for node, colour in self.colours.items()
        }


def _match(left: _Shape, right: _Shape, nodes: list[Node], paired: dict[Node, Node]) -> bool:
    """Return True if all nodes of `left` can be paired with nodes of `right` so that edges match.

    `paired` contains the pairs so far. Each call adds one pair of nodes with the same colour, and
    backtracks if the edges do not match.
    """
    if len(paired) == len(nodes):
        return {(paired[a], paired[b], label) for a, b, label in left.edges} == right.edges
    node = nodes[len(paired)]
    for candidate in right.colours.keys() - paired.values():
        if right.colours[candidate] == left.colours[node]:
            paired[node] = candidate
            if _fits(left, right, paired) and _match(left, right, nodes, paired):
                return True
            del paired[node]
    return False


def _fits(left: _Shape, right: _Shape, paired: dict[Node, Node]) -> bool:
    return all(
        (paired[a], paired[b], label) in right.edges
        for a, b, label in left.edges
        if a in paired and b in paired
    )


# ---- drawings ------------------------------------------------------------------------------------


_WIDTH: Final = 150
_HEIGHT: Final = 36
_COLUMN: Final = 210
_ROW: Final = 60
_MARGIN: Final = 20
_FILLS: Final = {Role.SOURCE: "#d9ead3", Role.STREAM: "#cfe2f3", Role.SINK: "#f4cccc"}
_STYLE: Final = (
    "text{font:13px sans-serif;text-anchor:middle}"
    "rect{stroke:#555}path{fill:none;stroke:#555;marker-end:url(#tip)}"
    ".errors{stroke-dasharray:4 3;stroke:#b00}"
)
_TIP: Final = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7"'
    ' orient="auto"><path d="M0 0L8 4L0 8z" style="fill:#555;stroke:none;marker-end:none"/>'
    "</marker></defs>"
)


class _Box(NamedTuple):
    """A box in the drawing. It shows a processor or, if `role` is None, a stream."""

    name: str
    role: Role | None
    x: int
    y: int


def svg(graph: "Graph") -> str:
    """Return a drawing of a valid graph as SVG. Messages flow from left to right."""
    boxes = _placed(graph)
    wide = max(box.x for box in boxes.values()) + _WIDTH + _MARGIN
    high = max(box.y for box in boxes.values()) + _HEIGHT + _MARGIN
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}"'
        f' width="{wide}" height="{high}"><title>{escape(graph.id)}</title>'
        f"<style>{_STYLE}</style>{_TIP}"
    )
    lines = [head, *_arrows(graph, boxes), *map(_drawn, boxes.values()), "</svg>"]
    return "\n".join(lines) + "\n"


def _placed(graph: "Graph") -> dict[Node, _Box]:
    """Return a box of the drawing for each processor and each stream.

    The level of a processor determines its column. A stream is to the right of all its writers.
    A stream without writers is one column to the left of the reader that was declared first.
    """
    columns: dict[int, list[tuple[Node, Role | None]]] = {}
    depth = levels(graph)
    streams: dict[str, int] = {}
    for processor in graph.processors:
        column = 2 * depth[processor.id] + 1
        columns.setdefault(column, []).append((("p", processor.id), processor.role))
        for path in processor.inputs.values():
            streams.setdefault(path, column - 1)
        for path in written(graph, processor):
            streams[path] = max(streams.get(path, 0), column + 1)
    for path, column in streams.items():
        columns.setdefault(column, []).append((("s", path), None))
    first = min(columns)
    return {
        node: _Box(node[1], role, _MARGIN + (column - first) * _COLUMN, _MARGIN + row * _ROW)
        for column, nodes in columns.items()
        for row, (node, role) in enumerate(nodes)
    }


def _arrows(graph: "Graph", boxes: dict[Node, _Box]) -> Iterator[str]:
    for processor, stream, label in _edges(graph):
        is_input = label.startswith("in ")
        start, end = (stream, processor) if is_input else (processor, stream)
        style = ' class="errors"' if label == "errors" else ""
        yield _arrow(boxes[start], boxes[end], style)


def _arrow(start: _Box, end: _Box, style: str) -> str:
    x1, y1 = start.x + _WIDTH, start.y + _HEIGHT // 2
    x2, y2 = end.x, end.y + _HEIGHT // 2
    bend = (x2 - x1) // 2
    return f'<path{style} d="M{x1} {y1}C{x1 + bend} {y1} {x2 - bend} {y2} {x2} {y2}"/>'


def _drawn(box: _Box) -> str:
    round_, fill = (_HEIGHT // 2, "#fff") if box.role is None else (4, _FILLS[box.role])
    x, y = box.x + _WIDTH // 2, box.y + _HEIGHT // 2 + 5
    return (
        f'<rect x="{box.x}" y="{box.y}" width="{_WIDTH}" height="{_HEIGHT}" rx="{round_}"'
        f' fill="{fill}"/><text x="{x}" y="{y}">{escape(box.name)}</text>'
    )


def draw(graph: "Graph") -> str:
    """Return a drawing of a valid graph as text, with one line per processor.

    Processors that write to a stream come before processors that read it.
    """
    depth = levels(graph)
    ordered = sorted(graph.processors, key=lambda processor: depth[processor.id])
    reads = [", ".join(processor.inputs.values()) for processor in ordered]
    labels = [_label(graph, processor) for processor in ordered]
    wide, wider = max(map(len, reads), default=0), max(map(len, labels), default=0)
    lines = [graph.id]
    for read, label, processor in zip(reads, labels, ordered, strict=True):
        branch = "└─" if processor is ordered[-1] else "├─"
        arrow = "──>" if processor.inputs else "   "
        line = f"{branch} {read:>{wide}} {arrow} {label:<{wider}}"
        if processor.outputs:
            line += f" ──> {', '.join(processor.outputs.values())}"
        errors = graph.errors_of(processor)
        lines.append((line + (f"  (errors: {errors})" if errors else "")).rstrip())
    return "\n".join(lines) + "\n"


def _label(graph: "Graph", processor: Processor) -> str:
    """Return the label of a processor: its id, its role and its special properties."""
    is_at_most_once = processor.inputs and graph.strategy_of(processor) == AT_MOST_ONCE
    notes = {
        "join": processor.is_join,
        "alternatives": processor.is_alternatives,
        "stateful": processor.stateful,
        AT_MOST_ONCE: is_at_most_once,
    }
    accepted = (processor.topics or processor.types).values()
    listed = [
        str(processor.role),
        *(note for note, applies in notes.items() if applies),
        *dict.fromkeys(f"only {'|'.join(sorted(texts))}" for texts in accepted),
    ]
    return f"[{processor.id}: {', '.join(listed)}]"
