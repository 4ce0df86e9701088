"""Two members of a group and one stream, over all interleavings of their steps, on the machine.

Each member joins, reads when it owns the stream, and commits its output together with the group's
position. Others end a member, take the stream from it, and rebalance the group. A member that has
lost the stream does not know, and goes on. `Run.faults` defines what must not happen in any order.
"""

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Final, NamedTuple

from semel.machine import State, apply, decide
from semel.machine.positions import stored_position
from semel.machine.rows import ShareRow
from semel.model import commands as ask
from semel.model.commands import (
    TXN_INLINE,
    TXN_STAGED,
    Create,
    EngineCommand,
    PositionMove,
    ProducerOwner,
)
from semel.model.group_commands import (
    ExpireMember,
    JoinGroup,
    LeaveGroup,
    RebalanceGroup,
    ReleaseStreams,
)
from semel.model.outcomes import Outcome, Refusal
from tests.unit.machine.builders import JSON, json_batch

GROUP: Final = "g"
INPUT: Final = "in"
MESSAGES: Final = 20
HALF: Final = 10  # a member reads so many at once
FRAME_BYTES: Final = 8  # any value will do
LONG_MS: Final = 10**9

# How a member commits: by a transaction, which it may prepare first; by a one-shot commit that
# lists a staged transaction; by a one-shot commit alone; or by a plain set, without an output.
OPEN: Final = "open"
PREPARED: Final = "prepared"
LISTED: Final = "listed"
AT_ONCE: Final = "at once"

# How the first member loses the stream.
EXPIRE: Final = "expire"
LEAVE: Final = "leave"
RELEASE: Final = "release"
REPLACE: Final = "replace"  # the second member joins as the same instance


class Plan(NamedTuple):
    """What the two members do, and how the first of them loses the stream."""

    ways: tuple[str, str] = (OPEN, OPEN)
    end: str = EXPIRE
    has_from: bool = True  # they send `from`, `incarnation` and `version` with their moves
    returns: bool = False  # the first member joins anew after it has lost the stream


class Output(NamedTuple):
    """A commit that was accepted: what was read, by whom, and when that was prepared or decided."""

    first: int
    end: int
    member: str
    epoch: int
    was_owner: bool  # when it was prepared or, if it was not, decided


class Run:
    """A machine with an input of 20 messages, two members, and others."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.state = State()
        self.outputs: list[Output] = []
        self.refused_owners = self.refused_prepared = self.doubly_owned = 0
        self._end = 0
        self._now_ms = 0
        batch = json_batch(*[b"0"] * MESSAGES)
        self.ask(Create(INPUT, 0, "i1", JSON, None, None, False, batch))
        self.members = [MemberRun(self, 0), MemberRun(self, 1)]
        self._others = [] if plan.end == REPLACE else [self._end_first, self._rebalance]
        self._epoch = 0
        self.members[0].step()  # it joins before everything else

    def ask(self, command: EngineCommand) -> Outcome:
        """Decide a command, and apply what it writes."""
        decision = decide(self.state, command)
        if decision.event is not None:
            self._now_ms += 1
            apply(self.state, decision.event, decision.sections, self._now_ms, self._end)
            self._end += FRAME_BYTES
            self._check_epoch()
        return decision.outcome

    def _check_epoch(self) -> None:
        """Count a stream that has another owner at the same epoch, or an epoch that went back."""
        row = self.row()
        if row is None or row.owner is None:
            return
        self.doubly_owned += row.epoch < self._epoch
        if (row.owner, row.epoch) != (self._owner, self._epoch):
            self.doubly_owned += row.epoch == self._epoch
            self.doubly_owned += bool((self.state.by_path[INPUT].holds or {}).get(GROUP))
        self._owner, self._epoch = row.owner, row.epoch

    _owner = ""

    def row(self) -> ShareRow | None:
        """Return who owns the input."""
        share = self.state.shares.get(GROUP)
        return None if share is None else share.streams.get(self.state.by_path[INPUT].row.number)

    def owns(self, member: str, epoch: int | None = None) -> bool:
        """Return whether a member owns the input, at an epoch if one is given."""
        row = self.row()
        return row is not None and row.owner == member and epoch in (None, row.epoch)

    def options(self) -> list[Callable[[], None]]:
        """Return the steps that may come next, one for each actor that can do one."""
        found = [member.step for member in self.members if member.can_step()]
        return [*found, self._step_of_others] if self._others else found

    def _step_of_others(self) -> None:
        self._others.pop(0)()

    def _end_first(self) -> None:
        name = self.members[0].name
        if self.plan.end == EXPIRE:
            self.ask(ExpireMember(0, GROUP, name, LONG_MS))
        elif self.plan.end == LEAVE:
            self.ask(LeaveGroup(0, GROUP, name))
        else:
            self.ask(ReleaseStreams(0, GROUP, name, (INPUT,)))

    def _rebalance(self) -> None:
        self.ask(RebalanceGroup(0, GROUP))

    def finish(self) -> None:
        """End what is left, and let a last member process what nobody has processed."""
        for member in self.members:
            member.give_up()
        for name in [*self.state.shares[GROUP].members]:
            self.ask(LeaveGroup(0, GROUP, name))
        last = MemberRun(self, 2)
        while stored_position(self.state.by_path[INPUT], GROUP).offset < MESSAGES:
            done = len(self.outputs)
            last.begin_again()
            while last.can_step():
                last.step()
            if len(self.outputs) == done:
                return

    def faults(self) -> set[str]:
        """Return the names of the faults of a finished run."""
        taken = [offset for done in self.outputs for offset in range(done.first, done.end)]
        pairs = combinations(self.outputs, 2)
        found = {
            "doubled": len(set(taken)) < len(taken),
            "lost": set(taken) != set(range(MESSAGES)),
            "out of order": any(one.first > two.first for one, two in pairs),
            "by a zombie": not all(done.was_owner for done in self.outputs),
            "the owner was refused": self.refused_owners > 0,
            "refused though prepared": self.refused_prepared > 0,
            "two owners": self.doubly_owned > 0,
        }
        return {name for name, is_so in found.items() if is_so}


class MemberRun:
    """Joins, waits until it owns the input, reads, begins, names, prepares if planned, commits."""

    def __init__(self, run: Run, number: int) -> None:
        self._run, self._number = run, number
        self._way = run.plan.ways[number] if number < 2 else AT_ONCE
        self._tries = 0
        self.name = f"m{number}"
        self._steps = {
            OPEN: [self._begin, self._name, self._commit],
            PREPARED: [self._begin, self._name, self._prepare, self._commit],
            LISTED: [self._begin, self._name, self._commit],
            AT_ONCE: [self._commit],
        }[self._way]
        self._left: list[Callable[[], None]] = [self._join, self._read, *self._steps]
        if run.plan.returns and number == 0:
            self._left += [self._join_again, self._read, *self._steps]
        self._first = self._version = self._epoch = self._seq = 0
        self._incarnation = ""
        self._is_over = self._is_prepared = self._was_owner = False

    def can_step(self) -> bool:
        """Return whether it has a next step; it can read only what it owns."""
        if not self._left:
            return False
        return self._left[0] != self._read or self._run.owns(self.name)

    def step(self) -> None:
        """Do the next step."""
        step = self._left.pop(0)
        if not self._is_over or step in (self._join_again, self._read):
            step()

    def begin_again(self) -> None:
        """Process the next messages."""
        self._is_over = False
        is_member = self.name in self._run.state.shares[GROUP].members
        self._left = [*([] if is_member else [self._join]), self._read, *self._steps]

    def give_up(self) -> None:
        """End a transaction that is still pending, as its timeout does."""
        if self._id in self._run.state.transactions:
            self._run.ask(ask.AbortTxn(0, self._id, 1))

    # ---- steps -----------------------------------------------------------------------------------

    def _join(self) -> None:
        instance = "i" if self._run.plan.end == REPLACE and self._number < 2 else None
        self._run.ask(JoinGroup(0, GROUP, self.name, (INPUT,), instance=instance))

    def _join_again(self) -> None:
        self.give_up()
        self.name, self._is_over = f"{self.name}-again", False
        self._join()

    def _read(self) -> None:
        self._tries += 1
        self._is_over = self._is_prepared = False
        stream, row = self._run.state.by_path[INPUT], self._run.row()
        assert row is not None
        stored = stored_position(stream, GROUP)
        self._first, self._version, self._epoch = stored.offset, stored.version, row.epoch
        self._incarnation = stream.row.incarnation
        self._is_over = self._first >= MESSAGES

    @property
    def _id(self) -> str:
        return f"t{self._number}-{self._tries}"

    @property
    def _to(self) -> int:
        return min(self._first + HALF, MESSAGES)

    def _move(self) -> PositionMove:
        move = PositionMove(GROUP, INPUT, self._to, member=self.name, member_epoch=self._epoch)
        if not self._run.plan.has_from:
            return move
        guards = (self._first, self._incarnation, self._version)
        return PositionMove(GROUP, INPUT, self._to, *guards, (), self.name, self._epoch)

    def _begin(self) -> None:
        kind = TXN_STAGED if self._way == LISTED else TXN_INLINE
        owner = ProducerOwner(f"p{self._number}", 0)
        self._ask(ask.Begin(0, self._id, owner, kind, None, (), True))

    def _name(self) -> None:
        self._ask(ask.AddPositions(0, self._id, 1, positions=(self._move(),)))

    def _prepare(self) -> None:
        self._was_owner = self._run.owns(self.name, self._epoch)
        self._is_prepared = self._ask(ask.Prepare(0, self._id, 1))

    def _commit(self) -> None:
        was_prepared, tries = self._is_prepared, self._tries
        if not was_prepared:
            self._was_owner = self._run.owns(self.name, self._epoch)
        if self._ask(self._decision()):
            by = (self.name, self._epoch, self._was_owner)
            self._run.outputs.append(Output(self._first, self._to, *by))
            self._is_prepared = False
        elif was_prepared and tries == self._tries:
            self._run.refused_prepared += 1

    def _decision(self) -> EngineCommand:
        producer = (f"p{self._number}", 0, self._seq)
        if self._way == LISTED:
            return ask.Commit(0, *producer, transactions=(ask.ListedTxn(self._id, 1),))
        if self._way == AT_ONCE:
            return ask.Commit(0, *producer, positions=(self._move(),))
        return ask.CommitTxn(0, self._id, 1)

    def _ask(self, command: EngineCommand) -> bool:
        """Send a command, and return whether it was accepted. The owner is never refused."""
        outcome = self._run.ask(command)
        self._seq += isinstance(command, ask.Commit) and not isinstance(outcome, Refusal)
        if not isinstance(outcome, Refusal):
            return True
        self._run.refused_owners += self._run.owns(self.name, self._epoch)
        self._run.ask(ask.AbortTxn(0, self._id, 1))
        self._is_prepared, self._is_over = False, True
        return False


def every_run(plan: Plan) -> Iterator[Run]:
    """Run a plan in every order of the steps of all actors."""
    script: list[int] = []  # which option to take at each step; then always the first
    while True:
        run = Run(plan)
        taken: list[tuple[int, int]] = []  # the choice, and the number of options
        while options := run.options():
            choice = script[len(taken)] if len(taken) < len(script) else 0
            taken.append((choice, len(options)))
            options[choice]()
        run.finish()
        yield run
        while taken and taken[-1][0] + 1 == taken[-1][1]:
            taken.pop()
        if not taken:
            return
        last, _ = taken.pop()
        script = [*(choice for choice, _ in taken), last + 1]
