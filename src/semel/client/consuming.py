"""The logic of a member of a group that shares work. It does no I/O.

1. A member gets streams by joining its group and by its heartbeats. Each response has the complete
   list. A stream that is no longer in the list, or that has a new epoch, was taken away.
2. Messages of all streams are delivered in turn, page by page. Nothing is committed unless the
   application commits it.
3. If the server asks for a stream, no more messages of it are delivered. It is released when all
   delivered messages are committed, or when the rebalance timeout has passed.
4. In a topic that has grown, a stream is read up to its limit, and the position is moved there, so
   that other members can continue.
5. If members have crashed since the position of a stream was moved, its next message is a suspect.
   See `suspects.py`.
"""

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from semel.client import errors
from semel.client.commit_sequence import CommitSequence
from semel.client.consumer_options import ConsumerSettings, Names, resolve_names
from semel.client.flows import Flow, Pause, backoff_seconds
from semel.client.group_calls import group_page
from semel.client.known_streams import KnownStreams
from semel.client.member_calls import (
    LIVING,
    AssignedStream,
    LastWait,
    Member,
    MemberState,
    Subscription,
    describe_group,
    join_group,
)
from semel.client.owned_streams import (
    MemberCursor,
    MemberReader,
    OwnedStream,
    reject_or_put_back,
)
from semel.client.positions import KnownPosition, KnownPositions, Ownership
from semel.client.stream_calls import StreamCalls
from semel.client.suspects import Attribution, find_guilty, suspects_in_turn
from semel.client.topic_calls import TopicCalls
from semel.client.values import Message, OnCommit, ordinal_of
from semel.model.offsets import parse_offset, print_offset
from semel.model.patterns import Pattern
from semel.model.rights import retries_of

_PAUSE_SECONDS_MIN: Final = 0.02
_PAUSE_SECONDS_MAX: Final = 0.25
_CRASHED: Final = "the last {} members that had this message to process have crashed"
_log = logging.getLogger("semel.client")

MakeCommitter = Callable[[MemberCursor], OnCommit]

# ---- what a member does between two messages -----------------------------------------------------


class Changes(Struct):
    """The paths of the streams that a member has got, must release, and has lost."""

    assigned: list[str] = field(default_factory=list)
    revoked: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


class Consumption:
    """A member of a group, the streams that it owns, and the messages that can be delivered.

    Call `join` if `member` is None, then `take_news`, `release` and `chores`. After that, `take`
    returns messages. If it returns none, `fetch` reads some, or waits for a while.
    """

    def __init__(
        self,
        streams: KnownStreams,
        group: str,
        names: Names,
        settings: ConsumerSettings,
        positions: KnownPositions,
        make_committer: MakeCommitter,
        *,
        is_live: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.group = group
        self.member: Member | None = None
        self.streams: dict[str, OwnedStream] = {}  # the one whose turn is next comes first
        self.sequence = CommitSequence(streams)
        self._site = streams.site
        self._endless = replace(streams.site, retries=None)
        self._names = names
        self._settings = settings
        self._positions = positions
        self._make_committer = make_committer
        self._is_live = is_live
        self._clock = clock
        self._last_wait = LastWait(self._endless, group, clock, is_live=is_live)
        self._subscription: Subscription | None = None
        self._topics: dict[str, TopicCalls] = {}
        self._partition_counts: dict[str, int] = {}
        self._ends: dict[str, int] = {}  # how far partitions are, as the server last said
        self._closed_topics: set[str] = set()
        self._given_up: set[tuple[str, str, int]] = set()  # released, and perhaps still in a list
        self._current: OwnedStream | None = None
        self._has_suspects = False
        is_used = settings.max_attempts is not None
        self._attribution = Attribution(group, clock, is_used=is_used)
        self._empty_rounds = 0

    # ---- membership ------------------------------------------------------------------------------

    def join(self) -> Flow[Member]:
        """Join the group as a new member.

        Raises InstanceReplaced if this consumer was a member before, and another one has its
        instance name now. Otherwise the two would replace each other again and again.
        """
        site = self._site
        if self.has_joined and self._settings.instance is not None:
            yield from self._refuse_replaced(self._settings.instance)
        if self._subscription is None:
            names, self._partition_counts = yield from resolve_names(site, self._names)
            paths = [calls.path for calls in names.topics]
            self._topics = {path: TopicCalls(self._endless, path) for path in paths}
            self._subscription = self._settings.subscription(names)
        joined = yield from join_group(site, self.group, self._subscription)
        self._site = self._endless  # from now on, the member waits while the server is unreachable
        self.member = Member(self._endless, self.group, joined)
        self._attribution.join()
        LIVING.add(self.member)
        return self.member

    def _refuse_replaced(self, instance: str) -> Flow[None]:
        try:
            info = yield from describe_group(self._site, self.group)
        except errors.GroupNotFound:
            return
        if any(each.instance == instance for each in info.members):
            raise errors.InstanceReplaced(
                f"another member of the group {self.group} has joined as the instance {instance}"
            )

    @property
    def has_joined(self) -> bool:
        """True after the first join. From then on, the member waits for an unreachable server."""
        return self._site is self._endless

    @property
    def has_news(self) -> bool:
        """True if `take_news` must be called before messages are taken."""
        return self.member is None or bool(self.member.news)

    def take_news(self) -> Changes:
        """Apply what the heartbeats have brought. Return what has changed.

        If the member has expired, it has lost everything, and `member` is None afterwards. Raises
        the error that has ended the heartbeats, if it is another one.
        """
        changes = Changes()
        while self.member is not None and self.member.news:
            state = self.member.news.popleft()
            if isinstance(state, MemberState):
                self._apply(state, changes)
                continue
            LIVING.remove(self.member)
            self.member = None
            self._attribution.end_suspect()
            changes.lost += [self._lose(stream) for stream in list(self.streams.values())]
            if not isinstance(state, errors.UnknownMember):
                raise state
        changes.revoked = [each.path for each in self._revoked() if not each.is_revoked_told]
        for path in changes.revoked:
            self.streams[path].is_revoked_told = True
        self._has_suspects = any(stream.starts for stream in self.streams.values())
        return changes

    def _apply(self, state: MemberState, changes: Changes) -> None:
        assigned = {each.stream: each for each in state.assigned}
        for path, stream in list(self.streams.items()):
            own = assigned.get(path)
            if own is None or _identity(own) != stream.identity:
                changes.lost.append(self._lose(stream))
            else:
                stream.hear(own)
        for each in state.assigned:
            if each.stream not in self.streams and _identity(each) not in self._given_up:
                self._open(each)
                changes.assigned.append(each.stream)
        self._given_up &= {_identity(each) for each in state.assigned}
        for path, stream in self.streams.items():
            if path not in state.release:
                stream.revoked_at, stream.is_revoked_told = None, False
            elif stream.revoked_at is None:
                stream.revoked_at = self._clock()

    def _open(self, assigned: AssignedStream) -> None:
        assert self.member is not None
        path, group = assigned.stream, self.group
        owner = Ownership(self.member.id, assigned.epoch)
        incarnation = assigned.incarnation
        position = KnownPosition(
            ordinal_of(assigned.position), assigned.version, incarnation, owner
        )
        cursor = MemberCursor(self._site, group, path, self._positions, position=position)
        reader = MemberReader(StreamCalls(self._endless, path), assigned.position, is_live=True)
        source = self._positions.read_position(path, assigned.position)
        source.server_position(group, position)
        topic, _, number = path.rpartition("/")
        is_partition = topic in self._topics and number.isdecimal()
        source.partition = int(number) if is_partition else None
        reader.source, reader.incarnation = source, incarnation
        stream = OwnedStream(assigned, cursor, reader, self._make_committer(cursor))
        stream.topic = topic if is_partition else None
        stream.is_retry = path == retries_of(group)
        cursor.stream = self.streams[path] = stream
        self._positions.note_server_position((group, path), position)

    def _lose(self, stream: OwnedStream) -> str:
        """Drop a stream, and return its path. Nothing of it can be committed any more."""
        stream.is_lost = True
        stream.ready.clear()
        if self.streams.get(stream.path) is stream:
            del self.streams[stream.path]
        self._positions.forget_position((self.group, stream.path), stream.position)
        return stream.path

    def forget(self) -> None:
        """Forget the positions of all streams, because the member leaves. Any thread can do so."""
        self._attribution.end()
        if self.member is not None:
            LIVING.remove(self.member)
        for stream in list(self.streams.values()):
            stream.is_lost = True
            self._positions.forget_position((self.group, stream.path), stream.position)

    def _revoked(self) -> list[OwnedStream]:
        return [stream for stream in self.streams.values() if stream.revoked_at is not None]

    def release(self) -> bool:
        """Release the streams that the member must release and can release now.

        Return True if a heartbeat must be sent.
        """
        released = []
        for stream in self._revoked():
            assert stream.revoked_at is not None
            is_late = self._clock() - stream.revoked_at >= self._rebalance_seconds
            if is_late or not stream.has_uncommitted:
                self._given_up.add(stream.identity)
                released.append(self._lose(stream))
        if released and self.member is not None:
            self.member.release(released)
        return bool(released)

    @property
    def _rebalance_seconds(self) -> float:
        seconds = self._settings.rebalance_timeout
        if seconds is None:
            seconds = 0.0 if self.member is None else self.member.session_seconds
        return seconds

    # ---- chores ----------------------------------------------------------------------------------

    @property
    def has_chores(self) -> bool:
        """True if `chores` has something to do."""
        is_due = self._has_suspects or self._attribution.must_tell
        return is_due or any(
            stream.is_displaced or stream.must_pass_limit for stream in self.streams.values()
        )

    def chores(self) -> Flow[None]:
        """Read positions that an operator has moved, pass limits, and reject what is to blame.

        A message that has used up its attempts by crashes becomes a dead letter.
        """
        for stream in list(self.streams.values()):
            if stream.is_displaced:
                yield from self._follow(stream)
            elif stream.must_pass_limit:
                with suppress(errors.PositionRefused):  # the stream has recorded the reason
                    yield from stream.pass_limit()
        while (
            guilty := find_guilty(self.streams.values(), self._settings.max_attempts)
        ) is not None:
            is_rejected = yield from self._reject_next(guilty)
            if is_rejected is None:
                break
            if not is_rejected:
                return  # it must not be delivered instead
        if self.member is not None and self._attribution.must_tell:
            yield from self._attribution.tell(self.member)
        if self._has_suspects and not self._attribution.has_suspect:
            yield from self._prepare_suspect()

    def _prepare_suspect(self) -> Flow[None]:
        """Prepare the delivery of the next suspect."""
        suspects = suspects_in_turn(self.streams.values())
        self._has_suspects = bool(suspects)
        if self.member is None or not suspects:
            return
        stream = suspects[0]
        if not stream.has_next:
            yield from self._read(stream, is_waiting=False)
        if stream.has_next and stream.is_active and stream.is_suspect:
            yield from self._attribution.prepare(self.member, stream, self.streams.values())

    def _follow(self, stream: OwnedStream) -> Flow[None]:
        """Continue where an operator has moved the group."""
        page = yield from group_page(self._site, self.group)
        position = page.known(stream.path)
        assigned = replace(
            stream.assigned,
            position=print_offset(position.offset),
            version=position.version or 0,
            starts=0,
            limit=None if stream.limit == float("inf") else print_offset(int(stream.limit)),
        )
        revoked_at, is_told = stream.revoked_at, stream.is_revoked_told
        self._lose(stream)
        self._open(assigned)
        opened = self.streams[stream.path]
        opened.revoked_at, opened.is_revoked_told = revoked_at, is_told

    def _reject_next(self, stream: OwnedStream) -> Flow[bool | None]:
        """Make the next message of a stream a dead letter.

        Return False if that must wait, and None if there is no message.
        """
        if not stream.has_next:
            yield from self._read(stream, is_waiting=False)
        for message in stream.take(1):
            cause = _CRASHED.format(stream.starts)
            with suppress(errors.PositionRefused):  # the stream has recorded the reason
                if not (
                    yield from reject_or_put_back(
                        self.sequence, stream, message, cause, attempts=message.attempts
                    )
                ):
                    return False
                _log.warning(
                    "the group %s has made the message at %s in %s a dead letter: %s",
                    *(self.group, message.offset, stream.path, cause),
                )
            return True
        return None

    # ---- messages --------------------------------------------------------------------------------

    def take(self, count: int = 1, caller: object = None) -> list[Message]:
        """Return the next messages of one stream, at most `count`, or none if none was read.

        `caller` is the thread or task that processes them. While a suspect is processed, other
        callers get nothing.
        """
        self.note_return(caller)
        member, attribution = self.member, self._attribution
        if member is None or not attribution.begin(member.session_seconds):
            return []
        stream = self._next_stream(count)
        taken = [] if stream is None else stream.take(count)
        attribution.note_delivery(caller, stream, member.session_seconds)
        return taken

    def note_return(self, caller: object) -> None:
        """Note that a caller has come back for more messages. Any thread can call this."""
        self._attribution.note_return(caller)

    def _next_stream(self, count: int) -> OwnedStream | None:
        """Return the stream of which messages are delivered now, at most `count` at once."""
        attribution = self._attribution
        if attribution.is_busy:
            return None
        suspect = attribution.take_suspect()
        if suspect is not None:
            return suspect
        if attribution.must_tell or (
            self._has_suspects and suspects_in_turn(self.streams.values())
        ):
            return None  # `chores` tells the server, or prepares the next one
        current = self._current
        if current is None or not self._is_ready(current, count):
            current = self._current = self._next_ready(count)
        return current

    def _is_ready(self, stream: OwnedStream, count: int) -> bool:
        is_ready = stream.is_active and stream.has_next
        return is_ready and not (stream.is_single(count) and self._attribution.is_processed(stream))

    def _next_ready(self, count: int) -> OwnedStream | None:
        for stream in self.streams.values():
            if self._is_ready(stream, count):
                self._end_turn(stream)
                return stream
        return None

    def _end_turn(self, stream: OwnedStream) -> None:
        if self.streams.get(stream.path) is stream:
            del self.streams[stream.path]
            self.streams[stream.path] = stream

    def fetch(self) -> Flow[None]:
        """Read the next page of a stream. If there is nothing to read, wait for a while."""
        readable = [stream for stream in self.streams.values() if self._is_readable(stream)]
        for stream in readable:
            is_alone = self._is_live and len(self.streams) == 1 and not self._has_suspects
            if (yield from self._read(stream, is_waiting=is_alone)):
                self._empty_rounds = 0
                return
            if is_alone:
                return  # the server has waited for a message
        if not (yield from self._look()):
            seconds = backoff_seconds(self._empty_rounds, _PAUSE_SECONDS_MIN, _PAUSE_SECONDS_MAX)
            self._empty_rounds += 1
            yield Pause(seconds)

    def _is_readable(self, stream: OwnedStream) -> bool:
        reader = stream.reader
        if not stream.is_active or stream.ready or reader.is_closed or stream.is_at_limit:
            return False
        if not reader.is_at_end or stream.topic in self._closed_topics:  # reads that it is closed
            return True
        return reader.reached < self._ends.get(stream.path, 2**63)

    def _read(self, stream: OwnedStream, *, is_waiting: bool) -> Flow[bool]:
        try:
            return (yield from stream.fetch(is_waiting=is_waiting))
        except (errors.StreamNotFound, errors.StreamGone):
            self._lose(stream)  # it was deleted; the heartbeats tell the application
            self._given_up.add(stream.identity)
            return False

    def _look(self) -> Flow[bool]:
        """Ask how far the topics are. Return True if that has changed since the last time."""
        before, closed_before = dict(self._ends), len(self._closed_topics)
        owned = {stream.topic for stream in self.streams.values() if stream.topic is not None}
        for name in sorted(owned):
            try:
                info = yield from self._topics[name].show()
            except errors.TopicNotFound:
                continue
            for partition in info.partitions:
                self._ends[partition.stream] = parse_offset(partition.stable_offset) or 0
            if info.closed:
                self._closed_topics.add(name)
        return self._ends != before or len(self._closed_topics) > closed_before

    # ---- the end ---------------------------------------------------------------------------------

    @property
    def is_exhausted(self) -> bool:
        """True if nothing is left to deliver, and nothing more will come or is waited for."""
        streams = self.streams.values()
        if self.has_news or any(stream.revoked_at is not None for stream in streams):
            return False
        if not self._is_live:
            return all(stream.is_done for stream in streams)
        own = [stream for stream in streams if not stream.is_retry]
        return bool(own) and all(
            stream.is_done and (stream.is_retry or stream.reader.is_closed) for stream in streams
        )

    def is_over(self) -> Flow[bool]:
        """Return True if there is no stream that this member must still read."""
        if not self.is_exhausted or self.member is None:
            return False
        if self._is_live and self._names.patterns:
            return False
        for name, calls in self._topics.items():  # they can have grown
            with suppress(errors.TopicNotFound):
                self._partition_counts[name] = (yield from calls.show()).partition_count
        return (yield from self._last_wait.is_over(self.member, self.streams, self._is_wanted))

    def _is_wanted(self, path: str) -> bool:
        assert self._subscription is not None
        topic, _, number = path.rpartition("/")
        is_partition = number.isdecimal() and int(number) < self._partition_counts.get(topic, 0)
        is_named = path in self._subscription.streams or path == retries_of(self.group)
        is_match = any(Pattern(each).matches(path) for each in self._names.patterns)
        return is_partition or is_named or is_match


def _identity(assigned: AssignedStream) -> tuple[str, str, int]:
    return assigned.stream, assigned.incarnation, assigned.epoch
