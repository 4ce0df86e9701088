"""Error messages of graphs on Spark that are replayed."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from semel import Client
from semel.pipeline import Graph
from tests.spark.test_pipeline import Place, SmallSteps
from tests.spec.process import Server


@pytest.fixture
def place(server: Server, client: Client, spark: SparkSession) -> Place:
    return Place(server, client, spark)


def replay(place: Place, processor: str) -> int:
    group, stream = f"{place.id}/{processor}", place.path("errors")
    return place.client.dead_letters(group, stream=stream).replay()


def graph_of(place: Place, bad: int | None) -> Graph:
    """Return a graph in which the messages of all processors fail that have the number `bad`."""
    graph = place.graph(errors=place.path("errors"))
    path = place.path

    @graph.stream("one", in_=path("in"), out=path("ones"))
    def one(message: dict[str, int]) -> int:
        if message["n"] == bad:
            raise ValueError("poison")
        return message["n"]

    @graph.stream("pair", in_={"x": path("in"), "y": path("more")}, out=path("pairs"))
    def pair(x: dict[str, int], y: int) -> list[int]:
        if x["n"] == bad:
            raise ValueError("poison")
        return [x["n"], y]

    @graph.stream("frame", in_=path("in"), out=path("frames"))
    def frame(df: DataFrame) -> DataFrame:
        numbers = f.from_json("value", "n long").n
        rows = df.select("stream", "offset", (numbers * 2).alias("twice"))
        return rows.withColumn("_error", f.when(rows.twice == 2 * (bad or -1), "poison"))

    @graph.stream("query", in_=path("in"), out=path("queries"), stateful=True)
    def query(df: DataFrame) -> DataFrame:
        return frame(df).withColumnRenamed("twice", "doubled")

    return graph


def test_replayed_messages_are_processed_once_by_functions_of_all_kinds(
    place: Place, tmp_path: Path
) -> None:
    place.fill("in", *[{"n": n} for n in range(30)])
    place.fill("more", *range(100, 130))
    engine = SmallSteps(checkpoints=str(tmp_path))
    assert place.run(graph_of(place, 7), engine) == {}
    kinds = ("one", "pair", "frame", "query")
    errors = {one["processor"]: one for one in place.read("errors")}
    assert sorted(errors) == sorted(kinds)
    assert len(place.read("errors")) == 4
    for error in errors.values():
        assert (error["stream"], error["attempts"]) == (place.path("in"), 1)
        assert error["incarnation"] == place.client.stream(place.path("in")).head().incarnation
    assert errors["pair"]["value"] == {"x": {"n": 7}, "y": 107}
    assert errors["frame"]["inputs"][0]["value"] == {"twice": 14}
    assert [errors[kind]["value"] for kind in ("one", "frame", "query")] == [{"n": 7}] * 3
    assert [replay(place, kind) for kind in kinds] == [1] * 4
    place.fill("in", {"n": 30})
    for _ in range(2):
        assert place.run(graph_of(place, None), engine) == {}
    expected: dict[str, list[Any]] = {
        "ones": list(range(31)),
        "pairs": [[n, n + 100] for n in range(30)],
        "frames": [{"twice": 2 * n} for n in range(31)],
        "queries": [{"doubled": 2 * n} for n in range(31)],
    }
    assert {name: sorted(place.read(name), key=str) for name in expected} == {
        name: sorted(each, key=str) for name, each in expected.items()
    }
    assert len(place.read("errors")) == 4
    assert [replay(place, kind) for kind in kinds] == [0] * 4


def test_a_replayed_message_of_a_frame_that_fails_again_keeps_its_origin(place: Place) -> None:
    graph = place.graph(errors=place.path("errors"))
    place.fill("in", {"n": 1}, {"n": 2})

    @graph.stream("p", in_=place.path("in"), out=place.path("out"))
    def poison(df: DataFrame) -> DataFrame:
        bad = f.get_json_object("value", "$.n") == "2"
        return df.select("stream", "offset", "value", f.when(bad, "two").alias("_error"))

    assert place.run(graph) == {}
    assert replay(place, "p") == 1
    assert place.run(graph) == {}
    first, second = place.read("errors")
    assert (first["value"], first["stream"]) == ({"n": 2}, place.path("in"))
    for name in ("value", "stream", "offset", "incarnation", "cause"):
        assert first[name] == second[name]
    assert place.read("out") == [{"n": 1}]
