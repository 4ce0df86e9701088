"""Positions: the conditions for moving them, and the functions that apply group and sink events.

A name such as A2 in a comment is the name of a row in the tables in
`docs/reference/transactions.md`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import chain, repeat
from typing import Final

from msgspec.structs import replace

from semel.machine.events import (
    Decision,
    PositionsMoved,
    PositionsMovedWithMetadata,
    Sections,
    SinkForgotten,
    SinkRebound,
    SnapshotPinned,
)
from semel.machine.generations import Growths, refuse_generation
from semel.machine.pending import add_position, owner_key
from semel.machine.rows import NamedPosition, OwnerKey, PositionRow, SinkRow, SnapshotRow, TxnRow
from semel.machine.state import State, Stream, Txn, drop_owner
from semel.machine.streams import find_by_path
from semel.model.commands import Metadata, PinSnapshot, PositionMove, SetPositions
from semel.model.limits import GROUPS_PER_STREAM_MAX, SNAPSHOTS_MAX, TXN_POSITIONS_MAX
from semel.model.outcomes import LimitReached, OffsetBeyondTail, Refusal
from semel.model.outcomes_txn import (
    BY_DELETION,
    BY_INCARNATION,
    BY_MOVE,
    BY_MOVER,
    BY_OFFSET,
    BY_PENDING,
    BY_VERSION,
    IncarnationConflict,
    Pinned,
    PositionConflict,
    PositionsSet,
    SnapshotConflict,
    StreamRefused,
    UnstableOffsets,
)
from semel.model.rights import SINK

_NEVER_MOVED: Final = PositionRow(0, 0)
TailOf = Callable[[Stream], int]


def stored_position(stream: Stream, group: str) -> PositionRow:
    """Return the position of a group in a stream.

    A position that was never moved has offset 0 and version 0.
    """
    return stream.positions.get(group, _NEVER_MOVED) if stream.positions else _NEVER_MOVED


def print_mover(mover: OwnerKey) -> str:
    """Return the text form of `mover`: a producer id, or `sink:` followed by the id of a sink."""
    is_producer, name = mover
    return name if is_producer else f"sink:{name}"


# ---- positions that a transaction names ----------------------------------------------------------


def name_positions(
    state: State, txn: Txn, moves: tuple[PositionMove, ...]
) -> dict[NamedPosition, Metadata] | Refusal:
    """Return the positions that `moves` add or change in an open transaction, with their metadata.

    Return a refusal if one of the moves is not allowed.
    """
    streams = find_by_path(state, (move.path for move in moves))
    if not isinstance(streams, dict):
        return streams  # A1
    old = {(named.group, named.stream): named for named in txn.row.positions}
    new = dict(old)
    old_metadata = named_metadata(txn.row)
    metadata = dict(old_metadata)
    room, growths = _Room(), Growths(state)
    mover = owner_key(txn.row.owner)
    for move in moves:
        stream = streams[move.path]
        key = move.group, stream.row.number
        is_repeat = metadata.get(key, ()) == move.metadata
        old_named = new.get(key)
        named = _name(state, stream, move, old_named, mover, growths=growths, is_repeat=is_repeat)
        if isinstance(named, Refusal):
            return named
        if named is not old_named:
            refusal = room.refuse(stream, move, stream.tail.tail, is_named=key in new)  # A9b
            if refusal is not None:
                return refusal
        new[key], metadata[key] = named, move.metadata
    if len(new) + len(txn.row.lost) > TXN_POSITIONS_MAX:
        return LimitReached("transaction_positions", TXN_POSITIONS_MAX)  # A9c
    return {
        named: metadata.get(key, ())
        for key, named in new.items()
        if named != old.get(key) or metadata.get(key, ()) != old_metadata.get(key, ())
    }


def named_metadata(row: TxnRow) -> dict[tuple[str, int], Metadata]:
    """Return the metadata that a transaction's moves will set, for each group and stream."""
    return {(group, number): metadata for group, number, metadata in row.metadata}


def add_named(
    row: TxnRow, positions: Iterable[NamedPosition], metadata: Iterable[Metadata] = ()
) -> TxnRow:
    """Return the row of a transaction with more named positions.

    `metadata` has one element for each of them, or is empty.
    """
    merged = {(named.group, named.stream): named for named in row.positions}
    kept = named_metadata(row)
    for named, noted in zip(positions, chain(metadata, repeat(())), strict=False):
        merged[named.group, named.stream] = named
        kept[named.group, named.stream] = noted
    noted_keys = tuple((*key, noted) for key, noted in kept.items() if noted)
    return replace(row, positions=tuple(merged.values()), metadata=noted_keys)


def remove_named(row: TxnRow, number: int) -> TxnRow:
    """Return the row of a transaction without the positions that it named in a stream."""
    positions = tuple(named for named in row.positions if named.stream != number)
    metadata = tuple(noted for noted in row.metadata if noted[1] != number)
    return replace(row, positions=positions, metadata=metadata)


def _name(
    state: State,
    stream: Stream,
    position: PositionMove,
    old: NamedPosition | None,
    mover: OwnerKey,
    *,
    growths: Growths,
    is_repeat: bool,
) -> NamedPosition | Refusal:
    """Return the named position, which is `old` if nothing changes, or a refusal.

    `is_repeat` is True if the metadata is the same as that of the last call.
    """
    group, to, expected, version = position.group, position.to, position.expected, position.version
    stored = stored_position(stream, group)
    named = NamedPosition(group, stream.row.number, to, stored.version, expected, version)
    if position.member is not None:
        named = replace(named, member=position.member, member_epoch=position.member_epoch)
    refusal = _refuse_incarnation(stream, position, stored)  # A2
    refusal = refusal or refuse_generation(state, stream, named, growths=growths)
    if refusal is not None:
        return refusal
    if old is not None:
        if is_repeat and old == replace(named, guard=old.guard):
            return old  # A3
        if expected not in (None, old.to):
            return PositionConflict(
                group, position.path, old.to, version=stored.version, reason=BY_PENDING
            )  # A4
        return replace(named, guard=old.guard)  # A5
    else:
        refusal = (
            refuse_held(state, stream, group)  # A6
            or _refuse_from(position, stored)  # A7
            or _refuse_mover(position, stored, mover)  # A8
        )
        if refusal is not None:
            return refusal
    return named  # A9


# ---- prepare and commit --------------------------------------------------------------------------


def refuse_guards(state: State, txn: Txn, ending: Collection[int] = ()) -> Refusal | None:
    """Return a refusal if the transaction can no longer move a position that it names.

    This is the case if the position has been moved since it was named, if its stream was deleted,
    or if another prepared transaction holds it. Transactions in `ending` are ignored, because the
    same decision ends them.
    """
    for group, path in txn.row.lost:  # A10, A14
        return PositionConflict(group, path, 0, reason=BY_DELETION)
    growths = Growths(state)
    for named in txn.row.positions:
        stream = state.by_number[named.stream]
        stored = stored_position(stream, named.group)
        refusal = refuse_generation(state, stream, named, growths=growths)
        if refusal is not None:
            return refusal
        if stored.version != named.guard:
            return PositionConflict(
                named.group,
                stream.row.path,
                stored.offset,
                version=stored.version,
                reason=BY_MOVE,
            )
        refusal = refuse_held(state, stream, named.group, ending)
        if refusal is not None:
            return refusal
    return None


def refuse_held(
    state: State, stream: Stream, group: str, ending: Collection[int] = ()
) -> Refusal | None:
    """Return a refusal if a prepared transaction holds the group's position in the stream.

    Return None if there is no such transaction, or if its number is in `ending`.
    """
    number = stream.holds.get(group) if stream.holds else None
    if number is None or number in ending:
        return None
    holder = state.by_txn[number].row
    return UnstableOffsets(group, stream.row.path, holder.id, holder.epoch)  # A6, A15


# ---- moves of a one-shot commit ------------------------------------------------------------------


def refuse_commit_moves(
    state: State,
    streams: Mapping[str, Stream],
    positions: Iterable[PositionMove],
    *,
    tail_of: TailOf,
    mover: OwnerKey,
    ending: Collection[int],
) -> Refusal | None:
    """Return the refusal for the first position that a one-shot commit cannot move.

    Return None if the commit can move all positions. A transaction in `ending` does not block a
    move, because the commit ends that transaction.
    """
    room, growths = _Room(), Growths(state)
    for position in positions:
        stream = streams[position.path]
        stored = stored_position(stream, position.group)
        refusal = (
            _refuse_incarnation(stream, position, stored)
            or refuse_generation(state, stream, position, growths=growths)
            or refuse_held(state, stream, position.group, ending)
            or _refuse_from(position, stored)
            or _refuse_mover(position, stored, mover)
            or room.refuse(stream, position, tail_of(stream))
        )
        if refusal is not None:
            return refusal  # A18
    return None


# ---- the conditions of a move --------------------------------------------------------------------


def _refuse_incarnation(
    stream: Stream, position: PositionMove, stored: PositionRow
) -> Refusal | None:
    incarnation = stream.row.incarnation
    if position.incarnation in (None, incarnation):
        return None
    return PositionConflict(
        position.group,
        position.path,
        stored.offset,
        incarnation,
        stored.version,
        reason=BY_INCARNATION,
    )


def _refuse_from(position: PositionMove, stored: PositionRow) -> Refusal | None:
    if position.expected not in (None, stored.offset):
        reason = BY_OFFSET
    elif position.version not in (None, stored.version):
        reason = BY_VERSION
    else:
        return None
    return PositionConflict(
        position.group, position.path, stored.offset, version=stored.version, reason=reason
    )


def _refuse_mover(position: PositionMove, stored: PositionRow, mover: OwnerKey) -> Refusal | None:
    if position.expected is not None or stored.mover is None or stored.mover == mover:
        return None
    return PositionConflict(
        position.group,
        position.path,
        stored.offset,
        version=stored.version,
        mover=print_mover(stored.mover),
        reason=BY_MOVER,
    )


class _Room:
    """Refuses to move a position past the tail, or to add too many groups to a stream.

    Use a new instance for each command, because an instance counts the groups that the command
    adds.
    """

    def __init__(self) -> None:
        self._fresh: dict[int, set[str]] = {}  # for each stream, the groups that the command adds

    def refuse(
        self, stream: Stream, position: PositionMove, tail: int, *, is_named: bool = False
    ) -> Refusal | None:
        """Return a refusal if the position cannot be moved, otherwise None.

        If `is_named` is True, the transaction has already named the position. In that case, the
        group is not counted again.
        """
        if position.to > tail:
            return StreamRefused(position.path, OffsetBeyondTail(tail))
        stored = stream.positions or {}
        if is_named or position.group in stored:
            return None
        fresh = self._fresh.setdefault(stream.row.number, set())
        fresh.add(position.group)
        has_room = len(stored) + len(fresh) <= GROUPS_PER_STREAM_MAX
        return None if has_room else LimitReached("groups_per_stream", GROUPS_PER_STREAM_MAX)


# ---- commands on groups --------------------------------------------------------------------------


def decide_set_positions(state: State, command: SetPositions) -> Decision:
    """Return the decision on a command that moves positions outside a transaction.

    Either all positions are moved, or none of them.
    """
    streams = find_by_path(state, (position.path for position in command.positions))
    if not isinstance(streams, dict):
        return Decision(streams)
    room, growths, moves, versions = _Room(), Growths(state), [], []
    for position in command.positions:
        stream = streams[position.path]
        stored = stored_position(stream, position.group)
        refusal = (
            _refuse_incarnation(stream, position, stored)
            or refuse_generation(
                state, stream, position, growths=growths, by_operator=command.by_operator
            )
            or _refuse_from(position, stored)
            or refuse_held(state, stream, position.group)
            or room.refuse(stream, position, stream.tail.tail)
        )
        if refusal is not None:
            return Decision(refusal)  # A19
        moves.append((position.group, stream.row.number, position.to))
        versions.append(stored.version + 1)
    metadata = metadata_of(command.positions)
    event = PositionsMoved(tuple(moves))
    if metadata:
        event = PositionsMovedWithMetadata(event.positions, metadata)
    return Decision(PositionsSet(tuple(versions)), event, grows=True)


def metadata_of(moves: Iterable[PositionMove]) -> tuple[Metadata, ...]:
    """Return the metadata of each move, or an empty tuple if no move sets metadata."""
    metadata = tuple(move.metadata for move in moves)
    return metadata if any(metadata) else ()


def decide_pin(state: State, command: PinSnapshot) -> Decision:
    """Decide a command that stores (pins) the offset ranges that a group's next step reads.

    If this step is already pinned, the outcome contains the stored ranges.
    """
    pinned = state.snapshots.get(command.group)
    if pinned is not None and pinned.number == command.number:
        return Decision(Pinned(pinned.number, pinned.ranges, pinned.hash, is_new=False))
    if pinned is not None and pinned.number != command.number - 1:
        return Decision(SnapshotConflict(pinned.number))
    streams = find_by_path(state, (span.path for span in command.ranges))
    if not isinstance(streams, dict):
        return Decision(streams)
    for span in command.ranges:
        incarnation = streams[span.path].row.incarnation
        if span.incarnation != incarnation:
            return Decision(IncarnationConflict(span.path, incarnation))
    if pinned is None and len(state.snapshots) >= SNAPSHOTS_MAX:
        return Decision(LimitReached("snapshots", SNAPSHOTS_MAX))
    row = SnapshotRow(command.number, command.ranges, command.hash)
    outcome = Pinned(command.number, command.ranges, command.hash, is_new=True)
    return Decision(outcome, SnapshotPinned(command.group, row), grows=True)


# ---- apply ---------------------------------------------------------------------------------------


def set_sink(state: State, app: str, row: SinkRow) -> None:
    """Store the row of a sink."""
    state.sinks[app] = state.dirty.sinks[app] = row


def apply_rebound(state: State, event: SinkRebound, _sections: Sections, _time_ms: int) -> None:
    """Bind a sink to a query, and set its last version to `event.last_version`.

    If the query stays the same, the stored versions up to `event.last_version` are kept. If the
    query is different, all stored versions are dropped.
    """
    old = state.sinks[event.app]
    versions = old.versions if event.query_id == old.query_id else ()
    kept = tuple(row for row in versions if row.version <= event.last_version)
    row = SinkRow(event.query_id, event.last_version, kept, old.outcomes_from)
    set_sink(state, event.app, row)


def apply_sink_forgotten(
    state: State, event: SinkForgotten, _sections: Sections, _time_ms: int
) -> None:
    """Drop a sink, but keep its `outcomes_from` (the lowest outcome number that is still valid).

    Without `outcomes_from`, expired outcomes of the sink's transactions would become valid again.
    """
    cutoff = state.sinks.pop(event.app).outcomes_from
    state.forgotten_sink_cutoffs[event.app] = state.dirty.forgotten_sink_cutoffs[event.app] = cutoff
    state.dirty.sinks[event.app] = None
    drop_owner(state, (SINK, 0, event.app))


def remove_named_position(state: State, txn_number: int, named: NamedPosition) -> None:
    """Record that a transaction no longer names or holds a position.

    If the transaction held the position, the hold passes to another prepared transaction that
    names the position, if there is one. If there are several, the oldest one gets the hold.
    """
    streams = state.named[named.group]
    others = streams[named.stream]
    others.discard(txn_number)
    if not others:
        del streams[named.stream]
    if not streams:
        del state.named[named.group]
    holds = state.by_number[named.stream].holds
    if holds and holds.get(named.group) == txn_number:
        del holds[named.group]
        for number in sorted(others, reverse=True):
            if state.by_txn[number].row.is_prepared:
                holds[named.group] = number


def move_positions(
    state: State,
    moves: Iterable[tuple[str, int, int]],
    time_ms: int,
    mover: OwnerKey | None = None,
    metadata: Iterable[Metadata] = (),
) -> None:
    """Move positions. Each move is a tuple of a group, a stream number and an offset.

    `metadata` has one element for each move, or is empty. It replaces the stored metadata.
    `mover` is stored with the position. Other owners can then move the position only with an
    expected offset. If `mover` is None (outside transactions), the stored mover is kept.
    """
    for (group, number, offset), noted in zip(moves, chain(metadata, repeat(())), strict=False):
        stream = state.by_number[number]
        old = stored_position(stream, group)
        row = PositionRow(offset, time_ms, old.version + 1, mover or old.mover, noted)
        add_position(state, stream, group, row)
        state.dirty.positions[number, group] = row


def apply_moved(state: State, event: PositionsMoved, _sections: Sections, time_ms: int) -> None:
    """Move positions outside a transaction."""
    metadata = event.metadata if isinstance(event, PositionsMovedWithMetadata) else ()
    move_positions(state, event.positions, time_ms, metadata=metadata)


def apply_pinned(state: State, event: SnapshotPinned, _sections: Sections, _time_ms: int) -> None:
    """Store the step that a group has pinned."""
    state.snapshots[event.group] = state.dirty.snapshots[event.group] = event.row
