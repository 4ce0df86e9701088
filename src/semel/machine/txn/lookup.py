"""Functions that find the transaction that a call names, or refuse the call.

A letter in a comment refers to a row of the table of checks in `docs/reference/transactions.md`.
"""

from semel.machine.rows import OutcomeRow
from semel.machine.state import State, Txn
from semel.model.commands import (
    ABORTED,
    BY_TIMEOUT,
    ListedTxn,
    Owner,
    ProducerOwner,
    TxnCall,
    TxnOutcome,
    TxnTag,
)
from semel.model.limits import OUTCOMES_PER_PRODUCER_MAX
from semel.model.outcomes import Outcome, Refusal, StaleEpoch
from semel.model.outcomes_txn import (
    InvalidTxnState,
    NotOwner,
    StaleTransaction,
    TxnTimedOut,
    UnknownTransaction,
)

TxnOrRefusal = Txn | TxnOutcome | Outcome


def find_txn(state: State, named: TxnCall | TxnTag | ListedTxn) -> TxnOrRefusal:
    """Return the named transaction if it is pending, or its outcome if it has ended.

    Return a refusal if there is neither a transaction nor an outcome.
    """
    outcome = named.remembered
    if outcome is not None and (outcome.id, outcome.epoch) == (named.id, named.epoch):
        return outcome  # a
    txn = state.transactions.get(named.id)
    last = named.last_epoch if txn is None else txn.row.epoch
    if named.epoch < last:
        return StaleTransaction(last)  # c
    if txn is None or named.epoch > last:
        return UnknownTransaction()  # b, d
    return txn


def find_for_call(state: State, call: TxnCall) -> TxnOrRefusal:
    """Return the transaction that a call names, or the outcome if the transaction has ended.

    Return a refusal if neither exists, or if the caller is not the owner of the pending
    transaction. An operator need not be the owner.
    """
    txn = find_txn(state, call)
    if call.by_operator or not isinstance(txn, Txn):
        return txn
    return refuse_owner(txn, call.producer_id, call.producer_epoch) or txn


def refuse_owner(txn: Txn, producer_id: str | None, epoch: int | None) -> Refusal | None:
    """Refuse a producer that is not the owner of `txn` or is a different instance of the owner.

    A call without a producer id is not refused.
    """
    owner = txn.row.owner
    if producer_id is None:
        return None
    if not isinstance(owner, ProducerOwner) or owner.id != producer_id:
        return NotOwner()  # e
    return None if epoch in (None, owner.epoch) else StaleEpoch(owner.epoch, epoch)  # f


def ended_refusal(txn: TxnOutcome) -> Refusal:
    """Return the refusal for a call that tries to change a transaction that has ended."""
    if txn.decision == ABORTED and txn.reason == BY_TIMEOUT:
        return TxnTimedOut()
    return InvalidTxnState(txn.decision, txn.reason or None)


def find_open(state: State, call: TxnCall) -> Txn | Outcome:
    """Return the transaction that a call names if it is open; otherwise return a refusal."""
    txn = find_for_call(state, call)
    if isinstance(txn, TxnOutcome):
        return ended_refusal(txn)
    if isinstance(txn, Txn) and txn.row.is_prepared:
        return InvalidTxnState("prepared")
    return txn


# ---- retention of outcomes -----------------------------------------------------------------------


def expired_epoch(state: State, owner: Owner) -> int:
    """Return the transaction epoch that the owner's next transaction must exceed.

    For a producer that has had more than OUTCOMES_PER_PRODUCER_MAX outcomes, the oldest outcomes
    are no longer retained. In this case, return the highest transaction epoch of the producer's
    ended transactions. Then a late call for an ended transaction cannot affect a new transaction
    with the same id, because their transaction epochs differ. In all other cases, return 0.
    """
    registered = state.registry.get(owner.id) if isinstance(owner, ProducerOwner) else None
    if registered is None or registered.decided <= OUTCOMES_PER_PRODUCER_MAX:
        return 0
    return registered.txn_epoch


def is_outcome_retained(state: State, row: OutcomeRow) -> bool:
    """Return True if an outcome is still retained.

    Outcomes stay on disk for some time after their retention ends, so a lookup must check this.
    """
    if state.hours > row.hour + state.limits.outcome_hours:
        return False
    owner = row.owner
    if isinstance(owner, ProducerOwner):
        registered = state.registry.get(owner.id)  # None if the server assigned it and it retired
        last = 0 if registered is None else registered.decided
        return row.ordinal >= last - OUTCOMES_PER_PRODUCER_MAX
    sink = state.sinks.get(owner.app)
    cutoff = state.forgotten_sink_cutoffs.get(owner.app, 0) if sink is None else sink.outcomes_from
    return row.number >= cutoff
