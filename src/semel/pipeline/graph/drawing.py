"""Drawings of a graph as SVG and as text. Pure."""

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING, Final, NamedTuple

from semel.pipeline.graph import topology
from semel.pipeline.graph.processors import AT_MOST_ONCE, Processor, Role

if TYPE_CHECKING:
    from semel.pipeline.graph.graph import Graph

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
    """A processor or a stream, and the position of its box."""

    name: str
    role: Role | None
    x: int
    y: int


def svg(graph: "Graph") -> str:
    """Return an SVG of a valid graph; messages flow from left to right."""
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


def _placed(graph: "Graph") -> dict[tuple[str, str], _Box]:
    """Place every processor in the column of its level, every stream before its readers."""
    columns: dict[int, list[tuple[str, str, Role | None]]] = {}
    depth = topology.levels(graph)
    streams: dict[str, int] = {}
    for one in graph.processors:
        column = 2 * depth[one.id] + 1
        columns.setdefault(column, []).append(("p", one.id, one.role))
        for path in one.inputs.values():
            streams.setdefault(path, column - 1)
        for path in topology.written(graph, one):
            streams[path] = max(streams.get(path, 0), column + 1)
    for path, column in streams.items():
        columns.setdefault(column, []).append(("s", path, None))
    first = min(columns)
    return {
        (sort, name): _Box(name, role, _MARGIN + (column - first) * _COLUMN, _MARGIN + row * _ROW)
        for column, nodes in columns.items()
        for row, (sort, name, role) in enumerate(nodes)
    }


def _arrows(graph: "Graph", boxes: dict[tuple[str, str], _Box]) -> Iterator[str]:
    for one in graph.processors:
        here = boxes["p", one.id]
        for path in one.inputs.values():
            yield _arrow(boxes["s", path], here)
        for path in one.outputs.values():
            yield _arrow(here, boxes["s", path])
        errors = graph.errors_of(one) if one.role is Role.STREAM else None
        if errors:
            yield _arrow(here, boxes["s", errors], ' class="errors"')


def _arrow(start: _Box, end: _Box, style: str = "") -> str:
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


# ---- text ----------------------------------------------------------------------------------------


def draw(graph: "Graph") -> str:
    """Return a text with one line per processor of a valid graph, in the order of the flow."""
    depth = topology.levels(graph)
    ordered = sorted(graph.processors, key=lambda one: depth[one.id])
    reads = [", ".join(one.inputs.values()) for one in ordered]
    names = [label(graph, one) for one in ordered]
    wide, wider = max(map(len, reads), default=0), max(map(len, names), default=0)
    lines = [graph.id]
    for index, one in enumerate(ordered):
        branch = "└─" if index == len(ordered) - 1 else "├─"
        arrow = "──>" if one.inputs else "   "
        line = f"{branch} {reads[index]:>{wide}} {arrow} {names[index]:<{wider}}"
        if one.outputs:
            line += f" ──> {', '.join(one.outputs.values())}"
        errors = graph.errors_of(one) if one.role is Role.STREAM else None
        lines.append((line + (f"  (errors: {errors})" if errors else "")).rstrip())
    return "\n".join(lines) + "\n"


def label(graph: "Graph", one: Processor) -> str:
    """Return the id, the role and the special properties of a processor."""
    notes = [str(one.role)]
    if one.is_join:
        notes.append("join")
    if one.is_alternatives:
        notes.append("alternatives")
    if one.stateful:
        notes.append("stateful")
    if one.inputs and graph.strategy_of(one) == AT_MOST_ONCE:
        notes.append(AT_MOST_ONCE)
    passing = one.topics or one.types
    notes.extend(dict.fromkeys(f"only {'|'.join(sorted(texts))}" for texts in passing.values()))
    return f"[{one.id}: {', '.join(notes)}]"
