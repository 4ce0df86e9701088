"""The head of a request, read strictly: what two parsers could read differently is refused.

The grammar is that of RFC 9112 without its leniencies: lines end with CRLF, fields are not folded,
one blank parts the words of the request line, and a body has exactly one way to tell its length.

A client repeats most of its header lines word for word, so lines are checked once and remembered.
"""

import re
from typing import Final

from msgspec.structs import replace

from semel.server.http import Head, HttpRefused, Request, malformed
from semel.server.limits_http import HttpLimits

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

_WRITES: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})

_MEMO_LINES_MAX: Final = 4096
_MEMO_LINE_BYTES_MAX: Final = 256

_Start = tuple[str, str, str, bool, str]


class _Fields(dict[str, tuple[str, str]]):
    """Header lines that were checked before, and what they say."""

    def __missing__(self, line: str) -> tuple[str, str]:
        match = _FIELD.fullmatch(line)
        if match is None:
            raise malformed("a header line is malformed")
        field = match[1].lower(), match[2].rstrip(" \t")
        if len(line) <= _MEMO_LINE_BYTES_MAX:
            if len(self) >= _MEMO_LINES_MAX:
                self.clear()
            self[line] = field
        return field


class _Starts(dict[str, _Start]):
    """Request lines that were checked before: method, path, query, whether HTTP/1.1, host."""

    def __missing__(self, line: str) -> _Start:
        match = _START.fullmatch(line)
        if match is None:
            if _OTHER_VERSION.fullmatch(line):
                raise HttpRefused(
                    505, "version_not_supported", "only HTTP/1.1 and HTTP/1.0 are spoken"
                )
            raise malformed("the request line is malformed")
        path, query, host = _split_target(match[1], match[2])
        start = match[1], path, query, match[3] == "1", host
        if len(line) <= _MEMO_LINE_BYTES_MAX:
            if len(self) >= _MEMO_LINES_MAX:
                self.clear()
            self[line] = start
        return start


_FIELDS: Final = _Fields()
_STARTS: Final = _Starts()
_HOSTS: Final[set[str | None]] = set()  # that were checked before
_NOTHING: Final[frozenset[str]] = frozenset()


def _split_target(method: str, target: str) -> tuple[str, str, str]:
    """Split into path, query and host; that is empty unless the target is a whole URL."""
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
    """Read a head, without its last two line ends."""
    lines = raw.decode("latin-1").split("\r\n")
    if len(raw) > limits.header_line_bytes_max or len(raw) > limits.url_bytes_max:
        _check_lengths(lines, limits)
    if len(lines) > limits.header_count_max + 1:
        raise HttpRefused(431, "headers_too_large", f"more than {limits.header_count_max} headers")
    method, path, query, is_modern, target_host = _STARTS[lines[0]]
    del lines[0]
    headers = dict(map(_FIELDS.__getitem__, lines))
    repeated = _NOTHING
    if len(headers) != len(lines):
        repeated = _join_repeated(headers, lines)
    host = headers.get("host")
    if host not in _HOSTS or repeated:
        _check_host(host, repeated, is_modern)
    if target_host:  # RFC 9112, 3.2.2: then the header does not count
        headers["host"] = target_host
    is_head = method == "HEAD"
    closes = not keeps_alive(headers.get("connection"), is_modern)
    is_exposed = method not in _WRITES or "origin" in headers
    return Head(
        method,
        path,
        query,
        headers,
        repeated,
        is_modern,
        is_head,
        closes,
        is_exposed=is_exposed,
    )


def _check_lengths(lines: list[str], limits: HttpLimits) -> None:
    words = lines[0].split(" ")
    if len(words) == 3 and len(words[1]) > limits.url_bytes_max:
        raise HttpRefused(
            414, "url_too_long", f"the URL is longer than {limits.url_bytes_max} bytes"
        )
    if any(len(line) > limits.header_line_bytes_max for line in lines[1:]):
        raise HttpRefused(
            431,
            "headers_too_large",
            f"a header line is longer than {limits.header_line_bytes_max} bytes",
        )


def _join_repeated(headers: dict[str, str], lines: list[str]) -> frozenset[str]:
    """Join the values of each name that came more than once; the names."""
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
        raise malformed("the Host header came twice")
    if _HOST.fullmatch(host) is None:
        raise malformed("the Host header is malformed")
    if len(host) <= _MEMO_LINE_BYTES_MAX:
        if len(_HOSTS) >= _MEMO_LINES_MAX:
            _HOSTS.clear()
        _HOSTS.add(host)


def head_too_large(raw: bytes, limits: HttpLimits) -> HttpRefused:
    """Why a head beyond all limits is refused: its target, or its headers."""
    line = raw[: raw.find(b"\r\n")] if b"\r\n" in raw else raw
    words = line.split(b" ")
    if len(words) > 1 and len(words[1]) > limits.url_bytes_max:
        return HttpRefused(
            414, "url_too_long", f"the URL is longer than {limits.url_bytes_max} bytes"
        )
    message = f"the headers are longer than {limits.head_bytes_max} bytes"
    return HttpRefused(431, "headers_too_large", message)


def check_partial_head(partial: bytes, limits: HttpLimits) -> None:
    """Refuse a head that can no longer become a good one, instead of waiting for its end."""
    if partial == b"\r":
        return
    if partial[0] not in _BEGINNING:
        raise malformed("the request line is malformed")
    check_line_ends(partial)
    if len(partial) >= limits.head_bytes_max:
        raise head_too_large(partial, limits)


def check_line_ends(partial: bytes) -> None:
    """Refuse a CR or an LF that stands alone."""
    ends = partial.count(b"\r\n")
    returns = partial.count(b"\r") - partial.endswith(b"\r")
    if partial.count(b"\n") != ends or returns != ends:
        raise malformed("a line does not end with CRLF")


def body_length(head: Head, limits: HttpLimits) -> int:
    """How many bytes of body follow the head; CHUNKED if it tells that itself."""
    length = head.headers.get("content-length")
    coding = head.headers.get("transfer-encoding")
    if coding is not None:
        if length is not None:
            raise malformed("Content-Length and Transfer-Encoding exclude each other")
        if not head.is_modern:
            raise malformed("HTTP/1.0 has no Transfer-Encoding")
        if coding.lower() != "chunked":
            raise malformed("the only Transfer-Encoding is chunked")
        return CHUNKED
    if length is None:
        return 0
    if not (length.isascii() and length.isdigit()) or len(length) > LENGTH_DIGITS_MAX:
        raise malformed("Content-Length is not a number of bytes")
    count = int(length)
    if count > limits.body_bytes_max:
        raise body_too_large(limits)
    return count


def body_too_large(limits: HttpLimits) -> HttpRefused:
    """The body is over the limit, whatever it says."""
    return HttpRefused(413, "body_too_large", f"a body may have {limits.body_bytes_max} bytes")


def keeps_alive(connection: str | None, is_modern: bool) -> bool:
    """Whether the client wants to go on after this request."""
    if connection is None:
        return is_modern
    options = [option.strip(" \t") for option in connection.lower().split(",")]
    return "close" not in options and (is_modern or "keep-alive" in options)


def expects_continue(head: Head) -> bool:
    """Whether the client waits for a word from us before it sends the body."""
    expectation = head.headers.get("expect")
    if expectation is None or not head.is_modern:
        return False
    if expectation.lower() != "100-continue":
        raise HttpRefused(417, "expectation_failed", "the only expectation met is 100-continue")
    return True


def check_trailer(line: str) -> None:
    """A trailer must be a header line; it means nothing here."""
    if _FIELD.fullmatch(line) is None:
        raise malformed("a trailer line is malformed")


# ---- heads ---------------------------------------------------------------------------------------
# Heads that come again: read once, then found by their bytes.
#
# A client that appends sends the same head every time, but for two numbers: Content-Length and
# Producer-Seq. Those two lines are cut out, and what is left is looked up as a whole (ADR 0012).
#
# This must not change what a head means. A line is cut out only if it is one line of plain
# digits. What is left is kept only if the whole was read without complaint, names neither of the
# two again, and asks for nothing special. Everything else is read line by line, every time.


_LENGTH: Final = "content-length"
_SEQ: Final = "producer-seq"
_LENGTH_LINES: Final = (b"\r\nContent-Length: ", b"\r\ncontent-length: ")
_SEQ_LINES: Final = (b"\r\nProducer-Seq: ", b"\r\nproducer-seq: ")
_SPECIAL: Final = frozenset({"transfer-encoding", "expect"})
_DIGITS_MAX: Final = 15  # no such number is beyond what a sequence may be
_KNOWN_MAX: Final = 4096
_KNOWN_BYTES_MAX: Final = 512


class HeadCache:
    """Reads the heads of one listener's requests."""

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        # A head within these breaks no limit on its lines.
        self._bytes_max = min(_KNOWN_BYTES_MAX, limits.header_line_bytes_max, limits.url_bytes_max)
        self._known: dict[bytes, Head] = {}
        self._met: set[int] = set()

    def read(self, raw: bytes) -> tuple[Request, int]:
        """Read a head (without its last two line ends): the request, and its body's length."""
        if len(raw) > self._bytes_max:
            head, count = self._read_lines(raw)
            return Request(head), count
        rest, length = _split_special(raw, _LENGTH_LINES)
        rest, seq = _split_special(rest, _SEQ_LINES)
        known = self._known.get(rest)
        if known is None:
            head, count = self._read_lines(raw)
            if self._is_repeat(rest) and self._is_plain(head, length, seq):
                self._learn(rest, head)
            return Request(head), count
        count = int(length) if length else 0
        if count > self._limits.body_bytes_max:
            raise body_too_large(self._limits)
        return Request(known, b"", length, seq), count

    def _read_lines(self, raw: bytes) -> tuple[Head, int]:
        head = parse_head(raw, self._limits)
        count = body_length(head, self._limits)
        head.is_expecting = expects_continue(head)
        return head, count

    def _is_repeat(self, rest: bytes) -> bool:
        """Whether it may have come before: what comes only once must not push out the others."""
        mark = hash(rest)
        if mark in self._met:
            return True
        if len(self._met) >= _KNOWN_MAX:
            self._met.clear()
        self._met.add(mark)
        return False

    def _is_plain(self, head: Head, length: bytes, seq: bytes) -> bool:
        """Whether the head is its cut lines and nothing that needs another look."""
        headers = head.headers
        return (
            not head.repeated
            and _SPECIAL.isdisjoint(headers)
            and (_LENGTH in headers) == bool(length)
            and (_SEQ in headers) == bool(seq)
            and len(headers) + 2 <= self._limits.header_count_max  # the next may have both lines
        )

    def _learn(self, rest: bytes, head: Head) -> None:
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        headers = {name: head.headers[name] for name in head.headers if name not in {_LENGTH, _SEQ}}
        self._known[rest] = replace(head, headers=headers)


def _split_special(raw: bytes, lines: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
    """Cut out the first line that begins like this, if it ends in digits: the rest, the digits."""
    before, line, after = raw.partition(lines[0])
    if not line:
        before, line, after = raw.partition(lines[1])
        if not line:
            return raw, b""
    digits, end, behind = after.partition(b"\r\n")
    if not digits.isdigit() or len(digits) > _DIGITS_MAX:
        return raw, b""
    return before + end + behind, digits
