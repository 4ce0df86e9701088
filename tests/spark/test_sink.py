"""The streaming sink in Spark, for behavior that only a real query shows."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from semel import Client
from semel.testing.fault_plan import FaultPlan
from semel.testing.fault_proxy import FaultProxy
from tests.spark.queries import Copy, fill, finish, values
from tests.spec.process import Server

Make = Callable[..., Copy]


@pytest.fixture
def make(spark: SparkSession, server: Server, client: Client, tmp_path: Path) -> Make:
    """Make queries from a stream of ten numbers to a stream that does not exist yet."""

    def made(checkpoint: str = "checkpoint") -> Copy:
        name = uuid4().hex
        fill(client, f"in-{name}", 0, 10)
        return Copy(spark, server.url, f"in-{name}", f"out-{name}", tmp_path / checkpoint)

    return made


# ---- attempts and replays ------------------------------------------------------------------------


class FailOnce:
    """Fails the first attempt of each task after half its rows."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        for batch in batches:
            yield batch.slice(0, batch.num_rows // 2)
            if context.attemptNumber() == 0:
                raise RuntimeError("lost on purpose")
            yield batch.slice(batch.num_rows // 2)


# rows: K01
def test_a_task_that_fails_is_run_again_and_its_rows_are_seen_once(
    make: Make, client: Client
) -> None:
    query = make()
    query.change = lambda frame: frame.select("value").mapInArrow(FailOnce(), "value binary")
    query.run()
    assert values(client, query.target) == list(range(10))


# rows: K05, K15
def test_a_batch_whose_commit_spark_has_forgotten_is_not_written_again(
    make: Make, client: Client
) -> None:
    query = make()
    query.per_batch = 5
    query.run()
    query.forget_commit(1)
    query.run()
    fill(client, query.source, 10, 12)
    query.run()
    assert values(client, query.target) == list(range(12))


# The requests before the commit: HEAD and PUT of the target, begin, one chunk, prepare.
UP_TO_COMMIT = ["pass"] * 5


# rows: K06
def test_a_commit_whose_answer_is_lost_fails_the_query_and_is_found_when_it_starts_again(
    make: Make, client: Client
) -> None:
    query = make()
    plan = FaultPlan({"drop_answer": 1.0}, script=UP_TO_COMMIT)
    with FaultProxy(query.url, plan) as proxy:
        query.options = {"url": proxy.url, "retryTimeout": "2s"}
        said = query.fail()
        assert "commit the same version again" in said
        assert values(client, query.target) == list(range(10))
        proxy.plan = FaultPlan()
        query.run()
    assert values(client, query.target) == list(range(10))


# rows: K12
def test_a_replay_with_another_number_of_partitions_is_the_same_batch(
    make: Make, client: Client
) -> None:
    query = make()
    query.change = lambda frame: frame.select("value").repartition(3)
    query.run()
    query.forget_commit(0)
    query.change = lambda frame: frame.select("value").repartition(1)
    query.run()
    assert sorted(values(client, query.target)) == list(range(10))


# rows: K10
def test_a_batch_without_rows_is_committed_too(make: Make, client: Client) -> None:
    query = make()
    query.change = lambda frame: frame.select("value").where("offset >= 10")
    query.run()
    assert not client.stream(query.target).exists()
    (sink,) = [one for one in client.sinks() if one.query_id == query_id(query.checkpoint)]
    assert sink.last_version == 0
    fill(client, query.source, 10, 12)
    query.run()
    assert values(client, query.target) == [10, 11]


def query_id(checkpoint: Path) -> str:
    found: str = json.loads((checkpoint / "metadata").read_text())["id"]
    return found


# ---- checkpoints ---------------------------------------------------------------------------------


# rows: K08
def test_of_a_copied_checkpoint_one_driver_goes_on_and_the_other_is_refused(
    make: Make, client: Client, tmp_path: Path
) -> None:
    query = make()
    query.run()
    shutil.copytree(query.checkpoint, tmp_path / "copy")
    other = make()
    other.source, other.target, other.checkpoint = query.source, query.target, tmp_path / "copy"
    other.per_batch = 3
    fill(client, query.source, 10, 14)
    query.run()
    said = other.fail()
    assert "checkpoint_diverged" in said
    assert "copied or restored" in said
    fill(client, query.source, 14, 18)
    query.run()
    assert "checkpoint_diverged" in other.fail()  # on every start
    assert values(client, query.target) == list(range(18))


# rows: K15
def test_a_checkpoint_restored_from_three_batches_ago_is_refused_on_every_start(
    make: Make, client: Client, tmp_path: Path
) -> None:
    query = make()
    query.run()
    shutil.copytree(query.checkpoint, tmp_path / "backup")
    fill(client, query.source, 10, 19)
    query.per_batch = 3
    query.run()
    shutil.rmtree(query.checkpoint)
    shutil.copytree(tmp_path / "backup", query.checkpoint)
    query.per_batch = 9
    for _ in range(2):
        assert "checkpoint_diverged" in query.fail()
    assert values(client, query.target) == list(range(19))


# rows: K07
def test_a_new_checkpoint_under_a_pinned_name_is_refused_and_not_skipped(
    make: Make, client: Client, tmp_path: Path
) -> None:
    query = make()
    query.options["txnAppId"] = app = uuid4().hex
    query.run()
    query.checkpoint = tmp_path / "new"
    said = query.fail()
    assert "app_bound" in said
    assert f"semel sinks rebind {app}" in said
    assert values(client, query.target) == list(range(10))


# rows: K11
def test_a_second_query_on_the_same_checkpoint_stops_the_first_and_undoes_nothing(
    make: Make, client: Client
) -> None:
    query = make()
    first = query.writer().start()
    first.processAllAvailable()
    second = query.writer().start()
    try:
        fill(client, query.source, 10, 15)
        second.processAllAvailable()
        assert not first.isActive
    finally:
        second.stop()
        first.stop()
    assert values(client, query.target) == list(range(15))


def test_the_checkpoints_of_all_queries_may_be_set_at_once(
    make: Make, client: Client, spark: SparkSession, tmp_path: Path
) -> None:
    query = make()
    root = tmp_path / "all of them"
    settings = {"url": query.url, "stream": query.target}
    spark.conf.set("spark.sql.streaming.checkpointLocation", str(root))
    try:
        for name in ("named", None):
            writer = query.frame().select("value").writeStream.format("semel").options(**settings)
            finish(writer if name is None else writer.queryName(name))
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")
    sinks = [client.sink(query_id(checkpoint)) for checkpoint in root.iterdir()]
    assert len(sinks) == 2
    for sink in sinks:
        assert sink.info().versions[0].input is not None
    assert values(client, query.target) == [*range(10), *range(10)]


# ---- bad input -----------------------------------------------------------------------------------


def test_modes_that_cannot_be_are_refused_with_what_can(make: Make) -> None:
    query = make()
    query.change = lambda frame: frame.groupBy("stream").count()
    query.mode = "complete"
    assert 'outputMode("append") with a watermark' in query.fail()
    query.mode = "update"
    query.checkpoint = query.checkpoint.with_name("update")
    assert "does not support Update mode" in query.fail()


def test_a_missing_checkpoint_is_told(make: Make) -> None:
    query = make()
    writer = query.frame().select("value").writeStream.format("semel")
    with pytest.raises(AnalysisException, match="checkpointLocation must be specified"):
        finish(writer.options(url=query.url, stream=query.target))


@pytest.mark.parametrize(
    ("options", "column", "words"),
    [
        (
            {"retryTimout": "1s"},
            "value",
            "unknown option 'retrytimout': did you mean retryTimeout?",
        ),
        ({}, "cast(offset as long) as value", "the column 'value' is bigint; expected string"),
        ({}, "if(offset = 7, '{oops', '1') as value", "partition 0, row 7: "),
    ],
)
def test_what_is_wrong_is_said_in_one_line_with_its_cure(
    make: Make, client: Client, options: dict[str, str], column: str, words: str
) -> None:
    query = make()
    query.options = options
    query.change = lambda frame: frame.selectExpr(column)
    said = query.fail()
    assert words in said
    assert said.count('File "') <= 5  # few or no frames of semel itself
    assert values(client, query.target) == []
