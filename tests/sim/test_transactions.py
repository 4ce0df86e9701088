"""Transactions in the simulator: the machine alone, and a bank."""

import pytest

from tests.sim.alone import Alone
from tests.sim.bank import Bank
from tests.sim.run import run_world


@pytest.mark.sim
@pytest.mark.parametrize("seed", range(20))
def test_the_machine_alone_agrees_with_the_model(seed: int) -> None:
    pair = Alone(seed)
    for _ in range(900):
        pair.step()


# rows: R29, R40
@pytest.mark.sim
@pytest.mark.parametrize("seed", range(8))
def test_the_sum_of_all_accounts_never_changes(seed: int) -> None:
    counts = run_world(Bank(seed), 1_500).counts
    assert counts["audits, whole"] > 10
    assert counts["CommitDone"] > 50
