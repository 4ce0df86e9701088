"""What every benchmark is given: options, a scratch directory, and rounds in alternating order."""

import os
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

import click
from msgspec import Struct

# By convention this directory is on a disk, which the usual temporary directory may not be.
DIRECTORY_DEFAULT: Final = "/var/tmp"  # noqa: S108 - only new, unpredictable names below it are used
MEMORY_FILE_SYSTEMS: Final = frozenset({"tmpfs", "ramfs"})

_MOUNTS: Final = Path("/proc/self/mounts")
_QUICK_SECONDS: Final = 0.3
_QUICK_DIVISOR: Final = 50
_QUICK_GIB: Final = 0.02
_QUICK_STREAMS: Final = 1_000

T = TypeVar("T")
Side = Callable[[], Awaitable[T]]  # one round of one of the things that are compared


class Unavailable(Exception):
    """Something a benchmark compares with cannot be run; the message says why."""


class Options(Struct, frozen=True, kw_only=True):
    """What the command line sets: `seconds` of a round, and the history that `restart` builds."""

    directory: str = DIRECTORY_DEFAULT
    is_quick: bool = False
    seconds: float = 3.0
    node_modules: str = "build/node_modules"
    gib: float = 2.0
    streams: int = 100_000

    @property
    def round_seconds(self) -> float:
        """How long a round is measured."""
        return self.pick(self.seconds, min(self.seconds, _QUICK_SECONDS))

    @property
    def warm_seconds(self) -> float:
        """How long a round runs before it is measured."""
        return self.round_seconds / 6

    @property
    def rounds(self) -> int:
        """How many rounds each side gets."""
        return self.pick(5, 1)

    @property
    def history_gib(self) -> float:
        """The size of the history that `restart` builds."""
        return self.pick(self.gib, min(self.gib, _QUICK_GIB))

    @property
    def stream_count(self) -> int:
        """The number of streams of `restart` and `stall`."""
        return self.pick(self.streams, min(self.streams, _QUICK_STREAMS))

    def pick(self, full: T, quick: T) -> T:
        """Return `full`, or `quick` in a quick run."""
        return quick if self.is_quick else full

    def scaled(self, count: int) -> int:
        """Return `count`, or a small part of it in a quick run."""
        return self.pick(count, max(2, count // _QUICK_DIVISOR))


class Harness:
    """One run of the benchmarks: its options, and what had to be skipped."""

    def __init__(self, options: Options) -> None:
        self.options: Final = options
        self.skipped: list[str] = []

    @contextmanager
    def optional(self) -> Iterator[None]:
        """Skip the rest of the block if something it needs is unavailable, and report that."""
        try:
            yield
        except Unavailable as error:
            self.skipped.append(str(error))
            click.echo(f"skipped: {error}", err=True)

    @contextmanager
    def scratch(self) -> Iterator[str]:
        """Create a directory on the disk to measure; it is removed at the end of the block."""
        directory = self.options.directory
        with tempfile.TemporaryDirectory(dir=directory, prefix="semel-bench-") as name:
            yield name


async def interleave(
    sides: Mapping[str, Side[T]], rounds: int, *, is_warmed: bool = True
) -> dict[str, list[T]]:
    """Run every side `rounds` times, in an order that rotates; return the results of each side.

    Alternating makes a noisy machine disturb all sides alike. With `is_warmed` every side runs
    once before, and that result is dropped.
    """
    names = list(sides)
    if is_warmed:
        for side in sides.values():
            await side()
    results: dict[str, list[T]] = {name: [] for name in names}
    for index in range(rounds):
        first = index % len(names)
        for name in names[first:] + names[:first]:
            results[name].append(await sides[name]())
    return results


def file_system(directory: str) -> str:
    """Return the type of the file system a directory is on, or "unknown"."""
    path = os.path.realpath(directory)
    longest, kind = "", "unknown"
    for line in _MOUNTS.read_text().splitlines() if _MOUNTS.exists() else ():
        _, mount, mount_kind, *_ = line.split(" ")
        point = mount.rstrip("/") + "/"
        if f"{path}/".startswith(point) and len(point) > len(longest):
            longest, kind = point, mount_kind
    return kind
