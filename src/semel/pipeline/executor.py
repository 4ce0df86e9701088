"""The interface of an engine, which carries out pinned steps, and the choice of an engine."""

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
Moves = Mapping[str, Mapping[str, Move]]  # by group and stream
Record = tuple[str, Any]  # a stream, and a message for it
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
    """The progress of one processor; written by its thread, read by any.

    `read` and `written` count messages since the start, `errors` those among them that went to the
    error stream. `lag` is the number of offsets not processed yet, `step_seconds` the duration of
    the last step, `reason` why the processor stopped.
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
    """The output of a step: messages for the commit to append, staged transactions, or both.

    `appends` are encoded JSON values, by stream. `transactions` are tokens of staged ones, which
    the committer of the engine can commit; their messages come after the appends. `read` counts the
    messages read, `written` the messages produced, by stream.
    """

    appends: Mapping[str, Sequence[bytes]] = {}
    transactions: Sequence[str] = ()
    read: int = 0
    written: Mapping[str, int] = {}


class Work(Struct, frozen=True):
    """One step of one processor, pinned on the server: a retry gets exactly the same.

    `messages()` reads the messages of the ranges, by binding; an engine that reads by itself need
    not call it. `producer_id` and `producer_epoch` own the commit and what is staged for it;
    `version` is the number of that commit.
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
        """Everything needed to call the function, in any process."""
        return evaluation_of(self.graph, self.processor, self.step.hash)

    @property
    def delivery(self) -> Delivery:
        """The step as a sink gets it."""
        return Delivery(self.graph.id, self.processor.id, *self.step)


class ProcessorRun(Struct, frozen=True, kw_only=True):
    """The run of one processor: what its loop needs.

    `stop` ends the loop after the current step, `cut` even if the server does not respond.
    `at_boundary(processor, boundary)` is called at each boundary of a step, for tests.
    `is_draining`: it processes what is stored and ends, once `is_ending()` returns that no
    processor writes to its inputs any more.
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
        """The name of its group and its producer."""
        return f"{self.graph.id}/{self.processor.id}"

    def at(self, boundary: str) -> None:
        """Report a boundary."""
        self.at_boundary(self.processor.id, boundary)

    def stopped(self, reason: str) -> ProcessorStopped:
        """Return the error that stops this processor."""
        return ProcessorStopped(self.processor.id, reason)


class Loop(Protocol):
    """The loop of one processor."""

    def run(self) -> None:
        """Run until no more input can come, or until it is stopped."""


class Committer(ABC):
    """Commits the steps of one processor: outputs, positions and trace record, all or nothing.

    `producer_id`, which is `<graph>/<processor>`, and `epoch`, the number of this instance of the
    processor, own the commits. `version` is the number of the next commit.
    """

    def __init__(self, client: Client, name: str, stop: Stop) -> None:
        self.producer_id = name
        self.epoch = 0
        self.version = 0
        self._client = client
        self._stop = stop
        self._known = KnownStreams(replace(client.site, retries=None))

    def begin(self) -> None:
        """Register the next epoch of the producer, which fences older instances."""
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
        """Apply everything or nothing, once. `step` is None for a trace record alone.

        `record` is appended to its stream after the appends. An at-most-once step is committed
        twice: first its moves, then its output.
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
        """Return the flow of a commit with the number `version`."""

    def _run(self, flow: Flow[T]) -> T:
        return self._client.run_until_stopped(flow, self._stop)


class Executor(Protocol):
    """An engine.

    `reads_ahead`: it calls `Work.messages`, so the loop reads messages while it looks for work.
    Otherwise the loop requests only the tails of the streams, except for joins, whose messages must
    be counted. `step_messages_max`: the maximum number of messages of one step.
    """

    reads_ahead: bool
    step_messages_max: int

    def complaints(self, graph: Graph) -> Sequence[str]:
        """Return what it cannot run of a graph, before anything starts."""

    def commits(self, client: Client, name: str, stop: Stop) -> Committer:
        """Return the committer for the steps of the processor `<graph>/<processor>`."""

    def run(self, work: Work) -> StepOutput:
        """Carry out a step. Nothing of it may be visible before the commit, which the loop does.

        Raises MessageFailed for a message that failed without an error stream. Any other exception
        stops the processor, and a restart repeats the step.
        """

    def query(self, running: ProcessorRun) -> Loop:
        """Return the loop of a stateful processor, which stores its own progress."""

    def close(self) -> None:
        """Release all resources."""


# ---- engines -------------------------------------------------------------------------------------
# An engine is imported only when it is used.


LOCAL: Final = "local"
SPARK: Final = "spark"
ENGINES: Final = (SPARK, LOCAL)
_MODULES: Final = {
    LOCAL: ("semel.pipeline.local.engine", "LocalEngine"),
    SPARK: ("semel.pipeline.spark.engine", "SparkEngine"),
}


def engine_for(graph: Graph, *, master: str | None = None) -> str:
    """Return Spark for a graph that needs it or if a master is named, otherwise local."""
    needs_spark = any(p.stateful or kind_of(p) is FunctionKind.DATAFRAME for p in graph.processors)
    return SPARK if needs_spark or master is not None else LOCAL


def make_engine(name: str, graph: Graph, **options: Any) -> Executor:
    """Create an engine; raise GraphError if it is unknown, not installed, or an option is wrong."""
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
