"""The demo's check finds every kind of error."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from semel.cli.demo.lanes import Produced
from semel.cli.demo.plan import (
    Enriched,
    Order,
    Plan,
    StreamVerdict,
    Total,
    expected_enriched,
    expected_raw,
    expected_totals,
    judge_stream,
    parse,
)
from semel.cli.demo.run import LaneResult

INPUT = Plan(orders=100, seed=7).input()
ENRICHED = [expected_enriched(order) for order in INPUT]
TOTALS = expected_totals(INPUT)

Rows = list[Order | None]


def found(verdict: StreamVerdict) -> tuple[int, int, int, int]:
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
    for verdict in (
        judge_stream(INPUT, INPUT),
        judge_stream(ENRICHED, ENRICHED),
        judge_stream(TOTALS, TOTALS),
    ):
        assert found(verdict) == (0, 0, 0, 0)
        assert verdict.is_exactly_once
    assert judge_stream(INPUT, INPUT).stored == 101


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
    verdict = judge_stream(INPUT, mutate(list(INPUT)))
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
        verdict = judge_stream(TOTALS, stored, is_ordered=False)
        assert found(verdict) == expected
        assert not verdict.is_exactly_once


def test_totals_of_one_batch_may_come_in_any_order() -> None:
    assert judge_stream(TOTALS, TOTALS[::-1], is_ordered=False).is_exactly_once


def test_a_message_that_is_no_such_row_is_none() -> None:
    messages = [expected_raw(INPUT[0]), b"{}", b"nonsense", b'{"order":"1"}']
    assert parse(messages, Order) == [INPUT[0], None, None, None]
    assert parse([b'{"start":0,"orders":1,"cents":2}'], Total) == [Total(0, 1, 2)]
    assert parse([expected_raw(INPUT[0])], Enriched) == [None]


def test_one_bad_verdict_spoils_the_result() -> None:
    good, bad = judge_stream(INPUT, INPUT), judge_stream(INPUT, INPUT[1:])

    def complaints(*verdicts: StreamVerdict, misplaced: int = 0) -> list[str]:
        named = dict(zip(("orders", "enriched", "totals"), verdicts, strict=False))
        return LaneResult("a", Produced(misplaced=misplaced), 0, named).complaints

    assert complaints(good, good, good) == []
    assert complaints(good) == [], "also without Spark"
    assert complaints(bad, good, good) == [f"NOT exactly once: stream orders: {bad.complaint}"]
    assert complaints(good, bad, good) == [f"NOT exactly once: stream enriched: {bad.complaint}"]
    assert complaints(good, good, bad) == [f"NOT exactly once: stream totals: {bad.complaint}"]
    assert complaints(good, good, good, misplaced=1) == [
        "NOT exactly once: 1 batches were stored at a wrong offset"
    ]
    assert "1 rows lost" in bad.complaint
