"""Commands on a terminal: questions and tables."""

import os
import pty
import select
import subprocess
from collections.abc import Iterator
from typing import Protocol

import pytest

from semel.client.sync.client import Client
from tests.integration.test_cli_streams import PROGRAM, Served, serving
from tests.spec.process import PATIENCE_SECONDS


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("terminal") / "data") as served:
        yield served


class Located(Protocol):
    """A server with an address."""

    url: str


def on_a_terminal(served: Located, *arguments: str, answer: bytes = b"") -> tuple[int, str]:
    """Run a command on a terminal and type the answer; return exit code and output."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*PROGRAM, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "SEMEL_URL": served.url, "COLUMNS": "200", "TERM": "dumb"},
    )
    os.close(theirs)
    if answer:
        os.write(ours, answer)
    output = b""
    while select.select([ours], [], [], PATIENCE_SECONDS)[0]:
        try:
            output += os.read(ours, 65_536)
        except OSError:  # the command has ended
            break
    os.close(ours)
    return process.wait(PATIENCE_SECONDS), output.decode()


def test_the_answer_no_is_not_an_interruption(served: Served) -> None:
    with Client(served.url) as client:
        client.stream("kept").create()
        code, output = on_a_terminal(served, "delete", "kept", answer=b"n\n")
        assert code == 1
        assert "semel: kept was not deleted" in output
        assert "interrupted" not in output
        client.stream("kept").head()
        code, output = on_a_terminal(served, "delete", "kept", answer=b"\x04")
        assert code == 130
        assert "interrupted" in output
        client.stream("kept").head()
        code, output = on_a_terminal(served, "delete", "kept", answer=b"y\n")
        assert (code, client.stream("kept").exists()) == (0, False)


def test_the_list_shows_offsets_and_on_demand_the_messages(served: Served) -> None:
    with Client(served.url) as client:
        stream = client.stream("counted").create("application/json")
        stream.append_many([1, 2])
        for number in range(3):
            with client.transaction() as txn:
                txn.append("counted", number)
        with pytest.raises(ZeroDivisionError), client.transaction() as txn:
            txn.append("counted", 0)
            raise ZeroDivisionError
    code, output = on_a_terminal(served, "ls", "--prefix", "counted")
    assert code == 0
    titles, row = (line.split() for line in output.splitlines())
    assert titles == ["path", "type", "offsets", "state", "written"]
    assert row[:4] == ["counted", "application/json", "10", "open"]
    code, output = on_a_terminal(served, "ls", "--prefix", "counted", "--count")
    titles, row = (line.split() for line in output.splitlines())
    assert titles[:4] == ["path", "type", "messages", "offsets"]
    assert row[2:4] == ["5", "10"]
    assert len(served.semel("read", "counted").stdout.split()) == 5
    (entry,) = served.json("ls", "--prefix", "counted", "--count")
    assert entry["messages"] == 5
    (plain,) = served.json("ls", "--prefix", "counted")
    assert "messages" not in plain
