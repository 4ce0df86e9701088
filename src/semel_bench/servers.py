"""Starts each measured server in its own process, and measures its CPU time and memory.

For comparison, a `BareServer` only writes each request's body to `BareFiles` and responds. Start it
with `python -m semel_bench.servers [DIRECTORY]`. Without DIRECTORY, it only responds.

This module works on Linux only.
"""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import IO, Final

import click
import uvloop
from msgspec import Struct

from semel.broker.worker import Worker
from semel.journal.disk import RealDisk, RealFile
from semel.journal.frame import encode_meta, frame_bytes
from semel.machine.events import Section, StreamAppended
from semel.model.limits import SEGMENT_BYTES_DEFAULT
from semel.server.http import Request, Responder, Response
from semel.server.listener import Listener
from semel_bench.harness import Unavailable

HOST: Final = "127.0.0.1"
_TICKS: Final = os.sysconf("SC_CLK_TCK")

_NODE_PACKAGE: Final = "@durable-streams/server"
_NODE_SCRIPT: Final = """
for (const name of ["debug", "error", "info", "log", "warn"]) console[name] = () => {}
const found = await import("@durable-streams/server")
const server = new found.DurableStreamTestServer({
  port: 0, host: "127.0.0.1", longPollTimeout: 1000,
})
// By default it keeps 100 files open, and responds with 404 if more streams are written to.
server.store = new found.FileBackedStreamStore({
  dataDir: process.env.BENCH_DATA, maxFileHandles: 4096,
})
const url = await server.start()
process.on("SIGTERM", () => process.exit(0))
process.stdout.write(`listening on ${url}\\n`)
"""


# ---- memory and CPU time -------------------------------------------------------------------------


class Memory(Struct, frozen=True):
    """A process's resident memory in KiB: the total, its anonymous part, and the peak total."""

    resident_kib: int
    anonymous_kib: int
    peak_kib: int


def memory_of(pid: int) -> Memory:
    """Return how much memory the process `pid` uses."""
    lines = map(str.split, Path(f"/proc/{pid}/status").read_text().splitlines())
    kib = {words[0]: int(words[1]) for words in lines if words[-1:] == ["kB"]}
    return Memory(kib["VmRSS:"], kib["RssAnon:"], kib["VmHWM:"])


def cpu_seconds_of(pid: int) -> float:
    """Return the CPU time (user and kernel) that all threads of a process have used so far."""
    return sum(map(int, _stat(pid)[11:13])) / _TICKS


def cpu_seconds_below(pid: int, command: bytes) -> float:
    """Return the CPU time that matching children of the process `pid` have used, in seconds.

    A child matches if its command line contains `command`. All its descendants are included.
    """
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for child in (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        with suppress(FileNotFoundError, ProcessLookupError):  # the process has ended
            fields = _stat(child)
            ticks[child] = sum(map(int, fields[11:15]))  # includes its children that have ended
            parent = int(fields[1])
            if parent != pid or command in Path(f"/proc/{child}/cmdline").read_bytes():
                children.setdefault(parent, []).append(child)
    total, rest = 0, list(children.get(pid, ()))
    while rest:
        child = rest.pop()
        total += ticks[child]
        rest += children.get(child, ())
    return total / _TICKS


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat, starting with the state."""
    text = Path(f"/proc/{pid}/stat").read_text()
    return text[text.rindex(")") + 2 :].split(" ")


class Process(Struct, frozen=True):
    """A running server: its process id and its port."""

    pid: int
    port: int

    @property
    def url(self) -> str:
        """The base URL of the server."""
        return f"http://{HOST}:{self.port}"

    @property
    def cpu_seconds(self) -> float:
        """The CPU time (user and kernel) that all threads of the server have used so far."""
        return cpu_seconds_of(self.pid)

    @property
    def memory_kib(self) -> int:
        """The anonymous memory of the server, in KiB. This memory is not backed by a file."""
        return memory_of(self.pid).anonymous_kib


class Usage(Struct, frozen=True):
    """The resources that a load used: wall time, and CPU time of the server and of this process."""

    wall_s: float
    server_cpu_s: float
    client_cpu_s: float

    @property
    def server_share(self) -> float:
        """The number of cores that the server used on average."""
        return self.server_cpu_s / self.wall_s

    @property
    def client_share(self) -> float:
        """The number of cores that this process used on average."""
        return self.client_cpu_s / self.wall_s


class Stopwatch:
    """Measures a `Usage`, from the creation of this object until `stop` is called."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._began = self._read()

    def _read(self) -> tuple[float, float, float]:
        return time.perf_counter(), self._process.cpu_seconds, time.process_time()

    def stop(self) -> Usage:
        """Return the usage since this object was created."""
        return Usage(*(now - then for now, then in zip(self._read(), self._began, strict=True)))


# ---- start and stop ------------------------------------------------------------------------------


@contextmanager
def _running(
    name: str,
    command: Sequence[str],
    *,
    port: int = 0,
    environment: Mapping[str, str] | None = None,
    directory: str | None = None,
) -> Iterator[Process]:
    """Run a server during the block. Raises Unavailable if the server does not start.

    If `port` is 0, the server chooses a port and names it in the first line of its output.
    """
    with subprocess.Popen(  # noqa: S603 - our own command
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL if port else None,
        text=True,
        env=None if environment is None else {**os.environ, **environment},
        cwd=directory,
    ) as child:
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
    if not line.startswith("listening on http://"):
        raise Unavailable(f"the {name} server did not start: {line or 'it printed nothing'}")
    return int(line.rpartition(":")[2].rstrip("/"))


def _await_port(child: subprocess.Popen[str], name: str, port: int) -> None:
    deadline = time.monotonic() + 60.0
    while time.monotonic() < deadline and child.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex((HOST, port)) == 0:
                return
        time.sleep(0.02)
    raise Unavailable(f"the {name} server did not start")


def _stop(child: subprocess.Popen[str]) -> None:
    child.terminate()
    try:
        child.wait(30.0)
    except subprocess.TimeoutExpired:
        child.kill()


# ---- the servers ---------------------------------------------------------------------------------


def semel_server(folder: str, token: str | None = None) -> AbstractContextManager[Process]:
    """Return a context manager that runs `semel serve` with its data in `<folder>/semel`.

    With a `token`, the server requires it with every request.
    """
    serve = [sys.executable, "-m", "semel", "serve", "--data", f"{folder}/semel", "--port", "0"]
    return _running(
        "semel",
        [*serve, "--reserve-bytes", "0", "--long-poll-timeout", "30"],
        environment={} if token is None else {"SEMEL_BOOTSTRAP_TOKEN": token},
    )


def bare_server(directory: str | None) -> AbstractContextManager[Process]:
    """Return a context manager that runs a `BareServer`, without files if `directory` is None."""
    arguments = [] if directory is None else [directory]
    return _running("bare", [sys.executable, "-m", "semel_bench.servers", *arguments])


def node_server(directory: str, node_modules: str) -> AbstractContextManager[Process]:
    """Return a context manager that runs the protocol's reference server on Node.

    The server stores its streams in files. Raises Unavailable if it is not installed.
    """
    node = shutil.which("node")
    if node is None:
        raise Unavailable("Node reference server: the program 'node' is not on the PATH")
    if not (Path(node_modules) / _NODE_PACKAGE).is_dir():
        raise Unavailable(f"Node reference server: {_NODE_PACKAGE} is not in {node_modules}")
    os.makedirs(directory, exist_ok=True)
    return _running(
        "Node",
        [node, "--input-type=module", "-e", _NODE_SCRIPT],
        environment={"BENCH_DATA": directory, "NODE_ENV": "production"},
        directory=str(Path(node_modules).resolve().parent),
    )


def redis_server(directory: str) -> AbstractContextManager[Process]:
    """Return a context manager that runs Redis. Redis is configured to sync after every command.

    Raises Unavailable if Redis is not installed.
    """
    redis = shutil.which("redis-server")
    if redis is None:
        raise Unavailable("Redis Streams: the program 'redis-server' is not on the PATH")
    os.makedirs(directory, exist_ok=True)
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
    command = [
        *(redis, "--bind", HOST, "--port", str(port), "--dir", directory, "--save", ""),
        *("--appendonly", "yes", "--appendfsync", "always", "--auto-aof-rewrite-percentage", "0"),
    ]
    return _running("Redis", command, port=port)


# ---- the bare limit ------------------------------------------------------------------------------

# As many bytes as the journal adds to the payload of an append.
FRAME_EXTRA: Final = bytes(
    frame_bytes(encode_meta(StreamAppended(1_000)), (Section(1_000, 1_000, 1, b"", b"", False),))
)


class BareFiles:
    """Files that are written and synced like the journal.

    Each file is allocated in advance with a size of `file_bytes`. If `file_bytes` is 0, there is
    only one file, and it grows.
    """

    def __init__(self, directory: str, file_bytes: int = SEGMENT_BYTES_DEFAULT) -> None:
        self._disk = RealDisk(directory)
        self._file_bytes = file_bytes
        self._count = 0
        self._position = 0
        self._file = self._next_file()

    def _next_file(self) -> RealFile:
        self._count += 1
        self._position = 0
        return self._disk.create(f"bare-{self._count:06d}", self._file_bytes)

    def write(self, buffers: Sequence[bytes]) -> None:
        """Write the buffers and sync. If the current file is full, create the next file first."""
        size = sum(map(len, buffers))
        if self._file_bytes and self._position + size > self._file_bytes:
            self._file.close()
            self._file = self._next_file()
        self._file.write(self._position, buffers)
        self._file.sync()
        self._position += size

    def write_seconds(self, buffers: Sequence[bytes], times: int) -> list[float]:
        """Write the same buffers `times` times. Return the duration of each write in seconds."""
        seconds = []
        for _ in range(times):
            began = time.perf_counter()
            self.write(buffers)
            seconds.append(time.perf_counter() - began)
        return seconds

    def close(self) -> None:
        """Close the file and the directory."""
        self._file.close()
        self._disk.close()


class BareServer:
    """A server that sends a constant response to every request.

    With files, the server first makes the request's body durable. It writes all waiting bodies with
    one sync. semel uses the same HTTP listener but does more work, so semel cannot be faster.
    """

    def __init__(self, files: BareFiles | None) -> None:
        offset = ("Stream-Next-Offset", "0000000000000000_0000000000000001")
        self._response = Response(204, [offset])
        self._files = files
        self._worker = Worker("bare", _exit)
        self._loop = asyncio.get_running_loop()
        self._waiting: list[Responder] = []
        self._bodies: list[bytes] = []
        self._is_busy = False

    def handle(self, request: Request, responder: Responder) -> None:
        """Respond when the request's body is durable. Without files, respond immediately."""
        if self._files is None:
            responder.send(self._response)
            return
        self._waiting.append(responder)
        self._bodies += (request.body, FRAME_EXTRA)
        self._write_soon(self._files)

    def _write_soon(self, files: BareFiles) -> None:
        if not self._is_busy:
            self._is_busy = True
            self._loop.call_soon(self._write, files)

    def _write(self, files: BareFiles) -> None:
        waiting, self._waiting = self._waiting, []
        bodies, self._bodies = self._bodies, []

        def respond(_: object = None) -> None:
            self._is_busy = False
            for responder in waiting:
                responder.send(self._response)
            if self._waiting:
                self._write_soon(files)

        if len(waiting) == 1:  # like the engine, because this is faster than waking up a thread
            files.write(bodies)
            respond()
        else:
            self._worker.do(lambda: files.write(bodies), respond)


def _exit(error: BaseException) -> None:
    raise SystemExit(str(error))


async def serve(directory: str | None) -> None:
    """Run a `BareServer` until the process receives SIGTERM."""
    server = BareServer(None if directory is None else BareFiles(directory))
    listener = Listener()
    port = await listener.bind(HOST, 0)
    listener.start(server.handle)
    click.echo(f"listening on http://{HOST}:{port}")
    is_stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, is_stopped.set)
    await is_stopped.wait()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1] if len(sys.argv) > 1 else None))
