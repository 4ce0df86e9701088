"""The demo's plan depends on the seed alone, and its judge overlooks nothing."""

import pytest

from semel.cli.demo_plan import Plan, draw, judge

PLAN = Plan(orders=100, seed=7)
BATCHES = PLAN.batches()
STORED = [order for own in BATCHES for batch in own for order in batch]


def places(stored: list[bytes]) -> dict[tuple[int, int], int]:
    return {
        (producer, seq): stored.index(batch[0])
        for producer, own in enumerate(BATCHES)
        for seq, batch in enumerate(own)
    }


def test_a_draw_belongs_to_its_name_and_seed() -> None:
    assert draw(1, "a") == draw(1, "a")
    assert len({draw(1, "a"), draw(2, "a"), draw(1, "b")}) == 3
    assert all(0 <= draw(3, index) < 1 for index in range(1_000))


def test_the_same_seed_makes_the_same_orders() -> None:
    assert Plan(100, 7).batches() == BATCHES
    assert Plan(100, 8).batches() != BATCHES
    assert len(set(STORED)) == 100


@pytest.mark.parametrize("count", [1, 2, 50, 4_000])
def test_kills_come_in_order_and_before_the_end(count: int) -> None:
    points = PLAN.kill_points(count)
    assert len(points) == PLAN.kills - 1
    assert points == sorted(points)
    assert points[-1] <= count


def test_everything_once_and_in_place_is_exactly_once() -> None:
    verdict = judge(BATCHES, STORED, places(STORED))
    assert verdict.is_exactly_once
    assert verdict.stored == 100


def test_a_lost_order_is_noticed() -> None:
    stored = STORED[:-1]
    verdict = judge(BATCHES, stored, places(STORED))
    assert (verdict.lost, verdict.misplaced, verdict.is_exactly_once) == (1, 1, False)


def test_a_duplicate_is_noticed() -> None:
    verdict = judge(BATCHES, [*STORED, STORED[3]], places(STORED))
    assert (verdict.duplicated, verdict.is_exactly_once) == (1, False)


def test_an_order_nobody_sent_is_noticed() -> None:
    verdict = judge(BATCHES, [*STORED, b"forged"], places(STORED))
    assert (verdict.foreign, verdict.is_exactly_once) == (1, False)


def test_an_answer_that_named_another_place_is_noticed() -> None:
    wrong = places(STORED)
    wrong[2, 0] += 1
    verdict = judge(BATCHES, STORED, wrong)
    assert (verdict.misplaced, verdict.is_exactly_once) == (1, False)


def test_a_batch_that_was_never_confirmed_is_noticed() -> None:
    partial = places(STORED)
    del partial[0, 0]
    assert judge(BATCHES, STORED, partial).misplaced == 1
