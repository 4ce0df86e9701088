"""The streams that a member of a group owns: how far they are read, delivered and committed.

If members have crashed since the position of a stream was moved, its next message is a suspect (see
`suspects.py`), and the messages after it are delivered one by one: as many as one batch can have.
"""

from collections import deque
from collections.abc import Iterable
from math import inf
from typing import Final

from semel.client import errors
from semel.client.commit_sequence import CommitSequence
from semel.client.dead_letters import reject_message, unwrap
from semel.client.flows import Flow, Pause
from semel.client.group_calls import GroupCursor, end_offset_of
from semel.client.member_calls import AssignedStream
from semel.client.positions import KnownPosition
from semel.client.reading import PageReader
from semel.client.values import Message, Metadata, OnCommit, ordinal_of
from semel.model.offsets import parse_offset, print_offset

_HELD_SECONDS: Final = 0.25  # between two attempts to move a position that a transaction holds

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
        self.is_mixed = False  # the next message is delivered while others are not committed
        self._single_count = 0  # messages that were taken one by one after crashes
        self._batch_max: float = inf  # how many messages are taken at once
        self._small_until = 0  # up to this offset
        self._on_commit = on_commit
        self.limit_at(assigned.limit)

    @property
    def position(self) -> KnownPosition:
        return self.cursor.position

    @property
    def first_offset(self) -> str:
        """The position when the member got the stream."""
        return print_offset(self._first)

    def limit_at(self, limit: str | None) -> None:
        """Set the offset up to which messages may be delivered. None means no limit."""
        self.limit = inf if limit is None else ordinal_of(limit)

    def hear(self, assigned: AssignedStream) -> None:
        """Record what a heartbeat says about the stream.

        If the position was moved, and not by this member, an operator has moved the group.
        """
        self.limit_at(assigned.limit)
        is_newer = assigned.version > (self.position.version or 0)
        if is_newer and not self.has_uncommitted:
            self.is_displaced = True

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
    def has_moved(self) -> bool:
        """True if the position has moved since the member got the stream."""
        first = self._first, self._first_version
        return (self.position.offset, self.position.version) != first

    @property
    def is_suspect(self) -> bool:
        """True if members have crashed at the next message, and it was not delivered yet.

        It is no suspect if other messages are not committed: then a crash counts for nobody.
        """
        is_undelivered = self.delivered == self._first < self.limit
        is_first = not self.has_moved and is_undelivered and not self.is_done
        return self.starts > 0 and is_first and not self.is_mixed

    def is_single(self, count: int) -> bool:
        """True if the next message is taken alone, where a batch has at most `count` messages.

        A member has crashed in a batch that began at the first position. So the guilty message is
        among the first `count`, and is at the position when a member crashes again.
        """
        return self.starts > 0 and self._single_count < count

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
        count_max = 1 if self.is_single(count) else min(count, self._batch_max)
        taken: list[Message] = []
        while self.has_next and len(taken) < count_max:
            taken.append(self.ready.popleft())
        self._single_count += len(taken)
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


def reject_or_put_back(
    sequence: CommitSequence, stream: OwnedStream, message: Message, cause: str, *, attempts: int
) -> Flow[bool]:
    """Make the message that was taken last a dead letter. Return False if that must wait.

    That is so while a prepared transaction holds the position. Then the message is delivered again.
    Raises PositionRefused if the stream was lost.
    """
    try:
        yield from reject_message(sequence, stream.cursor, message, cause, attempts=attempts)
    except errors.UnstableOffsets:
        stream.put_back([message], 1)
        yield Pause(_HELD_SECONDS)
        return False
    return True
