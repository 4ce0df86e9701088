"""Any input: no exception, only well-formed responses, and the server still serves.

llhttp, a widely used parser, is the reference: it must accept what we accept, with the same
result. The reverse is not required, because we refuse more.
"""

import re
import socket
from contextlib import suppress
from random import Random
from typing import Any

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.server.http import Head, HttpRefused, Request
from semel.server.limits_http import HttpLimits
from semel.server.request_body import PartialBody
from semel.server.request_head import CHUNKED as CHUNKED_LENGTH
from semel.server.request_head import HeadCache
from tests.http.harness import Server, get, post, serving
from tests.http.test_smuggling import BAD, CHUNKED, GOOD

LIMITS = HttpLimits()
SEEDS = [get("/a?b", "X-A: 1"), post(b"abc"), CHUNKED + b"3\r\nabc\r\n0\r\n\r\n", *BAD.values()]
SCRAPS = [
    b"\r\n",
    b"\n",
    b"\r",
    b" ",
    b"\t",
    b"\0",
    b":",
    b";",
    b",",
    b"0",
    b"\xff",
    b"Host: a\r\n",
]


def mutated(random: Random, raw: bytes) -> bytes:
    """Return the bytes with a few of them removed, repeated, replaced or added."""
    data = bytearray(raw)
    for _ in range(random.randint(1, 4)):
        at = random.randint(0, len(data))
        match random.randint(0, 3):
            case 0:
                del data[at : at + random.randint(1, 8)]
            case 1:
                data[at:at] = random.choice(SCRAPS)
            case 2:
                data[at : at + 1] = random.randbytes(1)
            case _:
                data[at:at] = data[at : at + random.randint(1, 20)]
    return bytes(data)


def everything(server: Server, pieces: list[bytes]) -> bytes:
    """Send all pieces, shut down sending, and read until the end."""
    with server.connect() as client:
        try:
            for piece in pieces:
                client.send(piece)
            client.socket.shutdown(socket.SHUT_WR)
        except OSError:
            return b""
        return client.file.read()


@pytest.mark.parametrize("seed", range(20))
def test_random_bytes_never_break_the_server(seed: int) -> None:
    random = Random(seed)
    with serving(limits=HttpLimits(linger_seconds=0.2)) as server:
        for _ in range(60):
            raw = mutated(random, random.choice(SEEDS)) + get("/after")
            if random.random() < 0.1:
                raw = random.randbytes(random.randint(1, 2_000))
            cut = random.randint(0, len(raw))
            try:
                answer = everything(server, [raw[:cut], raw[cut:]])
            except ConnectionResetError:
                continue
            while answer:
                answer = after_first(answer)
        assert server.still_serves()


def after_first(answers: bytes) -> bytes:
    """Check that the bytes begin with a complete response; return the rest."""
    assert answers.startswith(b"HTTP/1.1 "), answers
    head, _, rest = answers.partition(b"\r\n\r\n")
    fields = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:])
    length = int(fields.get(b"Content-Length", b"0"))
    assert len(rest) >= length
    return rest[length:]


HEADS = HeadCache(LIMITS)


class SecondOpinion:
    """The result of llhttp for the same bytes."""

    def __init__(self, raw: bytes) -> None:
        self.url = b""
        self.body = b""
        self.headers: list[tuple[str, str]] = []
        self.is_complete = False
        self.parser: Any = httptools.HttpRequestParser(self)
        with suppress(httptools.HttpParserUpgrade):
            self.parser.feed_data(raw)
        self.method = self.parser.get_method().decode()

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.decode("latin-1").lower(), value.decode("latin-1")))

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.is_complete = True


def ours(raw: bytes) -> Request | None:
    head, end, _ = raw.partition(b"\r\n\r\n")
    if not end:
        return None
    try:
        return HEADS.read(head)[0]
    except HttpRefused:
        return None


def check_against_llhttp(raw: bytes) -> bool:
    """Return whether we accept the head; if so, llhttp must accept it with the same result."""
    request = ours(raw)
    if request is None:
        return False
    try:
        theirs = SecondOpinion(raw[: raw.index(b"\r\n\r\n") + 4])
    except httptools.HttpParserInvalidMethodError:
        return True  # llhttp has a list of methods; our parser accepts any token
    target = request.path + "?" * bool(request.query) + request.query
    url = theirs.url.decode().removesuffix("?")
    assert theirs.method == request.method
    assert url.endswith(target) or f"{url}/".endswith(target) or request.path == "/"
    joined: dict[str, str] = {}
    for name, value in theirs.headers:
        bare = value.strip(" \t")
        joined[name] = f"{joined[name]}, {bare}" if name in joined else bare
    if whole := re.match(r"(?i:https?)://([^/?]*)", url):
        joined["host"] = whole[1]  # the Host header is ignored then
    assert joined == request.headers
    return True


@pytest.mark.parametrize("raw", [row[0] for row in GOOD.values()], ids=GOOD.keys())
def test_llhttp_agrees_about_what_is_unusual(raw: bytes) -> None:
    assert check_against_llhttp(raw.removeprefix(b"\r\n"))


@pytest.mark.parametrize("seed", range(20))
def test_llhttp_agrees_about_what_we_accept(seed: int) -> None:
    random = Random(seed)
    seeds = [get("/a?b", "X-A: 1", "Connection: close"), post(b"", "Expect: x"), *BAD.values()]
    accepted = 0
    for _ in range(2_000):
        accepted += check_against_llhttp(mutated(random, random.choice(seeds)))
    assert accepted > 50


@given(
    st.lists(st.sampled_from([*SCRAPS, b"GET", b"/", b"HTTP/1.1", b"Host", b"a", b"\r\n\r\n"])).map(
        b"".join
    )
    | st.binary()
)
def test_llhttp_agrees_about_anything_we_accept(raw: bytes) -> None:
    check_against_llhttp(b"GET / HTTP/1.1\r\nHost: a\r\n" + raw + b"\r\n\r\n")
    check_against_llhttp(raw + b"\r\n\r\n")


def check_body_against_llhttp(raw: bytes, random: Random) -> bool:
    """Return whether we accept a chunked body; if so, llhttp must read the same bytes."""
    request = Request(Head("POST", "/", "", {}))
    chunked = PartialBody(request, CHUNKED_LENGTH, LIMITS)
    cut = random.randint(0, len(raw))
    try:
        position, size = chunked.take(raw[:cut], 0)
        if not chunked.is_complete:
            more, grown = chunked.take(raw[position:], 0)
            position, size = position + more, size + grown
    except HttpRefused:
        return False
    if not chunked.is_complete:
        return False
    theirs = SecondOpinion(CHUNKED + raw[:position])
    assert theirs.is_complete
    assert theirs.body == request.body
    assert len(request.body) == size
    return True


@pytest.mark.parametrize("seed", range(20))
def test_llhttp_agrees_about_the_bodies_we_accept(seed: int) -> None:
    random = Random(seed)
    good = [
        b"3\r\nabc\r\n0\r\n\r\n",
        b'a;b="c";d=e\r\n0123456789\r\n0;x\r\nX: y\r\n\r\n',
        b"1\r\na\r\n01\r\nb\r\n0\r\n\r\nGET",
    ]
    accepted = 0
    for _ in range(2_000):
        accepted += check_body_against_llhttp(mutated(random, random.choice(good)), random)
    assert accepted > 50
