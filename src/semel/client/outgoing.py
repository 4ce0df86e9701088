"""Requests as values, and as bytes."""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct

from semel.client.addresses import Address

Fields = tuple[tuple[str, str], ...]

_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
# What a reader of HTTP could take for the end of a line, or not read at all.
_NEVER: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]|[^\x00-\xff]")
# The connection is ours: a header of the caller's must not say otherwise.
_OURS: Final = frozenset({"host", "content-length", "transfer-encoding", "connection", "expect"})


class Request(Struct, frozen=True):
    """A request; `is_streamed` if its answer is read piece by piece.

    A body of None is not the same as an empty one: only the latter has a Content-Length.
    """

    method: str
    target: str
    headers: Fields = ()
    body: bytes | None = None
    is_streamed: bool = False


def fixed_lines(address: Address, headers: Iterable[tuple[str, str]] = ()) -> bytes:
    """Render the lines every request to this server begins with: Host and the caller's own."""
    lines = [f"Host: {address.authority}\r\n"]
    lines += [_line(name, value) for name, value in headers]
    return "".join(lines).encode("latin-1")


def render(request: Request, fixed: bytes) -> bytes:
    """Render a request; `fixed` is from `fixed_lines`."""
    lines = [_line(name, value) for name, value in request.headers]
    if request.body is not None:
        lines.append(f"Content-Length: {len(request.body)}\r\n")
    start = f"{request.method} {request.target} HTTP/1.1\r\n".encode("ascii")
    return b"".join((start, fixed, "".join(lines).encode("latin-1"), b"\r\n", request.body or b""))


def own_headers(token: str | None, headers: Mapping[str, str] | None) -> Fields:
    """Check the caller's headers and add the token; ValueError if one cannot be sent."""
    fields = list((headers or {}).items())
    for name, value in fields:
        if name.lower() in _OURS:
            raise ValueError(f"the header {name} is the client's own business")
        _line(name, value)
    if token is not None:
        if any(name.lower() == "authorization" for name, _ in fields):
            raise ValueError("pass token= or an Authorization header, not both")
        fields.append(("Authorization", f"Bearer {token}"))
        _line(*fields[-1])
    return tuple(fields)


def _line(name: str, value: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise ValueError(f"{name!r} is no name of a header")
    if _NEVER.search(value) is not None or value != value.strip(" \t"):
        raise ValueError(f"the value of {name} holds what a header cannot: {value!r}")
    return f"{name}: {value}\r\n"
