"""Progress of long work: a bar on a terminal, a line now and then anywhere else."""

import sys
import time
from types import TracebackType
from typing import Final, Self

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

_PLAIN_SECONDS: Final = 2.0


class Steps:
    """One bar per step; on stderr, so that what is printed can go into a file."""

    def __init__(self, *, is_quiet: bool = False) -> None:
        self._is_plain = is_quiet or not sys.stderr.isatty()
        self._is_quiet = is_quiet
        self._bars: dict[str, TaskID] = {}
        self._said_at = time.monotonic()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=self._is_plain,
            transient=True,
        )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def show(self, what: str, done: int, total: int) -> None:
        """Say how far a step is; a total of 0 is not known."""
        if self._is_plain:
            self._say(what, done, total)
            return
        if what not in self._bars:
            self._bars[what] = self._progress.add_task(what, total=total or None)
        self._progress.update(self._bars[what], completed=done, total=total or None)

    def _say(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        is_over = 0 < total <= done
        if self._is_quiet or is_over or now - self._said_at < _PLAIN_SECONDS:
            return
        self._said_at = now
        share = f"{100 * done // total} %" if total else f"{done:,} rows"
        click.echo(f"reading {what}: {share}", err=True)
