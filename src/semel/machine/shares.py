"""Groups whose members share work: who wants and who owns which stream.

Only `apply` and the loading of a checkpoint call the functions that change the state. Rules: see
`docs/reference/groups.md`.
"""

from typing import TYPE_CHECKING

from msgspec import Struct

from semel.machine.rows import GroupRow, MemberRow, ShareRow, is_partition, is_topic
from semel.model.rights import group_of

if TYPE_CHECKING:
    from semel.machine.state import State, Stream

# ---- groups --------------------------------------------------------------------------------------

Names = tuple[tuple[str, ...], ...]  # the streams, topics and patterns of a member


class Wanted(Struct, gc=False, eq=False):
    """The streams that the members of a group take part in sharing, kept between two decisions.

    Members with the same names have the same set. Everything is dropped when a stream that one of
    them wants is created or deleted. So it must not contain names of others.
    """

    by_member: dict[str, set[int]] = {}
    by_names: dict[Names, set[int]] = {}

    def clear(self) -> None:
        """Drop everything, so that it is computed again when it is needed."""
        if self.by_names:
            self.by_member.clear()
            self.by_names.clear()


class Share(Struct, gc=False, eq=False):
    """A group whose members share work: its rows, and the streams that its patterns match."""

    row: GroupRow
    members: dict[str, MemberRow]
    streams: dict[int, ShareRow]  # by the number of the stream
    matches: dict[str, set[int]]  # pattern -> the numbers of the streams that it matches
    wanted: Wanted


def names_of(member: MemberRow) -> Names:
    """Return the names and patterns by which a member takes part in sharing streams."""
    return member.streams, member.topics, member.patterns


def put_share(state: "State", group: str, number: int, row: ShareRow) -> None:
    """Store who owns a stream in a group."""
    state.shares[group].streams[number] = row
    stream = state.by_number[number]
    stream.sharing = stream.sharing or set()
    stream.sharing.add(group)


def load_group(state: "State", group: str, row: GroupRow) -> None:
    """Add a group without members to a state that is being loaded."""
    state.shares[group] = Share(row, {}, {}, {}, Wanted())


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
    shares = state.shares.values()
    members = [member for share in shares for member in share.members.values()]
    state.patterns.search([pattern for member in members for pattern in member.patterns])
    for group, share in state.shares.items():
        for member in share.members.values():
            watch_for(state, group, share, member)
        if share.members or any(row.owner is not None for row in share.streams.values()):
            state.unsettled.add(group)


def watch_for(state: "State", group: str, share: Share, member: MemberRow) -> None:
    """Find the streams that a member's patterns match, and remember the names that it wants."""
    for path in (*member.streams, *member.topics):
        state.wanted.setdefault(path, set()).add(group)
    fresh = [pattern for pattern in member.patterns if pattern not in share.matches]
    state.patterns.search(fresh)
    for pattern in fresh:
        share.matches[pattern] = state.patterns.use(pattern, group)


def forget_member(state: "State", group: str, share: Share, member: MemberRow) -> None:
    """Drop what is derived of a member that has left, unless another one needs it."""
    share.wanted.by_member.pop(member.id, None)
    names = names_of(member)
    if all(names_of(each) != names for each in share.members.values()):
        share.wanted.by_names.pop(names, None)
    used = {pattern for each in share.members.values() for pattern in each.patterns}
    for pattern in share.matches.keys() - used:
        del share.matches[pattern]
        state.patterns.release(pattern, group)


def note_new_stream(state: "State", stream: "Stream") -> None:
    """Mark the groups whose members want a new stream."""
    groups = _wanting(state, stream)
    if not is_topic(stream.row):
        groups = groups | state.patterns.note_new(stream)
    _forget_wanted(state, groups)
    state.unsettled |= groups


def note_lost_stream(state: "State", stream: "Stream") -> None:
    """Drop what groups store about a stream that is deleted."""
    number = stream.row.number
    for group in stream.sharing or ():
        del state.shares[group].streams[number]
        state.dirty.shares[number, group] = None
        state.unsettled.add(group)
    stream.sharing = None
    _forget_wanted(state, _wanting(state, stream) | state.patterns.note_lost(stream))


def _wanting(state: "State", stream: "Stream") -> set[str]:
    """Return the groups whose members want a stream by its name, or by that of its topic.

    There can be too many.
    """
    path = stream.row.path
    groups = state.wanted.get(path, set())
    if is_partition(stream.row):
        groups = groups | state.wanted.get(state.by_number[stream.row.topic].row.path, set())
    group = group_of(path)
    return groups if group not in state.shares else {group, *groups}


def _forget_wanted(state: "State", groups: set[str]) -> None:
    for group in groups:
        share = state.shares.get(group)
        if share is not None:
            share.wanted.clear()
