"""Functions of DataFrames: their inputs and their outputs."""

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, NoReturn

from msgspec.structs import replace
from pyspark.sql import DataFrame, SparkSession

from semel.pipeline.evaluate import Evaluation
from semel.pipeline.executor import StepOutput, Work
from semel.pipeline.graph.processors import Processor
from semel.pipeline.spark.reading import FRAME, InputPart
from semel.pipeline.spark.tasks import (
    ReadTask,
    StageTask,
    StagingTarget,
    Tagger,
    call_user_code,
    numbered,
    run_job,
    step_output_of,
)
from semel.pipeline.values import EngineFailed


def input_frames(
    spark: SparkSession, work: Work, parts: Sequence[InputPart]
) -> dict[str, DataFrame]:
    """Return a DataFrame for each input, by binding."""
    evaluation = without_function(work.evaluation)
    frames = {}
    for binding in work.processor.inputs:
        own = tuple(part for part in parts if binding in part.ranges)
        task = ReadTask(evaluation, own, work.url)
        frames[binding] = numbered(spark, len(own)).mapInArrow(task, FRAME)
    return frames


def run_frames(work: Work, frames: Mapping[str, DataFrame], target: StagingTarget) -> StepOutput:
    """Call the function, and stage the DataFrames it returns with one job each."""
    function = work.processor.function
    if work.processor.is_join:
        result = call_user_code(lambda: function(**frames))
    else:
        result = call_user_code(lambda: function(union(frames)))
    evaluation = without_function(work.evaluation)
    outcomes = []
    for path, frame in outputs_of(work.processor, result).items():
        task = StageTask(tagger_of(evaluation, path, frame), target)
        outcomes += run_job(frame, task)
    return step_output_of(outcomes, offset_count(work))


def union(frames: Mapping[str, DataFrame]) -> DataFrame:
    return reduce(DataFrame.unionAll, frames.values())


def offset_count(work: Work) -> int:
    """Return the number of offsets of a step, without reading it."""
    return sum(one.to - one.start for one in work.step.ranges)


def outputs_of(processor: Processor, result: Any) -> Mapping[str, DataFrame]:
    """Return the DataFrames a function returned, by stream; raise TypeError for anything else."""
    if result is None:
        return {}
    outputs = processor.outputs
    if processor.out.is_one:
        result = {next(iter(outputs)): result}
    if not isinstance(result, Mapping) or not set(result) <= set(outputs):
        raise TypeError(
            "a function with several outputs must return DataFrames by binding"
            f" ({', '.join(outputs)}),"
            f" not {sorted(result) if isinstance(result, Mapping) else type(result).__name__}"
        )
    frames = {outputs[binding]: frame for binding, frame in result.items() if frame is not None}
    for frame in frames.values():
        if not isinstance(frame, DataFrame):
            raise TypeError(f"the function must return a DataFrame, not {type(frame).__name__}")
    return {path: frames[path] for path in outputs.values() if path in frames}


def tagger_of(evaluation: Evaluation, path: str, frame: DataFrame) -> Tagger:
    """Return what turns rows into messages; raise EngineFailed if the columns are not suitable."""
    tagger = Tagger(evaluation, path, tuple(frame.columns))
    complaint = tagger.complaint()
    if complaint is not None:
        raise EngineFailed(complaint)
    return tagger


def without_function(evaluation: Evaluation) -> Evaluation:
    """Return an evaluation for workers: a function of DataFrames stays on the driver."""
    return replace(evaluation, function=_not_on_workers)


def _not_on_workers(*_: Any) -> NoReturn:
    raise AssertionError("a function of DataFrames is called on the driver")
