"""What runs inside Spark's tasks: reading, the function and the staging, in one pass."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from py4j.protocol import Py4JError
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from semel.client.errors import ClientError
from semel.model.limits import TXN_LIST_MAX
from semel.pipeline.evaluate import (
    Call,
    Evaluation,
    InputMessage,
    MessageFailed,
    OutputRow,
    error_message,
    evaluate,
    passing,
)
from semel.pipeline.executor import StepOutput
from semel.pipeline.problems import EngineFailed
from semel.pipeline.spark.reading import InputPart, as_frame, input_messages, read_parts
from semel.spark.errors import DataLossError
from semel.spark.options import parse_sink
from semel.spark.sink.columns import SinkColumns
from semel.spark.sink.rows import json_objects
from semel.spark.sink.staging import TaskId, stage

# ---- spark tagging -------------------------------------------------------------------------------
# Rows for streams as Arrow: `stream` and `value`; what a task stages and a query writes.


TAGGED: Final = pa.schema([("stream", pa.string()), ("value", pa.binary())])
TAGGED_DDL: Final = "stream string, value binary"
TAGGED_COLUMNS: Final = SinkColumns(1, 0, None, None, None, ())
ERROR: Final = "_error"
VALUE: Final = "value"
# Which message a row with an error is about.
PLACE: Final = ("stream", "offset")

# The class that an error message names for what a function marked by itself.
RowFailed: Final = type(ERROR, (Exception,), {"__module__": "builtins"})


def tagged(rows: Iterable[OutputRow]) -> pa.RecordBatch:
    """Put rows into a batch."""
    found = list(rows)
    return pa.record_batch(
        [[row.stream for row in found], [row.raw for row in found]], schema=TAGGED
    )


class Tagger(Struct, frozen=True):
    """Turns the rows of a DataFrame into messages of one output, and of the error stream.

    A column `value` is the message, as JSON; else a row is one object of all its columns. Rows
    with an `_error` are about the message of their `stream` and `offset`.
    """

    evaluation: Evaluation
    path: str
    names: tuple[str, ...]

    def complaint(self) -> str | None:
        """Say what is wrong with the columns."""
        if ERROR in self.names and not set(PLACE) <= set(self.names):
            return (
                f"a frame with {ERROR} needs the columns {' and '.join(PLACE)} of its input, to say"
                " which message the error is about"
            )
        if not self._message_names:
            return "a frame has no columns that could be a message"
        return None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Tag batch after batch; Poisoned if a row has an error and there is nowhere to put it."""
        for batch in batches:
            if ERROR not in self.names:
                yield self._good(batch)
                continue
            is_good = pc.is_null(batch.column(ERROR))
            yield self._good(batch.filter(is_good))
            bad = batch.filter(pc.invert(is_good))
            if bad.num_rows:
                yield tagged(self._bad(bad))

    @property
    def _message_names(self) -> list[str]:
        beside = (ERROR, *PLACE) if ERROR in self.names else ()
        return [name for name in self.names if name not in beside]

    def _values(self, batch: pa.RecordBatch) -> pa.Array:
        if VALUE in self.names:
            return batch.column(VALUE).cast(pa.binary())
        names = self._message_names
        return json_objects(names, [batch.column(name) for name in names]).cast(pa.binary())

    def _good(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        streams = pa.repeat(pa.scalar(self.path, pa.string()), batch.num_rows)
        return pa.RecordBatch.from_arrays([streams, self._values(batch)], schema=TAGGED)

    def _bad(self, batch: pa.RecordBatch) -> Iterator[OutputRow]:
        columns = [batch.column(name).to_pylist() for name in (*PLACE, ERROR)]
        raws = self._values(batch).to_pylist()
        for stream, offset, told, raw in zip(*columns, raws, strict=True):
            seen = InputMessage("", stream, offset, raw or b"null")
            error = RowFailed(str(told))
            if self.evaluation.errors is None:
                raise MessageFailed([seen]) from error
            yield OutputRow(self.evaluation.errors, error_message(self.evaluation, [seen], error))


# ---- spark tasks ---------------------------------------------------------------------------------


OUTCOME_DDL: Final = "told string"
_OUTCOME_SCHEMA: Final = pa.schema([("told", pa.string())])


class FailedMessage(Struct, frozen=True):
    """A message that failed without an error stream: where it is, and why it failed."""

    inputs: list[tuple[str, str, int]]
    kind: str
    message: str


class TaskOutcome(Struct, frozen=True):
    """What a task tells the driver. Without a `token` it had nothing to write.

    A task that raises is tried again by Spark. What would be the same every time is told instead:
    `poison`, or `lost` for messages that are not there any more.
    """

    part: int
    token: str | None = None
    read: int = 0
    written: dict[str, int] = {}
    poison: FailedMessage | None = None
    lost: str | None = None


class Target(Struct, frozen=True):
    """Whose version the staged rows belong to."""

    url: str
    app: str
    version: int


class EvaluateTask(Struct, frozen=True):
    """Calls a function of messages or Arrow batches for one part: one call for all legs."""

    evaluation: Evaluation
    parts: tuple[InputPart, ...]
    target: Target

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Work on the parts that the rows number: one in every task."""
        for number in _numbers(batches):
            yield _outcome_batch(self._outcome(number))

    def _outcome(self, number: int) -> TaskOutcome:
        read: Counter[str] = Counter()

        def rows() -> Iterator[pa.RecordBatch]:
            for calls in self._calls(self.parts[number]):
                read.update(one.stream for call in calls for one in call)
                yield tagged(evaluate(self.evaluation, calls))

        return staged(self.target, number, rows, read)

    def _calls(self, part: InputPart) -> Iterator[list[Call]]:
        """Put messages together as the function is called with them, some at a time."""
        if self.evaluation.is_join:
            columns = [
                [one for page in self._pages(part, binding) for one in page]
                for binding in part.ranges
            ]
            yield list(zip(*columns, strict=True))
            return
        for binding in part.ranges:
            for page in self._pages(part, binding):
                yield [(one,) for one in page]

    def _pages(self, part: InputPart, binding: str) -> Iterator[list[InputMessage]]:
        wanted = part.ranges[binding]
        for page in read_parts(self.target.url, wanted, is_open=part.is_open):
            yield input_messages(binding, page, wanted.stream)


class ReadTask(Struct, frozen=True):
    """Reads one part as rows of a DataFrame: those that pass the filters."""

    evaluation: Evaluation
    parts: tuple[InputPart, ...]
    url: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read the parts that the rows number."""
        for number in _numbers(batches):
            part = self.parts[number]
            for binding, wanted in part.ranges.items():
                for page in read_parts(self.url, wanted, is_open=part.is_open):
                    yield as_frame(self._passing(binding, page, wanted.stream))

    def _passing(self, binding: str, page: pa.RecordBatch, stream: str) -> pa.RecordBatch:
        if not (self.evaluation.types or self.evaluation.topics):
            return page
        kept = [
            passing(self.evaluation, [one]) is not None
            for one in input_messages(binding, page, stream)
        ]
        return page.filter(pa.array(kept, pa.bool_()))


class StageTask(Struct, frozen=True):
    """Stages the rows of one partition of a function's DataFrame."""

    tagger: Tagger
    target: Target

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Stage all rows; one row comes out."""
        context = TaskContext.get()
        assert context is not None
        yield _outcome_batch(
            staged(self.target, context.partitionId(), lambda: self.tagger(batches), {})
        )


def staged(
    target: Target,
    number: int,
    rows: Callable[[], Iterator[pa.RecordBatch]],
    read: Mapping[str, int],
) -> TaskOutcome:
    """Stage and seal tagged rows, and tell how many there were; `read` is filled on the way."""
    written: Counter[str] = Counter()

    def counted() -> Iterator[pa.RecordBatch]:
        for batch in rows():
            for found in batch.column("stream").value_counts().to_pylist():
                written[found["values"]] += found["counts"]
            yield batch

    options = parse_sink({"url": target.url, "createStream": "false"})
    place = TaskId(target.app, target.version, number)
    try:
        token = stage(options, TAGGED_COLUMNS, place, counted())
    except MessageFailed as error:
        return TaskOutcome(number, poison=_poison(error))
    except DataLossError as error:
        return TaskOutcome(number, lost=str(error))
    except ClientError as error:
        raise error.with_traceback(None) from None
    return TaskOutcome(number, token, sum(read.values()), dict(written))


def _poison(error: MessageFailed) -> FailedMessage:
    cause = error.__cause__
    places = [(one.binding, one.stream, one.offset) for one in error.inputs]
    return FailedMessage(places, type(cause).__name__, str(cause))


def _numbers(batches: Iterable[pa.RecordBatch]) -> Iterator[int]:
    for batch in batches:
        yield from batch.column(0).to_pylist()


def _outcome_batch(outcome: TaskOutcome) -> pa.RecordBatch:
    return pa.record_batch([[msgspec.json.encode(outcome).decode()]], schema=_OUTCOME_SCHEMA)


# ---- spark jobs ----------------------------------------------------------------------------------
# Jobs on the driver: one row per task goes out, one outcome per task comes back.


Task = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
_outcome: Final = msgspec.json.Decoder(TaskOutcome)
_TRACEBACK: Final = "Traceback (most recent call last):"
# How Spark words that a process is gone.
_DIED: Final = ("Python worker exited unexpectedly", "ExecutorLostFailure", "worker died")


def numbered(spark: SparkSession, count: int) -> DataFrame:
    """Make a frame with one row in each of its partitions: the number of a part."""
    return spark.range(0, count, 1, max(count, 1))


def run_job(frame: DataFrame, task: Task) -> list[TaskOutcome]:
    """Run a task on every partition; their outcomes in the order of the partitions."""
    try:
        rows = frame.mapInArrow(task, OUTCOME_DDL).collect()
    except (PySparkException, Py4JError) as error:
        raise job_failed(error) from error
    return sorted([_outcome.decode(row.told) for row in rows], key=lambda one: one.part)


def step_output_of(outcomes: Sequence[TaskOutcome], read: int | None = None) -> StepOutput:
    """Gather what tasks have staged, in order; raises what they could not do."""
    for one in outcomes:
        if one.lost is not None:
            raise data_lost(one.lost)
        if one.poison is not None:
            found = one.poison
            seen = [
                InputMessage(binding, stream, offset, b"")
                for binding, stream, offset in found.inputs
            ]
            raise MessageFailed(seen) from type(found.kind, (Exception,), {})(found.message)
    tokens = [one.token for one in outcomes if one.token is not None]
    if len(tokens) > TXN_LIST_MAX:
        raise EngineFailed(
            f"{len(tokens)} tasks had rows, and one commit takes {TXN_LIST_MAX}: coalesce the frame"
        )
    written: Counter[str] = Counter()
    for one in outcomes:
        written.update(one.written)
    count = sum(one.read for one in outcomes) if read is None else read
    return StepOutput(transactions=tokens, read=count, written=dict(written))


def call_user_code(call: Callable[[], Any]) -> Any:
    """Call a function of the user's; what a job that it runs ends with is told in a line."""
    try:
        return call()
    except (PySparkException, Py4JError) as error:
        raise job_failed(error) from error


def data_lost(told: str) -> EngineFailed:
    """Say what to do about messages that are not there any more."""
    return EngineFailed(f"{told.partition(';')[0]}; `semel groups set` moves its group on")


def job_failed(error: Exception) -> EngineFailed:
    """Say in a line why Spark gave a job up."""
    if any(told in str(error) for told in _DIED):
        return EngineFailed(
            "a worker died, and again when Spark tried it anew. That is no error of a message:"
            " look for what ends the process, such as memory"
        )
    return EngineFailed(f"Spark gave up: {error_text(error)}")


def error_text(error: Exception) -> str:
    """Find the line of Spark's many that says what went wrong."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    if _TRACEBACK in lines:  # what the last one ends with stands behind its indented lines
        last = len(lines) - lines[::-1].index(_TRACEBACK)
        lines = [line for line in lines[last:] if not line[0].isspace()]
    elif len(lines) > 1 and lines[1].startswith(": "):
        lines = lines[1:]  # the first one only says which call it was
    return lines[0].removeprefix(": ") if lines else type(error).__name__
