"""Two workers of one group, over all interleavings of their steps, on the machine alone.

Both read the same input, and each commits its output together with the group's position. A third
actor may delete the input and create it again, or set the position. Every order of all these steps
is run. `Run.faults` defines what must not happen in any of them.
"""

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Final, NamedTuple

from semel.machine import State, apply, decide
from semel.machine.positions import stored_position
from semel.model import commands as ask
from semel.model.commands import (
    TXN_INLINE,
    TXN_STAGED,
    Create,
    Delete,
    EngineCommand,
    PositionMove,
    ProducerOwner,
)
from semel.model.outcomes import Outcome, Refusal
from tests.unit.machine.builders import JSON, json_batch

GROUP: Final = "g"
INPUT: Final = "in"
MESSAGES: Final = json_batch(*[b"0"] * 20)
FRAME_BYTES: Final = 8  # any value will do

# The steps of the third actor; each step is a tuple of actions.
Disturbance = tuple[tuple[str, ...], ...]
NOTHING: Final[Disturbance] = ()
ANEW: Final[Disturbance] = (("delete", "create"),)
DELETE_THEN_CREATE: Final[Disturbance] = (("delete",), ("create",))
REWIND: Final[Disturbance] = (("rewind",),)
FORWARD: Final[Disturbance] = (("forward",),)

# How a worker commits: by a transaction, which it may prepare first; by a one-shot commit that
# lists a staged transaction, prepared or not; or by a one-shot commit alone.
OPEN: Final = "open"
PREPARED: Final = "prepared"
LISTED: Final = "listed"
PREPARED_LISTED: Final = "prepared, listed"
AT_ONCE: Final = "at once"

# What a worker sends besides `to`.
ALL: Final = "from, incarnation, version"
FROM: Final = "from, incarnation"
ONLY_TO: Final = "nothing else"


class Plan(NamedTuple):
    """What the two workers and the third actor do."""

    ends: tuple[int, int]  # the offset up to which each worker reads
    ways: tuple[str, str] = (OPEN, OPEN)  # how each worker commits
    disturbance: Disturbance = NOTHING
    sends: str = ALL
    retries: int = 0  # how often a worker that was refused begins again with a read


class Output(NamedTuple):
    """A commit: the messages read, and the times of naming the position and of committing."""

    incarnation: str
    first: int
    end: int
    named_at: int
    decided_at: int


class Run:
    """A machine with an input of 20 messages, two workers and the third actor."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.state = State()
        self.clock = 0  # counts the steps
        self.outputs: list[Output] = []
        self.sets: list[int] = []  # when a plain set was accepted
        self.rewinds: list[int] = []  # those that were rewinds
        self.refused_prepared = 0
        self._incarnations = 0
        self._end = 0
        self._events = list(plan.disturbance)
        self._disturb("create")
        self.workers = [Worker(self, number) for number in (0, 1)]

    def ask(self, command: EngineCommand) -> Outcome:
        """Decide a command, and apply what it writes."""
        decision = decide(self.state, command)
        if decision.event is not None:
            apply(self.state, decision.event, decision.sections, 0, self._end)
            self._end += FRAME_BYTES
        return decision.outcome

    def options(self) -> list[Callable[[], None]]:
        """Return the steps that may come next, one for each actor that has steps left."""
        found = [worker.step for worker in self.workers if worker.left]
        return [*found, self._disturb_once] if self._events else found

    def _disturb_once(self) -> None:
        self.clock += 1
        for what in self._events.pop(0):
            self._disturb(what)

    def _disturb(self, what: str) -> None:
        command: EngineCommand
        if what == "create":
            self._incarnations += 1
            name = f"i{self._incarnations}"
            command = Create(INPUT, 0, name, JSON, None, None, False, MESSAGES)
        elif what == "delete":
            command = Delete(INPUT, 0)
        else:
            to = 0 if what == "rewind" else 12
            command = ask.SetPositions(0, (PositionMove(GROUP, INPUT, to),))
        outcome = self.ask(command)
        if isinstance(command, ask.SetPositions) and not isinstance(outcome, Refusal):
            self.sets.append(self.clock)
            self.rewinds += [self.clock] if what == "rewind" else []

    # ---- results ---------------------------------------------------------------------------------

    def faults(self) -> set[str]:
        """Return the names of the faults of a finished run."""
        found = {
            "doubled": self._is_doubled(),
            "undone": self._is_a_set_undone(),
            "refused though prepared": self.refused_prepared > 0,
            "gap": not self.plan.disturbance and self._has_gap(),
            "nobody committed": not self.plan.disturbance and not self.outputs,
        }
        return {name for name, is_so in found.items() if is_so}

    def _is_doubled(self) -> bool:
        """Return whether two commits cover the same message, without a rewind in between.

        After a rewind, messages are read again on purpose. A rewind counts if it was accepted
        between the two commits.
        """
        for one, two in combinations(self.outputs, 2):
            is_shared = one.incarnation == two.incarnation and (
                max(one.first, two.first) < min(one.end, two.end)
            )
            if is_shared and not _is_between(self.rewinds, one.decided_at, two.decided_at):
                return True
        return False

    def _is_a_set_undone(self) -> bool:
        """Return whether a transaction that named the position before a set was committed after."""
        return any(_is_between(self.sets, done.named_at, done.decided_at) for done in self.outputs)

    def _has_gap(self) -> bool:
        """Return whether the position is past a message that no committed transaction covers."""
        stored = stored_position(self.state.by_path[INPUT], GROUP).offset
        taken = {offset for done in self.outputs for offset in range(done.first, done.end)}
        return taken != set(range(stored))


def _is_between(times: list[int], start: int, end: int) -> bool:
    return any(start < at < end for at in times)


class Worker:
    """Reads, begins a transaction, names the position, prepares if planned, and commits.

    With `AT_ONCE`, a worker only reads and commits. After a refusal it aborts; then it begins again
    if it has retries left, or does nothing in its remaining steps.
    """

    def __init__(self, run: Run, number: int) -> None:
        self._run, self._number, self._way = run, number, run.plan.ways[number]
        self._steps = {
            OPEN: [self._read, self._begin, self._name, self._commit],
            PREPARED: [self._read, self._begin, self._name, self._prepare, self._commit],
            LISTED: [self._read, self._begin, self._name, self._commit],
            PREPARED_LISTED: [self._read, self._begin, self._name, self._prepare, self._commit],
            AT_ONCE: [self._read, self._commit],
        }[self._way]
        self.left = list(self._steps)
        self._tries_left = run.plan.retries
        self._tries = 0
        self._is_over = self._is_prepared = False
        self._first = self._version = self._named_at = 0
        self._incarnation = ""

    def step(self) -> None:
        """Do the next step."""
        self._run.clock += 1
        step = self.left.pop(0)
        if not self._is_over:
            step()

    @property
    def _end(self) -> int:
        return self._run.plan.ends[self._number]

    @property
    def _producer(self) -> str:
        return f"p{self._number}"

    @property
    def _is_listed(self) -> bool:
        return self._way in (LISTED, PREPARED_LISTED)

    @property
    def _id(self) -> str:
        return f"t{self._number}-{self._tries}"

    def _read(self) -> None:
        stream = self._run.state.by_path.get(INPUT)
        if stream is None:
            self._stop()
            return
        stored = stored_position(stream, GROUP)
        self._first, self._version = stored.offset, stored.version
        self._incarnation = stream.row.incarnation
        if self._first >= self._end:
            self._stop()

    def _begin(self) -> None:
        kind = TXN_STAGED if self._is_listed else TXN_INLINE
        owner = ProducerOwner(self._producer, 0)
        self._ask(ask.Begin(0, self._id, owner, kind, None, (), True))

    def _name(self) -> None:
        self._named_at = self._run.clock
        self._ask(ask.AddPositions(0, self._id, 1, positions=(self._move(),)))

    def _move(self) -> PositionMove:
        sends = self._run.plan.sends
        if sends == ONLY_TO:
            return PositionMove(GROUP, INPUT, self._end)
        version = self._version if sends == ALL else None
        return PositionMove(GROUP, INPUT, self._end, self._first, self._incarnation, version)

    def _prepare(self) -> None:
        self._is_prepared = self._ask(ask.Prepare(0, self._id, 1))

    def _commit(self) -> None:
        was_prepared = self._is_prepared
        if self._ask(self._decision()):
            read = (self._incarnation, self._first, self._end)
            self._run.outputs.append(Output(*read, self._named_at, self._run.clock))
        elif was_prepared:
            self._run.refused_prepared += 1

    def _decision(self) -> EngineCommand:
        if self._is_listed:
            listed = (ask.ListedTxn(self._id, 1),)
            return ask.Commit(0, self._producer, 0, 0, transactions=listed)
        if self._way == AT_ONCE:
            self._named_at = self._run.clock
            return ask.Commit(0, self._producer, 0, 0, positions=(self._move(),))
        return ask.CommitTxn(0, self._id, 1)

    def _ask(self, command: EngineCommand) -> bool:
        """Send a command, and return whether it was accepted."""
        if not isinstance(self._run.ask(command), Refusal):
            return True
        self._run.ask(ask.AbortTxn(0, self._id, 1))
        self._is_prepared = False
        if self._tries_left:
            self._tries_left -= 1
            self._tries += 1
            self.left = list(self._steps)
        else:
            self._stop()
        return False

    def _stop(self) -> None:
        self._is_over = True
        if self._run.plan.retries:
            self.left = []  # with retries the number of steps depends on the outcomes


def every_run(plan: Plan) -> Iterator[Run]:
    """Run a plan in every order of the steps of its three actors."""
    script: list[int] = []  # which option to take at each step; then always the first
    while True:
        run = Run(plan)
        taken: list[tuple[int, int]] = []  # the choice, and the number of options
        while options := run.options():
            choice = script[len(taken)] if len(taken) < len(script) else 0
            taken.append((choice, len(options)))
            options[choice]()
        yield run
        while taken and taken[-1][0] + 1 == taken[-1][1]:
            taken.pop()
        if not taken:
            return
        last, _ = taken.pop()
        script = [*(choice for choice, _ in taken), last + 1]
