"""The client's HTTP requests: targets, headers, and encoding to bytes."""

import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final, Literal
from urllib.parse import quote

from msgspec import Struct

from semel.client.addresses import Address, stream_reference
from semel.client.extras import milliseconds
from semel.wire.headers import print_instant


def query(**values: str | int | None) -> str:
    """Return a query string such as `?a=b&c=d`. Values that are None are left out."""
    pairs = [
        f"{name}={quote(str(value), safe='-._~')}"
        for name, value in values.items()
        if value is not None
    ]
    return "?" + "&".join(pairs) if pairs else ""


# ---- requests as bytes ---------------------------------------------------------------------------

Fields = tuple[tuple[str, str], ...]

_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
# Characters that could end a header line, or that HTTP does not allow in a header line.
_NEVER: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]|[^\x00-\xff]")
# Headers that the client sets itself.
_OURS: Final = frozenset({"host", "content-length", "transfer-encoding", "connection", "expect"})
AUTHORIZATION: Final = "authorization"
_SECRET: Final = frozenset({AUTHORIZATION, "proxy-authorization", "cookie"})


class Request(Struct, frozen=True):
    """An HTTP request.

    If `body` is None, the Content-Length header is omitted. If `body` is empty, Content-Length is
    0. If `is_streamed` is True, the body of the response is read in parts.

    A request with a `bearer` token has this one instead of the client's own token.
    """

    method: str
    target: str
    headers: Fields = ()
    body: bytes | None = None
    is_streamed: bool = False
    bearer: str | None = None

    def __repr__(self) -> str:
        """Return the request line. The headers can contain a token."""
        return f"Request({self.method} {self.target})"

    @property
    def authorization(self) -> str | None:
        """The value of the Authorization header, or None if these headers do not have it."""
        found = [value for name, value in self.headers if name.lower() == AUTHORIZATION]
        return found[0] if found else None


def fixed_lines(address: Address, headers: Iterable[tuple[str, str]] = ()) -> bytes:
    """Return the header lines that every request to this server has: Host and `headers`."""
    lines = [f"Host: {address.authority}\r\n"]
    lines += [_line(name, value) for name, value in headers]
    return "".join(lines).encode("latin-1")


def render(request: Request, fixed: bytes) -> bytes:
    """Encode a request as bytes. `fixed` is the result of `fixed_lines`."""
    lines = [_line(name, value) for name, value in request.headers]
    if request.bearer is not None:
        fixed = _without_token(fixed)
        lines.append(_line("Authorization", f"Bearer {request.bearer}"))
    if request.body is not None:
        lines.append(f"Content-Length: {len(request.body)}\r\n")
    start = f"{request.method} {request.target} HTTP/1.1\r\n".encode("ascii")
    return b"".join((start, fixed, "".join(lines).encode("latin-1"), b"\r\n", request.body or b""))


def _without_token(fixed: bytes) -> bytes:
    """Return header lines without those that have the client's own token."""
    lines = fixed.splitlines(keepends=True)
    name = AUTHORIZATION.encode() + b":"
    return b"".join(line for line in lines if not line.lower().startswith(name))


def own_headers(
    token: str | None, headers: Mapping[str, str] | None, *, has_token: bool = False
) -> Fields:
    """Return `headers`, and an Authorization header if `token` is not None.

    `has_token` is True if a function computes the token. Raises ValueError if a header cannot be
    sent.
    """
    fields = list((headers or {}).items())
    for name, value in fields:
        if name.lower() in _OURS:
            raise ValueError(f"do not pass the header {name}; the client sets this header itself")
        check_header(name, value)
    is_twice = any(name.lower() == AUTHORIZATION for name, _ in fields)
    if is_twice and (token is not None or has_token):
        raise ValueError("pass either token= or an Authorization header, not both")
    if token is not None:
        fields.append(("Authorization", f"Bearer {token}"))
        check_header(*fields[-1])
    return tuple(fields)


def check_header(name: str, value: str) -> None:
    """Raise ValueError if a header with this name and this value cannot be sent."""
    _line(name, value)


def _line(name: str, value: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise ValueError(
            f"{name!r} is not a valid header name; expected letters, digits and hyphens"
        )
    if _NEVER.search(value) is not None or value != value.strip(" \t"):
        raise ValueError(
            f"{_shown(name, value)} cannot be sent as the value of the header {name}; use Latin-1"
            " text without control characters and without spaces at the ends"
        )
    return f"{name}: {value}\r\n"


def _shown(name: str, value: str) -> str:
    """Return the value of a header for a message. A value with credentials is not shown."""
    return "this text" if name.lower() in _SECRET else repr(value)


# ---- the headers of appends and creations --------------------------------------------------------


def producer_id_field(producer_id: str) -> tuple[str, str]:
    """Return the header with a producer's id.

    An id that is not ASCII is percent-encoded as RFC 8187 describes, under the name `Producer-Id*`.
    """
    if producer_id.isascii():
        return "Producer-Id", producer_id
    return "Producer-Id*", f"UTF-8''{quote(producer_id, safe='')}"


class ProducerHeaders(Struct, frozen=True):
    """The producer headers of an append: id, sequence, and either the epoch or the session.

    The server removes a producer after `expires` seconds without an append, if this is not None.
    """

    producer_id: str
    seq: int
    epoch: int | None = None
    session: str | None = None
    expires: int | None = None


class TransactionHeaders(Struct, frozen=True):
    """The transaction that an append belongs to.

    In a staged transaction, `seq` is the number of appends that the transaction has already staged.
    In other transactions, `seq` is None.
    """

    transaction_id: str
    epoch: int
    seq: int | None = None


class AppendHeaders(Struct, frozen=True):
    """The conditions of an append, and the ids that let the server recognise a repeat."""

    seq: str | None = None
    if_match: str | None = None
    idempotency_key: str | None = None
    is_closing: bool = False
    tag: ProducerHeaders | None = None
    transaction: TransactionHeaders | None = None

    @property
    def headers(self) -> Fields:
        tag, transaction = self.tag, self.transaction
        id_fields = {} if tag is None else dict([producer_id_field(tag.producer_id)])
        fields = {
            **id_fields,
            "Producer-Seq": None if tag is None else str(tag.seq),
            "Producer-Epoch": None if tag is None or tag.epoch is None else str(tag.epoch),
            "Producer-Session": None if tag is None else tag.session,
            "Producer-Expires": None if tag is None or tag.expires is None else str(tag.expires),
            "Transaction-Id": None if transaction is None else transaction.transaction_id,
            "Transaction-Epoch": None if transaction is None else str(transaction.epoch),
            "Transaction-Seq": None
            if transaction is None or transaction.seq is None
            else str(transaction.seq),
            "Stream-Seq": self.seq,
            "If-Match": None if self.if_match is None else f'"{self.if_match}"',
            "Idempotency-Key": self.idempotency_key,
            "Stream-Closed": "true" if self.is_closing else None,
        }
        return tuple((name, value) for name, value in fields.items() if value is not None)

    @property
    def is_tagged(self) -> bool:
        """True if the server recognises a repeat of the append and returns the original result."""
        return (self.idempotency_key, self.tag, self.transaction) != (None, None, None)

    @property
    def is_numbered(self) -> bool:
        """True if the append has a producer's sequence or belongs to a transaction."""
        return self.tag is not None or self.transaction is not None

    @property
    def is_staged(self) -> bool:
        """True if the append belongs to a staged transaction.

        Messages in a staged transaction get their offsets when the transaction commits.
        """
        return self.transaction is not None and self.transaction.seq is not None

    @property
    def is_guarded(self) -> bool:
        """True if the append has a condition, but no id that lets the server recognise a repeat.

        The server refuses a repeat if the condition no longer holds. Such a refusal does not show
        whether the first request was applied.
        """
        return not self.is_tagged and (self.if_match is not None or self.seq is not None)


CLOSING: Final = AppendHeaders(is_closing=True)


DedupSetting = bool | Literal["inherit"] | None


class CreateHeaders(Struct, frozen=True):
    """The configuration of a new stream. `forked_from` is a path or a request target.

    With `dedup="inherit"`, a fork does not get the setting of its source.
    """

    content_type: str | None = None
    ttl: int | timedelta | None = None
    expires_at: datetime | None = None
    is_closed: bool = False
    forked_from: str | None = None
    fork_offset: str | None = None
    fork_sub_offset: int | None = None
    dedup: DedupSetting = None

    @property
    def headers(self) -> Fields:
        """The headers of the request. Raises ValueError if the ttl, a time or a path is invalid."""
        fields = {
            "Content-Type": self.content_type,
            "Stream-TTL": None if self.ttl is None else str(ttl_seconds(self.ttl)),
            "Stream-Expires-At": None
            if self.expires_at is None
            else print_instant(milliseconds(self.expires_at)),
            "Stream-Closed": "true" if self.is_closed else None,
            "Stream-Forked-From": (
                None if self.forked_from is None else stream_reference(self.forked_from)
            ),
            "Stream-Fork-Offset": self.fork_offset,
            "Stream-Fork-Sub-Offset": (
                None if self.fork_sub_offset is None else str(self.fork_sub_offset)
            ),
            "Stream-Dedup": _print_dedup(self.dedup),
        }
        return tuple((name, value) for name, value in fields.items() if value is not None)


def _print_dedup(dedup: DedupSetting) -> str | None:
    if isinstance(dedup, str) and dedup != "inherit":
        raise ValueError(f"dedup={dedup!r} is invalid; expected True, False, 'inherit' or None")
    return dedup if dedup is None or isinstance(dedup, str) else ("off", "on")[dedup]


def ttl_seconds(ttl: int | timedelta) -> int:
    """Return a time to live in seconds. Raises ValueError if it is not a whole number from 0 on."""
    seconds = ttl.total_seconds() if isinstance(ttl, timedelta) else ttl
    if seconds != int(seconds) or seconds < 0:
        raise ValueError(f"ttl={seconds} is invalid; expected a whole number of seconds, 0 or more")
    return int(seconds)
