"""Processors: their functions, and their input and output streams. No I/O."""

import inspect
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import Any, Final, NamedTuple

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

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
    """One processor, as it was declared. `Graph.check` checks the declaration.

    If `many` is True, each item that the function returns is a message. `opts` are settings for
    the function.
    """

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
    many: bool = False
    opts: Mapping[str, Any] = {}

    @property
    def call(self) -> Callable[..., Any]:
        """The function. If it has a parameter `opts`, that parameter is set to `opts`."""
        if takes_opts(self):
            return partial(self.function, **{OPTS: dict(self.opts)})
        return self.function

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

    def bind(
        self,
        *,
        id: str | None = None,
        in_: str | Mapping[str, str] | None = None,
        alts: Mapping[str, str] | None = None,
        out: str | Mapping[str, str] | None = None,
        errors: str | UnsetType | None = UNSET,
    ) -> "Processor":
        """Return a copy of this processor with other streams, and with another id if `id` is set.

        A processor with one input or output has a path. Otherwise pass {binding: stream} for the
        bindings to change. Raises ValueError if the processor has no such binding.
        """
        return replace(
            self,
            id=self.id if id is None else id,
            in_=_rebound(self, "in_", self.in_, in_),
            alts=_rebound(self, "alts", self.alts, alts),
            out=_rebound(self, "out", self.out, out),
            errors=self.errors if errors is UNSET else errors,
        )


def sent_messages() -> Iterator[Any]:
    """Yield nothing. This is the function of a source to which programs send messages."""
    yield from ()


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
        types=filters_of(types, read),
        topics=filters_of(topics, read),
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


def _rebound(processor: Processor, name: str, bound: Bindings, streams: Any) -> Bindings:
    """Return `bound` with the paths in `streams` instead of its own."""
    if streams is None:
        return bound
    if not bound.streams:
        raise ValueError(f"the processor {processor.id} has no {name}= that can be bound")
    if bound.is_one:
        if isinstance(streams, str):
            return Bindings({next(iter(bound.streams)): streams}, is_one=True)
        raise ValueError(
            f"the processor {processor.id} has one stream in {name}=; bind it to a path, not to"
            f" {streams!r}"
        )
    if not isinstance(streams, Mapping) or not set(streams) <= set(bound.streams):
        raise ValueError(
            f"the processor {processor.id} has the bindings {', '.join(bound.streams)} in {name}=;"
            f" bind some of them with {{binding: stream}}, not with {streams!r}"
        )
    return Bindings({**bound.streams, **streams})


def filters_of(words: Words | None, inputs: Iterable[str]) -> dict[str, frozenset[str]]:
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
OPTS: Final = "opts"
_POSITIONAL: Final = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)
_NAMED: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)

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
    hint = hint_of(processor.function, parameters[0])
    if hint is inspect.Parameter.empty and processor.role is Role.SINK:
        return FunctionKind.ANY
    return kind_from(hint)


def takes_cursor(function: Callable[..., Any]) -> bool:
    """Return True if a source's function has a parameter `cursor`."""
    return any(parameter.name == CURSOR for parameter in parameters_of(function))


def takes_binding(function: Callable[..., Any]) -> bool:
    """Return True if the second parameter of a function is named `binding`.

    In a processor with alternatives, each call of such a function also gets the message's binding.
    """
    return [parameter.name for parameter in parameters_of(function)][1:2] == [BINDING]


def takes_opts(processor: Processor) -> bool:
    """Return True if a processor's function has a parameter `opts` that is not an input."""
    if processor.is_join:
        if OPTS in processor.inputs:
            return False
        inputs = 0
    else:
        inputs = {Role.SOURCE: 0, Role.STREAM: 1, Role.SINK: 2}[processor.role]
    return any(
        parameter.name == OPTS and parameter.kind in _NAMED
        for parameter in parameters_of(processor.function)[inputs:]
    )


def takes(parameters: Parameters, count: int) -> bool:
    """Return True if a function can be called with exactly `count` positional arguments."""
    if any(p.kind is p.KEYWORD_ONLY and p.default is p.empty for p in parameters):
        return False
    positional = [p for p in parameters if p.kind in _POSITIONAL]
    required = sum(p.default is p.empty for p in positional)
    has_rest = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    return required <= count and (has_rest or len(positional) >= count)


def is_required(parameter: inspect.Parameter) -> bool:
    is_rest = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return parameter.default is parameter.empty and not is_rest


def listed(parameters: Parameters) -> str:
    return f"({', '.join(parameter.name for parameter in parameters)})"


def hint_of(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    try:
        hints = typing.get_type_hints(function)
    except Exception:  # noqa: BLE001 - undefined names raise; then the text is used
        hints = {}
    return hints.get(parameter.name, parameter.annotation)


def kind_from(hint: Any) -> FunctionKind:
    text = hint if isinstance(hint, str) else getattr(hint, "__name__", "")
    return _KINDS.get(text.strip("'\"").rpartition(".")[2], FunctionKind.MESSAGE)
