"""`apply` for groups and sinks."""

from collections.abc import Iterable

from semel.machine.events import Section
from semel.machine.positions import stored_position
from semel.machine.state import State, add_position
from semel.machine.txn_events import PositionsMoved, SinkForgotten, SinkRebound, SnapshotPinned
from semel.machine.txn_rows import OwnerKey, PositionRow, SinkRow

Sections = tuple[Section, ...]


def set_sink(state: State, app: str, row: SinkRow) -> None:
    """Know a sink."""
    state.sinks[app] = row
    state.dirty.sinks[app] = row


def apply_rebound(state: State, event: SinkRebound, _sections: Sections, _time_ms: int) -> None:
    """Give a sink to another query, which shares no history with the one before."""
    old = state.sinks[event.app]
    kept = tuple(row for row in old.versions if row.version <= event.last_version)
    if event.query_id != old.query_id:
        kept = ()
    row = SinkRow(event.query_id, event.last_version, kept, old.outcomes_from)
    set_sink(state, event.app, row)


def apply_sink_forgotten(
    state: State, event: SinkForgotten, _sections: Sections, _time_ms: int
) -> None:
    """Drop a sink; the outcomes its commits have let go stay gone."""
    floor = state.sinks.pop(event.app).outcomes_from
    state.floors[event.app] = state.dirty.floors[event.app] = floor
    state.dirty.sinks[event.app] = None


def move_positions(
    state: State,
    moves: Iterable[tuple[str, int, int]],
    time_ms: int,
    mover: OwnerKey | None = None,
) -> None:
    """Move groups to (group, stream, offset).

    `mover` is None for a plain set, which leaves the last one: if it did not, a worker that skips a
    message would let in all others that do not say where they have read from.
    """
    for group, number, offset in moves:
        stream = state.by_number[number]
        old = stored_position(stream, group)
        row = PositionRow(offset, time_ms, old.version + 1, mover or old.mover)
        add_position(state, stream, group, row)
        state.dirty.positions[number, group] = row


def apply_moved(state: State, event: PositionsMoved, _sections: Sections, time_ms: int) -> None:
    """Move groups, without a transaction."""
    move_positions(state, event.positions, time_ms)


def apply_pinned(state: State, event: SnapshotPinned, _sections: Sections, _time_ms: int) -> None:
    """Pin a group's step."""
    state.snapshots[event.group] = event.row
    state.dirty.snapshots[event.group] = event.row
