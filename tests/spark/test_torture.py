"""A short torture test for every test run; `make spark-torture KILLS=20` is the long one."""

import time
from pathlib import Path

import pytest

from tests.spark.torture import Figures, run

SEED = time.time_ns() % 1_000_000_000
KILLS = 6


# rows: K01, K04, K05, K12
@pytest.mark.crash
@pytest.mark.timeout(900)
def test_every_row_comes_through_once_however_often_drivers_and_the_server_are_killed(
    java: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del java
    figures = run(tmp_path, KILLS, SEED)
    with capsys.disabled():
        print(f"\n{figures.line()}, seed {SEED}")
    assert figures.is_exact(), figures
    assert figures.missing(KILLS) == []


@pytest.mark.crash
@pytest.mark.timeout(600)
def test_a_sink_that_appends_plainly_is_found_out(java: str, tmp_path: Path) -> None:
    del java
    figures = run(tmp_path, 1, SEED, is_naive=True)
    assert figures.duplicates > 0
    assert not figures.is_exact()


def test_a_run_in_which_something_never_happened_does_not_pass() -> None:
    plenty = Figures(6, 3, 1, 1, 20, 1, 1_000, 2_000)
    assert plenty.missing(6) == []
    assert Figures().missing(6) == [
        *("driver_kills", "server_kills", "task_failures", "answers_lost", "replays", "rows_in")
    ]
