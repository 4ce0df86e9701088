"""The queries of GET and DELETE on streams, and the parameters that listings share."""

from collections.abc import Set
from typing import Final

from msgspec import Struct

from semel.model.commands import READ_COMMITTED, READ_UNCOMMITTED, Delete, Trim
from semel.model.limits import NUMBER_MAX
from semel.model.offsets import parse_offset
from semel.wire.headers import FRAMES, Headers, accepts_gzip, accepts_type, to_position
from semel.wire.paths import percent_decode
from semel.wire.problems import bad_request, parser

CATCH_UP: Final = "catch-up"
LONG_POLL: Final = "long-poll"
SSE: Final = "sse"
_READ: Final = frozenset({"offset", "live", "cursor", "isolation"})
_TRIM: Final = frozenset({"before"})
LIMIT_DEFAULT: Final = 100
LIMIT_MAX: Final = 1_000


class ReadRequest(Struct, frozen=True, gc=False):
    """A read. `offset` None: from the head; `is_now`: from the tail."""

    offset: int | None = None
    is_now: bool = False
    live: str = CATCH_UP
    cursor: int | None = None
    isolation: str = READ_UNCOMMITTED
    is_frames: bool = False
    accepts_gzip: bool = False
    if_none_match: str | None = None


def parse_query(query: str, names: Set[str]) -> dict[str, str]:
    """Return the parameters of these names; others are ignored. Raises MalformedRequest."""
    parameters: dict[str, str] = {}
    for part in query.split("&"):
        raw_name, _, raw_value = part.partition("=")
        name = _decode(raw_name)
        if name not in names:
            continue
        if name in parameters:
            raise bad_request("invalid_query", f"{name} was given more than once", field=name)
        parameters[name] = _decode(raw_value)
    return parameters


def _decode(raw: str) -> str:
    """Decode a name or a value; a malformed one becomes a text that no parameter accepts."""
    decoded = percent_decode(raw.replace("+", " ").encode("latin-1", "replace"))
    return "\ufffd" if decoded is None else decoded.decode("utf-8", "replace")


def read_limit(text: str | None) -> int:
    """Return the number of rows of one page. Raises MalformedRequest."""
    if text is None:
        return LIMIT_DEFAULT
    if not (text.isascii() and text.isdigit() and len(text) < 9 and 0 < int(text) <= LIMIT_MAX):
        raise bad_request("invalid_query", f"limit must be 1 to {LIMIT_MAX}", field="limit")
    return int(text)


@parser
def parse_get(query: str, headers: Headers) -> ReadRequest:
    """Parse a read. Its headers are lists, so repeated ones are fine: they come joined."""
    parameters = parse_query(query, _READ) if query else {}
    offset, is_now = _read_offset(parameters.get("offset"))
    live = parameters.get("live", CATCH_UP)
    live = live if live in (LONG_POLL, SSE) else CATCH_UP
    if live != CATCH_UP and "offset" not in parameters:
        raise bad_request("offset_required", f"live={live} needs an offset", field="offset")
    isolation = parameters.get("isolation", READ_UNCOMMITTED)
    if isolation not in (READ_UNCOMMITTED, READ_COMMITTED):
        message = f"isolation must be {READ_UNCOMMITTED} or {READ_COMMITTED}"
        raise bad_request("invalid_query", message, field="isolation")
    return ReadRequest(
        offset=offset,
        is_now=is_now,
        live=live,
        cursor=parse_cursor(parameters.get("cursor")),
        isolation=isolation,
        is_frames=accepts_type(headers, FRAMES),
        accepts_gzip=accepts_gzip(headers),
        if_none_match=headers.get("if-none-match"),
    )


def _read_offset(text: str | None) -> tuple[int | None, bool]:
    if text is None or text == "-1":
        return None, False
    if text == "now":
        return None, True
    offset = parse_offset(text)
    if offset is None:
        message = "offset must be -1, now, or an offset this server gave out"
        raise bad_request("invalid_offset", message, field="offset")
    return offset, False


@parser
def parse_delete(path: str, query: str, *, now_ms: int) -> Delete | Trim:
    """Parse a deletion, or with `before` a trim."""
    text = parse_query(query, _TRIM).get("before")
    if text is None:
        return Delete(path, now_ms)
    before = to_position(text)
    if before is None:
        raise bad_request("invalid_offset", "before must be an offset", field="before")
    return Trim(path, now_ms, before)


# ---- read cursors --------------------------------------------------------------------------------
# Numbers of intervals of time, so that a cache does not answer a live reader for ever (1.9).

_EPOCH_MS: Final = 1_728_432_000_000  # 2024-10-09T00:00:00Z
_INTERVAL_MS: Final = 20_000
_INTERVAL_S: Final = _INTERVAL_MS // 1000
JITTER_S_MAX: Final = 3600


def parse_cursor(text: str | None) -> int | None:
    """Return the cursor a client sends back; None if it is absent or not one of ours."""
    if text is None or len(text) > 16 or not (text.isascii() and text.isdigit()):
        return None
    return min(int(text), NUMBER_MAX)


def next_cursor(previous: int | None, *, now_ms: int, jitter_s: int) -> int:
    """Return the current interval, or a later one than the client's if that is not older.

    `jitter_s` is a random number from 1 to 3600.
    """
    current = max(0, (now_ms - _EPOCH_MS) // _INTERVAL_MS)
    if previous is None or previous < current:
        return current
    return previous + max(1, -(-jitter_s // _INTERVAL_S))
