"""Cycles in the dependency graph of a history, named and told."""

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from semel.testing.txn.facts import Anomaly
from semel.testing.txn.graph import RW, THEN, WR, WW, Edge, Moments

# ---- components ----------------------------------------------------------------------------------
# Cycles in a directed graph: the strongly connected components, and a short way around in one.


Graph = Sequence[Sequence[int]]  # the nodes that a node leads to


def components(graph: Graph) -> Iterator[list[int]]:
    """Return the components of two nodes and more, by Tarjan's algorithm, without recursion."""
    count = len(graph)
    order = [0] * count  # when a node was found, from 1; 0: not yet
    low = [0] * count
    is_waiting = bytearray(count)
    waiting: list[int] = []
    found = 0
    for root in range(count):
        if order[root]:
            continue
        path = [root]
        rest = [iter(graph[root])]
        found += 1
        order[root] = low[root] = found
        waiting.append(root)
        is_waiting[root] = 1
        while path:
            node = path[-1]
            for child in rest[-1]:
                if not order[child]:
                    found += 1
                    order[child] = low[child] = found
                    waiting.append(child)
                    is_waiting[child] = 1
                    path.append(child)
                    rest.append(iter(graph[child]))
                    break
                if is_waiting[child] and order[child] < low[node]:
                    low[node] = order[child]
            else:
                path.pop()
                rest.pop()
                if path and low[node] < low[path[-1]]:
                    low[path[-1]] = low[node]
                if low[node] == order[node]:
                    component = _taken(waiting, node, is_waiting)
                    if len(component) > 1:
                        yield component


def _taken(waiting: list[int], root: int, is_waiting: bytearray) -> list[int]:
    """Take a whole component off the nodes that wait for theirs."""
    component: list[int] = []
    while not component or component[-1] != root:
        component.append(waiting.pop())
        is_waiting[component[-1]] = 0
    return component


def shortest_cycle(graph: Graph, component: Collection[int], starts_max: int) -> list[int]:
    """Find a short cycle in a component: the shortest one through its first nodes."""
    cycles = (
        path_between(graph, child, node)
        for node in sorted(component)[:starts_max]
        for child in graph[node]
    )
    return min((cycle for cycle in cycles if cycle), key=len)


def path_between(graph: Graph, start: int, end: int) -> list[int]:
    """Find a shortest way from one node to another, both included; empty if there is none."""
    came_from = {start: start}
    queue = deque([start])
    while queue and end not in came_from:
        node = queue.popleft()
        for child in graph[node]:
            if child not in came_from:
                came_from[child] = node
                queue.append(child)
    if end not in came_from:
        return []
    path = [end]
    while path[-1] != start:
        path.append(came_from[path[-1]])
    return path[::-1]


# ---- txn cycles ----------------------------------------------------------------------------------


_TRIED_MAX: Final = 64


def graph_of(moments: Moments) -> tuple[Graph, int]:
    """Build the graph, and count its edges."""
    graph: list[list[int]] = [[] for _ in range(moments.count)]
    count = 0
    for edge in moments.edges():
        graph[edge[0]].append(edge[1])
        count += 1
    return graph, count


def cycles(moments: Moments, graph: Graph) -> Iterator[Anomaly]:
    """Name one cycle of each component: the one that needs the fewest kinds of edges."""
    found = list(components(graph))
    home = {node: number for number, component in enumerate(found) for node in component}
    inner: list[list[Edge]] = [[] for _ in found]
    for edge in moments.edges() if found else ():
        number = home.get(edge.source)
        if number is not None and home.get(edge.target) == number:
            inner[number].append(edge)
    for edges in inner:
        yield _named(moments, edges)


def _named(moments: Moments, edges: Sequence[Edge]) -> Anomaly:
    for name, kinds in (("G0", {WW, THEN}), ("G1c", {WW, WR, THEN})):
        cycle = _cycle([edge for edge in edges if edge.kind in kinds])
        if cycle is not None:
            return _told(moments, name, cycle)
    cycle = _cycle_with_one_rw(edges)
    if cycle is not None:
        return _told(moments, "G-single", cycle)
    cycle = _cycle(edges)
    assert cycle is not None
    return _told(moments, "G2", cycle)


def _cycle(edges: Sequence[Edge]) -> list[Edge] | None:
    numbers, graph = _local(edges)
    for component in components(graph):
        return _chosen(edges, numbers, shortest_cycle(graph, component, _TRIED_MAX))
    return None


def _cycle_with_one_rw(edges: Sequence[Edge]) -> list[Edge] | None:
    """Go around by one edge rw and, from its end to its beginning, by others."""
    numbers, graph = _local(edges, [edge for edge in edges if edge.kind != RW])
    found: list[list[int]] = []
    for edge in [edge for edge in edges if edge.kind == RW][:_TRIED_MAX]:
        path = path_between(graph, numbers[edge.target], numbers[edge.source])
        if path:
            found.append(path)
    return _chosen(edges, numbers, min(found, key=len)) if found else None


def _local(
    edges: Sequence[Edge], used: Sequence[Edge] | None = None
) -> tuple[dict[int, int], list[list[int]]]:
    """Make a small graph of some edges, with nodes counted from 0."""
    numbers: dict[int, int] = {}
    for edge in edges:
        numbers.setdefault(edge.source, len(numbers))
        numbers.setdefault(edge.target, len(numbers))
    graph: list[list[int]] = [[] for _ in numbers]
    for edge in edges if used is None else used:
        graph[numbers[edge.source]].append(numbers[edge.target])
    return numbers, graph


def _chosen(edges: Sequence[Edge], numbers: dict[int, int], cycle: Sequence[int]) -> list[Edge]:
    """Find the edges between the nodes of a cycle."""
    by_pair = {(numbers[edge.source], numbers[edge.target]): edge for edge in edges}
    return [by_pair[pair] for pair in zip(cycle, [*cycle[1:], cycle[0]], strict=True)]


# ---- in words ------------------------------------------------------------------------------------


def _told(moments: Moments, name: str, cycle: Sequence[Edge]) -> Anomaly:
    start = min(range(len(cycle)), key=lambda number: cycle[number].source)  # never a cut
    edges = [*cycle[start:], *cycle[:start]]
    lines = [f"\n  {number}. {line}" for number, line in enumerate(_lines(moments, edges), 1)]
    involved = dict.fromkeys(filter(None, (moments.transaction(edge.source) for edge in edges)))
    text = "each came before the next, and the last before the first:" + "".join(lines)
    return Anomaly(name, text, tuple(involved))


def _lines(moments: Moments, edges: Sequence[Edge]) -> Iterator[str]:
    """Tell a cycle edge by edge; a way through the cuts of a stream is one sentence."""
    begun: Edge | None = None
    for edge in edges:
        into = begun or edge
        if moments.is_cut(edge.target):
            begun = into
            continue
        begun = None
        yield _sentence(moments, into, edge.target)


def _sentence(moments: Moments, edge: Edge, target: int) -> str:
    one, other = moments.told(edge.source), moments.told(target)
    match edge.kind:
        case "ww":
            what = f"put {edge.value!r} into {edge.stream}, and behind it {edge.later!r} came by"
        case "wr":
            what = f"brought {edge.value!r} into {edge.stream}, which was seen by"
        case "rw":
            what = f"did not see {edge.value!r} in {edge.stream}; it was there for"
        case _:
            what = "was over before"
    return f"{one} {what} {other} [{edge.kind}]"
