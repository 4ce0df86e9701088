"""Reading a stream from its start to its end, from files the kernel has in memory."""

import asyncio
import re
import socket
import time
from contextlib import ExitStack
from functools import partial
from itertools import repeat
from typing import Final

from semel.cli.benchmarks.bed import Bed, create_streams
from semel.cli.benchmarks.bodies import large_bytes, large_json
from semel.cli.benchmarks.figures import Figure, at_least, middle
from semel.cli.benchmarks.load import drive
from semel.cli.benchmarks.options import Options, scratch
from semel.cli.benchmarks.peers import semel_server
from semel.cli.benchmarks.processes import HOST, Process
from semel.cli.benchmarks.requests import (
    BYTES,
    FRAMES,
    JSON,
    BadAnswer,
    get,
    limited,
    post,
    stream_url,
)
from semel.cli.benchmarks.turns import Side, take_turns

_LARGE_APPENDS: Final = 100
_SMALL_STREAMS: Final = 50
_SMALL_APPENDS: Final = 1_000
_SMALL_BODY: Final = bytes(range(256))
_BUFFER_BYTES: Final = 1 << 20
_HEAD_END: Final = b"\r\n\r\n"
_LENGTH: Final = re.compile(rb"(?i)\r\ncontent-length: ([0-9]+)")
_NEXT: Final = re.compile(rb"(?i)\r\nstream-next-offset: ([0-9_]+)")
_UP_TO_DATE: Final = re.compile(rb"(?i)\r\nstream-up-to-date: true")
_MB: Final = 1e6


async def run(bed: Bed) -> list[Figure]:
    """Measure."""
    options = bed.options
    with scratch(options) as folder, ExitStack() as stack:
        semel = stack.enter_context(semel_server(f"{folder}/semel"))
        await _fill(semel, options)
        frames = f"Accept: {FRAMES}"
        sides: dict[str, Side[float]] = {
            "bytes": partial(_catch_up, semel, "large-bytes"),
            "JSON": partial(_catch_up, semel, "large-json"),
            "frames": partial(_catch_up, semel, "large-bytes", frames),
            "small": partial(_catch_up, semel, "small-0"),
            "small frames": partial(_catch_up, semel, "small-0", frames),
        }
        found = await take_turns(sides, options.rounds)
    rate = {name: middle(rounds) for name, rounds in found.items()}
    small = f"256 bytes, {_SMALL_STREAMS} streams interleaved"
    return [
        _figure("1 MiB appends, bytes", rate["bytes"], 800),
        _figure("1 MB appends, JSON", rate["JSON"], 400),
        _figure("1 MiB appends, frames format", rate["frames"], 800),
        _figure(small, rate["small"]),
        _figure(f"{small}, frames format", rate["small frames"]),
    ]


async def _fill(process: Process, options: Options) -> None:
    times = options.scaled(_LARGE_APPENDS)
    for name, kind, body in (
        ("large-bytes", BYTES, large_bytes()),
        ("large-json", JSON, large_json()),
    ):
        await create_streams(process, [name], kind)
        await drive(process, [limited(repeat(post(name, kind, body), times))])
    names = [f"small-{index}" for index in range(_SMALL_STREAMS)]
    await create_streams(process, names, BYTES)
    times = options.scaled(_SMALL_APPENDS)
    requests = [post(name, BYTES, _SMALL_BODY) for name in names]
    await drive(process, [limited(repeat(request, times)) for request in requests])


async def _catch_up(process: Process, name: str, *fields: str) -> float:
    """Read to the end; MB/s. A blocking socket is the lightest client there is."""
    total, seconds = await asyncio.to_thread(read_all, process.port, name, fields)
    return total / seconds / _MB


def read_all(
    port: int, name: str, fields: tuple[str, ...] = (), more: str = ""
) -> tuple[int, float]:
    """Read a stream from its start to its end; how many bytes there were, and in what time.

    `more`: of the query.
    """
    offset, total, is_over = "-1", 0, False
    buffer = bytearray(_BUFFER_BYTES)
    with socket.create_connection((HOST, port)) as line:
        began = time.perf_counter()
        while not is_over:
            line.sendall(get(f"{stream_url(name)}?offset={offset}{more}", *fields))
            head, body_bytes = _read_answer(line, buffer)
            following = _NEXT.search(head)
            if following is None:
                raise BadAnswer("no Stream-Next-Offset")
            offset, total = following[1].decode(), total + body_bytes
            is_over = _UP_TO_DATE.search(head) is not None
        return total, time.perf_counter() - began


def _read_answer(line: socket.socket, buffer: bytearray) -> tuple[bytes, int]:
    """Read one answer and drop its body; its head, and how large the body was."""
    data = b""
    while (end := data.find(_HEAD_END)) < 0:
        piece = line.recv(4096)
        if not piece:
            raise BadAnswer("the server closed a connection")
        data += piece
    head = data[: end + 2]
    length = _LENGTH.search(head)
    if not data.startswith(b"HTTP/1.1 200") or length is None:
        raise BadAnswer(data[:200].decode("latin-1"))
    size = int(length[1])
    missing = size - (len(data) - end - len(_HEAD_END))
    while missing:
        count = line.recv_into(buffer, min(missing, _BUFFER_BYTES))
        if not count:
            raise BadAnswer("the server closed a connection")
        missing -= count
    return head, size


def _figure(name: str, value: float, bound: float = 0.0) -> Figure:
    target = at_least(bound) if bound else None
    return Figure(work="catchup", name=name, value=value, unit="MB/s", target=target)
