"""Event streams that stand at the end of a stream are served together.

There is one wait, one read and one encoded event for all of them. Each leaves the group when
it reads too slowly, and finds its own way back to the end.
"""

from collections.abc import Callable
from typing import Any, Protocol

from semel.broker.broker import ReadDone
from semel.broker.durable_view import StreamView, Waiter
from semel.server.http import SharedBytes
from semel.server.live import Live
from semel.wire import sse
from semel.wire.responses import Blocker


class FanoutMember(Protocol):
    """An event stream, as a member of a group."""

    group: "FanoutGroup | None"

    def share(self, event: SharedBytes, next_offset: int) -> bool:
        """Write an event that was made for the whole group; False if it does not fit this one."""

    def take(self, found: Any) -> None:
        """Write what was found, and go on."""

    def leave(self) -> None:
        """Leave the group, if in one."""


def control_of(
    encoder: sse.SseEncoder,
    cursor: int,
    is_at_tail: bool,
    is_closed: bool,
    blocker: Blocker | None = None,
) -> bytes:
    """Tell a reader where it stands."""
    return sse.control_event(
        encoder.next_offset,
        cursor=cursor,
        is_up_to_date=is_at_tail,
        is_closed=is_closed,
        blocked_by=None if blocker is None else blocker.transaction,
    )


class FanoutGroup:
    """The event streams that stand at the end of one stream, with the same isolation."""

    def __init__(
        self, live: Live, groups: "FanoutGroups", key: tuple[str, str], found: ReadDone
    ) -> None:
        self._live = live
        self._groups = groups
        self._key = key
        self._path, self._isolation = key
        self.number = found.row.number
        self.offset = found.next_offset
        self._members: dict[FanoutMember, None] = {}
        self._waiting: tuple[StreamView, Waiter] | None = None

    def join(self, member: FanoutMember) -> None:
        """Take a reader in; the first one's coming begins the wait."""
        self._members[member] = None
        member.group = self
        if self._waiting is None:
            self._wait()

    def leave(self, member: FanoutMember) -> None:
        """Let a reader go; the last one's leaving ends the wait."""
        self._members.pop(member, None)
        member.group = None
        if not self._members:
            self._close()

    def _wait(self) -> None:
        self._waiting = self._live.engine.broker.wait(
            self._path, self.offset, self._woken, self._isolation
        )
        if self._waiting is None:
            self._live.loop.call_soon(self._woken)

    def _woken(self) -> None:
        self._waiting = None
        if self._members:
            isolation = self._isolation
            self._live.engine.read(self._path, self.offset, self._found, isolation=isolation)

    def _found(self, found: Any) -> None:
        event = self._shared(found) if isinstance(found, ReadDone) else None
        if event is None:
            self._detach_all(lambda member: member.take(found))
            return
        self.offset = found.next_offset
        piece, next_offset = SharedBytes(event), found.next_offset
        for member in list(self._members):
            if not member.share(piece, next_offset):
                member.leave()
                member.take(found)
        if self._members and self._waiting is None:
            self._wait()

    def _shared(self, found: ReadDone) -> bytes | None:
        """Encode the event once; None if each reader has to see for itself."""
        is_at_tail = found.next_offset >= found.tail.tail
        is_ours = found.row.number == self.number
        if found.tail.is_closed or not found.slices or not is_at_tail or not is_ours:
            return None
        encoder = sse.SseEncoder(found.row.content_type, self.offset)
        data = encoder.data(found.slices, next_offset=found.next_offset)
        if encoder.next_offset != found.next_offset:
            return None
        return data + control_of(encoder, self._live.cursor(None), True, False)

    def _detach_all(self, tell: Callable[[FanoutMember], None]) -> None:
        members, self._members = list(self._members), {}
        self._close()
        for member in members:
            member.group = None
            tell(member)

    def _close(self) -> None:
        if self._waiting is not None:
            self._live.engine.broker.stop_waiting(self._waiting)
            self._waiting = None
        if self._groups.get(self._key) is self:
            del self._groups[self._key]


FanoutGroups = dict[tuple[str, str], FanoutGroup]  # by path and isolation
