"""`semel graph` draws a pipeline graph, `semel trace` shows its last steps."""

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
from semel.cli.output import json_line, printable, write_stdout
from semel.client.errors import StreamNotFound
from semel.client.sync.client import Client
from semel.pipeline.graph.graph import Graph
from semel.pipeline.trace import TracedStep, trace_of
from semel.pipeline.values import GraphError

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("graph")
@click.argument("file", type=_FILE)
@click.option("--graph", "name", help="Id of the graph, if the file has several.")
@click.option(
    "--svg", "svg_file", type=click.Path(dir_okay=False, path_type=Path), help="Write an SVG file."
)
@click.option("--json", "is_json", is_flag=True, help="Print JSON, for programs.")
def graph_command(*, file: Path, name: str | None, svg_file: Path | None, is_json: bool) -> None:
    """Validate the graph in FILE, and draw it as text or SVG. Does not run it."""
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
        write_stdout(json_line(graph.to_dict()))
    elif svg_file is None:
        write_stdout(graph.draw().encode())


def load_graph(file: Path, name: str | None = None) -> Graph:
    """Run a file as a module and return its graph, by id if there are several.

    Raises CommandRefused if the file has no such graph or fails.
    """
    graphs = _graphs(file, _module(file))
    listed = ", ".join(graphs) or "no graph"
    if name is not None:
        if name not in graphs:
            raise CommandRefused(f"{file} has no graph {name!r}; it has {listed}")
        return graphs[name]
    if len(graphs) != 1:
        advice = "choose one with --graph" if graphs else "create one: graph = Graph('orders')"
        raise CommandRefused(f"{file} has {listed}; {advice}")
    return next(iter(graphs.values()))


def refuse_graph(error: GraphError) -> CommandRefused:
    """Print everything that is wrong with a graph, one line each; return the error to raise."""
    for complaint in error.complaints:
        click.echo(f"  - {printable(complaint)}", err=True)
    return CommandRefused(str(error).partition(":\n")[0], EXIT_USAGE)


def _graphs(file: Path, module: ModuleType) -> dict[str, Graph]:
    graphs: dict[str, Graph] = {}
    for value in vars(module).values():
        if isinstance(value, Graph) and graphs.setdefault(value.id, value) is not value:
            raise CommandRefused(
                f"{file} has two graphs with the id {value.id!r}; each graph needs its own id"
            )
    return graphs


def _module(file: Path) -> ModuleType:
    """Import the file; it can import modules of its own directory."""
    name = file.stem
    spec = spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise CommandRefused(f"{file} is not a Python file; its name must end in .py")
    module = module_from_spec(spec)
    sys.path.insert(0, str(file.resolve().parent))
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except GraphError as error:
        raise refuse_graph(error) from error
    except (Exception, SystemExit) as error:
        raise CommandRefused(f"{file} failed: {type(error).__name__}: {error}") from error
    return module


# ---- trace ---------------------------------------------------------------------------------------


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
    help="Number of steps to show, the newest.",
)
@remote
def trace_command(
    client: Client, *, graph: str, processor: str | None, count: int, is_json: bool
) -> None:
    """Show the last steps of GRAPH, or of one PROCESSOR of it: ranges, hash, outcome, outputs."""
    try:
        steps = trace_of(client, graph, processor)[-count:]
    except StreamNotFound as error:
        raise CommandRefused(
            f"graph {graph} has no trace; `semel run` creates it", EXIT_REFUSED
        ) from error
    if is_json:
        for step in steps:
            write_stdout(json_line(step))
        return
    table = Table(box=None, pad_edge=False)
    for head in ("processor", "step", "outcome", "inputs", "outputs", "ms", "hash"):
        table.add_column(head)
    for step in steps:
        table.add_row(*[Text(printable(cell), overflow="fold") for cell in _cells(step)])
    # Lines are wrapped on a terminal only.
    Console(highlight=False, width=None if sys.stdout.isatty() else _PAPER_WIDTH).print(table)


def _cells(step: TracedStep) -> tuple[str, ...]:
    inputs = ", ".join(
        f"{path} {_short(start)}..{_short(to)}" for path, _, start, to in step.ranges
    )
    return (
        step.processor,
        str(step.number),
        step.outcome,
        inputs,
        _outputs(step),
        f"{step.milliseconds:g}",
        step.hash[:_HASH_CHARS],
    )


def _outputs(step: TracedStep) -> str:
    if step.outputs is not None:
        return ", ".join(
            f"{path} {_short(first)}..{_short(end)}" for path, (first, end) in step.outputs.items()
        )
    return ", ".join(f"{path} {count} at ?" for path, count in step.written.items())


def _short(offset: str) -> str:
    return str(int(offset.rpartition("_")[2]))
