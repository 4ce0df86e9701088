from typing import Any

import pytest

from semel.pipeline import Graph, GraphError
from semel.pipeline.graph.processors import AT_MOST_ONCE, EXACTLY_ONCE, Role
from tests.unit.pipeline import graphs
from tests.unit.pipeline.graphs import three_stages


# rows: C01, C20
def test_a_graph_has_sources_streams_and_sinks() -> None:
    graph = three_stages()
    graph.check()
    assert [(one.id, one.role) for one in graph.processors] == [
        ("numbers", Role.SOURCE),
        ("fork", Role.STREAM),
        ("pair", Role.STREAM),
        ("store", Role.SINK),
    ]
    pair = graph.processor("pair")
    assert pair.inputs == {"left": "a", "right": "b"}
    assert pair.outputs == {"out": "pairs"}
    assert pair.is_join
    assert not pair.is_alternatives


def test_a_decorated_function_stays_what_it_was() -> None:
    graph = Graph("g")
    assert graph.stream("p", in_="a", out="b")(graphs.same) is graphs.same


def test_an_unknown_processor_is_named() -> None:
    with pytest.raises(KeyError, match="no processor 'nobody'"):
        three_stages().processor("nobody")


# rows: C19
def test_error_stream_and_strategy_are_the_graphs_or_the_processors_own() -> None:
    graph = Graph("g", errors="all", strategy=AT_MOST_ONCE)
    graph.stream("a", in_="x", out="y")(graphs.same)
    graph.stream("b", in_="y", out="z", errors="mine", strategy=EXACTLY_ONCE)(graphs.same)
    graph.stream("c", in_="z", out="w", errors=None)(graphs.same)
    a, b, c = graph.processors
    assert [graph.errors_of(one) for one in (a, b, c)] == ["all", "mine", None]
    assert graph.strategy_of(a) == AT_MOST_ONCE
    assert graph.strategy_of(b) == EXACTLY_ONCE


def test_several_streams_without_names_are_called_by_their_own() -> None:
    graph = Graph("g")
    graph.stream("a", alts=["x", "y"], out=["z", "w"])(graphs.same)
    (one,) = graph.processors
    assert one.inputs == {"x": "x", "y": "y"}
    assert one.outputs == {"z": "z", "w": "w"}


# ---- graphs as data ------------------------------------------------------------------------------


def test_a_graph_survives_being_data() -> None:
    graph = three_stages()
    graph.stream("odd", in_="n", out="odds", types="odd", errors=None)(graphs.same)
    described = graph.to_dict()
    again = Graph.from_dict(described)
    assert again.to_dict() == described
    assert again.processor("pair").function is graphs.pair
    assert again.processors == graph.processors


def test_data_is_told_by_what_it_has() -> None:
    graph = Graph.from_dict(
        {
            "id": "g",
            "url": "http://here",
            "strategy": AT_MOST_ONCE,
            "processors": [
                {"id": "a", "fn": graphs.numbers, "out": "n"},
                {"id": "b", "fn": "tests.unit.pipeline.graphs:same", "in": "n", "out": "m"},
                {"id": "c", "fn": graphs.deliver, "in": "m", "strategy": EXACTLY_ONCE},
            ],
        }
    )
    graph.check()
    assert [one.role for one in graph.processors] == [Role.SOURCE, Role.STREAM, Role.SINK]
    assert graph.to_dict()["processors"][2]["strategy"] == EXACTLY_ONCE
    assert graph.to_dict()["url"] == "http://here"


def processor(**more: Any) -> dict[str, Any]:
    return {"id": "g", "processors": [{"id": "p", "fn": graphs.same, "in": "a", **more}]}


@pytest.mark.parametrize(
    ("described", "complaint"),
    [
        ({"processors": []}, "the key 'id' of a graph is None"),
        ({"id": "g", "procesors": []}, "did you mean 'processors'"),
        ({"id": "g", "processors": [{"fn": "x:y"}]}, "the key 'id' of a processor is None"),
        (processor(fn="nowhere"), "'module:name'"),
        (processor(fn="nowhere_at_all:f"), "cannot import nowhere_at_all:f"),
        (
            processor(fn="tests.unit.pipeline.graphs:nobody"),
            "cannot import tests.unit.pipeline.graphs:nobody",
        ),
        (processor(role="river"), "'role' is 'river'; use 'source'"),
        (processor(outt="b"), "did you mean 'out'"),
        (processor(zzzzzz=1), "unknown key 'zzzzzz'"),
        ({"id": "g", 5: 1}, "unknown key 5"),
        ([], "a graph is described as []; expected a dict"),
        ({"id": "g", "url": 5}, "the graph's 'url' is 5; expected a string"),
        ({"id": "g", "errors": ["e"]}, "the graph's 'errors' is ['e']; expected a string"),
        (
            {"id": "g", "processors": {"p": 1}},
            "the graph's processors are {'p': 1}; expected a list",
        ),
        ({"id": "g", "processors": ["p"]}, "a processor is described as 'p'; expected a dict"),
        (processor(alts=5), "p: 'alts' is 5; expected a stream"),
        (processor(alts={1: "b"}), "p: 'alts' is {1: 'b'}"),
        (processor(out={"x": ["b"]}), "p: 'out' is {'x': ['b']}"),
        (processor(out=[["b"]]), "p: 'out' is [['b']]"),
        (processor(types=5), "p: 'types' is 5; expected a string"),
        (processor(types=[["a"]]), "p: 'types' is [['a']]"),
        (processor(topics={"in": 5}), "p: 'topics' is {'in': 5}"),
        (processor(errors=["e"]), "p: 'errors' is ['e']"),
        (processor(stateful="no"), "p: 'stateful' is 'no'; expected true or false"),
        (processor(fn=".graphs:same"), "cannot import .graphs:same"),
    ],
)
def test_data_that_makes_no_sense_is_named(described: Any, complaint: str) -> None:
    with pytest.raises(GraphError) as caught:
        Graph.from_dict(described)
    assert complaint in str(caught.value)


# ---- drawings ------------------------------------------------------------------------------------


def test_a_graph_is_drawn_in_the_order_messages_pass() -> None:
    graph = three_stages()
    graph.stream(
        "late", alts=["a", "pairs"], out="l", types=["x", "y"], strategy=AT_MOST_ONCE, errors=None
    )(graphs.same)
    assert graph.draw().splitlines() == [
        "shop",
        "├─              [numbers: source]                                    ──> n",
        "├─        n ──> [fork: stream]                                       ──> a, b"
        "  (errors: errors)",
        "├─     a, b ──> [pair: stream, join]                                 ──> pairs"
        "  (errors: errors)",
        "├─    pairs ──> [store: sink]",
        "└─ a, pairs ──> [late: stream, alternatives, at-most-once, only x|y] ──> l",
    ]


def test_a_stateful_processor_is_drawn_so() -> None:
    graph = Graph("g")
    graph.stream("window", in_="a", out="b", stateful=True)(graphs.same)
    assert "[window: stream, stateful]" in graph.draw()


def test_an_svg_names_all_and_is_well_formed() -> None:
    from xml.etree import ElementTree

    graph = three_stages(prefix="a-")
    root = ElementTree.fromstring(graph.svg())
    space = "{http://www.w3.org/2000/svg}"
    texts = {one.text for one in root.iter(f"{space}text")}
    streams = {"a-n", "a-a", "a-b", "a-pairs", "a-errors"}
    assert texts == streams | {"a-numbers", "a-fork", "a-pair", "a-store"}
    boxes = [(box.get("x"), box.get("y")) for box in root.iter(f"{space}rect")]
    assert len(set(boxes)) == len(texts), "two boxes have the same position"
    assert len(root.findall(f"{space}path")) == 10


def test_importing_pipelines_loads_neither_spark_nor_arrow() -> None:
    from tests.unit.test_tidy import heavy_modules, modules_loaded_by

    loaded = modules_loaded_by("import semel.pipeline, semel.pipeline.local.engine")
    assert "semel.pipeline.runner" in loaded
    assert heavy_modules(loaded) == []
    assert "pyarrow" not in loaded
