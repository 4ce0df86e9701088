"""The check of shared groups: each message is processed once, unless a group is set back.

For every group, stream and incarnation there must be an order of all moves in which each committed
transaction starts at the position of the group, from 0 on.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Final, NamedTuple

from semel.testing.txn.facts import Anomaly, HistoryFacts, appends_of, name_of
from semel.testing.txn.history import RecordedChange, RecordedTransaction

# ---- chains --------------------------------------------------------------------------------------
# The search for an order of the moves of one group in one stream.
#
# Each step leads from the position of the group to another offset; a set leads there from anywhere.
# The order must agree with time: a step that had ended comes before one that started later. The
# search adds one step after another, and backtracks if none is possible. Since a step must start at
# the position of the group, there is seldom a choice, and the time is about linear.


NEVER: Final = 2**63  # later than any time
_STATES_MAX: Final = 1_000_000


class ChainStep(NamedTuple):
    """One move, made not before `low` and not after `high`; a set if it has no `start`.

    A prepared transaction is not before its commit was sent, and not after it was prepared: since
    no other one could move the group between the two, both hold, and `high` may be below `low`.
    Not `is_sure`: it may or may not have been made. `is_end`: not a move, but the final position of
    the group.
    """

    low: int
    high: int
    start: int | None
    to: int
    transaction: RecordedTransaction | None = None
    is_sure: bool = True
    is_end: bool = False

    @property
    def goes_back(self) -> bool:
        """Whether messages may be processed again after it."""
        return self.start is None or self.to < self.start

    @property
    def is_hold(self) -> bool:
        """Whether there was a time in which no other transaction could move the group."""
        return self.high < self.low


class Stuck(NamedTuple):
    """No order explains `step`: the group was at `position` after the steps of `before`.

    `before` begins with the last one that went back, or is all there is. `inside`: moves that were
    made while only `step` could be made.
    """

    step: ChainStep
    position: int
    before: list[ChainStep]
    inside: tuple[ChainStep, ...] = ()


class _State(NamedTuple):
    """A partial order: which steps it has, and the position of the group after them.

    Of the timed steps it has those before `first`, and `done`; of the loose ones the bits of
    `loose`.
    """

    first: int
    done: frozenset[int]
    loose: int
    position: int

    @property
    def depth(self) -> int:
        return self.first + len(self.done) + self.loose.bit_count()


class Chain:
    """All steps of a group in a stream, from its first position on."""

    def __init__(self, steps: Iterable[ChainStep], end: int | None) -> None:
        """Take steps; `end`: where the group is after all of them, if that is known."""
        every = sorted(steps, key=lambda step: step.low)
        if end is not None:
            every.append(ChainStep(NEVER, NEVER, end, end, is_end=True))
        moves = [step for step in every if step.start is not None]
        sets = [step for step in every if step.start is None]
        self._anytime = [step for step in sets if step.high == NEVER]
        self._loose = [step for step in moves if not _is_timed(step)]
        self._timed = [step for step in every if _is_timed(step)]
        self._lows = [step.low for step in self._timed]
        highs = [step.high for step in reversed(self._timed)]
        self._high_from = [*reversed([*accumulate(highs, min)]), NEVER]
        self._sets = [index for index, step in enumerate(self._timed) if step.start is None]
        self._set_highs = [*accumulate((self._timed[index].high for index in self._sets), max)]
        self._came_from: dict[_State, tuple[_State, ChainStep]] = {}

    def stuck(self) -> Iterator[Stuck]:
        """Return each place where no order goes on; after it, as if the step had been made."""
        state = _State(0, frozenset(), 0, 0)
        while (deepest := self._search(state)) is not None:
            found, state, made = self._blocked(deepest)
            self._came_from[state] = deepest, made
            yield found

    # ---- the search ------------------------------------------------------------------------------

    def _search(self, start: _State) -> _State | None:
        """Return None if there is an order of all steps, else the state that has the most."""
        deepest = start
        stack, seen = [start], {start}
        while stack:
            state = stack.pop()
            if state.first == len(self._timed) and not self._missing(state):
                return None
            if state.depth > deepest.depth:
                deepest = state
            for step, following in reversed(list(self._options(state))):
                if following not in seen:
                    seen.add(following)
                    self._came_from[following] = state, step
                    stack.append(following)
            if len(seen) > _STATES_MAX:
                raise ValueError("too many moves of one group have no answer to be judged")
        return deepest

    def _options(self, state: _State) -> Iterator[tuple[ChainStep, _State]]:
        """Return the steps that may come next, the likely ones first."""
        window, high = self._window(state)
        window.sort(key=lambda index: (self._timed[index].start is None, self._timed[index].high))
        for index in window:
            step = self._timed[index]
            if step.start in (None, state.position) and not (step.is_end and self._missing(state)):
                yield step, self._after(state, index)
        for number, step in enumerate(self._loose):
            is_done = state.loose >> number & 1
            if not is_done and step.start == state.position and step.low <= high:
                mask = state.loose | 1 << number
                yield step, state._replace(loose=mask, position=step.to)
        for step in self._repeated(state, high):
            if step.to != state.position:
                yield step, state._replace(position=step.to)

    def _window(self, state: _State) -> tuple[list[int], int]:
        """Return the timed steps that no other one must come before, and the first time of an end.

        That is the time by which one of those that are left must have been made.
        """
        left: list[int] = []
        index, last = state.first, max(state.done, default=-1)
        lowest, second = NEVER, NEVER  # of the ends of those that are left
        until = NEVER  # what begins later comes after one of those that are left
        while index < len(self._timed) and (index <= last or self._lows[index] <= until):
            if index not in state.done:
                left.append(index)
                step = self._timed[index]
                lowest, second = min(lowest, step.high), min(second, max(lowest, step.high))
                until = until if step.is_hold else min(until, step.high)
            index += 1
        after = self._high_from[index]
        found = []
        for each in left:
            others = second if self._timed[each].high == lowest else lowest
            if self._lows[each] <= min(others, after):
                found.append(each)
        return found, min(lowest, after)

    def _after(self, state: _State, index: int) -> _State:
        first, done = state.first, set(state.done)
        done.add(index)
        while first in done:
            done.remove(first)
            first += 1
        return _State(first, frozenset(done), state.loose, self._timed[index].to)

    def _repeated(self, state: _State, high: int) -> Iterator[ChainStep]:
        """Return sets that may be made now out of turn: repeated ones, or without a response."""
        yield from (step for step in self._anytime if step.low <= high)
        last = max(state.done, default=state.first - 1)
        lows = [step.low for n, step in enumerate(self._loose) if state.loose >> n & 1]
        low = max(lows + self._lows[last : last + 1], default=0)
        for number in range(bisect_right(self._sets, last) - 1, -1, -1):
            if self._set_highs[number] < low:
                return
            index = self._sets[number]
            is_done = index < state.first or index in state.done
            if is_done and self._timed[index].high >= low:
                yield self._timed[index]

    def _missing(self, state: _State) -> list[int]:
        """Return the loose steps that were made and are not in the order yet."""
        every = enumerate(self._loose)
        return [n for n, step in every if step.is_sure and not state.loose >> n & 1]

    # ---- where it ends ---------------------------------------------------------------------------

    def _blocked(self, state: _State) -> tuple[Stuck, _State, ChainStep]:
        """Return what cannot come next, and the state after a step that is made all the same."""
        window, _ = self._window(state)
        index = min(window, key=lambda each: self._timed[each].high, default=-1)
        before, missing = self._before(state), self._missing(state)
        if index >= 0 and not (self._timed[index].is_end and missing):
            step = self._timed[index]
            return Stuck(step, state.position, before), self._after(state, index), step
        if missing:
            step = self._loose[missing[0]]
            mask = state.loose | 1 << missing[0]
            following = state._replace(loose=mask, position=step.to)
            return Stuck(step, state.position, before), following, step
        left = [n for n in range(state.first, len(self._timed)) if n not in state.done]
        index = next(each for each in left if self._timed[each].is_hold)
        holder = self._timed[index]
        inside = tuple(self._timed[n] for n in left if _is_inside(self._timed[n], holder))
        return Stuck(holder, state.position, before, inside), self._after(state, index), holder

    def _before(self, state: _State) -> list[ChainStep]:
        """Return the steps that have led to a state since the group last went back, in order."""
        found: list[ChainStep] = []
        while state in self._came_from and not (found and found[-1].goes_back):
            state, step = self._came_from[state]
            found.append(step)
        return found[::-1]


def _is_timed(step: ChainStep) -> bool:
    return step.is_end or (step.is_sure and step.high < NEVER)


def _is_inside(step: ChainStep, holder: ChainStep) -> bool:
    return step is not holder and step.low > holder.high and step.high < holder.low


# ---- checks --------------------------------------------------------------------------------------


_Name = tuple[str, str, str]  # group, stream, incarnation


def check_shared(
    facts: HistoryFacts,
    positions: Mapping[tuple[str, str], int] | None,
    incarnations: Mapping[str, str] | None,
) -> Iterator[Anomaly]:
    """Check the moves of groups by transactions that recorded where they started.

    `positions` and `incarnations` are the final ones; None if unknown.
    """
    for transaction in facts.history.transactions:
        yield from _check_prepared(transaction)
    yield from _check_deletes(facts)
    steps = _steps(facts)
    ends = _ends(steps, positions, incarnations)
    for name in sorted(steps.keys() | ends.keys()):
        for stuck in Chain(steps.get(name, ()), ends.get(name)).stuck():
            yield _anomaly(name, stuck)


def _check_prepared(transaction: RecordedTransaction) -> Iterator[Anomaly]:
    """Check that a prepared transaction is not refused."""
    prepared_at, refused_at = transaction.prepared_at, transaction.refused_at
    if prepared_at is not None and refused_at is not None and refused_at >= prepared_at:
        text = f"{name_of(transaction)} was prepared, and then refused because of a position"
        yield Anomaly("position", text, (transaction.id,))


def _check_deletes(facts: HistoryFacts) -> Iterator[Anomaly]:
    """Check that nothing processed of a deleted stream is committed later, unless prepared."""
    ended: dict[tuple[str, str], int] = {}
    for change in facts.history.deletes:
        if change.returned_at is not None and not change.is_refused:
            ended[change.stream, change.incarnation] = change.returned_at
    for number, transaction in enumerate(facts.history.transactions):
        prepare_at, decide_at = transaction.prepare_at, transaction.decide_at
        asked_at = decide_at if prepare_at is None else prepare_at
        if asked_at is None or not facts.is_committed[number]:
            continue
        for (group, stream), taken in transaction.ranges.items():
            if ended.get((stream, taken.incarnation), NEVER) < asked_at:
                path = _path(stream, taken.incarnation)
                text = (
                    f"{name_of(transaction)} took {taken.start} to {taken.to} of {path} for group"
                    f" {group}; the stream was deleted before its commit was sent"
                )
                yield Anomaly("position", text, (transaction.id,))


def _path(stream: str, incarnation: str) -> str:
    return f"{stream} ({incarnation})" if incarnation else stream


# ---- the moves -----------------------------------------------------------------------------------


def _steps(facts: HistoryFacts) -> dict[_Name, list[ChainStep]]:
    found: dict[_Name, list[ChainStep]] = {}
    others = {where for each in facts.history.transactions for where in each.moves}
    for change in facts.history.sets:
        name = change.group, change.stream, change.incarnation
        if name[:2] not in others and not change.is_refused:
            found.setdefault(name, []).append(_step_of_set(change))
    for number, transaction in enumerate(facts.history.transactions):
        is_sure = facts.is_committed[number]
        is_open = transaction.outcome == "unknown" and not any(appends_of(transaction))
        if not (is_sure or is_open):
            continue
        for (group, stream), taken in transaction.ranges.items():
            low, high = _times(facts, number)
            step = ChainStep(low, high, taken.start, taken.to, transaction, is_sure)
            found.setdefault((group, stream, taken.incarnation), []).append(step)
    return found


def _step_of_set(change: RecordedChange) -> ChainStep:
    high = NEVER if change.returned_at is None else change.returned_at
    return ChainStep(change.invoked_at, high, None, change.to)


def _times(facts: HistoryFacts, number: int) -> tuple[int, int]:
    """Return when a transaction moved its groups: not before, and not after."""
    transaction = facts.history.transactions[number]
    low = transaction.invoked_at if transaction.decide_at is None else transaction.decide_at
    known = (facts.decided_by[number], transaction.prepared_at)
    return low, min((time for time in known if time is not None), default=NEVER)


def _ends(
    steps: Mapping[_Name, object],
    positions: Mapping[tuple[str, str], int] | None,
    incarnations: Mapping[str, str] | None,
) -> dict[_Name, int]:
    """Return where groups are in the end, as far as it is known in which stream."""
    if positions is None:
        return {}
    known: dict[str, set[str]] = {}
    for _, stream, incarnation in steps:
        known.setdefault(stream, set()).add(incarnation)
    if incarnations is not None:
        known = {stream: {incarnations[stream]} for stream in known if stream in incarnations}
    found = {}
    for group, stream, _ in steps:
        if len(known.get(stream, ())) == 1:
            (incarnation,) = known[stream]
            found[group, stream, incarnation] = positions.get((group, stream), 0)
    return found


# ---- in words ------------------------------------------------------------------------------------


def _anomaly(name: _Name, stuck: Stuck) -> Anomaly:
    group, stream, incarnation = name
    path = _path(stream, incarnation)
    step, last = stuck.step, stuck.before[-1] if stuck.before else None
    ids = _ids(last, step, *stuck.inside)
    if stuck.inside:
        others = ", ".join(_made(each) for each in stuck.inside)
        text = f"{_who(step)} was prepared and held group {group} in {path}; meanwhile {others}"
        return Anomaly("position", text, ids)
    where = f"group {group} was at {stuck.position} in {path}, {_left(last)}"
    if step.is_end:
        return Anomaly("position", f"{where}, and in the end it is at {step.to}", ids)
    took = f"{_who(step)} took {step.start} to {step.to}"
    for earlier in stuck.before:
        if _is_shared(earlier, step):
            text = (
                f"{took} of {path} for group {group}, of which {_who(earlier)} had taken"
                f" {earlier.start} to {earlier.to}, and nobody set the group back between them"
            )
            return Anomaly("double", text, _ids(earlier, step))
    return Anomaly("position", f"{where}, and {took}", ids)


def _is_shared(one: ChainStep, other: ChainStep) -> bool:
    if one.start is None or other.start is None:
        return False
    return one.start < other.to and other.start < one.to


def _who(step: ChainStep) -> str:
    return "a set" if step.transaction is None else name_of(step.transaction)


def _made(step: ChainStep) -> str:
    if step.start is None:
        return f"it was set to {step.to}"
    return f"{_who(step)} took {step.start} to {step.to}"


def _left(step: ChainStep | None) -> str:
    return "where it begins" if step is None else f"where {_who(step)} left it"


def _ids(*steps: ChainStep | None) -> tuple[str, ...]:
    transactions = [step.transaction for step in steps if step is not None]
    return tuple(dict.fromkeys(each.id for each in transactions if each is not None))
