"""The search for an order of moves, compared with an exhaustive search."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.testing.txn import positions
from semel.testing.txn.facts import NEVER
from semel.testing.txn.positions import Chain, ChainStep

TIMES = st.integers(0, 12)
OFFSETS = st.integers(0, 3)
State = tuple[frozenset[int], int]


class Everything:
    """Tries every order in which no step is before a step that had ended when it began.

    A set may be repeated while it may be in flight. A set without a response may happen at any
    time, or never.
    """

    def __init__(self, steps: list[ChainStep]) -> None:
        self._steps = steps

    def explains(self, end: int | None) -> bool:
        seen: set[State] = {(frozenset(), 0)}
        todo = list(seen)
        while todo:
            done, position = todo.pop()
            if self._is_over(done) and end in (None, position):
                return True
            found = set(self._options(done, position)) - seen
            seen |= found
            todo += found
        return False

    def _is_over(self, done: frozenset[int]) -> bool:
        must = {n for n, step in enumerate(self._steps) if step.is_sure and not _is_open_set(step)}
        return must <= done

    def _options(self, done: frozenset[int], position: int) -> Iterator[State]:
        for number, step in enumerate(self._steps):
            if not self._may_begin(number, done) or step.start not in (None, position):
                continue
            if number not in done and not _is_open_set(step):
                yield done | {number}, step.to
            is_under_way = all(self._steps[each].low <= step.high for each in done)
            if step.start is None and (_is_open_set(step) or (number in done and is_under_way)):
                yield done, step.to

    def _may_begin(self, number: int, done: frozenset[int]) -> bool:
        left = [
            step
            for n, step in enumerate(self._steps)
            if n not in done and n != number and step.is_sure
        ]
        return all(step.high >= self._steps[number].low for step in left)


def _is_open_set(step: ChainStep) -> bool:
    return step.start is None and step.high == NEVER


@st.composite
def steps(draw: st.DrawFn) -> ChainStep:
    low = draw(TIMES)
    high = draw(st.one_of(st.just(NEVER), st.integers(low, 14), st.integers(low, 14)))
    to = draw(OFFSETS)
    kind = draw(st.sampled_from(["move", "move", "move", "held", "unsure", "set"]))
    if kind == "set":
        return ChainStep(low, high, None, to)
    start = draw(OFFSETS)
    if kind == "held":
        return ChainStep(low, draw(st.integers(0, low)), start, to)
    if kind == "unsure":
        return ChainStep(low, NEVER, start, to, is_sure=False)
    return ChainStep(low, high, start, to)


def moves(*pairs: tuple[int, int]) -> list[ChainStep]:
    """Return moves one after another, each finished before the next one begins."""
    return [ChainStep(10 * n, 10 * n + 5, start, to) for n, (start, to) in enumerate(pairs)]


@given(st.lists(steps(), max_size=6), st.one_of(st.none(), OFFSETS))
def test_an_order_is_found_if_there_is_one(every: list[ChainStep], end: int | None) -> None:
    is_good = not list(Chain(every, end).stuck())
    assert is_good == Everything(every).explains(end)


@given(st.permutations(range(8)))
def test_moves_that_were_under_way_at_the_same_time_take_the_order_they_must(
    order: list[int],
) -> None:
    every = [ChainStep(0, 100, number, number + 1) for number in order]
    assert list(Chain(every, 8).stuck()) == []


def test_a_long_chain_takes_little_time() -> None:
    every = [ChainStep(n, n + 9, n, n + 1) for n in range(20_000)]
    assert list(Chain(every, 20_000).stuck()) == []


def test_what_cannot_be_made_is_returned_and_then_taken_for_made() -> None:
    every = moves((0, 3), (1, 4), (4, 6), (7, 8))
    first, second = Chain(every, 8).stuck()
    assert (first.step, first.position, first.before) == (every[1], 3, [every[0]])
    assert (second.step, second.position) == (every[3], 6)
    assert second.before == every[:3]


def test_what_led_to_a_place_begins_with_the_last_step_back() -> None:
    every = moves((0, 3), (3, 1), (1, 2), (5, 6))
    (stuck,) = Chain(every, None).stuck()
    assert stuck.before == every[1:3]


def test_an_end_elsewhere_is_returned_as_a_step() -> None:
    (stuck,) = Chain(moves((0, 3)), 4).stuck()
    assert stuck.step.is_end
    assert (stuck.position, stuck.step.to) == (3, 4)


def test_a_move_while_another_one_is_held_is_inside_it() -> None:
    held, inside = ChainStep(20, 10, 0, 3), ChainStep(12, 15, None, 0)
    (stuck,) = Chain([held, inside], None).stuck()
    assert (stuck.step, stuck.inside) == (held, (inside,))


def test_a_move_without_an_answer_that_fits_nowhere_is_returned() -> None:
    loose = ChainStep(0, NEVER, 7, 8)
    (stuck,) = Chain([*moves((0, 3)), loose], 8).stuck()
    assert (stuck.step, stuck.position) == (loose, 3)


def test_a_chain_with_too_much_that_is_not_known_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(positions, "_STATES_MAX", 10)
    every = [ChainStep(0, NEVER, n, m, is_sure=False) for n in range(4) for m in range(4)]
    with pytest.raises(ValueError, match="too many changes of its position have no response"):
        list(Chain(every, 9).stuck())
