"""Sinks: applications that write numbered versions, each committed once."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from semel.client import commit_calls
from semel.client.commit_calls import Parts, SinkInfo, TaskCalls, Version
from semel.client.transport import CLIENT_DEFAULT, Timeout
from semel.client.txn_values import CommitResult, Moves
from semel.client.values import Headers, Key, extras_of

if TYPE_CHECKING:
    from semel.client.aio.client import AsyncClient


class AsyncSink:
    """An application that writes versions, and may run each of them again; `app` is its id."""

    def __init__(self, client: "AsyncClient", app: str) -> None:
        self.app = app
        self._client = client

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.app!r})"

    def task(self, version: int, partition: int = 0) -> "AsyncSinkTask":
        """Return one attempt of one task, begun by its `async with` block.

        Its messages become visible when the version is committed with its token. An exception in
        the block aborts it.
        """
        return AsyncSinkTask(
            self._client, TaskCalls(self._client.site, self.app, version, partition)
        )

    async def commit(
        self,
        version: int,
        tokens: Sequence[str] = (),
        *,
        query_id: str | None = None,
        input: str | None = None,
        previous: str | None = None,
        appends: Mapping[str, Iterable[Any]] | None = None,
        offsets: Mapping[str, Moves] | None = None,
        timeout: Timeout = CLIENT_DEFAULT,
    ) -> CommitResult:
        """Make the prepared tasks of a version visible, in this order, at once and only once.

        For a version that was committed before, return that result with `duplicate`; tasks staged
        again for it are aborted with the next version, or by `abort`. `query_id` is the query the
        sink belongs to, by default the sink's own id. `input` and `previous` are digests of what
        this version and the one before were made of; with them, CheckpointDiverged is raised if
        the history is not the sink's. `appends` by stream and `offsets` by group are applied with
        it, as by `commit` of the client: these messages come before those of the tasks.
        """
        client = self._client
        flow = commit_calls.commit_version_known(
            client.known_streams,
            Version(self.app, query_id or self.app, version, input, previous),
            Parts(appends or {}, offsets or {}, transactions=tokens),
            client.positions,
        )
        return await client.run(flow, timeout)

    async def abort(self, token: str, *, timeout: Timeout = CLIENT_DEFAULT) -> None:
        """Abort a pending task. Raises TransactionCommitted if it is committed."""
        await self._client.run(commit_calls.abort_version(self._client.site, token), timeout)

    async def info(self, *, timeout: Timeout = CLIENT_DEFAULT) -> SinkInfo:
        """Return what the server stores. Raises Refused, `unknown_sink`, before a first commit."""
        flow = commit_calls.show_sink_info(self._client.site, self.app)
        return await self._client.run(flow, timeout)

    async def rebind(
        self, query_id: str, last_version: int, *, timeout: Timeout = CLIENT_DEFAULT
    ) -> SinkInfo:
        """Bind the sink to another query, which continues after `last_version`; -1: at 0."""
        flow = commit_calls.rebind_sink_info(self._client.site, self.app, query_id, last_version)
        return await self._client.run(flow, timeout)

    async def forget(self, *, timeout: Timeout = CLIENT_DEFAULT) -> None:
        """Remove what the server stores about the sink: the next commit begins a new one."""
        await self._client.run(commit_calls.forget_sink_info(self._client.site, self.app), timeout)


class AsyncSinkTask:
    """One attempt of one task of a version. `calls`, its flows, are internal."""

    def __init__(self, client: "AsyncClient", calls: TaskCalls) -> None:
        self.calls = calls
        self._client = client

    async def __aenter__(self) -> Self:
        await self.begin()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None and not self.calls.is_prepared:
            await self.abort()

    @property
    def token(self) -> str:
        """The token by which a commit lists this attempt."""
        return self.calls.token

    async def begin(self, *, timeout: Timeout = CLIENT_DEFAULT) -> None:
        """Begin the attempt, as entering the `async with` block does."""
        await self._client.run(self.calls.begin(), timeout)

    async def append_many(
        self,
        path: str,
        values: Iterable[Any],
        *,
        keys: Iterable[Key] | None = None,
        headers: Iterable[Headers] | None = None,
        timestamps: Iterable[datetime | None] | None = None,
        timeout: Timeout = CLIENT_DEFAULT,
    ) -> None:
        """Stage messages for a stream; the options are those of a stream's `append_many`."""
        extras = extras_of(keys, headers, timestamps)
        stream = self._client.known_streams.calls(path)
        await self._client.run(self.calls.append(stream, list(values), extras), timeout)

    async def append_batch(
        self, path: str, body: bytes, count: int, *, timeout: Timeout = CLIENT_DEFAULT
    ) -> None:
        """Stage `count` messages that are encoded in the batch format."""
        stream = self._client.known_streams.calls(path)
        await self._client.run(self.calls.append_batch(stream, body, count), timeout)

    async def prepare(self, *, timeout: Timeout = CLIENT_DEFAULT) -> str:
        """Prepare the attempt and return its token. Raises Refused if chunks are missing."""
        return await self._client.run(self.calls.prepare(), timeout)

    async def abort(self, *, timeout: Timeout = CLIENT_DEFAULT) -> None:
        """Abort the attempt."""
        await self._client.run(self.calls.abort(), timeout)
