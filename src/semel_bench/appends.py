"""Durable appends over HTTP, compared with peers and with bare limits.

`append`: small ones to many streams at once. `one`: one at a time. `batch`: 1 MiB each.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from itertools import repeat
from typing import Final

from semel_bench.bare import FRAME_EXTRA, BareFiles
from semel_bench.figures import (
    Figure,
    at_least,
    at_most,
    median,
    percentile,
    ratio,
    ratio_at_least,
    ratio_at_most,
)
from semel_bench.harness import Harness, Options, Side, interleave
from semel_bench.load import Round, create_streams, drive, over, timed_side
from semel_bench.requests import (
    BYTES,
    JSON,
    SMALL_BODY,
    large_bytes,
    large_json,
    limited,
    plain_appends,
    post,
    produced_appends,
    redis_answer_bytes,
    xadd_appends,
)
from semel_bench.servers import Process, bare_server, node_server, redis_server, semel_server

Rounds = Mapping[str, Sequence[Round]]

# ---- append: 256 bytes to 500 streams ------------------------------------------------------------

_NAMES: Final = [f"bench-{number}" for number in range(500)]
_CONNECTIONS: Final = 256
_REDIS_CONNECTIONS: Final = 64

_PLAIN: Final = "semel"
_PRODUCED: Final = "semel, producer headers"
_NODE: Final = "Node reference server"
_REDIS: Final = "Redis Streams, fsync always"
_BARE: Final = "bare limit"


async def measure_append(harness: Harness) -> list[Figure]:
    """Measure semel plainly and with producer headers, its peers, and the bare limit."""
    options = harness.options
    with harness.scratch() as folder, ExitStack() as stack:
        sides = await _append_sides(harness, folder, stack)
        rounds = await interleave(sides, options.rounds, is_warmed=not options.is_quick)
    return [*_append_rates(rounds), *_append_costs(rounds), *_append_shares(rounds)]


async def _append_sides(harness: Harness, folder: str, stack: ExitStack) -> dict[str, Side[Round]]:
    options = harness.options
    side = partial(timed_side, options)
    # Each connection is the only writer of its streams.
    shares = [_NAMES[first::_CONNECTIONS] for first in range(_CONNECTIONS)]
    plain = [plain_appends(share, SMALL_BODY) for share in shares]
    produced = [
        produced_appends(share, f"producer-{index}", SMALL_BODY)
        for index, share in enumerate(shares)
    ]
    semel = stack.enter_context(semel_server(folder))
    await create_streams(semel, _NAMES, BYTES)
    bare = stack.enter_context(bare_server(f"{folder}/bare"))
    sides: dict[str, Side[Round]] = {
        _PLAIN: side(semel, plain),
        _PRODUCED: side(semel, produced),
        _BARE: side(bare, plain),
    }
    with harness.optional():
        node = stack.enter_context(node_server(f"{folder}/node", options.node_modules))
        await create_streams(node, _NAMES, BYTES)
        sides[_NODE] = side(node, plain)
    with harness.optional():
        redis = stack.enter_context(redis_server(f"{folder}/redis"))
        shares = [_NAMES[first::_REDIS_CONNECTIONS] for first in range(_REDIS_CONNECTIONS)]
        sources = [xadd_appends(share, SMALL_BODY) for share in shares]
        sides[_REDIS] = side(redis, sources, redis_answer_bytes)
    return sides


def _append_rates(rounds: Rounds) -> list[Figure]:
    rates = {name: over(each, lambda one: one.rate) for name, each in rounds.items()}
    unit = "appends/s"
    figures = [
        Figure(name, rate, unit, at_least(35_000) if name == _PLAIN else None, is_rate=True)
        for name, rate in rates.items()
    ]
    for name, target in ((_NODE, ratio_at_least(7)), (_REDIS, ratio_at_least(0.7)), (_BARE, None)):
        if name in rates:
            compared = rates[_PLAIN] / rates[name]
            beside = name.partition(" ")[0]
            label = f"semel beside {name}"
            figures.append(Figure(label, rates[_PLAIN], unit, target, compared, beside))
    return figures


def _append_costs(rounds: Rounds) -> list[Figure]:
    cpu = {name: over(each, lambda one: one.cpu_us) for name, each in rounds.items()}
    plain, produced = cpu[_PLAIN], cpu[_PRODUCED]
    label = "CPU ratio with producer headers"
    return [
        Figure("CPU per append", plain, "us", at_most(20)),
        Figure("CPU, producer headers", produced, "us"),
        Figure("CPU more with producer headers", produced - plain, "us", at_most(3)),
        Figure(label, produced, "us", ratio_at_most(1.15), ratio(produced, plain), "plain"),
        *(
            Figure(f"CPU, {name}", cpu[name], "us")
            for name in (_BARE, _NODE, _REDIS)
            if name in cpu
        ),
    ]


def _append_shares(rounds: Rounds) -> list[Figure]:
    return [
        figure
        for name, each in rounds.items()
        for figure in (
            Figure(f"p50, {name}", over(each, lambda one: one.ms(50)), "ms"),
            Figure(f"p99, {name}", over(each, lambda one: one.ms(99)), "ms"),
            Figure(f"server, {name}", over(each, lambda one: one.server_share), "cores"),
            Figure(f"client, {name}", over(each, lambda one: one.client_share), "cores"),
        )
    ]


# ---- one: a single connection --------------------------------------------------------------------

_WRITTEN: Final = [SMALL_BODY, FRAME_EXTRA]
_STREAM: Final = "one"
_ROUND_TRIP: Final = "constant answer"
_WRITE: Final = "bare write and fdatasync"
_BOTH: Final = "bare limit, both in one server"


async def measure_one(harness: Harness) -> list[Figure]:
    """Measure one append at a time, compared with a round trip plus a write and sync."""
    options = harness.options
    with (
        harness.scratch() as folder,
        semel_server(folder) as semel,
        bare_server(None) as constant,
        bare_server(f"{folder}/server") as bare,
        closing(BareFiles(f"{folder}/bare")) as files,
    ):
        await create_streams(semel, [_STREAM], BYTES)
        sides: dict[str, Side[list[float]]] = {
            _PLAIN: partial(_calls, semel, options),
            _ROUND_TRIP: partial(_calls, constant, options),
            _WRITE: partial(
                asyncio.to_thread, files.write_seconds, _WRITTEN, options.scaled(2_000)
            ),
            _BOTH: partial(_calls, bare, options),
        }
        # Many short rounds: what is compared must see the disk in the same state.
        rounds = await interleave(sides, 3 * options.rounds)
    p50 = {name: median([median(one) for one in each]) * 1e6 for name, each in rounds.items()}
    p99 = median([percentile(one, 99) for one in rounds[_PLAIN]]) * 1e6
    least = p50[_ROUND_TRIP] + p50[_WRITE]
    beside = "round trip + write"
    return [
        Figure("p50, semel", p50[_PLAIN], "us", ratio_at_most(1.3), p50[_PLAIN] / least, beside),
        Figure("p99, semel", p99, "us"),
        Figure(f"p50, {_ROUND_TRIP}", p50[_ROUND_TRIP], "us"),
        Figure(f"p50, {_WRITE}", p50[_WRITE], "us"),
        # The sum is a little less than any server can reach: a sync after a pause is slower.
        Figure(f"p50, {_BOTH}", p50[_BOTH], "us", None, p50[_BOTH] / least, beside),
    ]


async def _calls(process: Process, options: Options) -> list[float]:
    source = plain_appends([_STREAM], SMALL_BODY)
    seconds = options.round_seconds / 3
    return (await drive(process, [source], seconds=seconds, warm_seconds=seconds / 5)).latencies


# ---- batch: 1 MiB each ---------------------------------------------------------------------------

_BATCH_CONNECTIONS: Final = 4
_APPENDS_EACH: Final = 24


async def measure_batch(harness: Harness) -> list[Figure]:
    """Measure appends of 1 MiB, compared with a bare loop that writes and syncs the same bytes."""
    options = harness.options
    times, group = options.scaled(_APPENDS_EACH), _BATCH_CONNECTIONS
    plain = large_bytes()
    with (
        harness.scratch() as folder,
        semel_server(folder) as semel,
        closing(BareFiles(f"{folder}/bare")) as files,
    ):
        for kind in (BYTES, JSON):
            await create_streams(semel, _batch_names(kind), kind)
        sides: dict[str, Side[float]] = {
            "bytes": partial(_batch_appends, semel, BYTES, plain, times),
            "JSON": partial(_batch_appends, semel, JSON, large_json(), times),
            "bare": partial(_batch_writes, files, [plain], group * times),
            "bare groups": partial(_batch_writes, files, [plain] * group, times),
        }
        rounds = await interleave(sides, options.rounds)
    rate = {name: median(each) for name, each in rounds.items()}
    # Appends that wait together are synced together, so the loop may do the same.
    bare = max(rate["bare"], rate["bare groups"])
    written = "1 MiB, bare write and fdatasync of"
    plain_ratio, json_ratio = rate["bytes"] / bare, rate["JSON"] / bare
    json_label = "1 MiB, JSON, 100-byte messages"
    return [
        Figure("1 MiB, bytes", rate["bytes"], "MB/s", ratio_at_least(0.6), plain_ratio, "bare"),
        Figure(json_label, rate["JSON"], "MB/s", ratio_at_least(0.3), json_ratio, "bare"),
        Figure(f"{written} each", rate["bare"], "MB/s"),
        Figure(f"{written} {group}", rate["bare groups"], "MB/s"),
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
