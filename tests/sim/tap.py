"""A broker that reports its decisions and its outcomes to the simulator, in their order."""

import os
from collections.abc import Callable
from typing import NamedTuple, Protocol

from semel.broker import broker as broker_module
from semel.broker import worker as worker_module
from semel.broker.broker import Broker, Reply
from semel.broker.guard import ignore
from semel.broker.lookups import decide_at_once as real_decide_at_once
from semel.broker.worker import DecisionTurns
from semel.journal import index as index_module
from semel.journal.recovery import Recovered
from semel.machine import Decision, Event, Section, State, apply
from semel.machine.access_events import OwnersChanged
from semel.machine.decide import decide as real_decide
from semel.machine.state import Effects
from semel.machine.txn.draft import EXTENT_BYTES
from semel.model.commands import Append, Batch, EngineCommand
from semel.model.limits import HOUR_MS
from semel.model.outcomes import Outcome, Refusal
from semel.model.rights import Caller
from tests.sim.demands import demand
from tests.sim.reference_access import TakeOwners
from tests.sim.reference_audit import AUDIT
from tests.sim.reference_groups import Shared


class Entry(NamedTuple):
    """One frame that was handed to the journal."""

    end: int
    command: EngineCommand | Shared | TakeOwners
    event: Event
    sections: tuple[Section, ...]
    time_ms: int
    lsn: int  # of a frame that is more than one append; else 0

    def replay(self, state: State) -> None:
        """Apply the frame to another state."""
        apply(state, self.event, self.sections, self.time_ms, self.lsn)


class Observer(Protocol):
    """What receives the decisions and outcomes."""

    def decided(
        self,
        command: EngineCommand,
        decision: Decision,
        *,
        is_written: bool,
        caller: Caller | None = None,
    ) -> None:
        """Receive a decision; `is_written` if its event was queued for the journal."""

    def refused(self, command: EngineCommand, caller: Caller, refusal: Refusal) -> None:
        """Receive the refusal of a command that its caller may not execute."""

    def owned(self, now_ms: int, decision: Decision, *, is_written: bool) -> None:
        """Receive the second frame of a command, with the owners of what it used."""

    def recorded(self, append: Append, decision: Decision) -> None:
        """Receive a record of the audit, before the change that it describes."""

    def executed(self, append: Append | None) -> None:
        """Receive the end of a caller's command, with its record of the audit."""

    def facts_end(self) -> int:
        """Return the end of the last frame decided so far."""

    def answered(self, outcome: Outcome, facts_end: int) -> None:
        """Receive a returned outcome, which depends on the frames up to `facts_end`."""


class TappedBroker(Broker):
    """A broker with an observer."""

    def __init__(
        self,
        recovered: Recovered,
        *,
        monotonic_ms: Callable[[], int],
        segment_bytes: int,
        observer: Observer,
        producer_idle_ms: int = 0,
        hour_ms: int = HOUR_MS,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        super().__init__(
            recovered,
            monotonic_ms=monotonic_ms,
            segment_bytes=segment_bytes,
            producer_idle_ms=producer_idle_ms,
            hour_ms=hour_ms,
            random_bytes=random_bytes,
        )
        self._observer = observer
        self.last_lsn = 0
        # Who has sent each command, whatever the broker makes of it, and who that of now.
        self._senders: dict[int, tuple[EngineCommand, Caller]] = {}
        self._caller: Caller | None = None
        self._refused_at: list[int] = []
        self._number = 0  # of the command that is executed
        self._stamp: list[int] | None = None  # of the caller's command, when it is decided
        self._owners: tuple[int, Decision, bool] | None = None  # stored before it is decided
        self._is_answered = False
        self._records: dict[int, Append] = {}  # of the audit, by the command
        self._real_refuse = self.guard.refuse
        self.guard.refuse = self._refuse  # type: ignore[method-assign]

    def submit(self, command: EngineCommand, reply: Reply, caller: Caller | None = None) -> None:
        _last[:] = [command]  # an invalid command never gets to `decide`
        if caller is not None:
            self._senders[id(command)] = (command, caller)
        super().submit(command, reply, caller)

    def _execute(self, command: EngineCommand, reply: Reply, caller: Caller | None) -> bool:
        number = id(command)
        sender = self._senders.get(number)
        if sender is None:
            return super()._execute(command, reply, caller)
        refused_at: list[int] = []

        def noted(outcome: Outcome) -> None:
            if refused_at:
                self._observer.answered(outcome, refused_at[0])
            reply(outcome)

        self._caller, self._refused_at, self._is_answered = sender[1], refused_at, False
        self._stamp = self._owners = None
        self._number = number
        is_done = super()._execute(command, noted, caller)
        self._caller = None
        if is_done:
            del self._senders[number]
            self._observer.executed(self._records.pop(number, None))
        return is_done

    def _execute_own(self, command: EngineCommand) -> bool:
        caller, self._caller = self._caller, None
        is_done = super()._execute_own(command)
        self._caller = caller
        return is_done

    def _refuse(self, command: EngineCommand, caller: Caller) -> Refusal | None:
        refusal = self._real_refuse(command, caller)
        if refusal is not None:
            self._observer.refused(command, caller, refusal)
            self._refused_at.append(self._observer.facts_end())
        return refusal

    def _note_event(
        self, event: Event, sections: tuple[Section, ...], lsn: int, effects: Effects
    ) -> None:
        self.last_lsn = lsn
        super()._note_event(event, sections, lsn, effects)

    def _commit(self, decision: Decision, now_ms: int, reply: Reply, more: int = 0) -> bool:
        command, observer, before = _last[0], self._observer, self.end
        if self._caller is not None and reply is ignore:
            if isinstance(decision.event, OwnersChanged):
                return self._commit_owners(decision, now_ms, more)
            return self._commit_record(decision, now_ms, more)
        stamp: list[int] = []

        def stamped(outcome: Outcome) -> None:
            self._is_answered = True
            observer.answered(outcome, stamp[0] if stamp else observer.facts_end())
            reply(outcome)

        done = super()._commit(decision, now_ms, stamped, more)
        if done:
            is_written = self.end > before
            observer.decided(command, decision, is_written=is_written, caller=self._caller)
            stamp.append(observer.facts_end())
            if self._caller is not None:
                self._stamp = stamp
                self._report_owners()
        return done

    def _commit_record(self, decision: Decision, now_ms: int, more: int) -> bool:
        before = self.end
        is_done = super()._commit(decision, now_ms, ignore, more)
        if self.end > before:
            payload = bytes(decision.sections[0].payload)
            append = Append(AUDIT, now_ms, "application/json", Batch(payload))
            demand(self._number not in self._records, "a command has two records in the audit")
            demand(self._stamp is None, "the record was stored after the change")
            self._records[self._number] = append
            self._observer.recorded(append, decision)
        return is_done

    def _commit_owners(self, decision: Decision, now_ms: int, more: int) -> bool:
        before = self.end
        is_done = super()._commit(decision, now_ms, ignore, more)
        if is_done:
            self._owners = (now_ms, decision, self.end > before)
            self._report_owners()
        return is_done

    def _report_owners(self) -> None:
        """Report the owners after the command. Those of a repeat are stored before its decision."""
        if self._owners is None or self._stamp is None:
            return
        now_ms, decision, is_written = self._owners
        self._owners = None
        demand(not self._is_answered, "the response did not wait for the owners")
        self._observer.owned(now_ms, decision, is_written=is_written)
        self._stamp[:] = [self._observer.facts_end()]  # the reply waits for this frame too


_last: list[EngineCommand] = []


def _decide(state: State, command: EngineCommand) -> Decision:
    _last[:] = [command]
    return real_decide(state, command)


def _decide_at_once(state: State, command: EngineCommand, caller: Caller | None) -> Decision | None:
    decision = real_decide_at_once(state, command, caller)
    if decision is not None:
        _last[:] = [command]
    return decision


class _TappedTurns(DecisionTurns):
    def decide(self, asked: EngineCommand, command: EngineCommand, end: int) -> Decision | None:
        _last[:] = [command]  # a delayed decision is not made again
        return super().decide(asked, command, end)


# The broker decides its own commands with the first, those of clients with the second, and appends
# outside transactions with the third.
setattr(broker_module, "decide", _decide)  # noqa: B010
setattr(broker_module, "DecisionTurns", _TappedTurns)  # noqa: B010
setattr(broker_module, "decide_at_once", _decide_at_once)  # noqa: B010

# Every commit of more than two chunks takes the path of those with very many chunks.
setattr(worker_module, "EXTENTS_PER_TURN_BYTES", 2 * EXTENT_BYTES)  # noqa: B010
setattr(index_module, "STEP_CHUNKS", 2)  # noqa: B010
