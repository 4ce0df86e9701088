"""A plugin of pytest that applies a bug, and records how the test ended.

The file that ROW_MUTANT_REPORT names gets a line for each test: the phase in which the test ended
and the class of its exception, or `passed`. A bug is found only if a check of the test fails.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.row_mutants.registry import apply_mutant
from tests.spec.process import MUTANT

REPORT: Final = "ROW_MUTANT_REPORT"
FOUND: Final = "call check failed"
PASSED: Final = "call passed"


def pytest_configure() -> None:
    if MUTANT in os.environ:
        apply_mutant(os.environ[MUTANT])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[Any]:
    del item
    report = yield
    if call.when == "call" or call.excinfo is not None:
        with Path(os.environ[REPORT]).open("a") as file:
            print(_ending(call), file=file)
    return report


def _ending(call: pytest.CallInfo[None]) -> str:
    if call.excinfo is None:
        return PASSED
    error = call.excinfo.value
    # `pytest.raises` raises Failed if the block raises nothing.
    is_check = isinstance(error, AssertionError | pytest.fail.Exception)
    return FOUND if is_check and call.when == "call" else f"{call.when} {type(error).__name__}"
