"""Invalid, malicious and excessive requests: they are refused with a code and store nothing.

After every test the server must be healthy, with an empty stderr.
"""

import gzip
import re
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import combinations
from typing import Any, Final
from uuid import uuid4

import pytest

from semel.model.limits import (
    BATCH_MESSAGES_MAX,
    BODY_BYTES_MAX,
    NUMBER_MAX,
    PRODUCERS_PER_STREAM_MAX,
)
from tests.media_types import TYPES_WITH_COMMAS
from tests.spec.process import Answer, Event, Server, Stream, offset_of, read_answer

JSON: Final = "application/json"
AS_JSON: Final = f"Content-Type: {JSON}"


@pytest.fixture(autouse=True)
def _survived(server: Server) -> Iterator[None]:
    yield
    assert server.is_sound(), server.stderr


def request(method: str, target: str, *lines: str, body: bytes = b"") -> bytes:
    """Return the bytes of a request in Latin-1, with a Content-Length only if it has a body."""
    length = [f"Content-Length: {len(body)}"] if body else []
    head = "\r\n".join([f"{method} {target} HTTP/1.1", "Host: localhost", *lines, *length, "", ""])
    return head.encode("latin-1") + body


def ask(server: Server, *args: Any, **kwargs: Any) -> Answer:
    answer = server.raw(request(*args, **kwargs))
    assert answer is not None
    return answer


# ---- paths ---------------------------------------------------------------------------------------

BAD_PATHS: Final = {
    "dots": ("..", 400),
    "dots inside": ("a/../b", 400),
    "encoded dots": ("%2e%2e%2fetc%2fpasswd", 400),
    "encoded dots alone": ("%2E%2E/x", 400),
    "dots and backslash": ("..%5c..%5cx", 400),
    "NUL": ("a%00b", 400),
    "CRLF": ("a%0d%0aSet-Cookie:x", 400),
    "C1 control": ("a%c2%85b", 400),
    "two slashes": ("a//b", 400),
    "a slash first": ("/a", 400),
    "a slash last": ("a/", 400),
    "dot": (".", 400),
    "dot inside": ("a/./b", 400),
    "nothing": ("", 400),
    "100 kB": ("x" * 100_000, 414),
    "513 bytes": ("x" * 513, 400),
    "513 bytes, encoded": ("%C3%A9" * 256 + "x", 400),
    "overlong slash": ("%c0%af", 400),
    "overlong dot": ("%c0%ae%c0%ae", 400),
    "lone surrogate": ("%ed%a0%80", 400),
    "beyond Unicode": ("%f4%90%80%80", 400),
    "17 segments": ("/".join("x" * 17), 400),
    "10,000 segments": ("/".join("x" * 10_000), 414),
    "reserved": ("__d%73/x", 404),
    "encoded slash": ("a%2Fb", 400),
    "stray percent": ("100%", 400),
    "percent and no hex": ("%zz", 400),
    "raw 8-bit byte": ("caf\xe9", 400),
    "raw blank": ("a b", 400),
    "raw tab": ("a\tb", 400),
    "fragment": ("a#b", 400),
    "raw backslash": ("a\\b", 400),
}


@pytest.mark.parametrize(("path", "status"), BAD_PATHS.values(), ids=BAD_PATHS)
@pytest.mark.parametrize("method", ["PUT", "GET"])
def test_a_bad_path_is_refused(server: Server, method: str, path: str, status: int) -> None:
    answer = ask(server, method, f"/v1/stream/{path}")
    assert (answer.status, bool(answer.code)) == (status, True)


@pytest.mark.parametrize(
    "source",
    ["", "x", "/", "/v1/stream/", "/v1/stream/../x", "http://h/v1/stream/x", "/v1/stream/%00"],
)
def test_a_bad_path_to_fork_from_is_refused(stream: Stream, source: str) -> None:
    answer = stream.put(stream_forked_from=source)
    assert (answer.status, answer.code) == (400, "invalid_header")
    assert stream.head().status == 404


@pytest.mark.parametrize(
    "path",
    [
        *("CON", "nul", "caf%C3%A9", "cafe%CC%81", "Case", "case", "x" * 512, "/".join("x" * 16)),
        *("a+b", "a%20b", "...", "~", "-rf", "$(id)", "%25", "%3Cscript%3E", "a%E2%80%AEb", "a:b"),
        *("LOCK", "identity", "checkpoint.mdb", "checkpoint.mdb-lock", "next.tmp", f"{0:020d}.seg"),
    ],
)
def test_a_strange_but_good_path_is_a_stream_of_its_own(server: Server, path: str) -> None:
    files = {file.name for file in server.data.rglob("*")} | {"next.tmp"}
    stream = server.stream(path)
    stream.create(path.encode())
    assert stream.text == path
    assert stream.put(content_type="text/plain").status == 200
    assert path not in {file.name for file in server.data.rglob("*")} - files, "not a file name"
    assert stream.delete().status == 204


def test_names_that_only_look_alike_are_other_names(server: Server) -> None:
    paths = ["twin/caf%C3%A9", "twin/cafe%CC%81", "twin/Cafe", "twin/cafe", "twin/c%61fe%20"]
    for path in paths:
        server.stream(path).create(path.encode())
    assert [server.stream(path).text for path in paths] == paths
    assert server.stream("twin/c%61fe").text == "twin/cafe", "encoded, but the same path"


# ---- headers -------------------------------------------------------------------------------------

BAD_NUMBERS: Final = {
    "empty": "",
    "negative": "-1",
    "fraction": "1.5",
    "exponent": "1e3",
    "plus": "+1",
    "hexadecimal": "0x1",
    "underscore": "1_000",
    "2^53": str(NUMBER_MAX + 1),
    "10^400": "1" + "0" * 400,
    "Arabic digits": "\u0661".encode().decode("latin-1"),
    "superscript": "\xb2",
    "list": "0, 0",
    "letters": "1abc",
    "quoted": '"0"',
    "blank inside": "0 0",
}


def refuse_post(stream: Stream, *lines: str, status: int = 400) -> str:
    """Send an append that must be refused and store nothing; return the code."""
    answer = ask(
        stream.server, "POST", stream.target, "Content-Type: text/plain", *lines, body=b"x"
    )
    assert answer.status == status, answer
    assert stream.tail == offset_of(0)
    return answer.code


# rows: D36
@pytest.mark.parametrize("value", BAD_NUMBERS.values(), ids=BAD_NUMBERS)
@pytest.mark.parametrize(
    "name", ["Producer-Epoch", "Producer-Seq", "X-Producer-Epoch", "X-Producer-Seq"]
)
def test_a_number_that_is_none_is_refused(stream: Stream, name: str, value: str) -> None:
    stream.create()
    prefix = "X-Producer" if name.startswith("X-") else "Producer"
    fields = {f"{prefix}-Id": "p", f"{prefix}-Epoch": "0", f"{prefix}-Seq": "0", name: value}
    lines = [f"{field}: {given}" for field, given in fields.items()]
    assert refuse_post(stream, *lines) == "invalid_header"


def test_blanks_around_a_number_are_not_part_of_it(stream: Stream) -> None:
    stream.create()
    lines = (
        "Producer-Id: p",
        "Producer-Epoch:  0 ",
        "Producer-Seq:\t0",
        "Content-Type: text/plain",
    )
    assert ask(stream.server, "POST", stream.target, *lines, body=b"x").status == 200


# rows: R03, U04
def test_the_largest_numbers_are_good_ones(stream: Stream) -> None:
    stream.create()
    headers = {"producer_id": "p" * 256, "producer_epoch": NUMBER_MAX, "producer_seq": 0}
    assert stream.post(b"x", **headers).status == 200
    long = stream.post(b"x", producer_id="p" * 257, producer_epoch=0, producer_seq=0)
    assert (long.status, long.code) == (400, "invalid_header")


PARTS: Final = ("Producer-Id: p", "Producer-Epoch: 0", "Producer-Seq: 0")
X_PARTS: Final = ("X-Producer-Id: p", "X-Producer-Epoch: 0", "X-Producer-Seq: 0")


# rows: D36, U01
@pytest.mark.parametrize(
    "lines",
    [
        *(some for count in (1, 2) for some in combinations(PARTS, count)),
        *(
            some
            for count in (1, 2)
            for some in combinations(X_PARTS, count)
            if some != X_PARTS[::2]
        ),
        ("Producer-Cursor: c",),
        ("Producer-Mode: sparse", "Producer-Id: p"),
        ("Producer-Mode: dense", "Producer-Id: p", "Producer-Seq: 0"),
    ],
    ids=str,
)
def test_producer_headers_given_in_part_are_refused(stream: Stream, lines: tuple[str, ...]) -> None:
    stream.create()
    assert refuse_post(stream, *lines) == "producer_headers_incomplete"


@pytest.mark.parametrize(
    "line",
    [
        "Producer-Id: ",
        "Producer-Id: caf\xe9",
        "Producer-Id: a\tb",
        "Producer-Mode: other",
        "Producer-Mode: ",
        "Producer-Session: ",
        "Producer-Session: " + "s" * 129,
        "Producer-Cursor: " + "c" * 1025,
        "Stream-Seq: ",
        "Stream-Seq: " + "s" * 257,
        "Stream-Seq: \xff",
        "If-Match: ",
        "If-Match: *",
        'If-Match: "0',
        'If-Match: "0", "1"',
        "If-Match: -1",
        "If-Match: now",
        "Content-Type: nonsense; x",
    ],
)
def test_a_header_of_nonsense_is_refused(stream: Stream, line: str) -> None:
    stream.create()
    fields = {part.partition(":")[0]: part for part in (*PARTS, "Content-Type: text/plain")}
    fields[line.partition(":")[0]] = line
    answer = ask(stream.server, "POST", stream.target, *fields.values(), body=b"x")
    assert (answer.status, answer.code) == (400, "invalid_header")
    assert answer.json["header"] == line.partition(":")[0]
    assert stream.tail == offset_of(0)


@pytest.mark.parametrize("line", ["Idempotency-Key: ", "Idempotency-Key: " + "k" * 256])
def test_an_idempotency_key_of_nonsense_is_refused(stream: Stream, line: str) -> None:
    stream.create()
    assert refuse_post(stream, line) == "invalid_header"


@pytest.mark.parametrize("seqs", ["2-1", "-", "1-", "-1", "1-2-3", "1..2", "a-b", f"0-{2**53}"])
def test_a_range_that_is_none_is_refused(stream: Stream, seqs: str) -> None:
    stream.create()
    lines = ("Producer-Id: p", "Producer-Mode: sparse", f"Producer-Seq: {seqs}")
    assert refuse_post(stream, *lines) == "invalid_header"


def test_a_range_too_wide_to_remember_is_refused(stream: Stream) -> None:
    stream.create()
    lines = ("Producer-Id: p", "Producer-Mode: sparse", f"Producer-Seq: 0-{2**33}")
    assert refuse_post(stream, *lines, status=429) == "limit_reached"


@pytest.mark.parametrize(
    "line", ["Producer-Id: p", "Producer-Seq: 0", "Stream-Seq: 1", "Content-Type: text/plain"]
)
def test_a_header_given_twice_is_refused(stream: Stream, line: str) -> None:
    stream.create()
    lines = [*PARTS, line, line] if line not in PARTS else [*PARTS, line]
    assert refuse_post(stream, *lines) == "invalid_header"


@pytest.mark.parametrize(
    "line",
    [
        "Producer-Id: a\r\n b",
        "Producer-Id: a\nX: b",
        "Producer-Id: a\rX: b",
        "Producer-Id: a\0b",
        "Producer-Id : a",
        "Producer Id: a",
        ": a",
        "no colon",
        "Content-Length: 1, 1",
        "Content-Length: 9",
        "Transfer-Encoding: chunked",
    ],
)
def test_a_head_two_parsers_could_read_differently_is_refused(stream: Stream, line: str) -> None:
    stream.create()
    assert refuse_post(stream, line) == "malformed_request"


def test_connection_cannot_take_a_producers_header_away(stream: Stream) -> None:
    stream.create()
    lines = ("Content-Type: text/plain", *PARTS, "Connection: producer-id, producer-seq, close")
    statuses = [ask(stream.server, "POST", stream.target, *lines, body=b"x").status for _ in "ab"]
    assert statuses == [200, 204]


@pytest.mark.parametrize(
    "headers",
    [
        {"stream_ttl": "60", "stream_expires_at": "2099-01-01T00:00:00Z"},
        *({"stream_ttl": value} for value in ("-1", "abc", "00060", "+60", "60.5", "1e3", "")),
        {"stream_ttl": "9" * 16},
        {"stream_ttl": "1" + "0" * 400},
        *(
            {"stream_expires_at": value}
            for value in (
                *("", "yesterday", "1700000000", "2024-01-01", "2024-01-01 00:00:00Z"),
                *("2024-01-01T00:00:00", "2024-13-01T00:00:00Z", "2023-02-29T00:00:00Z"),
                *("0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "2024-1-1T0:0:0Z"),
            )
        ),
        *({"stream_fork_offset": value} for value in (offset_of(0), "0_0", "now", "")),
        *({"stream_fork_sub_offset": value} for value in ("0", "1", "-1")),
        {"content_type": "application/vnd.semel.batch"},
        {"content_encoding": "gzip"},
    ],
    ids=str,
)
def test_a_creation_of_nonsense_is_refused(stream: Stream, headers: dict[str, str]) -> None:
    answer = stream.put(b"x", **headers)
    assert answer.status == (415 if "content_encoding" in headers else 400)
    assert answer.code in ("invalid_header", "expiry_conflict", "unsupported_encoding")
    assert stream.head().status == 404


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("text/plain", 204),
        ("TEXT/Plain", 204),
        ("text/plain; charset=utf-8", 204),
        ("text/plain;", 204),
        ("text/html", 409),
        ("application/json", 409),
        (None, 400),
        ("", 400),
    ],
)
def test_a_content_type_is_compared_without_case_and_parameters(
    stream: Stream, content_type: str | None, status: int
) -> None:
    stream.create()
    answer = stream.post(b"x", content_type=content_type)
    assert answer.status == status
    if status != 204:
        assert answer.code in ("content_type_conflict", "missing_content_type")


@pytest.mark.parametrize("content_type", [*TYPES_WITH_COMMAS, "text/plain, text/html"])
def test_two_media_types_in_one_header_are_refused(stream: Stream, content_type: str) -> None:
    """A browser could take the second one, and run a script in a stream of the first one."""
    missing = stream.server.stream()
    stream.create()
    first = (
        stream.put(b"x", content_type=content_type),
        stream.post(b"x", content_type=content_type),
    )
    for answer in (*first, missing.put(b"x", content_type=content_type)):
        assert (answer.status, answer.code) == (400, "invalid_header")
        assert answer.json["header"] == "Content-Type"
        assert "a comma is allowed only in a quoted parameter" in answer.json["message"]
    assert missing.head().status == 404
    assert stream.tail == offset_of(0)
    assert stream.post(stream_closed="true", content_type=content_type).status == 204  # no body


@pytest.mark.parametrize("method", ["PUT", "POST"])
def test_two_headers_with_media_types_are_refused(stream: Stream, method: str) -> None:
    stream.create()
    lines = ("Content-Type: text/plain;x=1", "Content-Type: text/html")
    answer = ask(stream.server, method, stream.target, *lines, body=b"x")
    assert (answer.status, answer.code) == (400, "invalid_header")
    assert stream.tail == offset_of(0)


def test_a_quoted_parameter_may_have_a_comma(stream: Stream) -> None:
    quoted = 'text/plain; note="a, b"'
    assert stream.put(b"x", content_type=quoted).status == 201
    assert stream.post(b"y", content_type=quoted).status == 204
    answer = stream.get()
    assert (answer.headers["content-type"], answer.body) == (quoted, b"xy")
    assert "sandbox" in answer.headers["content-security-policy"]  # not every browser knows quotes


def test_a_client_that_awaits_a_go_ahead_and_then_is_silent_stops_nobody(stream: Stream) -> None:
    stream.create()
    lines = ("Content-Type: text/plain", "Content-Length: 5", "Expect: 100-continue")
    with stream.server.dial() as line:
        line.sendall(request("POST", stream.target, *lines))
        assert line.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert stream.post(b"x").status == 204
    other = ask(stream.server, "POST", stream.target, "Expect: a miracle", body=b"x")
    assert (other.status, other.code) == (417, "expectation_failed")
    assert stream.text == "x"


# ---- offsets and queries -------------------------------------------------------------------------

BAD_OFFSETS: Final = {
    "empty": "",
    "words": "abc",
    "other case": "NOW",
    "unknown sentinel": "-2",
    "unpadded": "0_0",
    "truncated": offset_of(0)[:-1],
    "too long": offset_of(0) + "0",
    "no underscore": "0" * 33,
    "letters": "0" * 16 + "_" + "f" * 16,
    "blank": "%20",
    "plus": "+",
    "NUL": "now%00",
    "CRLF": "now%0d%0aX:y",
    "comma": "0,0",
    "slash": "..%2f..",
    "stray percent": "%zz",
    "not UTF-8": "%ff",
    "Arabic digits": "%D9%A0" * 16 + "_" + "%D9%A0" * 16,
    "SQL": "1%27%20OR%201=1--",
    "HTML": "%3Cscript%3Ealert(1)%3C/script%3E",
    "ANSI": "%1b[31m",
    "7 kB": "0" * 7000,
}


@pytest.mark.parametrize("value", BAD_OFFSETS.values(), ids=BAD_OFFSETS)
@pytest.mark.parametrize("live", ["", "&live=long-poll", "&live=sse"])
def test_an_offset_that_is_none_is_refused(stream: Stream, value: str, live: str) -> None:
    stream.create(b"x")
    answer = stream.get(f"offset={value}{live}")
    assert (answer.status, answer.code) == (400, "invalid_offset")
    assert b"<" not in answer.body
    assert b"\x1b" not in answer.body


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("offset=-1&offset=-1", 400, "invalid_query"),
        ("offset=-1&%6fffset=now", 400, "invalid_query"),
        ("offset=-1&live=sse&live=long-poll", 400, "invalid_query"),
        ("live=sse", 400, "offset_required"),
        ("live=long-poll", 400, "offset_required"),
        ("isolation=dirty", 400, "invalid_query"),
        ("offset=" + "0" * 1_000_000, 414, "url_too_long"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_query_of_nonsense_is_refused(stream: Stream, query: str, status: int, code: str) -> None:
    stream.create(b"x")
    answer = ask(stream.server, "GET", f"{stream.target}?{query}")
    assert (answer.status, answer.code) == (status, code)


@pytest.mark.parametrize(
    "query",
    [
        *("live=", "live=other", "cursor=garbage", "cursor=-1", "cursor=" + "9" * 400, "%zz=1"),
        *("&&&", "=", "?", "a=b=c", "offset=%2D1", "offset=-1&x[]=1", "OFFSET=nonsense"),
    ],
)
def test_what_a_query_may_hold_without_harm_is_ignored(stream: Stream, query: str) -> None:
    stream.create(b"x")
    answer = stream.get(query)
    assert (answer.status, answer.body) == (200, b"x")


@pytest.mark.parametrize("cursor", ["garbage", "-1", "9" * 400, "%00"])
def test_a_cursor_of_nonsense_is_as_if_absent(stream: Stream, cursor: str) -> None:
    stream.create(b"x")
    answer = stream.get(f"offset=-1&live=long-poll&cursor={cursor}")
    assert answer.status == 200
    assert 0 < len(answer.headers["stream-cursor"]) <= 16


# ---- bodies --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, BODY_BYTES_MAX])
def test_the_smallest_and_the_largest_body_are_stored(stream: Stream, size: int) -> None:
    stream.create()
    assert stream.post(b"x" * size).status == 204
    assert len(stream.get().body) == size


def chunked(*pieces: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)


@pytest.mark.parametrize(
    ("length", "body"),
    [
        (f"Content-Length: {BODY_BYTES_MAX + 1}", b"x" * (BODY_BYTES_MAX + 1)),
        ("Content-Length: 999999999999", b"x"),
        ("Transfer-Encoding: chunked", chunked(b"x" * BODY_BYTES_MAX, b"x")),
        ("Transfer-Encoding: chunked", b"fffffff\r\n"),
        ("Transfer-Encoding: chunked", chunked(*[b"x"] * 70_000)),
    ],
    ids=["one byte too many", "a terabyte", "chunks too long", "a chunk too long", "70,000 chunks"],
)
def test_a_body_too_large_is_413_as_soon_as_it_is_known(
    stream: Stream, length: str, body: bytes
) -> None:
    stream.create()
    head = request("POST", stream.target, "Content-Type: text/plain", length)
    answer = stream.server.raw(head + body)
    assert answer is not None
    assert (answer.status, answer.code) == (413, "body_too_large")
    assert stream.tail == offset_of(0)


@pytest.mark.parametrize(
    ("length", "body"),
    [
        ("Content-Length: 9", b"x"),
        ("Transfer-Encoding: chunked", b"1\r\nx\r\n"),
        ("Transfer-Encoding: chunked", b"9\r\nx"),
        ("Transfer-Encoding: chunked", b"1\r\nx\r\n0\r\n"),
    ],
    ids=["short", "no last chunk", "a short chunk", "no end of the trailers"],
)
def test_a_body_that_does_not_end_is_not_stored(stream: Stream, length: str, body: bytes) -> None:
    stream.create()
    with stream.server.dial() as line:
        line.sendall(request("POST", stream.target, "Content-Type: text/plain", length) + body)
        assert stream.tail == offset_of(0)
    assert stream.tail == offset_of(0)


@pytest.mark.parametrize(
    "body", [b"x\r\n", b"-1\r\nx\r\n", b"0x1\r\nx\r\n", b"1\nx\r\n", b"1\r\nxy\r\n", b"1 \r\nx\r\n"]
)
def test_chunks_of_nonsense_are_refused(stream: Stream, body: bytes) -> None:
    stream.create()
    lines = ("Content-Type: text/plain", "Transfer-Encoding: chunked")
    answer = stream.server.raw(request("POST", stream.target, *lines) + body + b"0\r\n\r\n")
    assert answer is not None
    assert (answer.status, answer.code) == (400, "malformed_request")
    assert stream.tail == offset_of(0)


def test_what_follows_a_body_is_the_next_request_and_nothing_else(stream: Stream) -> None:
    stream.create()
    lines = ("Content-Type: text/plain", "Content-Length: 1")
    with stream.server.dial() as line:
        line.sendall(request("POST", stream.target, *lines) + b"x\0\0\0")
        first, second = read_answer(line), read_answer(line)
    assert first is not None
    assert first.status == 204
    assert second is None or (second.status, second.code) == (400, "malformed_request")
    assert stream.text == "x"


def test_zero_length_chunks_without_end_are_no_body_and_no_work(stream: Stream) -> None:
    stream.create()
    lines = ("Content-Type: text/plain", "Transfer-Encoding: chunked")
    answer = stream.server.raw(request("POST", stream.target, *lines) + b"0\r\n" * 200_000)
    assert answer is not None
    assert answer.status in (400, 413, 431)
    assert answer.code
    assert stream.tail == offset_of(0)


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "gzip, gzip", "x"])
def test_a_packed_body_is_415(stream: Stream, encoding: str) -> None:
    stream.create()
    bomb = gzip.compress(bytes(10_000_000))
    answer = stream.post(bomb, content_encoding=encoding)
    assert (answer.status, answer.code) == (415, "unsupported_encoding")
    assert stream.tail == offset_of(0)


BAD_JSON: Final = {
    "nothing": b" ",
    "empty array": b"[]",
    "empty array, spaced": b" [ ] ",
    "half an object": b"{",
    "two values": b"1 2",
    "comma last": b"[1,]",
    "comma alone": b"[,]",
    "single quotes": b"{'a':1}",
    "NaN": b"[NaN]",
    "Infinity": b"[-Infinity]",
    "leading zero": b"[01]",
    "plus": b"[+1]",
    "not UTF-8": b'["\xff"]',
    "raw surrogate": b'["\xed\xa0\x80"]',
    "overlong": b'["\xc0\x80"]',
    "BOM": b"\xef\xbb\xbf[1]",
    "UTF-16": '["a"]'.encode("utf-16-le"),
    "NUL in a string": b'["\0"]',
    "NUL after": b"[1]\0",
    "line end in a string": b'["\n"]',
    "bad escape": b'["\\x"]',
    "half an escape": b'["\\u12"]',
    "depth 66": b"[" * 66 + b"]" * 66,
    "depth 100,000": b"[" * 100_000 + b"]" * 100_000,
    "depth of objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "unclosed depth": b"[" * 100_000,
    "too many messages": b"[" + b"1," * BATCH_MESSAGES_MAX + b"1]",
}


@pytest.mark.parametrize("body", BAD_JSON.values(), ids=BAD_JSON)
def test_json_that_is_none_is_refused(stream: Stream, body: bytes) -> None:
    stream.create(b"", JSON)
    answer = stream.post(body, content_type=JSON)
    assert (answer.status, answer.code) == (400, "bad_body")
    assert stream.tail == offset_of(0)


GOOD_JSON: Final = {
    "an empty array inside": (b"[[]]", b"[[]]", 1),
    "duplicate keys": (b'{"a":1,"a":2}', b'[{"a":1,"a":2}]', 1),
    "a million digits": (b"[1" + b"0" * 1_000_000 + b"]", b"[1" + b"0" * 1_000_000 + b"]", 1),
    "an exponent": (b"[1e999]", b"[1e999]", 1),
    "escaped NUL": (b'["\\u0000"]', b'["\\u0000"]', 1),
    "escaped surrogate": (b'["\\ud800"]', b'["\\ud800"]', 1),
    "U+2028": ('["\u2028"]'.encode(), '["\u2028"]'.encode(), 1),
    "depth 64": (b"[" + b"[" * 64 + b"]" * 64 + b"]", b"[" + b"[" * 64 + b"]" * 64 + b"]", 1),
    "brackets in a string": (b'["' + b"[" * 1000 + b'"]', b'["' + b"[" * 1000 + b'"]', 1),
    "spaces": (b" \t\r\n[ 1 , 2 ] ", b"[1,2]", 2),
    "most messages": (
        b"[" + b"1," * (BATCH_MESSAGES_MAX - 1) + b"1]",
        b"[" + b"1," * (BATCH_MESSAGES_MAX - 1) + b"1]",
        BATCH_MESSAGES_MAX,
    ),
}


@pytest.mark.parametrize(("body", "stored", "count"), GOOD_JSON.values(), ids=GOOD_JSON)
def test_json_that_is_strange_but_good_is_kept_as_it_came(
    stream: Stream, body: bytes, stored: bytes, count: int
) -> None:
    stream.create(b"", JSON)
    answer = stream.post(body, content_type=JSON)
    assert (answer.status, answer.next_offset) == (204, offset_of(count))
    assert stream.get().body == stored


# ---- resources -----------------------------------------------------------------------------------


def exchange(server: Server, requests: bytes, count: int) -> bytes:
    """Send many requests on one connection while reading; return all received bytes.

    The responses must have no bodies.
    """
    received = bytearray()
    with server.dial() as line:
        sender = threading.Thread(target=line.sendall, args=(requests,))
        sender.start()
        seen = 0
        while seen < count:
            piece = line.recv(1 << 20)
            assert piece, f"connection closed after {seen} responses"
            start = max(0, len(received) - 3)
            received += piece
            seen += received.count(b"\r\n\r\n", start)
        sender.join()
    return bytes(received)


def test_ten_thousand_pipelined_requests_are_answered_in_order(stream: Stream) -> None:
    stream.create()
    post = request("POST", stream.target, "Content-Type: text/plain", body=b"x")
    head = request("HEAD", stream.target)
    received = exchange(stream.server, (post + head * 9) * 1000, 10_000)
    statuses = re.findall(rb"HTTP/1.1 ([0-9]+) ", received)
    assert statuses == ([b"204"] + [b"200"] * 9) * 1000
    assert stream.tail == offset_of(1000)


def test_a_stream_of_a_hundred_thousand_tiny_records_is_read_whole(stream: Stream) -> None:
    stream.create(b"", JSON)
    batch = b"[" + b",".join([b"7"] * BATCH_MESSAGES_MAX) + b"]"
    for _ in range(10):
        assert stream.post(batch, content_type=JSON).status == 204
    assert sum(page.count(b"7") for page in stream.pages()) == 100_000


def test_a_stream_of_single_records_is_read_whole(stream: Stream) -> None:
    stream.create()
    post = request("POST", stream.target, "Content-Type: text/plain", body=b".")
    exchange(stream.server, post * 2500, 2500)
    assert b"".join(stream.pages()) == b"." * 2500


# rows: P24
def test_a_stream_takes_ten_thousand_producers_and_not_one_more(stream: Stream) -> None:
    stream.create()

    def post(number: int) -> bytes:
        lines = (f"Producer-Id: p{number}", "Producer-Epoch: 0", "Producer-Seq: 0")
        return request("POST", stream.target, "Content-Type: text/plain", *lines, body=b".")

    many = b"".join(map(post, range(PRODUCERS_PER_STREAM_MAX)))
    received = exchange(stream.server, many, PRODUCERS_PER_STREAM_MAX)
    assert received.count(b"HTTP/1.1 200 ") == PRODUCERS_PER_STREAM_MAX
    more = stream.server.raw(post(PRODUCERS_PER_STREAM_MAX))
    assert more is not None
    assert (more.status, more.code) == (429, "limit_reached")
    known = stream.post(b".", producer_id="p7", producer_epoch=0, producer_seq=1)
    assert known.status == 200
    assert stream.post(b".").status == 204


def test_two_thousand_streams_are_made_listed_and_deleted(server: Server) -> None:
    root = uuid4().hex
    targets = [f"/v1/stream/{root}/{number}" for number in range(2000)]
    for method, status in (("PUT", b"201"), ("DELETE", b"204")):
        requests = b"".join(request(method, target) for target in targets)
        received = exchange(server, requests, len(targets))
        assert received.count(b"HTTP/1.1 " + status) == len(targets)
        page = server.ask("GET", f"/v1/streams?prefix={root}/&limit=1000").json
        assert len(page["streams"]) == (1000 if method == "PUT" else 0)


def test_a_thousand_idle_and_half_spoken_connections_stop_nobody(stream: Stream) -> None:
    stream.create()
    lines = []
    try:
        for number in range(1000):
            lines.append(stream.server.dial())
            if number % 2:
                lines[-1].sendall(b"POST /v1/stream/x HTTP/1.1\r\nHost: localhost\r\nContent-Len")
        assert stream.post(b"x").status == 204
        assert stream.text == "x"
    finally:
        for line in lines:
            line.close()


def test_readers_that_never_read_stop_nobody(stream: Stream) -> None:
    stream.create()
    for _ in range(4):
        stream.post(b"x" * BODY_BYTES_MAX)
    lines = [stream.server.dial() for _ in range(20)]
    try:
        for number, line in enumerate(lines):
            query = "offset=-1&live=sse" if number % 2 else "offset=-1"
            line.sendall(request("GET", f"{stream.target}?{query}"))
        assert stream.post(b"y").status == 204
        assert stream.get(f"offset={offset_of(4)}").body == b"y"
    finally:
        for line in lines:
            line.close()


def test_a_hundred_readers_at_the_tail_all_get_the_same(stream: Stream) -> None:
    stream.create()
    with ExitStack() as stack:
        readers = [stack.enter_context(stream.listen("now")) for _ in range(100)]
        for reader in readers:
            assert reader.next() is not None
        stream.post(b"x", stream_closed="true")
        for reader in readers:
            assert reader.next() == Event("data", "x")
            assert len(reader.rest()) == 1


def remake(stream: Stream) -> None:
    """Delete and recreate a stream, so quickly that no reader sees it missing."""
    lines = ("Content-Type: application/json", "Stream-Closed: true")
    new = request("PUT", stream.target, *lines, body=b"[7,8,9]")
    received = exchange(stream.server, request("DELETE", stream.target) + new, 2)
    assert received.count(b"HTTP/1.1 20") == 2


def test_an_event_stream_ends_when_its_stream_is_made_again(stream: Stream) -> None:
    stream.create(b"[1]", JSON)
    with ExitStack() as stack:
        readers = [stack.enter_context(stream.listen()) for _ in range(3)]
        for reader in readers:
            assert reader.next() == Event("data", "[1]")
            assert reader.next() is not None
        remake(stream)
        for reader in readers:
            assert reader.rest() == [], "the reader must not follow the new stream"
    assert stream.text == "[7,8,9]"


def test_a_long_poll_is_404_when_its_stream_is_made_again(stream: Stream) -> None:
    for _ in range(20):
        stream.create(b"[1]", JSON)
        with stream.server.dial() as line:
            line.sendall(request("GET", f"{stream.target}?offset={offset_of(1)}&live=long-poll"))
            time.sleep(0.05)
            remake(stream)
            answer = read_answer(line)
        assert answer is not None
        if answer.status == 404:
            break  # otherwise try again: 200 was too late, 204 too early
        stream.delete()
    assert answer is not None
    assert (answer.status, answer.code) == (404, "stream_not_found")


# ---- transactions --------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["commit", "abort", "prepare"])
@pytest.mark.parametrize("epoch", [-1, 2**53, 2**64, 10**30])
def test_an_epoch_of_a_transaction_that_is_none_is_refused(
    server: Server, action: str, epoch: int
) -> None:
    body = b'{"transaction_epoch": %d}' % epoch
    answer = ask(server, "POST", f"/v1/transactions/t/{action}", AS_JSON, body=body)
    assert answer.status == 400
    listed = b'"transactions": [{"id": "t", "epoch": %d}]' % epoch
    body = b'{"producer_id": "p", "producer_epoch": 0, "producer_seq": 0, %s}' % listed
    assert ask(server, "POST", "/v1/commits", AS_JSON, body=body).status == 400


@pytest.mark.parametrize("name", ["t" * 600, "%C3%A9" * 200])
def test_an_id_no_transaction_can_have_is_refused(server: Server, name: str) -> None:
    body = b'{"transaction_epoch": 1}'
    assert ask(server, "POST", f"/v1/transactions/{name}/commit", AS_JSON, body=body).status == 400
    assert ask(server, "GET", f"/v1/transactions/{name}").status == 404
    assert ask(server, "GET", f"/v1/transactions/{name}?epoch=1").status == 404
