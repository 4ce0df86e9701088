"""The server's URLs: stream paths, names of topics, and query strings.

A stream's path is the percent-decoded part of the URL after `/v1/stream/`. The path is UTF-8
without control characters or backslashes, and has at most 512 bytes and 16 segments. No segment is
empty, `.` or `..`, and the first is not `__ds`. Two paths are different if their bytes differ.

The name of a topic is the part of the URL after `/v1/topics/`. It is like a stream's path, but has
at most 500 bytes and 15 segments, so that the paths of its partitions are valid.

Below `/v1/stream/__ds/`, in this spelling only, are the addresses of subscriptions. `__ds` stands
for a control prefix of the protocol, not for a stream.
"""

import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Final

from semel.model.limits import (
    PATH_BYTES_MAX,
    SUBSCRIPTION_ID_BYTES_MAX,
    TOPIC_PATH_BYTES_MAX,
)
from semel.wire.problems import Problem, bad_request

STREAM_PREFIX: Final = "/v1/stream/"
TOPIC_PREFIX: Final = "/v1/topics/"
CONTROL_ROOT: Final = "/v1/stream/__ds"
CONTROL_PREFIX: Final = CONTROL_ROOT + "/"
SUBSCRIPTIONS: Final = CONTROL_PREFIX + "subscriptions"
WEBHOOK_KEYS: Final = CONTROL_PREFIX + "jwks.json"
STREAMS: Final = "/v1/streams"
TOPICS: Final = "/v1/topics"
POLICIES: Final = "/v1/policies"
PRODUCERS: Final = "/v1/producers"
CLAIM: Final = "/v1/producers/claim"
EXPLAIN: Final = "/v1/producers/explain"
RETIRE: Final = "/v1/producers/retire"
TRANSACTIONS: Final = "/v1/transactions"
COMMITS: Final = "/v1/commits"
GROUPS: Final = "/v1/groups"
SINKS: Final = "/v1/sinks"
HEALTH: Final = "/health"
METRICS: Final = "/metrics"
TOKENS: Final = "/v1/tokens"
OWNERS: Final = "/v1/owners"
WHOAMI: Final = "/v1/whoami"

SEGMENTS_MAX: Final = 16
TOPIC_SEGMENTS_MAX: Final = SEGMENTS_MAX - 1
RESERVED: Final = "__ds"

# The common case: nothing is escaped, and no segment begins with a dot or an underscore.
_SEGMENT: Final = "[A-Za-z0-9~-][A-Za-z0-9._~-]*"
_PLAIN: Final = re.compile(f"{STREAM_PREFIX}({_SEGMENT}(?:/{_SEGMENT}){{0,15}})")
_PLAIN_TOPIC: Final = re.compile(f"{TOPIC_PREFIX}({_SEGMENT}(?:/{_SEGMENT}){{0,14}})")
_NEVER_RAW: Final = re.compile(r"[\x00-\x20\x7f?#\\]|[^\x00-\xff]")
_ESCAPE: Final = re.compile(rb"%([0-9A-Fa-f]{2})")
_STRAY_PERCENT: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_ENCODED_SLASH: Final = re.compile(r"%2[Ff]")
_NEVER: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\\]")
# All bytes except those that a URL path is allowed to contain unescaped (RFC 3986).
_TO_ESCAPE: Final = re.compile(rb"[^A-Za-z0-9\-._~!$&'()*+,;=:@/]")
_HOST: Final = re.compile(r"(?:[A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")


def percent_decode(raw: bytes) -> bytes | None:
    """Percent-decode `raw`. Return None if a `%` is not followed by two hexadecimal digits."""
    if b"%" not in raw:
        return raw
    if _STRAY_PERCENT.search(raw):
        return None
    return _ESCAPE.sub(lambda escape: bytes.fromhex(escape[1].decode()), raw)


@lru_cache(maxsize=4096)
def stream_path(raw: str) -> str | Problem:
    """Return the stream's path from the URL path `raw`, or a problem if `raw` is invalid.

    `raw` is still percent-encoded, and its bytes were decoded as Latin-1.
    """
    plain = _PLAIN.fullmatch(raw)
    if plain is not None and len(raw) <= PATH_BYTES_MAX:
        return plain[1]
    if not raw.startswith(STREAM_PREFIX):
        return Problem(404, "not_found", "the address of a stream must begin with /v1/stream/")
    return _decode_path(raw[len(STREAM_PREFIX) :], "stream's path", PATH_BYTES_MAX, SEGMENTS_MAX)


@lru_cache(maxsize=1024)
def topic_name(raw: str) -> str | Problem:
    """Return the name of a topic from the URL path `raw`, or a problem if `raw` is invalid.

    `raw` begins with TOPIC_PREFIX. Otherwise it is as for `stream_path`.
    """
    plain = _PLAIN_TOPIC.fullmatch(raw)
    if plain is not None and len(raw) <= TOPIC_PATH_BYTES_MAX:
        return plain[1]
    return _decode_path(
        raw[len(TOPIC_PREFIX) :], "topic's name", TOPIC_PATH_BYTES_MAX, TOPIC_SEGMENTS_MAX
    )


def _decode_path(encoded: str, what: str, bytes_max: int, segments_max: int) -> str | Problem:
    """Return the percent-decoded path of a stream, or name of a topic, or a problem."""
    try:
        path = _checked_path(encoded, bytes_max, segments_max)
    except ValueError as error:
        return Problem(400, "invalid_path", f"the {what} is invalid: {error}")
    if path.partition("/")[0] == RESERVED:
        return Problem(404, "reserved_path", f"paths below /v1/stream/{RESERVED} are reserved")
    return path


def _checked_path(encoded: str, bytes_max: int, segments_max: int) -> str:
    """Return the percent-decoded path. Raises ValueError with the reason if it is invalid."""
    if _ENCODED_SLASH.search(encoded):
        raise ValueError("a slash in the path must not be percent-encoded")
    path = _decoded_text(encoded, bytes_max)
    fault = check_segments(path, segments_max)
    if fault is not None:
        raise ValueError(fault)
    return path


def _decoded_text(encoded: str, bytes_max: int, what: str = "path") -> str:
    """Return the percent-decoded text. Raises ValueError with the reason if it is invalid."""
    if _NEVER_RAW.search(encoded):
        raise ValueError(f"the {what} contains a character that must be percent-encoded")
    decoded = percent_decode(encoded.encode("latin-1"))
    if decoded is None:
        raise ValueError("each '%' must be followed by two hexadecimal digits")
    if len(decoded) > bytes_max:
        raise ValueError(f"the {what} is longer than {bytes_max} bytes")
    try:
        return decoded.decode()
    except UnicodeDecodeError:
        raise ValueError(f"the {what} is not UTF-8") from None


def check_segments(path: str, segments_max: int = SEGMENTS_MAX) -> str | None:
    """Return what is wrong with the segments of a path, or None if they are valid."""
    if _NEVER.search(path):
        return "the path contains a control character or a backslash"
    segments = path.split("/")
    if len(segments) > segments_max:
        return f"the path has more than {segments_max} segments"
    if any(segment in ("", ".", "..") for segment in segments):
        return "a segment of the path is empty, '.' or '..'"
    return None


def linked_path(text: str) -> str:
    """Return the path of a stream in a request about a subscription, without slashes at its ends.

    Raises ValueError with the reason if no stream can have this path.
    """
    path = text.strip("/")
    fault = check_segments(path)
    if fault is not None:
        raise ValueError(fault)
    if path.partition("/")[0] == RESERVED:
        raise ValueError(f"paths below {RESERVED} are reserved")
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        raise ValueError("the path contains a lone surrogate") from None
    if size > PATH_BYTES_MAX:
        raise ValueError(f"the path is longer than {PATH_BYTES_MAX} bytes")
    return path


def linked_path_in(encoded: str) -> str | Problem:
    """Return the path of a stream in the address of a link, or a problem if it is invalid.

    `encoded` is what follows `/streams/`. Unlike in other addresses, a slash in the path can be
    percent-encoded, because clients encode the path as one segment.
    """
    try:
        return linked_path(_decoded_text(encoded, PATH_BYTES_MAX + len("//")))
    except ValueError as error:
        return Problem(400, "invalid_path", f"the stream's path is invalid: {error}")


def subscription_id(encoded: str) -> str | Problem:
    """Return the percent-decoded id of a subscription in an address, or a problem.

    Ids of dots are refused, because clients remove such segments from an address.
    """
    problem = "the id of the subscription is invalid: "
    try:
        name = _decoded_text(encoded, SUBSCRIPTION_ID_BYTES_MAX, "id")
    except ValueError as error:
        return Problem(400, "invalid_path", f"{problem}{error}")
    if name in ("", ".", "..") or _NEVER.search(name):
        reason = "it is empty, '.' or '..', or has a control character or a backslash"
        return Problem(400, "invalid_path", problem + reason)
    return name


def subscription_url(origin: str, name: str) -> str:
    """Return the absolute URL of a subscription. `origin` is as in `stream_url`."""
    return f"{origin}{SUBSCRIPTIONS}/{escape_path(name).replace('/', '%2F')}"


def names_in(raw: str) -> tuple[str, ...] | Problem:
    """Return the percent-decoded segments of the URL path `raw`, or a problem if one is invalid."""
    names = []
    for part in raw.split("/"):
        decoded = percent_decode(part.encode("latin-1"))
        if decoded is None:
            return Problem(400, "invalid_path", "two hexadecimal digits must follow each '%'")
        try:
            names.append(decoded.decode())
        except UnicodeDecodeError:
            return Problem(400, "invalid_path", "the address contains a name that is not UTF-8")
    return tuple(names)


def stream_url(origin: str, path: str) -> str:
    """Return the absolute URL of a stream. `origin` is for example `http://127.0.0.1:4437`."""
    return f"{origin}{STREAM_PREFIX}{escape_path(path)}"


def topic_url(origin: str, name: str) -> str:
    """Return the absolute URL of a topic. `origin` is as in `stream_url`."""
    return f"{origin}{TOPIC_PREFIX}{escape_path(name)}"


def escape_path(path: str) -> str:
    """Percent-encode a stream's path. Slashes stay as they are."""
    return _TO_ESCAPE.sub(lambda byte: b"%%%02X" % ord(byte[0]), path.encode()).decode()


def origin_of(host: str | None, scheme: str = "http") -> str | None:
    """Return the origin, such as `http://127.0.0.1:4437`, for the value of a Host header.

    Returns None if the header is absent or malformed.
    """
    if host is None or _HOST.fullmatch(host) is None:
        return None
    return f"{scheme}://{host}"


# ---- queries -------------------------------------------------------------------------------------

LIMIT_DEFAULT: Final = 100
LIMIT_MAX: Final = 1_000


def parse_query(
    query: str, names: Collection[str], required: Collection[str] = ()
) -> dict[str, str]:
    """Return the query parameters whose names are in `names`. All other parameters are ignored.

    Raises MalformedRequest if a parameter in `names` is repeated, or if a parameter in `required`
    is missing.
    """
    parameters: dict[str, str] = {}
    for part in query.split("&"):
        raw_name, _, raw_value = part.partition("=")
        name = _decode(raw_name)
        if name not in names:
            continue
        if name in parameters:
            raise bad_request("invalid_query", f"'{name}' must be sent only once", field=name)
        parameters[name] = _decode(raw_value)
    for name in required:
        if name not in parameters:
            raise bad_request("invalid_query", f"'{name}' is required", field=name)
    return parameters


def _decode(raw: str) -> str:
    """Percent-decode the name or the value of a query parameter.

    If `raw` is malformed, the result contains U+FFFD, the replacement character.
    """
    decoded = percent_decode(raw.replace("+", " ").encode("latin-1", "replace"))
    return "\ufffd" if decoded is None else decoded.decode("utf-8", "replace")


def read_choice(
    parameters: Mapping[str, str], name: str, choices: Collection[str], default: str
) -> str:
    """Return the value of a parameter, or `default` if the parameter is absent.

    Raises MalformedRequest if the value is not in `choices`.
    """
    value = parameters.get(name, default)
    if value not in choices:
        raise bad_request("invalid_query", f"'{name}' must be {' or '.join(choices)}", field=name)
    return value


def read_limit(text: str | None) -> int:
    """Return the parameter `limit`, the maximum number of rows on a page; LIMIT_DEFAULT for None.

    Raises MalformedRequest if `text` is not an integer from 1 to LIMIT_MAX.
    """
    if text is None:
        return LIMIT_DEFAULT
    if not (text.isascii() and text.isdigit() and len(text) < 9 and 0 < int(text) <= LIMIT_MAX):
        raise bad_request("invalid_query", f"'limit' must be from 1 to {LIMIT_MAX}", field="limit")
    return int(text)
