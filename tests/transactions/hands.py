"""Two ways to run the crews: in processes that can be killed, or on threads of this process."""

import multiprocessing
import os
import threading
from multiprocessing.process import BaseProcess
from multiprocessing.sharedctypes import Synchronized
from random import Random
from time import sleep
from typing import Final, Protocol

from tests.transactions.crews import Crew, Job, run_readers, run_writers
from tests.transactions.judge import Failed


class Hands(Protocol):
    """The crews of a run."""

    @property
    def job(self) -> Job: ...

    def start(self) -> None: ...

    def committed(self) -> int: ...

    def taken(self) -> int: ...

    def kill_a_crew(self, random: Random) -> None: ...

    def require_alive(self) -> None: ...

    def end_writers(self) -> None: ...

    def end_readers(self) -> None: ...


class _Flag:
    """An event between processes that still works after a waiting process was killed.

    A waiting process exits when its parent process has ended.
    """

    def __init__(self, shared: "Synchronized[int]") -> None:
        self._shared = shared

    def set(self) -> None:
        self._shared.value = 1

    def wait(self, timeout: float) -> bool:
        parent = multiprocessing.parent_process()
        if parent is not None and not parent.is_alive():
            os._exit(1)
        if not self._shared.value:
            sleep(timeout)
        return bool(self._shared.value)


class InProcesses:
    """Runs each crew of writers in its own process, and all readers in one more process."""

    def __init__(self, job: Job, crews: int) -> None:
        self.job: Final = job
        self._context = multiprocessing.get_context("spawn")  # a fork inherits pipes
        self._over = _Flag(self._context.Value("b", 0, lock=False))
        self._count = crews
        self._progress = self._context.Array("q", 2 * crews, lock=False)
        self._started = 0
        self._crews: list[BaseProcess] = []
        self._readers: BaseProcess = self._context.Process(
            target=run_readers, args=(job, self._over), daemon=True
        )

    def start(self) -> None:
        self._readers.start()
        self._crews = [self._start_crew(slot) for slot in range(self._count)]

    def _start_crew(self, slot: int) -> BaseProcess:
        name = f"crew{self._started}"
        self._started += 1
        process = self._context.Process(
            target=run_writers,
            args=(self.job, name, self._over, self._progress, slot),
            daemon=True,
        )
        process.start()
        return process

    def committed(self) -> int:
        return sum(self._progress)

    def taken(self) -> int:
        return sum(self._progress[1::2])

    def kill_a_crew(self, random: Random) -> None:
        """Kill the process of a crew while it works, and start a new crew in the same slot."""
        slot = random.randrange(len(self._crews))
        self._crews[slot].kill()
        self._crews[slot].join()
        self._crews[slot] = self._start_crew(slot)

    def require_alive(self) -> None:
        if not all(each.is_alive() for each in (*self._crews, self._readers)):
            raise Failed("a client process has ended; its error is printed above")

    def end_writers(self) -> None:
        self._over.set()
        _join(self._crews)

    def end_readers(self) -> None:
        _join([self._readers])


def _join(processes: list[BaseProcess]) -> None:
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise Failed("a client process has failed; its error is printed above")


class InThreads:
    """Runs the crews on threads of this process, which cannot be killed."""

    def __init__(self, job: Job, crews: int) -> None:
        self.job: Final = job
        self._over = threading.Event()
        self._count = crews
        self._progress = [0] * 2 * crews
        self._writers = Crew()
        self._readers = Crew()

    def start(self) -> None:
        self._readers.start(run_readers, self.job, self._over)
        for slot in range(self._count):
            name = f"crew{slot}"
            self._writers.start(run_writers, self.job, name, self._over, self._progress, slot)

    def committed(self) -> int:
        return sum(self._progress)

    def taken(self) -> int:
        return sum(self._progress[1::2])

    def kill_a_crew(self, random: Random) -> None:
        raise NotImplementedError

    def require_alive(self) -> None:
        for error in (*self._writers.errors, *self._readers.errors):
            raise error

    def end_writers(self) -> None:
        self._over.set()
        self._writers.join()

    def end_readers(self) -> None:
        self._readers.join()
