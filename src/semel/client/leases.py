"""How the lease of a wake is renewed while it is processed: by a thread, or by a task.

If the wake is lost, the renewals end. The commit of the outputs is then refused. The signals that
end workers are here, too.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Self

from semel.client.async_driver import AsyncDriver, AsyncStop
from semel.client.errors import Refused
from semel.client.flows import Flow
from semel.client.sync_driver import Stop, SyncDriver

Renewal = Callable[[], Flow[object]]
_log = logging.getLogger("semel.client")


class WorkerStop(Stop):
    """The signal that ends a worker. A signal handler can set it.

    The handler has perhaps interrupted the thread that holds the lock of the signal. So another
    thread waits for the lock.
    """

    def set(self) -> None:
        """End the present wait. The other thread does it a moment later."""
        self._is_set = True
        threading.Thread(target=super().set, name="semel-stop", daemon=True).start()


class AsyncWorkerStop(AsyncStop):
    """The signal that ends a worker. It is set in the worker's event loop."""


class Lease:
    """Renews a lease every `seconds` seconds, in a thread, during a `with` block."""

    def __init__(self, driver: SyncDriver, renew: Renewal, seconds: float) -> None:
        self._driver = driver
        self._renew = renew
        self._seconds = seconds
        self._stop = Stop()
        self._thread = threading.Thread(target=self._run, name="semel-lease", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._stop.wait(self._seconds)
            if self._stop.is_set:
                return
            try:
                self._driver.run(self._renew(), self._seconds, self._stop)
            except Refused:
                return
            except Exception as error:  # noqa: BLE001 - it is tried again; the commit shows the rest
                _log.debug("the lease of a wake was not renewed: %s", error)


class AsyncLease:
    """Renews a lease every `seconds` seconds, in a task, during an `async with` block."""

    def __init__(self, driver: AsyncDriver, renew: Renewal, seconds: float) -> None:
        self._driver = driver
        self._renew = renew
        self._seconds = seconds
        self._stop = AsyncStop()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.get_running_loop().create_task(self._run())
        return self

    async def __aexit__(self, *error: object) -> None:
        self._stop.set()
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            await self._stop.wait(self._seconds)
            if self._stop.is_set:
                return
            try:
                await self._driver.run(self._renew(), self._seconds, self._stop)
            except Refused:
                return
            except Exception as error:  # noqa: BLE001 - it is tried again; the commit shows the rest
                _log.debug("the lease of a wake was not renewed: %s", error)
