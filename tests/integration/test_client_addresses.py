"""Streams at any URL: on the client's own server, on another one, and below another path."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from semel import AsyncClient, Client, errors
from tests.integration.both import client_of
from tests.integration.recorder import Recorder, eventually
from tests.spec.process import Server, sound_server
from tests.spec.txn_calls import fresh

HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nStream-Next-Offset: 7\r\n"
    b"Stream-Up-To-Date: true\r\nContent-Length: %d\r\n\r\n%s"
)


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Another server."""
    with sound_server(tmp_path_factory.mktemp("second") / "data") as it:
        yield it


def answer(request: bytes) -> bytes:
    """Answer as a server that is not semel, with one message."""
    is_get = request.startswith(b"GET")
    body = b"[1]" if is_get else b""
    return HEAD % (len(body), body)


@pytest.fixture
def other() -> Iterator[Recorder]:
    """A server that has its streams anywhere, and keeps what it was sent."""
    with Recorder(answer) as recorder:
        yield recorder


def targets(recorder: Recorder) -> list[str]:
    return [request.split(b" ")[1].decode().partition("?")[0] for request in recorder.requests]


def values(messages: Any) -> list[Any]:
    return [message.value for message in messages]


def test_a_url_on_the_same_server_is_the_stream_itself(client: Any, server: Server) -> None:
    path = f"Straße/{fresh('s')}"
    stream = client.stream(path).create("application/json")
    by_url = client.stream(f"{server.url}/v1/stream/Stra%C3%9Fe/{path.partition('/')[2]}")
    assert by_url.path == path
    by_url.append(1)
    client.commit(producer_id=fresh("p"), seq=0, appends={by_url.path: [2]})
    assert values(stream.read()) == [1, 2]
    with by_url.tail(group=fresh("g")) as tail:
        assert next(tail).value == 1
    assert by_url.producers("nobody") == []


def test_a_url_on_another_server_is_read_and_written_there(
    client: Any, server: Server, second: Server
) -> None:
    path = fresh("there")
    stream = client.stream(f"{second.url}/v1/stream/{path}")
    stream.create("application/json")
    stream.append_many([1, 2])
    with stream.producer("p") as producer:
        producer.append(3)
    assert values(stream.read()) == [1, 2, 3]
    ids = [state.producer_id for state in stream.producers()]
    assert [each for each in ids if not each.startswith("append-")] == ["p"]
    assert not client.stream(path).exists()
    fork = stream.fork(f"{second.url}/v1/stream/{path}/fork")
    assert values(fork.read()) == [1, 2, 3]


SHARING = 6  # how many appends are made at the same time


def test_appends_to_a_server_that_is_not_semel_do_not_wait_for_each_other(
    server: Server, other: Recorder
) -> None:
    """Only semel can divide one offset among several appends, so they cannot share a request."""
    with Client(server.url) as client, ThreadPoolExecutor(SHARING) as pool:
        url = f"{other.url}/x"
        client.stream(url).append(0)
        other.requests.clear()
        other.lock()
        callers = [pool.submit(client.stream(url).append, number) for number in range(SHARING)]
        try:
            assert eventually(lambda: len(other.requests) == SHARING)
        finally:
            other.unlock()
        assert {caller.result().next_offset for caller in callers} == {"7"}


def test_tasks_that_append_to_a_server_that_is_not_semel_do_not_wait_for_each_other(
    server: Server, other: Recorder
) -> None:
    async def main() -> None:
        async with AsyncClient(server.url) as client:
            url = f"{other.url}/x"
            await client.stream(url).append(0)
            other.requests.clear()
            other.lock()
            tasks = [
                asyncio.create_task(client.stream(url).append(number)) for number in range(SHARING)
            ]
            try:
                is_sent = await asyncio.to_thread(
                    eventually, lambda: len(other.requests) == SHARING
                )
                assert is_sent
            finally:
                other.unlock()
            assert {(await task).next_offset for task in tasks} == {"7"}

    asyncio.run(main())


def test_appends_to_another_server_do_not_wait_for_those_to_the_first_one(
    server: Server, second: Server, other: Recorder
) -> None:
    """The streams have the same path on all servers."""
    path = fresh("s")
    with Client(other.url) as client, ThreadPoolExecutor(1) as pool:
        client.stream(path).append(0)
        there = [client.stream(f"{url}/v1/stream/{path}") for url in (server.url, second.url)]
        for stream in there:
            stream.create("application/json")
        other.lock()
        held = pool.submit(client.stream(path).append, 1)
        try:
            for number, stream in enumerate(there):
                stream.append(number)
            client.stream(f"{second.url}/v1/stream/{path}").append(2)
            assert not held.done()
        finally:
            other.unlock()
        assert held.result().next_offset == "7"
        assert [values(stream.read()) for stream in there] == [[0], [1, 2]]


def test_a_stream_of_another_server_is_no_part_of_a_transaction(
    client: Any, second: Server
) -> None:
    url = f"{second.url}/v1/stream/x"
    with pytest.raises(ValueError, match="is not on the server"), client.transaction() as txn:
        txn.append(url, 1)
    with pytest.raises(ValueError, match="is not on the server"):
        client.commit(producer_id="p", seq=0, appends={url: [1]})
    with pytest.raises(ValueError, match="is not on the server"):
        client.process("g", url, lambda batch: None)


def test_any_url_can_be_read_and_written(client: Any, other: Recorder) -> None:
    stream = client.stream(f"{other.url}/a//b%20c/")
    assert values(stream.read()) == [1]
    assert stream.head().next_offset == "7"
    stream.append(2)
    stream.close()
    assert set(targets(other)) == {"/a//b%20c/"}


def test_what_needs_a_path_says_so_for_a_url_without_one(client: Any, other: Recorder) -> None:
    stream = client.stream(f"{other.url}/anywhere")
    for call in (
        stream.producers,
        lambda: stream.explain("p", 0),
        lambda: stream.forget_producer("p"),
        lambda: stream.tail(group="g"),
    ):
        with pytest.raises(errors.NotSupported, match=r"/anywhere is not below .*/v1/stream/"):
            call()
    assert other.requests == []


def test_the_streams_of_a_server_can_be_below_another_path(kind: str, other: Recorder) -> None:
    for stream_path in ("/streams", "streams/", "/a/b", ""):
        base = "/".join(["", *filter(None, stream_path.split("/"))])
        with client_of(kind, f"{other.url}/base", stream_path=stream_path) as client:
            client.stream("x y").append(1)
            assert targets(other)[-1] == f"/base{base}/x%20y".replace("//", "/")
            named = client.stream(f"{other.url}/base{base}/z")
            assert named.path == "z"
            client.stream("f").fork("g", exist_ok=True)
        forked = other.requests[-1].lower()
        assert f"stream-forked-from: /base{base}/f".replace("//", "/").encode() in forked
    with pytest.raises(ValueError, match="stream_path"):
        client_of(kind, other.url, stream_path="http://a/b")


def test_credentials_go_to_the_clients_own_server_only(kind: str, other: Recorder) -> None:
    own = {"token": "secret", "headers": {"X-Own": "1"}, "params": {"own": "2"}}
    with Recorder(answer) as stranger, client_of(kind, other.url, **own) as client:
        for url in (other.url, stranger.url):
            client.stream(f"{url}/a").head()
            client.stream(f"{url}/base/v1/stream/a").head()
        assert len(other.requests) == len(stranger.requests) == 2
        for request in other.requests:
            for part in (b"Bearer secret", b"X-Own: 1", b"?own=2 "):
                assert part in request
        for request in stranger.requests:
            for part in (b"secret", b"X-Own", b"own="):
                assert part not in request


@pytest.mark.parametrize(
    "url",
    [
        "http://",
        "http://a b/x",
        "https://u:p@host/x",
        "http://h/x?a=b",
        "http://h/x#a",
        "http://h:0/x",
    ],
)
def test_a_url_that_names_no_stream_is_refused(client: Any, url: str) -> None:
    with pytest.raises(ValueError, match=r"address|host name|port"):
        client.stream(url)
