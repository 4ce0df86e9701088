"""Measures how long each part of `make test` takes.

`python -m tests.parts NAME COMMAND...` runs one part and prints its duration; without arguments it
prints the table of all parts. If the command fails, the table is printed as well, and the exit code
is that of the command.
"""

import subprocess
import sys
import time
from pathlib import Path
from typing import Final

NOTES: Final = Path("build/parts.txt")


def run(name: str, command: list[str], notes: Path = NOTES) -> int:
    """Run one part, record its duration, and return the exit code of the command."""
    started = time.monotonic()
    code = subprocess.run(command, check=False).returncode
    seconds = time.monotonic() - started
    notes.parent.mkdir(parents=True, exist_ok=True)
    with notes.open("a", encoding="utf-8") as file:
        file.write(f"{name} {seconds:.0f} {code}\n")
    print(
        f"-- {name}: {seconds:.0f} seconds{'' if code == 0 else f', FAILED ({code})'}", flush=True
    )
    return code


def table(notes: Path = NOTES) -> str:
    """Return a table of the recorded durations and their sum."""
    parts = [line.split() for line in notes.read_text(encoding="utf-8").splitlines()]
    lines = [
        f"{name:<14}{seconds:>6} s{'' if code == '0' else '  FAILED'}"
        for name, seconds, code in parts
    ]
    total = sum(int(seconds) for _, seconds, _ in parts)
    return "\n".join(["", *lines, f"{'all':<14}{total:>6} s"])


def main(arguments: list[str]) -> int:
    """Run a part, or print the table."""
    if not arguments:
        print(table())
        return 0
    name, *command = arguments
    code = run(name, command)
    if code != 0:
        print(table(), flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
