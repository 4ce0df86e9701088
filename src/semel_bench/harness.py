"""The options, scratch directory, alternating rounds and figures that all benchmarks share."""

import math
import os
import statistics
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Literal, TypeVar

import click
from msgspec import Struct, field

# By convention this directory is on a disk. The usual temporary directory is often in memory.
DIRECTORY_DEFAULT: Final = "/var/tmp"  # noqa: S108 - only new, unpredictable names below it are used

T = TypeVar("T")
Side = Callable[[], Awaitable[T]]  # one side of a comparison; each call runs one round


class Unavailable(Exception):
    """Raised if a program that a benchmark needs cannot be run. The message says why."""


class Options(Struct, frozen=True, kw_only=True):
    """The command-line options. `gib` and `streams` set the amount of test data."""

    directory: str = DIRECTORY_DEFAULT
    is_quick: bool = False
    seconds: float = 3.0
    node_modules: str = "build/node_modules"
    gib: float = 2.0
    streams: int = 100_000

    @property
    def round_seconds(self) -> float:
        """The length of one round, in seconds."""
        return self.pick(self.seconds, min(self.seconds, 0.3))

    @property
    def rounds(self) -> int:
        """The number of rounds for each side of a comparison."""
        return self.pick(5, 1)

    @property
    def history_gib(self) -> float:
        """The amount of data that `restart` writes, in GiB."""
        return self.pick(self.gib, min(self.gib, 0.02))

    @property
    def stream_count(self) -> int:
        """The number of streams that `restart` and `stall` create."""
        return self.pick(self.streams, min(self.streams, 1_000))

    def pick(self, full: T, quick: T) -> T:
        """Return `quick` in a quick run, and `full` in any other run."""
        return quick if self.is_quick else full

    def scaled(self, count: int) -> int:
        """Return `count`. In a quick run, return a fiftieth of it, but at least 2."""
        return self.pick(count, max(2, count // 50))


class Harness(Struct, frozen=True):
    """One run of the benchmarks. `skipped` has the reason for each part that was skipped."""

    options: Options
    skipped: list[str] = []

    @contextmanager
    def optional(self) -> Iterator[None]:
        """If the block raises Unavailable, catch it, and report that the block is skipped."""
        try:
            yield
        except Unavailable as error:
            self.skipped.append(str(error))
            click.echo(f"skipped: {error}", err=True)

    def scratch(self) -> TemporaryDirectory[str]:
        """Return a context manager that creates a directory below `options.directory`.

        It removes the directory at its exit.
        """
        return TemporaryDirectory(dir=self.options.directory, prefix="semel-bench-")


async def interleave(
    sides: Mapping[str, Side[T]], rounds: int, *, warm_rounds: int = 1
) -> dict[str, list[T]]:
    """Run every side of a comparison `rounds` times, and return the results of each side.

    Each round runs every side once, so that a noisy machine affects all sides equally. The order of
    the sides rotates. The results of `warm_rounds` additional rounds at the start are dropped.
    """
    names = list(sides)
    results: dict[str, list[T]] = {name: [] for name in names}
    for index in range(-warm_rounds, rounds):
        first = max(index, 0) % len(names)
        for name in names[first:] + names[:first]:
            results[name].append(await sides[name]())
    return {name: each[warm_rounds:] for name, each in results.items()}


def file_system(directory: str) -> str:
    """Return the type of a directory's file system; "unknown" if no mount is found for it."""
    path = os.path.realpath(directory) + "/"
    mounts = map(str.split, Path("/proc/self/mounts").read_text().splitlines())
    kinds = {mount.rstrip("/") + "/": kind for _, mount, kind, *_ in mounts}
    return kinds.get(max(filter(path.startswith, kinds), key=len, default=""), "unknown")


# ---- figures -------------------------------------------------------------------------------------


class Target(Struct, frozen=True):
    """The minimum (`>=`) or maximum (`<=`) for a figure's value or ratio; `of` says which one."""

    sense: Literal[">=", "<="]
    bound: float
    of: Literal["value", "ratio"] = "value"


class Figure(Struct, frozen=True):
    """One measured value.

    If the value is compared with another value, `beside` is the name of the other value, and
    `ratio` is this value divided by it. `work` is the benchmark's name, set by `semel bench`.
    """

    name: str
    value: float
    unit: str
    target: Target | None = None
    ratio: float | None = None
    beside: str = ""
    is_rate: bool = False  # drawn as a bar, next to the rates of other servers
    work: str = ""

    @property
    def judged(self) -> float | None:
        """The number to compare with the target: `value` or `ratio`, depending on the target.

        It is None if there is no target, or if the target needs a ratio and there is none.
        """
        if self.target is None:
            return None
        return self.value if self.target.of == "value" else self.ratio

    @property
    def score(self) -> float | None:
        """How well the target is met: 1 is exactly on target, more is better, less is a miss.

        It is None if `judged` is None.
        """
        judged, target = self.judged, self.target
        if judged is None or target is None:
            return None
        if target.sense == ">=":
            return judged / target.bound
        return target.bound / judged if judged > 0 else math.inf

    @property
    def is_met(self) -> bool | None:
        """True if the target is met; None if `judged` is None."""
        return None if self.score is None else self.score >= 1

    @property
    def target_text(self) -> str:
        """The target as text, such as `<= 20 us`; empty if there is no target."""
        if self.target is None:
            return ""
        unit = "x" if self.target.of == "ratio" else f" {self.unit}"
        return f"{self.target.sense} {readable(self.target.bound)}{unit}"

    @property
    def ratio_text(self) -> str:
        """The ratio as text, such as `1.25x bare`; empty if there is no ratio."""
        return "" if self.ratio is None else f"{self.ratio:.2f}x {self.beside}"


at_least: Final = partial(Target, ">=")
at_most: Final = partial(Target, "<=")
ratio_at_least: Final = partial(Target, ">=", of="ratio")
ratio_at_most: Final = partial(Target, "<=", of="ratio")


def ratio(value: float, other: float) -> float | None:
    """Return `value / other`, or None if `other` is 0."""
    return value / other if other else None


def median(values: Sequence[float]) -> float:
    """Return the median of `values`; 0 if there are no values."""
    return statistics.median(values) if values else 0.0


def median_of(rounds: Iterable[T], figure: Callable[[T], float]) -> float:
    """Return the median of the numbers that `figure` returns for each round."""
    return median([figure(each) for each in rounds])


def median_ratio(rounds: Iterable[T], others: Iterable[T], figure: Callable[[T], float]) -> float:
    """Return the median of the ratios of `figure`, each of a round and of the other side's round.

    The two sides of a round ran one after the other, so noise affects both in the same way.
    """
    return median([figure(a) / (figure(b) or 1.0) for a, b in zip(rounds, others, strict=True)])


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the value below which `percent` % of the values are; 0 if there are no values."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * percent / 100), len(ordered) - 1)] if ordered else 0.0


def readable(value: float) -> str:
    """Return a number as text with about three significant digits."""
    if value == int(value) or abs(value) >= 1_000:
        return f"{value:,.0f}"
    digits = 1 if abs(value) >= 10 else 2 if abs(value) >= 0.1 else 3
    return f"{value:.{digits}f}"


# ---- delays of an event loop ---------------------------------------------------------------------


_THREADS: Final = Path("/proc/self/task")


class Gaps(Struct):
    """Delays of the event loop, in seconds.

    `seen` has the delays. `net` has the delays minus the time that threads waited for a core.
    """

    seen: list[float] = field(default_factory=list)
    net: list[float] = field(default_factory=list)

    def add(self, gap_s: float, waited_s: float) -> None:
        """Add a delay of `gap_s`, during which threads waited `waited_s` in total for a core."""
        self.seen.append(max(gap_s, 0.0))
        self.net.append(max(gap_s - waited_s, 0.0))


class CoreWaits:
    """Measures how long the threads of this process were ready to run but waited for a core.

    Threads that start after the creation of this object are not counted. `since_last` returns 0 if
    the kernel does not measure these waits. This class works on Linux only.
    """

    def __init__(self) -> None:
        stats = (thread / "schedstat" for thread in _THREADS.iterdir())
        self._fds = [os.open(stat, os.O_RDONLY) for stat in stats if stat.exists()]
        self._last_ns = self._total_ns()

    def _total_ns(self) -> int:
        # The file has three numbers: the time that the thread ran on a core, the time that it
        # waited for a core, and the number of its time slices.
        return sum(int(os.pread(fd, 64, 0).split()[1]) for fd in self._fds)

    def since_last(self) -> float:
        """Return the seconds waited since the previous call (on the first call: since creation)."""
        last_ns, self._last_ns = self._last_ns, self._total_ns()
        return (self._last_ns - last_ns) / 1e9

    def __del__(self) -> None:
        for fd in self._fds:
            os.close(fd)
