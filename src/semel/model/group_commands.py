"""Commands on groups whose members share work.

Each stream of such a group belongs to at most one member at a time. The rules are in
`docs/reference/groups.md`.
"""

from typing import Final

from msgspec import Struct

# Where a group begins to read a stream in which it has no position yet.
EARLIEST: Final = "earliest"
LATEST: Final = "latest"


class JoinGroup(Struct, frozen=True, gc=False):
    """Join a group as a new member, which reads some of the streams that the group shares.

    `member` is a new random id. The member takes part in sharing the given streams, the partitions
    of the given topics, and all streams that match the patterns. In a pattern, the segment `*`
    stands for one segment and the segment `**` for any number of segments.

    `instance` is a name that stays the same after a restart of the member. A join under it replaces
    the member that has it, and takes over that member's streams.
    """

    now_ms: int
    group: str
    member: str
    streams: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    session_timeout_ms: int = 30_000
    rebalance_timeout_ms: int | None = None  # None means the session timeout
    instance: str | None = None
    start: str = EARLIEST


class ReleaseStreams(Struct, frozen=True, gc=False):
    """Give up streams that a member owns. They can then go to other members."""

    now_ms: int
    group: str
    member: str
    streams: tuple[str, ...]


class LeaveGroup(Struct, frozen=True, gc=False):
    """Leave a group, and give up all streams of the member."""

    now_ms: int
    group: str
    member: str


class ExpireMember(Struct, frozen=True, gc=False):
    """Remove a member whose session timeout has passed.

    `elapsed_ms` is the time since its last heartbeat, by the broker's monotonic clock.
    """

    now_ms: int
    group: str
    member: str
    elapsed_ms: int


class TakeStream(Struct, frozen=True, gc=False):
    """Take a stream away from a member that did not release it within its rebalance timeout.

    `elapsed_ms` is the time since the member was first asked to, by the broker's monotonic clock.
    """

    now_ms: int
    group: str
    path: str
    elapsed_ms: int


class RebalanceGroup(Struct, frozen=True, gc=False):
    """Compute the assignment of a group again, because streams or transactions have changed."""

    now_ms: int
    group: str


class DeleteGroup(Struct, frozen=True, gc=False):
    """Delete a group: its positions, its pinned step, and what it stores about members."""

    now_ms: int
    group: str


GroupCommand = (
    JoinGroup
    | ReleaseStreams
    | LeaveGroup
    | ExpireMember
    | TakeStream
    | RebalanceGroup
    | DeleteGroup
)
