"""Fan-out groups: the event streams at the tail of one stream share its reads and events.

A group has one wait, one read and one encoded event for all of its members. Its read is admitted
like every other one (`admission.py`). A member whose client does not receive an event at once
leaves the group, and catches up with reads of its own.
"""

from typing import Protocol

from semel.broker.broker import ReadDone
from semel.broker.engine import Waiting
from semel.model.outcomes import Outcome
from semel.server.admission import AdmittedRead
from semel.server.http import SharedBytes
from semel.server.live import Live
from semel.wire import sse
from semel.wire.responses import Blocker


class FanoutMember(Protocol):
    """An event stream, as a member of a group."""

    group: "FanoutGroup | None"

    def share(self, event: SharedBytes, next_offset: int) -> bool:
        """Write an event of the group; return False, and write nothing, if it needs its own."""

    def take(self, outcome: Outcome) -> None:
        """Write the result of a read, and continue from there."""

    def leave(self) -> None:
        """Leave the group, if it is in one."""


def control_of(
    encoder: sse.SseEncoder,
    cursor: int,
    is_at_tail: bool,
    is_closed: bool,
    blocker: Blocker | None = None,
) -> bytes:
    """Return the control event for a reader whose events came from `encoder`."""
    return sse.control_event(
        encoder.next_offset,
        cursor=cursor,
        is_up_to_date=is_at_tail,
        is_closed=is_closed,
        blocked_by=None if blocker is None else blocker.transaction,
    )


class FanoutGroup:
    """The event streams at the tail of one stream, with the same isolation.

    It waits (`_waiting`) or reads (`_is_reading`) while it has members, and never both.
    """

    def __init__(
        self, live: Live, groups: "FanoutGroups", key: tuple[str, str], done: ReadDone
    ) -> None:
        self._live = live
        self._groups = groups
        self._key = key
        self._path, self._isolation = key
        self.number = done.row.number
        self.offset = done.next_offset
        self._members: dict[FanoutMember, None] = {}
        self._waiting: Waiting | None = None
        self._is_reading = False

    @property
    def is_over(self) -> bool:
        """Whether it has no members: it is never used again."""
        return not self._members

    def join(self, member: FanoutMember) -> None:
        """Add a member; the first one starts the wait."""
        self._members[member] = None
        member.group = self
        self._wait()

    def leave(self, member: FanoutMember) -> None:
        """Remove a member; the last one ends the wait."""
        self._members.pop(member, None)
        member.group = None
        if not self._members:
            self._close()

    def _wait(self) -> None:
        """Read when there is something new, unless a wait or a read is under way already."""
        if self._is_reading or self._waiting is not None or self.is_over:
            return
        self._waiting = self._live.engine.wait(self._path, self.offset, self._read, self._isolation)
        if self._waiting is None:
            self._is_reading = True
            self._live.loop.call_soon(self._read)

    def _read(self) -> None:
        self._waiting = None
        self._is_reading = True
        read = AdmittedRead(self._path, self.offset, self._deliver, self, isolation=self._isolation)
        self._live.reads.begin(read)

    def _deliver(self, outcome: Outcome) -> None:
        self._is_reading = False
        if isinstance(outcome, ReadDone) and (event := self._encode(outcome)) is not None:
            self._share(SharedBytes(event), outcome)
        else:
            self._detach_all(outcome)

    def _share(self, event: SharedBytes, done: ReadDone) -> None:
        self.offset = done.next_offset
        for member in list(self._members):
            if not member.share(event, done.next_offset):
                member.leave()
                member.take(done)
        self._wait()

    def _detach_all(self, outcome: Outcome) -> None:
        members, self._members = list(self._members), {}
        self._close()
        for member in members:
            member.group = None
            member.take(outcome)

    def _encode(self, done: ReadDone) -> bytes | None:
        """Return the event for all members, or None if each has to handle the result itself."""
        is_at_tail = done.next_offset >= done.tail.tail
        is_same_stream = done.row.number == self.number
        if done.tail.is_closed or not done.slices or not is_at_tail or not is_same_stream:
            return None
        encoder = sse.SseEncoder(done.row.content_type, self.offset)
        data = encoder.data(done.slices, next_offset=done.next_offset)
        if encoder.next_offset != done.next_offset:
            return None
        return data + control_of(encoder, self._live.cursor(None), True, False)

    def _close(self) -> None:
        if self._waiting is not None:
            self._live.engine.stop_waiting(self._waiting)
            self._waiting = None
        if self._groups.get(self._key) is self:
            del self._groups[self._key]


FanoutGroups = dict[tuple[str, str], FanoutGroup]  # by path and isolation
