"""The demo's plan depends only on the seed, and computes the expected results."""

import pytest

from semel.cli.demo.plan import (
    DISORDER_MS,
    WATERMARK_MS,
    WINDOW_MS,
    Order,
    Plan,
    Total,
    draw_number,
    expected_enriched,
    expected_raw,
    expected_totals,
)

INPUT = Plan(orders=100, seed=7).input()


def test_a_draw_belongs_to_its_name_and_seed() -> None:
    assert draw_number(1, "a") == draw_number(1, "a")
    assert len({draw_number(1, "a"), draw_number(2, "a"), draw_number(1, "b")}) == 3
    assert all(0 <= draw_number(3, index) < 1 for index in range(1_000))


def test_the_same_seed_makes_the_same_orders() -> None:
    assert Plan(100, 7).input() == INPUT
    assert Plan(100, 8).input() != INPUT
    assert [order.order for order in INPUT] == list(range(101))
    assert len({expected_raw(order) for order in INPUT}) == 101


def test_no_order_is_so_late_that_the_watermark_drops_it() -> None:
    assert DISORDER_MS < WATERMARK_MS
    latest = 0
    for order in Plan(orders=5_000, seed=3).input():
        assert order.at > latest - WATERMARK_MS
        latest = max(latest, order.at)


@pytest.mark.parametrize("orders", [1, 2, 3, 50, 200_000])
def test_kills_come_in_order_and_before_the_end(orders: int) -> None:
    plan = Plan(orders, seed=7)
    points = plan.kill_points()
    assert len(points) == plan.server_kills
    assert points == sorted(points)
    assert points[-1] <= orders
    assert min(plan.batch_messages, plan.spark_rows, plan.last_spark_rows) >= 1


def test_the_closing_order_closes_every_window_but_its_own() -> None:
    found = expected_totals(INPUT)
    assert sum(total.orders for total in found) == 100
    assert sum(total.cents for total in found) == sum(order.cents for order in INPUT[:-1])
    assert expected_totals(INPUT[:-1]) == found[:-1], "the last window stays open without it"


def test_a_total_belongs_to_the_minute_of_its_orders() -> None:
    orders = [Order(0, 1, "rope", 5), Order(1, WINDOW_MS - 1, "rope", 6)]
    closing = Order(2, WINDOW_MS + WATERMARK_MS, "rope", 0)
    assert expected_totals([*orders, closing]) == [Total(0, 2, 11)]
    just_too_early = Order(2, WINDOW_MS + WATERMARK_MS - 1, "rope", 0)
    assert expected_totals([*orders, just_too_early]) == []


def test_an_enriched_order_knows_its_aisle() -> None:
    found = expected_enriched(Order(4, 1, "kettle", 250))
    assert (found.order, found.aisle, found.cents) == (4, "kitchen", 250)
