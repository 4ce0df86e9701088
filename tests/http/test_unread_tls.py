"""Responses over TLS that clients do not read: they are counted, limited and cut as without TLS."""

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from ssl import SSLContext
from typing import Final

from semel.model.limits import MIB
from semel.server.http import Request, Responder, Response
from semel.server.limits_http import HttpLimits
from semel.server.unread_budget import UnreadBudget
from tests.http.harness import Client, Server, each_loop, eventually, get, post, serving
from tests.http.test_unread import EVENTS, PAGE, TEXT, TYPED, a_bed, limits

LONG: Final = b"".join(b"%08d" % n for n in range(MIB))  # 8 MiB
SILENT: Final = 40


def send_long(request: Request, responder: Responder) -> None:
    """Send 8 MiB for the path /long, and otherwise the path."""
    body = LONG if request.path == "/long" else request.path.encode()
    responder.send(Response(200, [], body))


@each_loop
def test_a_tls_client_that_reads_nothing_is_counted_and_closed(tls: SSLContext, loop: str) -> None:
    limits = HttpLimits(stall_seconds=0.5)
    unread = UnreadBudget(limits)
    with serving(send_long, limits, tls=tls, unread=unread, loop=loop) as server:
        with server.connect(receive_buffer=4096, is_tls=True) as silent:
            silent.send(get("/long"))
            assert eventually(lambda: unread.bytes > len(LONG) // 2)
            assert eventually(lambda: unread.counts.stalled_closed == 1)
            assert eventually(lambda: unread.bytes == unread.counts.connections == 0)
        with server.connect(is_tls=True) as other:
            assert other.ask(get("/other")).body == b"/other"


@contextmanager
def unread_response(
    tls: SSLContext, loop: str, request: bytes
) -> Iterator[tuple[Server, Client, UnreadBudget]]:
    """Send a request with a long response, and wait until a part of the response is unread."""
    unread = UnreadBudget()
    with (
        serving(send_long, tls=tls, unread=unread, loop=loop) as server,
        server.connect(receive_buffer=4096, is_tls=True) as client,
    ):
        client.send(request)
        assert eventually(lambda: unread.bytes > 0)
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, MIB)  # now it reads fast
        yield server, client, unread


@each_loop
def test_a_slow_tls_client_gets_every_byte_and_the_next_responses(
    tls: SSLContext, loop: str
) -> None:
    requests = get("/long") + post(b"", path="/after") + get("/last", "Connection: close")
    with unread_response(tls, loop, requests) as (_, client, unread):
        assert client.answer().body == LONG
        assert eventually(lambda: unread.bytes == 0)
        assert client.answer().body == b"/after"
        assert client.answer().body == b"/last"
        assert client.is_closed()


@each_loop
def test_the_last_response_over_tls_is_complete_before_the_connection_closes(
    tls: SSLContext, loop: str
) -> None:
    with unread_response(tls, loop, get("/long", "Connection: close")) as (_, client, unread):
        assert client.answer().body == LONG
        assert client.is_closed()
        assert eventually(lambda: unread.counts.connections == 0)


@each_loop
def test_a_draining_server_sends_the_rest_of_a_response_over_tls(
    tls: SSLContext, loop: str
) -> None:
    with unread_response(tls, loop, get("/long")) as (server, client, _):
        draining = threading.Thread(target=lambda: server.run(server.listener.drain(10.0)))
        draining.start()
        assert client.answer().body == LONG
        assert client.is_closed()
        client.close()
        draining.join()


def test_silent_tls_readers_hold_no_more_than_the_limit(tmp_path: Path, tls: SSLContext) -> None:
    with a_bed(tmp_path, limits(), tls=tls) as bed, ExitStack() as stack:
        for _ in range(SILENT):
            stack.enter_context(bed.connect()).send(EVENTS)
        assert eventually(lambda: bed.unread.counts.reads_waiting > 0 and bed.unread.is_full)
        most = max(bed.server.call(lambda: bed.unread.bytes) for _ in range(50))
        assert most < 2 * MIB  # the limit, and the response that exceeded it
        assert bed.count() == SILENT


def test_others_are_served_over_tls_while_readers_are_stuck(
    tmp_path: Path, tls: SSLContext
) -> None:
    with a_bed(tmp_path, limits(crowded_stall_seconds=0.2), tls=tls) as bed, ExitStack() as stack:
        for _ in range(10):
            stack.enter_context(bed.connect()).send(PAGE)
        assert eventually(lambda: bed.unread.counts.reads_waiting > 0 and bed.unread.is_full)
        with bed.connect(0) as client:
            assert client.ask(post(b"x", TYPED, path="/v1/stream/s")).status == 204
            assert client.ask(PAGE).body == TEXT[:MIB]
        assert bed.count() < 10
