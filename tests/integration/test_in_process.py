"""The server in the test process, with a real engine and real sockets, and its cleanup."""

import asyncio
import gc
import http.client
import sys
import threading
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from semel.model.errors import DirectoryLocked, EngineStopped
from semel.testing.in_process import InProcessServer


def ask(port: int, method: str, target: str, body: bytes | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(method, target, body, {"Content-Type": "text/plain"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_it_serves_streams_from_a_thread_of_its_own() -> None:
    with InProcessServer() as server:
        assert ask(server.port, "PUT", "/v1/stream/a", b"one")[0] == 201
        assert ask(server.port, "GET", "/v1/stream/a?offset=-1") == (200, b"one")
        with urlopen(f"{server.url}/health") as answer:
            assert answer.status == 200
        assert server.engine.broker.durable > 0


def test_pages_of_a_listed_origin_can_use_it_and_others_cannot() -> None:
    def create(server: InProcessServer, origin: str) -> str | None:
        request = Request(f"{server.url}/v1/stream/a", method="PUT", headers={"Origin": origin})
        with urlopen(request) as answer:
            allowed: str | None = answer.headers["Access-Control-Allow-Origin"]
            return allowed

    with InProcessServer(cors_origins=["http://localhost:3000"]) as server:
        assert create(server, "http://localhost:3000") == "http://localhost:3000"
        assert create(server, server.url) is None  # its own pages
        with pytest.raises(HTTPError, match="403"):
            create(server, "http://localhost:3001")


def test_it_leaves_no_directory_no_thread_and_no_setting_behind() -> None:
    before = (threading.active_count(), sys.getswitchinterval())
    with InProcessServer() as server:
        data = server.data
        assert Path(data).is_dir()
    assert not Path(data).exists()
    assert (threading.active_count(), sys.getswitchinterval()) == before
    assert gc.get_freeze_count() == 0
    with pytest.raises(ConnectionRefusedError):
        ask(server.port, "GET", "/health")
    with pytest.raises(EngineStopped, match="inside its `with` block"):
        _ = server.engine


def test_a_directory_that_was_given_keeps_its_data_for_the_next(tmp_path: Path) -> None:
    with InProcessServer(tmp_path) as server:
        ask(server.port, "PUT", "/v1/stream/a", b"one")
    with InProcessServer(tmp_path) as server:
        assert ask(server.port, "GET", "/v1/stream/a?offset=-1") == (200, b"one")


def test_it_runs_on_the_loop_of_its_user() -> None:
    async def main() -> None:
        async with InProcessServer() as server:
            status, _ = await asyncio.to_thread(ask, server.port, "PUT", "/v1/stream/a", b"one")
            assert status == 201

    asyncio.run(main())


def test_a_reader_that_waits_is_answered_when_the_server_ends() -> None:
    found: list[tuple[int, bytes]] = []

    def wait_for_data(port: int) -> None:
        found.append(ask(port, "GET", "/v1/stream/a?offset=now&live=long-poll"))

    with InProcessServer(long_poll_seconds=60) as server:
        ask(server.port, "PUT", "/v1/stream/a")
        waiting = threading.Thread(target=wait_for_data, args=(server.port,))
        waiting.start()
        while b"semel_live_readers 1\n" not in ask(server.port, "GET", "/metrics")[1]:
            pass
    waiting.join(20)
    assert [status for status, _ in found] == [204]


def test_a_directory_in_use_is_refused_and_nothing_is_left_open() -> None:
    before = threading.active_count()
    with InProcessServer() as server:
        with pytest.raises(DirectoryLocked), InProcessServer(server.data):
            pass
        with (
            pytest.raises(OSError, match="Address already in use"),
            InProcessServer(port=server.port),
        ):
            pass
    assert threading.active_count() == before


def test_an_engine_that_failed_is_not_overlooked() -> None:
    with pytest.raises(EngineStopped, match="no more disk"), InProcessServer() as server:
        server._fail(OSError("no more disk"))
