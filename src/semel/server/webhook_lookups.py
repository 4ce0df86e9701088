"""Lookups of the names of targets, on threads of their own, for the loop of the deliveries.

A lookup can block for a minute, if the name servers of a name are unreachable. So each class of
targets has its own threads, a name is looked up by one thread at a time, and a lookup that nobody
waits for any more is not started.
"""

import asyncio
import contextlib
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from typing import Any, Final

from semel.server.host_names import to_address
from semel.server.webhook_targets import Address

Lookup = Callable[..., Iterable[Any]]  # like socket.getaddrinfo


class LookupFailed(OSError):
    """A name has no addresses, or they cannot be found out."""


class _Job:
    """A lookup for which at least one caller waits, or has waited."""

    __slots__ = ("future", "name", "waiting")

    def __init__(self, name: str, future: "asyncio.Future[tuple[Address, ...]]") -> None:
        self.name = name
        self.future = future
        self.waiting = 0


class NameLookups:
    """Looks up names on at most `threads` threads. Called on the loop that is running."""

    def __init__(self, threads: int, lookup: Lookup = socket.getaddrinfo) -> None:
        self._loop = asyncio.get_running_loop()
        self._threads_max = threads
        self._lookup: Final = lookup
        self._jobs: dict[str, _Job] = {}
        self._queue: deque[_Job] = deque()
        self._inputs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread_count = self._busy_count = 0

    async def addresses(self, name: str) -> tuple[Address, ...]:
        """Return all addresses of a name, in the order in which to try them. Raises LookupFailed.

        A caller that is cancelled leaves the lookup to the others that wait for it.
        """
        job = self._jobs.get(name)
        if job is None:
            job = self._jobs[name] = _Job(name, self._loop.create_future())
            self._queue.append(job)
        job.waiting += 1
        self._start()
        try:
            return await asyncio.shield(job.future)
        finally:
            job.waiting -= 1

    def close(self) -> None:
        """End the threads that are idle. One that is blocked ends with its process."""
        self._queue.clear()
        for _ in range(self._thread_count):
            self._inputs.put(None)

    # ---- threads ---------------------------------------------------------------------------------

    def _start(self) -> None:
        """Start lookups, as long as there are threads."""
        while self._queue and self._busy_count < self._threads_max:
            job = self._queue.popleft()
            if not job.waiting:
                del self._jobs[job.name]
                continue
            if self._busy_count == self._thread_count:
                self._thread_count += 1
                # Not a ThreadPoolExecutor: the end of the process would wait for its threads.
                threading.Thread(target=self._run, name="semel-lookups", daemon=True).start()
            self._busy_count += 1
            self._inputs.put(job)

    def _run(self) -> None:
        while (job := self._inputs.get()) is not None:
            result: tuple[Address, ...] | Exception
            try:
                result = _parse(self._lookup(job.name, None, type=socket.SOCK_STREAM))
            except Exception as error:  # noqa: BLE001 - the boundary of a thread
                result = error
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._end, job, result)

    def _end(self, job: _Job, result: tuple[Address, ...] | Exception) -> None:
        self._busy_count -= 1
        del self._jobs[job.name]
        if isinstance(result, tuple):
            job.future.set_result(result)
        else:
            job.future.set_exception(_failure(result))
            job.future.exception()  # perhaps no caller waits any more
        self._start()


def _parse(found: Iterable[Any]) -> tuple[Address, ...]:
    """Return the different addresses in a result of getaddrinfo. Raises LookupFailed."""
    addresses: dict[Address, None] = {}
    for *_, sockaddr in found:
        address = to_address(sockaddr[0])
        if address is None:
            raise LookupFailed("the name cannot be resolved")
        addresses[address] = None
    if not addresses:
        raise LookupFailed("the name has no address")
    return tuple(addresses)


def _failure(error: Exception) -> LookupFailed:
    if isinstance(error, LookupFailed):
        return error
    return LookupFailed("the name cannot be resolved")
