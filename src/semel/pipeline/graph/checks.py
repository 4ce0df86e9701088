"""Checks of a graph and its processors before the start. No I/O.

A complaint says what is wrong and how to fix it. Conditions that depend on the server are checked
when the graph starts. An example is whether a stream exists.
"""

import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

import msgspec

from semel.model.limits import KIB
from semel.model.messages import is_json
from semel.pipeline.graph import topology
from semel.pipeline.graph.processors import (
    AT_MOST_ONCE,
    BINDING,
    CURSOR,
    OPTS,
    STRATEGIES,
    FunctionKind,
    Parameters,
    Processor,
    Role,
    hint_of,
    is_required,
    kind_from,
    kind_of,
    listed,
    parameters_of,
    takes,
    takes_binding,
    takes_opts,
)
from semel.pipeline.trace import trace_stream
from semel.pipeline.values import GraphError
from semel.wire.headers import read_instant
from semel.wire.paths import stream_path, stream_url
from semel.wire.problems import MalformedRequest, Problem

if TYPE_CHECKING:
    from semel.pipeline.graph.graph import Graph

DEFAULT: Final = "default"  # the key of `streams` whose options hold for every stream


def graph_problems(graph: "Graph") -> Iterator[str]:
    """Yield one complaint for each thing that is wrong with a graph."""
    if not is_id(graph.id):
        yield f"the id of the graph is {graph.id!r}; expected {ID_FORMAT}"
    yield from strategy_problems(graph.strategy)
    if graph.errors is not None:
        yield from path_problems("the graph", graph.errors)
    yield from _source_option_problems(graph)
    yield from _stream_option_problems(graph)
    if not graph.processors:
        yield "the graph has no processors; add @graph.source, @graph.stream and @graph.sink"
    counts = Counter(processor.id for processor in graph.processors)
    for id, count in counts.items():
        if count > 1:
            yield f"{id}: {count} processors have this id; give each processor a different id"
    for processor in graph.processors:
        complaints = processor_problems(graph, processor)
        yield from (f"{processor.id}: {complaint}" for complaint in complaints)
    circle = topology.cycle(graph) if len(counts) == len(graph.processors) else None
    if circle is not None:
        yield (
            f"{circle[0]}: the processors {' -> '.join(circle)} form a cycle;"
            " let one of them write to a different stream, or move one to another graph"
        )


# ---- streams of the graph ------------------------------------------------------------------------


def _is_instant(value: Any) -> bool:
    try:
        return isinstance(value, str) and read_instant({"time": value}, "time") is not None
    except MalformedRequest:
        return False


_OPTIONS: Final[Mapping[str, tuple[str, Callable[[Any], bool]]]] = {
    "content_type": ("a JSON media type", lambda v: isinstance(v, str) and is_json(v)),
    "ttl": ("a number of seconds, 0 or more", lambda v: type(v) is int and v >= 0),
    "expires_at": ("a time such as 2030-01-31T12:00:00Z", _is_instant),
    "dedup": ("true or false", lambda v: isinstance(v, bool)),
}


def _source_option_problems(graph: "Graph") -> Iterator[str]:
    if graph.default_source is None:
        return
    sources = [p.id for p in graph.processors if p.role is Role.SOURCE]
    if graph.default_source not in sources:
        yield (
            f"the default source is {graph.default_source!r}; the graph's sources are:"
            f" {', '.join(sources) or 'none'}"
        )


def _stream_option_problems(graph: "Graph") -> Iterator[str]:
    created = [*topology.writers(graph), trace_stream(graph.id)]
    given: dict[str, Any] = dict(graph.streams)
    are_valid = all(isinstance(options, Mapping) for options in given.values())
    for path, options in given.items():
        what = f"streams={{{path!r}: ...}}"
        if path != DEFAULT and path not in created:
            near = get_close_matches(str(path), created, 1)
            advice = f"; did you mean {near[0]!r}?" if near else ""
            yield f"{what}: no processor of the graph writes to this stream{advice}"
        elif path == DEFAULT and DEFAULT in created:
            yield f"{what} is for all streams, and a stream is called {path}; rename the stream"
        if not isinstance(options, Mapping):
            yield f"{what} is {options!r}; expected a dict of options"
            continue
        for name, value in options.items():
            if name not in _OPTIONS:
                yield f"{what}: unknown option {name!r}; the options are {', '.join(_OPTIONS)}"
            elif value is not None and not _OPTIONS[name][1](value):
                yield f"{what}: {name!r} is {value!r}; expected {_OPTIONS[name][0]}"
        merged = graph.options_of(path) if are_valid else {}
        if merged.get("ttl") is not None and merged.get("expires_at") is not None:
            yield f"{what} has both 'ttl' and 'expires_at'; use one of them"


# ---- processors ----------------------------------------------------------------------------------


_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~-]{0,99}")
ID_FORMAT: Final = "a letter or a digit, then at most 99 letters, digits or . _ ~ -"


_OPTS_BYTES_MAX: Final = 64 * KIB


def processor_problems(graph: "Graph", processor: Processor) -> Iterator[str]:
    """Yield one complaint for each thing that is wrong with a processor."""
    if not is_id(processor.id):
        yield f"the processor's id is not valid; expected {ID_FORMAT}"
    if processor.strategy is not None:
        yield from strategy_problems(processor.strategy)
    complaints = [*_role_problems(processor), *_stream_problems(graph, processor)]
    yield from complaints
    for name, accepted in (("types", processor.types), ("topics", processor.topics)):
        for binding in accepted:
            if binding not in processor.inputs:
                inputs = ", ".join(processor.inputs) or "none"
                yield f"{name}= has the unknown key {binding!r}; the inputs are: {inputs}"
    if complaints:
        return  # the function cannot be checked against invalid streams
    complaints = list(_signature_problems(processor)) or list(_opts_problems(processor))
    yield from complaints or _kind_problems(graph, processor)


def strategy_problems(strategy: str) -> Iterator[str]:
    if strategy not in STRATEGIES:
        yield f"there is no strategy {strategy!r}; use {' or '.join(STRATEGIES)}"


def is_id(id: object) -> bool:
    """Return True if `id` is valid as the id of a graph or a processor."""
    return isinstance(id, str) and _ID.fullmatch(id) is not None


def path_problems(what: str, path: object) -> Iterator[str]:
    """Yield a complaint if `path` is not a valid stream path. The complaint begins with `what`."""
    if not isinstance(path, str):
        yield f"{what} has the stream {path!r}, which is not a string"
        return
    try:
        checked = stream_path(stream_url("", path))
    except UnicodeEncodeError:
        yield f"{what} has the stream {path!r}, a name that UTF-8 cannot encode"
        return
    if isinstance(checked, Problem):
        yield f"{what} has the invalid stream {path!r}: {checked.message}"


def _role_problems(processor: Processor) -> Iterator[str]:
    if processor.role is Role.SOURCE:
        if processor.inputs:
            yield "a source cannot read a stream; declare the processor with @graph.stream"
        if len(processor.outputs) != 1:
            yield "a source must write to exactly one stream, for example out='orders'"
    elif processor.in_.streams and processor.alts.streams:
        yield "the processor has both in_= and alts=; use in_= to join, or alts= to merge streams"
    elif not processor.inputs:
        yield "the processor reads no stream; set one stream with in_= or several with alts="
    if processor.role is Role.STREAM and not processor.outputs:
        yield "the processor has no out=; if it writes to no stream, declare it with @graph.sink"
    if processor.role is Role.SINK and processor.outputs:
        yield "a sink cannot write to a stream; declare the processor with @graph.stream"


def _stream_problems(graph: "Graph", processor: Processor) -> Iterator[str]:
    bound = {"in_": processor.in_, "alts": processor.alts, "out": processor.out}
    for name, (streams, _) in bound.items():
        for path, count in Counter(streams.values()).items():
            if count > 1:
                yield f"{name}= has the stream {path} {count} times; use each stream only once"
    errors = graph.errors_of(processor)
    if errors is not None and errors in processor.outputs.values():
        yield f"the error stream {errors} is also an output; set a different stream with errors="
    named = [*processor.inputs.values(), *processor.outputs.values()]
    for path in dict.fromkeys([*named, *([] if errors is None else [errors])]):
        yield from path_problems("the processor", path)
        if path == trace_stream(graph.id):
            yield f"the stream {path} is reserved for the graph's trace; use a different stream"


def _kind_problems(graph: "Graph", processor: Processor) -> Iterator[str]:
    kind = kind_of(processor)
    if processor.stateful and graph.strategy_of(processor) == AT_MOST_ONCE:
        yield "a stateful processor cannot be at-most-once; use exactly-once or stateful=False"
    if processor.stateful and kind is not FunctionKind.DATAFRAME:
        yield "a stateful processor must accept a DataFrame; annotate the parameter with DataFrame"
    if processor.role is Role.STREAM and kind is not FunctionKind.MESSAGE:
        yield from _many_problems(processor, kind)
    if kind is not FunctionKind.ARROW:
        return
    if processor.is_join and (processor.types or processor.topics):
        yield (
            "a join of Arrow batches cannot have filters; filter the messages in an earlier"
            " processor, or use a function that accepts messages"
        )
    if takes_binding(processor.function):
        yield "remove the parameter 'binding'; an Arrow batch can mix messages of several bindings"


def _many_problems(processor: Processor, kind: FunctionKind) -> Iterator[str]:
    name = "RecordBatch" if kind is FunctionKind.ARROW else "DataFrame"
    if inspect.isgeneratorfunction(processor.function):
        yield (
            f"the function yields, but a function that accepts a {name} must return a {name};"
            " return one with any number of rows, or accept messages"
        )
    if processor.many:
        yield f"remove many=True; a {name} can have any number of rows, each is one message"


# ---- functions -----------------------------------------------------------------------------------


def _signature_problems(processor: Processor) -> Iterator[str]:
    function: Any = processor.function
    if not callable(function):
        yield f"{function!r} is not callable; pass a function"
        return
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        yield "the function is async, but a processor cannot run async functions; use a plain def"
        return
    try:
        parameters = parameters_of(function)
    except (TypeError, ValueError):
        yield f"Python cannot read the parameters of {function!r}; wrap the function in a def"
        return
    if takes_opts(processor):
        parameters = [parameter for parameter in parameters if parameter.name != OPTS]
    if processor.role is Role.SOURCE:
        yield from _source_problems(function, parameters)
    elif processor.role is Role.SINK:
        if inspect.isgeneratorfunction(function):
            yield "a sink must not yield, because the function would never run; remove the yield"
        if not takes(parameters, 2):
            yield f"a sink must have the parameters (df, delivery), not {listed(parameters)}"
    else:
        yield from _transform_problems(processor, parameters)


def _opts_problems(processor: Processor) -> Iterator[str]:
    if processor.many and processor.role is not Role.STREAM:
        yield f"a {processor.role} cannot have many=; only a processor with outputs can"
    opts: Any = processor.opts
    if not isinstance(opts, Mapping):
        yield f"opts= is {opts!r}; expected a dict"
        return
    if not opts:
        return
    if processor.is_join and OPTS in processor.inputs:
        yield f"opts= cannot be passed, because an input is called {OPTS!r}; rename the input"
    elif not takes_opts(processor):
        yield f"opts= is set, but the function has no parameter {OPTS!r}; add the parameter"
    try:
        size = len(msgspec.json.encode(dict(opts)))
    except (TypeError, ValueError, OverflowError) as error:
        yield f"opts= cannot be represented as JSON: {error}; use strings, numbers, lists and dicts"
        return
    if size > _OPTS_BYTES_MAX:
        yield f"opts= has {size:,} bytes; the maximum is {_OPTS_BYTES_MAX:,}"


def _source_problems(function: Callable[..., Any], parameters: Parameters) -> Iterator[str]:
    if not inspect.isgeneratorfunction(function):
        yield "a source must be a generator function that yields messages"
    if [p.name for p in parameters if is_required(p)] not in ([], [CURSOR]):
        yield (
            f"a source must have no parameters, or only ({CURSOR}) if the source yields pairs"
            f" ({CURSOR}, message); this source has the parameters {listed(parameters)}"
        )


def _transform_problems(processor: Processor, parameters: Parameters) -> Iterator[str]:
    if processor.is_join:
        required = {p.name for p in parameters if is_required(p)}
        if set(processor.inputs) != required or any(
            p.kind is p.POSITIONAL_ONLY for p in parameters
        ):
            names = ", ".join(processor.inputs)
            yield (
                f"the parameters {listed(parameters)} do not match the inputs of this join;"
                f" use the keys of in_= as parameters: ({names})"
            )
            return
    elif not takes(parameters, 1) and not (
        processor.is_alternatives and takes_binding(processor.function) and takes(parameters, 2)
    ):
        more = f" or (message, {BINDING})" if processor.is_alternatives else ""
        yield f"the function must have the parameters (message){more}, not {listed(parameters)}"
        return
    hints = [hint_of(processor.function, p) for p in parameters if p.name != BINDING]
    if len(set(map(kind_from, hints))) > 1:
        yield "the parameters are annotated with different types; annotate all with the same type"


# ---- data ----------------------------------------------------------------------------------------


def is_optional_text(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _is_streams(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(text, str) for pair in value.items() for text in pair)
    return is_optional_text(value) or _is_texts(value)


def _is_words(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(words, str) or _is_texts(words) for words in value.values())
    return is_optional_text(value) or _is_texts(value)


def _is_texts(value: Any) -> bool:
    is_several = isinstance(value, list | tuple | set | frozenset)
    return is_several and all(isinstance(text, str) for text in value)


# For each key of a processor: the function that checks the value, and what the value should be.
# Without this check, the user would get a TypeError that does not name the key.
_SHAPES: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    **dict.fromkeys(("in", "alts", "out"), (_is_streams, "a stream or a dict {binding: stream}")),
    **dict.fromkeys(
        ("types", "topics"),
        (_is_words, "a string, a list of strings, or a mapping from each binding to one of these"),
    ),
    **dict.fromkeys(("role", "errors", "strategy"), (is_optional_text, "a string")),
    **dict.fromkeys(("stateful", "many"), (lambda value: isinstance(value, bool), "true or false")),
    "opts": (lambda value: isinstance(value, Mapping), "a dict"),
}


def shape_problems(data: Mapping[str, Any]) -> Iterator[str]:
    """Yield a complaint for each key of a processor, as data, whose value has the wrong type."""
    for key, (is_valid, expected) in _SHAPES.items():
        if key in data and not is_valid(data[key]):
            yield f"{key!r} is {data[key]!r}; expected {expected}"


def refuse_unknown(graph: str, what: str, data: Mapping[str, Any], allowed: frozenset[str]) -> None:
    """Raise GraphError if `data` has a key that is not allowed."""
    for key in data:
        if key not in allowed:
            near = get_close_matches(str(key), allowed, 1)
            advice = f"did you mean {near[0]!r}?" if near else f"expected {sorted(allowed)}"
            raise GraphError(graph, [f"{what}: unknown key {key!r}; {advice}"])
