"""What the public client does, step by step, with one server.

Each step is a function. Its name stands in the golden files, with what it returned or raised. Steps
depend on those before them.
"""

from typing import Final

from tests.golden import (
    scenario_groups,
    scenario_producers,
    scenario_streams,
    scenario_transactions,
)

STEPS: Final = (
    *scenario_streams.step,
    *scenario_producers.step,
    *scenario_transactions.step,
    *scenario_groups.step,
)
