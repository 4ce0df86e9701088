"""A graph as text: one line for each processor, in the order messages pass them. Pure."""

from typing import TYPE_CHECKING

from semel.pipeline import topology
from semel.pipeline.processors import AT_MOST_ONCE, Processor, Role

if TYPE_CHECKING:
    from semel.pipeline.graph import Graph


def draw(graph: "Graph") -> str:
    """Draw a graph that makes sense."""
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
    """Name a processor and what is special about it."""
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
