"""Requests as bytes, made before they are needed; answers, looked at as little as possible."""

import re
from collections.abc import Callable, Iterator
from typing import Final

BYTES: Final = "application/octet-stream"
JSON: Final = "application/json"
FRAMES: Final = "application/vnd.semel.frames"

Source = Callable[[], bytes | None]  # the next request; None: no more

_HEAD_END: Final = b"\r\n\r\n"
_EXACT: Final = b"Content-Length: "
_LENGTH: Final = re.compile(rb"(?i)\r\ncontent-length: *([0-9]+)")
_LAST_CHUNK: Final = b"0\r\n\r\n"


class BadAnswer(Exception):
    """The server answered something else than success."""


def http_answer_bytes(data: bytes) -> int:
    """How many bytes the answer at the start of `data` has; 0 if it is not whole."""
    end = data.find(_HEAD_END)
    if end < 0:
        return 0
    if data[9:10] != b"2":
        raise BadAnswer(data[:200].decode("latin-1"))
    if data[9:12] == b"204":
        return end + 4
    total = end + 4 + _body_bytes(data, end)
    return total if total <= len(data) else 0


def _body_bytes(data: bytes, end: int) -> int:
    at = data.rfind(_EXACT, 0, end)
    if at >= 0:
        return int(data[at + len(_EXACT) : data.index(b"\r\n", at)])
    found = _LENGTH.search(data, 0, end)
    if found is not None:
        return int(found[1])
    last = data.find(_LAST_CHUNK, end)  # enough for the short answers that are sent in chunks
    return last + len(_LAST_CHUNK) - (end + 4) if last >= 0 else len(data)


def head(method: str, path: str, *fields: str) -> bytes:
    """Make the head of a request, without the empty line that ends it."""
    lines = (f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", *fields)
    return "".join(f"{line}\r\n" for line in lines).encode()


def stream_url(name: str) -> str:
    """Tell the path of a stream."""
    return f"/v1/stream/{name}"


def put(name: str, content_type: str) -> bytes:
    """Create a stream."""
    fields = (f"Content-Type: {content_type}", "Content-Length: 0")
    return head("PUT", stream_url(name), *fields) + b"\r\n"


def post(name: str, content_type: str, body: bytes) -> bytes:
    """Append."""
    fields = (f"Content-Type: {content_type}", f"Content-Length: {len(body)}")
    return head("POST", stream_url(name), *fields) + b"\r\n" + body


def get(path: str, *fields: str) -> bytes:
    """Read."""
    return head("GET", path, *fields) + b"\r\n"


def plain_appends(names: list[str], body: bytes) -> Source:
    """Append to one stream after another, for ever."""
    requests = _around([post(name, BYTES, body) for name in names])
    return lambda: next(requests)


def produced_appends(names: list[str], producer: str, body: bytes) -> Source:
    """Do the same as a producer: dense, its epoch given by the client."""
    fields = (
        f"Content-Type: {BYTES}",
        f"Content-Length: {len(body)}",
        f"Producer-Id: {producer}",
        "Producer-Epoch: 0",
    )
    heads = [head("POST", stream_url(name), *fields) + b"Producer-Seq: " for name in names]
    requests = _counted(heads, _HEAD_END + body)
    return lambda: next(requests)


def _around(requests: list[bytes]) -> Iterator[bytes]:
    while True:
        yield from requests


def _counted(heads: list[bytes], rest: bytes) -> Iterator[bytes]:
    seq = 0
    while True:
        end = b"%d%b" % (seq, rest)
        for start in heads:
            yield start + end
        seq += 1


def limited(requests: Iterator[bytes]) -> Source:
    """Take requests until there are no more."""
    return lambda: next(requests, None)
