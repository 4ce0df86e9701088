"""A graph of processors and the streams between them. Pure: nothing runs here."""

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
    filters,
)
from semel.pipeline.values import GraphError

F = TypeVar("F", bound=Callable[..., Any])


class Graph:
    """Processors and the streams between them, declared with decorators or as data.

    `url`: the address of the server; `semel run --url` overrides it. `errors`: the error stream of
    all processors without their own. `strategy`: `exactly-once` or `at-most-once`.
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
        """Add a source: a generator whose messages are appended to `out`.

        If it has a parameter `cursor`, it yields pairs (cursor, message): the cursor is stored with
        the message, and the next run gets the last one that was stored.
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
        """Add a processor that transforms messages.

        `in_`: one stream, or {binding: stream} to join the i-th messages of all. `alts`: streams of
        which a call gets one message, in any order. `out`: one stream, or {binding: stream}; then
        the function returns {binding: message}. None is not written.
        """
        read = {**bindings(in_, IN).streams, **bindings(alts, IN).streams}
        return self._adder(
            lambda f: Processor(
                id,
                Role.STREAM,
                f,
                in_=bindings(in_, IN),
                alts=bindings(alts, IN),
                out=bindings(out, OUT),
                types=filters(types, read),
                topics=filters(topics, read),
                errors=errors,
                strategy=strategy,
                stateful=stateful,
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
        """Add a sink: a function (df, delivery) that writes messages to another system."""
        read = {**bindings(in_, IN).streams, **bindings(alts, IN).streams}
        return self._adder(
            lambda f: Processor(
                id,
                Role.SINK,
                f,
                in_=bindings(in_, IN),
                alts=bindings(alts, IN),
                types=filters(types, read),
                topics=filters(topics, read),
                errors=None,
                strategy=strategy,
            )
        )

    def _adder(self, make: Callable[[F], Processor]) -> Callable[[F], F]:
        def add(function: F) -> F:
            self.processors.append(make(function))
            return function

        return add

    # ---- inspecting ------------------------------------------------------------------------------

    def processor(self, id: str) -> Processor:
        """Return the processor with this id; raise KeyError if there is none."""
        for processor in self.processors:
            if processor.id == id:
                return processor
        raise KeyError(f"the graph {self.id} has no processor {id!r}")

    def errors_of(self, processor: Processor) -> str | None:
        """Return the error stream of a processor, its own or the graph's; None if it has none."""
        return self.errors if processor.errors is UNSET else processor.errors

    def strategy_of(self, processor: Processor) -> str:
        """Return the strategy of a processor, its own or the graph's."""
        return processor.strategy or self.strategy

    def check(self) -> None:
        """Raise GraphError if the graph cannot run, with everything that is wrong."""
        complaints = list(validate.graph_problems(self))
        if complaints:
            raise GraphError(self.id, complaints)

    def dependencies(self, id: str) -> set[str]:
        """Return the ids of all processors whose messages reach this one, directly or not."""
        return topology.dependencies(self, id)

    def isomorphic(self, other: "Graph") -> bool:
        """Return whether two graphs are equal except for the names of processors and streams.

        Roles, bindings, strategies and error streams are compared; functions are not.
        """
        return topology.isomorphic(self, other)

    def draw(self) -> str:
        """Return a drawing as text."""
        return drawing.draw(self)

    def svg(self) -> str:
        """Return a drawing as SVG."""
        return drawing.svg(self)

    # ---- as data ---------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Return the graph as data for JSON; functions as `module:name`."""
        return data.to_dict(self)

    @classmethod
    def from_dict(cls, described: Mapping[str, Any]) -> Self:
        """Create a graph from data; `fn` is a function or `module:name`. Raises GraphError."""
        id = data.text(described, "id", "graph")
        options = {name: described.get(name) for name in ("url", "errors")}
        for name, value in options.items():
            if not (value is None or isinstance(value, str)):
                raise GraphError(id, [f"{name} is {value!r}; expected a string"])
        graph = cls(id, **options, strategy=described.get("strategy", EXACTLY_ONCE))
        data.add(graph, described)
        return graph
