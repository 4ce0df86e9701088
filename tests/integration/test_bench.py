"""The benchmarks of the engine run and write a report. The speed is not checked."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
# The figures of each benchmark that must be greater than zero.
POSITIVE = {
    "engine": [
        "256 B durable",
        "256 B CPU per append",
        "256 B speed, compared with bare loop",
        "256 B with a producer: CPU per append",
        "engine durable",
        "engine CPU per append",
        "1 MiB durable",
        "1 MiB speed, compared with bare loop",
        "1 MiB bare loop, growing file",
    ],
    "stall": [
        "streams, all dirty",
        "checkpoint duration",
        "loop delay without checkpoint max",
        "loop delay during checkpoint max",
        "loop delay during checkpoint, single appends max",
        "cut() max",
        '4 MiB of JSON, messages "": longest step',
    ],
    "restart": [
        "history",
        "streams",
        "after kill: open",
        "after kill: of which checkpoint",
        "after kill: of which replay",
        "after kill: replayed frames",
        "after kill: first read",
        "after kill: messages checked",
        "after close: open",
        "after close: messages checked",
    ],
}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "semel_bench", *arguments]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False
    )


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("bench")
    done = run(*POSITIVE, "--quick", "--json", str(folder / "report.json"), "--dir", str(folder))
    assert done.returncode == 0, done.stderr
    assert [path.name for path in folder.iterdir()] == ["report.json"]
    loaded: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return loaded


def value(report: dict[str, Any], benchmark: str, name: str) -> float:
    (found,) = [x for x in report["figures"] if (x["work"], x["name"]) == (benchmark, name)]
    return float(found["value"])


def test_the_report_says_what_it_was_measured_on(report: dict[str, Any]) -> None:
    assert report["cores"] >= 1
    assert report["python"].startswith("3.")
    assert report["file_system"]


def test_every_figure_is_a_sane_number(report: dict[str, Any]) -> None:
    assert {figure["work"] for figure in report["figures"]} == POSITIVE.keys()
    for figure in report["figures"]:
        assert math.isfinite(figure["value"]), figure["name"]
        assert isinstance(figure["unit"], str), figure["name"]


@pytest.mark.parametrize("benchmark", sorted(POSITIVE))
def test_every_benchmark_measured_something(report: dict[str, Any], benchmark: str) -> None:
    assert [name for name in POSITIVE[benchmark] if value(report, benchmark, name) <= 0] == []


def test_a_kill_leaves_a_tail_to_replay_and_a_close_leaves_none(report: dict[str, Any]) -> None:
    assert value(report, "restart", "after kill: replayed frames") > 0
    assert value(report, "restart", "after close: replayed frames") == 0


def test_an_unknown_benchmark_is_refused() -> None:
    done = run("speed")
    assert done.returncode == 64
    assert "unknown benchmark speed; choose from" in done.stderr
