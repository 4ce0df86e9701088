"""Bit flips in a finished run: each is found or harmless, and a refused start changes nothing."""

from semel.journal.segments import segment_lsn
from semel.model.errors import CorruptData, CorruptRead
from tests.sim.demands import Violation, demand_equal
from tests.sim.oracle import demand_readable, state_view
from tests.sim.tap import TappedBroker
from tests.sim.world import World

FLIPS_PER_SEED = 3


def flip_and_reopen(world: World) -> None:
    """Flip single bits of the journal, each in its own copy, and recover the copy."""
    for _ in range(FLIPS_PER_SEED):
        names = [name for name in world.disk.names() if segment_lsn(name) is not None]
        name = world.rng.choice(names)
        size = len(world.disk.files()[name])
        world.counts[_flip(world, name, world.rng.randrange(size))] += 1


def _flip(world: World, name: str, position: int) -> str:
    disk, store = world.disk.copy(), world.store.copy()
    disk.kill()
    store.kill()
    disk.flip(name, position, world.rng.randrange(8))
    before = disk.digest(), store.digest()
    disk.lock()
    try:
        recovered = world.recover(disk, store)
        demand_equal(state_view(recovered.state), world.model.view(), "state after a flip")
        broker = TappedBroker(
            recovered,
            monotonic_ms=lambda: world.monotonic_ms,
            segment_bytes=world.segment_bytes,
            observer=world,
        )
        demand_readable(broker, world.model)
    except CorruptData:
        demand_equal((disk.digest(), store.digest()), before, "files after a refused start")
        return "flip refused at start"
    except CorruptRead:
        return "flip refused at a read"
    except Violation as violation:
        raise Violation(f"flip in byte {position} of {name} not found: {violation}") from violation
    return "flip harmless"
