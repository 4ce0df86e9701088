"""Requests of web browsers: what pages of which origin can do, under which name of the server."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

from tests.media_types import TYPES_WITH_COMMAS
from tests.spec.earlier_streams import create_streams
from tests.spec.process import Answer, Server, Stream

METHODS: Final = {"get", "post", "put", "patch", "delete", "head", "options"}
REQUEST_HEADERS: Final = {
    *("content-type", "authorization", "if-match", "if-none-match", "idempotency-key"),
    *("stream-ttl", "stream-expires-at", "stream-closed", "stream-seq"),
    *("stream-forked-from", "stream-fork-offset", "stream-fork-sub-offset"),
    *("producer-id", "producer-epoch", "producer-seq", "producer-session"),
    *("producer-mode", "producer-cursor"),
    *("x-producer-id", "x-producer-epoch", "x-producer-seq"),
}
RESPONSE_HEADERS: Final = {
    *("stream-next-offset", "stream-up-to-date", "stream-closed", "stream-cursor", "stream-ttl"),
    *("stream-expires-at", "stream-sse-data-encoding", "stream-incarnation"),
    *("producer-epoch", "producer-seq", "producer-expected-seq", "producer-received-seq"),
    *("etag", "location", "idempotency-window", "idempotent-replayed"),
    *("x-stream-offset", "x-producer-epoch"),
}
LISTED: Final = "http://localhost:3000"
STRANGER: Final = "http://evil.example"
ALLOW: Final = "access-control-allow-origin"


def words(value: str) -> set[str]:
    return {word.strip().lower() for word in value.split(",")}


@contextmanager
def running(factory: pytest.TempPathFactory, *options: str) -> Iterator[Server]:
    it = Server(factory.mktemp("browsers") / "data", *options)
    try:
        yield it
    finally:
        it.kill()


# Not the server of the other tests: it logs what it refuses, and theirs must log nothing.
@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the default settings."""
    with running(tmp_path_factory) as it:
        yield it


@pytest.fixture(scope="module")
def listing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that pages of two origins can use."""
    options = ("--cors-origin", LISTED, "--cors-origin", "https://app.example")
    with running(tmp_path_factory, *options, "--body-bytes-max", "1000") as it:
        yield it


@pytest.fixture(scope="module")
def open_to_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory, "--cors-origin", "*", "--allowed-host", "semel.example") as it:
        yield it


def made(server: Server) -> Stream:
    stream = server.stream()
    stream.create(b"x")
    return stream


def each_answer(stream: Stream, **headers: Any) -> list[Answer]:
    """Return responses to reads and preflights of every kind, with good and bad results."""
    server, target = stream.server, stream.target
    return [
        *[server.ask(method, target, **headers) for method in ("GET", "HEAD", "OPTIONS")],
        stream.get("offset=", **headers),
        stream.get("offset=now&live=long-poll", **headers),
        first_of_events(stream, **headers),
        server.ask("GET", "/health", **headers),
        server.ask("GET", "/v1/streams", **headers),
        server.ask("GET", "/nothing", **headers),
        server.ask("GET", "/v1/stream/a/../b", **headers),
    ]


def each_write(stream: Stream, **headers: Any) -> list[Answer]:
    server = stream.server
    return [
        stream.put(content_type="text/plain", **headers),
        *[stream.post(b"x", **headers) for _ in range(4)],  # the last heads are cached
        stream.post(b"x", producer_id="p", **headers),
        server.ask("PATCH", stream.target, **headers),
        server.ask("POST", "/v1/producers", b"{}", **headers),
        server.ask("POST", "/v1/commits", b"{}", **headers),
        server.ask("POST", "/v1/transactions", b"{}", **headers),
        server.ask("POST", "/v1/groups/g/offsets", b"{}", **headers),
        server.ask("DELETE", "/v1/sinks/a", **headers),
        server.ask("DELETE", stream.target, **headers),
    ]


def first_of_events(stream: Stream, **headers: Any) -> Answer:
    connection = stream.server.connect()
    try:
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request("GET", f"{stream.target}?offset=-1&live=sse", headers=fields)
        response = connection.getresponse()
        names = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, names, b"")
    finally:
        connection.close()


# ---- pages of other origins ----------------------------------------------------------------------


@pytest.mark.spec("protocol 1.10")
@pytest.mark.parametrize("origin", [None, STRANGER, "null"])
def test_no_origin_may_read_an_answer_unless_it_is_listed(
    closed: Server, origin: str | None
) -> None:
    headers = {} if origin is None else {"origin": origin}
    for answer in (*each_answer(made(closed), **headers), *each_write(made(closed), **headers)):
        assert ALLOW not in answer.headers, answer
        assert "access-control-expose-headers" not in answer.headers
        assert "origin" not in words(answer.headers.get("vary", ""))
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"


@pytest.mark.spec("protocol 1.10")
@pytest.mark.parametrize("target", ["/v1/stream/any", "/health", "/v1/streams", "/nothing"])
def test_a_preflight_names_every_method_and_header(closed: Server, target: str) -> None:
    answer = closed.ask(
        "OPTIONS",
        target,
        origin=STRANGER,
        sec_fetch_site="cross-site",
        access_control_request_method="POST",
        access_control_request_headers="producer-id",
    )
    assert (answer.status, answer.body) == (204, b"")
    assert ALLOW not in answer.headers
    assert words(answer.headers["access-control-allow-methods"]) == METHODS
    assert words(answer.headers["access-control-allow-headers"]) >= REQUEST_HEADERS
    assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize("origin", [STRANGER, "null", "http://127.0.0.1:1", LISTED])
def test_a_stranger_changes_nothing_and_is_told_how_to_be_allowed(
    closed: Server, origin: str
) -> None:
    stream = made(closed)
    before = stream.head().headers
    for answer in each_write(stream, origin=origin):
        assert (answer.status, answer.code) == (403, "origin_not_allowed")
        assert answer.json["applied"] == "no"
        flag = "*" if origin == "null" else origin
        assert f"--cors-origin '{flag}'" in answer.json["message"]
    assert stream.head().headers == before
    assert f"'{origin}'" in closed.stderr  # a browser does not show the response to the author


def test_a_known_head_of_an_append_lets_no_stranger_in(closed: Server) -> None:
    stream = made(closed)
    for _ in range(4):
        assert stream.post(b"a").status == 204
    for _ in range(4):
        assert stream.post(b"b", origin=STRANGER).status == 403
        assert stream.post(b"b", sec_fetch_site="cross-site").status == 403
        assert stream.post(b"b", host="evil.example").status == 421
    assert stream.text == "xaaaa"


def test_a_stranger_is_refused_between_pipelined_appends(closed: Server) -> None:
    stream = made(closed)
    head = f"POST {stream.target} HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
    good = f"{head}Content-Length: 1\r\n\r\ng".encode()
    bad = f"{head}Origin: {STRANGER}\r\nContent-Length: 1\r\n\r\nb".encode()
    with closed.dial() as line:
        line.sendall((good + bad) * 5)
        received = b""
        while received.count(b"HTTP/1.1 ") < 10 or not received.endswith(b"}"):
            received += line.recv(65_536)
    assert re.findall(rb"HTTP/1.1 (\d+)", received) == [b"204", b"403"] * 5
    assert stream.text == "xggggg"


@pytest.mark.parametrize(
    ("line", "host", "status"),
    [(f"Origin: {STRANGER}", "localhost", 403), ("X: y", "evil.example", 421)],
)
def test_a_stranger_is_not_asked_for_a_body(
    closed: Server, line: str, host: str, status: int
) -> None:
    stream = made(closed)
    head = f"POST {stream.target} HTTP/1.1\r\nHost: {host}\r\n{line}\r\nExpect: 100-continue\r\n"
    for _ in range(4):  # the last heads are cached
        refused = closed.raw(f"{head}Content-Length: 9\r\n\r\n".encode())
        assert refused is not None
        assert (refused.status, refused.headers["connection"]) == (status, "close")
        assert refused.code in ("origin_not_allowed", "host_not_allowed")
    assert stream.text == "x"


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
@pytest.mark.parametrize("origin", [None, STRANGER])
def test_what_a_page_of_another_origin_loads_is_refused(
    closed: Server, site: str, origin: str | None
) -> None:
    headers: dict[str, Any] = {"sec_fetch_site": site}
    headers |= {} if origin is None else {"origin": origin}
    stream = made(closed)
    for query in ("", "offset=-1&live=sse", "offset=now&live=long-poll"):
        answer = stream.get(query, **headers)
        assert (answer.status, answer.code) == (403, "origin_not_allowed")
        assert "--cors-origin" in answer.json["message"]
    answer = stream.server.ask("HEAD", stream.target, b"", **headers)
    assert (answer.status, answer.body) == (403, b"")


def test_a_page_of_the_server_itself_and_a_person_are_served(closed: Server) -> None:
    stream = made(closed)
    own = {"origin": closed.url, "sec_fetch_site": "same-origin"}
    assert stream.post(b"y", **own).status == 204
    assert stream.get(sec_fetch_site="same-origin").body == b"xy"
    assert stream.get(sec_fetch_site="none").body == b"xy"


# ---- listed origins ------------------------------------------------------------------------------


@pytest.mark.spec("protocol 1.10")
def test_a_listed_origin_reads_every_answer_and_its_headers(listing: Server) -> None:
    headers = {"origin": LISTED, "sec_fetch_site": "cross-site"}
    for answer in (*each_answer(made(listing), **headers), *each_write(made(listing), **headers)):
        assert answer.headers[ALLOW] == LISTED, answer
        assert words(answer.headers["access-control-expose-headers"]) >= RESPONSE_HEADERS
        assert "origin" in words(answer.headers["vary"])
        assert answer.headers["cross-origin-resource-policy"] == "cross-origin"
        assert answer.status not in (403, 421)


def test_a_listed_origin_reads_why_its_request_was_too_large(listing: Server) -> None:
    stream = made(listing)
    for _ in range(4):  # the last heads are cached
        answer = stream.post(b"x" * 1001, origin=LISTED)
        assert (answer.status, answer.headers.get(ALLOW)) == (413, LISTED)
    start = f"POST {stream.target} HTTP/1.1\r\nHost: localhost\r\nOrigin: {LISTED}\r\n"
    body = b"3e9\r\n" + b"x" * 1001 + b"\r\n0\r\n\r\n"
    chunked = listing.raw(f"{start}Transfer-Encoding: chunked\r\n\r\n".encode() + body)
    assert chunked is not None
    assert (chunked.status, chunked.headers.get(ALLOW)) == (413, LISTED)


def test_an_answer_that_a_cache_may_keep_varies_with_the_origin(listing: Server) -> None:
    for headers in ({}, {"origin": STRANGER}):
        for answer in each_answer(made(listing), **headers):
            assert ALLOW not in answer.headers
            assert "origin" in words(answer.headers["vary"])
    stream = made(listing)
    assert words(stream.get().headers["vary"]) == {"origin", "accept", "accept-encoding"}
    assert "vary" not in stream.post(b"x").headers
    assert stream.post(b"x", origin=STRANGER).status == 403


@pytest.mark.spec("protocol 1.10")
def test_a_star_lists_every_origin(open_to_all: Server) -> None:
    for origin in (STRANGER, "null"):
        headers = {"origin": origin, "sec_fetch_site": "cross-site"}
        stream = made(open_to_all)
        for answer in (*each_answer(stream, **headers), *each_write(stream, **headers)):
            assert answer.headers[ALLOW] == "*"
            assert words(answer.headers["access-control-expose-headers"]) >= RESPONSE_HEADERS
            assert "origin" not in words(answer.headers.get("vary", ""))
            assert answer.status not in (403, 421)
    for answer in each_answer(made(open_to_all)):  # a cache may return it to a browser
        assert answer.headers[ALLOW] == "*"


# ---- names of the server -------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["localhost", "semel.localhost:80", "127.0.0.1", "[::1]:1"])
def test_the_names_of_this_machine_are_names_of_the_server(closed: Server, host: str) -> None:
    assert made(closed).get(host=host).status == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:4437", "localhost.evil.example"])
def test_another_name_is_refused_also_for_a_page_of_that_name(closed: Server, host: str) -> None:
    stream = made(closed)
    headers: dict[str, Any] = {"host": host, "origin": f"http://{host}"}
    headers["sec_fetch_site"] = "same-origin"
    for answer in (stream.get(**headers), *each_write(stream, **headers)):
        assert (answer.status, answer.code) == (421, "host_not_allowed")
        assert f"--allowed-host {host.partition(':')[0]}" in answer.json["message"]
    assert closed.ask("OPTIONS", stream.target, b"", **headers).status == 421
    assert closed.ask("GET", "/health", host=host).status == 200
    assert stream.text == "x"


def test_an_address_is_named_in_brackets_and_can_be_allowed(
    closed: Server, tmp_path_factory: pytest.TempPathFactory
) -> None:
    refused = made(closed).get(host="[fd00::1]:4437")
    assert (refused.status, refused.json["host"]) == (421, "[fd00::1]:4437")
    assert refused.json["message"].endswith(" --allowed-host '[fd00::1]'")
    with running(tmp_path_factory, "--allowed-host", "[fd00:0:0:0:0:0:0:1]") as server:
        assert made(server).get(host="[fd00::1]:4437").status == 200
        assert made(server).get(host="[fd00::2]:4437").status == 421


def test_a_name_can_be_allowed(open_to_all: Server) -> None:
    stream = made(open_to_all)
    assert stream.get(host="Semel.example:8080").status == 200
    assert stream.get(host="other.example").status == 421


# ---- content -------------------------------------------------------------------------------------


def test_semels_own_calls_need_json(closed: Server) -> None:
    """A page can send any other type to any server without asking the server first."""
    begin = b'{"transaction_id": "t", "producer_id": "p", "producer_epoch": 0}'
    for target, body in (
        ("/v1/producers", b"{}"),
        ("/v1/producers/claim", b"{}"),
        ("/v1/transactions", begin),
        *[(f"/v1/transactions/t/{each}", b"{}") for each in ("streams", "commit", "fence")],
        ("/v1/commits", b"{}"),
        ("/v1/groups/g/offsets", b"{}"),
        ("/v1/groups/g/snapshot", b"{}"),
        ("/v1/sinks/a/rebind", b"{}"),
    ):
        for kind in ("text/plain", "application/x-www-form-urlencoded", "application/jsonp", ""):
            answer = closed.ask("POST", target, body, content_type=kind)
            assert (answer.status, answer.code) == (415, "unsupported_media_type"), target
            assert "Content-Type: application/json" in answer.json["message"]
        typed = closed.ask("POST", target, body, content_type="application/json; charset=utf-8")
        assert typed.status != 415
    assert closed.ask("POST", "/v1/producers").status == 201  # nothing was sent


def test_a_stream_of_documents_tells_the_browser_to_run_nothing(closed: Server) -> None:
    for kind, is_inert in (
        ("text/html", False),
        ("image/svg+xml", False),
        ("text/plain", True),
        ("application/json", True),
    ):
        stream = closed.stream()
        stream.create(b"[1]", kind)
        for answer in (stream.get(), stream.head()):
            policy = answer.headers.get("content-security-policy", "")
            assert ("default-src 'none'; sandbox" in policy) != is_inert


def test_a_stream_of_two_media_types_tells_the_browser_to_run_nothing(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Earlier versions have created such streams. A browser may take the second type."""
    data = tmp_path_factory.mktemp("browsers") / "data"
    types = {str(at): (each, b"[1]") for at, each in enumerate(TYPES_WITH_COMMAS)}
    create_streams(data, types)
    server = Server(data)
    try:
        for path, (media_type, _) in types.items():
            stream = Stream(server, path)
            whole = stream.get()
            assert whole.headers["content-type"] == media_type
            etag = whole.headers["etag"]
            for answer in (
                whole,
                stream.head(),
                stream.get(if_none_match=etag),
                stream.get(accept_encoding="gzip"),
                stream.get(accept="application/vnd.semel.frames"),
                stream.get("offset=-1&live=long-poll"),
                stream.get("offset=-1&isolation=read_committed"),
            ):
                policy = answer.headers["content-security-policy"]
                assert policy.startswith("default-src 'none'; sandbox"), (media_type, answer)
            # The type of any other response does not depend on the stream.
            assert "content-type" not in stream.get("offset=now&live=long-poll").headers
            assert first_of_events(stream).headers["content-type"] == "text/event-stream"
            assert stream.get("offset=x").code == "invalid_offset"
            assert stream.post(b"[2]", content_type="image/png").code == "content_type_conflict"
            one = media_type.partition(";")[0]
            assert stream.post(b"[3]", content_type=one).status == 204
    finally:
        server.kill()
