"""Idempotency keys: one append per key, within a given window."""

from semel.machine import MachineLimits
from semel.model import outcomes as out
from tests.unit.machine.builders import (
    DAY_MS,
    KEY_HOURS,
    append,
    create,
    hours,
    machine_of,
    unchanged,
)


def test_a_key_seen_again_is_answered_with_its_first_offsets() -> None:
    machine = machine_of(create(), append(b"a", key="k"), append())
    assert unchanged(machine, append(b"a", key="k", if_match=0)) == out.Duplicate(0, 1, False)


def test_a_key_used_with_another_body_is_refused() -> None:
    machine = machine_of(create(), append(b"a", key="k"))
    assert unchanged(machine, append(b"b", key="k")) == out.KeyReused()
    assert unchanged(machine, append(None, error="bad", key="k")) == out.KeyReused()


def test_a_key_lasts_24_hours_and_then_begins_anew() -> None:
    machine = machine_of(create(), append(b"a", key="k"), *hours(KEY_HOURS - 1))
    assert unchanged(machine, append(b"a", key="k")) == out.Duplicate(0, 1, False)
    assert machine.execute(*hours(1)) == out.HourCounted()
    assert machine.execute(append(b"b", key="k")) == out.Appended(1, 2, False)


def test_a_jump_of_the_clock_forgets_no_key() -> None:
    machine = machine_of(create(), append(b"a", key="k"), append(now=3_650 * DAY_MS, key="l"))
    late = append(b"a", key="k", now=3_650 * DAY_MS)
    assert unchanged(machine, late) == out.Duplicate(0, 1, False)


def test_a_key_is_forgotten_after_so_many_newer_ones() -> None:
    sends = [append(b"a", key="a"), append(b"b", key="b")]
    machine = machine_of(create(), *sends, limits=MachineLimits(keys=2))
    assert unchanged(machine, sends[0]) == out.Duplicate(0, 1, False)
    machine.execute(append(b"c", key="c"))
    assert machine.execute(sends[0]) == out.Appended(3, 4, False)


def test_a_key_that_begins_anew_is_the_newest_one() -> None:
    before, again = [append(key="a"), append(key="b")], append(b"y", key="a")
    limits = MachineLimits(keys=2)
    machine = machine_of(create(), *before, *hours(KEY_HOURS), again, limits=limits)
    machine.execute(append(key="c"))
    assert unchanged(machine, again) == out.Duplicate(2, 3, False)


def test_keys_out_of_their_window_leave_with_the_next_one() -> None:
    machine = machine_of(create(), append(key="a"), append(key="b"), *hours(KEY_HOURS))
    machine.execute(append(key="c"))
    keys = machine.stream().keys
    assert keys is not None
    assert list(keys) == ["c"]
    assert machine.state.dirty.keys[1, "a"] is None


def test_a_close_may_have_a_key() -> None:
    machine = machine_of(create(), append(None, close=True, key="k"))
    assert unchanged(machine, append(None, close=True, key="k")) == out.Duplicate(0, 0, True)
    assert unchanged(machine, append(None, close=True, key="other")) == out.StreamClosed(0)
