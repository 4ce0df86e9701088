"""`decide`: what to answer a command, and what to write first. Changes nothing."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from semel.machine.append import decide_append
from semel.machine.claims import decide_claim
from semel.machine.events import Decision
from semel.machine.registry import decide_expire_producer, decide_forget, decide_register
from semel.machine.state import State
from semel.machine.streams import (
    decide_create,
    decide_delete,
    decide_expire,
    decide_switch,
    decide_trim,
)
from semel.model.commands import (
    Append,
    ClaimProducer,
    Command,
    Create,
    Delete,
    Expire,
    ExpireProducer,
    ForgetProducer,
    Register,
    SwitchDedup,
    Trim,
)
from semel.model.names import fault_in
from semel.model.outcomes import InvalidRequest

_DECIDERS: Final[Mapping[type, Callable[[State, Any], Decision]]] = {
    Append: decide_append,
    Create: decide_create,
    Delete: decide_delete,
    Trim: decide_trim,
    SwitchDedup: decide_switch,
    Expire: decide_expire,
    Register: decide_register,
    ClaimProducer: decide_claim,
    ForgetProducer: decide_forget,
    ExpireProducer: decide_expire_producer,
}


def decide(state: State, command: Command) -> Decision:
    """Answer a command on this state."""
    fault = fault_in(command)
    if fault is not None:
        return Decision(InvalidRequest(fault))
    return _DECIDERS[type(command)](state, command)
