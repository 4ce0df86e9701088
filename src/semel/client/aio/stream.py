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
    """A stream of a server. The attribute `calls` is internal."""

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

        Raises StreamExists if the stream exists, unless `exist_ok`, and ConfigConflict if it exists
        with another configuration. The stream is deleted after `ttl` seconds without use, or at
        `expires_at`. `closed`: no messages can be appended to it.
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
        """Create a fork at `path` and return it. It shares the messages of this stream.

        It shares the messages before `offset`, by default all. `sub_offset`: it also shares that
        many messages of the next append in a JSON stream, or bytes of it in any other stream.
        """
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
        """Return the state of the stream. Raises StreamNotFound or StreamGone."""
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

        In a JSON stream the value is encoded as JSON; bytes must be JSON already. In any other
        stream the value must be bytes, or str if the stream contains text.

        With an `idempotency_key` the message is stored once, even if the request is sent several
        times. So the request is retried if no response comes; without a key, Indeterminate may be
        raised. `if_match`: store the message only if this offset is the tail. `seq`: store it only
        if this string is greater than the last one. `close`: close the stream after the message.
        `key`, `headers` and `timestamp` are stored with the message.
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
        """Close the stream permanently. Append `value` as the last message if it is not None."""
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
        """Read from an offset up to the present tail, at most `limit` messages.

        Messages that are not committed are not read, unless `isolation` is "read_uncommitted".
        `timeout` applies to each request; one request reads about 1 MiB.
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
        """Return all messages from an offset up to the tail, concatenated; not for JSON streams."""
        return join_messages([message async for message in self.read(offset, timeout=timeout)])

    async def read_text(self, offset: str = START, *, timeout: Timeout = CLIENT_DEFAULT) -> str:
        """Return all messages from an offset up to the tail as one str, for a stream of text."""
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

        The offset `now` is the tail when reading begins. With `Client` that is in this call, with
        `AsyncClient` when the block is entered or the first message is requested. The first
        response must come within `timeout`. After that, the iterator waits for a server that is
        unreachable, and no message is skipped or repeated. `live` is `long-poll`, `sse` or `auto`.
        `auto` is long-poll, because its responses have the offset of each message. Messages that
        are not committed are not read, unless `isolation` is "read_uncommitted".

        With a `group`, reading begins at the group's position, or at `offset` if the group was
        never moved in this stream. Reading does not move the position. `await message.commit()`
        moves it to the offset after the message. So does the commit of a transaction with
        `await txn.commit_message(message)`. If a transaction of another worker may still move the
        position, reading begins when that transaction has ended, or after 5 seconds or half the
        `timeout`, whichever is less.

        If a worker passes a `producer_id` to its transactions, it should pass the same one here.
        Then transactions of its older instances are aborted first, and there is no need to wait for
        them.
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

        `id` identifies the producer across restarts. The default is the environment variable
        `PRODUCER_ID`, or the host name and process id if it is not set. The options are those of
        `ProducerOptions`. A `Producer` contacts the server in this call, which may raise
        StreamNotFound. An `AsyncProducer` contacts it when it is entered or opened, or with the
        first message.
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

        With mode="sparse", `seq` may be a range such as "3-5".
        """
        return await self.client.run(
            server_calls.explain_append(
                self.calls, producer_id, seq, epoch=epoch, session=session, mode=mode
            ),
            timeout,
        )

    async def forget_producer(self, producer_id: str, *, timeout: Timeout = CLIENT_DEFAULT) -> None:
        """Remove what the stream stores about a producer. Its sequences start again at 0."""
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
        """Return the positions by stream, without streams in which the group was never moved.

        This call does not wait for pending transactions. It does not change the positions from
        which tails of this client move the group.
        """
        return await self._client.run(group_calls.positions(self._client.site, self.name), timeout)

    async def set(self, moves: Moves, *, timeout: Timeout = CLIENT_DEFAULT) -> dict[str, str]:
        """Move the group in all of these streams, or in none, and return the new positions.

        A move is an offset, or has a condition: (from, to), (from, to, incarnation) or
        (from, to, incarnation, version). Raises PositionConflict if the condition does not hold.
        After a move without a condition, no client can commit a message that it has read before.
        """
        return await self._client.run(
            group_calls.set_known(self._client.site, self.name, moves, self._client.positions),
            timeout,
        )

    async def pin(self, step: PinnedStep, *, timeout: Timeout = CLIENT_DEFAULT) -> PinnedStep:
        """Pin the next step and return the pinned step: the first one sent with this number."""
        return await self._client.run(group_calls.pin(self._client.site, self.name, step), timeout)

    async def snapshot(self, *, timeout: Timeout = CLIENT_DEFAULT) -> PinnedStep | None:
        """Return the step that the group has pinned; None if it has never pinned one."""
        return await self._client.run(group_calls.snapshot(self._client.site, self.name), timeout)


class AsyncMessageCommitter:
    """The callable that `message.commit()` uses. It moves a group for one message at a time."""

    def __init__(self, client: "AsyncClient", cursor: group_calls.GroupCursor) -> None:
        self._client = client
        self.cursor = cursor
        self._lock = AsyncLock()

    async def __call__(self, message: Message) -> None:
        async with self._lock:
            await self._client.run(self.cursor.move(message))
