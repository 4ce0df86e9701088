"""`semel graph`: a picture of a graph."""

from pathlib import Path

import click

from semel.cli.exits import Refused
from semel.cli.graph_file import load_graph, refuse
from semel.cli.shown import json_line, write
from semel.pipeline.problems import GraphError

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("graph")
@click.argument("file", type=_FILE)
@click.option("--graph", "name", help="Which graph, if the file has several.")
@click.option(
    "--svg", "svg_file", type=click.Path(dir_okay=False, path_type=Path), help="Draw it here."
)
@click.option("--json", "is_json", is_flag=True, help="Print it as data, for programs.")
def command(*, file: Path, name: str | None, svg_file: Path | None, is_json: bool) -> None:
    """Check the graph in FILE, and draw it as text or SVG. Nothing runs."""
    graph = load_graph(file, name)
    try:
        graph.check()
    except GraphError as error:
        raise refuse(error) from error
    if svg_file is not None:
        try:
            svg_file.write_text(graph.svg(), encoding="utf-8")
        except OSError as error:
            raise Refused(f"--svg: {error}") from error
    if is_json:
        write(json_line(graph.to_dict()))
    elif svg_file is None:
        write(graph.draw().encode())
