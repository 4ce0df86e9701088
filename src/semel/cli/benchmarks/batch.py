"""Appends of 1 MiB, beside a bare loop of write and fdatasync of the same bytes."""

import asyncio
from contextlib import ExitStack
from functools import partial
from itertools import repeat
from typing import Final

from semel.cli.benchmarks.bare_disk import BareFiles, write_seconds
from semel.cli.benchmarks.bed import Bed, create_streams
from semel.cli.benchmarks.bodies import large_bytes, large_json
from semel.cli.benchmarks.figures import Figure, middle, ratio_at_least
from semel.cli.benchmarks.load import drive
from semel.cli.benchmarks.options import scratch
from semel.cli.benchmarks.peers import semel_server
from semel.cli.benchmarks.processes import Process
from semel.cli.benchmarks.requests import BYTES, JSON, limited, post
from semel.cli.benchmarks.turns import Side, take_turns

_CONNECTIONS: Final = 4
_APPENDS_EACH: Final = 24
_MB: Final = 1e6


async def run(bed: Bed) -> list[Figure]:
    """Measure."""
    options = bed.options
    times = options.scaled(_APPENDS_EACH)
    plain, array = large_bytes(), large_json()
    with scratch(options) as folder, ExitStack() as stack:
        semel = stack.enter_context(semel_server(f"{folder}/semel"))
        for kind in (BYTES, JSON):
            await create_streams(semel, _names(kind), kind)
        files = BareFiles(f"{folder}/bare")
        stack.callback(files.close)
        sides: dict[str, Side[float]] = {
            "bytes": partial(_appends, semel, BYTES, plain, times),
            "JSON": partial(_appends, semel, JSON, array, times),
            "bare": partial(_writes, files, [plain], _CONNECTIONS * times),
            "bare groups": partial(_writes, files, [plain] * _CONNECTIONS, times),
        }
        found = await take_turns(sides, options.rounds)
    rate = {name: middle(rounds) for name, rounds in found.items()}
    # Appends that wait together are synced together: the loop may do the same.
    bare = max(rate["bare"], rate["bare groups"])
    return [
        _figure("bytes", rate["bytes"], rate["bytes"] / bare, 0.6),
        _figure("JSON, 100-byte messages", rate["JSON"], rate["JSON"] / bare, 0.3),
        _figure("bare write and fdatasync of each", rate["bare"]),
        _figure(f"bare write and fdatasync of {_CONNECTIONS}", rate["bare groups"]),
    ]


def _names(kind: str) -> list[str]:
    return [f"batch-{kind.rpartition('/')[2]}-{index}" for index in range(_CONNECTIONS)]


async def _appends(process: Process, kind: str, body: bytes, times: int) -> float:
    requests = [post(name, kind, body) for name in _names(kind)]
    found = await drive(process, [limited(repeat(request, times)) for request in requests])
    return len(found.latencies) * len(body) / found.wall_s / _MB


async def _writes(files: BareFiles, bodies: list[bytes], times: int) -> float:
    seconds = await asyncio.to_thread(write_seconds, files, bodies, times)
    return times * sum(map(len, bodies)) / sum(seconds) / _MB


def _figure(name: str, value: float, ratio: float | None = None, bound: float = 0.0) -> Figure:
    return Figure(
        work="batch",
        name=f"1 MiB, {name}",
        value=value,
        unit="MB/s",
        ratio=ratio,
        beside="" if ratio is None else "bare",
        target=None if ratio is None else ratio_at_least(bound),
    )
