from hypothesis import given
from hypothesis import strategies as st

from semel.testing.txn.graph import components, path_between, shortest_cycle

GRAPHS = st.integers(1, 12).flatmap(
    lambda count: st.lists(
        st.lists(st.integers(0, count - 1), max_size=4), min_size=count, max_size=count
    )
)


def reached(graph: list[list[int]], start: int) -> set[int]:
    found: set[int] = set()
    waiting = [start]
    while waiting:
        for child in graph[waiting.pop()]:
            if child not in found:
                found.add(child)
                waiting.append(child)
    return found


@given(GRAPHS)
def test_nodes_that_reach_each_other_are_one_component(graph: list[list[int]]) -> None:
    ways = [reached(graph, node) for node in range(len(graph))]
    expected = {
        frozenset(j for j in range(len(graph)) if j == i or (j in ways[i] and i in ways[j]))
        for i in range(len(graph))
    }
    assert {frozenset(found) for found in components(graph)} == {
        each for each in expected if len(each) > 1
    }


@given(GRAPHS)
def test_every_component_has_a_cycle(graph: list[list[int]]) -> None:
    for component in components(graph):
        cycle = shortest_cycle(graph, component, 64)
        assert set(cycle) <= set(component)
        assert all(b in graph[a] for a, b in zip(cycle, [*cycle[1:], cycle[0]], strict=True))


def test_a_path_may_not_be_there() -> None:
    assert path_between([[1], [2], []], 0, 2) == [0, 1, 2]
    assert path_between([[1], [2], []], 2, 0) == []


def test_a_graph_may_be_deep() -> None:
    depth = 200_000
    graph = [[node + 1] for node in range(depth)] + [[0]]
    (component,) = components(graph)
    assert len(component) == depth + 1
