"""The Spark engine. A step is a batch job that reads messages and stages the function's outputs."""

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
from semel.pipeline.error_stream import RETRIES, Call
from semel.pipeline.evaluate import calls_from
from semel.pipeline.executor import Committer, ProcessorRun, StepOutput, Work
from semel.pipeline.graph.graph import Graph
from semel.pipeline.graph.processors import FunctionKind, Processor, Role, kind_of, takes_binding
from semel.pipeline.local.engine import deliver
from semel.pipeline.spark.frames import QueryLoop, input_frames, offset_count, run_frames
from semel.pipeline.spark.reading import (
    InputPart,
    access_of,
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
# With this scheduler, a processor does not wait until the jobs of other processors have ended.
_CONF: Final = {"spark.scheduler.mode": "FAIR"}


class SparkEngine:
    """Runs steps as Spark jobs. The threads of all processors share one Spark session.

    If a Spark session exists already, the engine uses that session, and `close` does not stop it.

    `checkpoints` is the directory for the Spark checkpoints of stateful processors. Each task gets
    at least about `task_messages_min` messages.
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
        """Return the reasons why the graph cannot run on Spark.

        If there is no reason, start a Spark session. If the start fails, return the error as the
        only reason.
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
                complaints.append(
                    f"Spark did not start: {error_text(error)}; check the URL of the Spark master"
                )
        return complaints

    def _complaints(self, processor: Processor) -> Iterator[str]:
        kind, function = kind_of(processor), processor.function
        if kind is FunctionKind.DATAFRAME and processor.is_alternatives and takes_binding(function):
            yield "remove the parameter 'binding'; use the column 'stream' of the DataFrame instead"
        if processor.stateful and (processor.types or processor.topics):
            yield (
                "a stateful processor cannot have types= or topics=; filter the DataFrame in the"
                " function"
            )
        if processor.stateful and self._checkpoints is None:
            yield (
                "a stateful processor needs a directory for its Spark checkpoint; set the directory"
                " with --checkpoints"
            )
        if processor.role is Role.STREAM and kind is not FunctionKind.DATAFRAME:
            complaint = unsendable(processor.call)
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
        """Return a committer whose commits are the numbered versions of the sink `name`."""
        return SinkCommitter(client, name, stop)

    def run(self, work: Work) -> StepOutput:
        """Run a step and return its output.

        A sink's function is called on the driver. Every other step is run as Spark jobs. Raises
        EngineFailed if a job fails or messages are lost. Raises MessageFailed if a message fails
        and the processor has no error stream.
        """
        kind = work.evaluation.kind
        if work.processor.role is Role.SINK:
            return self._deliver(work, kind)
        parts = self._parts(work)
        server = access_of(work.url, work.token)
        target = StagingTarget(server, work.producer_id, work.version)
        if kind is FunctionKind.DATAFRAME:
            return run_frames(work, input_frames(self._session(), work, parts), target)
        task = EvaluateTask(work.evaluation, tuple(parts), target)
        return step_output_of(run_job(numbered(self._session(), len(parts)), task))

    def _parts(self, work: Work) -> list[InputPart]:
        inputs, ranges = work.processor.inputs, work.step.ranges
        # Each task stages a transaction, and a commit can list only a limited number of
        # transactions.
        tasks = min(self._session().sparkContext.defaultParallelism, _TASKS_MAX)
        if work.processor.is_join and work.evaluation.kind is not FunctionKind.DATAFRAME:
            messages = work.messages()
            parts = split_join_parts(inputs, ranges, messages, tasks, self.task_messages_min)
        else:
            parts = split_parts(inputs, ranges, tasks, self.task_messages_min)
        if work.retries is None:
            return parts
        retried = {RETRIES: work.retries.stream}
        return [*parts, *split_parts(retried, ranges, tasks, self.task_messages_min)]

    def _deliver(self, work: Work, kind: FunctionKind) -> StepOutput:
        """Call the function of a sink processor on the driver.

        The annotation of the first parameter selects the input: messages, an Arrow batch or
        DataFrames. Without an annotation, the input is DataFrames.
        """
        if kind in _ON_DRIVER:
            try:
                calls = self._calls(work)
            except DataLossError as error:
                raise data_lost(error.reason) from error
            deliver(work, calls)
            return StepOutput(read=sum(map(len, calls)))
        frames = input_frames(self._session(), work, self._parts(work))
        messages = next(iter(frames.values())) if work.processor.in_.is_one else frames
        run_jobs(lambda: work.processor.call(messages, work.delivery))
        return StepOutput(read=offset_count(work))

    def _calls(self, work: Work) -> list[Call]:
        ranges = {r.stream: r for r in work.step.ranges}
        inputs = (
            [
                message
                for page in read_parts(access_of(work.url, work.token), ranges[path])
                for message in input_messages(binding, page, ranges[path])
            ]
            for binding, path in work.processor.inputs.items()
        )
        return calls_from(inputs, is_join=work.processor.is_join)

    def query(self, running: ProcessorRun) -> QueryLoop:
        """Return the loop that runs a stateful processor as a Spark streaming query."""
        assert self._checkpoints is not None, "complaints() has checked `checkpoints`"
        return QueryLoop(self._session(), running, self._checkpoints)

    def close(self) -> None:
        """Stop the Spark session if this engine started that session."""
        with self._lock:
            if self._spark is not None and self._is_own:
                self._spark.stop()
            self._spark = None


# ---- commits -------------------------------------------------------------------------------------
# Each step is committed as a version of a sink, not by a producer. A step has one pending
# transaction for each task, and a producer can have only a few pending transactions
# (TXN_PENDING_MAX).
#
# The sink is called `<graph>/<processor>`. The version number only counts the commits. It does not
# show whether a step was committed: the group's positions show that, because the commit moves them.
# So the version needs no special rule for a step with two commits, for a commit that only adds a
# trace record, or for a group that a user has moved back.


class SinkCommitter(Committer):
    """Commits each step to a sink. On the server, a sink is a series of numbered commits.

    `begin` binds the sink to this instance, and the server then refuses commits from older
    instances. The next commit drops the transactions that older instances have staged.

    `begin` also registers the producer at a new epoch. The new epoch fences older instances that
    run on the local engine.
    """

    def begin(self) -> None:
        super().begin()
        info = self._info()
        if info is None:
            # The sink does not exist yet. An empty commit creates the sink and sets its owner.
            try:
                self._commit(None, Parts())
            except AppBound:
                info = self._info()  # another instance created the sink first
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
    """Return the reason why `function` cannot be sent to a worker, or None if it can be sent.

    If workers cannot import the file that defines the function, this call also tells cloudpickle
    to send the code of the file's functions and classes, not only their names.
    """
    module = inspect.getmodule(function)
    if module is not None and not _is_importable(module):
        _pickle.register_pickle_by_value(module)
    try:
        _pickle.dumps(function)
    except Exception as error:  # noqa: BLE001 - the user's objects can raise anything
        return (
            f"the function cannot be sent to Spark's workers: {type(error).__name__}: {error}."
            " Create the objects that the function needs inside the function"
        )
    return None


def _is_importable(module: ModuleType) -> bool:
    """Return False if cloudpickle sends the module's code to workers only when asked to.

    Return True for Python's own modules, semel and installed packages, because workers can import
    them. Also return True for `__main__` and for modules that are not in `sys.modules`, because
    cloudpickle sends their code by default.
    """
    name, file = module.__name__, getattr(module, "__file__", None)
    if name == "__main__" or name not in sys.modules:
        return True  # cloudpickle sends the code of these by default
    if name.partition(".")[0] == "semel" or file is None:
        return True
    folders = {sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib", "platstdlib")}
    return any(Path(file).resolve().is_relative_to(Path(folder).resolve()) for folder in folders)
