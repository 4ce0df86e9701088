"""The tasks that Spark's workers run, and the jobs with which the driver starts the tasks.

A task reads messages, calls the processor's function, and stages the outputs.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final, TypeVar

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
from semel.pipeline.error_stream import RETRIES, Call, InputMessage, call_again, error_message
from semel.pipeline.evaluate import (
    Evaluation,
    MessageFailed,
    Output,
    calls_from,
    evaluate,
    passing,
)
from semel.pipeline.executor import StepOutput
from semel.pipeline.failures import explained
from semel.pipeline.spark.reading import (
    InputPart,
    Originals,
    ServerAccess,
    as_frame,
    input_messages,
    read_parts,
    retried_frame,
)
from semel.pipeline.values import EngineFailed, Range
from semel.spark.errors import DataLossError
from semel.spark.options import parse_sink
from semel.spark.sink.columns import SinkColumns
from semel.spark.sink.rows import json_objects
from semel.spark.sink.staging import TaskId, stage

T = TypeVar("T")

# ---- tagged rows ---------------------------------------------------------------------------------
# Tagged rows are outputs in Arrow format, with the columns `stream` and `value`. A task stages
# tagged rows. A streaming query writes tagged rows to the semel sink.


TAGGED: Final = pa.schema([("stream", pa.string()), ("value", pa.binary())])
TAGGED_DDL: Final = "stream string, value binary"
TAGGED_COLUMNS: Final = SinkColumns(1, 0, None, None, None, ())
ERROR: Final = "_error"
VALUE: Final = "value"
# The columns of a row with an error that identify the input message that failed.
ORIGIN: Final = ("stream", "offset")

# If the function has set `_error` in a row, the error message gives this as the class of the error.
RowFailed: Final = type(ERROR, (Exception,), {"__module__": "builtins"})


def tagged(outputs: Iterable[Output]) -> pa.RecordBatch:
    """Return the outputs as one Arrow batch. Each row has a stream and a message."""
    pairs = list(outputs)
    columns = [[stream for stream, _ in pairs], [raw for _, raw in pairs]]
    return pa.record_batch(columns, schema=TAGGED)


class Tagger(Struct, frozen=True):
    """Converts the rows of a DataFrame with the columns `names` to messages.

    - A row whose `_error` is not null becomes a message for the error stream. Its columns `stream`
      and `offset` identify the input message that failed. That message is read from `server` once
      more, because a replay needs it, and the row can have other columns.
    - Any other row becomes a message for the output stream `path`. The column `value` contains the
      message. Without that column, the message is a JSON object of the columns.
    """

    evaluation: Evaluation
    path: str
    names: tuple[str, ...]
    server: ServerAccess

    def complaint(self) -> str | None:
        """Return why rows with these columns cannot become messages, or None if they can."""
        if ERROR in self.names and not set(ORIGIN) <= set(self.names):
            return (
                f"a DataFrame with the column {ERROR!r} also needs the input's columns"
                f" {' and '.join(ORIGIN)}, to identify the failed message"
            )
        if not self._message_names:
            return f"the DataFrame has no column for the message; add {VALUE!r} or another column"
        return None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Convert the rows of `batches`. Each row that is yielded has a stream and a message.

        Raises MessageFailed if a row has an error and the processor has no error stream.
        """
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
        metadata = (ERROR, *ORIGIN) if ERROR in self.names else ()
        return [name for name in self.names if name not in metadata]

    def _values(self, batch: pa.RecordBatch) -> pa.Array:
        if VALUE in self.names:
            return batch.column(VALUE).cast(pa.binary())
        names = self._message_names
        return json_objects(names, [batch.column(name) for name in names]).cast(pa.binary())

    def _good(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        streams = pa.repeat(pa.scalar(self.path, pa.string()), batch.num_rows)
        return pa.RecordBatch.from_arrays([streams, self._values(batch)], schema=TAGGED)

    def _bad(self, batch: pa.RecordBatch) -> Iterator[Output]:
        columns = [batch.column(name).to_pylist() for name in (*ORIGIN, ERROR)]
        raws = self._values(batch).to_pylist()
        originals = Originals(self.server)
        for stream, offset, reason, raw in zip(*columns, raws, strict=True):
            message = InputMessage("", stream, offset, raw or b"null")
            error = RowFailed(str(reason))
            if self.evaluation.errors is None:
                raise MessageFailed([message]) from error
            original = originals.read(stream, offset)
            yield self.evaluation.errors, error_message(self.evaluation, [message], error, original)


# ---- tasks ---------------------------------------------------------------------------------------


OUTCOME_DDL: Final = "outcome string"
_OUTCOME_SCHEMA: Final = pa.schema([("outcome", pa.string())])


class FailedMessage(Struct, frozen=True):
    """A failed function call, in a processor that has no error stream.

    `inputs` are the messages of the call, without their values. `kind` and `message` are the class
    and the text of the error.
    """

    inputs: list[InputMessage]
    kind: str
    message: str


class TaskOutcome(Struct, frozen=True):
    """The outcome that a task reports to the driver.

    - Success: `token` identifies the staged transaction, or is None if there were no rows.
    - A call failed, and the processor has no error stream: `failed` describes the call.
    - Messages of the input do not exist any more: `lost` says what happened to them.

    The two errors are not raised, because Spark would retry the task, and each retry would fail.
    """

    part: int
    token: str | None = None
    read: int = 0
    written: dict[str, int] = {}
    failed: FailedMessage | None = None
    lost: str | None = None


class StagingTarget(Struct, frozen=True):
    """The server, the sink and the version for which rows are staged."""

    server: ServerAccess
    app: str
    version: int


class EvaluateTask(Struct, frozen=True):
    """A task that calls a function with messages or Arrow batches, and stages the outputs."""

    evaluation: Evaluation
    parts: tuple[InputPart, ...]
    target: StagingTarget

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Process one part and yield its outcome.

        `batches` has a single row: the number of the part.
        """
        for number in _numbers(batches):
            yield _outcome_batch(self._outcome(number))

    def _outcome(self, number: int) -> TaskOutcome:
        read: Counter[str] = Counter()

        def rows() -> Iterator[pa.RecordBatch]:
            for calls in self._calls(self.parts[number]):
                read.update(message.stream for call in calls for message in call)
                yield tagged(evaluate(self.evaluation, calls))

        return staged(self.target, number, rows, read)

    def _calls(self, part: InputPart) -> Iterator[list[Call]]:
        """Yield a list of calls for each page. For a join, yield one list for all pages."""
        inputs = [self._pages(part, binding) for binding in part.ranges]
        if RETRIES in part.ranges:
            for page in chain.from_iterable(inputs):
                yield [call_again(self.evaluation.inputs, message) for message in page]
            return
        if self.evaluation.is_join:
            whole_inputs = [list(chain.from_iterable(pages)) for pages in inputs]
            yield calls_from(whole_inputs, is_join=True)
            return
        for page in chain.from_iterable(inputs):
            yield calls_from([page], is_join=False)

    def _pages(self, part: InputPart, binding: str) -> Iterator[list[InputMessage]]:
        range = part.ranges[binding]
        for page in read_parts(self.target.server, range, is_open=part.is_open):
            yield input_messages(binding, page, range)


class ReadTask(Struct, frozen=True):
    """A task that reads one part of the input `binding` or of the retry stream.

    It yields a row for each message of this input that passes the filters.
    """

    evaluation: Evaluation
    binding: str
    parts: tuple[InputPart, ...]
    server: ServerAccess

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the messages of one part that pass the filters, as rows of the input DataFrame.

        `batches` has a single row: the number of the part.
        """
        for number in _numbers(batches):
            part = self.parts[number]
            for binding, range in part.ranges.items():
                for page in read_parts(self.server, range, is_open=part.is_open):
                    if binding == RETRIES:
                        yield retried_frame(page, range, self.evaluation.inputs, self.binding)
                    else:
                        yield as_frame(self._passing(page, range))

    def _passing(self, page: pa.RecordBatch, part: Range) -> pa.RecordBatch:
        if not (self.evaluation.types or self.evaluation.topics):
            return page
        is_passing = [
            passing(self.evaluation, [message]) is not None
            for message in input_messages(self.binding, page, part)
        ]
        return page.filter(pa.array(is_passing, pa.bool_()))


class RetriedRows(Struct, frozen=True):
    """Replaces the rows of the retry stream `path` with the messages of an input that they contain.

    The rows have the columns of the Spark source, with headers, and become rows of the DataFrame
    that a function gets.
    """

    inputs: Mapping[str, str]
    binding: str
    path: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            is_retried = pc.equal(batch.column("stream"), self.path)
            yield as_frame(batch.filter(pc.invert(is_retried)))
            retried = batch.filter(is_retried)
            if retried.num_rows:
                part = Range(self.path, "", 0, 0)
                yield retried_frame(retried, part, self.inputs, self.binding)


class StageTask(Struct, frozen=True):
    """A task that stages the rows of one partition of an output DataFrame."""

    tagger: Tagger
    target: StagingTarget

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Stage all rows of the partition. Yield one row with the outcome."""
        context = TaskContext.get()
        assert context is not None
        yield _outcome_batch(
            staged(self.target, context.partitionId(), lambda: self.tagger(batches), {})
        )


def staged(
    target: StagingTarget,
    number: int,
    rows: Callable[[], Iterator[pa.RecordBatch]],
    read: Mapping[str, int],
) -> TaskOutcome:
    """Stage all rows of `rows()` in a transaction, prepare the transaction, and return the outcome.

    `number` is the number of the task. `read` maps each stream to the number of messages read.
    `rows` can still change these numbers, because they are used only after all rows are staged.

    Raises ClientError if a request fails. Spark then retries the task.
    """
    written: Counter[str] = Counter()

    def counted() -> Iterator[pa.RecordBatch]:
        for batch in rows():
            for entry in batch.column("stream").value_counts().to_pylist():
                written[entry["values"]] += entry["counts"]
            yield batch

    options = parse_sink({**target.server.options, "createStream": "false"})
    task = TaskId(target.app, target.version, number)
    try:
        token = stage(options, TAGGED_COLUMNS, task, counted())
    except MessageFailed as error:
        inputs = [message._replace(raw=b"") for message in error.inputs]
        cause = error.__cause__
        assert cause is not None
        kind = type(cause).__name__
        return TaskOutcome(number, failed=FailedMessage(inputs, kind, explained(cause)))
    except DataLossError as error:
        return TaskOutcome(number, lost=error.reason)
    except ClientError as error:
        raise error.with_traceback(None) from None
    return TaskOutcome(number, token, sum(read.values()), dict(written))


def _numbers(batches: Iterable[pa.RecordBatch]) -> Iterator[int]:
    for batch in batches:
        yield from batch.column(0).to_pylist()


def _outcome_batch(outcome: TaskOutcome) -> pa.RecordBatch:
    return pa.record_batch([[msgspec.json.encode(outcome).decode()]], schema=_OUTCOME_SCHEMA)


# ---- jobs ----------------------------------------------------------------------------------------
# The driver starts the jobs. Each task returns one row with its outcome.


Task = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
_outcome: Final = msgspec.json.Decoder(TaskOutcome)
_TRACEBACK: Final = "Traceback (most recent call last):"
# A Spark error that contains one of these texts means that a worker process has ended.
_WORKER_LOST: Final = ("Python worker exited unexpectedly", "ExecutorLostFailure", "worker died")


def numbered(spark: SparkSession, count: int) -> DataFrame:
    """Return a DataFrame with `count` partitions. Each partition has one row: a part's number."""
    return spark.range(0, count, 1, max(count, 1))


def run_job(frame: DataFrame, task: Task) -> list[TaskOutcome]:
    """Run a task on every partition of `frame`. Return the outcomes, sorted by part.

    Raises EngineFailed if the job fails.
    """
    rows = run_jobs(lambda: frame.mapInArrow(task, OUTCOME_DDL).collect())
    return sorted([_outcome.decode(row.outcome) for row in rows], key=lambda outcome: outcome.part)


def step_output_of(outcomes: Sequence[TaskOutcome], read: int | None = None) -> StepOutput:
    """Combine the outcomes of all tasks into the output of the step.

    `read` is the number of messages read, or None to add up the counts in the outcomes.

    Raises EngineFailed if messages are lost, or if there are too many transactions for one commit.
    Raises MessageFailed if a message has failed.
    """
    written: Counter[str] = Counter()
    for outcome in outcomes:
        written.update(outcome.written)
        if outcome.lost is not None:
            raise data_lost(outcome.lost)
        if outcome.failed is not None:
            failed = outcome.failed
            cause = type(failed.kind, (Exception,), {})(failed.message)
            raise MessageFailed(failed.inputs) from cause
    tokens = [outcome.token for outcome in outcomes if outcome.token is not None]
    if len(tokens) > TXN_LIST_MAX:
        raise EngineFailed(
            f"{len(tokens)} tasks wrote rows, but at most {TXN_LIST_MAX} tasks can write rows in"
            " one step; coalesce the DataFrame to fewer partitions"
        )
    count = sum(outcome.read for outcome in outcomes) if read is None else read
    return StepOutput(transactions=tokens, read=count, written=dict(written))


def run_jobs(call: Callable[[], T]) -> T:
    """Call `call` to run Spark jobs, and return the result. Raises EngineFailed if a job fails."""
    try:
        return call()
    except (PySparkException, Py4JError) as error:
        raise job_failed(error) from error


def data_lost(reason: str) -> EngineFailed:
    """Return the error to raise if some messages of a step do not exist any more."""
    return EngineFailed(
        f"{reason}; set the group's position to a valid offset with `semel groups set`"
    )


def job_failed(error: Exception) -> EngineFailed:
    """Return an EngineFailed whose message says, in one line, why a Spark job failed."""
    if any(text in str(error) for text in _WORKER_LOST):
        return EngineFailed(
            "a Spark worker process ended each time that Spark ran the task. The function raised no"
            " error. Find out why the process ends; a common reason is a lack of memory"
        )
    return EngineFailed(f"the Spark job failed: {error_text(error)}")


def error_text(error: Exception) -> str:
    """Return the one line of a Spark error that says what went wrong."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    if _TRACEBACK in lines:  # the error is the first unindented line after the last traceback
        last = len(lines) - lines[::-1].index(_TRACEBACK)
        lines = [line for line in lines[last:] if not line[0].isspace()]
    elif len(lines) > 1 and lines[1].startswith(": "):
        lines = lines[1:]  # the first line only names the Java call
    return lines[0].removeprefix(": ") if lines else type(error).__name__
