"""Cursors: protocol 1.9."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.model.limits import NUMBER_MAX
from semel.wire.requests import JITTER_S_MAX, next_cursor, parse_cursor

EPOCH_MS = 1_728_432_000_000
NOW_MS = EPOCH_MS + 100 * 20_000 + 1


@pytest.mark.parametrize("given_cursor", [None, 0, 99])
def test_without_a_newer_cursor_the_current_interval_is_given(given_cursor: int | None) -> None:
    assert next_cursor(given_cursor, now_ms=NOW_MS, jitter_s=3600) == 100


@pytest.mark.parametrize(("jitter_s", "step"), [(1, 1), (20, 1), (21, 2), (3600, 180), (0, 1)])
def test_a_cursor_not_older_moves_on_by_the_jitter(jitter_s: int, step: int) -> None:
    assert next_cursor(100, now_ms=NOW_MS, jitter_s=jitter_s) == 100 + step
    assert next_cursor(500, now_ms=NOW_MS, jitter_s=jitter_s) == 500 + step


@given(st.integers(0, NUMBER_MAX), st.integers(0, NUMBER_MAX), st.integers(1, JITTER_S_MAX))
def test_a_cursor_never_stays_where_it_is(cursor: int, now_ms: int, jitter_s: int) -> None:
    assert next_cursor(cursor, now_ms=now_ms, jitter_s=jitter_s) > cursor


def test_a_clock_before_the_epoch_gives_interval_zero() -> None:
    assert next_cursor(None, now_ms=0, jitter_s=1) == 0


def test_a_cursor_is_digits() -> None:
    assert parse_cursor("123") == 123
    assert parse_cursor("9" * 16) == NUMBER_MAX


@pytest.mark.parametrize("text", [None, "", "abc", "-1", "1.5", "\u0661", "9" * 17, " 1"])
def test_garbage_is_no_cursor(text: str | None) -> None:
    assert parse_cursor(text) is None
