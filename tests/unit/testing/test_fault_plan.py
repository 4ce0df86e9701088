from collections import Counter

import pytest

from semel.testing.fault_plan import Action, FaultPlan


def test_a_script_is_followed_in_order_and_then_everything_passes() -> None:
    plan = FaultPlan(script=["delay", Action.RESET])
    assert [plan.draw() for _ in range(4)] == ["delay", "reset", "pass", "pass"]


def test_after_the_script_the_rates_decide() -> None:
    plan = FaultPlan({"stale": 1.0}, script=["pass"])
    assert [plan.draw() for _ in range(3)] == ["pass", "stale", "stale"]


def test_requests_a_plan_is_not_for_pass_and_use_up_nothing_of_it() -> None:
    plan = FaultPlan({"stale": 1.0}, script=["reset"], only="POST /v1/commits")
    requests = [b"GET /v1/commits HTTP/1.1", b"POST /v1/commits HTTP/1.1"] * 2
    assert [plan.draw(request) for request in requests] == ["pass", "reset", "pass", "stale"]


def test_actions_come_at_about_their_rates_and_the_rest_passes() -> None:
    plan = FaultPlan({"delay": 0.2, "reset": 0.1})
    drawn = Counter(plan.draw() for _ in range(10_000))
    assert 1_700 < drawn[Action.DELAY] < 2_300
    assert 800 < drawn[Action.RESET] < 1_200
    assert drawn[Action.PASS] == 10_000 - drawn[Action.DELAY] - drawn[Action.RESET]


def test_the_seed_decides_everything() -> None:
    def drawn(seed: int) -> list[object]:
        plan = FaultPlan({"delay": 0.5}, seed=seed)
        return [value for _ in range(50) for value in (plan.draw(), plan.draw_delay())]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def test_a_delay_is_fixed_or_drawn_from_a_range() -> None:
    assert FaultPlan(delay_seconds=0.5).draw_delay() == 0.5
    plan = FaultPlan(delay_seconds=(1.0, 2.0))
    drawn = {plan.draw_delay() for _ in range(20)}
    assert len(drawn) > 10
    assert all(1.0 <= delay <= 2.0 for delay in drawn)


@pytest.mark.parametrize("rates", [{"delay": -0.1}, {"delay": 0.6, "reset": 0.5}])
def test_rates_that_are_no_probabilities_are_refused(rates: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="a sum of at most 1"):
        FaultPlan(rates)


def test_rates_of_tenths_may_add_up_to_one() -> None:
    FaultPlan(dict.fromkeys(list(Action)[:10], 0.1))


def test_an_action_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="explode"):
        FaultPlan({"explode": 0.1})
    with pytest.raises(ValueError, match="explode"):
        FaultPlan(script=["explode"])
