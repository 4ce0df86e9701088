"""A client of one server. It gives access to streams, transactions, commits, groups and sinks."""

import ssl
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from types import TracebackType
from typing import Any, Self

from semel.client import commit_calls, server_calls, txn_calls
from semel.client.addresses import STREAM_PATH, Address, locate_stream, path_of
from semel.client.aio.access import AsyncAccess
from semel.client.aio.stream import AsyncGroup, AsyncStream
from semel.client.aio.transaction import AsyncSink, AsyncTransaction
from semel.client.appenders import AsyncAppender
from semel.client.async_driver import AsyncDriver, AsyncLock, AsyncStop
from semel.client.computed import AsyncFieldValue
from semel.client.credentials import chosen_token
from semel.client.errors import ClientError
from semel.client.flows import Flow, T
from semel.client.positions import KnownPositions
from semel.client.processing import (
    AsyncTransform,
    ProcessLoop,
    ProducerPool,
    async_transform,
    check_owner,
)
from semel.client.producer.async_producer import AsyncProducer
from semel.client.producer.facade import retire_seconds
from semel.client.producer.opening import OpenProducers
from semel.client.producer.settings import EXPIRES_SECONDS
from semel.client.stream_calls import ServerConfig
from semel.client.transport import (
    CLIENT_DEFAULT,
    CONNECT_SECONDS,
    TIMEOUT_SECONDS,
    Timeout,
    random_id,
    reset_in_child,
    seconds_of,
    transport_to,
)
from semel.client.values import (
    KIND_INLINE,
    CommitResult,
    Metadata,
    Moves,
    Offset,
    Policy,
    Registration,
    StreamEntry,
    TransactionStatus,
)


class AsyncClient:
    """A client of one server. It keeps connections open and reuses them.

    Several threads can share a `Client`. An `AsyncClient` can be used in one event loop at a time.

    Every call returns a result or raises a SemelError within `timeout` seconds. The error says
    whether the request was applied. With `timeout=None` there is no limit.

    A request is sent again only if that is safe, and at most `retries` times. With `retries=None`,
    only the timeout limits the retries.

    `token`, the values of `headers` and the values of `params` (query parameters) are str, or
    functions that return a str. A function is called for each request, also for each retry and each
    reconnection of a tail. With `AsyncClient` it can be a coroutine function. If it raises an
    exception, the call raises it. They are sent only to the server at `url`.

    Without `token`, the client uses the token in the environment variable SEMEL_TOKEN, if it is set
    and `headers` has no Authorization header. With `token=""` it sends none. If the server refuses
    the token of a function, the function is called again and the request is sent once more.

    `stream_path` is the path below which the server has its streams. Semel has them below
    `/v1/stream`.

    Appends to one stream that are made while a request is in flight are sent together in the next
    request. They are numbered, so that an append whose response is lost is sent again and stored
    once. With `retry_appends=False` they are not numbered, and such an append raises
    Indeterminate. This has no effect with another server than semel.

    `tls` is an ssl.SSLContext, or the path of a file with trusted certificates. With
    `gzip=True`, the client asks for compressed responses. This helps only on slow networks.

    Libraries that build on the client can use `url`, `timeout`, `run` and `run_until_stopped`. All
    other fields, and the method `registered`, are internal.
    """

    def __init__(
        self,
        url: str,
        *,
        token: AsyncFieldValue | None = None,
        headers: Mapping[str, AsyncFieldValue] | None = None,
        params: Mapping[str, AsyncFieldValue] | None = None,
        timeout: float | None = TIMEOUT_SECONDS,
        connect_timeout: float = CONNECT_SECONDS,
        retries: int | None = None,
        tls: ssl.SSLContext | str | None = None,
        gzip: bool = False,
        stream_path: str = STREAM_PATH,
        retry_appends: bool = True,
    ) -> None:
        self.timeout = seconds_of(timeout, TIMEOUT_SECONDS)
        token = chosen_token(token, headers)
        self.transport = transport_to(
            url,
            token=token,
            headers=headers,
            params=params,
            timeout=self.timeout,
            connect_timeout=connect_timeout,
            tls=tls,
            stream_path=stream_path,
        )
        # These make the clients of other servers, without and with this client's credentials.
        stranger = partial(
            AsyncClient,
            token="",
            timeout=timeout,
            connect_timeout=connect_timeout,
            retries=retries,
            tls=tls,
            gzip=gzip,
            retry_appends=retry_appends,
        )
        own = partial(stranger, token=token or "", headers=headers, params=params)
        self._client_types = {False: stranger, True: own}
        self._others: dict[Address, AsyncClient] = {}
        self.site = ServerConfig(self.transport.address, retries, gzip)
        self.driver = AsyncDriver(self.transport)
        self.appender = AsyncAppender(self.driver, random_id, is_retrying=retry_appends)
        self.known_streams = commit_calls.KnownStreams(self.site)
        self.positions = KnownPositions()
        # The transactions that this client has begun and that have not ended.
        self.unresolved: txn_calls.Unresolved = {}
        self.pool = ProducerPool()
        self._registering = AsyncLock()  # concurrent registrations would fence each other
        self._producers: OpenProducers[AsyncProducer] = OpenProducers()
        reset_in_child(self)

    def _after_fork(self) -> None:
        """Forget what belongs to the parent: its registrations, transactions and producers."""
        self.pool, self.unresolved, self._producers = ProducerPool(), {}, OpenProducers()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self.close()
        except ClientError:
            if error is None:  # otherwise the exception that the block has raised is reported
                raise

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    @property
    def url(self) -> str:
        """The address of the server."""
        return self.transport.address.url

    @property
    def access(self) -> AsyncAccess:
        """The calls about tokens and owners."""
        return AsyncAccess(self)

    async def close(self, timeout: Timeout = CLIENT_DEFAULT) -> None:
        """Wait until appends and the messages of producers are stored, then close the client.

        Raises Indeterminate if some messages of producers are not stored within `timeout`. The
        client does not send these messages again. Later calls raise ClientClosed.
        """
        deadline = time.monotonic() + seconds_of(timeout, self.timeout)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.driver.close)
            for other in self._others.values():
                stack.push_async_callback(other.close, timeout)
            stack.push_async_callback(self._retire_generated, deadline)
            for producer in self._producers.remove_all():
                stack.push_async_callback(producer.close_by, deadline)

    async def _retire_generated(self, deadline: float) -> None:
        """Send the appends that wait. Retire the producers that this client has generated.

        These are the producers of plain appends, and of transactions without a producer id.
        """
        entries = [*await self.appender.close(deadline), *self.pool.remove_idle()]
        with suppress(Exception):  # they expire by themselves, whatever fails here
            flow = server_calls.retire_producers(self.site, entries)
            await self.run(flow, retire_seconds(deadline))

    # ---- running flows ---------------------------------------------------------------------------

    async def run(self, flow: Flow[T], timeout: Timeout = CLIENT_DEFAULT) -> T:
        """Run a flow (the requests of one call). Raises a SemelError after `timeout` seconds."""
        return await self.driver.run(flow, seconds_of(timeout, self.timeout))

    async def run_until_stopped(
        self,
        flow: Flow[T],
        stop: AsyncStop,
        *,
        silence: Timeout = CLIENT_DEFAULT,
    ) -> T:
        """Run a flow (the requests of one call) without a deadline. Return the flow's result.

        The flow waits while the server is unreachable. A request counts as lost if no byte of its
        response comes for `silence` seconds. Once `stop` is set, the flow fails with Unavailable or
        Indeterminate.
        """
        silence_seconds = seconds_of(silence, self.timeout)
        return await self.driver.run(flow, stop=stop, silence_seconds=silence_seconds)

    # ---- streams, producers ----------------------------------------------------------------------

    def stream(self, path: str) -> AsyncStream:
        """Return the stream with this path or URL. Nothing is sent.

        A URL can be that of any stream of any Durable Streams server. The client's token, headers
        and parameters are sent only to the client's own server. If another server needs them,
        create a client for it. Raises ValueError for an invalid path or URL.

        If the URL is not below the server's `stream_path`, the stream has no path. Calls of semel
        that refer to a stream by its path then raise NotSupported or ValueError.
        """
        place = locate_stream(path, self.site.address)
        client = self if place.address == self.site.address else self._other(place.address)
        return AsyncStream(client, path if place.path is None else place.path, place)

    def _other(self, address: Address) -> "AsyncClient":
        """Return the client of another server. It is closed together with this client."""
        other = self._others.get(address)
        if other is None:
            client_type = self._client_types[address.origin == self.site.address.origin]
            client = client_type(address.url, stream_path=address.stream_path)
            other = self._others.setdefault(address, client)
        return other

    async def streams(
        self, prefix: str = "", *, after: str | None = None, timeout: Timeout = CLIENT_DEFAULT
    ) -> AsyncIterator[StreamEntry]:
        """Yield the streams whose paths begin with `prefix`, sorted by path.

        With `after`, yield only the streams after this path.
        """
        while True:
            page = await self.run(server_calls.list_streams(self.site, prefix, after), timeout)
            for entry in page.streams:
                yield entry
            if page.next is None:
                return
            after = page.next

    async def policies(self, *, timeout: Timeout = CLIENT_DEFAULT) -> list[Policy]:
        """Return all policies: what holds for every stream below a prefix, now and later."""
        return await self.run(server_calls.list_policies(self.site), timeout)

    async def policy(self, prefix: str, *, timeout: Timeout = CLIENT_DEFAULT) -> Policy:
        """Return the policy of a prefix. The prefix "" is the whole server.

        Raises PolicyNotFound if the prefix has no policy.
        """
        return await self.run(server_calls.show_policy(self.site, prefix), timeout)

    async def set_policy(
        self, prefix: str, *, dedup: bool, timeout: Timeout = CLIENT_DEFAULT
    ) -> Policy:
        """Set whether the streams below a prefix recognise duplicates, now and later.

        A prefix consists of whole segments: "orders" holds for the streams orders and orders/eu,
        but not for orders2. The prefix "" is the whole server. The policy with the longest prefix
        wins, and a stream's own setting wins over all. A stream that exists is switched by its next
        append outside transactions.
        """
        return await self.run(server_calls.set_policy(self.site, prefix, dedup=dedup), timeout)

    async def delete_policy(self, prefix: str, *, timeout: Timeout = CLIENT_DEFAULT) -> None:
        """Delete the policy of a prefix. Raises PolicyNotFound if the prefix has no policy."""
        await self.run(server_calls.delete_policy(self.site, prefix), timeout)

    async def health(self, *, timeout: Timeout = CLIENT_DEFAULT) -> dict[str, Any]:
        """Return the health report. Its `status` is "full" if the disk is full, otherwise "ok"."""
        return await self.run(server_calls.health(self.site), timeout)

    async def register_producer(
        self, id: str | None = None, *, timeout: Timeout = CLIENT_DEFAULT
    ) -> Registration:
        """Register a producer, fence its older instances, and return its id and new epoch.

        If `id` is None, the server generates an id.
        """
        return await self.run(server_calls.register_producer(self.site, id), timeout)

    async def registered(self, producer_id: str | None, *, is_new: bool = False) -> Registration:
        """Return this client's registration of a producer. The first call registers the producer.

        If `producer_id` is None, the producer has an id that the server generated. This can be the
        id of an earlier transaction, but only if that transaction has ended and not `is_new`.
        """
        async with self._registering:
            known = None if is_new else self.pool.take(producer_id)
            if known is not None:
                return known
            expires = EXPIRES_SECONDS if producer_id is None else None
            flow = server_calls.register_producer(self.site, producer_id, expires)
            return self.pool.add(producer_id, await self.run(flow))

    def close_with_client(self, producer: AsyncProducer) -> AsyncProducer:
        """Make the client's `close` also close `producer`. Return the producer."""
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
        streams: Iterable[str | AsyncStream] = (),
    ) -> AsyncTransaction:
        """Return a transaction. An `async with` block begins it, and commits or aborts it.

        The default `id` is random. The server aborts the transaction if it is open for more than
        `timeout` seconds. `streams` lists the streams that the transaction can write to. By
        default, it can write to any stream.

        `producer_id` identifies the producer. The client's first transaction of this producer
        fences the producer's older instances and aborts their transactions. By default, the server
        generates a `producer_id`, and removes it when the client is closed, or after a day in which
        it is not used. To choose the epoch yourself, pass `producer_epoch`.

        With kind="staged", messages get their offsets at the commit, so that readers of the streams
        need not wait for the end of the transaction.
        """
        return AsyncTransaction(
            self,
            txn_calls.TransactionCalls(
                self.site, id or None, kind, timeout, self.unresolved, self.positions
            ),
            tuple(path_of(stream, self.site.address) for stream in streams),
            producer_id=producer_id,
            registration=check_owner(producer_id, producer_epoch),
        )

    async def transaction_status(
        self, token: str, *, timeout: Timeout = CLIENT_DEFAULT
    ) -> TransactionStatus:
        """Return the status of a transaction. `token` is the transaction's token or its id.

        If `token` is an id, return the status of the newest transaction with this id.
        """
        return await self.run(txn_calls.status(self.site, token), timeout)

    async def commit_prepared(
        self, token: str, *, timeout: Timeout = CLIENT_DEFAULT
    ) -> CommitResult:
        """Commit a prepared transaction. Any client can do this.

        A repeated call returns the same result.
        """
        return await self.run(
            txn_calls.end_transaction_call(self.site, token, "commit", self.unresolved), timeout
        )

    async def abort_prepared(self, token: str, *, timeout: Timeout = CLIENT_DEFAULT) -> None:
        """Abort a prepared transaction. Any client can do this.

        A repeated call changes nothing.
        """
        await self.run(
            txn_calls.end_transaction_call(self.site, token, "abort", self.unresolved), timeout
        )

    async def commit(
        self,
        *,
        producer_id: str,
        seq: int,
        epoch: int = 0,
        appends: Mapping[str, Iterable[Any]] | None = None,
        offsets: Mapping[str, Moves] | None = None,
        if_: Mapping[str, Offset] | None = None,
        transactions: Sequence[str] = (),
        metadata: Mapping[str, Mapping[str, Metadata]] | None = None,
        timeout: Timeout = CLIENT_DEFAULT,
    ) -> CommitResult:
        """Append to streams and set the positions of groups, in one commit: all or nothing.

        `producer_id`, `epoch` and `seq` identify the commit. `seq` counts 0, 1, 2, and so on. A
        repeated call changes nothing, even after a crash. It returns the first result, with
        `duplicate` set.

        `appends` maps each stream to its values. `offsets` has the form {group: {stream: move}}.
        A move is a pair (from, to) or a message's `next_offset`. For a pair, PositionConflict is
        raised if the group is not at `from`. For a `next_offset`, PositionConflict is raised if
        another client or reader has changed the position since the message's reader was opened.
        `metadata` has the form {group: {stream: {name: value}}}. It is stored with the positions.

        `if_` maps streams to expected tails. Raises PreconditionFailed if a tail is different.
        `transactions` lists tokens of this producer's staged transactions, to commit them as well.
        """
        flow = commit_calls.commit_known_parts(
            self.known_streams,
            commit_calls.CommitId(producer_id, epoch, seq),
            commit_calls.Parts(
                appends or {}, offsets or {}, if_ or {}, transactions, metadata or {}
            ),
            self.positions,
        )
        result = await self.run(flow, timeout)
        txn_calls.note_listed(self.unresolved, transactions)
        return result

    # ---- groups, sinks, processing ---------------------------------------------------------------

    def group(self, name: str) -> AsyncGroup:
        """Return the group with the name `name`. Nothing is sent."""
        return AsyncGroup(self, name)

    def sink(self, app: str) -> AsyncSink:
        """Return the sink of the application `app`. Nothing is sent.

        The sink commits each numbered version of the application's output once.
        """
        return AsyncSink(self, app)

    async def sinks(self, *, timeout: Timeout = CLIENT_DEFAULT) -> list[commit_calls.SinkInfo]:
        """Return what the server stores about all sinks."""
        return await self.run(commit_calls.list_sink_infos(self.site), timeout)

    async def process(
        self,
        group: str,
        inputs: str | AsyncStream | Iterable[str | AsyncStream],
        function: AsyncTransform,
        *,
        live: bool = True,
        max_messages: int = 1000,
        producer_id: str | None = None,
        timeout: Timeout = CLIENT_DEFAULT,
    ) -> int:
        """Read input streams, transform the messages and store the outputs, exactly once.

        `function` is called with a batch of messages from one input, `batch.stream`. It returns
        None, or a mapping from output streams to lists of values. With `AsyncClient` it can be a
        coroutine function. If it raises an exception, this call raises it and stores nothing for
        the batch.

        The outputs and the group's new position are stored in one commit. If the outputs do not fit
        into one commit, `function` is called again with half as many messages. Effects of
        `function` other than its outputs can happen more than once.

        Return the number of processed messages when all inputs are closed and read to the end. With
        live=False, return when the present tails are reached.

        Raises TooLarge if the outputs of one message do not fit into a commit. Raises
        PositionConflict if another client changes the group's position. Raises TransactionFenced if
        a newer instance with the same `producer_id` has begun. The default `producer_id` is derived
        from the group and the inputs.

        `timeout` limits only the requests before the first batch is read. After that, the call
        waits while the server is unreachable.
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
        await self.run(loop.begin(), seconds)
        count = 0
        while (batch := await self.run(loop.next_batch(), None)) is not None:
            outputs = await async_transform(function, batch)
            if await self.run(loop.commit(batch, outputs), None):
                count += len(batch)
        return count
