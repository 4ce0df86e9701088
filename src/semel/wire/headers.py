"""Parses header values. A malformed value is refused, unless it is a flag or a q-value.

To refuse a value, the functions raise MalformedRequest with a problem that names the header.
"""

import re
from collections.abc import Callable, Mapping, Set
from datetime import UTC, datetime, timedelta
from typing import Final

from semel.model.commands import DENSE, SPARSE, ProducerTag, TxnTag
from semel.model.limits import (
    CURSOR_BYTES_MAX,
    EXPIRES_MS_MAX,
    EXPIRES_MS_MIN,
    MEDIA_TYPE_BYTES_MAX,
    NUMBER_MAX,
    PRODUCER_ID_BYTES_MAX,
    SESSION_BYTES_MAX,
    TXN_ID_BYTES_MAX,
)
from semel.model.messages import JSON_MEDIA_TYPE, normalise
from semel.model.offsets import parse_offset
from semel.wire.problems import MalformedRequest, Problem, bad_header, bad_request

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
# The forms of a value by RFC 8187. A language is not accepted, because it would be ignored.
_EXTENDED: Final = re.compile(r"(?i:UTF-8)''((?:[A-Za-z0-9!#$&+\-.^_`|~]|%[0-9A-Fa-f]{2})*+)")
_ESCAPED: Final = re.compile(rb"%([0-9A-Fa-f]{2})")
_CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
PRODUCER_ID_RULE: Final = (
    f"must have 1 to {PRODUCER_ID_BYTES_MAX} bytes as UTF-8, without control characters"
)
IDLE_SECONDS: Final = f"{EXPIRES_MS_MIN // 1000} to {EXPIRES_MS_MAX // 1000}"
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
    number = to_number(value) if _CANONICAL.fullmatch(value) else None
    if number is None or number > maximum:
        raise bad_header(name, f"must be an integer from 0 to {maximum}, without leading zeros")
    return number


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
    """Return True for `on` and False for `off`; None if the header is absent."""
    value = headers.get(name)
    if value not in (None, "on", "off"):
        raise bad_header(name, "must be 'on' or 'off'")
    return None if value is None else value == "on"


def read_instant(headers: Headers, name: str) -> int | None:
    """Return the RFC 3339 time in a header, in milliseconds since 1970.

    Returns None if the header is absent. Raises MalformedRequest if the value is invalid.
    """
    value = headers.get(name)
    if value is None:
        return None
    match = _RFC_3339.fullmatch(value)
    if match is None:
        raise bad_header(name, "must be an RFC 3339 date and time, such as 2030-01-31T12:00:00Z")
    date, clock, fraction, sign, hours, minutes = match.groups()
    try:
        moment = datetime.fromisoformat(f"{date}T{clock}+00:00")
        if sign is not None:
            shift = timedelta(hours=int(hours), minutes=int(minutes))
            moment = moment - shift if sign == "+" else moment + shift
    except (ValueError, OverflowError):
        raise bad_header(name, "contains a date that does not exist") from None
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
FRAMES: Final = "application/vnd.semel.frames"
PROBLEM: Final = "application/problem+json"
EVENTS: Final = "text/event-stream"


# ---- producer headers ----------------------------------------------------------------------------
# There are two dialects, and each is parsed into a ProducerTag.
# - The present dialect requires `Producer-Id`, `Producer-Seq` and at least one of `Producer-Epoch`,
#   `Producer-Session` and `Producer-Mode: sparse`. A sparse producer is allowed to omit
#   `Producer-Id`. Then the server chooses the id.
# - The older dialect requires `X-Producer-Id` and `X-Producer-Seq`. `X-Producer-Epoch` is optional.

_ID: Final = "producer-id"
_ID_EXTENDED: Final = "producer-id*"
_X_ID_EXTENDED: Final = "x-producer-id*"
_EPOCH: Final = "producer-epoch"
_SEQ: Final = "producer-seq"
_SESSION: Final = "producer-session"
_MODE: Final = "producer-mode"
_CURSOR: Final = "producer-cursor"
_EXPIRES: Final = "producer-expires"

_OURS: Final = frozenset({_ID, _ID_EXTENDED, _EPOCH, _SEQ, _SESSION, _MODE, _CURSOR, _EXPIRES})
_X: Final = frozenset({"x-producer-id", _X_ID_EXTENDED, "x-producer-epoch", "x-producer-seq"})
_ANY: Final = _OURS | _X


def speaks_x(headers: Headers) -> bool:
    """Return True if a request uses the X-Producer-* headers.

    The response to such a request must use the same headers.
    """
    return not _X.isdisjoint(headers)


def parse_producer(
    headers: Headers, *, is_strict: bool, fresh_id: Callable[[], str] | None = None
) -> ProducerTag | None:
    """Return the producer tag of an append; None if the append has no producer headers.

    If an append with `Producer-Mode: sparse` has no id, `fresh_id` is called to make one. If
    `fresh_id` is None, the id is required. `is_strict` acts like `Producer-Strict: true`.
    """
    if _ANY.isdisjoint(headers):
        return None
    is_strict = is_strict or read_flag(headers, STRICT)
    if not speaks_x(headers):
        return _parse_ours(headers, is_strict=is_strict, fresh_id=fresh_id)
    if not _OURS.isdisjoint(headers):
        raise bad_request("producer_headers_conflict", "send Producer-* or X-Producer-*, not both")
    name = read_producer_id(headers, "x-producer-id", _X_ID_EXTENDED)
    if name is None or "x-producer-seq" not in headers:
        raise _incomplete("X-Producer-* headers must include X-Producer-Id and X-Producer-Seq")
    epoch = read_number(headers, "x-producer-epoch")
    seq = read_number(headers, "x-producer-seq") or 0
    return ProducerTag(name, seq, seq, epoch, is_strict=is_strict)


def _parse_ours(
    headers: Headers, *, is_strict: bool, fresh_id: Callable[[], str] | None
) -> ProducerTag:
    mode = headers.get(_MODE)
    is_sparse = mode == SPARSE
    has_instance = _EPOCH in headers or _SESSION in headers or is_sparse
    name = read_producer_id(headers, _ID, _ID_EXTENDED)
    has_name = name is not None or (is_sparse and fresh_id is not None)
    if not (has_instance and has_name and _SEQ in headers):
        raise _incomplete(
            "send Producer-Id, Producer-Seq, and at least one of Producer-Epoch, Producer-Session"
            " and 'Producer-Mode: sparse'"
        )
    if name is None:
        assert fresh_id is not None
        name = fresh_id()
    epoch = read_number(headers, _EPOCH)
    if is_sparse:
        first, last = read_range(headers, _SEQ) or (0, 0)
    else:
        first = last = read_number(headers, _SEQ) or 0
    if mode not in (None, DENSE, SPARSE):
        raise bad_header(_MODE, f"must be '{DENSE}' or '{SPARSE}'")
    session = read_text(headers, _SESSION, SESSION_BYTES_MAX)
    cursor = read_text(headers, _CURSOR, CURSOR_BYTES_MAX)
    return ProducerTag(
        id=name,
        first_seq=first,
        last_seq=last,
        epoch=epoch,
        session=session,
        mode=SPARSE if is_sparse else DENSE,
        cursor=None if cursor is None else cursor.encode(),
        is_strict=is_strict,
        expires_ms=_read_expires(headers),
    )


def names_producer(headers: Headers) -> bool:
    """Return True if an append names its producer itself, so that the server chooses no id."""
    return _ID in headers or _ID_EXTENDED in headers


def read_producer_id(headers: Headers, name: str, extended: str) -> str | None:
    """Return the producer id in one of two headers; None if both are absent.

    `name` is the header for an id of printable ASCII. `extended` is the header for any id, encoded
    as RFC 8187 says: `UTF-8''` and the percent-encoded bytes.
    """
    value, encoded = headers.get(name), headers.get(extended)
    if encoded is None:
        if value is not None and not value.isascii():
            title = extended.title()
            raise bad_header(name, f"must be printable ASCII; send any other id as {title}")
        return None if value is None else check_text(value, name, PRODUCER_ID_BYTES_MAX)
    if value is not None:
        raise bad_request(
            "producer_headers_conflict", f"send {name.title()} or {extended.title()}, not both"
        )
    match = _EXTENDED.fullmatch(encoded)
    if match is None:
        form = "UTF-8'' and the id in UTF-8, with every byte but letters, digits and -._~ as %XX"
        raise bad_header(extended, f"must be {form} (RFC 8187)")
    raw = _ESCAPED.sub(lambda escape: bytes.fromhex(escape[1].decode()), match[1].encode())
    try:
        return check_producer_id(raw.decode(), extended)
    except UnicodeDecodeError:
        raise bad_header(extended, "is not valid UTF-8 after percent-decoding") from None


def check_producer_id(value: str, name: str) -> str:
    """Return `value` if it is a producer id; otherwise raise MalformedRequest for the header."""
    if not is_producer_id(value):
        raise bad_header(name, PRODUCER_ID_RULE)
    return value


def is_producer_id(value: str) -> bool:
    """Return True if a text has 1 to 256 bytes as UTF-8 and no control character."""
    return not _CONTROLS.search(value) and 0 < len(value.encode()) <= PRODUCER_ID_BYTES_MAX


def _read_expires(headers: Headers) -> int:
    """Return the idle time in Producer-Expires, in milliseconds; 0 if the header is absent."""
    value = headers.get(_EXPIRES)
    if value is None:
        return 0
    seconds = to_number(value) if _CANONICAL.fullmatch(value) else None
    expires_ms = None if seconds is None else to_idle_ms(seconds)
    if expires_ms is None:
        raise bad_header(_EXPIRES, f"must be an integer from {IDLE_SECONDS}, in seconds")
    return expires_ms


def to_idle_ms(seconds: int) -> int | None:
    """Return the idle time of a producer in milliseconds; None if it is too short or too long."""
    expires_ms = seconds * 1000
    return expires_ms if EXPIRES_MS_MIN <= expires_ms <= EXPIRES_MS_MAX else None


def _incomplete(message: str) -> Exception:
    return bad_request("producer_headers_incomplete", message)


# ---- transaction headers -------------------------------------------------------------------------
# An append to a transaction has `Transaction-Id` and `Transaction-Epoch`. An append to a staged
# transaction also has `Transaction-Seq`.

_TXN: Final = frozenset({"transaction-id", "transaction-epoch", "transaction-seq"})


def parse_transaction(headers: Headers, *, is_strict: bool = False) -> TxnTag | None:
    """Return the transaction tag of an append; None if the append has no transaction headers."""
    if _TXN.isdisjoint(headers):
        return None
    name = read_text(headers, "transaction-id", TXN_ID_BYTES_MAX)
    epoch = read_number(headers, "transaction-epoch")
    if name is None or epoch is None:
        message = "an append in a transaction needs both Transaction-Id and Transaction-Epoch"
        raise bad_request("transaction_headers_incomplete", message)
    is_strict = is_strict or read_flag(headers, STRICT)
    return TxnTag(name, epoch, read_number(headers, "transaction-seq"), is_strict)
