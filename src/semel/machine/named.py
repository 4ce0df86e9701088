"""The streams a command names: all of them have to be there."""

from collections.abc import Callable, Iterable, Mapping

from semel.machine.state import State, Stream
from semel.machine.streams import find_stream
from semel.model.limits import GROUPS_PER_STREAM_MAX
from semel.model.outcomes import LimitReached, OffsetBeyondTail, Outcome, Refusal
from semel.model.transactions import Position
from semel.model.txn_outcomes import PositionConflict, StreamRefused


def find_named(state: State, paths: Iterable[str]) -> dict[str, Stream] | StreamRefused:
    """Find every stream, or the first that is not there."""
    found: dict[str, Stream] = {}
    for path in paths:
        stream = find_stream(state, path)
        if not isinstance(stream, Stream):
            return refused(path, stream)
        found[path] = stream
    return found


def refused(path: str, cause: Outcome) -> StreamRefused:
    """Name the stream of several that refuses."""
    assert isinstance(cause, Refusal)
    return StreamRefused(path, cause)


def refuse_moves(
    streams: Mapping[str, Stream],
    positions: Iterable[Position],
    tail_of: Callable[[Stream], int],
) -> Refusal | None:
    """Refuse the first position that cannot be; those before it may take the last room."""
    fresh: dict[int, set[str]] = {}  # groups that are new to a stream
    for position in positions:
        stream = streams[position.path]
        added = fresh.setdefault(stream.row.number, set())
        refusal = _refuse_move(stream, position, tail_of(stream), added)
        if refusal is not None:
            return refusal
    return None


def _refuse_move(stream: Stream, position: Position, tail: int, added: set[str]) -> Refusal | None:
    """Refuse a position that is not where the caller believes, or past the stream's end."""
    known = stream.positions
    stored = known.get(position.group) if known else None
    offset = 0 if stored is None else stored.offset
    incarnation = stream.row.incarnation
    if position.incarnation not in (None, incarnation):
        return PositionConflict(position.group, position.path, offset, incarnation)
    if position.expected is not None and position.expected != offset:
        return PositionConflict(position.group, position.path, offset)
    if position.to > tail:
        return StreamRefused(position.path, OffsetBeyondTail(tail))
    if stored is not None:
        return None
    added.add(position.group)
    if len(known or ()) + len(added) > GROUPS_PER_STREAM_MAX:
        return LimitReached("groups_per_stream", GROUPS_PER_STREAM_MAX)
    return None


def find_moves(
    state: State, positions: tuple[Position, ...]
) -> tuple[tuple[str, int, int], ...] | Refusal:
    """Find the moves (group, stream, offset) that positions ask for, or the first refused."""
    streams = find_named(state, (position.path for position in positions))
    if not isinstance(streams, dict):
        return streams
    refusal = refuse_moves(streams, positions, lambda stream: stream.tail.tail)
    if refusal is not None:
        return refusal
    return tuple(
        (position.group, streams[position.path].row.number, position.to) for position in positions
    )
