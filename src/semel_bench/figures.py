"""Figures: named numbers and their targets, as a table for people and as JSON for programs."""

import os
import platform
import statistics
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec import Struct
from rich.console import Console
from rich.table import Table

import semel
from semel_bench.harness import Harness, file_system

AT_LEAST: Final = "at least"
AT_MOST: Final = "at most"
_SIGNS: Final = {AT_LEAST: ">=", AT_MOST: "<="}
_MET: Final = {True: "[green]yes[/]", False: "[red]no[/]", None: ""}
_WIDTH_MIN: Final = 120


class Target(Struct, frozen=True):
    """A bound for the value, or for its ratio to something measured in the same run."""

    sense: Literal["at least", "at most"]
    bound: float
    of: Literal["value", "ratio"] = "value"


class Figure(Struct, frozen=True):
    """One number. `ratio` is its ratio to `beside`; `work` is the benchmark, set by the command."""

    name: str
    value: float
    unit: str
    target: Target | None = None
    ratio: float | None = None
    beside: str = ""
    is_rate: bool = False  # drawn as a bar next to those of the peers
    work: str = ""

    @property
    def judged(self) -> float | None:
        """The number the target is about; None without a target."""
        if self.target is None:
            return None
        return self.value if self.target.of == "value" else self.ratio

    @property
    def score(self) -> float | None:
        """How far the target is reached: 1 is exactly, more is better. None if undefined."""
        judged, target = self.judged, self.target
        if judged is None or target is None or judged <= 0:
            return None
        return judged / target.bound if target.sense == AT_LEAST else target.bound / judged

    @property
    def is_met(self) -> bool | None:
        """Whether the target is reached; None without a target."""
        judged, target = self.judged, self.target
        if judged is None or target is None:
            return None
        return judged >= target.bound if target.sense == AT_LEAST else judged <= target.bound

    @property
    def target_text(self) -> str:
        """The target as text, such as `<= 20 us`; empty without a target."""
        if self.target is None:
            return ""
        unit = "x" if self.target.of == "ratio" else f" {self.unit}"
        return f"{_SIGNS[self.target.sense]} {readable(self.target.bound)}{unit}"

    @property
    def ratio_text(self) -> str:
        """The ratio as text; empty without one."""
        return "" if self.ratio is None else f"{self.ratio:.2f}x {self.beside}"


def at_least(bound: float) -> Target:
    """Return a lower bound for a value."""
    return Target(AT_LEAST, bound)


def at_most(bound: float) -> Target:
    """Return an upper bound for a value."""
    return Target(AT_MOST, bound)


def ratio_at_least(bound: float) -> Target:
    """Return a lower bound for a ratio."""
    return Target(AT_LEAST, bound, "ratio")


def ratio_at_most(bound: float) -> Target:
    """Return an upper bound for a ratio."""
    return Target(AT_MOST, bound, "ratio")


def ratio(value: float, other: float) -> float | None:
    """Return `value / other`, or None if that is undefined."""
    return value / other if other else None


def median(values: Sequence[float]) -> float:
    """Return the median; 0 for no values."""
    return statistics.median(values) if values else 0.0


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the value that `percent` of the others do not exceed; 0 for no values."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * percent / 100), len(ordered) - 1)] if ordered else 0.0


def readable(value: float) -> str:
    """Format a number with about three significant digits."""
    if value == int(value) or abs(value) >= 1_000:
        return f"{value:,.0f}"
    digits = 1 if abs(value) >= 10 else 2 if abs(value) >= 0.1 else 3
    return f"{value:.{digits}f}"


def show(figures: Sequence[Figure]) -> None:
    """Print the table."""
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
        console = Console(width=max(console.width, _WIDTH_MIN))
    console.print(table)


def save(path: Path, figures: Sequence[Figure], harness: Harness) -> None:
    """Write the figures as JSON, with what is needed to interpret them later."""
    options = harness.options
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
        "figures": [_plain(figure) for figure in figures],
    }
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")


def _plain(figure: Figure) -> dict[str, object]:
    fields = ("work", "name", "value", "unit", "ratio", "beside")
    document = {field: getattr(figure, field) for field in fields}
    return {**document, "target": figure.target_text, "met": figure.is_met}
