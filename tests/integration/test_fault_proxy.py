"""Every fault, checked by the bytes that the client and the server receive."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

import pytest
import uvloop

from semel.testing import fault_proxy
from semel.testing.fault_plan import Action, FaultPlan
from semel.testing.fault_proxy import FaultProxy
from semel.testing.fault_session import ProxySession
from tests.integration.recorder import (
    PATIENCE_SECONDS,
    Caller,
    Recorder,
    echo,
    eventually,
    plain_answer,
    post,
)

BAD_GATEWAY = b"HTTP/1.1 502 Bad Gateway\r\n"
TWO_EVENTS = b"5\r\nevent\r\n7\r\nanother\r\n"


@contextmanager
def faults(
    server: Recorder, *script: Action, stall_seconds: float = 0.2, reorder_seconds: float = 10.0
) -> Iterator[FaultProxy]:
    plan = FaultPlan(
        script=script,
        stall_seconds=stall_seconds,
        reorder_seconds=reorder_seconds,
        delay_seconds=0.3,
    )
    with FaultProxy(server.url, plan) as proxy:
        yield proxy


def event_stream(request: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    if request.startswith(b"GET"):
        return head + b"Transfer-Encoding: chunked\r\n\r\n" + TWO_EVENTS * 3 + b"0\r\n\r\n"
    return plain_answer(request)


# ---------------------------------------------------------------- no fault


def test_what_passes_is_the_same_byte_for_byte() -> None:
    with Recorder() as server, faults(server) as proxy, Caller(proxy.port) as client:
        request = post(b"one", b"X-Odd:  two  spaces")
        assert client.send(request).until(b"said one") == echo(b"one")
        assert server.requests == [request]
        assert proxy.counts == {"connections": 1, "requests": 1, "pass": 1}


def test_pipelined_requests_reach_the_server_together_and_are_answered_in_order() -> None:
    with Recorder() as server, faults(server) as proxy, Caller(proxy.port) as client:
        server.lock()
        requests = [post(b"%d" % number) for number in range(5)]
        client.send(*requests)
        # The server has all five requests before it sends a response.
        assert eventually(lambda: bool(server.lines) and server.lines[0].got == b"".join(requests))
        server.unlock()
        assert client.until(b"said 4") == b"".join(echo(b"%d" % number) for number in range(5))
        assert len(server.lines) == 1


def test_a_body_of_chunks_and_a_request_cut_into_single_bytes_pass() -> None:
    chunked = b"POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n0\r\n\r\n"
    with Recorder() as server, faults(server) as proxy, Caller(proxy.port) as client:
        for place in range(len(chunked)):
            client.send(chunked[place : place + 1])
        assert eventually(lambda: bool(server.lines) and server.lines[0].got == chunked)


def test_an_event_stream_is_handed_over_as_it_comes() -> None:
    def endless(_request: bytes) -> bytes:
        return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + TWO_EVENTS

    with Recorder(endless) as server, faults(server) as proxy, Caller(proxy.port) as client:
        client.send(b"GET /x HTTP/1.1\r\n\r\n").until(TWO_EVENTS)


def test_an_answer_that_ends_with_the_connection_is_handed_over_and_the_connection_ends() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with FaultProxy(url) as proxy, Caller(proxy.port) as client:
            client.send(b"GET /x HTTP/1.0\r\n\r\n")
            accepted, _ = listener.accept()
            with accepted:
                accepted.recv(100)
                accepted.sendall(b"HTTP/1.0 200 OK\r\n\r\nall of it")
            assert client.rest() == "eof"
            assert client.got == b"HTTP/1.0 200 OK\r\n\r\nall of it"


def test_answers_without_a_body_are_known_as_such() -> None:
    def answer(request: bytes) -> bytes:
        if request.startswith(b"HEAD"):
            return b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"
        return b"HTTP/1.1 204 No Content\r\n\r\n"

    with Recorder(answer) as server, faults(server) as proxy, Caller(proxy.port) as client:
        client.send(b"HEAD /x HTTP/1.1\r\n\r\n", post(b"one"), post(b"two"))
        client.until(b"No Content\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n")


def test_a_client_that_expects_to_be_told_to_go_on_is() -> None:
    def answer(request: bytes) -> bytes:
        return b"HTTP/1.1 100 Continue\r\n\r\n" + plain_answer(request)

    with Recorder(answer) as server, faults(server) as proxy, Caller(proxy.port) as client:
        head, body = post(b"one", b"Expect: 100-continue")[:-3], b"one"
        assert client.send(head).until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert client.send(body).until(b"said one").endswith(echo(b"one"))
        assert client.got.count(b"100 Continue") == 1


def test_a_client_that_ends_its_side_still_gets_its_answers() -> None:
    with Recorder() as server, faults(server) as proxy, Caller(proxy.port) as client:
        client.send(post(b"one"), post(b"two")).socket.shutdown(socket.SHUT_WR)
        assert client.rest() == "eof"
        assert client.got == echo(b"one") + echo(b"two")
        assert eventually(lambda: server.end == "eof")


def test_bytes_that_are_no_request_end_the_connection() -> None:
    with Recorder() as server, faults(server) as proxy, Caller(proxy.port) as client:
        client.send(b"x" * 200_000)
        assert client.rest() in ("eof", "reset")
        assert server.requests == []


# ---------------------------------------------------------------- lost messages


def test_a_dropped_request_never_reaches_the_server_and_the_client_sees_the_end() -> None:
    with Recorder() as server, faults(server, Action.DROP_REQUEST) as proxy:
        with Caller(proxy.port) as client:
            assert client.send(post(b"one")).rest() == "eof"
            assert client.got == b""
        assert eventually(lambda: server.end == "eof")
        assert server.lines[0].got == b""
        assert proxy.counts["drop_request"] == 1
        assert proxy.dropped_after_commit == 0


def test_a_dropped_answer_has_been_given_by_the_server() -> None:
    with Recorder() as server, faults(server, Action.DROP_ANSWER) as proxy:
        with Caller(proxy.port) as client:
            assert client.send(post(b"one")).rest() == "eof"
            assert client.got == b""
        assert server.bodies == [b"one"]
        assert proxy.counts["drop_answer"] == 1
        assert proxy.dropped_after_commit == 1


@pytest.mark.parametrize(
    ("method", "status", "dropped"),
    [(b"POST", b"204 No Content", 1), (b"POST", b"409 Conflict", 0), (b"GET", b"200 OK", 0)],
)
def test_only_a_write_that_was_carried_out_counts_as_dropped_after_commit(
    method: bytes, status: bytes, dropped: int
) -> None:
    answer = b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\n\r\n"
    with Recorder(lambda _: answer) as server, faults(server, Action.DROP_ANSWER) as proxy:
        with Caller(proxy.port) as client:
            assert client.send(method + b" /x HTTP/1.1\r\n\r\n").rest() == "eof"
        assert proxy.dropped_after_commit == dropped


def test_those_before_a_dropped_one_are_answered_and_those_behind_it_are_counted() -> None:
    script = (Action.PASS, Action.DROP_ANSWER, Action.PASS)
    with Recorder() as server, faults(server, *script, stall_seconds=5.0) as proxy:
        with Caller(proxy.port) as client:
            client.send(post(b"one")).until(b"said one")
            server.lock()
            client.send(post(b"two"), post(b"three"))
            both = post(b"one") + post(b"two") + post(b"three")
            assert eventually(lambda: server.lines[0].got == both)
            server.unlock()
            assert client.rest() == "eof"
            assert client.got == echo(b"one")
        assert eventually(lambda: proxy.dropped_after_commit == 2)


def test_a_request_behind_a_dropped_one_on_its_connection_is_never_sent() -> None:
    script = (Action.PASS, Action.DROP_REQUEST, Action.PASS)
    with Recorder() as server, faults(server, *script) as proxy, Caller(proxy.port) as client:
        client.send(post(b"one"), post(b"two"), post(b"three"))
        client.rest()
        assert client.got == echo(b"one")
        assert server.bodies == [b"one"]


# ---------------------------------------------------------------- delays, copies and reordering


def test_a_delayed_request_arrives_later_than_one_of_another_connection() -> None:
    with Recorder() as server, faults(server, Action.DELAY) as proxy:
        with Caller(proxy.port) as slow, Caller(proxy.port) as quick:
            slow.send(post(b"slow"))
            assert eventually(lambda: proxy.counts["delay"] == 1)
            quick.send(post(b"quick")).until(b"said quick")
            slow.until(b"said slow")
        assert server.bodies == [b"quick", b"slow"]


def test_a_copy_sent_before_comes_on_another_connection_and_its_answer_is_kept_back() -> None:
    count = iter(range(10))

    def numbered(_request: bytes) -> bytes:
        return b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n%d" % next(count)

    with Recorder(numbered) as server, faults(server, Action.DUPLICATE_BEFORE) as proxy:
        with Caller(proxy.port) as client:
            client.send(post(b"one")).until(b"\r\n\r\n1")  # the response to the second copy
        assert server.requests == [post(b"one")] * 2
        assert [line.got for line in server.lines] == [post(b"one")] * 2
        assert proxy.counts["duplicate_before"] == 1


def test_a_copy_sent_after_comes_when_the_client_has_its_answer() -> None:
    with Recorder() as server, faults(server, Action.DUPLICATE_AFTER) as proxy:
        with Caller(proxy.port) as client:
            assert client.send(post(b"one")).until(b"said one") == echo(b"one")
            assert eventually(lambda: len(server.requests) == 2)
            client.send(post(b"two")).until(b"said two")
        assert server.bodies == [b"one", b"one", b"two"]
        assert [line.got for line in server.lines] == [post(b"one") + post(b"two"), post(b"one")]


def test_the_second_of_two_pipelined_requests_overtakes_the_first_but_not_its_answer() -> None:
    with Recorder() as server, faults(server, Action.REORDER) as proxy:
        with Caller(proxy.port) as client:
            client.send(post(b"one"), post(b"two"), post(b"three"))
            assert client.until(b"said three") == echo(b"one") + echo(b"two") + echo(b"three")
        assert server.bodies == [b"two", b"one", b"three"]
        assert proxy.counts["reorder"] == 1
        assert proxy.counts["pass"] == 1


def test_a_request_of_another_connection_overtakes() -> None:
    with Recorder() as server, faults(server, Action.REORDER) as proxy:
        with Caller(proxy.port) as first, Caller(proxy.port) as second:
            first.send(post(b"one"))
            assert eventually(lambda: proxy.counts["requests"] == 1)
            second.send(post(b"two")).until(b"said two")
            first.until(b"said one")
        assert server.bodies == [b"two", b"one"]
        assert proxy.counts["reorder"] == 1


def test_a_request_nobody_overtakes_goes_on_alone() -> None:
    with Recorder() as server, faults(server, Action.REORDER, reorder_seconds=0.05) as proxy:
        with Caller(proxy.port) as client:
            client.send(post(b"one")).until(b"said one")
            client.send(post(b"two")).until(b"said two")
        assert server.bodies == [b"one", b"two"]
        assert proxy.counts["reorder"] == 0
        assert proxy.counts["reorder_alone"] == 1


# ---------------------------------------------------------------- truncated messages


@pytest.mark.parametrize("body", [b"a body of some length", b""], ids=["body", "head"])
def test_a_cut_request_reaches_the_server_in_part(body: bytes) -> None:
    with Recorder() as server, faults(server, Action.CUT_REQUEST) as proxy:
        with Caller(proxy.port) as client:
            assert client.send(post(body)).rest() == "eof"
            assert client.got == b""
        assert eventually(lambda: server.end == "eof")
        got = server.lines[0].got
        assert got
        assert post(body).startswith(got)
        assert got != post(body)
        assert server.requests == []


def test_a_cut_answer_reaches_the_client_in_part() -> None:
    with Recorder() as server, faults(server, Action.CUT_ANSWER) as proxy:
        with Caller(proxy.port) as client:
            assert client.send(post(b"one")).rest() == "eof"
            assert client.got.startswith(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n")
            assert echo(b"one").startswith(client.got)
            assert client.got != echo(b"one")
        assert proxy.dropped_after_commit == 1


def test_an_answer_without_a_body_is_cut_in_its_head() -> None:
    answer = b"HTTP/1.1 204 No Content\r\n\r\n"
    with Recorder(lambda _: answer) as server, faults(server, Action.CUT_ANSWER) as proxy:
        with Caller(proxy.port) as client:
            client.send(post(b"one")).rest()
            assert answer.startswith(client.got)
            assert 0 < len(client.got) < len(answer)
        assert proxy.dropped_after_commit == 1


@pytest.mark.parametrize("seed", range(6))
def test_an_event_stream_is_cut_within_an_event(seed: int) -> None:
    plan = FaultPlan(script=[Action.CUT_ANSWER], seed=seed)
    with Recorder(event_stream) as server, FaultProxy(server.url, plan) as proxy:
        with Caller(proxy.port) as client:
            client.send(b"GET /x HTTP/1.1\r\n\r\n").rest()
        whole = event_stream(b"GET")
        assert whole.startswith(client.got)
        assert client.got.partition(b"\r\n\r\n")[1]
        assert not client.got.endswith(b"0\r\n\r\n")
        assert proxy.dropped_after_commit == 0


# ---------------------------------------------------------------- stalls, slow data and resets


@pytest.mark.parametrize(
    ("action", "bodies"), [(Action.HALF_OPEN_BEFORE, []), (Action.HALF_OPEN_AFTER, [b"one"])]
)
def test_a_half_open_connection_says_nothing_and_takes_nothing(
    action: Action, bodies: list[bytes]
) -> None:
    with Recorder() as server, faults(server, action, stall_seconds=1.0) as proxy:
        with Caller(proxy.port) as client:
            client.send(post(b"one"))
            assert eventually(lambda: proxy.counts[action] == 1 and server.bodies == bodies)
            client.send(post(b"two"))
            client.socket.settimeout(0.2)
            with pytest.raises(TimeoutError):
                client.socket.recv(1)
            client.socket.settimeout(PATIENCE_SECONDS)
            client.rest()  # the connection is closed at last
            assert client.got == b""
        assert server.bodies == bodies
        assert proxy.dropped_after_commit == len(bodies)


def test_a_trickle_comes_in_small_pieces_and_complete() -> None:
    pieces: list[bytes] = []
    with Recorder() as server, faults(server, Action.TRICKLE, stall_seconds=5.0) as proxy:
        with Caller(proxy.port) as client:
            client.send(post(b"one"))
            while b"said one" not in b"".join(pieces):
                pieces.append(client.socket.recv(65536))
        assert b"".join(pieces) == echo(b"one")
        assert len(pieces) > 5
        assert server.requests == [post(b"one")]


def test_a_reset_is_one_on_both_sides() -> None:
    with Recorder() as server, faults(server, Action.RESET) as proxy:
        with Caller(proxy.port) as client:
            assert client.send(post(b"one")).rest() == "reset"
        assert eventually(lambda: server.end == "reset")
        assert server.bodies == [b"one"]
        assert proxy.dropped_after_commit == 1


@pytest.mark.parametrize(
    ("action", "bodies"),
    [(Action.BAD_GATEWAY_BEFORE, [b"two"]), (Action.BAD_GATEWAY_AFTER, [b"one", b"two"])],
)
def test_a_bad_gateway_answers_instead_and_the_connection_goes_on(
    action: Action, bodies: list[bytes]
) -> None:
    with Recorder() as server, faults(server, action) as proxy:
        with Caller(proxy.port) as client:
            assert client.send(post(b"one")).until(b"bad gateway\n").startswith(BAD_GATEWAY)
            client.send(post(b"two")).until(echo(b"two"))
        assert server.bodies == bodies
        assert proxy.dropped_after_commit == len(bodies) - 1


@pytest.mark.parametrize("action", [Action.BAD_GATEWAY_BEFORE, Action.BAD_GATEWAY_AFTER])
def test_a_bad_gateway_has_no_body_for_a_head(action: Action) -> None:
    def answer(request: bytes) -> bytes:
        is_head = request.startswith(b"HEAD")
        return b"HTTP/1.1 204 No Content\r\n\r\n" if is_head else plain_answer(request)

    with Recorder(answer) as server, faults(server, action) as proxy, Caller(proxy.port) as client:
        client.send(b"HEAD /x HTTP/1.1\r\n\r\n").until(b"\r\n\r\n")
        client.send(post(b"two")).until(echo(b"two"))
        assert client.got.startswith(BAD_GATEWAY)
        assert b"bad gateway\n" not in client.got


def test_a_stale_connection_closes_right_after_an_answer_that_did_not_say_so() -> None:
    with Recorder() as server, faults(server, Action.STALE) as proxy:
        with Caller(proxy.port) as client:
            assert client.send(post(b"one")).rest() == "eof"
            assert client.got == echo(b"one")
            assert b"close" not in client.got
        assert proxy.dropped_after_commit == 0


# ---------------------------------------------------------------- server restarts


def test_a_server_that_is_down_closes_the_connection_and_one_elsewhere_is_found() -> None:
    with Recorder() as old:
        url = old.url
    with Recorder() as server, FaultProxy(url) as proxy:
        with Caller(proxy.port) as client:
            assert client.rest() in ("eof", "reset")
        assert proxy.counts["unreachable"] == 1
        proxy.target = server.url
        with Caller(proxy.port) as client:
            client.send(post(b"one")).until(b"said one")


def test_a_server_that_goes_ends_idle_and_waiting_connections() -> None:
    with Recorder() as server:
        server.lock()
        with FaultProxy(server.url) as proxy:
            with Caller(proxy.port) as idle, Caller(proxy.port) as waiting:
                waiting.send(post(b"one"))
                assert eventually(lambda: server.bodies == [b"one"] and len(server.lines) == 2)
                for line in server.lines:
                    line.socket.shutdown(socket.SHUT_RDWR)
                server.unlock()
                assert idle.rest() == waiting.rest() == "eof"
                assert idle.got == waiting.got == b""
            assert proxy.dropped_after_commit == 0


def test_an_address_that_is_none_is_refused_at_once() -> None:
    for target in ("https://x:1", "http://x", "127.0.0.1:80"):
        with pytest.raises(ValueError, match="http://HOST:PORT"):
            FaultProxy(target)
    proxy = FaultProxy("http://x:1")
    with pytest.raises(ValueError, match="http://HOST:PORT"):
        proxy.target = "x"


# ---------------------------------------------------------------- latency


def test_messages_on_a_long_line_do_not_wait_for_each_other() -> None:
    seconds = 2.0
    requests = [post(b"%d" % number) for number in range(5)]
    with (
        Recorder() as server,
        FaultProxy(server.url, round_trip_seconds=seconds) as proxy,
        Caller(proxy.port) as client,
    ):
        started = monotonic()
        client.send(*requests)
        client.got = client.socket.recv(1)
        assert monotonic() - started >= seconds
        # If each request waited for the previous response, the server would have only one.
        assert server.requests == requests
        assert client.until(b"said 4") == b"".join(echo(b"%d" % n) for n in range(5))


def test_a_bug_of_the_proxy_is_not_overlooked(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(_session: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(ProxySession, "_relay", fail)
    with Recorder() as server, pytest.raises(KeyError), FaultProxy(server.url) as proxy:
        Caller(proxy.port).socket.close()
        assert eventually(lambda: proxy.counts["connections"] == 1 and not proxy._sessions)


# ---------------------------------------------------------------- start and stop


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_it_runs_on_the_loop_of_its_user(loop_factory: object) -> None:
    async def main(server: Recorder) -> None:
        plan = FaultPlan(script=[Action.PASS, Action.RESET])
        async with FaultProxy(server.url, plan) as proxy:
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            writer.write(post(b"one"))
            assert await reader.readexactly(len(echo(b"one"))) == echo(b"one")
            writer.write(post(b"two"))
            with pytest.raises(ConnectionResetError):
                await reader.read()
            writer.close()

    assert callable(loop_factory)
    with Recorder() as server, asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main(server))


def test_it_leaves_no_thread_and_no_connection_behind() -> None:
    before = threading.active_count()
    with Recorder() as server:
        with FaultProxy(server.url, FaultPlan({"half_open_before": 1.0})) as proxy:
            busy = Caller(proxy.port).send(post(b"one"))
            idle = Caller(proxy.port)
            assert eventually(lambda: proxy.counts["half_open_before"] == 1)
        with busy, idle:
            assert busy.rest() in ("eof", "reset")
            assert idle.rest() in ("eof", "reset")
        assert eventually(lambda: all(line.end for line in server.lines))
        with pytest.raises(ConnectionRefusedError):
            Caller(proxy.port)
    assert threading.active_count() == before


def test_a_connection_too_many_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fault_proxy, "CONNECTIONS_MAX", 1)
    with Recorder() as server, faults(server) as proxy:
        with Caller(proxy.port) as client:
            client.send(post(b"one")).until(b"said one")
            with Caller(proxy.port) as second:
                assert second.rest() in ("eof", "reset")
            client.send(post(b"two")).until(b"said two")
        assert proxy.counts["connections_refused"] == 1


def test_leaving_while_answers_are_waited_for_closes_everything() -> None:
    script = (Action.DROP_ANSWER, Action.PASS)
    with Recorder() as server:
        server.lock()
        with faults(server, *script, stall_seconds=60.0) as proxy, Caller(proxy.port) as client:
            client.send(post(b"one"), post(b"two"))
            assert eventually(lambda: server.bodies == [b"one", b"two"])
            accepted = server.lines[0].socket
            accepted.sendall(echo(b"one"))  # dropped; the other request gets no response
            assert client.rest() == "eof"
        assert eventually(lambda: server.end != "")


def test_any_mix_of_faults_leaves_every_answered_request_at_the_server_once_per_sending() -> None:
    rates: dict[str, float] = {action: 0.05 for action in Action if action is not Action.PASS}
    plan = FaultPlan(
        rates, seed=7, stall_seconds=0.05, reorder_seconds=0.02, delay_seconds=(0.0, 0.01)
    )
    answered: set[bytes] = set()
    with Recorder() as server, FaultProxy(server.url, plan) as proxy:
        for number in range(200):
            body = b"<%d>" % number
            with Caller(proxy.port) as client:
                client.send(post(body)).rest_or_answer(b"said " + body)
                if client.got == echo(body):
                    answered.add(body)
        assert len(answered) > 50
        for body in answered:
            assert server.bodies.count(body) in (1, 2)
        assert {name for name in rates if not proxy.counts[name]} == {Action.REORDER}
        gone = set(server.bodies) - answered
        assert proxy.dropped_after_commit == len(gone)
