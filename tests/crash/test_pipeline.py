"""A graph of three stages, killed at each boundary of a step, writes each message once."""

import json
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from semel import local
from semel.client.local import LocalServer
from semel.pipeline.local.step import BEGUN, BOUNDARIES
from tests.crash.pipeline_child import is_bad
from tests.crash.process import ROOT

PROCESSORS: Final = ("fork", "pair", "mark", "store")
CRASH_POINTS: Final = [(one, boundary) for one in PROCESSORS for boundary in BOUNDARIES]
ROUNDS: Final = 10
SOURCE_KILLS: Final = 10
MESSAGES_PER_RUN: Final = 12
SEED: Final = 23


class Zygote:
    """Starts runs of the graph, one at a time."""

    def __init__(self, server: LocalServer, database: Path) -> None:
        self._server = server
        self._database = database
        self._limit = 0
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.pipeline_child"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def run(self, where: tuple[str, str], times: int, *, kills_server: bool = False) -> int:
        """Run the graph with more messages until it ends or is killed; return its exit code."""
        self._limit += MESSAGES_PER_RUN
        job = {
            "url": self._server.url,
            "limit": self._limit,
            "database": str(self._database),
            "where": where,
            "times": times,
            "server": self._server.pid if kills_server else None,
        }
        assert self._popen.stdin is not None
        self._popen.stdin.write(json.dumps(job).encode() + b"\n")
        self._popen.stdin.flush()
        while True:
            report = self._receive()
            if "ended" in report:
                return int(report["ended"])
            self.servers_killed += 1
            self._server.kill()
            self._server.restart()

    servers_killed = 0

    @property
    def messages(self) -> int:
        """The number of messages of the source over all runs so far."""
        return self._limit

    def _receive(self) -> dict[str, Any]:
        assert self._popen.stdout is not None
        line = self._popen.stdout.readline()
        assert line, "the zygote has ended"
        report: dict[str, Any] = json.loads(line)
        return report

    def close(self) -> None:
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._popen.stdin.close()
        self._popen.wait(timeout=10)
        self._popen.stdout.close()


@contextmanager
def zygote_of(server: LocalServer, database: Path) -> Iterator[Zygote]:
    found = Zygote(server, database)
    try:
        yield found
    finally:
        found.close()


def values(server: LocalServer, path: str) -> list[Any]:
    return [message.value for message in server.stream(path).read()]


# rows: C24, X14
@pytest.mark.crash
@pytest.mark.timeout(400)  # hundreds of processes: 30 seconds on an idle machine
def test_every_message_is_once_on_every_leg_wherever_a_graph_is_killed(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    chance = random.Random(SEED)
    killed = 0
    with local() as server, zygote_of(server, tmp_path / "sink.db") as zygote:
        runs = [*CRASH_POINTS * ROUNDS, *[("numbers", "yielded")] * SOURCE_KILLS]
        chance.shuffle(runs)
        for where in runs:
            times = 1 if where[1] == BEGUN else chance.randrange(1, 4)
            code = zygote.run(where, times)
            assert code in (0, -signal.SIGKILL)
            killed += code != 0
        for where in CRASH_POINTS:
            assert zygote.run(where, 1, kills_server=True) == 0
        assert zygote.run(("nobody", ""), 1) == 0
        _check(server, zygote.messages, tmp_path / "sink.db")
        steps = len(values(server, "crash/trace"))
        servers = zygote.servers_killed
    assert killed >= 200
    assert servers >= len(CRASH_POINTS) - len(PROCESSORS)
    figure(
        f"pipeline in three stages: {killed} runners and {servers} servers killed at the"
        f" boundaries of steps; {zygote.messages:,} messages in {steps:,} records of steps, each"
        " once on every leg and once in the sink"
    )


def _check(server: LocalServer, count: int, database: Path) -> None:
    good = [n for n in range(count) if not is_bad(n)]
    bad = [n for n in range(count) if is_bad(n)]
    assert values(server, "numbers") == list(range(count))
    assert values(server, "low") == good
    assert values(server, "high") == [-n for n in good]
    assert [error["inputs"][0]["value"] for error in values(server, "errors")] == bad
    assert values(server, "pairs") == [[n, -n] for n in good]
    marked = values(server, "marked")
    assert [n for binding, n in marked if binding == "pairs"] == good
    assert [n for binding, n in marked if binding == "errors"] == bad
    with closing(sqlite3.connect(database)) as connection:
        assert [n for (n,) in connection.execute("select n from pairs order by rowid")] == good
