"""Suspects: the next messages of streams at whose positions members have crashed.

They are delivered one by one, before all other messages, so that a crash is counted for the right
one. A crash counts for a message only if the member had delivered no other message that was not
committed. So it needs an application that commits each message before it takes the next one.
"""

import logging
import time
from collections.abc import Callable, Iterable
from typing import Final
from weakref import WeakKeyDictionary

from msgspec import Struct

from semel.client.flows import Flow
from semel.client.member_calls import Member
from semel.client.owned_streams import OwnedStream
from semel.client.transport import ProcessOwner, fork_safe_lock

# Only after so many crashes it is sure which message is to blame. See `suspects_in_turn`.
_CRASHES_MIN: Final = 3
_MIXED: Final = (
    "if the message at %s in %s crashes this member of the group %s, it does not become a dead"
    " letter, because another message is taken before it is committed; commit each message before"
    " the next one is taken"
)
_log = logging.getLogger("semel.client")

# ---- which ones ----------------------------------------------------------------------------------


def must_be_alone(stream: OwnedStream) -> bool:
    """Return True if no other message of the process may be delivered with the next one."""
    return stream.is_suspect and stream.starts >= _CRASHES_MIN - 1


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


# ---- who has delivered what ----------------------------------------------------------------------


class _Delivery(Struct, frozen=True, eq=False):
    stream: OwnedStream
    end: int
    until: float

    def is_open(self, now: float) -> bool:
        """Return True if the messages are not committed, and their caller can still be at work."""
        is_uncommitted = self.stream.position.offset < self.end
        return is_uncommitted and not self.stream.is_lost and now < self.until


class Deliveries:
    """The messages of a member that its callers, which are threads or tasks, are processing.

    A caller processes what it got last, until it commits that, or comes back for more. A caller
    that does neither is forgotten after some time, so that it does not stop the others for ever.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._by_caller: dict[object, _Delivery] = {}

    def add(self, caller: object, stream: OwnedStream, seconds: float) -> None:
        """Note that a caller gets the messages that were taken from a stream last."""
        until = self._clock() + seconds
        self._by_caller[caller] = _Delivery(stream, stream.delivered, until)

    def end(self, caller: object) -> None:
        """Note that a caller has come back. Any thread can call this."""
        self._by_caller.pop(caller, None)

    def has_open(self, stream: OwnedStream | None = None) -> bool:
        """Return True if a caller is processing messages, of this stream if one is given."""
        now = self._clock()
        for caller, delivery in list(self._by_caller.items()):
            if not delivery.is_open(now):
                self._by_caller.pop(caller, None)
            elif stream is None or delivery.stream is stream:
                return True
        return False


# ---- turns of members ----------------------------------------------------------------------------


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
            now = self._clock()
            if self._claims.get(member, now) <= now:
                self._claims[member] = now + seconds
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


# ---- one member ----------------------------------------------------------------------------------


class Attribution:
    """Which message of a member is delivered alone, and what the server knows of that.

    A crash is counted for the stream that the server was told last. So before another message is
    delivered, it must be told that there is none, unless the position of that stream has moved.
    """

    def __init__(self, group: str, clock: Callable[[], float], *, is_used: bool) -> None:
        self._group = group
        self._deliveries = Deliveries(clock)
        self._suspect: OwnedStream | None = None  # the server knows that it is delivered alone
        self._is_out = False  # its message was delivered
        self._claimed: OwnedStream | None = None  # for which this member wants to be alone
        self._named: OwnedStream | None = None  # the server perhaps takes it for the suspect
        self._is_warned = not is_used

    # ---- deliveries ------------------------------------------------------------------------------

    def begin(self, seconds: float) -> bool:
        """Begin a delivery. Return False while another member of the process must be alone."""
        if not self._deliveries.has_open():
            SOLO.end(self)  # the application has come back for more
        return SOLO.begin(self, seconds)

    def note_delivery(self, caller: object, stream: OwnedStream | None, seconds: float) -> None:
        """Note that a caller gets messages of a stream, or nothing."""
        if stream is not None:
            self._deliveries.add(caller, stream, seconds)
        elif not self._deliveries.has_open():
            SOLO.end(self)

    def note_return(self, caller: object) -> None:
        """Note that a caller has come back for more messages. Any thread can call this."""
        self._deliveries.end(caller)

    def is_processed(self, stream: OwnedStream) -> bool:
        """Return True if a caller is processing messages of a stream."""
        return self._deliveries.has_open(stream)

    # ---- the suspect -----------------------------------------------------------------------------

    @property
    def has_suspect(self) -> bool:
        """True if a suspect is about to be delivered, or is being processed."""
        return self._suspect is not None

    @property
    def is_busy(self) -> bool:
        """True if a caller is processing a suspect, so that nothing else may be delivered."""
        suspect = self._suspect
        return suspect is not None and self._is_out and self._deliveries.has_open(suspect)

    def take_suspect(self) -> OwnedStream | None:
        """Return the stream whose suspect is delivered now, if there is one.

        The suspect before it has ended: it was committed, or its caller has come back without that.
        """
        suspect = self._suspect
        if suspect is None:
            self._drop_claim()
            return None
        if not self._is_out and suspect.is_active and suspect.is_suspect and suspect.has_next:
            self._is_out = True
            return suspect
        if self._is_out and not suspect.has_moved and not suspect.is_lost:
            self._warn(suspect)
        self.end_suspect()
        return None

    def end_suspect(self) -> None:
        """Let other messages be delivered again."""
        self._suspect, self._is_out, self._claimed = None, False, None
        SOLO.give_up(self)

    def _drop_claim(self) -> None:
        """Give up the claim to be alone if its stream was lost, or must be released."""
        claimed = self._claimed
        if claimed is not None and not (claimed.is_active and claimed.is_suspect):
            self._claimed = None
            SOLO.give_up(self)

    def end(self) -> None:
        """Let the other members of the process deliver messages, because this one leaves."""
        self.end_suspect()
        SOLO.end(self)

    # ---- what the server knows -------------------------------------------------------------------

    def join(self) -> None:
        """Note that the member is a new one, of which the server knows no suspect."""
        self._named = None

    @property
    def must_tell(self) -> bool:
        """True if the server must be told that no message is delivered alone any more."""
        return self._suspect is None and self._named is not None and not self._named.has_moved

    def tell(self, member: Member) -> Flow[None]:
        """Let the server know that no message is delivered alone."""
        yield from member.name_suspect(None)
        self._named = None

    def prepare(
        self, member: Member, stream: OwnedStream, owned: Iterable[OwnedStream]
    ) -> Flow[None]:
        """Let the server know that the suspect in `stream` is delivered alone next, if it can be.

        The callers that are processing other messages are waited for. If there are others that are
        not committed, the suspect is delivered as any other message, and a crash counts for nobody.
        """
        if self._deliveries.has_open():
            return
        if any(each.has_uncommitted for each in owned):
            self._warn(stream)
            stream.is_mixed = True
        elif not must_be_alone(stream) or self._claims(stream, member.session_seconds):
            self._named = stream  # also if no response comes
            yield from member.name_suspect(stream.path)
            self._suspect = stream

    def _claims(self, stream: OwnedStream, seconds: float) -> bool:
        self._claimed = stream
        return SOLO.claim(self, seconds)

    def _warn(self, stream: OwnedStream) -> None:
        if not self._is_warned:
            self._is_warned = True
            _log.warning(_MIXED, stream.first_offset, stream.path, self._group)
