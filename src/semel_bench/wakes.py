"""What subscriptions cost the clients that append.

Dead webhooks: 1,000 targets are dead. Half of them refuse connections, the others never answer a
connection attempt. Their wakes are in flight, and the server tries to deliver them again and again.
The latency of appends is compared with that of a server without subscriptions. While one server is
measured, the other one is stopped, because its work would disturb the measurement.

Many subscriptions: 10,000 subscriptions follow 100,000 streams, half of them by patterns and half
by names. The CPU time of an append is compared with that of a server that has the same streams and
no subscriptions.
"""

import asyncio
import os
import re
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final

from semel_bench.harness import (
    Figure,
    Harness,
    Side,
    interleave,
    median,
    median_of,
    median_ratio,
    ratio_at_most,
)
from semel_bench.load import (
    Round,
    allow_many_files,
    create_streams,
    drive,
    exchange,
    send_all,
    timed_side,
)
from semel_bench.requests import (
    BYTES,
    JSON,
    SMALL_BODY,
    bare_request,
    limited,
    plain_appends,
    post,
    put_subscription,
)
from semel_bench.servers import HOST, Process, semel_server

_NONE: Final = "no subscriptions"
_SETUP_CONNECTIONS: Final = 16


async def measure_wakes(harness: Harness) -> list[Figure]:
    """Measure appends next to dead webhooks, and appends to streams that are followed."""
    from semel_bench.calls import calls_per_followed_append  # loads the server into this process

    allow_many_files()
    with harness.scratch() as folder:
        dead = await _measure_dead(harness, folder)
    with harness.scratch() as folder:
        followed = await _measure_followed(harness, folder)
    with harness.scratch() as folder:
        return [*dead, *followed, await calls_per_followed_append(folder)]


async def _subscribe(process: Process, configs: Sequence[dict[str, Any]]) -> None:
    """Create subscriptions with these configurations, over several connections."""
    requests = limited(
        put_subscription(f"bench-{number}", config) for number, config in enumerate(configs)
    )
    await drive(process, [requests] * _SETUP_CONNECTIONS)


# ---- dead webhooks -------------------------------------------------------------------------------

_TARGETS: Final = 1_000
_HOSTS: Final = 20  # of each kind
_APPENDED: Final = [f"appended-{number}" for number in range(16)]
_FOLLOWED: Final = "followed"
_FAILURES: Final = re.compile(rb"(?m)^semel_webhook_failures_total (\d+)")


async def _measure_dead(harness: Harness, folder: str) -> list[Figure]:
    count = harness.options.scaled(_TARGETS)
    name = f"{count:,} dead webhooks"
    failures: list[float] = []
    with ExitStack() as stack:
        urls = stack.enter_context(_dead_targets(count))
        plain = stack.enter_context(semel_server(f"{folder}/plain"))
        dead = stack.enter_context(semel_server(f"{folder}/dead"))
        for process in (plain, dead):
            await create_streams(process, [*_APPENDED, _FOLLOWED], BYTES)
        webhooks = [
            {"type": "webhook", "streams": [_FOLLOWED], "webhook": {"url": url}} for url in urls
        ]
        await _subscribe(dead, webhooks)
        await send_all(dead, post(_FOLLOWED, BYTES, SMALL_BODY))
        sources = [plain_appends([stream], SMALL_BODY) for stream in _APPENDED]
        sides: dict[str, Side[Round]] = {
            _NONE: _alone(plain, dead, timed_side(harness.options, plain, sources)),
            name: _alone(
                dead,
                plain,
                _counted(dead, timed_side(harness.options, dead, sources), failures),
            ),
        }
        rounds = await interleave(sides, harness.options.pick(9, 1))
    seconds = sum(each.wall_s for each in rounds[name])
    return [
        *_latencies(rounds[_NONE], f"append, {_NONE}"),
        *_latencies(rounds[name], f"append, {name}", rounds[_NONE]),
        # Those of the warm-up round are not counted.
        Figure(f"failed deliveries, {name}", sum(failures[1:]) / seconds, "deliveries/s"),
        Figure(f"failed deliveries, {name}, least of a round", min(failures), "deliveries"),
    ]


def _latencies(rounds: Sequence[Round], name: str, others: Sequence[Round] = ()) -> list[Figure]:
    """Return the figures of the latencies of a side, compared with those of the other side."""
    figures = []
    for percent in (50, 99):
        at = partial(Round.ms, percent=percent)
        value = median_of(rounds, at)
        if not others:
            figures.append(Figure(f"{name}, p{percent}", value, "ms"))
            continue
        target = ratio_at_most(1.2) if percent == 99 else None
        by_round = median_ratio(rounds, others, at)
        figures.append(Figure(f"{name}, p{percent}", value, "ms", target, by_round, "none"))
    return figures


def _alone(process: Process, other: Process, side: Side[Round]) -> Side[Round]:
    """Return a side that stops the other process during its rounds."""

    async def run() -> Round:
        os.kill(other.pid, signal.SIGSTOP)
        try:
            return await side()
        finally:
            os.kill(other.pid, signal.SIGCONT)

    return run


def _counted(process: Process, side: Side[Round], failures: list[float]) -> Side[Round]:
    """Return a side that adds the failed deliveries of each round to a list."""

    async def run() -> Round:
        before = await asyncio.to_thread(_failures, process)
        done = await side()
        failures.append(await asyncio.to_thread(_failures, process) - before)
        return done

    return run


def _failures(process: Process) -> int:
    """Return how many deliveries have failed, by the metrics of the server."""
    with socket.create_connection((HOST, process.port)) as line:
        found = _FAILURES.search(exchange(line, bare_request("GET", "/metrics")))
    assert found is not None, "the server's metrics do not have failed deliveries"
    return int(found[1])


@contextmanager
def _dead_targets(count: int) -> Iterator[list[str]]:
    """Yield the URLs of webhooks on loopback. Half refuse connections, half do not answer."""
    hosts = []
    with ExitStack() as stack:
        for number in range(1, _HOSTS + 1):
            # Nobody listens here, and nobody else can.
            closed = stack.enter_context(socket.socket())
            closed.bind((f"127.0.1.{number}", 0))
            # The queue of this listener is full, so the system drops all further attempts.
            silent = stack.enter_context(socket.socket())
            silent.bind((f"127.0.2.{number}", 0))
            silent.listen(0)
            for _ in range(3):
                waiting = stack.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex(silent.getsockname())
            hosts += [closed.getsockname(), silent.getsockname()]
        yield [
            "http://{}:{}/hooks/{}".format(*hosts[number % len(hosts)], number)
            for number in range(count)
        ]


# ---- many subscriptions --------------------------------------------------------------------------

_AREAS: Final = 10_000
_PER_AREA: Final = 10  # streams
_WAKES: Final = "wakes"
_CONNECTIONS: Final = 256
_MEASURED: Final = 512  # streams


async def _measure_followed(harness: Harness, folder: str) -> list[Figure]:
    areas = harness.options.scaled(_AREAS)
    names = [f"area-{area}/{number}" for area in range(areas) for number in range(_PER_AREA)]
    # So each of the measured streams has a subscription of its own. They are of both kinds.
    step = max(_PER_AREA, len(names) // _MEASURED // _PER_AREA * _PER_AREA + _PER_AREA)
    measured = names[::step]
    many = f"{areas:,} subscriptions"
    with (
        semel_server(f"{folder}/plain") as plain,
        semel_server(f"{folder}/followed") as followed,
    ):
        for process in (plain, followed):
            await create_streams(process, names, BYTES)
            await create_streams(process, [_WAKES], JSON)
        before_kib = followed.memory_kib
        await _subscribe(followed, [_follow(area) for area in range(areas)])
        grown_kib = followed.memory_kib - before_kib
        for process in (plain, followed):
            # From now on their subscriptions have a wake in flight, which nobody claims.
            await send_all(process, *(post(name, BYTES, SMALL_BODY) for name in measured))
        sources = [
            plain_appends(share, SMALL_BODY)
            for share in (measured[first::_CONNECTIONS] for first in range(_CONNECTIONS))
            if share
        ]
        side = partial(timed_side, harness.options)
        sides: dict[str, Side[Round]] = {
            _NONE: side(plain, sources),
            many: side(followed, sources),
        }
        rounds = await interleave(sides, harness.options.pick(15, 1))
    others = rounds[_NONE]
    by_round = median_ratio(rounds[many], others, lambda each: each.cpu_us)
    cpu = {name: median([each.cpu_us for each in found]) for name, found in rounds.items()}
    return [
        Figure(f"CPU per append, {len(names):,} streams, {_NONE}", cpu[_NONE], "us"),
        Figure(
            f"CPU per append, {len(names):,} streams, {many}",
            cpu[many],
            "us",
            ratio_at_most(1.02),
            by_round,
            "none",
        ),
        Figure(f"memory of {many}, {len(names):,} links", grown_kib / 1024, "MiB"),
    ]


def _follow(area: int) -> dict[str, Any]:
    """Return the subscription that follows the streams of an area, by a pattern or by names."""
    paths = [f"area-{area}/{number}" for number in range(_PER_AREA)]
    followed: dict[str, Any] = {"streams": paths} if area % 2 else {"pattern": f"area-{area}/*"}
    return {"type": "pull-wake", "wake_stream": _WAKES, **followed}
