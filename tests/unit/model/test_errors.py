"""Errors: file and byte position, exit codes, and `invariant`, which also works with -O."""

import pytest

from semel.model import errors
from semel.model.errors import (
    CorruptData,
    CorruptRead,
    DirectoryLocked,
    DiskFailed,
    EngineError,
    EngineStopped,
    InvariantBroken,
    SemelError,
    invariant,
)


def test_a_fact_that_does_not_hold_stops_the_engine() -> None:
    invariant(True, "holds")
    with pytest.raises(InvariantBroken, match="does not"):
        invariant(False, "does not")


def test_corrupt_data_names_the_file_and_where_known_the_byte() -> None:
    assert str(CorruptData("bad", file="a.log")) == "a.log: bad"
    error = CorruptData("bad", file="a.log", position=8)
    assert (str(error), error.file, error.position) == ("a.log at byte 8: bad", "a.log", 8)


def test_a_corrupt_read_names_the_byte_and_does_not_end_the_engine() -> None:
    error = CorruptRead("bad", file="a.log", position=8)
    assert (str(error), error.file, error.position) == ("a.log at byte 8: bad", "a.log", 8)
    assert not isinstance(error, EngineError)


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [(EngineError, 70), (CorruptData, 65), (DirectoryLocked, 73), (DiskFailed, 74)],
)
def test_what_ends_the_process_has_its_exit_code(error: type[EngineError], exit_code: int) -> None:
    assert error.exit_code == exit_code


def test_everything_raised_on_purpose_is_one_kind_and_has_a_code() -> None:
    raised = [error for error in vars(errors).values() if isinstance(error, type)]
    ours = [error for error in raised if issubclass(error, Exception)]
    assert {EngineStopped, InvariantBroken} < set(ours)
    for error in ours:
        assert issubclass(error, SemelError)
        assert error.code == error.code.lower()
