"""Transactions in the simulator: the machine alone, crash points by name, and a bank."""

import pytest

from tests.sim.alone import Alone


@pytest.mark.sim
@pytest.mark.parametrize("seed", range(20))
def test_the_machine_alone_agrees_with_the_model(seed: int) -> None:
    pair = Alone(seed)
    for _ in range(900):
        pair.step()
