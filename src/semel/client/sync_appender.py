"""Sends the plain appends of a `Client`. Threads that append to one stream share requests.

There is no thread of its own: the caller that has the turn sends the appends of all callers that
wait, and then wakes them.
"""

import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final
from weakref import WeakSet

from semel.client.append_lanes import AppendLane, AppendLanes, left_error, send_unshared, wakers
from semel.client.append_queue import AppendBatch, PendingAppend
from semel.client.stream_calls import StreamCalls
from semel.client.sync_driver import SyncDriver
from semel.client.transport import FOREVER
from semel.client.values import Receipt
from semel.wire.schema.producers import RetireEntry


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
                if append.is_pending:
                    self._leave(lane, append)
            raise
        return append.result()

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
        seconds = append.deadline - time.monotonic()
        if not waker.acquire(timeout=-1 if seconds == FOREVER else max(seconds, 0)):
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
        for waker in wakers(done, turn):
            waker.release()
        if turn is None and self._lanes.is_closed:
            self._has_changed.notify_all()


_appenders: Final[WeakSet[SyncAppender]] = WeakSet()


def _reset_all() -> None:
    for appender in list(_appenders):
        appender.reset()


os.register_at_fork(after_in_child=_reset_all)
