"""Cycles in a directed graph: the strongly connected components, and a short way around in one."""

from collections import deque
from collections.abc import Collection, Iterator, Sequence

Graph = Sequence[Sequence[int]]  # the nodes that a node leads to


def components(graph: Graph) -> Iterator[list[int]]:
    """Give the components of two nodes and more, by Tarjan's algorithm, without recursion."""
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
