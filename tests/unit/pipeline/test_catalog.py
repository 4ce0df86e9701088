"""Catalogs, the binding of processors to other streams, and both as data."""

import json
from typing import Any

import pytest

from semel.pipeline import Catalog, Graph, GraphError
from semel.pipeline.graph.processors import Role
from tests.unit.pipeline import graphs
from tests.unit.pipeline.graphs import numbers, pair, same


def catalog() -> Catalog:
    made = Catalog()
    made.source("numbers", out="n")(numbers)
    made.stream("same", in_="n", out="m", types="x", opts={})(same)
    made.stream("pair", in_={"left": "a", "right": "b"}, out="pairs")(pair)
    made.sink("store", alts=["m", "pairs"])(graphs.deliver)
    return made


def scaled(message: Any, opts: dict[str, Any]) -> Any:
    return message * opts["by"]


# rows: C32
def test_a_merge_adds_what_is_missing_and_refuses_what_differs() -> None:
    graph = Graph("g").merge(catalog()).merge(catalog())
    assert [one.id for one in graph.processors] == ["numbers", "same", "pair", "store"]
    graph.check()
    other = Catalog()
    other.stream("new", in_="n", out="o")(same)
    other.stream("same", in_="n", out="elsewhere")(same)
    with pytest.raises(GraphError, match=r"same: both have a processor with this id.*bind\(id="):
        graph.merge(other)
    assert len(graph.processors) == 4
    graph.merge(Catalog().add(other.processor("same").bind(id="second")))
    assert graph.processor("second").outputs == {"out": "elsewhere"}
    with pytest.raises(KeyError, match="the catalog has no processor 'nobody'"):
        other.processor("nobody")
    assert repr(other) == "Catalog(2 processors)"


# rows: C32
def test_bindings_are_replaced_one_by_one() -> None:
    known = catalog()
    one = known.processor("same").bind(in_="x", errors="bad")
    assert (one.inputs, one.outputs, one.errors) == ({"in": "x"}, {"out": "m"}, "bad")
    assert one.types == {"in": frozenset({"x"})}
    join = known.processor("pair").bind(in_={"left": "x"})
    assert join.inputs == {"left": "x", "right": "b"}
    assert join.is_join
    assert known.processor("store").bind(alts={"m": "y"}).inputs == {"m": "y", "pairs": "pairs"}
    assert known.processor("numbers").bind(id="again").id == "again"
    assert known.processor("pair").inputs == {"left": "a", "right": "b"}


@pytest.mark.parametrize(
    ("id", "streams", "reason"),
    [
        ("numbers", {"in_": "x"}, "numbers has no in_= that can be bound"),
        ("same", {"in_": {"in": "x"}}, "same has one stream in in_=; bind it to a path, not to"),
        ("pair", {"in_": "x"}, "pair has the bindings left, right in in_=; bind some of them"),
        ("pair", {"in_": {"up": "x"}}, "pair has the bindings left, right in in_="),
        ("store", {"alts": ["x"]}, "store has the bindings m, pairs in alts="),
    ],
)
def test_a_binding_that_does_not_exist_is_refused(
    id: str, streams: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        catalog().processor(id).bind(**streams)


def test_a_catalog_as_data_is_the_catalog() -> None:
    data = catalog().to_dict()
    assert Catalog.from_dict(json.loads(json.dumps(data))).processors == catalog().processors
    with pytest.raises(GraphError, match="the catalog: unknown key 'errors'"):
        Catalog.from_dict({"errors": "e"})
    with pytest.raises(GraphError, match="the catalog is 5; expected a dict"):
        Catalog.from_dict(5)  # type: ignore[arg-type]


# rows: C19, C20, C32
def test_a_graph_as_data_uses_processors_of_a_catalog_and_changes_them() -> None:
    known = catalog()
    known.stream("scaled", in_="n", out="s", opts={"by": 2, "unit": "m"})(scaled)
    data: dict[str, Any] = {
        "id": "g",
        "source": "sent",
        "streams": {"default": {"ttl": 60}},
        "processors": [
            {"id": "sent", "out": "n"},
            {"id": "same", "in": "n", "types": ["y", "z"], "errors": "bad"},
            {"id": "ten", "fn": "scaled", "out": "t", "opts": {"by": 10}, "many": True},
            {"id": "pair", "in": {"right": "m"}, "strategy": "at-most-once"},
        ],
    }
    graph = Graph.from_dict(data, known)
    sent, one, ten, join = graph.processors
    assert (sent.role, graph.source_of().id) == (Role.SOURCE, "sent")
    assert (one.function, one.types, one.errors) == (same, {"in": frozenset({"y", "z"})}, "bad")
    assert (ten.inputs, ten.outputs, ten.many) == ({"in": "n"}, {"out": "t"}, True)
    assert ten.call(3) == 30
    assert ten.opts == {"by": 10, "unit": "m"}
    assert (join.inputs, join.strategy) == ({"left": "a", "right": "m"}, "at-most-once")
    again = Graph.from_dict(json.loads(json.dumps(graph.to_dict())))
    assert again.to_dict() == graph.to_dict()
    assert again.processors == graph.processors


@pytest.mark.parametrize(
    ("processor", "reason"),
    [
        ({"id": "p", "fn": "sam"}, "p: the catalog has no processor 'sam'; did you mean 'same'"),
        ({"id": "p", "fn": "zzz"}, r"no processor 'zzz'; it has \['numbers', 'pair'"),
        ({"id": "same", "role": "sink"}, "same: 'role' is 'sink', but in the catalog it is a str"),
        ({"id": "same", "alts": ["x"]}, "same: the processor same has no alts= that can be bound"),
        ({"id": "p", "in": "n", "out": "o"}, "p: 'fn' is None; expected a function or a string"),
        ({"id": "same", "opts": 5}, "same: 'opts' is 5; expected a dict"),
        ({"id": "same", "many": 1}, "same: 'many' is 1; expected true or false"),
    ],
)
def test_data_that_no_catalog_can_complete_are_refused(
    processor: dict[str, Any], reason: str
) -> None:
    with pytest.raises(GraphError, match=reason):
        Graph.from_dict({"id": "g", "processors": [processor]}, catalog())


def test_two_graphs_that_differ_in_many_are_not_isomorphic() -> None:
    one, two = Graph("g"), Graph("g")
    one.stream("p", in_="a", out="b")(same)
    two.stream("p", in_="a", out="b", many=True)(same)
    assert not one.isomorphic(two)
    assert one.isomorphic(Graph("h").add(one.processor("p").bind(id="q", in_="x")))
