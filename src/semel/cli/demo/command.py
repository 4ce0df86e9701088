"""`semel demo`: exactly-once writes by a producer and by Spark, compared with plain retries."""

import importlib.util
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

from semel.cli.demo.plan import DATA, Plan, StreamVerdict, prepare_directory
from semel.cli.demo.run import DemoRun, LaneResult, RunFacts
from semel.cli.options import Number
from semel.cli.output import EXIT_NOT_EXACTLY_ONCE, EXIT_UNAVAILABLE, CommandRefused, printable
from semel.client.errors import ClientError
from semel.version import install_advice


@click.command("demo")
@click.option("--data", metavar="DIR", default="semel-demo", help="New or empty data directory.")
@click.option(
    "--orders",
    type=Number(1, 10_000_000),
    default=200_000,
    show_default=True,
    help="Number of orders.",
)
@click.option(
    "--seed", type=int, default=1, help="Random seed; it determines the orders and planned faults."
)
@click.option("--force", is_flag=True, help="Replace the data of an earlier demo.")
@click.option("--no-spark", is_flag=True, help="Run the producers only, without Spark and Java.")
def demo_command(data: str, orders: int, seed: int, *, force: bool, no_spark: bool) -> int:
    """Show exactly-once writes while processes are killed.

    A producer and Spark write to a server. Responses are lost, and the server and the Spark driver
    are killed. For comparison, the same data is also written with plain retries.

    At the end, all streams are compared with the expected rows. The exit code is 70 if an
    exactly-once stream is wrong.
    """
    console = Console(highlight=False)
    lack = "--no-spark is set" if no_spark else missing_for_spark()
    if lack is not None:
        console.print(f"The demo runs without Spark: {lack}", soft_wrap=True)
    home = prepare_directory(data, is_forced=force)
    console.print(
        f"{orders:,} orders are written twice: with exactly-once writes, and with plain retries."
        f" The seed is {seed}."
    )
    with Screen(console) as screen:
        run = DemoRun(home, Plan(orders, seed), screen, has_spark=lack is None)
        try:
            results, facts = run.run()
        except ClientError as error:
            raise CommandRefused(f"the demo cannot continue: {error}", EXIT_UNAVAILABLE) from error
    console.print()
    console.print(result_table(results, facts))
    _print_commands(console, Path(data), has_spark=lack is None)
    for complaint in results[0].complaints:
        console.print(Text(complaint, style="bold red"), soft_wrap=True)
    return EXIT_NOT_EXACTLY_ONCE if results[0].complaints else 0


def missing_for_spark() -> str | None:
    """Return what is missing for Spark and how to install it, or None if nothing is missing."""
    for name in ("pyspark", "pyarrow", "pandas"):
        if importlib.util.find_spec(name) is None:
            return f"{name} is not installed; " + install_advice("'.[spark]'")
    from semel.spark.runtime.environment import JavaMissing, find_java

    try:
        find_java()
    except JavaMissing as error:
        return str(error)
    return None


def _print_commands(console: Console, path: Path, *, has_spark: bool) -> None:
    where = shlex.quote(printable(str(path / DATA)))
    lines = [f"semel doctor --verify --data {where}", f"semel serve --data {where} &"]
    lines += ["semel ls", "semel read orders --limit 3", "semel producers ls orders"]
    if has_spark:
        lines += ["semel read enriched --limit 3", "semel read totals", "semel sinks ls"]
    console.print("\nThe data is kept. To inspect the data, run:")
    for line in lines:
        console.print(f"  {line}", soft_wrap=True)


# ---- screen --------------------------------------------------------------------------------------


_PLAIN_STEPS: Final = 4
_JUDGED: Final = {
    "orders": "rows in: orders",
    "enriched": "rows out: enriched orders",
    "totals": "rows out: windows closed",
}


class Screen:
    """Shows progress, as bars on a terminal and as lines elsewhere.

    Each fault is shown as soon as it happens.
    """

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
        self._print(message, "")

    def fault(self, message: str) -> None:
        self._print(message, "bold red" if message.startswith("SIGKILL") else "yellow")

    def show(self, bar: str, done: int, total: int) -> None:
        """Update a bar. `done` can exceed `total`, because plain retries store duplicates."""
        done = min(done, total)
        if self._is_plain:
            self._print_step(bar, done, total)
            return
        if bar not in self._bars:
            self._bars[bar] = self._progress.add_task(bar, total=total)
        self._progress.update(self._bars[bar], completed=done)

    def _print_step(self, bar: str, done: int, total: int) -> None:
        step = _PLAIN_STEPS * done // total
        if step > self._steps.get(bar, 0):
            self._print(f"{bar}: {100 * step // _PLAIN_STEPS} %", "")
        self._steps[bar] = step

    def _print(self, message: str, style: str) -> None:
        line = Text(f"{time.monotonic() - self._began:6.1f} s  {message}", style=style)
        self._progress.console.print(line, soft_wrap=True)


def result_table(results: list[LaneResult], facts: RunFacts) -> Table:
    """Return the results as a table. Each lane (method of writing) has one column."""
    table = Table(title=f"after {facts.seconds:.0f} seconds", title_justify="left")
    table.add_column("")
    for result in results:
        table.add_column(result.name, justify="right")

    def row(name: str, cell: Callable[[LaneResult], int]) -> None:
        table.add_row(name, *(f"{cell(result):,}" for result in results))

    row("orders produced", lambda r: r.produced.confirmed)
    row("responses dropped", lambda r: r.dropped)
    row("batches retried", lambda r: r.produced.retried)
    row("duplicates refused", lambda r: r.produced.refused)
    row("server kills", lambda _: facts.server_kills)
    if facts.driver_kills:
        row("Spark driver kills", lambda _: facts.driver_kills)
    for name, title in _JUDGED.items():
        verdicts = [result.verdicts[name] for result in results if name in result.verdicts]
        if verdicts:
            _add_verdicts(table, title, verdicts)
    return table


def _add_verdicts(table: Table, title: str, verdicts: list[StreamVerdict]) -> None:
    table.add_section()
    table.add_row(title, *(f"{verdict.stored:,}" for verdict in verdicts))
    for name in ("lost", "duplicated", "wrong"):
        counts = [getattr(verdict, name) for verdict in verdicts]
        cells = [Text(f"{n:,}", style="bold red" if n else "bold green") for n in counts]
        table.add_row(f"  {name}", *cells)
