"""Batch writes and foreachBatch in Spark."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

from semel import Client
from semel.spark import commit_batch
from semel.spark.options import SparkOptionError
from tests.spark.queries import fill, finish, forget_commit, values
from tests.spec.process import Server


@pytest.fixture
def name() -> str:
    return uuid4().hex


Write = Callable[..., DataFrameWriter]


@pytest.fixture
def write(server: Server, name: str) -> Write:
    def made(frame: DataFrame, **options: Any) -> DataFrameWriter:
        settings = {"url": server.url, "stream": f"out-{name}", **options}
        return frame.write.format("semel").mode("append").options(**settings)

    return made


def test_a_frame_is_written_at_once_and_leaves_no_sink_behind(
    spark: SparkSession, client: Client, write: Write, name: str
) -> None:
    before = len(client.sinks())
    rows = spark.range(0, 30_000, 1, 3).selectExpr("id", "cast(id as string) as text")
    write(rows).save()
    found = values(client, f"out-{name}")
    assert found == [{"id": number, "text": str(number)} for number in range(30_000)]
    write(rows.where("id < 0")).save()
    assert len(client.sinks()) == before


def test_rows_of_every_type_arrive_as_json_and_are_routed_by_their_stream(
    spark: SparkSession, client: Client, server: Server, name: str
) -> None:
    frame = spark.sql(
        f"select concat('{name}-', id) as stream, id, cast(id / 2 as decimal(10,2)) as d,"
        " date'2024-02-29' as day, timestamp'2024-02-29 12:00:00' as at, array(id, null) as l,"
        " map('k', id) as m, named_struct('x', 'a\\nb') as s, unhex('00ff') as b,"
        " cast(null as string) as n, double('NaN') as f from range(2)"
    )
    frame.write.format("semel").mode("append").option("url", server.url).save()
    for id_ in range(2):
        assert values(client, f"{name}-{id_}") == [
            {
                "id": id_,
                "d": id_ / 2,
                "day": "2024-02-29",
                "at": "2024-02-29T12:00:00.000000Z",
                "l": [id_, None],
                "m": {"k": id_},
                "s": {"x": "a\nb"},
                "b": "AP8=",
                "n": None,
                "f": None,
            }
        ]


def test_keys_headers_and_times_of_a_stream_are_copied(
    spark: SparkSession, client: Client, server: Server, write: Write, name: str
) -> None:
    source = client.stream(f"in-{name}").create("text/plain")
    source.append("x", key=b"k", headers={"h": b"v"})
    options = {"url": server.url, "stream": f"in-{name}", "includeHeaders": "true"}
    frame = spark.read.format("semel").options(**options).load()
    write(frame, contentType="text/plain").save()
    (copy,), (first,) = client.stream(f"out-{name}").read(), source.read()
    assert (copy.raw, copy.key, copy.headers) == (first.raw, first.key, first.headers)
    assert copy.timestamp == first.timestamp


def test_a_version_is_written_once_and_its_place_is_kept(
    spark: SparkSession, client: Client, write: Write, name: str
) -> None:
    frame = spark.range(3).selectExpr("id")
    for version in (4, 4, 5):
        write(frame, txnAppId=name, txnVersion=version).save()
    assert values(client, f"out-{name}") == [{"id": number} for number in range(3)] * 2
    with pytest.raises(Exception, match="checkpoint_diverged"):
        write(frame, txnAppId=name, txnVersion=4).save()
    assert client.sink(name).info().last_version == 5


def test_what_cannot_be_written_is_refused_with_what_can(
    spark: SparkSession, client: Client, write: Write, name: str
) -> None:
    frame = spark.range(3).selectExpr("id")
    with pytest.raises(AnalysisException, match=r'use mode\("append"\)'):
        write(frame).mode("overwrite").save()
    with pytest.raises(AnalysisException, match="must be used together"):
        write(frame, txnAppId="a").save()
    assert values(client, f"out-{name}") == []


# ---- foreachBatch --------------------------------------------------------------------------------


def stream_of(spark: SparkSession, url: str, path: str) -> DataFrame:
    return spark.readStream.format("semel").options(url=url, stream=path).load()


# rows: K16
def test_foreach_batch_run_twice_writes_all_its_frames_once(
    spark: SparkSession, client: Client, server: Server, name: str, tmp_path: Path
) -> None:
    fill(client, f"in-{name}", 0, 6)
    results = []

    def write(frame: DataFrame, batch_id: int) -> None:
        parts = {
            f"even-{name}": frame.where("offset % 2 = 0").select("value"),
            f"odd-{name}": frame.where("offset % 2 = 1").selectExpr("offset as id"),
        }
        results.append(commit_batch(batch_id, parts, url=server.url))

    for end in (6, 6, 8):
        fill(client, f"in-{name}", 6, end) if end > 6 else None
        frame = stream_of(spark, server.url, f"in-{name}")
        finish(frame.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path)))
        if len(results) == 1:
            forget_commit(tmp_path, 0)
    assert [result.duplicate for result in results] == [False, True, False]
    assert values(client, f"even-{name}") == [0, 2, 4, 6]
    assert values(client, f"odd-{name}") == [{"id": number} for number in (1, 3, 5, 7)]
    query_id = json.loads((tmp_path / "metadata").read_text())["id"]
    assert client.sink(query_id).info().open_transactions == 0


# rows: K16
def test_foreach_batch_is_told_what_it_needs(
    spark: SparkSession, client: Client, server: Server, write: Write, name: str, tmp_path: Path
) -> None:
    fill(client, f"in-{name}", 0, 3)

    runs = []

    def plain(frame: DataFrame, batch_id: int) -> None:
        runs.append(batch_id)
        if len(runs) == 1:  # four attempts of a task are slow
            with pytest.raises(PythonException, match=r"semel\.spark\.commit_batch"):
                write(frame.select("value").coalesce(1)).save()
        write(frame.select("value"), txnAppId=name, txnVersion=batch_id).save()
        commit_batch(batch_id, {f"a-{name}": frame.select("value")}, url=server.url)
        with pytest.raises(SparkOptionError, match="called twice for batch 0"):
            commit_batch(batch_id, {f"b-{name}": frame.select("value")}, url=server.url)
        twice = {f"b-{name}": frame.select("value")}
        commit_batch(
            batch_id, twice, url=server.url, app=f"b-{name}", checkpointLocation=str(tmp_path)
        )

    for _ in range(2):
        frame = stream_of(spark, server.url, f"in-{name}")
        finish(frame.writeStream.foreachBatch(plain).option("checkpointLocation", str(tmp_path)))
        forget_commit(tmp_path, 0)
    for path in (f"out-{name}", f"a-{name}", f"b-{name}"):
        assert values(client, path) == [0, 1, 2]
    assert client.sink(f"b-{name}").info().versions[0].input is not None


def test_outside_foreach_batch_a_name_is_needed(
    spark: SparkSession, client: Client, server: Server, name: str
) -> None:
    frame = spark.range(3).selectExpr("id")
    with pytest.raises(SparkOptionError, match="add the argument 'app'"):
        commit_batch(0, {f"a-{name}": frame}, url=server.url)
    with pytest.raises(ValueError, match="'frames' is empty"):
        commit_batch(0, {}, url=server.url)
    bad = spark.sql("select '{oops' as value")
    with pytest.raises(PythonException, match="row 0"):
        commit_batch(0, {f"a-{name}": frame, f"b-{name}": bad}, url=server.url, app=name)
    assert values(client, f"a-{name}") == []
    for _ in range(2):
        commit_batch(0, {f"a-{name}": frame}, url=server.url, app=name)
    assert values(client, f"a-{name}") == [{"id": number} for number in range(3)]
    streaming = stream_of(spark, server.url, f"a-{name}")
    with pytest.raises(SparkOptionError, match="is a streaming DataFrame"):
        commit_batch(1, {f"b-{name}": streaming}, url=server.url, app=name)
