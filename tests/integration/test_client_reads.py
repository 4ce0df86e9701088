"""What a read and a tail report beside their messages, and how a tail ends."""

import asyncio
import socket
import threading
import time
from typing import Any

import pytest

from semel import AsyncClient, Client, errors
from semel.wire.headers import FRAMES as WIRE_FRAMES
from tests.integration.both import client_of
from tests.integration.listener import Listener
from tests.integration.recorder import Recorder, eventually
from tests.spec.process import PATIENCE_SECONDS, Server, offset_of
from tests.spec.txn_calls import fresh


@pytest.fixture
def stream(client: Any) -> Any:
    return client.stream(fresh("s")).create("application/json")


def state(read: Any) -> tuple[str, bool, bool]:
    return read.next_offset, read.up_to_date, read.closed


# ---- how far a read is ---------------------------------------------------------------------------


def test_a_read_of_nothing_reports_where_it_is(stream: Any) -> None:
    read = stream.read()
    assert state(read) == ("-1", False, False)
    assert list(read) == []
    assert state(read) == (offset_of(0), True, False)
    now = stream.read("now")
    assert list(now) == []
    assert state(now) == (offset_of(0), True, False)
    stream.close()
    end = stream.read(offset_of(0))
    assert list(end) == []
    assert state(end) == (offset_of(0), True, True)


def test_a_read_reports_how_far_it_is(stream: Any) -> None:
    stream.append_many(["a", "b", "c"])
    read = stream.read()
    states = [state(read) for message in read if message.value]
    assert states == [(offset_of(n), n == 3, False) for n in (1, 2, 3)]
    stream.close("d")
    rest = stream.read(read.next_offset)
    assert [message.value for message in rest] == ["d"]
    assert state(rest) == (offset_of(4), True, True)


@pytest.mark.parametrize(("limit", "expected"), [(2, (2, False)), (3, (3, True)), (4, (3, True))])
def test_a_limited_read_reports_where_to_continue(
    stream: Any, limit: int, expected: tuple[int, bool]
) -> None:
    stream.append_many(["a", "b", "c"])
    read = stream.read(limit=limit)
    assert len(list(read)) == min(limit, 3)
    assert (read.next_offset, read.up_to_date) == (offset_of(expected[0]), expected[1])
    assert list(stream.read(limit=0)) == []


def test_the_middle_of_a_page_of_another_server_is_not_skipped(kind: str) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nStream-Next-Offset: end\r\n"
    page = head + b"Stream-Up-To-Date: true\r\nContent-Length: 5\r\n\r\n[1,2]"
    with Recorder(lambda request: page) as other, client_of(kind, other.url) as client:
        read = client.stream("x").read("start")
        assert next(read).value == 1
        assert state(read) == ("start", False, False)
        assert next(read).value == 2
        assert state(read) == ("end", True, False)
        (first,) = client.stream("x").read("start", limit=1)
        assert first.value == 1


# ---- how far a tail is, and how it ends ----------------------------------------------------------


@pytest.mark.parametrize("live", ["long-poll", "sse"])
def test_a_tail_reports_where_it_waits(server: Server, live: str) -> None:
    with Client(server.url) as client:
        stream = client.stream(fresh("s")).create("application/json")
        tail = stream.tail(live=live)
        waiting = threading.Thread(target=lambda: list(tail))
        waiting.start()
        try:
            assert eventually(lambda: tail.up_to_date)
            assert state(tail) == (offset_of(0), True, False)
            stream.append("a")
            assert eventually(lambda: state(tail) == (offset_of(1), True, False))
            stream.close()
            waiting.join(PATIENCE_SECONDS)
            assert state(tail) == (offset_of(1), True, True)
        finally:
            tail.close()


@pytest.mark.parametrize("live", ["long-poll", "sse"])
def test_closing_an_async_tail_ends_the_task_that_waits(server: Server, live: str) -> None:
    async def run() -> tuple[list[Any], tuple[str, bool, bool]]:
        async with AsyncClient(server.url) as client:
            stream = await client.stream(fresh("s")).create("application/json")
            await stream.append("a")
            tail = stream.tail(live=live)
            seen: list[Any] = []

            async def read() -> None:
                seen.extend([message.value async for message in tail])

            task = asyncio.create_task(read())
            while not tail.up_to_date:  # noqa: ASYNC110 - the tail has no event for it
                await asyncio.sleep(0.01)
            await tail.close()
            await stream.append("late")
            await asyncio.wait_for(task, PATIENCE_SECONDS)
            return seen, state(tail)

    assert asyncio.run(run()) == (["a"], (offset_of(1), True, False))


def test_a_page_that_arrives_while_an_async_tail_is_closed_ends_it(server: Server) -> None:
    """The task has its page, but has not returned from its wait when the tail is closed."""

    async def run() -> list[Any]:
        async with AsyncClient(server.url) as client:
            stream = await client.stream(fresh("s")).create("application/json")
            await stream.append_many(["a", "b"])
            tail = stream.tail()
            seen: list[Any] = []

            async def read() -> None:
                async for message in tail:
                    seen.append(message.value)
                    await tail.close()

            await asyncio.wait_for(read(), PATIENCE_SECONDS)
            assert tail.next_offset == offset_of(1)
            assert [m.value async for m in stream.read(tail.next_offset)] == ["b"]
            return seen

    assert asyncio.run(run()) == ["a"]


def test_closing_a_tail_drops_what_was_not_returned(client: Any, stream: Any) -> None:
    stream.append_many(["a", "b", "c"])
    tail = stream.tail()
    assert next(tail).value == "a"
    tail.close()
    assert list(tail) == []
    assert state(tail) == (offset_of(1), False, False)


# ---- missing streams, limits and damaged bodies --------------------------------------------------


def test_every_call_names_the_stream_that_is_missing(client: Any) -> None:
    path = f"{fresh('missing')}/x"
    stream = client.stream(path)
    for call in (
        stream.head,
        stream.delete,
        stream.close,
        lambda: stream.append(b"x"),
        lambda: list(stream.read()),
        lambda: next(stream.tail()),
        lambda: next(stream.tail(live="sse")),
        lambda: stream.trim(offset_of(0)),
        lambda: client.commit(producer_id="p", seq=0, appends={path: [1]}),
    ):
        with pytest.raises(errors.StreamNotFound) as missing:
            call()
        assert path in str(missing.value)


def test_a_rate_limit_without_a_time_is_waited_for(kind: str) -> None:
    busy = b"HTTP/1.1 429 Slow Down\r\nContent-Type: text/plain\r\nContent-Length: 0\r\n\r\n"
    fine = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nStream-Next-Offset: 1\r\n"
    answers = [busy, busy, fine + b"Stream-Closed: true\r\nContent-Length: 1\r\n\r\nx"]
    with Recorder(lambda request: answers.pop(0)) as other, client_of(kind, other.url) as client:
        assert client.stream("x").read_text() == "x"
        assert len(other.requests) == 3
    with (
        Recorder(lambda request: busy) as other,
        client_of(kind, other.url, timeout=1.0) as client,
    ):
        begun = time.monotonic()
        with pytest.raises(errors.LimitReached, match="429"):
            client.stream("x").append(b"x")
        assert time.monotonic() - begun < PATIENCE_SECONDS
        assert len(other.requests) > 2


FRAMES = WIRE_FRAMES.encode()
DAMAGED = {
    "no JSON": (b"application/json", b"[1,", "not JSON"),
    "no array": (b"application/json", b'{"a":1}', "not a JSON array"),
    "no frames": (FRAMES, b"x", f"not valid {WIRE_FRAMES}"),
    "cut frames": (FRAMES, b"", f"not valid {WIRE_FRAMES}"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_body_says_so(kind: str, name: str) -> None:
    content_type, body, words = DAMAGED[name]
    head = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nStream-Next-Offset: 1\r\n" % content_type
    whole = head + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    with Recorder(lambda request: whole) as other, client_of(kind, other.url) as client:
        with pytest.raises(errors.DamagedResponse, match=words) as damaged:
            list(client.stream("x").read())
        assert damaged.value.code == "damaged_response"


def test_a_body_that_is_always_cut_says_so(kind: str) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nStream-Next-Offset: 1\r\n"
    cut = head + b"Connection: close\r\nContent-Length: 9\r\n\r\nshort"

    def serve(listener: Listener, line: socket.socket) -> None:
        if listener.take(line):
            line.sendall(cut)

    with Listener(serve) as other, client_of(kind, other.url, retries=2) as client:
        with pytest.raises(errors.DamagedResponse, match="in the middle of a response") as damaged:
            client.stream("x").read_text()
        assert damaged.value.applied == "no"
        assert str(damaged.value).count(errors.DamagedResponse.advice) == 1
        assert len(other.requests) == 3, "a read is safe to repeat"
