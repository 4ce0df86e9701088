"""The event loop that the sync producers of this process share."""

import asyncio
import atexit
import os
import threading
from typing import Protocol
from weakref import WeakSet

_lock = threading.Lock()
_current: "Background | None" = None


class EndsWithProcess(Protocol):
    """Something that may have work left when the process ends."""

    def end_process(self) -> None:
        """Do it now, or say that it is lost."""


class Background:
    """A loop that runs on a thread of its own, as long as the process does."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.is_forked = False  # this is a copy, in a process that has no such thread
        self.at_exit: WeakSet[EndsWithProcess] = WeakSet()
        self._thread = threading.Thread(target=self._run, name="semel-client", daemon=True)
        self._thread.start()
        atexit.register(self._stop)

    @property
    def is_here(self) -> bool:
        """Whether the caller runs on its thread."""
        return threading.current_thread() is self._thread

    @property
    def is_alive(self) -> bool:
        """Whether the thread is there: a fork of the process has none."""
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
    """Give the loop, started when it is first needed."""
    global _current  # noqa: PLW0603 - one for the process is the point
    with _lock:
        if _current is None or not _current.is_alive:
            _current = Background()
        return _current


def _mark_fork() -> None:
    if _current is not None:
        _current.is_forked = True


os.register_at_fork(after_in_child=_mark_fork)
