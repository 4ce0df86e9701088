"""What the demo shows: bars on a terminal, lines anywhere else, and a table at the end."""

import time
from collections.abc import Callable
from typing import Final, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

from semel.cli.demo_run import Facts, Result
from semel.cli.demo_verdict import Verdict

_PLAIN_STEPS: Final = 4
_JUDGED: Final = {
    "orders": "rows in: orders",
    "enriched": "rows out: enriched orders",
    "totals": "rows out: windows closed",
}


class Screen:
    """Bars on a terminal, lines anywhere else; every fault as it happens."""

    def __init__(self, console: Console) -> None:
        self._is_plain = not console.is_terminal
        columns = (TextColumn("{task.description:>14}"), BarColumn(), MofNCompleteColumn())
        self._progress = Progress(*columns, console=console, disable=self._is_plain)
        self._began = time.monotonic()
        self._bars: dict[str, TaskID] = {}
        self._steps: dict[str, int] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._progress.stop()

    def say(self, message: str) -> None:
        """Print a step above the bars."""
        self._print(message, "")

    def fault(self, message: str) -> None:
        """Print what was broken above the bars."""
        style = "bold red" if message.startswith("SIGKILL") else "yellow"
        self._print(message, style)

    def show(self, bar: str, done: int, total: int) -> None:
        """Move a bar; a naive path may have more than there should be."""
        done = min(done, total)
        if self._is_plain:
            self._say_step(bar, done, total)
            return
        if bar not in self._bars:
            self._bars[bar] = self._progress.add_task(bar, total=total)
        self._progress.update(self._bars[bar], completed=done)

    def _say_step(self, bar: str, done: int, total: int) -> None:
        step = _PLAIN_STEPS * done // total
        if step > self._steps.get(bar, 0):
            self._print(f"{bar}: {100 * step // _PLAIN_STEPS} %", "")
        self._steps[bar] = step

    def _print(self, message: str, style: str) -> None:
        seconds = time.monotonic() - self._began
        line = Text(f"{seconds:6.1f} s  {message}", style=style)
        self._progress.console.print(line, soft_wrap=True)


def table(results: list[Result], facts: Facts) -> Table:
    """Put both lanes beside each other."""
    shown = Table(title=f"after {facts.seconds:.0f} seconds", title_justify="left")
    shown.add_column("")
    for result in results:
        shown.add_column(result.name, justify="right")

    def row(name: str, cell: Callable[[Result], int]) -> None:
        shown.add_row(name, *(f"{cell(result):,}" for result in results))

    row("orders produced", lambda r: r.produced.confirmed)
    row("answers dropped", lambda r: r.dropped)
    row("batches retried", lambda r: r.produced.retried)
    row("duplicates refused", lambda r: r.produced.refused)
    row("server kills", lambda _: facts.server_kills)
    if facts.driver_kills:
        row("Spark driver kills", lambda _: facts.driver_kills)
    for name, title in _JUDGED.items():
        verdicts = [result.verdicts[name] for result in results if name in result.verdicts]
        if verdicts:
            _add_verdicts(shown, title, verdicts)
    return shown


def _add_verdicts(shown: Table, title: str, verdicts: list[Verdict]) -> None:
    shown.add_section()
    shown.add_row(title, *(f"{verdict.stored:,}" for verdict in verdicts))
    shown.add_row("  lost", *(_fault(verdict.lost) for verdict in verdicts))
    shown.add_row("  duplicated", *(_fault(verdict.duplicated) for verdict in verdicts))
    shown.add_row("  wrong", *(_fault(verdict.wrong) for verdict in verdicts))


def _fault(value: int) -> Text:
    return Text(f"{value:,}", style="bold red" if value else "bold green")
