"""The audit in the reference model: which changes have a record, and what it says.

Written from the part "The audit" of `docs/reference/access.md`.
"""

import json
from typing import Any, NamedTuple

from semel.model import access_commands as access_ask
from semel.model import commands as ask
from semel.model import sink_commands as sink_ask
from semel.model import subscription_commands as sub_ask
from semel.model.commands import EngineCommand
from semel.model.policies import DeletePolicy, SetPolicy
from tests.sim.reference_rights import Who

AUDIT = "__semel/audit"

_ACTIONS: dict[type, str] = {
    access_ask.CreateToken: "token_create",
    access_ask.RevokeToken: "token_revoke",
    access_ask.ChangeOwner: "owner_change",
    SetPolicy: "policy_set",
    DeletePolicy: "policy_delete",
    ask.SwitchDedup: "dedup_set",
    ask.ForgetProducer: "producer_forget",
    sink_ask.RebindSink: "sink_rebind",
    sink_ask.ForgetSink: "sink_forget",
    sub_ask.CreateSubscription: "subscription_create",
    sub_ask.DeleteSubscription: "subscription_delete",
    sub_ask.ResumeSubscription: "subscription_resume",
}
_OF_OPERATORS: dict[type, str] = {
    ask.CommitTxn: "transaction_commit",
    ask.AbortTxn: "transaction_abort",
    ask.FenceTxn: "transaction_fence",
    ask.Prepare: "transaction_prepare",
    ask.AddStreams: "transaction_add_streams",
    ask.AddPositions: "transaction_add_positions",
}


class Record(NamedTuple):
    """What a record says: when, what, with which outcome, and who."""

    time_ms: int
    action: str
    outcome: str
    principal: str
    token: str | None


def record_of(c: EngineCommand, who: Who) -> Record | None:
    """Return the record of a command that changes something, or None if it has none.

    A fence is always one of an operator.
    """
    action = _ACTIONS.get(type(c))
    if isinstance(c, ask.TxnCall) and (c.by_operator or isinstance(c, ask.FenceTxn)):
        action = _OF_OPERATORS[type(c)]
    return None if action is None else Record(c.now_ms, action, "ok", who.principal, who.token)


def parse_record(payload: bytes) -> Record:
    """Return a stored record."""
    fields: dict[str, Any] = json.loads(payload)
    return Record(
        fields["time_ms"],
        fields["action"],
        fields["outcome"],
        fields["principal"],
        fields.get("token"),
    )
