"""`semel graph`: a picture of a graph."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Final

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from semel.cli.exit_codes import EXIT_REFUSED, EXIT_USAGE, CommandRefused
from semel.cli.options import remote
from semel.cli.output import json_line, printable, write
from semel.client.errors import StreamNotFound
from semel.client.sync.client import Client
from semel.pipeline.graph.graph import Graph
from semel.pipeline.problems import GraphError
from semel.pipeline.trace import TracedStep, trace_of

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("graph")
@click.argument("file", type=_FILE)
@click.option("--graph", "name", help="Which graph, if the file has several.")
@click.option(
    "--svg", "svg_file", type=click.Path(dir_okay=False, path_type=Path), help="Draw it here."
)
@click.option("--json", "is_json", is_flag=True, help="Print it as data, for programs.")
def graph_command(*, file: Path, name: str | None, svg_file: Path | None, is_json: bool) -> None:
    """Check the graph in FILE, and draw it as text or SVG. Nothing runs."""
    graph = load_graph(file, name)
    try:
        graph.check()
    except GraphError as error:
        raise refuse_graph(error) from error
    if svg_file is not None:
        try:
            svg_file.write_text(graph.svg(), encoding="utf-8")
        except OSError as error:
            raise CommandRefused(f"--svg: {error}") from error
    if is_json:
        write(json_line(graph.to_dict()))
    elif svg_file is None:
        write(graph.draw().encode())


# ---- graph file ----------------------------------------------------------------------------------
# The graph in a Python file.


def load_graph(file: Path, name: str | None = None) -> Graph:
    """Run a file as a module and take its graph, by id if there are several."""
    found = _graphs(file, _module(file))
    if name is not None:
        if name not in found:
            raise CommandRefused(f"{file} has no graph {name!r}; it has {_listed(found)}")
        return found[name]
    if len(found) != 1:
        cure = "say which with --graph" if found else "make one: graph = Graph('orders')"
        raise CommandRefused(f"{file} has {_listed(found)}; {cure}")
    return next(iter(found.values()))


def refuse_graph(error: GraphError) -> CommandRefused:
    """Say all that is wrong with a graph, a line each."""
    for one in error.complaints:
        click.echo(f"  - {printable(one)}", err=True)
    return CommandRefused(str(error).partition(":\n")[0], EXIT_USAGE)


def _graphs(file: Path, module: ModuleType) -> dict[str, Graph]:
    found: dict[str, Graph] = {}
    for value in vars(module).values():
        if isinstance(value, Graph) and found.setdefault(value.id, value) is not value:
            raise CommandRefused(
                f"{file} has two graphs called {value.id!r}; give each one its own id"
            )
    return found


def _listed(found: dict[str, Graph]) -> str:
    return ", ".join(found) or "no graph"


def _module(file: Path) -> ModuleType:
    """Import the file; what stands beside it can be imported by it."""
    name = file.stem
    spec = spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise CommandRefused(f"{file} is no Python file; its name must end in .py")
    module = module_from_spec(spec)
    sys.path.insert(0, str(file.resolve().parent))
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except GraphError as error:
        raise refuse_graph(error) from error
    except (Exception, SystemExit) as error:
        raise CommandRefused(f"{file} cannot be run: {type(error).__name__}: {error}") from error
    return module


# ---- trace ---------------------------------------------------------------------------------------
# `semel trace`: what became of each step of a graph.


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
def trace_command(
    client: Client, *, graph: str, processor: str | None, count: int, is_json: bool
) -> None:
    """Show the last steps of GRAPH, or of one PROCESSOR of it: ranges, hash, outcome, outputs."""
    try:
        found = trace_of(client, graph, processor)[-count:]
    except StreamNotFound as error:
        raise CommandRefused(
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


def _cells(one: TracedStep) -> tuple[str, ...]:
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


def _outputs(one: TracedStep) -> str:
    if one.outputs is not None:
        return ", ".join(
            f"{path} {_short(first)}..{_short(end)}" for path, (first, end) in one.outputs.items()
        )
    return ", ".join(f"{path} {count} at ?" for path, count in one.written.items())


def _short(offset: str) -> str:
    return str(int(offset.rpartition("_")[2]))
