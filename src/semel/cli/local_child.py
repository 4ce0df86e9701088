"""The process of `local()`: a `semel serve` that ends with the process that started it.

Its standard input is a pipe that is never written to: end of file means that the parent has ended,
for whatever reason. The first argument is a temporary directory of the parent, which the child then
removes, or an empty string.
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


if __name__ == "__main__":
    arguments = (sys.argv.pop(1),)
    threading.Thread(target=_follow_parent, args=arguments, daemon=True).start()
    cli.main(prog_name="semel")
