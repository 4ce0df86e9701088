"""The group positions that a client has read, and the conditions that it sends with its moves.

A commit of a message moves the group to the offset after the message. Another reader could have
moved the group, so the client also sends the offset at which it expects the group. For the first
commit of a reader's messages, this is the offset at which the reader began. For each later commit,
it is the offset to which the previous commit moved the group.

Every message and every `next_offset` refers to its reader. Any thread or task can therefore commit
the message. This module uses no sockets.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from msgspec import Struct

from semel.client.transport import fork_safe_lock
from semel.client.values import START, Move, Moves, ReadOffset, ordinal_of
from semel.model.offsets import parse_offset

PositionName = tuple[str, str]  # group and path


class Ownership(NamedTuple):
    """The member of a group that owns a stream, and the epoch at which it got the stream."""

    member: str
    epoch: int


_START: Final = 0  # the position of a group that was never moved
_NAMES_MAX: Final = 10_000


class KnownPosition:
    """A group's position in one stream, as far as the client knows it.

    - `version`: the number of moves so far, or None if unknown (such as after a repeated commit).
    - `incarnation`: an id that changes if the stream is created again, or None if unknown.
    - `possible_offsets`: the targets of moves without a response. The group can be at any of them.
    - `owner`: the member that owns the stream in the group, and alone can move the position. It is
      None if the reader is not a member.
    """

    def __init__(
        self,
        offset: int = _START,
        version: int | None = 0,
        incarnation: str | None = None,
        owner: Ownership | None = None,
    ) -> None:
        self.offset = offset
        self.version = version
        self.incarnation = incarnation
        self.owner = owner
        self.possible_offsets: set[int] = set()
        self._begin = offset, version

    def move_to(self, to: int) -> tuple[int, int, str | None, int | None]:
        """Return the move to send: (from, to, incarnation, version).

        Normally, `from` and `version` are the current offset and version. If the client has already
        moved the group to `to` or beyond, they are the first offset and version that it knew. The
        server then either recognises a repeated commit by its id or refuses the move.
        """
        is_moved = (self.offset, self.version) != self._begin
        if is_moved and to <= self.offset:
            offset, version = self._begin
            return offset, to, self.incarnation, version
        return self.offset, to, self.incarnation, self.version

    def moved(self, to: int, version: int | None) -> None:
        """Record that the server has moved the position to `to`."""
        self.offset, self.version = to, version
        self.possible_offsets.clear()


class _Moved(NamedTuple):
    """A group's position as this client last set it, and the stream's incarnation."""

    offset: int
    version: int | None
    incarnation: str | None


class ReadPosition:
    """The offset at which one reader of a stream began, and the group positions that it has read.

    If the reader has not read a group's position, the client assumes that the group was at `start`,
    the offset at which the reader began.
    """

    def __init__(
        self,
        path: str,
        start: int,
        moved: Mapping[str, _Moved],
        on_incarnation: Callable[[str, str], None],
    ) -> None:
        self.path = path
        self.partition: int | None = None  # of the topic that is read
        self.start = start  # the offset at which the reader began
        self._incarnation: str | None = None
        self._moved = moved
        self._known: dict[str, KnownPosition] = {}
        self._on_incarnation = on_incarnation

    @property
    def incarnation(self) -> str | None:
        """The stream's incarnation, or None before the first response."""
        return self._incarnation

    @incarnation.setter
    def incarnation(self, incarnation: str | None) -> None:
        if incarnation is not None and incarnation != self._incarnation:
            self._incarnation = incarnation
            self._on_incarnation(self.path, incarnation)

    def server_position(self, group: str, position: KnownPosition) -> None:
        """Record a group's position as the server has returned it."""
        self._known[group] = position

    def known(self, group: str) -> KnownPosition:
        """Return the position at which this reader expects `group` before its next commit."""
        position = self._known.get(group)
        if position is None:
            position = self._known[group] = KnownPosition(self.start, self._version(group))
        position.incarnation = position.incarnation or self.incarnation
        return position

    def _version(self, group: str) -> int | None:
        """Return the version of the group's position when the reader began, or None if unknown.

        If this client has not moved the group, and `start` is 0, the version is assumed to be 0.
        """
        moved = self._moved.get(group)
        if moved is None or moved.incarnation not in (None, self.incarnation):
            return 0 if self.start == _START else None
        return moved.version if moved.offset == self.start else None


class KnownPositions:
    """The group positions that a client's readers have received, and those the client has set."""

    def __init__(self) -> None:
        self._lock = fork_safe_lock()
        # At most two positions for each name are kept, because two are enough to be ambiguous.
        self._read: dict[PositionName, list[KnownPosition]] = {}
        self._moved: dict[str, dict[str, _Moved]] = {}  # keyed by path, then by group
        self._incarnations: dict[str, str] = {}  # the last incarnation read, keyed by path

    def read_position(self, path: str, offset: str = START) -> ReadPosition:
        """Return a ReadPosition for a new reader that begins at `offset`."""
        start = parse_offset(offset) or _START
        with self._lock:
            return ReadPosition(path, start, dict(self._moved.get(path, {})), self.note_read)

    def note_server_position(self, name: PositionName, position: KnownPosition) -> None:
        """Record a group's position that a reader has received from the server."""
        with self._lock:
            _make_room(self._read)
            self._read[name] = [*self._read.get(name, ()), position][-2:]

    def forget_position(self, name: PositionName, position: KnownPosition) -> None:
        """Remove a position, because its reader has lost the stream to another member."""
        with self._lock:
            known = [each for each in self._read.get(name, ()) if each is not position]
            if known:
                self._read[name] = known
            else:
                self._read.pop(name, None)

    def note_read(self, path: str, incarnation: str) -> None:
        """Record the incarnation that a reader has seen for the stream at `path`."""
        with self._lock:
            _make_room(self._incarnations)
            self._incarnations[path] = incarnation

    def note_moved(self, name: PositionName, to: int, version: int | None) -> None:
        """Record that this client has moved a group's position.

        The positions that existing readers expect stay unchanged.
        """
        group, path = name
        with self._lock:
            _make_room(self._moved)
            groups = self._moved.setdefault(path, {})
            _make_room(groups)
            groups[group] = _Moved(to, version, self._incarnations.get(path))

    def incarnation(self, path: str) -> str | None:
        """Return the incarnation that a reader of `path` saw last, or None if no reader saw one."""
        return self._incarnations.get(path)

    def owner(self, name: PositionName, offset: object) -> Ownership | None:
        """Return who owns the stream in the group, or None if no member of this client does.

        If the offset comes from a message, this is the member that has read the message.
        """
        reading = read_position_of(offset, name[1])
        if reading is not None:
            return reading.known(name[0]).owner
        with self._lock:
            owners = [each.owner for each in self._read.get(name, ()) if each.owner is not None]
            return owners[-1] if owners else None

    def find(self, name: PositionName, offset: object) -> KnownPosition:
        """Return the position from which to move a group to `offset`.

        If the offset comes from a message, this is the position that the message's reader expects.

        A number or a copied offset does not refer to a reader. For these, the result depends on
        how many readers (`tail`) this client has opened for the group in this stream:

        - one: the position that this reader expects;
        - none: the position to which this client has moved the group, or 0;
        - several: ValueError is raised, because it is unknown which reader is meant.
        """
        group, path = name
        reading = read_position_of(offset, path)
        if reading is not None:
            return reading.known(group)
        with self._lock:
            positions = self._read.get(name, [])
            if len(positions) > 1:
                raise ValueError(
                    "the offset is ambiguous, because this client has opened several tails of the"
                    f" group {group} in {path}; use txn.commit_message(message), or pass a"
                    " tuple (from, to)"
                )
            if positions:
                return positions[0]
            incarnation = self._incarnations.get(path)
            moved = self._moved.get(path, {}).get(group)
            if moved is None or moved.incarnation not in (None, incarnation):
                return KnownPosition(incarnation=incarnation)
            return KnownPosition(moved.offset, moved.version, incarnation)


def read_position_of(offset: object, path: str) -> ReadPosition | None:
    """Return the `ReadPosition` of the reader from which `offset` comes.

    Return None if the offset does not come from a reader of the stream `path`.
    """
    source = offset.source if isinstance(offset, ReadOffset) else None
    return source if isinstance(source, ReadPosition) and source.path == path else None


def _make_room(names: dict[Any, Any]) -> None:
    """Clear `names` if it has too many entries.

    Offsets that come from messages still work, because they refer to their readers.
    """
    if len(names) >= _NAMES_MAX:
        names.clear()


# ---- pending moves -------------------------------------------------------------------------------


class _Pending(Struct, frozen=True):
    """A move whose commit has not ended.

    `position` is the known position to update after the commit. It is None if the caller passed
    the move, or an earlier move that it continues, as a tuple (from, to, ...). `owner` is the
    member that makes the move, if it is one.
    """

    position: KnownPosition | None
    to: int
    version: int | None
    owner: Ownership | None = None


Planned = dict[str, tuple[Move, _Pending]]  # keyed by path


class MovePlanner:
    """Plans how one transaction or one-shot commit moves group positions."""

    def __init__(self, positions: KnownPositions) -> None:
        self._positions = positions
        self._pending: dict[PositionName, _Pending] = {}

    def plan(self, group: str, moves: Moves) -> Planned:
        """Return the moves to send for a group.

        Nothing is recorded yet. Call `accepted` once the server has accepted the moves.
        """
        return {path: self._plan((group, path), move) for path, move in moves.items()}

    def plan_read(self, group: str, moves: Moves) -> tuple[Planned, Moves]:
        """Plan each move that has a condition, or whose offset comes from a message.

        Return the planned moves, and the other moves unchanged.
        """
        read = {
            path: move
            for path, move in moves.items()
            if isinstance(move, tuple) or read_position_of(move, path) is not None
        }
        rest = {path: move for path, move in moves.items() if path not in read}
        return self.plan(group, read), rest

    def plan_from(self, name: PositionName, position: KnownPosition, to: int) -> Planned:
        """Return the planned move from `position` to `to`, for the group and stream in `name`."""
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
        owner = self._positions.owner(name, to)
        return (start, to, incarnation, version), _Pending(None, ordinal_of(to), version, owner)

    def _from(self, name: PositionName, position: KnownPosition, to: int) -> tuple[Move, _Pending]:
        pending = self._pending.get(name)
        if pending is not None and pending.position is position:
            return self._on(name, pending, position, to)
        move = position.move_to(to)
        return move, _Pending(position, to, move[3], position.owner)

    def _on(
        self, name: PositionName, pending: _Pending, position: KnownPosition | None, to: int
    ) -> tuple[Move, _Pending]:
        """Plan a move to `to` that starts at the target of a pending move.

        If `to` is before that target, the group stays at the target.
        """
        to = max(to, pending.to)
        incarnation = (
            self._positions.incarnation(name[1]) if position is None else position.incarnation
        )
        move = (pending.to, to, incarnation, pending.version)
        return move, _Pending(position, to, pending.version, pending.owner)

    def accepted(self, group: str, planned: Planned) -> None:
        """Record that the server has accepted the moves. The commit will apply them."""
        for path, (_, pending) in planned.items():
            self._pending[group, path] = pending

    def done(self, *, is_repeat: bool = False) -> None:
        """Record that the commit has applied the moves.

        If the commit was a repeat (`is_repeat`), the new versions are unknown.
        """
        for name, pending in self._pending.items():
            position, to = pending.position, pending.to
            version = None if pending.version is None or is_repeat else pending.version + 1
            if position is not None and (not is_repeat or to > position.offset):
                position.moved(to, version)
            if not is_repeat or position is None or position.offset == to:
                self._positions.note_moved(name, to, version)
        self._pending.clear()

    def dropped(self) -> None:
        """Discard the accepted moves, because the commit was not applied."""
        self._pending.clear()


def moves_of(planned: Planned) -> dict[str, Move]:
    """Return the planned moves as a mapping from each path to its move."""
    return {path: move for path, (move, _) in planned.items()}


class MembersMoves(NamedTuple):
    """The moves of one member, or of no member. `epochs` are its epochs of the streams, by path."""

    member: str | None
    epochs: dict[str, int]
    moves: dict[str, Move]


def moves_by_member(planned: Planned) -> list[MembersMoves]:
    """Return the planned moves, with those of each member apart."""
    parts: dict[str | None, MembersMoves] = {}
    for path, (move, pending) in planned.items():
        owner = pending.owner
        member = None if owner is None else owner.member
        part = parts.setdefault(member, MembersMoves(member, {}, {}))
        part.moves[path] = move
        if owner is not None:
            part.epochs[path] = owner.epoch
    return list(parts.values())
