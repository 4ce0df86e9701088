"""The worker processes of a run: started, killed, stopped for a while, and asked to leave."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from time import monotonic, sleep
from typing import Any, Final, NamedTuple

from tests.forks import fork_context

# What a worker counts, by index.
COMMITS: Final = 0
REFUSED: Final = 1
FAILURES: Final = 2
ASSIGNED: Final = 3
REVOKED: Final = 4
LOST_STREAMS: Final = 5
JOINS: Final = 6
COUNTS: Final = 7

_KINDS: Final = ("client", "raw")
_LEAVE_SECONDS_MAX: Final = 60.0
_LOOK_SECONDS: Final = 0.01

Work = Callable[..., None]  # task, name, tally, and whether to leave


class Tally:
    """The counts of one worker, in a sequence that is shared with the parent process."""

    def __init__(self, counts: Any, slot: int) -> None:
        self._counts = counts
        self._start = slot * COUNTS
        self._lock = threading.Lock()

    def add(self, what: int, count: int = 1) -> None:
        with self._lock:
            self._counts[self._start + what] += count


class Leave:
    """An event that is shared by processes, without a lock that a killed process could keep."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def set(self) -> None:
        self._value.value = 1

    def is_set(self) -> bool:
        return bool(self._value.value)

    def wait(self) -> None:
        """Wait until the event is set."""
        while not self.is_set():
            sleep(_LOOK_SECONDS)


def run_worker(work: Work, task: object, name: str, counts: Any, slot: int, leave: Leave) -> None:
    """Run a worker in its own process, which exits when its parent exits."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent kills its workers
    threading.Thread(target=_end_with_parent, daemon=True).start()
    work(task, name, Tally(counts, slot), leave)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


class Worker(NamedTuple):
    """A worker process. Its name has the number of the slot and counts the restarts."""

    slot: int
    name: str
    work: Work
    task: object
    process: BaseProcess
    leave: Leave


class Crew:
    """Worker processes, each in a slot. A slot is used again when its worker has ended."""

    def __init__(self, task: object, slots: int) -> None:
        self._context = context = fork_context()
        self._task = task
        self._counts = context.Array("q", COUNTS * slots, lock=False)
        self._free = list(range(slots))
        self._started = 0
        self._stopped: set[int] = set()
        self.workers: dict[int, Worker] = {}

    def count(self, what: int) -> int:
        """Return the sum of a count over all workers, also those that have ended."""
        return sum(self._counts[what::COUNTS])

    @property
    def running(self) -> list[Worker]:
        """The workers that are not stopped."""
        return [each for slot, each in self.workers.items() if slot not in self._stopped]

    def start(self, work: Work, task: object = None) -> Worker:
        """Start a worker in a free slot. By default it gets the task of the crew."""
        slot = self._free.pop(0)
        leave = Leave(self._context.Value("b", 0, lock=False))
        self._started += 1
        name = f"w{slot}-{self._started}"
        task = task or self._task
        arguments = (work, task, name, self._counts, slot, leave)
        process = self._context.Process(target=run_worker, args=arguments, daemon=True)
        process.start()
        self.workers[slot] = worker = Worker(slot, name, work, task, process, leave)
        return worker

    def kill(self, worker: Worker) -> None:
        """Kill a worker as `kill -9` does."""
        worker.process.kill()
        worker.process.join()
        self._remove(worker)

    def leave(self, worker: Worker) -> None:
        """Ask a worker to leave, and wait until it has ended. It must end without an error."""
        worker.leave.set()
        worker.process.join(_LEAVE_SECONDS_MAX)
        if worker.process.exitcode != 0:
            raise AssertionError(f"{worker.name} has not left: {worker.process.exitcode}")
        self._remove(worker)

    def leave_all(self) -> None:
        """Ask all workers to leave at once, and wait until they have ended."""
        for worker in self.workers.values():
            worker.leave.set()
        for worker in list(self.workers.values()):
            self.leave(worker)

    def stop(self, worker: Worker, seconds: float) -> None:
        """Stop a worker, and let it continue after some time."""
        pid = worker.process.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        self._stopped.add(worker.slot)

        def let_continue() -> None:
            until = monotonic() + seconds
            while monotonic() < until and worker.process.is_alive():
                sleep(_LOOK_SECONDS)
            if worker.process.is_alive():
                os.kill(pid, signal.SIGCONT)
            self._stopped.discard(worker.slot)

        threading.Thread(target=let_continue, daemon=True).start()

    def ended(self) -> list[Worker]:
        """Remove the workers that have ended by themselves, and return them."""
        found = [each for each in self.workers.values() if not each.process.is_alive()]
        for worker in found:
            worker.process.join()
            self._remove(worker)
        return found

    def close(self) -> None:
        """Kill all workers."""
        for worker in list(self.workers.values()):
            self.kill(worker)

    def _remove(self, worker: Worker) -> None:
        del self.workers[worker.slot]
        self._stopped.discard(worker.slot)
        self._free.append(worker.slot)
