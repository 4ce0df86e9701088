"""The engine on Spark: every step is a batch job, which reads, calls and stages in one pass."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from semel.client.client import Client
from semel.client.sync_driver import Stop
from semel.pipeline import signatures
from semel.pipeline.committing import Commits
from semel.pipeline.evaluate import Call
from semel.pipeline.executor import Made, Work
from semel.pipeline.graph import Graph
from semel.pipeline.local_engine import deliver
from semel.pipeline.problems import EngineFailed
from semel.pipeline.processors import Kind, Processor, Role
from semel.pipeline.sink_committing import SinkCommitter
from semel.pipeline.spark_jobs import made_of, numbered, run_job
from semel.pipeline.spark_parts import Part, cut, cut_join
from semel.pipeline.spark_reading import FRAME, pages, seen
from semel.pipeline.spark_sending import unsendable
from semel.pipeline.spark_tagging import Tagger
from semel.pipeline.spark_tasks import EvaluateTask, ReadTask, StageTask, Target
from semel.spark.java import JavaMissing
from semel.spark.pythons import WrongPython
from semel.spark.sessions import session

_ON_DRIVER: Final = (Kind.MESSAGE, Kind.ARROW)
_CONF: Final = {"spark.scheduler.mode": "FAIR"}  # no processor waits for the job of another


class SparkEngine:
    """Carries out steps as jobs of one session, from the threads of all processors.

    A session that runs already is used, and left running. A task takes `task_messages_min`
    messages at least, if there is a choice.
    """

    reads_ahead = False
    step_messages_max = 250_000
    task_messages_min = 5_000

    def __init__(self, *, master: str | None = None) -> None:
        self._master = master
        self._spark: SparkSession | None = None
        self._is_own = False
        self._lock = threading.Lock()
        self._committers: dict[str, SinkCommitter] = {}

    # ---- before the start ------------------------------------------------------------------------

    def complaints(self, graph: Graph) -> Sequence[str]:
        """Refuse what cannot be sent to a worker; then start Spark, if nothing is wrong."""
        found = [
            f"{one.id}: {complaint}" for one in graph.processors for complaint in _complaints(one)
        ]
        if not found:
            try:
                self._session()
            except (JavaMissing, WrongPython) as error:
                found.append(str(error))
        return found

    def _session(self) -> SparkSession:
        with self._lock:
            if self._spark is None:
                self._is_own = SparkSession._instantiatedSession is None
                named = {} if self._master is None else {"master": self._master}
                conf = _CONF if self._is_own else {}
                self._spark = session("semel run", **named, **conf)
            return self._spark

    # ---- steps -----------------------------------------------------------------------------------

    def commits(self, client: Client, name: str, stop: Stop) -> Commits:
        """Commit as a sink, whose tasks may stage as many transactions as there are."""
        found = self._committers[name] = SinkCommitter(client, name, stop)
        return found

    def run(self, work: Work) -> Made:
        """Run a step as a job."""
        kind = work.evaluation.kind
        if work.processor.role is Role.SINK:
            return self._deliver(work, kind)
        if kind is Kind.DATAFRAME:
            return self._run_frames(work)
        parts = self._parts(work)
        task = EvaluateTask(work.evaluation, tuple(parts), self._target(work))
        return made_of(run_job(numbered(self._session(), len(parts)), task))

    def _parts(self, work: Work) -> list[Part]:
        inputs, ranges = work.processor.inputs, work.step.ranges
        tasks = self._session().sparkContext.defaultParallelism
        if work.processor.is_join and work.evaluation.kind is not Kind.DATAFRAME:
            return cut_join(inputs, ranges, work.messages(), tasks, self.task_messages_min)
        return cut(inputs, ranges, tasks, self.task_messages_min)

    def _target(self, work: Work) -> Target:
        return Target(work.url, work.producer_id, self._committers[work.producer_id].version)

    # ---- functions of DataFrames -----------------------------------------------------------------

    def _frames(self, work: Work) -> dict[str, DataFrame]:
        """Make a frame for each input, by binding."""
        spark, parts = self._session(), self._parts(work)
        frames = {}
        for binding in work.processor.inputs:
            own = tuple(part for part in parts if binding in part.ranges)
            task = ReadTask(work.evaluation, own, work.url)
            frames[binding] = numbered(spark, len(own)).mapInArrow(task, FRAME)
        return frames

    def _run_frames(self, work: Work) -> Made:
        frames = self._frames(work)
        function = work.processor.function
        if work.processor.is_join:
            result = function(**frames)
        else:
            first, *others = frames.values()
            for other in others:
                first = first.unionAll(other)
            result = function(first)
        outcomes = []
        for path, frame in outputs_of(work.processor, result).items():
            tagger = tagger_of(work, path, frame)
            outcomes += run_job(frame, StageTask(tagger, self._target(work)))
        return made_of(outcomes, _offsets(work))

    def _deliver(self, work: Work, kind: Kind) -> Made:
        """Give a sink its messages: DataFrames, or what it is annotated for, on the driver."""
        if kind in _ON_DRIVER:
            calls = self._calls(work)
            deliver(work, calls)
            return Made(read=sum(map(len, calls)))
        frames = self._frames(work)
        is_one = work.processor.in_.is_one
        work.processor.function(next(iter(frames.values())) if is_one else frames, work.delivery)
        return Made(read=_offsets(work))

    def _calls(self, work: Work) -> list[Call]:
        ranges = {one.stream: one for one in work.step.ranges}
        found = [
            [one for page in pages(work.url, ranges[path]) for one in seen(binding, page, path)]
            for binding, path in work.processor.inputs.items()
        ]
        if work.processor.is_join:
            return list(zip(*found, strict=True))
        return [(one,) for column in found for one in column]

    def close(self) -> None:
        """Stop the session, if it was started here."""
        with self._lock:
            if self._spark is not None and self._is_own:
                self._spark.stop()
            self._spark = None


# ---- what functions return -----------------------------------------------------------------------


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


def tagger_of(work: Work, path: str, frame: DataFrame) -> Tagger:
    """Say how the rows of a frame become messages."""
    tagger = Tagger(work.evaluation, path, tuple(frame.columns))
    complaint = tagger.complaint()
    if complaint is not None:
        raise EngineFailed(complaint)
    return tagger


def _offsets(work: Work) -> int:
    return sum(one.to - one.start for one in work.step.ranges)


def _complaints(one: Processor) -> Iterator[str]:
    """Say what of a processor does not work here."""
    kind = signatures.kind_of(one)
    if kind is Kind.DATAFRAME and one.is_alternatives and signatures.takes_binding(one.function):
        yield "a DataFrame of alternatives has a column stream, so no binding"
    if one.role is Role.STREAM and kind is not Kind.DATAFRAME:
        complaint = unsendable(one.function)
        if complaint is not None:
            yield complaint
