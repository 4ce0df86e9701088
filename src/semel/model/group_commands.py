"""Commands on groups whose members share work.

Each stream of such a group belongs to at most one member at a time. The rules are in
`docs/reference/groups.md`.
"""

from typing import Final

from msgspec import Struct

from semel.model.limits import (
    GROUP_NAME_BYTES_MAX,
    GROUP_STREAMS_MAX,
    INSTANCE_BYTES_MAX,
    MEMBER_ID_BYTES_MAX,
    MEMBER_LIST_MAX,
    MEMBER_PATTERNS_MAX,
    PATH_BYTES_MAX,
    SESSION_TIMEOUT_MS_MAX,
    SESSION_TIMEOUT_MS_MIN,
)
from semel.model.names import first_invalid, is_name, is_optional_name
from semel.model.patterns import is_pattern
from semel.model.rights import replays_of

# Where a group begins to read a stream in which it has no position yet.
EARLIEST: Final = "earliest"
LATEST: Final = "latest"


class JoinGroup(Struct, frozen=True, gc=False):
    """Join a group as a new member, which reads some of the streams that the group shares.

    `member` is a new random id. The member takes part in sharing the given streams, the partitions
    of the given topics, and all streams that match the patterns. In a pattern, the segment `*`
    stands for one segment and the segment `**` for any number of segments.

    `instance` is a name that stays the same after a restart of the member. A join under it replaces
    the member that has it, and takes over that member's streams. `suspects` are those of the member
    that is replaced, as in `ExpireMember`.
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
    suspects: tuple[str, ...] | None = None
    names_suspects: bool = False  # the new member will say so itself, with its heartbeats


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

    `elapsed_ms` is the time since its last heartbeat, by the broker's monotonic clock. `suspects`
    are the streams whose next message the member was processing alone, according to its heartbeats.
    They are None if it never said so: then all its streams are suspect.
    """

    now_ms: int
    group: str
    member: str
    elapsed_ms: int
    suspects: tuple[str, ...] | None = None


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


# ---- fields --------------------------------------------------------------------------------------


def invalid_group_field(command: RebalanceGroup | DeleteGroup) -> str | None:
    """Return the first invalid field of a command on a group, or None."""
    return None if is_name(command.group, GROUP_NAME_BYTES_MAX) else "group"


def invalid_member_field(
    command: JoinGroup | ReleaseStreams | LeaveGroup | ExpireMember,
) -> str | None:
    """Return the first invalid field of a command of a member, or None."""
    is_member = is_name(command.member, MEMBER_ID_BYTES_MAX) and "\0" not in command.member
    return first_invalid(
        ("group", is_name(command.group, GROUP_NAME_BYTES_MAX)), ("member", is_member)
    )


def invalid_join_field(command: JoinGroup) -> str | None:
    """Return the first invalid field of a join, or None.

    The group that replays the dead letters of this group needs a valid name, too.
    """
    lists = (command.streams, command.topics, command.patterns)
    timeouts = (command.session_timeout_ms, command.rebalance_timeout_ms)
    is_sized = any(lists) and max(map(len, lists)) <= MEMBER_LIST_MAX
    is_short = len(command.patterns) <= MEMBER_PATTERNS_MAX
    return (
        invalid_member_field(command)
        or _invalid_path((*command.streams, *command.topics))
        or first_invalid(
            ("group", is_name(replays_of(command.group), GROUP_NAME_BYTES_MAX)),
            ("streams", is_sized),
            ("patterns", is_short and all(map(is_pattern, command.patterns))),
            ("session_timeout_ms", all(each is None or _is_timeout(each) for each in timeouts)),
            ("instance", is_optional_name(command.instance, INSTANCE_BYTES_MAX)),
            ("start", command.start in (EARLIEST, LATEST)),
        )
    )


def _is_timeout(timeout_ms: int) -> bool:
    return SESSION_TIMEOUT_MS_MIN <= timeout_ms <= SESSION_TIMEOUT_MS_MAX


def invalid_release_field(command: ReleaseStreams) -> str | None:
    """Return the first invalid field of a release of streams, or None."""
    is_sized = len(command.streams) <= GROUP_STREAMS_MAX
    return invalid_member_field(command) or (
        "released" if not is_sized else _invalid_path(command.streams)
    )


def invalid_take_field(command: TakeStream) -> str | None:
    """Return the first invalid field of a command that takes a stream away, or None."""
    return first_invalid(
        ("group", is_name(command.group, GROUP_NAME_BYTES_MAX)),
        ("path", is_name(command.path, PATH_BYTES_MAX)),
    )


def _invalid_path(paths: tuple[str, ...]) -> str | None:
    return None if all(is_name(path, PATH_BYTES_MAX) for path in paths) else "path"
