"""Counts the Python calls that the server makes for one append.

Time depends on the machine and on its load, a count does not. So the count shows small changes of
the path of an append that the measured CPU time cannot show.
"""

import os
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any, Final

import semel
from semel.testing import InProcessServer
from semel_bench.harness import Figure
from semel_bench.load import create_streams, drive, send_all
from semel_bench.requests import (
    BYTES,
    JSON,
    SMALL_BODY,
    Source,
    keyed_appends,
    limited,
    plain_appends,
    produced_appends,
    put_subscription,
    put_topic,
)
from semel_bench.servers import Process

_CONNECTIONS: Final = 16
_APPENDS: Final = 20  # per connection
_PARTITIONS: Final = 12
_PACKAGE: Final = f"{Path(semel.__file__).parent}{os.sep}"


async def calls_per_append(folder: str) -> list[Figure]:
    """Return how many functions of semel an append calls, without and with producer headers.

    The server runs in this process. Only calls on the thread of the event loop are counted: a call
    of a Python function of semel counts, also a call of a property or of a closure. What many
    appends share, such as a write to the journal, counts for each of them in part.
    """
    async with InProcessServer(folder) as server:
        process = Process(os.getpid(), server.port)
        names = [f"calls-{index}" for index in range(_CONNECTIONS)]
        await create_streams(process, names, BYTES)
        plain = [plain_appends([name], SMALL_BODY) for name in names]
        produced = [produced_appends([name], f"producer-{name}", SMALL_BODY) for name in names]
        return [
            Figure("Python calls per append", await _count(process, plain), "calls"),
            Figure("Python calls with producer headers", await _count(process, produced), "calls"),
        ]


async def calls_per_keyed_append(folder: str) -> Figure:
    """Return how many functions of semel an append with a key to a topic calls.

    They are counted as in `calls_per_append`.
    """
    async with InProcessServer(folder) as server:
        process = Process(os.getpid(), server.port)
        topics = [f"calls-{index}" for index in range(_CONNECTIONS)]
        await send_all(process, *(put_topic(topic, BYTES, _PARTITIONS) for topic in topics))
        keyed = [keyed_appends(topic, BYTES, SMALL_BODY) for topic in topics]
        return Figure("Python calls with Message-Key", await _count(process, keyed), "calls")


async def calls_per_followed_append(folder: str) -> Figure:
    """Return how many functions of semel an append to a followed stream calls.

    The subscription has a wake in flight. They are counted as in `calls_per_append`.
    """
    async with InProcessServer(folder) as server:
        process = Process(os.getpid(), server.port)
        names = [f"calls/{index}" for index in range(_CONNECTIONS)]
        await create_streams(process, names, BYTES)
        await create_streams(process, ["wakes"], JSON)
        config = {"type": "pull-wake", "pattern": "calls/*", "wake_stream": "wakes"}
        await send_all(process, put_subscription("calls", config))
        appends = [plain_appends([name], SMALL_BODY) for name in names]
        return Figure("Python calls, followed stream", await _count(process, appends), "calls")


async def _count(process: Process, sources: Sequence[Source]) -> float:
    """Return the number of calls for each append of `sources`, without those for connections."""
    await _calls(process, sources, _APPENDS)  # fills the caches
    few = await _calls(process, sources, _APPENDS)
    many = await _calls(process, sources, 2 * _APPENDS)
    return (many - few) / (_APPENDS * len(sources))


async def _calls(process: Process, sources: Sequence[Source], appends: int) -> int:
    """Send `appends` requests of each source. Return the number of calls meanwhile."""
    calls = 0

    def note(frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal calls
        if event == "call" and frame.f_code.co_filename.startswith(_PACKAGE):
            calls += 1

    some = [limited(islice(iter(source, None), appends)) for source in sources]
    sys.setprofile(note)
    try:
        await drive(process, some)
    finally:
        sys.setprofile(None)
    return calls
