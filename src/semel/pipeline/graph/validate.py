"""Whether a graph makes sense: each complaint names the processor, the mistake and the cure. Pure.

What only the server knows, such as whether a stream is there, `preparing` asks for.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from semel.pipeline.graph import signatures, topology
from semel.pipeline.graph.processors import (
    AT_MOST_ONCE,
    STRATEGIES,
    FunctionKind,
    Processor,
    Role,
)
from semel.pipeline.trace import trace_stream
from semel.wire.paths import stream_path, stream_url
from semel.wire.problems import Problem

if TYPE_CHECKING:
    from semel.pipeline.graph.graph import Graph

_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~-]{0,99}")
_ID_WORDS: Final = "letters, digits and . _ ~ -, at most 100, the first a letter or digit"


def graph_problems(graph: "Graph") -> Iterator[str]:
    """Say all that is wrong with a graph, before anything starts."""
    if not _is_id(graph.id):
        yield f"the id of a graph is {_ID_WORDS}; {graph.id!r} is not"
    if graph.strategy not in STRATEGIES:
        yield f"there is no strategy {graph.strategy!r}; use {' or '.join(STRATEGIES)}"
    if graph.errors is not None:
        yield from _bad_path("the graph", graph.errors)
    if not graph.processors:
        yield "it has no processors; add some with @graph.source, @graph.stream and @graph.sink"
    for id, count in Counter(one.id for one in graph.processors).items():
        if count > 1:
            yield f"{id}: {count} processors have this id; give each one its own"
    for one in graph.processors:
        yield from (f"{one.id}: {complaint}" for complaint in _of_processor(graph, one))
    circle = topology.cycle(graph) if _has_own_ids(graph) else None
    if circle is not None:
        yield (
            f"{circle[0]}: these processors feed each other in a circle: {' -> '.join(circle)};"
            " let one of them write to another stream, or put it into a graph of its own"
        )


def _of_processor(graph: "Graph", one: Processor) -> Iterator[str]:
    if not _is_id(one.id):
        yield f"the id of a processor is {_ID_WORDS}"
    if one.strategy is not None and one.strategy not in STRATEGIES:
        yield f"there is no strategy {one.strategy!r}; use {' or '.join(STRATEGIES)}"
    wrong = list(_of_streams(graph, one))
    yield from wrong
    yield from _of_filters(one)
    if wrong:
        return  # the function would be compared with what makes no sense
    wrong = list(signatures.signature_problems(one))
    yield from wrong or _of_kind(graph, one)


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
        yield f"its error stream {errors} is one of its outputs; name another with errors="
    named = [*one.inputs.values(), *one.outputs.values()]
    for path in dict.fromkeys([*named, *([] if errors is None else [errors])]):
        yield from _bad_path("it", path)
        if path == trace_stream(graph.id):
            yield f"{path} is where the graph keeps its trace; use another stream"


def _of_inputs(one: Processor) -> Iterator[str]:
    if one.in_.streams and one.alts.streams:
        yield "it has in_= and alts=; use in_ to join all of them, alts to take whichever comes"
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
                known = ", ".join(one.inputs) or "none"
                yield f"{name}= names {binding!r}, which is no input of it; those are {known}"


def _of_kind(graph: "Graph", one: Processor) -> Iterator[str]:
    kind = signatures.kind_of(one)
    if one.stateful and graph.strategy_of(one) == AT_MOST_ONCE:
        yield "a stateful processor is exactly-once; drop stateful=True or the strategy"
    if one.stateful and kind is not FunctionKind.DATAFRAME:
        yield "a stateful processor works on DataFrames; annotate its parameter so"
    if kind is FunctionKind.ARROW and one.is_join and (one.types or one.topics):
        yield "a join of Arrow batches has no filters: filter the streams before, or by message"
    if kind is FunctionKind.ARROW and signatures.takes_binding(one.function):
        yield "a batch of alternatives has messages of several inputs, so no binding"


def _bad_path(what: str, path: object) -> Iterator[str]:
    if not isinstance(path, str):
        yield f"{what} names the stream {path!r}; a stream's name is a text"
        return
    try:
        found = stream_path(stream_url("", path))
    except UnicodeEncodeError:
        yield f"{what} names the stream {path!r}, which is not UTF-8"
        return
    if isinstance(found, Problem):
        yield f"{what} names the stream {path!r}: {found.message}"


def _is_id(id: object) -> bool:
    return isinstance(id, str) and _ID.fullmatch(id) is not None


def _has_own_ids(graph: "Graph") -> bool:
    return len({one.id for one in graph.processors}) == len(graph.processors)
