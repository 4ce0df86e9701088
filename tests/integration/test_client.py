"""Client and AsyncClient against a real server, and against servers that misbehave."""

import asyncio
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from math import inf
from pathlib import Path
from typing import Any

import pytest

import semel
from semel import AsyncClient, Client, errors
from semel.client.async_driver import AsyncStop
from semel.client.flows import Pause
from semel.client.server_calls import health
from semel.client.sync_driver import Stop
from tests.integration.both import client_of
from tests.integration.listener import Listener, answering, closing, deaf, silent
from tests.spec.process import PATIENCE_SECONDS, ZERO, Server, offset_of

SHORT_SECONDS = 0.3  # for calls that must time out
MESSAGE_COUNT = 20
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nStream-Next-Offset: 0\r\n\r\n"


@pytest.fixture
def orders(client: Any, server: Server) -> Any:
    """A JSON stream with an unused path."""
    return client.stream(server.stream().path).create("application/json")


@pytest.fixture
def notes(client: Any, server: Server) -> Any:
    """A text stream with an unused path."""
    return client.stream(server.stream().path).create("text/plain")


def values(messages: Any) -> list[Any]:
    return [message.value for message in messages]


# ---- streams -------------------------------------------------------------------------------------


def test_a_stream_is_made_once(orders: Any) -> None:
    assert orders.exists()
    with pytest.raises(errors.StreamExists):
        orders.create("application/json")
    orders.create("application/json", exist_ok=True)
    with pytest.raises(errors.ConfigConflict):
        orders.create("text/plain", exist_ok=True)


def test_a_stream_is_made_as_it_is_described(client: Any, server: Server) -> None:
    soon = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    dated = client.stream(server.stream().path)
    dated.create("text/plain", expires_at=soon, closed=True, body="all there is")
    info = dated.head()
    assert (info.content_type, info.closed, info.expires_at) == ("text/plain", True, soon)
    assert info.next_offset == offset_of(1)
    assert info.incarnation
    used = client.stream(server.stream().path).create(ttl=timedelta(minutes=2))
    assert used.head().ttl == 120
    assert used.head().content_type == "application/octet-stream"


@pytest.mark.parametrize(
    "name", ["Größe/Übung", "mit Leerzeichen", "100% ?&#=+", "日本/語", "~a.b"]
)
def test_names_may_hold_what_people_write(client: Any, server: Server, name: str) -> None:
    path = f"{server.stream().path}/{name}"
    stream = client.stream(path).create("text/plain", body="here")
    assert stream.read_text() == "here"
    assert path in [entry.path for entry in client.streams(path)]
    copy = stream.fork(f"{path} copy")
    assert copy.read_text() == "here"


def test_streams_are_listed_in_order(client: Any, server: Server) -> None:
    prefix = server.stream().path
    for number in (3, 1, 2):
        client.stream(f"{prefix}/{number}").create("text/plain")
    assert [entry.path[-1] for entry in client.streams(prefix)] == ["1", "2", "3"]
    (last,) = client.streams(prefix, after=f"{prefix}/2")
    assert (last.content_type, last.next_offset, last.closed) == ("text/plain", ZERO, False)
    assert client.health()["status"] == "ok"


def test_a_deleted_stream_is_gone(orders: Any) -> None:
    orders.delete()
    assert not orders.exists()
    for call in (orders.head, orders.delete, lambda: list(orders.read()), lambda: orders.append(1)):
        with pytest.raises(errors.StreamNotFound):
            call()
    # The client must not use the media type of the deleted stream.
    orders.create("text/plain").append("text")


def test_a_fork_begins_as_a_copy(orders: Any) -> None:
    orders.append_many([1, 2])
    orders.append(3)
    fork = orders.fork(f"{orders.path}/a", offset=offset_of(2))
    fork.append(4)
    assert values(fork.read()) == [1, 2, 4]
    part = orders.fork(f"{orders.path}/b", offset=ZERO, sub_offset=1)
    assert values(part.read()) == [1]
    orders.delete()
    with pytest.raises(errors.StreamGone):
        orders.head()
    assert values(fork.read()) == [1, 2, 4]


def test_trimming_gives_up_the_beginning(orders: Any) -> None:
    orders.append_many([1, 2, 3])
    orders.trim(offset_of(2))
    assert values(orders.read()) == [3]
    with pytest.raises(errors.OffsetTrimmed) as caught:
        list(orders.read(ZERO))
    assert caught.value.head == offset_of(2)


# ---- appending -----------------------------------------------------------------------------------


def test_values_come_back_as_they_went(orders: Any) -> None:
    given = [{"id": 1}, [1, [2]], [], "grün", None, 1.5, 12345678901234567890, "\ud800"]
    for value in given:
        orders.append(value)
    orders.append(b' {"ready" : true} ')
    assert values(orders.read()) == [*given, {"ready": True}]


def test_many_messages_are_one_append(orders: Any, notes: Any) -> None:
    receipt = orders.append_many(range(1000))
    assert receipt.next_offset == offset_of(1000)
    assert values(orders.read()) == list(range(1000))
    notes.append_many(["one", "two\n", b"three"])
    assert values(notes.read()) == ["one", "two\n", "three"]
    assert notes.read_text() == "onetwo\nthree"
    with pytest.raises(TypeError, match="use read"):
        orders.read_bytes()


def test_bytes_come_back_as_they_went(client: Any, server: Server) -> None:
    blob = os.urandom(3_000_000)
    stream = client.stream(server.stream().path).create()
    stream.append(blob)
    stream.append(b"\x00")
    assert stream.read_bytes() == blob + b"\x00"
    with pytest.raises(TypeError, match="accepts only bytes"):
        stream.append("text")


def test_messages_carry_keys_headers_and_times(orders: Any, notes: Any) -> None:
    moment = datetime(2001, 2, 3, 4, 5, 6, 789_000, tzinfo=UTC)
    orders.append({"id": 1}, key="alice", headers={"trace": b"\x01"}, timestamp=moment)
    orders.append_many([2, 3], keys=[b"\xff", None], headers=[None, [("a", "1"), ("a", "2")]])
    first, second, third = orders.read()
    assert (first.value, first.key, list(first.headers)) == (
        {"id": 1},
        b"alice",
        [("trace", b"\x01")],
    )
    assert first.timestamp == moment
    assert (second.value, second.key, list(second.headers)) == (2, b"\xff", [])
    assert second.timestamp > moment
    assert (third.key, list(third.headers)) == (None, [("a", b"1"), ("a", b"2")])
    notes.append("text", key="k")
    assert [(each.value, each.key) for each in notes.read()] == [("text", b"k")]
    with pytest.raises(ValueError, match="time zone"):
        orders.append(1, timestamp=datetime(2001, 2, 3))
    with pytest.raises(TypeError, match="str, bytes or int"):
        orders.append(1, key=7.5)
    with pytest.raises(
        ValueError, match="keys, headers and timestamps must each have 2 items for 2 messages"
    ):
        orders.append_many([1, 2], keys=["a"])


def test_a_key_stores_a_message_once(orders: Any) -> None:
    first = orders.append(1, idempotency_key="k")
    again = orders.append(1, idempotency_key="k")
    assert (first.duplicate, again.duplicate) == (False, True)
    assert first.next_offset == again.next_offset
    with pytest.raises(errors.KeyReused):
        orders.append(2, idempotency_key="k")
    assert values(orders.read()) == [1]


def test_conditions_are_kept(orders: Any) -> None:
    orders.append(1, if_match=ZERO)
    with pytest.raises(errors.PreconditionFailed) as failed:
        orders.append(2, if_match=ZERO)
    assert failed.value.next_offset == offset_of(1)
    orders.append(2, seq="b")
    with pytest.raises(errors.StreamSeqConflict, match="sequence"):
        orders.append(3, seq="a")
    assert values(orders.read()) == [1, 2]


def test_a_closed_stream_takes_nothing_more(orders: Any, notes: Any) -> None:
    assert orders.close(1).closed
    assert orders.close().closed
    with pytest.raises(errors.StreamClosed) as caught:
        orders.append(2)
    assert (caught.value.applied, caught.value.next_offset) == ("no", offset_of(1))
    assert orders.head().closed
    notes.append("last", close=True)
    assert notes.head().closed


def test_the_servers_limits_are_told(orders: Any) -> None:
    with pytest.raises(errors.TooLarge):
        orders.append("x" * 6_000_000)
    with pytest.raises(errors.BadRequest):
        orders.append(b"{")
    orders.append("still here")
    assert values(orders.read()) == ["still here"]


# ---- reading -------------------------------------------------------------------------------------


def test_messages_have_offsets_and_times(orders: Any) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    orders.append_many(["a", "b"])
    first, second = orders.read()
    assert (first.offset, first.next_offset) == (ZERO, offset_of(1))
    assert (second.offset, second.next_offset) == (offset_of(1), offset_of(2))
    assert before < first.timestamp < datetime.now(UTC) + timedelta(seconds=1)
    assert values(orders.read(first.next_offset)) == ["b"]
    assert values(orders.read(limit=1)) == ["a"]
    assert values(orders.read("now")) == []
    with pytest.raises(errors.OffsetBeyondTail):
        list(orders.read(offset_of(3)))
    with pytest.raises(errors.BadRequest):
        list(orders.read("yesterday"))


@pytest.mark.parametrize("gzip", [False, True])
def test_a_long_stream_is_read_in_pages(kind: str, server: Server, gzip: bool) -> None:
    with client_of(kind, server.url, gzip=gzip) as client:
        stream = client.stream(server.stream().path).create("application/json")
        for start in range(0, 5000, 1000):
            stream.append_many([{"id": start + n, "pad": "x" * 700} for n in range(1000)])
        assert [value["id"] for value in values(stream.read())] == list(range(5000))
        assert [value["id"] for value in values(stream.read(limit=2500))] == list(range(2500))


def test_gzip_is_only_asked_for_if_wanted(kind: str) -> None:
    page = b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n"
    for gzip in (False, True):
        with Listener(answering(page)) as other, client_of(kind, other.url, gzip=gzip) as client:
            with pytest.raises(errors.StreamNotFound):
                list(client.stream("a").read())
            assert (b"Accept-Encoding: gzip" in other.requests[0]) is gzip


@pytest.mark.parametrize("live", ["long-poll", "sse"])
def test_a_tail_ends_with_its_stream(orders: Any, live: str) -> None:
    orders.append_many([1, 2])
    orders.close(3)
    assert values(orders.tail(live=live)) == [1, 2, 3]
    assert values(orders.tail(offset_of(2), live=live)) == [3]
    assert values(orders.tail("now", live=live)) == []


@pytest.mark.parametrize("live", ["long-poll", "sse"])
def test_a_tail_from_now_sees_what_comes_after_it_began(orders: Any, live: str) -> None:
    orders.append("before")
    with orders.tail("now", live=live) as tail:
        orders.append("after")
        assert next(tail).value == "after"


@pytest.mark.parametrize("live", ["long-poll", "sse"])
def test_a_tail_of_nothing_fails_at_once(client: Any, live: str) -> None:
    with pytest.raises(errors.StreamNotFound):
        next(iter(client.stream("nothing-there").tail(live=live)))


@pytest.mark.parametrize("live", ["long-poll", "sse"])
def test_a_tail_goes_on_after_kill_9_without_loss_or_repetition(
    kind: str, live: str, tmp_path: Path
) -> None:
    server = Server(tmp_path / "data")
    try:
        with Client(server.url) as writer, ThreadPoolExecutor(1) as pool:
            stream = writer.stream("orders").create("application/json")
            seen = threading.Semaphore(0)
            following = pool.submit(_follow, kind, server.url, live, seen)
            for number in range(3 * MESSAGE_COUNT):
                if number and number % MESSAGE_COUNT == 0:
                    assert seen.acquire(timeout=PATIENCE_SECONDS)
                    server.kill()
                    server = Server(tmp_path / "data", port=server.port)
                stream.append(number, idempotency_key=str(number))
            stream.close()
            assert following.result(PATIENCE_SECONDS) == list(range(3 * MESSAGE_COUNT))
    finally:
        server.kill()


def _follow(kind: str, url: str, live: str, seen: threading.Semaphore) -> list[int]:
    found = []
    with client_of(kind, url) as client, client.stream("orders").tail(live=live) as tail:
        for message in tail:
            found.append(message.value)
            if len(found) % MESSAGE_COUNT == 0:
                seen.release()
    return found


@pytest.mark.parametrize("live", ["long-poll", "sse"])
def test_a_tail_is_ended_by_another_thread(server: Server, live: str) -> None:
    with Client(server.url) as client, ThreadPoolExecutor(1) as pool:
        stream = client.stream(server.stream().path).create("application/json")
        stream.append(1)
        tail = stream.tail(live=live)
        assert next(tail).value == 1
        waiting = pool.submit(lambda: list(tail))
        tail.close()
        assert waiting.result(PATIENCE_SECONDS) == []


# ---- failures ------------------------------------------------------------------------------------


def closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as door:
        return f"http://127.0.0.1:{door.getsockname()[1]}"


def test_a_server_that_is_not_there_is_unavailable(kind: str) -> None:
    with client_of(kind, closed_port(), timeout=SHORT_SECONDS) as client:
        stream = client.stream("a")
        stream.calls.content_type = "text/plain"
        for call in (stream.head, lambda: stream.append("x"), lambda: next(iter(stream.tail()))):
            with pytest.raises(errors.Unavailable) as caught:
                call()
            assert caught.value.applied == "no"


def test_a_server_that_comes_back_in_time_is_waited_for(kind: str, tmp_path: Path) -> None:
    port = int(closed_port().rpartition(":")[2])
    with ThreadPoolExecutor(1) as pool:
        starting = pool.submit(lambda: Server(tmp_path / "data", port=port))
        with client_of(kind, f"http://127.0.0.1:{port}", timeout=PATIENCE_SECONDS) as client:
            client.stream("a").create("text/plain", body="x")
            starting.result().kill()


@pytest.mark.parametrize("behave", [closing, silent])
def test_a_request_that_is_taken_and_not_answered_is_indeterminate(kind: str, behave: Any) -> None:
    options = {"timeout": SHORT_SECONDS, "retry_appends": False}
    with Listener(behave) as other, client_of(kind, other.url, **options) as client:
        stream = client.stream("a")
        stream.calls.content_type = "text/plain"
        stream.calls.is_semel = True
        with pytest.raises(errors.Indeterminate) as caught:
            stream.append("x")
        assert caught.value.applied == "unknown"
        assert len(other.requests) == 1  # it must not be sent again


def test_a_request_that_did_not_leave_whole_was_not_applied(kind: str) -> None:
    with Listener(deaf) as other, client_of(kind, other.url, timeout=SHORT_SECONDS) as client:
        stream = client.stream("a")
        stream.calls.content_type, stream.calls.is_foreign = "text/plain", True
        with pytest.raises(errors.Unavailable):
            stream.append(b"x" * 50_000_000)


def test_what_is_safe_to_repeat_is_repeated_until_the_time_is_over(kind: str) -> None:
    with Listener(closing) as other, client_of(kind, other.url, timeout=1.0) as client:
        stream = client.stream("a")
        with pytest.raises(errors.Indeterminate):
            stream.delete()
        assert len(other.requests) > 1
        assert len(set(other.requests)) == 1
        with pytest.raises(errors.Unavailable):
            stream.head()


def test_an_append_is_not_repeated_before_the_server_says_that_it_would_be_recognised(
    kind: str,
) -> None:
    with Listener(closing) as other, client_of(kind, other.url, timeout=1.0) as client:
        stream = client.stream("a")
        stream.calls.content_type, stream.calls.is_semel = "text/plain", True
        with pytest.raises(errors.Indeterminate):
            stream.append("x", idempotency_key="k")
        first, *later = other.requests
        assert first.startswith(b"POST ")
        assert later
        assert all(request.startswith(b"HEAD ") for request in later)


def test_a_call_ends_by_its_own_timeout(kind: str) -> None:
    with Listener(silent) as other, client_of(kind, other.url) as client:
        with pytest.raises(errors.Unavailable):
            client.stream("a").head(timeout=SHORT_SECONDS)
        with pytest.raises(errors.Indeterminate):
            client.stream("a").delete(timeout=SHORT_SECONDS)


def test_a_client_may_wait_for_ever(kind: str, server: Server) -> None:
    with client_of(kind, server.url, timeout=inf, connect_timeout=inf) as client:
        assert client.health()


@pytest.mark.parametrize("name", ["timeout", "connect_timeout"])
@pytest.mark.parametrize("timeout", [0, -1, "5"])
def test_an_invalid_timeout_is_refused(kind: str, name: str, timeout: object) -> None:
    with pytest.raises(ValueError, match="greater than 0"):
        client_of(kind, "http://127.0.0.1:1", **{name: timeout})


def test_a_timeout_of_none_is_no_limit_and_an_omitted_one_is_the_clients(kind: str) -> None:
    with Listener(late) as other, client_of(kind, other.url, timeout=SHORT_SECONDS) as client:
        stream = client.stream("a")
        for options in ({}, {"timeout": semel.CLIENT_DEFAULT}):
            with pytest.raises(errors.Unavailable):
                stream.head(**options)
        assert stream.head(timeout=None).next_offset == "0"
    with Listener(late) as other, client_of(kind, other.url, timeout=None) as client:
        assert client.timeout == inf
        assert client.stream("a").head().next_offset == "0"


def late(listener: Listener, line: socket.socket) -> None:
    """Send the response after the short timeout of the call."""
    if listener.take(line):
        listener.is_over.wait(3 * SHORT_SECONDS)
        line.sendall(HEAD)


# ---- without a deadline --------------------------------------------------------------------------


def test_a_flow_without_a_deadline_is_ended_by_its_stop(server: Server) -> None:
    with Listener(silent) as other, Client(other.url, timeout=inf) as client:
        stop = Stop()
        with ThreadPoolExecutor(1) as pool:
            ended = pool.submit(client.run_until_stopped, client.stream("a").calls.head(), stop)
            wait_until(lambda: bool(other.requests))
            assert not ended.done()
            stop.set()
            assert isinstance(ended.exception(PATIENCE_SECONDS), errors.Unavailable)
    with Client(server.url) as client:
        assert client.run_until_stopped(health(client.site), Stop())


def test_a_flow_without_a_deadline_is_ended_by_its_stop_in_a_loop(server: Server) -> None:
    async def work(url: str) -> BaseException | None:
        async with AsyncClient(url, timeout=inf) as client:
            stop = AsyncStop()
            flow = client.stream("a").calls.head()
            ended = asyncio.create_task(client.run_until_stopped(flow, stop))
            await asyncio.to_thread(wait_until, lambda: bool(other.requests))
            assert not ended.done()
            stop.set()
            async with asyncio.timeout(PATIENCE_SECONDS):
                await asyncio.wait([ended])
            return ended.exception()

    async def succeed() -> object:
        async with AsyncClient(server.url) as client:
            return await client.run_until_stopped(health(client.site), AsyncStop())

    with Listener(silent) as other:
        assert isinstance(asyncio.run(work(other.url)), errors.Unavailable)
    assert asyncio.run(succeed())


@pytest.mark.parametrize("is_set_before", [False, True])
def test_a_flow_without_a_deadline_outlives_the_timeout_and_not_its_stop(
    kind: str, is_set_before: bool
) -> None:
    stop = Stop() if kind == "sync" else AsyncStop()
    with client_of(kind, closed_port(), timeout=SHORT_SECONDS) as client:
        if is_set_before:
            stop.set()
        flow = counting(client.stream("a").calls.head(), stop, 8)
        with pytest.raises(errors.Unavailable):
            client.run_until_stopped(flow, stop)
        assert stop.is_set
        assert flow.gi_frame is None


def counting(flow: Any, stop: Any, pauses: int) -> Any:
    """Run the flow, and set `stop` after a number of pauses."""
    reply = None
    while True:
        try:
            step = flow.send(reply)
        except StopIteration as end:
            return end.value
        if isinstance(step, Pause):
            pauses -= 1
            if not pauses:
                stop.set()
        reply = yield step


def test_a_request_without_a_response_is_sent_again_after_the_silence_limit(kind: str) -> None:
    def second(listener: Listener, line: socket.socket) -> None:
        if listener.take(line) and len(listener.requests) > 1:
            line.sendall(HEAD)
        else:
            line.recv(1)

    stop = Stop() if kind == "sync" else AsyncStop()
    with Listener(second) as other, client_of(kind, other.url, timeout=SHORT_SECONDS) as client:
        info = client.run_until_stopped(client.stream("a").calls.head(), stop)
        assert info.next_offset == "0"
        assert len(other.requests) == 2


def wait_until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_connection_the_server_has_closed_is_replaced(kind: str) -> None:
    with Listener(answering(HEAD)) as other, client_of(kind, other.url) as client:
        for _ in range(3):
            assert client.stream("a").head().next_offset == "0"
        assert other.connections == 3


def test_a_connection_is_kept_as_long_as_it_lasts(kind: str) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nStream-Next-Offset: 0\r\n\r\n"
    with Listener(answering(*[head] * 9)) as other, client_of(kind, other.url) as client:
        for _ in range(3):
            client.stream("a").head()
        assert other.connections == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi",
        b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n",
    ],
)
def test_what_is_no_such_server_is_told_apart(kind: str, answer: bytes) -> None:
    with (
        Listener(answering(answer)) as other,
        client_of(kind, other.url) as client,
        pytest.raises(errors.ProtocolError),
    ):
        list(client.stream("a").read())


def test_the_token_and_the_callers_headers_are_sent(kind: str) -> None:
    refusal = b"HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n"
    with (
        Listener(answering(refusal)) as other,
        client_of(kind, f"{other.url}/base/", token="secret", headers={"X-Team": "a"}) as client,
    ):
        with pytest.raises(errors.Unauthenticated):
            client.stream("ö").head()
        (request,) = other.requests
        lines = request.split(b"\r\n")
        assert lines[0] == b"HEAD /base/v1/stream/%C3%B6 HTTP/1.1"
        assert {b"Authorization: Bearer secret", b"X-Team: a"} < set(lines)
        assert b"User-Agent: semel-python/" + semel.__version__.encode() in lines


def test_a_closed_client_says_so(kind: str, server: Server) -> None:
    with client_of(kind, server.url) as client:
        client.health()
        client.close()
        with pytest.raises(errors.ClientClosed):
            client.health()


def test_many_threads_share_a_client(server: Server) -> None:
    with Client(server.url) as client, ThreadPoolExecutor(8) as pool:
        stream = client.stream(server.stream().path).create("application/json")
        list(pool.map(stream.append, range(400)))
        assert sorted(values(stream.read())) == list(range(400))


# ---- TLS -----------------------------------------------------------------------------------------


def certificate(directory: Path) -> None:
    """Make a certificate and its key."""
    words = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=semel"
    command = ["openssl", *words.split(), "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(directory / "key.pem"), "-out", str(directory / "cert.pem")]
    subprocess.run([*command, *files], check=True, capture_output=True)


def tls_options(directory: Path) -> tuple[str, ...]:
    return "--tls-cert", str(directory / "cert.pem"), "--tls-key", str(directory / "key.pem")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl for a certificate")
def test_tls_is_spoken_and_certificates_are_checked(kind: str, tmp_path: Path) -> None:
    certificate(tmp_path)
    cert = str(tmp_path / "cert.pem")
    server = Server(tmp_path / "data", *tls_options(tmp_path))
    try:
        url = server.url.replace("http:", "https:")
        blob = os.urandom(1_000_000)
        for tls in (cert, ssl.create_default_context(cafile=cert)):
            with client_of(kind, url, tls=tls) as client:
                stream = client.stream("a").create(exist_ok=True)
                stream.append(blob)
                assert stream.read_bytes().endswith(blob)
        with Client(url, tls=cert) as client, client.stream("a").producer("p") as producer:
            for _ in range(3):
                producer.append(blob)
        with Client(url, tls=cert) as client:
            assert client.stream("a").read_bytes().endswith(3 * blob)
        # A bad certificate is not retried.
        with (
            client_of(kind, url, timeout=10 * PATIENCE_SECONDS) as stranger,
            pytest.raises(errors.Unavailable, match="certificate"),
        ):
            stranger.health()
    finally:
        server.kill()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl for a certificate")
def test_a_producer_gives_up_on_a_certificate_that_is_not_trusted(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for directory in (first, second):
        directory.mkdir()
        certificate(directory)
    server = Server(tmp_path / "data", *tls_options(first))
    port = server.port
    try:
        url = server.url.replace("http:", "https:")
        with Client(url, tls=str(first / "cert.pem")) as client:
            producer = client.stream("a").create().producer("p")
            server.kill()
            server = Server(tmp_path / "data", *tls_options(second), port=port)
            producer.append(b"x")
            with pytest.raises(errors.Unavailable, match="certificate"):
                producer.close(PATIENCE_SECONDS)
    finally:
        server.kill()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl for a certificate")
def test_an_address_with_the_wrong_scheme_is_reported_at_once(
    kind: str, server: Server, tmp_path: Path
) -> None:
    certificate(tmp_path)
    secure = Server(tmp_path / "data", *tls_options(tmp_path))
    wrong = {
        server.url.replace(
            "http:", "https:"
        ): f"does not use TLS; if this is intended, use {server.url}",
        secure.url: f"uses TLS; use {secure.url.replace('http:', 'https:')}",
    }
    try:
        for url, words in wrong.items():
            with (
                client_of(kind, url, timeout=10 * PATIENCE_SECONDS) as client,
                pytest.raises(errors.Unavailable) as told,
            ):
                client.stream("a").head()
            assert words in str(told.value)
            command = [sys.executable, "-m", "semel", "head", "a", "--url", url]
            shown = subprocess.run(command, capture_output=True, text=True, check=False)
            assert words in shown.stderr
            assert shown.returncode == 69
        secure_url = secure.url.replace("http:", "https:")
        command = [sys.executable, "-m", "semel", "head", "a", "--url", secure_url]
        shown = subprocess.run(command, capture_output=True, text=True, check=False)
        assert "set SSL_CERT_FILE" in shown.stderr
        assert "tls=" not in shown.stderr
    finally:
        secure.kill()


def test_a_file_of_certificates_that_is_not_there_is_told_at_once(kind: str) -> None:
    for scheme in ("http", "https"):
        with pytest.raises(ValueError, match=r"'nowhere.pem'.*No such file"):
            client_of(kind, f"{scheme}://127.0.0.1:1", tls="nowhere.pem")
    with pytest.raises(ValueError, match="no valid certificate"):
        client_of(kind, "https://127.0.0.1:1", tls=__file__)


# ---- local servers -------------------------------------------------------------------------------


def test_a_local_server_lives_as_long_as_its_block(tmp_path: Path) -> None:
    with semel.local(tmp_path / "data") as client:
        client.stream("a").create("text/plain", body="kept")
        url = client.url
    with Client(url, timeout=SHORT_SECONDS) as late, pytest.raises(errors.Unavailable):
        late.health()
    with semel.local(tmp_path / "data") as client:
        assert client.stream("a").read_text() == "kept"
    with semel.local() as client:
        scratch = client.data
        assert list(client.streams()) == []
    assert not scratch.exists()


def test_a_local_server_that_cannot_start_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    with pytest.raises(errors.Unavailable, match="did not start"):
        semel.local(tmp_path / "file")
