"""How plain appends are sent: by the threads of a Client, or by the tasks of an AsyncClient.

Which appends share a request is decided in `append_queue.py`. How a request is numbered and sent
again is decided in `append_lanes.py`.
"""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final
from weakref import WeakSet

from semel.client.append_lanes import AppendLane, AppendLanes, send_unshared
from semel.client.append_queue import left_error, to_wake
from semel.client.async_driver import AsyncDriver, seconds_until
from semel.client.pending_append import AppendBatch, PendingAppend
from semel.client.stream_calls import StreamCalls
from semel.client.sync_driver import SyncDriver
from semel.client.transport import FOREVER
from semel.client.values import Receipt
from semel.wire.schema.producers import RetireEntry

# ---- by threads ----------------------------------------------------------------------------------
# There is no thread of its own: the caller that has the turn sends the appends of all callers that
# wait, and then wakes them.

_RECHECK_SECONDS: Final = 1.0  # a caller looks so often whether it was forgotten to be woken


class SyncAppender:
    """The plain appends of a client. `new_id` returns a random id."""

    def __init__(self, driver: SyncDriver, new_id: Callable[[], str], *, is_retrying: bool) -> None:
        self._driver = driver
        self._lanes = AppendLanes(new_id, time.monotonic, is_retrying=is_retrying)
        self._lock = threading.Lock()
        self._has_changed = threading.Condition(self._lock)  # used by `close` only
        _appenders.add(self)

    def append(self, calls: StreamCalls, append: PendingAppend) -> Receipt:
        """Send an append and return its receipt. An append without messages closes the stream."""
        if calls.is_foreign:
            seconds = append.deadline - time.monotonic()
            return self._driver.run(send_unshared(calls, append), seconds)
        lane = self._lanes.find(calls)
        if lane is None:
            with self._lock:
                lane = self._lanes.open_lane(calls)
        self._lanes.check_open()
        if lane.calls.is_foreign:
            seconds = append.deadline - time.monotonic()
            return self._driver.run(send_unshared(lane.calls, append), seconds)
        lane.prepare(append)
        try:
            with self._lock:
                batch = lane.queue.start(append)
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

    def _repair(self, lane: AppendLane, append: PendingAppend) -> None:
        """Take out an append whose thread was interrupted, perhaps in the middle of a change."""
        queue = lane.queue
        in_flight = queue.in_flight
        if append.is_pending:
            self._leave(lane, append)
        elif queue.turn is append:
            self._wake(lane, queue.interrupt())
        self._wake(lane, [other for other in in_flight if other.is_done])

    def close(self, deadline: float) -> list[RetireEntry]:
        """Accept no more appends, and wait for the others until the deadline.

        Return the producers that can be retired.
        """
        with self._lock:
            self._lanes.is_closed = True
            while not self._lanes.is_idle:
                seconds = deadline - time.monotonic()
                if seconds <= 0:
                    break
                self._has_changed.wait(None if seconds == FOREVER else seconds)
            return self._lanes.retirements()

    def reset(self) -> None:
        """Forget everything, in a forked process. The appends belong to threads of the parent."""
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
        if not waker.acquire(timeout=min(seconds, _RECHECK_SECONDS)) and seconds < _RECHECK_SECONDS:
            self._end_wait(lane, append)

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


_appenders: Final[WeakSet[SyncAppender]] = WeakSet()


def _reset_all() -> None:
    for appender in list(_appenders):
        appender.reset()


os.register_at_fork(after_in_child=_reset_all)


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
