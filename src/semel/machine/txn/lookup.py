"""Whose transaction: the table every call on a transaction begins with.

The letters in the comments are its rows in `docs/reference/transactions.md`.
"""

from semel.machine.rows import OutcomeRow
from semel.machine.state import State, Txn
from semel.model.limits import OUTCOME_WINDOW_MS, OUTCOMES_PER_PRODUCER_MAX
from semel.model.outcomes import Outcome, Refusal, StaleEpoch
from semel.model.outcomes_txn import (
    InvalidTxnState,
    NotOwner,
    StaleTransaction,
    TxnTimedOut,
    UnknownTransaction,
)
from semel.model.transactions import Owner, ProducerOwner, TxnCall
from semel.model.txn_outcome import ABORTED, BY_TIMEOUT, TxnOutcome

TxnOrRefusal = Txn | TxnOutcome | Outcome


def find_txn(
    state: State,
    txn_id: str,
    epoch: int,
    *,
    now_ms: int,
    remembered: TxnOutcome | None,
    last_epoch: int,
) -> TxnOrRefusal:
    """Find a transaction, or its outcome, or why there is neither."""
    if (
        remembered is not None
        and (remembered.id, remembered.epoch) == (txn_id, epoch)
        and state.frame_time(now_ms) < remembered.time_ms + OUTCOME_WINDOW_MS
    ):
        return remembered  # a
    txn = state.transactions.get(txn_id)
    last = last_epoch if txn is None else txn.row.epoch
    if epoch < last:
        return StaleTransaction(last)  # c
    if txn is None or epoch > last:
        return UnknownTransaction()  # b, d
    return txn


def find_for_call(state: State, call: TxnCall) -> TxnOrRefusal:
    """Find the transaction a call is about, if the caller may touch it."""
    found = find_txn(
        state,
        call.id,
        call.epoch,
        now_ms=call.now_ms,
        remembered=call.remembered,
        last_epoch=call.last_epoch,
    )
    if call.by_operator or not isinstance(found, Txn):
        return found
    return refuse_owner(found, call.producer_id, call.producer_epoch) or found


def refuse_owner(txn: Txn, producer_id: str | None, epoch: int | None) -> Refusal | None:
    """Refuse a producer that is not the owner, or is another instance of it."""
    owner = txn.row.owner
    if producer_id is None:
        return None
    if not isinstance(owner, ProducerOwner) or owner.id != producer_id:
        return NotOwner()  # e
    if epoch is not None and epoch != owner.epoch:
        return StaleEpoch(owner.epoch)  # f
    return None


def ended_refusal(found: TxnOutcome) -> Refusal:
    """Answer a call that changes a transaction which has ended."""
    if found.decision == ABORTED and found.reason == BY_TIMEOUT:
        return TxnTimedOut()
    return InvalidTxnState(found.decision, found.reason or None)


def find_open(state: State, call: TxnCall) -> Txn | Outcome:
    """Find a transaction that can still be changed."""
    found = find_for_call(state, call)
    if isinstance(found, TxnOutcome):
        return ended_refusal(found)
    if isinstance(found, Txn) and found.row.is_prepared:
        return InvalidTxnState("prepared")
    return found


# ---- outcomes kept -------------------------------------------------------------------------------
# How long an outcome is remembered.


def expired_epoch(state: State, owner: Owner) -> int:
    """Tell an epoch that none of the outcomes forgotten for their number was above.

    An id that is not known may have been one of them, and its owner may call again late.
    """
    registered = state.registry.get(owner.id) if isinstance(owner, ProducerOwner) else None
    if registered is None or registered.decided <= OUTCOMES_PER_PRODUCER_MAX:
        return 0
    return registered.txn_epoch


def is_outcome_retained(state: State, row: OutcomeRow, now_ms: int) -> bool:
    """Tell whether an outcome still answers; one that does not may be gone from the store."""
    if state.frame_time(now_ms) >= row.outcome.time_ms + OUTCOME_WINDOW_MS:
        return False
    owner = row.owner
    if isinstance(owner, ProducerOwner):
        return row.ordinal >= state.registry[owner.id].decided - OUTCOMES_PER_PRODUCER_MAX
    sink = state.sinks.get(owner.app)
    floor = state.forgotten_sink_cutoffs.get(owner.app, 0) if sink is None else sink.outcomes_from
    return row.number >= floor
