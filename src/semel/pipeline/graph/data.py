"""Graphs as data: dicts, lists and strings, fit for JSON or TOML. Pure, but for importing."""

from collections.abc import Callable, Mapping
from difflib import get_close_matches
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
    quote_words,
)
from semel.pipeline.problems import GraphError

if TYPE_CHECKING:
    from semel.pipeline.graph.graph import Graph

_GRAPH: Final = frozenset({"id", "url", "errors", "strategy", "processors"})
_PROCESSOR: Final = frozenset(
    {
        *("id", "role", "fn", "in", "alts", "out"),
        *("types", "topics", "errors", "strategy", "stateful"),
    }
)


def _is_text(given: Any) -> bool:
    return given is None or isinstance(given, str)


def _is_streams(given: Any) -> bool:
    if isinstance(given, Mapping):
        return all(isinstance(one, str) for pair in given.items() for one in pair)
    return _is_text(given) or _is_texts(given)


def _is_words(given: Any) -> bool:
    if isinstance(given, Mapping):
        return all(isinstance(one, str) or _is_texts(one) for one in given.values())
    return _is_text(given) or _is_texts(given)


def _is_texts(given: Any) -> bool:
    is_several = isinstance(given, list | tuple | set | frozenset)
    return is_several and all(isinstance(one, str) for one in given)


# What has another shape would be told by Python only, and not by the graph.
_SHAPES: Final[Mapping[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("in", "alts", "out"), _is_streams),
    **dict.fromkeys(("types", "topics"), _is_words),
    **dict.fromkeys(("role", "errors", "strategy"), _is_text),
    "stateful": lambda given: isinstance(given, bool),
}
_ADVICE: Final = {
    **dict.fromkeys(("in", "alts", "out"), "name a stream, or several as {binding: stream}"),
    **dict.fromkeys(("types", "topics"), "give a text, a list of texts, or these by binding"),
    **dict.fromkeys(("role", "errors", "strategy"), "give a text"),
    "stateful": "give true or false",
}


def to_dict(graph: "Graph") -> dict[str, Any]:
    """Describe a graph; what is as by default is left away."""
    found: dict[str, Any] = {"id": graph.id}
    if graph.url is not None:
        found["url"] = graph.url
    if graph.errors is not None:
        found["errors"] = graph.errors
    if graph.strategy != EXACTLY_ONCE:
        found["strategy"] = graph.strategy
    return {**found, "processors": [_described(one) for one in graph.processors]}


def _described(processor: Processor) -> dict[str, Any]:
    found: dict[str, Any] = {
        "id": processor.id,
        "role": str(processor.role),
        "fn": _name_of(processor.function),
    }
    for name, given in (("in", processor.in_), ("alts", processor.alts), ("out", processor.out)):
        if given.streams:
            found[name] = _streams(given)
    for name, passing in (("types", processor.types), ("topics", processor.topics)):
        if passing:
            found[name] = {binding: sorted(texts) for binding, texts in passing.items()}
    if processor.errors is not UNSET and processor.role is Role.STREAM:
        found["errors"] = processor.errors
    if processor.strategy is not None:
        found["strategy"] = processor.strategy
    if processor.stateful:
        found["stateful"] = True
    return found


def _streams(given: Bindings) -> str | dict[str, str]:
    return next(iter(given.streams.values())) if given.is_one else dict(given.streams)


def _name_of(function: Callable[..., Any]) -> str:
    return f"{function.__module__}:{function.__qualname__}"


def add(graph: "Graph", described: Mapping[str, Any]) -> None:
    """Add the processors of a description to a graph."""
    _refuse_unknown(graph.id, "the graph", described, _GRAPH)
    processors = described.get("processors", ())
    if not isinstance(processors, list | tuple):
        raise GraphError(graph.id, [f"processors are a list; {processors!r} is none"])
    for one in processors:
        name = text(one, "id", "processor", graph.id)
        _refuse_unknown(graph.id, name, one, _PROCESSOR)
        graph.processors.append(_processor(graph.id, name, one))


def text(described: Mapping[str, Any], key: str, what: str, graph: str = "") -> str:
    """Take a text that must be there."""
    if not isinstance(described, Mapping):
        raise GraphError(graph, [f"a {what} is described by a dict; {described!r} is none"])
    found = described.get(key)
    if not isinstance(found, str):
        raise GraphError(graph, [f"a {what} needs {key!r}, a text; {found!r} is none"])
    return found


def _processor(graph: str, name: str, one: Mapping[str, Any]) -> Processor:
    for key in _PROCESSOR & one.keys():
        if key in _SHAPES and not _SHAPES[key](one[key]):
            raise GraphError(graph, [f"{name}: {key} cannot be {one[key]!r}; {_ADVICE[key]}"])
    read = {**bindings(one.get("in"), IN).streams, **bindings(one.get("alts"), IN).streams}
    role = one.get("role") or _role(one)
    if role not in tuple(Role):
        raise GraphError(graph, [f"{name}: {role!r} is no role; use source, stream or sink"])
    return Processor(
        name,
        Role(role),
        _function(graph, name, one.get("fn")),
        bindings(one.get("in"), IN),
        bindings(one.get("alts"), IN),
        bindings(one.get("out"), OUT),
        quote_words(one.get("types"), read),
        quote_words(one.get("topics"), read),
        None if role == Role.SINK else one.get("errors", UNSET),
        one.get("strategy"),
        one.get("stateful", False),
    )


def _role(one: Mapping[str, Any]) -> Role:
    """Tell what a processor is by what it has: no input, no output, or both."""
    if not (one.get("in") or one.get("alts")):
        return Role.SOURCE
    return Role.STREAM if one.get("out") else Role.SINK


def _function(graph: str, name: str, given: Any) -> Callable[..., Any]:
    if callable(given):
        function: Callable[..., Any] = given
        return function
    module, colon, path = str(given).partition(":")
    if not (isinstance(given, str) and colon and module and path):
        raise GraphError(
            graph, [f"{name}: fn is {given!r}; give it a function, or its name as 'module:name'"]
        )
    try:
        found: Any = import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except Exception as error:
        raise GraphError(graph, [f"{name}: there is no function {given}: {error}"]) from error
    function = found
    return function


def _refuse_unknown(
    graph: str, what: str, described: Mapping[str, Any], known: frozenset[str]
) -> None:
    for key in described:
        if key not in known:
            near = get_close_matches(str(key), known, 1)
            meant = f"; did you mean {near[0]!r}?" if near else ""
            raise GraphError(graph, [f"{what}: there is nothing called {key!r}{meant}"])
