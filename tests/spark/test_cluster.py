"""Executors on two hosts: tasks run twice by speculation, and one host is killed."""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from semel import Client
from tests.spark.cluster import SECONDS_MAX, cluster
from tests.spark.programs import run_program
from tests.spec.process import sound_server

QUICK: Final = "127.0.0.2"
SLOW: Final = "127.0.0.3"
BATCHES: Final = 7
ROWS_PER_BATCH: Final = 4 * 12  # 12 rows for each task: more than one chunk
ROW_BYTES: Final = 400_000

# A task records its host. On the slow host it returns its rows, more than one chunk of them, and
# then does not end.
DRIVER = """
import time
from semel.spark import session

master, url, home, slow_host, rows_per_batch = sys.argv[1:]
slow = f"{home}/slow"

def watched(batches):
    from pyspark import TaskContext
    context, host = TaskContext.get(), os.environ["SPARK_LOCAL_IP"]
    batch = context.getLocalProperty("streaming.sql.batchId")
    with open(f"{home}/notes", "a") as notes:
        notes.write(f"{batch} {context.partitionId()} {host}\\n")
    yield from batches
    while host == slow_host and os.path.exists(slow):
        time.sleep(0.05)

spark = session(
    "cluster", master,
    driver_host="127.0.0.1", driver_bindAddress="127.0.0.1", cores_max=2, executor_memory="512m",
    driver_extraJavaOptions=os.environ["QUICK"], executor_extraJavaOptions=os.environ["QUICK"],
    scheduler_minRegisteredResourcesRatio=1.0, scheduler_maxRegisteredResourcesWaitingTime="60s",
    speculation=True, speculation_interval="100ms", speculation_quantile=0.5,
    speculation_multiplier=1.1, speculation_minTaskRuntime="100ms",
    sql_execution_arrow_maxRecordsPerBatch=1,  # the sink gets its rows before the task ends
)
rows = (
    spark.readStream.format("semel").option("url", url).option("stream", "in")
    .option("maxOffsetsPerTrigger", rows_per_batch).option("minPartitions", 4).load()
)
query = (
    rows.selectExpr("cast(value as string) value").mapInArrow(watched, "value string")
    .writeStream.format("semel").option("url", url).option("stream", "out")
    .option("checkpointLocation", f"{home}/checkpoint").trigger(availableNow=True).start()
)
query.awaitTermination()
tell(query.lastProgress.batchId)
"""


class Note(NamedTuple):
    """The record of where a task ran."""

    batch: int
    partition: int
    host: str


def notes_of(home: Path) -> list[Note]:
    path = home / "notes"
    lines = path.read_text().splitlines() if path.exists() else []
    return [Note(int(line.split()[0]), int(line.split()[1]), line.split()[2]) for line in lines]


def ran_twice(notes: list[Note]) -> set[tuple[int, int]]:
    """Return the tasks that both hosts ran."""
    hosts = [{note[:2] for note in notes if note.host == host} for host in (QUICK, SLOW)]
    return hosts[0] & hosts[1]


def wait_for_speculation(home: Path, run: Future[list[Any]]) -> None:
    """Wait until tasks of two batches ran twice and the fast host works on a later batch."""
    deadline = time.monotonic() + SECONDS_MAX
    while time.monotonic() < deadline and not run.done():
        notes = notes_of(home)
        twice = {batch for batch, _ in ran_twice(notes)}
        if len(twice) >= 2 and notes[-1].host == QUICK and notes[-1].batch > max(twice):
            return
        time.sleep(0.01)
    raise AssertionError(f"no speculation in {notes_of(home)}; {run.done() and run.result()}")


def number_of(value: str) -> int:
    return int(value.partition(" ")[0])


@pytest.mark.crash
@pytest.mark.timeout(600)
def test_two_hosts_with_speculation_and_one_of_them_killed_copy_every_row_once(
    java: str, tmp_path: Path
) -> None:
    values = [f"{number} {'x' * ROW_BYTES}" for number in range(BATCHES * ROWS_PER_BATCH)]
    with sound_server(tmp_path / "data") as server, Client(server.url) as client:
        client.stream("in").create("application/json")
        with client.stream("in").producer("p") as producer:
            for value in values:
                producer.append(value)
        (tmp_path / "slow").touch()
        with cluster(tmp_path, QUICK, SLOW) as hosts, ThreadPoolExecutor(1) as threads:
            arguments = (hosts.url, server.url, str(tmp_path), SLOW, str(ROWS_PER_BATCH))
            run = threads.submit(run_program, DRIVER, *arguments, JAVA_HOME=java)
            try:
                wait_for_speculation(tmp_path, run)
                hosts.workers[QUICK].kill()
                killed_at = notes_of(tmp_path)[-1].batch
            finally:
                (tmp_path / "slow").unlink()
            (last,) = run.result()
        assert killed_at < last == BATCHES - 1, "the host must be killed in the middle"
        copied = [message.value for message in client.stream("out").read()]
        assert [number_of(value) for value in copied] == list(range(len(values)))
        assert copied == values
