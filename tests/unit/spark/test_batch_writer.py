"""The batch sink without a JVM, against a real server."""

import pickle

import pytest

from semel import Client, errors
from semel.spark.options import SparkOptionError, parse_sink
from semel.spark.sink.writers import BATCH_ID, QUERY_ID, BatchWriter, StagedTask
from tests.unit.spark.sink_world import VALUE, Current, Task, batches, values


def planned(url: str, path: str, **options: str) -> BatchWriter:
    settings = {"url": url, "stream": path, **options}
    writer = BatchWriter(parse_sink(settings), VALUE, overwrite=False)
    copy: BatchWriter = pickle.loads(pickle.dumps(writer))  # Spark pickles the writer
    return copy


def staged(
    writer: BatchWriter, current: Current, *partitions: list[str], **facts: str
) -> list[StagedTask]:
    named = {QUERY_ID: facts["query"], BATCH_ID: "0"} if facts else {}
    found = []
    for partition, rows in enumerate(partitions):
        current.task = Task(partition, named)
        found.append(writer.write(batches(rows)))
    return found


def test_all_rows_are_seen_at_once_in_order_and_the_name_is_forgotten(
    url: str, client: Client, current: Current, path: str
) -> None:
    writer = planned(url, path)
    messages = staged(writer, current, ["0", "1"], [], ["2"])
    assert values(client, path) == []
    writer.commit([messages[2], messages[0], messages[1]])
    assert values(client, path) == [0, 1, 2]
    assert writer.app not in [sink.app for sink in client.sinks()]
    writer.abort([*messages])
    assert values(client, path) == [0, 1, 2]


def test_a_frame_without_rows_sends_nothing(client: Client, current: Current, path: str) -> None:
    writer = planned("http://127.0.0.1:9", path, retryTimeout="100ms")
    writer.commit([*staged(writer, current, [], [])])
    writer.commit([])
    writer.abort([None])


def test_an_abort_drops_what_was_staged_and_never_raises(
    url: str, client: Client, current: Current, path: str
) -> None:
    writer = planned(url, path, txnAppId=path, txnVersion="0")
    messages = staged(writer, current, ["1"])
    writer.abort([*messages, None])
    with pytest.raises(errors.BranchMissing):
        writer.commit([*messages])
    planned("http://127.0.0.1:9", path, retryTimeout="100ms").abort([*messages])
    assert values(client, path) == []


# rows: K16
def test_a_version_is_written_once_also_if_it_is_empty(
    url: str, client: Client, current: Current, path: str
) -> None:
    for version, rows in ((3, ["1"]), (3, ["1"]), (4, []), (5, ["2"])):
        writer = planned(url, path, txnAppId=path, txnVersion=str(version))
        writer.commit([*staged(writer, current, rows)])
    assert values(client, path) == [1, 2]
    assert client.sink(path).info().open_transactions == 0
    older = planned(url, path, txnAppId=path, txnVersion="3")
    with pytest.raises(errors.CheckpointDiverged):
        older.commit([*staged(older, current, ["1"])])


# rows: K16
def test_in_foreach_batch_a_name_and_a_version_are_needed_and_bound_to_the_query(
    url: str, client: Client, current: Current, path: str
) -> None:
    with pytest.raises(SparkOptionError, match="commit_batch"):
        staged(planned(url, path), current, ["1"], query="q")
    for query in ("q", "q"):
        writer = planned(url, path, txnAppId=path, txnVersion="0")
        writer.commit([*staged(writer, current, ["1"], query=query)])
    assert values(client, path) == [1]
    other = planned(url, path, txnAppId=path, txnVersion="1")
    with pytest.raises(errors.AppBound):
        other.commit([*staged(other, current, ["2"], query="r")])


def test_what_makes_no_sense_is_refused_when_it_is_planned(url: str, path: str) -> None:
    options = parse_sink({"url": url, "stream": path})
    with pytest.raises(SparkOptionError, match=r'mode\("append"\)'):
        BatchWriter(options, VALUE, overwrite=True)
    with pytest.raises(SparkOptionError, match="must be used together"):
        planned(url, path, txnAppId="a")
