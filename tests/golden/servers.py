"""Starts `semel serve` in a separate process."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

SEMEL: Final = Path(sys.executable).with_name("semel")
_LONG_POLL_SECONDS: Final = "0.2"


class Server:
    """A server process; `files_max` limits its number of open files."""

    def __init__(self, data: Path, *options: str, files_max: int | None = None) -> None:
        self.data = data
        command = [str(SEMEL), "serve", "--data", str(data), "--port", "0"]
        command += ["--long-poll-timeout", _LONG_POLL_SECONDS, "--reserve-bytes", "0", *options]
        command += ["--allowed-host", "semel"]  # the Host of the recorded requests
        if files_max is not None:
            command = ["sh", "-c", f'ulimit -n {files_max} && exec "$0" "$@"', *command]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE)
        self._port = 0

    @property
    def port(self) -> int:
        """The port of the server; waits until the server listens."""
        if not self._port:
            assert self.process.stdout is not None
            self._port = int(self.process.stdout.readline().rpartition(b":")[2])
        return self._port

    def kill(self) -> None:
        """Kill the process and wait for its end."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def serving(data: Path, *options: str, files_max: int | None = None) -> Iterator[Server]:
    """Run a server, and kill it at the end."""
    server = Server(data, *options, files_max=files_max)
    try:
        yield server
    finally:
        server.kill()
