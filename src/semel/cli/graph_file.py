"""The graph in a Python file."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import click

from semel.cli.exits import EXIT_USAGE, Refused
from semel.cli.text import printable
from semel.pipeline.graph import Graph
from semel.pipeline.problems import GraphError


def load_graph(file: Path, name: str | None = None) -> Graph:
    """Run a file as a module and take its graph, by id if there are several."""
    found = _graphs(file, _module(file))
    if name is not None:
        if name not in found:
            raise Refused(f"{file} has no graph {name!r}; it has {_listed(found)}")
        return found[name]
    if len(found) != 1:
        cure = "say which with --graph" if found else "make one: graph = Graph('orders')"
        raise Refused(f"{file} has {_listed(found)}; {cure}")
    return next(iter(found.values()))


def refuse(error: GraphError) -> Refused:
    """Say all that is wrong with a graph, a line each."""
    for one in error.complaints:
        click.echo(f"  - {printable(one)}", err=True)
    return Refused(str(error).partition(":\n")[0], EXIT_USAGE)


def _graphs(file: Path, module: ModuleType) -> dict[str, Graph]:
    found: dict[str, Graph] = {}
    for value in vars(module).values():
        if isinstance(value, Graph) and found.setdefault(value.id, value) is not value:
            raise Refused(f"{file} has two graphs called {value.id!r}; give each one its own id")
    return found


def _listed(found: dict[str, Graph]) -> str:
    return ", ".join(found) or "no graph"


def _module(file: Path) -> ModuleType:
    """Import the file; what stands beside it can be imported by it."""
    name = file.stem
    spec = spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise Refused(f"{file} is no Python file; its name must end in .py")
    module = module_from_spec(spec)
    sys.path.insert(0, str(file.resolve().parent))
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except GraphError as error:
        raise refuse(error) from error
    except (Exception, SystemExit) as error:
        raise Refused(f"{file} cannot be run: {type(error).__name__}: {error}") from error
    return module
