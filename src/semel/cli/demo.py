"""`semel demo`: exactly-once writes under lost answers and kills, beside plain retries."""

import asyncio
import os
import shlex
from typing import Final

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

from semel.cli.demo_plan import Plan
from semel.cli.demo_run import DemoRun, Lane, Result, Totals
from semel.cli.exits import EXIT_BROKEN_PROMISE, Refused
from semel.cli.read_only import is_in_use
from semel.cli.text import printable
from semel.journal.checkpoint import FILE_NAME
from semel.journal.disk import LOCK_NAME
from semel.journal.identity import IDENTITY_NAME, IDENTITY_TEMPORARY_NAME
from semel.journal.segments import SPARE_NAME, segment_lsn
from semel.journal.writer import RESERVE_NAME

_MARKER_NAME: Final = "DEMO"
_MARKER_TEXT: Final = "Made by `semel demo`; `semel demo --force` may replace it.\n"
_OWN_NAMES: Final = frozenset(
    {
        _MARKER_NAME,
        IDENTITY_NAME,
        IDENTITY_TEMPORARY_NAME,
        FILE_NAME,
        f"{FILE_NAME}-lock",
        LOCK_NAME,
        SPARE_NAME,
        RESERVE_NAME,
    }
)
_PLAIN_STEPS: Final = 10


@click.command("demo")
@click.option("--data", metavar="DIR", default="semel-demo", help="Where to write; must be new.")
@click.option(
    "--orders",
    type=click.IntRange(1, 10_000_000),
    default=50_000,
    show_default=True,
    help="How many.",
)
@click.option("--seed", type=int, default=1, help="The same seed plans the same faults.")
@click.option("--force", is_flag=True, help="Replace what an earlier demo left there.")
def command(data: str, orders: int, seed: int, *, force: bool) -> int:
    """Write orders exactly once while answers get lost and the engine gets killed.

    The same orders also go down a naive path, whose producers just send again. At the end
    everything is read back and compared. Exit code 70 if anything is not there exactly once.
    """
    _prepare(data, is_forced=force)
    plan = Plan(orders, seed)
    lanes = (
        Lane("exactly once", "orders", is_tagged=True),
        Lane("plain retries", "orders-naive", is_tagged=False),
    )
    console = Console(highlight=False)
    console.print(
        f"{orders:,} orders from {plan.producers} producers, twice; about "
        f"{plan.drop_share:.1%} of the answers get lost, {plan.kills} kills; seed {seed}"
    )
    with _Screen(console, orders, lanes) as screen:
        results, totals = asyncio.run(DemoRun(data, plan, screen).run(*lanes))
    console.print()
    console.print(_table(results, totals))
    return _conclude(console, data, results[0])


# ---- the directory -------------------------------------------------------------------------------


def _prepare(path: str, *, is_forced: bool) -> None:
    """Have an empty directory; only what a demo made is ever removed."""
    if os.path.exists(path) and not os.path.isdir(path):
        raise Refused(f"{path} is not a directory; choose another with --data")
    os.makedirs(path, exist_ok=True)
    names = os.listdir(path)
    if names:
        _check_replaceable(path, names, is_forced=is_forced)
    for name in names:
        os.unlink(os.path.join(path, name))
    with open(os.path.join(path, _MARKER_NAME), "w", encoding="utf-8") as marker:
        marker.write(_MARKER_TEXT)


def _check_replaceable(path: str, names: list[str], *, is_forced: bool) -> None:
    if _MARKER_NAME not in names:
        raise Refused(f"{path} is not empty and no demo made it; choose another with --data")
    if not is_forced:
        raise Refused(f"{path} is not empty; add --force to replace what an earlier demo left")
    foreign = [n for n in names if n not in _OWN_NAMES and segment_lsn(n) is None]
    if foreign:
        raise Refused(f"{path} also holds {foreign[0]}, which is not ours to remove")
    if is_in_use(path):
        raise Refused(f"{path} is in use by a running process; end that first")


# ---- what is shown -------------------------------------------------------------------------------


class _Screen:
    """Bars on a terminal, lines anywhere else; every fault as it happens."""

    def __init__(self, console: Console, orders: int, lanes: tuple[Lane, ...]) -> None:
        self._console = console
        self._orders = orders
        self._step = max(orders // _PLAIN_STEPS, 1)
        self._is_plain = not console.is_terminal
        columns = (TextColumn("{task.description:>13}"), BarColumn(), MofNCompleteColumn())
        self._progress = Progress(*columns, console=console, disable=self._is_plain)
        self._bars: dict[str, TaskID] = {}
        for lane in lanes:
            self._bars[lane.name] = self._progress.add_task(lane.name, total=orders)

    def __enter__(self) -> "_Screen":
        self._progress.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._progress.stop()

    def fault(self, message: str) -> None:
        """Print it above the bars."""
        style = "bold red" if message.startswith("SIGKILL") else "yellow"
        self._progress.console.print(Text(f"  {message}", style=style))

    def advance(self, lane: Lane, orders: int) -> None:
        """Move the lane's bar."""
        self._progress.advance(self._bars[lane.name], orders)
        before = lane.produced - orders
        if self._is_plain and before // self._step != lane.produced // self._step:
            share = 100 * lane.produced // self._orders
            self._console.print(f"{lane.name}: {share} % of the orders confirmed")


def _table(results: list[Result], totals: Totals) -> Table:
    table = Table(title=f"after {totals.seconds:.1f} seconds", title_justify="left")
    table.add_column("")
    for result in results:
        table.add_column(result.lane.name, justify="right")
    table.add_row("orders produced", *(f"{r.lane.produced:,}" for r in results))
    table.add_row("answers dropped", *(f"{r.lane.dropped:,}" for r in results))
    table.add_row("batches sent again", *(f"{r.lane.retried:,}" for r in results))
    table.add_row("duplicate batches refused", *(f"{len(r.lane.duplicates):,}" for r in results))
    table.add_row(
        "  answered with the first offset", *(f"{r.duplicates_in_place:,}" for r in results)
    )
    for name, value in (
        ("kills survived", totals.kills),
        ("checkpoints", totals.checkpoints),
        ("frames replayed", totals.replayed_frames),
    ):
        table.add_row(name, *(f"{value:,}" for _ in results))
    table.add_section()
    table.add_row("orders stored", *(f"{r.verdict.stored:,}" for r in results))
    table.add_row("lost", *(_count(r.verdict.lost) for r in results))
    table.add_row("duplicated", *(_count(r.verdict.duplicated) for r in results))
    return table


def _count(value: int) -> Text:
    return Text(f"{value:,}", style="bold red" if value else "bold green")


def _conclude(console: Console, path: str, result: Result) -> int:
    verdict, is_whole = result.verdict, result.duplicates_in_place == len(result.lane.duplicates)
    where = shlex.quote(printable(path))
    console.print("\nThe data is still there. To look at it:")
    console.print(f"  semel doctor --verify --data {where}", soft_wrap=True)
    if verdict.is_exactly_once and is_whole:
        return 0
    console.print(
        Text(
            f"NOT exactly once: {verdict.lost} lost, {verdict.duplicated} duplicated, "
            f"{verdict.foreign} foreign, {verdict.misplaced} not where they were said to be",
            style="bold red",
        )
    )
    return EXIT_BROKEN_PROMISE
