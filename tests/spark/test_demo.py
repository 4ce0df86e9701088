"""The complete `semel demo`: producers, a server and a Spark driver that are killed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from semel.cli.demo.plan import DATA


def rows(output: str, name: str) -> list[list[int]]:
    lines = [line for line in output.splitlines() if f" {name} " in line and "│" in line]
    return [[int(cell.replace(",", "")) for cell in line.split("│")[2:4]] for line in lines]


@pytest.mark.crash
@pytest.mark.timeout(600)
def test_the_demo_is_exactly_once_from_producer_to_spark_to_stream(
    java: str, tmp_path: Path
) -> None:
    path = tmp_path / "demo"
    done = subprocess.run(
        [sys.executable, "-m", "semel", "demo", "--data", str(path), "--orders", "4000"],
        capture_output=True,
        text=True,
        env={**os.environ, "JAVA_HOME": java},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    output = done.stdout
    assert rows(output, "orders produced") == [[4_001, 4_001]]
    assert rows(output, "server kills") == [[3, 3]]
    assert rows(output, "Spark driver kills") == [[1, 1]]
    assert output.count("SIGKILL was sent to the Spark driver") == 1
    assert rows(output, "rows in: orders")[0][0] == 4_001
    assert rows(output, "rows out: enriched orders")[0][0] == 4_001
    assert rows(output, "rows out: windows closed")[0][0] == 121
    for name in ("lost", "duplicated", "wrong"):
        found = rows(output, name)
        assert [exact for exact, _ in found] == [0, 0, 0], name
    # The losses and duplicates of the naive path, for the same orders and kills.
    assert [naive > 0 for _, naive in rows(output, "duplicated")][:2] == [True, True]
    assert f"semel serve --data {path / DATA}" in output.replace("'", "")
    assert "semel sinks ls" in output
