"""10,000 readers that wait for events that do not come: can they be held, and in how much?"""

import asyncio
import resource
from typing import Final

from semel.cli.benchmarks.bed import Bed, create_streams
from semel.cli.benchmarks.figures import Figure, at_least
from semel.cli.benchmarks.options import scratch
from semel.cli.benchmarks.peers import semel_server
from semel.cli.benchmarks.readers import close_readers, connect_readers
from semel.cli.benchmarks.requests import JSON

_READERS: Final = 10_000
_SPARE_FILES: Final = 200
_SERVER_SHARE: Final = 0.8  # of its files a server gives to connections
_STREAM: Final = "idle"
_HOLD_SECONDS: Final = 3.0


async def run(bed: Bed) -> list[Figure]:
    """Measure."""
    options = bed.options
    wanted = options.scaled(_READERS)
    count = min(wanted, int(_raise_file_limit() * _SERVER_SHARE) - _SPARE_FILES)
    if count < wanted:
        bed.skipped.append(f"idle: the file limit allows {count} readers of {wanted}")
    with scratch(options) as folder, semel_server(f"{folder}/semel") as semel:
        await create_streams(semel, [_STREAM], JSON)
        before = semel.memory_kib
        readers = await connect_readers(semel, _STREAM, count)
        cpu = semel.cpu_seconds
        await asyncio.sleep(_HOLD_SECONDS)
        held = sum(not reader.is_lost for reader in readers)
        spent = (semel.cpu_seconds - cpu) / _HOLD_SECONDS
        memory = semel.memory_kib - before
        await close_readers(readers)
    target = at_least(wanted)
    return [
        Figure(work="idle", name="SSE readers held", value=held, unit="readers", target=target),
        Figure(work="idle", name="memory, all", value=memory / 1024, unit="MiB"),
        Figure(work="idle", name="memory, each", value=memory / held, unit="KiB"),
        Figure(work="idle", name="server while they wait", value=spent, unit="cores"),
    ]


def _raise_file_limit() -> int:
    """Allow this process and its children as many files as may be; how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard if hard != resource.RLIM_INFINITY else 1 << 20
