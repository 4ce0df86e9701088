"""The streams that a member of a group owns: how far they are read, delivered and committed.

If members have crashed since the position of a stream was moved, its next message is a suspect.
Suspects are delivered one by one, before all other messages. See `suspects_in_turn`.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable
from math import inf
from typing import Final
from weakref import WeakKeyDictionary

from semel.client import errors
from semel.client.dead_letters import unwrap
from semel.client.flows import Flow
from semel.client.group_calls import GroupCursor, end_offset_of
from semel.client.member_calls import AssignedStream
from semel.client.positions import KnownPosition
from semel.client.reading import PageReader
from semel.client.transport import ProcessOwner, fork_safe_lock
from semel.client.values import Message, Metadata, OnCommit, ordinal_of
from semel.model.offsets import parse_offset

# Only after so many crashes it is sure which message is to blame. See `suspects_in_turn`.
_CRASHES_MIN: Final = 3

# ---- streams -------------------------------------------------------------------------------------


class MemberCursor(GroupCursor):
    """The position of a member's group in a stream that the member owns.

    If a move is refused because the member has lost the stream, or because an operator has moved
    the position, the stream is read no further.
    """

    stream: "OwnedStream | None" = None

    def move_to(self, ordinal: int, metadata: Metadata | None = None) -> Flow[None]:
        """Move the group to an offset. See `GroupCursor.move_to`."""
        try:
            yield from super().move_to(ordinal, metadata)
        except errors.PositionRefused as error:
            self.note_refusal(error)
            raise

    def note_refusal(self, error: errors.PositionRefused) -> None:
        """Record that a move was refused."""
        if self.stream is not None:
            self.stream.note_refusal(error)

    def crashes(self, message: Message) -> int:
        """Return how often members have crashed when this message was the next one."""
        return 0 if self.stream is None else self.stream.crashes(message)


class MemberReader(PageReader):
    """Reads a stream that a member owns, from the group's position on."""

    def page(self, *, is_waiting: bool) -> Flow[list[Message]]:
        """Return the next messages. At the end, wait for a message if `is_waiting`."""
        self._waits_at_end = is_waiting
        return (yield from self.next_page()) or []

    @property
    def reached(self) -> int:
        """The offset after the messages that were read."""
        return parse_offset(self.offset) or 0


class OwnedStream:
    """A stream that a member owns, and how far it has read and delivered the stream."""

    def __init__(
        self,
        assigned: AssignedStream,
        cursor: MemberCursor,
        reader: MemberReader,
        on_commit: OnCommit,
    ) -> None:
        self.assigned = assigned
        self.path = assigned.stream
        self.identity = assigned.stream, assigned.incarnation, assigned.epoch
        self.starts = assigned.starts
        self.limit: float = inf
        self.cursor = cursor
        self.reader = reader
        self.topic: str | None = None
        self.is_retry = False
        self.ready: deque[Message] = deque()
        self.delivered = self._first = cursor.position.offset
        self._first_version = cursor.position.version
        self._first_message: int | None = None
        self.is_lost = False  # nothing of it can be committed any more
        self.revoked_at: float | None = None  # when the server was heard to ask for it
        self.is_revoked_told = False
        self.is_displaced = False  # an operator has moved the group
        self._batch_max: float = inf  # how many messages are taken at once
        self._small_until = 0  # up to this offset
        self._on_commit = on_commit
        self.limit_at(assigned.limit)

    @property
    def position(self) -> KnownPosition:
        return self.cursor.position

    def limit_at(self, limit: str | None) -> None:
        """Set the offset up to which messages may be delivered. None means no limit."""
        self.limit = inf if limit is None else ordinal_of(limit)

    @property
    def is_active(self) -> bool:
        """True if messages may be delivered."""
        return not self.is_lost and not self.is_displaced and self.revoked_at is None

    @property
    def has_next(self) -> bool:
        """True if a message can be delivered now."""
        return bool(self.ready) and ordinal_of(self.ready[0].ordinal) < self.limit

    @property
    def is_at_limit(self) -> bool:
        """True if everything before the limit was read and delivered."""
        is_read = bool(self.ready) or self.reader.reached >= self.limit
        return self.limit < inf and not self.has_next and is_read

    @property
    def must_pass_limit(self) -> bool:
        """True if the position must be moved to the limit, because no message is left before it."""
        is_free = self.is_active and not self.has_uncommitted and self.position.offset < self.limit
        return is_free and self.is_at_limit

    @property
    def is_done(self) -> bool:
        """True if everything that was there at the last response was delivered."""
        return self.reader.has_begun and self.reader.is_at_end and not self.ready

    @property
    def has_uncommitted(self) -> bool:
        """True if messages were delivered and are not committed."""
        return self.delivered > self.position.offset

    @property
    def is_suspect(self) -> bool:
        """True if members have crashed at the next message, and it was not delivered yet."""
        is_unmoved = (self.position.offset, self.position.version) == (
            self._first,
            self._first_version,
        )
        is_undelivered = self.delivered == self._first < self.limit
        return self.starts > 0 and is_unmoved and is_undelivered and not self.is_done

    @property
    def must_be_alone(self) -> bool:
        """True if no other message of the process may be delivered with the next one."""
        return self.is_suspect and self.starts >= _CRASHES_MIN - 1

    def crashes(self, message: Message) -> int:
        """Return how often members have crashed when this message was the next one."""
        return self.starts if message.ordinal == self._first_message else 0

    def fetch(self, *, is_waiting: bool) -> Flow[bool]:
        """Read the next page. Return True if it has messages."""
        page = yield from self.reader.page(is_waiting=is_waiting)
        for message in page:
            message.on_commit = self._on_commit
            if self.is_retry:
                unwrap(message)
        if page and self._first_message is None:
            self._first_message = ordinal_of(page[0].ordinal)
        self.ready.extend(page)
        return bool(page)

    def take(self, count: int) -> list[Message]:
        """Remove up to `count` messages from those that can be delivered, and return them."""
        if self.delivered >= self._small_until:
            self._batch_max = inf
        taken: list[Message] = []
        while self.has_next and len(taken) < min(count, self._batch_max):
            taken.append(self.ready.popleft())
        if taken:
            self.delivered = end_offset_of(taken[-1])
        return taken

    def put_back(self, messages: Iterable[Message], batch_max: int) -> None:
        """Deliver messages again, which were the last to be taken, at most `batch_max` at once."""
        returned = list(messages)
        self.ready.extendleft(reversed(returned))
        self._small_until, self._batch_max = self.delivered, batch_max
        self.delivered = self.position.offset

    def pass_limit(self) -> Flow[None]:
        """Move the position to the limit, where there is no message left before it."""
        assert self.limit < inf
        yield from self.cursor.move_to(int(self.limit))
        self.delivered = self.position.offset

    def note_refusal(self, error: errors.PositionRefused) -> None:
        """Record that a move was refused.

        After a conflict, the group is read from its new position. Otherwise the member does not own
        the stream any more.
        """
        if isinstance(error, errors.UnstableOffsets):
            return
        is_moved = isinstance(error, errors.PositionConflict) and error.offset is not None
        if is_moved and getattr(error, "incarnation", None) is None:
            self.is_displaced = True
        else:
            self.is_lost = True


# ---- suspects ------------------------------------------------------------------------------------


class Solo:
    """Lets one member of this process deliver a message while the others deliver nothing.

    If a message kills the process, all its members end. So it is only sure which message has done
    that if no other one was delivered. A member that does not come back for its next messages does
    not stop the others for ever: it counts only for some time.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = fork_safe_lock()
        self._owner = ProcessOwner("a turn")
        self._busy: WeakKeyDictionary[object, float] = WeakKeyDictionary()
        self._claims: WeakKeyDictionary[object, float] = WeakKeyDictionary()

    def begin(self, member: object, seconds: float) -> bool:
        """Note that a member delivers messages. Return False if another one wants to be alone."""
        with self._lock:
            self._reset()
            if self._is_other(self._claims, member):
                return False
            self._busy[member] = self._clock() + seconds
            return True

    def end(self, member: object) -> None:
        """Note that a member is done with the messages that it has delivered."""
        with self._lock:
            self._busy.pop(member, None)

    def claim(self, member: object, seconds: float) -> bool:
        """Let a member be alone. Return False if it is not yet alone. Then it must ask again."""
        with self._lock:
            self._reset()
            if self._is_other(self._claims, member):
                return False
            self._claims.setdefault(member, self._clock() + seconds)
            return not self._is_other(self._busy, member)

    def give_up(self, member: object) -> None:
        """End the claim of a member, if it has one."""
        with self._lock:
            self._claims.pop(member, None)

    def _is_other(self, members: "WeakKeyDictionary[object, float]", member: object) -> bool:
        now = self._clock()
        return any(each is not member and until > now for each, until in members.items())

    def _reset(self) -> None:
        """Forget what a forked process has inherited from its parent."""
        if self._owner.is_parent:
            self._owner.adopt()
            self._busy.clear()
            self._claims.clear()


SOLO: Final = Solo()


def suspects_in_turn(streams: Iterable[OwnedStream]) -> list[OwnedStream]:
    """Return the streams whose next message is a suspect, those with few crashes first.

    The first crash counts for all streams of the member in which something was left to read, and
    only one of them is guilty. So a member then delivers the suspects one by one, and first tells
    the server which one: the second crash counts only for that one. But another member of the same
    process can be guilty. So from then on a suspect is delivered while no other message of the
    process is: the third crash and later ones count only for the message that is guilty.
    """
    suspects = [stream for stream in streams if stream.is_active and stream.is_suspect]
    return sorted(suspects, key=lambda stream: (stream.starts, stream.path))


def find_guilty(streams: Iterable[OwnedStream], max_attempts: int | None) -> OwnedStream | None:
    """Return a stream whose next message has used up its attempts by crashes, or None."""
    if max_attempts is None:
        return None
    crashes_max = max(max_attempts, _CRASHES_MIN)
    return next((each for each in suspects_in_turn(streams) if each.starts >= crashes_max), None)
