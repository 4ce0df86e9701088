"""One stream of a server, by its path, and the groups that read streams."""

from collections.abc import AsyncIterator, Iterable
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Self, Unpack

from semel.client import group_calls, server_calls
from semel.client.async_driver import AsyncLock, AsyncTail
from semel.client.producer.async_producer import AsyncProducer
from semel.client.producer.opening import ProducerOptions, open_producer
from semel.client.reading import PageReader
from semel.client.requests import AppendHeaders, CreateHeaders
from semel.client.sse import live_reader
from semel.client.stream_calls import StreamCalls
from semel.client.transport import CLIENT_DEFAULT, Timeout, seconds_of
from semel.client.values import (
    READ_COMMITTED,
    START,
    Headers,
    Key,
    Message,
    Moves,
    PinnedStep,
    ProducerState,
    Receipt,
    StreamInfo,
    extras_of,
    join_messages,
)
from semel.model.messages import DEFAULT_MEDIA_TYPE

if TYPE_CHECKING:
    from semel.client.aio.client import AsyncClient


class AsyncStream:
    """A stream of a server. `calls`, its flows, are internal."""

    def __init__(self, client: "AsyncClient", path: str) -> None:
        self.client = client
        self.path = path
        self.calls = StreamCalls(client.site, path)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r})"

    # ---- the stream as a whole -------------------------------------------------------------------

    async def create(
        self,
        content_type: str = DEFAULT_MEDIA_TYPE,
        *,
        exist_ok: bool = False,
        ttl: int | timedelta | None = None,
        expires_at: datetime | None = None,
        closed: bool = False,
        body: Any = None,
        timeout: Timeout = CLIENT_DEFAULT,
    ) -> Self:
        """Create the stream, with `body` as its first message if that is not None.

        Raises StreamExists if it exists, unless `exist_ok`, and ConfigConflict if it exists with
        another configuration. After `ttl` seconds without a use it is deleted.
        """
        configuration = CreateHeaders(content_type, ttl, expires_at, closed)
        await self.client.run(self.calls.create(configuration, body, exist_ok=exist_ok), timeout)
        return self

    async def fork(
        self,
        path: str,
        *,
        offset: str | None = None,
        sub_offset: int | None = None,
        exist_ok: bool = False,
        ttl: int | timedelta | None = None,
        expires_at: datetime | None = None,
        closed: bool = False,
        timeout: Timeout = CLIENT_DEFAULT,
    ) -> "AsyncStream":
        """Create a stream that shares the messages of this one, up to `offset` or all of them."""
        fork = AsyncStream(self.client, path)
        configuration = CreateHeaders(
            ttl=ttl,
            expires_at=expires_at,
            is_closed=closed,
            forked_from=self.path,
            fork_offset=offset,
            fork_sub_offset=sub_offset,
        )
        await self.client.run(fork.calls.create(configuration, exist_ok=exist_ok), timeout)
        return fork

    async def head(self, *, timeout: Timeout = CLIENT_DEFAULT) -> StreamInfo:
        """Return the state of the stream. Raises StreamNotFound if it does not exist."""
        return await self.client.run(self.calls.head(), timeout)

    async def exists(self, *, timeout: Timeout = CLIENT_DEFAULT) -> bool:
        """Return whether the stream exists."""
        return await self.client.run(self.calls.exists(), timeout)

    async def delete(self, *, timeout: Timeout = CLIENT_DEFAULT) -> None:
        """Delete the stream. Its messages are kept as long as forks read them."""
        await self.client.run(self.calls.delete(), timeout)

    async def trim(self, before: str, *, timeout: Timeout = CLIENT_DEFAULT) -> None:
        """Drop the messages before an offset; only semel supports this."""
        await self.client.run(self.calls.trim(before), timeout)

    # ---- writing ---------------------------------------------------------------------------------

    async def append(
        self,
        value: Any,
        *,
        key: Key = None,
        headers: Headers = None,
        timestamp: datetime | None = None,
        seq: str | None = None,
        if_match: str | None = None,
        idempotency_key: str | None = None,
        close: bool = False,
        timeout: Timeout = CLIENT_DEFAULT,
    ) -> Receipt:
        """Append one message; it is durable when this returns.

        In a JSON stream the value is encoded, and bytes must be encoded JSON; in any other stream
        it must be bytes, or str where the stream holds text.

        With an `idempotency_key` the message is stored once, however often it is sent; so it is
        sent again if no response comes. Without one, a missing response is Indeterminate. With
        `if_match` it is stored only if that is the tail, with `seq` only if that is greater than
        the last one. `close` closes the stream after it. `key`, `headers` and `timestamp` are
        stored with the message.
        """
        return await self.append_many(
            [value],
            keys=None if key is None else [key],
            headers=None if headers is None else [headers],
            timestamps=None if timestamp is None else [timestamp],
            seq=seq,
            if_match=if_match,
            idempotency_key=idempotency_key,
            close=close,
            timeout=timeout,
        )

    async def append_many(
        self,
        values: Iterable[Any],
        *,
        keys: Iterable[Key] | None = None,
        headers: Iterable[Headers] | None = None,
        timestamps: Iterable[datetime | None] | None = None,
        seq: str | None = None,
        if_match: str | None = None,
        idempotency_key: str | None = None,
        close: bool = False,
        timeout: Timeout = CLIENT_DEFAULT,
    ) -> Receipt:
        """Append messages, all or none of them; the options are those of `append`.

        `keys`, `headers` and `timestamps` have one element for each value.
        """
        extras = extras_of(keys, headers, timestamps)
        conditions = AppendHeaders(seq, if_match, idempotency_key, close)
        return await self.client.run(self.calls.append(list(values), conditions, extras), timeout)

    async def close(self, value: Any = None, *, timeout: Timeout = CLIENT_DEFAULT) -> Receipt:
        """Close the stream for ever, after `value` as its last message if that is not None."""
        if value is not None:
            return await self.append(value, close=True, timeout=timeout)
        return await self.client.run(self.calls.close(), timeout)

    # ---- reading ---------------------------------------------------------------------------------

    async def read(
        self,
        offset: str = START,
        *,
        limit: int | None = None,
        isolation: str = READ_COMMITTED,
        timeout: Timeout = CLIENT_DEFAULT,
    ) -> AsyncIterator[Message]:
        """Read from an offset to the present tail, at most `limit` messages.

        Messages that are not committed are not read, unless `isolation` is "read_uncommitted".
        `timeout` is for each request, of which there is one for about 1 MiB.
        """
        reader = PageReader(self.calls, offset, is_live=False, isolation=isolation)
        reader.source = self.client.positions.read_position(self.path, offset)
        while (page := await self.client.run(reader.next_page(), timeout)) is not None:
            if limit is not None:
                page, limit = page[:limit], limit - len(page)
            for message in page:
                yield message
            if limit is not None and limit <= 0:
                return

    async def read_bytes(self, offset: str = START, *, timeout: Timeout = CLIENT_DEFAULT) -> bytes:
        """Read a stream of bytes or text to its tail and return all of it."""
        return join_messages([message async for message in self.read(offset, timeout=timeout)])

    async def read_text(self, offset: str = START, *, timeout: Timeout = CLIENT_DEFAULT) -> str:
        """Read a stream of text to its tail and return all of it."""
        return (await self.read_bytes(offset, timeout=timeout)).decode()

    def tail(
        self,
        offset: str = START,
        *,
        live: str = "auto",
        group: str | None = None,
        producer_id: str | None = None,
        isolation: str = READ_COMMITTED,
        timeout: Timeout = CLIENT_DEFAULT,
    ) -> AsyncTail:
        """Read from an offset, then wait for new messages, until the stream is closed.

        `now` is the tail when reading begins: with `Client` in this call, with `AsyncClient` when
        the block is entered or the first message is requested. The first response must come within
        `timeout`; after that it waits for a server that is unreachable, and no message is skipped
        or repeated. `live` is `long-poll`, `sse`, or `auto`, which is long-poll, because its
        responses have the offset of each message.

        With a `group` it begins at the group's position, or at `offset` if that was never moved.
        `await message.commit()` moves the position after a message; so does the commit of a
        transaction with `await txn.commit_message(message)`. Nothing else moves it. If a
        transaction of another worker may still move it, this waits for that transaction, up to 5
        seconds and half the `timeout`. A worker that passes a `producer_id` to its transactions
        passes it here too: then transactions of its older instances are aborted first, and need no
        waiting. Messages that are not committed are not read, unless `isolation` is
        "read_uncommitted".
        """
        client, seconds = self.client, seconds_of(timeout, self.client.timeout)
        if group is None:
            reader = live_reader(self.calls, offset, live, isolation=isolation)
            reader.source = client.positions.read_position(self.path, offset)
            return AsyncTail(client.driver, reader, seconds)
        cursor = group_calls.GroupCursor(
            client.site,
            group,
            self.path,
            client.positions,
            client.unresolved,
            min(group_calls.STABLE_SECONDS_MAX, seconds / 2),
        )
        on_commit = AsyncMessageCommitter(client, cursor)
        reader = group_calls.GroupReader(
            self.calls, offset, cursor, on_commit, live=live, isolation=isolation
        )
        register = None if producer_id is None else partial(client.registered, producer_id)
        return AsyncTail(client.driver, reader, seconds, register)

    # ---- producers -------------------------------------------------------------------------------

    def producer(self, id: str | None = None, **options: Unpack[ProducerOptions]) -> AsyncProducer:
        """Return a producer, which stores every message once and in order despite failures.

        `id` identifies it across restarts; the default is the environment variable `PRODUCER_ID`,
        or else the host and the process. The options are those of `ProducerOptions`. A `Producer`
        contacts the server in this call, and StreamNotFound is raised here; an `AsyncProducer` does
        when it is entered or opened, or with its first message.
        """
        client = self.client
        return client.close_with_client(
            AsyncProducer(
                id,
                client.transport,
                self.calls.target,
                options,
                ask=lambda settings: client.run(open_producer(self.calls, settings)),
                response_timeout=client.timeout,
            )
        )

    async def producers(
        self, producer_id: str | None = None, *, timeout: Timeout = CLIENT_DEFAULT
    ) -> list[ProducerState]:
        """Return what the server stores about the stream's producers, or about one of them."""
        return await self.client.run(server_calls.producers(self.calls, producer_id), timeout)

    async def explain(
        self,
        producer_id: str,
        seq: int | str,
        *,
        epoch: int | None = None,
        session: str | None = None,
        mode: str | None = None,
        timeout: Timeout = CLIENT_DEFAULT,
    ) -> dict[str, Any]:
        """Return what the outcome of an append with this sequence would be, and why.

        `seq` of a sparse producer may be a range such as "3-5", with mode="sparse".
        """
        return await self.client.run(
            server_calls.explain_append(
                self.calls, producer_id, seq, epoch=epoch, session=session, mode=mode
            ),
            timeout,
        )

    async def forget_producer(self, producer_id: str, *, timeout: Timeout = CLIENT_DEFAULT) -> None:
        """Remove a producer from the stream: its sequences start again at 0."""
        await self.client.run(server_calls.forget_producer(self.calls, producer_id), timeout)


# ---- groups --------------------------------------------------------------------------------------


class AsyncGroup:
    """A group of readers, with a position in each stream in which it was moved."""

    def __init__(self, client: "AsyncClient", name: str) -> None:
        self.name = name
        self._client = client

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    async def offsets(self, *, timeout: Timeout = CLIENT_DEFAULT) -> dict[str, str]:
        """Return the positions by stream, without streams where the group was never moved.

        This does not wait for transactions, and does not change which position a tail of this
        client sends with its commits.
        """
        return await self._client.run(group_calls.positions(self._client.site, self.name), timeout)

    async def set(self, moves: Moves, *, timeout: Timeout = CLIENT_DEFAULT) -> dict[str, str]:
        """Move positions by stream, all or none, and return the new ones.

        A move is an offset, without a condition: then no message that was read before can be
        committed any more, by this or any other client. Or it has a condition: (from, to),
        (from, to, incarnation) or (from, to, incarnation, version). Raises PositionConflict if the
        condition does not hold.
        """
        return await self._client.run(
            group_calls.set_known(self._client.site, self.name, moves, self._client.positions),
            timeout,
        )

    async def pin(self, step: PinnedStep, *, timeout: Timeout = CLIENT_DEFAULT) -> PinnedStep:
        """Pin the next step and return the pinned one: the first that was sent with its number."""
        return await self._client.run(group_calls.pin(self._client.site, self.name, step), timeout)

    async def snapshot(self, *, timeout: Timeout = CLIENT_DEFAULT) -> PinnedStep | None:
        """Return the pinned step, or None if none was ever pinned."""
        return await self._client.run(group_calls.snapshot(self._client.site, self.name), timeout)


class AsyncMessageCommitter:
    """Moves a group after messages, one at a time: what `message.commit()` calls."""

    def __init__(self, client: "AsyncClient", cursor: group_calls.GroupCursor) -> None:
        self._client = client
        self.cursor = cursor
        self._lock = AsyncLock()

    async def __call__(self, message: Message) -> None:
        async with self._lock:
            await self._client.run(self.cursor.move(message))
