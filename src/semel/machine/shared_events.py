"""The events of topics, and of groups whose members share work."""

from msgspec import Struct

from semel.machine.rows import MemberRow, StreamRow

# ---- topics --------------------------------------------------------------------------------------


class TopicAdded(Struct, frozen=True, gc=False, array_like=True):
    """A topic is created with its partitions. Their numbers follow the number of the topic.

    `row` is that of the topic. `unguarded` has the partitions without duplicate detection.
    `dedup_from` and `is_own` are the setting of the topic, as in `StreamConfigured`.
    """

    row: StreamRow
    partitioner: str
    partitions: int
    dedup_from: int | None = 0
    is_own: bool = False
    unguarded: tuple[int, ...] = ()


class PartitionsAdded(Struct, frozen=True, gc=False, array_like=True):
    """A topic gets more partitions: it then has `partitions`.

    `fence` has the tails of the partitions that it had before.
    """

    topic: int
    partitions: int
    incarnation: str
    fence: tuple[int, ...]
    unguarded: tuple[int, ...] = ()


class PartitionsClosed(Struct, frozen=True, gc=False, array_like=True):
    """A topic and all its partitions are closed."""

    topic: int


class TopicRemoved(Struct, frozen=True, gc=False, array_like=True):
    """A topic and all its partitions are deleted, on request or because the topic has expired."""

    topic: int
    is_expired: bool = False


# ---- groups --------------------------------------------------------------------------------------


class Assigned(Struct, frozen=True, gc=False, array_like=True):
    """A stream is given to a member. `starts` is described in `ShareRow`."""

    stream: int
    member: str
    epoch: int
    starts: int = 0


class GroupChanged(Struct, frozen=True, gc=False, array_like=True):
    """A change of the members of a group, and of the owners of its streams.

    The parts are applied in the order of the fields. `freed` has (stream, starts) of each stream
    that nobody owns now. `revoking` has the streams that their owners must release. `positions` has
    (stream, offset) of the positions that are set. With `is_partial`, not all streams that should
    move fit into this frame.
    """

    group: str
    joined: MemberRow | None = None
    left: tuple[str, ...] = ()
    freed: tuple[tuple[int, int], ...] = ()
    revoking: tuple[int, ...] = ()
    positions: tuple[tuple[int, int], ...] = ()
    assigned: tuple[Assigned, ...] = ()
    is_partial: bool = False


class GroupForgotten(Struct, frozen=True, gc=False, array_like=True):
    """A group is deleted with its positions."""

    group: str


SharedEvent = (
    TopicAdded | PartitionsAdded | PartitionsClosed | TopicRemoved | GroupChanged | GroupForgotten
)
