"""The harness that every benchmark uses."""

import asyncio
from functools import partial
from pathlib import Path

import pytest

from semel_bench.harness import (
    Harness,
    Options,
    Unavailable,
    file_system,
    interleave,
    median_ratio,
)


def run_interleaved(rounds: int, *, warm_rounds: int) -> tuple[str, dict[str, list[int]]]:
    order: list[str] = []

    async def side(name: str) -> int:
        order.append(name)
        return len(order)

    sides = {name: partial(side, name) for name in "abc"}
    results = asyncio.run(interleave(sides, rounds, warm_rounds=warm_rounds))
    return "".join(order), results


def test_sides_are_interleaved_and_each_is_first_in_turn() -> None:
    order, results = run_interleaved(3, warm_rounds=0)
    assert order == "abcbcacab"
    assert results == {"a": [1, 6, 8], "b": [2, 4, 9], "c": [3, 5, 7]}


def test_results_of_the_warm_up_are_dropped() -> None:
    order, results = run_interleaved(1, warm_rounds=1)
    assert order == "abcabc"
    assert results == {"a": [4], "b": [5], "c": [6]}


def test_a_quick_run_is_smaller_but_never_larger_than_asked_for() -> None:
    full, quick = Options(), Options(is_quick=True)
    assert (full.rounds, full.scaled(1_000), full.round_seconds) == (5, 1_000, 3.0)
    assert (quick.rounds, quick.scaled(1_000), quick.scaled(3)) == (1, 20, 2)
    assert (full.stream_count, full.history_gib) == (100_000, 2.0)
    assert (quick.stream_count, quick.history_gib) == (1_000, 0.02)
    tiny = Options(is_quick=True, seconds=0.1, streams=10, gib=0.01)
    assert (tiny.round_seconds, tiny.stream_count, tiny.history_gib) == (0.1, 10, 0.01)


def fail(error: Exception) -> None:
    raise error


def test_what_is_unavailable_is_skipped_and_reported(capsys: pytest.CaptureFixture[str]) -> None:
    harness = Harness(Options())
    with harness.optional():
        fail(Unavailable("no such peer"))
    assert harness.skipped == ["no such peer"]
    assert capsys.readouterr().err == "skipped: no such peer\n"


def test_any_other_failure_is_not_skipped() -> None:
    harness = Harness(Options())
    with pytest.raises(ValueError, match="a bug"), harness.optional():
        fail(ValueError("a bug"))
    assert harness.skipped == []


def test_a_scratch_directory_is_removed(tmp_path: Path) -> None:
    harness = Harness(Options(directory=str(tmp_path)))
    with harness.scratch() as folder:
        (Path(folder) / "file").touch()
        assert Path(folder).parent == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_the_file_system_is_that_of_the_longest_mount() -> None:
    assert file_system("/proc/self") == "proc"


def test_sides_are_compared_round_by_round() -> None:
    assert median_ratio([2, 30, 6], [1, 10, 4], float) == 2
    assert median_ratio([3], [0], float) == 3
