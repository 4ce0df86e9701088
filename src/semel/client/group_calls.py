"""Calls that get and set a group's positions and pinned step, as generators without sockets."""

import time
from collections.abc import Callable, Container, Mapping, Sequence
from math import inf
from typing import Final

from msgspec import Struct, field

from semel.client.errors import (
    UNKNOWN,
    Indeterminate,
    PositionConflict,
    PositionRefused,
    Refused,
)
from semel.client.flows import Flow, Pause
from semel.client.member_calls import describe_group
from semel.client.positions import KnownPosition, KnownPositions, Ownership
from semel.client.reading import PageReader
from semel.client.requests import query
from semel.client.server_calls import decoded, get, pinned_step, post, send
from semel.client.stream_calls import ServerConfig, StreamCalls
from semel.client.values import (
    Message,
    Metadata,
    Move,
    Moves,
    OnCommit,
    PinnedStep,
    offset_of,
    ordinal_of,
    targets_of,
    token_of,
)
from semel.model.group_commands import EARLIEST, LATEST
from semel.model.limits import TXN_LIST_MAX
from semel.model.offsets import parse_offset, print_offset
from semel.model.rights import retries_of
from semel.wire.paths import GROUPS
from semel.wire.schema import transactions as schema

_SET_TRIES_MAX: Final = 10
_POLL_SECONDS_MIN: Final = 0.02
_POLL_SECONDS_MAX: Final = 0.5
# How long a reader waits for a pending transaction that can still move its group. The wait is not
# needed for correctness: if messages are read too early, the server refuses the commit of their
# outputs.
STABLE_SECONDS_MAX: Final = 5.0


class Positions(schema.Positions, frozen=True):
    """A group's positions: the offset, the version and the pending move for each stream."""

    def known(self, path: str) -> KnownPosition:
        """Return the group's position in the stream `path`.

        If the group was never moved in this stream, its position is 0.
        """
        if path not in self.offsets:
            return KnownPosition()
        return KnownPosition(ordinal_of(self.offsets[path]), self.versions.get(path))


def positions(site: ServerConfig, group: str) -> Flow[dict[str, str]]:
    """Return the group's positions as a mapping from each stream's path to an offset."""
    return (yield from group_page(site, group)).offsets


def group_metadata(site: ServerConfig, group: str) -> Flow[dict[str, dict[str, str | int]]]:
    """Return the metadata of the group's positions, for each stream where it is stored."""
    return (yield from group_page(site, group)).metadata or {}


def group_page(site: ServerConfig, group: str, transaction: str | None = None) -> Flow[Positions]:
    """Return the group's positions and pending moves.

    The pending moves of the transaction with the id `transaction` are left out.
    """
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
    """Wait until no pending transaction can move the group in `paths`. Return its positions.

    The wait ends early after `seconds_max` seconds, at the call's timeout, or when the deadlines of
    all these transactions have passed. Transactions whose token is in `own` are ignored.
    """
    until, pause = clock() + seconds_max, _POLL_SECONDS_MIN
    hidden: str | None = None
    while True:
        page = yield from group_page(site, group, hidden)
        moves = [move for path, move in page.pending.items() if path in paths]
        owned = [move.transaction_id for move in moves if _token(move) in own]
        if owned and hidden is None:
            hidden = owned[0]  # ask again without it: its move can hide another transaction's move
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


def set_positions(
    site: ServerConfig,
    group: str,
    moves: Moves,
    metadata: Mapping[str, Metadata | None] | None = None,
    *,
    owner: Ownership | None = None,
    by_operator: bool = False,
) -> Flow[Positions]:
    """Set the group's position in all of these streams or in none. Return its positions.

    `metadata` maps streams to what is stored with the position. `owner` is the member of the group
    that moves its position, and its epoch of the streams. With `by_operator`, the position is
    also moved in a stream that a member of the group owns. Otherwise, this raises GroupIsShared.

    If a move has no condition, the flow reads the group's position, and adds the condition that the
    group was not moved since then. If it was moved, the flow tries again a few times. Without this
    condition, a retry after a lost response could undo other clients' moves.

    Raises PositionConflict if the caller's condition does not hold, or if the condition that the
    flow added does not hold in the last try.
    Raises Indeterminate if it is unknown whether the position was set.
    """
    if not moves:
        raise ValueError("no position is given; pass at least one stream and its offset")
    is_plain = not all(isinstance(move, tuple) for move in moves.values())
    for _ in range(_SET_TRIES_MAX if is_plain else 1):
        guarded = moves
        if is_plain:
            page = yield from group_page(site, group)
            guarded = {path: _guarded(move, path, page) for path, move in moves.items()}
        request = schema.SetPositionsRequest(
            targets_of(guarded, metadata),
            None if owner is None else owner.member,
            {} if owner is None else dict.fromkeys(guarded, owner.epoch),
            by_operator,
        )
        exchange = yield from send(site, _target(site, group), request)
        if exchange.response.status < 400:
            return decoded(exchange.response, Positions)
        error = exchange.error()
        if not isinstance(error, PositionConflict) or error.incarnation is not None:
            raise error
        if exchange.was_lost:
            # The attempt that got no response has perhaps moved the group.
            page = yield from group_page(site, group)
            if all(_is_done(page, path, move) for path, move in guarded.items()):
                return page
            error.applied = UNKNOWN
            raise _indeterminate(group) if is_plain else error
        if isinstance(moves.get(error.stream or ""), tuple):
            break  # the caller's own condition does not hold
    raise error


def set_known(
    site: ServerConfig,
    group: str,
    moves: Moves,
    positions: KnownPositions,
    metadata: Mapping[str, Metadata] | None = None,
    *,
    by_operator: bool = False,
) -> Flow[dict[str, str]]:
    """Move the group, and record its new positions in `positions`.

    Return the new positions as a mapping from each stream's path to an offset.
    """
    page = yield from set_positions(site, group, moves, metadata, by_operator=by_operator)
    offsets = {path: page.offsets[path] for path in moves}
    for path, offset in offsets.items():
        positions.note_moved((group, path), ordinal_of(offset), page.versions.get(path))
    return offsets


def reset_positions(
    site: ServerConfig,
    group: str,
    to: str,
    paths: Sequence[str],
    positions: KnownPositions,
    *,
    by_operator: bool = False,
) -> Flow[dict[str, str]]:
    """Move the group in all its streams, or in `paths`, to one place. Return its new positions.

    Without `paths`, the group's retry stream is left out: its messages are copies, which would be
    processed in addition to those of the other streams. `to` is EARLIEST, LATEST or an offset.
    Raises ValueError for another text, or if the group has no such stream.
    """
    info = yield from describe_group(site, group)
    ends = {each.stream: each.end for each in info.streams}
    unknown = [path for path in paths if path not in ends]
    if unknown:
        raise ValueError(f"the group {group} has no stream {unknown[0]}; set() moves it anywhere")
    target = print_offset(0) if to == EARLIEST else to
    if to != LATEST and parse_offset(target) is None:
        raise ValueError(f"to={to!r} is invalid; expected {EARLIEST!r}, {LATEST!r} or an offset")
    chosen = list(paths) or [path for path in ends if path != retries_of(group)]
    moved: dict[str, str] = {}
    for at in range(0, len(chosen), TXN_LIST_MAX):
        part = chosen[at : at + TXN_LIST_MAX]
        moves: dict[str, Move] = {path: ends[path] if to == LATEST else target for path in part}
        moved |= yield from set_known(site, group, moves, positions, by_operator=by_operator)
    return moved


def _indeterminate(group: str) -> Indeterminate:
    error = Indeterminate(
        f"it is unknown whether this call set the positions of the group {group}: a request got no"
        " response, and another client has changed the positions"
    )
    error.advice = "read the positions of the group, and set them again if they are wrong"
    return error


def _guarded(move: Move, path: str, page: Positions) -> Move:
    """Add a condition to a move: the group's position must still be the one in `page`.

    A move that already has conditions is returned unchanged.
    """
    if isinstance(move, tuple):
        return move
    position = page.known(path)
    return position.offset, ordinal_of(move), None, position.version


def _is_done(page: Positions, path: str, move: Move) -> bool:
    """Return True if the move was applied and the position has not changed since then."""
    assert isinstance(move, tuple)
    _, to, _, version = (*move, None, None)[:4]
    is_next = version is None or page.versions.get(path) in (None, version + 1)
    return is_next and page.offsets.get(path) == offset_of(to)


def pin(site: ServerConfig, group: str, step: PinnedStep) -> Flow[PinnedStep]:
    """Pin a step: store which range of each stream the group reads in it. Return the stored step.

    If a step with this number is already stored, that earlier step is kept and returned.
    """
    return post(site, _target(site, group, "snapshot"), step, PinnedStep, 200, 201)


def snapshot(site: ServerConfig, group: str) -> Flow[PinnedStep | None]:
    """Return the step that the group has pinned, or None if it has never pinned a step."""
    return pinned_step(site, _target(site, group, "snapshot"), PinnedStep)


def _target(site: ServerConfig, group: str, page: str = "offsets") -> str:
    if not group:
        raise ValueError("the name of a group must not be empty")
    return site.address.target(GROUPS, group, page)


class GroupCursor(Struct):
    """A group's position in one stream, as far as one reader knows it.

    Before the reader begins, it waits until no pending transaction can move the group, but at most
    `seconds_max` seconds. The client's own transactions (tokens in `unresolved`) are ignored.
    """

    site: ServerConfig
    group: str
    path: str
    positions: KnownPositions
    unresolved: Container[str] = ()
    seconds_max: float = STABLE_SECONDS_MAX
    position: KnownPosition = field(default_factory=KnownPosition)

    def move(self, message: Message, metadata: Metadata | None = None) -> Flow[None]:
        """Move the group to the offset after `message`, and store `metadata` with its position.

        Do nothing if the group is already at a later offset, or at this one and there is no
        metadata. Raises PositionConflict if the group is not at the expected position.
        """
        yield from self.move_to(end_offset_of(message), metadata)

    def move_to(self, ordinal: int, metadata: Metadata | None = None) -> Flow[None]:
        """Move the group to an offset. See `move`."""
        position = self.position
        if ordinal < position.offset or (ordinal == position.offset and not metadata):
            return
        earlier = set(position.possible_offsets)
        position.possible_offsets.add(ordinal)  # possible until a response comes
        try:
            yield from self._set(ordinal, metadata)
        except PositionConflict as error:
            self.advise(error)
            stored = parse_offset(error.offset or "")
            if stored not in earlier or error.incarnation is not None:
                position.possible_offsets = earlier
                raise
            assert stored is not None
            position.moved(stored, error.version)  # an earlier move was applied
            if ordinal > stored:
                position.possible_offsets.add(ordinal)
                yield from self._set(ordinal, metadata)
        except Refused:
            position.possible_offsets = earlier  # the move was not applied
            raise

    def advise(self, error: PositionRefused) -> None:
        """Set the advice that fits the reader: a member need not begin again."""
        if self.position.owner is not None and isinstance(error, PositionConflict):
            error.advice = (
                "the group has passed this message already, or was moved elsewhere; continue with"
                " the next message of the consumer, which reads from the group's position"
            )

    def note_refusal(self, error: PositionRefused) -> None:
        """Do nothing: the reader of a group without members reads on. A member does not."""

    def crashes(self, message: Message) -> int:
        """Return 0: crashes are counted only for members."""
        del message
        return 0

    def _set(self, ordinal: int, metadata: Metadata | None) -> Flow[None]:
        position = self.position
        move = (position.offset, ordinal, position.incarnation, position.version)
        noted = {self.path: metadata}
        page = yield from set_positions(
            self.site, self.group, {self.path: move}, noted, owner=position.owner
        )
        version = page.versions.get(self.path)
        self.position.moved(ordinal, version)
        self.positions.note_moved((self.group, self.path), ordinal, version)


def end_offset_of(message: Message) -> int:
    """Return the offset after `message` as a number.

    Raises ValueError if the message does not contain that offset.
    """
    to = message.next_ordinal
    ordinal = parse_offset(to) if isinstance(to, str) else to
    if ordinal is None:
        raise ValueError("the message cannot be committed, because it has no next_offset")
    return ordinal


def cursor_of(message: Message) -> GroupCursor:
    """Return the cursor of the reader that read `message`.

    Raises ValueError if the message was not read for a group.
    """
    cursor: GroupCursor | None = getattr(message.on_commit, "cursor", None)
    if cursor is None:
        raise ValueError("only a message from consume(...) or tail(group=...) can be committed")
    return cursor


class GroupReader(PageReader):
    """A reader that starts at a group's position. Committing a message moves the position."""

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
            raise ValueError(
                "tail(group=...) does not support live='sse', because SSE does not report the"
                " offset of each message"
            )
        super().__init__(calls, offset, is_live=True, isolation=isolation)
        self.source = self._source = cursor.positions.read_position(calls.path)
        self._group_cursor = cursor
        self._on_commit = on_commit
        self._is_started = False

    def begin(self) -> Flow[None]:
        """Get the group's position from the server, and start reading there."""
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
        """Return the next messages (perhaps none), or None at the end of a closed stream."""
        page = yield from super().next_page()
        self._group_cursor.position.incarnation = self.incarnation
        for message in page or ():
            message.on_commit = self._on_commit
        return page
