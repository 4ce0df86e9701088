"""Something asynchronous that a test without an event loop can hold as well."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

_PATIENCE_SECONDS: Final = 60.0  # for a busy machine; nothing that runs here takes as long


class BackgroundLoop:
    """An event loop on a thread of its own.

    It is asyncio's own: closing one of uvloop's waits for every handle, and may wait for ever for
    a connection that was accepted while the listener closed.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine there, and wait for its end."""
        asyncio.run_coroutine_threadsafe(work, self._loop).result(_PATIENCE_SECONDS)

    def stop(self) -> None:
        """Cancel what still runs, and end the thread."""
        self.run(self._cancel_tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _cancel_tasks(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._loop.shutdown_asyncgens()
        await self._loop.shutdown_default_executor()  # it looks addresses up on threads


class Home:
    """Where a thing lives while it is open: on the caller's loop, or on one of its own."""

    def __init__(
        self,
        name: str,
        opened: Callable[[], Awaitable[None]],
        closed: Callable[[], Awaitable[None]],
    ) -> None:
        self._name = name
        self._opened = opened
        self._closed = closed
        self._background: BackgroundLoop | None = None

    def enter(self) -> None:
        """Open it on a loop of its own."""
        background = BackgroundLoop(self._name)
        try:
            background.run(self.enter_here())
        except BaseException:
            background.stop()
            raise
        self._background = background

    def leave(self) -> None:
        """Close what `enter` opened; once is enough."""
        background, self._background = self._background, None
        if background is None:
            return
        try:
            background.run(self.leave_here())
        finally:
            background.stop()

    async def enter_here(self) -> None:
        """Open it on the loop that runs."""
        await self._opened()

    async def leave_here(self) -> None:
        """Close it on the loop that runs."""
        await self._closed()
