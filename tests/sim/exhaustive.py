"""All crash images of a run: every boundary between two disk operations, in every crash mode.

A run is recorded: after each operation of the disk or the store a copy of both is kept. Each copy
then loses power in each mode (or the process is killed), is recovered, and is compared with what
had been decided and acknowledged at that moment.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from semel.journal.recovery import Recovered
from semel.machine import State
from semel.testing import CRASH_MODES, Death, Fail, Fault, Killed, VirtualDisk, VirtualStore
from tests.sim.demands import demand, demand_equal
from tests.sim.faults import CHANGES
from tests.sim.oracle import demand_readable, state_view
from tests.sim.oracle_txn import demand_outcomes, parts_view
from tests.sim.tap import Entry, TappedBroker
from tests.sim.world import World

STEPS = 260
KILL = "kill"
WAYS = (*CRASH_MODES, KILL)


@dataclass
class Image:
    """The disk and the store after one operation, and how far the decisions were."""

    disk: VirtualDisk
    store: VirtualStore
    decided: int
    promised_end: int
    operation: str


class Recording(World):
    """A run without faults that keeps an image after every operation."""

    def __init__(self, seed: int, txn_share: float | None = None) -> None:
        self.history: list[Entry] = []
        self.images: list[Image] = []
        super().__init__(seed, txn_share)
        self.injector.is_on = False
        self.disk.on_operation = self._keep
        self.store.on_operation = self._keep

    def _keep(self, operation: str, name: str) -> None:
        self.images.append(
            Image(
                self.disk.copy(),
                self.store.copy(),
                len(self.history),
                self.promised_end,
                f"{operation} {name}",
            )
        )

    def note(self, entry: Entry) -> None:
        """Keep all frames, not only those that are not durable yet."""
        super().note(entry)
        self.history.append(entry)

    def run_steps(self, count: int) -> None:
        """Run a random mix of commands, writes and checkpoints."""
        for _ in range(count):
            step = self.rng.choices(
                [self.ask, self.write, self.checkpoint, self.tick, self.find_room],
                [40, 42, 12, 3, 3],
            )[0]
            step()


def check_all(seed: int, txn_share: float | None = None, *, steps: int = STEPS) -> int:
    """Record a run, and check every image in every crash mode; return the number of checks."""
    run = Recording(seed, txn_share)
    run.run_steps(steps)
    count = 0
    for number, image in enumerate(run.images):
        for way in WAYS:
            _check(run, image, way, number)
            count += 1
        if number % 20 == 0:
            count += _check_crashes_in_recovery(run, image, number)
    return count


def _crashed(image: Image, way: str, number: int) -> tuple[VirtualDisk, VirtualStore]:
    disk, store = image.disk.copy(), image.store.copy()
    if way == KILL:
        disk.kill()
        store.kill()
    else:
        disk.crash(Random(number), way)  # type: ignore[arg-type]
        store.crash(Random(number))
    disk.lock()
    return disk, store


def _check(run: Recording, image: Image, way: str, number: int) -> None:
    disk, store = _crashed(image, way, number)
    recovered = run.recover(disk, store)
    _compare(run, image, recovered, f"{image.operation}, {way}")
    digest = disk.digest()
    for _ in range(2):
        disk.kill()
        disk.lock()
        again = run.recover(disk, store)
        demand_equal(state_view(again.state), state_view(recovered.state), "further recovery")
        demand_equal(parts_view(again.state), parts_view(recovered.state), "further recovery")
        demand(again.position == recovered.position, "recovery moved the journal's end")
    demand(disk.digest() == digest or way == KILL, "a further recovery changed the disk")


def _compare(run: Recording, image: Image, recovered: Recovered, what: str) -> None:
    end = recovered.position
    demand(end >= image.promised_end, f"{what}: promised {image.promised_end}, found {end}")
    state, model = State(run.limits), run._new_model()
    for entry in run.history[: image.decided]:
        if entry.end <= end:
            entry.replay(state)
            model.replay(entry.command)
    found = state_view(recovered.state)
    demand_equal(found, state_view(state), f"{what}: recovered state and live state")
    demand_equal(parts_view(recovered.state), parts_view(state), f"{what}: parts")
    demand_equal(found, model.view(), f"{what}: recovered state and model")
    broker = TappedBroker(
        recovered, monotonic_ms=lambda: 0, segment_bytes=run.segment_bytes, observer=run
    )
    demand_readable(broker, model)
    demand_outcomes(broker, model)


class _DieAt:
    """Kills the process at its n-th change of the disk."""

    def __init__(self, at: int) -> None:
        self._left = at

    def before(self, operation: str, _name: str, _size: int) -> Fault | None:
        self._left -= operation in CHANGES
        return Fail(Killed(), is_after=True) if self._left < 0 and operation in CHANGES else None


def _check_crashes_in_recovery(run: Recording, image: Image, number: int) -> int:
    """Kill recovery at each of its changes, lose power, and recover again."""
    count = 0
    for way in _ways_of(number):
        for at in range(1_000):
            disk, store = _crashed(image, KILL, number)
            disk.faults = _DieAt(at)
            try:
                run.recover(disk, store)
            except Death:
                disk.faults = None
                disk.crash(Random(number + at), way)  # type: ignore[arg-type]
                disk.lock()
                what = f"{image.operation}, killed in recovery at {at}, {way}"
                _compare(run, image, run.recover(disk, store), what)
                count += 1
            else:
                break
    return count


def _ways_of(number: int) -> Iterator[str]:
    yield CRASH_MODES[number % len(CRASH_MODES)]
    yield "garbage"
