"""A broker that reports its decisions and its outcomes to the simulator, in their order."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from semel.broker import broker as broker_module
from semel.broker import worker as worker_module
from semel.broker.broker import Broker, Reply
from semel.broker.worker import DecisionTurns
from semel.journal import index as index_module
from semel.journal.recovery import Recovered
from semel.machine import Decision, Event, Section, State, apply
from semel.machine.decide import decide as real_decide
from semel.machine.state import Effects
from semel.machine.txn.draft import EXTENT_BYTES
from semel.model.commands import EngineCommand
from semel.model.limits import HOUR_MS
from semel.model.outcomes import Outcome


class Entry(NamedTuple):
    """One frame that was handed to the journal."""

    end: int
    command: EngineCommand
    event: Event
    sections: tuple[Section, ...]
    time_ms: int
    lsn: int  # of a frame that is more than one append; else 0

    def replay(self, state: State) -> None:
        """Apply the frame to another state."""
        apply(state, self.event, self.sections, self.time_ms, self.lsn)


class Observer(Protocol):
    """What receives the decisions and outcomes."""

    def decided(self, command: EngineCommand, decision: Decision, *, is_written: bool) -> None:
        """Receive a decision; `is_written` if its event was queued for the journal."""

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
    ) -> None:
        super().__init__(
            recovered,
            monotonic_ms=monotonic_ms,
            segment_bytes=segment_bytes,
            producer_idle_ms=producer_idle_ms,
            hour_ms=hour_ms,
        )
        self._observer = observer
        self.last_lsn = 0

    def submit(self, command: EngineCommand, reply: Reply) -> None:
        _last[:] = [command]  # an invalid command never gets to `decide`
        super().submit(command, reply)

    def _note_event(
        self, event: Event, sections: tuple[Section, ...], lsn: int, effects: Effects
    ) -> None:
        self.last_lsn = lsn
        super()._note_event(event, sections, lsn, effects)

    def _commit(self, decision: Decision, now_ms: int, reply: Reply) -> bool:
        command, observer, before = _last[0], self._observer, self.end
        stamp: list[int] = []

        def stamped(outcome: Outcome) -> None:
            observer.answered(outcome, stamp[0] if stamp else observer.facts_end())
            reply(outcome)

        done = super()._commit(decision, now_ms, stamped)
        if done:
            observer.decided(command, decision, is_written=self.end > before)
            stamp.append(observer.facts_end())
        return done


_last: list[EngineCommand] = []


def _decide(state: State, command: EngineCommand) -> Decision:
    _last[:] = [command]
    return real_decide(state, command)


class _TappedTurns(DecisionTurns):
    def decide(self, asked: EngineCommand, command: EngineCommand, end: int) -> Decision | None:
        _last[:] = [command]  # a delayed decision is not made again
        return super().decide(asked, command, end)


# The broker decides its own commands with the first, those of clients with the second, and appends
# outside transactions with the third.
setattr(broker_module, "decide", _decide)  # noqa: B010
setattr(broker_module, "DecisionTurns", _TappedTurns)  # noqa: B010
setattr(broker_module, "decide_append", _decide)  # noqa: B010

# Every commit of more than two chunks takes the path of those with very many chunks.
setattr(worker_module, "EXTENTS_PER_TURN_BYTES", 2 * EXTENT_BYTES)  # noqa: B010
setattr(index_module, "STEP_CHUNKS", 2)  # noqa: B010
