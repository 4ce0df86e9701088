"""The rows A1 to A20 of `docs/reference/transactions.md` as stories, with the answers they ask for.

Written from the tables, for the reference model and the engine alike. A story begins with the empty
streams s and r. A command by itself must be accepted; one with an answer must get that answer.
"""

from tests.unit.machine.position_at_once import AT_ONCE
from tests.unit.machine.position_deciding import DECIDING
from tests.unit.machine.position_naming import NAMING

STORIES = (*NAMING, *DECIDING, *AT_ONCE)
