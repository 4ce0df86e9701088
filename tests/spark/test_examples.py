"""The programs of examples/, each run as a user runs it: alone, with its own server."""

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.spark.postgres import binaries, postgres

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
LINES_MAX = 80
# Options for a JVM that starts quickly, set outside the examples.
QUICK = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1"}

pytestmark = pytest.mark.timeout(600)


def run(name: str, java: str, **environment: str) -> str:
    """Run an example to its end; return its output."""
    with subprocess.Popen(
        [sys.executable, str(EXAMPLES / name)],
        env={**os.environ, **QUICK, "JAVA_HOME": java, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as program:
        try:
            output, errors = program.communicate(timeout=500)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)  # remaining processes
    assert program.returncode == 0, errors[-5_000:]
    return output


def test_quickstart(java: str) -> None:
    assert run("quickstart.py", java) == "orders 1000\nbills 857\nparcels 857\nerrors 143\n"


def test_stream_to_stream(java: str) -> None:
    said = run("stream_to_stream.py", java)
    assert said == "100 orders in; 50 large and 50 small ones out, each once\n"


def test_stateful(java: str) -> None:
    assert run("stateful.py", java) == "11 orders, a: 120, b: 25\n"


def test_to_delta(java: str) -> None:
    said = run("to_delta.py", java)
    assert said == "batch 0 is in the table already\n100 orders in, 100 rows in the table\n"


@pytest.fixture
def database() -> Iterator[dict[str, str]]:
    if binaries() is None:
        reason = "PostgreSQL is not installed: apt-get install postgresql"
        print(reason)
        pytest.skip(reason)
    with tempfile.TemporaryDirectory() as home:
        Path(home).chmod(0o711)  # PostgreSQL runs as another user than root
        with postgres(Path(home)) as variables:
            yield variables


def test_to_postgres(java: str, database: dict[str, str]) -> None:
    said = run("to_postgres.py", java, **database)
    assert said == "batch 0 is stored already\n100 orders in, 100 rows in the table\n"


def test_declarative(java: str) -> None:
    said = run("declarative/run.py", java)
    assert said.endswith("100 orders in, 50 large ones out, each once\n")


# ---- all examples --------------------------------------------------------------------------------


def programs() -> list[Path]:
    return sorted([*EXAMPLES.glob("*.py"), EXAMPLES / "declarative" / "run.py"])


def test_every_example_is_run_and_is_short() -> None:
    here = Path(__file__).read_text(encoding="utf-8")
    run_here = set(re.findall(r'run\("([\w/.]+)"', here))
    other = (ROOT / "tests/integration/test_examples.py").read_text(encoding="utf-8")
    run_there = {f"{name}.py" for name in re.findall(r'"examples[/.](\w+)', other)}
    found = {path.relative_to(EXAMPLES).as_posix() for path in programs()}
    assert run_here | run_there == found
    for path in programs():
        assert len(path.read_text(encoding="utf-8").splitlines()) < LINES_MAX, path
