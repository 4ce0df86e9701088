"""The process of `local()`: a `semel serve` that does not outlive the one that started it.

Its standard input is a pipe that nobody writes to. When that ends, the parent is gone, however it
died. A parent that made a temporary directory names it, and the child then takes it along.
"""

import os
import shutil
import sys
import threading

from semel.cli.main import cli


def _follow_parent(temporary: str) -> None:
    os.read(0, 1)  # not sys.stdin: its lock would be held when the interpreter shuts down
    if temporary:
        shutil.rmtree(temporary, ignore_errors=True)
    os._exit(0)


def run() -> None:
    """Run the command line behind the first argument, the temporary directory or nothing."""
    temporary = sys.argv.pop(1)
    threading.Thread(target=_follow_parent, args=(temporary,), daemon=True).start()
    cli.main(prog_name="semel")


if __name__ == "__main__":
    run()
