"""Rows A1 to A20 of `docs/reference/transactions.md` as stories, with the expected outcomes.

Written from the tables, and run on both the reference model and the engine. A story begins with the
empty streams s and r. A command without an expected outcome must be accepted.
"""

from tests.unit.machine.position_at_once import AT_ONCE
from tests.unit.machine.position_deciding import DECIDING
from tests.unit.machine.position_naming import NAMING

STORIES = (*NAMING, *DECIDING, *AT_ONCE)
