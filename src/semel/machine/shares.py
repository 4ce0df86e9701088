"""Groups whose members share work: who wants and who owns which stream.

Only `apply` and the loading of a checkpoint call the functions that change the state. Rules: see
`docs/reference/groups.md`.
"""

from typing import TYPE_CHECKING

from msgspec import Struct

from semel.machine.rows import GroupRow, MemberRow, ShareRow, is_topic
from semel.model.patterns import matches
from semel.model.rights import group_of

if TYPE_CHECKING:
    from semel.machine.state import State, Stream


class Share(Struct, gc=False, eq=False):
    """A group whose members share work: its rows, and the streams that its patterns match."""

    row: GroupRow
    members: dict[str, MemberRow]
    streams: dict[int, ShareRow]  # by the number of the stream
    matches: dict[str, set[int]]  # pattern -> the numbers of the streams that it matches


def put_share(state: "State", group: str, number: int, row: ShareRow) -> None:
    """Store who owns a stream in a group."""
    state.shares[group].streams[number] = row
    stream = state.by_number[number]
    stream.sharing = stream.sharing or set()
    stream.sharing.add(group)


def load_group(state: "State", group: str, row: GroupRow) -> None:
    """Add a group without members to a state that is being loaded."""
    state.shares[group] = Share(row, {}, {}, {})


def load_member(state: "State", key: tuple[str, str], row: MemberRow) -> None:
    """Add a member to a group of a state that is being loaded."""
    group, member = key
    state.shares[group].members[member] = row


def load_share(state: "State", key: tuple[int, str], row: ShareRow) -> None:
    """Add the owner of a stream to a state that is being loaded."""
    number, group = key
    put_share(state, group, number, row)


def load_shares(state: "State") -> None:
    """Compute the derived data of all groups. Those with members or owners are unsettled.

    An owner can be gone: a transaction that has ended meanwhile has held the stream for it.
    """
    for group, share in state.shares.items():
        for member in share.members.values():
            watch_for(state, group, share, member)
        if share.members or any(row.owner is not None for row in share.streams.values()):
            state.unsettled.add(group)


def watch_for(state: "State", group: str, share: Share, member: MemberRow) -> None:
    """Find the streams that a member's patterns match, and remember the names that it wants."""
    for path in (*member.streams, *member.topics):
        state.wanted.setdefault(path, set()).add(group)
    for pattern in member.patterns:
        if pattern not in share.matches:
            share.matches[pattern] = matching_streams(state, pattern)


def matching_streams(state: "State", pattern: str) -> set[int]:
    """Return the numbers of the streams that a pattern matches. Topics are not streams."""
    return {
        stream.row.number
        for path, stream in state.by_path.items()
        if stream.topic is None and not stream.tail.is_deleted and matches(pattern, path)
    }


def note_new_stream(state: "State", stream: "Stream") -> None:
    """Mark the groups whose members want a new stream."""
    path = stream.row.path
    state.unsettled |= state.wanted.get(path, set())
    group = group_of(path)
    if group in state.shares:
        state.unsettled.add(group)
    for name, share in state.shares.items():
        for pattern, numbers in share.matches.items():
            if not is_topic(stream.row) and matches(pattern, path):
                numbers.add(stream.row.number)
                state.unsettled.add(name)


def note_lost_stream(state: "State", stream: "Stream") -> None:
    """Drop what groups store about a stream that is deleted."""
    number = stream.row.number
    for group in stream.sharing or ():
        del state.shares[group].streams[number]
        state.dirty.shares[number, group] = None
        state.unsettled.add(group)
    stream.sharing = None
    for share in state.shares.values():
        for numbers in share.matches.values():
            numbers.discard(number)
