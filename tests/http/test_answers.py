"""Streamed responses, and handlers that fail."""

import time
from functools import partial

import pytest

from semel.server.http import Request, Responder, Response
from tests.http.harness import (
    HOST,
    Client,
    Desk,
    each_loop,
    echo,
    eventually,
    get,
    put,
    serving,
)

# ---- streams -------------------------------------------------------------------------------------


@each_loop
def test_an_answer_may_be_streamed(loop: str) -> None:
    desk = Desk()
    with serving(desk, loop=loop) as server, server.connect() as client:
        client.send(put("/a") + put("/b"))
        assert desk.has(2)
        desk.answer(server, 1)
        stream = desk.start(server, 0)
        status, headers = client.head()
        assert (status, headers) == (200, {"transfer-encoding": "chunked"})
        for piece in (b"one", b"", b"x" * 100_000):
            server.call(partial(stream.write, piece))
        assert client.chunk() == b"one"
        assert client.chunk() == b"x" * 100_000
        server.call(stream.end)
        assert client.chunk() == b""
        assert client.answer().headers["x-path"] == "/b"


def test_a_stream_waits_for_its_turn() -> None:
    desk = Desk()
    drained: list[bool] = []
    with serving(desk) as server, server.connect() as client:
        client.send(put("/a") + put("/b"))
        assert desk.has(2)
        stream = desk.start(server, 1)
        server.call(lambda: stream.write(b"held"))
        assert server.call(lambda: stream.is_blocked) is True
        server.call(lambda: stream.on_drain(lambda: drained.append(True)))
        assert drained == []
        desk.answer(server, 0)
        assert drained == [True]
        assert server.call(lambda: stream.is_blocked) is False
        server.call(lambda: stream.on_drain(lambda: drained.append(True)))
        assert eventually(lambda: len(drained) == 2)
        server.call(stream.end)
        assert client.answer().headers["x-path"] == "/a"
        assert client.answer().body == b"held"


@each_loop
def test_a_stream_says_when_the_client_reads_too_slowly(loop: str) -> None:
    pieces = 0

    def handler(_: Request, responder: Responder) -> None:
        stream = responder.start(200, [])

        def pump() -> None:
            nonlocal pieces
            while not stream.is_blocked and pieces < 400:
                pieces += 1
                stream.write(b"x" * 65_536)
            if pieces == 400:
                stream.end()
            else:
                stream.on_drain(pump)

        pump()

    with serving(handler, loop=loop) as server, server.connect(receive_buffer=4096) as client:
        client.send(get())
        assert eventually(lambda: pieces > 0)
        time.sleep(0.1)
        assert pieces < 300
        assert len(client.answer().body) == 400 * 65_536


def test_a_stream_to_an_old_client_ends_with_the_connection() -> None:
    desk = Desk()
    with serving(desk) as server, server.connect() as client:
        client.send(get("/a", "Connection: keep-alive", version="1.0"))
        assert desk.has(1)
        stream = desk.start(server, 0)
        server.call(lambda: stream.write(b"one"))
        server.call(lambda: stream.write(b"two"))
        server.call(stream.end)
        answer = client.answer()
        assert (answer.body, answer.closes) == (b"onetwo", True)


def test_a_streamed_answer_to_head_has_no_body() -> None:
    desk = Desk()
    with serving(desk) as server, server.connect() as client:
        client.send(b"HEAD /a HTTP/1.1\r\n" + HOST + b"\r\n" + put("/b"))
        assert desk.has(2)
        stream = desk.start(server, 0)
        server.call(lambda: stream.write(b"one"))
        server.call(stream.end)
        desk.answer(server, 1)
        assert client.answer(is_head=True).status == 200
        assert client.answer().headers["x-path"] == "/b"


# ---- handlers that fail --------------------------------------------------------------------------


def is_internal_error(client: Client) -> bool:
    answer = client.answer()
    assert (answer.status, answer.closes) == (500, True)
    assert answer.json["code"] == "internal_error"
    assert answer.json["applied"] == "unknown"  # the handler may have failed after a change
    assert b"secret" not in answer.body
    return client.is_closed()


def test_a_handler_that_raises_is_answered_for() -> None:
    def handler(request: Request, responder: Responder) -> None:
        if request.path == "/bad":
            raise ValueError("secret")
        echo(request, responder)

    with serving(handler, may_log=True) as server, server.connect() as client:
        client.send(get("/first") + get("/bad") + get("/never"))
        assert client.answer().json["path"] == "/first"
        assert is_internal_error(client)
        assert server.still_serves()
        assert [record.exc_info is not None for record in server.logged] == [True]


def test_a_handler_that_raises_after_its_response_ends_the_connection() -> None:
    def handler(_: Request, responder: Responder) -> None:
        responder.send(Response(200, [], b"sent"))
        raise ValueError("secret")

    with serving(handler, may_log=True) as server, server.connect() as client:
        assert client.ask(get()).body == b"sent"
        assert client.is_closed()


@pytest.mark.parametrize(
    "response",
    [
        Response(200, [("X-A", "1\r\nX-B: secret")]),
        Response(200, [("X-A\r\n", "secret")]),
        Response(200, [("X-A", "1\nsecret")]),
        Response(200, [("X-A", "1\rsecret")]),
        Response(200, [("X-A", "1\0secret")]),
        Response(200, [("X-A", "\u20ac secret")]),
        Response(101, []),
        Response(700, []),
    ],
)
@pytest.mark.parametrize("is_streamed", [False, True])
def test_an_answer_that_cannot_be_sent_is_not_sent(response: Response, is_streamed: bool) -> None:
    def handler(_: Request, responder: Responder) -> None:
        if is_streamed:
            stream = responder.start(response.status, response.headers)
            stream.write(b"secret")
            stream.on_drain(lambda: stream.write(b"secret"))
            assert not stream.is_blocked
            stream.end()
        else:
            responder.send(response)

    with serving(handler, may_log=True) as server, server.connect() as client:
        client.send(get())
        assert is_internal_error(client)
        assert len(server.logged) == 1


def test_a_second_answer_is_dropped() -> None:
    def handler(_: Request, responder: Responder) -> None:
        responder.send(Response(200, [], b"first"))
        responder.send(Response(200, [], b"second"))
        responder.start(200, []).write(b"third")

    with serving(handler, may_log=True) as server, server.connect() as client:
        client.send(get() * 2)
        assert client.answer().body == b"first"
        assert client.answer().body == b"first"
        assert len(server.logged) == 4


def test_a_stream_that_breaks_is_cut_and_never_ended() -> None:
    def handler(request: Request, responder: Responder) -> None:
        if request.path == "/alive":
            echo(request, responder)
            return
        responder.start(200, []).write(b"one")
        raise ValueError("secret")

    with serving(handler, may_log=True) as server:
        with server.connect() as client:
            client.send(get())
            assert client.is_closed() or b"0\r\n\r\n" not in client.file.read()
        assert server.still_serves()


def test_what_was_asked_after_a_failure_is_not_answered() -> None:
    desk = Desk()
    with serving(desk, may_log=True) as server, server.connect() as client:
        client.send(put("/a") + put("/b") + put("/c"))
        assert desk.has(3)
        desk.answer(server, 1)
        server.call(lambda: desk.asked[0][1].send(Response(0, [])))
        assert is_internal_error(client)
        assert desk.gone == ["/c"]
        desk.answer(server, 2)


def test_a_piece_after_the_end_is_dropped() -> None:
    def handler(_: Request, responder: Responder) -> None:
        stream = responder.start(200, [])
        stream.end()
        stream.write(b"late")
        stream.end()

    with serving(handler, may_log=True) as server, server.connect() as client:
        client.send(get() * 2)
        assert [client.answer().body for _ in range(2)] == [b"", b""]
        assert len(server.logged) == 2


def test_a_callback_that_raises_harms_nobody() -> None:
    gone: list[bool] = []

    def fail() -> None:
        raise ValueError("secret")

    def handler(request: Request, responder: Responder) -> None:
        if request.path == "/alive":
            echo(request, responder)
            return
        responder.start(200, []).on_drain(fail)
        responder.on_gone(fail)
        responder.on_gone(lambda: gone.append(True))

    with serving(handler, may_log=True) as server:
        with server.connect() as client:
            client.send(get())
            assert client.head()[0] == 200
        assert eventually(lambda: gone == [True])
        assert server.still_serves()
        assert len(server.logged) == 2


def test_an_answer_to_head_without_a_body_claims_no_length() -> None:
    """GET would send a body, so a length of 0 would be wrong, and caches would use it."""

    def handler(request: Request, responder: Responder) -> None:
        responder.send(Response(200, [], b"abc" if request.path == "/page" else b""))

    with serving(handler) as server, server.connect() as client:
        for path, expected in (("/page", {"content-length": "3"}), ("/stream", {})):
            raw = f"HEAD {path} HTTP/1.1\r\n".encode() + HOST + b"\r\n"
            assert client.ask(raw, is_head=True).headers == expected


def test_a_refusal_of_the_connection_is_not_kept_by_caches() -> None:
    with serving(echo) as server, server.connect() as client:
        answer = client.ask(b"GET / HTTP/9.9\r\n" + HOST + b"\r\n")
        assert (answer.status, answer.headers["cache-control"]) == (505, "no-store")
