"""A catalog: definitions of processors, to be merged into graphs and bound to other streams."""

from collections.abc import Callable, Mapping
from typing import Any, Self, TypeVar

from msgspec import UNSET, UnsetType

from semel.pipeline.graph.data import described, processors_from
from semel.pipeline.graph.processors import (
    Processor,
    Role,
    Streams,
    Words,
    declared,
    sent_messages,
)
from semel.pipeline.values import GraphError

F = TypeVar("F", bound=Callable[..., Any])


class Catalog:
    """Definitions of processors, each with its id. A graph is a catalog that can run.

    `merge` copies the definitions of another catalog. `processor(id).bind(...)` returns a
    definition with other streams, and `add` adds it.
    """

    def __init__(self) -> None:
        self.processors: list[Processor] = []

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.processors)} processors)"

    # ---- declaring -------------------------------------------------------------------------------

    def source(
        self, id: str, *, out: str, opts: Mapping[str, Any] | None = None
    ) -> Callable[[F], F]:
        """Return a decorator that adds a source to the graph.

        A source is a generator function. Its messages are appended to the stream `out`.

        If the function has a parameter `cursor`, it must yield pairs (cursor, message). Each cursor
        is stored with its message. A run gets the last stored cursor. The first run gets None.
        """
        return self._adder(id, Role.SOURCE, out=out, opts=opts or {})

    def add_source(self, id: str, *, out: str) -> None:
        """Add a source without a function. Programs send messages to it with `Runner.send`."""
        self.processors.append(declared(id, Role.SOURCE, sent_messages, out=out))

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
        many: bool = False,
        opts: Mapping[str, Any] | None = None,
    ) -> Callable[[F], F]:
        """Return a decorator that adds a processor that transforms messages.

        Set `in_` or `alts`. `in_` is one stream, or {binding: stream} for a join. A join's i-th
        call gets the i-th message of each stream. With `alts`, each call gets one message from one
        of several streams.

        `out` is one stream, or {binding: stream} for several outputs. With several outputs, the
        function returns {binding: message}. A message that is None is not written.

        If the function is a generator, each item that it yields is a result. With `many`, so is
        each item of a list or another iterable that it returns. `opts` is passed to the function's
        parameter `opts`.
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
            many=many,
            opts=opts or {},
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
        opts: Mapping[str, Any] | None = None,
    ) -> Callable[[F], F]:
        """Return a decorator that adds a sink. A sink writes messages to another system.

        The decorated function has the parameters (df, delivery), and `opts` if that is set.
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
            opts=opts or {},
        )

    def _adder(self, id: str, role: Role, **declaration: Any) -> Callable[[F], F]:
        def add(function: F) -> F:
            self.processors.append(declared(id, role, function, **declaration))
            return function

        return add

    # ---- combining -------------------------------------------------------------------------------

    def add(self, *processors: Processor) -> Self:
        """Add processors, such as those of another catalog after `bind`."""
        self.processors.extend(processors)
        return self

    def merge(self, other: "Catalog") -> Self:
        """Add the processors of another catalog. A processor that is equal is added only once.

        Raises GraphError, and adds nothing, if both have a different processor with the same id.
        """
        own = {processor.id: processor for processor in self.processors}
        conflicts = [p.id for p in other.processors if own.get(p.id, p) != p]
        if conflicts:
            raise GraphError(
                getattr(self, "id", "catalog"),
                [
                    f"{id}: both have a processor with this id, and the two are not equal; give one"
                    " of them another id with bind(id=...)"
                    for id in conflicts
                ],
            )
        return self.add(*[p for p in other.processors if p.id not in own])

    def processor(self, id: str) -> Processor:
        """Return the processor with this id. Raises KeyError if there is none."""
        for processor in self.processors:
            if processor.id == id:
                return processor
        raise KeyError(f"the {self._name} has no processor {id!r}")

    @property
    def _name(self) -> str:
        return "catalog"

    # ---- as data ---------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Return the processors as data that JSON can represent. Functions become `module:name`."""
        return {"processors": [described(processor) for processor in self.processors]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], catalog: "Catalog | None" = None) -> Self:
        """Return the catalog that `data` describes: `{"processors": [...]}`.

        The `fn` of each processor is a function, a string `module:name`, or the id of a processor
        in `catalog`, whose streams and options the other keys replace. Without `fn`, the processor
        in `catalog` with the same id is used. Raises GraphError if the data are not valid.
        """
        made = cls()
        known = () if catalog is None else catalog.processors
        made.processors.extend(processors_from("catalog", data, frozenset(), known))
        return made
