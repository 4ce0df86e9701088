"""Exhausted connections, file descriptors and disk space: the server continues or reports it."""

import resource
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.crash.mounts import mount, small_disk
from tests.spec.process import PATIENCE_SECONDS, Answer, Server, Stream

KIB = 1024
MIB = 1024 * KIB


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Server]:
    """A separate server with small journal files."""
    it = Server(tmp_path / "data", "--segment-bytes", str(64 * KIB))
    try:
        yield it
    finally:
        it.kill()


def eventually(ask: Callable[[], Answer], status: int) -> Answer:
    """Repeat the request until the response has this status."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (answer := ask()).status != status:
        assert time.monotonic() < deadline, answer
        time.sleep(0.05)
    return answer


def refused(stream: Stream, body: bytes) -> Answer:
    """Append until an append is refused; return that response."""
    for _ in range(1_000):
        answer = stream.post(body)
        if answer.status != 204:
            return answer
    raise AssertionError("no append was refused")


# ---- connections ---------------------------------------------------------------------------------


def test_five_thousand_idle_connections_disturb_nobody(small: Server) -> None:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(5_000, files // 2)
    lines = [small.dial() for _ in range(count)]
    try:
        stream = small.stream()
        stream.create()
        assert stream.post(b"x").status == 204
        assert stream.text == "x"
        with small.dial() as another:
            another.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert another.recv(12) == b"HTTP/1.1 200"
        assert small.is_sound()
    finally:
        for line in lines:
            line.close()


# ---- files ---------------------------------------------------------------------------------------


def allow_files(server: Server, count: int) -> None:
    """Limit the file descriptors of the process to `count`; open files stay open."""
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (count, 1_024))


def test_without_files_growth_is_refused_until_there_are_some(small: Server) -> None:
    stream = small.stream()
    stream.create()
    line = small.connect()

    def append() -> int:
        line.request("POST", stream.target, b"x" * 20_000, {"Content-Type": "text/plain"})
        response = line.getresponse()
        response.read()
        return response.status

    try:
        assert append() == 204
        allow_files(small, 3)
        assert [append() for _ in range(20)][-1] == 507
        line.request("HEAD", stream.target)
        assert line.getresponse().read() == b""
        allow_files(small, 1_024)
        eventually(lambda: stream.post(b"x" * 20_000), 204)
        assert small.is_sound()
    finally:
        line.close()


def test_a_server_takes_the_files_it_may_have(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        server = Server(tmp_path / "data")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    try:
        taken, _ = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
        assert taken > 256
    finally:
        server.kill()


# ---- the disk ------------------------------------------------------------------------------------


@pytest.mark.root
def test_a_full_disk_is_told_and_a_delete_makes_room_by_itself(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 2 * MIB) as disk:
        # The last --reserve-bytes option applies.
        sizes = ("--segment-bytes", str(128 * KIB), "--reserve-bytes", str(256 * KIB))
        server = Server(disk / "data", *sizes)
        try:
            kept, large = server.stream(), server.stream()
            kept.create(b"kept")
            large.create()
            full = refused(large, b"x" * 50_000)
            assert (full.status, full.code) == (507, "disk_full")
            assert server.ask("GET", "/health").json["status"] == "full"
            assert server.stream().put().status == 507
            assert kept.text == "kept"
            assert kept.post(stream_closed="true").status == 204
            assert large.delete().status == 204
            eventually(lambda: server.stream().put(), 201)
            assert server.ask("GET", "/health").json["status"] == "ok"
            assert server.stderr == ""
        finally:
            server.kill()


def test_a_deleted_directory_ends_the_process(small: Server) -> None:
    """Messages that are stored after the deletion would be lost."""
    small.stream().create()
    shutil.rmtree(small.data)
    assert small.wait() == 74
    assert "deleted" in small.stderr


@pytest.mark.root
def test_a_read_only_disk_is_refused_at_the_start(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", MIB) as disk:
        mount(disk, "-o", "remount,ro")
        server = Server(disk)
        assert (server.greeting, server.wait()) == ("", 74)
        assert "Read-only" in server.stderr
        assert server.stderr.count("\n") == 1
        server.kill()
