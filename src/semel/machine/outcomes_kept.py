"""How long an outcome is remembered."""

from semel.machine.state import State
from semel.machine.txn_rows import OutcomeRow
from semel.model.limits import OUTCOME_WINDOW_MS, OUTCOMES_PER_PRODUCER_MAX
from semel.model.transactions import Owner, ProducerOwner


def forgotten_epoch(state: State, owner: Owner) -> int:
    """Tell an epoch that none of the outcomes forgotten for their number was above.

    An id that is not known may have been one of them, and its owner may call again late.
    """
    registered = state.registry.get(owner.id) if isinstance(owner, ProducerOwner) else None
    if registered is None or registered.decided <= OUTCOMES_PER_PRODUCER_MAX:
        return 0
    return registered.txn_epoch


def is_kept(state: State, row: OutcomeRow, now_ms: int) -> bool:
    """Tell whether an outcome still answers; one that does not may be gone from the store."""
    if state.frame_time(now_ms) >= row.outcome.time_ms + OUTCOME_WINDOW_MS:
        return False
    owner = row.owner
    if isinstance(owner, ProducerOwner):
        return row.ordinal >= state.registry[owner.id].decided - OUTCOMES_PER_PRODUCER_MAX
    sink = state.sinks.get(owner.app)
    floor = state.floors.get(owner.app, 0) if sink is None else sink.outcomes_from
    return row.number >= floor
