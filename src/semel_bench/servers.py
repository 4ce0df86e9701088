"""The servers that are measured, each in a process of its own: started, observed, ended. Linux."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import IO, Final

from msgspec import Struct

from semel_bench.harness import Unavailable

HOST: Final = "127.0.0.1"
_START_SECONDS_MAX: Final = 60.0
_STOP_SECONDS_MAX: Final = 30.0
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_LISTENING: Final = "listening on http://"

_NODE_PACKAGE: Final = "@durable-streams/server"
_NODE_SCRIPT: Final = """
for (const name of ["debug", "error", "info", "log", "warn"]) console[name] = () => {}
const found = await import("@durable-streams/server")
const server = new found.DurableStreamTestServer({
  port: 0, host: "127.0.0.1", longPollTimeout: 1000,
})
// By default it keeps 100 files open, and answers 404 if more streams than that are written to.
server.store = new found.FileBackedStreamStore({
  dataDir: process.env.BENCH_DATA, maxFileHandles: 4096,
})
const url = await server.start()
process.on("SIGTERM", () => process.exit(0))
process.stdout.write(`listening on ${url}\\n`)
"""


# ---- what the kernel counts ----------------------------------------------------------------------


class Memory(Struct, frozen=True):
    """KiB of a process: all resident, the part that no file backs, and the peak of all."""

    resident_kib: int
    anonymous_kib: int
    peak_kib: int


def memory_of(pid: int) -> Memory:
    """Return the memory of a process."""
    lines = map(str.split, Path(f"/proc/{pid}/status").read_text().splitlines())
    kib = {words[0]: int(words[1]) for words in lines if words[-1:] == ["kB"]}
    return Memory(kib["VmRSS:"], kib["RssAnon:"], kib["VmHWM:"])


def cpu_seconds_of(pid: int) -> float:
    """Return the CPU time of all threads of a process so far, user and kernel."""
    return sum(map(int, _stat(pid)[11:13])) / _TICKS


def cpu_seconds_below(pid: int, command: bytes) -> float:
    """Return the CPU time so far of the children that run `command`, and of their descendants."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for child in (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            fields = _stat(child)
            children.setdefault(int(fields[1]), []).append(child)
            ticks[child] = sum(map(int, fields[11:15]))  # with that of the children it waited for
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
    """Return the fields of /proc/PID/stat, from the state on."""
    text = Path(f"/proc/{pid}/stat").read_text()
    return text[text.rindex(")") + 2 :].split(" ")


class Process(Struct, frozen=True):
    """A running server."""

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
        """The memory it holds that no file backs."""
        return memory_of(self.pid).anonymous_kib


class Usage(Struct, frozen=True):
    """What a piece of work took: wall time, and CPU time of the server and of this process."""

    wall_s: float
    server_cpu_s: float
    client_cpu_s: float

    @property
    def server_share(self) -> float:
        """How much of one core the server used."""
        return self.server_cpu_s / self.wall_s

    @property
    def client_share(self) -> float:
        """How much of one core this process used."""
        return self.client_cpu_s / self.wall_s


class Stopwatch:
    """Reads the three clocks of `Usage` when it is created and when it is stopped."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._began = self._read()

    def _read(self) -> tuple[float, float, float]:
        return time.perf_counter(), self._process.cpu_seconds, time.process_time()

    def stop(self) -> Usage:
        """Return what was used since the creation."""
        return Usage(*(now - then for now, then in zip(self._read(), self._began, strict=True)))


# ---- starting and ending -------------------------------------------------------------------------


@contextmanager
def _running(
    name: str,
    command: Sequence[str],
    *,
    port: int = 0,
    environment: Mapping[str, str] | None = None,
    directory: str | None = None,
) -> Iterator[Process]:
    """Run a server during the block. Without `port`, its first line of output has to name it."""
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
        yield Process(child.pid, port)
    finally:
        _stop(child)


def _read_port(output: IO[str], name: str) -> int:
    line = output.readline().strip()
    if not line.startswith(_LISTENING):
        raise Unavailable(f"{name} did not start: {line or 'it printed nothing'}")
    return int(line.rpartition(":")[2].rstrip("/"))


def _await_port(child: subprocess.Popen[str], name: str, port: int) -> None:
    deadline = time.monotonic() + _START_SECONDS_MAX
    while time.monotonic() < deadline and child.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex((HOST, port)) == 0:
                return
        time.sleep(0.02)
    raise Unavailable(f"{name} did not start")


def _stop(child: subprocess.Popen[str]) -> None:
    child.terminate()
    try:
        child.wait(_STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    if child.stdout is not None:
        child.stdout.close()


# ---- the servers ---------------------------------------------------------------------------------


def semel_server(folder: str) -> AbstractContextManager[Process]:
    """Run `semel serve` on the data directory `semel` below a folder."""
    serve = [sys.executable, "-m", "semel", "serve", "--data", f"{folder}/semel", "--port", "0"]
    return _running("semel", [*serve, "--reserve-bytes", "0", "--long-poll-timeout", "30"])


def bare_server(directory: str | None) -> AbstractContextManager[Process]:
    """Run the server of `semel_bench.bare`; without a directory it writes nothing."""
    arguments = [] if directory is None else [directory]
    return _running("bare", [sys.executable, "-m", "semel_bench.bare", *arguments])


def node_server(directory: str, node_modules: str) -> AbstractContextManager[Process]:
    """Run the reference server of the protocol, storing in files; Unavailable if not installed."""
    node = shutil.which("node")
    if node is None:
        raise Unavailable("Node reference server: no node on the path")
    if not (Path(node_modules) / _NODE_PACKAGE).is_dir():
        raise Unavailable(f"Node reference server: no {_NODE_PACKAGE} in {node_modules}")
    os.makedirs(directory, exist_ok=True)
    return _running(
        "Node",
        [node, "--input-type=module", "-e", _NODE_SCRIPT],
        environment={"BENCH_DATA": directory, "NODE_ENV": "production"},
        directory=str(Path(node_modules).resolve().parent),
    )


def redis_server(directory: str) -> AbstractContextManager[Process]:
    """Run Redis, durable after every command; Unavailable if it is not installed."""
    redis = shutil.which("redis-server")
    if redis is None:
        raise Unavailable("Redis Streams: no redis-server on the path")
    os.makedirs(directory, exist_ok=True)
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
    command = [
        *(redis, "--bind", HOST, "--port", str(port), "--dir", directory, "--save", ""),
        *("--appendonly", "yes", "--appendfsync", "always", "--auto-aof-rewrite-percentage", "0"),
    ]
    return _running("Redis", command, port=port)
