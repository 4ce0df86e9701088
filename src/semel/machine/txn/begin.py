"""Decisions to begin a transaction, and to add streams and positions to a transaction.

A number in a comment refers to a row of the table of checks in `docs/reference/transactions.md`.
"""

from collections.abc import Mapping
from typing import Final

from msgspec.structs import astuple

from semel.machine.events import (
    Decision,
    PositionsNamed,
    PositionsNamedByMembers,
    PositionsNamedWithMetadata,
    TxnBegun,
    TxnExtended,
)
from semel.machine.positions import name_positions
from semel.machine.rows import NamedPosition, NewPosition
from semel.machine.state import State, Stream, Txn
from semel.machine.streams import find_by_path
from semel.machine.txn.draft import Draft, is_raised
from semel.machine.txn.lookup import expired_epoch, find_open
from semel.model import outcomes_txn as outcomes
from semel.model.commands import (
    TXN_INLINE,
    TXN_STAGED,
    AddPositions,
    AddStreams,
    Begin,
    Metadata,
    ProducerOwner,
)
from semel.model.limits import (
    SINK_TXN_OPEN_MAX,
    TXN_OPEN_MAX,
    TXN_PENDING_MAX,
    TXN_TIMEOUT_MS_DEFAULT,
)
from semel.model.outcomes import (
    InvalidRequest,
    LimitReached,
    Outcome,
    Refusal,
    StaleEpoch,
    UnknownProducer,
)
from semel.model.validation import is_assigned_id

_NEW_POSITION: Final = len(NewPosition.__struct_fields__)


def decide_begin(state: State, command: Begin) -> Decision:
    """Return the decision on a command that begins a transaction.

    If the transaction has already begun, a repeated command gets Begun again. If the transaction
    is already prepared, the repeated command is refused.
    """
    owner = command.owner
    if not isinstance(owner, ProducerOwner) and command.kind != TXN_STAGED:
        return Decision(InvalidRequest("kind"))  # 1
    txn = state.transactions.get(command.id)
    if txn is not None and (txn.row.owner, txn.row.kind) == (owner, command.kind):
        return Decision(_again(txn, command))  # 2
    if isinstance(owner, ProducerOwner):
        refusal = refuse_producer(state, owner.id, owner.epoch)  # 3, 4
        if refusal is not None:
            return Decision(refusal)
    if txn is not None and not _is_older(txn, command):
        return Decision(outcomes.ConcurrentTransactions(command.id))  # 5
    refusal = _refuse_room(state, command)
    if refusal is not None:
        return Decision(refusal)
    streams = find_by_path(state, command.streams, finds_topics=True)
    if not isinstance(streams, dict):
        return Decision(streams)  # 10
    maximum = state.limits.txn_streams
    if len(streams) > maximum:
        return Decision(LimitReached("transaction_streams", maximum))  # 10
    return _accept(state, command, txn, streams)


def _again(txn: Txn, command: Begin) -> Outcome:
    row = txn.row
    if row.is_prepared:
        return outcomes.InvalidTxnState("prepared")
    return outcomes.Begun(row.id, row.epoch, command.due_ms, is_new=False)


def refuse_producer(state: State, producer_id: str, epoch: int) -> Refusal | None:
    """Refuse a producer if `epoch` is below its registered epoch.

    Also refuse an id that has the form of an assigned id but was never assigned.
    """
    registered = state.registry.get(producer_id)
    if registered is None:
        return UnknownProducer() if is_assigned_id(producer_id) else None
    return StaleEpoch(registered.epoch, epoch) if epoch < registered.epoch else None


def _is_older(txn: Txn, command: Begin) -> bool:
    """Return True if `txn` belongs to an older instance of the command's producer."""
    mine, other = command.owner, txn.row.owner
    if not isinstance(mine, ProducerOwner) or not isinstance(other, ProducerOwner):
        return False
    return mine.id == other.id and other.epoch < mine.epoch


def _refuse_room(state: State, command: Begin) -> Refusal | None:
    """Refuse to begin a transaction if one of these limits is reached.

    - one open inline transaction for each instance of a producer
    - the number of pending transactions of an instance, of all producers, or of all sinks
    - the number of registered producers
    """
    owner = command.owner
    if not isinstance(owner, ProducerOwner):
        is_full = state.sink_txn_count >= SINK_TXN_OPEN_MAX
        return LimitReached("sink_transactions", SINK_TXN_OPEN_MAX) if is_full else None  # 9
    numbers = sorted(state.owned.get((True, owner.id), ()))
    rows = [state.by_txn[number].row for number in numbers]
    pending = [row for row in rows if row.owner == owner]
    for row in pending:
        if command.kind == TXN_INLINE and row.kind == TXN_INLINE and not row.is_prepared:
            return outcomes.ConcurrentTransactions(row.id)  # 7
    if len(pending) >= TXN_PENDING_MAX:
        return outcomes.TooManyTransactions(TXN_PENDING_MAX)  # 8
    if len(state.transactions) - state.sink_txn_count >= TXN_OPEN_MAX:
        return LimitReached("transactions", TXN_OPEN_MAX)  # 9
    return refuse_registry_room(state, owner.id)  # 9


def refuse_registry_room(state: State, producer_id: str) -> Refusal | None:
    """If the registry is full, refuse a producer that is not registered yet."""
    maximum = state.limits.registry
    has_room = producer_id in state.registry or len(state.registry) < maximum
    return None if has_room else LimitReached("registry", maximum)


def _accept(state: State, command: Begin, old: Txn | None, streams: dict[str, Stream]) -> Decision:
    owner = command.owner
    draft = Draft(state)
    timeout_ms = None
    if isinstance(owner, ProducerOwner):
        timeout_ms = command.timeout_ms or TXN_TIMEOUT_MS_DEFAULT
        if is_raised(state.registry.get(owner.id), owner.epoch):
            draft.fence(owner.id, owner.epoch)  # 6
    last_epoch = command.last_epoch if old is None else old.row.epoch
    epoch = 1 + max(last_epoch, expired_epoch(state, owner))
    event = TxnBegun(
        number=state.next_txn,
        id=command.id,
        epoch=epoch,
        kind=command.kind,
        owner=owner,
        is_implicit=command.is_implicit,
        timeout_ms=timeout_ms,
        streams=tuple(stream.row.number for stream in streams.values()),
        ended=tuple(draft.ended),
    )
    deadline_ms = None if timeout_ms is None else command.now_ms + timeout_ms
    outcome = outcomes.Begun(command.id, epoch, deadline_ms, is_new=True)
    return Decision(outcome, event, tuple(draft.sections), grows=True)


# ---- adding streams and positions ----------------------------------------------------------------


def decide_add_streams(state: State, command: AddStreams) -> Decision:
    """Return the decision on a command that allows a transaction to write to more streams."""
    txn = find_open(state, command)
    if not isinstance(txn, Txn):
        return Decision(txn)
    streams = find_by_path(state, command.streams, finds_topics=True)
    if not isinstance(streams, dict):
        return Decision(streams)
    numbers = [stream.row.number for stream in streams.values()]
    fresh = tuple(number for number in numbers if number not in txn.streams)
    count = len(txn.streams) + len(fresh)
    maximum = state.limits.txn_streams
    if count > maximum:
        return Decision(LimitReached("transaction_streams", maximum))
    event = TxnExtended(txn.row.number, fresh) if fresh else None
    return Decision(outcomes.ExtendDone(command.id, count), event, grows=bool(fresh))


def decide_add_positions(state: State, command: AddPositions) -> Decision:
    """Return the decision on a command that adds positions for a transaction's commit to move."""
    txn = find_open(state, command)
    if not isinstance(txn, Txn):
        return Decision(txn)
    named = name_positions(state, txn, command.positions)
    if not isinstance(named, dict):
        return Decision(named)
    every = {(position.group, position.stream) for position in (*txn.row.positions, *named)}
    outcome = outcomes.ExtendDone(command.id, len(every) + len(txn.row.lost))
    if not named:
        return Decision(outcome)
    return Decision(outcome, _named_event(txn, named), grows=True)


def _named_event(txn: Txn, named: Mapping[NamedPosition, Metadata]) -> PositionsNamed:
    """Return the event that names positions: the first kind that can store all that they have."""
    number = txn.row.number
    positions = tuple(NewPosition(*astuple(position)[:_NEW_POSITION]) for position in named)
    metadata = tuple(named.values()) if any(named.values()) else ()
    members = tuple(
        None if position.member is None else (position.member, position.member_epoch or 0)
        for position in named
    )
    if any(members):
        return PositionsNamedByMembers(number, positions, metadata, members)
    if metadata:
        return PositionsNamedWithMetadata(number, positions, metadata)
    return PositionsNamed(number, positions)
