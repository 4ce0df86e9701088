"""Graphs on Spark, for behavior that only real jobs show."""

import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from semel import Client
from semel.cli.graph import run_command
from semel.pipeline import Delivery, Graph, GraphError, Runner, postgres, trace, wrap_error
from semel.pipeline.executor import Executor
from semel.pipeline.local.engine import LocalEngine
from semel.pipeline.local.step import RAN
from semel.pipeline.spark.engine import SparkEngine
from semel.pipeline.trace import trace_of
from tests.spark.queries import values
from tests.spec.process import PATIENCE_SECONDS, Server


class SmallSteps(SparkEngine):
    """Runs two tasks in each step."""

    step_messages_max = 1_000
    task_messages_min = 10


class Killed(BaseException):
    """Ends a thread as if its process had been killed."""


class Place:
    """A server, a session, and names that no other test uses."""

    def __init__(self, server: Server, client: Client, spark: SparkSession) -> None:
        self.url = server.url
        self.client = client
        self.spark = spark
        self.id = f"g{uuid4().hex[:12]}"

    def graph(self, **options: Any) -> Graph:
        return Graph(self.id, url=self.url, **options)

    def path(self, name: str) -> str:
        return f"{self.id}-{name}"

    def fill(self, name: str, *messages: Any) -> str:
        stream = self.client.stream(self.path(name)).create("application/json", exist_ok=True)
        if messages:
            stream.append_many(messages)
        return stream.path

    def read(self, name: str) -> list[Any]:
        return values(self.client, self.path(name))

    def run(self, graph: Graph, executor: Executor | None = None, **options: Any) -> dict[str, str]:
        """Run to the end; return the processors that stopped with their errors."""
        engine = executor or SmallSteps()
        with Runner(graph, available_now=True, executor=engine, **options) as runner:
            assert runner.wait(4 * PATIENCE_SECONDS)
        return runner.stopped


@pytest.fixture
def place(server: Server, client: Client, spark: SparkSession) -> Place:
    return Place(server, client, spark)


# ---- same results as the local engine ------------------------------------------------------------


def zigzag(graph: Graph, path: Callable[[str], str]) -> None:
    """Add a fork with errors, a join of streams with gaps, a batch and alternatives."""

    @graph.stream("fork", in_=path("in"), out={"a": path("a"), "b": path("b")}, types=["x", "y"])
    def fork(message: dict[str, Any]) -> dict[str, Any]:
        if message["n"] % 10 == 3:
            raise ValueError(message["n"])
        return {"a": message, "b": message["n"] if message["n"] % 2 else None}

    @graph.stream("pair", in_={"x": path("in"), "y": path("gaps")}, out=path("pairs"))
    def pair(x: dict[str, Any], y: int) -> list[Any]:
        return [x["n"], y]

    @graph.stream("batch", in_=path("a"), out=path("batches"))
    def batch(rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows.filter(pa.compute.not_equal(rows.column("n"), 4))

    @graph.stream("any", alts={"p": path("pairs"), "b": path("b")}, out=path("all"))
    def either(message: Any, binding: str) -> Any:
        return [binding, message]


def test_both_engines_make_the_same(place: Place) -> None:
    found: dict[str, dict[str, Any]] = {}
    engines: dict[str, Executor] = {"local": LocalEngine(), "spark": SmallSteps()}
    other = place.id
    for name, engine in engines.items():
        place.id = f"{other}-{name}"
        place.fill("in", *[{"n": n, "type": "xyz"[n % 3]} for n in range(60)])
        for n in range(0, 60, 4):  # aborted transactions leave gaps
            place.fill("gaps", *range(n, n + 4))
            with place.client.transaction(producer_id=place.path("holes")) as txn:
                txn.append(place.path("gaps"), "never seen")
                txn.abort()
        graph = place.graph(errors=place.path("errors"))
        zigzag(graph, place.path)
        assert place.run(graph, engine) == {}
        found[name] = {one: place.read(one) for one in ("a", "b", "pairs", "batches")}
        found[name]["errors"] = [
            (one["inputs"][0]["offset"], one["cause"]) for one in place.read("errors")
        ]
        found[name]["all"] = Counter(map(str, place.read("all")))
    assert found["spark"] == found["local"]
    assert found["spark"]["pairs"] == [[n, n] for n in range(60)]
    assert len(found["spark"]["errors"]) == 4


def test_a_flaky_function_puts_each_message_on_exactly_one_leg(place: Place) -> None:
    graph = place.graph(errors=place.path("errors"))

    @graph.stream("flaky", in_=place.fill("in", *range(300)), out=place.path("out"))
    def flaky(n: int) -> int:
        if random.random() < 0.3:
            raise ValueError(n)
        return n

    assert place.run(graph) == {}
    out = place.read("out")
    failed = [one["inputs"][0]["value"] for one in place.read("errors")]
    assert sorted(out + failed) == list(range(300))
    assert failed
    assert out == sorted(out)


# ---- errors that stop a processor ----------------------------------------------------------------


def test_a_worker_that_dies_stops_the_processor_and_names_the_range(place: Place) -> None:
    graph = place.graph(errors=place.path("errors"))
    path = place.fill("in", *range(20))

    @graph.stream("p", in_=path, out=place.path("out"))
    def dying(n: int) -> int:
        if n == 15:
            os._exit(7)
        return n

    (reason,) = place.run(graph).values()
    assert "a Spark worker process ended" in reason
    assert f"step 1 ({path} 0..20)" in reason
    assert place.read("out") == []
    mended = place.graph()
    mended.stream("p", in_=path, out=place.path("out"))(lambda n: n)
    place.fill("in", 20)
    assert place.run(mended, LocalEngine()) == {}  # one engine continues a step of the other
    assert place.read("out") == list(range(21))
    assert place.read("errors") == []


def test_a_message_that_fails_without_an_error_stream_stops_its_processor(place: Place) -> None:
    graph = place.graph()
    path = place.fill("in", *range(20))

    @graph.stream("p", in_=path, out=place.path("out"))
    def strict(n: int) -> int:
        if n == 15:
            raise LookupError("no fifteen")
        return n

    (reason,) = place.run(graph).values()
    assert reason.startswith("LookupError: no fifteen; the failed message is ")
    assert f"{path} at 0000000000000000_0000000000000015" in reason
    assert place.read("out") == []


@pytest.mark.parametrize("role", ["stream", "sink"])
def test_messages_that_are_trimmed_before_they_are_read_stop_the_processor(
    place: Place, role: str
) -> None:
    graph = place.graph()
    path = place.fill("in", *range(20))
    if role == "stream":
        graph.stream("p", in_=path, out=place.path("out"))(lambda n: n)
    else:
        graph.sink("p", in_=path)(lambda df, delivery: df.count())
    place.client.group(f"{place.id}/p").set({path: 5})
    place.client.stream(path).trim(before="0000000000000000_0000000000000010")
    (reason,) = place.run(graph).values()
    assert "offsets 5 to 9 were trimmed before the query read them" in reason
    assert f"({path} 5..20)" in reason


def test_a_function_that_cannot_be_sent_is_refused_before_the_start(place: Place) -> None:
    graph = place.graph()
    lock = threading.Lock()

    @graph.stream("p", in_=place.fill("in"), out=place.path("out"))
    def locked(n: int) -> int:
        with lock:
            return n

    with pytest.raises(GraphError, match="p: the function cannot be sent to Spark's workers"):
        Runner(graph, executor=SmallSteps())


# ---- functions of DataFrames ---------------------------------------------------------------------


def test_frames_go_to_several_outputs_and_rows_with_an_error_to_the_error_stream(
    place: Place,
) -> None:
    graph = place.graph(errors=place.path("errors"))
    source = place.fill("in", *[{"n": n, "type": "ab"[n % 2]} for n in range(40)])

    @graph.stream("split", in_=source, out={"x": place.path("x"), "y": place.path("y")}, types="a")
    def split(df: DataFrame) -> dict[str, DataFrame]:
        rows = df.select("stream", "offset", f.from_json("value", "n long").n.alias("n"))
        bad = f.when(rows.n == 8, "it is eight")
        return {"x": rows.withColumn("_error", bad), "y": rows.select((rows.n * 2).alias("twice"))}

    assert place.run(graph) == {}
    even = range(0, 40, 2)
    assert place.read("x") == [{"n": n} for n in even if n != 8]
    assert place.read("y") == [{"twice": 2 * n} for n in even]
    (error,) = place.read("errors")
    assert error["cause"] == {"class": "_error", "message": "it is eight"}
    assert error["inputs"][0]["offset"].endswith("08")
    assert error["inputs"][0]["value"] == {"n": 8}


def test_a_function_of_frames_that_fails_stops_its_processor(place: Place) -> None:
    graph = place.graph(errors=place.path("errors"))
    path = place.fill("in", *range(5))

    @graph.stream("p", in_=path, out=place.path("out"))
    def failing(df: DataFrame) -> DataFrame:
        raise ValueError(f"{df.count()} are too many")

    (reason,) = place.run(graph).values()
    assert "the function raised ValueError: 5 are too many" in reason
    assert f"({path} 0..5)" in reason
    assert place.read("errors") == []


def test_a_join_of_frames_is_given_each_input(place: Place) -> None:
    graph = place.graph()
    inputs = {"x": place.fill("x", *range(9)), "y": place.fill("y", *range(3))}

    @graph.stream("join", in_=inputs, out=place.path("out"))
    def join(x: DataFrame, y: DataFrame) -> DataFrame:
        both = x.join(y, "value").select("value", x["offset"])
        return both.coalesce(1).sortWithinPartitions("offset").select("value")

    assert place.run(graph) == {}
    assert place.read("out") == [0, 1, 2]


def test_a_sink_is_given_a_frame_and_the_same_hash_again_after_a_death(place: Place) -> None:
    graph = place.graph()
    told: list[tuple[int, int, str]] = []

    @graph.sink("s", in_=place.fill("in", *range(30)))
    def store(df, delivery: Delivery) -> None:  # type: ignore[no-untyped-def]
        told.append((df.count(), delivery.number, delivery.hash))

    def dies(processor: str, boundary: str) -> None:
        if boundary == RAN:
            raise Killed(processor)

    place.run(graph, at=dies)
    place.fill("in", 30)
    assert place.run(graph) == {}
    assert [one[:2] for one in told] == [(30, 1), (30, 1), (1, 2)]
    assert told[0] == told[1]


def test_a_sink_of_several_inputs_is_given_them_by_binding(place: Place) -> None:
    graph = place.graph()
    x, y, empty = place.fill("x", 1, 2, 3), place.fill("y", 4, 5, 6), place.fill("empty")
    told: dict[str, Any] = {}

    @graph.sink("lists", in_={"x": x, "y": y})
    def lists(found: list, delivery: Delivery) -> None:  # type: ignore[type-arg]
        del delivery
        told["lists"] = found

    @graph.sink("frames", alts={"x": x, "none": empty})
    def frames(found: DataFrame, delivery: Delivery) -> None:
        del delivery
        told["frames"] = {name: [row.value for row in df.collect()] for name, df in found.items()}  # type: ignore[operator]

    assert place.run(graph) == {}
    assert told["lists"] == {"x": [1, 2, 3], "y": [4, 5, 6]}
    assert told["frames"] == {"x": ["1", "2", "3"], "none": []}


class FailOnce:
    """Fails the first attempt of each task after its rows."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        yield from batches
        if context.attemptNumber() == 0:
            raise RuntimeError("lost on purpose")


# rows: C13
def test_postgres_has_every_row_once_whatever_is_tried_again(
    place: Place, database: str | None
) -> None:
    if database is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    graph = place.graph()
    stored: list[bool] = []
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA shop")
        connection.execute(
            "CREATE TABLE shop.orders (serial bigserial, n int NOT NULL, who jsonb, at timestamptz,"
            " tags text[])"
        )
        path = place.fill("in", *[{"n": n, "who": {"a": n}, "tags": ["x"]} for n in range(30)])

        @graph.sink("rows", in_=path)
        def rows(df: DataFrame, delivery: Delivery) -> None:
            columns = "n int, who struct<a: int>, at timestamp, tags array<string>"
            typed = df.select(f.from_json("value", columns).alias("order")).select("order.*")
            flaky = typed.mapInArrow(FailOnce(), typed.schema)
            done = postgres.write(flaky, delivery, to=database, table="shop.orders")
            stored.append(done)

        for _ in range(2):
            place.client.group(f"{place.id}/rows").set({path: 0})  # as if not committed
            assert place.run(graph) == {}
        found = connection.execute("SELECT n, who, at, tags FROM shop.orders ORDER BY serial")
        assert found.fetchall() == [(n, {"a": n}, None, ["x"]) for n in range(30)]
        left = connection.execute("SELECT count(*) FROM shop.orders_staging").fetchone()
    assert left == (0,)
    assert stored == [True, False]


# ---- several results, context and positions ------------------------------------------------------


# rows: C17, C33
def test_a_function_on_workers_yields_messages_and_adds_context_to_its_errors(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    def graph_of(*inputs: str) -> Graph:
        graph = place.graph(errors=place.path("errors"))

        @graph.stream("p", alts=inputs, out=place.path("out"), opts={"by": 10})
        def repeat(count: int, opts: dict[str, int]) -> Iterator[int]:
            yield from range(count)
            with wrap_error(scaled=count * opts["by"]):
                assert count != 3, "three"

        return graph

    first, second = place.fill("in", 2, 0, 3), place.fill("late", 1)
    assert place.run(graph_of(first)) == {}
    assert place.read("out") == [0, 1]
    (error,) = place.read("errors")
    assert (error["context"], error["inputs"][0]["value"]) == ({"scaled": 30}, 3)
    assert (error["config"]["opts"], error["cause"]["class"]) == ({"by": 10}, "AssertionError")
    assert caplog.messages == []
    assert place.run(graph_of(first, second)) == {}
    assert place.read("out") == [0, 1, 0]
    (warning,) = caplog.messages
    assert f"{place.id}/p: no stored position for the input {second};" in warning


# ---- stateful ------------------------------------------------------------------------------------


def test_a_stateful_processor_is_a_query_that_goes_on_with_its_checkpoint(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = place.graph()

    @graph.stream("first", in_=place.fill("in", 1, 2, 2, 3), out=place.path("mid"))
    def same(n: int) -> int:
        return n

    @graph.stream("once", in_=place.path("mid"), out=place.path("out"), stateful=True)
    def once(df: DataFrame) -> DataFrame:
        return df.select("value").dropDuplicates(["value"])

    engine = SmallSteps(checkpoints=str(tmp_path))
    states: set[str] = set()
    with Runner(graph, available_now=True, executor=engine) as runner:
        gauge = runner.gauges["once"]
        while not runner.wait(0.05):
            states.add(gauge.state)
    assert runner.stopped == {}
    assert sorted(place.read("out")) == [1, 2, 3]
    assert "running" in states
    assert "idle" not in states
    assert (gauge.read, gauge.written, gauge.errors, gauge.lag) == (4, 3, 0, 0)
    before = trace_of(place.client, place.id, "once")
    place.fill("in", 3, 4, 1)
    monkeypatch.setattr(trace, "TRIMMED_EVERY", 1)
    monkeypatch.setattr(trace, "RECORDS_KEPT", 3)
    assert place.run(graph, engine) == {}
    assert sorted(place.read("out")) == [1, 2, 3, 4]
    kept = place.client.stream(f"{place.id}/trace").read()
    assert sum(1 for _ in kept) == 3
    steps = [*before, *trace_of(place.client, place.id, "once")]
    assert [(step.number, step.outcome, step.read, step.written) for step in steps] == [
        (1, "done", 4, {place.path("out"): 3}),
        (2, "done", 3, {place.path("out"): 1}),
    ]
    assert [[(path, int(to[17:])) for path, _, _, to in step.ranges] for step in steps] == [
        [(place.path("mid"), 4)],
        [(place.path("mid"), 7)],
    ]
    stands = place.client.group(f"{place.id}/once").offsets()[place.path("mid")]
    assert stands == place.client.stream(place.path("mid")).head().next_offset
    with pytest.raises(GraphError, match="set the directory with --checkpoints"):
        Runner(graph, executor=SmallSteps())


# ---- the command ---------------------------------------------------------------------------------

FILE = """
from semel.pipeline import Graph

FACTOR = 3
graph = Graph({id!r})

def tripled(n):
    return FACTOR * n

@graph.stream("p", in_={source!r}, out={out!r})
def p(n):
    return tripled(n)
"""


def test_semel_run_sends_what_the_file_defines_to_the_workers(place: Place, tmp_path: Path) -> None:
    source = place.fill("in", *range(30))
    file = tmp_path / "of_their_own.py"
    file.write_text(FILE.format(id=place.id, source=source, out=place.path("out")))
    arguments = [str(file), "--url", place.url, "--engine", "spark", "--available-now", "--json"]
    done = CliRunner().invoke(run_command, arguments, standalone_mode=False)
    assert done.return_value == 0, done.output
    assert '"processor":"p"' in done.output.replace(" ", "")
    assert place.read("out") == [3 * n for n in range(30)]
