"""The JSON bodies of `/v1/groups`: groups, and the members that share their streams."""

from msgspec import UNSET, Struct, UnsetType

from semel.wire.schema import StrictRequest

# ---- requests ------------------------------------------------------------------------------------


class JoinRequest(StrictRequest, frozen=True):
    """The body of `POST /v1/groups/{group}/members`: what a new member takes part in sharing.

    Without `rebalance_timeout_ms`, the member may keep a stream that it must release for as long as
    its session timeout. `start` is `earliest` or `latest`. With `names_suspects`, the member will
    send `suspects` with its heartbeats.
    """

    streams: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    session_timeout_ms: int | UnsetType = UNSET
    rebalance_timeout_ms: int | UnsetType = UNSET
    instance: str | UnsetType = UNSET
    start: str | UnsetType = UNSET
    names_suspects: bool = False


class HeartbeatRequest(StrictRequest, frozen=True):
    """The body of `POST /v1/groups/{group}/members/{member}`.

    `released` has the streams that the member gives up. The response comes at once unless the state
    of the member still has this `version`. Then it comes after a change, or after `wait_ms`.

    `suspects` has the streams whose next message the member processes alone, because members have
    crashed before at this position. If the member crashes, only these are to blame. A member that
    never sends it is not trusted to do so: then each of its streams can be to blame.
    """

    released: tuple[str, ...] = ()
    wait_ms: int = 0
    version: str | UnsetType = UNSET
    suspects: tuple[str, ...] | UnsetType = UNSET


# ---- responses -----------------------------------------------------------------------------------


class AssignedEntry(Struct, frozen=True):
    """A stream that a member owns since `epoch`, and the group's position in it.

    `version` is how often the position was moved. `starts` is how often in a row the stream was
    taken from a member that had crashed, at this position. The member may read up to the offset
    `limit`; null means up to the end.
    """

    stream: str
    incarnation: str
    epoch: int
    position: str
    version: int
    starts: int
    limit: str | None


class HeartbeatResponse(Struct, frozen=True):
    """All streams that a member owns, and those of them that it must release."""

    version: str
    assigned: list[AssignedEntry]
    release: list[str]


class JoinResponse(HeartbeatResponse, frozen=True, kw_only=True):
    """The response to a join. `heartbeat_ms` is how often the member should send a heartbeat."""

    group: str
    member: str
    heartbeat_ms: int
    session_timeout_ms: int


class MemberEntry(Struct, frozen=True):
    """A member of a group, and the streams that it owns.

    `heard_ms_ago` is the time since its last heartbeat, or since the start of the server. It is
    null if the member has just left.
    """

    member: str
    instance: str | None
    session_timeout_ms: int
    heard_ms_ago: int | None
    streams: list[str]


class SharedStreamEntry(Struct, frozen=True):
    """A stream of a group, with its owner and the group's lag.

    - `phase`: `owned`, `revoking` (the owner must release it), `free`, or `unshared` if no member
      takes part in sharing it.
    - `end`: the stable offset.
    - `lag`: the number of messages that the group has not read, without aborted ones. It is null if
      that would take too long to count. It is never more than `lag_bound`.
    - `lag_seconds`: the age of the first of these messages, or null if it is not known.
    """

    stream: str
    owner: str | None
    epoch: int
    phase: str
    starts: int
    position: str
    version: int
    end: str
    lag: int | None
    lag_bound: int
    lag_seconds: float | None


class GroupDescription(Struct, frozen=True):
    """A group with its members and streams, and the lag of all streams together.

    `version` is raised when a member or an owner changes. `lag_seconds` is the largest one.
    """

    group: str
    version: int
    members: list[MemberEntry]
    streams: list[SharedStreamEntry]
    lag: int | None
    lag_bound: int
    lag_seconds: float | None


class GroupListEntry(Struct, frozen=True):
    """A group in a listing: how many members it has, and in how many streams it has a position."""

    group: str
    members: int
    streams: int


class GroupsPage(Struct, frozen=True):
    """A page of the list of groups. `next` is the group after which the next page begins."""

    groups: list[GroupListEntry]
    next: str | None = None
