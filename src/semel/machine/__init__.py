"""The state machine. It does no I/O, and time and randomness are in the commands.

`decide(state, command)` returns a decision: the outcome, and the event to make durable before the
outcome is given to the client. `apply(state, event, ...)` folds the event into the state; it is the
only function that changes it, and recovery replays the journal with it. The rules are in
`docs/reference/machine.md` and `docs/reference/transactions.md`; `docs/explanation/exactly-once.md`
says how the broker drives this.
"""

from semel.machine.apply import apply
from semel.machine.decide import decide, validate_and_decide
from semel.machine.events import Decision, Event, Section
from semel.machine.state import MachineLimits, State, Stream

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
