"""Heads that come again: read once, then found by their bytes.

A client that appends sends the same head every time, but for two numbers: Content-Length and
Producer-Seq. Those two lines are cut out, and what is left is looked up as a whole (ADR 0012).

This must not change what a head means. A line is cut out only if it is one line of plain digits.
What is left is kept only if the whole was read without complaint, names neither of the two again,
and asks for nothing special. Everything else is read line by line, every time.
"""

from typing import Final

from msgspec.structs import replace

from semel.server.http import Head, Request
from semel.server.limits_http import HttpLimits
from semel.server.request_head import (
    body_length,
    body_too_large,
    expects_continue,
    parse_head,
)

_LENGTH: Final = "content-length"
_SEQ: Final = "producer-seq"
_LENGTH_LINES: Final = (b"\r\nContent-Length: ", b"\r\ncontent-length: ")
_SEQ_LINES: Final = (b"\r\nProducer-Seq: ", b"\r\nproducer-seq: ")
_SPECIAL: Final = frozenset({"transfer-encoding", "expect"})
_DIGITS_MAX: Final = 15  # no such number is beyond what a sequence may be
_KNOWN_MAX: Final = 4096
_KNOWN_BYTES_MAX: Final = 512


class Heads:
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
        rest, length = _cut(raw, _LENGTH_LINES)
        rest, seq = _cut(rest, _SEQ_LINES)
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


def _cut(raw: bytes, lines: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
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
