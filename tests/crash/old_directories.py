"""Data directories that earlier versions have written, in `tests/data`."""

import subprocess
import tarfile
from pathlib import Path
from typing import Final

import pytest

from tests.spec.process import SEMEL, Server

RUNS: Final = pytest.mark.parametrize("run", ["stored", "replayed"])
_DATA: Final = Path(__file__).resolve().parents[1] / "data"


def unpack(name: str, into: Path) -> Path:
    """Extract the archive of a directory. Return the directory."""
    with tarfile.open(_DATA / f"{name}.tgz") as archive:
        archive.extractall(into / "data", filter="data")
    return into / "data"


class OldDirectory:
    """A directory of an earlier version, and the servers that were started with it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._servers: list[Server] = []

    def start(self, *options: str) -> Server:
        """Start a server."""
        server = Server(self.path, "--segment-bytes", "65536", *options)
        self._servers.append(server)
        return server

    def close(self) -> None:
        """Kill the servers."""
        for server in self._servers:
            server.kill()

    def verify(self) -> None:
        """Fail unless `semel doctor --verify` finds nothing."""
        done = subprocess.run(
            [str(SEMEL), "doctor", "--data", str(self.path), "--verify"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    @property
    def format(self) -> int:
        """The format version in the identity file."""
        return (self.path / "identity").read_bytes()[11]
