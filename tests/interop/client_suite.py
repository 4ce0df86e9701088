"""Runs the public client suite with both our clients: python -m tests.interop.client_suite.

The suite is the npm package `@durable-streams/client-conformance-tests`. It starts the reference
server and an adapter (`client_adapter.py`), and makes our client do what its test cases say. `make
client-suite` installs and runs it. The environment variable CLIENT_SUITE is the command of another
copy of the suite.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
INSTALLED: Final = (
    ROOT / "build/client_suite/node_modules/@durable-streams/client-conformance-tests/dist/cli.js"
)
KINDS: Final = {"Client": "", "AsyncClient": "--async"}
# The suite prints one line for each test, with one of these signs.
NOTABLE: Final = re.compile(r"^ +(?:✗|○) .*", re.MULTILINE)
TOTALS: Final = re.compile(r"^(?:Total|Passed|Failed|Skipped): .*", re.MULTILINE)
_ADAPTER: Final = "#!/bin/sh\ncd {root} && exec {python} -m tests.interop.client_adapter {option}\n"


def command() -> list[str]:
    """Return the command of the suite. Raises SystemExit if it is not installed."""
    given = os.environ.get("CLIENT_SUITE")
    if given:
        return shlex.split(given)
    if not INSTALLED.exists():
        raise SystemExit("the client suite is not installed: run `make client-suite`")
    return ["node", str(INSTALLED)]


def run(name: str, option: str, arguments: list[str]) -> bool:
    """Run the suite with one client, and print what failed or was skipped. Return True if none."""
    with tempfile.TemporaryDirectory() as directory:
        adapter = Path(directory, "adapter")
        adapter.write_text(
            _ADAPTER.format(
                root=shlex.quote(str(ROOT)), python=shlex.quote(sys.executable), option=option
            )
        )
        adapter.chmod(0o700)
        done = subprocess.run(
            [*command(), "--run", str(adapter), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    totals = TOTALS.findall(done.stdout)
    if not totals:
        raise SystemExit(f"the client suite did not run:\n{done.stdout}")
    sys.stdout.write(f"{name}: {', '.join(totals)}\n")
    sys.stdout.writelines(f"{line}\n" for line in NOTABLE.findall(done.stdout))
    return done.returncode == 0


def main() -> None:
    """Run the suite with both clients. The exit code is 1 if a test fails."""
    results = [run(name, option, sys.argv[1:]) for name, option in KINDS.items()]
    raise SystemExit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
