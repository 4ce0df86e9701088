"""Groups, with their positions and pinned steps, as flows. No sockets."""

import time
from collections.abc import Callable, Container, Sequence
from math import inf
from typing import Final

from msgspec import Struct, field

from semel.client.errors import UNKNOWN, Indeterminate, PositionConflict, Refused
from semel.client.flows import Flow, Pause
from semel.client.positions import KnownPosition, KnownPositions
from semel.client.reading import PageReader
from semel.client.requests import query
from semel.client.server_calls import decoded, get, pinned_step, post, send
from semel.client.stream_calls import ServerConfig, StreamCalls
from semel.client.values import (
    Message,
    Move,
    Moves,
    OnCommit,
    PinnedStep,
    offset_of,
    ordinal_of,
    targets_of,
    token_of,
)
from semel.model.offsets import parse_offset
from semel.wire.paths import GROUPS
from semel.wire.schema import transactions as schema

_SET_TRIES_MAX: Final = 10
_POLL_SECONDS_MIN: Final = 0.02
_POLL_SECONDS_MAX: Final = 0.5
# How long a reader waits for a pending transaction that may still move its group. Correctness does
# not depend on the wait: if messages are read too early, the commit of their outputs is refused.
STABLE_SECONDS_MAX: Final = 5.0


class Positions(schema.Positions, frozen=True):
    """The positions of a group by stream: offsets, versions, and pending moves."""

    def known(self, path: str) -> KnownPosition:
        """Return the position in one stream; a group that was never moved there is at 0."""
        if path not in self.offsets:
            return KnownPosition()
        return KnownPosition(ordinal_of(self.offsets[path]), self.versions.get(path))


def positions(site: ServerConfig, group: str) -> Flow[dict[str, str]]:
    """Return the positions of a group, by stream."""
    return (yield from group_page(site, group)).offsets


def group_page(site: ServerConfig, group: str, transaction: str | None = None) -> Flow[Positions]:
    """Return the positions of a group and its pending moves, without those of `transaction`."""
    return get(site, _target(site, group) + query(transaction=transaction), Positions)


def stable_positions(
    site: ServerConfig,
    group: str,
    paths: Sequence[str],
    *,
    own: Container[str] = (),
    seconds_max: float = STABLE_SECONDS_MAX,
    clock: Callable[[], float] = time.monotonic,
) -> Flow[Positions]:
    """Wait until no pending transaction can move a group in these streams. Return its positions.

    The wait ends after `seconds_max`, or after the deadlines of those transactions, even if some of
    them are still pending. Transactions whose token is in `own` are ignored.
    """
    until, pause = clock() + seconds_max, _POLL_SECONDS_MIN
    hidden: str | None = None
    while True:
        page = yield from group_page(site, group, hidden)
        moves = [move for path, move in page.pending.items() if path in paths]
        owned = [move.transaction_id for move in moves if _token(move) in own]
        if owned and hidden is None:
            hidden = owned[0]  # its move may hide that of another transaction
            continue
        waits = [
            inf if move.remaining_ms is None else move.remaining_ms / 1000
            for move in moves
            if _token(move) not in own
        ]
        wait = min(max(waits, default=0.0), until - clock(), pause)
        if wait <= 0 or not (yield Pause(wait, wait)):
            return page
        pause = min(2 * pause, _POLL_SECONDS_MAX)


def _token(move: schema.PendingMove) -> str:
    return token_of(move.transaction_id, move.transaction_epoch)


def set_positions(site: ServerConfig, group: str, moves: Moves) -> Flow[Positions]:
    """Move a group in all of these streams, or in none, and return its positions.

    A move without conditions is sent with the version of the position, and sent again if the
    version has changed. Without the version, a retry after a lost response could move the group a
    second time, after other clients have moved it further. Raises PositionConflict if a condition
    does not hold, and Indeterminate if the group may have been moved.
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
        exchange = yield from send(site, _target(site, group), request)
        if exchange.response.status < 400:
            return decoded(exchange.response, Positions)
        error = exchange.error()
        if not isinstance(error, PositionConflict) or error.incarnation is not None:
            raise error
        if exchange.was_lost:
            # The attempt that got no response may have moved the group.
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
    """Move a group, and record its new positions for the client. Return them by stream."""
    page = yield from set_positions(site, group, moves)
    offsets = {path: page.offsets[path] for path in moves}
    for path, offset in offsets.items():
        positions.note_moved((group, path), ordinal_of(offset), page.versions.get(path))
    return offsets


def _indeterminate(group: str) -> Indeterminate:
    error = Indeterminate(f"{group} may have been moved; then another client has moved it further")
    error.advice = "read the positions of the group, and set them again if they are wrong"
    return error


def _guarded(move: Move, path: str, page: Positions) -> Move:
    """Return a move from the present position, if the caller passed a move without conditions."""
    if isinstance(move, tuple):
        return move
    position = page.known(path)
    return position.offset, ordinal_of(move), None, position.version


def _is_done(page: Positions, path: str, move: Move) -> bool:
    """Return whether a group is at the target of a move, and was not moved again since."""
    assert isinstance(move, tuple)
    _, to, _, version = (*move, None, None)[:4]
    is_next = version is None or page.versions.get(path) in (None, version + 1)
    return is_next and page.offsets.get(path) == offset_of(to)


def pin(site: ServerConfig, group: str, step: PinnedStep) -> Flow[PinnedStep]:
    """Pin a step and return the pinned step: the first one that was sent with this number."""
    return post(site, _target(site, group, "snapshot"), step, PinnedStep, 200, 201)


def snapshot(site: ServerConfig, group: str) -> Flow[PinnedStep | None]:
    """Return the step a group has pinned; None if it has never pinned one."""
    return pinned_step(site, _target(site, group, "snapshot"), PinnedStep)


def _target(site: ServerConfig, group: str, page: str = "offsets") -> str:
    if not group:
        raise ValueError("a group needs a name")
    return site.address.target(GROUPS, group, page)


class GroupCursor(Struct):
    """The `position` of a group in one stream, as its reader got it from the server.

    `unresolved`: tokens of transactions of the client that may be pending; the reader does not wait
    for them. It waits for other transactions at most `seconds_max`.
    """

    site: ServerConfig
    group: str
    path: str
    positions: KnownPositions
    unresolved: Container[str] = ()
    seconds_max: float = STABLE_SECONDS_MAX
    position: KnownPosition = field(default_factory=KnownPosition)

    def move(self, message: Message) -> Flow[None]:
        """Move the group to the offset after a message. Raises PositionConflict.

        If the message is before the position, nothing is moved: a later message was committed.
        """
        ordinal, position = end_offset_of(message), self.position
        if ordinal <= position.offset:
            return
        earlier = set(position.possible_offsets)
        position.possible_offsets.add(ordinal)  # until a response comes
        try:
            yield from self._set(ordinal)
        except PositionConflict as error:
            stored = parse_offset(error.offset or "")
            if stored not in earlier or error.incarnation is not None:
                position.possible_offsets = earlier
                raise
            assert stored is not None
            position.moved(stored, error.version)  # an earlier move was applied
            if ordinal > stored:
                position.possible_offsets.add(ordinal)
                yield from self._set(ordinal)
        except Refused:
            position.possible_offsets = earlier  # it was not applied
            raise

    def _set(self, ordinal: int) -> Flow[None]:
        move = self.position.move_to(ordinal)
        page = yield from set_positions(self.site, self.group, {self.path: move})
        version = page.versions.get(self.path)
        self.position.moved(ordinal, version)
        self.positions.note_moved((self.group, self.path), ordinal, version)


def end_offset_of(message: Message) -> int:
    """Return the ordinal of the offset after a message. Raises ValueError if it has none."""
    to = message.next_ordinal
    ordinal = parse_offset(to) if isinstance(to, str) else to
    if ordinal is None:
        raise ValueError("this message has no next_offset, so no group can be moved after it")
    return ordinal


def cursor_of(message: Message) -> GroupCursor:
    """Return the cursor of a message's reader. Raises ValueError if it was not read for a group."""
    cursor: GroupCursor | None = getattr(message.on_commit, "cursor", None)
    if cursor is None:
        raise ValueError("only a message of tail(group=...) can be committed")
    return cursor


class GroupReader(PageReader):
    """A reader that starts at the position of a group; its messages can move the group."""

    def __init__(
        self,
        calls: StreamCalls,
        offset: str,
        cursor: GroupCursor,
        on_commit: OnCommit,
        *,
        live: str = "auto",
        isolation: str,
    ) -> None:
        if live == "sse":
            raise ValueError("tail(group=...) needs each message's offset, which live='sse' lacks")
        super().__init__(calls, offset, is_live=True, isolation=isolation)
        self.source = self._source = cursor.positions.read_position(calls.path)
        self._group_cursor = cursor
        self._on_commit = on_commit
        self._is_started = False

    def begin(self) -> Flow[None]:
        """Get the position of the group from the server, to start there."""
        if not self._is_started:
            cursor, group, path = self._group_cursor, self._group_cursor.group, self._calls.path
            page = yield from stable_positions(
                cursor.site, group, [path], own=cursor.unresolved, seconds_max=cursor.seconds_max
            )
            cursor.position = page.known(path)
            self._source.server_position(group, cursor.position)
            self._source.start = cursor.position.offset
            cursor.positions.note_server_position((group, path), cursor.position)
            self.offset = page.offsets.get(path, self.offset)
            self._is_started = True
        yield from super().begin()

    def next_page(self) -> Flow[list[Message] | None]:
        """Return the next messages, possibly an empty list; None at the end."""
        page = yield from super().next_page()
        self._group_cursor.position.incarnation = self.incarnation
        for message in page or ():
            message.on_commit = self._on_commit
        return page
