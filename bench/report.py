"""What a benchmark found: named figures, as one table or as JSON."""

import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import msgspec
import psutil
from msgspec import Struct
from rich.console import Console
from rich.table import Table


class Figure(Struct, frozen=True):
    """One number. `target` is what the design asks for, in words; nothing enforces it."""

    name: str
    value: float
    unit: str
    target: str = ""


def middle(values: Sequence[float]) -> float:
    return median(values)


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that `percent` of the others do not exceed; 0 if there are none."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * percent / 100), len(ordered) - 1)] if ordered else 0.0


def show(figures: Mapping[str, Sequence[Figure]]) -> None:
    table = Table(title="semel engine", title_justify="left")
    table.add_column("benchmark")
    table.add_column("figure")
    table.add_column("value", justify="right")
    table.add_column("unit")
    table.add_column("target")
    for benchmark, found in figures.items():
        for figure in found:
            value = _readable(figure.value)
            table.add_row(benchmark, figure.name, value, figure.unit, figure.target)
        table.add_section()
    Console().print(table)


def _readable(value: float) -> str:
    if value == int(value) or abs(value) >= 1_000:
        return f"{value:,.0f}"
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"


def save(path: Path, figures: Mapping[str, Sequence[Figure]], file_system: str) -> None:
    """Write the figures beside the little that is needed to read them later."""
    report = {
        "python": platform.python_version(),
        "cores": psutil.cpu_count(),
        "file_system": file_system,
        "benchmarks": {
            benchmark: {
                figure.name: {"value": figure.value, "unit": figure.unit} for figure in found
            }
            for benchmark, found in figures.items()
        },
    }
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
