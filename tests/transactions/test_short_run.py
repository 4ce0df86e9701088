"""A short version of the run for every test run; `python -m tests.transactions` is the full run."""

import copy
import re
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest

from semel.testing import InProcessServer, TransactionReport, local
from tests.transactions.alterations import ALTERATIONS, Alteration
from tests.transactions.alterations_shared import SHARED_ALTERATIONS
from tests.transactions.judge import Evidence, judge
from tests.transactions.mutants import MUTANTS, SHARED_MUTANTS, Mutant
from tests.transactions.notes import load
from tests.transactions.run import Size, run_in_threads

SEED = time.time_ns() % 1_000_000_000
pytestmark = pytest.mark.crash
TRIES_MAX = 6
# Each kind of fault is frequent, because the run is short.
SHORT: Any = {"kills": 0, "client_kills": 0, "crews": 1, "fault_rate": 0.02, "seed": SEED}


def require_one(names: str, report: TransactionReport) -> None:
    found = {anomaly.name for anomaly in report.anomalies}
    assert any(re.fullmatch(names, name) for name in found), (SEED, found)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("transactions")


@pytest.fixture(scope="module")
def evidence(folder: Path) -> Evidence:
    size = Size(committed=400, taken=60, sets=20, deletes=4, **{**SHORT, "kills": 2})
    with local(folder / "data", long_poll_timeout=2) as server:
        found = run_in_threads(size, folder, server, server)
        assert server.stderr == ""
    return found


def test_concurrent_transactions_are_whole_and_isolated_with_a_server_that_is_killed(
    evidence: Evidence,
) -> None:
    report = judge(evidence)
    assert report.committed >= 400
    assert report.aborted > 0
    assert report.ranges >= 60
    assert report.refused > 0
    assert (report.sets >= 20, report.deletes >= 4) == (True, True)


@pytest.mark.parametrize(("alteration", "names"), (*ALTERATIONS, *SHARED_ALTERATIONS))
def test_a_run_that_is_told_wrongly_is_found_out(
    alteration: Alteration, names: str, evidence: Evidence, folder: Path
) -> None:
    history = load(folder.glob("*.notes"))
    altered = Evidence(history, *copy.deepcopy(evidence[1:]))
    alteration(altered, Random(SEED))
    require_one(names, altered.check())


@pytest.mark.parametrize(("mutant", "names"), MUTANTS)
def test_a_server_with_a_bug_is_found_out(
    mutant: Mutant, names: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    require_found(names, Size(committed=300, taken=0, sets=0, deletes=0, **SHORT), tmp_path)


@pytest.mark.parametrize(("mutant", "names"), SHARED_MUTANTS)
def test_a_server_with_a_bug_in_positions_is_found_out(
    mutant: Mutant, names: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    require_found(names, Size(committed=150, taken=150, sets=20, deletes=20, **SHORT), tmp_path)


def require_found(names: str, size: Size, tmp_path: Path) -> None:
    """Run several times, because a bug shows only after a fault or a race, which a run may miss."""
    found: set[str] = set()
    for seed in range(SEED, SEED + TRIES_MAX):
        folder = tmp_path / str(seed)
        folder.mkdir()
        with InProcessServer(folder / "data", long_poll_seconds=2) as server:
            report = run_in_threads(size._replace(seed=seed), folder, server).check()
        found |= {anomaly.name for anomaly in report.anomalies}
        if any(re.fullmatch(names, name) for name in found):
            return
    pytest.fail(f"none of {names} in {TRIES_MAX} runs from seed {SEED}, only {found}")
