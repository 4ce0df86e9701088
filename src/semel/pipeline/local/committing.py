"""The one commit of a step: its outputs, its positions and its trace, all or nothing."""

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
from semel.client.txn_values import KIND_STAGED, CommitResult, Move
from semel.client.values import Extras, Registration
from semel.model.limits import BATCH_MESSAGES_MAX, MIB
from semel.pipeline.delivery import Step

# A request takes 4 MiB. What is larger together is staged first, piece by piece.
_INLINE_BYTES_MAX: Final = 2 * MIB
_HALF: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_CHUNK_BYTES_MAX: Final = 1_000_000
_STAGING_SECONDS: Final = 15 * 60.0


T = TypeVar("T")
Appends = Mapping[str, Sequence[bytes]]
Moves = Mapping[str, Mapping[str, Move]]  # by group and stream
Record = tuple[str, Any]  # a stream, and a message for it


class CommitProtocol(Protocol):
    """How the steps of one processor are committed; `producer_id` and `epoch` own them."""

    @property
    def producer_id(self) -> str:
        """Whose the commits are: `<graph>/<processor>`."""

    @property
    def epoch(self) -> int:
        """Which instance of the processor this is."""

    def begin(self) -> None:
        """Fence off an older instance."""

    def commit(
        self,
        step: Step | None,
        appends: Appends,
        moves: Moves,
        *,
        transactions: Sequence[str] = (),
        record: Record | None = None,
    ) -> CommitResult:
        """Apply all of it or nothing, once; `step` None: only a record for the trace.

        An at-most-once step is committed twice: first its moves, then what it has made.
        """


class LocalCommitter:
    """Commits the steps of one processor, each under the next number of its producer.

    To begin registers the producer anew: an older instance is refused from then on, and whatever
    it has staged is dropped.
    """

    def __init__(self, client: Client, name: str, stop: Stop) -> None:
        self.producer_id = name
        self._client = client
        self._stop = stop
        self._known = KnownStreams(replace(client.site, retries=None))
        self._mark = CommitId(name, 0, 0)

    @property
    def epoch(self) -> int:
        """Which instance of the processor this is."""
        return self._mark.epoch

    def begin(self) -> None:
        """Fence off an older instance."""
        found = self._run(register_producer(self._client.site, self.producer_id))
        self._mark = CommitId(found.producer_id, found.producer_epoch, 0)

    def commit(
        self,
        step: Step | None,
        appends: Appends,
        moves: Moves,
        *,
        transactions: Sequence[str] = (),
        record: Record | None = None,
    ) -> CommitResult:
        """Commit; `record` is a message for the trace, which is never staged."""
        del step  # the producer's own numbers tell commits apart
        staged: list[str] = list(transactions)
        if _is_large(appends) or _is_odd(appends):
            staged.insert(0, self._staged(appends))
            appends = {}
        small: dict[str, Sequence[Any]] = dict(appends)
        if record is not None:
            small[record[0]] = [record[1]]
        parts = Parts(small, moves, transactions=staged)
        flow = commit_parts(self._known, self._mark, parts)
        result = self._run(flow)
        self._mark = replace(self._mark, seq=self._mark.seq + 1)
        return result

    def _staged(self, appends: Appends) -> str:
        """Stage messages, and give the token; a server that is gone is waited for."""
        txn = TransactionCalls(self._known.site, random_id(), KIND_STAGED, _STAGING_SECONDS)
        self._run(txn.begin(Registration(self.producer_id, self.epoch), ()))
        for path, values in appends.items():
            for chunk in _chunks(values):
                self._run(txn.append(self._known.calls(path), chunk, Extras()))
        return txn.token

    def _run(self, flow: Flow[T]) -> T:
        return self._client.run_until_stopped(flow, self._stop)


def _is_large(appends: Appends) -> bool:
    total = sum(len(value) + 1 for values in appends.values() for value in values)
    most = max((len(values) for values in appends.values()), default=0)
    return total > _INLINE_BYTES_MAX or most > BATCH_MESSAGES_MAX


def _is_odd(appends: Appends) -> bool:
    """Whether a message has half a surrogate pair, which a document of many cannot carry."""
    return any(_HALF.search(value) for values in appends.values() for value in values)


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
