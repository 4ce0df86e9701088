"""The producer for threads, and the background event loop that sends its batches."""

import asyncio
import atexit
import logging
import os
import threading
import time
from collections.abc import Callable
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Self
from weakref import WeakSet

from semel.client.errors import ClientError, Indeterminate
from semel.client.producer.batches import BatchEvent, ProducerSettings
from semel.client.producer.opening import OpenResult, ProducerOptions
from semel.client.producer.pump import ProducerFacade
from semel.client.transport import FOREVER, Transport
from semel.client.values import Headers, Key

_EXIT_SECONDS: Final = 5.0
_log = logging.getLogger("semel.client")


class Producer(ProducerFacade):
    """Appends messages to one stream. Threads may share it.

    Messages are gathered into batches. Batches are sent without waiting for earlier responses, and
    sent again after a failure. They have sequences, by which the server recognises duplicates.
    Leaving a `with` block waits until all messages are stored. At the end of the process, an open
    producer waits too, but only five seconds; then it logs how many messages are not acknowledged.

    `on_batch_ack(ack)` and `on_error(error, batch)` are called on a thread of the client. They must
    be quick. They may append, but not flush or close. Without `on_error`, the next `append`,
    `flush` or `close` raises the error that ended the producer. After that error nothing more is
    sent.
    """

    # sys.exit() in a callback would end the background thread of all producers, not the program.
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
        """Add a message, and return before it is stored.

        Waits while `max_pending_bytes` are pending. `key`, `headers` and `timestamp` are stored
        with the message, by semel only. `cursor` is a string of your choice, such as an offset in
        your input. It is stored with the message, and a later instance gets the last stored one as
        its `cursor`. `seq` is for mode="sparse". Raises the error that has ended the producer, if
        there is one.
        """
        raw = self._to_raw(value)
        extra = None
        if key is not None or headers is not None or timestamp is not None:
            extra = self._encoder.checked_extra(raw, key, headers, timestamp)
        if self._background.is_forked:
            self._refuse_in_fork()
        must_wake = True  # if Ctrl-C interrupts this, wake the sender to be safe
        try:
            with self._lock:
                self._check()
                if self._core.acks.pending_bytes >= self._pending_bytes_max:
                    self._wait_for_room()
                must_wake = self._core.append(raw, time.monotonic(), cursor, seq, extra)
        finally:
            if must_wake:
                self._wake()

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every message appended so far is stored.

        Raises Indeterminate after `timeout` seconds; None means no limit. The producer continues to
        send the messages after that.
        """
        self._refuse_in_fork()
        self._refuse_in_callback("flush")
        if not self._drain(timeout):
            raise self._late(timeout)
        self._check_settled(is_again=True)

    def close(self, timeout: float | None = None) -> None:
        """Wait until every message is stored, then end the producer.

        Messages that are not stored after `timeout` seconds are given up, and the producer fails
        with Indeterminate.
        """
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
        """Close with a deadline on the monotonic clock."""
        self.close(None if deadline == FOREVER else max(deadline - time.monotonic(), 0.0))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_raised = self._is_raised or error is not None  # the block's error is raised
        self.close()

    # ---- waiting ---------------------------------------------------------------------------------

    def _wait_for_room(self) -> None:
        """Wait until fewer bytes are pending. The lock must be held. In a callback, do not wait."""
        if self._background.is_here:
            return
        self._changed.wait_for(lambda: self._core.acks.pending_bytes < self._pending_bytes_max)
        self._check()

    def _drain(self, timeout: float | None) -> bool:
        with self._lock:
            goal = self._core.appended_count
            self._core.hurry()
        self._wake()
        with self._lock:
            return self._changed.wait_for(lambda: self._reported_count >= goal, timeout)

    def _give_up(self, error: Indeterminate) -> None:
        with self._lock:
            self._core.fail(error)
        self._wake()
        with self._lock:
            goal = self._core.appended_count
            self._changed.wait_for(lambda: self._reported_count >= goal)

    def _refuse_in_fork(self) -> None:
        """Raise RuntimeError in a forked process, which has no background thread."""
        if self._background.is_forked:
            raise RuntimeError(
                "a producer cannot be used in a forked process; create another one there"
            )

    def _wake(self) -> None:
        self._background.loop.call_soon_threadsafe(self._pump.step)

    def end_process(self) -> None:
        """Wait a few seconds for pending messages, because the process is about to end."""
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
            raise RuntimeError(f"{call}() in a callback would wait for that callback")


# ---- the event loop that the producers of a process share ----------------------------------------

_lock = threading.Lock()
_current: "Background | None" = None


class Background:
    """An event loop on a background thread, which runs until the process ends."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.is_forked = False  # True in a forked process: the thread does not exist there
        self.at_exit: WeakSet[Producer] = WeakSet()
        self._thread = threading.Thread(target=self._run, name="semel-client", daemon=True)
        self._thread.start()
        atexit.register(self._stop)

    @property
    def is_here(self) -> bool:
        """Whether the caller runs on the thread of the loop."""
        return threading.current_thread() is self._thread

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs; in a forked process it does not exist."""
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
    """Return the background loop of this process. The first call starts it."""
    global _current  # noqa: PLW0603 - there is one for each process
    with _lock:
        if _current is None or not _current.is_alive:
            _current = Background()
        return _current


def _mark_fork() -> None:
    if _current is not None:
        _current.is_forked = True


os.register_at_fork(after_in_child=_mark_fork)
