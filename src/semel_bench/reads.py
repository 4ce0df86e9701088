"""Reads over HTTP, and the cost of idle readers and idle streams.

`catchup` measures reads from the head of a stream to its tail. `sse` measures the delivery of
events at the tail of a stream. `idle` measures readers that wait for events. `memory` measures
streams without messages.
"""

import asyncio
import re
import time
from functools import partial
from itertools import repeat
from typing import Final

from semel_bench.harness import (
    Figure,
    Harness,
    Options,
    at_least,
    at_most,
    interleave,
    median,
    median_of,
)
from semel_bench.load import (
    Round,
    allow_many_files,
    close_readers,
    connect_readers,
    create_streams,
    drive,
    read_all,
    send_all,
)
from semel_bench.requests import (
    BYTES,
    FRAMES,
    JSON,
    LARGE_BODY,
    SMALL_BODY,
    large_json,
    limited,
    post,
)
from semel_bench.servers import HOST, Process, Stopwatch, semel_server

# ---- catchup -------------------------------------------------------------------------------------

_SMALL_STREAMS: Final = 50


async def measure_catchup(harness: Harness) -> list[Figure]:
    """Measure reads of a stream from its head to its tail. The files are in the page cache."""
    small = f"256-byte appends, {_SMALL_STREAMS} streams interleaved"
    frames = f"Accept: {FRAMES}"
    kinds = {
        "1 MiB appends, bytes": ("large-bytes", (), at_least(800)),
        "1 MB appends, JSON": ("large-json", (), at_least(400)),
        "1 MiB appends, frames format": ("large-bytes", (frames,), at_least(800)),
        small: ("small-0", (), None),
        f"{small}, frames format": ("small-0", (frames,), None),
    }
    with harness.scratch() as folder, semel_server(folder) as semel:
        await _fill(semel, harness.options)
        sides = {
            name: partial(_catch_up, semel, stream, *fields)
            for name, (stream, fields, _) in kinds.items()
        }
        rounds = await interleave(sides, harness.options.rounds)
    return [
        Figure(name, median(rounds[name]), "MB/s", target) for name, (*_, target) in kinds.items()
    ]


async def _fill(process: Process, options: Options) -> None:
    for name, kind, body in (
        ("large-bytes", BYTES, LARGE_BODY),
        ("large-json", JSON, large_json()),
    ):
        await create_streams(process, [name], kind)
        await send_all(process, *repeat(post(name, kind, body), options.scaled(100)))
    names = [f"small-{index}" for index in range(_SMALL_STREAMS)]
    await create_streams(process, names, BYTES)
    requests = [post(name, BYTES, SMALL_BODY) for name in names]
    await drive(process, [limited(repeat(each, options.scaled(1_000))) for each in requests])


async def _catch_up(process: Process, name: str, *fields: str) -> float:
    """Read a stream to its tail, and return the speed in MB/s.

    The read uses a blocking socket, because this needs the least CPU time in the client.
    """
    total, seconds = await asyncio.to_thread(read_all, process, name, fields)
    return total / seconds / 1e6


# ---- sse -----------------------------------------------------------------------------------------

_EVENTS_PER_SECOND: Final = 50
_STREAM: Final = "events"
_NUMBER: Final = re.compile(rb'"n": ?([0-9]+)')


async def measure_sse(harness: Harness) -> list[Figure]:
    """Measure the time from an append until its message has reached each of 1,000 readers."""
    options = harness.options
    count = options.scaled(1_000)
    with harness.scratch() as folder, semel_server(folder) as semel:
        await create_streams(semel, [_STREAM], JSON)
        deliveries = [await _deliver(semel, options, count) for _ in range(options.rounds)]
    rounds = [each for each, _ in deliveries]
    name = f"p99 latency, {count:,} readers, {_EVENTS_PER_SECOND} events/s"
    return [
        Figure(name, median_of(rounds, lambda r: r.ms(99)), "ms", at_most(10)),
        Figure("p50", median_of(rounds, lambda r: r.ms(50)), "ms"),
        Figure("not delivered", sum(missing for _, missing in deliveries), ""),
        Figure("server", median_of(rounds, lambda r: r.server_share), "cores"),
        Figure("client", median_of(rounds, lambda r: r.client_share), "cores"),
    ]


async def _deliver(process: Process, options: Options, count: int) -> tuple[Round, int]:
    """Connect `count` readers and append events for the length of one round.

    Returns the latency of each event at each reader, and the number of events that did not arrive.
    """
    readers = await connect_readers(process, _STREAM, count)
    for reader in readers:
        reader.arrived = []
    watch = Stopwatch(process)
    sent = await _send_events(process, round(_EVENTS_PER_SECOND * options.round_seconds))
    used = watch.stop()
    await asyncio.sleep(1.0)  # long enough for the last events to arrive
    latencies = [
        at - sent[int(number)]
        for reader in readers
        for at, data in reader.arrived or ()
        for number in _NUMBER.findall(data)
    ]
    await close_readers(readers)
    measured = Round(used.wall_s, used.server_cpu_s, used.client_cpu_s, latencies)
    return measured, len(readers) * len(sent) - len(latencies)


async def _send_events(process: Process, count: int) -> list[float]:
    """Append events at a fixed rate, without waiting for the responses.

    Returns the time at which each event was sent.
    """
    responses, line = await asyncio.open_connection(HOST, process.port)
    reading = asyncio.create_task(responses.read())
    sent: list[float] = []
    began = time.perf_counter()
    for number in range(count):
        due = began + number / _EVENTS_PER_SECOND
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        request = post(_STREAM, JSON, b'{"n":%d,"pad":"%b"}' % (number, b"x" * 100))
        sent.append(time.perf_counter())
        line.write(request)
    await asyncio.sleep(1 / _EVENTS_PER_SECOND)
    line.close()
    await reading
    return sent


# ---- idle: readers that wait for events ----------------------------------------------------------

_HOLD_SECONDS: Final = 3.0


async def measure_idle(harness: Harness) -> list[Figure]:
    """Measure how many of 10,000 waiting readers stay connected, and what they cost the server."""
    target = harness.options.scaled(10_000)
    # The server uses at most 80 % of its allowed open files for connections. This process has the
    # same limit, and it needs some files for other purposes.
    count = min(target, int(allow_many_files() * 0.8) - 200)
    if count < target:
        harness.skipped.append(f"idle: limit on open files allows {count} readers, not {target}")
    with harness.scratch() as folder, semel_server(folder) as semel:
        await create_streams(semel, ["idle"], JSON)
        before = semel.memory_kib
        readers = await connect_readers(semel, "idle", count)
        cpu = semel.cpu_seconds
        await asyncio.sleep(_HOLD_SECONDS)
        held = sum(not reader.is_lost for reader in readers)
        cores = (semel.cpu_seconds - cpu) / _HOLD_SECONDS
        memory = semel.memory_kib - before
        await close_readers(readers)
    return [
        Figure("SSE readers held", held, "readers", at_least(target)),
        Figure("memory, all", memory / 1024, "MiB"),
        Figure("memory, each", memory / held, "KiB"),
        Figure("server CPU while readers wait", cores, "cores"),
    ]


# ---- memory: streams without messages ------------------------------------------------------------


async def measure_memory(harness: Harness) -> list[Figure]:
    """Measure the memory that 200,000 streams need, after their creation and after a restart."""
    count = harness.options.scaled(200_000)
    with harness.scratch() as folder:
        with semel_server(folder) as semel:
            empty = semel.memory_kib
            names = (f"idle/{number}" for number in range(count))
            creation = await create_streams(semel, names, JSON, connections=256)
            created = semel.memory_kib - empty
        with semel_server(folder) as semel:
            restarted = semel.memory_kib - empty
    name = f"memory per stream, {count:,} idle"
    return [
        Figure(f"{name}, after restart", restarted / count, "KiB", at_most(1.2)),
        Figure(f"{name}, just created", created / count, "KiB"),
        Figure("streams created", creation.rate, "streams/s"),
    ]
