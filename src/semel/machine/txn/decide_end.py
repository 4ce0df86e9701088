"""Decisions to prepare, commit, abort, fence or expire a transaction."""

from semel.machine.events import CommitStamp, Decided, DecidedWithAcks, Decision, TxnPrepared
from semel.machine.positions import refuse_guards
from semel.machine.state import State, Txn
from semel.machine.subscriptions import find_commit_acks
from semel.machine.txn.draft import Draft, chunks_in, result_of
from semel.machine.txn.lookup import ended_refusal, find_for_call, find_txn
from semel.model.commands import (
    BY_OPERATOR,
    BY_REAPER,
    BY_REQUEST,
    BY_TIMEOUT,
    COMMITTED,
    TXN_STAGED,
    AbortTxn,
    CommitTxn,
    ExpireTxn,
    FenceTxn,
    ListedTxn,
    Prepare,
    ProducerOwner,
    TxnOutcome,
)
from semel.model.limits import NUMBER_MAX, SINK_IDLE_MS
from semel.model.outcomes import EpochExhausted, Outcome, Refusal, StillAlive, StreamClosed
from semel.model.outcomes_txn import (
    AbortDone,
    AlreadyAborted,
    AlreadyCommitted,
    BranchIncomplete,
    CommitDone,
    InvalidTxnState,
    Prepared,
    StreamRefused,
    TxnTimedOut,
)


def decide_prepare(state: State, command: Prepare) -> Decision:
    """Return the decision on a command that prepares a transaction."""
    txn = find_for_call(state, command)
    if isinstance(txn, TxnOutcome):
        return Decision(ended_refusal(txn))
    if not isinstance(txn, Txn):
        return Decision(txn)
    row = txn.row
    outcome = Prepared(row.id, row.epoch, f"{row.id}:{row.epoch}")
    if row.is_prepared:
        return Decision(outcome)
    if row.kind == TXN_STAGED and not _is_complete(state, txn, command):
        return Decision(incomplete(txn))
    refusal = refuse_guards(state, txn)  # A10
    if refusal is not None:
        return Decision(refusal)
    return Decision(outcome, TxnPrepared(row.number))


def _is_complete(state: State, txn: Txn, command: Prepare) -> bool:
    if command.chunks is not None and command.chunks != chunks_of(txn):
        return False
    if command.messages is None:
        return True
    staged = {state.by_number[n].row.path: row.messages for n, row in txn.streams.items()}
    expected = dict(command.messages)
    return all(staged.get(path, 0) == expected.get(path, 0) for path in {*staged, *expected})


def chunks_of(txn: Txn) -> int:
    """Return the number of the transaction's chunks, not counting chunks for deleted streams."""
    return sum(row.chunks for row in txn.streams.values())


def incomplete(txn: Txn) -> BranchIncomplete:
    """Return a `BranchIncomplete` refusal with the numbers of staged chunks and messages."""
    messages = sum(row.messages for row in txn.streams.values())
    return BranchIncomplete(txn.row.id, chunks_of(txn), messages)


def decide_commit_txn(state: State, command: CommitTxn) -> Decision:
    """Return the decision on a command that commits a producer's transaction.

    A sink's transaction is refused, because only a one-shot commit can commit it.
    """
    txn = find_for_call(state, command)
    if isinstance(txn, TxnOutcome):
        if txn.decision != COMMITTED:
            return Decision(already_aborted(txn))
        return Decision(CommitDone(txn.id, txn.epoch, txn.result, is_duplicate=True))
    if not isinstance(txn, Txn):
        return Decision(txn)
    row = txn.row
    if not isinstance(row.owner, ProducerOwner):
        return Decision(InvalidTxnState("sink"))
    refusal = refuse_closed(state, txn)
    if refusal is None and not row.is_prepared:
        refusal = refuse_guards(state, txn)  # A13, A14
    if refusal is not None:
        return Decision(refusal)
    wakes = find_commit_acks(state, command.wakes)
    if isinstance(wakes, Refusal):
        return Decision(wakes)
    draft = Draft(state)
    draft.place_chunks(txn)
    draft.end(txn, is_committed=True)
    event = Decided(tuple(draft.ended), draft.extents, by_operator=command.by_operator)
    if wakes:
        event = DecidedWithAcks(
            event.ended, event.extents, by_operator=command.by_operator, wakes=wakes
        )
    result = result_of(state, txn, draft.ended[0], draft.spans[-1])
    return Decision(CommitDone(row.id, row.epoch, result), event, tuple(draft.sections))


def refuse_closed(state: State, txn: Txn) -> Outcome | None:
    """Refuse to commit a transaction that has chunks for a closed stream.

    The refusal names the stream of the first such chunk.
    """
    by_number = state.by_number
    closed = {n for n, row in txn.streams.items() if row.chunks and by_number[n].tail.is_closed}
    if not closed:
        return None
    number = next(number for _, number, _ in chunks_in(txn.chunk_blocks) if number in closed)
    stream = by_number[number]
    return StreamRefused(stream.row.path, StreamClosed(stream.tail.tail))


def already_aborted(txn: TxnOutcome) -> Outcome:
    """Return the refusal for an attempt to commit an aborted transaction."""
    return TxnTimedOut() if txn.reason == BY_TIMEOUT else AlreadyAborted(txn.reason)


def decide_abort_txn(state: State, command: AbortTxn | FenceTxn) -> Decision:
    """Return the decision on an abort. `FenceTxn` also fences the producer."""
    txn = find_for_call(state, command)
    if isinstance(txn, TxnOutcome):
        if txn.decision == COMMITTED:
            return Decision(AlreadyCommitted())
        return Decision(AbortDone(txn.id, txn.epoch, txn.reason))
    if not isinstance(txn, Txn):
        return Decision(txn)
    is_fence = isinstance(command, FenceTxn)
    reason = BY_OPERATOR if is_fence or command.by_operator else BY_REQUEST
    draft, stamp = Draft(state), None
    owner = txn.row.owner
    if is_fence and isinstance(owner, ProducerOwner):
        epoch = state.registry[owner.id].epoch
        if epoch >= NUMBER_MAX:
            return Decision(EpochExhausted(epoch))
        stamp = CommitStamp(owner.id, epoch + 1, None)
        draft.fence(owner.id, epoch + 1, named=txn.row.number)
    else:
        draft.end(txn, is_committed=False, reason=reason)
    event = Decided(tuple(draft.ended), producer=stamp, by_operator=reason == BY_OPERATOR)
    outcome = AbortDone(txn.row.id, txn.row.epoch, reason)
    return Decision(outcome, event, tuple(draft.sections))


def decide_expire_txn(state: State, command: ExpireTxn) -> Decision:
    """Return the decision on a command that aborts a transaction if its timeout has passed.

    Only the broker's monotonic clock decides this. The time of the frame does not matter.
    """
    txn = find_txn(state, ListedTxn(command.id, command.epoch))
    if not isinstance(txn, Txn):
        assert isinstance(txn, Outcome)
        return Decision(txn)
    timeout_ms = timeout_of(txn)
    if timeout_ms is None or command.elapsed_ms < timeout_ms:
        return Decision(StillAlive())
    reason = BY_TIMEOUT if isinstance(txn.row.owner, ProducerOwner) else BY_REAPER
    draft = Draft(state)
    draft.end(txn, is_committed=False, reason=reason)
    outcome = AbortDone(txn.row.id, txn.row.epoch, reason)
    return Decision(outcome, Decided(tuple(draft.ended)), tuple(draft.sections))


def timeout_of(txn: Txn) -> int | None:
    """Return the timeout of a transaction, or None if it has none.

    A producer's prepared transaction has none. A sink's transaction always has SINK_IDLE_MS.
    """
    row = txn.row
    if not isinstance(row.owner, ProducerOwner):
        return SINK_IDLE_MS
    return None if row.is_prepared else row.timeout_ms


def deadline_of(txn: Txn) -> int | None:
    """Return the deadline of a transaction in frame time, or None if it has no timeout.

    It is for display only, because frame time can be far ahead of the clock.
    """
    row = txn.row
    if isinstance(row.owner, ProducerOwner):
        return row.deadline_ms
    return row.touched_ms + SINK_IDLE_MS
