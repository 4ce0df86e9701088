"""The state machine. It does no I/O. The time and random values that it needs are in the commands.

`decide(state, command)` returns a decision. A decision contains the outcome, and the event that
must be durable before the client gets the outcome. `apply(state, event, ...)` applies the event.
Only `apply` changes the state. Recovery uses `apply` to replay the journal.

The rules are in `docs/reference/machine.md` and `docs/reference/transactions.md`.
"""

from semel.machine.apply import apply
from semel.machine.decide import decide, validate_and_decide
from semel.machine.events import Decision, Event, Section
from semel.machine.state import State, Stream
from semel.model.limits import MachineLimits

__all__ = [
    "Decision",
    "Event",
    "MachineLimits",
    "Section",
    "State",
    "Stream",
    "apply",
    "decide",
    "validate_and_decide",
]
