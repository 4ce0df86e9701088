"""The figures of the benchmarks: targets, statistics, numbers as text."""

from typing import Any

import pytest

from semel_bench.appends import _append_rates
from semel_bench.harness import (
    Figure,
    Target,
    at_least,
    at_most,
    median,
    percentile,
    ratio,
    ratio_at_most,
    readable,
)
from semel_bench.load import Round


def figure(value: float, target: Target | None, **fields: Any) -> Figure:
    return Figure("a", value, "ms", target, **fields)


@pytest.mark.parametrize(
    ("value", "target", "is_met"),
    [
        (60, at_most(60), True),
        (61, at_most(60), False),
        (-3, at_most(60), True),
        (2, at_least(2), True),
        (0, at_least(2), False),
        (1, None, None),
    ],
)
def test_a_figure_meets_its_target_or_not(
    value: float, target: Target | None, is_met: bool | None
) -> None:
    assert figure(value, target).is_met is is_met


def test_a_target_of_a_ratio_is_about_the_ratio() -> None:
    assert figure(5, ratio_at_most(1.3), ratio=1.4).is_met is False
    assert figure(5, ratio_at_most(1.3), ratio=1.2).is_met is True
    assert figure(5, ratio_at_most(1.3)).is_met is None


def test_a_target_is_text_with_its_unit() -> None:
    assert figure(5, at_least(35_000)).target_text == ">= 35,000 ms"
    assert figure(5, ratio_at_most(1.15), ratio=1.0).target_text == "<= 1.15x"
    assert figure(5, None).target_text == ""


def test_statistics_of_nothing_are_0() -> None:
    assert median([]) == percentile([], 99) == 0
    assert median([3, 1, 2]) == 2
    assert percentile(list(range(100)), 99) == 99
    assert percentile([1, 2, 3, 4], 50) == 3


def test_a_ratio_to_nothing_is_undefined() -> None:
    assert ratio(3, 2) == 1.5
    assert ratio(3, 0) is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (12_345.6, "12,346"),
        (12.34, "12.3"),
        (4.5, "4.50"),
        (0.6, "0.60"),
        (0.0123, "0.012"),
    ],
)
def test_a_number_is_shown_with_about_three_digits(value: float, text: str) -> None:
    assert readable(value) == text


def test_a_server_without_a_response_in_time_has_no_ratio() -> None:
    rounds = {"semel": [Round(1, 0, 0, [0.1])], "bare limit": [Round(1, 0, 0, [])]}
    assert [(each.name, each.ratio) for each in _append_rates(rounds)][-1] == (
        "semel, ratio to bare limit",
        None,
    )
