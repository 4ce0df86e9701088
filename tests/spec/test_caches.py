"""A shared cache between reader and server: a deleted stream is never taken for its successor."""

import http.client
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import msgspec
import pytest

from tests.spec.process import Answer, Server, Stream, field_names, offset_of

JSON: Final = "application/json"
FRAMES: Final = "application/vnd.semel.frames"
MESSAGES: Final = 40
MESSAGE_BYTES: Final = 65_536  # two and a half pages
HOP_BY_HOP: Final = frozenset({"connection", "date", "keep-alive", "transfer-encoding"})
MAX_AGE: Final = re.compile(r"max-age=(\d+)")


class Stored(msgspec.Struct):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def lifetime_seconds(self) -> int:
        """For how long the response may be used without asking the server."""
        control = self.headers.get("cache-control", "")
        found = MAX_AGE.search(control)
        return 0 if found is None or "no-cache" in control else int(found[1])


class SharedCache(BaseHTTPRequestHandler):
    """A cache of GET responses that follows RFC 9111, in front of one server.

    Time stands still, so a fresh response stays fresh. A response of the server that allows no
    storing is forwarded. One that has to be revalidated is, with its ETag.
    """

    server: "CacheServer"
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        fields = {name.lower(): value for name, value in self.headers.items()}
        varying = tuple(fields.get(name) for name in ("accept", "accept-encoding"))
        key = (self.path, varying)
        stored = self.server.stored.get(key)
        if stored is not None and stored.lifetime_seconds > 0:
            self.server.hits += 1
            self.reply(stored)
            return
        if stored is not None and "etag" in stored.headers:
            fields["if-none-match"] = stored.headers["etag"]
        found = self.ask(fields)
        if found.status == 304 and stored is not None:
            stored.headers.update(found.headers)
            self.server.revalidated += 1
            self.reply(stored)
            return
        self.server.stored.pop(key, None)
        is_storable = "no-store" not in found.headers.get("cache-control", "")
        if found.status == 200 and is_storable:
            self.server.stored[key] = found
        self.reply(found)

    def ask(self, fields: dict[str, str]) -> Stored:
        connection = self.server.origin.connect()
        try:
            connection.request("GET", self.path, headers=fields)
            response: http.client.HTTPResponse = connection.getresponse()
            headers = {name.lower(): value for name, value in response.getheaders()}
            body = response.read()
        finally:
            connection.close()
        kept = {name: value for name, value in headers.items() if name not in HOP_BY_HOP}
        return Stored(response.status, kept, body)

    def reply(self, answer: Stored) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            if name != "content-length":
                self.send_header(name, value)
        self.send_header("content-length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing: the tests look at the responses."""


class CacheServer(ThreadingHTTPServer):
    def __init__(self, origin: Server) -> None:
        super().__init__(("127.0.0.1", 0), SharedCache)
        self.origin = origin
        self.stored: dict[Any, Stored] = {}
        self.hits = self.revalidated = 0

    def get(self, target: str, **headers: Any) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.server_port, timeout=60)
        try:
            connection.request("GET", target, headers=field_names(headers))
            response = connection.getresponse()
            fields = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, fields, response.read())
        finally:
            connection.close()


@contextmanager
def running(cache: CacheServer) -> Iterator[CacheServer]:
    thread = threading.Thread(target=cache.serve_forever)
    thread.start()
    try:
        yield cache
    finally:
        cache.shutdown()
        thread.join()
        cache.server_close()


@pytest.fixture
def cache(server: Server) -> Iterator[CacheServer]:
    with running(CacheServer(server)) as it:
        yield it


def fill(stream: Stream, letter: str) -> None:
    stream.create(content_type=JSON)
    for _ in range(MESSAGES):
        body = b'["' + letter.encode() * MESSAGE_BYTES + b'"]'
        assert stream.post(body, content_type=JSON).status == 204


def make_again(stream: Stream) -> None:
    """Delete the stream, and create one with other messages of the same sizes at its path."""
    assert stream.delete().status == 204
    fill(stream, "b")


READS: Final = [
    "offset=-1",
    f"offset={offset_of(3)}",
    f"offset={offset_of(0)}&live=long-poll",
    f"offset={offset_of(MESSAGES - 2)}&live=long-poll",
    f"offset={offset_of(MESSAGES - 2)}",
    "offset=-1&isolation=read_committed",
]


@pytest.mark.parametrize("accept", [None, FRAMES], ids=["plain", "frames"])
@pytest.mark.parametrize("query", READS)
def test_a_cache_never_returns_messages_of_a_deleted_stream(
    cache: CacheServer, stream: Stream, query: str, accept: str | None
) -> None:
    headers: dict[str, Any] = {} if accept is None else {"accept": accept}
    target = f"{stream.target}?{query}"
    fill(stream, "a")
    before = cache.get(target, **headers)
    assert before.status == 200
    assert b"aaaa" in before.body
    make_again(stream)
    after = cache.get(target, **headers)
    assert b"aaaa" not in after.body
    direct = stream.server.ask("GET", target, **headers)
    assert after.headers["stream-incarnation"] == direct.headers["stream-incarnation"]
    if accept is None:  # frames contain the time at which they were written
        assert after.body == direct.body
    assert stream.delete().status == 204
    assert cache.get(target, **headers).status == 404


def test_an_unchanged_page_is_revalidated_without_its_body(
    cache: CacheServer, stream: Stream
) -> None:
    fill(stream, "a")
    pages = [cache.get(f"{stream.target}?offset=-1") for _ in range(3)]
    assert {page.body for page in pages} == {pages[0].body}
    assert (cache.hits, cache.revalidated) == (0, 2)


@pytest.mark.parametrize("live", ["", "&live=long-poll"])
def test_a_page_whose_address_names_the_incarnation_is_cached(
    cache: CacheServer, stream: Stream, live: str
) -> None:
    fill(stream, "a")
    old = stream.head().headers["stream-incarnation"]
    pinned = f"{stream.target}?offset={offset_of(0)}{live}&incarnation="
    pages = [cache.get(pinned + old) for _ in range(3)]
    assert {page.body for page in pages} == {pages[0].body}
    assert (cache.hits, cache.revalidated) == (2, 0)
    make_again(stream)
    new = stream.head().headers["stream-incarnation"]
    assert cache.get(pinned + old).body == pages[0].body, "still what was asked for"
    assert b"aaaa" not in cache.get(pinned + new).body
    cache.stored.clear()
    refused = cache.get(pinned + old)
    assert (refused.status, refused.code) == (409, "incarnation_conflict")
    assert refused.headers["cache-control"] == "no-store"
    assert refused.json["incarnation"] == new


@pytest.mark.parametrize("live", ["", "&live=long-poll", "&live=sse"])
def test_a_read_that_names_another_incarnation_is_refused(stream: Stream, live: str) -> None:
    stream.create(b"a")
    for wrong in ("0123456789abcdef", "", "x" * 1000):
        refused = stream.get(f"offset=-1{live}&incarnation={wrong}")
        assert (refused.status, refused.code) == (409, "incarnation_conflict")
        assert refused.json["stream"] == stream.path
