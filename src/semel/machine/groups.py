"""Groups whose members share work: the decisions on members and owners, and their application.

Every decision computes the owners anew (`assignment.py`) and stores what changes in one event. The
comment at a check names its row in `docs/reference/groups.md`.
"""

from collections.abc import Iterable, Set
from itertools import islice

from msgspec.structs import replace

from semel.machine.assignment import plan
from semel.machine.events import Decision, Sections
from semel.machine.positions import move_positions, refuse_held, stored_position
from semel.machine.rows import GroupRow, MemberRow, ShareRow
from semel.machine.shared_events import Assigned, GroupChanged, GroupForgotten
from semel.machine.shares import Share, Wanted, forget_member, names_of, put_share, watch_for
from semel.machine.state import State, Stream
from semel.machine.streams import find_by_path
from semel.machine.topics import find_topic
from semel.model.group_commands import (
    LATEST,
    DeleteGroup,
    ExpireMember,
    JoinGroup,
    LeaveGroup,
    RebalanceGroup,
    ReleaseStreams,
    TakeStream,
)
from semel.model.limits import (
    GROUP_MEMBERS_MAX,
    GROUP_MOVES_MAX,
    GROUP_STREAMS_MAX,
    TXN_STREAMS_MAX,
)
from semel.model.outcomes import LimitReached, Refusal, StillAlive
from semel.model.outcomes_groups import (
    GroupDeleted,
    GroupInUse,
    Joined,
    Left,
    Rebalanced,
    Released,
    UnknownGroup,
    UnknownMember,
)
from semel.model.outcomes_txn import StreamRefused
from semel.model.rights import retries_of

# ---- what members want ---------------------------------------------------------------------------


def wanted_streams(state: State, group: str, member: MemberRow) -> set[int]:
    """Return the numbers of the streams that a member takes part in sharing.

    There must have been a search for its patterns.
    """
    numbers = set()
    by_path = state.by_path
    for path in member.streams:
        stream = by_path.get(path)
        if stream is not None and stream.topic is None and not stream.tail.is_deleted:
            numbers.add(stream.row.number)
    for path in member.topics:
        for topic in _present(by_path.get(path)):
            if topic.topic is not None:
                numbers.update(topic.topic.partitions)
    for pattern in member.patterns:
        numbers |= state.patterns.known(pattern)
    for stream in _present(by_path.get(retries_of(group))):
        numbers.add(stream.row.number)
    return numbers


def _present(stream: Stream | None) -> tuple[Stream, ...]:
    return () if stream is None or stream.tail.is_deleted else (stream,)


def shared_streams_max(state: State) -> int:
    """Return how many streams a group can share, so that one frame can free all of them."""
    return min(GROUP_STREAMS_MAX, GROUP_STREAMS_MAX // TXN_STREAMS_MAX * state.limits.txn_streams)


# ---- a change ------------------------------------------------------------------------------------


class _Change:
    """A change of a group that is being decided: who is a member, and who owns what, after it."""

    def __init__(self, state: State, group: str) -> None:
        self._state = state
        self._group = group
        self._share = state.shares.get(group)
        rows = {} if self._share is None else self._share.streams
        self.members = {} if self._share is None else dict(self._share.members)
        self._rows = rows
        self._wanted = Wanted() if self._share is None else self._share.wanted
        self._fresh = Wanted()  # the same of a member that joins
        self._owners = {number: row.owner for number, row in rows.items() if row.owner is not None}
        self._leaving = {number for number, row in rows.items() if row.is_revoking}
        self._starts: dict[int, int] = {}  # of the streams that were taken from their owners
        self._freed: set[int] = set()
        self._held: list[int] = []  # the streams that their owners keep until a transaction ends
        self._revoked: list[int] = []
        self._given: list[tuple[int, str]] = []
        self._preferred: dict[int, str] = {}  # the member that should get a stream that was freed

    def owned_by(self, member: str) -> list[int]:
        """Return the streams that a member owns, also those that it must release."""
        return sorted(number for number, owner in self._owners.items() if owner == member)

    def is_held(self, number: int) -> bool:
        """Return True if a prepared transaction holds the group's position in a stream."""
        stream = self._state.by_number[number]
        return refuse_held(self._state, stream, self._group) is not None

    def free(self, number: int, *, is_crash: bool, suspects: tuple[str, ...] | None = None) -> None:
        """Take a stream from its owner. If its position is held, the owner keeps it until then."""
        if self.is_held(number):
            if number not in self._leaving:
                self._leaving.add(number)
                self._held.append(number)
            return
        del self._owners[number]
        self._leaving.discard(number)
        self._freed.add(number)
        self._starts[number] = self._starts_of(number, is_crash=is_crash, suspects=suspects)

    def prefer(self, number: int, member: str) -> None:
        """Give a stream that was freed to a member, unless others own fewer streams."""
        self._preferred[number] = member

    def remove(
        self, member: str, *, is_crash: bool, suspects: tuple[str, ...] | None = None
    ) -> list[int]:
        """Remove a member, and free its streams. Return those that are free now."""
        del self.members[member]
        owned = self.owned_by(member)
        for number in owned:
            self.free(number, is_crash=is_crash, suspects=suspects)
        return [number for number in owned if number not in self._owners]

    def _starts_of(
        self, number: int, *, is_crash: bool, suspects: tuple[str, ...] | None = None
    ) -> int:
        """Return how often in a row a stream was taken from an owner that has crashed.

        After one crash, it is unknown which stream is to blame. From then on, only those count on
        whose next message the owner was processing alone, if it has said which ones they are.
        """
        stream, row = self._state.by_number[number], self._rows[number]
        stored = stored_position(stream, self._group)
        starts = row.starts if row.counted_version == stored.version else 0
        has_unread = stored.offset < stream.tail.stable
        if not (is_crash and has_unread):
            return starts
        is_suspect = suspects is None or stream.row.path in suspects
        return starts + 1 if is_suspect else max(starts, 1)

    def event(
        self, joined: MemberRow | None = None, left: Iterable[str] = ()
    ) -> GroupChanged | None:
        """Compute the owners, and return the event, or None if nothing changes."""
        self._free_of_strangers()
        self._plan({name: self.wanted_by(member) for name, member in self.members.items()})
        is_partial = len(self._given) + len(self._revoked) > self._moves_max
        given = self._given[: self._moves_max]
        revoked = self._revoked[: self._moves_max - len(given)]
        assigned = tuple(self._assigned(number, member) for number, member in given)
        taken = {number for number, _ in given}
        freed = tuple(
            (number, self._starts[number]) for number in sorted(self._freed) if number not in taken
        )
        positions = tuple(
            (number, offset)
            for number, member in given
            for offset in self._first_position(number, self.members[member])
        )
        event = GroupChanged(
            self._group,
            joined,
            tuple(left),
            freed=freed,
            revoking=(*self._held, *revoked),
            positions=positions,
            assigned=assigned,
            is_partial=is_partial,
        )
        return None if event == GroupChanged(self._group) else event

    @property
    def _moves_max(self) -> int:
        return min(GROUP_MOVES_MAX, self._state.limits.txn_streams)

    def _free_of_strangers(self) -> None:
        """Free the streams of owners that have left while a transaction held the position."""
        for number, owner in list(self._owners.items()):
            if owner not in self.members and not self.is_held(number):
                self.free(number, is_crash=False)

    def wanted_by(self, member: MemberRow) -> set[int]:
        """Return the streams that a member takes part in sharing. Most are known: see `Wanted`."""
        is_member = self._share is not None and member.id in self._share.members
        stored = self._wanted
        kept = stored if is_member else self._fresh
        found = kept.by_member.get(member.id)
        if found is None:
            names = names_of(member)
            found = stored.by_names.get(names)
            if found is None:
                found = wanted_streams(self._state, self._group, member)
            kept.by_names[names] = kept.by_member[member.id] = found
        return found

    def _plan(self, subscriptions: dict[str, Set[int]]) -> None:
        distinct = {id(wanted): wanted for wanted in subscriptions.values()}
        every = set().union(*distinct.values())
        unowned = every - self._owners.keys()
        free = {number for number in unowned & self._rows.keys() if not self.is_held(number)}
        room = max(0, shared_streams_max(self._state) - len(self._rows))  # H16
        fresh = (each for each in sorted(unowned - self._rows.keys()) if not self.is_held(each))
        free.update(islice(fresh, room))
        leaving = {
            number
            for number, owner in self._owners.items()
            if number in self._leaving or owner not in self.members
        }
        owned = {number: owner for number, owner in self._owners.items() if number not in leaving}
        result = plan(subscriptions, owned, free, leaving & every, self._preferred)
        self._revoked += result.revoked
        self._given += result.given

    def _assigned(self, number: int, member: str) -> Assigned:
        row = self._rows.get(number)
        if row is None:
            return Assigned(number, member, 1)
        starts = self._starts.get(number)
        if starts is None:
            starts = self._starts_of(number, is_crash=False)
        return Assigned(number, member, row.epoch + 1, starts)

    def _first_position(self, number: int, member: MemberRow) -> Iterable[int]:
        """Yield the offset at which the group begins a stream, if that is not the first one."""
        stream = self._state.by_number[number]
        share, next_stream = self._share, self._state.next_stream
        is_older = number < (next_stream if share is None else share.row.next_stream)
        is_new = number not in self._rows and is_older
        is_moved = self._group in (stream.positions or {})
        if member.start == LATEST and is_new and not is_moved and stream.tail.stable > 0:
            yield stream.tail.stable


# ---- decisions -----------------------------------------------------------------------------------


def decide_join(state: State, command: JoinGroup) -> Decision:
    """Return the decision on a command by which a member joins a group."""
    share = state.shares.get(command.group)
    outcome = Joined(command.group, command.member)
    if share is not None and command.member in share.members:
        return Decision(outcome)
    refusal = _refuse_names(state, command)
    if refusal is not None:
        return Decision(refusal)
    timeout_ms = command.session_timeout_ms
    member = MemberRow(
        command.member,
        command.streams,
        command.topics,
        command.patterns,
        session_timeout_ms=timeout_ms,
        rebalance_timeout_ms=command.rebalance_timeout_ms or timeout_ms,
        instance=command.instance,
        start=command.start,
        joined_ms=state.frame_time(command.now_ms),
    )
    change = _Change(state, command.group)
    old = _find_instance(change.members, command.instance)
    if len(change.members) - len(old) >= GROUP_MEMBERS_MAX:
        return Decision(LimitReached("group_members", GROUP_MEMBERS_MAX))
    maximum = shared_streams_max(state)
    known = {} if share is None else share.streams
    is_known = state.patterns.search(command.patterns, maximum)
    wanted = change.wanted_by(member) if is_known else set()
    if not is_known or len(wanted | known.keys()) > maximum:
        return Decision(LimitReached("group_streams", maximum))
    for name in old:
        for number in change.remove(name, is_crash=True, suspects=command.suspects):
            if number in wanted:
                change.prefer(number, member.id)
    change.members[member.id] = member
    return Decision(outcome, change.event(member, old), grows=True)


def _refuse_names(state: State, command: JoinGroup) -> Refusal | None:
    streams = find_by_path(state, command.streams)
    if not isinstance(streams, dict):
        return streams
    for path in command.topics:
        topic = find_topic(state, path)
        if isinstance(topic, Refusal):
            return StreamRefused(path, topic)
    return None


def _find_instance(members: dict[str, MemberRow], instance: str | None) -> tuple[str, ...]:
    if instance is None:
        return ()
    return tuple(name for name, member in members.items() if member.instance == instance)


def _find_member(state: State, group: str, member: str) -> MemberRow | None:
    share = state.shares.get(group)
    return None if share is None else share.members.get(member)


def decide_release(state: State, command: ReleaseStreams) -> Decision:
    """Return the decision on a command by which a member gives up streams.

    Streams that it does not own are ignored.
    """
    if _find_member(state, command.group, command.member) is None:
        return Decision(UnknownMember())
    change = _Change(state, command.group)
    owned = set(change.owned_by(command.member))
    released = []
    for path in dict.fromkeys(command.streams):
        stream = state.by_path.get(path)
        if stream is not None and stream.row.number in owned:
            refusal = refuse_held(state, stream, command.group)
            if refusal is not None:
                return Decision(refusal)  # H6
            released.append(stream.row.number)
    if not released:
        return Decision(Released())
    for number in released:
        change.free(number, is_crash=False)
    return Decision(Released(), change.event())


def decide_leave(state: State, command: LeaveGroup) -> Decision:
    """Return the decision on a command by which a member leaves its group."""
    if _find_member(state, command.group, command.member) is None:
        return Decision(UnknownMember())
    change = _Change(state, command.group)
    change.remove(command.member, is_crash=False)
    return Decision(Left(), change.event(left=(command.member,)))


def decide_expire_member(state: State, command: ExpireMember) -> Decision:
    """Return the decision on a command that removes a member which was not heard for too long."""
    member = _find_member(state, command.group, command.member)
    if member is None:
        return Decision(UnknownMember())
    if command.elapsed_ms < member.session_timeout_ms:
        return Decision(StillAlive())
    change = _Change(state, command.group)
    change.remove(command.member, is_crash=True, suspects=command.suspects)
    return Decision(Left(), change.event(left=(command.member,)))


def decide_take_stream(state: State, command: TakeStream) -> Decision:
    """Return the decision on a command that takes a stream from a member that keeps it too long."""
    share, stream = state.shares.get(command.group), state.by_path.get(command.path)
    row = share.streams.get(stream.row.number) if share is not None and stream is not None else None
    if share is None or stream is None or row is None or not row.is_revoking:
        return Decision(Rebalanced())
    owner = share.members.get(row.owner or "")
    if owner is None or refuse_held(state, stream, command.group) is not None:
        return Decision(Rebalanced())
    if command.elapsed_ms < owner.rebalance_timeout_ms:
        return Decision(StillAlive())
    change = _Change(state, command.group)
    change.free(stream.row.number, is_crash=False)  # the owner was heard: it is only slow
    return Decision(Rebalanced(), change.event())


def decide_rebalance(state: State, command: RebalanceGroup) -> Decision:
    """Return the decision on a command that computes the owners of a group's streams again."""
    if command.group not in state.shares:
        return Decision(UnknownGroup())
    return Decision(Rebalanced(), _Change(state, command.group).event())


def decide_delete_group(state: State, command: DeleteGroup) -> Decision:
    """Return the decision on a command that deletes a group."""
    group, share = command.group, state.shares.get(command.group)
    if share is None and group not in state.groups and group not in state.snapshots:
        return Decision(UnknownGroup())
    members = 0 if share is None else len(share.members)
    if members or group in state.named:
        return Decision(GroupInUse(members))
    return Decision(GroupDeleted(), GroupForgotten(group))


# ---- apply ---------------------------------------------------------------------------------------


def apply_group_changed(
    state: State, event: GroupChanged, _sections: Sections, time_ms: int
) -> None:
    """Change the members of a group, and the owners of its streams, as the event says."""
    group = event.group
    share = state.shares.get(group)
    if share is None:
        share = state.shares[group] = Share(GroupRow(0, state.next_stream), {}, {}, {}, Wanted())
    share.row = replace(share.row, version=share.row.version + 1)
    state.dirty.groups[group] = share.row
    left = [share.members.pop(name) for name in event.left]
    for name in event.left:
        state.dirty.members[group, name] = None
    if event.joined is not None:
        member = event.joined
        share.members[member.id] = state.dirty.members[group, member.id] = member
        watch_for(state, group, share, member)
    for member in left:
        forget_member(state, group, share, member)
    moves = [(group, number, offset) for number, offset in event.positions]
    move_positions(state, moves, time_ms)
    for number, starts in event.freed:
        _set_share(state, share, group, number, None, starts=starts)
    for number in event.revoking:
        row = replace(share.streams[number], is_revoking=True)
        share.streams[number] = state.dirty.shares[number, group] = row
    for each in event.assigned:
        _set_share(
            state, share, group, each.stream, each.member, epoch=each.epoch, starts=each.starts
        )
    if event.is_partial:
        state.unsettled.add(group)


def _set_share(
    state: State,
    share: Share,
    group: str,
    number: int,
    owner: str | None,
    *,
    epoch: int | None = None,
    starts: int,
) -> None:
    """Store the owner of a stream, and the version of the position that it finds."""
    old = share.streams.get(number)
    if epoch is None:
        epoch = 0 if old is None else old.epoch
    version = stored_position(state.by_number[number], group).version
    row = ShareRow(owner, epoch, starts=starts, counted_version=version)
    put_share(state, group, number, row)
    state.dirty.shares[number, group] = row


def apply_group_forgotten(
    state: State, event: GroupForgotten, _sections: Sections, _time_ms: int
) -> None:
    """Drop everything that is stored about a group."""
    group = event.group
    for path in state.groups.pop(group, {}):
        stream = state.by_path[path]
        assert stream.positions is not None
        del stream.positions[group]
        state.dirty.positions[stream.row.number, group] = None
    if state.snapshots.pop(group, None) is not None:
        state.dirty.snapshots[group] = None
    share = state.shares.pop(group, None)
    if share is None:
        return
    state.dirty.groups[group] = None
    state.unsettled.discard(group)
    for number in share.streams:
        stream = state.by_number[number]
        assert stream.sharing is not None
        stream.sharing.discard(group)
        state.dirty.shares[number, group] = None
