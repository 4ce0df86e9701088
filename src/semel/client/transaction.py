"""A transaction, for programs that wait."""

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeVar

from semel.client.commit_calls import KnownStreams
from semel.client.errors import ClientError, Refused
from semel.client.flows import Flow
from semel.client.sync_driver import SyncDriver
from semel.client.txn_calls import NEW, OPEN, TransactionCalls
from semel.client.txn_values import CommitResult, Moves
from semel.client.values import Headers, Key, Message, Receipt, Registration, extras_of

T = TypeVar("T")


class Transaction:
    """Appends to many streams, and positions of groups: seen all at once, or never.

    Leaving the `with` block commits it; an exception there aborts it. After `prepare()` leaving
    decides nothing. Threads may share it: its calls are made one after the other.
    """

    def __init__(
        self,
        driver: SyncDriver,
        calls: TransactionCalls,
        known: KnownStreams,
        streams: Sequence[str],
        *,
        take: Callable[[], Registration],
        give_back: Callable[[Registration], None],
        call_timeout: float,
    ) -> None:
        self.calls = calls
        self._driver = driver
        self._known = known
        self._streams = streams
        self._take = take
        self._give_back = give_back
        self._timeout = call_timeout
        self._lock = threading.Lock()
        self._owner: Registration | None = None

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
        if self.calls.state != OPEN:
            return
        if error is not None:
            self._drop()
            return
        try:
            self.commit()
        except Refused:
            self._drop()
            raise

    def __repr__(self) -> str:
        return f"Transaction({self.token!r}, {self.calls.state})"

    @property
    def id(self) -> str:
        """Its id; the next one may have the same."""
        return self.calls.id

    @property
    def epoch(self) -> int:
        """Which one of its id it is."""
        return self.calls.epoch

    @property
    def token(self) -> str:
        """Id and epoch: the name of this one."""
        return self.calls.token

    @property
    def state(self) -> str:
        """What is known of it: new, open, prepared, deciding, committed or aborted."""
        return self.calls.state

    @property
    def result(self) -> CommitResult | None:
        """What the commit did."""
        return self.calls.result

    def begin(self, *, timeout: float | None = None) -> None:
        """Open it, as entering the `with` block does."""
        self._owner = self._take()
        self._run(self.calls.begin(self._owner, self._streams), timeout)

    def add_streams(self, *streams: str, timeout: float | None = None) -> None:
        """Let it write to more streams, if some were named when it began."""
        self._run(self.calls.add_streams(streams), timeout)

    def append(
        self,
        stream: str,
        value: Any,
        *,
        key: Key = None,
        headers: Headers = None,
        timestamp: datetime | None = None,
        timeout: float | None = None,
    ) -> Receipt:
        """Append one message; it is durable when this returns, and seen after the commit."""
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
        stream: str,
        values: Iterable[Any],
        *,
        keys: Iterable[Key] | None = None,
        headers: Iterable[Headers] | None = None,
        timestamps: Iterable[datetime | None] | None = None,
        timeout: float | None = None,
    ) -> Receipt:
        """Append messages, all or none of them; the options are those of `append`."""
        extras = extras_of(keys, headers, timestamps)
        calls = self._known.calls(stream)
        return self._run(self.calls.append(calls, list(values), extras), timeout)

    def commit_offsets(self, group: str, offsets: Moves, *, timeout: float | None = None) -> None:
        """Let the commit move a group to these offsets, by stream.

        Give `next_offset` of the last message as it is: it knows the reader it comes from. The
        commit is refused, PositionConflict, if anybody else has moved the group since that reader
        asked where it is. A number, or a copy of an offset, is of the only `tail(group=...)` that
        this client has had for the group in the stream (ValueError if it has had several), or after
        what this client has moved itself. Whoever knows the position otherwise gives (from, to).
        """
        self._run(self.calls.add_offsets(group, offsets), timeout)

    def commit_message(self, message: Message, *, timeout: float | None = None) -> None:
        """Let the commit move the group that a message was read for after that message.

        The message is one of `tail(group=...)`. PositionConflict as by `commit_offsets`.
        """
        self._run(self.calls.add_message(message), timeout)

    def prepare(self, *, timeout: float | None = None) -> str:
        """Seal it, lift its deadline, and give the token by which anybody may decide it."""
        return self._run(self.calls.prepare(), timeout)

    def commit(self, *, timeout: float | None = None) -> CommitResult:
        """Make all of it visible at once.

        A lost answer is asked for until the time is over. Then it is Indeterminate, and calling
        this again, or `client.transaction_status(txn.token)`, tells what became of it.
        """
        return self._run(self.calls.commit(), timeout)

    def abort(self, *, timeout: float | None = None) -> None:
        """Drop all of it."""
        self._run(self.calls.abort(), timeout)

    def _drop(self) -> None:
        """Abort it, on the way to raise something else; if that fails, its deadline ends it."""
        if self.calls.state == OPEN:
            with suppress(ClientError):
                self.abort()

    def _run(self, flow: Flow[T], timeout: float | None) -> T:
        with self._lock:
            try:
                return self._driver.run(flow, self._timeout if timeout is None else timeout)
            finally:
                if self.calls.is_decided and self._owner is not None:
                    owner, self._owner = self._owner, None
                    self.calls.forget()
                    self._give_back(owner)
