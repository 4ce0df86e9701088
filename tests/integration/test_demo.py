"""The parts of `semel demo` that need no Spark, with real processes."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner, Result

from semel.cli.demo import run
from semel.cli.demo.plan import DATA
from semel.cli.main import cli

PATIENCE_SECONDS = 60


def demo(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["demo", "--no-spark", *map(str, arguments)])


def rows(output: str, name: str) -> list[list[int]]:
    lines = [line for line in output.splitlines() if f" {name} " in line and "│" in line]
    return [[int(cell.replace(",", "")) for cell in line.split("│")[2:4]] for line in lines]


@pytest.mark.crash
def test_without_spark_the_producers_half_is_shown_and_exactly_once(tmp_path: Path) -> None:
    path = tmp_path / "demo"
    result = demo("--data", path, "--orders", "3000", "--seed", "3")
    assert result.exit_code == 0, result.output
    output = result.stdout
    assert "The demo runs without Spark: --no-spark is set" in output
    assert rows(output, "orders produced") == [[3_001, 3_001]]
    assert rows(output, "server kills") == [[2, 2]]
    assert rows(output, "rows in: orders")[0][0] == 3_001
    ((lost, naive_lost),), ((duplicated, naive_duplicated),) = (
        rows(output, "lost"),
        rows(output, "duplicated"),
    )
    assert (lost, naive_lost, duplicated) == (0, 0, 0)
    assert naive_duplicated > 0
    assert rows(output, "duplicates refused")[0][0] > 0
    assert rows(output, "responses dropped")[0][0] > 0
    assert output.count("SIGKILL was sent to the server") == 2
    assert "rows out" not in output
    assert f"semel serve --data {path / DATA}" in output.replace("'", "")
    doctor = CliRunner().invoke(cli, ["doctor", "--verify", "--data", str(path / DATA)])
    assert doctor.exit_code == 0, doctor.output

    again = demo("--data", path, "--orders", "600")
    assert again.exit_code == 64
    assert "--force" in again.stderr


@pytest.mark.crash
def test_a_loss_ends_with_exit_code_70(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run.DemoRun._stored
    monkeypatch.setattr(run.DemoRun, "_stored", lambda self, *args: whole(self, *args)[1:])
    result = demo("--data", tmp_path / "demo", "--orders", "40")
    assert result.exit_code == 70
    assert "NOT exactly once: stream orders: 1 rows lost" in result.stdout


@pytest.mark.crash
def test_force_replaces_an_earlier_demo_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "demo"
    assert demo("--data", path, "--orders", "40").exit_code == 0
    assert demo("--data", path, "--orders", "40", "--force").exit_code == 0
    (path / "precious").write_text("mine")
    refused = demo("--data", path, "--force")
    assert refused.exit_code == 64
    assert "precious" in refused.stderr
    assert (path / "precious").exists()


def test_a_directory_of_somebody_else_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    for extra in ([], ["--force"]):
        result = demo("--data", tmp_path, *extra)
        assert result.exit_code == 64
        assert "was not created by a demo" in result.stderr
    assert os.listdir(tmp_path) == ["precious"]


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert demo("--data", tmp_path / "file").exit_code == 64


@pytest.mark.crash
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_whoever_ends_the_demo_ends_its_processes(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-u", "-m", "semel", "demo", "--no-spark"]
    command += ["--data", str(tmp_path / "demo"), "--orders", "200000"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "server started" in line:
                break
        children = psutil.Process(process.pid).children(recursive=True)
        assert children
        process.send_signal(number)
        with contextlib.suppress(BrokenPipeError):
            process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode == (130 if number == signal.SIGINT else -signal.SIGKILL)
    _, alive = psutil.wait_procs(children, timeout=PATIENCE_SECONDS)
    assert alive == []
