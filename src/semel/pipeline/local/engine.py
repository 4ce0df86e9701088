"""The local engine. It calls functions in this process, with messages or with Arrow batches."""

from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, Final

from semel.client.commit_calls import CommitId, Parts, commit_parts
from semel.client.extras import Extras
from semel.client.flows import Flow
from semel.client.sync.client import Client
from semel.client.sync_driver import Stop
from semel.client.transport import random_id
from semel.client.txn_calls import TransactionCalls
from semel.client.values import (
    KIND_STAGED,
    CommitResult,
    Message,
    Registration,
)
from semel.model.limits import BATCH_MESSAGES_MAX, MIB
from semel.pipeline.error_stream import RETRIES, Call, InputMessage, call_again
from semel.pipeline.evaluate import (
    Evaluation,
    arrow_batch_of,
    calls_from,
    evaluate,
    passing,
)
from semel.pipeline.executor import (
    Appends,
    Committer,
    Loop,
    Moves,
    ProcessorRun,
    Record,
    StepOutput,
    Work,
)
from semel.pipeline.graph.graph import Graph
from semel.pipeline.graph.processors import FunctionKind, Processor, Role, kind_of
from semel.pipeline.local.inputs import STEP_MESSAGES_MAX
from semel.pipeline.values import Step

_USE_SPARK: Final = "run the graph with --engine spark"


class LocalEngine:
    """An engine that runs each step in this process, on the processor's thread."""

    reads_ahead = True
    step_messages_max = STEP_MESSAGES_MAX

    def complaints(self, graph: Graph) -> Sequence[str]:
        """Return a complaint for each processor that cannot run here.

        A processor cannot run if it requires Spark, or if it requires Arrow and Arrow is missing.
        """
        complaints = [(processor.id, _complaint(processor)) for processor in graph.processors]
        return [f"{id}: {complaint}" for id, complaint in complaints if complaint]

    def commits(self, client: Client, name: str, stop: Stop) -> Committer:
        """Return a committer that commits each step under the producer id `name`."""
        return LocalCommitter(client, name, stop)

    def run(self, work: Work) -> StepOutput:
        """Call the processor's function with the messages of a step, and return the output.

        A sink's function gets all messages in one call. So does a function that takes Arrow
        batches, but if this call fails, the function is called for each message. Any other function
        is always called for each message. In a join, such a call gets one message of each input.

        Raises MessageFailed if a call fails and the processor has no error stream. An exception
        from a sink's function is raised unchanged.
        """
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
        """Raise AssertionError, because `complaints` has already refused stateful processors."""
        raise AssertionError(running.processor.id)

    def close(self) -> None:
        """Do nothing, because this engine has no resources to release."""


def _complaint(processor: Processor) -> str | None:
    kind = kind_of(processor)
    if processor.stateful:
        return f"a stateful processor requires Spark; {_USE_SPARK}"
    if kind is FunctionKind.DATAFRAME:
        return f"a function that takes DataFrames requires Spark; {_USE_SPARK}"
    if kind is FunctionKind.ARROW and find_spec("pyarrow") is None:
        return "a function that takes RecordBatches requires pyarrow; run: pip install pyarrow"
    return None


def calls_of(evaluation: Evaluation, messages: Mapping[str, Sequence[Message]]) -> Sequence[Call]:
    """Return the calls to make to the function. `messages` maps each binding to its messages.

    The messages of the binding RETRIES are dead letters. Their calls are the last.
    """
    inputs = (
        [_input(binding, evaluation.inputs[binding], message) for message in batch]
        for binding, batch in messages.items()
        if binding != RETRIES
    )
    calls = calls_from(inputs, is_join=evaluation.is_join)
    retried = [_input(RETRIES, RETRIES, message) for message in messages.get(RETRIES, ())]
    return [*calls, *(call_again(evaluation.inputs, message) for message in retried)]


def _input(binding: str, path: str, message: Message) -> InputMessage:
    assert isinstance(message.ordinal, int), "a message from the server has no offset"
    return InputMessage(
        binding,
        path,
        message.ordinal,
        message.raw,
        incarnation=getattr(message.source, "incarnation", None),
        key=message.key,
        headers=message.headers,
        time_ms=message.written_ms if message.time_ms is None else message.time_ms,
    )


def deliver(work: Work, calls: Sequence[Call]) -> None:
    """Call a sink's function once, with all messages that pass the filters.

    If `in_` is a single stream, the function gets the messages. Otherwise the function gets a dict
    from each binding to its messages. If no message passes the filters, there is no call.
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
    work.processor.call(next(iter(values.values())) if is_one else values, work.delivery)


# ---- commits -------------------------------------------------------------------------------------


# Larger outputs are staged first, in chunks, because the size of a request is limited.
_INLINE_BYTES_MAX: Final = 2 * MIB
_CHUNK_BYTES_MAX: Final = 1_000_000
_STAGING_SECONDS: Final = 15 * 60.0


class LocalCommitter(Committer):
    """Commits each step with one request, under the producer's next sequence number.

    `begin` fences older instances of the processor. The server then aborts the transactions that
    those instances staged.
    """

    def commit(
        self,
        step: Step | None,
        appends: Appends,
        moves: Moves,
        *,
        transactions: Sequence[str] = (),
        record: Record | None = None,
    ) -> CommitResult:
        """Commit all arguments together. Stage the appends first if necessary.

        Appends are staged if they are too large for one request. The trace record is never staged.
        """
        if _is_large(appends):
            transactions = [self._stage(appends), *transactions]
            appends = {}
        return super().commit(step, appends, moves, transactions=transactions, record=record)

    def _flow(self, step: Step | None, parts: Parts) -> Flow[CommitResult]:
        del step  # the sequence of the producer identifies the commit, so `step` is not needed
        return commit_parts(
            self._known, CommitId(self.producer_id, self.epoch, self.version), parts
        )

    def _stage(self, appends: Appends) -> str:
        """Stage messages in a new transaction, and return the token of the transaction.

        While the server is unreachable, requests are retried without limit.
        """
        txn = TransactionCalls(self._known.site, random_id(), KIND_STAGED, _STAGING_SECONDS)
        self._run(txn.begin(Registration(self.producer_id, self.epoch), ()))
        for path, values in appends.items():
            for chunk in _chunks(values):
                self._run(txn.append(self._known.calls(path), chunk, Extras()))
        return txn.token


def _is_large(appends: Appends) -> bool:
    total = sum(len(value) + 1 for values in appends.values() for value in values)
    most = max((len(values) for values in appends.values()), default=0)
    return total > _INLINE_BYTES_MAX or most > BATCH_MESSAGES_MAX


def _chunks(values: Sequence[bytes]) -> Iterator[list[bytes]]:
    chunk: list[bytes] = []
    size = 0
    for value in values:
        if chunk and (size + len(value) > _CHUNK_BYTES_MAX or len(chunk) == BATCH_MESSAGES_MAX):
            yield chunk
            chunk, size = [], 0
        chunk.append(value)
        size += len(value) + 1
    if chunk:
        yield chunk
