"""A graph: processors, and the streams between them. Pure: nothing runs here."""

from collections.abc import Callable, Mapping
from typing import Any, Self, TypeVar

from msgspec import UNSET, UnsetType

from semel.pipeline.graph import data, drawing, topology, validate
from semel.pipeline.graph.processors import (
    EXACTLY_ONCE,
    IN,
    OUT,
    Processor,
    Role,
    Streams,
    Words,
    bindings,
    quote_words,
)
from semel.pipeline.problems import GraphError

F = TypeVar("F", bound=Callable[..., Any])


class Graph:
    """Processors and the streams between them, by decorators or as data.

    `url`: where the server is; `semel run --url` wins. `errors`: the stream that takes what failed,
    for all processors that name none of their own. `strategy`: `exactly-once` or `at-most-once`.
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

    # ---- describing it ---------------------------------------------------------------------------

    def source(self, id: str, *, out: str) -> Callable[[F], F]:
        """Add a source: a generator whose messages are appended to `out`.

        If it takes `cursor` it yields pairs (cursor, message): the cursor is stored with the
        message, and the next run is given the last one stored.
        """
        return self._adder(lambda f: Processor(id, Role.SOURCE, f, out=bindings(out, OUT)))

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
        """Add a processor that makes messages of messages.

        `in_`: one stream, or {binding: stream} to join the i-th messages of all. `alts`: streams of
        which it takes one message, whichever comes. `out`: one stream, or {binding: stream}; then
        the function returns {binding: message}. None is written nowhere.
        """
        read = {**bindings(in_, IN).streams, **bindings(alts, IN).streams}
        return self._adder(
            lambda f: Processor(
                id,
                Role.STREAM,
                f,
                bindings(in_, IN),
                bindings(alts, IN),
                bindings(out, OUT),
                quote_words(types, read),
                quote_words(topics, read),
                errors,
                strategy,
                stateful,
            )
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
        """Add a sink: a function (df, delivery) that takes messages out of the graph."""
        read = {**bindings(in_, IN).streams, **bindings(alts, IN).streams}
        return self._adder(
            lambda f: Processor(
                id,
                Role.SINK,
                f,
                bindings(in_, IN),
                bindings(alts, IN),
                types=quote_words(types, read),
                topics=quote_words(topics, read),
                errors=None,
                strategy=strategy,
            )
        )

    def _adder(self, make: Callable[[F], Processor]) -> Callable[[F], F]:
        def add(function: F) -> F:
            self.processors.append(make(function))
            return function

        return add

    # ---- looking at it ---------------------------------------------------------------------------

    def processor(self, id: str) -> Processor:
        """Find a processor; KeyError if there is none of that id."""
        for one in self.processors:
            if one.id == id:
                return one
        raise KeyError(f"the graph {self.id} has no processor {id!r}")

    def errors_of(self, processor: Processor) -> str | None:
        """Name the error stream of a processor, its own or the graph's; None if it has none."""
        return self.errors if processor.errors is UNSET else processor.errors

    def strategy_of(self, processor: Processor) -> str:
        """Name the strategy of a processor, its own or the graph's."""
        return processor.strategy or self.strategy

    def check(self) -> None:
        """Raise GraphError if it cannot run, with all there is to mend."""
        found = list(validate.graph_problems(self))
        if found:
            raise GraphError(self.id, found)

    def dependencies(self, id: str) -> set[str]:
        """Name all processors whose messages reach this one, directly or not."""
        return topology.dependencies(self, id)

    def isomorphic(self, other: "Graph") -> bool:
        """Tell whether two graphs have the same shape, whatever processors and streams are called.

        Roles, bindings, strategies and error streams must agree; functions do not count.
        """
        return topology.isomorphic(self, other)

    def draw(self) -> str:
        """Draw it as text."""
        return drawing.draw(self)

    def svg(self) -> str:
        """Draw it as SVG."""
        return drawing.svg(self)

    # ---- as data ---------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Describe it as data; functions by `module:name`."""
        return data.to_dict(self)

    @classmethod
    def from_dict(cls, described: Mapping[str, Any]) -> Self:
        """Make a graph of data; `fn` is a function or `module:name`. GraphError if that fails."""
        id = data.text(described, "id", "graph")
        given = {name: described.get(name) for name in ("url", "errors")}
        for name, value in given.items():
            if not (value is None or isinstance(value, str)):
                raise GraphError(id, [f"{name} cannot be {value!r}; give a text"])
        graph = cls(id, **given, strategy=described.get("strategy", EXACTLY_ONCE))
        data.add(graph, described)
        return graph
