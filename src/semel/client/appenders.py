"""How plain appends are sent: by the threads of a Client, or by the tasks of an AsyncClient.

Which appends share a request is decided in `append_queue.py`. How a request is numbered and sent
again is decided in `append_lanes.py`.
"""

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from semel.client.append_lanes import AppendLane, AppendLanes, send_unshared
from semel.client.append_queue import left_error, to_wake
from semel.client.async_driver import AsyncDriver, seconds_until
from semel.client.pending_append import AppendBatch, PendingAppend
from semel.client.stream_calls import StreamCalls
from semel.client.sync_driver import SyncDriver, is_called
from semel.client.transport import reset_in_child
from semel.client.values import Receipt
from semel.wire.schema.producers import RetireEntry

# ---- by threads ----------------------------------------------------------------------------------
# There is no thread of its own: the caller that has the turn sends the appends of all callers that
# wait, and then wakes them.

_RECHECK_SECONDS: Final = 0.1  # how often a caller checks for a result that was not reported to it


class SyncAppender:
    """The plain appends of a client. `new_id` returns a random id.

    Ctrl-C can interrupt a thread at any point. If it also interrupts the repair after that, the
    turn stays with a call that has ended. The next caller, or one that waits, finds this out.

    An append in a signal handler must not wait for the call that it has interrupted. It is sent on
    its own, without a number.
    """

    def __init__(self, driver: SyncDriver, new_id: Callable[[], str], *, is_retrying: bool) -> None:
        self._driver = driver
        self._lanes = AppendLanes(new_id, time.monotonic, is_retrying=is_retrying)
        self._lock = threading.Lock()
        self._has_changed = threading.Condition(self._lock)  # used by `close` only
        reset_in_child(self)

    def append(self, calls: StreamCalls, append: PendingAppend) -> Receipt:
        """Send an append and return its receipt. An append without messages closes the stream."""
        if calls.is_foreign:
            return self._send_alone(calls, append)
        lane = self._lanes.find(calls)
        if lane is None:
            if self._is_nested():
                return self._send_alone(calls, append)
            with self._lock:
                lane = self._lanes.open_lane(calls)
        self._lanes.check_open()
        if lane.calls.is_foreign:
            return self._send_alone(lane.calls, append)
        lane.prepare(append)
        if (lane.queue.turn is not None or self._lock.locked()) and self._is_nested():
            return self._send_alone(lane.calls, append)
        append.thread = threading.get_ident()
        try:
            with self._lock:
                batch = self._start(lane, append)
            if batch is not None:
                self._deliver(lane, append, batch)
            while not append.is_done:
                if lane.queue.turn is append:
                    self._send(lane, append)
                else:
                    self._wait(lane, append)
        except BaseException:
            with self._lock:
                self._repair(lane, append)
            raise
        return append.result()

    def _start(self, lane: AppendLane, append: PendingAppend) -> AppendBatch | None:
        turn = lane.queue.turn
        if turn is not None and turn.thread == append.thread:
            self._repair(lane, turn)  # the earlier call of this thread has ended: see `_is_nested`
        return lane.queue.start(append)

    def _send_alone(self, calls: StreamCalls, append: PendingAppend) -> Receipt:
        seconds = append.deadline - time.monotonic()
        return self._driver.run(send_unshared(calls, append), seconds)

    def _is_nested(self) -> bool:
        """Return True if this call was made by a signal handler that has interrupted an append."""
        return is_called(_APPEND, "self", self, sys._getframe(2))

    def _repair(self, lane: AppendLane, append: PendingAppend) -> None:
        """Remove an append whose thread was interrupted, perhaps in the middle of a change."""
        queue = lane.queue
        in_flight = queue.in_flight
        if append.is_pending:
            self._leave(lane, append)
        elif queue.turn is append:
            self._wake(lane, queue.interrupt())
        self._wake(lane, [other for other in in_flight if other.is_done])

    def _check_sender(self, lane: AppendLane) -> None:
        """Pass the turn on if the call that has it has ended without doing so."""
        now = time.monotonic()
        turn = lane.queue.turn
        if turn is None or now < lane.queue.checked_at + _RECHECK_SECONDS / 2:
            return
        lane.queue.checked_at = now
        frame = sys._current_frames().get(turn.thread)
        if not is_called(_APPEND, "append", turn, frame):
            self._repair(lane, turn)

    def close(self, deadline: float) -> list[RetireEntry]:
        """Accept no more appends, and wait for the others until the deadline.

        Return the producers that can be retired. A signal handler that has interrupted an append
        does not wait, because the append cannot end before that.
        """
        self._lanes.is_closed = True
        if self._is_nested():
            return []
        with self._lock:
            while (seconds := deadline - time.monotonic()) > 0:
                for lane in self._lanes.busy:
                    self._check_sender(lane)
                if self._lanes.is_idle:
                    break
                self._has_changed.wait(min(seconds, _RECHECK_SECONDS))
            return self._lanes.retirements()

    def _after_fork(self) -> None:
        """Drop everything, in a forked process. The appends belong to threads of the parent."""
        self._lock = threading.Lock()
        self._has_changed = threading.Condition(self._lock)
        self._lanes.reset()

    def _send(self, lane: AppendLane, append: PendingAppend) -> None:
        """Send the next request. Other callers may have appends in it."""
        with self._lock:
            batch, done = lane.take(time.monotonic())
            self._wake(lane, done)
        if batch is not None:
            self._deliver(lane, append, batch)

    def _deliver(self, lane: AppendLane, append: PendingAppend, batch: AppendBatch) -> None:
        try:
            receipt = self._driver.run(lane.deliver(batch), append.deadline - time.monotonic())
        except Exception as error:  # noqa: BLE001 - the callers get it
            with self._lock:
                self._wake(lane, lane.fail(batch, error))
        else:
            with self._lock:
                self._wake(lane, lane.queue.finish(batch, receipt))

    def _wait(self, lane: AppendLane, append: PendingAppend) -> None:
        """Wait until the append is done or its caller has to send. Raise at its deadline."""
        with self._lock:
            if append.is_done or lane.queue.turn is append:
                return
            waker = append.waker = threading.Lock()
            waker.acquire()
        seconds = max(append.deadline - time.monotonic(), 0.0)
        if waker.acquire(timeout=min(seconds, _RECHECK_SECONDS)):
            return
        if seconds < _RECHECK_SECONDS:
            self._end_wait(lane, append)
        else:
            with self._lock:
                self._check_sender(lane)

    def _end_wait(self, lane: AppendLane, append: PendingAppend) -> None:
        with self._lock:
            append.waker = None
            if append.is_done:
                return
            error = left_error(append)
            self._leave(lane, append)
        raise error

    def _leave(self, lane: AppendLane, append: PendingAppend) -> None:
        is_sender = lane.queue.turn is append
        self._wake(lane, lane.queue.leave(append, is_sender=is_sender))

    def _wake(self, lane: AppendLane, done: Iterable[PendingAppend]) -> None:
        turn = lane.queue.turn
        for append in to_wake(done, turn):
            # The waker is removed last, so that an interruption before that loses nothing.
            with suppress(RuntimeError):  # it is released already
                append.waker.release()
            append.waker = None
        if turn is None and self._lanes.is_closed:
            self._has_changed.notify_all()


_APPEND: Final = frozenset({SyncAppender.append.__code__})


# ---- by tasks ------------------------------------------------------------------------------------
# An append that finds no request in flight is sent by the task that called it. Later requests are
# sent by tasks of their own, so that the cancellation of a caller does not touch the others.


class AsyncAppender:
    """The plain appends of a client. `new_id` returns a random id."""

    def __init__(
        self, driver: AsyncDriver, new_id: Callable[[], str], *, is_retrying: bool
    ) -> None:
        self._driver = driver
        self._lanes = AppendLanes(new_id, time.monotonic, is_retrying=is_retrying)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing: asyncio.Future[None] | None = None
        reset_in_child(self)

    def _after_fork(self) -> None:
        """Forget everything. The appends belong to tasks of the parent."""
        self._loop = self._closing = None
        self._tasks.clear()
        self._lanes.reset()

    async def append(self, calls: StreamCalls, append: PendingAppend) -> Receipt:
        """Send an append and return its receipt. An append without messages closes the stream."""
        if calls.is_foreign:
            seconds = append.deadline - time.monotonic()
            return await self._driver.run(send_unshared(calls, append), seconds)
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop = loop
            self._tasks.clear()
            self._lanes.reset()
        lane = self._lanes.open_lane(calls)
        if lane.calls.is_foreign:
            seconds = append.deadline - time.monotonic()
            return await self._driver.run(send_unshared(lane.calls, append), seconds)
        lane.prepare(append)
        batch = lane.queue.start(append)
        is_sender = batch is not None
        try:
            if batch is not None:
                await self._deliver(lane, batch)
                is_sender = False
            while not append.is_done:
                await self._wait(lane, append)
        except BaseException:
            if append.is_pending:
                self._wake(lane.queue.leave(append, is_sender=is_sender))
            if is_sender:
                self._continue(lane)
            raise
        return append.result()

    async def close(self, deadline: float) -> list[RetireEntry]:
        """Accept no more appends, and wait for the others until the deadline.

        Return the producers that can be retired.
        """
        self._lanes.is_closed = True
        if not self._lanes.is_idle and self._loop is asyncio.get_running_loop():
            self._closing = self._loop.create_future()
            await asyncio.wait([self._closing], timeout=seconds_until(deadline))
        return self._lanes.retirements()

    async def _send(self, lane: AppendLane) -> None:
        """Send the next request, and let the one after it be sent by another task."""
        batch, done = lane.take(time.monotonic())
        self._wake(done)
        if batch is None:
            self._continue(lane)
        else:
            await self._deliver(lane, batch)

    async def _deliver(self, lane: AppendLane, batch: AppendBatch) -> None:
        seconds = batch.deadline - time.monotonic()
        try:
            receipt = await self._driver.run(lane.deliver(batch), seconds)
        except Exception as error:  # noqa: BLE001 - the callers get it
            done = lane.fail(batch, error)
        else:
            done = lane.queue.finish(batch, receipt)
        self._wake(done)
        self._continue(lane)

    async def _send_next(self, lane: AppendLane) -> None:
        if not lane.queue.is_ready:  # its callers have left, or a later one is already sending
            self._end_closing()
            return
        try:
            await self._send(lane)
        except BaseException:  # the loop ends: its callers are cancelled as well
            self._wake(lane.queue.interrupt())
            with suppress(RuntimeError):  # the loop is closed
                asyncio.get_running_loop().call_soon(self._continue, lane)
            raise

    def _continue(self, lane: AppendLane) -> None:
        """Let the next request be sent, if there is one. No request of the lane is in flight."""
        if lane.queue.is_ready:
            assert self._loop is not None
            task = self._loop.create_task(self._send_next(lane))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self._end_closing()

    def _end_closing(self) -> None:
        """Let `close` return, if no append is left."""
        if self._closing is not None and self._lanes.is_idle and not self._closing.done():
            self._closing.set_result(None)

    async def _wait(self, lane: AppendLane, append: PendingAppend) -> None:
        """Wait until the append is done. At its deadline, raise an error."""
        waker = append.waker = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(seconds_until(append.deadline)):
                await waker
        except TimeoutError:
            if append.is_done:
                return
            error = left_error(append)
            self._wake(lane.queue.leave(append, is_sender=False))
            raise error from None

    def _wake(self, done: Iterable[PendingAppend]) -> None:
        for append in to_wake(done, None):
            if not append.waker.done():
                append.waker.set_result(None)
            append.waker = None
