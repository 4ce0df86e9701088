"""The producer for threads: fire and forget, in order, exactly once."""

import asyncio
import atexit
import logging
import os
import threading
import time
from collections.abc import Callable
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Protocol, Self
from weakref import WeakSet

from semel.client.errors import ClientError, Indeterminate
from semel.client.producer.async_producer import ProducerFacade
from semel.client.producer.batches import BatchEvent, ProducerSettings
from semel.client.producer.opening import OpenResult, ProducerOptions
from semel.client.transport import Transport
from semel.client.values import Headers, Key

_EXIT_SECONDS: Final = 5.0
_log = logging.getLogger("semel.client")


class Producer(ProducerFacade):
    """Appends messages to one stream. Many threads may share it.

    Messages are gathered into batches, sent behind one another and sent again after any trouble,
    under numbers that let the server recognise what it has. Leaving a `with` block waits until
    all are stored. So does the end of the process, but for a few seconds only; what is lost then is
    logged.

    `on_batch_ack(ack)` and `on_error(error, batch)` are called on a thread of the client; they must
    be quick, and may append but not flush. Without `on_error` the first error is raised by the next
    `append`, `flush` or `close`. After an error nothing more is sent.
    """

    # On the client's thread sys.exit() would end no program, but all its producers.
    _survives = BaseException

    def __init__(
        self,
        producer_id: str | None,
        transport: Transport,
        target: str,
        options: ProducerOptions,
        *,
        ask: Callable[[ProducerSettings], OpenResult],
        response_timeout: float,
    ) -> None:
        super().__init__(producer_id, transport, target, options, response_timeout=response_timeout)
        self._changed = threading.Condition(self._lock)
        self._background = background()
        self._open(ask(self._settings))
        self._background.at_exit.add(self)

    def append(
        self,
        value: Any,
        *,
        key: Key = None,
        headers: Headers = None,
        timestamp: datetime | None = None,
        cursor: str | None = None,
        seq: int | None = None,
    ) -> None:
        """Take a message, and return before it is stored; waits if too much is pending.

        `key`, `headers` and `timestamp` are stored with the message; only semel can. `cursor` is a
        note of yours, such as a place in your input, stored with the message: a later instance
        finds the last one in `cursor`. `seq` is for mode="sparse".
        """
        raw = self._to_raw(value)
        extra = None
        if key is not None or headers is not None or timestamp is not None:
            extra = self._packing.carried(raw, key, headers, timestamp)
        if self._background.is_forked:
            self._refuse_in_fork()
        is_news = True  # if Ctrl-C comes, it is better to look
        try:
            with self._lock:
                self._check()
                if self._core.ledger.pending_bytes >= self._pending_bytes_max:
                    self._wait_for_room()
                is_news = self._core.append(raw, time.monotonic(), cursor, seq, extra)
        finally:
            if is_news:
                self._wake()

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every message appended so far is stored.

        After the timeout: Indeterminate. The messages are still being sent.
        """
        self._refuse_in_fork()
        self._refuse_in_callback("flush")
        if not self._drain(timeout):
            raise self._late(timeout)
        self._check_settled(is_again=True)

    def close(self, timeout: float | None = None) -> None:
        """Wait until every message is stored, and end; after the timeout, give up the rest."""
        self._refuse_in_fork()
        self._refuse_in_callback("close")
        self._is_closed = True
        if self._is_ended:
            return
        if not self._drain(timeout):
            self._give_up(self._late(timeout))
        self._is_ended = True
        self._background.loop.call_soon_threadsafe(self._pump.end)
        self._check_settled(is_again=False)

    def close_by(self, deadline: float) -> None:
        """Close, and give up at a moment of the monotonic clock."""
        self.close(max(deadline - time.monotonic(), 0.0))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_raised = self._is_raised or error is not None  # what is raised is not masked
        self.close()

    # ---- waiting ---------------------------------------------------------------------------------

    def _wait_for_room(self) -> None:
        """Wait, holding the lock, until there is room; the client's own thread never waits."""
        if self._background.is_here:
            return
        self._wait(lambda: self._core.ledger.pending_bytes < self._pending_bytes_max, None)
        self._check()

    def _drain(self, timeout: float | None) -> bool:
        with self._lock:
            goal = self._core.appended_count
            self._core.hurry()
        self._wake()
        with self._lock:
            return self._wait(lambda: self._is_settled(goal), timeout)

    def _wait(self, is_done: Callable[[], bool], timeout: float | None) -> bool:
        return self._changed.wait_for(is_done, timeout)

    def _give_up(self, error: Indeterminate) -> None:
        with self._lock:
            self._core.fail(error)
        self._wake()
        with self._lock:
            goal = self._core.appended_count
            self._wait(lambda: self._is_settled(goal), None)

    def _refuse_in_fork(self) -> None:
        """Refuse to wait in a fork, which has the producer's messages but not its thread."""
        if self._background.is_forked:
            raise RuntimeError(
                "a producer made before a fork cannot be used after it; make another"
            )

    def _wake(self) -> None:
        self._background.loop.call_soon_threadsafe(self._pump.step)

    def end_process(self) -> None:
        """Wait a while for what is not stored yet: the process is about to end."""
        if self._is_ended or not self.pending_count:
            return
        try:
            self.close(_EXIT_SECONDS)
        except ClientError as error:
            _log.error("the producer %s was not closed: %s", self.id, error)

    def _report(self, events: list[BatchEvent]) -> None:
        super()._report(events)
        with self._lock:
            self._changed.notify_all()

    def _refuse_in_callback(self, call: str) -> None:
        if self._background.is_here:
            raise RuntimeError(f"{call}() in a callback would wait for itself")


# ---- background ----------------------------------------------------------------------------------
# The event loop that the sync producers of this process share.


_lock = threading.Lock()
_current: "Background | None" = None


class EndsWithProcess(Protocol):
    """Something that may have work left when the process ends."""

    def end_process(self) -> None:
        """Do it now, or say that it is lost."""


class Background:
    """A loop that runs on a thread of its own, as long as the process does."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.is_forked = False  # this is a copy, in a process that has no such thread
        self.at_exit: WeakSet[EndsWithProcess] = WeakSet()
        self._thread = threading.Thread(target=self._run, name="semel-client", daemon=True)
        self._thread.start()
        atexit.register(self._stop)

    @property
    def is_here(self) -> bool:
        """Whether the caller runs on its thread."""
        return threading.current_thread() is self._thread

    @property
    def is_alive(self) -> bool:
        """Whether the thread is there: a fork of the process has none."""
        return self._thread.is_alive() and not self.is_forked

    def _run(self) -> None:
        self.loop.run_forever()
        self.loop.close()

    def _stop(self) -> None:
        if self.is_alive:
            for producer in list(self.at_exit):
                producer.end_process()
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(1.0)


def background() -> Background:
    """Give the loop, started when it is first needed."""
    global _current  # noqa: PLW0603 - one for the process is the point
    with _lock:
        if _current is None or not _current.is_alive:
            _current = Background()
        return _current


def _mark_fork() -> None:
    if _current is not None:
        _current.is_forked = True


os.register_at_fork(after_in_child=_mark_fork)
