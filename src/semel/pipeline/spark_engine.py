"""The engine on Spark: every step is a batch job, which reads, calls and stages in one pass."""

import threading
from collections.abc import Iterator, Sequence
from typing import Final

from pyspark.sql import SparkSession

from semel.client.client import Client
from semel.client.sync_driver import Stop
from semel.model.limits import TXN_LIST_MAX
from semel.pipeline import signatures
from semel.pipeline.committing import Commits
from semel.pipeline.evaluate import Call
from semel.pipeline.executor import Made, Running, Work
from semel.pipeline.graph import Graph
from semel.pipeline.local_engine import deliver
from semel.pipeline.processors import Kind, Processor, Role
from semel.pipeline.sink_committing import SinkCommitter
from semel.pipeline.spark_frames import frames_of, offsets_of, run_frames
from semel.pipeline.spark_jobs import calling, lost, made_of, numbered, run_job, words
from semel.pipeline.spark_parts import Part, cut, cut_join
from semel.pipeline.spark_query import QueryLoop
from semel.pipeline.spark_reading import pages, seen
from semel.pipeline.spark_sending import unsendable
from semel.pipeline.spark_tasks import EvaluateTask, Target
from semel.spark.java import JavaMissing
from semel.spark.pythons import WrongPython
from semel.spark.sessions import session
from semel.spark.troubles import DataLossError

_ON_DRIVER: Final = (Kind.MESSAGE, Kind.ARROW)
_TASKS_MAX: Final = TXN_LIST_MAX // 2
_CONF: Final = {"spark.scheduler.mode": "FAIR"}  # no processor waits for the job of another


class SparkEngine:
    """Carries out steps as jobs of one session, from the threads of all processors.

    A session that runs already is used, and left running. `checkpoints` is where stateful
    processors keep theirs. A task takes `task_messages_min` messages at least, if there is a
    choice.
    """

    reads_ahead = False
    step_messages_max = 250_000
    task_messages_min = 5_000

    def __init__(self, *, master: str | None = None, checkpoints: str | None = None) -> None:
        self._master = master
        self._checkpoints = checkpoints
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
        if self._checkpoints is None:
            found += [
                f"{one.id}: a stateful processor keeps a checkpoint; say where with --checkpoints"
                for one in graph.processors
                if one.stateful
            ]
        if not found:
            try:
                self._session()
            except (JavaMissing, WrongPython) as error:
                found.append(str(error))
            except Exception as error:  # noqa: BLE001 - Spark has many ways to fail
                found.append(f"Spark does not start: {words(error)}; is the master right?")
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
        parts = self._parts(work)
        if kind is Kind.DATAFRAME:
            frames = frames_of(self._session(), work, parts)
            return run_frames(work, frames, self._target(work))
        task = EvaluateTask(work.evaluation, tuple(parts), self._target(work))
        return made_of(run_job(numbered(self._session(), len(parts)), task))

    def _parts(self, work: Work) -> list[Part]:
        inputs, ranges = work.processor.inputs, work.step.ranges
        # A task is a transaction, and a commit takes so many.
        tasks = min(self._session().sparkContext.defaultParallelism, _TASKS_MAX)
        if work.processor.is_join and work.evaluation.kind is not Kind.DATAFRAME:
            return cut_join(inputs, ranges, work.messages(), tasks, self.task_messages_min)
        return cut(inputs, ranges, tasks, self.task_messages_min)

    def _target(self, work: Work) -> Target:
        return Target(work.url, work.producer_id, self._committers[work.producer_id].version)

    def _deliver(self, work: Work, kind: Kind) -> Made:
        """Give a sink its messages: DataFrames, or what it is annotated for, on the driver."""
        if kind in _ON_DRIVER:
            try:
                calls = self._calls(work)
            except DataLossError as error:
                raise lost(str(error)) from error
            deliver(work, calls)
            return Made(read=sum(map(len, calls)))
        frames = frames_of(self._session(), work, self._parts(work))
        is_one = work.processor.in_.is_one
        given = next(iter(frames.values())) if is_one else frames
        calling(lambda: work.processor.function(given, work.delivery))
        return Made(read=offsets_of(work))

    def _calls(self, work: Work) -> list[Call]:
        ranges = {one.stream: one for one in work.step.ranges}
        found = [
            [one for page in pages(work.url, ranges[path]) for one in seen(binding, page, path)]
            for binding, path in work.processor.inputs.items()
        ]
        if work.processor.is_join:
            return list(zip(*found, strict=True))
        return [(one,) for column in found for one in column]

    def query(self, running: Running) -> QueryLoop:
        """Run a stateful processor."""
        assert self._checkpoints is not None, "complaints() says so"
        return QueryLoop(self._session(), running, self._checkpoints)

    def close(self) -> None:
        """Stop the session, if it was started here."""
        with self._lock:
            if self._spark is not None and self._is_own:
                self._spark.stop()
            self._spark = None


def _complaints(one: Processor) -> Iterator[str]:
    """Say what of a processor does not work here."""
    kind = signatures.kind_of(one)
    if kind is Kind.DATAFRAME and one.is_alternatives and signatures.takes_binding(one.function):
        yield "a DataFrame of alternatives has a column stream, so no binding"
    if one.stateful and (one.types or one.topics):
        yield "a stateful processor has no types= or topics=; filter the DataFrame in its function"
    if one.role is Role.STREAM and kind is not Kind.DATAFRAME:
        complaint = unsendable(one.function)
        if complaint is not None:
            yield complaint
