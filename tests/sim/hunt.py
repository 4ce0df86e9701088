"""How many seeds the simulator needs to find a seeded bug."""

from tests.sim.demands import Violation
from tests.sim.mutants import Mutant
from tests.sim.run import run_seed


def seeds_until_caught(mutant: Mutant, seeds_max: int) -> tuple[int, str] | None:
    """Run seeds against a seeded bug; return how many it took, and the violation."""
    with mutant():
        for seed in range(seeds_max):
            try:
                run_seed(seed)
            except Violation as caught:
                return seed + 1, str(caught)
    return None
