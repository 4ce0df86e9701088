"""Groups: where they stand, and how they are moved. Pure: flows, no sockets."""

import time
from collections.abc import Callable, Container, Sequence
from math import inf
from typing import Final
from urllib.parse import quote

from msgspec import Struct

from semel.client.errors import UNKNOWN, Indeterminate, PositionConflict, Refused
from semel.client.flows import Flow, Pause
from semel.client.positions import KnownPosition, KnownPositions
from semel.client.reading import PageReader
from semel.client.requests import query
from semel.client.server_calls import decoded, get, post
from semel.client.stream_calls import ServerConfig, StreamCalls
from semel.client.txn_values import (
    Move,
    Moves,
    PinnedStep,
    moves_document,
    offset_of,
    ordinal_of,
    token_of,
)
from semel.client.values import Message, OnCommit
from semel.model.offsets import parse_offset

_SET_TRIES_MAX: Final = 10
_POLL_SECONDS_MIN: Final = 0.02
_POLL_SECONDS_MAX: Final = 0.5
# How long a reader waits for a transaction that may still move its group. Not for safety: what is
# made of messages read too early is refused by the commit.
STABLE_SECONDS_MAX: Final = 5.0


class PendingMove(Struct, frozen=True):
    """A move by a transaction that is not decided; it is decided within `remaining_ms`, if ever."""

    transaction_id: str
    transaction_epoch: int
    state: str
    to: str
    deadline: str | None = None
    remaining_ms: int | None = None


class Positions(Struct, frozen=True):
    """Where a group is, by stream: the offset, and how often it was moved."""

    group: str
    offsets: dict[str, str]
    versions: dict[str, int] = {}
    pending: dict[str, PendingMove] = {}

    def known(self, path: str) -> KnownPosition:
        """Return what is told of one stream: a group that was never moved there is at 0."""
        offset = self.offsets.get(path)
        if offset is None:
            return KnownPosition(0, 0)
        return KnownPosition(ordinal_of(offset), self.versions.get(path))


def positions(site: ServerConfig, group: str) -> Flow[dict[str, str]]:
    """Ask where a group is."""
    return (yield from group_page(site, group)).offsets


def group_page(site: ServerConfig, group: str, transaction: str | None = None) -> Flow[Positions]:
    """Ask where a group is, and what is pending, but in the transaction of that id."""
    answer = yield from get(site, _target(site, group) + query(transaction=transaction))
    return decoded(answer, Positions)


def stable_positions(
    site: ServerConfig,
    group: str,
    paths: Sequence[str],
    *,
    own: Container[str] = (),
    seconds_max: float = STABLE_SECONDS_MAX,
    clock: Callable[[], float] = time.monotonic,
) -> Flow[Positions]:
    """Ask where a group is once no transaction may move it any more in these streams.

    After `seconds_max`, or when the deadlines of those transactions are over, it is where it is
    now. Transactions whose token is in `own` are not waited for.
    """
    until, pause = clock() + seconds_max, _POLL_SECONDS_MIN
    mine: str | None = None
    while True:
        found = yield from group_page(site, group, mine)
        moves = [move for path, move in found.pending.items() if path in paths]
        owned = [move.transaction_id for move in moves if _token(move) in own]
        if owned and mine is None:
            mine = owned[0]  # it may stand before another's
            continue
        waits = [_seconds_left(move) for move in moves if _token(move) not in own]
        wait = min(max(waits, default=0.0), until - clock(), pause)
        if wait <= 0 or not (yield Pause(wait, wait)):
            return found
        pause = min(2 * pause, _POLL_SECONDS_MAX)


def _seconds_left(move: PendingMove) -> float:
    return inf if move.remaining_ms is None else move.remaining_ms / 1000


def _token(move: PendingMove) -> str:
    return token_of(move.transaction_id, move.transaction_epoch)


def set_positions(site: ServerConfig, group: str, moves: Moves) -> Flow[Positions]:
    """Move a group: all of it or nothing.

    A move without conditions is sent with the version the position has, and again if that has
    changed: a request that is repeated after a lost answer must not move the group a second time,
    after others have moved it on.
    """
    if not moves:
        raise ValueError("there is nothing to move")
    is_plain = not all(isinstance(move, tuple) for move in moves.values())
    for _ in range(_SET_TRIES_MAX if is_plain else 1):
        wanted = moves
        if is_plain:
            found = yield from group_page(site, group)
            wanted = {path: _guarded(move, path, found) for path, move in moves.items()}
        asked = yield from post(site, _target(site, group), {"offsets": moves_document(wanted)})
        if asked.answer.status < 400:
            return decoded(asked.answer, Positions)
        error = asked.error()
        if not isinstance(error, PositionConflict) or error.incarnation is not None:
            raise error
        if asked.was_lost:
            # The try whose answer was lost may have moved it.
            found = yield from group_page(site, group)
            if all(_is_done(found, path, move) for path, move in wanted.items()):
                return found
            error.applied = UNKNOWN
            raise _in_doubt(group) if is_plain else error
        if isinstance(moves.get(error.stream or ""), tuple):
            break  # the caller's own condition does not hold
    raise error


def set_known(
    site: ServerConfig, group: str, moves: Moves, positions: KnownPositions
) -> Flow[dict[str, str]]:
    """Move a group, and note for its client where it is then; that is returned, by stream."""
    found = yield from set_positions(site, group, moves)
    offsets = {path: found.offsets[path] for path in moves}
    for path, offset in offsets.items():
        positions.note_moved((group, path), ordinal_of(offset), found.versions.get(path))
    return offsets


def _in_doubt(group: str) -> Indeterminate:
    error = Indeterminate(f"{group} may have been set, and was moved by somebody else after that")
    error.advice = "look where the group is, and set it again if that is not right"
    return error


def _guarded(move: Move, path: str, found: Positions) -> Move:
    """Return a move without conditions as one from where the position is now."""
    if isinstance(move, tuple):
        return move
    known = found.known(path)
    return known.offset, ordinal_of(move), None, known.version


def _is_done(found: Positions, path: str, move: Move) -> bool:
    """Whether a group is where a move goes, and was not moved otherwise since."""
    assert isinstance(move, tuple)
    _, to, _, version = (*move, None, None)[:4]
    is_next = version is None or found.versions.get(path) in (None, version + 1)
    return is_next and found.offsets.get(path) == offset_of(to)


def pin(site: ServerConfig, group: str, step: PinnedStep) -> Flow[PinnedStep]:
    """Pin a step; if one of that number is pinned already, that one counts and is told."""
    asked = yield from post(site, _target(site, group, "snapshot"), step)
    return decoded(asked.expect(200, 201), PinnedStep)


def snapshot(site: ServerConfig, group: str) -> Flow[PinnedStep | None]:
    """Ask for the step a group has pinned; None if it never has."""
    try:
        answer = yield from get(site, _target(site, group, "snapshot"))
    except Refused as error:
        if error.code != "snapshot_not_found":
            raise
        return None
    return decoded(answer, PinnedStep)


def _target(site: ServerConfig, group: str, page: str = "offsets") -> str:
    if not group:
        raise ValueError("a group needs a name")
    return site.address.target(f"/v1/groups/{quote(group, safe='')}/{page}")


class GroupReading(Struct, frozen=True):
    """Whose messages are read: a group's, by a client that has these transactions undecided."""

    site: ServerConfig
    group: str
    positions: KnownPositions
    undecided: Container[str] = ()
    seconds_max: float = STABLE_SECONDS_MAX


class GroupCursor:
    """The position of a group in one stream, as a reader of it was told."""

    def __init__(self, reading: GroupReading, path: str) -> None:
        self.site = reading.site
        self.name = reading.group, path
        self.known = KnownPosition()
        self._positions = reading.positions

    def move(self, message: Message) -> Flow[None]:
        """Move the group after a message, if it is where this reader knows it.

        A message before that position moves nothing: it was committed with a later one.
        """
        ordinal, known = end_offset_of(message), self.known
        if ordinal <= known.offset:
            return
        earlier = set(known.doubts)
        known.doubts.add(ordinal)  # until there is an answer
        try:
            yield from self._set(ordinal)
        except PositionConflict as error:
            found = parse_offset(error.offset or "")
            if found not in earlier or error.incarnation is not None:
                known.doubts = earlier
                raise
            assert found is not None
            known.moved(found, error.version)  # an earlier move was done
            if ordinal > found:
                known.doubts.add(ordinal)
                yield from self._set(ordinal)
        except Refused:
            known.doubts = earlier  # it was not done
            raise

    def _set(self, ordinal: int) -> Flow[None]:
        (group, path), known = self.name, self.known
        found = yield from set_positions(self.site, group, {path: known.move_to(ordinal)})
        known.moved(ordinal, found.versions.get(path))
        self._positions.note_moved(self.name, ordinal, known.version)


def end_offset_of(message: Message) -> int:
    """Return the ordinal of the offset after a message; ValueError if it has none."""
    to = message.next_ordinal
    ordinal = parse_offset(to) if isinstance(to, str) else to
    if ordinal is None:
        raise ValueError("this message has no next_offset, so no group can be moved after it")
    return ordinal


def cursor_of(message: Message) -> GroupCursor:
    """Return whose message it is; ValueError if it was not read for a group."""
    place: GroupCursor | None = getattr(message.on_commit, "place", None)
    if place is None:
        raise ValueError("only a message of tail(group=...) can be committed")
    return place


class GroupReader(PageReader):
    """A reader that begins where a group is, and lets its messages move the group."""

    def __init__(
        self,
        calls: StreamCalls,
        offset: str,
        reading: GroupReading,
        place: GroupCursor,
        on_commit: OnCommit,
        *,
        isolation: str,
    ) -> None:
        super().__init__(calls, offset, is_live=True, isolation=isolation)
        self.source = self._source = reading.positions.read_position(calls.path)
        self._reading = reading
        self._place = place
        self._on_commit = on_commit
        self._is_placed = False

    def begin(self) -> Flow[None]:
        """Ask where to begin."""
        if not self._is_placed:
            reading, place, path = self._reading, self._place, self._calls.path
            found = yield from stable_positions(
                reading.site,
                reading.group,
                [path],
                own=reading.undecided,
                seconds_max=reading.seconds_max,
            )
            place.known = found.known(path)
            self._source.server_position(reading.group, place.known)
            self._source.start = place.known.offset
            reading.positions.note_server_position(place.name, place.known)
            self.offset = found.offsets.get(path, self.offset)
            self._is_placed = True
        yield from super().begin()

    def next_page(self) -> Flow[list[Message] | None]:
        """Read on; an empty list says only that time has passed."""
        page = yield from super().next_page()
        self._place.known.incarnation = self.incarnation
        for message in page or ():
            message.on_commit = self._on_commit
        return page


def refuse_events(live: str) -> None:
    """Refuse a way of following that does not tell each message's offset."""
    if live == "sse":
        raise ValueError("tail(group=...) needs each message's offset, which live='sse' lacks")
