"""Runs programs that start their own Spark session and return values as JSON lines."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import Any, Final

import msgspec

SECONDS_MAX: Final = 240
# Options for a JVM that starts quickly, because the programs are short.
QUICK: Final = "-XX:TieredStopAtLevel=1"

OPENING: Final = """
import json, os, sys
def tell(value):
    print("told", json.dumps(value), flush=True)
"""


def run_program(text: str, *arguments: str, **environment: str | None) -> list[Any]:
    """Run Python text in its own process and JVM; return the values it passed to `tell`.

    An environment variable that is None is removed.
    """
    merged = {**os.environ, "QUICK": QUICK, **environment}
    known = {name: value for name, value in merged.items() if value is not None}
    with subprocess.Popen(
        [sys.executable, "-c", OPENING + text, *arguments],
        env=known,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as program:
        try:
            output, errors = program.communicate(timeout=SECONDS_MAX)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)  # remaining processes
    assert program.returncode == 0, errors
    lines = [line for line in output.splitlines() if line.startswith("told ")]
    return [msgspec.json.decode(line.removeprefix("told ")) for line in lines]
