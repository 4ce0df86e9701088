"""Groups whose members share work, in the reference model.

Written from the tables G and H of `docs/reference/groups.md`. Which member gets which stream is a
choice of the engine, and is in the event: the model takes it from there, and `oracle_groups.py`
checks that the choice was allowed. Everything else is stated here a second time. Nothing is
indexed: whether a member reads a stream is found by comparing paths, each time.
"""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from semel.model import commands as ask
from semel.model import group_commands as group_ask
from semel.model import outcomes as out
from semel.model import outcomes_groups as group_out
from semel.model import outcomes_topics as topic_out
from semel.model import outcomes_txn as txn_out
from semel.model.group_commands import GroupCommand
from semel.model.outcomes import Outcome
from tests.sim.reference_positions import Key, Named

if TYPE_CHECKING:
    from tests.sim.reference import Model

RESERVED = "__semel/"
CRASHES = (group_ask.ExpireMember, group_ask.JoinGroup)


class Member(NamedTuple):
    """A member, as it joined."""

    id: str
    streams: tuple[str, ...]
    topics: tuple[str, ...]
    patterns: tuple[str, ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    instance: str | None
    start: str
    joined_ms: int


class Row(NamedTuple):
    """Who owns a stream. Without an owner it is free; `is_revoking` if the owner must release it.

    `crashes` counts how often it was taken from its owner since `crash_version`, the version of the
    position at the last of these times.
    """

    owner: str | None = None
    epoch: int = 0
    is_revoking: bool = False
    crashes: int = 0
    crash_version: int = 0


@dataclass
class Group:
    """The members of a group, and the streams that they share.

    Streams whose number is at least `next_stream` were created after the group.
    """

    next_stream: int
    version: int = 0  # how often it was changed
    members: dict[str, Member] = field(default_factory=dict)
    rows: dict[int, Row] = field(default_factory=dict)  # by stream number

    def of(self, member: str) -> list[int]:
        """Return the streams of a member, also those that it must release."""
        return [number for number, row in self.rows.items() if row.owner == member]


class Given(NamedTuple):
    """A stream that a member gets."""

    stream: int
    member: str
    epoch: int


class Change(NamedTuple):
    """What the engine has chosen: the parts of an event that changes a group."""

    joined: str | None = None
    left: tuple[str, ...] = ()
    freed: tuple[int, ...] = ()
    revoking: tuple[int, ...] = ()
    given: tuple[Given, ...] = ()
    positions: tuple[tuple[int, int], ...] = ()  # streams with the offset at which to begin
    is_partial: bool = False  # not all streams that should move fit into one frame


class Shared(NamedTuple):
    """A command on a group, and what the engine has chosen; None if it wrote nothing."""

    command: GroupCommand
    change: Change | None

    @property
    def now_ms(self) -> int:
        return self.command.now_ms


def is_match(pattern: str, path: str) -> bool:
    """Return whether a path matches: `*` is one segment, `**` any number of them, also none."""
    return _is_match(pattern.split("/"), path.split("/"))


def _is_match(pattern: list[str], path: list[str]) -> bool:
    if not pattern or not path:
        return not path and all(each == "**" for each in pattern)
    if pattern[0] == "**":
        return _is_match(pattern[1:], path) or _is_match(pattern, path[1:])
    return pattern[0] in ("*", path[0]) and _is_match(pattern[1:], path[1:])


def retry_stream(group: str) -> str:
    """Return the path of the stream from which the members of a group read again."""
    return f"{RESERVED}retry/{quote(group, safe='')}"


class Groups:
    """The groups that have members or have had some."""

    def __init__(self, model: "Model") -> None:
        self._model = model
        self.by_name: dict[str, Group] = {}

    def copy(self, model: "Model") -> "Groups":
        twin = Groups(model)
        for name, old in self.by_name.items():
            twin.by_name[name] = replace(old, members=dict(old.members), rows=dict(old.rows))
        return twin

    # ---- lookups ---------------------------------------------------------------------------------

    def find(self, group: str) -> Group:
        """Return a group, an empty one if it has never had a member."""
        return self.by_name.get(group, Group(0))

    def reads(self, group: str, member: Member, path: str) -> bool:
        """Return whether a member takes part in sharing a stream."""
        if path == retry_stream(group):
            return True
        if path in member.streams:
            return True
        if self._topic_of(path) in member.topics:
            return True
        return not path.startswith(RESERVED) and any(is_match(p, path) for p in member.patterns)

    def alive(self) -> dict[int, str]:
        """Return the paths of all streams that can be shared, by number."""
        streams = self._model.streams.items()
        return {s.number: path for path, s in streams if not s.is_deleted and s.topic is None}

    def _topic_of(self, path: str) -> str | None:
        """Return the topic of which a stream is a partition, or None."""
        number = self._model.streams[path].topic_number
        return self._model.txns.by_number(number)[0] if number else None

    def _is_topic(self, path: str) -> bool:
        stream = self._model.streams.get(path)
        return stream is not None and stream.topic is not None and not stream.is_deleted

    def _missing_topic(self, names: tuple[str, ...]) -> Outcome | None:
        """Return the refusal if one of the names is not that of a topic."""
        is_there = all(self._is_topic(name) for name in names)
        return None if is_there else topic_out.TopicNotFound()

    def readers(self, group: str) -> dict[int, set[str]]:
        """Return the members that read each stream of a group, by stream number."""
        members = self.find(group).members.values()
        found = {
            number: {each.id for each in members if self.reads(group, each, path)}
            for number, path in self.alive().items()
        }
        return {number: ids for number, ids in found.items() if ids}

    def is_held(self, group: str, number: int) -> bool:
        return self._model.txns.positions.holder((group, number)) is not None

    def starts(self, group: str, number: int) -> int:
        """Return how often a stream was taken from crashed members since its position moved."""
        row = self.find(group).rows.get(number, Row())
        version = self._model.txns.positions.version((group, number))
        return row.crashes if row.crash_version == version else 0

    # ---- table G ---------------------------------------------------------------------------------

    def refuse_move(self, move: ask.PositionMove) -> Outcome | None:
        """Refuse a move by somebody who is not the owner of the stream."""
        number = self._model.streams[move.path].number
        key = (move.group, number)
        refusal = self._judge(key, move.path, move.member, move.member_epoch)
        if refusal is None and move.member is not None:
            return self._beyond_growth(key, move.path, move.to)
        return refusal

    def refuse_named(self, key: Key, named: Named) -> Outcome | None:
        """The same for what an open transaction has named."""
        refusal = self._judge(key, named.path, named.member, named.member_epoch)
        if refusal is None and named.member is not None:
            return self._beyond_growth(key, named.path, named.to)
        return refusal

    def _beyond_growth(self, key: Key, path: str, to: int) -> Outcome | None:
        """Refuse a member that passes a growth which the group has not reached elsewhere.

        Messages of a key before the growth can be in another partition, and must come first. A
        partition that the members have never shared is not one of the group's.
        """
        name, positions = self._topic_of(path), self._model.txns.positions
        topic = None if name is None else self._model.streams[name].topic
        if topic is None:
            return None
        streams = self._model.topics.streams_of(topic)
        at = {p: max(positions.at(key[0], p).offset, s.head) for p, s in streams}
        group = self.find(key[0])
        readers = group.members.values()
        own = {
            p
            for p, s in streams
            if s.number in group.rows or any(self.reads(key[0], each, p) for each in readers)
        }
        for fence in topic.fences:
            ends = {p: end for (p, _), end in zip(streams, fence, strict=False)}
            if any(at[p] < end for p, end in ends.items() if p in own and p != path):
                stored = positions.at(key[0], path)
                refusal = txn_out.PositionConflict(
                    key[0], path, stored.offset, version=stored.version, reason=txn_out.BY_GROWTH
                )
                return refusal if to > ends.get(path, 0) else None
        return None

    def _judge(self, key: Key, path: str, member: str | None, epoch: int | None) -> Outcome | None:
        group = self.find(key[0])
        row = group.rows.get(key[1], Row())
        if member is None:
            is_shared = bool(group.members) and row.owner is not None
            return group_out.GroupIsShared(key[0], path) if is_shared else None
        if (row.owner, row.epoch) == (member, epoch) and member in group.members:
            return None
        return group_out.IllegalGeneration(key[0], path, row.epoch, epoch)

    # ---- commands --------------------------------------------------------------------------------

    def execute(self, c: Shared) -> Outcome:
        """Return the outcome; if it is no refusal, do what the engine has chosen."""
        outcome = self.judge(c.command)
        if isinstance(outcome, out.Refusal | out.StillAlive) or c.change is None:
            return outcome
        self._model.write(c.command)
        if isinstance(c.command, group_ask.DeleteGroup):
            self._forget(c.command.group)
        else:
            self._change(c.command, c.change)
        return outcome

    def judge(self, c: GroupCommand) -> Outcome:
        """Return the outcome of a command, without executing it."""
        match c:
            case group_ask.JoinGroup():
                return self._join(c)
            case group_ask.ReleaseStreams():
                return self._release(c)
            case group_ask.LeaveGroup():
                is_there = c.member in self.find(c.group).members
                return group_out.Left() if is_there else group_out.UnknownMember()
            case group_ask.ExpireMember():
                return self._expire(c)
            case group_ask.TakeStream():
                return self._take(c)
            case group_ask.RebalanceGroup():
                is_there = c.group in self.by_name
                return group_out.Rebalanced() if is_there else group_out.UnknownGroup()
            case group_ask.DeleteGroup():
                return self._delete(c)

    def _join(self, c: group_ask.JoinGroup) -> Outcome:
        refusal = self._model.txns.missing(list(c.streams)) or self._missing_topic(c.topics)
        return refusal or group_out.Joined(c.group, c.member)

    def _release(self, c: group_ask.ReleaseStreams) -> Outcome:
        group = self.find(c.group)
        if c.member not in group.members:
            return group_out.UnknownMember()
        for path in c.streams:
            if self._is_owned(group, path, c.member):
                held = self._model.txns.positions.held(ask.PositionMove(c.group, path, 0))
                if held is not None:
                    return held
        return group_out.Released()

    def _is_owned(self, group: Group, path: str, member: str) -> bool:
        stream = self._model.streams.get(path)
        row = None if stream is None else group.rows.get(stream.number)
        return row is not None and row.owner == member

    def _expire(self, c: group_ask.ExpireMember) -> Outcome:
        member = self.find(c.group).members.get(c.member)
        if member is None:
            return group_out.UnknownMember()
        return group_out.Left() if c.elapsed_ms >= member.session_timeout_ms else out.StillAlive()

    def _take(self, c: group_ask.TakeStream) -> Outcome:
        is_late = self.is_late(c)
        return out.StillAlive() if is_late is False else group_out.Rebalanced()

    def is_late(self, c: group_ask.TakeStream) -> bool | None:
        """Return whether a stream must be taken from its owner, or None if nobody releases it.

        CHOICE: a stream whose position is held, and one whose owner has left, stay where they are.
        """
        group, stream = self.find(c.group), self._model.streams.get(c.path)
        row = Row() if stream is None else group.rows.get(stream.number, Row())
        owner = group.members.get(row.owner or "")
        if stream is None or owner is None or not row.is_revoking:
            return None
        if self.is_held(c.group, stream.number):
            return None
        return c.elapsed_ms >= owner.rebalance_timeout_ms

    def _delete(self, c: group_ask.DeleteGroup) -> Outcome:
        members, txns = self.find(c.group).members, self._model.txns
        named = [key for t in txns.open.values() for key, _ in txns.positions.alive(t.positions)]
        is_named = any(group == c.group for group, _ in named)
        is_known = any(key[0] == c.group for key in txns.positions.stored)
        is_known = is_known or c.group in self._model.commits.snapshots or c.group in self.by_name
        if not is_known:
            return group_out.UnknownGroup()
        is_used = bool(members) or is_named
        return group_out.GroupInUse(len(members)) if is_used else group_out.GroupDeleted()

    # ---- changes ---------------------------------------------------------------------------------

    def _forget(self, name: str) -> None:
        positions = self._model.txns.positions
        positions.stored = {key: row for key, row in positions.stored.items() if key[0] != name}
        self._model.commits.snapshots.pop(name, None)
        self.by_name.pop(name, None)

    def _change(self, c: GroupCommand, change: Change) -> None:
        group = self.by_name.setdefault(c.group, Group(self._model.next_stream))
        group.version += 1
        for number in self._taken(c, change):
            group.rows[number] = self._crashed(c, number)
        for name in change.left:
            del group.members[name]
        if isinstance(c, group_ask.JoinGroup):
            group.members[c.member] = self.member(c)
        for number in change.freed:
            group.rows[number] = group.rows[number]._replace(owner=None, is_revoking=False)
        for number in change.revoking:
            group.rows[number] = group.rows[number]._replace(is_revoking=True)
        for number, member, epoch in change.given:
            old = group.rows.get(number, Row())
            group.rows[number] = old._replace(owner=member, epoch=epoch, is_revoking=False)
        for number, offset in change.positions:
            self._model.txns.positions.move((c.group, number), offset, None, ())

    def member(self, c: group_ask.JoinGroup) -> Member:
        """Return the member that a join makes."""
        longest = c.rebalance_timeout_ms
        return Member(
            c.member,
            c.streams,
            c.topics,
            c.patterns,
            c.session_timeout_ms,
            c.session_timeout_ms if longest is None else longest,
            c.instance,
            c.start,
            self._model.time_ms,
        )

    def _taken(self, c: GroupCommand, change: Change) -> list[int]:
        """Return the streams that are taken from a member that has crashed.

        CHOICE: a stream that was held when its owner left is not counted when it is free later.
        """
        if not isinstance(c, CRASHES):
            return []
        group = self.find(c.group)
        moved = {*change.freed, *(each.stream for each in change.given)}
        return [n for n, row in group.rows.items() if n in moved and row.owner in group.members]

    def _crashed(self, c: GroupCommand, number: int) -> Row:
        """Count a crash, if there was something to read and the position has not moved since.

        The first crash counts for each stream, and later ones only for suspects, if they are known.
        """
        group, suspects = c.group, getattr(c, "suspects", None)
        row, positions = self.find(group).rows[number], self._model.txns.positions
        path, stream = self._model.txns.by_number(number)
        stored = positions.stored.get((group, number))
        at = 0 if stored is None else stored.offset
        if at >= self._model.txns.stable(stream):
            return row
        version = positions.version((group, number))
        crashes = row.crashes if row.crash_version == version else 0
        is_counted = suspects is None or path in suspects or not crashes
        return row._replace(crashes=crashes + is_counted, crash_version=version)

    def drop_stream(self, number: int) -> None:
        """Remove a stream that was deleted or has expired, in the frame of its end."""
        for group in self.by_name.values():
            group.rows.pop(number, None)

    # ---- inspection ------------------------------------------------------------------------------

    def view(self) -> dict[str, object]:
        """Dump the groups."""
        return {name: self._view(name, group) for name, group in sorted(self.by_name.items())}

    def _view(self, name: str, group: Group) -> dict[str, object]:
        return {
            "next_stream": group.next_stream,
            "version": group.version,
            "members": dict(group.members),
            "streams": {
                number: (row.owner, row.epoch, row.is_revoking, self.starts(name, number))
                for number, row in group.rows.items()
                if row.epoch
            },
        }
