"""A broker that tells the simulator what it decides and what it answers, in the order it does."""

from typing import NamedTuple, Protocol

from semel.broker import broker as broker_module
from semel.broker.broker import Broker, Reply
from semel.journal.recovery import Recovered
from semel.machine import Decision, Event, Section, State
from semel.machine.decide import decide as real_decide
from semel.model.commands import Command
from semel.model.outcomes import Outcome


class Entry(NamedTuple):
    """One frame that was handed to the journal."""

    end: int
    command: Command
    event: Event
    sections: tuple[Section, ...]
    time_ms: int


class Observer(Protocol):
    """Who listens."""

    def decided(self, command: Command, decision: Decision, *, is_written: bool) -> None:
        """The broker stands by a decision; `is_written` if its event went to the journal."""

    def facts_end(self) -> int:
        """Tell the end of the last frame decided so far."""

    def answered(self, outcome: Outcome, facts_end: int) -> None:
        """An answer left that was decided when the facts reached to `facts_end`."""


class TappedBroker(Broker):
    """The broker, with a listener."""

    def __init__(
        self,
        recovered: Recovered,
        *,
        now_ms: int,
        segment_bytes: int,
        observer: Observer,
        producer_idle_ms: int = 0,
    ) -> None:
        super().__init__(
            recovered,
            now_ms=now_ms,
            segment_bytes=segment_bytes,
            producer_idle_ms=producer_idle_ms,
        )
        self._observer = observer

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


_last: list[Command] = []


def _decide(state: State, command: Command) -> Decision:
    _last[:] = [command]
    return real_decide(state, command)


setattr(broker_module, "decide", _decide)  # noqa: B010 - the one seam the simulator needs
