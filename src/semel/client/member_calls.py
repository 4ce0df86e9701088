"""The calls about groups whose members share work, as generators without sockets.

A member joins a group and gets some of the group's streams. Its heartbeats keep it in the group,
and tell it which streams it owns now and which ones it must release.
"""

from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import suppress
from math import inf
from typing import Final
from weakref import WeakValueDictionary

from msgspec import UNSET, Struct, UnsetType

from semel.client import errors
from semel.client.flows import Flow, RetrySafety
from semel.client.requests import Request, query
from semel.client.server_calls import ask_server, decoded, get, post, require_progress, send
from semel.client.stream_calls import ServerConfig
from semel.client.transport import ProcessOwner
from semel.model.rights import retries_of
from semel.wire.paths import GROUPS
from semel.wire.schema import StrictRequest
from semel.wire.schema.groups import GroupsPage, HeartbeatRequest

_LISTING_COUNT: Final = 1_000
MEMBERS: Final = "members"
_WAIT_MS_MAX: Final = 60_000
_FREE: Final = ("free", "revoking")
_UNSHARED: Final = "unshared"

# ---- requests and responses ----------------------------------------------------------------------


class Subscription(StrictRequest, frozen=True):
    """What a new member takes part in sharing, and its timeouts in milliseconds."""

    streams: Sequence[str] = ()
    topics: Sequence[str] = ()
    patterns: Sequence[str] = ()
    session_timeout_ms: int | UnsetType = UNSET
    rebalance_timeout_ms: int | UnsetType = UNSET
    instance: str | UnsetType = UNSET
    start: str | UnsetType = UNSET
    names_suspects: bool = False


class AssignedStream(Struct, frozen=True):
    """A stream that a member owns.

    The member got it at `epoch`. The group is at `position`, which was moved `version` times.
    `starts` is how often in a row the stream was taken from a member that had crashed, at this
    position. The member may read up to the offset `limit`, if it is not None.
    """

    stream: str
    incarnation: str
    epoch: int
    position: str
    version: int
    starts: int = 0
    limit: str | None = None


class MemberState(Struct, frozen=True):
    """All streams that a member owns, and those among them that it must release."""

    version: str
    assigned: list[AssignedStream] = []
    release: list[str] = []


class JoinedMember(MemberState, frozen=True, kw_only=True):
    """The response to a join: the member's id, and its first streams."""

    member: str
    heartbeat_ms: int
    session_timeout_ms: int
    group: str = ""


class GroupMember(Struct, frozen=True):
    """A member of a group, and the streams that it owns."""

    member: str
    instance: str | None = None
    session_timeout_ms: int = 0
    heard_ms_ago: int | None = None
    streams: list[str] = []


class GroupStream(Struct, frozen=True):
    """A stream of a group.

    - `owner`, `epoch`: the member that owns it, and how often it was given to a member.
    - `phase`: "owned", "revoking" (the owner must release it), "free", or "unshared" if no member
      takes part in sharing it.
    - `starts`: how often in a row it was taken from a member that had crashed, at this position.
    - `position`, `version`: where the group is, and how often it was moved.
    - `end`: the end of what can be read.
    - `lag`: the number of messages from the position to the end, or None if that would take too
      long to count. It is at most `lag_bound`.
    - `lag_seconds`: the age of the first message after the position.
    """

    stream: str
    owner: str | None = None
    epoch: int = 0
    phase: str = ""
    starts: int = 0
    position: str = ""
    version: int = 0
    end: str = ""
    lag: int | None = None
    lag_bound: int = 0
    lag_seconds: float | None = None


class GroupInfo(Struct, frozen=True):
    """A group with its members, its streams and its lag."""

    group: str
    version: int = 0
    members: list[GroupMember] = []
    streams: list[GroupStream] = []
    lag: int | None = None
    lag_bound: int = 0
    lag_seconds: float | None = None


# ---- members -------------------------------------------------------------------------------------


def join_group(site: ServerConfig, group: str, subscription: Subscription) -> Flow[JoinedMember]:
    """Join a group, and return the new member with its first streams.

    If no response comes, the request is sent again, and can add a second member. The member that
    the client does not know keeps its streams until it expires, unless both have one `instance`.
    Raises StreamNotFound or TopicNotFound if a stream or a topic does not exist.
    """
    return post(site, _target(site, group, MEMBERS), subscription, JoinedMember, 200, 201)


def send_heartbeat(
    site: ServerConfig,
    group: str,
    member: str,
    heartbeat: HeartbeatRequest,
    *,
    silence_seconds: float = inf,
) -> Flow[MemberState]:
    """Send a heartbeat, and return what the member owns now.

    Raises UnknownMember if the group has no such member any more. Raises UnstableOffsets if a
    prepared transaction holds the position in a stream that is to be released.
    """
    target = _target(site, group, MEMBERS, member)
    exchange = yield from send(site, target, heartbeat, silence_seconds=silence_seconds)
    return decoded(exchange.expect(200), MemberState)


def leave_group(site: ServerConfig, group: str, member: str) -> Flow[None]:
    """Leave a group. Its other members get the streams. Raises UnknownMember if it has left."""
    yield from _delete(site, _target(site, group, MEMBERS, member))


# ---- heartbeats ---------------------------------------------------------------------------------


class Member:
    """One member of a group, and what its heartbeats have brought.

    The heartbeats are sent by one thread or task, and `news` is read by another one. An exception
    in `news` is what has ended the heartbeats.
    """

    def __init__(self, site: ServerConfig, group: str, joined: JoinedMember) -> None:
        self.site = site
        self.group = group
        self.id = joined.member
        self.heartbeat_seconds = max(joined.heartbeat_ms, 1) / 1000
        self.session_seconds = joined.session_timeout_ms / 1000
        self.news: deque[MemberState | Exception] = deque([joined])
        self._version = joined.version
        self._releasing: set[str] = set()
        self._is_held = False  # a prepared transaction has prevented the last release

    def release(self, paths: Iterable[str]) -> None:
        """Let the next heartbeat release streams."""
        self._releasing |= set(paths)

    @property
    def wait_seconds(self) -> float:
        """How long the server lets the next heartbeat wait for a change."""
        if self._releasing and not self._is_held:
            return 0.0
        return min(self.heartbeat_seconds, 1.0 if self._is_held else _WAIT_MS_MAX / 1000)

    def beat(self) -> Flow[bool]:
        """Send a heartbeat. Return True if the response brought something new.

        Raises UnknownMember if the member has expired.
        """
        wait, released = self.wait_seconds, [] if self._is_held else sorted(self._releasing)
        self._is_held = False
        heartbeat = HeartbeatRequest(tuple(released), round(wait * 1000), self._version)
        try:
            state = yield from send_heartbeat(
                self.site,
                self.group,
                self.id,
                heartbeat,
                silence_seconds=wait + self.heartbeat_seconds,
            )
        except errors.UnstableOffsets:
            self._is_held = True
            return False
        self._releasing -= set(released)
        is_new = state.version != self._version
        self._version = state.version
        if is_new:
            self.news.append(state)
        return is_new

    def name_suspect(self, path: str | None) -> Flow[None]:
        """Let the server know which stream's next message is delivered alone from now on, if any.

        The heartbeats do not repeat this, so that one which arrives late cannot contradict it.
        """
        heartbeat = HeartbeatRequest(suspects=() if path is None else (path,))
        with suppress(errors.UnknownMember):  # the heartbeats bring this as news
            yield from send_heartbeat(self.site, self.group, self.id, heartbeat)


# ---- groups --------------------------------------------------------------------------------------


def list_groups(site: ServerConfig, prefix: str, after: str | None) -> Flow[GroupsPage]:
    """Return one page of the groups whose names begin with `prefix`, sorted by name."""
    target = site.address.target(GROUPS) + query(
        prefix=prefix or None, after=after, limit=_LISTING_COUNT
    )
    page = yield from get(site, target, GroupsPage)
    require_progress(page.next, after)
    return page


def describe_group(site: ServerConfig, group: str) -> Flow[GroupInfo]:
    """Return a group with its members, streams and lag. Raises GroupNotFound if there is none."""
    return get(site, _target(site, group), GroupInfo)


def delete_group(site: ServerConfig, group: str) -> Flow[None]:
    """Delete a group. Raises GroupInUse if it has members, and GroupNotFound if there is none."""
    yield from _delete(site, _target(site, group))


def _delete(site: ServerConfig, target: str) -> Flow[None]:
    request = Request("DELETE", target)
    exchange = yield from ask_server(site, request, RetrySafety.REPEATABLE)
    # A 404 after an attempt without a response is a success: that attempt has removed it.
    if not (exchange.was_lost and exchange.response.status == 404):
        exchange.expect(204)


def _target(site: ServerConfig, group: str, *names: str) -> str:
    if not group:
        raise ValueError("the name of a group must not be empty")
    return site.address.target(GROUPS, group, *names)


# ---- other members -------------------------------------------------------------------------------

# A member that has read all its streams can still get those of others: streams that are about to be
# released, and those of a member that has crashed, which the server gives to others when its
# session has timed out. A member that is alive processes its streams itself.


class LivingMembers:
    """The members of this process, which are alive as long as their heartbeats are sent."""

    def __init__(self) -> None:
        self._owner = ProcessOwner("the members")
        self._members: WeakValueDictionary[str, Member] = WeakValueDictionary()

    def add(self, member: Member) -> None:
        """Add a member that has joined its group."""
        self._reset()
        self._members[member.id] = member

    def remove(self, member: Member) -> None:
        """Remove a member that has expired or leaves its group."""
        self._members.pop(member.id, None)

    def __contains__(self, member: object) -> bool:
        self._reset()
        return member in self._members

    def _reset(self) -> None:
        """Forget the members that a forked process has inherited from its parent."""
        if self._owner.is_parent:
            self._owner.adopt()
            self._members.clear()


LIVING: Final = LivingMembers()


class LastWait:
    """The wait of a member for streams of other members, after it has read all its own."""

    def __init__(
        self, site: ServerConfig, group: str, clock: Callable[[], float], *, is_live: bool
    ) -> None:
        self._site = site
        self._group = group
        self._clock = clock
        self._is_live = is_live
        self._since: float | None = None  # when the wait began

    def is_over(
        self, member: Member, own: Container[str], is_wanted: Callable[[str], bool]
    ) -> Flow[bool]:
        """Return True if no stream in which something is left to read can come to the member.

        `own` has the paths of its streams, in which it has read everything that it knows of.
        """
        asked = self._clock()
        if self._since is None:
            self._since = asked
        info = yield from describe_group(self._site, self._group)
        heard = _heard(info, asked - self._since)
        return not any(
            self._is_waited_for(each, member, heard)
            for each in info.streams
            if each.stream not in own and each.lag != 0 and each.lag_bound
            if each.owner == member.id or is_wanted(each.stream)
        )

    def _is_waited_for(
        self, stream: GroupStream, member: Member, heard: Container[str | None]
    ) -> bool:
        if stream.phase == _UNSHARED:
            return False
        if stream.owner == member.id or stream.phase in _FREE:
            return True
        if self._is_live:  # the inputs are closed, so all are waited for until they are processed
            return stream.stream != retries_of(self._group)
        return stream.owner not in LIVING and stream.owner not in heard


def _heard(info: GroupInfo, seconds: float) -> set[str | None]:
    """Return the members that were heard in the last seconds before the request."""
    return {
        each.member
        for each in info.members
        if each.heard_ms_ago is not None and each.heard_ms_ago < seconds * 1000
    }
