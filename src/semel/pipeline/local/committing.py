"""The commit of a step: its outputs, its positions and its trace record, all or nothing."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

from msgspec.structs import replace

from semel.client.commit_calls import CommitId, KnownStreams, Parts, commit_parts
from semel.client.flows import Flow
from semel.client.server_calls import register_producer
from semel.client.sync.client import Client
from semel.client.sync_driver import Stop
from semel.client.transport import random_id
from semel.client.txn_calls import TransactionCalls
from semel.client.values import KIND_STAGED, CommitResult, Extras, Move, Registration
from semel.model.limits import BATCH_MESSAGES_MAX, MIB
from semel.pipeline.values import Step

# A request is limited to 4 MiB. Larger outputs are staged first, in chunks.
_INLINE_BYTES_MAX: Final = 2 * MIB
_SINGLE_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_CHUNK_BYTES_MAX: Final = 1_000_000
_STAGING_SECONDS: Final = 15 * 60.0


T = TypeVar("T")
Appends = Mapping[str, Sequence[bytes]]
Moves = Mapping[str, Mapping[str, Move]]  # by group and stream
Record = tuple[str, Any]  # a stream, and a message for it


class CommitProtocol(Protocol):
    """Commits the steps of one processor; `producer_id` and `epoch` own the commits."""

    @property
    def producer_id(self) -> str:
        """The owner of the commits: `<graph>/<processor>`."""

    @property
    def epoch(self) -> int:
        """The number of this instance of the processor."""

    @property
    def version(self) -> int:
        """The number of the next commit."""

    def begin(self) -> None:
        """Fence older instances."""

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

        An at-most-once step is committed twice: first its moves, then its output.
        """


class LocalCommitter:
    """Commits the steps of one processor, each with the next sequence of its producer.

    `begin` registers the next epoch of the producer: older instances are fenced, and what they have
    staged is dropped.
    """

    def __init__(self, client: Client, name: str, stop: Stop) -> None:
        self.producer_id = name
        self._client = client
        self._stop = stop
        self._known = KnownStreams(replace(client.site, retries=None))
        self._next = CommitId(name, 0, 0)

    @property
    def epoch(self) -> int:
        return self._next.epoch

    @property
    def version(self) -> int:
        return self._next.seq

    def begin(self) -> None:
        registered = self._run(register_producer(self._client.site, self.producer_id))
        self._next = CommitId(registered.producer_id, registered.producer_epoch, 0)

    def commit(
        self,
        step: Step | None,
        appends: Appends,
        moves: Moves,
        *,
        transactions: Sequence[str] = (),
        record: Record | None = None,
    ) -> CommitResult:
        """Commit. Large appends are staged first; `record`, a message for the trace, never is."""
        del step  # commits are distinguished by the sequences of the producer
        if _is_large(appends) or _has_single_surrogate(appends):
            transactions = [self._stage(appends), *transactions]
            appends = {}
        parts = commit_parts_of(appends, moves, transactions, record)
        result = self._run(commit_parts(self._known, self._next, parts))
        self._next = replace(self._next, seq=self._next.seq + 1)
        return result

    def _stage(self, appends: Appends) -> str:
        """Stage messages and return the token; retry without limit if the server is unreachable."""
        txn = TransactionCalls(self._known.site, random_id(), KIND_STAGED, _STAGING_SECONDS)
        self._run(txn.begin(Registration(self.producer_id, self.epoch), ()))
        for path, values in appends.items():
            for chunk in _chunks(values):
                self._run(txn.append(self._known.calls(path), chunk, Extras()))
        return txn.token

    def _run(self, flow: Flow[T]) -> T:
        return self._client.run_until_stopped(flow, self._stop)


def commit_parts_of(
    appends: Appends, moves: Moves, transactions: Sequence[str], record: Record | None
) -> Parts:
    """Return the parts of one commit; `record` is appended to its stream after the appends."""
    streams: dict[str, Sequence[Any]] = dict(appends)
    if record is not None:
        streams[record[0]] = [record[1]]
    return Parts(streams, moves, transactions=transactions)


def _is_large(appends: Appends) -> bool:
    total = sum(len(value) + 1 for values in appends.values() for value in values)
    most = max((len(values) for values in appends.values()), default=0)
    return total > _INLINE_BYTES_MAX or most > BATCH_MESSAGES_MAX


def _has_single_surrogate(appends: Appends) -> bool:
    """Return whether a message has half a surrogate pair, which a commit document cannot have."""
    return any(_SINGLE_SURROGATE.search(raw) for values in appends.values() for raw in values)


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
