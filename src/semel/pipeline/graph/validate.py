"""The checks of a graph: a complaint names the processor, what is wrong and how to fix it. Pure.

What depends on the server, such as whether a stream exists, is checked when the graph is started.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from semel.pipeline.graph import topology
from semel.pipeline.graph.processors import (
    AT_MOST_ONCE,
    STRATEGIES,
    FunctionKind,
    Processor,
    Role,
    kind_of,
    signature_problems,
    takes_binding,
)
from semel.pipeline.trace import trace_stream
from semel.wire.paths import stream_path, stream_url
from semel.wire.problems import Problem

if TYPE_CHECKING:
    from semel.pipeline.graph.graph import Graph

_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~-]{0,99}")
_ID_FORMAT: Final = "letters, digits and . _ ~ -, at most 100, the first a letter or digit"


def graph_problems(graph: "Graph") -> Iterator[str]:
    """Yield everything that is wrong with a graph."""
    if not _is_id(graph.id):
        yield f"the id of the graph is {graph.id!r}; expected {_ID_FORMAT}"
    if graph.strategy not in STRATEGIES:
        yield f"there is no strategy {graph.strategy!r}; use {' or '.join(STRATEGIES)}"
    if graph.errors is not None:
        yield from _bad_path("the graph", graph.errors)
    if not graph.processors:
        yield "it has no processors; add some with @graph.source, @graph.stream and @graph.sink"
    for id, count in Counter(one.id for one in graph.processors).items():
        if count > 1:
            yield f"{id}: {count} processors have this id; each needs its own"
    for one in graph.processors:
        yield from (f"{one.id}: {complaint}" for complaint in _of_processor(graph, one))
    has_unique_ids = len({one.id for one in graph.processors}) == len(graph.processors)
    circle = topology.cycle(graph) if has_unique_ids else None
    if circle is not None:
        yield (
            f"{circle[0]}: these processors feed each other in a circle: {' -> '.join(circle)};"
            " let one of them write to another stream, or move it to a separate graph"
        )


def _of_processor(graph: "Graph", one: Processor) -> Iterator[str]:
    if not _is_id(one.id):
        yield f"its id is not valid; expected {_ID_FORMAT}"
    if one.strategy is not None and one.strategy not in STRATEGIES:
        yield f"there is no strategy {one.strategy!r}; use {' or '.join(STRATEGIES)}"
    complaints = list(_of_streams(graph, one))
    yield from complaints
    yield from _of_filters(one)
    if complaints:
        return  # the function cannot be compared with invalid streams
    complaints = list(signature_problems(one))
    yield from complaints or _of_kind(graph, one)


def _of_streams(graph: "Graph", one: Processor) -> Iterator[str]:
    if one.role is Role.SOURCE:
        if one.inputs:
            yield "a source reads no stream; make it a @graph.stream"
        if len(one.outputs) != 1:
            yield "a source writes to one stream: out='orders'"
    else:
        yield from _of_inputs(one)
    if one.role is Role.STREAM and not one.outputs:
        yield "it has no out=; a processor that writes to no stream is a @graph.sink"
    if one.role is Role.SINK and one.outputs:
        yield "a sink writes to no stream; make it a @graph.stream"
    yield from _doubles(one.outputs, "out")
    errors = graph.errors_of(one) if one.role is Role.STREAM else None
    if errors is not None and errors in one.outputs.values():
        yield f"its error stream {errors} is one of its outputs; choose another with errors="
    named = [*one.inputs.values(), *one.outputs.values()]
    for path in dict.fromkeys([*named, *([] if errors is None else [errors])]):
        yield from _bad_path("it", path)
        if path == trace_stream(graph.id):
            yield f"{path} is the stream for the trace of the graph; use another stream"


def _of_inputs(one: Processor) -> Iterator[str]:
    if one.in_.streams and one.alts.streams:
        yield "it has in_= and alts=; use in_ to join all of them, alts to accept any of them"
    elif not one.inputs:
        yield "it reads no stream; name one with in_= or several with alts="
    yield from _doubles(one.in_.streams, "in_")
    yield from _doubles(one.alts.streams, "alts")


def _doubles(streams: Mapping[str, str], where: str) -> Iterator[str]:
    for path, count in Counter(streams.values()).items():
        if count > 1:
            yield f"{where}= names {path} {count} times; every binding needs its own stream"


def _of_filters(one: Processor) -> Iterator[str]:
    for name, passing in (("types", one.types), ("topics", one.topics)):
        for binding in passing:
            if binding not in one.inputs:
                inputs = ", ".join(one.inputs) or "none"
                yield f"{name}= names {binding!r}, which is not one of its inputs: {inputs}"


def _of_kind(graph: "Graph", one: Processor) -> Iterator[str]:
    kind = kind_of(one)
    if one.stateful and graph.strategy_of(one) == AT_MOST_ONCE:
        yield "a stateful processor is exactly-once; remove stateful=True or the strategy"
    if one.stateful and kind is not FunctionKind.DATAFRAME:
        yield "a stateful processor works on DataFrames; annotate its parameter with DataFrame"
    if kind is FunctionKind.ARROW and one.is_join and (one.types or one.topics):
        yield (
            "a join of Arrow batches cannot have filters; filter in a processor before it, or use a"
            " function of messages"
        )
    if kind is FunctionKind.ARROW and takes_binding(one.function):
        yield "a batch of alternatives has messages of several inputs; remove the parameter binding"


def _bad_path(what: str, path: object) -> Iterator[str]:
    if not isinstance(path, str):
        yield f"{what} names the stream {path!r}; expected a string"
        return
    try:
        checked = stream_path(stream_url("", path))
    except UnicodeEncodeError:
        yield f"{what} names the stream {path!r}, which is not UTF-8"
        return
    if isinstance(checked, Problem):
        yield f"{what} names the stream {path!r}: {checked.message}"


def _is_id(id: object) -> bool:
    return isinstance(id, str) and _ID.fullmatch(id) is not None
