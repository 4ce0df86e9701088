"""What a command about transactions meets, and the facts its decision needs from the store."""

from collections import Counter
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from semel.journal.txn_history import TxnHistory
from semel.machine.rows import OutcomeRow
from semel.machine.state import State, Txn, owner_key
from semel.machine.txn.lookup import is_outcome_retained
from semel.model.commands import Append, Create, Register
from semel.model.limits import TXN_ID_BYTES_MAX
from semel.model.transactions import (
    AddPositions,
    AddStreams,
    Begin,
    Commit,
    EngineCommand,
    ExpireTxn,
    PinSnapshot,
    ProducerOwner,
    SetPositions,
    TxnCall,
    TxnCommand,
)
from semel.model.txn_outcome import BY_TIMEOUT, COMMITTED, TxnOutcome
from semel.model.validation import is_name, is_number


def affected_paths(command: EngineCommand) -> list[str]:
    """List the streams a command meets."""
    if isinstance(command, Create) and command.fork is not None:
        return [command.path, command.fork.source]
    if isinstance(command, Begin | AddStreams):
        return list(command.streams)
    if isinstance(command, AddPositions | SetPositions):
        return [position.path for position in command.positions]
    if isinstance(command, PinSnapshot):
        return [part.path for part in command.ranges]
    if isinstance(command, Commit):
        paths = [append.path for append in command.appends]
        paths += [position.path for position in command.positions]
        return paths + [path for path, _ in command.expects]
    return [] if isinstance(command, TxnCommand | Register) else [command.path]


def affected_txns(state: State, command: EngineCommand) -> list[Txn]:
    """List the open transactions a command is about; a begin meets all of its producer's.

    Those are few. A sink may have very many, and none of them is in the way of another.
    """
    found = {txn_id: state.transactions.get(txn_id) for txn_id in _ids_of(command)}
    txns = [txn for txn in found.values() if txn is not None]
    if isinstance(command, Begin) and isinstance(command.owner, ProducerOwner):
        numbers = state.owned.get(owner_key(command.owner), ())
        txns += [state.by_txn[number] for number in sorted(numbers)]
    return txns


def _ids_of(command: EngineCommand) -> Iterator[str]:
    if isinstance(command, TxnCall | Begin):
        yield command.id
    elif isinstance(command, Append) and command.transaction is not None:
        yield command.transaction.id
    elif isinstance(command, Commit):
        yield from (listed.id for listed in command.transactions)


class Lookups:
    """Finds in the journal's memory what the state does not hold."""

    def __init__(self, state: State, memory: TxnHistory) -> None:
        self._state = state
        self._txn_history = memory

    def of(self, txn_id: str, epoch: int, now_ms: int) -> tuple[TxnOutcome | None, int]:
        """Find the outcome of a transaction, and the epoch of its id's newest outcome.

        Commands come here before they are judged: what no transaction can be called has neither.
        """
        if not (is_name(txn_id, TXN_ID_BYTES_MAX) and is_number(epoch)):
            return None, 0
        txn = self._state.transactions.get(txn_id)
        if txn is not None and txn.row.epoch == epoch:
            return None, 0
        row = self._txn_history.outcome(txn_id, epoch)
        is_there = row is not None and is_outcome_retained(self._state, row, now_ms)
        remembered = row.outcome if row is not None and is_there else None
        return remembered, self.last_epoch(txn_id, now_ms)

    def last_epoch(self, txn_id: str, now_ms: int) -> int:
        """Find the epoch of an id's newest outcome still remembered; 0 if none is."""
        if not is_name(txn_id, TXN_ID_BYTES_MAX):
            return 0
        row = self._txn_history.last_outcome(
            txn_id, lambda row: is_outcome_retained(self._state, row, now_ms)
        )
        return 0 if row is None else row.outcome.epoch

    def add(self, command: EngineCommand) -> EngineCommand:
        """Hand a command the facts its decision needs. May raise ReadFailed."""
        now_ms = command.now_ms
        if isinstance(command, Begin):
            return replace(command, last_epoch=self.last_epoch(command.id, now_ms))
        if isinstance(command, TxnCall):
            remembered, last_epoch = self.of(command.id, command.epoch, now_ms)
            return replace(command, remembered=remembered, last_epoch=last_epoch)
        if isinstance(command, Append) and command.transaction is not None:
            tag = command.transaction
            remembered, last_epoch = self.of(tag.id, tag.epoch, now_ms)
            tag = replace(tag, remembered=remembered, last_epoch=last_epoch)
            return replace(command, transaction=tag)
        if isinstance(command, Commit):
            listed = []
            for named in command.transactions:
                remembered, last_epoch = self.of(named.id, named.epoch, now_ms)
                listed.append(replace(named, remembered=remembered, last_epoch=last_epoch))
            return replace(command, transactions=tuple(listed))
        return command


def expire_command(txn: Txn, now_ms: int) -> ExpireTxn:
    """Word the end of a transaction whose time is over."""
    return ExpireTxn(now_ms, txn.row.id, txn.row.epoch)


# ---- txn tally -----------------------------------------------------------------------------------
# How many transactions began and how they ended, since the start of the process.


class TxnTally:
    """Counts for those who watch the server."""

    def __init__(self) -> None:
        self.started = 0
        self.committed = 0
        self.aborted: Counter[str] = Counter()  # by reason

    @property
    def timed_out(self) -> int:
        """How many took too long; they count as aborted too."""
        return self.aborted[BY_TIMEOUT]

    def add_ended(self, outcomes: Iterable[OutcomeRow]) -> None:
        for row in outcomes:
            if row.outcome.decision == COMMITTED:
                self.committed += 1
            else:
                self.aborted[row.outcome.reason] += 1
