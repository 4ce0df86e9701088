"""The runner of `tests/row_mutants` reports which bugs a test finds and which it does not."""

import pytest

from tests.row_mutants import registry
from tests.row_mutants.registry import a_server_that_does_not_start, no_bug
from tests.row_mutants.runner import run_mutants
from tests.row_mutants.server import older_epochs_are_kept

ROW = "U12"
TEST = "tests/spec/test_rows_server.py::test_of_two_epochs_only_the_higher_is_kept"


def test_a_bug_is_found_only_if_a_check_of_the_test_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bugs = (older_epochs_are_kept, no_bug, a_server_that_does_not_start)
    monkeypatch.setitem(registry.MUTANTS, ROW, bugs)
    wrong = run_mutants({ROW: [TEST]})
    assert [complaint.partition(":")[2].split(":")[0] for complaint in wrong] == [
        " the bug no_bug is not found",
        " the bug a_server_that_does_not_start is not found",
    ]
    found = [line.split()[1] for line in capsys.readouterr().out.splitlines()]
    assert found == ["found", "NOT", "NOT", "bugs"]


def test_a_test_that_fails_without_a_bug_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.MUTANTS, ROW, ())
    (complaint,) = run_mutants({ROW: [f"{TEST}_that_is_not_there"]})
    assert complaint.startswith("without a bug the tests do not pass")
