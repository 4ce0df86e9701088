"""The command line: its help, its errors, and that it never prints a traceback."""

import tomllib
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import semel
from semel.cli.doctor import DEPENDENCIES
from semel.cli.main import cli
from semel.model.errors import CorruptData, DirectoryLocked, DiskFailed, EngineError

PROJECT = Path(__file__).resolve().parents[3] / "pyproject.toml"


def test_the_version_is_printed() -> None:
    result = CliRunner().invoke(cli, ["--version"])
    assert result.exit_code == 0
    assert semel.__version__ in result.output


def test_help_names_every_command() -> None:
    result = CliRunner().invoke(cli, ["--help"])
    assert result.exit_code == 0
    assert "doctor" in result.output
    assert "demo" in result.output


@pytest.mark.parametrize(
    "arguments",
    [["nothing"], ["doctor", "--nothing"], ["demo", "--orders", "0"], ["demo", "--seed", "x"]],
)
def test_bad_usage_ends_with_64_and_says_why(arguments: list[str]) -> None:
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 64
    assert "nothing" in result.output or "Invalid value" in result.output


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CorruptData("bad \x1b[2J", file="x"), 65),
        (DirectoryLocked("taken"), 73),
        (DiskFailed("broken"), 74),
        (OSError(5, "Input/output error"), 74),
        (click.Abort(), 130),
    ],
)
def test_an_error_is_a_message_and_an_exit_code(
    monkeypatch: pytest.MonkeyPatch, error: Exception, code: int
) -> None:
    def fail() -> None:
        raise error

    command = click.Command("doctor", callback=fail)
    monkeypatch.setattr("semel.cli.doctor.doctor_command", command)
    result = CliRunner().invoke(cli, ["doctor"])
    assert result.exit_code == code
    assert result.stderr.startswith("semel: ")
    assert "Traceback" not in result.output
    assert "\x1b" not in result.output


def test_every_engine_error_has_an_exit_code_of_its_own() -> None:
    codes = [kind.exit_code for kind in (CorruptData, DirectoryLocked, DiskFailed, EngineError)]
    assert len(set(codes)) == len(codes)


def test_the_doctor_asks_for_every_dependency() -> None:
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    named = {line.partition(">")[0] for line in project["dependencies"]}
    assert named == set(DEPENDENCIES)
