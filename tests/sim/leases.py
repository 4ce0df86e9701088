"""When the members of groups were heard, and since when they are asked to release streams.

A heartbeat writes no frame, so the reference model does not know of it. Here the times are kept a
second time, and compared with what the broker ends: never early, and never later than necessary.
After a restart every time starts again.
"""

from collections import Counter

from semel.model import commands as ask
from semel.model import group_commands as group_ask
from semel.model.commands import EngineCommand
from semel.model.outcomes import Outcome, Refusal
from tests.sim.demands import demand
from tests.sim.reference import Model
from tests.sim.reference_groups import Row, Shared

Name = tuple[str, str]  # a group and one of its members


def members_of(command: EngineCommand) -> set[Name]:
    """Return the members that have sent a command."""
    if isinstance(command, group_ask.ReleaseStreams | group_ask.LeaveGroup):
        return {(command.group, command.member)}
    if isinstance(command, ask.AddPositions | ask.SetPositions | ask.Commit):
        return {(move.group, move.member) for move in command.positions if move.member}
    return set()


class Leases:
    """The last signs of life of all members since the process started, and open requests."""

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        self._started_ms = 0
        self._heard: dict[Name, int] = {}
        self._asked: dict[tuple[str, int], int] = {}  # by group and number of the stream

    def restart(self, monotonic_ms: int) -> None:
        """Begin again, because a new process has heard of nobody."""
        self._started_ms = monotonic_ms
        self._heard, self._asked = {}, {}

    def is_over(self, model: Model, name: Name, monotonic_ms: int) -> bool:
        """Return whether a member was not heard for its session timeout."""
        member = model.groups.find(name[0]).members.get(name[1])
        silent_ms = monotonic_ms - self._heard.get(name, self._started_ms)
        return member is not None and silent_ms >= member.session_timeout_ms

    def heard(self, model: Model, name: Name, monotonic_ms: int) -> None:
        """Record a heartbeat, for which the broker has ended whose time has passed."""
        is_member = name[1] in model.groups.find(name[0]).members
        self._counts["heartbeats of members"] += is_member
        self._counts["heartbeats of others"] += not is_member
        if not self.is_over(model, name, monotonic_ms):
            self._heard[name] = monotonic_ms

    # ---- commands --------------------------------------------------------------------------------

    def demand_in_time(self, command: EngineCommand, model: Model, monotonic_ms: int) -> None:
        """Check that a command finds no member whose time has passed. It is not executed yet."""
        for name in members_of(command):
            is_over = self.is_over(model, name, monotonic_ms)
            demand(not is_over, f"{command} found {name} after its session has timed out")

    def demand_not_early(self, command: EngineCommand, model: Model, monotonic_ms: int) -> None:
        """Check a command that ends a member, or takes a stream. It is not executed yet."""
        if isinstance(command, group_ask.ExpireMember):
            name = (command.group, command.member)
            demand(self.is_over(model, name, monotonic_ms), f"{name} was ended early")
            self._counts["members ended"] += 1
        elif isinstance(command, group_ask.TakeStream):
            number = model.streams[command.path].number
            group = model.groups.find(command.group)
            is_over = self._is_late(model, command.group, number, group.rows[number], monotonic_ms)
            demand(is_over, f"{command.path} was taken early")
            self._counts["streams taken from slow members"] += 1

    def _is_late(self, model: Model, group: str, number: int, row: Row, monotonic_ms: int) -> bool:
        owner = model.groups.find(group).members.get(row.owner or "")
        asked_ms = self._asked.get((group, number), self._started_ms)
        if owner is None or not row.is_revoking:
            return False
        return monotonic_ms - asked_ms >= owner.rebalance_timeout_ms

    def decided(
        self, command: EngineCommand, outcome: Outcome, model: Model, monotonic_ms: int
    ) -> None:
        """Record a sign of life: a command for a member that is not refused.

        While the disk is full, a member whose time has passed can still be there. It stays so.
        """
        for name in members_of(command) if not isinstance(outcome, Refusal) else ():
            if not self.is_over(model, name, monotonic_ms):
                self._heard[name] = monotonic_ms

    def changed(self, asked: Shared, monotonic_ms: int) -> None:
        """Record a change of a group that was written."""
        c, change = asked
        assert change is not None
        if isinstance(c, group_ask.JoinGroup):
            self._heard[c.group, c.member] = monotonic_ms
        for number in change.revoking:
            self._asked[c.group, number] = monotonic_ms

    # ---- after a sweep ---------------------------------------------------------------------------

    def demand_nothing_left(self, model: Model, monotonic_ms: int) -> None:
        """Check, after a complete sweep, that nobody is left whose time has passed."""
        for name, group in model.groups.by_name.items():
            for member in group.members:
                is_over = self.is_over(model, (name, member), monotonic_ms)
                demand(not is_over, f"{member} of {name} is never ended")
            for number, row in group.rows.items():
                is_late = self._is_late(model, name, number, row, monotonic_ms)
                is_held = model.groups.is_held(name, number)
                demand(is_held or not is_late, f"{number} is never taken from {row.owner}")
