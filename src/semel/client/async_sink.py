"""Sinks, for asyncio."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from semel.client import commit_calls
from semel.client.async_group import AsyncRunFlow
from semel.client.commit_calls import KnownStreams, Parts, SinkInfo, TaskCalls, Version
from semel.client.positions import KnownPositions
from semel.client.stream_calls import ServerConfig
from semel.client.txn_values import CommitResult, Moves
from semel.client.values import Headers, Key, extras_of


class AsyncSink:
    """Something that writes in versions, and may run each of them again: `app` names it."""

    def __init__(
        self,
        site: ServerConfig,
        run: AsyncRunFlow,
        known: KnownStreams,
        app: str,
        positions: KnownPositions,
    ) -> None:
        self.app = app
        self._positions = positions
        self._site = site
        self._run = run
        self._known = known

    def __repr__(self) -> str:
        return f"AsyncSink({self.app!r})"

    def task(self, version: int, partition: int = 0) -> "AsyncSinkTask":
        """Make one attempt of one task, begun by its `async with` block.

        Nothing of it is seen before the version is committed with its token; an exception in the
        block aborts it.
        """
        return AsyncSinkTask(
            TaskCalls(self._site, self.app, version, partition), self._run, self._known
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
        timeout: float | None = None,
    ) -> CommitResult:
        """Make the prepared tasks of a version visible, in this order, at once and only once.

        A version that was committed before is answered with what was done then (`duplicate`);
        what was staged for it anew is dropped with the next version, or by `abort`. `query_id` is
        whose sink it is, by default its own name. `input` and `previous` are digests of what this
        version and the one before were made of: with them a history that is not the sink's is
        CheckpointDiverged. `appends` by stream and `offsets` by group are applied with it, as by
        a client's `commit`: the messages stand before those of the tasks.
        """
        wanted = Version(self.app, query_id or self.app, version, input, previous)
        parts = Parts(appends or {}, offsets or {}, transactions=tokens)
        flow = commit_calls.commit_version_known(self._known, wanted, parts, self._positions)
        return await self._run(flow, timeout)

    async def abort(self, token: str, *, timeout: float | None = None) -> None:
        """Drop a task that is not decided; TransactionCommitted if it is committed."""
        await self._run(commit_calls.abort_version(self._site, token), timeout)

    async def info(self, *, timeout: float | None = None) -> SinkInfo:
        """Ask what the server knows of it; Refused, `unknown_sink`, before its first commit."""
        return await self._run(commit_calls.show_sink_info(self._site, self.app), timeout)

    async def rebind(
        self, query_id: str, last_version: int, *, timeout: float | None = None
    ) -> SinkInfo:
        """Give it to another query, which goes on behind `last_version`; -1: begins at 0."""
        return await self._run(
            commit_calls.rebind_sink_info(self._site, self.app, query_id, last_version), timeout
        )

    async def forget(self, *, timeout: float | None = None) -> None:
        """Let the server forget it: the next commit begins a new one."""
        await self._run(commit_calls.forget_sink_info(self._site, self.app), timeout)


class AsyncSinkTask:
    """One attempt of one task of a version."""

    def __init__(self, calls: TaskCalls, run: AsyncRunFlow, known: KnownStreams) -> None:
        self.calls = calls
        self._run = run
        self._known = known

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
        """The name the commit lists it by."""
        return self.calls.token

    async def begin(self, *, timeout: float | None = None) -> None:
        """Open it; the `async with` block does."""
        await self._run(self.calls.begin(), timeout)

    async def append_many(
        self,
        path: str,
        values: Iterable[Any],
        *,
        keys: Iterable[Key] | None = None,
        headers: Iterable[Headers] | None = None,
        timestamps: Iterable[datetime | None] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Stage messages for a stream; the options are those of a stream's `append_many`."""
        extras = extras_of(keys, headers, timestamps)
        calls = self._known.calls(path)
        await self._run(self.calls.append(calls, list(values), extras), timeout)

    async def append_batch(
        self, path: str, body: bytes, count: int, *, timeout: float | None = None
    ) -> None:
        """Stage `count` messages that are in the batch format already."""
        await self._run(self.calls.append_batch(self._known.calls(path), body, count), timeout)

    async def prepare(self, *, timeout: float | None = None) -> str:
        """Seal it, if the server holds all that was sent; gives the token for the commit."""
        return await self._run(self.calls.prepare(), timeout)

    async def abort(self, *, timeout: float | None = None) -> None:
        """Drop it."""
        await self._run(self.calls.abort(), timeout)
