"""Slow clients, and the drain of a listener. Timeouts are short, but never measured."""

import threading
import time

import pytest

from semel.server.http import Request, Responder, Response
from semel.server.limits_http import HttpLimits
from tests.http.harness import (
    Client,
    Desk,
    each_loop,
    echo,
    eventually,
    get,
    post,
    put,
    serving,
)

QUICK = 0.1
MIB = 1024 * 1024


def is_timed_out(client: Client) -> bool:
    answer = client.answer()
    assert (answer.status, answer.json["code"]) == (408, "request_timeout")
    assert answer.json["applied"] == "no"
    assert answer.closes
    return client.is_closed()


def trickle(client: Client, data: bytes, seconds: float) -> None:
    """Send byte by byte until all is sent or the connection is closed."""
    try:
        for byte in data:
            client.send(bytes([byte]))
            time.sleep(seconds)
    except OSError:
        pass


# ---- slow requests -------------------------------------------------------------------------------


@each_loop
def test_headers_that_trickle_are_not_waited_for(loop: str) -> None:
    limits = HttpLimits(header_seconds=QUICK, linger_seconds=QUICK)
    with serving(limits=limits, loop=loop) as server:
        with server.connect() as client:
            sender = threading.Thread(target=trickle, args=(client, get("/" + "a" * 200), 0.01))
            sender.start()
            assert is_timed_out(client)
            sender.join()
        assert server.still_serves()


def test_headers_of_a_later_request_have_the_same_deadline() -> None:
    with serving(limits=HttpLimits(header_seconds=QUICK)) as server, server.connect() as client:
        assert client.ask(get() + b"GET /second").status == 200
        assert is_timed_out(client)


def test_a_client_that_says_nothing_is_hung_up_on() -> None:
    with serving(limits=HttpLimits(header_seconds=QUICK)) as server, server.connect() as client:
        assert client.is_closed()


def test_a_body_has_a_deadline() -> None:
    limits = HttpLimits(body_seconds=QUICK, body_bytes_per_second_min=1)
    with serving(limits=limits) as server, server.connect() as client:
        client.send(post(b"x" * 10_000)[:-1])
        assert is_timed_out(client)


@pytest.mark.parametrize("rest", [1, 9_000])
def test_a_body_has_a_least_rate(rest: int) -> None:
    limits = HttpLimits(body_grace_seconds=QUICK, body_bytes_per_second_min=1_000_000)
    with serving(limits=limits) as server, server.connect() as client:
        client.send(post(b"x" * 10_000)[:-rest])
        assert is_timed_out(client)


def test_a_chunked_body_has_the_same_deadline() -> None:
    limits = HttpLimits(body_seconds=QUICK, body_bytes_per_second_min=1)
    raw = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    with serving(limits=limits) as server, server.connect() as client:
        client.send(raw + b"3\r\nabc\r\n1")
        assert is_timed_out(client)


def test_a_promised_body_that_never_comes_is_not_waited_for() -> None:
    limits = HttpLimits(body_grace_seconds=QUICK)
    head = post(b"abc", "Expect: 100-continue")[:-3]
    with serving(limits=limits) as server, server.connect() as client:
        assert client.ask(head).status == 100
        assert is_timed_out(client)


def test_what_is_owed_is_answered_before_the_timeout_is_told() -> None:
    desk = Desk()
    with (
        serving(desk, HttpLimits(header_seconds=QUICK)) as server,
        server.connect() as client,
    ):
        client.send(get("/owed") + b"GET /slow")
        assert desk.has(1)
        time.sleep(3 * QUICK)
        desk.answer(server, 0)
        assert client.answer().headers["x-path"] == "/owed"
        assert is_timed_out(client)


# ---- idle and stalled connections ----------------------------------------------------------------


@each_loop
def test_an_idle_connection_is_hung_up_on(loop: str) -> None:
    limits = HttpLimits(keep_alive_seconds=QUICK)
    with serving(limits=limits, loop=loop) as server, server.connect() as client:
        assert client.ask(get()).closes is False
        assert client.is_closed()


def test_a_connection_that_waits_for_its_answer_is_not_idle() -> None:
    desk = Desk()
    limits = HttpLimits(keep_alive_seconds=QUICK, header_seconds=QUICK)
    with serving(desk, limits) as server, server.connect() as client:
        client.send(get("/a"))
        assert desk.has(1)
        time.sleep(5 * QUICK)
        desk.answer(server, 0)
        assert client.answer().headers["x-path"] == "/a"


@each_loop
def test_a_client_that_never_reads_is_dropped(loop: str) -> None:
    gone: list[bool] = []

    def handler(_: Request, responder: Responder) -> None:
        responder.on_gone(lambda: gone.append(True))
        stream = responder.start(200, [])
        for _piece in range(64):
            stream.write(b"x" * MIB)

    limits = HttpLimits(stall_seconds=2 * QUICK)
    with (
        serving(handler, limits, loop=loop) as server,
        server.connect(receive_buffer=4096) as client,
    ):
        client.send(get())
        assert eventually(lambda: gone == [True])
        assert eventually(lambda: server.listener.connection_count == 0)


def test_a_client_that_never_reads_whole_answers_is_dropped() -> None:
    def handler(_: Request, responder: Responder) -> None:
        responder.send(Response(200, [], b"x" * 16 * MIB))

    limits = HttpLimits(stall_seconds=2 * QUICK)
    with serving(handler, limits) as server, server.connect(receive_buffer=4096) as client:
        client.send(get("/", "Connection: close"))
        assert eventually(lambda: server.listener.connection_count == 1)
        assert eventually(lambda: server.listener.connection_count == 0)


def test_a_client_that_reads_slowly_is_served() -> None:
    def handler(_: Request, responder: Responder) -> None:
        responder.send(Response(200, [], b"x" * 8 * MIB))

    limits = HttpLimits(stall_seconds=0.4, keep_alive_seconds=0.4)
    with serving(handler, limits) as server, server.connect(receive_buffer=65_536) as client:
        client.send(get())
        status, headers = client.head()
        assert status == 200
        missing = int(headers["content-length"])
        for _ in range(20):
            missing -= len(client.file.read(200_000))
            time.sleep(0.05)
        assert len(client.file.read(missing)) == missing


def test_a_client_that_stays_after_the_end_is_cut_off() -> None:
    limits = HttpLimits(linger_seconds=QUICK)
    with serving(limits=limits) as server, server.connect() as client:
        assert client.ask(get("/", "Connection: close")).closes
        assert eventually(lambda: server.listener.connection_count == 0)


# ---- the end of a listener -----------------------------------------------------------------------


@each_loop
def test_draining_finishes_what_is_under_way(loop: str) -> None:
    desk = Desk()
    with serving(desk, loop=loop) as server:
        idle, waiting, sending = (server.connect() for _ in range(3))
        waiting.send(put("/a") + put("/b"))
        sending.send(post(b"abc", path="/c")[:-1])
        assert desk.has(2)
        assert eventually(lambda: server.listener.connection_count == 3)
        drained = threading.Thread(target=server.run, args=(server.listener.drain(10),))
        drained.start()
        assert idle.is_closed()
        sending.send(b"c")
        assert desk.has(3)
        for index in range(3):
            desk.answer(server, index)
        assert waiting.answer().closes is False
        assert waiting.answer().closes is True
        assert waiting.is_closed()
        assert sending.answer().closes is True
        assert sending.is_closed()
        for client in (idle, waiting, sending):
            client.close()
        drained.join()
        with pytest.raises(ConnectionRefusedError):
            server.connect()


def test_draining_cuts_what_does_not_end() -> None:
    desk = Desk()
    with serving(desk) as server, server.connect() as client:
        client.send(get("/a"))
        assert desk.has(1)
        server.run(server.listener.drain(QUICK))
        assert server.listener.connection_count == 0
        assert desk.gone == ["/a"]
        assert client.is_closed()
        server.run(server.listener.drain(QUICK))


def test_draining_ends_the_connection_after_the_last_answer_that_was_held_back() -> None:
    desk = Desk()
    with serving(desk) as server, server.connect() as client:
        client.send(put("/a") + put("/b"))
        assert desk.has(2)
        desk.answer(server, 1)  # encoded before the drain began
        drained = threading.Thread(target=server.run, args=(server.listener.drain(10),))
        drained.start()
        time.sleep(QUICK / 2)
        desk.answer(server, 0)
        assert client.answer().headers["x-path"] == "/a"
        assert client.answer().headers["x-path"] == "/b"
        assert client.is_closed()
        client.close()
        drained.join()


def test_a_listener_that_never_started_is_drained() -> None:
    with serving(echo) as server:
        other = type(server.listener)()
        server.run(other.drain(QUICK))
        assert other.connection_count == 0
