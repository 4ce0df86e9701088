"""Invalid graphs are refused before the start, with the processor, the error and a fix."""

from collections.abc import Callable
from typing import Any

import pytest

from semel.pipeline import Graph, GraphError, Runner
from tests.unit.pipeline.graphs import chain, deliver, numbers, pair, same, three_stages


def complaints(graph: Graph) -> tuple[str, ...]:
    with pytest.raises(GraphError) as caught:
        graph.check()
    return caught.value.complaints


def with_stream(**given: Any) -> Graph:
    graph = Graph("g", errors=given.pop("graph_errors", None))
    graph.stream("p", **given)(same)
    return graph


def with_sink(**given: Any) -> Graph:
    graph = Graph("g")
    graph.sink("p", **given)(deliver)
    return graph


def test_a_good_graph_has_no_complaints() -> None:
    three_stages().check()


# rows: C21
@pytest.mark.parametrize(
    ("graph", "complaint"),
    [
        (
            with_stream(in_="a", alts=["b", "c"], out="d"),
            "p: the processor has both in_= and alts=; use in_= to join",
        ),
        (with_stream(out="d"), "p: the processor reads no stream; set one stream with in_="),
        (with_stream(in_="a"), "p: the processor has no out=; if it writes to no stream"),
        (with_sink(), "p: the processor reads no stream"),
        (with_stream(alts={"x": "a", "y": "a"}, out="d"), "p: alts= has the stream a 2 times"),
        (with_stream(in_={"x": "a", "y": "a"}, out="d"), "p: in_= has the stream a 2 times"),
        (with_stream(in_="a", out={"x": "d", "y": "d"}), "p: out= has the stream d 2 times"),
        (with_stream(in_="a", out="d", errors="d"), "the error stream d is also an output"),
        (
            with_stream(in_="a", out="d", errors=""),
            "p: the processor has the invalid stream '': the stream's path",
        ),
        (with_stream(in_="a", out="d", strategy="twice"), "p: there is no strategy 'twice'; use"),
        (
            with_stream(in_="a//b", out="d"),
            "p: the processor has the invalid stream 'a//b': the stream's path",
        ),
        (with_stream(in_="a\ud800", out="d"), "a name that UTF-8 cannot encode"),
        (
            with_stream(in_="a", out={"x": 5}),
            "p: the processor has the stream 5, which is not a string",
        ),
        (
            with_stream(in_="a", out="g/trace"),
            "p: the stream g/trace is reserved for the graph's trace",
        ),
        (
            with_stream(in_="a", out="d", types={"z": "t"}),
            "p: types= has the unknown key 'z'; the inputs are: ",
        ),
        (with_stream(in_="a", out="d", topics={"z": "t"}), "p: topics= has the unknown key 'z'"),
        (
            with_stream(in_="a", out="d", graph_errors="x//"),
            "the graph has the invalid stream 'x//'",
        ),
    ],
)
def test_a_bad_processor_is_refused(graph: Graph, complaint: str) -> None:
    assert any(complaint in one for one in complaints(graph)), complaints(graph)


def test_bad_graphs_are_refused() -> None:
    assert "the graph has no processors" in complaints(Graph("g"))[0]
    assert (
        "the id of the graph is 'a/b'; expected a letter or a digit" in complaints(Graph("a/b"))[0]
    )
    assert "there is no strategy 'maybe'" in complaints(Graph("g", strategy="maybe"))[0]


def test_two_processors_of_one_id_are_refused() -> None:
    graph = chain(("p", ["a"], "b"), ("p", ["b"], "c"))
    assert complaints(graph) == (
        "p: 2 processors have this id; give each processor a different id",
    )


def test_an_id_that_cannot_name_a_group_is_refused() -> None:
    assert (
        "p/q: the processor's id is not valid; expected a letter or a digit"
        in complaints(chain(("p/q", ["a"], "b")))[0]
    )


def test_a_cycle_is_refused_and_shown() -> None:
    graph = chain(("p", ["a"], "b"), ("q", ["b"], "c"), ("r", ["c"], "a"))
    (complaint,) = complaints(graph)
    names, _, rest = complaint.partition(": the processors ")[2].partition(" form a cycle;")
    assert rest
    assert sorted(names.split(" -> ")[1:]) == ["p", "q", "r"]


def test_a_cycle_through_the_error_stream_is_refused() -> None:
    graph = Graph("g", errors="a")
    graph.stream("p", in_="a", out="b")(same)
    assert "the processors p -> p form a cycle" in complaints(graph)[0]


def test_all_that_is_wrong_is_said_at_once() -> None:
    graph = Graph("g")
    graph.stream("p", out="d")(same)
    graph.sink("q")(deliver)
    assert len(complaints(graph)) == 2


# ---- functions -----------------------------------------------------------------------------------


def nothing() -> None: ...


def two(a: Any, b: Any) -> None: ...


def with_rest(*rest: Any) -> None: ...


def with_default(a: Any, b: Any = None) -> Any: ...


def keyword_needed(a: Any, *, b: Any) -> Any: ...


def mixed(left: "pyarrow.RecordBatch", right: dict[str, Any]) -> Any: ...  # type: ignore[name-defined]  # noqa: F821


def batch(messages: "pyarrow.RecordBatch", binding: str) -> Any: ...  # type: ignore[name-defined]  # noqa: F821


def batches(left: "pa.RecordBatch", right: "pa.RecordBatch") -> Any: ...  # type: ignore[name-defined]  # noqa: F821


def frame(df: "DataFrame") -> Any: ...  # type: ignore[name-defined]  # noqa: F821


async def asynchronous(a: Any) -> None: ...


def named(message: Any, binding: str) -> Any: ...


STREAM = {"in_": "a", "out": "b"}
JOIN = {"in_": {"left": "a", "right": "b"}, "out": "c"}
ALTS = {"alts": ["a", "b"], "out": "c"}


@pytest.mark.parametrize(
    ("function", "given", "complaint"),
    [
        (nothing, STREAM, "the function must have the parameters (message), not ()"),
        (two, STREAM, "the function must have the parameters (message), not (a, b)"),
        (keyword_needed, STREAM, "the function must have the parameters (message), not (a, b)"),
        (same, JOIN, "use the keys of in_= as parameters: (left, right)"),
        (
            two,
            JOIN,
            "the parameters (a, b) do not match the inputs of this join; use the keys of in_="
            " as parameters: (left, right)",
        ),
        (two, ALTS, "must have the parameters (message) or (message, binding), not (a, b)"),
        (asynchronous, STREAM, "the function is async"),
        ("text", STREAM, "'text' is not callable; pass a function"),
        (type, STREAM, "Python cannot read the parameters of <class 'type'>; wrap the function"),
        (mixed, JOIN, "annotated with different types"),
        (batch, ALTS, "an Arrow batch can mix messages of several bindings"),
        (batches, {**JOIN, "types": "t"}, "a join of Arrow batches cannot have filters"),
        (same, {**STREAM, "stateful": True}, "a stateful processor must accept a DataFrame"),
        (
            frame,
            {**STREAM, "stateful": True, "strategy": "at-most-once"},
            "a stateful processor cannot be at-most-once",
        ),
    ],
)
def test_a_wrong_signature_is_refused(
    function: Callable[..., Any], given: dict[str, Any], complaint: str
) -> None:
    graph = Graph("g")
    graph.stream("p", **given)(function)
    assert any(complaint in one for one in complaints(graph)), complaints(graph)


@pytest.mark.parametrize(
    ("function", "given"),
    [
        (with_rest, STREAM),
        (with_default, STREAM),
        (pair, JOIN),
        (batches, JOIN),
        (named, ALTS),
        (same, ALTS),
        (frame, {**STREAM, "stateful": True}),
    ],
)
def test_a_right_signature_passes(function: Callable[..., Any], given: dict[str, Any]) -> None:
    graph = Graph("g")
    graph.stream("p", **given)(function)
    graph.check()


def test_sources_and_sinks_have_signatures_of_their_own() -> None:
    graph = Graph("g")
    graph.source("a", out="x")(same)
    graph.sink("b", in_="x")(same)
    assert complaints(graph) == (
        "a: a source must be a generator function that yields messages",
        "a: a source must have no parameters, or only (cursor) if the source yields pairs"
        " (cursor, message); this source has the parameters (message)",
        "b: a sink must have the parameters (df, delivery), not (message)",
    )


def test_data_can_say_more_nonsense_than_decorators() -> None:
    graph = Graph.from_dict(
        {
            "id": "g",
            "processors": [
                {"id": "a", "role": "source", "fn": numbers, "in": "x", "out": ["y", "z"]},
                {"id": "b", "role": "sink", "fn": deliver, "in": "y", "out": "w"},
            ],
        }
    )
    assert complaints(graph) == (
        "a: a source cannot read a stream; declare the processor with @graph.stream",
        "a: a source must write to exactly one stream, for example out='orders'",
        "b: a sink cannot write to a stream; declare the processor with @graph.stream",
    )


def test_the_local_engine_refuses_what_needs_spark_before_anything_starts() -> None:
    graph = Graph("g", url="http://127.0.0.1:1")
    graph.stream("f", in_="a", out="b")(frame)
    graph.stream("s", in_="a", out="c", stateful=True)(frame)
    with pytest.raises(GraphError) as caught:
        Runner(graph, engine="local")
    assert caught.value.complaints == (
        "f: a function that takes DataFrames requires Spark; run the graph with --engine spark",
        "s: a stateful processor requires Spark; run the graph with --engine spark",
    )


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(GraphError, match="no engine 'steam'; use spark or local"):
        Runner(three_stages(), engine="steam")


# ---- options -------------------------------------------------------------------------------------


def yielding(rows: "pa.RecordBatch") -> Any:  # type: ignore[name-defined] # noqa: F821
    yield rows


def of_batches(rows: "pa.RecordBatch") -> Any:  # type: ignore[name-defined] # noqa: F821
    return rows


def with_function(function: Callable[..., Any], **given: Any) -> Graph:
    graph = Graph("g")
    graph.stream("p", **{"in_": "a", "out": "b", **given})(function)
    return graph


@pytest.mark.parametrize(
    ("graph", "complaint"),
    [
        (
            with_function(yielding),
            "p: the function yields, but a function that accepts a Record",
        ),
        (with_function(of_batches, many=True), "p: remove many=True; a RecordBatch can have any"),
        (with_function(same, opts={"a": 1}), "p: opts= is set, but the function has no parameter"),
        (with_function(same, opts=5), "p: opts= is 5; expected a dict"),
        (
            with_function(lambda message, opts: opts, opts={"a": object()}),
            "p: opts= cannot be represented as JSON",
        ),
        (
            with_function(lambda message, opts: opts, opts={"a": "x" * 70_000}),
            "p: opts= has 70,008 bytes; the maximum is 65,536",
        ),
        (
            with_function(lambda opts, x: x, in_={"opts": "a", "x": "c"}, opts={"a": 1}),
            "p: opts= cannot be passed, because an input is called 'opts'; rename the input",
        ),
    ],
)
def test_options_that_cannot_work_are_refused_before_the_start(
    graph: Graph, complaint: str
) -> None:
    (told,) = complaints(graph)
    assert told.startswith(complaint)


def test_options_of_streams_that_are_no_dict_or_exclude_each_other_are_refused() -> None:
    graph = with_function(same)
    graph.streams = {"b": {"ttl": 5}, "default": 7}  # type: ignore[dict-item]
    assert complaints(graph) == ("streams={'default': ...} is 7; expected a dict of options",)
    graph.streams = {"default": {"ttl": 5}, "b": {"expires_at": "2099-01-01T00:00:00Z"}}
    (told,) = complaints(graph)
    assert told == "streams={'b': ...} has both 'ttl' and 'expires_at'; use one of them"
    graph.streams = {"default": {"ttl": 5}}
    graph.stream("q", in_="b", out="default")(same)
    assert "a stream is called default; rename the stream" in complaints(graph)[0]


def test_many_is_not_for_sinks() -> None:
    described = {"id": "g", "processors": [{"id": "s", "fn": deliver, "in": "a", "many": True}]}
    (told,) = complaints(Graph.from_dict(described))
    assert told == "s: a sink cannot have many=; only a processor with outputs can"
