"""Jobs on the driver: one row per task goes out, one outcome per task comes back."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from semel.model.limits import TXN_LIST_MAX
from semel.pipeline.evaluate import Poisoned, Seen
from semel.pipeline.executor import Made
from semel.pipeline.problems import EngineFailed
from semel.pipeline.spark_tasks import TOLD_DDL, Outcome

Task = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
_outcome: Final = msgspec.json.Decoder(Outcome)
_TRACEBACK: Final = "Traceback (most recent call last):"
# How Spark words that a process is gone.
_DIED: Final = ("Python worker exited unexpectedly", "ExecutorLostFailure", "worker died")


def numbered(spark: SparkSession, count: int) -> DataFrame:
    """Make a frame with one row in each of its partitions: the number of a part."""
    return spark.range(0, count, 1, max(count, 1))


def run_job(frame: DataFrame, task: Task) -> list[Outcome]:
    """Run a task on every partition; their outcomes in the order of the partitions."""
    try:
        rows = frame.mapInArrow(task, TOLD_DDL).collect()
    except (PySparkException, Py4JError) as error:
        raise failed(error) from error
    return sorted([_outcome.decode(row.told) for row in rows], key=lambda one: one.part)


def made_of(outcomes: Sequence[Outcome], read: int | None = None) -> Made:
    """Gather what tasks have staged, in order; raises what they could not do."""
    for one in outcomes:
        if one.lost is not None:
            raise lost(one.lost)
        if one.poison is not None:
            found = one.poison
            seen = [Seen(binding, stream, offset, b"") for binding, stream, offset in found.inputs]
            raise Poisoned(seen) from type(found.kind, (Exception,), {})(found.message)
    tokens = [one.token for one in outcomes if one.token is not None]
    if len(tokens) > TXN_LIST_MAX:
        raise EngineFailed(
            f"{len(tokens)} tasks had rows, and one commit takes {TXN_LIST_MAX}: coalesce the frame"
        )
    written: Counter[str] = Counter()
    for one in outcomes:
        written.update(one.written)
    count = sum(one.read for one in outcomes) if read is None else read
    return Made(transactions=tokens, read=count, written=dict(written))


def calling(call: Callable[[], Any]) -> Any:
    """Call a function of the user's; what a job that it runs ends with is told in a line."""
    try:
        return call()
    except (PySparkException, Py4JError) as error:
        raise failed(error) from error


def lost(told: str) -> EngineFailed:
    """Say what to do about messages that are not there any more."""
    return EngineFailed(f"{told.partition(';')[0]}; `semel groups set` moves its group on")


def failed(error: Exception) -> EngineFailed:
    """Say in a line why Spark gave a job up."""
    if any(told in str(error) for told in _DIED):
        return EngineFailed(
            "a worker died, and again when Spark tried it anew. That is no error of a message:"
            " look for what ends the process, such as memory"
        )
    return EngineFailed(f"Spark gave up: {words(error)}")


def words(error: Exception) -> str:
    """Find the line of Spark's many that says what went wrong."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    if _TRACEBACK in lines:  # what the last one ends with stands behind its indented lines
        last = len(lines) - lines[::-1].index(_TRACEBACK)
        lines = [line for line in lines[last:] if not line[0].isspace()]
    elif len(lines) > 1 and lines[1].startswith(": "):
        lines = lines[1:]  # the first one only says which call it was
    return lines[0].removeprefix(": ") if lines else type(error).__name__
