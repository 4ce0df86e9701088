"""Groups: where they stand, and how they are moved. Pure: flows, no sockets."""

from typing import Final
from urllib.parse import quote

from msgspec import Struct

from semel.client.calls import Site, StreamCalls
from semel.client.documents import decoded, get, post
from semel.client.errors import PositionConflict, Refused
from semel.client.flows import Flow
from semel.client.reading import Reader
from semel.client.txn_values import Moves, PinnedStep, moves_document, offset_of
from semel.client.values import Message, OnCommit
from semel.model.offsets import parse_offset

_START: Final = 0  # where a group stands that was never moved


class Positions(Struct, frozen=True):
    """Where a group stands, by stream."""

    group: str
    offsets: dict[str, str]


def positions(site: Site, group: str) -> Flow[dict[str, str]]:
    """Ask where a group stands."""
    answer = yield from get(site, _target(site, group))
    return decoded(answer, Positions).offsets


def set_positions(site: Site, group: str, moves: Moves) -> Flow[dict[str, str]]:
    """Move a group: all of it or nothing."""
    if not moves:
        raise ValueError("there is nothing to move")
    asked = yield from post(site, _target(site, group), {"offsets": moves_document(moves)})
    if asked.answer.status < 400 or not asked.was_lost:
        return decoded(asked.expect(200), Positions).offsets
    error = asked.error()
    if not isinstance(error, PositionConflict) or error.incarnation is not None:
        raise error
    # The try whose answer was lost may have moved it.
    wanted = {path: _to(moves, path) for path in moves}
    found = yield from positions(site, group)
    if any(found.get(path) != offset for path, offset in wanted.items()):
        raise error
    return wanted


def pin(site: Site, group: str, step: PinnedStep) -> Flow[PinnedStep]:
    """Pin a step; if one of that number is pinned already, that one counts and is told."""
    asked = yield from post(site, _target(site, group, "snapshot"), step)
    return decoded(asked.expect(200, 201), PinnedStep)


def snapshot(site: Site, group: str) -> Flow[PinnedStep | None]:
    """Ask for the step a group has pinned; None if it never has."""
    try:
        answer = yield from get(site, _target(site, group, "snapshot"))
    except Refused as error:
        if error.code != "snapshot_not_found":
            raise
        return None
    return decoded(answer, PinnedStep)


def _to(moves: Moves, path: str) -> str:
    move = moves[path]
    return offset_of(move[1] if isinstance(move, tuple) else move)


def _target(site: Site, group: str, page: str = "offsets") -> str:
    if not group:
        raise ValueError("a group needs a name")
    return site.address.target(f"/v1/groups/{quote(group, safe='')}/{page}")


class Place:
    """Where a group stands in one stream, as far as this reader of it knows."""

    def __init__(self, site: Site, group: str, path: str) -> None:
        self.site = site
        self.group = group
        self.path = path
        self.incarnation: str | None = None  # of the stream that is read
        self._at = _START
        self._doubts: set[int] = set()  # where it may stand after answers that were lost

    def begin(self) -> Flow[str | None]:
        """Ask where the group stands; None if it was never moved."""
        found = (yield from positions(self.site, self.group)).get(self.path)
        self._at = _START if found is None else parse_offset(found) or _START
        return found

    def move(self, message: Message) -> Flow[None]:
        """Move the group behind a message, if it stands where this reader thinks.

        A message before that place moves nothing: it was committed with a later one.
        """
        to = message.next_place
        ordinal = parse_offset(to) if isinstance(to, str) else to
        if ordinal is None:
            raise ValueError("this message has no next_offset, so no group can stand behind it")
        if ordinal <= self._at:
            return
        earlier = set(self._doubts)
        self._doubts.add(ordinal)  # until there is an answer
        try:
            yield from self._set(ordinal)
        except PositionConflict as error:
            found = parse_offset(error.offset or "")
            if found not in earlier or error.incarnation is not None:
                self._doubts = earlier
                raise
            assert found is not None
            self._at = found  # an earlier move was done, after all
            if ordinal > found:
                yield from self._set(ordinal)
        self._at = max(ordinal, self._at)
        self._doubts.clear()

    def _set(self, ordinal: int) -> Flow[None]:
        move = (self._at, ordinal, self.incarnation)
        yield from set_positions(self.site, self.group, {self.path: move})


class GroupReader(Reader):
    """A reader that begins where a group stands, and lets its messages move the group."""

    def __init__(
        self,
        calls: StreamCalls,
        offset: str,
        place: Place,
        on_commit: OnCommit,
        *,
        isolation: str,
    ) -> None:
        super().__init__(calls, offset, is_live=True, isolation=isolation)
        self._place = place
        self._on_commit = on_commit
        self._is_placed = False

    def begin(self) -> Flow[None]:
        """Ask where to begin."""
        if not self._is_placed:
            self.offset = (yield from self._place.begin()) or self.offset
            self._is_placed = True
        yield from super().begin()

    def next_page(self) -> Flow[list[Message] | None]:
        """Read on; an empty list says only that time has passed."""
        page = yield from super().next_page()
        self._place.incarnation = self.incarnation
        for message in page or ():
            message.on_commit = self._on_commit
        return page


def refuse_events(live: str) -> None:
    """Refuse a way of following that does not tell each message's offset."""
    if live == "sse":
        raise ValueError("tail(group=...) needs each message's offset, which live='sse' lacks")
