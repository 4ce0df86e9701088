"""What semel is measured beside, and how each is started."""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from semel.cli.benchmarks.processes import (
    HOST,
    Process,
    free_port,
    python_module,
    running,
)

NODE_PACKAGE: Final = "@durable-streams/server"
_NODE_SCRIPT: Final = """
for (const name of ["debug", "error", "info", "log", "warn"]) console[name] = () => {}
const found = await import("@durable-streams/server")
const server = new found.DurableStreamTestServer({
  port: 0, host: "127.0.0.1", longPollTimeout: 1000,
})
// By itself it keeps 100 files open, and answers 404 when more streams than that are written to.
server.store = new found.FileBackedStreamStore({
  dataDir: process.env.BENCH_DATA, maxFileHandles: 4096,
})
const url = await server.start()
process.on("SIGTERM", () => process.exit(0))
process.stdout.write(`listening on ${url}\\n`)
"""


class Missing(Exception):
    """A peer is not installed; the message says what to install."""


@contextmanager
def semel_server(directory: str, *, long_poll_seconds: float = 30.0) -> Iterator[Process]:
    """Run `semel serve`."""
    command = [
        *(sys.executable, "-c", "from semel.cli.main import main; main()", "serve"),
        *("--data", directory, "--port", "0", "--reserve-bytes", "0"),
        *("--long-poll-timeout", str(long_poll_seconds)),
    ]
    with running("semel", command) as process:
        yield process


@contextmanager
def bare_server(directory: str | None) -> Iterator[Process]:
    """Run the bare limit; without a directory it writes nothing."""
    arguments = [] if directory is None else [directory]
    with running("bare", python_module("semel.cli.benchmarks.bare_server", *arguments)) as process:
        yield process


@contextmanager
def node_server(directory: str, node_modules: str) -> Iterator[Process]:
    """Run the reference server of the protocol, storing in files."""
    node = shutil.which("node")
    if node is None:
        raise Missing("Node reference server: no node on the path")
    if not (Path(node_modules) / NODE_PACKAGE).is_dir():
        raise Missing(f"Node reference server: no {NODE_PACKAGE} in {node_modules}")
    os.makedirs(directory, exist_ok=True)
    command = [node, "--input-type=module", "-e", _NODE_SCRIPT]
    with running(
        "Node",
        command,
        environment={"BENCH_DATA": directory, "NODE_ENV": "production"},
        directory=str(Path(node_modules).resolve().parent),
    ) as process:
        yield process


@contextmanager
def redis_server(directory: str) -> Iterator[Process]:
    """Run Redis, durable on every command."""
    redis = shutil.which("redis-server")
    if redis is None:
        raise Missing("Redis Streams: no redis-server on the path")
    os.makedirs(directory, exist_ok=True)
    port = free_port()
    command = [
        *(redis, "--bind", HOST, "--port", str(port), "--dir", directory, "--save", ""),
        *("--appendonly", "yes", "--appendfsync", "always", "--auto-aof-rewrite-percentage", "0"),
    ]
    with running("Redis", command, port=port) as process:
        yield process
