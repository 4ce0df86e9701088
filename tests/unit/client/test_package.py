import subprocess
import sys
from typing import Final

import pytest

import semel
from semel.client import errors as client_errors

CPU_MS_MAX: Final = 150
HEAVY: Final = (
    *("semel.server", "semel.broker", "semel.journal", "semel.machine", "semel.cli"),
    *("click", "rich", "uvloop", "pyspark", "lmdb"),
)


def child(code: str) -> str:
    """Run code in a fresh interpreter."""
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


@pytest.mark.parametrize(
    "statement",
    ["import semel", "from semel import Client, errors", "from semel.errors import ProducerFenced"],
)
def test_the_package_loads_nothing_of_the_server(statement: str) -> None:
    code = f"import sys; {statement}; print(*[m for m in {HEAVY!r} if m in sys.modules])"
    assert child(code) == ""


@pytest.mark.parametrize("statement", ["import semel", "import semel.errors"])
def test_the_package_alone_loads_no_event_loop_either(statement: str) -> None:
    assert child(f"import sys; {statement}; print('asyncio' in sys.modules)") == "False"


def test_the_package_alone_loads_no_errors_and_no_client() -> None:
    code = "import sys, semel; print(*[m for m in sys.modules if m.startswith('semel.')])"
    assert child(code) == "semel.version"


@pytest.mark.parametrize(
    "statement",
    [
        "import semel.errors; found = semel.errors",
        "from semel import errors as found",
        "import semel; found = semel.errors",
        "import semel; semel.Client; found = semel.errors",
    ],
)
def test_the_errors_can_be_imported_in_every_way(statement: str) -> None:
    code = f"{statement}; print(found.__name__, found.ProducerFenced.__name__)"
    assert child(code) == "semel.errors ProducerFenced"


def test_the_public_errors_are_those_that_the_client_raises() -> None:
    raised = {
        name
        for name, value in vars(client_errors).items()
        if isinstance(value, type) and issubclass(value, semel.SemelError)
    }
    assert set(semel.errors.__all__) == raised
    for name in semel.errors.__all__:
        assert getattr(semel.errors, name) is getattr(client_errors, name)


def test_loading_the_package_is_quick() -> None:
    # The best CPU time of three, so that a busy machine does not fail the test.
    code = (
        "import time; at = time.process_time(); import semel;"
        " print((time.process_time() - at) * 1000)"
    )
    assert min(float(child(code)) for _ in range(3)) < CPU_MS_MAX


def test_every_public_name_can_be_had_and_no_other() -> None:
    for name in semel.__all__:
        assert getattr(semel, name) is not None
        assert name in dir(semel)
    with pytest.raises(AttributeError, match="nothing"):
        _ = semel.nothing


def test_one_except_catches_all() -> None:
    assert issubclass(semel.errors.StreamClosed, semel.SemelError)
    assert issubclass(semel.errors.Indeterminate, semel.SemelError)
