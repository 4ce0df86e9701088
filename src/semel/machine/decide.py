"""`decide`: what to answer a command, and what to write first. Changes nothing."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from semel.machine.append import decide_append
from semel.machine.claims import decide_claim
from semel.machine.commits import decide_commit
from semel.machine.events import Decision
from semel.machine.groups import decide_pin, decide_set_positions
from semel.machine.registry import decide_expire_producer, decide_forget, decide_register
from semel.machine.sinks import decide_forget_sink, decide_rebind
from semel.machine.state import State
from semel.machine.streams import (
    decide_create,
    decide_delete,
    decide_expire,
    decide_switch,
    decide_trim,
)
from semel.machine.txn_begin import decide_add_positions, decide_add_streams, decide_begin
from semel.machine.txn_decide import (
    decide_abort_txn,
    decide_commit_txn,
    decide_expire_txn,
    decide_prepare,
)
from semel.model.commands import (
    Append,
    ClaimProducer,
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
from semel.model.transactions import (
    AbortTxn,
    AddPositions,
    AddStreams,
    Begin,
    Commit,
    CommitTxn,
    EngineCommand,
    ExpireTxn,
    FenceTxn,
    ForgetSink,
    PinSnapshot,
    Prepare,
    RebindSink,
    SetPositions,
)

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
    Begin: decide_begin,
    AddStreams: decide_add_streams,
    AddPositions: decide_add_positions,
    Prepare: decide_prepare,
    CommitTxn: decide_commit_txn,
    AbortTxn: decide_abort_txn,
    FenceTxn: decide_abort_txn,
    ExpireTxn: decide_expire_txn,
    Commit: decide_commit,
    SetPositions: decide_set_positions,
    PinSnapshot: decide_pin,
    RebindSink: decide_rebind,
    ForgetSink: decide_forget_sink,
}


def decide(state: State, command: EngineCommand) -> Decision:
    """Answer a command on this state."""
    fault = fault_in(command)
    if fault is not None:
        return Decision(InvalidRequest(fault))
    return _DECIDERS[type(command)](state, command)
