"""Requests that two parsers could read differently: each is refused, and the connection ends."""

from collections.abc import Iterator

import pytest

from tests.http.harness import HOST, Server, get, serving

START = b"POST /a HTTP/1.1\r\n" + HOST
CHUNKED = START + b"Transfer-Encoding: chunked\r\n\r\n"
INNER = b"GET /smuggled HTTP/1.1\r\n" + HOST + b"\r\n"


def with_length(value: bytes) -> bytes:
    return START + b"Content-Length: " + value + b"\r\n\r\nabc"


def with_header(line: bytes) -> bytes:
    return b"GET / HTTP/1.1\r\n" + HOST + line + b"\r\n\r\n"


BAD = {
    "length and coding": START
    + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "coding and length": START
    + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
    "length list": with_length(b"3, 3"),
    "length list that differs": with_length(b"3, 4"),
    "equal lengths": START + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
    "differing lengths": START + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    "length +3": with_length(b"+3"),
    "length -1": with_length(b"-1"),
    "length 0x3": with_length(b"0x3"),
    "length 0_3": with_length(b"0_3"),
    "length 3.0": with_length(b"3.0"),
    "length 1e0": with_length(b"1e0"),
    "length of 23 digits": with_length(b"00000000000000000000003"),
    "length of 23 nines": with_length(b"9" * 23),
    "length in superscript": with_length(b"\xb3"),
    "length empty": with_length(b""),
    "length with a blank inside": with_length(b"3 3"),
    "length without a value": START + b"Content-Length\r\n\r\nabc",
    "folded coding": START + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "folded header": with_header(b"X-A: one\r\n two"),
    "header folded with a tab": with_header(b"X-A: one\r\n\ttwo"),
    "folded first header": b"GET / HTTP/1.1\r\n X-A: one\r\n" + HOST + b"\r\n",
    "bare LF everywhere": b"GET / HTTP/1.1\nHost: localhost\n\n",
    "bare LF after the request line": b"GET / HTTP/1.1\nHost: localhost\r\n\r\n",
    "bare LF after a header": with_header(b"X-A: one\nX-B: two"),
    "bare LF before the body": START + b"Content-Length: 3\r\n\nabc",
    "bare CR everywhere": b"GET / HTTP/1.1\rHost: localhost\r\r",
    "bare CR in a value": with_header(b"X-A: one\rX-B: two"),
    "CR CR LF": with_header(b"X-A: one\r"),
    "NUL in a value": with_header(b"X-A: o\0ne"),
    "NUL in a name": with_header(b"X\0A: one"),
    "NUL in the target": b"GET /\0 HTTP/1.1\r\n" + HOST + b"\r\n",
    "DEL in a value": with_header(b"X-A: o\x7fne"),
    "escape in a value": with_header(b"X-A: o\x1bne"),
    "no Host": b"GET / HTTP/1.1\r\n\r\n",
    "two Hosts": b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "two equal Hosts": b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
    "two Hosts in HTTP/1.0": b"GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n",
    "Host list": b"GET / HTTP/1.1\r\nHost: a, b\r\n\r\n",
    "Host with user": b"GET / HTTP/1.1\r\nHost: a@b\r\n\r\n",
    "Host with path": b"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n",
    "Host with a bad port": b"GET / HTTP/1.1\r\nHost: a:b\r\n\r\n",
    "chunked HTTP/1.0": b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "blank before the colon": with_header(b"X-A : one"),
    "coding with a blank before the colon": START + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "tab before the colon": with_header(b"X-A\t: one"),
    "name empty": with_header(b": one"),
    "name with a blank": with_header(b"X A: one"),
    "name with a quote": with_header(b'X"A: one'),
    "name above ASCII": with_header(b"X-\xc3\xa4: one"),
    "no colon": with_header(b"X-A"),
    "unknown coding": START + b"Transfer-Encoding: gzip\r\n\r\n",
    "coding before chunked": START + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "coding after chunked": START + b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    "chunked twice": START + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "chunked on two lines": START
    + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "identity": START + b"Transfer-Encoding: identity\r\n\r\n",
    "coding with a parameter": START + b"Transfer-Encoding: chunked;q=1\r\n\r\n0\r\n\r\n",
    "coding with a control": START + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "coding empty": START + b"Transfer-Encoding:\r\n\r\n",
    "chunk longer than it said": CHUNKED + b"3\r\nabcd\r\n0\r\n\r\n",
    "chunk without an end": CHUNKED + b"3\r\nabc0\r\n\r\n",
    "chunk ended by LF": CHUNKED + b"3\r\nabc\n0\r\n\r\n",
    "chunk size ended by LF": CHUNKED + b"3\nabc\r\n0\r\n\r\n",
    "chunk size 0x3": CHUNKED + b"0x3\r\nabc\r\n0\r\n\r\n",
    "chunk size +3": CHUNKED + b"+3\r\nabc\r\n0\r\n\r\n",
    "chunk size -1": CHUNKED + b"-1\r\nabc\r\n0\r\n\r\n",
    "chunk size 0_3": CHUNKED + b"0_3\r\nabc\r\n0\r\n\r\n",
    "chunk size empty": CHUNKED + b"\r\nabc\r\n0\r\n\r\n",
    "chunk size no number": CHUNKED + b"x\r\nabc\r\n0\r\n\r\n",
    "chunk size after a blank": CHUNKED + b" 3\r\nabc\r\n0\r\n\r\n",
    "chunk size before a blank": CHUNKED + b"3 \r\nabc\r\n0\r\n\r\n",
    "chunk size of 17 digits": CHUNKED + b"00000000000000003\r\nabc\r\n0\r\n\r\n",
    "LF in a chunk extension": CHUNKED + b"3;a\nb\r\nabc\r\n0\r\n\r\n",
    "CR in a chunk extension": CHUNKED + b"3;a\rb\r\nabc\r\n0\r\n\r\n",
    "chunk extension without a name": CHUNKED + b"3;\r\nabc\r\n0\r\n\r\n",
    "open quote in a chunk extension": CHUNKED + b'3;a="b\r\nabc\r\n0\r\n\r\n',
    "trailer without a colon": CHUNKED + b"0\r\nX\r\n\r\n",
    "folded trailer": CHUNKED + b"0\r\nX: a\r\n b\r\n\r\n",
    "request after the last chunk": CHUNKED + b"0\r\n" + INNER,
    "two blanks before the target": b"GET  / HTTP/1.1\r\n" + HOST + b"\r\n",
    "two blanks before the version": b"GET /  HTTP/1.1\r\n" + HOST + b"\r\n",
    "blank after the version": b"GET / HTTP/1.1 \r\n" + HOST + b"\r\n",
    "tab in the request line": b"GET\t/ HTTP/1.1\r\n" + HOST + b"\r\n",
    "blank in the target": b"GET /a b HTTP/1.1\r\n" + HOST + b"\r\n",
    "no version": b"GET /\r\n" + HOST + b"\r\n",
    "version in lower case": b"GET / http/1.1\r\n" + HOST + b"\r\n",
    "another protocol": b"DESCRIBE / RTSP/1.0\r\n" + HOST + b"\r\n",
    "method with a colon": b"GE:T / HTTP/1.1\r\n" + HOST + b"\r\n",
    "target without a slash": b"GET a HTTP/1.1\r\n" + HOST + b"\r\n",
    "target with a fragment": b"GET /a#b HTTP/1.1\r\n" + HOST + b"\r\n",
    "target above ASCII": b"GET /\xc3\xa4 HTTP/1.1\r\n" + HOST + b"\r\n",
    "target of another scheme": b"GET ftp://localhost/ HTTP/1.1\r\n" + HOST + b"\r\n",
    "absolute target with user": b"GET http://a@localhost/ HTTP/1.1\r\n" + HOST + b"\r\n",
    "asterisk": b"GET * HTTP/1.1\r\n" + HOST + b"\r\n",
    "tunnel": b"CONNECT localhost:443 HTTP/1.1\r\n" + HOST + b"\r\n",
    "two empty lines first": b"\r\n\r\n" + get(),
    "blank first": b" " + get(),
    "TLS": bytes.fromhex("16030100a5010000a10303"),
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


@pytest.mark.parametrize("raw", BAD.values(), ids=BAD.keys())
def test_it_is_refused_and_the_connection_ends(server: Server, raw: bytes) -> None:
    with server.connect() as client:
        answer = client.ask(raw)
        assert answer.status == 400
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json["code"] == "malformed_request"
        assert answer.json["applied"] == "no"
        assert answer.closes
        assert client.is_closed()
    assert server.still_serves()


@pytest.mark.parametrize("raw", BAD.values(), ids=BAD.keys())
def test_it_is_refused_byte_by_byte(server: Server, raw: bytes) -> None:
    """A request that arrives in pieces is parsed like one that arrives at once."""
    with server.connect() as client:
        try:
            for byte in raw:
                client.send(bytes([byte]))
        except (BrokenPipeError, ConnectionResetError):
            pass  # the request was refused before all was sent
        else:
            assert client.answer().status == 400
            assert client.is_closed()


@pytest.mark.parametrize("raw", BAD.values(), ids=BAD.keys())
def test_nothing_after_it_is_served(server: Server, raw: bytes) -> None:
    with server.connect() as client:
        client.send(get("/first") + raw + INNER + INNER)
        assert client.answer().json["path"] == "/first"
        assert client.answer().status == 400
        assert client.is_closed()


@pytest.mark.parametrize("version", ["0.9", "1.2", "2.0", "3.0"])
def test_another_version_is_refused(server: Server, version: str) -> None:
    with server.connect() as client:
        answer = client.ask(get(version=version))
        assert (answer.status, answer.json["code"]) == (505, "version_not_supported")
        assert client.is_closed()


GOOD = {
    "blanks around a value": (with_header(b"X-A: \t one \t "), "x-a", "one"),
    "no blank before a value": (with_header(b"X-A:one"), "x-a", "one"),
    "an empty value": (with_header(b"X-A:"), "x-a", ""),
    "a value above ASCII": (with_header(b"X-A: \xe4"), "x-a", "\xe4"),
    "a tab in a value": (with_header(b"X-A: a\tb"), "x-a", "a\tb"),
    "an odd name": (with_header(b"X!#$%&'*+-.^_`|~9: one"), "x!#$%&'*+-.^_`|~9", "one"),
    "a line end before the request": (b"\r\n" + with_header(b"X-A: one"), "x-a", "one"),
    "an empty Host": (b"GET / HTTP/1.1\r\nHost:\r\n\r\n", "host", ""),
    "an address as Host": (b"GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", "host", "[::1]:80"),
    "a length with zeros": (with_length(b"0003"), "content-length", "0003"),
    "a coding in capitals": (
        START + b"Transfer-Encoding: CHUNKED\r\n\r\n0\r\n\r\n",
        "transfer-encoding",
        "CHUNKED",
    ),
}


@pytest.mark.parametrize(("raw", "name", "value"), GOOD.values(), ids=GOOD.keys())
def test_what_is_unusual_but_clear_is_served(
    server: Server, raw: bytes, name: str, value: str
) -> None:
    with server.connect() as client:
        answer = client.ask(raw)
        assert answer.status == 200
        assert answer.json["headers"][name] == value


def test_an_offer_to_upgrade_is_ignored_and_its_body_stays_a_body(server: Server) -> None:
    raw = START + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n"
    raw += b"Content-Length: %d\r\n\r\n" % len(INNER) + INNER + get("/next")
    with server.connect() as client:
        assert client.ask(raw).json["body"].encode() == INNER
        assert client.answer().json["path"] == "/next"


def test_a_header_that_came_twice_is_joined_and_named(server: Server) -> None:
    with server.connect() as client:
        said = client.ask(get("/", "X-A: 1", "x-a: 2", "X-B: 3")).json
        assert said["headers"]["x-a"] == "1, 2"
        assert said["repeated"] == ["x-a"]
        assert client.ask(get("/", "X-A: 1")).json["repeated"] == []


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        ("/a/b?c=d?e", "/a/b", "c=d?e"),
        ("/a%2Fb?", "/a%2Fb", ""),
        ("//a", "//a", ""),
        ("http://localhost/a?b", "/a", "b"),
        ("HTTPS://localhost:1", "/", ""),
        ("http://localhost?b", "/", "b"),
    ],
)
def test_the_target_is_split_and_left_encoded(
    server: Server, target: str, path: str, query: str
) -> None:
    with server.connect() as client:
        said = client.ask(get(target)).json
        assert (said["path"], said["query"]) == (path, query)


def test_options_may_ask_about_the_server(server: Server) -> None:
    with server.connect() as client:
        assert client.ask(b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n").json["path"] == "*"
