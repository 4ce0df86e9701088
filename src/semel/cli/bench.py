"""`semel bench`: measure the server beside its peers."""

import importlib
import os
import sys
from pathlib import Path
from typing import Final

import click

from semel.cli.benchmarks.options import (
    DIRECTORY_DEFAULT,
    MEMORY_FILE_SYSTEMS,
    Options,
    file_system,
)
from semel.cli.exit_codes import EXIT_UNAVAILABLE, CommandRefused

NAMES: Final = (
    *("append", "one", "batch", "catchup", "sse", "idle", "memory"),
    *("commit", "staged", "aborted"),
    *("pipelined", "producer", "client", "pipeline", "spark"),
)

_FILE: Final = click.Path(dir_okay=False, writable=True, path_type=Path)


@click.command("bench")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--quick", "is_quick", is_flag=True, help="Small sizes: a trial, no result.")
@click.option("--json", "json_file", type=_FILE, help="Also write the figures here.")
@click.option("--svg", "svg_file", type=_FILE, help="Also draw them here.")
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
def command(
    *,
    names: tuple[str, ...],
    is_quick: bool,
    json_file: Path | None,
    svg_file: Path | None,
    directory: str,
    seconds: float,
    node_modules: str,
) -> None:
    """Measure the server beside its peers: append, one, batch, catchup, sse, idle, memory.

    Its transactions: commit, staged, aborted. Its Python client: pipelined, producer, client. A
    graph of one processor: pipeline. And Spark over it, if that is installed: spark.

    Whatever is compared runs in turns on the same work. Targets are those of the design; nothing
    passes or fails by speed.
    """
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise click.UsageError(f"no such benchmark: {', '.join(unknown)} (of {', '.join(NAMES)})")
    if not sys.platform.startswith("linux"):
        raise CommandRefused("the benchmarks read /proc: Linux only", EXIT_UNAVAILABLE)
    if not os.path.isdir(directory):
        raise click.UsageError(f"{directory} is not a directory")
    kind = file_system(directory)
    if kind in MEMORY_FILE_SYSTEMS:
        click.echo(f"{directory} is in memory ({kind}): a sync there costs nothing", err=True)
    _run(names or NAMES, Options(directory, is_quick, seconds, node_modules), json_file, svg_file)


def _run(
    names: tuple[str, ...], options: Options, json_file: Path | None, svg_file: Path | None
) -> None:
    import asyncio

    import uvloop

    from semel.cli.benchmarks.bed import Bed
    from semel.cli.benchmarks.figures import Figure
    from semel.cli.benchmarks.picture import save_picture
    from semel.cli.benchmarks.report import save, show

    bed = Bed(options)
    figures: list[Figure] = []
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for name in names:
            click.echo(f"{name} ...", err=True)
            module = importlib.import_module(f"semel.cli.benchmarks.{name}")
            figures += runner.run(module.run(bed))
    show(figures)
    if json_file is not None:
        save(json_file, figures, bed.skipped, options)
    if svg_file is not None:
        save_picture(svg_file, figures)
