"""Graphs as data: dicts, lists and strings that fit JSON or TOML. Pure, except for imports."""

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import reduce
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from msgspec import UNSET

from semel.pipeline.graph.processors import (
    EXACTLY_ONCE,
    IN,
    OUT,
    Bindings,
    Processor,
    Role,
    bindings,
    filters,
)
from semel.pipeline.values import GraphError

if TYPE_CHECKING:
    from semel.pipeline.graph.graph import Graph

_GRAPH: Final = frozenset({"id", "url", "errors", "strategy", "processors"})
_PROCESSOR: Final = frozenset(
    {
        *("id", "role", "fn", "in", "alts", "out"),
        *("types", "topics", "errors", "strategy", "stateful"),
    }
)


def _is_text(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _is_streams(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(text, str) for pair in value.items() for text in pair)
    return _is_text(value) or _is_texts(value)


def _is_words(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(words, str) or _is_texts(words) for words in value.values())
    return _is_text(value) or _is_texts(value)


def _is_texts(value: Any) -> bool:
    is_several = isinstance(value, list | tuple | set | frozenset)
    return is_several and all(isinstance(text, str) for text in value)


# Checked here, or the user would get a bare TypeError of Python.
_SHAPES: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    **dict.fromkeys(("in", "alts", "out"), (_is_streams, "a stream, or {binding: stream}")),
    **dict.fromkeys(
        ("types", "topics"), (_is_words, "a string, a list of strings, or these by binding")
    ),
    **dict.fromkeys(("role", "errors", "strategy"), (_is_text, "a string")),
    "stateful": (lambda value: isinstance(value, bool), "true or false"),
}


def to_dict(graph: "Graph") -> dict[str, Any]:
    """Return the data of a graph; defaults are omitted."""
    described: dict[str, Any] = {"id": graph.id}
    if graph.url is not None:
        described["url"] = graph.url
    if graph.errors is not None:
        described["errors"] = graph.errors
    if graph.strategy != EXACTLY_ONCE:
        described["strategy"] = graph.strategy
    return {**described, "processors": [_described(one) for one in graph.processors]}


def _described(processor: Processor) -> dict[str, Any]:
    described: dict[str, Any] = {
        "id": processor.id,
        "role": str(processor.role),
        "fn": _name_of(processor.function),
    }
    for name, bound in (("in", processor.in_), ("alts", processor.alts), ("out", processor.out)):
        if bound.streams:
            described[name] = _streams(bound)
    for name, passing in (("types", processor.types), ("topics", processor.topics)):
        if passing:
            described[name] = {binding: sorted(texts) for binding, texts in passing.items()}
    if processor.errors is not UNSET and processor.role is Role.STREAM:
        described["errors"] = processor.errors
    if processor.strategy is not None:
        described["strategy"] = processor.strategy
    if processor.stateful:
        described["stateful"] = True
    return described


def _streams(bound: Bindings) -> str | dict[str, str]:
    return next(iter(bound.streams.values())) if bound.is_one else dict(bound.streams)


def _name_of(function: Callable[..., Any]) -> str:
    return f"{function.__module__}:{function.__qualname__}"


def add(graph: "Graph", described: Mapping[str, Any]) -> None:
    """Add the processors in the data to a graph; raise GraphError if one is not valid."""
    _refuse_unknown(graph.id, "the graph", described, _GRAPH)
    processors = described.get("processors", ())
    if not isinstance(processors, list | tuple):
        raise GraphError(graph.id, [f"processors is {processors!r}; expected a list"])
    for one in processors:
        name = text(one, "id", "processor", graph.id)
        _refuse_unknown(graph.id, name, one, _PROCESSOR)
        graph.processors.append(_processor(graph.id, name, one))


def text(described: Mapping[str, Any], key: str, what: str, graph: str = "") -> str:
    """Return a required string; raise GraphError if it is missing or of another type."""
    if not isinstance(described, Mapping):
        raise GraphError(graph, [f"a {what} is {described!r}; expected a dict"])
    value = described.get(key)
    if not isinstance(value, str):
        raise GraphError(graph, [f"{key!r} of a {what} is {value!r}; expected a string"])
    return value


def _processor(graph: str, name: str, described: Mapping[str, Any]) -> Processor:
    for key in _PROCESSOR & described.keys():
        is_right, expected = _SHAPES.get(key, (lambda _: True, ""))
        if not is_right(described[key]):
            raise GraphError(graph, [f"{name}: {key} is {described[key]!r}; expected {expected}"])
    in_, alts = bindings(described.get("in"), IN), bindings(described.get("alts"), IN)
    read = {**in_.streams, **alts.streams}
    role = described.get("role") or _role(described)
    if role not in tuple(Role):
        raise GraphError(graph, [f"{name}: role is {role!r}; expected source, stream or sink"])
    return Processor(
        name,
        Role(role),
        _function(graph, name, described.get("fn")),
        in_=in_,
        alts=alts,
        out=bindings(described.get("out"), OUT),
        types=filters(described.get("types"), read),
        topics=filters(described.get("topics"), read),
        errors=None if role == Role.SINK else described.get("errors", UNSET),
        strategy=described.get("strategy"),
        stateful=described.get("stateful", False),
    )


def _role(one: Mapping[str, Any]) -> Role:
    """Infer the role: a source has no input, a sink no output."""
    if not (one.get("in") or one.get("alts")):
        return Role.SOURCE
    return Role.STREAM if one.get("out") else Role.SINK


def _function(graph: str, name: str, value: Any) -> Any:
    if callable(value):
        return value
    module, colon, path = str(value).partition(":")
    if not (isinstance(value, str) and colon and module and path):
        raise GraphError(
            graph, [f"{name}: fn is {value!r}; expected a function, or its name as 'module:name'"]
        )
    try:
        return reduce(getattr, path.split("."), import_module(module))
    except Exception as error:
        raise GraphError(graph, [f"{name}: there is no function {value}: {error}"]) from error


def _refuse_unknown(
    graph: str, what: str, described: Mapping[str, Any], allowed: frozenset[str]
) -> None:
    for key in described:
        if key not in allowed:
            near = get_close_matches(str(key), allowed, 1)
            advice = f"did you mean {near[0]!r}?" if near else f"expected {sorted(allowed)}"
            raise GraphError(graph, [f"{what}: unknown key {key!r}; {advice}"])
