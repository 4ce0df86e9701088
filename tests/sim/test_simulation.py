"""A short run of the simulator for every test run; `python -m tests.sim` is the full one."""

import pytest

from tests.sim.exhaustive import check_all
from tests.sim.hunt import seeds_until_caught
from tests.sim.mutants import MUTANTS, Mutant
from tests.sim.run import run_seed

CORPUS = (
    23,
    24,
    34,
    38,
    50,
    74,
    81,
    96,
    109,
    131,
    192,
    470,
    799,
    100_700,
)  # seeds that found a bug once


# rows: P05, P20
@pytest.mark.sim
@pytest.mark.parametrize("seed", CORPUS)
def test_a_seed_that_found_a_bug_once_stays_clean(seed: int) -> None:
    run_seed(seed, txn_share=0)


@pytest.mark.sim
def test_a_seed_run_twice_is_identical_to_the_byte() -> None:
    assert run_seed(7).digest == run_seed(7).digest


@pytest.mark.sim
def test_two_seeds_differ() -> None:
    assert run_seed(7).digest != run_seed(8).digest


# rows: P05, P14, P16, X11, X22
@pytest.mark.sim
def test_every_crash_image_of_a_film_recovers() -> None:
    assert check_all(1001) > 300


# rows: P14, R26, X11
@pytest.mark.sim
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_seeded_bug_is_caught(mutant: Mutant) -> None:
    assert seeds_until_caught(mutant, 300) is not None
