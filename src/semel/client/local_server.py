"""A server of one's own, for a script, a test or a notebook."""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from semel.client.client import Client
from semel.client.errors import Unavailable

_GREETING: Final = "listening on "
_STOP_SECONDS: Final = 30.0


def local(data: str | Path | None = None, **options: Any) -> "LocalServer":
    """Start a server and return a client of it, for a `with` block or until `close`.

    `data` is the directory it keeps; without one, a new directory that is deleted in the end. The
    options are those of Client.
    """
    return LocalServer(data, **options)


class LocalServer(Client):
    """A client, and the server it talks to: a process of its own that ends with `close`."""

    def __init__(self, data: str | Path | None = None, **options: Any) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="semel-") if data is None else None
        self.data = Path(self._scratch.name if self._scratch is not None else data or ".")
        self._process = subprocess.Popen(  # noqa: S603 - our own module, no shell
            [sys.executable, "-m", "semel", "serve", "--data", str(self.data), "--port", "0"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            super().__init__(self._greeting(), **options)
        except BaseException:
            self._end()
            raise

    @property
    def url(self) -> str:
        """Where the server listens."""
        return self.transport.address.url

    def close(self) -> None:
        """End the server in good order, and delete its data if that was its own directory."""
        super().close()
        self._end()

    def _greeting(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith(_GREETING):
            raise Unavailable("the server did not start; standard error says why")
        return line.removeprefix(_GREETING).strip()

    def _end(self) -> None:
        process = self._process
        assert process.stdout is not None
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
        if self._scratch is not None:
            self._scratch.cleanup()
