"""Two ways to run work: on a separate thread, or on the event loop for a limited time per turn."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from time import monotonic
from typing import Any, Final

Job = tuple[Callable[[], Any], Callable[[Any], None]]


class Worker:
    """A thread that runs jobs outside the event loop.

    If a job raises, `on_error` is called on the loop with the exception, and the thread ends.
    """

    def __init__(self, name: str, on_error: Callable[[BaseException], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_error = on_error
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def do(self, job: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Run `job` on the thread. Then call `then` on the loop with the job's result."""
        self._jobs.put((job, then))

    def stop(self) -> None:
        """Run the remaining jobs and end the thread."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, then = item
            try:
                result = job()
            except BaseException as error:  # noqa: BLE001 - the boundary of a background task
                self._loop.call_soon_threadsafe(self._on_error, error)
                return
            self._loop.call_soon_threadsafe(self._deliver, then, result)

    def _deliver(self, then: Callable[[Any], None], result: object) -> None:
        try:
            then(result)
        except Exception as error:  # noqa: BLE001 - the boundary of a background task
            self._on_error(error)


# ---- turns of the loop ---------------------------------------------------------------------------
# Reads run on the loop, for a limited time per turn. This is the second of three limits on reads.
# `semel.server.admission` describes all three.


_READING_SECONDS_MAX: Final = 0.005


class ReadTurns:
    """A queue that runs reads in order, for a limited time per turn of the loop.

    When this time is used up, the remaining reads wait for a later turn. Each turn runs at least
    one waiting read.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[Callable[[], None]] = deque()
        self._seconds = 0.0  # the time that reads have used in this turn of the loop
        self._is_due = False

    def begin(self, read: Callable[[], None]) -> None:
        """Run `read` now, or queue it if reads are waiting or this turn's time is used up."""
        if self._waiting or self._seconds > _READING_SECONDS_MAX:
            self._waiting.append(read)
        else:
            self._run(read)
        self._call_soon()

    def finish(self) -> None:
        """Run all queued reads."""
        while self._waiting:
            self._run(self._waiting.popleft())

    def drop(self) -> None:
        """Drop all queued reads without running them."""
        self._waiting.clear()

    def _run(self, read: Callable[[], None]) -> None:
        started = monotonic()
        read()
        self._seconds += monotonic() - started

    def _call_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._is_due = False
        self._seconds = 0.0
        while self._waiting and self._seconds <= _READING_SECONDS_MAX:
            self._run(self._waiting.popleft())
        if self._waiting:
            self._call_soon()
