import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.pipeline import Graph
from semel.pipeline.graph.topology import cycle, levels, upstream, writers
from tests.unit.pipeline.graphs import chain, same, three_stages


# rows: C32
def test_dependencies_are_all_that_feed_a_processor() -> None:
    graph = three_stages()
    assert graph.dependencies("numbers") == set()
    assert graph.dependencies("fork") == {"numbers"}
    assert graph.dependencies("store") == {"pair", "fork", "numbers"}
    with pytest.raises(KeyError):
        graph.dependencies("nobody")


def test_who_writes_an_error_stream_feeds_its_reader() -> None:
    graph = Graph("g", errors="errors")
    graph.stream("p", in_="a", out="b")(same)
    graph.stream("mend", in_="errors", out="c", errors=None)(same)
    assert graph.dependencies("mend") == {"p"}
    assert writers(graph) == {"b": ["p"], "errors": ["p"], "c": ["mend"]}


def test_levels_grow_along_the_messages() -> None:
    graph = three_stages()
    depth = levels(graph)
    assert depth == {"numbers": 0, "fork": 1, "pair": 2, "store": 3}
    for name, above in upstream(graph).items():
        assert all(depth[other] < depth[name] for other in above)


def test_there_is_no_cycle_in_a_diamond() -> None:
    graph = chain(("p", ["a"], ["b", "c"]), ("q", ["b"], "d"), ("r", ["c"], "e"))
    graph.stream("s", alts=["d", "e"], out="f")(same)
    assert cycle(graph) is None


# rows: C32
def test_graphs_of_one_shape_are_isomorphic_whatever_the_names() -> None:
    assert three_stages().isomorphic(three_stages("other", prefix="x-"))
    graph = three_stages()
    graph.processors.reverse()
    assert graph.isomorphic(three_stages())


def test_another_shape_is_not_isomorphic() -> None:
    graph = three_stages()
    changes: tuple[dict[str, Any], ...] = (
        {"in_": "pairs", "out": "more"},
        {"alts": ["pairs", "a"], "out": "more"},
        {"in_": "pairs", "out": "more", "errors": None},
        {"in_": "pairs", "out": "more", "strategy": "at-most-once"},
        {"in_": "pairs", "out": "more", "types": "t"},
        {"in_": "pairs", "out": "more", "topics": "t"},
        {"in_": "pairs", "out": {"binding": "more"}},
    )
    for change in changes:
        one = three_stages()
        one.stream("more", **change)(same)
        assert not one.isomorphic(graph), change
        other = three_stages()
        other.stream("more", in_="a", out="more")(same)
        assert not one.isomorphic(other), change
    assert graph.isomorphic(graph)


def test_graphs_whose_nodes_look_alike_are_told_apart() -> None:
    """Two rings of three nodes, and one of six: all nodes have the same kind of neighbours."""
    rings = [
        chain(*[(f"p{n}", [f"s{n}"], f"s{to}") for n, to in enumerate(ring)])
        for ring in (
            [1, 2, 0, 4, 5, 3],
            [1, 2, 3, 4, 5, 0],
        )
    ]
    assert not rings[0].isomorphic(rings[1])
    assert rings[0].isomorphic(rings[0])


@given(st.integers(0, 2**32), st.integers(1, 6))
def test_renaming_and_shuffling_keeps_the_shape(seed: int, count: int) -> None:
    chance = random.Random(seed)
    links = [
        (f"p{n}", sorted({f"s{chance.randrange(count)}" for _ in range(2)}), f"t{n}")
        for n in range(count)
    ]
    one = chain(
        *[(id, {str(n): path for n, path in enumerate(read)}, out) for id, read, out in links]
    )
    names = {f"s{n}": f"x{m}" for n, m in enumerate(chance.sample(range(count), count))}
    renamed = [
        (f"q{id}", {str(n): names[path] for n, path in enumerate(read)}, f"y{out}")
        for id, read, out in links
    ]
    chance.shuffle(renamed)
    assert one.isomorphic(chain(*renamed))
