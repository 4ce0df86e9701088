"""A processor: a function, the streams it reads and writes, and how it runs. Pure."""

import inspect
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

from msgspec import UNSET, Struct, UnsetType

EXACTLY_ONCE: Final = "exactly-once"
AT_MOST_ONCE: Final = "at-most-once"
STRATEGIES: Final = (EXACTLY_ONCE, AT_MOST_ONCE)

IN: Final = "in"
OUT: Final = "out"

# One stream, several with their paths as bindings, or several by binding.
Streams = str | Sequence[str] | Mapping[str, str]
# Types or topics to accept: for all inputs, or by binding.
Words = str | Iterable[str] | Mapping[str, str | Iterable[str]]


class Role(StrEnum):
    """Whether a processor brings messages into the graph, transforms them, or takes them out."""

    SOURCE = "source"
    STREAM = "stream"
    SINK = "sink"


class FunctionKind(StrEnum):
    """What a function accepts; ANY: what suits the engine best."""

    MESSAGE = "message"
    ARROW = "arrow"
    DATAFRAME = "dataframe"
    ANY = "any"


class Bindings(NamedTuple):
    """Streams by the names the function uses for them; `is_one`: one stream, without a name."""

    streams: dict[str, str] = {}  # noqa: RUF012 - never changed
    is_one: bool = False


class Processor(Struct, frozen=True):
    """One processor as it was declared; `validate` checks whether that is valid."""

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
        """The streams it reads, by binding, in order."""
        return self.in_.streams or self.alts.streams

    @property
    def outputs(self) -> dict[str, str]:
        """The streams it writes, by binding, in order; not the error stream."""
        return self.out.streams

    @property
    def is_alternatives(self) -> bool:
        """Whether a call gets one message of any input."""
        return bool(self.alts.streams)

    @property
    def is_join(self) -> bool:
        """Whether a call gets one message of every input."""
        return bool(self.in_.streams) and not self.in_.is_one


def bindings(streams: Streams | None, name: str) -> Bindings:
    """Return streams by binding; `name` is the binding of a single one."""
    if not streams:
        return Bindings()
    if isinstance(streams, str):
        return Bindings({name: streams}, is_one=True)
    if isinstance(streams, Mapping):
        return Bindings(dict(streams))
    return Bindings({path: path for path in streams})


def filters(words: Words | None, inputs: Iterable[str]) -> dict[str, frozenset[str]]:
    """Return the types or topics to accept, by binding."""
    if not words:
        return {}
    if isinstance(words, Mapping):
        return {binding: _set(value) for binding, value in words.items()}
    return dict.fromkeys(inputs, _set(words))


def _set(value: str | Iterable[str]) -> frozenset[str]:
    return frozenset([value] if isinstance(value, str) else value)


# ---- functions -----------------------------------------------------------------------------------
# The parameters of a function and their annotations say what it takes. Annotations are compared by
# name, so that neither Arrow nor Spark has to be installed to read them.


_KINDS: Final = {"RecordBatch": FunctionKind.ARROW, "DataFrame": FunctionKind.DATAFRAME}
CURSOR: Final = "cursor"
BINDING: Final = "binding"
_POSITIONAL: Final = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)


Parameters = list[inspect.Parameter]


def parameters(function: Callable[..., Any]) -> Parameters:
    return list(inspect.signature(function).parameters.values())


def kind_of(processor: Processor) -> FunctionKind:
    """Return what a processor's function accepts, by the annotation of its first parameter."""
    if processor.role is Role.SOURCE:
        return FunctionKind.MESSAGE
    declared = parameters(processor.function)
    if not declared:
        return FunctionKind.MESSAGE
    hint = _hint(processor.function, declared[0])
    if hint is inspect.Parameter.empty and processor.role is Role.SINK:
        return FunctionKind.ANY
    return _kind(hint)


def takes_cursor(function: Callable[..., Any]) -> bool:
    """Return whether a source accepts a cursor to continue from."""
    return any(parameter.name == CURSOR for parameter in parameters(function))


def takes_binding(function: Callable[..., Any]) -> bool:
    """Return whether a function of alternatives accepts the binding of its message."""
    declared = parameters(function)
    return len(declared) > 1 and declared[1].name == BINDING


def signature_problems(processor: Processor) -> Iterable[str]:
    """Yield what is wrong with the function of a processor."""
    function: Any = processor.function
    if not callable(function):
        yield f"its function is {function!r}, which is not callable; pass a function"
        return
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        yield "its function is async; a processor runs on its own thread: use a plain def"
        return
    try:
        declared = parameters(function)
    except (TypeError, ValueError):
        yield f"the parameters of {function!r} cannot be read; wrap it in a def"
        return
    if processor.role is Role.SOURCE:
        yield from _source_problems(function, declared)
    elif processor.role is Role.SINK:
        if not _takes(declared, 2):
            yield f"a sink takes (df, delivery), not {_listed(declared)}"
    else:
        yield from _stream_problems(processor, declared)


def _source_problems(function: Callable[..., Any], declared: Parameters) -> Iterable[str]:
    if not inspect.isgeneratorfunction(function):
        yield "a source is a generator: its function must yield messages"
    if [parameter.name for parameter in declared if _is_required(parameter)] not in ([], [CURSOR]):
        yield (
            f"a source takes nothing and yields messages, or takes ({CURSOR}) and yields"
            f" ({CURSOR}, message), not {_listed(declared)}"
        )


def _stream_problems(processor: Processor, declared: Parameters) -> Iterable[str]:
    if processor.is_join:
        required = {parameter.name for parameter in declared if _is_required(parameter)}
        if set(processor.inputs) != required or any(
            parameter.kind is parameter.POSITIONAL_ONLY for parameter in declared
        ):
            names = ", ".join(processor.inputs)
            yield (
                f"the function of a join must have one parameter per input, named by its binding:"
                f" ({names}), not {_listed(declared)}; in_={{name: stream}} sets the names"
            )
            return
    elif not _takes(declared, 1) and not (
        processor.is_alternatives and takes_binding(processor.function) and _takes(declared, 2)
    ):
        more = f", or (message, {BINDING})" if processor.is_alternatives else ""
        yield f"its function must take one message{more}, not {_listed(declared)}"
        return
    hints = [_hint(processor.function, one) for one in declared if one.name != BINDING]
    if len(set(map(_kind, hints))) > 1:
        yield "its parameters are annotated with different kinds; all must be the same"


def _takes(declared: Parameters, count: int) -> bool:
    """Return whether a function can be called with exactly `count` positional values."""
    if any(one.kind is one.KEYWORD_ONLY and one.default is one.empty for one in declared):
        return False
    positional = [one for one in declared if one.kind in _POSITIONAL]
    required = sum(one.default is one.empty for one in positional)
    has_rest = any(one.kind is one.VAR_POSITIONAL for one in declared)
    return required <= count and (has_rest or len(positional) >= count)


def _is_required(parameter: inspect.Parameter) -> bool:
    is_rest = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return parameter.default is parameter.empty and not is_rest


def _listed(declared: Parameters) -> str:
    return f"({', '.join(parameter.name for parameter in declared)})"


def _hint(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    try:
        hints = typing.get_type_hints(function)
    except Exception:  # noqa: BLE001 - a name in it is missing at run time: use its text
        hints = {}
    return hints.get(parameter.name, parameter.annotation)


def _kind(hint: Any) -> FunctionKind:
    text = hint if isinstance(hint, str) else getattr(hint, "__name__", "")
    return _KINDS.get(text.strip("'\"").rpartition(".")[2], FunctionKind.MESSAGE)
