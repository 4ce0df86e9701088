"""Options of graphs and processors, catalogs, errors with context: run against a real server."""

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from semel.pipeline import (
    Catalog,
    Delivery,
    Graph,
    GraphError,
    ProcessorStopped,
    Runner,
    run,
    wrap_error,
)
from tests.integration.place import Place
from tests.spec.process import PATIENCE_SECONDS

# ---- errors with context -------------------------------------------------------------------------


class NotJson:
    """An object that JSON cannot represent."""

    def __repr__(self) -> str:
        return "<not json>"


# rows: C17
def test_the_context_of_an_error_is_in_the_error_stream_and_inner_values_win(place: Place) -> None:
    place.fill("in", {"id": 1})
    graph = place.graph(errors=place.path("errors"))

    @graph.stream("p", in_=place.path("in"), out=place.path("out"), opts={"rate": 2})
    def check(order: Any, opts: Any) -> Any:
        with wrap_error(order=order["id"], stage="outer", rate=opts["rate"]):
            try:
                with (
                    wrap_error(stage="inner", part="outer"),
                    wrap_error(part="inner", by=NotJson()),
                ):
                    return order["first"]
            except KeyError as error:
                raise RuntimeError("second") from error

    run(graph)
    (message,) = place.read("errors")
    assert message["type"] == "q.type.err/processor"
    assert message["context"] == {
        "order": 1,
        "stage": "inner",
        "rate": 2,
        "part": "inner",
        "by": "<not json>",
    }
    assert message["cause"] == {"class": "RuntimeError", "message": "second"}
    assert "KeyError: 'first'" in message["trace"]
    assert [each["value"] for each in message["inputs"]] == [{"id": 1}]
    config = message["config"]
    assert (config["id"], config["role"], config["strategy"]) == ("p", "stream", "exactly-once")
    assert (config["in"], config["out"]) == (place.path("in"), place.path("out"))
    assert (config["errors"], config["opts"]) == (place.path("errors"), {"rate": 2})


def test_without_an_error_stream_the_reason_has_the_context(place: Place) -> None:
    place.fill("in", 7)
    graph = place.graph()

    @graph.stream("p", in_=place.path("in"), out=place.path("out"))
    def fail(order: Any) -> Any:
        with wrap_error(order=order):
            raise ValueError("no")

    with pytest.raises(ProcessorStopped, match=r'ValueError: no \(context: {"order":7}\)'):
        run(graph)


def test_one_exception_object_raised_for_two_messages_keeps_their_contexts_apart(
    place: Place,
) -> None:
    place.fill("in", 1, 2)
    graph = place.graph(errors=place.path("errors"))
    always_the_same = ValueError("no")

    @graph.stream("p", in_=place.path("in"), out=place.path("out"))
    def fail(order: Any) -> Any:
        with wrap_error(order=order):
            raise always_the_same

    run(graph)
    assert [message["context"] for message in place.read("errors")] == [{"order": 1}, {"order": 2}]


# ---- one message in, many out --------------------------------------------------------------------


def test_each_item_of_a_generator_is_a_message(place: Place) -> None:
    place.fill("in", 2, 0, 1)
    graph = place.graph()

    @graph.stream("p", in_=place.path("in"), out=place.path("out"))
    def repeat(count: int) -> Any:
        for number in range(count):
            yield [count, number]
            yield None

    gauges = run(graph)
    assert place.read("out") == [[2, 0], [2, 1], [1, 0]]
    assert (gauges["p"].read, gauges["p"].written) == (3, 3)


def test_a_list_is_one_message_unless_many_is_set(place: Place) -> None:
    place.fill("in", 2, 0)
    graph = place.graph()

    def as_list(count: int) -> list[int] | None:
        return [count] * count or None

    graph.stream("one", in_=place.path("in"), out=place.path("one"))(as_list)
    graph.stream("many", in_=place.path("in"), out=place.path("many"), many=True)(as_list)
    run(graph)
    assert place.read("one") == [[2, 2]]
    assert place.read("many") == [2, 2]


def test_a_generator_that_raises_half_way_writes_one_error_and_nothing_else(place: Place) -> None:
    place.fill("in", 1, 2)
    graph = place.graph(errors=place.path("errors"))

    @graph.stream("p", in_=place.path("in"), out=place.path("out"))
    def repeat(number: int) -> Any:
        yield number
        if number == 1:
            raise ValueError("half way")
        yield number

    run(graph)
    assert place.read("out") == [2, 2]
    (error,) = place.read("errors")
    assert (error["cause"]["message"], error["inputs"][0]["value"]) == ("half way", 1)


def test_the_items_for_several_outputs_are_dicts(place: Place) -> None:
    place.fill("in", 1, 2)
    graph = place.graph(errors=place.path("errors"))

    @graph.stream("p", in_=place.path("in"), out={"a": place.path("a"), "b": place.path("b")})
    def split(number: int) -> Any:
        yield {"a": number}
        yield {"a": -number, "b": number}
        if number == 2:
            yield 5

    run(graph)
    assert (place.read("a"), place.read("b")) == ([1, -1], [1])
    (error,) = place.read("errors")
    assert "must return None or a dict {binding: message}, not int" in error["cause"]["message"]


@pytest.mark.parametrize("result", ["text", {"a": 1}, 5])
def test_with_many_a_result_that_is_not_a_list_is_an_error(place: Place, result: Any) -> None:
    place.fill("in", 1)
    graph = place.graph(errors=place.path("errors"))
    graph.stream("p", in_=place.path("in"), out=place.path("out"), many=True)(lambda _: result)
    run(graph)
    (error,) = place.read("errors")
    assert "many=True must return a list or another iterable" in error["cause"]["message"]


# ---- options -------------------------------------------------------------------------------------


# rows: C19
def test_the_graph_creates_its_streams_with_their_options(place: Place) -> None:
    place.fill("in", 1)
    graph = place.graph(
        errors=place.path("errors"),
        streams={
            "default": {"ttl": 3600, "content_type": "application/json; charset=utf-8"},
            place.path("out"): {"dedup": False, "ttl": 7200},
            place.path("errors"): {"ttl": None, "expires_at": "2099-01-01T00:00:00Z"},
        },
    )
    graph.stream("p", in_=place.path("in"), out=place.path("out"))(lambda message: message)
    assert Graph.from_dict({**graph.to_dict(), "processors": []}).streams == graph.streams
    run(graph)
    found = {name: place.server.stream(place.path(name)).head() for name in ("out", "errors")}
    trace = place.server.stream(f"{place.id}/trace").head()
    assert (found["out"].ttl, found["out"].dedup) == (7200, False)
    assert found["out"].content_type == "application/json; charset=utf-8"
    assert (found["errors"].ttl, found["errors"].dedup) == (None, True)
    assert str(found["errors"].expires_at) == "2099-01-01 00:00:00+00:00"
    assert (trace.ttl, trace.content_type) == (None, "application/json")
    assert place.server.stream(place.path("in")).head().ttl is None


# rows: C20
def test_opts_are_passed_to_sources_streams_and_sinks(place: Place) -> None:
    graph = place.graph()
    delivered = []

    @graph.source("numbers", out=place.path("n"), opts={"count": 3})
    def count_up(opts: dict[str, int]) -> Iterator[int]:
        yield from range(opts["count"])

    @graph.stream("scale", in_=place.path("n"), out=place.path("out"), opts={"by": 10})
    def scale(number: int, opts: dict[str, int]) -> int:
        return number * opts["by"]

    @graph.sink("store", in_=place.path("out"), opts={"to": "x"})
    def store(df: list[int], delivery: Delivery, *, opts: dict[str, str]) -> None:
        delivered.append((opts["to"], df))

    run(graph)
    assert [number for to, batch in delivered for number in batch if to == "x"] == [0, 10, 20]


# rows: C31
def test_a_message_is_sent_to_a_source_by_name_or_to_the_default_source(place: Place) -> None:
    graph = place.graph(source="orders")
    graph.add_source("orders", out=place.path("orders"))
    graph.add_source("others", out=place.path("others"))
    inputs = {"a": place.path("orders"), "b": place.path("others")}
    graph.stream("p", alts=inputs, out=place.path("out"))(lambda message: message)
    with Runner(graph) as runner:
        runner.send(1, idempotency_key="k")
        assert runner.send(1, idempotency_key="k").duplicate
        runner.send(2, source="others")
        with pytest.raises(ValueError, match="no source 'nobody'; its sources are: orders, others"):
            runner.send(3, source="nobody")
        tail = place.server.stream(place.path("out")).tail("-1", timeout=PATIENCE_SECONDS)
        assert sorted(next(tail).value for _ in range(2)) == [1, 2]
        tail.close()
    assert (place.read("orders"), place.read("others")) == ([1], [2])


def test_without_a_default_source_the_only_one_is_it(place: Place) -> None:
    graph = place.graph()
    graph.add_source("orders", out=place.path("orders"))
    assert graph.source_of().id == "orders"
    graph.add_source("others", out=place.path("others"))
    with pytest.raises(ValueError, match="no default source; its sources are: orders, others"):
        graph.source_of()


# ---- catalogs ------------------------------------------------------------------------------------


# rows: C32
def test_processors_of_a_catalog_run_bound_to_other_streams(place: Place) -> None:
    place.fill("in", 1, 2)
    catalog = Catalog()

    @catalog.stream("double", in_="anything", out="elsewhere")
    def double(number: int) -> int:
        return 2 * number

    @catalog.stream("pair", in_={"x": "left", "y": "right"}, out="pairs")
    def pair(x: int, y: int) -> list[int]:
        return [x, y]

    double_, pair_ = map(catalog.processor, ("double", "pair"))
    graph = place.graph().add(
        double_.bind(in_=place.path("in"), out=place.path("twice")),
        double_.bind(id="again", in_=place.path("twice"), out=place.path("four")),
        pair_.bind(in_={"x": place.path("in"), "y": place.path("four")}, out=place.path("pairs")),
    )
    run(graph)
    assert place.read("pairs") == [[1, 4], [2, 8]]
    data = {
        "id": f"{place.id}-data",
        "url": place.url,
        "processors": [
            {"id": "double", "in": place.path("in"), "out": place.path("two")},
            {
                "id": "zip",
                "fn": "pair",
                "in": {"x": place.path("two"), "y": place.path("in")},
                "out": place.path("zipped"),
            },
        ],
    }
    described = Graph.from_dict(data, catalog)
    run(described)
    assert place.read("zipped") == [[2, 1], [4, 2]]
    assert described.topology() == {"double": set(), "zip": {"double"}}


# rows: C32
def test_catalogs_are_merged_into_a_graph_and_a_conflict_changes_nothing(place: Place) -> None:
    place.fill("in", 1, 2)
    first, second, other = Catalog(), Catalog(), Catalog()

    @first.stream("double", in_=place.path("in"), out=place.path("twice"))
    def double(number: int) -> int:
        return 2 * number

    @second.stream("negate", in_=place.path("twice"), out=place.path("out"))
    def negate(number: int) -> int:
        return -number

    @other.stream("negate", in_=place.path("in"), out=place.path("out"))
    def negate_differently(number: int) -> int:
        return -number - 1

    graph = place.graph().merge(first.merge(second)).merge(second)
    with pytest.raises(GraphError, match="negate: both have a processor with this id"):
        graph.merge(other)
    run(graph)
    assert place.read("out") == [-2, -4]
    assert graph.topology() == {"double": set(), "negate": {"double"}}


# ---- changes of the graph ------------------------------------------------------------------------


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.name == "semel.pipeline"]
    caplog.clear()
    return found


# rows: C33
def test_an_input_without_a_stored_position_is_named_in_a_warning(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "semel.pipeline")
    first, second, empty = place.fill("a", 1), place.fill("b", 2), place.fill("empty")

    def graph_of(*ids: str, alts: list[str], factor: int = 1) -> Graph:
        graph = place.graph()
        for id in ids:
            graph.stream(id, alts=alts, out=place.path(id))(lambda n: factor * n)
        return graph

    run(graph_of("p", alts=[first, empty]))
    assert warnings(caplog) == []
    place.fill("a", 3)
    run(graph_of("p", alts=[first, empty], factor=10))  # other code, the same inputs
    assert warnings(caplog) == []
    assert place.read("p") == [1, 30]
    run(graph_of("p", alts=[first, empty, second]))
    (warning,) = warnings(caplog)
    assert warning.startswith(
        f"{place.id}/p: no stored position for the input {second}; starts at its first message."
    )
    assert place.read("p") == [1, 30, 2]
    run(graph_of("p", "new", alts=[first]))
    (warning,) = warnings(caplog)
    assert f"{place.id}/new: no stored position for the input {first};" in warning
    run(graph_of("p", "new", alts=[first]))
    assert warnings(caplog) == []


def test_semel_run_prints_the_warning(place: Place, tmp_path: Path) -> None:
    place.fill("a", 1)
    place.fill("b", 2)
    file = tmp_path / "changed.py"
    texts = []
    for inputs in (["a"], ["a", "b"]):
        paths = [place.path(name) for name in inputs]
        file.write_text(
            "from semel.pipeline import Graph\n"
            f"graph = Graph({place.id!r}, url={place.url!r})\n"
            f"graph.stream('p', alts={paths!r}, out={place.path('out')!r})(lambda n: n)\n"
        )
        command = [sys.executable, "-m", "semel", "run", str(file), "--available-now"]
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True
        )
        texts.append(ended.stderr)
    assert "no stored position" not in texts[0]
    assert (
        f"semel: warning: {place.id}/p: no stored position for the input {place.path('b')};"
        in texts[1]
    )


# ---- refused before the start --------------------------------------------------------------------


def test_what_the_options_cannot_mean_is_refused_with_advice(place: Place) -> None:
    graph = place.graph(
        source="nobody",
        streams={
            "default": {"ttl": "5m", "colour": 1},
            "outt": {"dedup": True},
            "out": {"content_type": "text/plain", "expires_at": "tomorrow"},
        },
    )
    graph.stream("p", in_="in", out="out", opts={"a": 1})(lambda message: message)

    @graph.sink("s", in_="out")
    def sink(df: Any, delivery: Any) -> Any:
        yield df

    with pytest.raises(GraphError) as caught:
        Runner(graph)
    told = "\n".join(caught.value.complaints)
    for expected in (
        "the default source is 'nobody'; the graph's sources are: none",
        "streams={'default': ...}: 'ttl' is '5m'; expected a number of seconds",
        "streams={'default': ...}: unknown option 'colour'; the options are content_type, ttl",
        "streams={'outt': ...}: no processor of the graph writes to this stream; did you mean",
        "streams={'out': ...}: 'content_type' is 'text/plain'; expected a JSON media type",
        "streams={'out': ...}: 'expires_at' is 'tomorrow'; expected a time such as",
        "p: opts= is set, but the function has no parameter 'opts'; add the parameter",
        "s: a sink must not yield, because the function would never run; remove the yield",
    ):
        assert expected in told


# ---- calls ---------------------------------------------------------------------------------------


# rows: C04
def test_no_position_moves_before_the_function_has_processed_the_step(place: Place) -> None:
    place.fill("in", *range(20))
    graph = place.graph()
    calls = []

    @graph.stream("p", in_=place.path("in"), out=place.path("out"))
    def note(number: int) -> int:
        calls.append((number, place.offsets("p")))
        return number

    run(graph)
    assert [number for number, _ in calls] == place.read("out") == list(range(20))
    assert all(offsets == {} for _, offsets in calls)
    assert place.offsets("p") == {place.path("in"): 20}
