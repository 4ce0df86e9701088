"""A server in a process of its own: started, watched, ended. Linux."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep
from typing import IO, Final

from msgspec import Struct

HOST: Final = "127.0.0.1"
_START_SECONDS_MAX: Final = 60.0
_STOP_SECONDS_MAX: Final = 30.0
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_LISTENING: Final = "listening on http://"


class NotStarted(Exception):
    """The server did not come up; the message says what it said."""


class Process(Struct, frozen=True):
    """A running server."""

    name: str
    pid: int
    port: int

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://{HOST}:{self.port}"

    @property
    def cpu_seconds(self) -> float:
        """CPU time of all its threads so far, user and kernel."""
        return cpu_seconds_of(self.pid)

    @property
    def memory_kib(self) -> int:
        """What it holds that is no file's page."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1])
        return 0


def cpu_seconds_of(pid: int) -> float:
    """Tell the CPU time of all threads of a process so far, user and kernel."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / _TICKS


def cpu_seconds_below(pid: int, command: bytes) -> float:
    """Tell the CPU time of the children that run a command, and of all below them so far."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            if entry.name.isdigit():
                fields = _stat(int(entry.name))
                children.setdefault(int(fields[1]), []).append(int(entry.name))
                ticks[int(entry.name)] = sum(map(int, fields[11:15]))  # of what it waited for, too
    total, left = 0, [child for child in children.get(pid, ()) if command in _command(child)]
    while left:
        child = left.pop()
        total += ticks[child]
        left += children.get(child, ())
    return total / _TICKS


def _command(pid: int) -> bytes:
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def _stat(pid: int) -> list[str]:
    """Read what the kernel counts of a process, from its state on."""
    text = Path(f"/proc/{pid}/stat").read_text()
    return text[text.rindex(")") + 2 :].split(" ")


@contextmanager
def running(
    name: str,
    command: Sequence[str],
    *,
    port: int = 0,
    environment: Mapping[str, str] | None = None,
    directory: str | None = None,
) -> Iterator[Process]:
    """Run a server; without a port it is asked for the line that tells it."""
    child = subprocess.Popen(  # noqa: S603 - our own command
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL if port else None,
        text=True,
        env=None if environment is None else {**os.environ, **environment},
        cwd=directory,
    )
    assert child.stdout is not None
    try:
        if port:
            _await_port(child, name, port)
        else:
            port = _read_port(child.stdout, name)
        yield Process(name, child.pid, port)
    finally:
        _stop(child)


def _read_port(output: IO[str], name: str) -> int:
    line = output.readline().strip()
    if not line.startswith(_LISTENING):
        raise NotStarted(f"{name} did not start: {line or 'it said nothing'}")
    return int(line.rpartition(":")[2].rstrip("/"))


def _await_port(child: subprocess.Popen[str], name: str, port: int) -> None:
    deadline = monotonic() + _START_SECONDS_MAX
    while monotonic() < deadline and child.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex((HOST, port)) == 0:
                return
        sleep(0.02)
    raise NotStarted(f"{name} did not start")


def _stop(child: subprocess.Popen[str]) -> None:
    child.terminate()
    try:
        child.wait(_STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    if child.stdout is not None:
        child.stdout.close()


def free_port() -> int:
    """Find a port nobody listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def python_module(module: str, *arguments: str) -> list[str]:
    """Make the command that runs a module of ours."""
    return [sys.executable, "-m", module, *arguments]
