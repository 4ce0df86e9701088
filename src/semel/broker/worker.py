"""A thread that runs one job after another and passes the results to the event loop."""

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

Job = tuple[Callable[[], Any], Callable[[Any], None]]


class Worker:
    """Runs jobs outside the loop. If one raises, `on_error` gets the error and the thread ends."""

    def __init__(self, name: str, on_error: Callable[[BaseException], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_error = on_error
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def do(self, job: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Run `job` on the thread, then `then(result)` on the loop."""
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
