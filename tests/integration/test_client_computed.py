"""Tokens, headers and query parameters that functions compute for each request."""

import asyncio
import itertools
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from semel import AsyncClient, Client, errors
from semel.client.sync.stream import Stream
from tests.integration.both import client_of
from tests.integration.recorder import Recorder
from tests.spec.process import Server
from tests.spec.txn_calls import fresh

BUSY = b"HTTP/1.1 429 Too Many\r\nContent-Length: 0\r\n\r\n"
PAGE = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nStream-Next-Offset: 1\r\n"
    b"Stream-Up-To-Date: true\r\nContent-Length: %d\r\n\r\n%s"
)


@pytest.fixture
def stream(server: Server) -> Iterator[Stream]:
    """A stream of a client without computed values."""
    with Client(server.url) as client:
        yield client.stream(fresh("s")).create("application/json")


def counter(kind: str) -> Callable[[], Any]:
    """Return a function, for AsyncClient a coroutine function, that counts its calls."""
    count = itertools.count(1)

    async def computed() -> str:
        await asyncio.sleep(0)
        return str(next(count))

    return (lambda: str(next(count))) if kind == "sync" else computed


def found(pattern: str, requests: list[bytes]) -> list[str]:
    return [text for request in requests for text in re.findall(pattern, request.decode())]


def test_each_request_gets_its_own_values(kind: str) -> None:
    with (
        Recorder(lambda request: PAGE % (0, b"")) as other,
        client_of(
            kind,
            other.url,
            token=counter(kind),
            headers={"X-Count": counter(kind), "X-Fixed": "f"},
            params={"count": counter(kind), "a b": "ü&"},
        ) as client,
    ):
        client.stream("x").head()
        list(client.stream("x").read())
        assert found("Bearer ([0-9]+)", other.requests) == ["1", "2"]
        assert found("X-Count: ([0-9]+)", other.requests) == ["1", "2"]
        assert found("X-Fixed: (.)", other.requests) == ["f", "f"]
        assert found(r"[?&]count=([0-9]+)", other.requests) == ["1", "2"]
        assert found(r"[?&]a%20b=%C3%BC%26[& ]", other.requests) != []
        assert other.requests[0].startswith(b"HEAD /v1/stream/x?a%20b=%C3%BC%26&count=1 ")


def test_each_retry_gets_its_own_values(kind: str) -> None:
    answers = itertools.chain([BUSY, BUSY], itertools.repeat(PAGE % (2, b"[]")))
    with (
        Recorder(lambda request: next(answers)) as other,
        client_of(kind, other.url, token=counter(kind)) as client,
    ):
        list(client.stream("x").read())
        assert found("Bearer ([0-9]+)", other.requests) == ["1", "2", "3"]


@pytest.mark.parametrize("live", ["long-poll", "sse"])
def test_a_long_tail_renews_its_token(kind: str, server: Server, stream: Stream, live: str) -> None:
    used: list[str] = []
    count = counter(kind)

    def token() -> Any:
        used.append("called")
        return count()

    with client_of(kind, server.url, token=token) as client:
        tail = client.stream(stream.path).tail(live=live)
        stream.append(1)
        assert next(tail).value == 1
        before = len(used)
        stream.append(2)
        assert next(tail).value == 2
        stream.close(3)
        assert [message.value for message in tail] == [3]
        assert len(used) > before or live == "sse", "every long-poll is a request of its own"


def test_a_producer_stores_everything_in_order(kind: str, server: Server, stream: Stream) -> None:
    with (
        client_of(kind, server.url, headers={"X-Count": counter(kind)}) as client,
        client.stream(stream.path).producer("p", max_batch_messages=1) as producer,
    ):
        for number in range(50):
            producer.append(number)
    assert [message.value for message in stream.read()] == list(range(50))


def test_the_batches_of_a_producer_carry_the_values(kind: str) -> None:
    def answer(request: bytes) -> bytes:
        if request.startswith(b"HEAD"):
            return PAGE % (0, b"")
        epoch = b"HTTP/1.1 200 OK\r\nProducer-Epoch: 0\r\nStream-Next-Offset: 1\r\n"
        return epoch + b"Content-Length: 0\r\n\r\n"

    with (
        Recorder(answer) as other,
        client_of(kind, other.url, headers={"X-Count": counter(kind)}, params={"a": "b"}) as client,
        client.stream("x").producer("p", epoch=0, max_batch_messages=1) as producer,
    ):
        for number in range(3):
            producer.append(number)
        producer.flush()
        batches = [request for request in other.requests if request.startswith(b"POST")]
        assert all(request.startswith(b"POST /v1/stream/x?a=b ") for request in batches)
        assert found("Producer-Seq: ([0-9]+)", batches) == ["0", "1", "2"]
        counts = found("X-Count: ([0-9]+)", other.requests)
        assert counts == [str(number) for number in range(1, len(counts) + 1)]


class TokenLost(Exception):
    """Raised by a function for a token."""


def lost() -> str:
    raise TokenLost("no token")


def test_what_a_function_raises_is_raised_to_the_caller(
    kind: str, server: Server, stream: Stream
) -> None:
    is_broken = threading.Event()

    def token() -> str:
        return lost() if is_broken.is_set() else "t"

    with client_of(kind, server.url, token=token) as client:
        stream.append(1)
        tail = client.stream(stream.path).tail()
        assert next(tail).value == 1
        producer = client.stream(stream.path).producer("p").__enter__()
        producer.append(2)
        producer.flush()
        is_broken.set()
        for call in (
            lambda: client.stream(stream.path).append(3),
            lambda: list(client.stream(stream.path).read()),
            lambda: list(tail),
            client.health,
        ):
            with pytest.raises(TokenLost):
                call()
        producer.append(4)
        with pytest.raises(errors.CallbackFailed, match="TokenLost: no token") as failed:
            producer.flush()
        assert isinstance(failed.value.__cause__, TokenLost)
        assert failed.value.applied == "no"
    assert [message.value for message in stream.read()] == [1, 2]


@pytest.mark.parametrize("what", ["client", "producer"])
def test_a_close_does_not_raise_what_the_token_function_raises(
    kind: str, server: Server, stream: Stream, what: str
) -> None:
    is_broken = threading.Event()

    def token() -> str:
        return lost() if is_broken.is_set() else "t"

    client = client_of(kind, server.url, token=token)
    there = client.stream(stream.path)
    if what == "client":
        there.append(1)
        with client.transaction() as txn:  # its producer id is the client's, too
            txn.append(stream.path, 2)
        closed = client
    else:
        closed = there.producer().__enter__()  # the server removes it
        closed.append(1)
        closed.append(2)
        closed.flush()
    is_broken.set()
    closed.close()
    is_broken.clear()
    client.__exit__(None, None, None)
    assert [message.value for message in stream.read()] == [1, 2]


def test_a_value_that_cannot_be_sent_is_refused(kind: str, server: Server) -> None:
    for bad, error in ((lambda: "a\r\nX: y", ValueError), (lambda: 7, TypeError)):
        with client_of(kind, server.url, token=bad) as client, pytest.raises(error):
            client.health()
    for options in (
        {"token": 7},
        {"headers": {"X": 7}},
        {"params": {"a": None}},
        {"headers": {"Host": lambda: "x"}},
        {"headers": {"authorization": lambda: "x"}, "token": "t"},
        {"headers": {"authorization": "x"}, "token": lambda: "t"},
    ):
        with pytest.raises((TypeError, ValueError)):
            client_of(kind, server.url, **options)


def test_a_client_of_threads_refuses_a_coroutine_function(server: Server) -> None:
    async def token() -> str:
        return "t"

    with (
        Client(server.url, token=token) as client,  # type: ignore[arg-type]
        pytest.raises(TypeError, match="use it with AsyncClient"),
    ):
        client.health()


def test_a_function_that_does_not_return_in_time_ends_the_call(server: Server) -> None:
    async def token() -> str:
        await asyncio.sleep(60)
        return "t"

    async def run() -> None:
        async with AsyncClient(server.url, token=token, timeout=0.2) as client:
            await client.health()

    with pytest.raises(errors.Unavailable, match="not computed before the timeout"):
        asyncio.run(run())
