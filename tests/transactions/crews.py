"""Crews: several clients on threads, some of them connected through a fault proxy."""

import threading
from collections.abc import Callable, MutableSequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Final, NamedTuple, Protocol

from semel import Client
from semel.testing import Action, FaultPlan, FaultProxy
from tests.transactions.notes import Notes
from tests.transactions.raw_workers import RawWorker
from tests.transactions.readers import WAYS, catch_up, follow
from tests.transactions.workers import Worker
from tests.transactions.writers import STREAMS, Writer

_KINDS: Final = tuple(action.value for action in Action if action is not Action.PASS)
_WRITERS: Final = 4
_WORKERS: Final = 2
_CALL_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 0.05


class Job(NamedTuple):
    """The settings that all crews of a run share."""

    url: str
    folder: Path
    fault_rate: float
    seed: int


class Over(Protocol):
    """An event that is set by another thread or by another process."""

    def wait(self, timeout: float) -> bool: ...


class Crew:
    """A set of threads. `join` raises the first error that one of them raised."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    def start(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=self._guard, args=(work, arguments))
        self._threads.append(thread)
        thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()
        if self.errors:
            raise self.errors[0]

    def _guard(self, work: Callable[..., None], arguments: tuple[object, ...]) -> None:
        try:
            work(*arguments)
        except BaseException as error:  # noqa: BLE001 - raised by join
            self.errors.append(error)


def _proxy(job: Job, random: Random) -> FaultProxy:
    plan = FaultPlan(
        dict.fromkeys(_KINDS, job.fault_rate),
        seed=random.getrandbits(32),
        delay_seconds=(0.0, 0.1),
        trickle_seconds=0.0002,
        reorder_seconds=0.1,
        stall_seconds=0.5,
    )
    return FaultProxy(job.url, plan)


def run_writers(
    job: Job,
    name: str,
    over: Over,
    progress: MutableSequence[int],
    slot: int,
) -> None:
    """Commit until `over` is set.

    `progress[2 * slot]` counts the commits of writers, `progress[2 * slot + 1]` those of workers.
    Every second client uses the fault proxy. Workers keep their producer ids after a kill.
    """
    random = Random(f"{job.seed}-{name}")
    notes = Notes(job.folder / f"{name}.notes")
    told = threading.Event()
    lock = threading.Lock()
    crew = Crew()

    def on_commit() -> None:
        with lock:
            progress[2 * slot] += 1

    def on_work() -> None:
        with lock:
            progress[2 * slot + 1] += 1

    with _proxy(job, random) as proxy, ExitStack() as stack:
        urls = (job.url, proxy.url)
        for number in range(_WRITERS):
            mine = Random(random.random())
            writer = Writer(urls[number % 2], notes, f"{name}.{number}", mine, told, on_commit)
            crew.start(writer.run)
        client = stack.enter_context(Client(urls[slot % 2], timeout=_CALL_SECONDS))
        for number in range(1 if slot else _WORKERS):
            mine = Random(random.random())
            id = f"worker-{slot}-{number}"
            worker = Worker(client, notes, f"{name}.w{number}", mine, told, on_work, id)
            crew.start(worker.run)
        mine = Random(random.random())
        raw = RawWorker(urls[1 - slot % 2], notes, f"{name}.raw", mine, told, on_work)
        crew.start(raw.run)
        while not (over.wait(_LOOK_SECONDS) or crew.errors):
            pass
        told.set()
        crew.join()
    notes.close()


def run_readers(job: Job, over: Over) -> None:
    """Read until `over` is set, and tail until the streams are closed."""
    random = Random(f"{job.seed}-readers")
    notes = Notes(job.folder / "readers.notes")
    told = threading.Event()
    crew = Crew()
    with _proxy(job, random) as proxy:
        for number, where in enumerate((job.url, proxy.url)):
            mine = Random(random.random())
            crew.start(catch_up, where, notes, f"catch-up-{number}", mine, told)
        for index, stream in enumerate(STREAMS):
            for way in WAYS:
                where = proxy.url if index % 3 == 0 else job.url
                crew.start(follow, where, notes, stream, way)
        while not (over.wait(_LOOK_SECONDS) or crew.errors):
            pass
        told.set()
        crew.join()
    notes.close()
