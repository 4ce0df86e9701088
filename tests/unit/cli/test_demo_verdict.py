"""The demo's judge overlooks nothing."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from semel.cli.demo.lanes import Produced
from semel.cli.demo.plan import (
    Enriched,
    Order,
    Plan,
    Total,
    Verdict,
    enriched,
    judge,
    parse,
    raw,
    totals,
)
from semel.cli.demo.run import Result

INPUT = Plan(orders=100, seed=7).input()
ENRICHED = [enriched(order) for order in INPUT]
TOTALS = totals(INPUT)

Rows = list[Order | None]


def found(verdict: Verdict) -> tuple[int, int, int, int]:
    return verdict.lost, verdict.duplicated, verdict.wrong, verdict.misplaced


def lose(rows: Rows) -> Rows:
    return [*rows[:40], *rows[41:]]


def double(rows: Rows) -> Rows:
    return [*rows[:40], rows[39], *rows[40:]]


def repeat_a_batch(rows: Rows) -> Rows:
    return [*rows[:40], *rows[30:40], *rows[40:]]


def swap(rows: Rows) -> Rows:
    return [*rows[:40], rows[41], rows[40], *rows[42:]]


def change(rows: Rows) -> Rows:
    order = rows[40]
    assert order is not None
    return [*rows[:40], replace(order, cents=order.cents + 1), *rows[41:]]


def forge(rows: Rows) -> Rows:
    return [*rows, Order(9_999, 1, "rope", 1)]


def spoil(rows: Rows) -> Rows:
    return [*rows, None]


def test_everything_once_and_in_order_is_exactly_once() -> None:
    for verdict in (judge(INPUT, INPUT), judge(ENRICHED, ENRICHED), judge(TOTALS, TOTALS)):
        assert found(verdict) == (0, 0, 0, 0)
        assert verdict.is_exactly_once
    assert judge(INPUT, INPUT).stored == 101


@pytest.mark.parametrize(
    ("mutate", "expected"),
    [
        (lose, (1, 0, 0, 0)),
        (double, (0, 1, 0, 0)),
        (repeat_a_batch, (0, 10, 0, 0)),
        (swap, (0, 0, 0, 1)),
        (change, (0, 0, 1, 0)),
        (forge, (0, 0, 1, 0)),
        (spoil, (0, 0, 1, 0)),
    ],
)
def test_whatever_is_not_exactly_once_is_noticed(
    mutate: Callable[[Rows], Rows], expected: tuple[int, int, int, int]
) -> None:
    verdict = judge(INPUT, mutate(list(INPUT)))
    assert found(verdict) == expected
    assert not verdict.is_exactly_once


def test_a_lost_a_doubled_and_a_wrong_total_are_noticed() -> None:
    wrong = replace(TOTALS[3], orders=TOTALS[3].orders + 1)
    for stored, expected in (
        (TOTALS[1:], (1, 0, 0, 0)),
        ([*TOTALS, TOTALS[3]], (0, 1, 0, 0)),
        ([*TOTALS[:3], wrong, *TOTALS[4:]], (0, 0, 1, 0)),
        ([*TOTALS, wrong], (0, 1, 1, 0)),
    ):
        verdict = judge(TOTALS, stored, is_ordered=False)
        assert found(verdict) == expected
        assert not verdict.is_exactly_once


def test_totals_of_one_batch_may_come_in_any_order() -> None:
    assert judge(TOTALS, TOTALS[::-1], is_ordered=False).is_exactly_once


def test_a_message_that_is_no_such_row_is_none() -> None:
    messages = [raw(INPUT[0]), b"{}", b"nonsense", b'{"order":"1"}']
    assert parse(messages, Order) == [INPUT[0], None, None, None]
    assert parse([b'{"start":0,"orders":1,"cents":2}'], Total) == [Total(0, 1, 2)]
    assert parse([raw(INPUT[0])], Enriched) == [None]


def test_one_bad_verdict_spoils_the_result() -> None:
    good, bad = judge(INPUT, INPUT), judge(INPUT, INPUT[1:])
    assert Result("a", Produced(), 0, good, good, good).is_exactly_once
    assert Result("a", Produced(), 0, good).is_exactly_once, "without Spark, too"
    assert not Result("a", Produced(), 0, bad, good, good).is_exactly_once
    assert not Result("a", Produced(), 0, good, bad, good).is_exactly_once
    assert not Result("a", Produced(), 0, good, good, bad).is_exactly_once
    assert not Result("a", Produced(misplaced=1), 0, good, good, good).is_exactly_once
    assert "1 lost" in bad.complaint
