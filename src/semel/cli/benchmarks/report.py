"""The report: a table for people, JSON for programs."""

import os
import platform
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console
from rich.table import Table

import semel
from semel.cli.benchmarks.figures import Figure, readable
from semel.cli.benchmarks.options import Options, file_system

_MET: Final = {True: "yes", False: "no", None: ""}
_STYLES: Final = {True: "green", False: "red", None: ""}
_WIDTH_MIN: Final = 120


def show(figures: Sequence[Figure]) -> None:
    """Print the table."""
    table = Table(title="semel bench", title_justify="left")
    for name in ("work", "figure"):
        table.add_column(name)
    table.add_column("value", justify="right")
    for name in ("unit", "ratio", "target", "met"):
        table.add_column(name)
    ends = [before.work != after.work for before, after in pairwise(figures)]
    for figure, is_last in zip(figures, [*ends, True], strict=False):
        met = figure.is_met
        table.add_row(
            figure.work,
            figure.name,
            readable(figure.value),
            figure.unit,
            figure.ratio_text,
            figure.target_text,
            f"[{_STYLES[met]}]{_MET[met]}[/]" if _STYLES[met] else _MET[met],
            end_section=is_last,
        )
    console = Console()
    if not console.is_terminal:
        console = Console(width=max(console.width, _WIDTH_MIN))
    console.print(table)


def save(path: Path, figures: Sequence[Figure], skipped: Sequence[str], options: Options) -> None:
    """Write the figures beside the little that is needed to read them later."""
    report = {
        "semel": semel.__version__,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "file_system": file_system(options.directory),
        "quick": options.is_quick,
        "round_seconds": options.round_seconds,
        "rounds": options.rounds,
        "skipped": list(skipped),
        "figures": [_plain(figure) for figure in figures],
    }
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")


def _plain(figure: Figure) -> dict[str, object]:
    return {
        "work": figure.work,
        "name": figure.name,
        "value": figure.value,
        "unit": figure.unit,
        "ratio": figure.ratio,
        "beside": figure.beside,
        "target": figure.target_text,
        "met": figure.is_met,
    }
