"""Plain HTTP calls that the scripts of this folder use."""

import struct
from collections.abc import Callable, Iterable
from typing import Any, Final

from tests.golden.exchanges import Response
from tests.golden.recorder import Sender

Script = Callable[[Sender], None]
NUMBER_MAX: Final = 2**53 - 1


class Scripts(list[Script]):
    """The scripts of a module. Used as a decorator, the list adds a function."""

    def __call__(self, function: Script) -> Script:
        """Add a script."""
        self.append(function)
        return function


def run(scripts: Iterable[Script], ask: Sender) -> None:
    """Run scripts; the name of each script is the name of a step."""
    for script in scripts:
        ask.recording.begin(script.__name__)
        script(ask)
    ask.close()


def offset(ordinal: int) -> str:
    """Format an offset as in the protocol."""
    return f"{0:016d}_{ordinal:016d}"


def batch(media_type: bytes, messages: list[bytes]) -> bytes:
    """Encode messages in the batch format (docs/reference/http.md)."""
    head = struct.pack("<4sHHI", b"SMB1", 0, len(media_type), len(messages))
    lengths = struct.pack(f"<{len(messages)}I", *map(len, messages))
    return b"".join((head, media_type, lengths, *messages))


def fields(headers: dict[str, Any]) -> dict[str, Any]:
    """Turn keywords such as `producer_id` into header fields."""
    return {name.replace("_", "-").title(): value for name, value in headers.items()}


def create(
    ask: Sender,
    path: str,
    content_type: str = "text/plain",
    body: bytes | None = None,
    **headers: Any,
) -> Response:
    given = {"Content-Type": content_type, **fields(headers)}
    return ask("PUT", f"/v1/stream/{path}", body, given)


def append(
    ask: Sender,
    path: str,
    body: bytes = b"x",
    content_type: str = "text/plain",
    **headers: Any,
) -> Response:
    given = {"Content-Type": content_type, **fields(headers)}
    return ask("POST", f"/v1/stream/{path}", body, given)


def dense(producer_id: str, epoch: int, seq: int) -> dict[str, Any]:
    """Return the headers of a producer that chooses its own epochs."""
    return {"producer_id": producer_id, "producer_epoch": epoch, "producer_seq": seq}


def inside(transaction_id: str, epoch: int = 1, seq: int | None = None) -> dict[str, Any]:
    """Return the headers of an append in a transaction; with `seq`, in a staged one."""
    found: dict[str, Any] = {"transaction_id": transaction_id, "transaction_epoch": epoch}
    return found if seq is None else {**found, "transaction_seq": seq}


def post(ask: Sender, target: str, **document: Any) -> Response:
    """Send a JSON document."""
    return ask("POST", target, document, {"Content-Type": "application/json"})


def begin(
    ask: Sender, name: str, producer_id: str | None = None, epoch: int = 0, **more: Any
) -> Response:
    """Begin a transaction; by default the producer has the same name."""
    owner = {"producer_id": producer_id or name, "producer_epoch": epoch}
    return post(ask, "/v1/transactions", transaction_id=name, **owner, **more)


def begin_task(ask: Sender, name: str, app: str, version: int, partition: int = 0) -> Response:
    """Begin a task of a sink."""
    sink = {"app": app, "version": version, "partition": partition}
    return post(ask, "/v1/transactions", transaction_id=name, sink=sink)


def call(ask: Sender, name: str, action: str, epoch: int = 1, **more: Any) -> Response:
    """Make a call on a transaction."""
    return post(ask, f"/v1/transactions/{name}/{action}", transaction_epoch=epoch, **more)


def commit(ask: Sender, producer_id: str, seq: int, epoch: int = 0, **parts: Any) -> Response:
    """Commit in one request; `expects` is sent as `if`."""
    owner = {"producer_id": producer_id, "producer_epoch": epoch, "producer_seq": seq}
    return post(ask, "/v1/commits", **owner, **_named(parts))


def commit_version(
    ask: Sender, app: str, version: int, query_id: str = "q", **parts: Any
) -> Response:
    """Commit a version of a sink; `input` and `previous` are its digests."""
    digests: dict[str, Any] = {
        name: parts.pop(name) for name in ("input", "previous") if name in parts
    }
    sink: dict[str, Any] = {"app": app, "query_id": query_id, "version": version}
    return post(ask, "/v1/commits", sink=sink | digests, **_named(parts))


def _named(parts: dict[str, Any]) -> dict[str, Any]:
    return {"if" if name == "expects" else name: value for name, value in parts.items()}


def set_group(ask: Sender, group: str, **moves: Any) -> Response:
    """Set the offsets of a group, by stream."""
    return post(ask, f"/v1/groups/{group}/offsets", offsets=moves)


def incarnation_of(ask: Sender, path: str) -> str:
    """Return the incarnation of a stream."""
    return ask("HEAD", f"/v1/stream/{path}").headers["stream-incarnation"]
