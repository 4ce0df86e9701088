"""The streaming sink without a JVM, against a real server: the results after failures."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from semel import Client, errors
from semel.broker.settings import Settings
from semel.client.commit_calls import TaskCalls
from semel.model.limits import KIB
from semel.server.limits_http import HttpLimits
from semel.spark.errors import CheckpointError, RowError, ServerUnreachable
from semel.spark.options import SparkOptionError, parse_sink
from semel.spark.sink import staging
from semel.spark.sink.writers import BATCH_ID, QUERY_ID, StagedTask, StreamWriter
from semel.testing.fault_plan import FaultPlan
from semel.testing.fault_proxy import FaultProxy
from semel.testing.in_process import InProcessServer
from tests.unit.spark.sink_world import VALUE, Current, Query, Task, batches, values

BODY_BYTES_MAX = 20_000
ROUTE = StructField("stream", StringType())


@pytest.fixture(scope="module")
def small_url() -> Iterator[str]:
    with InProcessServer(http_limits=HttpLimits(body_bytes_max=BODY_BYTES_MAX)) as server:
        yield server.url


@pytest.fixture
def query(current: Current, url: str, path: str, tmp_path: Path) -> Query:
    return Query(current, url, path, tmp_path / "checkpoint", uuid4().hex)


def failing(rows: list[str]) -> Iterator[pa.RecordBatch]:
    yield from batches(rows)
    raise RuntimeError("the task is lost")


# ---- attempts ------------------------------------------------------------------------------------


# rows: K01
def test_an_attempt_that_fails_in_the_middle_is_never_seen(
    query: Query, client: Client, path: str
) -> None:
    query.plan(0, 3)
    rows = ["1"] * 10_000
    with pytest.raises(RuntimeError, match="the task is lost"):
        query.write(0, failing(rows))
    query.commit(0, query.write(0, batches(["1", "2", "3"])))
    assert values(client, path) == [1, 2, 3]
    assert client.sink(query.query_id).info().open_transactions == 0


# rows: K02, K03
def test_of_two_attempts_that_finish_the_one_that_is_listed_counts(
    query: Query, client: Client, path: str
) -> None:
    query.plan(0, 1)
    query.write(0, batches(["1"]))  # prepared, but its message is lost with the executor
    second = query.write(0, batches(["1"]))
    assert values(client, path) == []
    query.commit(0, second)
    assert values(client, path) == [1]
    assert client.sink(query.query_id).info().open_transactions == 0


# rows: K04
def test_what_a_driver_leaves_behind_is_not_seen_and_dropped_by_the_next_commit(
    query: Query, client: Client, path: str
) -> None:
    query.plan(0, 2)
    for partition in range(2):
        query.write(0, batches([str(partition)]), partition)  # then the driver is killed
    assert values(client, path) == []
    query.run(0, ["0"], ["1"], end=2)
    assert values(client, path) == [0, 1]
    assert client.sink(query.query_id).info().open_transactions == 0


def test_partitions_enter_in_their_order_whatever_the_order_of_the_messages(
    query: Query, client: Client, path: str
) -> None:
    query.plan(0, 4)
    messages = [query.write(0, batches([str(at)]), at) for at in (2, 0, 3, 1)]
    query.commit(0, *messages)
    assert values(client, path) == [0, 1, 2, 3]


# ---- replays -------------------------------------------------------------------------------------


# rows: K05, K12
def test_a_batch_that_was_committed_is_not_written_again_in_whatever_pieces_it_comes(
    query: Query, client: Client, path: str
) -> None:
    query.run(0, ["1", "2"], ["3"], end=3)
    query.run(0, ["1"], ["2"], ["3"], [], end=3)
    assert values(client, path) == [1, 2, 3]
    assert client.sink(query.query_id).info().open_transactions == 0
    query.run(1, ["4"], end=4)
    assert values(client, path) == [1, 2, 3, 4]


# rows: K06
def test_an_abort_after_a_commit_whose_answer_was_lost_undoes_nothing(
    query: Query, client: Client, path: str
) -> None:
    with FaultProxy(query.options["url"]) as proxy:
        query.options |= {"url": proxy.url, "retryTimeout": "500ms"}
        query.plan(0, 2)
        messages = [query.write(0, batches(["1"]), 0), query.write(0, batches(["2"]), 1)]
        proxy.plan = FaultPlan({"drop_answer": 1.0})
        with pytest.raises(errors.Indeterminate, match="same version again"):
            query.commit(0, *messages)
        query.writer().abort([*messages], 0)
        assert values(client, path) == [1, 2]
        proxy.plan = FaultPlan()
        query.writer().abort([*messages], 0)  # the server responds that they are committed
        query.run(0, ["1"], ["2"], end=2)
    assert values(client, path) == [1, 2]


# rows: K11
def test_an_abort_of_nothing_sends_nothing_and_an_abort_never_raises(
    query: Query, client: Client, path: str
) -> None:
    (message,) = query.run(0, ["1"])
    with FaultProxy(query.options["url"]) as proxy:
        query.options["url"] = proxy.url
        query.writer().abort([None, None], 1)
        assert proxy.counts["requests"] == 0
        query.writer().abort([None, message], 1)  # the server responds that it is committed
        assert proxy.counts["requests"] == 1
    query.options["retryTimeout"] = "100ms"
    query.writer().abort([None, message], 1)  # the proxy is closed
    assert values(client, path) == [1]


def test_an_abort_drops_what_is_not_committed(query: Query, client: Client, path: str) -> None:
    query.run(0, ["1"])
    query.plan(1, 2)
    message = query.write(1, batches(["2"]))
    query.writer().abort([message, None], 1)
    with pytest.raises(errors.BranchMissing):
        query.commit(1, message)
    query.run(1, ["2"], end=2)
    assert values(client, path) == [1, 2]


@pytest.mark.parametrize("is_expired", [False, True])
def test_a_target_that_went_before_the_commit_is_not_written_to_in_silence(
    query: Query, client: Client, path: str, is_expired: bool
) -> None:
    client.stream(path).create("application/json", ttl=1 if is_expired else None)
    query.plan(0, 1)
    message = query.write(0, batches(["1"]))
    if is_expired:
        while client.stream(path).exists():
            time.sleep(0.1)
    else:
        client.stream(path).delete()
    with pytest.raises(errors.StreamNotFound, match=path):
        query.commit(0, message)
    query.run(0, ["1"], end=1)
    assert values(client, path) == [1]


# ---- histories -----------------------------------------------------------------------------------


# rows: K07
def test_a_new_checkpoint_writes_again_and_a_pinned_name_is_not_skipped_in_silence(
    current: Current, url: str, client: Client, path: str, tmp_path: Path
) -> None:
    pinned = {"txnAppId": f"pinned-{path}"}
    for options in ({}, pinned):
        first = Query(current, url, path, tmp_path / "a", uuid4().hex, **options)
        first.run(0, ["1"])
    again = Query(current, url, path, tmp_path / "b", uuid4().hex)
    again.run(0, ["1"])
    assert values(client, path) == [1, 1, 1]
    anew = Query(current, url, path, tmp_path / "c", uuid4().hex, **pinned)
    with pytest.raises(errors.AppBound, match="semel sinks rebind") as caught:
        anew.run(0, ["2"])
    assert "\n" not in str(caught.value)
    assert values(client, path) == [1, 1, 1]
    assert "forget" not in str(caught.value)
    client.sink(pinned["txnAppId"]).rebind(anew.query_id, -1)
    anew.run(0, ["2"])
    anew.run(1, ["3"])
    later = Query(current, url, path, tmp_path / "d", uuid4().hex, **pinned)
    client.sink(pinned["txnAppId"]).rebind(later.query_id, 5)
    later.run(6, ["4"])
    assert values(client, path) == [1, 1, 1, 2, 3, 4]


# rows: K09
def test_two_queries_do_not_share_a_name(
    current: Current, url: str, client: Client, path: str, tmp_path: Path
) -> None:
    one, two = [
        Query(current, url, path, tmp_path / name, uuid4().hex, txnAppId=f"shared-{path}")
        for name in "ab"
    ]
    one.run(0, ["1"])
    for batch_id in (0, 1):
        with pytest.raises(errors.AppBound):
            two.run(batch_id, ["2"])
    one.run(1, ["3"])
    assert values(client, path) == [1, 3]


# rows: K08
def test_of_two_copies_of_a_checkpoint_one_goes_on_and_the_other_never(
    query: Query, client: Client, path: str, tmp_path: Path
) -> None:
    query.run(0, ["0"])
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "copy")
    copy = Query(query.current, query.options["url"], path, tmp_path / "copy", query.query_id)
    query.run(1, ["1"], end=1)
    for _ in range(2):
        with pytest.raises(errors.CheckpointDiverged, match="copied or restored"):
            copy.run(1, ["1", "2"], end=2)
    query.run(2, ["2"], end=2)
    query.run(3, ["3"], end=3)
    for batch_id in (1, 2, 3, 4):  # also with the next batch ids
        with pytest.raises(errors.CheckpointDiverged):
            copy.run(batch_id, ["1", "2"], end=f"1{batch_id}")
    assert values(client, path) == [0, 1, 2, 3]


# rows: K15
def test_a_checkpoint_restored_from_three_batches_ago_is_refused(
    query: Query, client: Client, path: str, tmp_path: Path
) -> None:
    query.run(0, ["0"], end=1)
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "backup")
    for batch_id in (1, 2, 3):
        query.run(batch_id, [str(batch_id)], end=batch_id + 1)
    shutil.rmtree(tmp_path / "checkpoint")
    shutil.copytree(tmp_path / "backup", tmp_path / "checkpoint")
    for _ in range(2):
        with pytest.raises(errors.CheckpointDiverged):
            query.run(1, ["1", "2", "3"], end=4)
    assert values(client, path) == [0, 1, 2, 3]


# rows: K14
def test_a_sink_may_begin_and_go_on_at_any_version(query: Query, client: Client, path: str) -> None:
    query.plan(16, 0)
    query.run(17, ["1"])
    query.run(18, ["2"])
    query.run(30, ["3"])
    assert values(client, path) == [1, 2, 3]
    assert client.sink(query.query_id).info().last_version == 30


# rows: K10
def test_an_empty_batch_moves_the_version_and_makes_no_stream(
    query: Query, client: Client, path: str
) -> None:
    query.run(0, [], [], end=0)
    assert client.sink(query.query_id).info().last_version == 0
    assert not client.stream(path).exists()
    query.run(1, ["1"], [], end=1)
    query.run(2, [], end=2)
    assert values(client, path) == [1]
    assert client.sink(query.query_id).info().last_version == 2


def test_the_checkpoint_may_be_named_by_a_setting_for_all_queries(
    query: Query, client: Client, path: str, tmp_path: Path
) -> None:
    del query.options["checkpointlocation"]
    (tmp_path / "checkpoint" / "metadata").write_text(f'{{"id":"{query.query_id}"}}')
    query.plan(0, 1)
    root = {"spark.sql.streaming.checkpointLocation": str(tmp_path)}
    facts = {"sql.streaming.queryId": query.query_id, "streaming.sql.batchId": "0"}
    query.current.task = Task(0, facts | root)
    query.commit(0, query.writer().write(batches(["1"])))
    (kept,) = client.sink(query.query_id).info().versions
    assert kept.input is not None
    query.options["queryName"] = "elsewhere"
    with pytest.raises(CheckpointError, match="elsewhere"):
        query.commit(0, query.writer().write(batches(["1"])))
    query.checkpoint = None
    query.run(0, ["1"])  # without a known checkpoint, nothing is compared
    assert values(client, path) == [1]


# ---- rows ----------------------------------------------------------------------------------------


# rows: K13
def test_a_branch_that_lacks_a_chunk_is_not_sealed(
    query: Query, client: Client, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = TaskCalls.append_batch

    def lossy(task: TaskCalls, *given: Any) -> Any:
        if task.chunks == 2:
            task.chunks += 1
            task.messages[path] += given[2]
            return iter(())
        return real(task, *given)

    monkeypatch.setattr(TaskCalls, "append_batch", _generator(lossy))
    query.plan(0, 3)
    with pytest.raises(errors.BranchIncomplete):
        query.write(0, batches(["1"] * 30_000))
    assert values(client, path) == []


# rows: K13
def test_a_branch_that_is_not_sealed_is_not_committed(
    query: Query, client: Client, path: str
) -> None:
    query.run(0, ["1"])
    query.plan(1, 2)
    task = client.sink(query.query_id).task(1, 0)
    task.begin()
    task.append_many(path, [2])
    with pytest.raises(errors.BranchIncomplete):
        query.commit(1, StagedTask(0, task.token, query.query_id, query.query_id))
    assert values(client, path) == [1]
    query.run(1, ["2"], end=2)
    assert values(client, path) == [1, 2]


def _generator(function: Any) -> Any:
    def flow(*given: Any) -> Any:
        return (yield from function(*given))

    return flow


def test_invalid_json_is_named_by_partition_and_row_and_nothing_is_seen(
    query: Query, client: Client, path: str
) -> None:
    query.plan(0, 1)
    rows = ["1"] * 25_000
    rows[20_017] = "{oops"
    with pytest.raises(RowError, match=r"partition 3, row 20017: .*not JSON.*\{oops"):
        query.write(0, batches(rows), 3)
    query.commit(0, query.write(0, batches(["1"]), 3))
    assert values(client, path) == [1]


# rows: K17
def test_rows_are_cut_to_what_a_server_takes(
    current: Current, small_url: str, path: str, tmp_path: Path
) -> None:
    query = Query(current, small_url, path, tmp_path / "checkpoint", uuid4().hex)
    with Client(small_url) as client:
        rows = [f'"{number:0100d}"' for number in range(3_000)]
        query.run(0, rows)
        assert len(values(client, path)) == 3_000
        assert values(client, path) == [row.strip('"') for row in rows]


# rows: K17
def test_a_row_over_the_limit_fails_the_task_and_nothing_is_seen(
    current: Current, small_url: str, path: str, tmp_path: Path
) -> None:
    query = Query(current, small_url, path, tmp_path / "checkpoint", uuid4().hex)
    query.plan(0, 1)
    rows = ["1", f'"{"x" * BODY_BYTES_MAX}"', "2"]
    with pytest.raises(
        RowError,
        match=r"partition 0, row 1: the message, with its key and headers, has .* too large",
    ) as it:
        query.write(0, batches(rows))
    assert "\n" not in str(it.value)
    with Client(small_url) as client:
        assert values(client, path) == []
        query.run(0, ["1"])
        assert values(client, path) == [1]


# rows: K17
def test_a_server_that_is_busy_is_waited_for_and_one_that_stays_away_fails_the_task(
    query: Query, client: Client, path: str
) -> None:
    with FaultProxy(query.options["url"], FaultPlan({"bad_gateway_before": 0.3})) as proxy:
        query.options["url"] = proxy.url
        query.run(0, ["1"] * 30_000)
        assert proxy.counts["bad_gateway_before"]
    query.options |= {"url": "http://127.0.0.1:9", "retryTimeout": "100ms"}
    query.plan(1, 1)
    with pytest.raises(ServerUnreachable, match=r"127\.0\.0\.1"):
        query.write(1, batches(["1"]))
    assert len(values(client, path)) == 30_000


def test_a_task_that_writes_to_too_many_streams_is_told_what_to_do_at_once(
    current: Current, url: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "TXN_STREAMS_MAX", 3)
    options = parse_sink({"url": url})
    writer = StreamWriter(options, StructType([*VALUE.fields, ROUTE]), overwrite=False)
    current.task = Task(2, {QUERY_ID: path, BATCH_ID: "0"})
    rows = pa.record_batch({"value": ["1"] * 5, "stream": [f"{path}/{n}" for n in (0, 0, 1, 2, 3)]})
    with pytest.raises(RowError, match=r'partition 2, row 4: .*repartition\(n, "stream"\)'):
        writer.write(iter([rows]))


# rows: K17
def test_a_task_of_more_chunks_than_a_commit_can_place_fails_and_leaves_nothing(
    current: Current, path: str, tmp_path: Path
) -> None:
    settings = Settings(segment_bytes=64 * KIB, reserve_bytes=0)
    limits = HttpLimits(body_bytes_max=1_000)
    with InProcessServer(settings=settings, http_limits=limits) as server:
        query = Query(current, server.url, path, tmp_path / "checkpoint", uuid4().hex)
        query.plan(0, 1)
        with pytest.raises(errors.LimitReached, match="chunks"):
            query.write(0, batches([f'"{"x" * 300}"'] * 2_000))
        with Client(server.url) as client:
            query.run(0, ["1"])
            assert values(client, path) == [1]


def test_a_server_that_was_never_reached_is_not_waited_for_as_long_as_one_that_restarts(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "FIRST_SECONDS", 0.2)
    query.options["url"] = "http://127.0.0.1:9"  # a wrong URL; retryTimeout is 2 minutes
    query.plan(0, 1)
    with pytest.raises(ServerUnreachable, match="correct the option 'url'"):
        query.write(0, batches(["1"]))


def test_a_server_that_is_away_is_named_when_a_batch_is_committed(
    query: Query, client: Client, path: str
) -> None:
    query.plan(0, 1)
    message = query.write(0, batches(["1"]))
    url = query.options["url"]
    query.options |= {"url": "http://127.0.0.1:9", "retryTimeout": "100ms"}
    with pytest.raises(ServerUnreachable, match="start the server"):
        query.commit(0, message)
    query.options["url"] = url
    query.commit(0, message)
    assert values(client, path) == [1]


def test_a_missing_stream_is_made_unless_that_is_forbidden(
    query: Query, client: Client, path: str
) -> None:
    query.options["createStream"] = "false"
    query.plan(0, 1)
    with pytest.raises(RowError, match="the stream does not exist; create it"):
        query.write(0, batches(["1"]))
    query.options |= {"createStream": "true", "contentType": "text/plain"}
    query.run(0, ["not json"])
    assert client.stream(path).head().content_type == "text/plain"
    assert values(client, path) == ["not json"]


# ---- modes and options ---------------------------------------------------------------------------


def test_complete_mode_and_a_version_by_hand_are_refused_with_a_cure() -> None:
    options = {"url": "http://127.0.0.1:1", "stream": "s"}
    with pytest.raises(SparkOptionError, match=r'outputMode\("append"\)'):
        StreamWriter(parse_sink(options), VALUE, overwrite=True)
    versioned = options | {"txnAppId": "a", "txnVersion": "3"}
    with pytest.raises(SparkOptionError, match="remove txnVersion"):
        StreamWriter(parse_sink(versioned), VALUE, overwrite=False)


def test_a_spark_that_does_not_name_the_query_is_told_so(query: Query) -> None:
    query.current.task = Task()
    with pytest.raises(RuntimeError, match=r"pyspark >= 4\.2"):
        query.writer().write(batches(["1"]))


def test_more_tasks_than_a_commit_takes_are_refused_with_a_cure(
    query: Query, client: Client, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semel.spark.sink.commit.TXN_LIST_MAX", 2)
    with pytest.raises(SparkOptionError, match="coalesce the DataFrame to 2 partitions"):
        query.run(0, ["1"], ["2"], ["3"], end=1)
    query.run(0, ["1"], [], ["3"], end=1)
    assert values(client, path) == [1, 3]
