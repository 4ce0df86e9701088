"""The state machine: `decide` answers a command, `apply` alone changes the state."""

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
