"""`semel.local()`: a server process that can be started, killed and restarted."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from semel import local
from semel.testing import LocalServer, NotStarted
from tests.integration.recorder import eventually


@pytest.fixture
def server() -> Iterator[LocalServer]:
    with local() as running:
        yield running


def put(server: LocalServer, text: bytes) -> None:
    headers = {"Content-Type": "text/plain"}
    url = f"{server.url}/v1/stream/a"
    with urlopen(Request(url, text, headers, method="PUT")) as answer:
        assert answer.status == 201


def content(server: LocalServer) -> bytes:
    with urlopen(f"{server.url}/v1/stream/a?offset=-1") as answer:
        found: bytes = answer.read()
        return found


def is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_it_is_up_when_it_is_there_and_goes_with_its_directory(server: LocalServer) -> None:
    put(server, b"one")
    pid = server.pid
    assert pid is not None
    assert server.data.is_dir()
    server.stop()
    server.stop()
    assert not is_alive(pid)
    assert not server.data.exists()
    assert server.pid is None
    with pytest.raises(NotStarted, match="call local\\(\\) again"):
        server.restart()


def test_a_kill_and_a_restart_keep_the_port_and_the_data(server: LocalServer) -> None:
    put(server, b"one")
    url, pid = server.url, server.pid
    server.kill()
    with pytest.raises(OSError, match="refused"):
        content(server)
    server.restart()
    assert server.url == url
    assert server.pid != pid
    assert content(server) == b"one"
    server.restart()
    assert content(server) == b"one"


def test_a_directory_that_was_given_is_kept(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with local(data) as server:
        put(server, b"one")
        assert server.data == data
    with local(data) as server:
        assert content(server) == b"one"
    assert data.is_dir()


def test_settings_are_those_of_serve_and_the_environment_sets_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SEMEL_HOST", "no.such.host.invalid")
    monkeypatch.setenv("SEMEL_BODY_BYTES_MAX", "0")
    with local(body_bytes_max=3) as server:
        put(server, b"one")
        with pytest.raises(OSError, match="413"):
            put(server, b"four")


def test_a_server_that_does_not_start_says_why(tmp_path: Path, server: LocalServer) -> None:
    with pytest.raises(NotStarted, match=r"(?s)exit code 64.*No such option '--bodies'"):
        local(bodies=3)
    with pytest.raises(NotStarted, match=r"exit code 73"):
        local(server.data)
    with pytest.raises(NotStarted, match=r"cannot listen on .*choose a different --port"):
        local(port=server.port)
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(NotStarted, match="did not start"):
        local(file)


def test_it_dies_with_the_process_that_started_it_and_takes_its_directory_along() -> None:
    program = (
        "from semel import local; import time\n"
        "server = local()\n"
        "print(server.pid, server.data, flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    with parent:
        assert parent.stdout is not None
        pid, data = parent.stdout.readline().split()
        assert is_alive(int(pid))
        os.kill(parent.pid, signal.SIGKILL)
    assert eventually(lambda: not is_alive(int(pid)))
    assert eventually(lambda: not Path(data).exists())


def test_one_that_nobody_stops_ends_quietly_with_the_interpreter() -> None:
    program = "from semel import local\nserver = local()\nprint(server.pid, server.data)\n"
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True
    )
    pid, data = run.stdout.split()
    assert not is_alive(int(pid))
    assert not Path(data).exists()
    assert run.stderr == ""


def test_what_it_complains_about_can_be_read(server: LocalServer) -> None:
    assert server.stderr == ""
    server.kill()
    for segment in server.data.glob("*"):
        if segment.is_file():
            segment.write_bytes(b"nonsense" * 1024)
    with pytest.raises(NotStarted):
        server.restart()
    assert "semel: " in server.stderr


def test_it_is_a_client_of_itself_and_gives_others(server: LocalServer) -> None:
    put(server, b"one")
    server.stream("a").append("two")
    with server.client() as another:
        another.stream("a").append("three")
    server.kill()
    server.restart()
    assert server.stream("a").read_text() == "onetwothree"


def test_a_list_repeats_an_option() -> None:
    origins = ["http://localhost:3000", "https://app.example"]
    with local(cors_origin=origins) as server:
        for origin in origins:
            request = Request(f"{server.url}/v1/streams", headers={"Origin": origin})
            with urlopen(request) as answer:
                assert answer.headers["Access-Control-Allow-Origin"] == origin
