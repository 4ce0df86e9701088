"""The Spark engine: each step is a batch job that reads, calls the function and stages."""

import inspect
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from pyspark import cloudpickle
from pyspark.sql import SparkSession

from semel.client.commit_calls import (
    Parts,
    SinkInfo,
    Version,
    commit_version,
    rebind_sink_info,
    show_sink_info,
)
from semel.client.errors import AppBound, Refused
from semel.client.flows import Flow
from semel.client.sync.client import Client
from semel.client.sync_driver import Stop
from semel.client.values import CommitResult
from semel.model.limits import TXN_LIST_MAX
from semel.pipeline.evaluate import Call, calls_from
from semel.pipeline.executor import Committer, ProcessorRun, StepOutput, Work
from semel.pipeline.graph.graph import Graph
from semel.pipeline.graph.processors import FunctionKind, Processor, Role, kind_of, takes_binding
from semel.pipeline.local.engine import deliver
from semel.pipeline.spark.frames import QueryLoop, input_frames, offset_count, run_frames
from semel.pipeline.spark.reading import (
    InputPart,
    input_messages,
    read_parts,
    split_join_parts,
    split_parts,
)
from semel.pipeline.spark.tasks import (
    EvaluateTask,
    StagingTarget,
    data_lost,
    error_text,
    numbered,
    run_job,
    run_jobs,
    step_output_of,
)
from semel.pipeline.values import Step
from semel.spark.errors import DataLossError
from semel.spark.runtime.environment import JavaMissing, WrongPython
from semel.spark.runtime.session import session

_ON_DRIVER: Final = (FunctionKind.MESSAGE, FunctionKind.ARROW)
_TASKS_MAX: Final = TXN_LIST_MAX // 2
_CONF: Final = {"spark.scheduler.mode": "FAIR"}  # processors do not wait for each other's jobs


class SparkEngine:
    """Runs steps as jobs of one Spark session, which the threads of all processors share.

    If a Spark session exists, it is used, and `close` does not stop it. `checkpoints` is the
    directory for the Spark checkpoints of stateful processors. A step is split into tasks of about
    `task_messages_min` messages or more.
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

    # ---- before the start ------------------------------------------------------------------------

    def complaints(self, graph: Graph) -> Sequence[str]:
        """Return why the graph cannot run on Spark; if there is no reason, start Spark.

        If Spark does not start, that is returned as the reason.
        """
        complaints = [
            f"{processor.id}: {complaint}"
            for processor in graph.processors
            for complaint in self._complaints(processor)
        ]
        if not complaints:
            try:
                self._session()
            except (JavaMissing, WrongPython) as error:
                complaints.append(str(error))
            except Exception as error:  # noqa: BLE001 - Spark raises many kinds of errors
                complaints.append(f"Spark does not start: {error_text(error)}; check the master")
        return complaints

    def _complaints(self, processor: Processor) -> Iterator[str]:
        kind, function = kind_of(processor), processor.function
        if kind is FunctionKind.DATAFRAME and processor.is_alternatives and takes_binding(function):
            yield "a DataFrame of alternatives has a column stream; remove the parameter binding"
        if processor.stateful and (processor.types or processor.topics):
            yield (
                "a stateful processor cannot have types= or topics=; filter the DataFrame in its"
                " function"
            )
        if processor.stateful and self._checkpoints is None:
            yield (
                "a stateful processor needs a directory for its checkpoint; set it with"
                " --checkpoints"
            )
        if processor.role is Role.STREAM and kind is not FunctionKind.DATAFRAME:
            complaint = unsendable(function)
            if complaint is not None:
                yield complaint

    def _session(self) -> SparkSession:
        with self._lock:
            if self._spark is None:
                self._is_own = SparkSession._instantiatedSession is None
                named = {} if self._master is None else {"master": self._master}
                conf = _CONF if self._is_own else {}
                self._spark = session("semel run", **named, **conf)
            return self._spark

    # ---- steps -----------------------------------------------------------------------------------

    def commits(self, client: Client, name: str, stop: Stop) -> Committer:
        """Return a committer that uses a sink, so that every task can stage a transaction."""
        return SinkCommitter(client, name, stop)

    def run(self, work: Work) -> StepOutput:
        """Run a step as Spark jobs, or call the function of a sink; return the output.

        Raises EngineFailed if a job fails, and MessageFailed if a message fails and the processor
        has no error stream.
        """
        kind = work.evaluation.kind
        if work.processor.role is Role.SINK:
            return self._deliver(work, kind)
        parts = self._parts(work)
        target = StagingTarget(work.url, work.producer_id, work.version)
        if kind is FunctionKind.DATAFRAME:
            return run_frames(work, input_frames(self._session(), work, parts), target)
        task = EvaluateTask(work.evaluation, tuple(parts), target)
        return step_output_of(run_job(numbered(self._session(), len(parts)), task))

    def _parts(self, work: Work) -> list[InputPart]:
        inputs, ranges = work.processor.inputs, work.step.ranges
        # Each task stages a transaction, and a commit can list a limited number of them.
        tasks = min(self._session().sparkContext.defaultParallelism, _TASKS_MAX)
        if work.processor.is_join and work.evaluation.kind is not FunctionKind.DATAFRAME:
            return split_join_parts(inputs, ranges, work.messages(), tasks, self.task_messages_min)
        return split_parts(inputs, ranges, tasks, self.task_messages_min)

    def _deliver(self, work: Work, kind: FunctionKind) -> StepOutput:
        """Call the function of a sink on the driver.

        It gets messages or an Arrow batch if its parameter is annotated so, otherwise DataFrames.
        """
        if kind in _ON_DRIVER:
            try:
                calls = self._calls(work)
            except DataLossError as error:
                raise data_lost(str(error)) from error
            deliver(work, calls)
            return StepOutput(read=sum(map(len, calls)))
        frames = input_frames(self._session(), work, self._parts(work))
        messages = next(iter(frames.values())) if work.processor.in_.is_one else frames
        run_jobs(lambda: work.processor.function(messages, work.delivery))
        return StepOutput(read=offset_count(work))

    def _calls(self, work: Work) -> list[Call]:
        ranges = {r.stream: r for r in work.step.ranges}
        inputs = (
            [
                message
                for page in read_parts(work.url, ranges[path])
                for message in input_messages(binding, page, path)
            ]
            for binding, path in work.processor.inputs.items()
        )
        return calls_from(inputs, is_join=work.processor.is_join)

    def query(self, running: ProcessorRun) -> QueryLoop:
        """Return the loop that runs a stateful processor as a streaming query."""
        assert self._checkpoints is not None, "complaints() has checked it"
        return QueryLoop(self._session(), running, self._checkpoints)

    def close(self) -> None:
        """Stop the Spark session if this engine has started it."""
        with self._lock:
            if self._spark is not None and self._is_own:
                self._spark.stop()
            self._spark = None


# ---- commits -------------------------------------------------------------------------------------
# Steps are committed as versions of a sink, because a producer can have only a few pending
# transactions (TXN_PENDING_MAX), and a step has one for each task. The sink is called
# `<graph>/<processor>`. Its versions only count its commits. The positions that the commit moves
# show whether a step was committed; the version does not. So no special rules are needed for a step
# with two commits, for a separate trace record, or for a group that was set back by hand.


class SinkCommitter(Committer):
    """Commits each step as the next version of a sink.

    `begin` binds the sink to this instance. From then on, commits of older instances are refused,
    and the next commit drops the transactions they have staged. The producer with the same name as
    the sink has an epoch for each instance. Its epoch also fences instances that run on the local
    engine.
    """

    def begin(self) -> None:
        super().begin()
        info = self._info()
        if info is None:
            # There is no sink yet. An empty commit creates it and sets its owner.
            try:
                self._commit(None, Parts())
            except AppBound:
                info = self._info()  # another instance has created the sink first
        if info is not None:
            last = info.last_version
            self._run(rebind_sink_info(self._client.site, self.producer_id, self._owner, last))
            self.version = last + 1

    def _flow(self, step: Step | None, parts: Parts) -> Flow[CommitResult]:
        hash = None if step is None else step.hash
        version = Version(self.producer_id, self._owner, self.version, hash)
        return commit_version(self._known, version, parts)

    @property
    def _owner(self) -> str:
        return f"{self.producer_id} instance {self.epoch}"

    def _info(self) -> SinkInfo | None:
        try:
            return self._run(show_sink_info(self._client.site, self.producer_id))
        except Refused as error:
            if error.code == "unknown_sink":
                return None
            raise


# ---- pickling ------------------------------------------------------------------------------------


_pickle: Final[Any] = cloudpickle  # cloudpickle has no type annotations


def unsendable(function: Callable[..., Any]) -> str | None:
    """Return why a function cannot be sent to a worker; None if it can.

    A worker cannot import the file that defines the graph. So the functions and classes of that
    file are pickled by value.
    """
    module = inspect.getmodule(function)
    if module is not None and not _is_importable(module):
        _pickle.register_pickle_by_value(module)
    try:
        _pickle.dumps(function)
    except Exception as error:  # noqa: BLE001 - anything an object of the user raises
        return (
            f"its function cannot be sent to Spark's workers: {type(error).__name__}: {error};"
            " create what it needs inside the function"
        )
    return None


def _is_importable(module: ModuleType) -> bool:
    """Return whether a worker can import the module, or it needs no registration with cloudpickle.

    Workers can import Python's own modules, semel, and installed packages.
    """
    name, file = module.__name__, getattr(module, "__file__", None)
    if name == "__main__" or name not in sys.modules:
        return True  # cloudpickle pickles these by value anyway
    if name.partition(".")[0] == "semel" or file is None:
        return True
    folders = {sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib", "platstdlib")}
    return any(Path(file).resolve().is_relative_to(Path(folder).resolve()) for folder in folders)
