"""The checks that find the transaction of a call; every call on a transaction begins with them.

A letter in a comment is the row of that check in `docs/reference/transactions.md`.
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
from semel.model.limits import OUTCOME_WINDOW_MS, OUTCOMES_PER_PRODUCER_MAX
from semel.model.outcomes import Outcome, Refusal, StaleEpoch
from semel.model.outcomes_txn import (
    InvalidTxnState,
    NotOwner,
    StaleTransaction,
    TxnTimedOut,
    UnknownTransaction,
)

TxnOrRefusal = Txn | TxnOutcome | Outcome


def find_txn(state: State, named: TxnCall | TxnTag | ListedTxn, now_ms: int) -> TxnOrRefusal:
    """Return the named transaction, or its outcome, or a refusal if there is neither."""
    outcome = named.remembered
    if (
        outcome is not None
        and (outcome.id, outcome.epoch) == (named.id, named.epoch)
        and state.frame_time(now_ms) < outcome.time_ms + OUTCOME_WINDOW_MS
    ):
        return outcome  # a
    txn = state.transactions.get(named.id)
    last = named.last_epoch if txn is None else txn.row.epoch
    if named.epoch < last:
        return StaleTransaction(last)  # c
    if txn is None or named.epoch > last:
        return UnknownTransaction()  # b, d
    return txn


def find_for_call(state: State, call: TxnCall) -> TxnOrRefusal:
    """Return the transaction of a call, or its outcome, or a refusal.

    It is refused if the caller is not the owner, unless the caller is an operator.
    """
    txn = find_txn(state, call, call.now_ms)
    if call.by_operator or not isinstance(txn, Txn):
        return txn
    return refuse_owner(txn, call.producer_id, call.producer_epoch) or txn


def refuse_owner(txn: Txn, producer_id: str | None, epoch: int | None) -> Refusal | None:
    """Refuse a producer that is not the owner, or that is another instance of the owner."""
    owner = txn.row.owner
    if producer_id is None:
        return None
    if not isinstance(owner, ProducerOwner) or owner.id != producer_id:
        return NotOwner()  # e
    return None if epoch in (None, owner.epoch) else StaleEpoch(owner.epoch)  # f


def ended_refusal(txn: TxnOutcome) -> Refusal:
    """Return the refusal for a call that would change an ended transaction."""
    if txn.decision == ABORTED and txn.reason == BY_TIMEOUT:
        return TxnTimedOut()
    return InvalidTxnState(txn.decision, txn.reason or None)


def find_open(state: State, call: TxnCall) -> Txn | Outcome:
    """Return the transaction of a call if it is open; otherwise a refusal."""
    txn = find_for_call(state, call)
    if isinstance(txn, TxnOutcome):
        return ended_refusal(txn)
    if isinstance(txn, Txn) and txn.row.is_prepared:
        return InvalidTxnState("prepared")
    return txn


# ---- retention of outcomes -----------------------------------------------------------------------


def expired_epoch(state: State, owner: Owner) -> int:
    """Return the highest transaction epoch of a producer that has dropped outcomes; else 0.

    Outcomes are dropped when a producer has too many. An id without an outcome may belong to a
    dropped one, and a late call may still use its epoch. A new transaction must have a higher one.
    """
    registered = state.registry.get(owner.id) if isinstance(owner, ProducerOwner) else None
    if registered is None or registered.decided <= OUTCOMES_PER_PRODUCER_MAX:
        return 0
    return registered.txn_epoch


def is_outcome_retained(state: State, row: OutcomeRow, now_ms: int) -> bool:
    """Return whether an outcome is retained; an expired one may not be removed from disk yet."""
    if state.frame_time(now_ms) >= row.outcome.time_ms + OUTCOME_WINDOW_MS:
        return False
    owner = row.owner
    if isinstance(owner, ProducerOwner):
        return row.ordinal >= state.registry[owner.id].decided - OUTCOMES_PER_PRODUCER_MAX
    sink = state.sinks.get(owner.app)
    cutoff = state.forgotten_sink_cutoffs.get(owner.app, 0) if sink is None else sink.outcomes_from
    return row.number >= cutoff
