"""Parses the headers of an append: its producer, its transaction, and how a topic is grouped.

As in `headers.py`, the functions raise MalformedRequest for a malformed value.
"""

import re
from collections.abc import Callable
from typing import Final

from semel.model.commands import DENSE, SPARSE, ProducerTag, TxnTag
from semel.model.limits import (
    CURSOR_BYTES_MAX,
    EXPIRES_MS_MAX,
    EXPIRES_MS_MIN,
    PRODUCER_ID_BYTES_MAX,
    SESSION_BYTES_MAX,
    TOPIC_PARTITIONS_MAX,
    TXN_ID_BYTES_MAX,
)
from semel.model.partitioners import HASHES
from semel.wire.headers import (
    STRICT,
    Headers,
    check_text,
    read_flag,
    read_number,
    read_range,
    read_text,
    to_canonical,
)
from semel.wire.problems import bad_header, bad_request

# The forms of a value by RFC 8187. A language is not accepted, because it would be ignored.
_EXTENDED: Final = re.compile(r"(?i:UTF-8)''((?:[A-Za-z0-9!#$&+\-.^_`|~]|%[0-9A-Fa-f]{2})*+)")
_ESCAPED: Final = re.compile(rb"%([0-9A-Fa-f]{2})")
_CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
TOPIC_PARTITIONS: Final = "topic-partitions"
PRODUCER_ID_RULE: Final = (
    f"must have 1 to {PRODUCER_ID_BYTES_MAX} bytes as UTF-8, without control characters"
)
IDLE_SECONDS: Final = f"{EXPIRES_MS_MIN // 1000} to {EXPIRES_MS_MAX // 1000}"


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
    name = None
    if "x-producer-seq" in headers:
        name = read_producer_id(headers, "x-producer-id", _X_ID_EXTENDED)
    if name is None:
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
    has_name = names_producer(headers) or (is_sparse and fresh_id is not None)
    if not (has_instance and has_name and _SEQ in headers):
        raise _incomplete(
            "send Producer-Id, Producer-Seq, and at least one of Producer-Epoch, Producer-Session"
            " and 'Producer-Mode: sparse'"
        )
    name = read_producer_id(headers, _ID, _ID_EXTENDED)
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
    return check_producer_id(decode_extended(encoded, extended), extended)


def decode_extended(encoded: str, name: str) -> str:
    """Return the text that a header contains in the form of RFC 8187.

    Raises MalformedRequest for the header `name` if the value is malformed, or is not UTF-8.
    """
    match = _EXTENDED.fullmatch(encoded)
    if match is None:
        form = "UTF-8'' and the text in UTF-8, with every byte but letters, digits and -._~ as %XX"
        raise bad_header(name, f"must be {form} (RFC 8187)")
    raw = _ESCAPED.sub(lambda escape: bytes.fromhex(escape[1].decode()), match[1].encode())
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise bad_header(name, "is not valid UTF-8 after percent-decoding") from None


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
    seconds = to_canonical(value)
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


# ---- topics --------------------------------------------------------------------------------------


def read_grouping(headers: Headers) -> tuple[int | None, str | None]:
    """Return the number of partitions for which the client has grouped, and the partitioner.

    The header is an item of RFC 9651, such as `8;partitioner=murmur2`. The parameter can be absent.
    """
    value = headers.get(TOPIC_PARTITIONS)
    if value is None:
        return None, None
    count, *parameters = value.split(";")
    number = to_canonical(count)
    if number is None or not 0 < number <= TOPIC_PARTITIONS_MAX:
        reason = f"must be an integer from 1 to {TOPIC_PARTITIONS_MAX}, without leading zeros"
        raise bad_header(TOPIC_PARTITIONS, reason)
    if not parameters:
        return number, None
    name, _, partitioner = parameters[0].lstrip(" ").partition("=")
    if len(parameters) > 1 or name != "partitioner" or partitioner not in HASHES:
        known = " or ".join(f"partitioner={each}" for each in sorted(HASHES))
        raise bad_header(TOPIC_PARTITIONS, f"can have one parameter, {known}")
    return number, partitioner
