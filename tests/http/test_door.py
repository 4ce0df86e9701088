"""How connections are accepted, and which are refused."""

import asyncio
import errno
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from semel.server.connection import ServerConnection
from semel.server.http import Request, Responder, Response
from semel.server.limits_http import HttpLimits
from semel.server.listener import Listener
from semel.server.unread_budget import UnreadBudget
from tests.http.harness import (
    ANSWER_SECONDS,
    TRUSTING,
    Client,
    each_loop,
    echo,
    eventually,
    get,
    serving,
)


@each_loop
def test_many_who_come_at_once_are_let_in_together(loop: str) -> None:
    """Accepted one at a time, each would wait for one loop iteration per earlier connection."""
    turns: list[int] = []

    def handler(_: Request, responder: Responder) -> None:
        turns.append(ticks[0])
        responder.send(Response(200, []))

    ticks = [0]

    def tick() -> None:
        ticks[0] += 1
        server.loop.call_soon(tick)

    with serving(handler, loop=loop) as server:
        gate = threading.Event()
        server.loop.call_soon_threadsafe(gate.wait)
        clients = [server.connect() for _ in range(100)]
        for client in clients:
            client.send(get())
        server.loop.call_soon_threadsafe(tick)
        gate.set()
        for client in clients:
            assert client.answer().status == 200
            client.close()
    assert turns[-1] - turns[0] < 50


def test_a_connection_that_cannot_be_accepted_is_accepted_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refusals = [OSError(errno.EMFILE, "Too many open files")] * 3
    accept = socket.socket.accept

    def fail(listening: socket.socket) -> tuple[socket.socket, Any]:
        if refusals:
            raise refusals.pop()
        return accept(listening)

    with serving() as server:
        monkeypatch.setattr(socket.socket, "accept", fail)
        assert server.still_serves()
    assert refusals == []
    assert "cannot accept a connection: Too many open files" in caplog.text


def test_nobody_is_served_before_the_start() -> None:
    with serving() as server:
        other = Listener()
        port = server.run(other.bind("127.0.0.1", 0))
        with pytest.raises(ConnectionRefusedError):
            Client(port)
        server.call(lambda: other.start(echo))
        with Client(port) as client:
            assert client.ask(get()).status == 200
        server.run(other.drain(0.0))


def test_an_address_that_is_taken_is_refused() -> None:
    with serving() as server:
        other = Listener()
        with pytest.raises(OSError, match="in use"):
            server.run(other.bind("127.0.0.1", server.port))


def test_answers_are_not_held_back_by_the_kernel() -> None:
    """Without TCP_NODELAY, a second small write would wait for the ACK of the first."""
    sockets: list[Any] = []
    made = ServerConnection.connection_made

    def keep(self: ServerConnection, transport: asyncio.BaseTransport) -> None:
        sockets.append(transport.get_extra_info("socket"))
        made(self, transport)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ServerConnection, "connection_made", keep)
        with serving() as server:
            assert server.still_serves()
            with server.connect() as client:
                assert client.ask(get()).status == 200
                assert sockets[-1].getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


# ---- TLS -----------------------------------------------------------------------------------------


@contextmanager
def over_tls(port: int) -> Iterator[ssl.SSLSocket]:
    with (
        socket.create_connection(("127.0.0.1", port), ANSWER_SECONDS) as plain,
        TRUSTING.wrap_socket(plain) as line,
    ):
        yield line


def is_served_over_tls(port: int) -> bool:
    with over_tls(port) as line:
        line.sendall(get("/alive"))
        return line.recv(12) == b"HTTP/1.1 200"


@each_loop
@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01"], ids=["nothing", "half a greeting"])
def test_a_handshake_has_a_deadline(tls: ssl.SSLContext, loop: str, sent: bytes) -> None:
    with serving(limits=HttpLimits(header_seconds=0.2), tls=tls, loop=loop) as server:
        with server.connect() as client:
            client.send(sent)
            assert client.is_closed()
        assert is_served_over_tls(server.port)


@each_loop
def test_handshakes_count_as_connections_and_the_oldest_is_dropped_first(
    tls: ssl.SSLContext, loop: str
) -> None:
    limits = HttpLimits(connections_max=40, header_seconds=1_000)  # of them 10 handshakes
    unread = UnreadBudget(limits)
    counts = unread.counts
    with ExitStack() as stack:
        server = stack.enter_context(serving(limits=limits, tls=tls, loop=loop, unread=unread))
        silent = [stack.enter_context(server.connect()) for _ in range(30)]
        assert eventually(lambda: counts.handshakes_dropped == 20)
        assert counts.handshakes == 10
        for client in silent[:20]:
            assert client.is_closed()
        assert is_served_over_tls(server.port)
        assert counts.handshakes_dropped == 21
        assert eventually(lambda: counts.handshakes == 9)
        assert is_served_over_tls(server.port)
        assert counts.handshakes_dropped == 21
    assert counts.handshakes == counts.connections == 0


@each_loop
def test_a_handshake_is_not_begun_if_connections_use_every_file(
    tls: ssl.SSLContext, loop: str
) -> None:
    limits = HttpLimits(connections_max=1, header_seconds=1_000)
    unread = UnreadBudget(limits)
    with ExitStack() as stack:
        server = stack.enter_context(serving(limits=limits, tls=tls, loop=loop, unread=unread))
        stack.enter_context(over_tls(server.port))
        refused = stack.enter_context(over_tls(server.port))
        assert refused.recv(12) == b"HTTP/1.1 503"
        with pytest.raises(OSError, match=r"EOF|reset"):
            is_served_over_tls(server.port)


@each_loop
def test_who_does_not_speak_tls_is_hung_up_on(tls: ssl.SSLContext, loop: str) -> None:
    with serving(tls=tls, loop=loop) as server:
        with server.connect() as client:
            client.send(get())
            assert client.file.read() != b"HTTP"
        assert is_served_over_tls(server.port)


def test_a_handshake_under_way_does_not_hold_up_the_end(tls: ssl.SSLContext) -> None:
    with serving(tls=tls) as server, server.connect() as client:
        assert is_served_over_tls(server.port)  # so the earlier connection was accepted
        server.run(server.listener.drain(0.0))
        assert client.is_closed()


@each_loop
@pytest.mark.parametrize("turns", range(5))
def test_connections_being_accepted_do_not_delay_the_drain(loop: str, turns: int) -> None:
    """If the accept were cancelled, connection_lost would not be called, and drain would wait."""
    with serving(loop=loop) as server:

        async def connect_and_drain() -> list[Client]:
            clients = [server.connect() for _ in range(10)]
            for _ in range(turns):
                await asyncio.sleep(0)
            await server.listener.drain(10 * ANSWER_SECONDS)
            return clients

        for client in server.run(connect_and_drain()):
            client.close()
