"""Every limit on sizes and counts, at its maximum and one above it."""

import socket
import tracemalloc
from collections.abc import Iterator

import pytest

from semel.server.http import Head, Request, Responder, Response
from semel.server.limits_http import HttpLimits, connections_allowed
from semel.server.request_body import PartialBody
from semel.server.request_head import CHUNKED
from tests.http.harness import HOST, Answer, Server, eventually, get, post, serving

KIB = 1024


def count(request: Request, responder: Responder) -> None:
    """Respond with sizes only."""
    sizes = [("Path-Bytes", len(request.path)), ("Body-Bytes", len(request.body))]
    responder.send(Response(200, [(name, str(size)) for name, size in sizes]))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(count) as running:
        yield running


def ask(server: Server, raw: bytes) -> Answer:
    """Send a request on a new connection; a refusal must close the connection."""
    with server.connect() as client:
        answer = client.ask(raw)
        assert answer.closes is (answer.status != 200)
        if answer.closes:
            assert answer.json["applied"] == "no"
            assert client.is_closed()
    assert server.still_serves()
    return answer


def refusal(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.json["code"]


def test_a_url_of_8_kib(server: Server) -> None:
    longest = "/" + "a" * (8 * KIB - 1)
    assert ask(server, get(longest)).headers["path-bytes"] == str(8 * KIB)
    assert refusal(ask(server, get(longest + "a"))) == (414, "url_too_long")
    assert refusal(ask(server, get("/?" + "a" * 8 * KIB))) == (414, "url_too_long")
    assert refusal(ask(server, get("/" + "a" * 100_000))) == (414, "url_too_long")


def test_a_header_line_of_8_kib(server: Server) -> None:
    line = "X-A: " + "a" * (8 * KIB - 5)
    assert ask(server, get("/", line)).status == 200
    assert refusal(ask(server, get("/", line + "a"))) == (431, "headers_too_large")
    assert refusal(ask(server, get("/", "X-A: " + "a" * 100_000))) == (431, "headers_too_large")
    assert refusal(ask(server, get("/", "X" * 100_000 + ": a"))) == (431, "headers_too_large")


def test_a_hundred_headers(server: Server) -> None:
    names = [f"X-{number}: a" for number in range(99)]
    assert ask(server, get("/", *names)).status == 200
    assert refusal(ask(server, get("/", *names, "X-More: a"))) == (431, "headers_too_large")
    same = ["X: a"] * 99
    assert ask(server, get("/", *same)).status == 200
    assert refusal(ask(server, get("/", *same, "X: a"))) == (431, "headers_too_large")


@pytest.mark.parametrize("piece_bytes", [1 << 20, 1 << 12])
def test_a_head_of_32_kib(server: Server, piece_bytes: int) -> None:
    lines = [f"X-{number}: " + "a" * 4_000 for number in range(8)]
    rest = 32 * KIB - len(get("/", *lines, "Y: "))
    longest = get("/", *lines, "Y: " + "a" * rest)
    assert len(longest) == 32 * KIB
    assert ask(server, longest).status == 200
    one_more = get("/", *lines, "Y: " + "a" * (rest + 1))
    with server.connect() as client:
        for start in range(0, len(one_more), piece_bytes):
            client.send(one_more[start : start + piece_bytes])
        assert refusal(client.answer()) == (431, "headers_too_large")
        assert client.is_closed()


def test_a_body_of_4_mib(server: Server) -> None:
    largest = b"x" * (4 * KIB * KIB)
    assert ask(server, post(largest)).headers["body-bytes"] == str(len(largest))
    assert refusal(ask(server, post(largest + b"x"))) == (413, "body_too_large")


def test_a_body_that_is_too_large_is_refused_before_it_is_sent(server: Server) -> None:
    raw = b"POST / HTTP/1.1\r\nContent-Length: 4194305\r\n" + HOST + b"\r\n"
    assert refusal(ask(server, raw)) == (413, "body_too_large")


def chunked(*chunks: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    head = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" + HOST + b"\r\n"
    return head + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + end


def test_a_chunked_body_has_the_same_limit() -> None:
    with serving(count, HttpLimits(body_bytes_max=10)) as server:
        assert ask(server, chunked(b"12345", b"67890")).headers["body-bytes"] == "10"
        too_large = (413, "body_too_large")
        assert refusal(ask(server, chunked(b"12345", b"678901"))) == too_large
        assert refusal(ask(server, chunked(b"12345678901"))) == too_large
        assert refusal(ask(server, chunked(end=b"fffffffffffffff\r\n"))) == too_large
        assert ask(server, post(b"x" * 10)).status == 200
        assert refusal(ask(server, post(b"x" * 11))) == too_large


def test_a_body_comes_in_so_many_chunks() -> None:
    with serving(count, HttpLimits(chunk_count_max=10)) as server:
        assert ask(server, chunked(*[b"x"] * 9)).headers["body-bytes"] == "9"
        assert refusal(ask(server, chunked(*[b"x"] * 10))) == (413, "body_too_large")


def test_small_chunks_use_no_more_memory_than_is_counted() -> None:
    """`held_bytes_max` counts the bytes of bodies, so small chunks must not need more memory."""
    body = PartialBody(Request(Head("POST", "/", "", {})), CHUNKED, HttpLimits())
    data = b"2\r\nab\r\n" * 20_000
    position, size = 0, 0
    tracemalloc.start()
    try:
        while position < len(data):
            position, grown = body.take(data, position)
            size += grown
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size == 40_000
    assert used < 2 * size


def test_a_chunk_line_of_1_kib(server: Server) -> None:
    longest = b"0;" + b"a" * (KIB - 2)
    assert ask(server, chunked(end=longest + b"\r\n\r\n")).status == 200
    too_long = ask(server, chunked(end=longest + b"a\r\n\r\n"))
    assert refusal(too_long) == (400, "malformed_request")
    endless = ask(server, chunked(end=longest + b"a" * 1_000))
    assert refusal(endless) == (400, "malformed_request")


def test_trailers_of_8_kib(server: Server) -> None:
    line = b"X: " + b"a" * (KIB - 3) + b"\r\n"
    assert ask(server, chunked(end=b"0\r\n" + line * 8 + b"\r\n")).status == 200
    too_long = ask(server, chunked(end=b"0\r\n" + line * 8 + b"Y:\r\n\r\n"))
    assert refusal(too_long) == (431, "headers_too_large")


def test_so_many_connections() -> None:
    with serving(count, HttpLimits(connections_max=3)) as server:
        clients = [server.connect() for _ in range(3)]
        for client in clients:
            assert client.ask(get()).status == 200
        with server.connect() as surplus:
            answer = surplus.ask(get())
            assert refusal(answer) == (503, "too_many_connections")
            assert answer.headers["retry-after"] == "1"
            assert surplus.is_closed()
        for client in clients:
            assert client.ask(get()).status == 200
            client.close()
        assert eventually(lambda: server.listener.connection_count == 0)
        assert server.still_serves()


def test_a_flood_of_connections_is_not_even_answered() -> None:
    with serving(count, HttpLimits(connections_max=1)) as server:
        clients = [server.connect() for _ in range(5)]
        clients[0].send(get())
        assert clients[0].answer().status == 200
        assert clients[1].answer().status == 503
        assert all(client.is_closed() for client in clients[2:])
        for client in clients:
            client.close()


def test_the_files_of_the_process_bound_the_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    files = 1_000
    monkeypatch.setattr("resource.getrlimit", lambda _: (files, files))
    assert connections_allowed(HttpLimits()) == 800
    assert connections_allowed(HttpLimits(connections_max=700)) == 700
    files = 100  # 64 of them are not for connections
    assert connections_allowed(HttpLimits()) == 36
    files = 10
    assert connections_allowed(HttpLimits()) == 1
    files = -1
    assert connections_allowed(HttpLimits()) == 16_384


def test_all_connections_together_hold_so_many_bytes() -> None:
    waiting: list[Responder] = []

    def handler(request: Request, responder: Responder) -> None:
        if request.body:
            waiting.append(responder)
        else:
            count(request, responder)

    with serving(handler, HttpLimits(held_bytes_max=1_000)) as server:
        with server.connect() as first, server.connect() as second:
            first.send(post(b"x" * 600))
            assert eventually(lambda: len(waiting) == 1)
            second.send(post(b"x" * 600)[:-100])
            answer = second.answer()
            assert refusal(answer) == (503, "overloaded")
            assert second.is_closed()
            server.call(lambda: waiting[0].send(Response(200, [])))
            assert first.answer().status == 200
        assert eventually(lambda: server.listener.connection_count == 0)
        with server.connect() as third:
            third.send(post(b"x" * 1_000))
            assert eventually(lambda: len(waiting) == 2)
            server.call(lambda: waiting[1].send(Response(200, [])))
            assert third.answer().status == 200


def test_a_refusal_reaches_a_client_that_is_still_sending(server: Server) -> None:
    """An immediate close would reset the connection, and the response would be lost."""
    with server.connect() as client:
        client.send(b"POST / HTTP/1.1\r\nContent-Length: 99999999\r\n" + HOST + b"\r\n")
        for _ in range(50):
            client.send(b"x" * 65_536)
        assert refusal(client.answer()) == (413, "body_too_large")
        client.socket.shutdown(socket.SHUT_WR)
        assert client.is_closed()


@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan")])
def test_a_limit_is_a_positive_number(value: float) -> None:
    with pytest.raises(ValueError, match="body_seconds must be positive"):
        HttpLimits(body_seconds=value)
