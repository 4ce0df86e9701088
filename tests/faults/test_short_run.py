"""A short run for every test run; `python -m tests.faults` is the full one."""

import time
from pathlib import Path

import pytest

from semel.errors import PayloadMismatch
from tests.faults.__main__ import FLOORS, missed_floors
from tests.faults.mutants import MUTANTS, Mutant
from tests.faults.run import Size, run_in_threads
from tests.faults.shard import KINDS, Failed

SEED = time.time_ns() % 1_000_000_000


@pytest.mark.crash
def test_every_client_is_told_the_truth_on_a_bad_network_with_a_server_that_is_killed(
    tmp_path: Path,
) -> None:
    size = Size(requests=2_000, kills=2, shards=1, seed=SEED)
    total = run_in_threads(size, tmp_path / "data")
    assert total["kills"] == 2
    assert total["dropped_after_commit"] > 0
    assert total["duplicates refused"] > 0


@pytest.mark.crash
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_client_with_a_bug_is_found_out(
    mutant: Mutant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    size = Size(requests=2_000, kills=0, shards=1, seed=SEED)
    with pytest.raises((Failed, AssertionError, PayloadMismatch, ExceptionGroup)) as caught:
        run_in_threads(size, tmp_path / "data")
    if isinstance(caught.value, ExceptionGroup):  # of the tasks of an event loop
        assert caught.group_contains(PayloadMismatch)


def test_a_run_without_some_kind_of_fault_does_not_pass() -> None:
    size = Size(requests=50_000, kills=10, shards=1, seed=0)
    plenty = FLOORS | {"kills": 10}
    assert missed_floors(plenty, size) == []  # type: ignore[arg-type]
    for name in ("requests", "kills", "dropped_after_commit", *KINDS):
        less = plenty | {name: plenty[name] - 1}
        assert missed_floors(less, size) == [name]  # type: ignore[arg-type]
