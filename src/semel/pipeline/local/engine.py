"""The engine in this process: functions of messages and of Arrow batches, without a JVM."""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from itertools import chain
from typing import Any, Final

from semel.client.sync.client import Client
from semel.client.sync_driver import Stop
from semel.client.values import Message
from semel.pipeline.evaluate import (
    Call,
    Evaluation,
    InputMessage,
    arrow_batch_of,
    evaluate,
    passing,
)
from semel.pipeline.executor import Loop, ProcessorRun, StepOutput, Work
from semel.pipeline.graph.graph import Graph
from semel.pipeline.graph.processors import FunctionKind, Role, kind_of
from semel.pipeline.local.committing import CommitProtocol, LocalCommitter
from semel.pipeline.local.inputs import STEP_MESSAGES_MAX

_USE_SPARK: Final = "run it with --engine spark"


class LocalEngine:
    """Carries out steps on the thread of the processor."""

    reads_ahead = True
    step_messages_max = STEP_MESSAGES_MAX

    def complaints(self, graph: Graph) -> Sequence[str]:
        """Return what requires Spark, or Arrow if it is not installed."""
        complaints = []
        for one in graph.processors:
            kind = kind_of(one)
            if one.stateful:
                complaints.append(f"{one.id}: a stateful processor requires Spark; {_USE_SPARK}")
            elif kind is FunctionKind.DATAFRAME:
                complaints.append(f"{one.id}: a DataFrame function requires Spark; {_USE_SPARK}")
            elif kind is FunctionKind.ARROW and find_spec("pyarrow") is None:
                complaints.append(
                    f"{one.id}: a function of RecordBatches requires pyarrow; run: pip install"
                    " pyarrow"
                )
        return complaints

    def commits(self, client: Client, name: str, stop: Stop) -> CommitProtocol:
        """Return a committer that uses a producer."""
        return LocalCommitter(client, name, stop)

    def run(self, work: Work) -> StepOutput:
        """Call the function for each message, or once for all of them."""
        messages = work.messages()
        calls = calls_of(work.evaluation, messages)
        read = sum(map(len, messages.values()))
        if work.processor.role is Role.SINK:
            deliver(work, calls)
            return StepOutput(read=read)
        appends: dict[str, list[bytes]] = {}
        for path, raw in evaluate(work.evaluation, calls):
            appends.setdefault(path, []).append(raw)
        written = {path: len(values) for path, values in appends.items()}
        return StepOutput(appends, read=read, written=written)

    def query(self, running: ProcessorRun) -> Loop:
        """Raise AssertionError: `complaints` refuses stateful processors."""
        raise AssertionError(running.processor.id)

    def close(self) -> None:
        """Do nothing: there are no resources."""


def calls_of(evaluation: Evaluation, messages: Mapping[str, Sequence[Message]]) -> Sequence[Call]:
    """Group messages into calls of the function.

    For a join, the i-th of every input. Otherwise one by one, in the order of the bindings.
    """
    inputs = [
        [_input(binding, evaluation.inputs[binding], message) for message in batch]
        for binding, batch in messages.items()
    ]
    if evaluation.is_join:
        return list(zip(*inputs, strict=True))
    return [(message,) for message in chain.from_iterable(inputs)]


def _input(binding: str, path: str, message: Message) -> InputMessage:
    assert isinstance(message.ordinal, int), "semel sends the offset of each message"
    return InputMessage(binding, path, message.ordinal, message.raw)


def deliver(work: Work, calls: Sequence[Call]) -> None:
    """Call a sink with the messages that pass, by binding if it has several inputs.

    It is not called if none passes.
    """
    evaluation = work.evaluation
    by_binding: dict[str, list[Any]] = {binding: [] for binding in evaluation.inputs}
    for call in calls:
        for binding, value in (passing(evaluation, call) or {}).items():
            by_binding[binding].append(value)
    if not any(by_binding.values()):
        return
    values: dict[str, Any] = dict(by_binding)
    if evaluation.kind is FunctionKind.ARROW:
        values = {name: arrow_batch_of(batch) for name, batch in by_binding.items()}
    is_one = work.processor.in_.is_one
    work.processor.function(next(iter(values.values())) if is_one else values, work.delivery)
