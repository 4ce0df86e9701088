"""`decide` returns the decision on a command. It does not change the state."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Struct

from semel.machine.append import decide_append
from semel.machine.claims import decide_claim, decide_register
from semel.machine.commits import decide_commit, decide_forget_sink, decide_rebind
from semel.machine.events import Decision, HourPassed
from semel.machine.groups import (
    decide_delete_group,
    decide_expire_member,
    decide_join,
    decide_leave,
    decide_rebalance,
    decide_release,
    decide_take_stream,
)
from semel.machine.lifetimes import (
    decide_drop_tombstones,
    decide_expire_producer,
    decide_expire_registration,
    decide_forget,
    decide_retire,
)
from semel.machine.policies import (
    decide_delete_policy,
    decide_set_policy,
    decide_switch,
    due_switch,
)
from semel.machine.positions import decide_pin, decide_set_positions
from semel.machine.producers import Receipt, check_sequence, find_dense, find_sparse
from semel.machine.rows import ProducerRow
from semel.machine.state import State, Stream, find_producer
from semel.machine.streams import (
    decide_create,
    decide_delete,
    decide_expire,
    decide_trim,
    find_any,
    find_stream,
)
from semel.machine.subscriptions import SUBSCRIPTION_DECIDERS
from semel.machine.tokens import (
    decide_change_owner,
    decide_create_token,
    decide_note_uses,
    decide_revoke_token,
)
from semel.machine.topic_append import decide_append_topic, outcome_on_topic
from semel.machine.topics import (
    decide_close_topic,
    decide_create_topic,
    decide_delete_topic,
    decide_grow_topic,
)
from semel.machine.txn.begin import decide_add_positions, decide_add_streams, decide_begin
from semel.machine.txn.decide_end import (
    decide_abort_txn,
    decide_commit_txn,
    decide_expire_txn,
    decide_prepare,
)
from semel.model.access_commands import (
    ChangeOwner,
    CreateToken,
    NoteTokenUses,
    RevokeToken,
)
from semel.model.commands import (
    DENSE,
    AbortTxn,
    AddPositions,
    AddStreams,
    Append,
    Batch,
    Begin,
    ClaimProducer,
    Commit,
    CommitTxn,
    Create,
    Delete,
    EngineCommand,
    Expire,
    ExpireProducer,
    ExpireTxn,
    FenceTxn,
    ForgetProducer,
    PinSnapshot,
    Prepare,
    ProducerTag,
    Register,
    SetPositions,
    StreamCommand,
    SwitchDedup,
    Trim,
)
from semel.model.group_commands import (
    DeleteGroup,
    ExpireMember,
    JoinGroup,
    LeaveGroup,
    RebalanceGroup,
    ReleaseStreams,
    TakeStream,
)
from semel.model.outcomes import HourCounted, InvalidRequest, Outcome
from semel.model.policies import DeletePolicy, SetPolicy
from semel.model.producer_commands import (
    CountHour,
    DropTombstones,
    ExpireRegistration,
    RetireProducers,
)
from semel.model.sink_commands import ForgetSink, RebindSink
from semel.model.topic_commands import (
    AppendTopic,
    CloseTopic,
    CreateTopic,
    DeleteTopic,
    GrowTopic,
)
from semel.model.validation import find_invalid_field

Decider = Callable[[State, Any], Decision]


def _on_stream(
    decide_on: Callable[[State, Stream, Any], Decision], *, or_topic: bool = False
) -> Decider:
    """Return a decider that finds the stream of a command and passes it to `decide_on`.

    If the stream does not exist or is soft-deleted, the decider refuses the command. A topic is
    refused as well, unless `or_topic` is True.
    """
    find = find_any if or_topic else find_stream

    def decide_command(state: State, command: StreamCommand) -> Decision:
        stream = find(state, command.path)
        return decide_on(state, stream, command) if isinstance(stream, Stream) else Decision(stream)

    return decide_command


_DECIDERS: Final[Mapping[type, Decider]] = {
    Append: decide_append,
    Create: decide_create,
    Delete: _on_stream(decide_delete),
    Trim: _on_stream(decide_trim),
    SwitchDedup: _on_stream(decide_switch, or_topic=True),
    SetPolicy: decide_set_policy,
    DeletePolicy: decide_delete_policy,
    Expire: _on_stream(decide_expire, or_topic=True),
    Register: decide_register,
    ClaimProducer: _on_stream(decide_claim, or_topic=True),
    ForgetProducer: _on_stream(decide_forget, or_topic=True),
    ExpireProducer: _on_stream(decide_expire_producer, or_topic=True),
    RetireProducers: decide_retire,
    ExpireRegistration: decide_expire_registration,
    DropTombstones: decide_drop_tombstones,
    CountHour: lambda _state, _command: Decision(HourCounted(), HourPassed()),
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
    CreateToken: decide_create_token,
    RevokeToken: decide_revoke_token,
    NoteTokenUses: decide_note_uses,
    ChangeOwner: decide_change_owner,
    CreateTopic: decide_create_topic,
    GrowTopic: decide_grow_topic,
    CloseTopic: decide_close_topic,
    DeleteTopic: decide_delete_topic,
    AppendTopic: decide_append_topic,
    JoinGroup: decide_join,
    ReleaseStreams: decide_release,
    LeaveGroup: decide_leave,
    ExpireMember: decide_expire_member,
    TakeStream: decide_take_stream,
    RebalanceGroup: decide_rebalance,
    DeleteGroup: decide_delete_group,
    **SUBSCRIPTION_DECIDERS,
}


def decide(state: State, command: EngineCommand) -> Decision:
    """Return the decision on a command. The fields of the command must be valid."""
    return _DECIDERS[type(command)](state, command)


def validate_and_decide(state: State, command: EngineCommand) -> Decision:
    """Check the fields of a command, and return the decision on the command.

    If a field is invalid, the outcome is InvalidRequest.
    """
    field = find_invalid_field(command)
    return decide(state, command) if field is None else Decision(InvalidRequest(field))


# ---- dry run -------------------------------------------------------------------------------------


# A payload that no client sends. It must be different from every stored payload.
_DRY_BATCH: Final = Batch(b"\x00the payload of a dry run\x00")


class DryRun(Struct, frozen=True):
    """The outcome that an append would have.

    - `other` is None: `outcome` is the outcome for every payload
    - `other` is set: an earlier append with the same sequences has been stored. `outcome` is the
      outcome for the payload of that append, and `other` is the outcome for any other payload
    """

    outcome: Outcome
    other: Outcome | None = None


def dry_run(state: State, path: str, tag: ProducerTag, *, now_ms: int) -> DryRun:
    """Return the outcome that a producer's append would have. Nothing is stored.

    The caller passes no payload, so the result covers all possible payloads.
    """
    stream = state.by_path.get(path)
    content_type = None if stream is None else stream.row.content_type
    command: EngineCommand = Append(path, now_ms, content_type, _DRY_BATCH, producer=tag)
    if stream is not None and stream.topic is not None:
        command = AppendTopic(path, now_ms, content_type, _DRY_BATCH, producer=tag)
    outcome = validate_and_decide(state, command).outcome
    if stream is None or isinstance(outcome, InvalidRequest):
        return DryRun(outcome)
    due = due_switch(state, stream)
    if due is not None or stream.tail.dedup_from is None:
        return DryRun(outcome)  # no receipt is stored, or the append would drop all of them
    row = find_producer(stream, tag.id)
    receipt = None if row is None else _receipt_of(row, tag)
    if receipt is None:
        return DryRun(outcome)
    repeated = check_sequence(state, stream, tag, receipt.digest).at_once
    if stream.topic is not None and repeated is not None:
        repeated = outcome_on_topic(stream, Append(path, now_ms, producer=tag), repeated)
    if stream.tail.is_deleted or repeated is None or repeated == outcome:
        return DryRun(outcome)
    return DryRun(repeated, outcome)


def _receipt_of(row: ProducerRow, tag: ProducerTag) -> Receipt | None:
    """Return the receipt of the append that had exactly the sequences of `tag`.

    Return None if that receipt is not retained.
    """
    first, last = tag.first_seq, tag.last_seq
    if last > row.last_seq:
        return None
    if row.mode == DENSE:
        return find_dense(row.receipts, row.first_receipt, seq=last, last_seq=row.last_seq)
    receipt = find_sparse(row.receipts, first_seq=first, last_seq=last)
    is_same = receipt is not None and (receipt.first_seq, receipt.last_seq) == (first, last)
    return receipt if is_same else None
