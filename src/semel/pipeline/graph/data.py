"""Processors as data: dicts, lists and strings, as in JSON or TOML. No I/O except imports."""

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import reduce
from importlib import import_module
from typing import Any, Final

from msgspec import UNSET
from msgspec.structs import replace

from semel.pipeline.graph.checks import refuse_unknown, shape_problems
from semel.pipeline.graph.processors import (
    Bindings,
    Processor,
    Role,
    declared,
    filters_of,
    sent_messages,
)
from semel.pipeline.values import GraphError

_PROCESSOR: Final = frozenset(
    {
        *("id", "role", "fn", "in", "alts", "out", "types", "topics"),
        *("errors", "strategy", "stateful", "many", "opts"),
    }
)


def described(processor: Processor) -> dict[str, Any]:
    """Return a processor as data. Options that have their default value are omitted."""
    streams = {"in": processor.in_, "alts": processor.alts, "out": processor.out}
    filters = {"types": processor.types, "topics": processor.topics}
    data: dict[str, Any] = {
        "id": processor.id,
        "role": str(processor.role),
        "fn": _function_name(processor.function),
        **{name: _streams(bound) for name, bound in streams.items() if bound.streams},
        **{
            name: {binding: sorted(texts) for binding, texts in accepted.items()}
            for name, accepted in filters.items()
            if accepted
        },
    }
    if processor.function is sent_messages:
        del data["fn"]
    if processor.errors is not UNSET and processor.role is Role.STREAM:
        data["errors"] = processor.errors
    options = {
        "strategy": processor.strategy,
        "stateful": processor.stateful or None,
        "many": processor.many or None,
        "opts": dict(processor.opts) or None,
    }
    return {**data, **{name: value for name, value in options.items() if value is not None}}


def _function_name(function: Any) -> str:
    """Return `module:name`. An object without a name of its own has that of its class."""
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}:{named.__qualname__}"


def _streams(bound: Bindings) -> str | dict[str, str]:
    return next(iter(bound.streams.values())) if bound.is_one else dict(bound.streams)


def required_text(data: Mapping[str, Any], key: str, what: str, graph: str = "") -> str:
    """Return the string `data[key]`. Raises GraphError if it is missing or not a string."""
    if not isinstance(data, Mapping):
        raise GraphError(graph, [f"a {what} is described as {data!r}; expected a dict"])
    value = data.get(key)
    if not isinstance(value, str):
        raise GraphError(graph, [f"the key {key!r} of a {what} is {value!r}; expected a string"])
    return value


def processors_from(
    graph: str, data: Mapping[str, Any], keys: frozenset[str], catalog: Sequence[Processor]
) -> Iterator[Processor]:
    """Yield the processors of a graph or a catalog that is declared as data.

    `keys` are the other keys that the data can have. A processor without a function of its own is
    one of `catalog`, bound to other streams. Raises GraphError if the data are not valid.
    """
    if not isinstance(data, Mapping):
        raise GraphError(graph, [f"the catalog is {data!r}; expected a dict"])
    refuse_unknown(graph, f"the {'graph' if keys else 'catalog'}", data, keys | {"processors"})
    listed = data.get("processors", ())
    if not isinstance(listed, list | tuple):
        raise GraphError(graph, [f"the graph's processors are {listed!r}; expected a list"])
    known = {processor.id: processor for processor in catalog}
    for each in listed:
        yield _processor(graph, each, known)


def _processor(graph: str, data: Mapping[str, Any], known: Mapping[str, Processor]) -> Processor:
    id = required_text(data, "id", "processor", graph)
    refuse_unknown(graph, id, data, _PROCESSOR)
    complaints = [f"{id}: {complaint}" for complaint in shape_problems(data)]
    if complaints:
        raise GraphError(graph, complaints)
    function = data.get("fn")
    if function is None and id in known:
        return _rebound(graph, known[id], data)
    if isinstance(function, str) and ":" not in function and known:
        if function not in known:
            near = get_close_matches(function, known, 1)
            advice = f"did you mean {near[0]!r}?" if near else f"it has {sorted(known)}"
            raise GraphError(graph, [f"{id}: the catalog has no processor {function!r}; {advice}"])
        return _rebound(graph, known[function], data)
    role = data.get("role") or _role(data)
    if role not in tuple(Role):
        raise GraphError(graph, [f"{id}: 'role' is {role!r}; use 'source', 'stream' or 'sink'"])
    is_sent = role == Role.SOURCE and function is None
    return declared(
        id,
        Role(role),
        sent_messages if is_sent else _function(graph, id, function),
        in_=data.get("in"),
        alts=data.get("alts"),
        out=data.get("out"),
        types=data.get("types"),
        topics=data.get("topics"),
        errors=None if role == Role.SINK else data.get("errors", UNSET),
        strategy=data.get("strategy"),
        stateful=data.get("stateful", False),
        many=data.get("many", False),
        opts=data.get("opts", {}),
    )


def _rebound(graph: str, base: Processor, data: Mapping[str, Any]) -> Processor:
    """Return a processor of a catalog, with the streams and the options in `data`."""
    id = data["id"]
    if data.get("role", base.role) != base.role:
        raise GraphError(
            graph, [f"{id}: 'role' is {data['role']!r}, but in the catalog it is a {base.role}"]
        )
    streams = {"in_": data.get("in"), "alts": data.get("alts"), "out": data.get("out")}
    try:
        bound = base.bind(id=id, errors=data.get("errors", UNSET), **streams)
    except ValueError as error:
        raise GraphError(graph, [f"{id}: {error}"]) from error
    changed: dict[str, Any] = {
        name: data[name] for name in ("strategy", "stateful", "many") if name in data
    }
    for name in ("types", "topics"):
        if name in data:
            changed[name] = filters_of(data[name], bound.inputs)
    return replace(bound, **changed, opts={**base.opts, **data.get("opts", {})})


def _role(data: Mapping[str, Any]) -> Role:
    """Return the role of a processor. A source has no inputs, and a sink has no outputs."""
    if not (data.get("in") or data.get("alts")):
        return Role.SOURCE
    return Role.STREAM if data.get("out") else Role.SINK


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
