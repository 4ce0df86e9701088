"""Decisions on groups: where they stand, and what their next step reads."""

from semel.machine.events import Decision
from semel.machine.named import find_named
from semel.machine.positions import refuse_plain_moves, stored_position
from semel.machine.state import State
from semel.machine.txn_events import PositionsMoved, SnapshotPinned
from semel.machine.txn_rows import SnapshotRow
from semel.model.limits import SNAPSHOTS_MAX
from semel.model.outcomes import LimitReached
from semel.model.transactions import PinSnapshot, SetPositions
from semel.model.txn_outcomes import (
    IncarnationConflict,
    Pinned,
    PositionsSet,
    SnapshotConflict,
)


def decide_set_positions(state: State, command: SetPositions) -> Decision:
    """Move positions, all or none."""
    streams = find_named(state, (position.path for position in command.positions))
    if not isinstance(streams, dict):
        return Decision(streams)
    refusal = refuse_plain_moves(state, streams, command.positions)
    if refusal is not None:
        return Decision(refusal)
    moves, versions = [], []
    for position in command.positions:
        stream = streams[position.path]
        moves.append((position.group, stream.row.number, position.to))
        versions.append(stored_position(stream, position.group).version + 1)
    return Decision(PositionsSet(tuple(versions)), PositionsMoved(tuple(moves)), grows=True)


def decide_pin(state: State, command: PinSnapshot) -> Decision:
    """Pin a step; the first one wins."""
    pinned = state.snapshots.get(command.group)
    if pinned is not None and pinned.number == command.number:
        return Decision(Pinned(pinned.number, pinned.ranges, pinned.hash, is_new=False))
    if pinned is not None and pinned.number != command.number - 1:
        return Decision(SnapshotConflict(pinned.number))
    streams = find_named(state, (part.path for part in command.ranges))
    if not isinstance(streams, dict):
        return Decision(streams)
    for part in command.ranges:
        incarnation = streams[part.path].row.incarnation
        if part.incarnation != incarnation:
            return Decision(IncarnationConflict(part.path, incarnation))
    if pinned is None and len(state.snapshots) >= SNAPSHOTS_MAX:
        return Decision(LimitReached("snapshots", SNAPSHOTS_MAX))
    row = SnapshotRow(command.number, command.ranges, command.hash)
    outcome = Pinned(command.number, command.ranges, command.hash, is_new=True)
    return Decision(outcome, SnapshotPinned(command.group, row), grows=True)
