"""Durable appends: the broker beside a bare loop of write and fdatasync, in turns.

The broker's time includes making the command structs and, every 64 MiB, the next segment's file.
"""

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import uvloop

from bench.bed import Bare, Bed, Workload, workload
from bench.options import Options, scratch
from bench.report import Figure, middle
from bench.rounds import Round, Side, take_turns
from bench.submitters import Submitters, create_streams
from semel.broker.engine import Engine
from semel.model.limits import KIB, MIB

STREAMS = 500
SMALL_BYTES = 256
GROUP_APPENDS = 100
LARGE_STREAMS = 16
IN_FLIGHT = 256


def run(options: Options) -> list[Figure]:
    gc.collect()
    return [*_small(options), *_engine(options), *_large(options)]


@contextmanager
def _frozen() -> Iterator[None]:
    """Let the collector leave alone what is there already, as the engine does after its start."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


# ---- small appends in groups ---------------------------------------------------------------------


def _small(options: Options) -> list[Figure]:
    rounds, groups = (3, 5) if options.is_quick else (45, 20)
    with scratch(options) as path:
        plain, tagged = (
            _bed(path, STREAMS, SMALL_BYTES, is_tagged=is_tagged) for is_tagged in (False, True)
        )
        frame_bytes_max = 2 * SMALL_BYTES
        allocated = (rounds + 1) * groups * GROUP_APPENDS * frame_bytes_max
        bare = Bare(path / "bare", bytes_allocated=allocated)
        run_plain = partial(plain.round, groups, GROUP_APPENDS)
        run_plain()
        sides: dict[str, Side] = {
            "plain": run_plain,
            "bare": lambda: bare.round(plain.group_bytes, GROUP_APPENDS),
            "tagged": partial(tagged.round, groups, GROUP_APPENDS),
        }
        with _frozen():
            found = take_turns(sides, rounds)
        for side in (plain, tagged, bare):
            side.close()
    return _small_figures(found)


def _bed(path: Path, streams: int, size: int, *, is_tagged: bool) -> Bed:
    work = workload(streams, size, is_tagged=is_tagged)
    return Bed(path / ("tagged" if is_tagged else "plain"), streams, work)


def _small_figures(found: dict[str, list[Round]]) -> list[Figure]:
    plain, tagged, bare = found["plain"], found["tagged"], found["bare"]
    extra = [t.us(t.cpu_s) - p.us(p.cpu_s) for t, p in zip(tagged, plain, strict=True)]
    return [
        *_cost("256 B", plain, target="<= 8"),
        *_versus("256 B", plain, bare),
        Figure("256 B bare CPU per append", middle([r.us(r.cpu_s) for r in bare]), "us"),
        *_cost("256 B tagged", tagged),
        Figure("256 B tagged: extra CPU", middle(extra), "us", "<= 3"),
    ]


def _cost(name: str, rounds: list[Round], target: str = "") -> list[Figure]:
    loop = [r.us(r.cpu_s - r.write_cpu_s) for r in rounds]
    # A sampled figure: one round alone is too short for it.
    user_s, appends = sum(r.user_s for r in rounds), sum(r.appends for r in rounds)
    return [
        Figure(f"{name} durable", middle([r.appends / r.wall_s for r in rounds]), "appends/s"),
        Figure(f"{name} CPU per append", middle([r.us(r.cpu_s) for r in rounds]), "us", target),
        Figure(f"{name} CPU, least round", min(r.us(r.cpu_s) for r in rounds), "us"),
        Figure(f"{name} user CPU per append", user_s / appends * 1e6, "us"),
        Figure(f"{name} CPU without the write", middle(loop), "us"),
    ]


def _versus(name: str, rounds: list[Round], bare: list[Round], target: str = "") -> list[Figure]:
    """The share of the bare loop's speed: the middle round's, and that of all rounds together."""
    shares = [b.wall_s / r.wall_s for r, b in zip(rounds, bare, strict=True)]
    total = sum(b.wall_s for b in bare) / sum(r.wall_s for r in rounds)
    return [
        Figure(f"{name} share of bare loop", 100 * middle(shares), "%", target),
        Figure(f"{name} share of bare loop, total", 100 * total, "%", target),
    ]


# ---- small appends through the engine ------------------------------------------------------------


def _engine(options: Options) -> list[Figure]:
    rounds, appends_each = (2, 10) if options.is_quick else (10, 100)
    figures = []
    for is_tagged in (False, True):
        work = workload(STREAMS, SMALL_BYTES, is_tagged=is_tagged)
        with scratch(options) as path, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            found = runner.run(_drive(path, work, rounds=rounds, appends_each=appends_each))
        gc.unfreeze()
        figures.extend(_engine_figures("engine tagged" if is_tagged else "engine", found))
    return figures


async def _drive(path: Path, work: Workload, *, rounds: int, appends_each: int) -> list[Round]:
    engine = await Engine.open(str(path))
    await create_streams(engine, STREAMS)
    submitters = Submitters(engine, work, IN_FLIGHT)
    await submitters.round(appends_each)
    found = [await submitters.round(appends_each) for _ in range(rounds)]
    await engine.close()
    return found


def _engine_figures(name: str, rounds: list[Round]) -> list[Figure]:
    loop = [r.us(r.cpu_s - r.write_cpu_s) for r in rounds]
    return [
        Figure(f"{name} durable", middle([r.appends / r.wall_s for r in rounds]), "appends/s"),
        Figure(f"{name} CPU per append", middle([r.us(r.cpu_s) for r in rounds]), "us"),
        Figure(f"{name} CPU of the loop alone", middle(loop), "us"),
    ]


# ---- large appends, one by one -------------------------------------------------------------------


def _large(options: Options) -> list[Figure]:
    rounds, groups = (2, 3) if options.is_quick else (20, 16)
    frame_bytes_max = MIB + 64 * KIB
    with scratch(options) as path:
        plain, tagged = (
            _bed(path, LARGE_STREAMS, MIB, is_tagged=is_tagged) for is_tagged in (False, True)
        )
        allocated = (rounds + 1) * groups * frame_bytes_max
        bare = Bare(path / "bare", bytes_allocated=allocated)
        growing = Bare(path / "growing", bytes_allocated=0)
        run_plain = partial(plain.round, groups, 1)
        run_plain()
        sides: dict[str, Side] = {
            "plain": run_plain,
            "bare": lambda: bare.round(plain.group_bytes, 1),
            "tagged": partial(tagged.round, groups, 1),
            "growing": lambda: growing.round(plain.group_bytes, 1),
        }
        with _frozen():
            found = take_turns(sides, rounds)
        for side in (plain, tagged, bare, growing):
            side.close()
    return _large_figures(found)


def _large_figures(found: dict[str, list[Round]]) -> list[Figure]:
    speeds = {name: [r.bytes / r.wall_s / 1e6 for r in rounds] for name, rounds in found.items()}
    cpu = {name: [r.us(r.cpu_s) for r in rounds] for name, rounds in found.items()}
    return [
        Figure("1 MiB durable", middle(speeds["plain"]), "MB/s"),
        Figure("1 MiB bare loop", middle(speeds["bare"]), "MB/s"),
        Figure("1 MiB bare loop, growing file", middle(speeds["growing"]), "MB/s"),
        *_versus("1 MiB", found["plain"], found["bare"], ">= 70"),
        *_versus("1 MiB (growing file)", found["plain"], found["growing"]),
        *_versus("1 MiB tagged", found["tagged"], found["bare"]),
        Figure("1 MiB CPU per append", middle(cpu["plain"]), "us"),
        Figure("1 MiB tagged CPU per append", middle(cpu["tagged"]), "us"),
        Figure("1 MiB bare CPU per append", middle(cpu["bare"]), "us"),
    ]
