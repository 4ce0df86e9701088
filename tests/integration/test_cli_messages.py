"""Every error of a command is one sentence, with an exit code of its kind."""

import os
import subprocess
from collections.abc import Iterator

import pytest

from tests.integration.test_cli_streams import PROGRAM, Served
from tests.spec.process import PATIENCE_SECONDS


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    server = Served(tmp_path_factory.mktemp("messages") / "data")
    assert server.semel("create", "a", "--content-type", "application/json").exit_code == 0
    yield server
    server.end()


def run(served: Served, *arguments: str | bytes, end: str = "") -> tuple[int, str]:
    """Run a command in a shell, as users do. Return its exit code and its errors."""
    command = ["sh", "-c", f'"$@" {end}', "sh", *PROGRAM, *arguments]
    ended = subprocess.run(
        command,
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env={**os.environ, "SEMEL_URL": served.url},
        timeout=PATIENCE_SECONDS,
    )
    return ended.returncode, ended.stderr.decode(errors="replace")


BAD = b"x\xff"


@pytest.mark.parametrize(
    "arguments",
    [
        ("groups", "set", BAD, "a", "0"),
        ("groups", "show", BAD),
        ("txn", "show", BAD),
        ("txn", "commit", BAD),
        ("sinks", "show", BAD),
        ("sinks", "rebind", "app", "--query-id", BAD, "--last-version", "1"),
        ("producers", "show", "a", BAD),
        ("producers", "register", BAD),
        ("producers", "retire", "a", "p", "--session", BAD),
        ("policies", "show", BAD),
        ("ls", "--prefix", BAD),
        ("create", "b", "--content-type", BAD),
        ("append", "a", "1", "--key", BAD),
        ("append", "a", "1", "--header", b"x=\xff"),
        ("trace", BAD),
        ("groups", "set", "", "a", "0"),
        ("groups", "show", ""),
        ("txn", "show", ""),
        ("sinks", "forget", ""),
        ("producers", "show", "a", ""),
        ("trace", ""),
        ("append", "a", "1", "--idempotency-key", ""),
        ("append", "a", "1", "--producer", "", "--epoch", "0", "--seq", "0"),
        ("append", "a", "1", "--header", "x"),
    ],
    ids=str,
)
def test_a_value_that_no_server_accepts_is_a_wrong_use_of_the_command(
    served: Served, arguments: tuple[str | bytes, ...]
) -> None:
    code, error = run(served, *arguments)
    assert code == 64
    assert "Traceback" not in error
    assert "codec" not in error
    assert "expected" in error
    assert run(served, "read", "a") == (0, "")


def test_a_command_whose_output_is_closed_does_its_work(served: Served) -> None:
    assert served.semel("create", "closed", "--content-type", "text/plain").exit_code == 0
    assert run(served, "append", "closed", "x", end=">&-") == (0, "")
    for command in (("read", "closed"), ("ls",), ("head", "closed")):
        assert run(served, *command, end=">&-") == (0, "")
    assert run(served, "read", "missing", end=">&- 2>&-") == (1, "")
    assert served.semel("read", "closed").stdout == "x\n"


def test_an_output_that_cannot_be_written_is_named_and_what_is_stored_stays(
    served: Served,
) -> None:
    assert served.semel("create", "full", "--content-type", "text/plain").exit_code == 0
    code, error = run(served, "append", "full", "x", end=">/dev/full")
    assert code == 74
    assert error == (
        "semel: the output cannot be written: No space left on device; what the command has"
        " already changed stays changed\n"
    )
    assert served.semel("read", "full").stdout == "x\n"


def test_the_number_of_stored_lines_has_its_singular(served: Served) -> None:
    result = served.semel("append", "a", "--lines", given=b"1\nzz\n")
    assert result.exit_code == 64
    assert "; 1 line is stored" in result.output
    assert "stored 1 line in a" in served.semel("append", "a", "--lines", given=b"2\n").stdout


def test_a_missing_producer_or_source_is_named_with_a_command_that_helps(served: Served) -> None:
    retired = served.semel("producers", "retire", "a", "nobody")
    assert retired.exit_code == 1
    assert "a has no producer nobody" in retired.output
    assert "semel producers ls a" in retired.output
    forked = served.semel("create", "b", "--fork-from", "missing")
    assert forked.exit_code == 1
    assert "missing" in forked.output
