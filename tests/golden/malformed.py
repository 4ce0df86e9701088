"""Malformed JSON bodies, for each call that takes a body.

The body of each shape is well formed, but names a stream, producer, transaction or sink that does
not exist. If a change of the body is accepted, the server refuses that name. So almost nothing is
applied: only a producer is registered, and a step is pinned.
"""

import copy
import json
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from tests.golden.plain import NUMBER_MAX
from tests.golden.recorder import Sender

Path = tuple[str | int, ...]


class Shape(NamedTuple):
    """A call and its body; other shapes already vary the fields in `fixed`."""

    name: str
    target: str
    body: dict[str, Any]
    fixed: tuple[str, ...] = ()


# A numeric id that the server has not assigned.
_OWNER: Final = {"producer_id": "999999", "producer_epoch": 0}
_CALL: Final = {"transaction_epoch": 1, **_OWNER, "operator": False}
_COMMON: Final = tuple(_CALL)
_MOVE: Final = {"from": 0, "to": 1, "incarnation": "i", "version": 0}
_TRANSACTION: Final = "/v1/transactions/nothing"

SHAPES: Final = (
    Shape("register", "/v1/producers", {"producer_id": "p"}),
    Shape(
        "claim",
        "/v1/producers/claim",
        {"stream": "nowhere", "producer_id": "p", "session": "s", "mode": "dense"},
    ),
    Shape(
        "begin",
        "/v1/transactions",
        {
            "transaction_id": "t",
            **_OWNER,
            "kind": "inline",
            "timeout_ms": 1000,
            "streams": ["nowhere"],
            "implicit": False,
        },
    ),
    Shape(
        "begin a task",
        "/v1/transactions",
        {
            "transaction_id": "t",
            "sink": {"app": "a", "version": 0, "partition": 0},
            "streams": ["nowhere"],
        },
        ("transaction_id", "streams"),
    ),
    Shape("add streams", f"{_TRANSACTION}/streams", {**_CALL, "streams": ["nowhere"]}, _COMMON),
    Shape(
        "add offsets",
        f"{_TRANSACTION}/offsets",
        {**_CALL, "group": "g", "offsets": {"nowhere": _MOVE}},
        _COMMON,
    ),
    Shape(
        "prepare",
        f"{_TRANSACTION}/prepare",
        {**_CALL, "chunks": 1, "messages": {"nowhere": 1}},
        _COMMON,
    ),
    Shape("commit", f"{_TRANSACTION}/commit", _CALL),
    Shape("abort", f"{_TRANSACTION}/abort", _CALL, _COMMON),
    Shape("fence", f"{_TRANSACTION}/fence", {**_CALL, "operator": True}, _COMMON),
    Shape(
        "one-shot commit",
        "/v1/commits",
        {
            **_OWNER,
            "producer_seq": 0,
            "appends": [{"stream": "nowhere", "messages": [1]}],
            "transactions": [{"id": "nothing", "epoch": 1}],
            "offsets": {"g": {"nowhere": _MOVE}},
            "if": {"nowhere": 0},
        },
    ),
    Shape(
        "commit of a sink",
        "/v1/commits",
        {
            "sink": {
                "app": "a",
                "query_id": "q",
                "version": 0,
                "input": "i",
                "previous": "p",
            },
            "appends": [{"stream": "nowhere", "messages": [1]}],
        },
        ("appends",),
    ),
    Shape("set a group", "/v1/groups/g/offsets", {"offsets": {"nowhere": _MOVE}}),
    Shape(
        "pin a step",
        "/v1/groups/g/snapshot",
        {
            "number": 1,
            "ranges": {"nowhere": {"incarnation": "i", "from": 0, "to": 1}},
            "hash": "h",
        },
    ),
    Shape("rebind", "/v1/sinks/nobody/rebind", {"query_id": "q", "last_version": 0}),
)


def send_all(ask: Sender) -> None:
    """Send every shape unchanged, and with each change."""
    for shape in SHAPES:
        for change, body in (("as it is", _encoded(shape.body)), *changes(shape)):
            ask.recording.begin(f"{shape.name}: {change}")
            ask("POST", shape.target, body, {"Content-Type": "application/json"})
    ask.close()


def changes(shape: Shape) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the body of each change."""
    yield from _whole(shape.body)
    for path, value in fields_of(shape.body):
        if path[0] in shape.fixed:
            continue
        name = ".".join(map(str, path))
        if isinstance(value, dict):
            yield f"unknown field in {name}", _encoded(_with(shape.body, (*path, "unknown"), 1))
        if isinstance(path[-1], int):
            continue
        yield f"{name} is missing", _encoded(_without(shape.body, path))
        for change, other in _others(value):
            yield f"{name} is {change}", _encoded(_with(shape.body, path, other))


def _whole(body: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    """Yield changes that do not concern a single field."""
    good = _encoded(body)
    name, value = next(iter(body.items()))
    yield "empty", b""
    yield "an array", b"[]"
    yield "null", b"null"
    yield "cut short", good[:-1]
    yield "followed by something", good + b" x"
    yield "unknown field", _encoded({**body, "unknown": 1})
    yield "unknown field nested deep", _encoded({**body, "unknown": _nested(100)})
    path, text = next((path, found) for path, found in fields_of(body) if isinstance(found, str))
    marked = _encoded(_with(body, path, f"{text}@"))
    yield "not UTF-8", marked.replace(b"@", b"\xff")
    yield "half of a surrogate pair", marked.replace(b"@", b"\\ud800")
    repeated = _encoded({name: value})[1:-1]
    yield f"{name} twice", good[:-1] + b"," + repeated + b"}"
    yield "spaced", json.dumps(body, indent=1).encode()


def _others(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield values that may be invalid for a field."""
    yield "null", None
    if isinstance(value, str):
        yield "a number", 5
        yield "empty", ""
        yield "too long", "x" * 1100
    elif isinstance(value, bool):
        yield "a text", "true"
    elif isinstance(value, int):
        yield "a text", "x"
        yield "a fraction", 1.5
        yield "negative", -1
        yield "too large", NUMBER_MAX + 1
        yield "larger than 64 bits", 2**70
    elif isinstance(value, list):
        yield "an object", {}
        yield "an array of null", [None]
    else:
        yield "an array", []
        yield "a text", "x"


def fields_of(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield the path and the value of all fields, outer fields first."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in pairs:
        yield (*path, key), inner
        if isinstance(inner, dict | list):
            yield from fields_of(inner, (*path, key))


def _with(body: Any, path: Path, value: Any) -> Any:
    changed = copy.deepcopy(body)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return changed


def _without(body: Any, path: Path) -> Any:
    changed = copy.deepcopy(body)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    return changed


def _nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


def _encoded(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
