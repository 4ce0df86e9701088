"""Programs that start a Spark of their own: what they say is told by lines of JSON."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import Any, Final

import msgspec

SECONDS_MAX: Final = 240
# A JVM that starts quickly, for programs that are over soon.
QUICK: Final = "-XX:TieredStopAtLevel=1"

OPENING: Final = """
import json, os, sys
def tell(value):
    print("told", json.dumps(value), flush=True)
"""


def run_program(text: str, *arguments: str, **environment: str | None) -> list[Any]:
    """Run Python text to its end, alone with its JVM; the values it told.

    `tell(value)` is there for it to call. A variable of the environment that is None is removed.
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
            said, complaints = program.communicate(timeout=SECONDS_MAX)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)  # whatever of it is left
    assert program.returncode == 0, complaints
    lines = [line for line in said.splitlines() if line.startswith("told ")]
    return [msgspec.json.decode(line.removeprefix("told ")) for line in lines]
