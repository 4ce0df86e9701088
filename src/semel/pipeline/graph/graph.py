"""A graph of processors and the streams between them, declared in Python or as data.

A graph that is declared as data consists of dicts, lists and strings, as in JSON or TOML. A string
`module:name` names a function to import. This module does not run graphs.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from functools import reduce
from importlib import import_module
from typing import Any, Final, Self, TypeVar

from msgspec import UNSET, UnsetType

from semel.pipeline.graph import topology
from semel.pipeline.graph.processors import (
    EXACTLY_ONCE,
    ID_FORMAT,
    Bindings,
    Processor,
    Role,
    Streams,
    Words,
    declared,
    is_id,
    path_problems,
    processor_problems,
    strategy_problems,
)
from semel.pipeline.values import GraphError

F = TypeVar("F", bound=Callable[..., Any])


class Graph:
    """Processors and the streams between them, declared with decorators or as data.

    `url` is the address of the server. The option `semel run --url` overrides `url`. `errors` is
    the default error stream of the processors. `strategy` is their default strategy:
    `exactly-once` or `at-most-once`.
    """

    def __init__(
        self,
        id: str,
        *,
        url: str | None = None,
        errors: str | None = None,
        strategy: str = EXACTLY_ONCE,
    ) -> None:
        self.id = id
        self.url = url
        self.errors = errors
        self.strategy = strategy
        self.processors: list[Processor] = []

    def __repr__(self) -> str:
        return f"Graph({self.id!r}, {len(self.processors)} processors)"

    # ---- declaring -------------------------------------------------------------------------------

    def source(self, id: str, *, out: str) -> Callable[[F], F]:
        """Return a decorator that adds a source to the graph.

        A source is a generator function. Its messages are appended to the stream `out`.

        If the function has a parameter `cursor`, it must yield pairs (cursor, message). Each cursor
        is stored with its message. A run gets the last stored cursor. The first run gets None.
        """
        return self._adder(id, Role.SOURCE, out=out)

    def stream(
        self,
        id: str,
        *,
        in_: Streams | None = None,
        out: Streams | None = None,
        alts: Streams | None = None,
        types: Words | None = None,
        topics: Words | None = None,
        errors: str | UnsetType | None = UNSET,
        strategy: str | None = None,
        stateful: bool = False,
    ) -> Callable[[F], F]:
        """Return a decorator that adds a processor that transforms messages.

        Set `in_` or `alts`. `in_` is one stream, or {binding: stream} for a join. A join's i-th
        call gets the i-th message of each stream. With `alts`, each call gets one message from one
        of several streams.

        `out` is one stream, or {binding: stream} for several outputs. With several outputs, the
        function returns {binding: message}. A message that is None is not written.
        """
        return self._adder(
            id,
            Role.STREAM,
            in_=in_,
            out=out,
            alts=alts,
            types=types,
            topics=topics,
            errors=errors,
            strategy=strategy,
            stateful=stateful,
        )

    def sink(
        self,
        id: str,
        *,
        in_: Streams | None = None,
        alts: Streams | None = None,
        types: Words | None = None,
        topics: Words | None = None,
        strategy: str | None = None,
    ) -> Callable[[F], F]:
        """Return a decorator that adds a sink. A sink writes messages to another system.

        The decorated function has the parameters (df, delivery).
        """
        return self._adder(
            id,
            Role.SINK,
            in_=in_,
            alts=alts,
            types=types,
            topics=topics,
            errors=None,
            strategy=strategy,
        )

    def _adder(self, id: str, role: Role, **declaration: Any) -> Callable[[F], F]:
        def add(function: F) -> F:
            self.processors.append(declared(id, role, function, **declaration))
            return function

        return add

    # ---- inspecting ------------------------------------------------------------------------------

    def processor(self, id: str) -> Processor:
        """Return the processor with this id. Raises KeyError if there is none."""
        for processor in self.processors:
            if processor.id == id:
                return processor
        raise KeyError(f"the graph {self.id} has no processor {id!r}")

    def errors_of(self, processor: Processor) -> str | None:
        """Return the error stream of a processor, or None if it has none.

        Sources and sinks have no error stream. For any other processor, the error stream is its own
        `errors`. If that is unset, the error stream is the `errors` of the graph.
        """
        if processor.role is not Role.STREAM:
            return None
        return self.errors if processor.errors is UNSET else processor.errors

    def strategy_of(self, processor: Processor) -> str:
        """Return the processor's own strategy or, if it has none, the strategy of the graph."""
        return processor.strategy or self.strategy

    def check(self) -> None:
        """Raise GraphError if the graph cannot run. The error lists everything that is wrong."""
        complaints = list(_problems(self))
        if complaints:
            raise GraphError(self.id, complaints)

    def dependencies(self, id: str) -> set[str]:
        """Return the ids of all processors whose messages can reach the processor `id`.

        The messages can pass through other processors. Raises KeyError if the id is unknown.
        """
        return topology.dependencies(self, id)

    def isomorphic(self, other: "Graph") -> bool:
        """Return True if two graphs are equal except for the names of processors and streams.

        Roles, bindings, filters, strategies, error streams and `stateful` are compared. Functions
        are not compared.
        """
        return topology.isomorphic(self, other)

    def draw(self) -> str:
        """Return a drawing of the graph as text, with one line per processor."""
        return topology.draw(self)

    def svg(self) -> str:
        """Return a drawing of the graph as SVG."""
        return topology.svg(self)

    # ---- as data ---------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Return the graph as data that JSON can represent. Functions become `module:name`."""
        described = {"id": self.id, "url": self.url, "errors": self.errors}
        if self.strategy != EXACTLY_ONCE:
            described["strategy"] = self.strategy
        return {
            **{key: value for key, value in described.items() if value is not None},
            "processors": [_described(processor) for processor in self.processors],
        }

    @classmethod
    def from_dict(cls, described: Mapping[str, Any]) -> Self:
        """Return the graph that `described` describes.

        The `fn` of each processor is a function or a string `module:name`. Raises GraphError if the
        data do not describe a graph, or if a function cannot be imported.
        """
        id = _text(described, "id", "graph")
        options = {name: described.get(name) for name in ("url", "errors")}
        for name, value in options.items():
            if not _is_text(value):
                raise GraphError(id, [f"the graph's {name!r} is {value!r}; expected a string"])
        graph = cls(id, **options, strategy=described.get("strategy", EXACTLY_ONCE))
        _refuse_unknown(id, "the graph", described, _GRAPH)
        processors = described.get("processors", ())
        if not isinstance(processors, list | tuple):
            raise GraphError(id, [f"the graph's processors are {processors!r}; expected a list"])
        graph.processors.extend(_processor(id, processor) for processor in processors)
        return graph


def _problems(graph: Graph) -> Iterator[str]:
    """Yield one complaint for each thing that is wrong with a graph."""
    if not is_id(graph.id):
        yield f"the id of the graph is {graph.id!r}; expected {ID_FORMAT}"
    yield from strategy_problems(graph.strategy)
    if graph.errors is not None:
        yield from path_problems("the graph", graph.errors)
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


# ---- data ----------------------------------------------------------------------------------------


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


# For each key of a processor: the function that checks the value, and what the value should be.
# Without this check, the user would get a TypeError that does not name the key.
_SHAPES: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    **dict.fromkeys(("in", "alts", "out"), (_is_streams, "a stream or a dict {binding: stream}")),
    **dict.fromkeys(
        ("types", "topics"),
        (_is_words, "a string, a list of strings, or a mapping from each binding to one of these"),
    ),
    **dict.fromkeys(("role", "errors", "strategy"), (_is_text, "a string")),
    "stateful": (lambda value: isinstance(value, bool), "true or false"),
}


def _described(processor: Processor) -> dict[str, Any]:
    """Return a processor as data. Options that have their default value are omitted."""
    function = processor.function
    streams = {"in": processor.in_, "alts": processor.alts, "out": processor.out}
    filters = {"types": processor.types, "topics": processor.topics}
    described: dict[str, Any] = {
        "id": processor.id,
        "role": str(processor.role),
        "fn": f"{function.__module__}:{function.__qualname__}",
        **{name: _streams(bound) for name, bound in streams.items() if bound.streams},
        **{
            name: {binding: sorted(texts) for binding, texts in accepted.items()}
            for name, accepted in filters.items()
            if accepted
        },
    }
    if processor.errors is not UNSET and processor.role is Role.STREAM:
        described["errors"] = processor.errors
    if processor.strategy is not None:
        described["strategy"] = processor.strategy
    if processor.stateful:
        described["stateful"] = True
    return described


def _streams(bound: Bindings) -> str | dict[str, str]:
    return next(iter(bound.streams.values())) if bound.is_one else dict(bound.streams)


def _text(described: Mapping[str, Any], key: str, what: str, graph: str = "") -> str:
    """Return the string `described[key]`. Raises GraphError if it is missing or not a string."""
    if not isinstance(described, Mapping):
        raise GraphError(graph, [f"a {what} is described as {described!r}; expected a dict"])
    value = described.get(key)
    if not isinstance(value, str):
        raise GraphError(graph, [f"the key {key!r} of a {what} is {value!r}; expected a string"])
    return value


def _processor(graph: str, described: Mapping[str, Any]) -> Processor:
    id = _text(described, "id", "processor", graph)
    _refuse_unknown(graph, id, described, _PROCESSOR)
    for key, (is_valid, expected) in _SHAPES.items():
        if key in described and not is_valid(described[key]):
            raise GraphError(graph, [f"{id}: {key!r} is {described[key]!r}; expected {expected}"])
    role = described.get("role") or _role(described)
    if role not in tuple(Role):
        raise GraphError(graph, [f"{id}: 'role' is {role!r}; use 'source', 'stream' or 'sink'"])
    return declared(
        id,
        Role(role),
        _function(graph, id, described.get("fn")),
        in_=described.get("in"),
        alts=described.get("alts"),
        out=described.get("out"),
        types=described.get("types"),
        topics=described.get("topics"),
        errors=None if role == Role.SINK else described.get("errors", UNSET),
        strategy=described.get("strategy"),
        stateful=described.get("stateful", False),
    )


def _role(described: Mapping[str, Any]) -> Role:
    """Return the role of a processor. A source has no inputs, and a sink has no outputs."""
    if not (described.get("in") or described.get("alts")):
        return Role.SOURCE
    return Role.STREAM if described.get("out") else Role.SINK


def _function(graph: str, name: str, value: Any) -> Any:
    if callable(value):
        return value
    module, colon, path = str(value).partition(":")
    if not (isinstance(value, str) and colon and module and path):
        raise GraphError(
            graph, [f"{name}: 'fn' is {value!r}; expected a function or a string 'module:name'"]
        )
    try:
        return reduce(getattr, path.split("."), import_module(module))
    except Exception as error:
        raise GraphError(graph, [f"{name}: cannot import {value}: {error}"]) from error


def _refuse_unknown(
    graph: str, what: str, described: Mapping[str, Any], allowed: frozenset[str]
) -> None:
    for key in described:
        if key not in allowed:
            near = get_close_matches(str(key), allowed, 1)
            advice = f"did you mean {near[0]!r}?" if near else f"expected {sorted(allowed)}"
            raise GraphError(graph, [f"{what}: unknown key {key!r}; {advice}"])
