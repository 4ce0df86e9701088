"""Responses as values; the headers that are the same on all of them; compression."""

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
_GZIP_LEVEL: Final = 1  # a read must not hold up the others
_GZIP_WINDOW: Final = 31  # zlib's way to say: gzip

# On every answer, errors too (protocol 1.10).
CONSTANT_HEADERS: Final[Fields] = [
    ("X-Content-Type-Options", "nosniff"),
    ("Cross-Origin-Resource-Policy", "cross-origin"),
    ("Access-Control-Allow-Origin", "*"),
]
# Only a script in a browser needs it. A cache may hand an answer to anybody, so the answers it may
# keep must all have it; an answer to a write is nobody else's.
EXPOSED_HEADER: Final = ("Access-Control-Expose-Headers", ", ".join(_RESPONSE_HEADERS))
PREFLIGHT_HEADERS: Final[Fields] = [
    ("Access-Control-Allow-Methods", METHODS),
    ("Access-Control-Allow-Headers", ", ".join(_REQUEST_HEADERS)),
    ("Access-Control-Max-Age", "86400"),
]

CONSTANT_LINES: Final = "".join([f"{name}: {value}\r\n" for name, value in CONSTANT_HEADERS])
EXPOSED_LINE: Final = f"{EXPOSED_HEADER[0]}: {EXPOSED_HEADER[1]}\r\n"


class Response(Struct, frozen=True, gc=False):
    """An answer without the constant headers, and without those of the connection.

    `is_streamed`: the body follows, piece by piece. `is_to_gzip`: the headers say gzip already,
    and `compress` has still to be called.
    """

    status: int
    headers: Fields
    body: bytes = b""
    is_streamed: bool = False
    is_to_gzip: bool = False


def compress(response: Response) -> Response:
    """Do what the headers of a response say already. May be called from any thread."""
    body = zlib.compress(response.body, _GZIP_LEVEL, _GZIP_WINDOW)
    return replace(response, body=body, is_to_gzip=False)
