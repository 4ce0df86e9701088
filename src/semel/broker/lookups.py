"""Finds the streams and transactions that a command affects.

Also adds to a command the stored facts that are needed to decide the command.
"""

from collections.abc import Iterable, Iterator
from typing import TypeVar

from msgspec.structs import replace

from semel.broker.durable_view import BrokerReader, DurableView
from semel.broker.timers import Deadlines
from semel.journal.txn_history import TxnHistory
from semel.machine import Decision
from semel.machine.access import is_settled
from semel.machine.append import decide_append
from semel.machine.commits import paths_of
from semel.machine.pending import owner_key
from semel.machine.rows import OutcomeRow
from semel.machine.state import State, Txn
from semel.machine.topic_append import decide_append_topic
from semel.machine.txn.lookup import is_outcome_retained
from semel.model.commands import (
    AddPositions,
    AddStreams,
    Append,
    Begin,
    Commit,
    CommitTxn,
    Create,
    EngineCommand,
    ListedTxn,
    PinSnapshot,
    ProducerOwner,
    SetPositions,
    StoredAppend,
    StreamCommand,
    TxnCall,
    TxnOutcome,
    TxnTag,
)
from semel.model.group_commands import JoinGroup, LeaveGroup, ReleaseStreams
from semel.model.limits import TXN_ID_BYTES_MAX
from semel.model.messages import is_json
from semel.model.names import is_name, is_number
from semel.model.rights import Caller
from semel.model.subscription_commands import AckWake, CreateSubscription, LinkStreams, WakeAck
from semel.model.topic_commands import AppendTopic, OnTopic

N = TypeVar("N", bound=TxnCall | TxnTag | ListedTxn)


def affected_paths(command: EngineCommand) -> list[str]:
    """Return the paths of the streams and topics that a command affects."""
    if isinstance(command, Create) and command.fork is not None:
        return [command.path, command.fork.source]
    if isinstance(command, Begin | AddStreams):
        return list(command.streams)
    if isinstance(command, AddPositions | SetPositions):
        return [position.path for position in command.positions]
    if isinstance(command, PinSnapshot):
        return [pinned.path for pinned in command.ranges]
    if isinstance(command, Commit):
        return [*paths_of(command), *_acked_paths(command.wakes)]
    if isinstance(command, JoinGroup):
        return [*command.streams, *command.topics]
    if isinstance(command, StreamCommand | OnTopic):
        return [command.path]
    return _followed_paths(command)


def _followed_paths(command: EngineCommand) -> list[str]:
    """Return the paths of the streams that a command of a subscription or a worker names."""
    if isinstance(command, CreateSubscription):
        wake_streams = () if command.wake_stream is None else (command.wake_stream,)
        return [*command.streams, *wake_streams]
    if isinstance(command, LinkStreams):
        return [*command.streams]
    if isinstance(command, AckWake):
        return _acked_paths((command.ack,))
    return _acked_paths(command.wakes) if isinstance(command, CommitTxn) else []


def _acked_paths(wakes: Iterable[WakeAck]) -> list[str]:
    return [path for wake in wakes for path, _ in wake.acks]


def affected_members(command: EngineCommand) -> set[tuple[str, str]]:
    """Return the members for which a command was sent, each as a group and the member's id."""
    if isinstance(command, ReleaseStreams | LeaveGroup):
        return {(command.group, command.member)}
    if isinstance(command, AddPositions | SetPositions | Commit):
        moves = command.positions
        return {(move.group, move.member) for move in moves if move.member is not None}
    return set()


def affected_txns(state: State, command: EngineCommand) -> list[Txn]:
    """Return the pending transactions that a command affects: those whose ids are in the command.

    A Begin by a producer also affects all other transactions of the producer, because they can
    conflict with the new one.
    """
    ids = dict.fromkeys(_ids_of(command))
    txns = [state.transactions[txn_id] for txn_id in ids if txn_id in state.transactions]
    if isinstance(command, Begin) and isinstance(command.owner, ProducerOwner):
        numbers = state.owned.get(owner_key(command.owner), ())
        txns += [state.by_txn[number] for number in sorted(numbers)]
    return txns


def _ids_of(command: EngineCommand) -> Iterator[str]:
    if isinstance(command, TxnCall | Begin):
        yield command.id
    elif isinstance(command, Append | AppendTopic) and command.transaction is not None:
        yield command.transaction.id
    elif isinstance(command, Commit):
        yield from (listed.id for listed in command.transactions)


def decide_at_once(state: State, command: EngineCommand, caller: Caller | None) -> Decision | None:
    """Return the decision on one of the most frequent commands, an append outside transactions.

    It needs no lookups, and its decision is never delayed. Return None for any other command, and
    if the rights of the caller must be checked first.
    """
    if type(command) is Append:
        if command.transaction is None and (caller is None or is_settled(state, command, caller)):
            return decide_append(state, command)
    elif type(command) is AppendTopic and command.transaction is None and caller is None:
        return decide_append_topic(state, command)
    return None


class Lookups:
    """Reads the stored facts that a decision needs and that the state does not contain."""

    def __init__(
        self,
        state: State,
        txn_history: TxnHistory,
        view: DurableView,
        reader: BrokerReader,
        deadlines: Deadlines,
    ) -> None:
        self._state = state
        self._txn_history = txn_history
        self._view = view
        self._reader = reader
        self._deadlines = deadlines

    def named_outcome(self, txn_id: str, epoch: int | None) -> TxnOutcome | None:
        """Return a transaction's outcome. If `epoch` is None, return the newest outcome.

        Return None if no such outcome is retained, or if an argument is invalid. Raises ReadFailed.
        """
        if not is_name(txn_id, TXN_ID_BYTES_MAX) or not (epoch is None or is_number(epoch)):
            return None
        return self.find_outcome(txn_id, self.last_epoch(txn_id) if epoch is None else epoch)[0]

    def find_outcome(self, txn_id: str, epoch: int) -> tuple[TxnOutcome | None, int]:
        """Return a pair: a transaction's outcome, and the `last_epoch` of the transaction's id.

        If the outcome is not retained, it is None. If the transaction is pending, return (None, 0).
        """
        txn = self._state.transactions.get(txn_id)
        if txn is not None and txn.row.epoch == epoch:
            return None, 0
        row = self._txn_history.outcome(txn_id, epoch)
        if row is not None and not is_outcome_retained(self._state, row):
            row = None
        return None if row is None else row.outcome, self.last_epoch(txn_id)

    def last_epoch(self, txn_id: str) -> int:
        """Return the epoch of the newest retained outcome with this transaction id.

        Return 0 if no outcome is retained.
        """
        row = self._last_outcome(txn_id)
        return 0 if row is None else row.outcome.epoch

    def ended_owners(self, command: EngineCommand) -> dict[str, str | None]:
        """Return the owner of each transaction id in a command that is not pending.

        It is that of the newest retained outcome with this id, or None. Raises ReadFailed.
        """
        return {
            txn_id: self.last_owner(txn_id)
            for txn_id in _ids_of(command)
            if txn_id not in self._state.transactions
        }

    def last_owner(self, txn_id: str) -> str | None:
        """Return the owner in the newest retained outcome with this id. Raises ReadFailed."""
        row = self._last_outcome(txn_id)
        return None if row is None else row.principal

    def _last_outcome(self, txn_id: str) -> OutcomeRow | None:
        return self._txn_history.last_outcome(
            txn_id, lambda row: is_outcome_retained(self._state, row)
        )

    def add(self, command: EngineCommand) -> EngineCommand | None:
        """Return the command with the stored facts that are needed to decide it.

        Return None if one of these facts is not durable yet. Raises ReadFailed.
        """
        if isinstance(command, Create):
            return self._add_stored(command)
        if isinstance(command, Begin):
            last_epoch, due_ms = self.last_epoch(command.id), None
            pending = self._state.transactions.get(command.id)
            if pending is not None and pending.row.timeout_ms is not None:
                due_ms = self._deadlines.dates(pending, command.now_ms).due_ms
            return replace(command, last_epoch=last_epoch, due_ms=due_ms)
        if isinstance(command, TxnCall):
            return self._add_outcome(command)
        if isinstance(command, Append | AppendTopic) and command.transaction is not None:
            return replace(command, transaction=self._add_outcome(command.transaction))
        if isinstance(command, Commit):
            listed = tuple(self._add_outcome(txn) for txn in command.transactions)
            return replace(command, transactions=listed)
        return command

    def _add_outcome(self, named: N) -> N:
        outcome, last_epoch = self.find_outcome(named.id, named.epoch)
        return replace(named, remembered=outcome, last_epoch=last_epoch)

    def _add_stored(self, command: Create) -> Create | None:
        """If the fork's sub-offset splits a stored append, add that append to the command.

        Return the command, or None if the append is not durable yet. Raises ReadFailed.
        """
        fork = command.fork
        if fork is None or not fork.sub_offset or fork.offset is None:
            return command
        source = self._state.by_path.get(fork.source)
        if source is None or source.tail.is_deleted or fork.offset >= source.tail.stable:
            return command
        number, offset = source.row.number, fork.offset
        view = self._view.by_number.get(number)
        if view is None or view.tail is None or view.tail.stable <= offset:
            return None
        if offset < source.tail.head:
            return command
        slices, _ = self._reader.read_on(view, offset, view.tail.stable, 1, is_committed=True)
        if not slices or slices[0].offset != offset:
            return command  # a control record or an aborted message cannot be split
        message = next(slices[0].messages())
        units = slices[0].count if is_json(source.row.content_type) else len(message)
        stored = StoredAppend(number, offset, units, message)
        return replace(command, fork=replace(fork, stored=stored))
