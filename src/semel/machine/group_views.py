"""Views of groups: plain values for members, operators and clients."""

from collections.abc import Iterable
from typing import Final
from zlib import crc32

from msgspec import Struct

from semel.machine.generations import GrowthLimits
from semel.machine.positions import stored_position
from semel.machine.rows import MemberRow, PositionRow, ShareRow
from semel.machine.state import State, Stream

FREE = "free"
OWNED = "owned"
REVOKING = "revoking"
UNSHARED = "unshared"  # no member takes part in sharing the stream


class AssignedView(Struct, frozen=True, gc=False):
    """A stream that a member owns, and where the group's position is.

    `limit` is the offset up to which the member may read now, or None. It is set in a topic that
    has grown, until the group has read what was there before in all partitions.
    """

    path: str
    incarnation: str
    epoch: int
    position: int
    version: int
    starts: int
    limit: int | None


class MemberView(Struct, frozen=True):
    """What a member owns, and which of these streams it must release.

    `signature` changes when a stream, an epoch or a limit in it changes, but not when positions
    move.
    """

    group: str
    member: MemberRow
    assigned: tuple[AssignedView, ...]
    release: tuple[str, ...]
    signature: str


class SharedStreamView(Struct, frozen=True, gc=False):
    """A stream of a group. `end` is its stable offset, and `head` its first offset."""

    path: str
    number: int
    owner: str | None
    epoch: int
    phase: str
    starts: int
    position: int
    version: int
    head: int
    end: int
    controls: int


class ShareView(Struct, frozen=True):
    """A group: its members, and the streams in which it has a position or that members share."""

    group: str
    version: int
    members: tuple[MemberRow, ...]
    streams: tuple[SharedStreamView, ...]


class Lag(Struct, frozen=True, gc=False):
    """How far a group is behind in a stream, or in all its streams.

    `messages` has the messages that it has not read, without aborted ones. It is None if counting
    them would take too long, and never more than `bound`. `seconds` is the age of the first of
    these messages, or None if it is not known.
    """

    messages: int | None
    bound: int
    seconds: float | None


NO_LAG: Final = Lag(0, 0, 0.0)


def group_names(state: State) -> list[str]:
    """Return the names of all groups, sorted."""
    return sorted({*state.groups, *state.shares, *state.snapshots})


def has_group(state: State, group: str) -> bool:
    """Return True if there is a group with this name."""
    return group in state.groups or group in state.shares or group in state.snapshots


def effective_starts(row: ShareRow, stored: PositionRow) -> int:
    """Return how often in a row the stream was taken from an owner at this position."""
    return row.starts if row.counted_version == stored.version else 0


def member_view(state: State, group: str, member: str) -> MemberView | None:
    """Return what a member owns, or None if the group has no such member."""
    share = state.shares.get(group)
    row = None if share is None else share.members.get(member)
    if share is None or row is None:
        return None
    owned = [
        (state.by_number[number], each)
        for number, each in share.streams.items()
        if each.owner == member
    ]
    owned.sort(key=lambda item: item[0].row.path)
    limits = GrowthLimits(state, group)
    assigned = tuple(_assigned_view(limits, group, stream, each) for stream, each in owned)
    release = tuple(stream.row.path for stream, each in owned if each.is_revoking)
    return MemberView(group, row, assigned, release, _signature(assigned, release))


def _assigned_view(limits: GrowthLimits, group: str, stream: Stream, row: ShareRow) -> AssignedView:
    stored = stored_position(stream, group)
    return AssignedView(
        stream.row.path,
        stream.row.incarnation,
        epoch=row.epoch,
        position=stored.offset,
        version=stored.version,
        starts=effective_starts(row, stored),
        limit=limits.of(stream),
    )


def _signature(assigned: Iterable[AssignedView], release: tuple[str, ...]) -> str:
    facts = [(each.path, each.incarnation, each.epoch, each.limit) for each in assigned]
    return f"{crc32(repr((facts, release)).encode()):08x}"


def share_view(state: State, group: str) -> ShareView | None:
    """Return a group with its members and streams, or None if there is no such group."""
    if not has_group(state, group):
        return None
    share = state.shares.get(group)
    rows = {} if share is None else share.streams
    numbers = {state.by_path[path].row.number for path in state.groups.get(group, ())}
    streams = [
        _stream_view(group, state.by_number[number], rows.get(number))
        for number in numbers.union(rows)
    ]
    streams.sort(key=lambda view: view.path)
    members = () if share is None else tuple(share.members.values())
    version = 0 if share is None else share.row.version
    return ShareView(group, version, members, tuple(streams))


def _stream_view(group: str, stream: Stream, row: ShareRow | None) -> SharedStreamView:
    stored = stored_position(stream, group)
    return SharedStreamView(
        stream.row.path,
        stream.row.number,
        owner=None if row is None else row.owner,
        epoch=0 if row is None else row.epoch,
        phase=_phase_of(row),
        starts=0 if row is None else effective_starts(row, stored),
        position=stored.offset,
        version=stored.version,
        head=stream.tail.head,
        end=stream.tail.stable,
        controls=stream.tail.controls,
    )


def _phase_of(row: ShareRow | None) -> str:
    if row is None:
        return UNSHARED
    if row.owner is None:
        return FREE
    return REVOKING if row.is_revoking else OWNED
