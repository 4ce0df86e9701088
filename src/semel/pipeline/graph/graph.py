"""A graph of processors and the streams between them, declared in Python or as data.

A graph that is declared as data consists of dicts, lists and strings, as in JSON or TOML. A string
`module:name` names a function to import. This module does not run graphs.
"""

from collections.abc import Mapping
from typing import Any, Final, Self

from msgspec import UNSET

from semel.pipeline.graph import topology
from semel.pipeline.graph.catalog import Catalog
from semel.pipeline.graph.checks import DEFAULT, graph_problems, is_optional_text
from semel.pipeline.graph.data import described, processors_from, required_text
from semel.pipeline.graph.processors import EXACTLY_ONCE, Processor, Role
from semel.pipeline.trace import trace_stream
from semel.pipeline.values import GraphError

# The keys of a graph that is declared as data, besides `processors`.
_KEYS: Final = frozenset({"id", "url", "errors", "strategy", "source", "streams"})


class Graph(Catalog):
    """Processors and the streams between them, declared with decorators or as data.

    `url` is the address of the server. The option `semel run --url` overrides `url`. `errors` is
    the default error stream of the processors. `strategy` is their default strategy:
    `exactly-once` or `at-most-once`. `source` is the source that `Runner.send` uses by default.

    `streams` maps paths to the options of the streams that the graph creates: `content_type`,
    `ttl`, `expires_at` and `dedup`. The options of `default` hold for every stream that does not
    set them itself.
    """

    def __init__(
        self,
        id: str,
        *,
        url: str | None = None,
        errors: str | None = None,
        strategy: str = EXACTLY_ONCE,
        source: str | None = None,
        streams: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        super().__init__()
        self.id = id
        self.url = url
        self.errors = errors
        self.strategy = strategy
        self.default_source = source
        self.streams = dict(streams or {})

    def __repr__(self) -> str:
        return f"Graph({self.id!r}, {len(self.processors)} processors)"

    @property
    def _name(self) -> str:
        return f"graph {self.id}"

    # ---- inspecting ------------------------------------------------------------------------------

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

    def config_of(self, processor: Processor) -> dict[str, Any]:
        """Return a processor as data, with the strategy and the error stream that it runs with."""
        return {
            **described(processor),
            "strategy": self.strategy_of(processor),
            "errors": self.errors_of(processor),
        }

    def options_of(self, path: str) -> dict[str, Any]:
        """Return the options with which the graph creates a stream.

        The trace has only the options that are set for its own path.
        """
        general = {} if path == trace_stream(self.id) else self.streams.get(DEFAULT, {})
        merged = {**general, **self.streams.get(path, {})}
        return {name: value for name, value in merged.items() if value is not None}

    def source_of(self, id: str | None = None) -> Processor:
        """Return the source `id`, or the default source if `id` is None.

        Without a default source, the only source of the graph is the default. Raises ValueError if
        there is no such source.
        """
        sources = {p.id: p for p in self.processors if p.role is Role.SOURCE}
        wanted = id or self.default_source or (next(iter(sources)) if len(sources) == 1 else None)
        if wanted not in sources:
            what = "default source" if wanted is None else f"source {wanted!r}"
            listed = ", ".join(sources) or "none"
            raise ValueError(f"the graph {self.id} has no {what}; its sources are: {listed}")
        return sources[wanted]

    def check(self) -> None:
        """Raise GraphError if the graph cannot run. The error lists everything that is wrong."""
        complaints = list(graph_problems(self))
        if complaints:
            raise GraphError(self.id, complaints)

    def topology(self) -> dict[str, set[str]]:
        """Return a mapping from each processor's id to the ids of those it reads from directly."""
        return topology.upstream(self)

    def dependencies(self, id: str) -> set[str]:
        """Return the ids of all processors whose messages can reach the processor `id`.

        The messages can pass through other processors. Raises KeyError if the id is unknown.
        """
        return topology.dependencies(self, id)

    def isomorphic(self, other: "Graph") -> bool:
        """Return True if two graphs are equal except for the names of processors and streams.

        Roles, bindings, filters, strategies, error streams, `stateful` and `many` are compared.
        Functions are not compared.
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
        data: dict[str, Any] = {
            "id": self.id,
            "url": self.url,
            "errors": self.errors,
            "strategy": None if self.strategy == EXACTLY_ONCE else self.strategy,
            "source": self.default_source,
            "streams": {path: dict(options) for path, options in self.streams.items()} or None,
        }
        return {
            **{key: value for key, value in data.items() if value is not None},
            **super().to_dict(),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], catalog: Catalog | None = None) -> Self:
        """Return the graph that `data` describes.

        The `fn` of each processor is a function, a string `module:name`, or the id of a processor
        in `catalog`, whose streams and options the other keys replace. Without `fn`, the processor
        in `catalog` with the same id is used; without a catalog, only a source can have no `fn`.

        Raises GraphError if the data do not describe a graph, or if a function cannot be imported.
        """
        id = required_text(data, "id", "graph")
        options = {name: data.get(name) for name in ("url", "errors", "source")}
        for name, value in options.items():
            if not is_optional_text(value):
                raise GraphError(id, [f"the graph's {name!r} is {value!r}; expected a string"])
        streams = data.get("streams") or {}
        if not isinstance(streams, Mapping):
            raise GraphError(id, [f"the graph's 'streams' is {streams!r}; expected a dict"])
        strategy = data.get("strategy", EXACTLY_ONCE)
        graph = cls(id, **options, strategy=strategy, streams=streams)
        known = () if catalog is None else catalog.processors
        graph.processors.extend(processors_from(id, data, _KEYS, known))
        return graph
