"""Finding an engine by its name. Each is imported when it is asked for, and not before."""

from importlib import import_module
from typing import Any, Final

from semel.pipeline import signatures
from semel.pipeline.executor import Executor
from semel.pipeline.graph import Graph
from semel.pipeline.problems import GraphError
from semel.pipeline.processors import Kind

LOCAL: Final = "local"
SPARK: Final = "spark"
ENGINES: Final = (SPARK, LOCAL)
_HOMES: Final = {
    LOCAL: ("semel.pipeline.local_engine", "LocalEngine"),
    SPARK: ("semel.pipeline.spark_engine", "SparkEngine"),
}


def engine_for(graph: Graph, *, master: str | None = None) -> str:
    """Choose: Spark for a graph that needs it, or where a master is named; else this process."""
    needs = any(
        one.stateful or signatures.kind_of(one) is Kind.DATAFRAME for one in graph.processors
    )
    return SPARK if needs or master is not None else LOCAL


def make_engine(name: str, graph: Graph, **options: Any) -> Executor:
    """Make an engine; GraphError if it is not installed."""
    if name not in _HOMES:
        raise GraphError(graph.id, [f"there is no engine {name!r}; use {' or '.join(ENGINES)}"])
    module, kind = _HOMES[name]
    try:
        found = getattr(import_module(module), kind)
    except ModuleNotFoundError as error:
        raise GraphError(
            graph.id,
            [f"the engine {name} needs {error.name}; install it: pip install semel[spark]"],
        ) from error
    given = {key: value for key, value in options.items() if value is not None}
    if given and name == LOCAL:
        raise GraphError(graph.id, [f"{' and '.join(given)} is for Spark; add --engine spark"])
    made: Executor = found(**given)
    return made
