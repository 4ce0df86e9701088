"""Durable appends over HTTP, compared with other servers and with the limits of the machine.

`append` measures small appends to many streams on many connections. `one` measures appends that are
sent one at a time. `batch` measures appends of 1 MiB.
"""

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from itertools import repeat
from typing import Final

from semel.wire.tokens import ID_BYTES, SECRET_BYTES, make_token
from semel_bench.harness import (
    Figure,
    Harness,
    Options,
    Side,
    at_least,
    at_most,
    interleave,
    median,
    median_of,
    median_ratio,
    percentile,
    ratio,
    ratio_at_least,
    ratio_at_most,
)
from semel_bench.load import Round, create_streams, drive, timed_side
from semel_bench.requests import (
    BYTES,
    JSON,
    LARGE_BODY,
    SMALL_BODY,
    large_json,
    limited,
    plain_appends,
    post,
    produced_appends,
    redis_response_bytes,
    xadd_appends,
)
from semel_bench.servers import (
    FRAME_EXTRA,
    BareFiles,
    Process,
    bare_server,
    node_server,
    redis_server,
    semel_server,
)

Rounds = Mapping[str, Sequence[Round]]

# ---- append: 256 bytes to 500 streams ------------------------------------------------------------

_NAMES: Final = [f"bench-{number}" for number in range(500)]

_PLAIN: Final = "semel"
_PRODUCED: Final = "semel, producer headers"
_GUARDED: Final = "semel, token"
_PRODUCED_GUARDED: Final = "semel, producer headers, token"
_NODE: Final = "Node reference server"
_REDIS: Final = "Redis Streams, fsync always"
_BARE: Final = "bare limit"


async def measure_append(harness: Harness) -> list[Figure]:
    """Measure small appends to semel, with and without producer headers, and to other servers."""
    from semel_bench.calls import calls_per_append  # loads the server into this process

    with harness.scratch() as folder, ExitStack() as stack:
        sides = await _append_sides(harness, folder, stack)
        rounds = await interleave(sides, harness.options.pick(15, 1))
        calls = await calls_per_append(f"{folder}/calls")
    return [*_append_rates(rounds), *_append_costs(rounds), *calls, *_append_shares(rounds)]


async def _append_sides(harness: Harness, folder: str, stack: ExitStack) -> dict[str, Side[Round]]:
    side = partial(timed_side, harness.options)
    shares = _shares(256)
    plain = [plain_appends(share, SMALL_BODY) for share in shares]
    produced = [
        produced_appends(share, f"producer-{index}", SMALL_BODY)
        for index, share in enumerate(shares)
    ]
    semel = stack.enter_context(semel_server(folder))
    await create_streams(semel, _NAMES, BYTES)
    bare = stack.enter_context(bare_server(f"{folder}/bare"))
    guarded, field = await _guarded_server(f"{folder}/guarded", stack)
    with_token = [plain_appends(share, SMALL_BODY, field) for share in shares]
    produced_with_token = [
        produced_appends(share, f"producer-{index}", SMALL_BODY, field)
        for index, share in enumerate(shares)
    ]
    sides: dict[str, Side[Round]] = {
        _PLAIN: side(semel, plain),
        _GUARDED: side(guarded, with_token),
        _PRODUCED: side(semel, produced),
        _PRODUCED_GUARDED: side(guarded, produced_with_token),
        _BARE: side(bare, plain),
    }
    with harness.optional():
        node = stack.enter_context(node_server(f"{folder}/node", harness.options.node_modules))
        await create_streams(node, _NAMES, BYTES)
        sides[_NODE] = side(node, plain)
    with harness.optional():
        redis = stack.enter_context(redis_server(f"{folder}/redis"))
        sources = [xadd_appends(share, SMALL_BODY) for share in _shares(64)]
        sides[_REDIS] = side(redis, sources, redis_response_bytes)
    return sides


async def _guarded_server(folder: str, stack: ExitStack) -> tuple[Process, str]:
    """Start a server that requires a token. Return it, and the header line with the token."""
    token = make_token(os.urandom(ID_BYTES), os.urandom(SECRET_BYTES)).text
    server = stack.enter_context(semel_server(folder, token))
    field = f"Authorization: Bearer {token}"
    await create_streams(server, _NAMES, BYTES, field)
    return server, field


def _shares(connections: int) -> list[list[str]]:
    """Return the list of streams for each connection. Each stream is used by one connection."""
    return [_NAMES[first::connections] for first in range(connections)]


def _append_rates(rounds: Rounds) -> list[Figure]:
    rates = {name: median_of(each, lambda r: r.rate) for name, each in rounds.items()}
    unit = "appends/s"
    figures = [
        Figure(name, rate, unit, at_least(35_000) if name == _PLAIN else None, is_rate=True)
        for name, rate in rates.items()
    ]
    for name, target in ((_NODE, ratio_at_least(7)), (_REDIS, ratio_at_least(0.7)), (_BARE, None)):
        if name in rates:
            compared = (ratio(rates[_PLAIN], rates[name]), name.partition(" ")[0])
            figures += [Figure(f"semel, ratio to {name}", rates[_PLAIN], unit, target, *compared)]
    return figures


def _append_costs(rounds: Rounds) -> list[Figure]:
    cpu = {name: median_of(each, lambda r: r.cpu_us) for name, each in rounds.items()}
    plain, produced = cpu[_PLAIN], cpu[_PRODUCED]
    peers = [name for name in (_BARE, _NODE, _REDIS) if name in cpu]
    by_round = median_ratio(rounds[_PRODUCED], rounds[_PLAIN], lambda r: r.cpu_us)
    compared = (ratio_at_most(1.2), by_round, f"plain, median of {len(rounds[_PLAIN])}")
    rounds_of = f"median of {len(rounds[_PLAIN])}"
    by_token = median_ratio(rounds[_GUARDED], rounds[_PLAIN], lambda r: r.cpu_us)
    token, both = cpu[_GUARDED], cpu[_PRODUCED_GUARDED]
    by_both = median_ratio(rounds[_PRODUCED_GUARDED], rounds[_PRODUCED], lambda r: r.cpu_us)
    return [
        Figure("CPU per append", plain, "us", at_most(20)),
        Figure("additional CPU with a token", token - plain, "us", at_most(0.5)),
        Figure(
            "CPU with a token", token, "us", ratio_at_most(1.02), by_token, f"plain, {rounds_of}"
        ),
        Figure(
            "CPU with producer headers and a token",
            both,
            "us",
            ratio_at_most(1.02),
            by_both,
            f"producer headers, {rounds_of}",
        ),
        Figure("CPU with producer headers", produced, "us"),
        Figure("additional CPU with producer headers", produced - plain, "us", at_most(3)),
        Figure("CPU with producer headers versus plain appends", produced, "us", *compared),
        *[Figure(f"CPU, {name}", cpu[name], "us") for name in peers],
    ]


def _append_shares(rounds: Rounds) -> list[Figure]:
    figures = []
    for name, each in rounds.items():
        figures += [
            Figure(f"p50, {name}", median_of(each, lambda r: r.ms(50)), "ms"),
            Figure(f"p99, {name}", median_of(each, lambda r: r.ms(99)), "ms"),
            Figure(f"server, {name}", median_of(each, lambda r: r.server_share), "cores"),
            Figure(f"client, {name}", median_of(each, lambda r: r.client_share), "cores"),
        ]
    return figures


# ---- one: a single connection --------------------------------------------------------------------

_STREAM: Final = "one"
_ROUND_TRIP: Final = "constant response"
_WRITE: Final = "bare write and fdatasync"
_BOTH: Final = "a bare server that writes and responds"


async def measure_one(harness: Harness) -> list[Figure]:
    """Measure appends that are sent one at a time, compared with a round trip plus a bare write."""
    options = harness.options
    with (
        harness.scratch() as folder,
        semel_server(folder) as semel,
        bare_server(None) as constant,
        bare_server(f"{folder}/server") as bare,
        closing(BareFiles(f"{folder}/bare")) as files,
    ):
        await create_streams(semel, [_STREAM], BYTES)
        write = partial(files.write_seconds, [SMALL_BODY, FRAME_EXTRA], options.scaled(2_000))
        sides: dict[str, Side[list[float]]] = {
            _PLAIN: partial(_latencies, semel, options),
            _ROUND_TRIP: partial(_latencies, constant, options),
            _WRITE: partial(asyncio.to_thread, write),
            _BOTH: partial(_latencies, bare, options),
        }
        rounds = await interleave(sides, 3 * options.rounds)
    p50 = {name: median_of(each, median) * 1e6 for name, each in rounds.items()}
    p99 = median_of(rounds[_PLAIN], lambda latencies: percentile(latencies, 99)) * 1e6
    least = p50[_ROUND_TRIP] + p50[_WRITE]
    beside = "round trip + write"
    return [
        Figure("p50, semel", p50[_PLAIN], "us", ratio_at_most(1.3), p50[_PLAIN] / least, beside),
        Figure("p99, semel", p99, "us"),
        Figure(f"p50, {_ROUND_TRIP}", p50[_ROUND_TRIP], "us"),
        Figure(f"p50, {_WRITE}", p50[_WRITE], "us"),
        # This server only writes and responds, but it is slower than the sum, because a sync takes
        # longer if the disk was idle before it. So no server can be as fast as the sum.
        Figure(f"p50, {_BOTH}", p50[_BOTH], "us", None, p50[_BOTH] / least, beside),
    ]


async def _latencies(process: Process, options: Options) -> list[float]:
    side = timed_side(options, process, [plain_appends([_STREAM], SMALL_BODY)], parts=3)
    return (await side()).latencies


# ---- batch: 1 MiB each ---------------------------------------------------------------------------

_BATCH_CONNECTIONS: Final = 4


async def measure_batch(harness: Harness) -> list[Figure]:
    """Measure appends of 1 MiB, compared with a bare loop that writes and syncs the same bytes."""
    options = harness.options
    times, group = options.scaled(24), _BATCH_CONNECTIONS
    with (
        harness.scratch() as folder,
        semel_server(folder) as semel,
        closing(BareFiles(f"{folder}/bare")) as files,
    ):
        for kind in (BYTES, JSON):
            await create_streams(semel, _batch_names(kind), kind)
        sides = {
            "bytes": partial(_batch_appends, semel, BYTES, LARGE_BODY, times),
            "JSON": partial(_batch_appends, semel, JSON, large_json(), times),
            "bare": partial(_batch_writes, files, [LARGE_BODY], group * times),
            "bare groups": partial(_batch_writes, files, [LARGE_BODY] * group, times),
        }
        rounds = await interleave(sides, options.rounds)
    rate = {name: median(each) for name, each in rounds.items()}
    # The server writes all waiting appends together with one sync. For a fair comparison, the bare
    # loop is measured both ways, and the faster way counts.
    bare = max(rate["bare"], rate["bare groups"])
    written = "bare writes of 1 MiB, one fdatasync for"

    def compared(name: str, kind: str, target: float) -> Figure:
        return Figure(name, rate[kind], "MB/s", ratio_at_least(target), rate[kind] / bare, "bare")

    return [
        compared("1 MiB, bytes", "bytes", 0.6),
        compared("1 MiB appends of 100-byte JSON messages", "JSON", 0.3),
        Figure(f"{written} each write", rate["bare"], "MB/s"),
        Figure(f"{written} {group} writes", rate["bare groups"], "MB/s"),
    ]


def _batch_names(kind: str) -> list[str]:
    return [f"batch-{kind.rpartition('/')[2]}-{index}" for index in range(_BATCH_CONNECTIONS)]


async def _batch_appends(process: Process, kind: str, body: bytes, times: int) -> float:
    requests = [post(name, kind, body) for name in _batch_names(kind)]
    done = await drive(process, [limited(repeat(request, times)) for request in requests])
    return len(done.latencies) * len(body) / done.wall_s / 1e6


async def _batch_writes(files: BareFiles, bodies: list[bytes], times: int) -> float:
    seconds = await asyncio.to_thread(files.write_seconds, bodies, times)
    return times * sum(map(len, bodies)) / sum(seconds) / 1e6
