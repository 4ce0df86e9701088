"""The interface that an engine implements to run steps, and the choice of an engine."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from typing import Any, Final, Protocol, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from semel.client.commit_calls import KnownStreams, Parts
from semel.client.computed import FieldValue
from semel.client.flows import Flow
from semel.client.server_calls import register_producer
from semel.client.sync.client import Client
from semel.client.sync_driver import Stop
from semel.client.values import CommitResult, Message, Move
from semel.pipeline.error_stream import retry_stream
from semel.pipeline.evaluate import Evaluation, evaluation_of
from semel.pipeline.graph.graph import Graph
from semel.pipeline.graph.processors import FunctionKind, Processor, Role, kind_of
from semel.pipeline.values import Delivery, GraphError, ProcessorStopped, Range, Step
from semel.version import install_advice

LOG: Final = "semel.pipeline"  # the name of the logger for warnings
_log: Final = logging.getLogger(LOG)

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

    Only the processor's own thread changes the gauge. Any thread can read the gauge.

    `read` and `written` count messages since the start. `errors` counts messages for the error
    stream, and `written` includes these messages. `lag` counts offsets that are not processed yet.
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

    `appends` maps each stream to encoded JSON values. `transactions` are the tokens of the staged
    transactions. In each stream, the messages of `appends` come first, and the messages of the
    transactions follow. `written` maps each stream to the number of messages that the step
    produced for the stream.
    """

    appends: Mapping[str, Sequence[bytes]] = {}
    transactions: Sequence[str] = ()
    read: int = 0
    written: Mapping[str, int] = {}


class Work(Struct, frozen=True):
    """One step of one processor, with everything that an engine needs to run it.

    The step is stored on the server, so a retry gets exactly the same step. `messages()` reads the
    messages of the step and returns them keyed by binding. `producer_id` and `producer_epoch`
    identify the instance that commits. `version` is the number of the commit. `token` is sent to
    the server at `url`: a text, or a function that returns it.
    """

    graph: Graph
    processor: Processor
    step: Step
    url: str
    token: FieldValue | None
    producer_id: str
    producer_epoch: int
    version: int
    messages: Callable[[], Mapping[str, list[Message]]]

    @property
    def evaluation(self) -> Evaluation:
        """The processor's function, with everything that is needed to call it."""
        return evaluation_of(self.graph, self.processor, self.step.hash)

    @property
    def retries(self) -> Range | None:
        """The range of the retry stream in this step, or None if the step has no such range."""
        path = retry_stream(self.graph.id, self.processor.id)
        return next((r for r in self.step.ranges if r.stream == path and r.to > r.start), None)

    @property
    def delivery(self) -> Delivery:
        """The value that identifies this step to a sink's function."""
        return Delivery(self.graph.id, self.processor.id, *self.step)


class ProcessorRun(Struct, frozen=True, kw_only=True):
    """The run of one processor, with everything that its loop needs.

    When `stop` is set, the loop ends after the current step. A few seconds later, the runner also
    sets `cut`. Every request that has no response yet then fails.

    If `is_draining` is True, the loop ends when all messages are processed and `is_ending()` is
    True. `is_ending()` is True when no processor of the graph will write to the inputs again.

    Tests use `at_boundary(processor, boundary)`. It is called after each stage of the loop.
    `token` is the token that `client` sends, for engines that send requests themselves.
    """

    client: Client
    token: FieldValue | None
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

    def warn_without_position(self, paths: Iterable[str]) -> None:
        """Log a warning for each of these inputs, which the processor reads from the beginning."""
        for path in paths:
            _log.warning(
                "%s: no stored position for the input %s; starts at its first message. This is"
                " correct after a change of the graph. To start elsewhere, stop the run and use"
                " `semel groups set`",
                self.name,
                path,
            )

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

    `producer_id` is `<graph>/<processor>`. `epoch` increases with each new instance of the
    processor. `version` is the number of the next commit.
    """

    def __init__(self, client: Client, name: str, stop: Stop) -> None:
        self.producer_id = name
        self.epoch = 0
        self.version = 0
        self._client = client
        self._stop = stop
        self._known = KnownStreams(replace(client.site, retries=None))

    def begin(self) -> None:
        """Register the producer at its next epoch. The registration fences older instances."""
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

        `step` is None if the commit has only a trace record. `record` is appended after `appends`.
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

    If `reads_ahead` is True, the step loop reads the messages and passes them to the engine.
    If `reads_ahead` is False, the engine reads the messages itself. But for a join, the step loop
    also reads the messages, to count them: a join's step needs equally many from each input.

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
        """Run a step and return its output.

        The loop commits the output later. The output must not be visible before that commit.

        Raises MessageFailed if a message fails and the processor has no error stream. Every
        exception stops the processor.
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

    Raises GraphError if the engine does not exist or is not installed. Also raises GraphError if
    options are passed to the local engine, because only Spark has options.
    """
    if name not in _MODULES:
        raise GraphError(graph.id, [f"there is no engine {name!r}; use {' or '.join(ENGINES)}"])
    module, class_name = _MODULES[name]
    try:
        make: Callable[..., Executor] = getattr(import_module(module), class_name)
    except ModuleNotFoundError as error:
        raise GraphError(
            graph.id,
            [f"the {name} engine needs the package {error.name}; " + install_advice("'.[spark]'")],
        ) from error
    values = {key: value for key, value in options.items() if value is not None}
    if values and name == LOCAL:
        raise GraphError(
            graph.id,
            [f"these options need --engine spark: {' and '.join(values)}"],
        )
    return make(**values)
