"""The strict parser of request heads.

A head that two parsers could understand differently is refused. For example, every line must end
with CRLF, although RFC 9112 allows servers to accept a single LF.

Parsed lines and complete heads are cached, because clients send most of them again and again.
"""

import re
from typing import Final, TypeVar

from msgspec.structs import replace

from semel.server.browsers import BrowserPolicy
from semel.server.http import Head, HttpRefused, Request, malformed
from semel.server.limits_http import HttpLimits
from semel.wire.routes import is_control

CHUNKED: Final = -1
LENGTH_DIGITS_MAX: Final = 18

_WORD: Final = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]++"
_FIELD: Final = re.compile(rf"({_WORD}):[ \t]*+([\t\x20-\x7e\x80-\xff]*+)")
_START: Final = re.compile(rf"({_WORD}) ([\x21\x22\x24-\x7e]++) HTTP/1\.([01])")
_OTHER_VERSION: Final = re.compile(rf"{_WORD} [\x21-\x7e]++ HTTP/(?!1\.[01])[0-9]\.[0-9]")
_ABSOLUTE: Final = re.compile(
    r"(?i:https?)://([A-Za-z0-9\-._~%!$&'()*+,;=:\[\]]++)(/[^?]*+)?(\?.*)?"
)
_HOST: Final = re.compile(
    r"(?:\[[0-9A-Fa-f:.]++\]|(?:[A-Za-z0-9\-._~!$&'()*+;=]|%[0-9A-Fa-f]{2})*+)(?::[0-9]{0,5})?"
)
_BEGINNING: Final = frozenset(
    rb"!#$%&'*+-.^_`|~0123456789" + bytes(range(65, 91)) + bytes(range(97, 123))
)
_ORIGIN: Final = re.compile(r"[A-Za-z]+://[^/?]*")  # of an absolute target

_MEMO_LINES_MAX: Final = 4096
_MEMO_LINE_BYTES_MAX: Final = 256

_Start = tuple[str, str, str, bool, str]
T = TypeVar("T")


def _remember(cache: dict[str, T], line: str, value: T) -> T:
    if len(line) <= _MEMO_LINE_BYTES_MAX:
        if len(cache) >= _MEMO_LINES_MAX:
            cache.clear()
        cache[line] = value
    return value


class _Fields(dict[str, tuple[str, str]]):
    """A cache of parsed header lines. It maps a line to the name and the value of the header."""

    def __missing__(self, line: str) -> tuple[str, str]:
        match = _FIELD.fullmatch(line)
        if match is None:
            raise malformed("a header line is malformed")
        return _remember(self, line, (match[1].lower(), match[2].rstrip(" \t")))


class _Starts(dict[str, _Start]):
    """A cache of parsed request lines.

    It maps a line to: method, path, query, True for HTTP/1.1, and the host if the URL has one.
    """

    def __missing__(self, line: str) -> _Start:
        match = _START.fullmatch(line)
        if match is None:
            if _OTHER_VERSION.fullmatch(line):
                raise HttpRefused(
                    505, "version_not_supported", "only HTTP/1.1 and HTTP/1.0 are supported"
                )
            raise malformed("the request line is malformed")
        path, query, host = _split_target(match[1], match[2])
        return _remember(self, line, (match[1], path, query, match[3] == "1", host))


_FIELDS: Final = _Fields()
_STARTS: Final = _Starts()
_HOSTS: Final[dict[str, bool]] = {}  # a cache of valid values of the header Host
_NOTHING: Final[frozenset[str]] = frozenset()


def _split_target(method: str, target: str) -> tuple[str, str, str]:
    """Return the path, query and host of a request target. Only an absolute target has a host."""
    host = ""
    if target[0] != "/":
        if target == "*" and method == "OPTIONS":
            return "*", "", ""
        absolute = _ABSOLUTE.fullmatch(target)
        if absolute is None:
            raise malformed("the request target is malformed")
        host, target = absolute[1], (absolute[2] or "/") + (absolute[3] or "")
    path, _, query = target.partition("?")
    return path, query, host


def parse_head(raw: bytes, limits: HttpLimits) -> Head:
    """Parse a request head. `raw` is the head without the two CRLFs at its end.

    Raises HttpRefused if the head is malformed or too large.
    """
    lines = raw.decode("latin-1").split("\r\n")
    if len(raw) > limits.header_line_bytes_max or len(raw) > limits.url_bytes_max:
        _check_lengths(lines, limits)
    if len(lines) > limits.header_count_max + 1:
        raise HttpRefused(
            431, "headers_too_large", f"the request has more than {limits.header_count_max} headers"
        )
    method, path, query, is_modern, target_host = _STARTS[lines[0]]
    del lines[0]
    headers = dict(map(_FIELDS.__getitem__, lines))
    repeated = _NOTHING
    if len(headers) != len(lines):
        repeated = _join_repeated(headers, lines)
    host = headers.get("host")
    if host not in _HOSTS or repeated:
        _check_host(host, repeated, is_modern)
    if target_host:  # RFC 9112, 3.2.2: the host in the target replaces the Host header
        headers["host"] = target_host
    return Head(
        method,
        path,
        query,
        headers,
        repeated,
        is_modern=is_modern,
        is_head=method == "HEAD",
        closes=not keeps_alive(headers.get("connection"), is_modern),
        is_control=is_control(path),
    )


def _check_lengths(lines: list[str], limits: HttpLimits) -> None:
    words = lines[0].split(" ")
    if len(words) == 3 and len(words[1]) > limits.url_bytes_max:
        raise _url_too_long(limits)
    if any(len(line) > limits.header_line_bytes_max for line in lines[1:]):
        raise HttpRefused(
            431,
            "headers_too_large",
            f"a header line is longer than {limits.header_line_bytes_max} bytes",
        )


def _join_repeated(headers: dict[str, str], lines: list[str]) -> frozenset[str]:
    """Set each repeated header to all its values, joined by commas. Return the repeated names."""
    values: dict[str, list[str]] = {}
    for line in lines:
        name, value = _FIELDS[line]
        values.setdefault(name, []).append(value)
    repeated = frozenset(name for name in values if len(values[name]) > 1)
    headers.update({name: ", ".join(values[name]) for name in repeated})
    return repeated


def _check_host(host: str | None, repeated: frozenset[str], is_modern: bool) -> None:
    if host is None:
        if is_modern:
            raise malformed("the Host header is missing")
        return
    if "host" in repeated:
        raise malformed("the request has more than one Host header")
    if _HOST.fullmatch(host) is None:
        raise malformed("the Host header is malformed")
    _remember(_HOSTS, host, True)


def head_too_large(raw: bytes, limits: HttpLimits) -> HttpRefused:
    """Return the refusal for a head that is too long: 414 if the URL is too long, else 431."""
    if len(_target_in(raw)) > limits.url_bytes_max:
        refused = _url_too_long(limits)
    else:
        message = f"the headers are longer than {limits.head_bytes_max} bytes"
        refused = HttpRefused(431, "headers_too_large", message)
    return for_head(refused, raw)


def head_too_slow(partial: bytes) -> HttpRefused:
    """Return the refusal for a head that does not become complete in time."""
    refused = HttpRefused(408, "request_timeout", "the headers arrive too slowly")
    return for_head(refused, partial)


def for_head(refused: HttpRefused, raw: bytes) -> HttpRefused:
    """Return a refusal in the form of the address in a head, which can be malformed or partial."""
    target = _target_in(raw).decode("latin-1")
    origin = _ORIGIN.match(target)
    refused.is_control = is_control(target[origin.end() if origin else 0 :].partition("?")[0])
    return refused


def _target_in(raw: bytes) -> bytes:
    """Return the second word of the first line, or nothing."""
    words = raw.removeprefix(b"\r\n").partition(b"\r\n")[0].split(b" ", 2)
    return words[1] if len(words) > 1 else b""


def _url_too_long(limits: HttpLimits) -> HttpRefused:
    return HttpRefused(414, "url_too_long", f"the URL is longer than {limits.url_bytes_max} bytes")


def check_partial_head(partial: bytes, limits: HttpLimits) -> None:
    """Raise HttpRefused if an incomplete head can no longer become a valid head."""
    if partial == b"\r":
        return
    if partial[0] not in _BEGINNING:
        raise malformed("the request line is malformed")
    try:
        check_line_ends(partial)
    except HttpRefused as refused:
        raise for_head(refused, partial) from None
    if len(partial) >= limits.head_bytes_max:
        raise head_too_large(partial, limits)


def check_line_ends(partial: bytes) -> None:
    """Raise HttpRefused for a CR without LF or an LF without CR.

    A CR that is the last byte of `partial` is allowed, because its LF can still arrive.
    """
    ends = partial.count(b"\r\n")
    returns = partial.count(b"\r") - partial.endswith(b"\r")
    if partial.count(b"\n") != ends or returns != ends:
        raise malformed("a line of the request does not end with CRLF")


def body_length(head: Head, limits: HttpLimits) -> int:
    """Return the length of the body, or CHUNKED.

    Raises HttpRefused if the length is ambiguous, malformed or too large.
    """
    length = head.headers.get("content-length")
    coding = head.headers.get("transfer-encoding")
    if coding is not None:
        if length is not None:
            raise malformed("a request cannot have both Content-Length and Transfer-Encoding")
        if not head.is_modern:
            raise malformed("an HTTP/1.0 request cannot have the header Transfer-Encoding")
        if coding.lower() != "chunked":
            raise malformed("the only supported Transfer-Encoding is chunked")
        return CHUNKED
    if length is None:
        return 0
    if not (length.isascii() and length.isdigit()) or len(length) > LENGTH_DIGITS_MAX:
        raise malformed("Content-Length is not a number of bytes")
    count = int(length)
    if count > limits.body_bytes_max:
        raise body_too_large(limits)
    return count


def body_too_large(limits: HttpLimits, head: Head | None = None) -> HttpRefused:
    """Return the refusal for a body that is too large."""
    message = f"a request body can have at most {limits.body_bytes_max} bytes"
    return HttpRefused(413, "body_too_large", message, head)


def keeps_alive(connection: str | None, is_modern: bool) -> bool:
    """Return True if the connection stays open after this request.

    `connection` is the value of the header Connection, or None if there is no such header.
    `is_modern` is true for HTTP/1.1, and false for HTTP/1.0.
    """
    if connection is None:
        return is_modern
    options = [option.strip(" \t") for option in connection.lower().split(",")]
    return "close" not in options and (is_modern or "keep-alive" in options)


def expects_continue(head: Head) -> bool:
    """Return True if the client waits for 100 Continue before it sends the body.

    Raises HttpRefused if Expect has a value other than `100-continue`. HTTP/1.0 ignores Expect.
    """
    expectation = head.headers.get("expect")
    if expectation is None or not head.is_modern:
        return False
    if expectation.lower() != "100-continue":
        raise HttpRefused(
            417, "expectation_failed", "the only supported Expect value is 100-continue"
        )
    return True


def check_trailer(line: str) -> None:
    """Raise HttpRefused if a trailer line is malformed. Valid trailers are ignored."""
    if _FIELD.fullmatch(line) is None:
        raise malformed("a trailer line is malformed")


# ---- the head cache ------------------------------------------------------------------------------
# A client that appends sends almost the same request head every time. Only the two numbers
# Content-Length and Producer-Seq change and, in an append to a topic, Message-Key. So these lines
# are stripped, and the rest of the head is the key of the cache (ADR 0012).
#
# The cache must not change the meaning of a head. Therefore one of the first two lines is stripped
# only if its value consists of digits, and Message-Key only if its value is a valid one. The rest
# is cached only if the complete head is valid, repeats no header, and has neither Transfer-Encoding
# nor Expect. Every other head is parsed line by line each time.


_LENGTH: Final = "content-length"
_SEQ: Final = "producer-seq"
_KEY: Final = "message-key"
_NUMBERS: Final = frozenset({_LENGTH, _SEQ})
_STRIPPED: Final = _NUMBERS | {_KEY}
# The start of each line, in the two usual spellings.
_LENGTH_LINE: Final = b"\r\nContent-Length: "
_LENGTH_LINE_LOWER: Final = b"\r\ncontent-length: "
_SEQ_LINE: Final = b"\r\nProducer-Seq: "
_SEQ_LINE_LOWER: Final = b"\r\nproducer-seq: "
_KEY_LINE: Final = b"\r\nMessage-Key: "
_KEY_LINE_LOWER: Final = b"\r\nmessage-key: "
_KEY_VALUE: Final = re.compile(rb"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
_TOPIC_APPEND: Final = b"POST /v1/topics/"
_SPECIAL: Final = frozenset({"transfer-encoding", "expect"})
_DIGITS_MAX: Final = 15  # a Producer-Seq with 15 digits is never too large
_CACHED_MAX: Final = 4096
_CACHED_BYTES_MAX: Final = 512


class HeadCache:
    """Parses the request heads of one listener. A head is cached when it occurs a second time.

    What `policy` decides about a head is part of the head, so it holds for a cached head as well.
    """

    def __init__(self, limits: HttpLimits, policy: BrowserPolicy | None = None) -> None:
        self._limits = limits
        self._policy = policy or BrowserPolicy()
        # If a head has at most this many bytes, none of its lines can be too long.
        self._bytes_max = min(_CACHED_BYTES_MAX, limits.header_line_bytes_max, limits.url_bytes_max)
        self._heads: dict[bytes, Head] = {}
        self._once: set[int] = set()  # hashes of heads that have occurred before

    def read(self, raw: bytes) -> tuple[Request, int]:
        """Return the request without its body, and either the length of the body or CHUNKED.

        `raw` is the request head without the two CRLFs at its end. Raises HttpRefused if the
        request is malformed or too large.
        """
        if len(raw) > self._bytes_max:
            head, count = self._parse(raw)
            return Request(head), count
        rest, length, seq = _split_numbers(raw)
        key = b""
        if raw.startswith(_TOPIC_APPEND):
            rest, key = _split_key(rest)
        cached = self._heads.get(rest)
        # Without the stripped lines, a head that has one of them equals one that does not.
        if (
            cached is None
            or cached.has_seq != (seq != b"")
            or cached.has_length != (length != b"")
            or cached.has_key != (key != b"")
        ):
            head, count = self._parse(raw)
            is_free = cached is None and self._is_repeat(rest)
            if is_free and self._is_plain(head, length, seq, key):
                self._add(rest, head, has_key=key != b"")
            return Request(head), count
        count = int(length) if length else 0
        if count > self._limits.body_bytes_max:
            raise body_too_large(self._limits, cached)
        return Request(cached, b"", length, seq, key), count

    def _parse(self, raw: bytes) -> tuple[Head, int]:
        try:
            head = parse_head(raw, self._limits)
        except HttpRefused as refused:
            raise for_head(refused, raw) from None
        self._policy.apply(head)
        try:
            count = body_length(head, self._limits)
            head.is_expecting = expects_continue(head)
        except HttpRefused as refused:
            refused.cors, refused.is_control = head.cors, head.is_control
            raise
        return head, count

    def _is_repeat(self, rest: bytes) -> bool:
        """Return True if `rest` has occurred before. Otherwise remember it and return False.

        `rest` is the part of a head that is the key of the cache.
        """
        digest = hash(rest)
        if digest in self._once:
            return True
        if len(self._once) >= _CACHED_MAX:
            self._once.clear()
        self._once.add(digest)
        return False

    def _is_plain(self, head: Head, length: bytes, seq: bytes, key: bytes) -> bool:
        """Return True if `head` can be cached without the lines that were stripped.

        `length`, `seq` and `key` are the values that were found in these lines. A value is empty if
        it was not found.
        """
        headers = head.headers
        return (
            not head.repeated
            and _SPECIAL.isdisjoint(headers)
            and (_LENGTH in headers) == bool(length)
            and (_SEQ in headers) == bool(seq)
            and (not key or _KEY in headers)
            and len(headers) + 2 <= self._limits.header_count_max  # room for stripped lines
        )

    def _add(self, rest: bytes, head: Head, *, has_key: bool) -> None:
        if len(self._heads) >= _CACHED_MAX:
            self._heads.clear()
        has_length, has_seq = _LENGTH in head.headers, _SEQ in head.headers
        stripped = _STRIPPED if has_key else _NUMBERS
        headers = {name: head.headers[name] for name in head.headers if name not in stripped}
        self._heads[rest] = replace(
            head, headers=headers, has_length=has_length, has_seq=has_seq, has_key=has_key
        )


def _split_numbers(raw: bytes) -> tuple[bytes, bytes, bytes]:
    """Return `raw` without the lines Content-Length and Producer-Seq, and their two numbers.

    If a line is missing or has no valid number, the line stays, and its number is empty. The code
    for the two lines is the same. It is written twice, because this runs for every request.
    """
    rest, length = raw, b""
    before, line, after = raw.partition(_LENGTH_LINE)
    if not line:
        before, line, after = raw.partition(_LENGTH_LINE_LOWER)
    if line:
        digits, end, suffix = after.partition(b"\r\n")
        if digits.isdigit() and len(digits) <= _DIGITS_MAX:
            rest, length = before + end + suffix, digits
    before, line, after = rest.partition(_SEQ_LINE)
    if not line:
        before, line, after = rest.partition(_SEQ_LINE_LOWER)
        if not line:
            return rest, length, b""
    digits, end, suffix = after.partition(b"\r\n")
    if digits.isdigit() and len(digits) <= _DIGITS_MAX:
        return before + end + suffix, length, digits
    return rest, length, b""


def _split_key(raw: bytes) -> tuple[bytes, bytes]:
    """Return `raw` without the line Message-Key, and the key.

    If the line is missing or has no valid key, the line stays, and the key is empty.
    """
    before, line, after = raw.partition(_KEY_LINE)
    if not line:
        before, line, after = raw.partition(_KEY_LINE_LOWER)
        if not line:
            return raw, b""
    key, end, suffix = after.partition(b"\r\n")
    if _KEY_VALUE.fullmatch(key) is None:
        return raw, b""
    return before + end + suffix, key
