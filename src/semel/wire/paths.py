"""Stream names and the URLs they live under.

A name is what follows `/v1/stream/`, percent-decoded: UTF-8 without control characters and
backslashes, at most 512 bytes and 16 segments, none of them empty, `.` or `..`. Nothing is
normalised: names of other bytes are other names.
"""

import re
from functools import lru_cache
from typing import Final

from semel.model.limits import PATH_BYTES_MAX
from semel.wire.problems import Problem

PREFIX: Final = "/v1/stream/"
SEGMENTS_MAX: Final = 16
RESERVED: Final = "__ds"

# The usual name: nothing escaped, and no segment begins with a dot or an underscore.
_PLAIN: Final = re.compile(
    r"/v1/stream/([A-Za-z0-9~-][A-Za-z0-9._~-]*(?:/[A-Za-z0-9~-][A-Za-z0-9._~-]*){0,15})"
)
_NEVER_RAW: Final = re.compile(r"[\x00-\x20\x7f?#\\]|[^\x00-\xff]")
_ESCAPE: Final = re.compile(rb"%([0-9A-Fa-f]{2})")
_STRAY_PERCENT: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_ENCODED_SLASH: Final = re.compile(r"%2[Ff]")
_NEVER: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\\]")
# RFC 3986: what a path may hold as it is.
_TO_ESCAPE: Final = re.compile(rb"[^A-Za-z0-9\-._~!$&'()*+,;=:@/]")
_HOST: Final = re.compile(r"(?:[A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")


def percent_decode(raw: bytes) -> bytes | None:
    """Undo percent-encoding; None if a `%` is not followed by two hexadecimal digits."""
    if b"%" not in raw:
        return raw
    if _STRAY_PERCENT.search(raw):
        return None
    return _ESCAPE.sub(lambda found: bytes.fromhex(found[1].decode()), raw)


@lru_cache(maxsize=4096)
def stream_path(raw: str) -> str | Problem:
    """Read the stream's name from the path of a URL, still encoded, its bytes as Latin-1."""
    plain = _PLAIN.fullmatch(raw)
    if plain is not None and len(raw) <= PATH_BYTES_MAX:
        return plain[1]
    if not raw.startswith(PREFIX):
        return Problem(404, "not_found", "streams live under /v1/stream/")
    encoded = raw[len(PREFIX) :]
    if _NEVER_RAW.search(encoded):
        return _bad_path("a character in it must be percent-encoded")
    if _ENCODED_SLASH.search(encoded):
        return _bad_path("a slash in it must not be percent-encoded")
    decoded = percent_decode(encoded.encode("latin-1"))
    if decoded is None:
        return _bad_path("'%' must be followed by two hexadecimal digits")
    if len(decoded) > PATH_BYTES_MAX:
        return _bad_path(f"it is longer than {PATH_BYTES_MAX} bytes")
    try:
        path = decoded.decode()
    except UnicodeDecodeError:
        return _bad_path("it is not UTF-8")
    return _check_segments(path)


def _check_segments(path: str) -> str | Problem:
    if _NEVER.search(path):
        return _bad_path("it holds a control character or a backslash")
    segments = path.split("/")
    if len(segments) > SEGMENTS_MAX:
        return _bad_path(f"it has more than {SEGMENTS_MAX} segments")
    if any(segment in ("", ".", "..") for segment in segments):
        return _bad_path("a segment of it is empty, '.' or '..'")
    if segments[0] == RESERVED:
        return Problem(404, "reserved_path", f"paths below /v1/stream/{RESERVED} are reserved")
    return path


def _bad_path(reason: str) -> Problem:
    return Problem(400, "invalid_path", f"the stream's path is refused: {reason}")


def names_in(raw: str) -> tuple[str, ...] | Problem:
    """Read the names that follow another prefix, each percent-decoded by itself."""
    names = []
    for part in raw.split("/"):
        decoded = percent_decode(part.encode("latin-1"))
        if decoded is None:
            return Problem(400, "invalid_path", "'%' must be followed by two hexadecimal digits")
        try:
            names.append(decoded.decode())
        except UnicodeDecodeError:
            return Problem(400, "invalid_path", "a name in the address is not UTF-8")
    return tuple(names)


def stream_url(origin: str, path: str) -> str:
    """Print a stream's absolute URL; `origin` is such as `http://127.0.0.1:4437`."""
    escaped = _TO_ESCAPE.sub(lambda found: b"%%%02X" % ord(found[0]), path.encode())
    return f"{origin}{PREFIX}{escaped.decode()}"


def origin_of(host: str | None, scheme: str = "http") -> str | None:
    """Read the origin a client means from its Host header; None if that is no host."""
    if host is None or _HOST.fullmatch(host) is None:
        return None
    return f"{scheme}://{host}"
