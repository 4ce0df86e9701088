"""Rows of docs/reference/seeds.md about graphs, each with a real server and real `semel run`s."""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest

from semel import Client
from tests.spec.process import PATIENCE_SECONDS, Server, program

JSON: Final = "application/json"
USAGE: Final = 64
HEAD: Final = """
import builtins, json, os, signal
from pathlib import Path
from semel.pipeline import Graph

graph = Graph("{id}", errors="{id}-errors")
calls = Path("{calls}")


def note(*values):
    with calls.open("a") as file:
        print(json.dumps(values), file=file)
"""


class Program:
    """A file with a graph, run by processes of its own."""

    def __init__(self, server: Server, folder: Path, text: str) -> None:
        self.id = f"g-{uuid4().hex}"
        self._server = server
        self._calls = folder / "calls"
        self._file = folder / "pipeline.py"
        self._file.write_text((HEAD + text).format(id=self.id, calls=self._calls))

    def fill(self, name: str, *values: Any) -> None:
        with Client(self._server.url) as client:
            stream = client.stream(f"{self.id}-{name}").create(JSON, exist_ok=True)
            stream.append_many(values)

    def exists(self, name: str) -> bool:
        with Client(self._server.url) as client:
            return client.stream(f"{self.id}-{name}").exists()

    def read(self, name: str) -> list[Any]:
        with Client(self._server.url) as client:
            stream = client.stream(f"{self.id}-{name}")
            return [message.value for message in stream.read()] if stream.exists() else []

    def offsets(self, processor: str) -> dict[str, int]:
        """Return the positions of a processor, by the names of its streams."""
        with Client(self._server.url) as client:
            positions = client.group(f"{self.id}/{processor}").offsets()
        return {
            path.removeprefix(f"{self.id}-"): int(offset.rpartition("_")[2])
            for path, offset in positions.items()
        }

    def run(self, **environment: str) -> int:
        """Process what is there with `semel run`; return the exit code."""
        return self.semel("run", "--available-now", "--url", self._server.url, **environment)[0]

    def semel(self, command: str, *options: str, **environment: str) -> tuple[int, str]:
        done = subprocess.run(
            [*program(), command, str(self._file), *options],
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
            env=os.environ | environment,
        )
        return done.returncode, done.stdout + done.stderr

    @property
    def calls(self) -> list[list[Any]]:
        """What the functions have noted, in the order of their calls."""
        return [json.loads(line) for line in self._calls.read_text().splitlines()]


# ---- steps ---------------------------------------------------------------------------------------


# rows: C04
def test_a_step_reads_its_inputs_and_calls_the_function_once_for_each_in_order(
    server: Server, tmp_path: Path
) -> None:
    text = """
@graph.stream("double", in_="{id}-in", out="{id}-out")
def double(n):
    note(n)
    return 2 * n
"""
    it = Program(server, tmp_path, text)
    it.fill("in", *range(50))
    assert it.run() == 0
    assert it.calls == [[n] for n in range(50)]
    assert it.read("out") == [2 * n for n in range(50)]
    assert it.offsets("double") == {"in": 50}


# rows: C10
def test_a_step_without_output_is_done_and_not_repeated_after_a_kill(
    server: Server, tmp_path: Path
) -> None:
    text = """
@graph.stream("drop", in_="{id}-in", out="{id}-out")
def drop(value):
    note(value)
    if value == "die" and "DIE" in os.environ:
        os.kill(os.getpid(), signal.SIGKILL)
"""
    it = Program(server, tmp_path, text)
    it.fill("in", 1, 2)
    assert it.run() == 0
    it.fill("in", "die")
    assert it.run(DIE="1") == -signal.SIGKILL
    assert it.run() == it.run() == 0
    assert it.calls == [[1], [2], ["die"], ["die"]], "1 and 2 were done"
    assert it.read("out") == it.read("errors") == []


# ---- failures ------------------------------------------------------------------------------------


# rows: C15
@pytest.mark.parametrize("error", ["MemoryError", "KeyboardInterrupt", "SystemExit"])
def test_interrupts_and_fatal_errors_are_no_error_messages_and_the_step_is_repeated(
    server: Server, tmp_path: Path, error: str
) -> None:
    text = """
@graph.stream("p", in_="{id}-in", out="{id}-out")
def p(n):
    if n == 2 and "FAIL" in os.environ:
        raise getattr(builtins, os.environ["FAIL"])
    return n
"""
    it = Program(server, tmp_path, text)
    it.fill("in", 1, 2, 3)
    assert it.run(FAIL=error) != 0
    assert it.read("errors") == it.read("out") == []
    assert it.offsets("p") == {}
    assert it.run() == 0
    assert (it.read("out"), it.read("errors")) == ([1, 2, 3], [])


# rows: C26
def test_a_leg_that_cannot_be_written_stops_the_other_legs_of_its_message(
    server: Server, tmp_path: Path
) -> None:
    text = """
@graph.stream("fork", in_="{id}-in", out=dict(a="{id}-a", b="{id}-b"))
def fork(n):
    return dict(a=n, b=object() if n == 2 else n)
"""
    it = Program(server, tmp_path, text)
    it.fill("in", 1, 2, 3)
    assert it.run() == 0
    assert it.read("a") == it.read("b") == [1, 3]
    (failed,) = it.read("errors")
    assert [one["value"] for one in failed["inputs"]] == [2]


# ---- declarations --------------------------------------------------------------------------------


# rows: C21
def test_a_graph_that_contradicts_itself_is_refused(server: Server, tmp_path: Path) -> None:
    text = """
@graph.stream("both", in_="{id}-a", alts=["{id}-b"], out="{id}-c")
def both(n):
    return n


@graph.stream("twice", in_=dict(x="{id}-a", y="{id}-a"), out="{id}-d")
def twice(x, y):
    return x


@graph.stream("none", out="{id}-e")
def none(n):
    return n
"""
    it = Program(server, tmp_path, text)
    code, words = it.semel("graph")
    assert code == USAGE, words
    assert "both: the processor has both in_= and alts=" in words
    assert f"twice: in_= has the stream {it.id}-a 2 times; use each stream only once" in words
    assert "none: the processor reads no stream" in words
    assert it.run() == USAGE
    assert not any(it.exists(name) for name in "cde")


# rows: C21
def test_a_processor_that_reads_nothing_is_a_source(server: Server, tmp_path: Path) -> None:
    text = """
def numbers():
    yield from range(3)


graph = Graph.from_dict(
    dict(id="{id}", processors=[dict(id="numbers", fn=numbers, out="{id}-out")])
)
"""
    it = Program(server, tmp_path, text)
    code, printed = it.semel("graph", "--json")
    assert code == 0, printed
    assert [one["role"] for one in json.loads(printed)["processors"]] == ["source"]
    assert it.run() == 0
    assert it.read("out") == [0, 1, 2]


# rows: C28
def test_a_join_with_filters_runs_if_one_message_matches_and_gets_only_those(
    server: Server, tmp_path: Path
) -> None:
    text = """
@graph.stream("join", in_=dict(x="{id}-x", y="{id}-y"), types="good", out="{id}-out")
def join(x, y):
    return [x and x["n"], y and y["n"]]
"""
    it = Program(server, tmp_path, text)
    good, bad = ([{"type": kind, "n": n} for n in range(4)] for kind in ("good", "bad"))
    it.fill("x", good[0], good[1], bad[2], bad[3])
    it.fill("y", good[0], bad[1], good[2], bad[3])
    assert it.run() == 0
    assert it.read("out") == [[0, 0], [1, None], [None, 2]]
    assert it.offsets("join") == {"x": 4, "y": 4}
    assert it.read("errors") == []
