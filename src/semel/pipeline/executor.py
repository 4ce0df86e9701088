"""What an engine is: it carries out one pinned step, and says what is to be committed for it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from typing import Any, Final, Protocol

from msgspec import Struct

from semel.client.sync.client import Client
from semel.client.sync_driver import Stop
from semel.client.values import Message
from semel.pipeline.delivery import Delivery, Step
from semel.pipeline.evaluate import Evaluation, evaluation_of
from semel.pipeline.graph import signatures
from semel.pipeline.graph.graph import Graph
from semel.pipeline.graph.processors import FunctionKind, Processor, Role
from semel.pipeline.local.committing import CommitProtocol
from semel.pipeline.problems import GraphError

# ---- gauges --------------------------------------------------------------------------------------
# How a processor is doing, as far as a view of it wants to know.


class RunState(StrEnum):
    """Where a processor is in its life."""

    STARTING = "starting"
    RUNNING = "running"
    IDLE = "idle"
    ENDED = "ended"
    STOPPED = "stopped"


@dataclass
class Gauge:
    """The figures of one processor; written by its thread, read by any.

    `read` and `written` count messages since the start, `errors` those of the error stream among
    them; `lag` are offsets not processed yet; `step_seconds` is how long the last step took.
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


# ---- executor ------------------------------------------------------------------------------------


class StepOutput(Struct, frozen=True):
    """What a step has made: messages for the commit to append, or staged transactions, or both.

    `appends` are JSON values in bytes, by stream. `transactions` are tokens of staged ones that the
    engine's `commits` can commit; their messages come after the appends. `read` counts the messages
    read, `written` those made, by stream.
    """

    appends: Mapping[str, Sequence[bytes]] = {}
    transactions: Sequence[str] = ()
    read: int = 0
    written: Mapping[str, int] = {}


class Work(Struct, frozen=True):
    """One step of one processor, pinned on the server: a retry is given exactly the same.

    `messages()` reads the messages of the ranges, by binding; an engine that reads by itself need
    not call it. `producer_id` and `producer_epoch` own the commit, and what is staged for it.
    """

    graph: Graph
    processor: Processor
    step: Step
    url: str
    producer_id: str
    producer_epoch: int
    messages: Callable[[], Mapping[str, list[Message]]]

    @property
    def evaluation(self) -> Evaluation:
        """All that is needed to call the function, anywhere."""
        return evaluation_of(
            self.graph.id,
            self.processor,
            strategy=self.graph.strategy_of(self.processor),
            errors=self.graph.errors_of(self.processor),
            hash=self.step.hash,
        )

    @property
    def delivery(self) -> Delivery:
        """What a sink is told."""
        step = self.step
        return Delivery(self.graph.id, self.processor.id, step.number, step.ranges, step.hash)


class ProcessorRun(Struct, frozen=True):
    """What a stateful processor is to run with, outside of steps.

    `is_draining`: it ends with what is there, when `is_ending()` says that nobody feeds it.
    """

    client: Client
    graph: Graph
    processor: Processor
    stop: Stop
    gauge: Gauge
    is_draining: bool
    is_ending: Callable[[], bool]


class Loop(Protocol):
    """A processor at work."""

    def run(self) -> None:
        """Go on until there is nothing more to come, or it is told to stop."""


class Executor(Protocol):
    """An engine.

    `reads_ahead`: it takes messages from `Work.messages`, so the loop reads them when it looks for
    work; else only the ends of the streams are asked for, but for joins, which must be counted.
    `step_messages_max`: how much one step takes.
    """

    reads_ahead: bool
    step_messages_max: int

    def complaints(self, graph: Graph) -> Sequence[str]:
        """Say what of a graph it cannot run, before anything starts."""

    def commits(self, client: Client, name: str, stop: Stop) -> CommitProtocol:
        """Say how the steps of the processor `<graph>/<processor>` are committed."""

    def run(self, work: Work) -> StepOutput:
        """Carry out a step. Nothing of it may be seen before the commit, which is not its business.

        Raises Poisoned for a message that failed without an error stream. Whatever else it raises
        stops the processor, and a restart does the same step again.
        """

    def query(self, running: ProcessorRun) -> Loop:
        """Make the loop of a stateful processor, which keeps its own account of what is done."""

    def close(self) -> None:
        """Let go of everything."""


# ---- engines -------------------------------------------------------------------------------------
# Finding an engine by its name. Each is imported when it is asked for, and not before.


LOCAL: Final = "local"
SPARK: Final = "spark"
ENGINES: Final = (SPARK, LOCAL)
_HOMES: Final = {
    LOCAL: ("semel.pipeline.local.engine", "LocalEngine"),
    SPARK: ("semel.pipeline.spark.engine", "SparkEngine"),
}


def engine_for(graph: Graph, *, master: str | None = None) -> str:
    """Choose: Spark for a graph that needs it, or where a master is named; else this process."""
    needs = any(
        one.stateful or signatures.kind_of(one) is FunctionKind.DATAFRAME
        for one in graph.processors
    )
    return SPARK if needs or master is not None else LOCAL


def make_engine(name: str, graph: Graph, **options: Any) -> Executor:
    """Make an engine; GraphError if it is not installed."""
    if name not in _HOMES:
        raise GraphError(graph.id, [f"there is no engine {name!r}; use {' or '.join(ENGINES)}"])
    module, kind = _HOMES[name]
    try:
        found = getattr(import_module(module), kind)
    except ModuleNotFoundError as error:
        raise GraphError(
            graph.id,
            [f"the engine {name} needs {error.name}; install it: pip install semel[spark]"],
        ) from error
    given = {key: value for key, value in options.items() if value is not None}
    if given and name == LOCAL:
        raise GraphError(graph.id, [f"{' and '.join(given)} is for Spark; add --engine spark"])
    made: Executor = found(**given)
    return made
