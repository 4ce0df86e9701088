"""Responses as values, the headers that all of them have, and compression."""

import zlib
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from semel.wire.problems import Fields

_REQUEST_HEADERS: Final = (
    "Content-Type",
    "Authorization",
    "Accept",
    "If-Match",
    "If-None-Match",
    "Stream-TTL",
    "Stream-Expires-At",
    "Stream-Closed",
    "Stream-Seq",
    "Stream-Forked-From",
    "Stream-Fork-Offset",
    "Stream-Fork-Sub-Offset",
    "Producer-Id",
    "Producer-Epoch",
    "Producer-Seq",
    "Producer-Session",
    "Producer-Mode",
    "Producer-Cursor",
    "Producer-Strict",
    "Stream-Dedup",
    "Idempotency-Key",
    "Transaction-Id",
    "Transaction-Epoch",
    "Transaction-Seq",
    "X-Producer-Id",
    "X-Producer-Epoch",
    "X-Producer-Seq",
)
_RESPONSE_HEADERS: Final = (
    "Stream-Next-Offset",
    "Stream-Up-To-Date",
    "Stream-Closed",
    "Stream-Cursor",
    "Stream-TTL",
    "Stream-Expires-At",
    "Stream-Incarnation",
    "Stream-SSE-Data-Encoding",
    "Stream-Dedup",
    "Stream-Dedup-From",
    "Stream-Stable-Offset",
    "Stream-Blocked-By",
    "Stream-Blocked-Since",
    "Transaction-Epoch",
    "Transaction-Next-Seq",
    "Producer-Id",
    "Producer-Epoch",
    "Producer-Seq",
    "Producer-Dedup",
    "Producer-Expected-Seq",
    "Producer-Received-Seq",
    "Producer-Payload-Mismatch",
    "Producer-Receipt",
    "Idempotency-Window",
    "Idempotent-Replayed",
    "X-Stream-Offset",
    "X-Producer-Epoch",
    "X-Expected-Seq",
    "X-Received-Seq",
    "X-Error",
    "X-Current-Epoch",
    "ETag",
    "Location",
    "Retry-After",
)

METHODS: Final = "GET, POST, PUT, PATCH, DELETE, HEAD, OPTIONS"
GZIP_BYTES_MIN: Final = 1024
_GZIP_LEVEL: Final = 1  # fast, so that other requests do not wait for long
_GZIP_WINDOW: Final = 31  # zlib's code for the gzip format

# On every response, errors too (protocol 1.10).
CONSTANT_HEADERS: Final[Fields] = [
    ("X-Content-Type-Options", "nosniff"),
    ("Cross-Origin-Resource-Policy", "cross-origin"),
    ("Access-Control-Allow-Origin", "*"),
]
# Only scripts in browsers need it. A cache may send a stored response to any client, so all
# cacheable responses have it; a response to a write goes to its sender only.
EXPOSED_HEADER: Final = ("Access-Control-Expose-Headers", ", ".join(_RESPONSE_HEADERS))
PREFLIGHT_HEADERS: Final[Fields] = [
    ("Access-Control-Allow-Methods", METHODS),
    ("Access-Control-Allow-Headers", ", ".join(_REQUEST_HEADERS)),
    ("Access-Control-Max-Age", "86400"),
]

CONSTANT_LINES: Final = "".join([f"{name}: {value}\r\n" for name, value in CONSTANT_HEADERS])
EXPOSED_LINE: Final = f"{EXPOSED_HEADER[0]}: {EXPOSED_HEADER[1]}\r\n"


class Response(Struct, frozen=True, gc=False):
    """A response without the constant headers and those of the connection.

    `is_streamed`: the body follows in chunks. `is_to_gzip`: the headers already say gzip, but
    `compress` is still to be called.
    """

    status: int
    headers: Fields
    body: bytes = b""
    is_streamed: bool = False
    is_to_gzip: bool = False


def compress(response: Response) -> Response:
    """Return a response with a compressed body. May be called from any thread."""
    body = zlib.compress(response.body, _GZIP_LEVEL, _GZIP_WINDOW)
    return replace(response, body=body, is_to_gzip=False)
