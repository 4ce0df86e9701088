"""The positions of groups as a client has read them, and the conditions of its moves.

A move is safe if its expected offset is the position from which the messages were read. So a client
does not send the present position, but the position at which the reader began. A message refers to
its reader, and so does its `next_offset`. Therefore the right position is sent, whichever thread or
task commits the message, and even if other readers of the client have moved the group since. No
sockets.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from msgspec import Struct

from semel.client.values import START, Move, Moves, ReadOffset, ordinal_of
from semel.model.offsets import parse_offset

PositionName = tuple[str, str]  # group and path
_START: Final = 0  # the position of a group that was never moved
_NAMES_MAX: Final = 10_000


class KnownPosition:
    """The position of a group in a stream: as a reader has read it, then as it was moved.

    `version` is None if it is unknown, for example after a commit that was a repeat. `incarnation`
    is None before anything was read. `possible_offsets`: where the position may be after moves that
    got no response.
    """

    def __init__(
        self, offset: int = _START, version: int | None = 0, incarnation: str | None = None
    ) -> None:
        self.offset = offset
        self.version = version
        self.incarnation = incarnation
        self.possible_offsets: set[int] = set()
        self._begin = offset, version

    def move_to(self, to: int) -> tuple[int, int, str | None, int | None]:
        """Return the move to send: (from, to, incarnation, version).

        If the group was moved already, a move that is not beyond the present offset is a repeat. It
        is sent with the position as first read. Then the server refuses the move, or recognises the
        repeated commit.
        """
        is_moved = (self.offset, self.version) != self._begin
        if is_moved and to <= self.offset:
            offset, version = self._begin
            return offset, to, self.incarnation, version
        return self.offset, to, self.incarnation, self.version

    def moved(self, to: int, version: int | None) -> None:
        """Record a move that was applied."""
        self.offset, self.version = to, version
        self.possible_offsets.clear()


class _Moved(NamedTuple):
    """The position to which a client has moved a group, and the incarnation of the stream."""

    offset: int
    version: int | None
    incarnation: str | None


class ReadPosition:
    """The record of one reader of a stream, and of the group positions it has read.

    If it has not read the position of a group, it is assumed to have begun there: its start is sent
    as `from`. The version is sent too if the client has moved the group to that start, or if the
    start is 0 and the client has not moved the group.
    """

    def __init__(
        self,
        path: str,
        start: int,
        moved: Mapping[str, _Moved],
        on_incarnation: Callable[[str, str], None],
    ) -> None:
        self.path = path
        self.start = start  # the offset it began at
        self._incarnation: str | None = None
        self._moved = moved
        self._known: dict[str, KnownPosition] = {}
        self._on_incarnation = on_incarnation

    @property
    def incarnation(self) -> str | None:
        """The incarnation of the stream that is read; None before the first response."""
        return self._incarnation

    @incarnation.setter
    def incarnation(self, incarnation: str | None) -> None:
        if incarnation is not None and incarnation != self._incarnation:
            self._incarnation = incarnation
            self._on_incarnation(self.path, incarnation)

    def server_position(self, group: str, position: KnownPosition) -> None:
        """Record the position of a group that the server has returned."""
        self._known[group] = position

    def known(self, group: str) -> KnownPosition:
        """Return the position to move a group from, after messages of this reader."""
        position = self._known.get(group)
        if position is None:
            position = self._known[group] = KnownPosition(self.start, self._version(group))
        position.incarnation = position.incarnation or self.incarnation
        return position

    def _version(self, group: str) -> int | None:
        """Return the version of the position when the reader began; None if it is unknown."""
        moved = self._moved.get(group)
        if moved is None or moved.incarnation not in (None, self.incarnation):
            return 0 if self.start == _START else None
        return moved.version if moved.offset == self.start else None


class KnownPositions:
    """The positions that readers of a client have read, and those that the client has moved."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read: dict[PositionName, list[KnownPosition]] = {}  # at most two: two are ambiguous
        self._moved: dict[str, dict[str, _Moved]] = {}  # by path, then by group
        self._incarnations: dict[str, str] = {}  # the one read last, by path

    def read_position(self, path: str, offset: str = START) -> ReadPosition:
        """Return the record for a new reader that begins at an offset."""
        start = parse_offset(offset) or _START
        with self._lock:
            return ReadPosition(path, start, dict(self._moved.get(path, {})), self.note_read)

    def note_server_position(self, name: PositionName, position: KnownPosition) -> None:
        """Record the position that a reader has read."""
        with self._lock:
            _make_room(self._read)
            self._read[name] = [*self._read.get(name, ()), position][-2:]

    def note_read(self, path: str, incarnation: str) -> None:
        """Record the incarnation of a stream that is read."""
        with self._lock:
            _make_room(self._incarnations)
            self._incarnations[path] = incarnation

    def note_moved(self, name: PositionName, to: int, version: int | None) -> None:
        """Record a move by this client. It does not change positions that readers have read."""
        group, path = name
        with self._lock:
            _make_room(self._moved)
            groups = self._moved.setdefault(path, {})
            _make_room(groups)
            groups[group] = _Moved(to, version, self._incarnations.get(path))

    def incarnation(self, path: str) -> str | None:
        """Return the incarnation of a stream that this client has read last."""
        return self._incarnations.get(path)

    def find(self, name: PositionName, offset: object) -> KnownPosition:
        """Return the position from which to move a group to an offset.

        If the offset comes from a message, it is the position that the reader of the message has
        read. A number, or a copy of an offset, does not refer to a reader. Then it is the position
        of the only tail that this client has had for the group in the stream. Raises ValueError if
        there were several tails. If there was none, it is the position to which this client has
        moved the group.
        """
        group, path = name
        reading = read_position_of(offset, path)
        if reading is not None:
            return reading.known(group)
        with self._lock:
            positions = self._read.get(name, [])
            if len(positions) > 1:
                raise ValueError(
                    f"this client has read {path} for {group} several times, and the offset does"
                    " not say by which tail: use txn.commit_message(message), next_offset of the"
                    " message as it is, or (from, to)"
                )
            if positions:
                return positions[0]
            incarnation = self._incarnations.get(path)
            moved = self._moved.get(path, {}).get(group)
            if moved is None or moved.incarnation not in (None, incarnation):
                return KnownPosition(incarnation=incarnation)
            return KnownPosition(moved.offset, moved.version, incarnation)


def read_position_of(offset: object, path: str) -> ReadPosition | None:
    """Return the reader that an offset comes from, if it reads that stream."""
    source = offset.source if isinstance(offset, ReadOffset) else None
    return source if isinstance(source, ReadPosition) and source.path == path else None


def _make_room(names: dict[Any, Any]) -> None:
    """Clear the records if there are too many. Offsets of messages do not need them."""
    if len(names) >= _NAMES_MAX:
        names.clear()


# ---- pending moves -------------------------------------------------------------------------------


class _Pending(Struct, frozen=True):
    """A move of a commit that has not ended. `position` is None if the caller passed `from`."""

    position: KnownPosition | None
    to: int
    version: int | None


Planned = dict[str, tuple[Move, _Pending]]  # by path


class MovePlanner:
    """The moves of one transaction or one-shot commit, until that ends."""

    def __init__(self, positions: KnownPositions) -> None:
        self._positions = positions
        self._pending: dict[PositionName, _Pending] = {}

    def plan(self, group: str, moves: Moves) -> Planned:
        """Return the moves to send for a group. `accepted` records them."""
        return {path: self._plan((group, path), move) for path, move in moves.items()}

    def plan_read(self, group: str, moves: Moves) -> tuple[Planned, Moves]:
        """Return the planned moves of a group, and the other moves unchanged.

        A move is planned if it has a condition, or if its offset comes from a message.
        """
        read = {
            path: move
            for path, move in moves.items()
            if isinstance(move, tuple) or read_position_of(move, path) is not None
        }
        rest = {path: move for path, move in moves.items() if path not in read}
        return self.plan(group, read), rest

    def plan_from(self, name: PositionName, position: KnownPosition, to: int) -> Planned:
        """Return the move to send from `position`."""
        return {name[1]: self._from(name, position, to)}

    def _plan(self, name: PositionName, move: Move) -> tuple[Move, _Pending]:
        pending = self._pending.get(name)
        if not isinstance(move, tuple):
            to = ordinal_of(move)
            if pending is None or read_position_of(move, name[1]) is not None:
                return self._from(name, self._positions.find(name, move), to)
            return self._on(name, pending, pending.position, to)
        start, to, incarnation, version = (*move, None, None)[:4]
        if incarnation is None:
            reading = read_position_of(to, name[1])
            incarnation = reading.incarnation if reading is not None else None
            incarnation = incarnation or self._positions.incarnation(name[1])
        return (start, to, incarnation, version), _Pending(None, ordinal_of(to), version)

    def _from(self, name: PositionName, position: KnownPosition, to: int) -> tuple[Move, _Pending]:
        pending = self._pending.get(name)
        if pending is not None and pending.position is position:
            return self._on(name, pending, position, to)
        move = position.move_to(to)
        return move, _Pending(position, to, move[3])

    def _on(
        self, name: PositionName, pending: _Pending, position: KnownPosition | None, to: int
    ) -> tuple[Move, _Pending]:
        """Return the extension of a pending move. It never goes back to an earlier offset."""
        to = max(to, pending.to)
        incarnation = (
            self._positions.incarnation(name[1]) if position is None else position.incarnation
        )
        move = (pending.to, to, incarnation, pending.version)
        return move, _Pending(position, to, pending.version)

    def accepted(self, group: str, planned: Planned) -> None:
        """Record that the server has accepted the moves, which the commit will apply."""
        for path, (_, pending) in planned.items():
            self._pending[group, path] = pending

    def done(self, *, is_repeat: bool = False) -> None:
        """Record that the moves were applied. After a repeat the versions are unknown."""
        for name, pending in self._pending.items():
            position, to = pending.position, pending.to
            version = None if pending.version is None or is_repeat else pending.version + 1
            if position is not None and (not is_repeat or to > position.offset):
                position.moved(to, version)
            if not is_repeat or position is None or position.offset == to:
                self._positions.note_moved(name, to, version)
        self._pending.clear()

    def dropped(self) -> None:
        """Record that nothing was moved."""
        self._pending.clear()


def moves_of(planned: Planned) -> dict[str, Move]:
    """Return the moves of a plan, by path."""
    return {path: move for path, (move, _) in planned.items()}
