"""What was found: named figures, beside what the design asks for."""

from collections.abc import Sequence
from statistics import median
from typing import Final, Literal

from msgspec import Struct

AT_LEAST: Final = "at least"
AT_MOST: Final = "at most"
_SIGNS: Final = {AT_LEAST: ">=", AT_MOST: "<="}


class Target(Struct, frozen=True):
    """What is asked for, of the value or of its ratio to something measured in the same run."""

    sense: Literal["at least", "at most"]
    bound: float
    of: Literal["value", "ratio"] = "value"


class Figure(Struct, frozen=True, kw_only=True):
    """One number; `ratio` is that to `beside`."""

    work: str
    name: str
    value: float
    unit: str
    ratio: float | None = None
    beside: str = ""
    target: Target | None = None
    is_rate: bool = False  # one of the bars that show peers beside each other

    @property
    def judged(self) -> float | None:
        """The number the target is about; None if there is nothing to judge."""
        if self.target is None:
            return None
        return self.value if self.target.of == "value" else self.ratio

    @property
    def score(self) -> float | None:
        """How far the target is reached: 1 is exactly, more is better."""
        judged, target = self.judged, self.target
        if judged is None or target is None or judged <= 0:
            return None
        return judged / target.bound if target.sense == AT_LEAST else target.bound / judged

    @property
    def is_met(self) -> bool | None:
        """Whether the target is reached; None if there is none."""
        judged, target = self.judged, self.target
        if judged is None or target is None:
            return None
        return judged >= target.bound if target.sense == AT_LEAST else judged <= target.bound

    @property
    def target_text(self) -> str:
        """The target in words."""
        if self.target is None:
            return ""
        unit = "x" if self.target.of == "ratio" else f" {self.unit}"
        return f"{_SIGNS[self.target.sense]} {readable(self.target.bound)}{unit}"

    @property
    def ratio_text(self) -> str:
        """The ratio in words."""
        return "" if self.ratio is None else f"{self.ratio:.2f}x {self.beside}"


def at_least(bound: float) -> Target:
    """Ask a value to be so large."""
    return Target(AT_LEAST, bound)


def at_most(bound: float) -> Target:
    """Ask a value to be so small."""
    return Target(AT_MOST, bound)


def ratio_at_least(bound: float) -> Target:
    """Ask a ratio to be so large."""
    return Target(AT_LEAST, bound, "ratio")


def ratio_at_most(bound: float) -> Target:
    """Ask a ratio to be so small."""
    return Target(AT_MOST, bound, "ratio")


def middle(values: Sequence[float]) -> float:
    """Take the median; 0 of nothing."""
    return median(values) if values else 0.0


def percentile(values: Sequence[float], percent: float) -> float:
    """Find the value that `percent` of the others do not exceed; 0 if there are none."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * percent / 100), len(ordered) - 1)] if ordered else 0.0


def readable(value: float) -> str:
    """Print three digits that matter."""
    if value == int(value) or abs(value) >= 1_000:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"
