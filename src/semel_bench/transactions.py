"""Benchmarks for transactions.

`commit` measures one-shot commits that append to four streams. `staged` measures a staged
transaction of 2 GiB. `aborted` measures a stream with 100,000 aborted transactions.
"""

import asyncio
import socket
import time
from collections.abc import Awaitable, Iterator
from itertools import islice, repeat
from typing import Final

import msgspec

from semel.model.limits import GIB, MIB
from semel_bench.harness import (
    Figure,
    Harness,
    Options,
    Side,
    T,
    at_most,
    interleave,
    median,
    median_of,
    percentile,
    ratio,
    ratio_at_most,
)
from semel_bench.load import (
    BACKGROUND,
    Round,
    append_during,
    create_streams,
    drive,
    exchange,
    read_all,
    send_all,
    timed_side,
)
from semel_bench.requests import (
    BYTES,
    JSON,
    LARGE_BODY,
    BadResponse,
    TransactionRequests,
    bare_request,
    commits,
    http_head_bytes,
    http_response_bytes,
    limited,
    plain_appends,
    post,
    small_values,
    stream_url,
)
from semel_bench.servers import HOST, Process, semel_server

# ---- commit: four streams at once ----------------------------------------------------------------

_CONNECTIONS: Final = 64
_STREAMS_EACH: Final = 4
(_VALUE,) = small_values(1)


async def measure_commit(harness: Harness) -> list[Figure]:
    """Measure one-shot commits that append to four streams.

    The CPU time of a commit is compared with that of four plain appends of the same messages.
    """
    options = harness.options
    with harness.scratch() as folder, semel_server(folder) as semel:
        names = [name for writer in range(_CONNECTIONS + 1) for name in _names(writer)]
        await create_streams(semel, names, JSON)
        # The syncs are counted first, while the segment is nearly empty. Later the segment can
        # become full, and the next segment needs additional syncs.
        syncs = await _syncs_each(semel, options.scaled(500))
        body = msgspec.json.encode(_VALUE)
        writers = range(_CONNECTIONS)
        committing = [_commits(writer).__next__ for writer in writers]
        appending = [plain_appends(_names(writer), body, content_type=JSON) for writer in writers]
        sides = {
            "commits": timed_side(options, semel, committing),
            "appends": timed_side(options, semel, appending),
        }
        rounds = await interleave(sides, options.rounds, warm_rounds=options.pick(1, 0))
    together, apart = rounds["commits"], rounds["appends"]
    cpu = median_of(together, lambda r: r.cpu_us)
    cpu_apart = median_of(apart, lambda r: r.cpu_us) * _STREAMS_EACH
    compared = (ratio_at_most(1.5), ratio(cpu, cpu_apart) or 0, "four appends")
    return [
        Figure("CPU per commit", cpu, "us", *compared),
        Figure("CPU per four appends", cpu_apart, "us"),
        Figure("commits", median_of(together, lambda r: r.rate), "commits/s"),
        Figure("four appends", median_of(apart, lambda r: r.rate / _STREAMS_EACH), "sets/s"),
        Figure("syncs per commit, commits sent one at a time", syncs, "syncs", at_most(1)),
        Figure("p50, one commit", median_of(together, lambda r: r.ms(50)), "ms"),
        Figure("p99, one commit", median_of(together, lambda r: r.ms(99)), "ms"),
    ]


def _names(writer: int) -> list[str]:
    return [f"commit-{writer}-{number}" for number in range(_STREAMS_EACH)]


def _commits(writer: int) -> Iterator[bytes]:
    return commits(f"committer-{writer}", _names(writer), _VALUE)


async def _syncs_each(process: Process, count: int) -> float:
    """Send `count` commits, one at a time. Return the number of journal syncs per commit."""
    before = await asyncio.to_thread(_count_syncs, process)
    # These commits come from an additional writer, which the timed rounds do not use.
    await drive(process, [limited(islice(_commits(_CONNECTIONS), count))])
    return (await asyncio.to_thread(_count_syncs, process) - before) / count


def _count_syncs(process: Process) -> int:
    with socket.create_connection((HOST, process.port)) as line:
        page = exchange(line, bare_request("GET", "/metrics"))
    return int(page.partition(b"\nsemel_journal_syncs_total ")[2].partition(b"\n")[0])


# ---- staged: 2 GiB -------------------------------------------------------------------------------

_STAGED: Final = "staged"


class MemoryGrowth:
    """Measures the maximum growth of a server's memory since this object was created."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._before = self._most = process.memory_kib

    @property
    def mb(self) -> float:
        """The maximum growth that was measured so far, in MB."""
        return (self._most - self._before) * 1024 / 1e6

    async def watch(self, work: Awaitable[T]) -> T:
        """Measure the memory repeatedly until `work` is done. Return the result of `work`."""
        task = asyncio.ensure_future(work)
        is_done = False
        while not is_done:
            is_done = bool((await asyncio.wait([task], timeout=0.05))[0])
            self._most = max(self._most, self._process.memory_kib)
        return task.result()


async def measure_staged(harness: Harness) -> list[Figure]:
    """Measure the memory and the time that a large staged transaction needs.

    Also measure how the transaction affects another client's appends.
    """
    options = harness.options
    chunks = options.scaled(2 * GIB // MIB)
    with harness.scratch() as folder, semel_server(folder) as semel:
        await create_streams(semel, [_STAGED, BACKGROUND], BYTES)
        _, idle = await append_during(semel, asyncio.sleep(options.round_seconds))
        growth, requests = MemoryGrowth(semel), TransactionRequests(_STAGED, _STAGED)
        staging = drive(semel, [limited(_stage(requests, chunks))])
        staged, meanwhile = await append_during(semel, growth.watch(staging))
        committing = send_all(semel, requests.end(1, "commit"))
        committed, during_commit = await append_during(semel, growth.watch(committing))
    size, another = f"{chunks:,} MiB", "another client's append"
    p99, rest = percentile(meanwhile, 99), percentile(idle, 99)
    return [
        Figure(f"memory growth, {size}", growth.mb, "MB", at_most(200)),
        Figure(f"staging of {size}", chunks * MIB / 1e6 / staged.wall_s, "MB/s"),
        Figure("commit", committed.wall_s * 1e3, "ms"),
        Figure(f"{another}, p99, while staging", p99 * 1e3, "ms", None, ratio(p99, rest), "idle"),
        Figure(f"{another}, longest, while staging", max(meanwhile) * 1e3, "ms"),
        Figure(f"{another}, longest, during the commit", max(during_commit) * 1e3, "ms"),
        Figure(f"{another}, p99, before staging", rest * 1e3, "ms"),
    ]


def _stage(requests: TransactionRequests, chunks: int) -> Iterator[bytes]:
    yield requests.begin("staged")
    for seq in range(chunks):
        yield requests.stage(1, seq, LARGE_BODY)


# ---- aborted: 100,000 in one stream --------------------------------------------------------------

_FEW: Final = 100
_WRITERS: Final = 50
_BODY: Final = bytes(range(100))
_LONG: Final = "long"
_SHORT: Final = "short"
_COMMITTED: Final = "isolation=read_committed"
_HEAD: Final = "HEAD"
_READ: Final = "read at the tail"


async def measure_aborted(harness: Harness) -> list[Figure]:
    """Measure a stream with very many aborted transactions: memory, server start and reads.

    The time to find the stream's tail is compared with the time for a stream that has few aborted
    transactions.
    """
    options = harness.options
    many = max(options.scaled(100_000), 2 * _FEW)
    with harness.scratch() as folder:
        with semel_server(folder) as semel:
            empty = semel.memory_kib
            await create_streams(semel, [_LONG, _SHORT], BYTES)
            filling = MemoryGrowth(semel)
            filled_s = await filling.watch(_fill(semel, _LONG, many))
            await _fill(semel, _SHORT, _FEW)
        began = time.perf_counter()
        with semel_server(folder) as semel:
            started_s = time.perf_counter() - began
            restarted = (semel.memory_kib - empty) * 1024 / 1e6
            reading = MemoryGrowth(semel)
            read_s = await reading.watch(_read_committed(semel))
            looks = await _find_tails(semel, options)
    return [
        Figure(f"memory after restart, {many:,} aborts", restarted, "MB", at_most(100)),
        Figure("memory growth during the transactions", filling.mb, "MB"),
        Figure("memory growth during the read", reading.mb, "MB"),
        Figure("start", started_s, "s"),
        Figure("read at read_committed, from start to end", read_s * 1e3, "ms"),
        Figure("aborted transactions of one message each", many / filled_s, "transactions/s"),
        *_compare(_HEAD, looks, many),
        *_compare(_READ, looks, many),
    ]


async def _fill(process: Process, stream: str, count: int) -> float:
    """Append a message, run about `count` transactions that abort, and append another message.

    Returns the duration in seconds.
    """
    plain = post(stream, BYTES, _BODY)
    began = time.perf_counter()
    await send_all(process, plain)
    writers = [TransactionRequests(f"{stream}-{index}", stream) for index in range(_WRITERS)]
    await drive(process, [limited(_aborts(each, count // _WRITERS)) for each in writers])
    await send_all(process, plain)
    return time.perf_counter() - began


def _aborts(requests: TransactionRequests, count: int) -> Iterator[bytes]:
    for epoch in range(1, count + 1):
        yield requests.begin()
        yield requests.publish(epoch, _BODY)
        yield requests.end(epoch, "abort")


async def _read_committed(process: Process) -> float:
    """Read the stream `long`, which has two committed messages. Return the time in seconds."""
    query = f"&{_COMMITTED}"
    total, seconds = await asyncio.to_thread(read_all, process, _LONG, query=query)
    if total != 2 * len(_BODY):
        raise BadResponse(f"the read returned {total} bytes, but {2 * len(_BODY)} were expected")
    return seconds


async def _find_tails(process: Process, options: Options) -> dict[str, list[Round]]:
    """Measure how long it takes to find the tail of a stream, with HEAD and with a read.

    The stream `long` has many aborted transactions, and `short` has few. Returns the rounds of each
    measurement, keyed by a name such as `HEAD, long`.
    """
    sides: dict[str, Side[Round]] = {}
    for stream in (_LONG, _SHORT):
        url = stream_url(stream)
        for name, request, size in (
            (_HEAD, bare_request("HEAD", url), http_head_bytes),
            (_READ, bare_request("GET", f"{url}?offset=now&{_COMMITTED}"), http_response_bytes),
        ):
            source = repeat(request).__next__
            sides[f"{name}, {stream}"] = timed_side(options, process, [source], size, parts=3)
    return await interleave(sides, 3 * options.rounds)


def _compare(name: str, looks: dict[str, list[Round]], many: int) -> list[Figure]:
    long, short = (
        median_of(looks[f"{name}, {stream}"], lambda r: median(r.latencies)) * 1e6
        for stream in (_LONG, _SHORT)
    )
    few = f"{_FEW} aborted"
    compared = (ratio_at_most(1.2), ratio(long, short), few)
    return [
        Figure(f"{name}, p50, {many:,} aborted", long, "us", *compared),
        Figure(f"{name}, p50, {few}", short, "us"),
    ]
