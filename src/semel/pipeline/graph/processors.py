"""Processors: their functions, their input and output streams, and their validation. No I/O."""

import inspect
import re
import typing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec import UNSET, Struct, UnsetType

from semel.pipeline.trace import trace_stream
from semel.wire.paths import stream_path, stream_url
from semel.wire.problems import Problem

if TYPE_CHECKING:
    from semel.pipeline.graph.graph import Graph

EXACTLY_ONCE: Final = "exactly-once"
AT_MOST_ONCE: Final = "at-most-once"
STRATEGIES: Final = (EXACTLY_ONCE, AT_MOST_ONCE)

IN: Final = "in"
OUT: Final = "out"

# One stream, a list of streams (the path is the binding), or a mapping from bindings to streams.
Streams = str | Sequence[str] | Mapping[str, str]
# The types or topics that a processor accepts, either for all inputs or keyed by binding.
Words = str | Iterable[str] | Mapping[str, str | Iterable[str]]


class Role(StrEnum):
    """The role of a processor.

    A source brings messages into the graph, a stream transforms them, and a sink writes them to
    another system.
    """

    SOURCE = "source"
    STREAM = "stream"
    SINK = "sink"


class FunctionKind(StrEnum):
    """The type of input that a function takes. With ANY, the engine chooses the type."""

    MESSAGE = "message"
    ARROW = "arrow"
    DATAFRAME = "dataframe"
    ANY = "any"


class Bindings(NamedTuple):
    """A mapping from bindings to streams. A binding is the name that a function uses for a stream.

    `is_one` is True if a single stream was declared, without a binding.
    """

    streams: dict[str, str] = {}  # noqa: RUF012 - never changed
    is_one: bool = False


class Processor(Struct, frozen=True):
    """One processor, as it was declared. `processor_problems` checks the declaration."""

    id: str
    role: Role
    function: Callable[..., Any]
    in_: Bindings = Bindings()
    alts: Bindings = Bindings()
    out: Bindings = Bindings()
    types: Mapping[str, frozenset[str]] = {}
    topics: Mapping[str, frozenset[str]] = {}
    errors: str | UnsetType | None = UNSET
    strategy: str | None = None
    stateful: bool = False

    @property
    def inputs(self) -> dict[str, str]:
        """The streams that the processor reads, keyed by binding, in the order of declaration."""
        return self.in_.streams or self.alts.streams

    @property
    def outputs(self) -> dict[str, str]:
        """The streams that the processor writes to, keyed by binding, in the order of declaration.

        The error stream is not included.
        """
        return self.out.streams

    @property
    def is_alternatives(self) -> bool:
        """True if the inputs are alternatives: each call gets one message from one input."""
        return bool(self.alts.streams)

    @property
    def is_join(self) -> bool:
        """True if the processor is a join: each call gets one message from every input."""
        return bool(self.in_.streams) and not self.in_.is_one


def declared(
    id: str,
    role: Role,
    function: Callable[..., Any],
    *,
    in_: Streams | None = None,
    alts: Streams | None = None,
    out: Streams | None = None,
    types: Words | None = None,
    topics: Words | None = None,
    **options: Any,
) -> Processor:
    """Return a processor. Its streams and filters are converted to dicts keyed by binding."""
    joined, alternatives = _bindings(in_, IN), _bindings(alts, IN)
    read = {**joined.streams, **alternatives.streams}
    return Processor(
        id,
        role,
        function,
        in_=joined,
        alts=alternatives,
        out=_bindings(out, OUT),
        types=_filters(types, read),
        topics=_filters(topics, read),
        **options,
    )


def _bindings(streams: Streams | None, name: str) -> Bindings:
    """Return `streams` as bindings. A single stream gets the binding `name`."""
    if not streams:
        return Bindings()
    if isinstance(streams, str):
        return Bindings({name: streams}, is_one=True)
    if isinstance(streams, Mapping):
        return Bindings(dict(streams))
    return Bindings({path: path for path in streams})


def _filters(words: Words | None, inputs: Iterable[str]) -> dict[str, frozenset[str]]:
    """Return a mapping from each binding to the types or topics that it accepts."""
    if not words:
        return {}
    if isinstance(words, Mapping):
        return {binding: _set(value) for binding, value in words.items()}
    return dict.fromkeys(inputs, _set(words))


def _set(value: str | Iterable[str]) -> frozenset[str]:
    return frozenset([value] if isinstance(value, str) else value)


# ---- functions -----------------------------------------------------------------------------------
# The parameters of a function and their annotations determine what input the function gets.
# Annotations are compared by name, because Arrow and Spark need not be installed.


_KINDS: Final = {"RecordBatch": FunctionKind.ARROW, "DataFrame": FunctionKind.DATAFRAME}
CURSOR: Final = "cursor"
BINDING: Final = "binding"
_POSITIONAL: Final = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)


Parameters = list[inspect.Parameter]


def parameters_of(function: Callable[..., Any]) -> Parameters:
    return list(inspect.signature(function).parameters.values())


def kind_of(processor: Processor) -> FunctionKind:
    """Return the kind of input that a processor's function expects.

    The annotation of the first parameter determines the kind. Without an annotation, the kind is
    ANY for a sink, and MESSAGE for any other processor.
    """
    parameters = parameters_of(processor.function)
    if processor.role is Role.SOURCE or not parameters:
        return FunctionKind.MESSAGE
    hint = _hint(processor.function, parameters[0])
    if hint is inspect.Parameter.empty and processor.role is Role.SINK:
        return FunctionKind.ANY
    return _kind(hint)


def takes_cursor(function: Callable[..., Any]) -> bool:
    """Return True if a source's function has a parameter `cursor`."""
    return any(parameter.name == CURSOR for parameter in parameters_of(function))


def takes_binding(function: Callable[..., Any]) -> bool:
    """Return True if the second parameter of a function is named `binding`.

    In a processor with alternatives, each call of such a function also gets the message's binding.
    """
    return [parameter.name for parameter in parameters_of(function)][1:2] == [BINDING]


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
    if processor.role is Role.SOURCE:
        yield from _source_problems(function, parameters)
    elif processor.role is Role.SINK:
        if not _takes(parameters, 2):
            yield f"a sink must have the parameters (df, delivery), not {_listed(parameters)}"
    else:
        yield from _transform_problems(processor, parameters)


def _source_problems(function: Callable[..., Any], parameters: Parameters) -> Iterator[str]:
    if not inspect.isgeneratorfunction(function):
        yield "a source must be a generator function that yields messages"
    if [p.name for p in parameters if _is_required(p)] not in ([], [CURSOR]):
        yield (
            f"a source must have no parameters, or only ({CURSOR}) if the source yields pairs"
            f" ({CURSOR}, message); this source has the parameters {_listed(parameters)}"
        )


def _transform_problems(processor: Processor, parameters: Parameters) -> Iterator[str]:
    if processor.is_join:
        required = {p.name for p in parameters if _is_required(p)}
        if set(processor.inputs) != required or any(
            p.kind is p.POSITIONAL_ONLY for p in parameters
        ):
            names = ", ".join(processor.inputs)
            yield (
                f"the parameters {_listed(parameters)} do not match the inputs of this join;"
                f" use the keys of in_= as parameters: ({names})"
            )
            return
    elif not _takes(parameters, 1) and not (
        processor.is_alternatives and takes_binding(processor.function) and _takes(parameters, 2)
    ):
        more = f" or (message, {BINDING})" if processor.is_alternatives else ""
        yield f"the function must have the parameters (message){more}, not {_listed(parameters)}"
        return
    hints = [_hint(processor.function, p) for p in parameters if p.name != BINDING]
    if len(set(map(_kind, hints))) > 1:
        yield "the parameters are annotated with different types; annotate all with the same type"


def _takes(parameters: Parameters, count: int) -> bool:
    """Return True if a function can be called with exactly `count` positional arguments."""
    if any(p.kind is p.KEYWORD_ONLY and p.default is p.empty for p in parameters):
        return False
    positional = [p for p in parameters if p.kind in _POSITIONAL]
    required = sum(p.default is p.empty for p in positional)
    has_rest = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    return required <= count and (has_rest or len(positional) >= count)


def _is_required(parameter: inspect.Parameter) -> bool:
    is_rest = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return parameter.default is parameter.empty and not is_rest


def _listed(parameters: Parameters) -> str:
    return f"({', '.join(parameter.name for parameter in parameters)})"


def _hint(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    try:
        hints = typing.get_type_hints(function)
    except Exception:  # noqa: BLE001 - undefined names raise; then the text is used
        hints = {}
    return hints.get(parameter.name, parameter.annotation)


def _kind(hint: Any) -> FunctionKind:
    text = hint if isinstance(hint, str) else getattr(hint, "__name__", "")
    return _KINDS.get(text.strip("'\"").rpartition(".")[2], FunctionKind.MESSAGE)


# ---- checks --------------------------------------------------------------------------------------
# A complaint says what is wrong and how to fix it. Conditions that depend on the server are checked
# when the graph starts. An example is whether a stream exists.


_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~-]{0,99}")
ID_FORMAT: Final = "a letter or a digit, then at most 99 letters, digits or . _ ~ -"


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
    complaints = list(_signature_problems(processor))
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
        yield "a stateful processor must take a DataFrame; annotate the parameter with DataFrame"
    if kind is not FunctionKind.ARROW:
        return
    if processor.is_join and (processor.types or processor.topics):
        yield (
            "a join of Arrow batches cannot have filters; filter the messages in an earlier"
            " processor, or use a function that takes messages"
        )
    if takes_binding(processor.function):
        yield "remove the parameter 'binding'; an Arrow batch can mix messages of several bindings"
