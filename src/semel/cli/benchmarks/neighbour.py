"""Another client that appends now and then, to see what it notices of its neighbours."""

import asyncio
from collections.abc import Awaitable
from typing import Final

from semel.cli.benchmarks.load import drive
from semel.cli.benchmarks.processes import Process
from semel.cli.benchmarks.requests import BYTES, limited, post

NEIGHBOUR: Final = "neighbour"  # its stream, of bytes
_PAUSE_SECONDS: Final = 0.002  # between its appends: it is no load of its own
_BODY: Final = bytes(range(256))


async def append_during(process: Process, work: Awaitable[object]) -> list[float]:
    """Append now and then while something is done; how long each append took."""
    task = asyncio.ensure_future(work)
    request, found = post(NEIGHBOUR, BYTES, _BODY), list[float]()
    while not task.done() or not found:
        found += (await drive(process, [limited(iter([request]))])).latencies
        await asyncio.sleep(_PAUSE_SECONDS)
    await task
    return found
