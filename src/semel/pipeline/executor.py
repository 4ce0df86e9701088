"""What an engine is: it carries out one pinned step, and says what is to be committed for it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from semel.client.client import Client
from semel.client.sync_driver import Stop
from semel.client.values import Message
from semel.pipeline.committing import Commits
from semel.pipeline.delivery import Delivery, Step
from semel.pipeline.evaluate import Evaluation, evaluation_of
from semel.pipeline.gauges import Gauge
from semel.pipeline.graph import Graph
from semel.pipeline.processors import Processor


class Made(Struct, frozen=True):
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


class Running(Struct, frozen=True):
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

    def commits(self, client: Client, name: str, stop: Stop) -> Commits:
        """Say how the steps of the processor `<graph>/<processor>` are committed."""

    def run(self, work: Work) -> Made:
        """Carry out a step. Nothing of it may be seen before the commit, which is not its business.

        Raises Poisoned for a message that failed without an error stream. Whatever else it raises
        stops the processor, and a restart does the same step again.
        """

    def query(self, running: Running) -> Loop:
        """Make the loop of a stateful processor, which keeps its own account of what is done."""

    def close(self) -> None:
        """Let go of everything."""
