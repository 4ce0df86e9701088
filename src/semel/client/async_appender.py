"""Sends the plain appends of an `AsyncClient`. Tasks that append to one stream share requests.

An append that finds no request in flight is sent by the task that called it. The requests after it
are sent by tasks of their own, so that the cancellation of a caller does not touch the others.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from semel.client.append_lanes import AppendLane, AppendLanes, left_error, send_unshared, wakers
from semel.client.append_queue import AppendBatch, PendingAppend
from semel.client.async_driver import AsyncDriver
from semel.client.stream_calls import StreamCalls
from semel.client.transport import FOREVER
from semel.client.values import Receipt
from semel.wire.schema.producers import RetireEntry


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
            await asyncio.wait([self._closing], timeout=_seconds_until(deadline))
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
            async with asyncio.timeout(_seconds_until(append.deadline)):
                await waker
        except TimeoutError:
            if append.is_done:
                return
            error = left_error(append)
            self._wake(lane.queue.leave(append, is_sender=False))
            raise error from None

    def _wake(self, done: Iterable[PendingAppend]) -> None:
        for waker in wakers(done, None):
            if not waker.done():
                waker.set_result(None)


def _seconds_until(deadline: float) -> float | None:
    return None if deadline == FOREVER else max(deadline - time.monotonic(), 0)
