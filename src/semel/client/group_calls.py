"""Groups: their positions and pinned steps. Pure: flows, no sockets."""

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
    offset_of,
    ordinal_of,
    targets_of,
    token_of,
)
from semel.client.values import Message, OnCommit
from semel.model.offsets import parse_offset
from semel.wire.paths import GROUPS
from semel.wire.schema import transactions as schema

_SET_TRIES_MAX: Final = 10
_POLL_SECONDS_MIN: Final = 0.02
_POLL_SECONDS_MAX: Final = 0.5
# How long a reader waits for a pending transaction that may still move its group. It need not wait
# for safety: what is made of messages read too early is refused by the commit.
STABLE_SECONDS_MAX: Final = 5.0


class Positions(schema.Positions, frozen=True):
    """Where a group is, by stream: the offset, how often it was moved, and what is pending."""

    def known(self, path: str) -> KnownPosition:
        """Return the position in one stream; a group that was never moved there is at 0."""
        offset = self.offsets.get(path)
        if offset is None:
            return KnownPosition(0, 0)
        return KnownPosition(ordinal_of(offset), self.versions.get(path))


def positions(site: ServerConfig, group: str) -> Flow[dict[str, str]]:
    """Return where a group is, by stream."""
    return (yield from group_page(site, group)).offsets


def group_page(site: ServerConfig, group: str, transaction: str | None = None) -> Flow[Positions]:
    """Return where a group is, and what is pending, except in the transaction of that id."""
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
    """Return where a group is when no pending transaction can move it any more in these streams.

    Returns where it is now after `seconds_max`, or after the deadlines of those transactions.
    Transactions whose token is in `own` are not waited for.
    """
    until, pause = clock() + seconds_max, _POLL_SECONDS_MIN
    hidden: str | None = None
    while True:
        page = yield from group_page(site, group, hidden)
        moves = [move for path, move in page.pending.items() if path in paths]
        owned = [move.transaction_id for move in moves if _token(move) in own]
        if owned and hidden is None:
            hidden = owned[0]  # it may hide a move of another transaction
            continue
        waits = [_seconds_left(move) for move in moves if _token(move) not in own]
        wait = min(max(waits, default=0.0), until - clock(), pause)
        if wait <= 0 or not (yield Pause(wait, wait)):
            return page
        pause = min(2 * pause, _POLL_SECONDS_MAX)


def _seconds_left(move: schema.PendingMove) -> float:
    return inf if move.remaining_ms is None else move.remaining_ms / 1000


def _token(move: schema.PendingMove) -> str:
    return token_of(move.transaction_id, move.transaction_epoch)


def set_positions(site: ServerConfig, group: str, moves: Moves) -> Flow[Positions]:
    """Move a group in all of these streams, or in none. Raises PositionConflict, Indeterminate.

    A move without conditions is sent with the version of the position, and again if that has
    changed. Otherwise a retry after a lost response could move the group a second time, after
    others have moved it further.
    """
    if not moves:
        raise ValueError("there is nothing to move")
    is_plain = not all(isinstance(move, tuple) for move in moves.values())
    for _ in range(_SET_TRIES_MAX if is_plain else 1):
        guarded = moves
        if is_plain:
            page = yield from group_page(site, group)
            guarded = {path: _guarded(move, path, page) for path, move in moves.items()}
        request = schema.SetPositionsRequest(targets_of(guarded))
        exchange = yield from post(site, _target(site, group), request)
        if exchange.answer.status < 400:
            return decoded(exchange.answer, Positions)
        error = exchange.error()
        if not isinstance(error, PositionConflict) or error.incarnation is not None:
            raise error
        if exchange.was_lost:
            # The request whose response was lost may have moved it.
            page = yield from group_page(site, group)
            if all(_is_done(page, path, move) for path, move in guarded.items()):
                return page
            error.applied = UNKNOWN
            raise _indeterminate(group) if is_plain else error
        if isinstance(moves.get(error.stream or ""), tuple):
            break  # the caller's own condition does not hold
    raise error


def set_known(
    site: ServerConfig, group: str, moves: Moves, positions: KnownPositions
) -> Flow[dict[str, str]]:
    """Move a group, and note for its client where it is then. Returns the offsets, by stream."""
    page = yield from set_positions(site, group, moves)
    offsets = {path: page.offsets[path] for path in moves}
    for path, offset in offsets.items():
        positions.note_moved((group, path), ordinal_of(offset), page.versions.get(path))
    return offsets


def _indeterminate(group: str) -> Indeterminate:
    error = Indeterminate(f"{group} may have been set, and was moved by another client after that")
    error.advice = "look where the group is, and set it again if that is not right"
    return error


def _guarded(move: Move, path: str, page: Positions) -> Move:
    """Return a move without conditions as one from where the position is now."""
    if isinstance(move, tuple):
        return move
    known = page.known(path)
    return known.offset, ordinal_of(move), None, known.version


def _is_done(page: Positions, path: str, move: Move) -> bool:
    """Return whether a group is at the target of a move, and was not moved again since."""
    assert isinstance(move, tuple)
    _, to, _, version = (*move, None, None)[:4]
    is_next = version is None or page.versions.get(path) in (None, version + 1)
    return is_next and page.offsets.get(path) == offset_of(to)


def pin(site: ServerConfig, group: str, step: PinnedStep) -> Flow[PinnedStep]:
    """Pin a step. Returns the one that is pinned: an earlier one of that number stays."""
    exchange = yield from post(site, _target(site, group, "snapshot"), step)
    return decoded(exchange.expect(200, 201), PinnedStep)


def snapshot(site: ServerConfig, group: str) -> Flow[PinnedStep | None]:
    """Return the step a group has pinned; None if it has never pinned one."""
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
    return site.address.target(f"{GROUPS}/{quote(group, safe='')}/{page}")


class GroupReading(Struct, frozen=True):
    """For which group messages are read; `undecided` are the client's pending transactions."""

    site: ServerConfig
    group: str
    positions: KnownPositions
    undecided: Container[str] = ()
    seconds_max: float = STABLE_SECONDS_MAX


class GroupCursor:
    """The position of a group in one stream, as its reader got it from the server."""

    def __init__(self, reading: GroupReading, path: str) -> None:
        self.site = reading.site
        self.name = reading.group, path
        self.known = KnownPosition()
        self._positions = reading.positions

    def move(self, message: Message) -> Flow[None]:
        """Move the group to the offset after a message. Raises PositionConflict.

        A message before the position moves nothing: it was committed with a later one.
        """
        ordinal, known = end_offset_of(message), self.known
        if ordinal <= known.offset:
            return
        earlier = set(known.doubts)
        known.doubts.add(ordinal)  # until a response comes
        try:
            yield from self._set(ordinal)
        except PositionConflict as error:
            stored = parse_offset(error.offset or "")
            if stored not in earlier or error.incarnation is not None:
                known.doubts = earlier
                raise
            assert stored is not None
            known.moved(stored, error.version)  # an earlier move was done
            if ordinal > stored:
                known.doubts.add(ordinal)
                yield from self._set(ordinal)
        except Refused:
            known.doubts = earlier  # it was not done
            raise

    def _set(self, ordinal: int) -> Flow[None]:
        (group, path), known = self.name, self.known
        page = yield from set_positions(self.site, group, {path: known.move_to(ordinal)})
        known.moved(ordinal, page.versions.get(path))
        self._positions.note_moved(self.name, ordinal, known.version)


def end_offset_of(message: Message) -> int:
    """Return the ordinal of the offset after a message. Raises ValueError if it has none."""
    to = message.next_ordinal
    ordinal = parse_offset(to) if isinstance(to, str) else to
    if ordinal is None:
        raise ValueError("this message has no next_offset, so no group can be moved after it")
    return ordinal


def cursor_of(message: Message) -> GroupCursor:
    """Return the cursor a message was read with. Raises ValueError if it has no group."""
    cursor: GroupCursor | None = getattr(message.on_commit, "place", None)
    if cursor is None:
        raise ValueError("only a message of tail(group=...) can be committed")
    return cursor


class GroupReader(PageReader):
    """A reader that starts at the position of a group; its messages can move the group."""

    def __init__(
        self,
        calls: StreamCalls,
        offset: str,
        reading: GroupReading,
        cursor: GroupCursor,
        on_commit: OnCommit,
        *,
        isolation: str,
    ) -> None:
        super().__init__(calls, offset, is_live=True, isolation=isolation)
        self.source = self._source = reading.positions.read_position(calls.path)
        self._reading = reading
        self._group_cursor = cursor
        self._on_commit = on_commit
        self._is_started = False

    def begin(self) -> Flow[None]:
        """Ask for the position to start at."""
        if not self._is_started:
            reading, cursor, path = self._reading, self._group_cursor, self._calls.path
            page = yield from stable_positions(
                reading.site,
                reading.group,
                [path],
                own=reading.undecided,
                seconds_max=reading.seconds_max,
            )
            cursor.known = page.known(path)
            self._source.server_position(reading.group, cursor.known)
            self._source.start = cursor.known.offset
            reading.positions.note_server_position(cursor.name, cursor.known)
            self.offset = page.offsets.get(path, self.offset)
            self._is_started = True
        yield from super().begin()

    def next_page(self) -> Flow[list[Message] | None]:
        """Return the next messages, None at the end; an empty list if none came in time."""
        page = yield from super().next_page()
        self._group_cursor.known.incarnation = self.incarnation
        for message in page or ():
            message.on_commit = self._on_commit
        return page


def refuse_events(live: str) -> None:
    """Raise ValueError for a live mode that does not return the offset of each message."""
    if live == "sse":
        raise ValueError("tail(group=...) needs each message's offset, which live='sse' lacks")
