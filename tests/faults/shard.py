"""A shard of the run: two fault proxies, two streams, and all kinds of clients on each stream."""

import threading
from collections import Counter
from collections.abc import Callable, MutableSequence, Sequence
from random import Random
from typing import Final, Protocol

from semel import Client
from semel.testing import Action, FaultPlan, FaultProxy, check_history
from tests.faults import appenders, producers, readers
from tests.faults.notes import Notes, Work

KINDS: Final = tuple(action.value for action in Action if action is not Action.PASS)
_DOUBLING: Final = (Action.DUPLICATE_BEFORE, Action.DUPLICATE_AFTER)
_STREAMS: Final = {"json": "application/json", "bytes": "application/octet-stream"}
_RATE: Final = 0.008
_LOOK_SECONDS: Final = 0.05
_SHOWN_MAX: Final = 20


class Over(Protocol):
    """An event of `threading` or of `multiprocessing`."""

    def wait(self, timeout: float) -> bool: ...


class Failed(Exception):
    """Raised when a promise is broken; the message names it."""


def run_shard(
    url: str, number: int, seed: int, over: Over, progress: MutableSequence[int]
) -> Counter[str]:
    """Run until `over` is set; return the counts. `progress[number]` is the number of requests."""
    random = Random(f"{seed}-{number}")
    stop = threading.Event()  # clients poll it all the time: local to this process
    with (
        FaultProxy(url, _plan(random, KINDS)) as proxy,
        FaultProxy(url, _plan(random, [kind for kind in KINDS if kind not in _DOUBLING])) as single,
        Client(url) as client,
    ):
        streams = [
            Notes(proxy.url, single.url, f"{number}/{name}", content_type, stop)
            for name, content_type in _STREAMS.items()
        ]
        for notes in streams:
            client.stream(notes.path).create(notes.content_type)
        errors: list[BaseException] = []
        writing, reading = Crew(errors), Crew(errors)
        for notes in streams:
            writing.start(notes, random, [*producers.work(), *appenders.work()])
            reading.start(notes, random, readers.work(notes.content_type))
        while not (over.wait(_LOOK_SECONDS) or errors):
            progress[number] = proxy.counts["requests"] + single.counts["requests"]
        stop.set()
        writing.join()
        for notes in streams:
            client.stream(notes.path).close()  # ends the tails
        reading.join()
        if errors:
            raise errors[0]
        total = proxy.counts + single.counts
        for notes in streams:
            total.update(_checked(client, notes))
    return total


def _plan(random: Random, kinds: Sequence[str]) -> FaultPlan:
    return FaultPlan(
        dict.fromkeys(kinds, _RATE),
        seed=random.getrandbits(32),
        delay_seconds=(0.0, 0.2),
        trickle_seconds=0.0002,
        reorder_seconds=0.1,
        stall_seconds=0.5,
    )


class Crew:
    """A set of threads; their exceptions are appended to `errors`."""

    def __init__(self, errors: list[BaseException]) -> None:
        self._errors = errors
        self._threads: list[threading.Thread] = []

    def start(self, notes: Notes, random: Random, works: list[Work]) -> None:
        for work in works:
            mine = Random(random.random())
            thread = threading.Thread(target=self._guard, args=(work, notes, mine))
            self._threads.append(thread)
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _guard(self, work: Callable[[Notes, Random], None], notes: Notes, random: Random) -> None:
        try:
            work(notes, random)
        except BaseException as error:  # noqa: BLE001 - raised by run_shard
            self._errors.append(error)


def _checked(client: Client, notes: Notes) -> Counter[str]:
    """Check the recorded history against the stream, and return the counts."""
    history = notes.history
    started_at = history.clock()
    log = [message.raw.decode().strip('"') for message in client.stream(notes.path).read()]
    history.read(log, invoked_at=started_at, reader="the end")
    violations = check_history(history, log)
    if violations:
        shown = "\n".join(f"  {violation}" for violation in violations[:_SHOWN_MAX])
        raise Failed(f"{notes.path}: {len(violations)} violations\n{shown}")
    if notes.unexpected_errors:
        raise Failed(f"{notes.path}: a producer failed with {notes.unexpected_errors[0]!r}")
    for live in readers.ways_to_follow(notes.content_type):
        if notes.counts[f"messages read: {live}"] != len(log):
            raise Failed(f"{notes.path}: a tail by {live} did not reach the end")
    unknown = {each.value for each in history.operations if each.outcome == "indeterminate"}
    notes.count("appends indeterminate, and stored", len(unknown.intersection(log)))
    notes.count("messages", len(log))
    return notes.counts
