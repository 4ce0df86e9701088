import subprocess
import sys
from typing import Final

import pytest

import semel

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


@pytest.mark.parametrize("statement", ["import semel", "from semel import Client, errors"])
def test_the_package_loads_nothing_of_the_server(statement: str) -> None:
    code = f"import sys; {statement}; print(*[m for m in {HEAVY!r} if m in sys.modules])"
    assert child(code) == ""


def test_the_package_alone_loads_no_event_loop_either() -> None:
    assert child("import sys, semel; print('asyncio' in sys.modules)") == "False"


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
