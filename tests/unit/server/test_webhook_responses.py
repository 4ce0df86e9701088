"""The parser of the responses of webhook receivers, and what responses say."""

import random
import time
from email.utils import formatdate

import pytest

from semel.model.limits import (
    WEBHOOK_RESPONSE_BYTES_MAX,
    WEBHOOK_RESPONSE_HEAD_BYTES_MAX,
    WEBHOOK_RETRY_AFTER_MS_MAX,
)
from semel.server.webhook_responses import (
    HEADER_COUNT_MAX,
    BadWebhookResponse,
    WebhookResponse,
    WebhookResponseParser,
    retry_after_ms,
)

NOW_S = 1_800_000_000
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def parse(data: bytes, size: int = 1 << 20) -> WebhookResponse | None:
    """Return the response in these bytes, fed in parts of `size`, or None if more are needed."""
    parser = WebhookResponseParser()
    for start in range(0, len(data), size):
        response = parser.feed(data[start : start + size])
        if response is not None:
            return response
    return None


def with_length(body: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)


# ---- responses that are valid --------------------------------------------------------------------

VALID = {
    "length": (with_length(b"hello"), WebhookResponse(200, body=b"hello")),
    "empty": (with_length(b""), WebhookResponse(200)),
    "created": (with_length(b"x", b"201 Created"), WebhookResponse(201, body=b"x")),
    "no reason": (with_length(b"x", b"200"), WebhookResponse(200, body=b"x")),
    "empty reason": (with_length(b"x", b"200 "), WebhookResponse(200, body=b"x")),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", WebhookResponse(204)),
    "reset content": (b"HTTP/1.1 205 R\r\n\r\n", WebhookResponse(205)),
    "interim": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
        + with_length(b"x"),
        WebhookResponse(200, body=b"x"),
    ),
    "chunked": (
        CHUNKED + b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n",
        WebhookResponse(200, body=b"abcde"),
    ),
    "trailer": (CHUNKED + b"1\r\na\r\n0\r\nX: y\r\n\r\n", WebhookResponse(200, body=b"a")),
    "upper case": (
        b"HTTP/1.1 200 OK\r\nTRANSFER-ENCODING:\tChunked \r\n\r\nA\r\n0123456789\r\n0\r\n\r\n",
        WebhookResponse(200, body=b"0123456789"),
    ),
    "more than is needed": (with_length(b"x") + b"HTTP/1.1 500", WebhookResponse(200, body=b"x")),
    "redirect": (b"HTTP/1.1 302 F\r\nLocation: http://10.0.0.1/\r\n\r\n", WebhookResponse(302)),
    "failure without its body": (
        b"HTTP/1.1 500 X\r\nContent-Length: 99999999\r\n\r\n",
        WebhookResponse(500),
    ),
    "later": (
        b"HTTP/1.1 503 X\r\nRetry-After:  7 \r\n\r\n",
        WebhookResponse(503, retry_after="7"),
    ),
    "later, twice": (
        b"HTTP/1.1 503 X\r\nRetry-After: 7\r\nRetry-After: 8\r\n\r\n",
        WebhookResponse(503),
    ),
}


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
@pytest.mark.parametrize("name", VALID)
def test_a_valid_response_is_parsed_however_it_arrives(name: str, size: int) -> None:
    data, expected = VALID[name]
    assert parse(data, size) == expected


def test_a_response_without_a_length_ends_with_the_connection() -> None:
    parser = WebhookResponseParser()
    assert parser.feed(b"HTTP/1.0 200 OK\r\n\r\nhel") is None
    assert parser.feed(b"lo") is None
    assert parser.end() == WebhookResponse(200, body=b"hello")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell",
        CHUNKED + b"5\r\nhell",
        CHUNKED + b"5\r\nhello\r\n0\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
    ],
)
def test_a_connection_that_ends_early_is_no_response(data: bytes) -> None:
    parser = WebhookResponseParser()
    assert parser.feed(data) is None
    with pytest.raises(BadWebhookResponse, match="ended before"):
        parser.end()


def test_the_longest_body_is_accepted() -> None:
    body = b"x" * WEBHOOK_RESPONSE_BYTES_MAX
    assert parse(with_length(body)) == WebhookResponse(200, body=body)
    assert parse(CHUNKED + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)) == WebhookResponse(
        200, body=body
    )


# ---- responses that are not ----------------------------------------------------------------------

HEAD = b"HTTP/1.1 200 OK\r\n"
TOO_LONG = WEBHOOK_RESPONSE_BYTES_MAX + 1
BAD = {
    "another protocol": b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
    "redis": b"-ERR unknown command\r\n\r\n",
    "HTTP/2": b"HTTP/2 200 OK\r\n\r\n",
    "HTTP/1.2": b"HTTP/1.2 200 OK\r\n\r\n",
    "lower case": b"http/1.1 200 OK\r\n\r\n",
    "status of two digits": b"HTTP/1.1 20 OK\r\n\r\n",
    "status 999": b"HTTP/1.1 999 OK\r\n\r\n",
    "no line end of our own": b"HTTP/1.1 200 OK\nX: y\r\n\r\n",
    "switching protocols": b"HTTP/1.1 101 X\r\n\r\n",
    "space before the colon": HEAD + b"X : y\r\n\r\n",
    "no colon": HEAD + b"X\r\n\r\n",
    "no name": HEAD + b": x\r\n\r\n",
    "folded": HEAD + b"X: y\r\n z\r\n\r\n",
    "NUL in a value": HEAD + b"X: \0\r\n\r\n",
    "CR in a value": HEAD + b"X: a\rb\r\n\r\n",
    "two lengths": HEAD + b"Content-Length: 1\r\nContent-Length: 1\r\n\r\nx",
    "list of lengths": HEAD + b"Content-Length: 1, 1\r\n\r\nx",
    "signed length": HEAD + b"Content-Length: +1\r\n\r\nx",
    "negative length": HEAD + b"Content-Length: -1\r\n\r\nx",
    "length in hex": HEAD + b"Content-Length: 0x1\r\n\r\nx",
    "empty length": HEAD + b"Content-Length:\r\n\r\nx",
    "endless length": HEAD + b"Content-Length: 99999999999999999999\r\n\r\nx",
    "length and chunks": HEAD + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "gzip": HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n",
    "chunked twice": HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
    "chunks in HTTP/1.0": b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunk size with 0x": CHUNKED + b"0x1\r\na\r\n",
    "chunk size with a sign": CHUNKED + b"+1\r\na\r\n",
    "chunk size with a NUL": CHUNKED + b"1;\0\r\na\r\n",
    "empty chunk size": CHUNKED + b"\r\n",
    "huge chunk": CHUNKED + b"ffffffff\r\n",
    "chunk size of nine digits": CHUNKED + b"000000001\r\na\r\n",
    "chunk longer than it says": CHUNKED + b"1\r\nab\r\n",
    "line of a chunk without end": CHUNKED + b"1;" + b"x" * 300,
    "long line of a chunk": CHUNKED + b"1;" + b"x" * 300 + b"\r\na\r\n",
    "bad trailer": CHUNKED + b"0\r\nx\r\n\r\n",
    "trailers without end": CHUNKED + b"0\r\n" + b"X: y\r\n" * 20_000,
    "too many small chunks": CHUNKED + b"1;%b\r\na\r\n" % (b"x" * 250) * 300,
    "too long a length": HEAD + b"Content-Length: %d\r\n\r\n" % TOO_LONG,
    "too long in chunks": CHUNKED + b"8000\r\n%b\r\n" % (b"x" * 0x8000) * 3,
    "too long until the end": b"HTTP/1.0 200 OK\r\n\r\n" + b"x" * TOO_LONG,
    "too many headers": HEAD + b"X: y\r\n" * (HEADER_COUNT_MAX + 1) + b"\r\n",
    "endless head": HEAD + b"X: y" * WEBHOOK_RESPONSE_HEAD_BYTES_MAX,
    "endless interim responses": b"HTTP/1.1 102 Processing\r\n\r\n" * 1_000,
}


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
@pytest.mark.parametrize("name", BAD)
def test_a_malformed_response_is_refused_however_it_arrives(name: str, size: int) -> None:
    if size == 1 and len(BAD[name]) > 20_000:
        size = 50
    with pytest.raises(BadWebhookResponse):
        parse(BAD[name], size)


def test_the_most_headers_are_accepted() -> None:
    assert parse(HEAD + b"X: y\r\n" * (HEADER_COUNT_MAX - 1) + b"Content-Length: 0\r\n\r\n")


def test_any_bytes_are_a_response_or_refused_and_the_parts_do_not_matter() -> None:
    rng = random.Random(7)
    valid = [data for data, _ in VALID.values()] + [
        data for data in BAD.values() if len(data) < 500
    ]
    for _ in range(3_000):
        data = bytearray(rng.choice(valid))
        for _ in range(rng.randrange(4)):
            data[rng.randrange(len(data))] = rng.choice(b"\r\n 0159aF;:,\x00\xff")
        assert outcome(bytes(data), 1) == outcome(bytes(data), 1 << 20)


def outcome(data: bytes, size: int) -> WebhookResponse | str | None:
    try:
        return parse(data, size)
    except BadWebhookResponse:
        return "bad"


def test_a_long_line_of_spaces_costs_linear_time() -> None:
    data = HEAD + b"X: " + b" " * (WEBHOOK_RESPONSE_HEAD_BYTES_MAX - 100) + b"\0\r\n\r\n"
    for _ in range(100):
        with pytest.raises(BadWebhookResponse, match="header"):
            parse(data)


# ---- what they say -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, 0),
        ("", 0),
        ("0", 0),
        ("7", 7_000),
        ("3600", WEBHOOK_RETRY_AFTER_MS_MAX),
        ("3601", WEBHOOK_RETRY_AFTER_MS_MAX),
        ("999999999999", WEBHOOK_RETRY_AFTER_MS_MAX),
        ("9" * 12, WEBHOOK_RETRY_AFTER_MS_MAX),
        ("1" + "0" * 12, WEBHOOK_RETRY_AFTER_MS_MAX),
        ("9" * 5_000, WEBHOOK_RETRY_AFTER_MS_MAX),
        ("0" * 5_000 + "7", 7_000),
        ("0" * 5_000, 0),
        ("\u0667", 0),
        ("-7", 0),
        ("1.5", 0),
        ("soon", 0),
        (formatdate(NOW_S + 90, usegmt=True), 90_000),
        (formatdate(NOW_S - 90, usegmt=True), 0),
        (formatdate(NOW_S + 90_000, usegmt=True), WEBHOOK_RETRY_AFTER_MS_MAX),
        ("Fri, 99 Xxx 2026 00:00:00 GMT", 0),
    ],
)
def test_a_delay_is_a_number_or_a_date_and_at_most_an_hour(
    value: str | None, expected: int
) -> None:
    assert retry_after_ms(value, NOW_S) == expected


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Tokyo"])
def test_a_date_without_a_zone_is_in_utc(zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    value = time.asctime(time.gmtime(NOW_S + 90))
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        assert retry_after_ms(value, NOW_S) == 90_000
    finally:
        monkeypatch.undo()
        time.tzset()
