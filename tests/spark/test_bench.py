"""The benchmarks of `semel bench` that start Spark run and write a report."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

POSITIVE = {
    ("pipeline", "messages, local"),
    ("pipeline", "p50 latency of a step, local"),
    ("pipeline", "p99 latency of a step, local"),
    ("pipeline", "messages, spark"),
    ("pipeline", "p50 latency of a step, spark"),
    ("spark", "text file to noop"),
    ("spark", "source to noop"),
    ("spark", "source to sink"),
}


@pytest.mark.timeout(600)
def test_pipelines_and_spark_are_measured(java: str, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "semel", "bench", "pipeline", "spark", "--quick"]
    done = subprocess.run(
        [*command, "--json", str(report), "--dir", str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, "JAVA_HOME": java},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    figures: list[dict[str, Any]] = json.loads(report.read_bytes())["figures"]
    found = {(each["work"], each["name"]): each["value"] for each in figures}
    assert found.keys() >= POSITIVE
    assert all(found[key] > 0 for key in POSITIVE)
    assert not [name for name in os.listdir(tmp_path) if name.startswith("semel-bench-")]
