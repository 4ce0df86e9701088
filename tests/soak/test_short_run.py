"""One small round of each kind for every test run; `make soak` is the long run."""

import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.soak import __main__ as soak
from tests.soak.rounds import ROUNDS, SHORT, Round, Size

pytestmark = pytest.mark.crash

SEED = time.time_ns() % 1_000_000_000


@pytest.mark.parametrize("name", ROUNDS)
def test_a_small_round_of_each_kind_finds_nothing(name: str, tmp_path: Path) -> None:
    assert ROUNDS[name](SEED, SHORT, tmp_path).total() > 0


def run(monkeypatch: pytest.MonkeyPatch, rounds: dict[str, Round], *arguments: str) -> int:
    monkeypatch.setattr(soak, "ROUNDS", rounds)
    return soak.main(["--rounds", "4", "--seed", "7", *arguments])


def does_something(_seed: int, _size: Size, _folder: Path) -> Counter[str]:
    return Counter(flips=3)


def finds_something(seed: int, _size: Size, _folder: Path) -> Counter[str]:
    raise AssertionError(f"lost with {seed}")


def leaves_files(seed: int, _size: Size, folder: Path) -> Counter[str]:
    (folder / "data").write_text(f"lost with {seed}")
    raise AssertionError


def is_impossible(_seed: int, _size: Size, _folder: Path) -> Counter[str]:
    pytest.skip("no such file system")


def test_the_figures_are_added_and_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, {"a": does_something, "b": is_impossible}) == 0
    printed = capsys.readouterr().out
    assert printed.count("skipped: b: no such file system") == 1
    figures = dict(line.rsplit(None, 1) for line in printed.splitlines() if line[:2] == "  ")
    assert figures["  flips"] == "6"
    assert figures["  violations"] == "0"


def test_a_violation_is_printed_with_its_seed_and_ends_the_run_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, {"a": does_something, "b": finds_something}) == 1
    printed = capsys.readouterr().out
    assert "lost with 8" in printed
    assert "python -m tests.soak --only b --seed 8 --rounds 1" in printed
    assert "python -m tests.soak --only b --seed 10 --rounds 1" in printed
    assert "violations                   2" in printed


def test_the_files_of_a_violation_are_kept_and_the_others_removed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    rounds: dict[str, Round] = {
        "a": does_something,
        "b": leaves_files,
        "c": is_impossible,
        "d": finds_something,
    }
    assert run(monkeypatch, rounds, "--short") == 1
    (kept,) = tmp_path.iterdir()
    assert (kept / "data").read_text() == "lost with 8"
    repeat = "python -m tests.soak --only b --seed 8 --rounds 1 --short"
    assert f"{repeat}; its files are in {kept}\n" in capsys.readouterr().out
