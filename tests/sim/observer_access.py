"""What the simulator observes of access: refusals, owners and the records of the audit."""

from collections import Counter

from semel.machine import Decision
from semel.machine.access_events import OwnersChanged
from semel.model.commands import Append, EngineCommand
from semel.model.outcomes import Refusal
from semel.model.rights import Caller
from tests.sim.demands import demand, demand_equal, is_same
from tests.sim.reference import Model
from tests.sim.reference_access import TakeOwners
from tests.sim.reference_audit import AUDIT, Record, parse_record, record_of
from tests.sim.reference_groups import Shared
from tests.sim.reference_rights import Who
from tests.sim.tap import Entry, TappedBroker
from tests.sim.workload_access import who_of


class AccessObserver:
    """The part of a World that compares access with the reference model."""

    model: Model
    broker: TappedBroker
    counts: Counter[str]
    _due_record: Record | None = None  # what the audit must have for the command of now

    def note(self, entry: Entry) -> None:
        """Record a frame that is not durable yet."""
        raise NotImplementedError

    def expect_record(self, command: EngineCommand, who: Who | None) -> None:
        """Note that a command has changed something: there must be a record of it."""
        if who is not None and AUDIT in self.model.streams:
            self._due_record = record_of(command, who)

    def note_frame(self, command: EngineCommand | Shared | TakeOwners, decision: Decision) -> None:
        """Record the frame of a command."""
        time_ms, lsn = self.broker.state.time_ms, self.broker.last_lsn
        event, sections = decision.event, decision.sections
        assert event is not None
        self.note(Entry(self.broker.end, command, event, sections, time_ms, lsn))

    def refused(self, command: EngineCommand, caller: Caller, refusal: Refusal) -> None:
        """Compare the refusal of a command that its caller may not execute."""
        expected = self.model.access.judge(command, who_of(caller))
        demand(
            expected is not None and is_same(refusal, expected),
            f"{command} by {who_of(caller)}\n  engine: {refusal}\n  model:  {expected}",
        )
        self.counts["refusals of access"] += 1

    def owned(self, now_ms: int, decision: Decision, *, is_written: bool) -> None:
        """Compare the owners that a command gives to what it used, and record their frame."""
        event, due = decision.event, self.model.access.due
        assert isinstance(event, OwnersChanged)
        found = TakeOwners(now_ms, event.owner, event.things)
        demand(due is not None, f"owners that nothing asked for: {found}")
        assert due is not None
        is_equal = found.owner == due.owner and set(found.keys) == set(due.keys)
        demand(is_equal, f"owners: {found} is not {due}")
        self.model.access.due = None
        if not is_written:
            demand(self.broker.is_full, f"the frame of {found} was not queued")
            self.counts["owners not stored for room"] += 1
            return
        self.model.replay(found)
        self.note_frame(found, decision)
        self.counts["owners taken"] += 1

    def recorded(self, append: Append, decision: Decision) -> None:
        """Compare a record of the audit, and note its frame."""
        expected = self.model.execute(append)
        demand_equal(decision.outcome, expected, "the outcome of a record")
        self.note_frame(append, decision)
        self.counts["records of the audit"] += 1

    def executed(self, append: Append | None) -> None:
        """Check that owners and the record of a command were stored with it."""
        due = self.model.access.due
        demand(due is None, f"no owners were stored: {due}")
        due_record, self._due_record = self._due_record, None
        batch = None if append is None else append.batch
        if due_record is not None:
            found = None if batch is None else parse_record(batch.payload)
            demand(found == due_record, f"the audit has {found} instead of {due_record}")
        elif batch is not None:
            self.counts["records of what was not done"] += 1
