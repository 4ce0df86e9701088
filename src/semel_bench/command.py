"""The command `semel bench`. It checks its arguments, runs benchmarks and reports the figures."""

import importlib
import os
import platform
import sys
from collections.abc import Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from msgspec import Struct
from rich.console import Console
from rich.table import Table

import semel
from semel.cli.output import EXIT_UNAVAILABLE, CommandRefused
from semel_bench.harness import (
    DIRECTORY_DEFAULT,
    Figure,
    Harness,
    Options,
    file_system,
    readable,
)

# Maps each benchmark to its module. The module has a coroutine function `measure_NAME` for it.
BENCHMARKS: Final = {
    **dict.fromkeys(("append", "one", "batch"), "appends"),
    **dict.fromkeys(("catchup", "sse", "idle", "memory"), "reads"),
    "silent": "silent",
    "topic": "topics",
    "groups": "groups",
    "wakes": "wakes",
    **dict.fromkeys(("commit", "staged", "aborted"), "transactions"),
    **{name: name for name in ("engine", "stall", "restart")},
    **dict.fromkeys(("pipelined", "producer", "client", "pipeline"), "clients"),
    "spark": "spark",
}

_FILE: Final = click.Path(dir_okay=False, writable=True, path_type=Path)


@click.command("bench")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--quick", "is_quick", is_flag=True, help="Use little data, to test the benchmarks themselves."
)
@click.option("--json", "json_file", type=_FILE, help="Also write the figures to this JSON file.")
@click.option("--svg", "svg_file", type=_FILE, help="Also draw the figures in this SVG file.")
@click.option(
    "--dir",
    "directory",
    default=DIRECTORY_DEFAULT,
    show_default=True,
    help="Directory for test data, on the disk to measure.",
)
@click.option(
    "--seconds",
    default=3.0,
    show_default=True,
    type=click.FloatRange(min=0.1),
    help="Length of one measurement round, in seconds.",
)
@click.option(
    "--node-modules",
    default="build/node_modules",
    show_default=True,
    help="Directory where npm installed @durable-streams/server.",
)
@click.option(
    "--gib",
    default=2.0,
    show_default=True,
    type=click.FloatRange(min=0.0, min_open=True),
    help="Amount of data that `restart` writes, in GiB.",
)
@click.option(
    "--streams",
    default=100_000,
    show_default=True,
    type=click.IntRange(min=1),
    help="Number of streams that `restart` and `stall` create.",
)
def command(
    *, names: tuple[str, ...], json_file: Path | None, svg_file: Path | None, **chosen: Any
) -> None:
    """Measure the performance of semel.

    Each NAME is a benchmark. Without a NAME, all benchmarks run. The command succeeds even
    if a figure misses its target.

    Server: append, one, batch, catchup, sse, idle, memory, silent, topic, groups, wakes.
    Transactions: commit, staged, aborted. Engine without HTTP: engine, stall, restart. Python
    client: pipelined, producer, client. A graph with one processor: pipeline. Spark, if it is
    installed: spark.
    """
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        raise click.UsageError(
            f"unknown benchmark {', '.join(unknown)}; choose from {', '.join(BENCHMARKS)}"
        )
    if not sys.platform.startswith("linux"):
        raise CommandRefused(
            "the benchmarks require Linux, because they read /proc", EXIT_UNAVAILABLE
        )
    options = Options(**chosen)
    if not os.path.isdir(options.directory):
        raise click.UsageError(f"{options.directory} is not a directory")
    kind = file_system(options.directory)
    if kind in {"tmpfs", "ramfs"}:
        click.echo(
            f"{options.directory} is in memory ({kind}); use --dir to measure a disk", err=True
        )
    _run(names or tuple(BENCHMARKS), Harness(options), json_file, svg_file)


def _run(
    names: tuple[str, ...], harness: Harness, json_file: Path | None, svg_file: Path | None
) -> None:
    import asyncio

    import uvloop

    figures: list[Figure] = []
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for name in names:
            click.echo(f"{name} ...", err=True)
            module = importlib.import_module(f"semel_bench.{BENCHMARKS[name]}")
            measured = runner.run(getattr(module, f"measure_{name}")(harness))
            figures += [msgspec.structs.replace(figure, work=name) for figure in measured]
    show(figures)
    if json_file is not None:
        save_json(json_file, figures, harness)
    if svg_file is not None:
        save_svg(svg_file, figures)


# ---- reports -------------------------------------------------------------------------------------

_MET: Final = {True: "[green]yes[/]", False: "[red]no[/]", None: ""}


def show(figures: Sequence[Figure]) -> None:
    """Print the figures as a table."""
    table = Table(title="semel bench", title_justify="left")
    for column in ("work", "figure", "value", "unit", "ratio", "target", "met"):
        table.add_column(column, justify="right" if column == "value" else "left")
    ends = [before.work != after.work for before, after in pairwise(figures)]
    for figure, is_last in zip(figures, [*ends, True], strict=False):
        number = (readable(figure.value), figure.unit, figure.ratio_text)
        target = (figure.target_text, _MET[figure.is_met])
        table.add_row(figure.work, figure.name, *number, *target, end_section=is_last)
    console = Console()
    if not console.is_terminal:
        console = Console(width=max(console.width, 120))
    console.print(table)


def save_json(path: Path, figures: Sequence[Figure], harness: Harness) -> None:
    """Write a JSON file with the figures, the versions, the options and facts about the machine."""
    options = harness.options
    fields = ("work", "name", "value", "unit", "ratio", "beside")
    report = {
        "semel": semel.__version__,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "file_system": file_system(options.directory),
        "quick": options.is_quick,
        "round_seconds": options.round_seconds,
        "rounds": options.rounds,
        "skipped": harness.skipped,
        "figures": [
            {
                **{field: getattr(figure, field) for field in fields},
                "target": figure.target_text,
                "met": figure.is_met,
            }
            for figure in figures
        ],
    }
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")


# ---- SVG: a bar for each rate and for each target ------------------------------------------------

_LABEL: Final = 330
_BAR: Final = 320
_ROW: Final = 20
_MARGIN: Final = 12
_WIDTH: Final = _LABEL + _BAR + 190 + 2 * _MARGIN
_SCORE_MAX: Final = 2.0  # a bar of full width means a value twice as good as the target, or better
_STYLE: Final = (
    "text{font:12px system-ui,sans-serif;fill:#1f2328}"
    ".title{font-weight:600;font-size:13px}"
    ".page{fill:#fff}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.page{fill:#0d1117}}"
)


class Bar(Struct, frozen=True):
    """One row of the drawing. `share` is the bar's share of the full width, from 0 to 1."""

    label: str
    share: float
    text: str
    colour: str


def save_svg(path: Path, figures: Sequence[Figure]) -> None:
    """Write an SVG file with two panels of bars.

    The first panel shows the append rates of all servers. The second panel shows every figure that
    has a target, compared with this target.
    """
    parts: list[str] = []
    top = float(_MARGIN)
    for title, bars, mark in (
        ("durable appends per second", _rate_bars(figures), None),
        ("figures compared with their targets (dashed line)", _score_bars(figures), 1 / _SCORE_MAX),
    ):
        if bars:
            drawn, top = _panel(title, bars, top, mark)
            parts += drawn
    height = top + _MARGIN
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}"'
        f' width="{_WIDTH}" height="{height:.0f}" role="img" aria-label="semel bench">'
    )
    page = f'<rect class="page" width="{_WIDTH}" height="{height:.0f}" rx="6"/>'
    path.write_text("\n".join([head, f"<style>{_STYLE}</style>", page, *parts, "</svg>", ""]))


def _rate_bars(figures: Sequence[Figure]) -> list[Bar]:
    rates = [figure for figure in figures if figure.is_rate]
    most = max((figure.value for figure in rates), default=0.0) or 1.0
    return [
        Bar(figure.name, figure.value / most, f"{readable(figure.value)}/s", "#3b6ea8")
        for figure in rates
    ]


def _score_bars(figures: Sequence[Figure]) -> list[Bar]:
    bars = []
    for figure in figures:
        if figure.judged is None or figure.score is None:
            continue
        unit = f"x {figure.beside}" if figure.ratio == figure.judged else f" {figure.unit}"
        text = f"{readable(figure.judged)}{unit} ({figure.target_text})"
        share = min(figure.score, _SCORE_MAX) / _SCORE_MAX
        colour = "#3a8f5c" if figure.is_met else "#b8503e"
        bars.append(Bar(f"{figure.work}: {figure.name}", share, text, colour))
    return bars


def _panel(
    title: str, bars: Sequence[Bar], top: float, mark: float | None
) -> tuple[list[str], float]:
    """Return the SVG elements of a panel, and the y position at which the next panel starts.

    The panel starts at the y position `top`. `mark` is the x position of a dashed line, as a share
    of the width of a full bar; None for no line.
    """
    parts = [f'<text class="title" x="{_MARGIN}" y="{top + 16:.0f}">{escape(title)}</text>']
    first = top + 26
    for index, bar in enumerate(bars):
        parts += _row(bar, first + index * _ROW)
    bottom = first + len(bars) * _ROW
    if mark is not None:
        x = _MARGIN + _LABEL + mark * _BAR
        parts.append(
            f'<path d="M{x:.1f} {first:.0f}V{bottom:.0f}" stroke="#888" stroke-dasharray="3 2"/>'
        )
    return parts, bottom + _MARGIN


def _row(bar: Bar, y: float) -> list[str]:
    left = _MARGIN + _LABEL
    width = max(1.0, bar.share * _BAR)
    base = y + 14
    return [
        f'<text x="{left - 8}" y="{base:.0f}" text-anchor="end">{escape(bar.label)}</text>',
        f'<rect x="{left}" y="{y + 3:.0f}" width="{width:.1f}" height="{_ROW - 6}"'
        f' fill="{bar.colour}" rx="2"/>',
        f'<text x="{left + width + 6:.1f}" y="{base:.0f}">{escape(bar.text)}</text>',
    ]
