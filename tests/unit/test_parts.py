"""The times that `make test` prints for its parts."""

import sys
from pathlib import Path

import pytest

from tests.parts import run, table


def test_each_part_says_its_seconds_and_the_table_adds_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    notes = tmp_path / "new" / "parts.txt"
    assert run("first", [sys.executable, "-c", ""], notes) == 0
    assert run("second", [sys.executable, "-c", "raise SystemExit(3)"], notes) == 3
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("-- first: ") and said[0].endswith(" seconds")
    assert said[1].startswith("-- second: ") and said[1].endswith(", FAILED (3)")
    notes.write_text("first 12 0\nsecond 30 3\n")
    assert table(notes).split("\n") == [
        "",
        "first             12 s",
        "second            30 s  FAILED",
        "all               42 s",
    ]
