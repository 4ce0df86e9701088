"""Durable appends without HTTP, compared with a bare loop that only writes and calls fdatasync.

The time measured for semel includes building the commands. It also includes creating the next
segment, once every 64 MiB.
"""

import gc
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import count
from typing import Final

from semel.broker.engine import Engine
from semel.model.limits import KIB, MIB
from semel_bench.engine_load import (
    BrokerLoad,
    EngineRound,
    Workload,
    bare_round,
    create_engine_streams,
    engine_round,
    workload,
)
from semel_bench.harness import (
    Figure,
    Harness,
    Side,
    Target,
    at_least,
    at_most,
    interleave,
    median,
    median_of,
)
from semel_bench.servers import BareFiles

_STREAMS: Final = 500
_SMALL_BYTES: Final = 256

Rounds = dict[str, list[EngineRound]]


async def measure_engine(harness: Harness) -> list[Figure]:
    """Measure a broker with small and large appends, and an engine with small appends."""
    gc.collect()
    return [*await _small(harness), *await _engine(harness), *await _large(harness)]


@contextmanager
def _frozen() -> Iterator[None]:
    """During the block, the garbage collector ignores all objects created before the block.

    The engine does the same after its start.
    """
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


async def _compare(
    harness: Harness, size: int, *, streams: int, counts: tuple[int, int, int], frame_max: int
) -> Rounds:
    """Measure alternating rounds of plain appends, appends with a producer, and a bare loop.

    The bare loop writes as many bytes as the plain appends to an allocated file, and syncs them. If
    `size` is 1 MiB, a second bare loop does the same with a growing file.

    `counts` has three numbers: rounds, syncs per round, and appends per sync. `frame_max` is the
    maximum size of an append in the journal, in bytes.
    """
    rounds, groups, appends = counts
    with harness.scratch() as folder, ExitStack() as stack:
        plain, tagged = (
            stack.enter_context(
                closing(
                    BrokerLoad(
                        f"{folder}/{name}",
                        streams,
                        workload(streams, size, is_tagged=name == "tagged"),
                    )
                )
            )
            for name in ("plain", "tagged")
        )
        allocated = (rounds + 1) * groups * appends * frame_max
        bare = stack.enter_context(closing(BareFiles(f"{folder}/bare", allocated)))
        sides: dict[str, Side[EngineRound]] = {
            "plain": partial(plain.round, groups, appends),
            "bare": lambda: bare_round(bare, plain.group_bytes, appends),
            "tagged": partial(tagged.round, groups, appends),
        }
        if size == MIB:
            growing = stack.enter_context(closing(BareFiles(f"{folder}/growing", 0)))
            sides["growing"] = lambda: bare_round(growing, plain.group_bytes, appends)
        await sides["plain"]()
        with _frozen():
            return await interleave(sides, rounds)


def _shares(
    name: str, rounds: list[EngineRound], bare: list[EngineRound], target: Target | None = None
) -> list[Figure]:
    """Return two figures for the speed of `rounds`, as a percentage of the bare loop's speed.

    The first figure is the median over the rounds. The second is computed from the total times.
    """
    shares = [b.wall_s / r.wall_s for r, b in zip(rounds, bare, strict=True)]
    total = sum(b.wall_s for b in bare) / sum(r.wall_s for r in rounds)
    return [
        Figure(f"{name} speed, compared with bare loop", 100 * median(shares), "%", target),
        Figure(f"{name} total speed, compared with bare loop", 100 * total, "%", target),
    ]


# ---- small appends in write groups ---------------------------------------------------------------


async def _small(harness: Harness) -> list[Figure]:
    rounds, groups = harness.options.pick((45, 20), (3, 5))
    sides = await _compare(
        harness,
        _SMALL_BYTES,
        streams=_STREAMS,
        counts=(rounds, groups, 100),
        frame_max=2 * _SMALL_BYTES,
    )
    plain, tagged, bare = sides["plain"], sides["tagged"], sides["bare"]
    extra = [t.cpu_us - p.cpu_us for t, p in zip(tagged, plain, strict=True)]
    return [
        *_small_costs("256 B", plain, at_most(8)),
        *_shares("256 B", plain, bare),
        Figure("256 B bare loop: CPU per append", _cpu_us(bare), "us"),
        *_small_costs("256 B with a producer:", tagged),
        Figure("256 B: additional CPU with a producer", median(extra), "us", at_most(3)),
    ]


def _cpu_us(rounds: list[EngineRound]) -> float:
    return median_of(rounds, lambda r: r.cpu_us)


def _small_costs(
    name: str, rounds: list[EngineRound], target: Target | None = None
) -> list[Figure]:
    # The kernel measures user time by sampling. One round is too short for this, so the user time
    # of all rounds is added.
    user_s, appends = sum(r.user_s for r in rounds), sum(r.appends for r in rounds)
    return [
        Figure(f"{name} durable", median_of(rounds, lambda r: r.rate), "appends/s"),
        Figure(f"{name} CPU per append", _cpu_us(rounds), "us", target),
        Figure(f"{name} CPU, fastest round", min(r.cpu_us for r in rounds), "us"),
        Figure(f"{name} user CPU per append", user_s / appends * 1e6, "us"),
        Figure(f"{name} CPU per append, no write", median_of(rounds, lambda r: r.loop_us), "us"),
    ]


# ---- small appends through the engine ------------------------------------------------------------


async def _engine(harness: Harness) -> list[Figure]:
    rounds, appends_each = harness.options.pick((10, 100), (2, 10))
    figures = []
    for name in ("engine", "engine with a producer:"):
        work = workload(_STREAMS, _SMALL_BYTES, is_tagged=name == "engine with a producer:")
        with harness.scratch() as folder:
            measured = await _drive(folder, work, rounds, appends_each)
        gc.unfreeze()
        figures += [
            Figure(f"{name} durable", median_of(measured, lambda r: r.rate), "appends/s"),
            Figure(f"{name} CPU per append", _cpu_us(measured), "us"),
            Figure(f"{name} CPU of the event loop", median_of(measured, lambda r: r.loop_us), "us"),
        ]
    return figures


async def _drive(path: str, work: Workload, rounds: int, appends_each: int) -> list[EngineRound]:
    engine = await Engine.open(path)
    await create_engine_streams(engine, _STREAMS)
    commands = (work(number, 1)[0] for number in count())
    _, *measured = [
        await engine_round(engine, commands, 256, appends_each) for _ in range(rounds + 1)
    ]
    await engine.close()
    return measured


# ---- large appends, one by one -------------------------------------------------------------------


async def _large(harness: Harness) -> list[Figure]:
    counts = harness.options.pick((20, 16, 1), (2, 3, 1))
    sides = await _compare(harness, MIB, streams=16, counts=counts, frame_max=MIB + 64 * KIB)
    plain, tagged, bare, growing = (sides[name] for name in ("plain", "tagged", "bare", "growing"))
    return [
        Figure("1 MiB durable", _speed(plain), "MB/s"),
        Figure("1 MiB bare loop", _speed(bare), "MB/s"),
        Figure("1 MiB bare loop, growing file", _speed(growing), "MB/s"),
        *_shares("1 MiB", plain, bare, at_least(70)),
        *_shares("1 MiB (growing file)", plain, growing),
        *_shares("1 MiB with a producer:", tagged, bare),
        Figure("1 MiB CPU per append", _cpu_us(plain), "us"),
        Figure("1 MiB with a producer: CPU per append", _cpu_us(tagged), "us"),
        Figure("1 MiB bare loop: CPU per append", _cpu_us(bare), "us"),
    ]


def _speed(rounds: list[EngineRound]) -> float:
    return median_of(rounds, lambda r: r.bytes / r.wall_s / 1e6)
