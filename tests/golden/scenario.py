"""The scenario: calls of the public client to one server, in steps.

Each step is a function. The golden files have its name and what it returned or raised. A step may
depend on earlier steps.
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
