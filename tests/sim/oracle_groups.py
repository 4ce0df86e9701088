"""Checks of groups whose members share work: what the engine may choose, and what follows.

Which member gets which stream is the engine's choice, so the reference model cannot compare it.
Instead every change of a group is checked against the rules of `docs/reference/groups.md`: who may
lose a stream, who may get one, at which epoch, and whether as few streams move as possible.
"""

from collections import Counter
from collections.abc import Collection, Set

from msgspec.structs import astuple

from semel.machine import Decision, Event, State
from semel.machine.shared_events import GroupChanged, GroupForgotten
from semel.model import group_commands as group_ask
from semel.model.commands import EngineCommand
from semel.model.group_commands import LATEST, GroupCommand
from semel.model.limits import GROUP_MOVES_MAX
from semel.model.outcomes import Refusal, StillAlive
from tests.sim.demands import demand
from tests.sim.reference import Model
from tests.sim.reference_groups import Change, Given, Group, Member, Row, Shared


def change_of(event: Event | None) -> Change | None:
    """Return what the engine has chosen, in the form of the model; None if it wrote nothing."""
    if event is None:
        return None
    if isinstance(event, GroupForgotten):
        return Change()
    assert isinstance(event, GroupChanged), event
    return Change(
        None if event.joined is None else event.joined.id,
        event.left,
        tuple(number for number, _ in event.freed),
        event.revoking,
        tuple(Given(each.stream, each.member, each.epoch) for each in event.assigned),
        event.positions,
        event.is_partial,
    )


def groups_view(state: State) -> dict[str, object]:
    """Dump the groups of the engine in the form of the model."""
    return {name: _group_view(state, name) for name in sorted(state.shares)}


def _group_view(state: State, name: str) -> dict[str, object]:
    share = state.shares[name]
    streams = {}
    for number, row in share.streams.items():
        if row.epoch:
            position = (state.by_number[number].positions or {}).get(name)
            version = 0 if position is None else position.version
            starts = row.starts if row.counted_version == version else 0
            streams[number] = (row.owner, row.epoch, row.is_revoking, starts)
    return {
        "next_stream": share.row.next_stream,
        "version": share.row.version,
        "members": {member: Member(*astuple(row)) for member, row in share.members.items()},
        "streams": streams,
    }


class Choices:
    """Checks and counts what the engine chooses for commands on groups."""

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        self._before = Group(0)

    def before(
        self, model: Model, command: EngineCommand, decision: Decision
    ) -> EngineCommand | Shared:
        """Return a command, on a group with what the engine has chosen, which is checked."""
        if not isinstance(command, GroupCommand):
            return command
        change = change_of(decision.event)
        demand_choice(model, command, change)
        self._before = model.groups.copy(model).find(command.group)
        return Shared(command, change)

    def after(self, model: Model, asked: EngineCommand | Shared) -> None:
        """Check the group when the model has executed the command."""
        if not isinstance(asked, Shared) or asked.change is None:
            return
        name, change = asked.command.group, asked.change
        self._count(model, name, change)
        if change.is_partial:
            moved = len(change.given) + asked_back(change, self._before, change.left)
            demand(moved == moves_max(model), f"{moved} streams move, and some are left: {asked}")
        elif not isinstance(asked.command, group_ask.DeleteGroup):
            demand_shared(model, name)
            demand_minimal(self._before, model, name, change)

    def _count(self, model: Model, name: str, change: Change) -> None:
        counts = self._counts
        counts["streams given to members"] += len(change.given)
        counts["streams given at the next epoch"] += sum(g.epoch > 1 for g in change.given)
        counts["streams asked back"] += len(change.revoking)
        counts["positions set to the end"] += len(change.positions)
        counts["changes of groups in several frames"] += change.is_partial
        group = model.groups.find(name)
        waiting = [row for row in group.rows.values() if row.owner not in {*group.members, None}]
        counts["streams that wait for a transaction"] += len(waiting)
        counts["starts after a crash"] += sum(model.groups.starts(name, n) > 0 for n in group.rows)


def moves_max(model: Model) -> int:
    """Return how many streams one frame can give and ask back."""
    return min(GROUP_MOVES_MAX, model.bounds.streams)


def asked_back(change: Change, before: Group, left: Collection[str]) -> int:
    """Return how many streams a change asks back from members that stay."""
    owners = [before.rows[number].owner for number in change.revoking]
    return sum(owner in before.members and owner not in left for owner in owners)


class Choice:
    """One change of a group, before the model makes it."""

    def __init__(self, model: Model, command: GroupCommand, change: Change) -> None:
        self._model, self._command, self._change = model, command, change
        self._groups = model.groups
        self._group = model.groups.find(command.group)
        self._replaced = _replaced(self._group, command)

    def demand_allowed(self) -> None:
        """Check each part of the change."""
        c, change = self._command, self._change
        joining = c.member if isinstance(c, group_ask.JoinGroup) else None
        demand(change.joined == joining, f"{change.joined} joined by {c}")
        self._demand(set(change.left) == self._leaving(), f"{change.left} left")
        moved = len(change.given) + asked_back(change, self._group, self._leaving())
        self._demand(moved <= moves_max(self._model), "too many streams move in one frame")
        touched = [*change.freed, *change.revoking]
        self._demand(len(set(touched)) == len(touched), "a stream is named twice")
        given = [each.stream for each in change.given]
        self._demand(len(set(given)) == len(given), "a stream is given twice")
        self._demand(not set(change.revoking) & set(given), "a stream is given and asked back")
        for number in change.freed:
            self._demand(self._is_loser(number), f"{number} may not be freed")
        for number in change.revoking:
            # A stream of a member that leaves is only kept while its position is held.
            is_kept = self._is_staying(number) or self._groups.is_held(c.group, number)
            self._demand(is_kept and not self._row(number).is_revoking, f"{number} is asked back")
        self._demand_given()
        self._demand_begun()
        self._demand_given_up()

    def _demand(self, condition: object, what: str) -> None:
        demand(condition, f"{what}: {self._command} with {self._change} on {self._group}")

    def _row(self, number: int) -> Row:
        return self._group.rows.get(number, Row())

    def _leaving(self) -> set[str]:
        c = self._command
        if isinstance(c, group_ask.LeaveGroup | group_ask.ExpireMember):
            return {c.member}
        return set() if self._replaced is None else {self._replaced}

    def _is_staying(self, number: int) -> bool:
        """Return whether the owner of a stream was a member and still is."""
        owner = self._row(number).owner
        return owner in self._group.members and owner not in self._leaving()

    def _is_loser(self, number: int) -> bool:
        """Return whether the owner of a stream may lose it now.

        It has left, or has not waited for a transaction any more; or it has released the stream; or
        it was too slow. Nobody loses a stream whose position is held.
        """
        c, row = self._command, self._row(number)
        if row.owner is None or self._groups.is_held(c.group, number):
            return False
        if not self._is_staying(number):
            return True
        path = self._groups.alive()[number]
        if isinstance(c, group_ask.ReleaseStreams):
            return c.member == row.owner and path in c.streams
        return isinstance(c, group_ask.TakeStream) and path == c.path and row.is_revoking

    def _demand_given(self) -> None:
        c, joined = self._command, self._change.joined
        members = ({*self._group.members} - self._leaving()) | ({joined} if joined else set())
        for number, member, epoch in self._change.given:
            row, path = self._row(number), self._groups.alive().get(number)
            self._demand(path is not None, f"{number} does not exist, but is given to {member}")
            assert path is not None
            is_held = self._groups.is_held(c.group, number)
            self._demand(not is_held, f"{path} is held, but is given to {member}")
            is_free = row.owner is None or self._is_loser(number)
            self._demand(is_free, f"{path} belongs to {row.owner}, but is given to {member}")
            self._demand(epoch == row.epoch + 1, f"{path} is given at {epoch} after {row.epoch}")
            self._demand(member in members, f"{path} is given to {member}")
            self._demand(self._reads(member, path), f"{path} is given to {member}")

    def _reads(self, member: str, path: str) -> bool:
        c = self._command
        if isinstance(c, group_ask.JoinGroup) and c.member == member:
            return self._groups.reads(c.group, self._groups.member(c), path)
        return self._groups.reads(c.group, self._group.members[member], path)

    def _demand_begun(self) -> None:
        """Check which positions the change sets: those of members that begin at the end."""
        c, expected = self._command, []
        next_stream = self._group.next_stream
        if c.group not in self._groups.by_name:
            next_stream = self._model.next_stream
        starts = {name: member.start for name, member in self._group.members.items()}
        if isinstance(c, group_ask.JoinGroup):
            starts[c.member] = c.start
        for number, member, epoch in self._change.given:
            is_old = number < next_stream
            is_new_here = (c.group, number) not in self._model.txns.positions.stored
            end = self._model.txns.stable(self._model.txns.by_number(number)[1])
            if starts[member] == LATEST and is_old and is_new_here and epoch == 1 and end:
                expected.append((number, end))
        found = sorted(self._change.positions)
        self._demand(found == sorted(expected), f"positions {found}, not {sorted(expected)}")

    def _demand_given_up(self) -> None:
        """Check that nobody keeps a stream that it has lost, except those that are held."""
        moved = {*self._change.freed, *(each.stream for each in self._change.given)}
        for number, row in self._group.rows.items():
            is_lost = self._is_loser(number)
            self._demand(not is_lost or number in moved, f"{number} is still with {row.owner}")
        is_moving = bool(self._change.revoking) or self._change.is_partial
        is_moving = is_moving or any(row.is_revoking for row in self._group.rows.values())
        if self._replaced is not None and not is_moving:
            self._demand_taken_over()

    def _demand_taken_over(self) -> None:
        """Check that an instance which joins anew keeps its streams, as far as that is even."""
        c, group = self._command, self._group
        assert isinstance(c, group_ask.JoinGroup) and self._replaced is not None
        to = {each.stream: each.member for each in self._change.given}
        loads = Counter(to.values())
        loads.update(
            row.owner
            for number, row in group.rows.items()
            if row.owner and not row.is_revoking and number not in {*to, *self._change.revoking}
        )
        for number in group.of(self._replaced):
            is_read = self._reads(c.member, self._groups.alive()[number])
            if is_read and not self._groups.is_held(c.group, number):
                other = to[number]
                is_even = other == c.member or loads[other] <= loads[c.member] + 1
                self._demand(is_even, f"{number} does not stay with {c.instance}")


def _replaced(group: Group, c: GroupCommand) -> str | None:
    """Return the member whose instance joins anew, or None."""
    if not isinstance(c, group_ask.JoinGroup) or c.instance is None:
        return None
    return next((m.id for m in group.members.values() if m.instance == c.instance), None)


def demand_choice(model: Model, c: GroupCommand, change: Change | None) -> None:
    """Check what the engine has chosen for a command that the model has not executed yet."""
    outcome = model.groups.judge(c)
    if isinstance(outcome, Refusal | StillAlive):
        demand(change is None, f"{outcome} is the outcome of {c}, but it changes {change}")
    elif isinstance(c, group_ask.TakeStream):
        is_late = model.groups.is_late(c) is True
        demand(is_late == (change is not None), f"{c} changes {change}")
        if change is not None:
            Choice(model, c, change).demand_allowed()
    elif isinstance(c, group_ask.DeleteGroup):
        demand(change is not None, f"nothing is written for {c}")
    elif change is not None:
        Choice(model, c, change).demand_allowed()
    elif isinstance(c, group_ask.RebalanceGroup):
        demand_shared(model, c.group)
    else:
        demand(isinstance(c, group_ask.ReleaseStreams), f"nothing is written for {c}")
        assert isinstance(c, group_ask.ReleaseStreams)
        owned = {model.groups.alive()[n] for n in model.groups.find(c.group).of(c.member)}
        demand(not owned & {*c.streams}, f"nothing is released for {c}")


# ---- what holds after each change ----------------------------------------------------------------


def demand_minimal(before: Group, model: Model, name: str, change: Change) -> None:
    """Check that a change moves as few streams as possible, where that is easy to say."""
    needed = moves_needed(before, model.groups.find(name), model.groups.readers(name))
    moved = asked_back(change, before, change.left)
    demand(needed in (None, moved), f"{name}: {moved} streams move, {needed} would be enough")


def demand_shared(model: Model, name: str) -> None:
    """Check a group after a change: nothing is left free, and the loads are even."""
    groups, group = model.groups, model.groups.find(name)
    readers = groups.readers(name)
    for number, row in group.rows.items():
        if row.owner is None:
            continue
        is_owner = row.owner in readers.get(number, ())
        is_waiting = groups.is_held(name, number) and row.is_revoking
        demand(is_owner or is_waiting, f"{name}: {number} is with {row.owner}, which is away")
    for number in readers:
        is_free = group.rows.get(number, Row()).owner is None
        demand(not is_free or groups.is_held(name, number), f"{name}: {number} is left free")
    if not any(row.is_revoking for row in group.rows.values()):
        _demand_even(name, group, readers)


def demand_noticed(model: Model, unsettled: Set[str], asked: EngineCommand | Shared) -> None:
    """Check that a group which must go on is known to the broker.

    These are a group with a stream whose owner has left and whose transaction has ended, and one
    whose last change did not fit into a frame.
    """
    if isinstance(asked, Shared) and asked.change is not None and asked.change.is_partial:
        demand(asked.command.group in unsettled, f"{asked} is not continued")
    for name, group in model.groups.by_name.items():
        for number, row in group.rows.items():
            is_away = row.owner is not None and row.owner not in group.members
            is_known = not is_away or name in unsettled or model.groups.is_held(name, number)
            demand(is_known, f"{name}: {number} is with {row.owner}, which is away")


def demand_settled(model: Model) -> None:
    """Check all groups when nothing is left to do: nobody has forgotten a stream."""
    for name, group in model.groups.by_name.items():
        if group.members:
            demand_shared(model, name)


def _loads(group: Group) -> Counter[str]:
    """Return how many streams each member has and need not release."""
    loads = Counter(dict.fromkeys(group.members, 0))
    loads.update(
        row.owner
        for row in group.rows.values()
        if row.owner in group.members and not row.is_revoking
    )
    return loads


def _demand_even(name: str, group: Group, readers: dict[int, set[str]]) -> None:
    """Check that no stream could go to a member that has at least two less than its owner."""
    loads = _loads(group)
    for number, ids in readers.items():
        owner = group.rows.get(number, Row()).owner
        for other in ids if owner in group.members else ():
            assert owner is not None
            is_even = loads[owner] - loads[other] <= 1
            demand(is_even, f"{name}: {owner} has {loads[owner]}, {other} has {loads[other]}")


def moves_needed(before: Group, after: Group, readers: dict[int, set[str]]) -> int | None:
    """Return how many streams must be asked back so that all have the same number, at least.

    Return None if that cannot be said easily: if not all members read all streams, or if streams
    are still on their way from earlier changes.
    """
    members = {*after.members}
    is_simple = bool(members) and all(ids == members for ids in readers.values())
    is_waiting = any(row.is_revoking for row in before.rows.values())
    owners = [after.rows.get(number, Row()).owner for number in readers]
    if not is_simple or is_waiting or not members.issuperset(owners):
        return None
    kept = Counter(dict.fromkeys(members, 0))
    for number, row in after.rows.items():
        old = before.rows.get(number, Row())
        if row.owner in members and (row.owner, row.epoch) == (old.owner, old.epoch):
            kept[row.owner] += 1
    each, rest = divmod(len(readers), len(members))
    needed = 0
    for place, load in enumerate(sorted(kept.values(), reverse=True)):
        needed += max(0, load - each - (place < rest))
    return needed
