"""`semel demo`: exactly once from producer to Spark to stream, beside plain retries."""

import importlib.util
import shlex
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from semel.cli.demo_directory import DATA, prepare
from semel.cli.demo_plan import Plan
from semel.cli.demo_run import DemoRun, Result
from semel.cli.demo_screen import Screen, table
from semel.cli.exits import EXIT_BROKEN_PROMISE, EXIT_UNAVAILABLE, Refused
from semel.cli.text import printable
from semel.client.errors import ClientError


@click.command("demo")
@click.option("--data", metavar="DIR", default="semel-demo", help="Where to write; must be new.")
@click.option(
    "--orders",
    type=click.IntRange(1, 10_000_000),
    default=200_000,
    show_default=True,
    help="How many.",
)
@click.option("--seed", type=int, default=1, help="The same seed plans the same faults.")
@click.option("--force", is_flag=True, help="Replace what an earlier demo left there.")
@click.option("--no-spark", is_flag=True, help="Only the producers; no Spark, no Java.")
def command(data: str, orders: int, seed: int, *, force: bool, no_spark: bool) -> int:
    """Send orders through Spark exactly once, while answers get lost and processes get killed.

    A producer writes orders through a network that loses answers, to a server that gets killed.
    Spark makes enriched orders and totals by the minute of them, and its driver gets killed. The
    same orders also go down a naive path, which just sends again. At the end everything is read
    back and compared with the input. Exit code 70 if anything is not there exactly once.
    """
    console = Console(highlight=False)
    lack = "--no-spark was given" if no_spark else spark_lacks()
    if lack is not None:
        console.print(f"Only the producers run, not Spark: {lack}", soft_wrap=True)
    home = prepare(data, is_forced=force)
    console.print(f"{orders:,} orders, twice: exactly once, and with plain retries; seed {seed}")
    with Screen(console) as screen:
        run = DemoRun(home, Plan(orders, seed), screen, has_spark=lack is None)
        try:
            results, facts = run.run()
        except ClientError as error:
            raise Refused(f"the demo could not go on: {error}", EXIT_UNAVAILABLE) from error
    console.print()
    console.print(table(results, facts))
    _print_commands(console, Path(data), has_spark=lack is None)
    return _conclude(console, results[0])


def spark_lacks() -> str | None:
    """Say what is missing for Spark, and how to get it; None if nothing is."""
    for name in ("pyspark", "pyarrow", "pandas"):
        if importlib.util.find_spec(name) is None:
            return f"{name} is not installed; run: pip install 'semel[spark]'"
    from semel.spark.java import JavaMissing, find_java

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
    console.print("\nThe data is still there. To look at it:")
    for line in lines:
        console.print(f"  {line}", soft_wrap=True)


def _conclude(console: Console, result: Result) -> int:
    if result.is_exactly_once:
        return 0
    for name, verdict in result.verdicts.items():
        if not verdict.is_exactly_once:
            message = f"NOT exactly once: {name}: {verdict.complaint}"
            console.print(Text(message, style="bold red"), soft_wrap=True)
    if result.produced.misplaced:
        message = f"NOT as answered: {result.produced.misplaced:,} batches are at another offset"
        console.print(Text(message, style="bold red"), soft_wrap=True)
    return EXIT_BROKEN_PROMISE
