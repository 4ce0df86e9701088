"""The engine inside this process: functions of messages and of Arrow batches, no JVM."""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from itertools import chain
from typing import Any, Final

from semel.client.sync.client import Client
from semel.client.sync_driver import Stop
from semel.client.values import Message
from semel.pipeline.evaluate import Call, Evaluation, InputMessage, evaluate, passing
from semel.pipeline.executor import Loop, ProcessorRun, StepOutput, Work
from semel.pipeline.graph import signatures
from semel.pipeline.graph.graph import Graph
from semel.pipeline.graph.processors import FunctionKind, Role
from semel.pipeline.local.committing import CommitProtocol, LocalCommitter
from semel.pipeline.local.inputs import STEP_MESSAGES_MAX

_USE_SPARK: Final = "run it with --engine spark"


class LocalEngine:
    """Carries out steps on the thread that asks for it."""

    reads_ahead = True
    step_messages_max = STEP_MESSAGES_MAX

    def complaints(self, graph: Graph) -> Sequence[str]:
        """Refuse what needs Spark, or Arrow where there is none."""
        found = []
        for one in graph.processors:
            kind = signatures.kind_of(one)
            if one.stateful:
                found.append(f"{one.id}: a stateful processor needs Spark; {_USE_SPARK}")
            elif kind is FunctionKind.DATAFRAME:
                found.append(f"{one.id}: a function of DataFrames needs Spark; {_USE_SPARK}")
            elif kind is FunctionKind.ARROW and find_spec("pyarrow") is None:
                found.append(f"{one.id}: a function of RecordBatches needs pyarrow; install it")
        return found

    def commits(self, client: Client, name: str, stop: Stop) -> CommitProtocol:
        """Commit under a producer."""
        return LocalCommitter(client, name, stop)

    def run(self, work: Work) -> StepOutput:
        """Call the function for each message, or for all of them."""
        messages = work.messages()
        calls = calls_of(work.evaluation, messages)
        read = sum(map(len, messages.values()))
        if work.processor.role is Role.SINK:
            deliver(work, calls)
            return StepOutput(read=read)
        appends: dict[str, list[bytes]] = {}
        for row in evaluate(work.evaluation, calls):
            appends.setdefault(row.stream, []).append(row.raw)
        written = {path: len(rows) for path, rows in appends.items()}
        return StepOutput(appends, read=read, written=written)

    def query(self, running: ProcessorRun) -> Loop:
        """Never asked for: `complaints` has refused it."""
        raise AssertionError(running.processor.id)

    def close(self) -> None:
        """Let go of nothing."""


def calls_of(evaluation: Evaluation, messages: Mapping[str, Sequence[Message]]) -> Sequence[Call]:
    """Put messages together as the function is called with them.

    A join: the i-th of every input. Else one after the other, in the order of the bindings.
    """
    seen = [
        [_seen(binding, evaluation.inputs[binding], message) for message in found]
        for binding, found in messages.items()
    ]
    if evaluation.is_join:
        return list(zip(*seen, strict=True))
    return [(one,) for one in chain.from_iterable(seen)]


def _seen(binding: str, path: str, message: Message) -> InputMessage:
    assert isinstance(message.ordinal, int), "semel tells the offset of each message"
    return InputMessage(binding, path, message.ordinal, message.raw)


def deliver(work: Work, calls: Sequence[Call]) -> None:
    """Give a sink its messages; with several inputs by binding. Nothing passed: no call."""
    evaluation = work.evaluation
    wanted = [found for call in calls if (found := passing(evaluation, call)) is not None]
    if not wanted:
        return
    by_binding: dict[str, list[Any]] = {binding: [] for binding in evaluation.inputs}
    for found in wanted:
        for binding, value in found.items():
            by_binding[binding].append(value)
    given: dict[str, Any] = dict(by_binding)
    if evaluation.kind is FunctionKind.ARROW:
        from semel.pipeline import evaluate  # noqa: PLC0415 - Arrow is an extra

        given = {name: evaluate.arrow_batch_of(found) for name, found in by_binding.items()}
    is_one = work.processor.in_.is_one
    work.processor.function(next(iter(given.values())) if is_one else given, work.delivery)
