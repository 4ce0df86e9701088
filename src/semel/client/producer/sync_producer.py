"""The producer for programs that use threads, and the background event loop that sends batches."""

import asyncio
import atexit
import logging
import os
import sys
import threading
import time
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Protocol, Self
from weakref import WeakSet

from semel.client.errors import ClientError, Indeterminate
from semel.client.extras import Headers, Key
from semel.client.flows import Flow, T
from semel.client.producer.facade import ProducerFacade, retire_seconds
from semel.client.producer.opening import Past, ProducerOptions, open_producer, read_past
from semel.client.producer.outcomes import BatchEvent
from semel.client.stream_calls import StreamCalls
from semel.client.sync_driver import is_called
from semel.client.transport import (
    CLIENT_DEFAULT,
    FOREVER,
    Timeout,
    Transport,
    fork_safe_lock,
)

_EXIT_SECONDS: Final = 5.0
_log = logging.getLogger("semel.client")


class Run(Protocol):
    """Runs a flow: the method `run` of a Client."""

    def __call__(self, flow: Flow[T], timeout: Timeout = CLIENT_DEFAULT) -> T: ...


class Producer(ProducerFacade):
    """Appends messages to one stream. Several threads can share a producer.

    Messages are gathered into batches, and several batches can be in flight at the same time. After
    a temporary failure, a batch is sent again. The server recognises duplicates by their sequence.

    The first batch that is stored fences earlier instances with the same id, and so does reading
    `cursor` or `last_seq` before that.

    Leaving a `with` block waits until all messages are stored. If a producer is still open when the
    process ends, it waits at most five seconds, and then logs how many messages are not
    acknowledged.

    `on_batch_ack(ack)` and `on_error(error, batch)` are called on a background thread. They must
    return quickly. They are allowed to call `append`, but not `flush` or `close`.

    After a permanent failure, the producer ends and sends nothing more. From then on `append`
    raises the error. Without `on_error`, `flush` raises it too, and `close` raises it if no other
    call has.
    """

    # Without this, sys.exit() in a callback would not end the program. It would end the background
    # thread that all producers share.
    _survives = BaseException

    def __init__(
        self,
        producer_id: str | None,
        calls: StreamCalls,
        transport: Transport,
        options: ProducerOptions,
        *,
        run: Run,
        response_timeout: float,
    ) -> None:
        super().__init__(producer_id, calls, transport, options, response_timeout=response_timeout)
        self._run = run
        self._reading = fork_safe_lock()
        self._changed = threading.Condition(self._lock)
        self._background = background()
        self._open(run(open_producer(calls, self._settings)))
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
        close: bool = False,
    ) -> None:
        """Add a message, and return before the message is stored.

        Waits while `max_pending_bytes` or more are pending. If the producer has failed, raises the
        error that ended it.

        `key`, `headers` and `timestamp` are stored with the message. Only semel supports them.
        `seq` is the message's sequence, for mode="sparse" only. `cursor` is a string of your
        choice, such as an offset in your input. A later instance finds the last stored cursor in
        its `cursor` attribute. With `close`, this is the stream's last message: the stream is
        closed in the same step that stores the message.
        """
        if close:
            self._check_closable()
        raw = self._to_raw(value)
        extra = None
        if key is not None or headers is not None or timestamp is not None:
            extra = self._encoder.checked_extra(raw, key, headers, timestamp)
        if self._background.is_forked:
            self._refuse_in_fork()
        if self._lock.locked():
            self._refuse_nested("append")
        must_wake = True  # stays True if Ctrl-C interrupts: waking the sender is always safe
        try:
            with self._lock:
                self._check()
                if self._core.acks.pending_bytes >= self._pending_bytes_max:
                    self._wait_for_room()
                must_wake = self._core.append(raw, time.monotonic(), cursor, seq, extra)
                if close:
                    must_wake = self._end_stream()
        finally:
            if must_wake:
                self._wake()

    def close_stream(self, value: Any = None, *, timeout: float | None = None) -> None:
        """Close the stream permanently, and wait until it is closed.

        If `value` is not None, it becomes the last message, in the same step. Messages that were
        appended before are stored first. After this call, `append` raises StreamClosed. The call
        can be repeated.

        Raises Indeterminate after `timeout` seconds (None: no limit), but sending continues.
        """
        self._refuse_in_fork()
        self._refuse_in_callback("close_stream")
        self._refuse_nested("close_stream")
        self._check_closable()
        if value is not None:
            self.append(value, close=True)
        else:
            with self._lock:
                if not self._core.is_closing:
                    self._check()
                    self._end_stream()
            self._wake()
        self.flush(timeout)

    def _end_stream(self) -> bool:
        """Let the last batch close the stream. The caller must hold the lock."""
        self._core.close_stream(time.monotonic())
        self._is_closed = True
        return True

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every message appended so far is stored.

        Raises Indeterminate after `timeout` seconds (None: no limit), but sending continues. If the
        producer has failed and has no `on_error`, raises the error that ended it.
        """
        self._refuse_in_fork()
        self._refuse_in_callback("flush")
        self._refuse_nested("flush")
        if not self._drain(timeout):
            raise self._late(timeout)
        self._check_settled(is_again=True)

    def close(self, timeout: float | None = None) -> None:
        """Wait until every message is stored, and then end the producer.

        After `timeout` seconds, the producer abandons the remaining messages and fails with
        Indeterminate. If the producer has failed, this call raises the error that ended it. It
        raises nothing if `on_error` is set, or if an earlier call has already raised the error.

        If the producer has no `id`, the server is told to forget it.
        """
        self._refuse_in_fork()
        self._refuse_in_callback("close")
        self._refuse_nested("close")
        self._is_closed = True
        if self._is_ended:
            return
        deadline = None if timeout is None else time.monotonic() + timeout
        if not self._drain(timeout):
            self._give_up(self._late(timeout))
        self._is_ended = True
        self._background.loop.call_soon_threadsafe(self._pump.end)
        if self._is_to_retire:
            with suppress(Exception):  # it expires by itself, whatever fails here
                self._run(self._retirement(), retire_seconds(deadline))
        self._check_settled(is_again=False)

    def close_by(self, deadline: float) -> None:
        """Close the producer as `close` does, with a deadline in monotonic clock time."""
        self.close(None if deadline == FOREVER else max(deadline - time.monotonic(), 0.0))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # If the block raised an error, `close` must not raise the producer's failure instead.
        self._is_raised = self._is_raised or error is not None
        self.close()

    # ---- the past --------------------------------------------------------------------------------

    def _read_past(self) -> None:
        self._refuse_in_fork()
        with self._reading:
            if self._is_past_known:
                return
            with self._lock:
                is_held = self._core.hold()
                if not (is_held or self._background.is_here):
                    # After the first response, no earlier instance can store anything.
                    self._changed.wait_for(lambda: self._core.is_established or self._core.failure)
                if self._core.failure is not None:
                    return
            past = Past()
            flow = read_past(self._calls, self._settings, is_claiming=is_held)
            try:
                past = self._run(flow)
            finally:
                with self._lock:
                    self._set_past(past)
                self._wake()
            self._is_past_known = True

    # ---- waiting ---------------------------------------------------------------------------------

    def _wait_for_room(self) -> None:
        """Wait until fewer than `max_pending_bytes` are pending.

        The caller must hold the lock. In a callback this returns immediately, because otherwise the
        background thread would wait for itself.
        """
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
        """Raise RuntimeError in a forked process, because it has no background thread."""
        if self._background.is_forked:
            raise RuntimeError(
                "a producer cannot be used in a forked process; nothing was applied. Create a new"
                " producer there"
            )

    def _refuse_nested(self, call: str) -> None:
        """Raise RuntimeError in a signal handler that has interrupted a call that has the lock."""
        if self._lock.locked() and is_called(_LOCKING, "self", self, sys._getframe(2)):
            raise RuntimeError(
                f"{call}() cannot be called in a signal handler that has interrupted a call of the"
                " same producer; nothing was applied. Set a flag in the handler, and call it later"
            )

    def _wake(self) -> None:
        self._background.loop.call_soon_threadsafe(self._pump.step)

    def end_process(self) -> None:
        """Wait up to five seconds for pending messages. Called when the process ends."""
        if self._is_ended or not (self.pending_count or self._is_to_retire):
            return
        try:
            self.close(_EXIT_SECONDS)
        except ClientError as error:
            _log.error("closing the producer %s at process exit failed: %s", self.id, error)

    def _report(self, events: list[BatchEvent]) -> None:
        super()._report(events)
        with self._lock:
            self._changed.notify_all()

    def _refuse_in_callback(self, call: str) -> None:
        if self._background.is_here:
            raise RuntimeError(
                f"{call}() cannot be called in a callback: it would block the thread that sends"
                " batches"
            )


_LOCKING: Final = frozenset(
    function.__code__
    for function in (
        Producer.append,
        Producer.close_stream,
        Producer._read_past,
        Producer._drain,
        Producer._give_up,
    )
)


# ---- the event loop that the producers of a process share ----------------------------------------

_lock = fork_safe_lock()
_current: "Background | None" = None


class Background:
    """An event loop that runs on a background thread until the process ends."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.is_forked = False  # True in a forked process: the thread does not exist there
        self.at_exit: WeakSet[Producer] = WeakSet()
        self._thread = threading.Thread(target=self._run, name="semel-client", daemon=True)
        self._thread.start()
        atexit.register(self._stop)

    @property
    def is_here(self) -> bool:
        """True if the caller runs on the background thread."""
        return threading.current_thread() is self._thread

    @property
    def is_alive(self) -> bool:
        """True if the background thread runs. In a forked process the thread does not exist."""
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
    """Return this process's background event loop. The first call starts it."""
    global _current  # noqa: PLW0603 - there is one for each process
    with _lock:
        if _current is None or not _current.is_alive:
            _current = Background()
        return _current


def _mark_fork() -> None:
    if _current is not None:
        _current.is_forked = True


os.register_at_fork(after_in_child=_mark_fork)
