"""The interface that an engine implements to run steps, and the choice of an engine."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from typing import Any, Final, Protocol, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from semel.client.commit_calls import KnownStreams, Parts
from semel.client.flows import Flow
from semel.client.server_calls import register_producer
from semel.client.sync.client import Client
from semel.client.sync_driver import Stop
from semel.client.values import CommitResult, Message, Move
from semel.pipeline.evaluate import Evaluation, evaluation_of
from semel.pipeline.graph.graph import Graph
from semel.pipeline.graph.processors import FunctionKind, Processor, Role, kind_of
from semel.pipeline.values import Delivery, GraphError, ProcessorStopped, Step
from semel.version import install_advice

T = TypeVar("T")
Appends = Mapping[str, Sequence[bytes]]
Moves = Mapping[str, Mapping[str, Move]]  # group -> stream -> move
Record = tuple[str, Any]  # a stream, and the message to append to it
AtBoundary = Callable[[str, str], None]


class RunState(StrEnum):
    """The state of a processor during a run."""

    STARTING = "starting"
    RUNNING = "running"
    IDLE = "idle"
    ENDED = "ended"
    STOPPED = "stopped"


@dataclass
class Gauge:
    """The progress of one processor.

    Only the processor's own thread changes its gauge. Any thread can read the gauge.

    `step` is the number of the last step. `read` and `written` count messages since the start.
    `errors` counts the written messages that went to the error stream. `lag` is the number of
    offsets that are not processed yet. `step_seconds` is the duration of the last step. `reason`
    says why the processor stopped.
    """

    processor: str
    role: Role
    state: RunState = RunState.STARTING
    step: int = 0
    read: int = 0
    written: int = 0
    errors: int = 0
    lag: int = 0
    step_seconds: float = 0.0
    reason: str = ""


class StepOutput(Struct, frozen=True):
    """The output of a step: messages to append in the commit, staged transactions, or both.

    `appends` maps each stream to encoded JSON values. `transactions` are the tokens of staged
    transactions. The engine's committer commits these transactions. Their messages come after
    `appends`. `read` is the number of messages read. `written` maps each stream to the number of
    messages produced for it.
    """

    appends: Mapping[str, Sequence[bytes]] = {}
    transactions: Sequence[str] = ()
    read: int = 0
    written: Mapping[str, int] = {}


class Work(Struct, frozen=True):
    """One step of one processor, with everything that an engine needs to run it.

    The step is pinned on the server, so a retry gets exactly the same step.

    `messages()` reads the messages of the step's ranges and returns them keyed by binding. An
    engine that reads the ranges itself need not call it. `producer_id` and `producer_epoch`
    identify the owner of the commit and of the transactions staged for it. `version` is the number
    of the commit.
    """

    graph: Graph
    processor: Processor
    step: Step
    url: str
    producer_id: str
    producer_epoch: int
    version: int
    messages: Callable[[], Mapping[str, list[Message]]]

    @property
    def evaluation(self) -> Evaluation:
        """The processor's function, with everything that a process needs to call it."""
        return evaluation_of(self.graph, self.processor, self.step.hash)

    @property
    def delivery(self) -> Delivery:
        """The value that identifies this step to a sink's function."""
        return Delivery(self.graph.id, self.processor.id, *self.step)


class ProcessorRun(Struct, frozen=True, kw_only=True):
    """The run of one processor, with everything that its loop needs.

    `stop` ends the loop after the current step. `cut` is set some seconds after
    `stop`. It ends the requests that are still waiting for the server.

    If `is_draining` is True, the loop ends when it has processed all messages and `is_ending()`
    returns True, which means that no processor of the graph will write to the inputs again.

    `at_boundary(processor, boundary)` is called after each stage of the loop. Tests use it.
    """

    client: Client
    graph: Graph
    processor: Processor
    gauge: Gauge
    at_boundary: AtBoundary
    is_draining: bool
    is_ending: Callable[[], bool]
    stop: Stop = field(default_factory=Stop)
    cut: Stop = field(default_factory=Stop)

    @property
    def name(self) -> str:
        """The processor's full name, which is also the name of its group and its producer."""
        return f"{self.graph.id}/{self.processor.id}"

    def at(self, boundary: str) -> None:
        """Call `at_boundary` with this processor and `boundary`."""
        self.at_boundary(self.processor.id, boundary)

    def stopped(self, reason: str) -> ProcessorStopped:
        """Return the exception that stops this processor. The caller raises it."""
        return ProcessorStopped(self.processor.id, reason)


class Loop(Protocol):
    """The loop of one processor."""

    def run(self) -> None:
        """Run the processor until no more input can arrive or a stop is requested."""


class Committer(ABC):
    """Commits the steps of one processor.

    A commit contains outputs, positions and a trace record. It is applied completely or not at all.

    `producer_id` and `epoch` identify the owner of the commits. `producer_id` is
    `<graph>/<processor>`, and `epoch` counts the instances of the processor. `version` is the
    number of the next commit.
    """

    def __init__(self, client: Client, name: str, stop: Stop) -> None:
        self.producer_id = name
        self.epoch = 0
        self.version = 0
        self._client = client
        self._stop = stop
        self._known = KnownStreams(replace(client.site, retries=None))

    def begin(self) -> None:
        """Register the producer at its next epoch. This fences older instances."""
        registered = self._run(register_producer(self._client.site, self.producer_id))
        self.epoch, self.version = registered.producer_epoch, 0

    def commit(
        self,
        step: Step | None,
        appends: Appends,
        moves: Moves,
        *,
        transactions: Sequence[str] = (),
        record: Record | None = None,
    ) -> CommitResult:
        """Commit all arguments together, exactly once, and return the result.

        `step` is None for a commit that has only a trace record. `record` is appended after
        `appends`. An at-most-once step has two commits. The first commit moves the positions, and
        the second commit appends the output.
        """
        streams: dict[str, Sequence[Any]] = dict(appends)
        if record is not None:
            streams[record[0]] = [record[1]]
        return self._commit(step, Parts(streams, moves, transactions=transactions))

    def _commit(self, step: Step | None, parts: Parts) -> CommitResult:
        result = self._run(self._flow(step, parts))
        self.version += 1
        return result

    @abstractmethod
    def _flow(self, step: Step | None, parts: Parts) -> Flow[CommitResult]:
        """Return the flow that sends the commit with the number `self.version`."""

    def _run(self, flow: Flow[T]) -> T:
        return self._client.run_until_stopped(flow, self._stop)


class Executor(Protocol):
    """An engine: it runs the steps of processors.

    `reads_ahead` is True if the engine calls `Work.messages`. In that case the loop reads messages
    while it waits for input. Otherwise the loop requests only the ends of the streams, because the
    engine reads the messages itself. A join is an exception: its messages must be counted, so the
    loop always reads them.

    `step_messages_max` is the maximum number of messages in one step.
    """

    reads_ahead: bool
    step_messages_max: int

    def complaints(self, graph: Graph) -> Sequence[str]:
        """Return the reasons why the engine cannot run `graph`, or an empty sequence if it can.

        This method is called before any processor is started.
        """

    def commits(self, client: Client, name: str, stop: Stop) -> Committer:
        """Return a committer that commits each step under the producer id `name`."""

    def run(self, work: Work) -> StepOutput:
        """Run a step and return its output. The loop commits the output.

        The output must not become visible before that commit.

        Raises MessageFailed if a message fails and the processor has no error stream. Every
        exception stops the processor. A restart repeats the step, unless the processor is
        at-most-once.
        """

    def query(self, running: ProcessorRun) -> Loop:
        """Return the loop for a stateful processor. This loop stores its own progress."""

    def close(self) -> None:
        """Release all resources."""


# ---- engines -------------------------------------------------------------------------------------
# The module of an engine is imported only when the engine is used.


LOCAL: Final = "local"
SPARK: Final = "spark"
ENGINES: Final = (SPARK, LOCAL)
_MODULES: Final = {
    LOCAL: ("semel.pipeline.local.engine", "LocalEngine"),
    SPARK: ("semel.pipeline.spark.engine", "SparkEngine"),
}


def engine_for(graph: Graph, *, master: str | None = None) -> str:
    """Return "spark" if the graph needs Spark or `master` is set, otherwise "local"."""
    needs_spark = any(p.stateful or kind_of(p) is FunctionKind.DATAFRAME for p in graph.processors)
    return SPARK if needs_spark or master is not None else LOCAL


def make_engine(name: str, graph: Graph, **options: Any) -> Executor:
    """Return a new engine with the name `name`.

    Raises GraphError if there is no such engine, or if it is not installed. Also raises GraphError
    if `name` is the local engine and `options` contains an option, because only Spark has options.
    """
    if name not in _MODULES:
        raise GraphError(graph.id, [f"there is no engine {name!r}; use {' or '.join(ENGINES)}"])
    module, class_name = _MODULES[name]
    try:
        make: Callable[..., Executor] = getattr(import_module(module), class_name)
    except ModuleNotFoundError as error:
        raise GraphError(
            graph.id,
            [f"the engine {name} needs {error.name}; " + install_advice("'.[spark]'")],
        ) from error
    values = {key: value for key, value in options.items() if value is not None}
    if values and name == LOCAL:
        raise GraphError(
            graph.id, [f"{' and '.join(values)} requires the engine spark; add --engine spark"]
        )
    return make(**values)
