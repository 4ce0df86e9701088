"""Runs the tests of rows without their seeded bugs, and then with each of them."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

from tests.row_mutants.plugin import FOUND, PASSED, REPORT
from tests.row_mutants.registry import MUTANTS, name_of
from tests.spec.process import MUTANT

ROOT: Final = Path(__file__).resolve().parents[2]
JOBS: Final = 2
TIMEOUT_SECONDS: Final = 120.0


class Run(NamedTuple):
    """The endings of the tests of one run, and how long it took."""

    endings: list[str]
    seconds: float


def run_mutants(tests: Mapping[str, Sequence[str]]) -> list[str]:
    """Run the tests of rows and print the results; return a complaint for each failure.

    Without a bug every test must pass. With a bug a check of one of the row's tests must fail. An
    error in a fixture, or another exception, does not count: such a bug only breaks the server.
    """
    jobs = [(row, name_of(mutant)) for row in tests for mutant in MUTANTS[row]]
    every = list(dict.fromkeys(test for each in tests.values() for test in each))
    with ThreadPoolExecutor(JOBS) as pool:
        good = pool.submit(run_tests, every)
        bad = [(row, name, pool.submit(run_tests, tests[row], name)) for row, name in jobs]
    complaints = []
    if set(good.result().endings) != {PASSED}:
        complaints.append(f"without a bug the tests do not pass: {good.result().endings}")
    for row, name, future in bad:
        endings, seconds = future.result()
        is_found = FOUND in endings and set(endings) <= {FOUND, PASSED}
        print(f"{row}  {'found' if is_found else 'NOT FOUND'}  {seconds:4.1f} s  {name}")
        if not is_found:
            complaints.append(f"{row}: the bug {name} is not found: {', '.join(endings)}")
    print(f"{len(jobs)} bugs of {len(tests)} rows")
    return complaints


def run_tests(tests: Sequence[str], mutant: str | None = None) -> Run:
    """Run tests in a process of their own, until the first failure."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report"
        environment = os.environ | {REPORT: str(report)}
        if mutant is not None:
            environment[MUTANT] = mutant
        plugins = ("-p", "tests.row_mutants.plugin", "-p", "no:cacheprovider")
        command = [sys.executable, "-m", "pytest", "-q", "-x", *plugins, *tests]
        with subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                printed, _ = process.communicate(timeout=TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                process.terminate()
                return Run(["no end"], TIMEOUT_SECONDS)
        endings = report.read_text().splitlines() if report.exists() else []
    return Run(endings or [f"no test ran: {printed[-500:]}"], time.monotonic() - began)
