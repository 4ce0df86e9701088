"""Durable appends of 256 bytes to 500 streams, beside the peers."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Final

from semel.cli.benchmarks.bed import Bed, create_streams
from semel.cli.benchmarks.figures import (
    Figure,
    Target,
    at_least,
    at_most,
    ratio_at_least,
    ratio_at_most,
)
from semel.cli.benchmarks.load import Round, drive, over
from semel.cli.benchmarks.options import scratch
from semel.cli.benchmarks.peers import (
    bare_server,
    node_server,
    redis_server,
    semel_server,
)
from semel.cli.benchmarks.processes import Process
from semel.cli.benchmarks.requests import BYTES, Source, plain_appends, produced_appends
from semel.cli.benchmarks.resp import redis_answer_bytes, xadd_appends
from semel.cli.benchmarks.turns import Side, take_turns

_STREAMS: Final = 500
_CONNECTIONS: Final = 256
_REDIS_CONNECTIONS: Final = 64
_BODY: Final = bytes(range(256))

_PLAIN: Final = "semel"
_PRODUCED: Final = "semel, producer headers"
_NODE: Final = "Node reference server"
_REDIS: Final = "Redis Streams, fsync always"
_BARE: Final = "bare limit"

Rounds = Mapping[str, Sequence[Round]]


def _share(connection: int, connections: int) -> list[str]:
    """Name the streams of one connection: it is their only writer."""
    return [f"bench-{number}" for number in range(connection, _STREAMS, connections)]


def _plain(connections: int = _CONNECTIONS) -> list[Source]:
    return [plain_appends(_share(index, connections), _BODY) for index in range(connections)]


def _produced() -> list[Source]:
    return [
        produced_appends(_share(index, _CONNECTIONS), f"producer-{index}", _BODY)
        for index in range(_CONNECTIONS)
    ]


def _redis() -> list[Source]:
    connections = _REDIS_CONNECTIONS
    return [xadd_appends(_share(index, connections), _BODY) for index in range(connections)]


async def run(bed: Bed) -> list[Figure]:
    """Measure."""
    with scratch(bed.options) as folder, ExitStack() as stack:
        sides = await _sides(bed, folder, stack)
        found = await take_turns(sides, bed.options.rounds, is_warmed=not bed.options.is_quick)
    return [*_rates(found), *_costs(found)]


async def _sides(bed: Bed, folder: str, stack: ExitStack) -> dict[str, Side[Round]]:
    options = bed.options
    seconds, warm_seconds = options.round_seconds, options.warm_seconds
    names = [f"bench-{number}" for number in range(_STREAMS)]

    def side(process: Process, sources: list[Source]) -> Side[Round]:
        return partial(drive, process, sources, seconds=seconds, warm_seconds=warm_seconds)

    semel = stack.enter_context(semel_server(f"{folder}/semel"))
    await create_streams(semel, names, BYTES)
    sides = {_PLAIN: side(semel, _plain()), _PRODUCED: side(semel, _produced())}
    bare = stack.enter_context(bare_server(f"{folder}/bare"))
    sides[_BARE] = side(bare, _plain())
    with bed.optional():
        node = stack.enter_context(node_server(f"{folder}/node", options.node_modules))
        await create_streams(node, names, BYTES)
        sides[_NODE] = side(node, _plain())
    with bed.optional():
        redis = stack.enter_context(redis_server(f"{folder}/redis"))
        sides[_REDIS] = partial(
            drive,
            redis,
            _redis(),
            seconds=seconds,
            warm_seconds=warm_seconds,
            answer_bytes=redis_answer_bytes,
        )
    return sides


def _rates(found: Rounds) -> list[Figure]:
    rate = over(found[_PLAIN], _rate)
    figures = [
        Figure(
            work="append",
            name=name,
            value=over(rounds, _rate),
            unit="appends/s",
            target=at_least(35_000) if name == _PLAIN else None,
            is_rate=True,
        )
        for name, rounds in found.items()
    ]
    for name, target in ((_NODE, 7.0), (_REDIS, 0.7), (_BARE, None)):
        if name in found:
            figures.append(
                Figure(
                    work="append",
                    name=f"semel beside {name}",
                    value=rate,
                    unit="appends/s",
                    ratio=rate / over(found[name], _rate),
                    beside=name.partition(" ")[0],
                    target=None if target is None else ratio_at_least(target),
                )
            )
    return figures


def _costs(found: Rounds) -> list[Figure]:
    plain, produced = (over(found[name], _cpu_us) for name in (_PLAIN, _PRODUCED))
    figures = [_cost("CPU per append", plain, at_most(20))]
    figures += [
        _cost("CPU, producer headers", produced),
        _cost("CPU more with producer headers", produced - plain, at_most(3)),
        Figure(
            work="append",
            name="CPU ratio with producer headers",
            value=produced,
            unit="us",
            ratio=produced / plain if plain else None,
            beside="plain",
            target=ratio_at_most(1.15),
        ),
    ]
    for name in (_BARE, _NODE, _REDIS):
        if name in found:
            figures.append(_cost(f"CPU, {name}", over(found[name], _cpu_us)))
    for name, rounds in found.items():
        figures += _latency(name, rounds)
    return figures


def _cost(name: str, value: float, target: Target | None = None) -> Figure:
    return Figure(work="append", name=name, value=value, unit="us", target=target)


def _latency(name: str, rounds: Sequence[Round]) -> list[Figure]:
    return [
        Figure(work="append", name=f"p50, {name}", value=over(rounds, _p50), unit="ms"),
        Figure(work="append", name=f"p99, {name}", value=over(rounds, _p99), unit="ms"),
        Figure(work="append", name=f"server, {name}", value=over(rounds, _server), unit="cores"),
        Figure(work="append", name=f"client, {name}", value=over(rounds, _client), unit="cores"),
    ]


def _rate(found: Round) -> float:
    return found.rate


def _cpu_us(found: Round) -> float:
    return found.cpu_us


def _p50(found: Round) -> float:
    return found.ms(50)


def _p99(found: Round) -> float:
    return found.ms(99)


def _server(found: Round) -> float:
    return found.server_share


def _client(found: Round) -> float:
    return found.client_share
