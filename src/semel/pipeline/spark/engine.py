"""The engine on Spark: every step is a batch job, which reads, calls and stages in one pass."""

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

from semel.client.sync.client import Client
from semel.client.sync_driver import Stop
from semel.model.limits import TXN_LIST_MAX
from semel.pipeline.evaluate import Call
from semel.pipeline.executor import ProcessorRun, StepOutput, Work
from semel.pipeline.graph import signatures
from semel.pipeline.graph.graph import Graph
from semel.pipeline.graph.processors import FunctionKind, Processor, Role
from semel.pipeline.local.committing import CommitProtocol
from semel.pipeline.local.engine import deliver
from semel.pipeline.spark.frames import input_frames, offsets_of, run_frames
from semel.pipeline.spark.query import QueryLoop, SinkCommitter
from semel.pipeline.spark.reading import (
    InputPart,
    input_messages,
    read_parts,
    split_join_parts,
    split_parts,
)
from semel.pipeline.spark.tasks import (
    EvaluateTask,
    Target,
    call_user_code,
    data_lost,
    error_text,
    numbered,
    run_job,
    step_output_of,
)
from semel.spark.errors import DataLossError
from semel.spark.runtime.environment import JavaMissing, WrongPython
from semel.spark.runtime.session import session

_ON_DRIVER: Final = (FunctionKind.MESSAGE, FunctionKind.ARROW)
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
                found.append(f"Spark does not start: {error_text(error)}; is the master right?")
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

    def commits(self, client: Client, name: str, stop: Stop) -> CommitProtocol:
        """Commit as a sink, whose tasks may stage as many transactions as there are."""
        found = self._committers[name] = SinkCommitter(client, name, stop)
        return found

    def run(self, work: Work) -> StepOutput:
        """Run a step as a job."""
        kind = work.evaluation.kind
        if work.processor.role is Role.SINK:
            return self._deliver(work, kind)
        parts = self._parts(work)
        if kind is FunctionKind.DATAFRAME:
            frames = input_frames(self._session(), work, parts)
            return run_frames(work, frames, self._target(work))
        task = EvaluateTask(work.evaluation, tuple(parts), self._target(work))
        return step_output_of(run_job(numbered(self._session(), len(parts)), task))

    def _parts(self, work: Work) -> list[InputPart]:
        inputs, ranges = work.processor.inputs, work.step.ranges
        # A task is a transaction, and a commit takes so many.
        tasks = min(self._session().sparkContext.defaultParallelism, _TASKS_MAX)
        if work.processor.is_join and work.evaluation.kind is not FunctionKind.DATAFRAME:
            return split_join_parts(inputs, ranges, work.messages(), tasks, self.task_messages_min)
        return split_parts(inputs, ranges, tasks, self.task_messages_min)

    def _target(self, work: Work) -> Target:
        return Target(work.url, work.producer_id, self._committers[work.producer_id].version)

    def _deliver(self, work: Work, kind: FunctionKind) -> StepOutput:
        """Give a sink its messages: DataFrames, or what it is annotated for, on the driver."""
        if kind in _ON_DRIVER:
            try:
                calls = self._calls(work)
            except DataLossError as error:
                raise data_lost(str(error)) from error
            deliver(work, calls)
            return StepOutput(read=sum(map(len, calls)))
        frames = input_frames(self._session(), work, self._parts(work))
        is_one = work.processor.in_.is_one
        given = next(iter(frames.values())) if is_one else frames
        call_user_code(lambda: work.processor.function(given, work.delivery))
        return StepOutput(read=offsets_of(work))

    def _calls(self, work: Work) -> list[Call]:
        ranges = {one.stream: one for one in work.step.ranges}
        found = [
            [
                one
                for page in read_parts(work.url, ranges[path])
                for one in input_messages(binding, page, path)
            ]
            for binding, path in work.processor.inputs.items()
        ]
        if work.processor.is_join:
            return list(zip(*found, strict=True))
        return [(one,) for column in found for one in column]

    def query(self, running: ProcessorRun) -> QueryLoop:
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
    if (
        kind is FunctionKind.DATAFRAME
        and one.is_alternatives
        and signatures.takes_binding(one.function)
    ):
        yield "a DataFrame of alternatives has a column stream, so no binding"
    if one.stateful and (one.types or one.topics):
        yield "a stateful processor has no types= or topics=; filter the DataFrame in its function"
    if one.role is Role.STREAM and kind is not FunctionKind.DATAFRAME:
        complaint = unsendable(one.function)
        if complaint is not None:
            yield complaint


# ---- spark sending -------------------------------------------------------------------------------
# Functions on their way to Spark's workers: by value, unless a worker finds them by itself.


_pickle: Final[Any] = cloudpickle  # it has no types


def unsendable(function: Callable[..., Any]) -> str | None:
    """Try whether a function can be sent; the complaint if it cannot.

    The file of a graph is no module that a worker could import, so what is defined there goes by
    value.
    """
    module = inspect.getmodule(function)
    if module is not None and not _is_found(module):
        _pickle.register_pickle_by_value(module)
    try:
        _pickle.dumps(function)
    except Exception as error:  # noqa: BLE001 - whatever an object of the user's raises
        return (
            f"its function cannot be sent to Spark's workers: {type(error).__name__}: {error}; make"
            " what it needs inside of it"
        )
    return None


def _is_found(module: ModuleType) -> bool:
    """Whether a worker finds the module by itself: it is part of Python, of semel or a package."""
    name, file = module.__name__, getattr(module, "__file__", None)
    if name == "__main__" or name not in sys.modules:
        return True  # these go by value anyhow
    if name.partition(".")[0] == "semel" or file is None:
        return True
    places = {sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib", "platstdlib")}
    return any(Path(file).resolve().is_relative_to(Path(place).resolve()) for place in places)
