"""The command `semel bench`: checks its arguments, runs the benchmarks, reports their figures."""

import importlib
import os
import sys
from pathlib import Path
from typing import Any, Final

import click

from semel.cli.exit_codes import EXIT_UNAVAILABLE, CommandRefused
from semel_bench.harness import (
    DIRECTORY_DEFAULT,
    MEMORY_FILE_SYSTEMS,
    Harness,
    Options,
    file_system,
)

# The module of each benchmark, which has a coroutine function `measure_NAME`.
BENCHMARKS: Final = {
    **dict.fromkeys(("append", "one", "batch"), "appends"),
    **dict.fromkeys(("catchup", "sse"), "reads"),
    **dict.fromkeys(("idle", "memory"), "idle"),
    **dict.fromkeys(("commit", "staged", "aborted"), "transactions"),
    **{name: name for name in ("engine", "stall", "restart")},
    **dict.fromkeys(("pipelined", "producer", "client"), "clients"),
    **{name: name for name in ("pipeline", "spark")},
}

_FILE: Final = click.Path(dir_okay=False, writable=True, path_type=Path)


@click.command("bench")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--quick", "is_quick", is_flag=True, help="Small sizes: a trial, not a result.")
@click.option("--json", "json_file", type=_FILE, help="Also write the figures to this file.")
@click.option("--svg", "svg_file", type=_FILE, help="Also draw the figures into this file.")
@click.option(
    "--dir",
    "directory",
    default=DIRECTORY_DEFAULT,
    show_default=True,
    help="A directory on the disk to measure.",
)
@click.option(
    "--seconds",
    default=3.0,
    show_default=True,
    type=click.FloatRange(min=0.1),
    help="Length of a measured round.",
)
@click.option(
    "--node-modules",
    default="build/node_modules",
    show_default=True,
    help="Where npm installed @durable-streams/server.",
)
@click.option(
    "--gib",
    default=2.0,
    show_default=True,
    type=click.FloatRange(min=0.0, min_open=True),
    help="restart: GiB of history.",
)
@click.option(
    "--streams",
    default=100_000,
    show_default=True,
    type=click.IntRange(min=1),
    help="restart, stall: number of streams.",
)
def command(
    *, names: tuple[str, ...], json_file: Path | None, svg_file: Path | None, **chosen: Any
) -> None:
    """Measure the server and compare it: append, one, batch, catchup, sse, idle, memory.

    Its transactions: commit, staged, aborted. Its engine, without HTTP: engine, stall, restart. Its
    Python client: pipelined, producer, client. A graph of one processor: pipeline. And Spark, if it
    is installed: spark.

    Whatever is compared runs alternately on the same work. Targets are those of the design; no
    benchmark passes or fails because of its speed.
    """
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        known = ", ".join(BENCHMARKS)
        raise click.UsageError(f"no such benchmark: {', '.join(unknown)} (of {known})")
    if not sys.platform.startswith("linux"):
        raise CommandRefused("the benchmarks read /proc: Linux only", EXIT_UNAVAILABLE)
    options = Options(**chosen)
    if not os.path.isdir(options.directory):
        raise click.UsageError(f"{options.directory} is not a directory")
    kind = file_system(options.directory)
    if kind in MEMORY_FILE_SYSTEMS:
        click.echo(f"{options.directory} is in memory ({kind}): syncs cost nothing there", err=True)
    _run(names or tuple(BENCHMARKS), Harness(options), json_file, svg_file)


def _run(
    names: tuple[str, ...], harness: Harness, json_file: Path | None, svg_file: Path | None
) -> None:
    import asyncio

    import uvloop
    from msgspec.structs import replace

    from semel_bench.figures import Figure, save, show
    from semel_bench.svg_report import save_svg

    figures: list[Figure] = []
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for name in names:
            click.echo(f"{name} ...", err=True)
            module = importlib.import_module(f"semel_bench.{BENCHMARKS[name]}")
            found = runner.run(getattr(module, f"measure_{name}")(harness))
            figures += [replace(figure, work=name) for figure in found]
    show(figures)
    if json_file is not None:
        save(json_file, figures, harness)
    if svg_file is not None:
        save_svg(svg_file, figures)
