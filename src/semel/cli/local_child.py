"""The child process of `local()`: a `semel serve` that ends when its parent process ends.

The first argument is the path of a temporary directory, or an empty string if there is none. The
standard input is a pipe from the parent. When the parent ends, the pipe is closed. The child then
removes the temporary directory and ends.
"""

import logging
import os
import shutil
import sys
import threading

from semel.cli.main import cli


def _follow_parent(temporary: str) -> None:
    os.read(0, 1)  # not sys.stdin, because its lock would block the shutdown of the interpreter
    if temporary:
        shutil.rmtree(temporary, ignore_errors=True)
    os._exit(0)


if __name__ == "__main__":
    arguments = (sys.argv.pop(1),)
    threading.Thread(target=_follow_parent, args=arguments, daemon=True).start()
    # The line about access at each start would hide what the server complains about.
    logging.getLogger("semel.access").setLevel(logging.ERROR)
    cli.main(prog_name="semel")
