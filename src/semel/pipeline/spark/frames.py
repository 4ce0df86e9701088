"""Runs processors whose function takes DataFrames: as batch jobs, or as a streaming query."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import reduce
from typing import Any, Final, NamedTuple, NoReturn, Self

from msgspec.structs import replace
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.streaming.query import StreamingQuery

from semel.client.errors import ClientError, StreamGone, StreamNotFound
from semel.client.group_calls import positions
from semel.client.stream_calls import StreamCalls
from semel.model.offsets import parse_offset, print_offset
from semel.pipeline import trace
from semel.pipeline.error_stream import RETRIES, retry_stream
from semel.pipeline.evaluate import Evaluation, evaluation_of
from semel.pipeline.executor import ProcessorRun, RunState, StepOutput, Work
from semel.pipeline.graph import topology
from semel.pipeline.graph.processors import Processor
from semel.pipeline.spark.reading import FRAME, FRAME_NAMES, InputPart, ServerAccess, access_of
from semel.pipeline.spark.tasks import (
    TAGGED_DDL,
    ReadTask,
    RetriedRows,
    StageTask,
    StagingTarget,
    Tagger,
    error_text,
    numbered,
    run_job,
    run_jobs,
    step_output_of,
)
from semel.pipeline.values import EngineFailed
from semel.spark.runtime.session import make_active


def input_frames(
    spark: SparkSession, work: Work, parts: Sequence[InputPart]
) -> dict[str, DataFrame]:
    """Return a mapping from each binding to a DataFrame with the messages of that input."""
    evaluation = without_function(work.evaluation)
    frames = {}
    for binding in work.processor.inputs:
        own = tuple(part for part in parts if {binding, RETRIES} & part.ranges.keys())
        frames[binding] = numbered(spark, len(own)).mapInArrow(
            ReadTask(evaluation, binding, own, access_of(work.url, work.token)), FRAME
        )
    return frames


def run_frames(work: Work, frames: Mapping[str, DataFrame], target: StagingTarget) -> StepOutput:
    """Call the function, stage the DataFrames it returns, and return the output of the step.

    Each DataFrame is staged by one Spark job. Raises EngineFailed if a job fails. Raises
    MessageFailed if a row has an error and the processor has no error stream.
    """
    outputs = run_jobs(lambda: call_function(work.processor, frames))
    evaluation = without_function(work.evaluation)
    outcomes = []
    for path, frame in outputs.items():
        task = StageTask(tagger_of(evaluation, path, frame, target.server), target)
        outcomes += run_job(frame, task)
    return step_output_of(outcomes, offset_count(work))


def union(frames: Mapping[str, DataFrame]) -> DataFrame:
    return reduce(DataFrame.unionAll, frames.values())


def offset_count(work: Work) -> int:
    """Return how many offsets the ranges of the step contain, without reading any message."""
    return sum(r.to - r.start for r in work.step.ranges)


def call_function(processor: Processor, frames: Mapping[str, DataFrame]) -> Mapping[str, DataFrame]:
    """Call the processor's function. Return a mapping from output streams to DataFrames.

    `frames` maps each input binding to a DataFrame. Outputs that are None are left out. Raises
    TypeError if an output is neither None nor a DataFrame, or if its binding is not declared.
    """
    function, outputs = processor.call, processor.outputs
    result = function(**frames) if processor.is_join else function(union(frames))
    if result is None:
        return {}
    if processor.out.is_one:
        result = {next(iter(outputs)): result}
    if not isinstance(result, Mapping) or not set(result) <= set(outputs):
        raise TypeError(
            "a function with several outputs must return a mapping from bindings"
            f" ({', '.join(outputs)}) to DataFrames,"
            f" not {sorted(result) if isinstance(result, Mapping) else type(result).__name__}"
        )
    frames = {outputs[binding]: frame for binding, frame in result.items() if frame is not None}
    for frame in frames.values():
        if not isinstance(frame, DataFrame):
            raise TypeError(f"the function must return a DataFrame, not {type(frame).__name__}")
    return {path: frames[path] for path in outputs.values() if path in frames}


def tagger_of(evaluation: Evaluation, path: str, frame: DataFrame, server: ServerAccess) -> Tagger:
    """Return a Tagger for `frame`. Raises EngineFailed if its columns cannot form messages."""
    tagger = Tagger(evaluation, path, tuple(frame.columns), server)
    complaint = tagger.complaint()
    if complaint is not None:
        raise EngineFailed(complaint)
    return tagger


def without_function(evaluation: Evaluation) -> Evaluation:
    """Return a copy of `evaluation` that has no function and can be sent to workers.

    Workers do not need the function, because it takes DataFrames and is called on the driver.
    """
    return replace(evaluation, function=_not_on_workers)


def _not_on_workers(*_: Any) -> NoReturn:
    raise AssertionError("a function that takes DataFrames must be called on the driver")


# ---- stateful processors -------------------------------------------------------------------------
# A stateful processor runs as a streaming query. The query's progress is stored in its Spark
# checkpoint. The positions of the processor's group on the server are only a copy of the progress.
# The copy is there for `semel groups`.


_PAUSE_SECONDS: Final = 0.25
_COUNTS: Final = "semel"  # the name of the counts in the query's progress
_WAITING: Final = "Waiting"  # how Spark's status begins while the query waits for data


class QueryLoop:
    """Runs the streaming query of one processor until the query ends or a stop is requested."""

    def __init__(self, spark: SparkSession, running: ProcessorRun, checkpoints: str) -> None:
        self._spark = spark
        self._running = running
        self._server = access_of(running.client.url, running.token)
        self._checkpoint = f"{checkpoints.rstrip('/')}/{running.name}"
        self._last_batch = -1
        self._trimmer = trace.TraceTrimmer()
        self._errors = running.graph.errors_of(running.processor)
        self._written_to = topology.written(running.graph, running.processor)

    def run(self) -> None:
        """Run the query.

        If the run has `available_now`, first wait until all upstream processors have ended or
        stopped, so that the input is complete. Raises ProcessorStopped if the query fails.
        """
        running = self._running
        while running.is_draining and not running.is_ending():
            if running.stop.is_set:
                return
            running.stop.wait(_PAUSE_SECONDS)
        self._warn()
        try:
            self._watch(self._start())
        except (PySparkException, EngineFailed) as error:
            raise running.stopped(
                f"the Spark query failed: {error_text(error)}. A restart continues from the Spark"
                f" checkpoint {self._checkpoint}"
            ) from error

    def _warn(self) -> None:
        """Log a warning for each input without a position, if other inputs have one."""
        running = self._running
        known: Mapping[str, str] = {}
        with suppress(ClientError):  # the query itself reports a server that does not respond
            known = running.client.run_until_stopped(
                positions(running.client.site, running.name), running.cut
            )
        if known:
            running.warn_without_position(
                path for path in running.processor.inputs.values() if path not in known
            )

    def _watch(self, query: StreamingQuery) -> None:
        running = self._running
        try:
            while query.isActive and not running.stop.is_set:
                running.stop.wait(_PAUSE_SECONDS)
                self._note(query)
            if not query.isActive:
                query.awaitTermination()  # raises the error that ended the query
                self._note(query)
        finally:
            query.stop()

    def _start(self) -> StreamingQuery:
        running = self._running
        make_active(self._spark)
        writer = (
            self._tagged()
            .writeStream.format("semel")
            .queryName(self._running.name)
            .options(**self._server.options)
            .option("txnAppId", self._running.name)
            .option("createStream", "false")
            .option("checkpointLocation", self._checkpoint)
        )
        if running.is_draining:
            writer = writer.trigger(availableNow=True)
        return writer.start()

    def _tagged(self) -> DataFrame:
        """Call the function on streaming DataFrames. Return its outputs as (stream, value) rows.

        Spark counts the rows for each stream. The counts are part of the query's progress.
        """
        processor = self._running.processor
        frames = {binding: self._frame(binding) for binding in processor.inputs}
        evaluation = without_function(evaluation_of(self._running.graph, processor, hash=""))
        tagged = {
            path: frame.mapInArrow(tagger_of(evaluation, path, frame, self._server), TAGGED_DDL)
            for path, frame in call_function(processor, frames).items()
        }
        stream = functions.col("stream")
        counts = [
            functions.count(functions.when(stream == path, True)).alias(str(number))
            for number, path in enumerate(self._written_to)
        ]
        return union(tagged).observe(_COUNTS, *counts)

    def _frame(self, binding: str) -> DataFrame:
        """Return the messages of an input, and the dead letters that are to be processed again.

        The query reads the retry stream with the same source, so that the Spark checkpoint has the
        same sources whether the stream exists or not.
        """
        running = self._running
        inputs = running.processor.inputs
        path, retries = inputs[binding], retry_stream(running.graph.id, running.processor.id)
        reader = self._spark.readStream.format("semel").options(**self._server.options)
        if self._errors is None or "," in path or not self._exists(retries):
            frame = reader.option("stream", path).load()
            frame = frame.withColumn("value", functions.col("value").cast("string"))
            return frame.select(*FRAME_NAMES)
        read = reader.option("subscribe", f"{path},{retries}").option("includeHeaders", "true")
        return read.load().mapInArrow(RetriedRows(inputs, binding, retries), FRAME)

    def _exists(self, path: str) -> bool:
        client = self._running.client
        try:
            client.run_until_stopped(StreamCalls(client.site, path).head(), self._running.cut)
        except (StreamNotFound, StreamGone):
            return False
        return True

    def _note(self, query: StreamingQuery) -> None:
        """Copy the query's progress to the gauge, and its positions to the group on the server."""
        gauge = self._running.gauge
        new = [
            QueryBatch.of(progress, self._written_to)
            for progress in query.recentProgress
            if progress["batchId"] > self._last_batch and _is_batch(progress)
        ]
        if new or query.status["isDataAvailable"]:
            gauge.state = RunState.RUNNING
        elif query.status["message"].startswith(_WAITING):
            gauge.state = RunState.IDLE
        for batch in new:
            self._last_batch = batch.number - 1
            gauge.step = batch.number
            gauge.read += batch.read
            gauge.written += sum(batch.written.values())
            gauge.errors += batch.written.get(self._errors or "", 0)
            gauge.step_seconds = batch.milliseconds / 1000
            self._trace(batch)
        if new and new[-1].ends:
            self._copy({path: end for path, _, end in new[-1].ends})

    def _trace(self, batch: "QueryBatch") -> None:
        """Append a record of a batch to the graph's trace, and trim the oldest records.

        If the server does not respond, the batch has no record.
        """
        running = self._running
        traced = trace.TracedStep(
            processor=running.processor.id,
            number=batch.number,
            ranges=batch.ranges,
            hash="",
            outcome=trace.DONE,
            read=batch.read,
            written=batch.written,
            milliseconds=batch.milliseconds,
        )
        stream = running.client.stream(trace.trace_stream(running.graph.id))
        with suppress(ClientError):
            receipt = stream.append(trace.step_record(traced, None))
            before = self._trimmer.due(receipt.next_offset)
            if before is not None:
                stream.trim(before)

    def _copy(self, reached: Mapping[str, int]) -> None:
        client, gauge = self._running.client, self._running.gauge
        try:
            client.group(self._running.name).set(reached)
            ends = {path: client.stream(path).head().next_offset for path in reached}
        except ClientError:
            return  # the positions are only a copy, and the next batch sets them again
        gauge.lag = sum(
            max((parse_offset(end) or 0) - reached[path], 0) for path, end in ends.items()
        )


class QueryBatch(NamedTuple):
    """A batch that a query has completed. `written` has the number of messages of each stream.

    `starts` and `ends` are the positions of the inputs before and after it: (stream, incarnation,
    ordinal).
    """

    number: int
    read: int
    written: dict[str, int]
    milliseconds: float
    starts: list[tuple[str, str, int]]
    ends: list[tuple[str, str, int]]

    @classmethod
    def of(cls, progress: Any, written_to: Sequence[str]) -> Self:
        """Return the batch that Spark's `progress` describes."""
        counted = progress["observedMetrics"].get(_COUNTS)
        counts = [0] * len(written_to) if counted is None else list(counted)
        return cls(
            number=progress["batchId"] + 1,
            read=progress["numInputRows"],
            written={path: n for path, n in zip(written_to, counts, strict=True) if n},
            milliseconds=float(progress["batchDuration"]),
            starts=_positions(progress["sources"], "startOffset"),
            ends=_positions(progress["sources"], "endOffset"),
        )

    @property
    def ranges(self) -> list[tuple[str, str, str, str]]:
        """The ranges of the inputs, as the trace has them."""
        starts = {path: ordinal for path, _, ordinal in self.starts}
        return [
            (path, incarnation, print_offset(starts.get(path, 0)), print_offset(end))
            for path, incarnation, end in self.ends
        ]


def _is_batch(progress: Any) -> bool:
    """Return False if Spark reports only that the query waits for data."""
    return "addBatch" in progress["durationMs"]


def _positions(sources: Any, name: str) -> list[tuple[str, str, int]]:
    """Return the positions of all streams in one of the offsets that Spark reports."""
    positions: list[tuple[str, str, int]] = []
    for source in sources:
        offset = source[name]
        document = json.loads(offset) if isinstance(offset, str) else offset
        if isinstance(document, dict):
            for path, span in document.items():
                if isinstance(span, dict) and "next" in span:
                    positions.append((path, str(span.get("id", "")), span["next"]))
    return positions
