# generated from semel/client/aio/transaction.py by `make facades`; do not edit
"""Transactions and sinks. A sink commits numbered batches of output ("versions"), each once."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from semel.client import commit_calls, server_calls
from semel.client.addresses import path_of
from semel.client.errors import ClientError, Refused
from semel.client.extras import Headers, Key, extras_of
from semel.client.flows import Flow, T
from semel.client.subscription_values import AckedWake
from semel.client.sync.stream import Stream
from semel.client.sync.topic import Topic
from semel.client.sync_driver import SyncLock
from semel.client.transport import CLIENT_DEFAULT, Timeout
from semel.client.txn_calls import NEW, OPEN, TransactionCalls
from semel.client.values import (
    CommitResult,
    Message,
    Metadata,
    Moves,
    Receipt,
    Registration,
)

if TYPE_CHECKING:
    from semel.client.sync.client import Client


class Transaction:
    """A transaction. Its appends and new group positions become visible together or not at all.

    Leaving the `with` block commits the transaction. An exception in the block aborts it.
    After `prepare()`, leaving the block neither commits nor aborts it. Several threads or tasks can
    share a transaction. Their calls are made one after the other.
    """

    def __init__(
        self,
        client: "Client",
        calls: TransactionCalls,
        streams: Sequence[str],
        *,
        producer_id: str | None,
        registration: Registration | None,
    ) -> None:
        self.calls = calls
        self._client = client
        self._streams = streams
        self._producer_id = producer_id
        self._registration = registration  # if None, the client registers the producer
        self._lock = SyncLock()
        self._in_use: Registration | None = None

    def __enter__(self) -> Self:
        if self.calls.state == NEW:
            self.begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.calls.state != OPEN or self.calls.owner.is_parent:
            return
        if error is not None:
            self._try_to_abort()
            return
        try:
            self.commit()
        except Refused:
            self._try_to_abort()
            raise

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.token!r}, {self.calls.state})"

    @property
    def id(self) -> str:
        """The id of the transaction. A later transaction can have the same id."""
        return self.calls.id

    @property
    def epoch(self) -> int:
        """The transaction epoch. It counts the transactions with this id."""
        return self.calls.epoch

    @property
    def token(self) -> str:
        """The id and the epoch in one string. It identifies this transaction."""
        return self.calls.token

    @property
    def state(self) -> str:
        """The last known state: new, open, prepared, deciding, committed or aborted.

        Deciding means that a commit was sent and its response has not come yet.
        """
        return self.calls.state

    @property
    def result(self) -> CommitResult | None:
        """The result of the commit, or None before the commit."""
        return self.calls.result

    def begin(self, *, timeout: Timeout = CLIENT_DEFAULT) -> None:
        """Begin the transaction. Entering the `with` block also does this."""
        self._in_use = self._registration or self._client.registered(self._producer_id)
        try:
            self._run(self.calls.begin(self._in_use, self._streams), timeout)
        except Refused as error:
            is_generated = self._registration is None and self._producer_id is None
            if not (is_generated and error.code == server_calls.UNKNOWN_PRODUCER):
                raise
            # The client was idle for so long that the server has removed the generated id.
            self._in_use = self._client.registered(None, is_new=True)
            self._run(self.calls.begin(self._in_use, self._streams), timeout)

    def add_streams(
        self, *streams: str | Stream | Topic, timeout: Timeout = CLIENT_DEFAULT
    ) -> None:
        """Allow the transaction to write to more streams.

        This is needed only if the transaction began with a list of streams.
        """
        address = self._client.site.address
        paths = [path_of(stream, address) for stream in streams]
        self._run(self.calls.add_streams(paths), timeout)

    def append(
        self,
        stream: str | Stream | Topic,
        value: Any,
        *,
        key: Key = None,
        headers: Headers = None,
        timestamp: datetime | None = None,
        timeout: Timeout = CLIENT_DEFAULT,
    ) -> Receipt:
        """Append one message. It is durable when this returns, and visible after the commit.

        `stream` is the path of a stream or a topic, or such an object of the same server. In a
        topic, the `key` selects the partition.
        """
        return self.append_many(
            stream,
            [value],
            keys=None if key is None else [key],
            headers=None if headers is None else [headers],
            timestamps=None if timestamp is None else [timestamp],
            timeout=timeout,
        )

    def append_many(
        self,
        stream: str | Stream | Topic,
        values: Iterable[Any],
        *,
        keys: Iterable[Key] | None = None,
        headers: Iterable[Headers] | None = None,
        timestamps: Iterable[datetime | None] | None = None,
        timeout: Timeout = CLIENT_DEFAULT,
    ) -> Receipt:
        """Append all of the messages or none of them. The options are those of `append`."""
        extras = extras_of(keys, headers, timestamps)
        flow = self.calls.append_to(self._client.known_streams, stream, list(values), extras)
        return self._run(flow, timeout)

    def commit_offsets(
        self,
        group: str,
        offsets: Moves,
        *,
        metadata: Mapping[str, Metadata] | None = None,
        timeout: Timeout = CLIENT_DEFAULT,
    ) -> None:
        """Let the commit set a group's positions. `offsets` maps each stream to the new position.

        Pass the `next_offset` object of the last message, not a copy, because the object refers to
        the message's reader. Raises PositionConflict, here or in the commit, if another client or
        reader has changed the position since that reader began.

        A number or a copied offset does not refer to a reader. Its effect depends on how many tails
        this client has opened with `tail(group=...)` for this group and stream:

        - one tail: the offset is treated as the `next_offset` of a message from this tail;
        - several tails: raises ValueError;
        - no tail: the group must be at the last position that this client has set (0 if it has set
          none), otherwise raises PositionConflict. To expect another position, pass (from, to).

        `metadata` maps streams to what the commit stores with the position.
        """
        self._run(self.calls.add_offsets(group, offsets, metadata), timeout)

    def commit_message(
        self,
        message: Message,
        *,
        metadata: Metadata | None = None,
        timeout: Timeout = CLIENT_DEFAULT,
    ) -> None:
        """Let the commit move the message's group to the offset after the message.

        The commit stores `metadata` with the position.
        The message must come from `consume(...)` or `tail(group=...)`. Raises PositionConflict,
        here or in the commit, if another client or reader has changed the position since that tail
        began. Raises IllegalGeneration, here or in the commit, if the consumer has lost the stream.
        """
        self._run(self.calls.add_message(message, metadata), timeout)

    def commit_wake(self, ack: AckedWake) -> None:
        """Let the commit ack the wake of a subscription, as in `txn.commit_wake(wake.acked())`.

        Nothing is sent before the commit. If the wake has ended by then, the commit raises
        WakeFenced, and nothing is committed.
        """
        self.calls.add_wake(ack)

    def prepare(self, *, timeout: Timeout = CLIENT_DEFAULT) -> str:
        """Prepare the transaction and return its token. Any client can end it with this token.

        A prepared transaction accepts no more changes and has no deadline.
        """
        return self._run(self.calls.prepare(), timeout)

    def commit(self, *, timeout: Timeout = CLIENT_DEFAULT) -> CommitResult:
        """Commit the transaction and return the result. All its changes become visible together.

        If no response comes, the request is retried until the timeout, and then Indeterminate is
        raised. To get the outcome after that, call this method again, or call
        `client.transaction_status(txn.token)`.
        """
        return self._run(self.calls.commit(), timeout)

    def abort(self, *, timeout: Timeout = CLIENT_DEFAULT) -> None:
        """Abort the transaction. None of its changes becomes visible."""
        self._run(self.calls.abort(), timeout)

    def _try_to_abort(self) -> None:
        """Abort the transaction, and ignore errors, because another exception is being raised.

        If the abort fails, the server aborts the transaction at its deadline.
        """
        if self.calls.state == OPEN:
            with suppress(ClientError):
                self.abort()

    def _run(self, flow: Flow[T], timeout: Timeout) -> T:
        with self._lock:
            try:
                return self._client.run(flow, timeout)
            finally:
                if self.calls.is_ended and self._in_use is not None:
                    owner, self._in_use = self._in_use, None
                    self.calls.remove()
                    if self._registration is None:
                        written = self.calls.written
                        self._client.pool.give_back(self._producer_id, owner, written)


# ---- sinks ---------------------------------------------------------------------------------------


class Sink:
    """Commits the output of an application in numbered versions. `app` is the application's id.

    If the application commits a version again, nothing changes and the first result is returned.
    """

    def __init__(self, client: "Client", app: str) -> None:
        self.app = app
        self._client = client

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.app!r})"

    def task(self, version: int, partition: int = 0) -> "SinkTask":
        """Return a new attempt to write a partition of the output `version`.

        `with` begins the attempt. An exception before `prepare` aborts the attempt. The
        messages become visible when the version is committed with the attempt's token.
        """
        return SinkTask(
            self._client, commit_calls.TaskCalls(self._client.site, self.app, version, partition)
        )

    def commit(
        self,
        version: int,
        tokens: Sequence[str] = (),
        *,
        query_id: str | None = None,
        input: str | None = None,
        previous: str | None = None,
        appends: Mapping[str, Iterable[Any]] | None = None,
        offsets: Mapping[str, Moves] | None = None,
        metadata: Mapping[str, Mapping[str, Metadata]] | None = None,
        timeout: Timeout = CLIENT_DEFAULT,
    ) -> CommitResult:
        """Commit a version of the output once. The messages of its prepared tasks become visible.

        `tokens` are the tasks' tokens. The tasks' messages are stored in this order. If the version
        was committed before, return the first result, with `duplicate` set. New tasks in `tokens`
        are then not committed. They stay pending until `abort`, or the commit of the next version,
        aborts them.

        `query_id` is the query that the sink belongs to. The default is `app`. `input` is a digest
        of this version's input. `previous` is a digest of the previous version's input. Raises
        CheckpointDiverged if the sink has stored a different digest for one of these versions.

        `appends`, `offsets` and `metadata` have the same form as in the client's `commit`. They are
        applied together with the version. The messages of `appends` come before those of the tasks.
        """
        client = self._client
        flow = commit_calls.commit_version_known(
            client.known_streams,
            commit_calls.Version(self.app, query_id or self.app, version, input, previous),
            commit_calls.Parts(
                appends or {}, offsets or {}, transactions=tokens, metadata=metadata or {}
            ),
            client.positions,
        )
        return client.run(flow, timeout)

    def abort(self, token: str, *, timeout: Timeout = CLIENT_DEFAULT) -> None:
        """Abort a pending task. Raises TransactionCommitted if the task is already committed."""
        self._client.run(commit_calls.abort_version(self._client.site, token), timeout)

    def info(self, *, timeout: Timeout = CLIENT_DEFAULT) -> commit_calls.SinkInfo:
        """Return what the server stores about the sink.

        Before the sink's first commit, raises Refused with the code `unknown_sink`.
        """
        return self._client.run(commit_calls.show_sink_info(self._client.site, self.app), timeout)

    def rebind(
        self, query_id: str, last_version: int, *, timeout: Timeout = CLIENT_DEFAULT
    ) -> commit_calls.SinkInfo:
        """Bind the sink to a different query.

        The query continues with the version after `last_version`. Pass -1 to begin with version 0.
        """
        return self._client.run(
            commit_calls.rebind_sink_info(self._client.site, self.app, query_id, last_version),
            timeout,
        )

    def forget(self, *, timeout: Timeout = CLIENT_DEFAULT) -> None:
        """Remove what the server stores about the sink. The next commit creates a new sink."""
        self._client.run(server_calls.forget_sink(self._client.site, self.app), timeout)


class SinkTask:
    """One attempt to write a partition of a sink's version. The attribute `calls` is internal."""

    def __init__(self, client: "Client", calls: commit_calls.TaskCalls) -> None:
        self.calls = calls
        self._client = client

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None and not (self.calls.is_prepared or self.calls.owner.is_parent):
            self.abort()

    @property
    def token(self) -> str:
        """The token that identifies this attempt in a commit."""
        return self.calls.token

    def begin(self, *, streams: Sequence[str] = (), timeout: Timeout = CLIENT_DEFAULT) -> None:
        """Begin the attempt. Entering the `with` block also does this.

        With `streams`, it can write only to these streams, and to the partitions of these topics.
        A topic does not grow before such an attempt has ended.
        """
        self._client.run(self.calls.begin(streams), timeout)

    def append_many(
        self,
        path: str,
        values: Iterable[Any],
        *,
        keys: Iterable[Key] | None = None,
        headers: Iterable[Headers] | None = None,
        timestamps: Iterable[datetime | None] | None = None,
        timeout: Timeout = CLIENT_DEFAULT,
    ) -> None:
        """Stage messages for the stream at `path`.

        The options are those of the stream's `append_many`.
        """
        extras = extras_of(keys, headers, timestamps)
        stream = self._client.known_streams.calls(path)
        self._client.run(self.calls.append(stream, list(values), extras), timeout)

    def append_batch(
        self, path: str, body: bytes, count: int, *, timeout: Timeout = CLIENT_DEFAULT
    ) -> None:
        """Stage messages. `body` contains `count` messages in the format of `encode_batch`."""
        stream = self._client.known_streams.calls(path)
        self._client.run(self.calls.append_batch(stream, body, count), timeout)

    def prepare(self, *, timeout: Timeout = CLIENT_DEFAULT) -> str:
        """Prepare the attempt and return its token. Raises Refused if an append was not stored."""
        return self._client.run(self.calls.prepare(), timeout)

    def abort(self, *, timeout: Timeout = CLIENT_DEFAULT) -> None:
        """Abort the attempt."""
        self._client.run(self.calls.abort(), timeout)
