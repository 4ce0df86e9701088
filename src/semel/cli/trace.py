"""`semel trace`: what became of each step of a graph."""

import sys
from typing import Final

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from semel.cli.exits import EXIT_REFUSED, Refused
from semel.cli.options import remote
from semel.cli.shown import json_line, write
from semel.cli.text import printable
from semel.client.client import Client
from semel.client.errors import StreamNotFound
from semel.pipeline.trace import Traced
from semel.pipeline.tracing import trace_of

_STEPS_DEFAULT: Final = 20
_HASH_CHARS: Final = 12
_PAPER_WIDTH: Final = 1_000


@click.command("trace")
@click.argument("graph")
@click.argument("processor", required=False)
@click.option(
    "--steps",
    "count",
    type=click.IntRange(min=1),
    default=_STEPS_DEFAULT,
    show_default=True,
    help="How many steps, the newest.",
)
@remote
def command(
    client: Client, *, graph: str, processor: str | None, count: int, is_json: bool
) -> None:
    """Show the last steps of GRAPH, or of one PROCESSOR of it: ranges, hash, outcome, outputs."""
    try:
        found = trace_of(client, graph, processor)[-count:]
    except StreamNotFound as error:
        raise Refused(
            f"there is no trace of a graph {graph}; `semel run` begins one", EXIT_REFUSED
        ) from error
    if is_json:
        for one in found:
            write(json_line(one))
        return
    table = Table(box=None, pad_edge=False)
    for head in ("processor", "step", "outcome", "inputs", "outputs", "ms", "hash"):
        table.add_column(head)
    for one in found:
        table.add_row(*[Text(printable(cell), overflow="fold") for cell in _cells(one)])
    # Only a terminal has an edge to break lines at.
    Console(highlight=False, width=None if sys.stdout.isatty() else _PAPER_WIDTH).print(table)


def _cells(one: Traced) -> tuple[str, ...]:
    inputs = ", ".join(f"{path} {_short(start)}..{_short(to)}" for path, _, start, to in one.ranges)
    return (
        one.processor,
        str(one.number),
        one.outcome,
        inputs,
        _outputs(one),
        f"{one.milliseconds:g}",
        one.hash[:_HASH_CHARS],
    )


def _outputs(one: Traced) -> str:
    if one.outputs is not None:
        return ", ".join(
            f"{path} {_short(first)}..{_short(end)}" for path, (first, end) in one.outputs.items()
        )
    return ", ".join(f"{path} {count} at ?" for path, count in one.written.items())


def _short(offset: str) -> str:
    return str(int(offset.rpartition("_")[2]))
