"""Parses header values. A malformed value is refused, unless it is a flag or a q-value.

To refuse a value, the functions raise MalformedRequest with a problem that names the header.
"""

import re
from collections.abc import Mapping, Set
from datetime import UTC, datetime, timedelta
from typing import Final

from semel.model.limits import (
    MEDIA_TYPE_BYTES_MAX,
    NUMBER_MAX,
)
from semel.model.messages import JSON_MEDIA_TYPE, normalise
from semel.model.offsets import parse_offset
from semel.wire.problems import MalformedRequest, Problem, bad_header

# Maps header names in lower case to values. The values of a repeated header are joined with ", ".
# Bytes are decoded as Latin-1.
Headers = Mapping[str, str]

# If this header is `true`, a repeat is refused if its payload differs from the stored payload.
STRICT: Final = "producer-strict"

# Headers with a single value. A request that repeats one of them is refused, because the server
# would have to ignore all its values except one.
SINGLE: Final = frozenset(
    {
        "content-type",
        "content-encoding",
        "stream-ttl",
        "stream-expires-at",
        "stream-closed",
        "stream-seq",
        "stream-forked-from",
        "stream-fork-offset",
        "stream-fork-sub-offset",
        "producer-id",
        "producer-id*",
        "producer-epoch",
        "producer-seq",
        "producer-session",
        "producer-mode",
        "producer-cursor",
        "producer-expires",
        STRICT,
        "stream-dedup",
        "x-producer-id",
        "x-producer-id*",
        "x-producer-epoch",
        "x-producer-seq",
        "idempotency-key",
        "if-match",
        "transaction-id",
        "transaction-epoch",
        "transaction-seq",
        "message-key",
        "message-key*",
        "message-key-pointer",
        "stream-partition",
        "topic-partition-hint",
        "topic-partitions",
        "leader-epoch",
    }
)

_NUMBER_DIGITS: Final = len(str(NUMBER_MAX))
_CANONICAL: Final = re.compile(r"0|[1-9][0-9]*")
_WORD: Final = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
# A parameter may have a quoted value. Outside of it there is neither a quote nor a comma, because
# some programs, including web browsers, take a comma as the end of a media type and use the next.
_PLAIN: Final = r"[\t \x21\x23-\x2b\x2d-\x3a\x3c-\x7e]*+"
_QUOTED: Final = r'"(?:[\t \x21\x23-\x5b\x5d-\x7e]|\\[\t \x21-\x7e])*+"[ \t]*+'
_PARAMETER: Final = rf";{_PLAIN}(?:(?<==){_QUOTED})?"
_MEDIA_TYPE: Final = re.compile(rf"{_WORD}/{_WORD}[ \t]*+(?:{_PARAMETER})*+")
_COMMON_TYPES: Final = frozenset({"application/json", "application/octet-stream", "text/plain"})
_RFC_3339: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt]((?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9])(?:\.([0-9]+))?"
    r"(?:[Zz]|([+-])([01][0-9]|2[0-3]):([0-5][0-9]))"
)
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND: Final = timedelta(milliseconds=1)
_QUALITY: Final = re.compile(r"0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?")


def refuse_repeated(repeated: Set[str]) -> None:
    """Raise MalformedRequest if `repeated` contains a header that is allowed only once."""
    for name in sorted(SINGLE.intersection(repeated)):
        raise bad_header(name, "must be sent only once")


def read_text(headers: Headers, name: str, bytes_max: int) -> str | None:
    """Return the value of a header, checked by `check_text`; None if the header is absent."""
    value = headers.get(name)
    return None if value is None else check_text(value, name, bytes_max)


def check_text(value: str, name: str, bytes_max: int) -> str:
    """Return `value` if it has 1 to `bytes_max` characters, all of them printable ASCII.

    Otherwise raises MalformedRequest, with `name` as the header's name.
    """
    if not 0 < len(value) <= bytes_max:
        raise bad_header(name, f"must have 1 to {bytes_max} characters")
    if not (value.isascii() and value.isprintable()):
        raise bad_header(name, "must be printable ASCII")
    return value


def to_number(value: str) -> int | None:
    """Return the integer in a string of decimal digits; None for any other string.

    Leading zeros are allowed. The result is also None if the integer is greater than 2^53-1.
    """
    if len(value) > _NUMBER_DIGITS:
        value = value.lstrip("0")
    if len(value) > _NUMBER_DIGITS or not (value.isascii() and value.isdigit()):
        return None
    number = int(value)
    return number if number <= NUMBER_MAX else None


def read_number(headers: Headers, name: str) -> int | None:
    """Return the integer in a header; None if the header is absent.

    Raises MalformedRequest if the value contains a character other than a digit, or is too large.
    """
    value = headers.get(name)
    number = None if value is None else to_number(value)
    if number is None and value is not None:
        raise bad_header(name, f"must be an integer from 0 to {NUMBER_MAX}")
    return number


def read_canonical(headers: Headers, name: str, maximum: int = NUMBER_MAX) -> int | None:
    """Return the integer in a header; None if the header is absent.

    Raises MalformedRequest if the value has leading zeros, contains a character other than a digit,
    or is greater than `maximum`.
    """
    value = headers.get(name)
    if value is None:
        return None
    number = to_canonical(value)
    if number is None or number > maximum:
        raise bad_header(name, f"must be an integer from 0 to {maximum}, without leading zeros")
    return number


def to_canonical(value: str) -> int | None:
    """Return the integer in a string of decimal digits without leading zeros, else None."""
    return to_number(value) if _CANONICAL.fullmatch(value) else None


def read_range(headers: Headers, name: str) -> tuple[int, int] | None:
    """Return the range of integers in a header; None if the header is absent.

    `3-7` gives `(3, 7)`, and `3` gives `(3, 3)`. Raises MalformedRequest if the value is invalid.
    """
    value = headers.get(name)
    if value is None:
        return None
    start, dash, end = value.partition("-")
    first = to_number(start)
    last = to_number(end) if dash else first
    if first is None or last is None or first > last:
        raise bad_header(name, "must be an integer such as 3, or a range of integers such as 3-7")
    return first, last


def read_flag(headers: Headers, name: str) -> bool:
    """Return True if the value of a header is `true`, in upper or lower case.

    Any other value has the same effect as no header (protocol 1.1).
    """
    value = headers.get(name)
    return value is not None and value.lower() == "true"


def read_switch(headers: Headers, name: str) -> bool | None:
    """Return True for `on` and False for `off`; None for `inherit` or if the header is absent."""
    value = headers.get(name)
    if value not in (None, "on", "off", "inherit"):
        raise bad_header(name, "must be 'on', 'off' or 'inherit'")
    return None if value in (None, "inherit") else value == "on"


def read_instant(headers: Headers, name: str) -> int | None:
    """Return the RFC 3339 time in a header, in milliseconds since 1970.

    Returns None if the header is absent. Raises MalformedRequest if the value is invalid.
    """
    value = headers.get(name)
    if value is None:
        return None
    try:
        return parse_instant(value)
    except ValueError as error:
        raise bad_header(name, str(error)) from None


def parse_instant(value: str) -> int:
    """Return an RFC 3339 time in milliseconds since 1970. Raises ValueError if it is invalid.

    The message of the error can follow the name of the header or the field.
    """
    match = _RFC_3339.fullmatch(value)
    if match is None:
        raise ValueError("must be an RFC 3339 date and time, such as 2030-01-31T12:00:00Z")
    date, clock, fraction, sign, hours, minutes = match.groups()
    try:
        moment = datetime.fromisoformat(f"{date}T{clock}+00:00")
        if sign is not None:
            shift = timedelta(hours=int(hours), minutes=int(minutes))
            moment = moment - shift if sign == "+" else moment + shift
    except (ValueError, OverflowError):
        raise ValueError("contains a date that does not exist") from None
    return (moment - EPOCH) // MILLISECOND + int(((fraction or "") + "000")[:3])


def print_instant(instant_ms: int) -> str:
    """Return a time in milliseconds since 1970 as an RFC 3339 string with three decimals."""
    return to_datetime(instant_ms).replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def to_datetime(instant_ms: int) -> datetime:
    """Return a time in milliseconds since 1970 as a datetime in UTC."""
    return EPOCH + instant_ms * MILLISECOND


def read_content_type(headers: Headers) -> str | None:
    """Return the media type in Content-Type, unchanged; None if the header is absent or empty.

    Raises MalformedRequest if the value is not exactly one media type.
    """
    value = headers.get("content-type")
    if not value:
        return None
    if value in _COMMON_TYPES:
        return value
    if len(value) > MEDIA_TYPE_BYTES_MAX or _MEDIA_TYPE.fullmatch(value) is None:
        message = "must be a media type such as application/json"
        if "," in value:
            message = "must be one media type; a comma is allowed only in a quoted parameter"
        raise bad_header("content-type", message)
    return value


def refuse_encoding(headers: Headers) -> None:
    """Raise MalformedRequest if the body is compressed, because its real size is unknown."""
    value = headers.get("content-encoding")
    if value is not None and value.lower() != "identity":
        message = "the body must be sent without Content-Encoding"
        raise MalformedRequest(Problem(415, "unsupported_encoding", message))


def require_json(headers: Headers, body: bytes) -> None:
    """Raise MalformedRequest if the body is compressed, or has a type other than JSON.

    A web page can send a body of any other type, or of none, to a server of another origin, without
    asking the server first. An empty body needs no type.
    """
    refuse_encoding(headers)
    if body and normalise(headers.get("content-type", "")) != JSON_MEDIA_TYPE:
        message = (
            "the body must be sent with the header Content-Type: application/json"
            " (with curl: --json instead of -d)"
        )
        raise MalformedRequest(Problem(415, "unsupported_media_type", message))


def to_position(text: str) -> int | None:
    """Return the ordinal (integer value) of the offset in `text`; None if `text` is invalid.

    `text` is an offset as the server prints it, or an ordinal in decimal without leading zeros.
    """
    return to_number(text) if _CANONICAL.fullmatch(text) else parse_offset(text)


def read_if_match(headers: Headers) -> int | None:
    """Return the ordinal in If-Match; None if the header is absent. The value can be quoted."""
    value = headers.get("if-match")
    if value is None:
        return None
    is_quoted = len(value) > 1 and value[0] == value[-1] == '"'
    offset = to_position(value[1:-1] if is_quoted else value)
    if offset is None:
        raise bad_header("if-match", "must be the expected tail, as an offset or an integer")
    return offset


def _qualities(value: str) -> dict[str, float]:
    """Return the q-value of each entry in an Accept or Accept-Encoding header.

    An entry without a q-value has the q-value 1. A malformed q-value counts as 0.
    """
    qualities: dict[str, float] = {}
    for entry in value.lower().split(","):
        name, _, parameters = entry.partition(";")
        quality = "1"
        for parameter in parameters.split(";"):
            key, _, text = parameter.partition("=")
            if key.strip() == "q":
                quality = text.strip()
        qualities[name.strip()] = float(quality) if _QUALITY.fullmatch(quality) else 0.0
    return qualities


def accepts_gzip(headers: Headers) -> bool:
    """Return True if the client accepts gzip and does not prefer an uncompressed body.

    The q-value of gzip must be greater than 0, and at least as high as the q-value of `identity`.
    If `identity` is not in the list, its q-value counts as 0.
    """
    value = headers.get("accept-encoding")
    if value is None or "gzip" not in value.lower():
        return False
    qualities = _qualities(value)
    quality = qualities.get("gzip", qualities.get("x-gzip", 0.0))
    return quality > 0 and quality >= qualities.get("identity", 0.0)


def accepts_type(headers: Headers, media_type: str) -> bool:
    """Return True if Accept names this media type with a q-value above 0.

    A wildcard such as `*/*` does not count.
    """
    value = headers.get("accept")
    return value is not None and _qualities(value).get(media_type, 0.0) > 0


# ---- media types of the protocol -----------------------------------------------------------------

BATCH: Final = "application/vnd.semel.batch"
TOPIC_BATCH: Final = "application/vnd.semel.topic-batch"
FRAMES: Final = "application/vnd.semel.frames"
PROBLEM: Final = "application/problem+json"
EVENTS: Final = "text/event-stream"
