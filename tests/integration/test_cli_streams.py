"""Every command about streams against a real `semel serve`."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
from click.testing import CliRunner, Result

from semel.cli.main import cli
from semel.journal.identity import IDENTITY_NAME
from semel.model.offsets import print_offset
from tests.integration.listener import Listener

PROGRAM = [sys.executable, "-c", "from semel.cli.main import main; main()"]
SMALL = ("--reserve-bytes", "65536", "--segment-bytes", "8388608", "--long-poll-timeout", "0.5")
LINE = "listening on "


class Served:
    """A server in its own process, which can be stopped and restarted on the same port."""

    def __init__(self, data: Path, *options: str) -> None:
        self._arguments = ["serve", "--data", str(data), *SMALL, *options]
        self._port = 0
        self.url = ""
        self.start()

    def start(self) -> None:
        arguments = [*PROGRAM, *self._arguments, "--port", str(self._port)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(arguments, stdout=pipe, stderr=pipe, text=True)
        line = output_of(self._process).readline()
        assert line.startswith(LINE), self._process.communicate()
        self.url = line.removeprefix(LINE).strip()
        self._port = int(self.url.rpartition(":")[2])

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str, str]:
        """Stop the server; return its exit code, and its output after the first line."""
        self._process.send_signal(number)
        out, error = self._process.communicate(timeout=60)
        return self._process.returncode, out, error

    def semel(self, *arguments: str, given: bytes | None = None) -> Result:
        return CliRunner(env={"SEMEL_URL": self.url}).invoke(cli, [*arguments], input=given)

    def json(self, *arguments: str) -> list[dict[str, object]]:
        result = self.semel(*arguments, "--json")
        assert result.exit_code == 0, result.output
        return [json.loads(line) for line in result.stdout.splitlines()]

    def refused(self, code: int, *arguments: str, given: bytes | None = None) -> str:
        """Run a command that must be refused; return its error output."""
        result = self.semel(*arguments, given=given)
        assert result.exit_code == code, result.output
        assert "Traceback" not in result.output
        return result.stderr


def output_of(process: subprocess.Popen[str]) -> IO[str]:
    assert process.stdout is not None
    return process.stdout


@contextlib.contextmanager
def serving(data: Path, *options: str) -> Iterator[Served]:
    served = Served(data, *options)
    try:
        yield served
    finally:
        served.end(signal.SIGKILL)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("served") / "data") as served:
        yield served


# ---------------------------------------------------------------- serve


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_line_is_printed_and_a_signal_ends_it_in_good_order(
    tmp_path: Path, number: signal.Signals
) -> None:
    served = Served(tmp_path / "data")
    assert served.semel("create", "a").exit_code == 0
    access = "access is off: everybody who can connect may read and change everything\n"
    assert served.end(number) == (0, "", access)
    served.start()
    assert served.json("head", "a")[0]["closed"] is False
    assert served.end(number)[0] == 0


def start_in_vain(*arguments: str) -> tuple[int, str]:
    run = subprocess.run(
        [*PROGRAM, "serve", *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.stdout == ""
    assert "Traceback" not in run.stderr
    return run.returncode, run.stderr


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    with serving(tmp_path / "data"):
        code, message = start_in_vain("--data", str(tmp_path / "data"), "--port", "0", *SMALL)
    assert code == 73
    assert str(tmp_path / "data") in message


def test_a_port_in_use_is_refused_and_the_directory_is_free_again(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, message = start_in_vain("--data", str(tmp_path / "data"), "--port", port, *SMALL)
    assert code == 64
    assert f"127.0.0.1:{port}" in message
    assert "--port" in message
    with serving(tmp_path / "data") as served:
        assert served.semel("ls").exit_code == 0


def test_a_host_nobody_has_is_refused(tmp_path: Path) -> None:
    arguments = ("--data", str(tmp_path / "data"), "--host", "192.0.2.1", "--port", "0", *SMALL)
    code, message = start_in_vain(*arguments)
    assert code == 64
    assert "--host" in message


def test_corrupt_data_is_refused_and_named(tmp_path: Path) -> None:
    served = Served(tmp_path / "data")
    served.semel("create", "a")
    served.end()
    identity = tmp_path / "data" / IDENTITY_NAME
    identity.write_bytes(b"x" * identity.stat().st_size)
    code, message = start_in_vain("--data", str(tmp_path / "data"), "--port", "0", *SMALL)
    assert code == 65
    assert IDENTITY_NAME in message


def test_a_directory_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, message = start_in_vain("--data", str(tmp_path / "file"), "--port", "0", *SMALL)
    assert code == 74
    assert "data directory" in message


def test_the_settings_reach_the_server(tmp_path: Path) -> None:
    config = tmp_path / "semel.toml"
    config.write_text("body_bytes_max = 10\n", encoding="utf-8")
    with serving(tmp_path / "data", "--config", str(config)) as served:
        served.semel("create", "a")
        assert served.semel("append", "a", "x" * 10).exit_code == 0
        served.refused(1, "append", "a", "x" * 11)
        served.refused(1, "append", "a", "-", given=b"x" * 4_000_000)


# ---------------------------------------------------------------- TLS


def certificate(directory: Path) -> tuple[str, str]:
    cert, key = str(directory / "cert.pem"), str(directory / "key.pem")
    words = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=semel"
    arguments = [*words.split(), "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(
        ["openssl", *arguments, "-keyout", key, "-out", cert], check=True, capture_output=True
    )
    return cert, key


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl for a certificate")
def test_tls_with_a_certificate_of_ones_own(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    with serving(tmp_path / "data", "--tls-cert", cert, "--tls-key", key) as served:
        assert served.url.startswith("https://127.0.0.1:")
        told = served.refused(69, "ls")
        assert "set SSL_CERT_FILE to the name" in told
        assert "tls=" not in told  # an argument of Python's
        plain = CliRunner().invoke(cli, ["ls", "--url", served.url.replace("https", "http")])
        assert plain.exit_code == 69
        environment = {"SEMEL_URL": served.url, "SSL_CERT_FILE": cert}
        body = os.urandom(300_000)
        for arguments, given, expected in (
            (["create", "a"], None, None),
            (["append", "a", "-", "--close"], body, None),
            (["read", "a", "--raw"], None, body),
            (["tail", "a", "--raw", "--offset", "0"], None, body),
        ):
            result = CliRunner(env=environment).invoke(cli, arguments, input=given)
            assert result.exit_code == 0, result.output
            assert expected is None or result.stdout_bytes == expected
        assert served.end()[0] == 0


# ---------------------------------------------------------------- create, head


def test_create_is_told_and_may_be_asked_again(served: Served) -> None:
    arguments = ("create", "made", "--content-type", "text/plain", "--ttl", "60")
    assert "created made (text/plain)" in served.semel(*arguments).stdout
    assert "already" in served.semel(*arguments).stdout
    (facts,) = served.json(*arguments)
    assert facts["created"] is False
    (head,) = served.json("head", "made")
    assert head["content_type"] == "text/plain"
    assert head["ttl_seconds"] == 60
    assert head["next_offset"] == print_offset(0)
    assert "text/plain" in served.semel("head", "made").stdout
    message = served.refused(1, "create", "made", "--content-type", "image/png")
    assert "config_conflict" in message
    assert "semel head" in message


def test_create_closed_and_with_an_end(served: Served) -> None:
    arguments = ("create", "ends", "--closed", "--expires-at", "2199-01-31T12:00:00Z")
    assert served.json(*arguments)[0]["closed"] is True
    (head,) = served.json("head", "ends")
    assert head["closed"] is True
    assert head["expires_at"] == "2199-01-31T12:00:00.000Z"
    assert "2030-01-31" in served.refused(64, "create", "x", "--expires-at", "soon")


def test_a_fork_shares_what_came_before(served: Served) -> None:
    served.semel("create", "trunk", "--content-type", "application/json")
    served.semel("append", "trunk", "[1,2,3]")
    forked = ("create", "branch", "--fork-from", "trunk", "--fork-offset", "0")
    assert served.semel(*forked, "--fork-sub-offset", "2").exit_code == 0
    assert served.semel("read", "branch").stdout == "1\n2\n"
    assert "--fork-from" in served.refused(64, "create", "x", "--fork-offset", "0")
    assert "stream_not_found" in served.refused(1, "create", "x", "--fork-from", "absent")


def test_head_of_nothing_says_so(served: Served) -> None:
    message = served.refused(1, "head", "absent")
    assert message.startswith("semel: stream_not_found: ")
    assert "semel ls" in message


# ---------------------------------------------------------------- append, read


def test_json_comes_back_one_value_per_line(served: Served) -> None:
    served.semel("create", "values", "--content-type", "application/json")
    assert served.semel("append", "values", '[{"a":\n 1}, "b"]').exit_code == 0
    assert served.json("append", "values", "null")[0]["next_offset"] == print_offset(3)
    assert [json.loads(line) for line in served.semel("read", "values").stdout.splitlines()] == [
        {"a": 1},
        "b",
        None,
    ]
    assert served.semel("read", "values", "--offset", "1", "--limit", "1").stdout == '"b"\n'
    assert [line["offset"] for line in served.json("read", "values")] == [
        print_offset(number) for number in range(3)
    ]
    assert "bad_body" in served.refused(1, "append", "values", "{")


def test_bytes_come_back_as_they_were(served: Served, tmp_path: Path) -> None:
    served.semel("create", "bytes")
    body = bytes(range(256))
    (tmp_path / "body").write_bytes(body)
    assert served.semel("append", "bytes", "--file", str(tmp_path / "body")).exit_code == 0
    assert served.semel("append", "bytes", "-", given=b"\n\x00\n").exit_code == 0
    assert served.semel("read", "bytes", "--raw").stdout_bytes == body + b"\n\x00\n"


def test_a_long_stream_is_read_to_its_end(served: Served) -> None:
    served.semel("create", "long", "--content-type", "application/json")
    expected = []
    for batch in range(3):
        messages = [f"{batch}-{number}-" + "x" * 100 for number in range(9_000)]
        expected += messages
        given = json.dumps(messages).encode()
        assert served.semel("append", "long", "-", given=given).exit_code == 0
    lines = served.semel("read", "long").stdout.splitlines()
    assert [json.loads(line) for line in lines] == expected
    assert len(served.semel("read", "long", "--limit", "20000").stdout.splitlines()) == 20_000


def test_a_producer_may_send_again(served: Served) -> None:
    served.semel("create", "once", "--content-type", "text/plain")
    tagged = ("--producer", "p", "--epoch", "1", "--seq")
    first = served.json("append", "once", "hello", *tagged, "0")[0]
    again = served.json("append", "once", "hello", *tagged, "0")[0]
    assert first == {**again, "duplicate": False}
    assert again["duplicate"] is True
    assert "already stored" in served.semel("append", "once", "hello", *tagged, "0").stdout
    assert "payload_mismatch" in served.refused(1, "append", "once", "other", *tagged, "0")
    gap = served.refused(1, "append", "once", "x", *tagged, "2")
    assert "producer_seq_conflict" in gap
    assert "sequence 1 was expected, but sequence 2 was sent" in gap
    fenced = ("--producer", "p", "--epoch", "0", "--seq", "0")
    assert "PRODUCER_FENCED" in served.refused(1, "append", "once", "x", *fenced)
    assert served.semel("read", "once").stdout == "hello\n"
    assert "--seq is missing" in served.refused(
        64, "append", "once", "x", "--producer", "p", "--epoch", "1"
    )


def test_a_key_may_send_again(served: Served) -> None:
    served.semel("create", "keyed", "--content-type", "text/plain")
    for _ in range(2):
        assert served.semel("append", "keyed", "x", "--idempotency-key", "k").exit_code == 0
    assert served.semel("read", "keyed").stdout == "x\n"
    assert "idempotency_key_reused" in served.refused(
        1, "append", "keyed", "y", "--idempotency-key", "k"
    )
    assert "ASCII" in served.refused(64, "append", "keyed", "y", "--idempotency-key", "ä")


def test_a_producer_without_a_number_begins_anew(served: Served) -> None:
    served.semel("create", "anew", "--content-type", "application/json")
    for _ in range(2):
        assert served.semel("append", "anew", "[1, 2]", "--producer", "p").exit_code == 0
    assert served.semel("read", "anew").stdout == "1\n2\n1\n2\n"
    assert served.json("producers", "show", "anew", "p")[0]["epoch"] == 2


def test_a_message_carries_a_key_and_headers(served: Served) -> None:
    for name, kind in (("carried", "text/plain"), ("carried-json", "application/json")):
        served.semel("create", name, "--content-type", kind)
        extras = ("--key", "k", "--header", "a=1", "--header", "a=b=c")
        assert served.semel("append", name, "[7]", *extras).exit_code == 0
        assert served.semel("append", name, "8").exit_code == 0
        first, second = served.json("read", name)
        assert (first["key"], first["headers"]) == ("k", [["a", "1"], ["a", "b=c"]])
        assert (first.get("text"), first.get("value")) in (("[7]", None), (None, 7))
        assert "key" not in second
        assert first["offset"] == print_offset(0)
    many = served.refused(64, "append", "carried-json", "[1,2]", "--key", "k")
    assert "the array is empty or has several elements" in many
    long = served.refused(64, "append", "carried", "x", "--key", "k" * 100_000)
    assert "a message key can have" in long
    assert "NAME=VALUE" in served.refused(64, "append", "carried", "x", "--header", "a")


def test_lines_are_messages(served: Served) -> None:
    served.semel("create", "lines", "--content-type", "application/json")
    given = b'{"n": 1}\n\n[2, 3]\r\n4'
    done = served.semel("append", "lines", "--lines", given=given)
    assert done.stdout == f"stored 3 lines in lines, next offset {print_offset(3)}\n"
    assert served.semel("read", "lines").stdout == '{"n": 1}\n[2, 3]\n4\n'
    (producer,) = served.json("producers", "ls", "lines")
    assert producer["state"] == "retired"
    bad = served.refused(64, "append", "lines", "--lines", given=b"5\n{\n6\n")
    assert "input line 2: " in bad
    assert "1 line is stored" in bad
    assert served.semel("read", "lines", "--offset", "3").stdout == "5\n"
    assert "can be used with --lines" in served.refused(64, "append", "lines", "x", "--lines")
    refusal = served.refused(64, "append", "lines", "--lines", "--seq", "0")
    assert "only --topic, --file, --producer, --key, " in refusal
    assert "--header can be used with --lines" in refusal
    assert "stream_not_found" in served.refused(1, "append", "absent", "--lines", given=b"1")


def test_lines_of_a_producer_are_stored_once_however_often_they_are_sent(
    served: Served, tmp_path: Path
) -> None:
    served.semel("create", "import", "--content-type", "text/plain")
    source = tmp_path / "source"
    lines = [f"line {number}\n" for number in range(5_000)]
    command = ("append", "import", "--lines", "--file", str(source), "--producer", "source")
    source.write_text("".join(lines[:3_000]))
    assert served.json(*command)[0]["stored"] == 3_000
    source.write_text("".join(lines))
    (again,) = served.json(*command, "--header", "source=file")
    assert (again["stored"], again["stored_before"]) == (2_000, 3_000)
    done = served.semel(*command)
    assert done.stdout == "stored 0 lines in import; 5,000 lines were already stored\n"
    assert served.semel("read", "import").stdout == "".join(lines)
    assert served.json("read", "import", "--offset", "3000")[0]["headers"] == [["source", "file"]]
    assert "absent" in served.refused(64, "append", "import", "--lines", "--file", "absent")


@pytest.mark.crash
def test_lines_that_were_interrupted_by_two_kills_are_sent_again_and_stored_once(
    tmp_path: Path,
) -> None:
    lines = [f"line {number}\n" for number in range(20_000)]
    source = tmp_path / "source"
    source.write_text("".join(lines))
    with serving(tmp_path / "data") as served:
        served.semel("create", "import", "--content-type", "text/plain")
        command = ("append", "import", "--lines", "--producer", "source")
        with subprocess.Popen(
            [*PROGRAM, *command, "--url", served.url], stdin=subprocess.PIPE, text=True
        ) as process:
            assert process.stdin is not None
            process.stdin.write("".join(lines[:15_000]))
            process.stdin.flush()
            while not served.semel("read", "import", "--limit", "1").stdout:
                assert process.poll() is None
            process.kill()
        served.end(signal.SIGKILL)
        served.start()
        (told,) = served.json(*command, "--file", str(source))
        assert isinstance(told["stored_before"], int)
        assert 0 < told["stored_before"] <= 15_000
        assert served.semel("read", "import").stdout == "".join(lines)


def test_an_append_may_ask_for_the_end_it_knows(served: Served) -> None:
    served.semel("create", "matched", "--content-type", "text/plain")
    assert served.semel("append", "matched", "x", "--if-match", "0").exit_code == 0
    message = served.refused(1, "append", "matched", "x", "--if-match", print_offset(0))
    assert "precondition_failed" in message
    assert print_offset(1) in message


def test_what_cannot_be_appended_is_refused(served: Served) -> None:
    served.semel("create", "plain", "--content-type", "text/plain")
    assert "nothing to append" in served.refused(64, "append", "plain")
    assert "empty" in served.refused(64, "append", "plain", "-", given=b"")
    assert "cannot be used together" in served.refused(64, "append", "plain", "x", "--file", "y")
    assert "absent" in served.refused(64, "append", "plain", "--file", "absent")
    assert "4.0 MiB" in served.refused(64, "append", "plain", "-", given=b"x" * (4 * 2**20 + 1))
    assert "stream_not_found" in served.refused(1, "append", "absent", "x")
    other = ("append", "plain", "x", "--content-type", "image/png")
    assert "content_type_conflict" in served.refused(1, *other)
    assert "OFFSET_BEYOND_TAIL" in served.refused(1, "read", "plain", "--offset", "9")


# ---------------------------------------------------------------- close, trim, delete, ls


def test_close_ends_a_stream(served: Served) -> None:
    for name in ("closed-1", "closed-2", "closed-3"):
        served.semel("create", name, "--content-type", "text/plain")
    assert "closed closed-1 at" in served.semel("close", "closed-1").stdout
    assert served.json("close", "closed-1")[0]["closed"] is True
    assert served.json("append", "closed-2", "--close")[0]["closed"] is True
    assert served.json("append", "closed-3", "last", "--close")[0]["closed"] is True
    assert served.semel("read", "closed-3").stdout == "last\n"
    for name in ("closed-1", "closed-2", "closed-3"):
        assert "stream_closed" in served.refused(1, "append", name, "x")
    assert "stream_not_found" in served.refused(1, "close", "absent")


@pytest.mark.parametrize(
    "command", ["read", "tail", "head", "close", "delete --yes", "trim --before 0", "append x"]
)
def test_a_stream_that_is_missing_is_named(served: Served, command: str) -> None:
    name, *options = command.split()
    data = options if name == "append" else []
    said = served.refused(1, name, "nowhere/at-all", *data, *(options if not data else []))
    assert "nowhere/at-all" in said


def test_trim_forgets_the_oldest(served: Served) -> None:
    served.semel("create", "trimmed", "--content-type", "application/json")
    served.semel("append", "trimmed", "[1,2,3]")
    assert served.json("trim", "trimmed", "--before", "2")[0]["first_offset"] == print_offset(2)
    assert served.semel("read", "trimmed").stdout == "3\n"
    served.semel("create", "trimmed-too", "--content-type", "application/json")
    again = served.json("trim", "trimmed", "--before", "1")[0]
    assert again["first_offset"] == print_offset(2), "the messages before 2 do not come back"
    assert "offset_trimmed" in served.refused(1, "read", "trimmed", "--offset", "0")
    assert "--before" in served.refused(64, "trim", "trimmed")
    assert "stream_not_found" in served.refused(1, "trim", "absent", "--before", "0")


def test_delete_asks_first(served: Served) -> None:
    served.semel("create", "deleted")
    assert "--yes" in served.refused(64, "delete", "deleted")
    assert served.semel("head", "deleted").exit_code == 0
    assert served.json("delete", "deleted", "--yes") == [{"path": "deleted", "deleted": True}]
    assert "stream_not_found" in served.refused(1, "delete", "deleted", "--yes")


def test_ls_goes_through_all_pages(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as served:
        assert served.semel("ls").stdout == ""
        names = sorted(["a b", "z/ä", *(f"many/{number:04}" for number in range(20))])
        for name in names:
            assert served.semel("create", name).exit_code == 0
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("semel.client.server_calls._LISTING_COUNT", 7)
            assert served.semel("ls").stdout.splitlines() == names
            assert [line["path"] for line in served.json("ls", "--limit", "15")] == names[:15]
        found = served.semel("ls", "--prefix", "many/000").stdout.splitlines()
        assert found == [f"many/{number:04}" for number in range(10)]
        assert served.semel("ls", "--prefix", "z/ä").stdout == "z/ä\n"


# ---------------------------------------------------------------- tail


@contextlib.contextmanager
def tailing(served: Served, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "SEMEL_URL": served.url}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [*PROGRAM, "tail", *arguments], stdout=pipe, stderr=pipe, text=True, env=environment
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_tail_goes_on_after_a_restart(tmp_path: Path, number: signal.Signals) -> None:
    with serving(tmp_path / "data") as served:
        served.semel("create", "live", "--content-type", "application/json")
        served.semel("append", "live", '["before"]')
        with tailing(served, "live", "--offset", "-1") as process:
            lines = output_of(process)
            assert lines.readline() == '"before"\n'
            served.semel("append", "live", "[1,2]")
            assert [lines.readline(), lines.readline()] == ["1\n", "2\n"]
            served.end(number)
            served.start()
            served.semel("append", "live", "3")
            assert lines.readline() == "3\n"
            served.semel("append", "live", "4", "--close")
            rest, complaint = process.communicate(timeout=60)
            assert rest == "4\n"
            assert process.returncode == 0
            assert "the command retries until the server responds" in complaint


def test_tail_begins_now_and_ends_by_the_users_hand(served: Served) -> None:
    served.semel("create", "now", "--content-type", "text/plain")
    served.semel("append", "now", "old")
    with tailing(served, "now", "--json") as process:
        lines: list[str] = []
        reader = threading.Thread(target=lambda: lines.append(output_of(process).readline()))
        reader.start()
        # The start of the tail is not visible from outside, so append until it prints something.
        while not lines:
            served.semel("append", "now", "new")
            reader.join(0.2)
        assert json.loads(lines[0])["text"] == "new"
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate(timeout=60)
        assert process.returncode == 130
        assert "Traceback" not in complaint


def test_tail_notices_another_stream_of_the_same_name(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as served:
        served.semel("create", "anew", "--content-type", "text/plain")
        served.semel("append", "anew", "x")
        with tailing(served, "anew", "--offset", "0") as process:
            assert output_of(process).readline() == "x\n"
            process.send_signal(signal.SIGSTOP)
            served.semel("delete", "anew", "--yes")
            served.semel("create", "anew", "--content-type", "text/plain")
            served.semel("append", "anew", "y")
            process.send_signal(signal.SIGCONT)
            _, complaint = process.communicate(timeout=60)
            assert process.returncode == 1
            assert "created again" in complaint or "stream_not_found" in complaint


def test_tail_of_nothing_does_not_wait(served: Served) -> None:
    assert "stream_not_found" in served.refused(1, "tail", "absent")
    result = CliRunner().invoke(cli, ["tail", "a", "--url", "http://127.0.0.1:1"])
    assert result.exit_code == 69


# ---------------------------------------------------------------- not a semel server


def test_no_server_is_said_with_its_address_and_how_to_start_one() -> None:
    for command in (["ls"], ["create", "a"], ["append", "a", "x"], ["read", "a"]):
        result = CliRunner().invoke(cli, [*command, "--url", "http://127.0.0.1:1"])
        assert result.exit_code == 69
        assert "http://127.0.0.1:1" in result.stderr
        assert "semel serve" in result.stderr


@contextlib.contextmanager
def an_impostor(answer: bytes) -> Iterator[str]:
    """A server that sends the same bytes for every request."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        request = connection.recv(65536)
                        is_bare = request.startswith(b"HEAD ")
                        connection.sendall(answer.partition(b"<p>")[0] if is_bare else answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


HTML = (
    b"HTTP/1.1 %b\r\nContent-Type: text/html\r\nContent-Length: 4\r\nConnection: close\r\n\r\n<p>\n"
)


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (HTML % b"200 OK", 70),
        (HTML % b"502 Bad Gateway", 69),
        (HTML % b"302 Found", 70),
        (b"SSH-2.0-hello\r\n", 70),
        (b"", 69),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n<p>", 69),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", 70),
    ],
)
@pytest.mark.parametrize(
    "command",
    [
        "ls",
        "read a",
        "create a",
        "append a x --content-type b/c",
        "delete a --yes",
        "trim a --before 1",
        "close a",
    ],
)
def test_what_is_not_semel_is_not_believed(answer: bytes, code: int, command: str) -> None:
    if command.startswith(("append", "trim")) and answer.startswith(b"HTTP/1.1 200"):
        code = 70  # the command sends HEAD first, whose response is complete
    with an_impostor(answer) as url:
        result = CliRunner().invoke(cli, [*command.split(), "--url", url])
    assert "Traceback" not in result.output
    assert result.exit_code == code, result.output


HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nStream-Next-Offset: 0_0\r\n"
    b"Stream-Incarnation: i\r\nContent-Length: 0\r\n\r\n"
)
STORED = b"HTTP/1.1 204 No Content\r\nStream-Next-Offset: 0_1\r\n\r\n"


def key_of(request: bytes) -> bytes:
    (line,) = [line for line in request.split(b"\r\n") if line.startswith(b"Idempotency-Key: ")]
    return line


def test_an_append_whose_answer_is_lost_is_sent_again_under_the_same_key() -> None:
    def behave(listener: Listener, line: socket.socket) -> None:
        while listener.take(line):
            posts = [request for request in listener.requests if request.startswith(b"POST")]
            if len(posts) == 1 and listener.requests[-1] is posts[0]:
                return  # read, but without a response
            line.sendall(STORED if listener.requests[-1].startswith(b"POST") else HEAD)

    with Listener(behave) as listener:
        result = CliRunner().invoke(cli, ["append", "a", "x", "--url", listener.url])
        assert result.exit_code == 0, result.output
        first, second = [one for one in listener.requests if one.startswith(b"POST")]
    assert first == second
    assert len(key_of(first)) > 32


def test_an_append_that_is_never_answered_is_in_doubt() -> None:
    def behave(listener: Listener, line: socket.socket) -> None:
        while listener.take(line) and listener.requests[-1].startswith(b"HEAD"):
            line.sendall(HEAD)

    with Listener(behave) as listener:
        arguments = ["append", "a", "x", "--url", listener.url, "--timeout", "0.5"]
        result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 69
    assert "it is unknown whether the server applied the request" in result.stderr


def test_a_server_that_says_nothing_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        result = CliRunner().invoke(cli, ["ls", "--url", url, "--timeout", "0.2"])
    assert result.exit_code == 69
    assert "--timeout" in result.stderr


def test_a_reader_that_has_enough_is_no_failure(served: Served) -> None:
    served.semel("create", "piped", "--content-type", "application/json")
    for _ in range(3):
        served.semel("append", "piped", "-", given=json.dumps(["x" * 300] * 9_000).encode())
    with subprocess.Popen(
        [*PROGRAM, "read", "piped", "--url", served.url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert output_of(process).readline() == json.dumps("x" * 300) + "\n"
        output_of(process).close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
        assert process.wait(60) == 0
