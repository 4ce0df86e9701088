"""Arguments of the commands at the edges of what they accept, and lists for scripts."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from semel import Client
from semel.broker.settings import Settings
from semel.model.limits import NUMBER_MAX
from semel.testing.fault_plan import FaultPlan
from semel.testing.fault_proxy import FaultProxy
from tests.integration.test_cli_streams import PROGRAM, SMALL, Served, serving
from tests.spec.process import PATIENCE_SECONDS
from tests.spec.txn_calls import fresh

BAD = b"\xff"
NOT_CHANGING = "semel: the output cannot be written: No space left on device\n"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("arguments") / "data") as served:
        assert served.semel("create", "n", "--content-type", "text/plain").exit_code == 0
        yield served


def run(
    url: str, *arguments: str | bytes, output: str | None = None, **environment: str | bytes
) -> tuple[int, str, str]:
    """Run a command. Return its exit code, its output and its errors."""
    with open(output or os.devnull, "wb") as file:
        ended = subprocess.run(
            [*PROGRAM, *arguments],
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if output is None else file,
            stderr=subprocess.PIPE,
            env={**os.environ, "SEMEL_URL": url, **environment},
            timeout=PATIENCE_SECONDS,
        )
    errors = ended.stderr.decode(errors="replace")
    assert "Traceback" not in errors
    return ended.returncode, (ended.stdout or b"").decode(), errors


# ---- numbers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "low"),
    [
        (("ls", "--limit"), 1),
        (("read", "n", "--limit"), 1),
        (("txn", "show", "x", "--epoch"), 1),
        (("append", "n", "hi", "--producer", "p", "--seq", "0", "--epoch"), 0),
        (("append", "n", "hi", "--producer", "p", "--epoch", "0", "--seq"), 0),
        (("producers", "retire", "n", "p", "--epoch"), 0),
        (("producers", "explain", "n", "p", "--seq", "0", "--epoch"), 0),
        (("sinks", "rebind", "app", "--query-id", "q", "--last-version"), -1),
    ],
    ids=str,
)
def test_a_number_that_no_server_accepts_is_refused_with_its_range(
    served: Served, arguments: tuple[str, ...], low: int
) -> None:
    expected = f"expected an integer from {low} to {NUMBER_MAX}\n"
    for value in (str(NUMBER_MAX + 1), str(2**63), "9" * 5_000, str(low - 1)):
        code, _, error = run(served.url, *arguments, value)
        assert (code, error.endswith(f"{value} is out of range; {expected}")) == (64, True), error
    code, _, error = run(served.url, *arguments, "abc")
    assert (code, error.endswith(f"'abc' is not an integer; {expected}")) == (64, True), error


def test_the_largest_limit_lists_everything(served: Served) -> None:
    assert run(served.url, "ls", "--limit", str(NUMBER_MAX), "--prefix", "n")[:2] == (0, "n\n")


@pytest.mark.parametrize("seq", [BAD, "x", "", "-1", "5-3", str(NUMBER_MAX + 1)], ids=str)
def test_what_is_no_sequence_cannot_be_explained(served: Served, seq: str | bytes) -> None:
    code, _, error = run(served.url, "producers", "explain", "n", "p", "--seq", seq)
    assert code == 64
    assert f"expected an integer from 0 to {NUMBER_MAX}, or a range such as 3-7" in error


# ---- serve ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["a..b", BAD, "a" * 64, ".", "x" * 300 + ".example"], ids=str)
def test_a_host_that_is_no_name_is_refused(tmp_path: Path, host: str | bytes) -> None:
    start = ("serve", "--data", str(tmp_path / "data"), "--port", "0", *SMALL)
    code, _, error = run("", *start, "--host", host)
    assert code == 64
    assert "cannot listen on" in error
    assert "; correct --host" in error
    assert run("", *start, SEMEL_HOST=host)[::2] == (code, error)
    assert not (tmp_path / "data").exists()


def test_a_host_in_the_configuration_file_that_is_no_name_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "semel.toml"
    file.write_text('host = "a..b"\n')
    start = ("serve", "--data", str(tmp_path / "data"), "--port", "0", "--config", str(file))
    code, _, error = run("", *start)
    assert code == 64
    assert error == "semel: cannot listen on a..b:0 (not a valid host name); correct --host\n"


@pytest.mark.parametrize(
    "option", ["reserve-bytes", "segment-bytes", "checkpoint-bytes", "unread-bytes-per-address"]
)
def test_a_size_that_no_file_has_is_refused(tmp_path: Path, option: str) -> None:
    start = ("serve", "--data", str(tmp_path / "data"), "--port", "0")
    code, _, error = run("", *start, f"--{option}", "9" * 20)
    assert code == 64
    assert f"to {NUMBER_MAX}\n" in error
    assert not (tmp_path / "data").exists()


def test_a_reserve_that_no_file_has_is_no_setting_of_an_engine() -> None:
    with pytest.raises(ValueError, match=f"at most {NUMBER_MAX}"):
        Settings(reserve_bytes=2**64)


# ---- output that cannot be written ---------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ("ls",),
        ("head", "full"),
        ("read", "full"),
        ("producers", "explain", "full", "p", "--seq", "0"),
        ("--help",),
        ("--version",),
        ("append", "--help"),
    ],
    ids=str,
)
def test_a_command_that_changes_nothing_does_not_say_that_something_is_changed(
    served: Served, arguments: tuple[str, ...]
) -> None:
    served.semel("create", "full", "--content-type", "text/plain")
    served.semel("append", "full", "x")
    assert run(served.url, *arguments, output="/dev/full")[::2] == (74, NOT_CHANGING)


@pytest.mark.parametrize(
    "arguments",
    [
        ("create", "made"),
        ("append", "n", "x"),
        ("policies", "set", "measured", "--dedup", "on"),
        ("producers", "register"),
        ("groups", "set", "g", "n", "0"),
        ("trim", "n", "--before", "0"),
    ],
    ids=str,
)
def test_a_command_that_changes_something_says_that_it_stays_changed(
    served: Served, arguments: tuple[str, ...]
) -> None:
    code, _, error = run(served.url, *arguments, output="/dev/full")
    assert code == 74
    assert error.endswith("; what the command has already changed stays changed\n")


# ---- names ---------------------------------------------------------------------------------------


def test_an_address_that_is_not_utf8_is_refused(served: Served) -> None:
    url = b"http://127.0.0.1:1/\xff"
    for arguments in (("head", "n", "--url", url), ("run", __file__, "--url", url)):
        code, _, error = run(served.url, *arguments)
        assert code == 64
        assert "codec" not in error
    assert run(served.url, "head", "n", "--url", url)[2] == (
        "semel: --url: 'http://127.0.0.1:1/\\udcff' is not valid UTF-8; use an address such as"
        " http://127.0.0.1:4437\n"
    )


def test_an_append_has_any_producer_id_that_the_client_has(served: Served) -> None:
    path = fresh("ids")
    served.semel("create", path, "--content-type", "text/plain")
    who = ("--producer", "ü", "--epoch", "0", "--seq", "0")
    assert served.semel("append", path, "hi", *who).stdout.startswith("stored in")
    assert served.semel("append", path, "hi", *who).stdout.startswith("already stored in")
    assert served.semel("append", path, "hi", "--producer", "ü").exit_code == 0
    lines = ("append", path, "--lines", "--producer", "ö")
    assert "stored 2 lines" in served.semel(*lines, given=b"1\n2\n").stdout
    assert served.semel("producers", "ls", path).stdout == "ö\nü\n"
    for wrong in ("", " x", "a\nb", "x" * 257, "ü" * 129):
        for more in ((), ("--lines",)):
            error = served.refused(64, "append", path, "--producer", wrong, *more)
            assert "expected 1 to 256 bytes of printable UTF-8 text" in error


@pytest.mark.parametrize(
    "command",
    [("ls",), ("show", "p"), ("explain", "p", "--seq", "0"), ("retire", "p"), ("forget", "p")],
)
def test_a_stream_that_is_missing_is_named(served: Served, command: tuple[str, ...]) -> None:
    name, *rest = command
    error = served.refused(1, "producers", name, "nope", *rest)
    assert error.startswith("semel: stream_not_found: there is no such stream: nope; ")


def test_a_producer_that_cannot_be_removed_is_named_with_its_stream(served: Served) -> None:
    assert served.refused(1, "producers", "forget", "n", "nobody") == (
        "semel: UNKNOWN_PRODUCER_ID: n has no producer nobody; to list all producers, run"
        " `semel producers ls n`\n"
    )


@pytest.mark.parametrize("prefix", ["orders/", "/orders", "a//b", "..", "x" * 501, BAD], ids=str)
@pytest.mark.parametrize("command", [("set", "--dedup", "off"), ("show",), ("delete",)], ids=str)
def test_a_prefix_that_no_server_accepts_is_a_wrong_use_of_the_command(
    served: Served, command: tuple[str, ...], prefix: str | bytes
) -> None:
    name, *options = command
    code, _, error = run(served.url, "policies", name, prefix, *options)
    assert code == 64
    assert ("whole segments, such as orders/eu" in error) == (prefix != BAD)


# ---- lists for scripts ---------------------------------------------------------------------------


def test_the_messages_of_each_stream_are_counted_in_a_pipe(served: Served) -> None:
    with Client(served.url) as client:
        client.stream("counted/a").create("application/json")
        client.stream("counted/b").create("application/json").append_many(range(1_234))
    listed = run(served.url, "ls", "--count", "--prefix", "counted/")
    assert listed == (0, "counted/a\t0\ncounted/b\t1234\n", "")
    assert run(served.url, "ls", "--prefix", "counted/")[1] == "counted/a\ncounted/b\n"


def test_each_policy_is_a_line_that_a_script_can_use(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as served:
        for prefix in ("orders", ""):
            served.semel("policies", "set", prefix, "--dedup", "off")
        listed = run(served.url, "policies", "ls")
        assert listed == (0, "/\norders\n", "")
        assert [entry["prefix"] for entry in served.json("policies", "ls")] == ["", "orders"]
        for prefix in listed[1].split():
            assert prefix in served.semel("policies", "show", prefix).stdout.split()
            assert served.semel("policies", "delete", prefix).exit_code == 0
        assert served.json("policies", "ls") == []


# ---- lines ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("producer", [(), ("--producer", "input")], ids=["generated", "named"])
def test_lines_that_were_sent_twice_are_stored_by_this_command(
    served: Served, producer: tuple[str, ...], tmp_path: Path
) -> None:
    path, source = fresh("lines"), tmp_path / "lines"
    source.write_text("".join(f"{number}\n" for number in range(50_000)))
    served.semel("create", path, "--content-type", "text/plain")
    plan = FaultPlan(script=["drop_answer"] * 2, only=f"POST /v1/stream/{path}")
    with FaultProxy(served.url, plan) as proxy:
        command = ("append", path, "--lines", "--file", str(source), *producer)
        code, output, error = run(proxy.url, *command)
        assert proxy.dropped_after_commit == 2
    assert (code, error) == (0, "")
    assert output.startswith(f"stored 50,000 lines in {path}, next offset ")
    assert "already stored" not in output
    assert len(served.semel("read", path).stdout.split()) == 50_000


def test_the_timeout_limits_the_retries_of_lines(served: Served, tmp_path: Path) -> None:
    path, source = fresh("lines"), tmp_path / "lines"
    source.write_text("1\n2\n")
    served.semel("create", path, "--content-type", "text/plain")
    plan = FaultPlan({"drop_request": 1.0}, only=f"POST /v1/stream/{path}")
    with FaultProxy(served.url, plan) as proxy:
        command = ("append", path, "--lines", "--file", str(source))
        for option, environment in ((("--timeout", "1.5"), {}), ((), {"SEMEL_TIMEOUT": "1.5"})):
            begun = time.monotonic()
            code, _, error = run(proxy.url, *command, *option, **environment)
            assert code == 69
            assert "0 lines are stored" in error
            assert time.monotonic() - begun < 20
    assert "--timeout limits" in " ".join(served.semel("append", "--help").stdout.split())
