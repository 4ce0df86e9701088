"""A directory that is restored from an older copy is noticed: the generation is raised."""

import errno
import json
import os
import resource
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from semel import Client, errors
from semel.cli.read_only import ReadOnlyDisk
from semel.cli.restore import restore_command
from semel.journal.disk import RealFile
from semel.model.errors import DiskFailed
from semel.testing import local
from tests.spec.process import SEMEL, Server

PAGE_BYTES = resource.getpagesize()

MESSAGES = 20
SMALL = ("--segment-bytes", "65536")


def semel(*arguments: str | Path) -> tuple[int, str]:
    done = subprocess.run(
        [str(SEMEL), *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    """Return a copy of a directory with ten messages. The directory itself has twenty."""
    with (
        local(tmp_path / "data", segment_bytes=65_536, reserve_bytes=0) as server,
        Client(server.url) as client,
    ):
        stream = client.stream("s").create("text/plain")
        for number in range(MESSAGES):
            if number == MESSAGES // 2:
                # The server is idle. A copy of a running server is a consistent past.
                shutil.copytree(tmp_path / "data", tmp_path / "backup")
            stream.append(f"{number}")
    return tmp_path / "backup"


@pytest.fixture
def served(backup: Path) -> Iterator[Server]:
    server = Server(backup, *SMALL)
    yield server
    server.kill()


def generation_of(server: Server) -> list[object]:
    """Return the generation from each response that contains it."""
    found: list[object] = [
        server.ask("GET", "/health").json["generation"],
        server.ask("GET", "/v1/streams").json["generation"],
    ]
    for method, query in (("HEAD", ""), ("GET", "?offset=-1"), ("GET", "?offset=-1&live=sse")):
        connection = server.connect()
        connection.request(method, f"/v1/stream/s{query}")
        with connection.getresponse() as response:  # events would continue for a minute
            found.append(int(response.headers["Stream-Generation"]))
        connection.close()
    with Client(server.url) as client:
        found.append(client.stream("s").head().generation)
    return found


def test_a_new_directory_has_generation_1(served: Server) -> None:
    assert set(generation_of(served)) == {1}


def restored(path: Path) -> int:
    """Restore a directory, and return its generation."""
    code, text = semel("restore", "--json", "--data", path)
    assert code == 0, text
    generation = json.loads(text)["generation"]
    assert isinstance(generation, int)
    return generation


def test_a_restore_raises_the_generation_in_every_response(backup: Path) -> None:
    before = 1
    for _ in range(2):
        code, text = semel("restore", "--data", backup)
        assert code == 0, text
        generation = int(text.split()[-2])
        assert generation > before
        assert abs(generation / 1000 - time.time()) < 60
        before = generation
        server = Server(backup, *SMALL)
        assert set(generation_of(server)) == {generation}
        with Client(server.url) as client:
            found = [message.value for message in client.stream("s").read()]
            assert found == [str(number) for number in range(MESSAGES // 2)]
        server.kill()
    code, text = semel("doctor", "--verify", "--json", "--data", backup)
    assert code == 0, text
    assert json.loads(text)["directory"]["generation"] == before


def test_a_cached_response_of_the_lost_messages_is_not_confirmed(backup: Path) -> None:
    server = Server(backup, *SMALL)
    etag = server.ask("GET", "/v1/stream/s?offset=-1").headers["etag"]
    assert server.ask("GET", "/v1/stream/s?offset=-1", if_none_match=etag).status == 304
    server.kill()
    assert semel("restore", "--data", backup)[0] == 0
    server = Server(backup, *SMALL)
    answer = server.ask("GET", "/v1/stream/s?offset=-1", if_none_match=etag)
    server.kill()
    assert answer.status == 200
    assert answer.headers["etag"] != etag


def test_an_address_that_names_the_incarnation_changes_with_a_restore(backup: Path) -> None:
    server = Server(backup, *SMALL)
    incarnation = server.ask("HEAD", "/v1/stream/s").headers["stream-incarnation"]
    target = "/v1/stream/s?offset=-1&incarnation="
    assert server.ask("GET", target + incarnation).status == 200
    server.kill()
    generation = restored(backup)
    server = Server(backup, *SMALL)
    stale = server.ask("GET", target + incarnation)
    current = server.ask("GET", f"{target}{incarnation}.{generation}")
    server.kill()
    assert (stale.status, stale.code) == (409, "incarnation_conflict")
    assert current.status == 200


def test_a_reader_that_meets_another_generation_ends_with_an_error(
    tmp_path: Path, backup: Path
) -> None:
    with (
        local(tmp_path / "data", segment_bytes=65_536, reserve_bytes=0) as server,
        Client(server.url) as client,
        client.stream("s").tail(offset="-1", timeout=60) as tail,
    ):
        read = [next(tail).value for _ in range(5)]
        server.kill()
        shutil.rmtree(tmp_path / "data")
        shutil.copytree(backup, tmp_path / "data")
        assert semel("restore", "--data", tmp_path / "data")[0] == 0
        server.restart()
        for _ in range(MESSAGES):  # the new end is after the reader, so its offset exists
            client.stream("s").append("after the restore")
        with pytest.raises(errors.StreamRestored) as caught:
            for _ in range(3 * MESSAGES):
                next(tail)
    assert read == [str(number) for number in range(5)]
    assert caught.value.code == "stream_restored"
    assert "older copy" in str(caught.value)


@dataclass(frozen=True)
class Life:
    """What a restored directory returns, and where its content can be cached."""

    generation: int
    etag: str
    address: str
    body: bytes


def live_again(data: Path, backup: Path, text: bytes) -> Life:
    """Restore the copy, append messages with this text, and read them."""
    shutil.rmtree(data, ignore_errors=True)
    shutil.copytree(backup, data)
    generation = restored(data)
    server = Server(data, *SMALL)
    try:
        assert set(generation_of(server)) == {generation}
        for _ in range(MESSAGES):
            assert server.stream("s").post(text).status == 204
        incarnation = server.ask("HEAD", "/v1/stream/s").headers["stream-incarnation"]
        address = f"/v1/stream/s?offset=-1&incarnation={incarnation}.{generation}"
        page = server.ask("GET", address)
        assert page.status == 200
        return Life(generation, page.headers["etag"], address, page.body)
    finally:
        server.kill()


def test_two_restores_of_one_copy_differ_in_generation_etag_and_address(
    tmp_path: Path, backup: Path
) -> None:
    """Both directories have other messages at the same offsets."""
    one = live_again(tmp_path / "again", backup, b"one")
    other = live_again(tmp_path / "again", backup, b"two")
    assert one.body != other.body
    assert other.generation > one.generation
    assert one.etag != other.etag
    server = Server(tmp_path / "again", *SMALL)
    stale = server.ask("GET", one.address)
    page = server.ask("GET", "/v1/stream/s?offset=-1", if_none_match=one.etag)
    server.kill()
    assert (stale.status, stale.code) == (409, "incarnation_conflict")
    assert page.status == 200


def test_a_reader_notices_the_second_restore_of_the_same_copy(tmp_path: Path, backup: Path) -> None:
    shutil.copytree(backup, tmp_path / "again")
    restored(tmp_path / "again")
    with (
        local(tmp_path / "again", segment_bytes=65_536, reserve_bytes=0) as server,
        Client(server.url) as client,
        client.stream("s").tail(offset="-1", timeout=60) as tail,
    ):
        for _ in range(5):
            next(tail)
        server.kill()
        shutil.rmtree(tmp_path / "again")
        shutil.copytree(backup, tmp_path / "again")
        restored(tmp_path / "again")
        server.restart()
        for _ in range(MESSAGES):
            client.stream("s").append("after the second restore")
        with pytest.raises(errors.StreamRestored):
            for _ in range(3 * MESSAGES):
                next(tail)


def test_a_directory_in_use_is_not_restored(served: Server, backup: Path) -> None:
    before = (backup / "identity").read_bytes()
    code, text = semel("restore", "--data", backup)
    assert code == 73, text
    assert (backup / "identity").read_bytes() == before


@pytest.mark.parametrize("name", ["identity", "checkpoint.mdb", "00000000000000000000.seg"])
def test_a_damaged_directory_is_not_restored(backup: Path, name: str) -> None:
    data = bytearray((backup / name).read_bytes())
    data[16] ^= 255
    if name == "checkpoint.mdb":
        data[PAGE_BYTES + 16] ^= 255  # the other meta page, because one is enough for a start
    (backup / name).write_bytes(data)
    before = (backup / "identity").read_bytes()
    code, text = semel("restore", "--data", backup)
    assert code == 65, text
    assert name in text
    assert (backup / "identity").read_bytes() == before


@pytest.mark.parametrize("code", [errno.EACCES, errno.EMFILE])
def test_a_segment_that_may_not_be_opened_is_not_called_corrupt(
    backup: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """The exit code is 74, and the directory is not changed."""
    opened = ReadOnlyDisk.open

    def refuse_segments(disk: ReadOnlyDisk, name: str) -> RealFile:
        if name.endswith(".seg"):
            raise OSError(code, os.strerror(code), name)
        return opened(disk, name)

    monkeypatch.setattr(ReadOnlyDisk, "open", refuse_segments)
    before = (backup / "identity").read_bytes()
    result = CliRunner().invoke(restore_command, ["--data", str(backup)], standalone_mode=False)
    assert isinstance(result.exception, DiskFailed), result.output
    assert result.exception.exit_code == 74
    assert "00000000000000000000.seg" in str(result.exception)
    assert (backup / "identity").read_bytes() == before


def test_only_a_data_directory_can_be_restored(tmp_path: Path) -> None:
    assert semel("restore", "--data", tmp_path / "nowhere")[0] == 66
    assert semel("restore", "--data", tmp_path)[0] == 66


def test_restore_prints_json_for_programs(backup: Path) -> None:
    code, text = semel("restore", "--json", "--data", backup)
    assert code == 0, text
    document = json.loads(text)
    assert document["generation"] > 1
    assert document["verify"]["findings"] == []
