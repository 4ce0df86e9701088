"""Runs of seeds: each is a World whose steps are drawn by weight and whose end is compared."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from semel.model.errors import DiskFailed, SemelError
from semel.model.limits import TXN_TIMEOUT_MS_MAX
from semel.testing import Death, PowerLost
from tests.sim.corruption import flip_and_reopen
from tests.sim.demands import Violation
from tests.sim.small import SMALL, small_limits
from tests.sim.workload_subscriptions import SHARE
from tests.sim.world import World

STEPS_PER_SEED = 1_500
SMALL_EVERY = 4

WEIGHTS: dict[str, float] = {
    "ask": 62,
    "write": 40,
    "find_room": 6,
    "checkpoint": 3,
    "read": 6,
    "wait": 1,
    "tick": 5,
    "change_capacity": 0.5,
    "kill": 0.25,
    "lose_power": 0.25,
}


@dataclass
class Result:
    """The counts of one seed, and the digest of its trace."""

    counts: Counter[str]
    digest: str


def run_seed(seed: int, steps: int = STEPS_PER_SEED, *, txn_share: float | None = None) -> Result:
    """Run one seed to its end; raise `Violation` with the seed in its message."""
    try:
        if seed % SMALL_EVERY or txn_share == 0:
            return run_world(World(seed, txn_share), steps)
        with small_limits():
            return run_world(World(seed, txn_share, SMALL), steps)
    except Violation as violation:
        raise Violation(f"seed {seed}: {violation}") from violation
    except (SemelError, AssertionError, KeyError) as error:
        raise Violation(f"seed {seed}: {type(error).__name__}: {error}") from error


def run_world(world: World, steps: int) -> Result:
    """Run some steps, settle, crash, settle, let all transactions time out, and flip bits.

    A world with subscriptions makes more steps, so that there are as many other commands.
    """
    if not world.workload.subscriptions.is_off:
        steps = round(steps / (1 - SHARE))
    names = list(WEIGHTS)
    chosen = world.rng.choices(names, list(WEIGHTS.values()), k=steps)
    for name in chosen:
        _step(world, name)
    world.settle()
    world.crash(is_power=world.rng.random() < 0.5)
    world.settle()
    world.let_pass(TXN_TIMEOUT_MS_MAX)
    world.settle()
    world.settle_wakes()
    world.settle()
    flip_and_reopen(world)
    world.trace.update(world.disk.digest().encode() + world.store.digest().encode())
    return Result(world.counts, world.trace.hexdigest())


def _step(world: World, name: str) -> None:
    deaths: dict[str, Callable[[], None]] = {
        "kill": lambda: world.crash(is_power=False),
        "lose_power": lambda: world.crash(is_power=True),
    }
    action: Callable[[], None] = deaths[name] if name in deaths else getattr(world, name)
    try:
        action()
    except Death as death:
        world.crash(is_power=isinstance(death, PowerLost))
    except DiskFailed:
        world.counts["fail-stop"] += 1
        world.crash(is_power=world.rng.random() < 0.5)
    except SemelError as error:
        raise Violation(f"the engine failed: {type(error).__name__}: {error}") from error
