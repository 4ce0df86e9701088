"""Checks groups that workers share: each message is processed once, unless a position is set back.

Each group is checked separately in each incarnation of a stream. The checker searches for an order
of all changes of the group's position such that each committed transaction starts where the change
before it ended. The first position of a group is 0.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Final, NamedTuple

from semel.testing.txn.facts import (
    NEVER,
    Anomaly,
    HistoryFacts,
    appends_of,
    name_of,
    time_or_never,
)
from semel.testing.txn.history import RecordedTransaction

# ---- chains --------------------------------------------------------------------------------------
# A search for an order of the moves of one group in one stream.
#
# Each step moves the group from its current position to a new offset. A step is a transaction or a
# set. A set moves the group outside any transaction, from any position.
#
# The order must agree with time: if step A had ended before step B started, A comes before B.
#
# The search adds one step after the other, and backtracks if no step is possible. There is seldom a
# choice, because a step must start at the group's current position. Therefore the search takes
# about linear time.


_STATES_MAX: Final = 1_000_000


class ChainStep(NamedTuple):
    """One move of a group's position from `start` to `to`, at a time between `low` and `high`.

    If `start` is None, a request outside any transaction set the position. If `is_sure` is false,
    the move may not have happened. If `is_end` is true, the step only marks the final position.

    For a prepared transaction, the two times are reversed: `high`, when it was prepared, is earlier
    than `low`, when its commit was sent. The transaction holds the position between these times, so
    every other step ended before `high` or started after `low`.
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
        """True if messages can be processed a second time after this step."""
        return self.start is None or self.to < self.start

    @property
    def is_hold(self) -> bool:
        """True for a prepared transaction. It held the position from time `high` to time `low`."""
        return self.high < self.low


class Stuck(NamedTuple):
    """A violation: `step` cannot be placed in any order of the steps.

    `position` is the group's position just before `step`, and `before` contains the steps that lead
    to this position. If any step moved the group back, `before` begins with the last such step.

    `inside` contains the steps that happened while `step`, a prepared transaction, held the group's
    position. For every other violation, `inside` is empty.
    """

    step: ChainStep
    position: int
    before: list[ChainStep]
    inside: tuple[ChainStep, ...] = ()


class _State(NamedTuple):
    """A state of the search: the steps that are ordered so far, and the resulting position.

    - A timed step certainly happened, and its latest possible time is known. A timed step is
      ordered if its index is below `first` or in `done`.
    - A transaction's step that is not timed is loose. Bit n of `loose` is 1 if the loose step with
      index n is ordered.
    """

    first: int
    done: frozenset[int]
    loose: int
    position: int

    @property
    def depth(self) -> int:
        return self.first + len(self.done) + self.loose.bit_count()


class Chain:
    """All moves of a group's position in a stream's incarnation, and the search for their order."""

    def __init__(self, steps: Iterable[ChainStep], end: int | None) -> None:
        """Prepare the search. `end` is the group's position after all steps, or None if unknown."""
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
        """Yield a violation for each step that cannot be placed in any order of the steps.

        After each violation, the search continues as if the step had been possible.
        """
        state = _State(0, frozenset(), 0, 0)
        while (deepest := self._search(state)) is not None:
            stuck, state = self._blocked(deepest)
            self._came_from[state] = deepest, stuck.step
            yield stuck

    # ---- the search ------------------------------------------------------------------------------

    def _search(self, start: _State) -> _State | None:
        """Check that all steps can be ordered, beginning at the state `start`.

        Return None if they can. Otherwise return the state in which the most steps are ordered.
        Raises ValueError if the search has too many states.
        """
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
                raise ValueError(
                    "a group cannot be checked: too many changes of its position have no response"
                )
        return deepest

    def _options(self, state: _State) -> Iterator[tuple[ChainStep, _State]]:
        """Yield the steps that can come next, each with the state that follows the step.

        The most likely steps come first.
        """
        window, high = self._window(state)
        window.sort(key=lambda index: (self._timed[index].start is None, self._timed[index].high))
        for index in window:
            step = self._timed[index]
            if step.start in (None, state.position) and not (step.is_end and self._missing(state)):
                yield step, self._after(state, index)
        for number, step in enumerate(self._loose):
            is_done = state.loose >> number & 1
            if not is_done and step.start == state.position and step.low <= high:
                yield step, self._after_loose(state, number)
        for step in self._repeated(state, high):
            if step.to != state.position:
                yield step, state._replace(position=step.to)

    def _window(self, state: _State) -> tuple[list[int], int]:
        """Return the indexes of the timed steps that can come next, and a time limit.

        The limit is the lowest `high` of the remaining timed steps. A step that is not timed can
        come next only if its `low` is not after the limit. Positions are not checked.
        """
        left: list[int] = []
        index, last = state.first, max(state.done, default=-1)
        lowest, second = NEVER, NEVER  # the two lowest values of `high` of the remaining steps
        until = NEVER  # a step whose `low` is after this time cannot come next
        while index < len(self._timed) and (index <= last or self._lows[index] <= until):
            if index not in state.done:
                left.append(index)
                step = self._timed[index]
                lowest, second = min(lowest, step.high), min(second, max(lowest, step.high))
                until = until if step.is_hold else min(until, step.high)
            index += 1
        after = self._high_from[index]
        window = [
            number
            for number in left
            if self._lows[number]
            <= min(second if self._timed[number].high == lowest else lowest, after)
        ]
        return window, min(lowest, after)

    def _after(self, state: _State, index: int) -> _State:
        first, done = state.first, set(state.done)
        done.add(index)
        while first in done:
            done.remove(first)
            first += 1
        return _State(first, frozenset(done), state.loose, self._timed[index].to)

    def _after_loose(self, state: _State, number: int) -> _State:
        return state._replace(loose=state.loose | 1 << number, position=self._loose[number].to)

    def _repeated(self, state: _State, high: int) -> Iterator[ChainStep]:
        """Yield the sets (requests outside any transaction) that can change the position now.

        - A set that never got a response, if it was sent at `high` or earlier.
        - A set that is already ordered but has no response yet: its retry can take effect again.
        """
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
        """Return the indexes in `_loose` of steps that surely happened but are not ordered yet."""
        every = enumerate(self._loose)
        return [n for n, step in every if step.is_sure and not state.loose >> n & 1]

    # ---- violations ------------------------------------------------------------------------------

    def _blocked(self, state: _State) -> tuple[Stuck, _State]:
        """Return the violation at `state`, and the state from which the search continues.

        No step is possible at `state`. The search continues as if the violating step were possible.
        """
        window, _ = self._window(state)
        index = min(window, key=lambda number: self._timed[number].high, default=-1)
        before, missing = self._before(state), self._missing(state)
        if index >= 0 and not (self._timed[index].is_end and missing):
            stuck = Stuck(self._timed[index], state.position, before)
            return stuck, self._after(state, index)
        if missing:
            stuck = Stuck(self._loose[missing[0]], state.position, before)
            return stuck, self._after_loose(state, missing[0])
        left = [n for n in range(state.first, len(self._timed)) if n not in state.done]
        index = next(number for number in left if self._timed[number].is_hold)
        holder = self._timed[index]
        inside = tuple(self._timed[n] for n in left if _is_inside(self._timed[n], holder))
        return Stuck(holder, state.position, before, inside), self._after(state, index)

    def _before(self, state: _State) -> list[ChainStep]:
        """Return the steps that lead to a state, in order.

        If any step moved the group back, the returned list begins with the last such step.
        """
        steps: list[ChainStep] = []
        while state in self._came_from and not (steps and steps[-1].goes_back):
            state, step = self._came_from[state]
            steps.append(step)
        return steps[::-1]


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
    """Check that the ranges that transactions processed agree with the positions of the groups.

    `positions` maps each group and stream to the final position. `incarnations` maps each stream to
    its final incarnation. Raises ValueError if too many changes of one position got no response.
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
    """Check that a prepared transaction was not refused later because of a group's position."""
    prepared_at, refused_at = transaction.prepared_at, transaction.refused_at
    if prepared_at is not None and refused_at is not None and refused_at >= prepared_at:
        text = f"{name_of(transaction)} was refused after its prepare because of a group's position"
        yield Anomaly("position", text, (transaction.id,))


def _check_deletes(facts: HistoryFacts) -> Iterator[Anomaly]:
    """Check that no transaction committed a range of a stream after the stream was deleted.

    It is an anomaly if the transaction's prepare was sent after the deletion had ended. If the
    transaction has no prepare, it is an anomaly if its commit was sent after the deletion.
    """
    deleted_at = {
        (change.stream, change.incarnation): time_or_never(change.returned_at)
        for change in facts.history.deletes
        if change.is_done
    }
    for number, transaction in enumerate(facts.history.transactions):
        prepare_at, decide_at = transaction.prepare_at, transaction.decide_at
        sent_at = decide_at if prepare_at is None else prepare_at
        if sent_at is None or not facts.is_committed[number]:
            continue
        for (group, stream), processed in transaction.ranges.items():
            if deleted_at.get((stream, processed.incarnation), NEVER) < sent_at:
                path = _path(stream, processed.incarnation)
                text = (
                    f"{name_of(transaction)} processed {processed.start} to {processed.to} of"
                    f" {path} for group {group}, but that stream was deleted before the commit"
                )
                yield Anomaly("position", text, (transaction.id,))


def _path(stream: str, incarnation: str) -> str:
    return f"{stream} ({incarnation})" if incarnation else stream


# ---- the moves -----------------------------------------------------------------------------------


def _steps(facts: HistoryFacts) -> dict[_Name, list[ChainStep]]:
    steps: dict[_Name, list[ChainStep]] = {}
    others = {where for each in facts.history.transactions for where in each.moves}
    for change in facts.history.sets:
        if (change.group, change.stream) not in others and not change.is_refused:
            high = time_or_never(change.returned_at)
            step = ChainStep(change.invoked_at, high, None, change.to)
            steps.setdefault((change.group, change.stream, change.incarnation), []).append(step)
    for number, transaction in enumerate(facts.history.transactions):
        is_sure = facts.is_committed[number]
        is_open = transaction.outcome == "unknown" and not any(appends_of(transaction))
        if not (is_sure or is_open):
            continue
        decide_at = transaction.decide_at
        low = transaction.invoked_at if decide_at is None else decide_at
        high = min(facts.ended_by[number], time_or_never(transaction.prepared_at))
        for (group, stream), processed in transaction.ranges.items():
            step = ChainStep(low, high, processed.start, processed.to, transaction, is_sure)
            steps.setdefault((group, stream, processed.incarnation), []).append(step)
    return steps


def _ends(
    steps: Mapping[_Name, object],
    positions: Mapping[tuple[str, str], int] | None,
    incarnations: Mapping[str, str] | None,
) -> dict[_Name, int]:
    """Return the final position of each group in each stream of `steps`.

    Each key contains the stream's final incarnation. If that incarnation is not known, the stream
    is left out. If `positions` is None, the result is empty.
    """
    if positions is None:
        return {}
    if incarnations is None:
        all_of: dict[str, set[str]] = {}
        for _, stream, incarnation in steps:
            all_of.setdefault(stream, set()).add(incarnation)
        incarnations = {stream: min(every) for stream, every in all_of.items() if len(every) == 1}
    return {
        (group, stream, incarnations[stream]): positions.get((group, stream), 0)
        for group, stream, _ in steps
        if stream in incarnations
    }


# ---- messages ------------------------------------------------------------------------------------


def _anomaly(name: _Name, stuck: Stuck) -> Anomaly:
    group, path = name[0], _path(*name[1:])
    step, last = stuck.step, stuck.before[-1] if stuck.before else None
    ids = _ids(last, step, *stuck.inside)
    if stuck.inside:
        others = ", ".join(map(_made, stuck.inside))
        text = f"while prepared {_who(step)} held group {group}'s position in {path}, {others}"
        return Anomaly("position", text, ids)
    reason = "where every group begins" if last is None else f"where {_who(last)} moved it"
    where = f"group {group} was at {stuck.position} in {path}, {reason}"
    if step.is_end:
        return Anomaly("position", f"{where}, but its final position is {step.to}", ids)
    for earlier in stuck.before:
        if _overlap(earlier, step):
            text = (
                f"group {group} in {path}: {_made(step)} after {_made(earlier)}, although the"
                " position was not set back between them"
            )
            return Anomaly("double", text, _ids(earlier, step))
    return Anomaly("position", f"{where}, but {_made(step)}", ids)


def _overlap(left: ChainStep, right: ChainStep) -> bool:
    if left.start is None or right.start is None:
        return False
    return left.start < right.to and right.start < left.to


def _who(step: ChainStep) -> str:
    return "a request to set a position" if step.transaction is None else name_of(step.transaction)


def _made(step: ChainStep) -> str:
    if step.start is None:
        return f"the position was set to {step.to}"
    return f"{_who(step)} processed {step.start} to {step.to}"


def _ids(*steps: ChainStep | None) -> tuple[str, ...]:
    transactions = [step.transaction for step in steps if step is not None]
    return tuple(dict.fromkeys(each.id for each in transactions if each is not None))
