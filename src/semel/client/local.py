"""A server of one's own, for a script, a test or a notebook."""

import os
import selectors
import shutil
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping
from contextlib import suppress
from os import PathLike, fspath
from pathlib import Path
from time import monotonic
from typing import IO, Any, Final

from semel.client.errors import Unavailable
from semel.client.sync.client import Client
from semel.client.transport import CLIENT_DEFAULT, TIMEOUT_SECONDS, Timeout
from semel.model.limits import MIB

# ---- local process -------------------------------------------------------------------------------
# A `semel serve` as a process of one's own, to be stopped, killed and started again.


_START_SECONDS_MAX: Final = 60.0
_STOP_SECONDS_MAX: Final = 30.0
_LISTENING: Final = "listening on "
_COMPLAINT_BYTES_MAX: Final = 64 * 1024
# A server for an hour need not set 400 MiB aside, as one for years does.
_LIGHT: Final = {"segment_bytes": 16 * MIB, "reserve_bytes": 0}


class NotStarted(Unavailable):
    """The server did not come up; the message has what it said."""

    code = "not_started"
    advice = ""


class LocalProcess:
    """A running server. Not for use by two threads at once."""

    def __init__(
        self, data: str | PathLike[str] | None, port: int, settings: Mapping[str, object]
    ) -> None:
        self._temporary = "" if data is not None else tempfile.mkdtemp(prefix="semel-")
        self.data: Final = self._temporary if data is None else fspath(data)
        self.url = ""
        self._port = port
        self._settings = {**_LIGHT, **settings}
        self._running: list[subprocess.Popen[bytes]] = []  # one or none
        # Whatever it complains about, in all its lives.
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as this
        # Also runs when nobody holds this any more, and at the end of the interpreter.
        self._finalizer = weakref.finalize(
            self, _dispose, self._running, self._temporary, self._said
        )
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    @property
    def port(self) -> int:
        """Where it listens; the same after a restart."""
        return self._port

    @property
    def pid(self) -> int | None:
        """The process, if it runs."""
        return self._running[0].pid if self._running else None

    @property
    def stderr(self) -> str:
        """What it has complained about so far."""
        if self._said.closed:
            return ""
        said = os.pread(self._said.fileno(), _COMPLAINT_BYTES_MAX, 0)
        return said.decode(errors="replace")

    def stop(self) -> None:
        """End it in good order, and remove a temporary directory; once is enough."""
        self._finalizer()

    def kill(self) -> None:
        """End it as `kill -9` does. The data stays for `restart`."""
        _end(self._running, is_gentle=False)

    def restart(self) -> None:
        """Start it again on the same directory and port; one that runs is ended in good order."""
        if not self._finalizer.alive:
            raise NotStarted("the server was stopped for good; call local() again")
        _end(self._running, is_gentle=True)
        self._start()

    def _start(self) -> None:
        command = [sys.executable, "-m", "semel.cli.local_child", self._temporary, "serve"]
        for name, value in {"data": self.data, "port": self._port, **self._settings}.items():
            command += [f"--{name.replace('_', '-')}", str(value)]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SEMEL_")}
        process = subprocess.Popen(  # noqa: S603 - our own command
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env=environment,
            bufsize=0,
            start_new_session=True,  # Ctrl-C is for the test, which then stops the server
        )
        self._running.append(process)
        self.url = self._await_listening(process)
        self._port = int(self.url.rpartition(":")[2])

    def _await_listening(self, process: subprocess.Popen[bytes]) -> str:
        assert process.stdout is not None
        line = _read_line(process.stdout, monotonic() + _START_SECONDS_MAX)
        if line.startswith(_LISTENING):
            return line.removeprefix(_LISTENING).rstrip("\n")
        self.kill()
        said = (line + self.stderr).strip() or f"nothing within {_START_SECONDS_MAX:g} s"
        raise NotStarted(f"semel serve did not start (exit code {process.returncode}): {said}")


def _read_line(pipe: IO[bytes], until: float) -> str:
    """Read a line, or what there is when the pipe or the time ends."""
    found = b""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while not found.endswith(b"\n") and selector.select(max(0.0, until - monotonic())):
            piece = os.read(pipe.fileno(), 4096)
            if not piece:
                break
            found += piece
    return found.decode(errors="replace")


def _end(running: list[subprocess.Popen[bytes]], *, is_gentle: bool) -> None:
    while running:
        with running.pop() as process:  # closes its pipes, and waits
            if is_gentle:
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_STOP_SECONDS_MAX)
            process.kill()


def _dispose(running: list[subprocess.Popen[bytes]], temporary: str, said: IO[bytes]) -> None:
    _end(running, is_gentle=True)
    said.close()
    if temporary:
        shutil.rmtree(temporary, ignore_errors=True)


# ---- local server --------------------------------------------------------------------------------


def local(
    data: str | PathLike[str] | None = None,
    port: int = 0,
    *,
    timeout: float | None = TIMEOUT_SECONDS,
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

    def __init__(self, process: LocalProcess, timeout: float | None) -> None:
        super().__init__(process.url, timeout=timeout)
        self._process: Final = process

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

    def close(self, timeout: Timeout = CLIENT_DEFAULT) -> None:
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
