"""Graphs for tests, and the functions in them."""

from typing import Any

from semel.pipeline.graph.graph import Graph
from semel.pipeline.graph.processors import Streams


def same(message: Any) -> Any:
    return message


def numbers() -> Any:
    yield from range(3)


def pair(left: Any, right: Any) -> Any:
    return {"left": left, "right": right}


def deliver(df: Any, delivery: Any) -> None:
    del df, delivery


def three_stages(id: str = "shop", prefix: str = "") -> Graph:
    """Return a graph with a source, a fork, a join and a sink."""
    graph = Graph(id, errors=f"{prefix}errors")
    graph.source(f"{prefix}numbers", out=f"{prefix}n")(numbers)
    legs = {"left": f"{prefix}a", "right": f"{prefix}b"}
    graph.stream(f"{prefix}fork", in_=f"{prefix}n", out=legs)(same)
    graph.stream(f"{prefix}pair", in_=legs, out=f"{prefix}pairs")(pair)
    graph.sink(f"{prefix}store", in_=f"{prefix}pairs")(deliver)
    return graph


def chain(*links: tuple[str, Streams, Streams]) -> Graph:
    """Return a graph of processors, each given as id, input streams and output streams."""
    graph = Graph("chain")
    for id, read, written in links:
        graph.stream(id, alts=read, out=written)(same)
    return graph
