"""Two ways to run work: on a separate thread, or on the event loop for a limited time per turn.

`end_process` is for work that fails. `DecisionTurns` divides long commits between turns, and
`GroupTurns` changes of groups.
"""

import asyncio
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from queue import SimpleQueue
from time import monotonic
from typing import Any, Final, TypeVar

from semel.machine import Decision, Event, State, decide
from semel.machine.events import Decided
from semel.machine.subscription_events import Subscribed
from semel.model.commands import EngineCommand
from semel.model.errors import EngineError
from semel.model.group_commands import DeleteGroup, JoinGroup, LeaveGroup, ReleaseStreams
from semel.model.limits import MIB
from semel.model.rights import Caller
from semel.model.steps import Steps
from semel.model.subscription_commands import CreateSubscription

T = TypeVar("T")
Job = tuple[Callable[[], Any], Callable[[Any], None]]

_EXIT_BUG: Final = 70


def end_process(error: BaseException) -> None:
    """Print the error and exit the process immediately, so that no further reply is sent."""
    sys.stderr.write(f"semel: fatal: {error}\n")
    sys.stderr.flush()
    os._exit(error.exit_code if isinstance(error, EngineError) else _EXIT_BUG)


def set_result(future: asyncio.Future[T], result: T) -> None:
    """Set the result of a future unless the future is done. A cancelled future counts as done."""
    if not future.done():
        future.set_result(result)


class Worker:
    """A thread that runs jobs outside the event loop.

    If a job raises, `on_error` is called on the loop with the exception, and the thread ends.
    """

    def __init__(self, name: str, on_error: Callable[[BaseException], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_error = on_error
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def do(self, job: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Run `job` on the thread. Then call `then` on the loop with the job's result."""
        self._jobs.put((job, then))

    def stop(self) -> None:
        """Run the remaining jobs and end the thread."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, then = item
            try:
                result = job()
            except BaseException as error:  # noqa: BLE001 - the boundary of a background task
                self._loop.call_soon_threadsafe(self._on_error, error)
                return
            self._loop.call_soon_threadsafe(self._deliver, then, result)

    def _deliver(self, then: Callable[[Any], None], result: object) -> None:
        try:
            then(result)
        except Exception as error:  # noqa: BLE001 - the boundary of a background task
            self._on_error(error)


class Timers:
    """Functions that are called again and again. `act` calls each of them, and handles errors."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, act: Callable[[Callable[[], None]], None]
    ) -> None:
        self._loop = loop
        self._act = act
        self._handles: list[asyncio.TimerHandle] = []

    def every(self, seconds: float, action: Callable[[], None]) -> None:
        """Call `action` each time when so many seconds have passed."""
        slot = len(self._handles)

        def run() -> None:
            self._handles[slot] = self._loop.call_later(seconds, run)
            self._act(action)

        self._handles.append(self._loop.call_later(seconds, run))

    def stop(self) -> None:
        """Call no function any more."""
        for handle in self._handles:
            handle.cancel()


# ---- long decisions ------------------------------------------------------------------------------


# A commit with longer extents is decided on one turn of the event loop and applied on a later one.
EXTENTS_PER_TURN_BYTES: Final = MIB
LINKS_PER_TURN: Final = 10_000


class DecisionTurns:
    """Decides commands, and delays those with very long events by one turn of the event loop.

    These are commits with very many chunks, and subscriptions with very many links.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._kept: tuple[EngineCommand, int, Decision] | None = None

    @property
    def is_waiting(self) -> bool:
        """True if a decision was delayed. The command must be tried again."""
        return self._kept is not None

    def decide(self, asked: EngineCommand, command: EngineCommand, end: int) -> Decision | None:
        """Return the decision on `command`, which is `asked` with lookups; None to delay it.

        A delayed decision is kept, and returned when the same command is tried again. It is made
        again if the journal does not end at `end` any more, because the state has changed then.
        """
        kept, self._kept = self._kept, None
        is_second_try = kept is not None and kept[0] is asked
        if kept is not None and is_second_try and kept[1] == end:
            return kept[2]
        decision = decide(self._state, command)
        if _is_long(decision.event) and not is_second_try:
            self._kept = (asked, end, decision)
            return None
        return decision


def _is_long(event: Event | None) -> bool:
    if isinstance(event, Decided):
        return len(event.extents) > EXTENTS_PER_TURN_BYTES
    return isinstance(event, Subscribed) and len(event.links) > LINKS_PER_TURN


# ---- turns of the loop ---------------------------------------------------------------------------
# Reads run on the loop, for a limited time per turn. This is the second of three limits on reads.
# `semel.server.admission` describes all three.


_READING_SECONDS_MAX: Final = 0.005


class ReadTurns:
    """Two queues that run reads in order, for a limited time per turn of the loop.

    When this time is used up, the remaining reads wait for a later turn. Short reads run before
    the other reads. Each turn runs at least one waiting read of each queue.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._short: deque[Callable[[], None]] = deque()
        self._other: deque[Callable[[], None]] = deque()
        self._seconds = 0.0  # the time that reads have used in this turn of the loop
        self._is_due = False

    def begin(self, read: Callable[[], None], *, is_short: bool = False) -> None:
        """Run `read` now, or queue it if reads are waiting or this turn's time is used up.

        A short read does not wait for reads that are not short.
        """
        is_next = not self._short and (is_short or not self._other)
        if is_next and self._seconds <= _READING_SECONDS_MAX:
            self._run(read)
        else:
            (self._short if is_short else self._other).append(read)
        self._call_soon()

    def finish(self) -> None:
        """Run all queued reads."""
        for waiting in (self._short, self._other):
            while waiting:
                self._run(waiting.popleft())

    def drop(self) -> None:
        """Drop all queued reads without running them."""
        self._short.clear()
        self._other.clear()

    def _run(self, read: Callable[[], None]) -> None:
        started = monotonic()
        read()
        self._seconds += monotonic() - started

    def _call_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._is_due = False
        self._seconds = 0.0
        for waiting in (self._short, self._other):
            is_first = True
            while waiting and (is_first or self._seconds <= _READING_SECONDS_MAX):
                is_first = False
                self._run(waiting.popleft())
        if self._short or self._other:
            self._call_soon()


# ---- changes of groups ---------------------------------------------------------------------------

# The commands of clients that change groups, or that search streams by a pattern. They are executed
# in the order of their requests.
_CHANGES: Final = frozenset(
    {DeleteGroup, JoinGroup, LeaveGroup, ReleaseStreams, CreateSubscription}
)
_CHANGING_SECONDS_MAX: Final = 0.003

Act = Callable[[Callable[[], None]], None]
Submit = Callable[[EngineCommand, Callable[[Any], None], Caller | None], None]
Search = Callable[[EngineCommand, Caller | None], Steps[None] | None]


class GroupTurns:
    """A queue that runs changes of groups in order, for a limited time per turn of the loop.

    A change computes the owners of all streams of its group again. In a group with many streams
    this takes some milliseconds, and members often join, leave or expire together. A creation of a
    subscription is treated as a change, too.

    When this time is used up, the remaining changes wait for a later turn. Each turn runs at least
    one change that waits. `act` calls a function on a later turn, and handles its errors.

    `search` returns the steps that must be done before a change, or None (`Guard.search_steps`).
    They are done one after another on as many turns as they need, and other changes do not wait
    for them.
    """

    commands: Final = _CHANGES  # that must be submitted by `submit`

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        act: Act,
        submit: Submit,
        search: Search,
    ) -> None:
        self._loop = loop
        self._act = act
        self._submit = submit
        self._search = search
        self._searches: deque[tuple[Steps[None], Callable[[], None]]] = deque()
        self._waiting: deque[Callable[[], None]] = deque()
        self._seconds = 0.0  # the time that changes have used in this turn of the loop
        self._is_due = self._is_sweeping = False

    def submit(
        self, command: EngineCommand, reply: Callable[[Any], None], caller: Caller | None
    ) -> None:
        """Execute one of the `commands`, now or on a later turn."""
        change = partial(self._submit, command, reply, caller)
        steps = self._search(command, caller)
        if steps is None:
            self.begin(change)
            return
        self._searches.append((steps, change))
        if len(self._searches) == 1:
            self.begin(self._search_step)

    def _search_step(self) -> None:
        """Do a step of the first search that waits. After its last one, run its change."""
        steps, change = self._searches[0]
        try:
            next(steps)
        except StopIteration:
            self._searches.popleft()
            change()
        if self._searches:
            self._waiting.append(self._search_step)

    def begin(self, change: Callable[[], None]) -> None:
        """Run `change` now, or queue it if changes are waiting or this turn's time is used up."""
        if self._waiting or self._seconds > _CHANGING_SECONDS_MAX:
            self._waiting.append(change)
        else:
            self._run(change)
        self._call_soon()

    def sweep(self, steps: Iterator[int]) -> None:
        """Do the steps of a sweep on later turns. Drop them if another sweep is not complete."""
        if not self._is_sweeping:
            self._is_sweeping = True
            self._waiting.append(partial(self._step, steps))
            self._call_soon()

    def _step(self, steps: Iterator[int]) -> None:
        if next(steps, None) is None:
            self._is_sweeping = False
        else:
            self._waiting.append(partial(self._step, steps))

    def finish(self) -> None:
        """Run all queued changes."""
        while self._waiting:
            self._act(self._waiting.popleft())

    def drop(self) -> None:
        """Drop all queued changes without running them."""
        self._waiting.clear()
        self._searches.clear()
        self._is_sweeping = False

    def _run(self, change: Callable[[], None]) -> None:
        started = monotonic()
        change()
        self._seconds += monotonic() - started

    def _call_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._is_due = False
        self._seconds = 0.0
        is_first = True
        while self._waiting and (is_first or self._seconds <= _CHANGING_SECONDS_MAX):
            is_first = False
            self._act(partial(self._run, self._waiting.popleft()))
        if self._waiting:
            self._call_soon()
