"""A server of one's own, for a script, a test or a notebook."""

from os import PathLike
from pathlib import Path
from typing import Any, Final

from semel.client.client import TIMEOUT_SECONDS, Client
from semel.client.local_process import LocalProcess


def local(
    data: str | PathLike[str] | None = None,
    port: int = 0,
    *,
    timeout: float = TIMEOUT_SECONDS,
    **settings: Any,
) -> "LocalServer":
    """Start a server in a process of its own, wait until it listens, and give a client of it.

    Without `data` it lives in a temporary directory, removed at the end. `timeout` is that of the
    client; `settings` are the options of `semel serve`: `local(long_poll_timeout=1)`. Variables of
    the environment set nothing. The server ends with the `with` block, with `stop()`, or with this
    process, however that ends.
    """
    return LocalServer(LocalProcess(data, port, settings), timeout)


class LocalServer(Client):
    """A client, and the server it talks to."""

    def __init__(self, process: LocalProcess, timeout: float) -> None:
        super().__init__(process.url, timeout=timeout)
        self._process: Final = process

    @property
    def url(self) -> str:
        """Where it listens; the same after a restart."""
        return self._process.url

    @property
    def port(self) -> int:
        """The port of `url`."""
        return self._process.port

    @property
    def data(self) -> Path:
        """The directory it keeps."""
        return Path(self._process.data)

    @property
    def pid(self) -> int | None:
        """The process, if it runs."""
        return self._process.pid

    @property
    def stderr(self) -> str:
        """What it has complained about so far."""
        return self._process.stderr

    def client(self, **options: Any) -> Client:
        """Make another client for it, to be closed by the caller; the options are Client's."""
        return Client(self.url, **options)

    def close(self, timeout: float | None = None) -> None:
        """End the server in good order, and remove a temporary directory; once is enough."""
        try:
            super().close(timeout)
        finally:
            self._process.stop()

    def stop(self) -> None:
        """End the server; the same as `close`."""
        self.close()

    def kill(self) -> None:
        """End the server as `kill -9` does. The data stays for `restart`."""
        self._process.kill()

    def restart(self) -> None:
        """Start the server again on its directory and port; one that runs is ended first."""
        self._process.restart()
