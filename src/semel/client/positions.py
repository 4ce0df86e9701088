"""What a client knows of the positions of groups, and what it sends when it moves them.

A move is safe if it names the position that the messages were read from. So what counts is not
where a group is now but where it was when its reader asked. A message knows the reader it came
from, and so does its `next_offset`: whatever thread or task commits it, and whatever other readers
of the client have moved since, the right position is sent. Pure: no sockets.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from msgspec import Struct

from semel.client.txn_values import Move, Moves, ordinal_of
from semel.client.values import START, ReadOffset
from semel.model.offsets import parse_offset

PositionName = tuple[str, str]  # group and path
_START: Final = 0  # where a group is that was never moved
_NAMES_MAX: Final = 10_000


class KnownPosition:
    """Where a group was in a stream when somebody asked, as moved since through this object.

    `version` is None if it is not known, as after a commit that was answered as a repeat, and
    `incarnation` before anything was read. `doubts` are the offsets it may be at after moves that
    got no answer.
    """

    def __init__(
        self, offset: int = _START, version: int | None = 0, incarnation: str | None = None
    ) -> None:
        self.offset = offset
        self.version = version
        self.incarnation = incarnation
        self.doubts: set[int] = set()
        self._told = offset, version

    def move_to(self, to: int) -> tuple[int, int, str | None, int | None]:
        """Return the move to send: (from, to, incarnation, version).

        What this object has moved the group past was committed before. It is sent with what was
        told at first: the server refuses, or knows the commit and answers as then.
        """
        is_moved = (self.offset, self.version) != self._told
        if is_moved and to <= self.offset:
            offset, version = self._told
            return offset, to, self.incarnation, version
        return self.offset, to, self.incarnation, self.version

    def moved(self, to: int, version: int | None) -> None:
        """Take note of a move that is done."""
        self.offset, self.version = to, version
        self.doubts.clear()


class _Moved(NamedTuple):
    """Where a client has moved a group, and in which stream of the path."""

    offset: int
    version: int | None
    incarnation: str | None


class ReadPosition:
    """One reader of a stream: for a group whose position it was told, or for none.

    Of a group that it was not told of it is taken to have begun at the position: that is sent as
    `from`, with the version if its client has moved the group there, or nowhere.
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
        """Which stream of the path is read, once the server has told."""
        return self._incarnation

    @incarnation.setter
    def incarnation(self, found: str | None) -> None:
        if found is not None and found != self._incarnation:
            self._incarnation = found
            self._on_incarnation(self.path, found)

    def server_position(self, group: str, known: KnownPosition) -> None:
        """Take note of what was told of a group."""
        self._known[group] = known

    def known(self, group: str) -> KnownPosition:
        """Return the position to move a group from, after messages of this reading."""
        found = self._known.get(group)
        if found is None:
            found = self._known[group] = KnownPosition(self.start, self._version(group))
        found.incarnation = found.incarnation or self.incarnation
        return found

    def _version(self, group: str) -> int | None:
        """Return the version of the position it began at, as far as its client knows it."""
        moved = self._moved.get(group)
        if moved is None or moved.incarnation not in (None, self.incarnation):
            return 0 if self.start == _START else None
        return moved.version if moved.offset == self.start else None


class KnownPositions:
    """The readings of a client, and what it has moved itself."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._told: dict[PositionName, list[KnownPosition]] = {}  # at most two: more are no better
        self._moved: dict[str, dict[str, _Moved]] = {}  # by path, then by group
        self._incarnations: dict[str, str] = {}  # the one read last, by path

    def read_position(self, path: str, offset: str = START) -> ReadPosition:
        """Begin to read a stream at an offset."""
        start = parse_offset(offset) or _START
        with self._lock:
            return ReadPosition(path, start, dict(self._moved.get(path, {})), self.note_read)

    def note_server_position(self, name: PositionName, known: KnownPosition) -> None:
        """Take note of what a reader was told."""
        with self._lock:
            _make_room(self._told)
            self._told[name] = [*self._told.get(name, ()), known][-2:]

    def note_read(self, path: str, incarnation: str) -> None:
        """Take note of which stream of a path is read."""
        with self._lock:
            _make_room(self._incarnations)
            self._incarnations[path] = incarnation

    def note_moved(self, name: PositionName, to: int, version: int | None) -> None:
        """Take note of what this client has moved; what its readers were told stays."""
        group, path = name
        with self._lock:
            _make_room(self._moved)
            groups = self._moved.setdefault(path, {})
            _make_room(groups)
            groups[group] = _Moved(to, version, self._incarnations.get(path))

    def incarnation(self, path: str) -> str | None:
        """Return which stream of a path this client has read last."""
        return self._incarnations.get(path)

    def find(self, name: PositionName, offset: object) -> KnownPosition:
        """Return the position to move a group from, to an offset.

        An offset of a message knows it. Any other, a number or a copy, is of the only tail that
        this client has had for the group in the stream; ValueError if it has had several. Without
        one, it is after what this client has moved itself; readers without a group do not count.
        """
        group, path = name
        reading = read_position_of(offset, path)
        if reading is not None:
            return reading.known(group)
        with self._lock:
            told = self._told.get(name, [])
            if len(told) > 1:
                raise ValueError(
                    f"this client has read {path} for {group} several times, and it is not known"
                    " which one is committed: use txn.commit_message(message), next_offset of the"
                    " message as it is, or (from, to)"
                )
            if told:
                return told[0]
            incarnation = self._incarnations.get(path)
            moved = self._moved.get(path, {}).get(group)
            if moved is None or moved.incarnation not in (None, incarnation):
                return KnownPosition(incarnation=incarnation)
            return KnownPosition(moved.offset, moved.version, incarnation)


def read_position_of(offset: object, path: str) -> ReadPosition | None:
    """Return the reading that an offset comes from, if it is one of that stream."""
    source = offset.source if isinstance(offset, ReadOffset) else None
    return source if isinstance(source, ReadPosition) and source.path == path else None


def _make_room(names: dict[Any, Any]) -> None:
    """Forget what is known before it is too much; of offsets that know their reader nothing is."""
    if len(names) >= _NAMES_MAX:
        names.clear()


# ---- moves that are not done yet -----------------------------------------------------------------


class _Pending(Struct, frozen=True):
    """A move that was sent, and from which version; `known` is None if the caller gave `from`."""

    known: KnownPosition | None
    to: int
    version: int | None


Planned = dict[str, tuple[Move, _Pending]]  # by path


class MovePlanner:
    """The moves of one transaction or one-shot commit, until it is decided."""

    def __init__(self, positions: KnownPositions) -> None:
        self._positions = positions
        self._pending: dict[PositionName, _Pending] = {}

    def plan(self, group: str, moves: Moves) -> Planned:
        """Return what to send for moves of a group; nothing is noted before `accepted`."""
        return {path: self._plan((group, path), move) for path, move in moves.items()}

    def plan_read(self, group: str, moves: Moves) -> tuple[Planned, Moves]:
        """Plan moves that say what was read, or whose offset does; return the others too."""
        read = {
            path: move
            for path, move in moves.items()
            if isinstance(move, tuple) or read_position_of(move, path) is not None
        }
        rest = {path: move for path, move in moves.items() if path not in read}
        return self.plan(group, read), rest

    def plan_known(self, name: PositionName, known: KnownPosition, to: int) -> Planned:
        """Return what to send for a move from a position that is known."""
        return {name[1]: self._from(name, known, to)}

    def _plan(self, name: PositionName, move: Move) -> tuple[Move, _Pending]:
        pending = self._pending.get(name)
        if not isinstance(move, tuple):
            to = ordinal_of(move)
            if pending is None or read_position_of(move, name[1]) is not None:
                return self._from(name, self._positions.find(name, move), to)
            return self._on(name, pending, pending.known, to)
        start, to, incarnation, version = (*move, None, None)[:4]
        if incarnation is None:
            reading = read_position_of(to, name[1])
            found = None if reading is None else reading.incarnation
            incarnation = found or self._positions.incarnation(name[1])
        return (start, to, incarnation, version), _Pending(None, ordinal_of(to), version)

    def _from(self, name: PositionName, known: KnownPosition, to: int) -> tuple[Move, _Pending]:
        pending = self._pending.get(name)
        if pending is not None and pending.known is known:
            return self._on(name, pending, known, to)
        move = known.move_to(to)
        return move, _Pending(known, to, move[3])

    def _on(
        self, name: PositionName, pending: _Pending, known: KnownPosition | None, to: int
    ) -> tuple[Move, _Pending]:
        """Move on what the transaction moves already; never back: all up to there is in it."""
        to = max(to, pending.to)
        incarnation = self._positions.incarnation(name[1]) if known is None else known.incarnation
        move = (pending.to, to, incarnation, pending.version)
        return move, _Pending(known, to, pending.version)

    def accepted(self, group: str, planned: Planned) -> None:
        """Take note that the server has accepted the moves, to be done by the decision."""
        for path, (_, pending) in planned.items():
            self._pending[group, path] = pending

    def done(self, *, is_repeat: bool = False) -> None:
        """Take note that the moves are done; of a repeat nobody knows when, and what came after."""
        for name, pending in self._pending.items():
            known, to = pending.known, pending.to
            version = None if pending.version is None or is_repeat else pending.version + 1
            if known is not None and (not is_repeat or to > known.offset):
                known.moved(to, version)
            if not is_repeat or known is None or known.offset == to:
                self._positions.note_moved(name, to, version)
        self._pending.clear()

    def dropped(self) -> None:
        """Take note that nothing was moved."""
        self._pending.clear()


def moves_of(planned: Planned) -> dict[str, Move]:
    """Return the moves of a plan, by path."""
    return {path: move for path, (move, _) in planned.items()}
