"""Functions of DataFrames: what they are given, and what they return."""

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from msgspec.structs import replace
from pyspark.sql import DataFrame, SparkSession

from semel.pipeline.evaluate import Evaluation
from semel.pipeline.executor import StepOutput, Work
from semel.pipeline.graph.processors import Processor
from semel.pipeline.problems import EngineFailed
from semel.pipeline.spark.reading import FRAME, InputPart
from semel.pipeline.spark.tasks import (
    ReadTask,
    StageTask,
    Tagger,
    Target,
    call_user_code,
    numbered,
    run_job,
    step_output_of,
)


def input_frames(
    spark: SparkSession, work: Work, parts: Sequence[InputPart]
) -> dict[str, DataFrame]:
    """Make a frame for each input, by binding."""
    evaluation = without_function(work.evaluation)
    frames = {}
    for binding in work.processor.inputs:
        own = tuple(part for part in parts if binding in part.ranges)
        task = ReadTask(evaluation, own, work.url)
        frames[binding] = numbered(spark, len(own)).mapInArrow(task, FRAME)
    return frames


def run_frames(work: Work, frames: Mapping[str, DataFrame], target: Target) -> StepOutput:
    """Call the function, and stage what it returns: a job for each output."""
    function = work.processor.function
    if work.processor.is_join:
        result = call_user_code(lambda: function(**frames))
    else:
        first, *others = frames.values()
        for other in others:
            first = first.unionAll(other)
        united = first
        result = call_user_code(lambda: function(united))
    evaluation = without_function(work.evaluation)
    outcomes = []
    for path, frame in outputs_of(work.processor, result).items():
        task = StageTask(tagger_of(evaluation, path, frame), target)
        outcomes += run_job(frame, task)
    return step_output_of(outcomes, offsets_of(work))


def offsets_of(work: Work) -> int:
    """Tell how much a step takes, without reading it."""
    return sum(one.to - one.start for one in work.step.ranges)


def outputs_of(processor: Processor, result: Any) -> Mapping[str, DataFrame]:
    """Tell which stream gets which frame; None is nothing."""
    if result is None:
        return {}
    outputs = processor.outputs
    if processor.out.is_one:
        result = {next(iter(outputs)): result}
    if not isinstance(result, Mapping) or not set(result) <= set(outputs):
        raise TypeError(
            f"a function with several outputs returns DataFrames by binding ({', '.join(outputs)}),"
            f" not {sorted(result) if isinstance(result, Mapping) else type(result).__name__}"
        )
    found = {outputs[binding]: frame for binding, frame in result.items() if frame is not None}
    for frame in found.values():
        if not isinstance(frame, DataFrame):
            raise TypeError(f"the function returns {type(frame).__name__}, not a DataFrame")
    return {path: found[path] for path in outputs.values() if path in found}


def tagger_of(evaluation: Evaluation, path: str, frame: DataFrame) -> Tagger:
    """Say how the rows of a frame become messages."""
    tagger = Tagger(evaluation, path, tuple(frame.columns))
    complaint = tagger.complaint()
    if complaint is not None:
        raise EngineFailed(complaint)
    return tagger


def without_function(evaluation: Evaluation) -> Evaluation:
    """Leave the function on the driver: workers only need what is around it."""
    return replace(evaluation, function=_elsewhere)


def _elsewhere(*_: Any) -> NoReturn:
    raise AssertionError("a function of DataFrames is called on the driver")
