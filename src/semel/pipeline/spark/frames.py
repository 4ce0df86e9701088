"""Runs processors whose function takes DataFrames: as batch jobs, or as a streaming query."""

import json
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, Final, NoReturn

from msgspec.structs import replace
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.streaming.query import StreamingQuery

from semel.client.errors import ClientError
from semel.model.offsets import parse_offset
from semel.pipeline.evaluate import Evaluation, evaluation_of
from semel.pipeline.executor import ProcessorRun, RunState, StepOutput, Work
from semel.pipeline.graph.processors import Processor
from semel.pipeline.spark.reading import FRAME, FRAME_NAMES, InputPart
from semel.pipeline.spark.tasks import (
    TAGGED_DDL,
    ReadTask,
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
        own = tuple(part for part in parts if binding in part.ranges)
        frames[binding] = numbered(spark, len(own)).mapInArrow(
            ReadTask(evaluation, own, work.url), FRAME
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
        task = StageTask(tagger_of(evaluation, path, frame), target)
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


def tagger_of(evaluation: Evaluation, path: str, frame: DataFrame) -> Tagger:
    """Return a Tagger for `frame`. Raises EngineFailed if its columns cannot form messages."""
    tagger = Tagger(evaluation, path, tuple(frame.columns))
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


class QueryLoop:
    """Runs the streaming query of one processor until the query ends or a stop is requested."""

    def __init__(self, spark: SparkSession, running: ProcessorRun, checkpoints: str) -> None:
        self._spark = spark
        self._running = running
        self._url = running.client.url
        self._checkpoint = f"{checkpoints.rstrip('/')}/{running.name}"
        self._last_batch = -1

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
        try:
            self._watch(self._start())
        except (PySparkException, EngineFailed) as error:
            raise running.stopped(
                f"the Spark query failed: {error_text(error)}. A restart continues from the Spark"
                f" checkpoint {self._checkpoint}"
            ) from error

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
            .option("url", self._url)
            .option("txnAppId", self._running.name)
            .option("createStream", "false")
            .option("checkpointLocation", self._checkpoint)
        )
        if running.is_draining:
            writer = writer.trigger(availableNow=True)
        return writer.start()

    def _tagged(self) -> DataFrame:
        """Call the function on streaming DataFrames. Return its outputs as (stream, value) rows."""
        processor = self._running.processor
        frames = {binding: self._frame(path) for binding, path in processor.inputs.items()}
        evaluation = without_function(evaluation_of(self._running.graph, processor, hash=""))
        tagged = {
            path: frame.mapInArrow(tagger_of(evaluation, path, frame), TAGGED_DDL)
            for path, frame in call_function(processor, frames).items()
        }
        return union(tagged)

    def _frame(self, path: str) -> DataFrame:
        reader = self._spark.readStream.format("semel").options(url=self._url, stream=path)
        frame = reader.load().withColumn("value", functions.col("value").cast("string"))
        return frame.select(*FRAME_NAMES)

    def _note(self, query: StreamingQuery) -> None:
        """Copy the query's progress to the gauge, and its positions to the group on the server."""
        gauge = self._running.gauge
        new = [batch for batch in query.recentProgress if batch["batchId"] > self._last_batch]
        if not new:
            gauge.state = RunState.IDLE
            return
        gauge.state = RunState.RUNNING
        last = new[-1]
        self._last_batch = last["batchId"]
        gauge.step = self._last_batch + 1
        gauge.read += sum(batch["numInputRows"] for batch in new)
        gauge.step_seconds = last["batchDuration"] / 1000
        positions = _positions(last["sources"])
        if positions:
            self._copy(positions)

    def _copy(self, positions: Mapping[str, int]) -> None:
        client, gauge = self._running.client, self._running.gauge
        try:
            client.group(self._running.name).set(positions)
            ends = {path: client.stream(path).head().next_offset for path in positions}
        except ClientError:
            return  # the positions are only a copy, and the next batch sets them again
        gauge.lag = sum(
            max((parse_offset(end) or 0) - positions[path], 0) for path, end in ends.items()
        )


def _positions(sources: Any) -> dict[str, int]:
    """Return a mapping from stream to position. `sources` is the progress that Spark reports."""
    positions: dict[str, int] = {}
    for source in sources:
        end = source["endOffset"]
        document = json.loads(end) if isinstance(end, str) else end
        if isinstance(document, dict):
            for path, span in document.items():
                if isinstance(span, dict) and "next" in span:
                    positions[path] = span["next"]
    return positions
