"""Connections of well-behaved clients."""

import re
import threading
import time
from random import Random

import pytest

from semel.server.http import Request, Responder, Response
from semel.server.limits_http import HttpLimits
from tests.http.harness import (
    CONSTANT_LINES,
    HOST,
    Desk,
    each_loop,
    echo,
    eventually,
    get,
    post,
    put,
    serving,
)

MIB = 1024 * 1024


# ---- requests and answers ------------------------------------------------------------------------


@each_loop
def test_a_connection_serves_one_request_after_another(loop: str) -> None:
    with serving(loop=loop) as server, server.connect() as client:
        for number in range(3):
            answer = client.ask(post(b"abc", path=f"/{number}?q"))
            assert (answer.status, answer.closes) == (200, False)
            assert answer.json["path"] == f"/{number}"
            assert answer.json["body"] == "abc"


@each_loop
def test_a_body_may_come_in_pieces(loop: str) -> None:
    body = Random(7).randbytes(300_000)
    raw = post(body) + get("/next")
    with serving(loop=loop) as server, server.connect() as client:
        for start in range(0, len(raw), 7_001):
            client.send(raw[start : start + 7_001])
        assert client.answer().json["body"].encode("latin-1") == body
        assert client.answer().json["path"] == "/next"


def test_a_request_may_come_byte_by_byte() -> None:
    with serving() as server, server.connect() as client:
        for byte in post(b"abc", "X-A: 1") + get("/next"):
            client.send(bytes([byte]))
        assert client.answer().json["headers"]["x-a"] == "1"
        assert client.answer().json["path"] == "/next"


CHUNKS = [
    (b"0\r\n\r\n", ""),
    (b"3\r\nabc\r\n0\r\n\r\n", "abc"),
    (b"03\r\nabc\r\n2\r\nde\r\n000\r\n\r\n", "abcde"),
    (b'3;a;b=c;d="e;\\"f"\r\nabc\r\n0;x\r\n\r\n', "abc"),
    (b"A\r\n0123456789\r\na\r\n0123456789\r\n0\r\n\r\n", "01234567890123456789"),
    (b"3\r\na\r\n\r\n0\r\nX-Sum: 1\r\nContent-Length: 9\r\n\r\n", "a\r\n"),
]


@pytest.mark.parametrize("is_slow", [False, True])
@pytest.mark.parametrize(("raw", "body"), CHUNKS)
def test_a_body_may_be_chunked(raw: bytes, body: str, is_slow: bool) -> None:
    raw = b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" + HOST + b"\r\n" + raw + get("/b")
    with serving() as server, server.connect() as client:
        for piece in [bytes([byte]) for byte in raw] if is_slow else [raw]:
            client.send(piece)
        said = client.answer().json
        assert said["body"] == body
        assert "x-sum" not in said["headers"]
        assert client.answer().json["path"] == "/b"


def test_a_head_request_is_answered_without_the_body() -> None:
    with serving() as server, server.connect() as client:
        raw = b"HEAD /a HTTP/1.1\r\n" + HOST + b"\r\n"
        answer = client.ask(raw, is_head=True)
        assert answer.status == 200
        assert int(answer.headers["content-length"]) > 0
        assert client.ask(get("/next")).json["path"] == "/next"


@pytest.mark.parametrize("status", [204, 304])
def test_some_answers_never_have_a_body(status: int) -> None:
    def handler(request: Request, responder: Responder) -> None:
        if request.path == "/bare":
            responder.send(Response(status, [("X-A", "1")], b"ignored"))
        else:
            echo(request, responder)

    with serving(handler) as server, server.connect() as client:
        answer = client.ask(get("/bare"))
        assert (answer.status, answer.headers) == (status, {"x-a": "1"})
        assert client.ask(get("/next")).json["path"] == "/next"


def test_an_unknown_status_has_no_phrase() -> None:
    with (
        serving(lambda _, responder: responder.send(Response(299, []))) as server,
        server.connect() as client,
    ):
        assert client.ask(get()).status == 299


@each_loop
def test_a_large_answer_arrives_whole(loop: str) -> None:
    body = Random(8).randbytes(8 * MIB)
    with (
        serving(lambda _, responder: responder.send(Response(200, [], body)), loop=loop) as server,
        server.connect() as client,
    ):
        client.send(get() * 3)
        for _ in range(3):
            assert client.answer().body == body


# ---- keep-alive ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "connection", "goes_on"),
    [
        ("1.1", None, True),
        ("1.1", "keep-alive", True),
        ("1.1", "close", False),
        ("1.1", "Keep-Alive, Close", False),
        ("1.0", None, False),
        ("1.0", "close", False),
        ("1.0", "Keep-Alive", True),
    ],
)
def test_the_connection_goes_on_if_the_client_wants_it(
    version: str, connection: str | None, goes_on: bool
) -> None:
    headers = [] if connection is None else [f"Connection: {connection}"]
    with serving() as server, server.connect() as client:
        client.send(get("/a", *headers, version=version) + get("/b"))
        answer = client.answer()
        assert answer.closes is not goes_on
        if version == "1.0" and goes_on:
            assert answer.headers["connection"] == "keep-alive"
        if goes_on:
            assert client.answer().json["path"] == "/b"
        else:
            assert client.is_closed()


def test_http_1_0_needs_no_host() -> None:
    with serving() as server, server.connect() as client:
        assert client.ask(b"GET /a HTTP/1.0\r\n\r\n").json["path"] == "/a"


# ---- 100-continue --------------------------------------------------------------------------------


def test_a_client_that_waits_for_100_continue_gets_it() -> None:
    head, body = post(b"abc", "Expect: 100-Continue").split(b"\r\n\r\n")
    with serving() as server, server.connect() as client:
        assert client.ask(head + b"\r\n\r\n").status == 100
        assert client.ask(body).json["body"] == "abc"


def test_a_client_that_did_not_wait_gets_no_100_continue() -> None:
    with serving() as server, server.connect() as client:
        assert client.ask(post(b"abc", "Expect: 100-continue")).status == 200
        assert client.ask(post(b"", "Expect: 100-continue")).status == 200


def test_100_continue_is_sent_after_the_pending_answers() -> None:
    desk = Desk()
    head, body = post(b"abc", "Expect: 100-continue").split(b"\r\n\r\n")
    with serving(desk) as server, server.connect() as client:
        client.send(get("/first") + head + b"\r\n\r\n")
        assert desk.has(1)
        desk.answer(server, 0)
        assert client.answer().headers["x-path"] == "/first"
        assert client.answer().status == 100
        client.send(body)
        assert desk.has(2)
        desk.answer(server, 1)
        assert client.answer().status == 200


def test_a_body_that_is_too_large_is_refused_instead_of_asked_for() -> None:
    raw = b"PUT / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 99999999\r\n" + HOST + b"\r\n"
    with serving() as server, server.connect() as client:
        assert client.ask(raw).status == 413
        assert client.is_closed()


@pytest.mark.parametrize("framing", ["Content-Length: 3", "Transfer-Encoding: chunked"])
def test_the_body_of_a_request_that_a_browser_may_not_send_is_not_asked_for(framing: str) -> None:
    desk = Desk()
    lines = b"Expect: 100-continue\r\nOrigin: http://evil.example\r\n" + framing.encode()
    with serving(desk) as server, server.connect() as client:
        client.send(get("/first") + b"POST / HTTP/1.1\r\n" + lines + b"\r\n" + HOST + b"\r\n")
        assert desk.has(2)
        request, _ = desk.asked[1]
        assert request.head.refusal is not None
        assert request.body == b""
        client.send(b"abc")  # is ignored, and is not the beginning of another request
        desk.answer(server, 1)
        desk.answer(server, 0)
        assert client.answer().headers["x-path"] == "/first"
        assert client.answer().closes
        assert client.is_closed()


def test_another_expectation_is_not_met() -> None:
    with serving() as server, server.connect() as client:
        answer = client.ask(post(b"abc", "Expect: wonders"))
        assert (answer.status, answer.json["code"]) == (417, "expectation_failed")
        assert client.is_closed()


# ---- pipelining ----------------------------------------------------------------------------------


@each_loop
def test_answers_keep_the_order_of_a_thousand_requests(loop: str) -> None:
    random = Random(9)
    most: list[int] = []
    waiting = 0

    def handler(request: Request, responder: Responder) -> None:
        nonlocal waiting
        waiting += 1
        most.append(waiting)

        def answer() -> None:
            nonlocal waiting
            waiting -= 1
            responder.send(Response(200, [("X-Path", request.path)], request.body))

        if random.random() < 0.2:
            answer()
        else:
            server.loop.call_later(random.random() / 200, answer)

    with serving(handler, loop=loop) as server, server.connect() as client:
        requests = [post(b"%d" % n, path=f"/{n}") for n in range(1_000)]
        sender = threading.Thread(target=client.send, args=(b"".join(requests),))
        sender.start()
        for number in range(1_000):
            answer = client.answer()
            assert answer.headers["x-path"] == f"/{number}"
            assert answer.body == b"%d" % number
        sender.join()
    assert 8 < max(most) <= HttpLimits().pipelined_max


def test_a_connection_has_only_so_many_requests_under_way() -> None:
    desk = Desk()
    with serving(desk, HttpLimits(pipelined_max=4)) as server, server.connect() as client:
        client.send(b"".join(put(f"/{n}") for n in range(10)))
        for done in range(10):
            assert desk.has(min(10, done + 4))
            desk.answer(server, done)
            assert client.answer().headers["x-path"] == f"/{done}"


@each_loop
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_read_is_begun_when_all_before_it_are_answered(method: str, loop: str) -> None:
    """A read must see earlier writes, and long responses must not queue after a slow one."""
    desk = Desk()
    read = f"{method} /b HTTP/1.1\r\n".encode() + HOST + b"\r\n"
    with serving(desk, loop=loop) as server, server.connect() as client:
        client.send(put("/a") + put("/a") + read + put("/c") + put("/d"))
        assert desk.has(2)
        desk.answer(server, 1)
        time.sleep(0.05)
        assert desk.has(2)
        desk.answer(server, 0)
        assert desk.has(5)
        for index in (2, 3, 4):
            desk.answer(server, index)
        for path in ("/a", "/a", "/b", "/c", "/d"):
            assert client.answer(is_head=path == "/b").headers["x-path"] == path


def test_a_connection_has_only_so_many_bytes_under_way() -> None:
    desk = Desk()
    limits = HttpLimits(pipelined_bytes_max=1_000)
    with serving(desk, limits) as server, server.connect() as client:
        client.send(b"".join(post(b"x" * 600, path=f"/{n}") for n in range(6)))
        assert desk.has(2)
        time.sleep(0.05)
        assert desk.has(2)
        for done in range(6):
            assert desk.has(min(6, done + 2))
            desk.answer(server, done)
            assert client.answer().headers["x-path"] == f"/{done}"


def test_a_client_that_does_not_read_is_not_served_further() -> None:
    served: list[str] = []

    def handler(request: Request, responder: Responder) -> None:
        served.append(request.path)
        responder.send(Response(200, [], b"x" * MIB))

    with serving(handler) as server, server.connect(receive_buffer=4096) as client:
        client.send(b"".join(get(f"/{n}") for n in range(100)))
        assert eventually(lambda: len(served) > 0)
        time.sleep(0.1)
        assert len(served) < 20
        for _ in range(100):
            assert len(client.answer().body) == MIB
        assert len(served) == 100


def without_date(data: bytes) -> bytes:
    return re.sub(rb"Date: [^\r]*\r\n", b"", data)


def test_pipelined_answers_that_are_there_go_out_together() -> None:
    with serving(lambda _, r: r.send(Response(200, []))) as server, server.connect() as client:
        client.send(get() * 50)
        data = b""
        while len(data) < 50 * 38:
            data += client.socket.recv(65_536)
        lines = f"{CONSTANT_LINES}Content-Length: 0"
        assert without_date(data) == f"HTTP/1.1 200 OK\r\n{lines}\r\n\r\n".encode() * 50


# ---- clients that leave --------------------------------------------------------------------------


@each_loop
def test_a_handler_is_told_that_the_client_is_gone(loop: str) -> None:
    desk = Desk()
    limits = HttpLimits(half_closed_seconds=0.1)
    with serving(desk, limits, loop=loop) as server:
        with server.connect() as client:
            client.send(put("/a") + put("/b"))
            assert desk.has(2)
            desk.answer(server, 1)
        assert eventually(lambda: desk.gone == ["/a"])
        desk.answer(server, 0)  # the client is gone
        late: list[bool] = []
        server.call(lambda: desk.asked[0][1].on_gone(lambda: late.append(True)))
        assert late == [True]
        assert eventually(lambda: server.listener.connection_count == 0)


@each_loop
def test_a_client_that_has_shut_down_sending_is_still_answered(loop: str) -> None:
    desk = Desk()
    with serving(desk, loop=loop) as server, server.connect() as client:
        client.send(put("/a") + put("/b") + b"PUT /cut")
        assert desk.has(2)
        client.end()
        time.sleep(0.05)
        desk.answer(server, 1)
        desk.answer(server, 0)
        assert client.answer().headers["x-path"] == "/a"
        assert client.answer().headers["x-path"] == "/b"
        assert client.is_closed()
    assert desk.gone == []


@each_loop
def test_a_stream_is_told_at_once_that_the_client_is_gone(loop: str) -> None:
    desk = Desk()
    with serving(desk, loop=loop) as server:
        with server.connect() as client:
            client.send(get("/a"))
            assert desk.has(1)
            stream = desk.start(server, 0)
            server.call(lambda: stream.write(b"one"))
            assert client.head()[0] == 200
            assert client.chunk() == b"one"
        assert eventually(lambda: desk.gone == ["/a"])
        server.call(lambda: stream.write(b"two"))
        assert server.call(lambda: stream.is_blocked) is False
        server.call(stream.end)


def test_a_client_that_leaves_within_a_request_is_forgotten() -> None:
    with serving() as server:
        for raw in (b"GET", post(b"abc")[:-1], b""):
            with server.connect() as client:
                client.send(raw)
        assert eventually(lambda: server.listener.connection_count == 0)
