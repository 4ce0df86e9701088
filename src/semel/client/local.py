"""`semel.local()`: a server in a child process, for a script, a test or a notebook."""

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

from semel.client.computed import FieldValue
from semel.client.credentials import chosen_token
from semel.client.errors import Unavailable
from semel.client.sync.client import Client
from semel.client.transport import CLIENT_DEFAULT, TIMEOUT_SECONDS, Timeout
from semel.model.limits import MIB

_START_SECONDS_MAX: Final = 60.0
_STOP_SECONDS_MAX: Final = 30.0
_LISTENING: Final = "listening on "
_STDERR_BYTES_MAX: Final = 64 * 1024
# The server's defaults reserve much more disk space. A short-lived server does not need it.
_LIGHT: Final = {"segment_bytes": 16 * MIB, "reserve_bytes": 0}


class NotStarted(Unavailable):
    """The server did not start. The message contains the server's output."""

    code = "not_started"
    advice = ""


class LocalProcess:
    """A child process that runs `semel serve`. It can be killed and restarted.

    This class is not thread-safe.
    """

    def __init__(
        self, data: str | PathLike[str] | None, port: int, settings: Mapping[str, object]
    ) -> None:
        self._temporary = "" if data is not None else tempfile.mkdtemp(prefix="semel-")
        self.data: Final = self._temporary if data is None else fspath(data)
        self.url = ""
        self.port = port  # the port the server listens on, also after a restart
        self._settings = {**_LIGHT, **settings}
        self._running: list[subprocess.Popen[bytes]] = []  # holds one process, or none
        # The server's standard error since its first start.
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with this object
        # The finalizer also runs when this object is garbage-collected and when Python exits.
        self._finalizer = weakref.finalize(
            self, _dispose, self._running, self._temporary, self._errors
        )
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    @property
    def pid(self) -> int | None:
        """The process id of the server, or None if the server is not running."""
        return self._running[0].pid if self._running else None

    @property
    def stderr(self) -> str:
        """The first 64 KiB of the server's standard error, including output before a restart."""
        if self._errors.closed:
            return ""
        return os.pread(self._errors.fileno(), _STDERR_BYTES_MAX, 0).decode(errors="replace")

    def stop(self) -> None:
        """Shut the server down. A temporary data directory is removed.

        A second call has no effect.
        """
        self._finalizer()

    def kill(self) -> None:
        """Kill the process as `kill -9` does. The data is kept for `restart`."""
        _end(self._running, is_gentle=False)

    def restart(self) -> None:
        """Start the server again with the same directory and port.

        A running server is shut down first. Raises NotStarted after `stop`, or if the server does
        not start.
        """
        if not self._finalizer.alive:
            raise NotStarted("a stopped server cannot be restarted; call local() again")
        _end(self._running, is_gentle=True)
        self._start()

    def _start(self) -> None:
        command = [sys.executable, "-m", "semel.cli.local_child", self._temporary, "serve"]
        for name, value in {"data": self.data, "port": self.port, **self._settings}.items():
            for each in value if isinstance(value, list | tuple) else [value]:
                command += [f"--{name.replace('_', '-')}", str(each)]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SEMEL_")}
        process = subprocess.Popen(  # noqa: S603 - our own command
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
            bufsize=0,
            start_new_session=True,  # Ctrl-C must not reach the server: the caller stops it
        )
        self._running.append(process)
        self.url = self._await_listening(process)
        self.port = int(self.url.rpartition(":")[2])

    def _await_listening(self, process: subprocess.Popen[bytes]) -> str:
        assert process.stdout is not None
        line = _read_line(process.stdout, monotonic() + _START_SECONDS_MAX)
        if line.startswith(_LISTENING):
            return line.removeprefix(_LISTENING).rstrip("\n")
        self.kill()
        output = (line + self.stderr).strip() or f"no output within {_START_SECONDS_MAX:g} s"
        raise NotStarted(f"semel serve did not start (exit code {process.returncode}): {output}")


def _read_line(pipe: IO[bytes], until: float) -> str:
    """Read one line from the pipe.

    If the pipe ends or the time `until` is reached first, return the part that was read.
    """
    line = b""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while not line.endswith(b"\n") and selector.select(max(0.0, until - monotonic())):
            part = os.read(pipe.fileno(), 4096)
            if not part:
                break
            line += part
    return line.decode(errors="replace")


def _end(running: list[subprocess.Popen[bytes]], *, is_gentle: bool) -> None:
    while running:
        with running.pop() as process:  # on exit: closes the pipes, and waits for the process
            if is_gentle:
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_STOP_SECONDS_MAX)
            process.kill()


def _dispose(running: list[subprocess.Popen[bytes]], temporary: str, errors: IO[bytes]) -> None:
    _end(running, is_gentle=True)
    errors.close()
    if temporary:
        shutil.rmtree(temporary, ignore_errors=True)


def local(
    data: str | PathLike[str] | None = None,
    port: int = 0,
    *,
    timeout: float | None = TIMEOUT_SECONDS,
    token: FieldValue | None = None,
    **settings: Any,
) -> "LocalServer":
    """Start a server in a child process, wait until it listens, and return a client for it.

    `data` is the data directory. By default the server uses a temporary directory that is removed
    at the end. `settings` are options of `semel serve`, as in `local(long_poll_timeout=1)`; a list
    repeats the option. `token` is sent by the client, if `data` is a directory that has tokens.
    Environment variables named SEMEL_* are ignored, also SEMEL_TOKEN.

    The server stops at the end of the `with` block, when `stop()` is called, or when this process
    ends or is killed. Raises NotStarted if the server does not start.
    """
    return LocalServer(LocalProcess(data, port, settings), timeout, token)


class LocalServer(Client):
    """A client for a local server. Closing the client stops the server."""

    def __init__(
        self, process: LocalProcess, timeout: float | None, token: FieldValue | None = None
    ) -> None:
        self._token: Final = chosen_token(token or "", None)
        super().__init__(process.url, timeout=timeout, token=self._token or "")
        self._process: Final = process

    @property
    def port(self) -> int:
        return self._process.port

    @property
    def data(self) -> Path:
        """The data directory."""
        return Path(self._process.data)

    @property
    def pid(self) -> int | None:
        """The process id of the server, or None if the server is not running."""
        return self._process.pid

    @property
    def stderr(self) -> str:
        """The first 64 KiB of the server's standard error, including output before a restart."""
        return self._process.stderr

    def client(self, **options: Any) -> Client:
        """Return a new client for the same server. `options` are the options of `Client`.

        By default it sends the same token. The caller must close the new client.
        """
        return Client(self.url, **{"token": self._token or "", **options})

    def close(self, timeout: Timeout = CLIENT_DEFAULT) -> None:
        """Close the client and shut the server down. A temporary data directory is removed."""
        try:
            super().close(timeout)
        finally:
            self._process.stop()

    def stop(self) -> None:
        """Close the client and the server, as `close` does."""
        self.close()

    def kill(self) -> None:
        """Kill the server as `kill -9` does. The data is kept for `restart`."""
        self._process.kill()

    def restart(self) -> None:
        """Start the server again with the same directory and port.

        A running server is shut down first.
        """
        self._process.restart()
