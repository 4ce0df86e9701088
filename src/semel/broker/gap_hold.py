"""Holding appends that came too early.

A producer that sends on several connections may overtake itself: sequence 3 arrives before 2.
The machine refuses that as a gap. With a hold, the refusal waits a moment for what is missing. The
hold stands before the broker and knows answers only: what it lets go is decided like anything else.
"""

from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from semel.broker.broker import Reply
from semel.model.commands import DENSE, Append
from semel.model.limits import GAPS_HELD_BYTES_MAX, GAPS_HELD_MAX
from semel.model.outcomes import Appended, Duplicate, Outcome, SequenceGap


class Timer(Protocol):
    """A call that will be made later."""

    def cancel(self) -> None:
        """Do not make it."""


Submit = Callable[[Append, Reply], None]
CallLater = Callable[[float, Callable[[], None]], Timer]
Producer = tuple[str, str]  # path, id


class _Held:
    """An append that waits for its predecessors."""

    __slots__ = ("command", "reply", "timer")

    def __init__(self, command: Append, reply: Reply, timer: Timer) -> None:
        self.command = command
        self.reply = reply
        self.timer = timer


class GapHold:
    """Stands before `submit`. One thread calls it."""

    def __init__(self, submit: Submit, call_later: CallLater, *, seconds: float) -> None:
        self._submit = submit
        self._call_later = call_later
        self._seconds: Final = seconds
        self._held: dict[Producer, dict[int, _Held]] = {}
        self.count = 0
        self._bytes = 0

    def submit(self, command: Append, reply: Reply) -> None:
        """Take an append; if it is refused as a gap, hold it for a while and decide it again."""
        tag = command.producer
        if tag is None or tag.mode != DENSE:
            self._submit(command, reply)
            return
        producer, seq = (command.path, tag.id), tag.first_seq

        def answered(outcome: Outcome) -> None:
            if isinstance(outcome, SequenceGap) and self._hold(producer, seq, command, reply):
                return
            self._answer(producer, reply, outcome)

        self._submit(command, answered)

    def _answer(self, producer: Producer, reply: Reply, outcome: Outcome) -> None:
        reply(outcome)
        if self._held and isinstance(outcome, Appended | Duplicate) and outcome.seq is not None:
            self._release(producer, outcome.seq + 1)

    def _hold(self, producer: Producer, seq: int, command: Append, reply: Reply) -> bool:
        """Keep an append; False if there is no room, or its sequence waits already."""
        waiting = self._held.get(producer, {})
        size = _size(command)
        is_full = self.count >= GAPS_HELD_MAX or self._bytes + size > GAPS_HELD_BYTES_MAX
        if is_full or seq in waiting:
            return False
        timer = self._call_later(self._seconds, partial(self._give_up, producer, seq))
        waiting[seq] = _Held(command, reply, timer)
        self._held[producer] = waiting
        self.count += 1
        self._bytes += size
        return True

    def _take(self, producer: Producer, seq: int) -> _Held | None:
        waiting = self._held.get(producer, {})
        held = waiting.pop(seq, None)
        if held is None:
            return None
        if not waiting:
            del self._held[producer]
        held.timer.cancel()
        self.count -= 1
        self._bytes -= _size(held.command)
        return held

    def _release(self, producer: Producer, seq: int) -> None:
        """Decide what follows an accepted sequence, all at once: it becomes durable together."""
        while self._decide(producer, seq):
            seq += 1

    def _decide(self, producer: Producer, seq: int) -> bool:
        """Decide a held append as things are now; False if there is none."""
        held = self._take(producer, seq)
        if held is None:
            return False
        # Its own answer may release more: a gap decided in between is answered after it.
        self._submit(held.command, partial(self._answer, producer, held.reply))
        return True

    def _give_up(self, producer: Producer, seq: int) -> None:
        """The time is over: say how things stand."""
        self._decide(producer, seq)

    def drain(self) -> None:
        """Let everything go, in order; nothing may wait when the engine ends."""
        for producer in list(self._held):
            for seq in sorted(self._held.get(producer, ())):
                self._decide(producer, seq)


def _size(command: Append) -> int:
    batch = command.batch
    return 0 if batch is None else len(batch.payload) + len(batch.extras)
