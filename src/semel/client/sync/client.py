# generated from semel/client/aio/client.py by `make facades`; do not edit
"""The client of one server: its streams, transactions, commits, groups and sinks."""

import ssl
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from types import TracebackType
from typing import Any, Self

from semel.client import commit_calls, server_calls, txn_calls
from semel.client.errors import ClientError
from semel.client.flows import Flow, T
from semel.client.positions import KnownPositions
from semel.client.processing import (
    ProcessLoop,
    ProducerPool,
    SyncTransform,
    check_owner,
    sync_transform,
)
from semel.client.producer.opening import OpenProducers
from semel.client.producer.sync_producer import Producer
from semel.client.stream_calls import ServerConfig
from semel.client.sync.stream import Group, Stream
from semel.client.sync.transaction import Sink, Transaction
from semel.client.sync_driver import Stop, SyncDriver, SyncLock
from semel.client.transport import (
    CLIENT_DEFAULT,
    CONNECT_SECONDS,
    TIMEOUT_SECONDS,
    Timeout,
    random_id,
    seconds_of,
    transport_to,
)
from semel.client.values import (
    KIND_INLINE,
    CommitResult,
    Moves,
    Offset,
    Registration,
    StreamEntry,
    TransactionStatus,
)


class Client:
    """A client of one server. It keeps connections open and reuses them.

    Threads may share a `Client`. An `AsyncClient` is for one event loop at a time.

    Every call ends within `timeout` seconds, with a result or with a SemelError that says whether
    anything was applied. With `timeout=None` there is no limit. `retries` is the maximum number of
    retries of a request, where a retry is safe; None means until the timeout. `tls` is an
    ssl.SSLContext, or the path of a file with certificates to trust. `gzip` requests compressed
    responses, which only helps on slow networks.

    `url`, `timeout`, `run` and `run_until_stopped` are public, for libraries built on the client.
    `site`, `known_streams`, `positions`, `unresolved`, `registered` and `pool` are internal:
    only packages of semel use them.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = TIMEOUT_SECONDS,
        connect_timeout: float = CONNECT_SECONDS,
        retries: int | None = None,
        tls: ssl.SSLContext | str | None = None,
        gzip: bool = False,
    ) -> None:
        self.timeout = seconds_of(timeout, TIMEOUT_SECONDS)
        self.transport = transport_to(
            url,
            token=token,
            headers=headers,
            timeout=self.timeout,
            connect_timeout=connect_timeout,
            tls=tls,
        )
        self.site = ServerConfig(self.transport.address, retries, gzip)
        self.driver = SyncDriver(self.transport)
        self.known_streams = commit_calls.KnownStreams(self.site)
        self.positions = KnownPositions()
        self.unresolved: txn_calls.Unresolved = {}  # begun by this client and not ended
        self.pool = ProducerPool()
        self._registering = SyncLock()  # concurrent registrations would fence each other
        self._producers: OpenProducers[Producer] = OpenProducers()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # An error of `close` must not replace an exception of the block.
        with nullcontext() if error is None else suppress(ClientError):
            self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    @property
    def url(self) -> str:
        """The address of the server."""
        return self.transport.address.url

    def close(self, timeout: Timeout = CLIENT_DEFAULT) -> None:
        """Wait until the producers have stored their messages; close them and all connections.

        Messages that are not stored within `timeout` are given up, and Indeterminate is raised.
        Calls after this raise ClientClosed.
        """
        deadline = time.monotonic() + seconds_of(timeout, self.timeout)
        with ExitStack() as stack:
            stack.callback(self.driver.close)
            for producer in self._producers.remove_all():
                stack.callback(producer.close_by, deadline)

    # ---- running flows ---------------------------------------------------------------------------

    def run(self, flow: Flow[T], timeout: Timeout = CLIENT_DEFAULT) -> T:
        """Run a flow and return its result. Raises a SemelError after `timeout` seconds."""
        return self.driver.run(flow, seconds_of(timeout, self.timeout))

    def run_until_stopped(
        self,
        flow: Flow[T],
        stop: Stop,
        *,
        silence: Timeout = CLIENT_DEFAULT,
    ) -> T:
        """Run a flow without a deadline and return its result, even if the server is unreachable.

        A request is sent again if no byte of a response comes for `silence` seconds: if the
        server's machine fails, no error is reported on the connection. Once `stop` is set, the flow
        fails with Unavailable or Indeterminate.
        """
        silence_seconds = seconds_of(silence, self.timeout)
        return self.driver.run(flow, stop=stop, silence_seconds=silence_seconds)

    # ---- streams, producers ----------------------------------------------------------------------

    def stream(self, path: str) -> Stream:
        """Return the stream with a path; nothing is sent. Raises ValueError for an invalid path."""
        return Stream(self, path)

    def streams(
        self, prefix: str = "", *, after: str | None = None, timeout: Timeout = CLIENT_DEFAULT
    ) -> Iterator[StreamEntry]:
        """List the streams whose paths begin with `prefix`, in order of their paths."""
        while True:
            page = self.run(server_calls.list_streams(self.site, prefix, after), timeout)
            yield from page.streams
            if page.next is None:
                return
            after = page.next

    def health(self, *, timeout: Timeout = CLIENT_DEFAULT) -> dict[str, Any]:
        """Return what the server reports about its state."""
        return self.run(server_calls.health(self.site), timeout)

    def register_producer(
        self, id: str | None = None, *, timeout: Timeout = CLIENT_DEFAULT
    ) -> Registration:
        """Get a new producer id, or the next epoch of `id`, which fences its older instances."""
        return self.run(server_calls.register_producer(self.site, id), timeout)

    def registered(self, producer_id: str | None) -> Registration:
        """Return this client's registration of a producer. The first call registers it.

        Without an id, the server generates one, which only one transaction uses at a time.
        """
        with self._registering:
            return self.pool.take(producer_id) or self.pool.add(
                producer_id, self.register_producer(producer_id)
            )

    def close_with_client(self, producer: Producer) -> Producer:
        """Add a producer to those that `close` closes, and return it."""
        self._producers.add(producer)
        return producer

    # ---- transactions ----------------------------------------------------------------------------

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
        """Return a transaction. Its `with` block begins it, and commits or aborts it.

        `timeout`: the server aborts the transaction if it is open for that many seconds. `streams`:
        the streams it may write to; by default any stream. `producer_id` identifies the producer:
        the first transaction of a client with this id fences older instances, and aborts their
        transactions. With `producer_epoch` the caller counts the instances itself. Without an id,
        the server generates one. With kind="staged" the messages have no offsets before the commit,
        and no reader waits for them.
        """
        return Transaction(
            self,
            txn_calls.TransactionCalls(
                self.site, id or random_id(), kind, timeout, self.unresolved, self.positions
            ),
            tuple(streams),
            producer_id=producer_id,
            registration=check_owner(producer_id, producer_epoch),
        )

    def transaction_status(
        self, token: str, *, timeout: Timeout = CLIENT_DEFAULT
    ) -> TransactionStatus:
        """Return the status of the transaction with a token, or of the newest one with an id."""
        return self.run(txn_calls.status(self.site, token), timeout)

    def commit_prepared(self, token: str, *, timeout: Timeout = CLIENT_DEFAULT) -> CommitResult:
        """Commit a prepared transaction of any client. A repeat returns the same result."""
        return self.run(
            txn_calls.end_transaction_call(self.site, token, "commit", self.unresolved), timeout
        )

    def abort_prepared(self, token: str, *, timeout: Timeout = CLIENT_DEFAULT) -> None:
        """Abort a prepared transaction of any client. A repeat changes nothing."""
        self.run(
            txn_calls.end_transaction_call(self.site, token, "abort", self.unresolved), timeout
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
        timeout: Timeout = CLIENT_DEFAULT,
    ) -> CommitResult:
        """Append to several streams, move groups and check conditions: all or nothing.

        The commit is applied once for each `producer_id`, `epoch` and `seq`; `seq` counts 0, 1, 2,
        and so on. A repeat, even after a crash, changes nothing: it returns the first result, with
        `duplicate` set. `offsets` maps group -> stream -> offset, as for `commit_offsets` of a
        transaction: `next_offset` of a message, or (from, to). Raises PositionConflict if the group
        was moved since. `if_` maps a stream to the tail that it must have. `transactions` are
        tokens of staged transactions of this producer.
        """
        flow = commit_calls.commit_known_parts(
            self.known_streams,
            commit_calls.CommitId(producer_id, epoch, seq),
            commit_calls.Parts(appends or {}, offsets or {}, if_ or {}, transactions),
            self.positions,
        )
        result = self.run(flow, timeout)
        txn_calls.note_listed(self.unresolved, transactions)
        return result

    # ---- groups, sinks, processing ---------------------------------------------------------------

    def group(self, name: str) -> Group:
        """Return the group with a name; nothing is sent."""
        return Group(self, name)

    def sink(self, app: str) -> Sink:
        """Return the sink of an application that writes numbered versions; nothing is sent."""
        return Sink(self, app)

    def sinks(self, *, timeout: Timeout = CLIENT_DEFAULT) -> list[commit_calls.SinkInfo]:
        """Return all sinks."""
        return self.run(commit_calls.list_sink_infos(self.site), timeout)

    def process(
        self,
        group: str,
        inputs: str | Iterable[str],
        function: SyncTransform,
        *,
        live: bool = True,
        max_messages: int = 1000,
        producer_id: str | None = None,
        timeout: Timeout = CLIENT_DEFAULT,
    ) -> int:
        """Read input streams, transform the messages and store the outputs, exactly once.

        `function` gets a batch of messages of one input, `batch.stream`. It returns a mapping from
        output streams to lists of values, or None. With `AsyncClient` it may be a coroutine
        function. The values are stored together with the group's position in the input, or neither
        is stored. So each input message has its effect exactly once, even after restarts. Other
        effects of the function may happen twice.

        Return the number of processed messages when all inputs are closed and read to the end. With
        live=False, return it when the present tails are reached. An exception of `function` ends
        the call, and nothing of that batch is stored. Raises TransactionFenced if a newer instance
        has begun, with the same `producer_id`, or by default the same group and inputs. Raises
        PositionConflict if another client moves the group.

        The outputs of a batch must fit into one commit. If they do not, `function` is called again
        with half as many messages. Raises TooLarge if the outputs of one message do not fit.

        The first responses must come within `timeout`. After that, the call waits for a server that
        is unreachable. Several inputs are read in turn; at their tails, each is read up to four
        times a second.
        """
        seconds = seconds_of(timeout, self.timeout)
        loop = ProcessLoop(
            self.site,
            group,
            inputs,
            producer_id=producer_id,
            is_live=live,
            max_messages=max_messages,
            silence_seconds=seconds,
        )
        self.run(loop.begin(), seconds)
        count = 0
        while (batch := self.run(loop.next_batch(), None)) is not None:
            outputs = sync_transform(function, batch)
            if self.run(loop.commit(batch, outputs), None):
                count += len(batch)
        return count
