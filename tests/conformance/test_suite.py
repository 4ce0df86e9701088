"""Runs the public suite of the protocol on a server three times, and again after a SIGKILL."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from tests.spec.process import Server

ROOT: Final = Path(__file__).resolve().parents[2]
HOME: Final = ROOT / "build" / "conformance"
TESTS: Final = 338  # in the suite; all of them must pass
RUNS: Final = 3
RUN_SECONDS_MAX: Final = 300
# The default timeout of 5 seconds per test is too short on a busy disk.
TEST_MS_MAX: Final = 30_000


@pytest.fixture(scope="module")
def vitest() -> Path:
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node or npm is missing")
    if not (HOME / ".installed").exists():
        pytest.fail("the suite is not installed: run `make build/conformance/.installed`")
    return HOME / "node_modules" / ".bin" / "vitest"


def run_suite(vitest: Path, server: Server, report: Path) -> dict[str, Any]:
    """Run the suite once, and return the JSON report of vitest."""
    command = [str(vitest), "run", "suite.test.mjs", "--reporter=json", f"--outputFile={report}"]
    run = subprocess.run(
        [*command, f"--testTimeout={TEST_MS_MAX}"],
        cwd=HOME,
        env={"PATH": os.environ["PATH"], "SEMEL_URL": server.url},
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )
    assert report.exists(), run.stdout + run.stderr
    found: dict[str, Any] = msgspec.json.decode(report.read_bytes())
    return found


def failures(report: dict[str, Any]) -> list[str]:
    return [
        f"{test['fullName']}: {' '.join(test['failureMessages'])[:500]}"
        for file in report["testResults"]
        for test in file["assertionResults"]
        if test["status"] == "failed"
    ]


# One test instead of four, because the runs must not overlap on one server.
@pytest.mark.conformance
@pytest.mark.timeout((RUNS + 1) * RUN_SECONDS_MAX)
def test_the_public_suite_passes_three_times_in_a_row_and_again_after_a_kill(
    vitest: Path, tmp_path: Path
) -> None:
    server = Server(tmp_path / "data")
    try:
        for number in range(RUNS + 1):
            if number == RUNS:
                server.kill()
                server = Server(tmp_path / "data")
            report = run_suite(vitest, server, tmp_path / f"{number}.json")
            assert failures(report) == [], f"run {number + 1}"
            assert report["numFailedTests"] == 0
            assert report["numTotalTests"] == TESTS
            assert report["numPassedTests"] == TESTS
            assert server.is_sound(), server.stderr
    finally:
        server.kill()
