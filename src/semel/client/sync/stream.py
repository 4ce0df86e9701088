# generated from semel/client/aio/stream.py by `make facades`; do not edit
"""Streams: appending to them, reading them, and their producers."""

import time
from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Self, Unpack

from semel.client import group_calls, server_calls
from semel.client.addresses import StreamPlace
from semel.client.extras import Extras, Headers, Key, extras_of
from semel.client.pending_append import PendingAppend
from semel.client.producer.opening import ProducerOptions
from semel.client.producer.sync_producer import Producer
from semel.client.reading import PageReader, join_messages, join_text
from semel.client.requests import CLOSING, AppendHeaders, CreateHeaders, DedupSetting
from semel.client.sse import live_reader
from semel.client.stream_calls import NO_EXTRAS, StreamCalls
from semel.client.sync.group import MessageCommitter
from semel.client.sync_driver import Read, Tail
from semel.client.transport import CLIENT_DEFAULT, Timeout, seconds_of
from semel.client.values import (
    READ_COMMITTED,
    START,
    ProducerState,
    Receipt,
    RetiredEntry,
    StreamInfo,
)
from semel.model.messages import DEFAULT_MEDIA_TYPE

if TYPE_CHECKING:
    from semel.client.sync.client import Client


class Stream:
    """A stream on a server. The attribute `calls` is internal."""

    def __init__(self, client: "Client", path: str, place: StreamPlace | None = None) -> None:
        self.client = client
        self.path = path
        self.calls = StreamCalls(client.site, path, place)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r})"

    # ---- the stream as a whole -------------------------------------------------------------------

    def create(
        self,
        content_type: str = DEFAULT_MEDIA_TYPE,
        *,
        exist_ok: bool = False,
        ttl: int | timedelta | None = None,
        expires_at: datetime | None = None,
        closed: bool = False,
        body: Any = None,
        dedup: DedupSetting = None,
        timeout: Timeout = CLIENT_DEFAULT,
    ) -> Self:
        """Create the stream. If `body` is not None, it becomes the first message.

        The stream is deleted after `ttl` seconds without a read or a write, or at `expires_at`. If
        `closed`, the new stream is closed and accepts no appends. `dedup` is whether the stream
        recognises repeated appends. By default, the server's policies decide.

        Raises ConfigConflict if the stream exists with a different configuration. Raises
        StreamExists if it exists with the same configuration, unless `exist_ok`.
        """
        configuration = CreateHeaders(content_type, ttl, expires_at, closed, dedup=dedup)
        self.client.run(self.calls.create(configuration, body, exist_ok=exist_ok), timeout)
        return self

    def fork(
        self,
        path: str,
        *,
        offset: str | None = None,
        sub_offset: int | None = None,
        exist_ok: bool = False,
        ttl: int | timedelta | None = None,
        expires_at: datetime | None = None,
        closed: bool = False,
        dedup: DedupSetting = None,
        timeout: Timeout = CLIENT_DEFAULT,
    ) -> "Stream":
        """Create a fork of this stream at `path`, and return the fork.

        The fork shares the messages of this stream before `offset`. By default it shares all
        messages. With `sub_offset`, it also shares the first part of the append at `offset`: that
        many messages in a JSON stream, or that many bytes in any other stream.

        `dedup` is as in `create`. By default, the fork gets the setting that this stream has of its
        own. With "inherit", the server's policies decide.
        """
        fork = self.client.stream(path)
        configuration = CreateHeaders(
            ttl=ttl,
            expires_at=expires_at,
            is_closed=closed,
            forked_from=self.calls.reference,
            fork_offset=offset,
            fork_sub_offset=sub_offset,
            dedup=dedup,
        )
        self.client.run(fork.calls.create(configuration, exist_ok=exist_ok), timeout)
        return fork

    def head(self, *, timeout: Timeout = CLIENT_DEFAULT) -> StreamInfo:
        """Return the state of the stream.

        Raises StreamNotFound if there is no such stream, and StreamGone if it is soft-deleted.
        """
        return self.client.run(self.calls.head(), timeout)

    def exists(self, *, timeout: Timeout = CLIENT_DEFAULT) -> bool:
        """Return True if the stream exists."""
        return self.client.run(self.calls.exists(), timeout)

    def set_dedup(self, dedup: bool | None, *, timeout: Timeout = CLIENT_DEFAULT) -> StreamInfo:
        """Switch the recognition of duplicates on or off, or inherit from the policies (None)."""
        return self.client.run(self.calls.set_dedup(dedup), timeout)

    def delete(self, *, timeout: Timeout = CLIENT_DEFAULT) -> None:
        """Delete the stream. Messages that forks share are kept as long as the forks exist."""
        self.client.run(self.calls.delete(), timeout)

    def trim(self, before: str, *, timeout: Timeout = CLIENT_DEFAULT) -> None:
        """Drop the messages before the offset `before`. Only a semel server supports this."""
        self.client.run(self.calls.trim(before), timeout)

    # ---- writing ---------------------------------------------------------------------------------

    def append(
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
        """Append one message. The message is durable when this call returns.

        In a JSON stream, the value is encoded as JSON, and bytes must already be JSON. In any other
        stream, the value must be bytes, or str if the stream contains text.

        If a response is lost, the request is sent again, and the message is stored once. Raises
        Indeterminate if it is still unknown at the timeout whether the message was stored. With an
        `idempotency_key`, the message is stored once even if this call is repeated.

        With `if_match`, the message is stored only if this offset is the stream's tail. With `seq`,
        it is stored only if this string is greater than the stream's last `seq`. With `close`, the
        stream is also closed. `key`, `headers` and `timestamp` are stored with the message.
        """
        return self.append_many(
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

    def append_many(
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
        """Append all of the messages or none of them. The options are those of `append`.

        `keys`, `headers` and `timestamps` have one element for each value.
        """
        values, extras = list(values), extras_of(keys, headers, timestamps)
        if not values:
            raise ValueError("there is nothing to append; pass at least one message")
        conditions = AppendHeaders(seq, if_match, idempotency_key, close)
        return self._append(values, conditions, extras, timeout)

    def close(self, value: Any = None, *, timeout: Timeout = CLIENT_DEFAULT) -> Receipt:
        """Close the stream permanently. Append `value` as the last message if it is not None."""
        if value is not None:
            return self.append(value, close=True, timeout=timeout)
        return self._append([], CLOSING, NO_EXTRAS, timeout)

    def _append(
        self, values: list[Any], conditions: AppendHeaders, extras: Extras, timeout: Timeout
    ) -> Receipt:
        client = self.client
        deadline = time.monotonic() + seconds_of(timeout, client.timeout)
        return client.appender.append(
            self.calls, PendingAppend(values, conditions, extras, deadline)
        )

    # ---- reading ---------------------------------------------------------------------------------

    def read(
        self,
        offset: str = START,
        *,
        limit: int | None = None,
        isolation: str = READ_COMMITTED,
        timeout: Timeout = CLIENT_DEFAULT,
    ) -> Read:
        """Return an iterator over the messages from `offset` up to the present tail.

        It returns at most `limit` messages, and has the attributes `next_offset`, `up_to_date` and
        `closed`. Uncommitted messages are not read, unless `isolation` is "read_uncommitted".
        `timeout` applies to each request. One request reads about 1 MiB.
        """
        reader = PageReader(self.calls, offset, is_live=False, isolation=isolation)
        reader.source = self.client.positions.read_position(self.path, offset)
        seconds = seconds_of(timeout, self.client.timeout)
        return Read(self.client.driver, reader, limit, seconds)

    def read_bytes(self, offset: str = START, *, timeout: Timeout = CLIENT_DEFAULT) -> bytes:
        """Return all messages from `offset` up to the tail, concatenated.

        This cannot be used for a JSON stream.
        """
        return join_messages(list(self.read(offset, timeout=timeout)))

    def read_text(self, offset: str = START, *, timeout: Timeout = CLIENT_DEFAULT) -> str:
        """Return all messages of a text stream from `offset` up to the tail, as one str.

        Raises UndecodableMessage if they are not UTF-8.
        """
        return join_text(self.path, self.read_bytes(offset, timeout=timeout))

    def tail(
        self,
        offset: str = START,
        *,
        live: str = "auto",
        group: str | None = None,
        producer_id: str | None = None,
        isolation: str = READ_COMMITTED,
        timeout: Timeout = CLIENT_DEFAULT,
    ) -> Tail:
        """Read messages from `offset`, then wait for new messages until the stream is closed.

        A `Client` begins to read in this call. An `AsyncClient` begins when the block is entered or
        the first message is requested. The offset `now` means the tail at that moment.

        The first response must come within `timeout`. After that, the iterator waits while the
        server is unreachable. No message is skipped or repeated. The iterator's attributes
        `next_offset`, `up_to_date` and `closed` say how far it is, also while it waits.

        `live` is `long-poll`, `sse` (only without a `group`) or `auto`. `auto` selects long-poll,
        because its responses contain the offset of each message. Uncommitted messages are read only
        if `isolation` is "read_uncommitted".

        With a `group`, reading begins at the group's position in this stream, or at `offset` if the
        group has none. Reading does not change the position. `message.commit()` moves the
        group to the offset after the message. After `txn.commit_message(message)`, the commit
        of `txn` moves the group to this offset. `message.reject(reason)` stores the message
        as a dead letter of the group.

        This does not share the stream: a second tail of the same group reads the same messages.
        With the client's `consume`, several workers share the streams of a group.

        If a pending transaction can change the position, reading first waits until the transaction
        has ended, but at most 5 seconds or half the `timeout`, whichever is shorter. If your
        transactions have a `producer_id`, pass this id here. The server then aborts the pending
        transactions with this id from earlier runs, and reading does not wait for them.
        """
        client, seconds = self.client, seconds_of(timeout, self.client.timeout)
        if group is None:
            reader = live_reader(self.calls, offset, live, isolation=isolation)
            reader.source = client.positions.read_position(self.path, offset)
            return Tail(client.driver, reader, seconds)
        cursor = group_calls.GroupCursor(
            client.site,
            group,
            self.calls.require_path("tail(group=...)"),
            client.positions,
            client.unresolved,
            min(group_calls.STABLE_SECONDS_MAX, seconds / 2),
        )
        on_commit = MessageCommitter(client, cursor)
        reader = group_calls.GroupReader(
            self.calls, offset, cursor, on_commit, live=live, isolation=isolation
        )
        register = None if producer_id is None else partial(client.registered, producer_id)
        return Tail(client.driver, reader, seconds, register)

    # ---- producers -------------------------------------------------------------------------------

    def producer(self, id: str | None = None, **options: Unpack[ProducerOptions]) -> Producer:
        """Return a producer that stores every message once and in order, despite failures.

        `id` identifies the producer across restarts. The default is the environment variable
        `PRODUCER_ID`. If it is not set, the producer gets an id that no other producer has, and
        the server removes the producer when it is closed, or after a day without an append. The
        options are described in `ProducerOptions`.

        Nothing is sent before the first batch if the media type is known: by `content_type`, or
        because this object has created the stream, read its state or appended to it. Otherwise the
        media type is requested: by a `Producer` in this call, which raises StreamNotFound if there
        is no such stream, and by an `AsyncProducer` when it is entered, or by its first `append`.
        """
        client = self.client
        return client.close_with_client(
            Producer(
                id,
                self.calls,
                client.transport,
                options,
                run=client.run,
                response_timeout=client.timeout,
            )
        )

    def producers(
        self, producer_id: str | None = None, *, timeout: Timeout = CLIENT_DEFAULT
    ) -> list[ProducerState]:
        """Return what the server stores about the stream's producers.

        With `producer_id`, the list contains at most this producer.
        """
        return self.client.run(server_calls.producers(self.calls, producer_id), timeout)

    def explain(
        self,
        producer_id: str,
        seq: int | str,
        *,
        epoch: int | None = None,
        session: str | None = None,
        mode: str | None = None,
        timeout: Timeout = CLIENT_DEFAULT,
    ) -> dict[str, Any]:
        """Return the outcome that an append with this sequence would have, and the reason.

        Nothing is appended. In mode="sparse" (numbers can be skipped), `seq` can be a range: "3-5".
        """
        return self.client.run(
            server_calls.explain_append(
                self.calls, producer_id, seq, epoch=epoch, session=session, mode=mode
            ),
            timeout,
        )

    def retire_producer(
        self,
        producer_id: str,
        *,
        epoch: int | None = None,
        session: str | None = None,
        timeout: Timeout = CLIENT_DEFAULT,
    ) -> RetiredEntry:
        """Retire a producer that is no longer used, and return what became of it.

        `epoch`, `session` or both must be those of its current instance. For 10 minutes, late
        copies of its appends are refused. Then the stream stores nothing about it any more.
        """
        flow = server_calls.retire_producer(self.calls, producer_id, epoch, session)
        return self.client.run(flow, timeout)

    def forget_producer(self, producer_id: str, *, timeout: Timeout = CLIENT_DEFAULT) -> None:
        """Remove the stream's record of a producer. The producer's sequences restart at 0."""
        self.client.run(server_calls.forget_producer(self.calls, producer_id), timeout)
