"""`semel run`, `semel graph` and `semel trace` against a real server."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from semel.cli import graph as graph_commands
from semel.cli.graph import RunView
from semel.client.sync.client import Client
from semel.pipeline import Graph, Runner
from tests.integration.test_cli_streams import PROGRAM, Served, serving
from tests.spec.process import PATIENCE_SECONDS

FILE = """
from semel.pipeline import Graph

graph = Graph("{id}")

@graph.source("numbers", out="{id}-n")
def numbers(cursor):
    for n in range(0 if cursor is None else cursor + 1, 10):
        yield n, n

@graph.stream("double", in_="{id}-n", out="{id}-out")
def double(n):
    {body}
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("pipelines") / "data") as served:
        yield served


@pytest.fixture
def id(request: pytest.FixtureRequest) -> str:
    return str(request.node.name).partition("[")[0].replace("_", "-")


def file_of(directory: Path, id: str, body: str = "return 2 * n") -> str:
    path = directory / f"{id.replace('-', '_')}.py"
    path.write_text(FILE.format(id=id, body=body))
    return str(path)


def test_a_run_of_what_is_there_ends_with_zero(served: Served, tmp_path: Path, id: str) -> None:
    file = file_of(tmp_path, id)
    result = served.semel("run", file, "--available-now")
    assert result.exit_code == 0, result.output
    assert "double" in result.stderr
    assert result.stdout == ""
    assert served.semel("read", f"{id}-out").stdout.split() == [str(2 * n) for n in range(10)]
    (document,) = served.json("run", file, "--available-now")
    assert (document["graph"], document["engine"], document["is_over"]) == (id, "local", True)
    processors: Any = document["processors"]
    assert [(one["processor"], one["state"], one["read"]) for one in processors] == [
        ("numbers", "ended", 0),
        ("double", "ended", 0),
    ]


def test_a_stopped_processor_is_exit_code_3_and_named(
    served: Served, tmp_path: Path, id: str
) -> None:
    file = file_of(tmp_path, id, "return 1 // n")
    for extra in ([], ["--available-now"]):
        words = served.refused(3, "run", file, *extra)
        assert "semel: double stopped: ZeroDivisionError" in words
        assert "set an error stream with errors=" in words
    (document,) = [
        json.loads(line)
        for line in served.semel("run", file, "--available-now", "--json").stdout.splitlines()
    ]
    assert "ZeroDivisionError" in document["processors"][1]["reason"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_a_run_in_good_order(
    served: Served, tmp_path: Path, id: str, number: signal.Signals, code: int
) -> None:
    id = f"{id}-{number.name.lower()}"
    file = file_of(tmp_path, id)
    with Client(served.url) as client:
        out = client.stream(f"{id}-out").create("application/json")
        process = subprocess.Popen(
            [*PROGRAM, "run", file, "--url", served.url],
            stderr=subprocess.PIPE,
            env={key: value for key, value in os.environ.items() if key != "SEMEL_URL"},
        )
        with out.tail(timeout=PATIENCE_SECONDS) as tail:
            for _ in range(10):
                next(tail)
        process.send_signal(number)
        _, words = process.communicate(timeout=PATIENCE_SECONDS)
        assert (process.returncode, b"Traceback" in words) == (code, False), words
    assert served.semel("run", file, "--available-now").exit_code == 0
    assert len(served.semel("read", f"{id}-out").stdout.split()) == 10


def test_a_graph_is_drawn(served: Served, tmp_path: Path, id: str) -> None:
    file = file_of(tmp_path, id)
    assert f"──> [double: stream]  ──> {id}-out" in served.semel("graph", file).stdout
    picture = tmp_path / "graph.svg"
    assert served.semel("graph", file, "--svg", str(picture)).stdout == ""
    assert picture.read_text().startswith("<svg")
    (document,) = served.json("graph", file)
    assert document == Graph.from_dict(document).to_dict()
    assert "--svg" in served.refused(64, "graph", file, "--svg", str(tmp_path / "no" / "g.svg"))


def test_a_bad_graph_is_refused_with_every_mistake(served: Served, tmp_path: Path, id: str) -> None:
    file = tmp_path / "bad.py"
    file.write_text(
        "from semel.pipeline import Graph\n"
        "graph = Graph('bad')\n"
        "graph.stream('a', in_='x', alts=['y'], out='z')(lambda m: m)\n"
        "graph.stream('b', in_='x')(lambda m: m)\n"
    )
    for command in ("graph", "run"):
        words = served.refused(64, command, str(file))
        assert "  - a: the processor has both in_= and alts=" in words
        assert "  - b: the processor has no out=" in words
        assert "semel: the graph 'bad' cannot run" in words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no graph; add the line `graph = Graph('orders')`"),
        ("from semel.pipeline import Graph\na = Graph('a')\nb = Graph('b')", "select one with"),
        (
            "from semel.pipeline import Graph\na, b = Graph('a'), Graph('a')",
            "two graphs with the id",
        ),
        ("1 / 0", "failed: ZeroDivisionError"),
        ("raise SystemExit", "failed: SystemExit"),
        ("from semel.pipeline import Graph\nGraph.from_dict({'id': 5})", "'id' of a graph is 5"),
    ],
)
def test_a_file_without_its_graph_is_refused(
    served: Served, tmp_path: Path, text: str, words: str
) -> None:
    file = tmp_path / "odd.py"
    file.write_text(text)
    assert words in served.refused(64, "graph", str(file))


def test_a_graph_is_chosen_by_its_id(served: Served, tmp_path: Path) -> None:
    file = tmp_path / "two.py"
    names = "".join(
        f"{id} = Graph('{id}')\n{id}.sink('s', in_='x')(lambda df, delivery: None)\n"
        for id in ("a", "b")
    )
    file.write_text(f"from semel.pipeline import Graph\n{names}")
    assert served.semel("graph", str(file), "--graph", "b").stdout.startswith("b\n")
    assert "the file has a, b" in served.refused(64, "graph", str(file), "--graph", "c")
    text = tmp_path / "two.txt"
    text.write_text("")
    assert "must end in .py" in served.refused(64, "graph", str(text))


def test_what_the_server_lacks_or_refuses_is_said(served: Served, tmp_path: Path) -> None:
    file = tmp_path / "lacking.py"
    file.write_text(
        "from semel.pipeline import Graph\n"
        "graph = Graph('lacking')\n"
        "graph.sink('s', in_='nowhere')(lambda df, delivery: None)\n"
    )
    assert "the stream nowhere does not exist" in served.refused(64, "run", str(file))
    assert "graph lacking has no trace" in served.refused(1, "trace", "lacking")
    assert "http" in served.refused(64, "run", str(file), "--url", "nonsense")


def test_a_trace_shows_each_step(served: Served, tmp_path: Path, id: str) -> None:
    served.semel("run", file_of(tmp_path, id), "--available-now")
    traced = served.json("trace", id)
    assert traced[0]["number"] == 1
    assert sum(int(str(one["read"])) for one in traced) == 10
    assert all(one["outputs"] for one in traced)
    words = served.semel("trace", id, "double", "--steps", "1").stdout
    assert "done" in words
    assert f"{id}-out" in words.replace("\n", "")
    assert served.json("trace", id, "nobody") == []


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_a_table_on_a_terminal_and_lines_elsewhere(
    served: Served, id: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = Graph(id, url=served.url)

    @graph.source("numbers", out=f"{id}-n")
    def numbers() -> Iterator[int]:
        yield from range(3)

    with Runner(graph, available_now=True) as runner:
        runner.wait(PATIENCE_SECONDS)
        with RunView(runner, is_json=False) as view:
            view.show()
            view.show()
        assert "numbers: ended, step 0, 3 rows" in capsys.readouterr().err
        with RunView(runner, is_json=True) as view:
            view.show()
        shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [one["processors"][0]["written"] for one in shown] == [3, 3]
        screen = Terminal()
        monkeypatch.setattr(sys, "stderr", screen)
        monkeypatch.setattr(
            graph_commands,
            "Console",
            lambda **_: Console(file=screen, width=120, force_terminal=True),
        )
        with RunView(runner, is_json=False) as view:
            view.show()
        assert screen.getvalue().count("rows/s") >= 2


def test_a_trace_without_steps_says_so(served: Served, tmp_path: Path, id: str) -> None:
    served.semel("create", f"{id}/trace", "--content-type", "application/json")
    result = served.semel("trace", id)
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == f"semel: graph {id} has no steps in its trace\n"
