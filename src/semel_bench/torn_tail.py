"""The time to open a directory with a torn tail, when the tail has many headers of frames.

A message can contain anything, also the headers of frames that do not exist. After a crash, the
scan behind the torn frame must look at each of them. The same number of bytes in ordinary messages
is the measure of what a start may cost.
"""

import asyncio
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from struct import Struct as Layout
from typing import Final

from semel.broker.engine import Engine
from semel.broker.settings import Settings
from semel.journal.frame import ALIGN, MAGIC, VERSION
from semel.journal.segments import segment_name
from semel.model.commands import Append, Batch
from semel.model.limits import KIB, MIB
from semel_bench.engine_load import create_engine_streams, path_of
from semel_bench.harness import Figure, Harness, at_most
from semel_bench.requests import BYTES

_NEVER_MS: Final = 10**9
_MESSAGE_BYTES: Final = 100
_IN_FLIGHT: Final = 500
_ROUNDS: Final = 5
_REST: Final = Layout("<BBHIIIQQQ")  # a frame header after its checksum
_TORN_BYTES: Final = 128
_HEADER_STEP: Final = 32  # a header without its last two fields, which the next header overwrites


def torn_tail_figures(harness: Harness, in_child: Callable[..., float]) -> list[Figure]:
    """Measure how long a start takes after a crash. `in_child` runs a coroutine in a process."""
    tail_bytes = harness.options.pick(4 * MIB, 128 * KIB)
    seconds: dict[str, float] = {}
    with harness.scratch() as folder:
        base, trial = f"{folder}/base", f"{folder}/trial"
        for name, is_honest in (("messages", True), ("frame headers", False)):
            shutil.rmtree(base, ignore_errors=True)
            end = int(in_child(_write, base, tail_bytes if is_honest else 0, is_killed=True))
            _tear(base, end, 0 if is_honest else tail_bytes)
            opened = []
            for _ in range(harness.options.pick(_ROUNDS, 1)):
                shutil.rmtree(trial, ignore_errors=True)
                shutil.copytree(base, trial)
                opened.append(in_child(_open, trial))
            seconds[name] = min(opened)
    size = f"{tail_bytes / MIB:g} MiB of"
    ratio = seconds["frame headers"] / seconds["messages"]
    return [
        *(Figure(f"torn tail: {size} {name}", value, "s") for name, value in seconds.items()),
        Figure("torn tail: headers / messages", ratio, "", at_most(2.0)),
    ]


async def _write(data: str, tail_bytes: int) -> int:
    """Append messages that no checkpoint contains. Return the end of the journal."""
    engine = await Engine.open(data, Settings(reserve_bytes=0, checkpoint_interval_ms=_NEVER_MS))
    await create_engine_streams(engine, 1)
    append = Append(path_of(0), 0, BYTES, Batch(b"x" * _MESSAGE_BYTES))
    while engine.broker.end < tail_bytes:
        await asyncio.gather(*(engine.execute(append) for _ in range(_IN_FLIGHT)))
    await engine.settle()
    return engine.broker.end


def _tear(data: str, end: int, header_bytes: int) -> None:
    """Add a frame that was not written completely, and headers behind it."""
    tail = bytearray(_header(end, _TORN_BYTES).ljust(_TORN_BYTES, b"\1"))
    start = end + _TORN_BYTES
    for at in range(start, start + header_bytes, _HEADER_STEP):
        length = (at * 7919 % (32 * MIB)) // ALIGN * ALIGN + _TORN_BYTES
        tail += _header(at, length)[:_HEADER_STEP]
    with (Path(data) / segment_name(0)).open("r+b") as file:
        file.seek(end)
        file.write(tail)
        file.flush()
        os.fsync(file.fileno())


def _header(lsn: int, length: int) -> bytes:
    rest = _REST.pack(VERSION, 1, 0, length, 8, 1, lsn, lsn, 1)
    return MAGIC + b"\1\2\3\4" + rest


async def _open(data: str) -> float:
    began = time.perf_counter()
    engine = await Engine.open(data, Settings(reserve_bytes=0, checkpoint_interval_ms=_NEVER_MS))
    seconds = time.perf_counter() - began
    await engine.close()
    return seconds
