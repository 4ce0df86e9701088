"""What a client does in one step over many streams: transactions, commits, groups, processing."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from semel.client import commit_calls, txn_calls
from semel.client.commit_calls import CommitId, KnownStreams, Parts, SinkInfo
from semel.client.flows import Flow
from semel.client.group import Group
from semel.client.group_calls import STABLE_SECONDS_MAX, GroupReading
from semel.client.positions import KnownPositions
from semel.client.processing import InputBatch, Outputs, ProcessLoop, ProducerPool, check_owner
from semel.client.server_calls import register_producer
from semel.client.sink import Sink
from semel.client.stream_calls import ServerConfig
from semel.client.sync_driver import SyncDriver
from semel.client.transaction import Transaction
from semel.client.transport import random_id
from semel.client.txn_calls import TransactionCalls, Unresolved
from semel.client.txn_values import KIND_INLINE, CommitResult, Moves, Offset, TransactionStatus
from semel.client.values import Registration

T = TypeVar("T")


class Transacting:
    """The part of `Client` that is about many streams at once."""

    def __init__(self, site: ServerConfig, driver: SyncDriver, timeout: float) -> None:
        self.site = site
        self.driver = driver
        self.timeout = timeout
        self._known = KnownStreams(site)
        self._identities = ProducerPool()
        self._undecided: Unresolved = {}
        self.positions = KnownPositions()
        self._registering = threading.Lock()  # two at once would fence one another

    def run(self, flow: Flow[T], timeout: float | None = None) -> T:
        """Carry out a flow within `timeout`, or that of the client."""
        return self.driver.run(flow, self.timeout if timeout is None else timeout)

    def transaction(
        self,
        id: str | None = None,
        *,
        producer_id: str | None = None,
        producer_epoch: int | None = None,
        kind: str = KIND_INLINE,
        timeout: float = 60.0,
        streams: Iterable[str] = (),
    ) -> Transaction:
        """Make a transaction, begun by its `with` block: committed at the end, or aborted.

        `timeout`: seconds after which the server aborts it. `streams`: those it may write to;
        without, any. `producer_id` names this instance: the first transaction of a client under
        it fences off older instances, and aborts theirs. With `producer_epoch` the caller counts
        the instances. Without both, ids of the server's are used. `kind`: "staged" keeps the
        messages aside until the commit, and no reader ever waits for them.
        """
        owner = check_owner(producer_id, producer_epoch)
        identities = self._identities
        return Transaction(
            self.driver,
            TransactionCalls(
                self.site,
                id or random_id(),
                kind,
                timeout,
                self._undecided,
                self.positions,
            ),
            self._known,
            tuple(streams),
            take=lambda: owner or self.registered(producer_id),
            give_back=lambda used: None if owner else identities.give_back(producer_id, used),
            call_timeout=self.timeout,
        )

    def transaction_status(self, token: str, *, timeout: float | None = None) -> TransactionStatus:
        """Ask what became of a transaction, by its token, or of the newest one of an id."""
        return self.run(txn_calls.status(self.site, token), timeout)

    def commit_prepared(self, token: str, *, timeout: float | None = None) -> CommitResult:
        """Commit a prepared transaction, whoever has prepared it; again if it is done."""
        return self.run(
            txn_calls.end_transaction_call(self.site, token, "commit", self._undecided), timeout
        )

    def abort_prepared(self, token: str, *, timeout: float | None = None) -> None:
        """Abort a prepared transaction, whoever has prepared it; again if it is done."""
        self.run(
            txn_calls.end_transaction_call(self.site, token, "abort", self._undecided), timeout
        )

    def commit(
        self,
        *,
        producer_id: str,
        seq: int,
        epoch: int = 0,
        appends: Mapping[str, Iterable[Any]] | None = None,
        offsets: Mapping[str, Moves] | None = None,
        if_: Mapping[str, Offset] | None = None,
        transactions: Sequence[str] = (),
        timeout: float | None = None,
    ) -> CommitResult:
        """Append to many streams, move groups and check preconditions: all or nothing.

        It is done once for each `producer_id`, `epoch` and `seq`, which counts 0, 1, 2, ...; to
        repeat it, also after a crash, changes nothing and tells what was done (`duplicate`).
        `offsets`: group -> stream -> offset, as `commit_offsets` of a transaction takes them:
        `next_offset` of a message, or (from, to). PositionConflict if the group was moved since.
        `if_`: stream -> the offset where it must end. `transactions`: tokens of staged ones of this
        producer.
        """
        parts = Parts(appends or {}, offsets or {}, if_ or {}, transactions)
        mark = CommitId(producer_id, epoch, seq)
        flow = commit_calls.commit_known_parts(self._known, mark, parts, self.positions)
        result = self.run(flow, timeout)
        txn_calls.note_listed(self._undecided, transactions)
        return result

    def group(self, name: str) -> Group:
        """Name a group of readers; nothing is sent."""
        return Group(self.site, self.run, name, self.positions)

    def reading(self, group: str, timeout: float) -> GroupReading:
        """Return how messages are read for a group, within a time."""
        seconds_max = min(STABLE_SECONDS_MAX, timeout / 2)
        return GroupReading(self.site, group, self.positions, self._undecided, seconds_max)

    def sink(self, app: str) -> Sink:
        """Name a sink, which writes in versions; nothing is sent."""
        return Sink(self.site, self.run, self._known, app, self.positions)

    def sinks(self, *, timeout: float | None = None) -> list[SinkInfo]:
        """List the sinks."""
        return self.run(commit_calls.list_sink_infos(self.site), timeout)

    def process(
        self,
        group: str,
        inputs: str | Iterable[str],
        function: Callable[[InputBatch], Outputs | None],
        *,
        live: bool = True,
        max_messages: int = 1000,
        producer_id: str | None = None,
        timeout: float | None = None,
    ) -> int:
        """Make outputs of inputs, each input's effect exactly once, however often this is killed.

        `function` is given a batch of one input (`batch.stream`, and its messages) and returns
        lists of values by output stream, or None. They are stored together with the group's place
        in the input; if that fails, neither is. What the function does elsewhere may be done twice.

        It goes on until all inputs are closed and read, or, unless `live`, until their end as it
        is now; returns how many messages were processed. What `function` raises ends it, without a
        trace of that batch. A newer instance, of the same group and inputs or `producer_id`, ends
        it with TransactionFenced, any other that moves the group with PositionConflict.

        What is made of a batch must fit into one commit; if it does not, `function` is called again
        with half as many messages. TooLarge, if one message is too much.

        The first answers must come within `timeout`; after that, a server that is gone is waited
        for. Several inputs are asked in turn, up to four times a second when there is nothing new.
        """
        within = self.timeout if timeout is None else timeout
        processor = ProcessLoop(
            self.site,
            group,
            inputs,
            producer_id=producer_id,
            is_live=live,
            max_messages=max_messages,
            silence_seconds=within,
        )
        self.run(processor.begin(), within)
        count = 0
        while (batch := self.driver.run(processor.next_batch(), None)) is not None:
            if self.driver.run(processor.commit(batch, function(batch)), None):
                count += len(batch)
        return count

    def registered(self, producer_id: str | None) -> Registration:
        """Return the registration of a producer; the first one fences off older instances."""
        with self._registering:
            found = self._identities.take(producer_id)
            if found is None:
                new = self.run(register_producer(self.site, producer_id))
                found = self._identities.add(producer_id, new)
            return found
