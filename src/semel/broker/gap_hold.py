"""The gap hold: an append that arrives before its predecessor waits for the predecessor.

If a producer sends on several connections, sequence 3 can arrive before sequence 2. The broker
refuses sequence 3 as a gap. The gap hold hides this refusal from the producer, and submits
sequence 3 again later.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

from msgspec import Struct

from semel.broker.broker import Reply
from semel.model.commands import DENSE, Append
from semel.model.limits import GAPS_HELD_BYTES_MAX, GAPS_HELD_MAX
from semel.model.outcomes import Appended, Duplicate, Outcome, SequenceGap
from semel.model.outcomes_topics import TopicStored
from semel.model.rights import Caller
from semel.model.topic_commands import AppendTopic


class Timer(Protocol):
    """A scheduled call that can be cancelled."""

    def cancel(self) -> None: ...


AnyAppend = Append | AppendTopic
Submit = Callable[[AnyAppend, Reply, Caller | None], None]
CallLater = Callable[[float, Callable[[], Any]], Timer]
Producer = tuple[str, str]  # path, id
_ACCEPTED: Final = Appended | Duplicate | TopicStored


class _Held(Struct):
    """An append that waits for an earlier append by the same producer."""

    command: AnyAppend
    reply: Reply
    caller: Caller | None
    timer: Timer


class GapHold:
    """Wraps an engine's `submit` method, to hold appends that arrive before their predecessors.

    `seconds` is the longest time that an append is held. `count` is how many appends are held. All
    methods must be called from the same thread.
    """

    def __init__(self, submit: Submit, call_later: CallLater, *, seconds: float) -> None:
        self._submit = submit
        self._call_later = call_later
        self._seconds: Final = seconds
        self._held: dict[Producer, dict[int, _Held]] = {}
        self.count = 0
        self._bytes = 0

    def submit(self, command: AnyAppend, reply: Reply, caller: Caller | None = None) -> None:
        """Submit an append. If it is refused as a gap, hold it and submit it once more.

        The append is submitted again when its predecessor is accepted, or when the hold expires.
        """
        tag = command.producer
        if tag is None or tag.mode != DENSE:
            self._submit(command, reply, caller)
            return
        producer, seq = (command.path, tag.id), tag.first_seq

        def reply_or_hold(outcome: Outcome) -> None:
            is_gap = isinstance(outcome, SequenceGap)
            if not (is_gap and self._hold(producer, seq, command, reply, caller)):
                self._reply(producer, reply, outcome)

        self._submit(command, reply_or_hold, caller)

    def _reply(self, producer: Producer, reply: Reply, outcome: Outcome) -> None:
        reply(outcome)
        if self._held and isinstance(outcome, _ACCEPTED) and outcome.seq is not None:
            self._release(producer, outcome.seq + 1)

    def _hold(
        self, producer: Producer, seq: int, command: AnyAppend, reply: Reply, caller: Caller | None
    ) -> bool:
        """Hold an append and return True, or return False if the append cannot be held.

        It cannot be held if a limit is reached, or if the same sequence is already held.
        """
        waiting = self._held.get(producer, {})
        size = _size(command)
        is_full = self.count >= GAPS_HELD_MAX or self._bytes + size > GAPS_HELD_BYTES_MAX
        if is_full or seq in waiting:
            return False
        timer = self._call_later(self._seconds, partial(self._resubmit, producer, seq))
        waiting[seq] = _Held(command, reply, caller, timer)
        self._held[producer] = waiting
        self.count += 1
        self._bytes += size
        return True

    def _release(self, producer: Producer, seq: int) -> None:
        """Submit the held append with sequence `seq` and the held appends that directly follow it.

        All of them are submitted before the next write, so that one write can store them all.
        """
        while self._resubmit(producer, seq):
            seq += 1

    def _resubmit(self, producer: Producer, seq: int) -> bool:
        """Submit a held append, and do not hold it again.

        Return False if no append with the sequence `seq` is held.
        """
        waiting = self._held.get(producer, {})
        held = waiting.pop(seq, None)
        if held is None:
            return False
        if not waiting:
            del self._held[producer]
        held.timer.cancel()
        self.count -= 1
        self._bytes -= _size(held.command)
        # This reply must release successors too. A successor that was already refused as a gap may
        # not be held yet, because its refusal arrives only after this call.
        self._submit(held.command, partial(self._reply, producer, held.reply), held.caller)
        return True

    def drain(self) -> None:
        """Submit all held appends in order, so that no append is held when the engine closes."""
        for producer in list(self._held):
            for seq in sorted(self._held.get(producer, ())):
                self._resubmit(producer, seq)


def _size(command: AnyAppend) -> int:
    batches = [command.batch] if command.batch is not None else []
    if isinstance(command, AppendTopic):
        batches += [batch for _, batch in command.parts]
    return sum(len(batch.payload) + len(batch.extras) for batch in batches)
