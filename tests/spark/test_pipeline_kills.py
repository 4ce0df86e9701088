"""A graph with three stages and two sinks on Spark, whose driver and server are killed."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
from deltalake import DeltaTable

from semel import local
from semel.client.local import LocalServer
from semel.pipeline.local.step import COMMITTED, PINNED, RAN
from tests.spark.pipeline_child import is_bad

MESSAGES_PER_RUN: Final = 30
ROOT: Final = Path(__file__).parents[2]
# The kills of each run: processor, boundary, and the process to kill.
RUNS: Final = [
    [["fork", RAN, "server"], ["pair", COMMITTED, "server"], ["rows", RAN, "driver"]],
    [["pair", PINNED, "server"], ["rows", PINNED, "server"], ["lake", RAN, "driver"]],
    [["mark", RAN, "server"], ["lake", PINNED, "server"], ["pair", RAN, "driver"]],
    [],
]


def run_driver(server: LocalServer, job: dict[str, Any], log: Path) -> tuple[int, int]:
    """Run a driver until it ends; return its exit code and the number of server kills."""
    killed = 0
    with (
        log.open("ab") as stderr,
        subprocess.Popen(
            [sys.executable, "-m", "tests.spark.pipeline_child", json.dumps(job)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,
        ) as program,
    ):
        assert program.stdin is not None
        assert program.stdout is not None
        try:
            for line in program.stdout:
                event = json.loads(line)
                if "kill" in event:
                    killed += 1
                    server.kill()
                    program.stdin.write(b"\n")
                    program.stdin.flush()
                    server.restart()
                else:
                    assert event == {"stopped": {}}, log.read_text()[-5_000:]
            return program.wait(), killed
        finally:
            with suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)  # also kills its JVM


def values(server: LocalServer, path: str) -> list[Any]:
    return [message.value for message in server.stream(path).read()]


# rows: C24, X14
@pytest.mark.timeout(600)  # four drivers with a JVM each
def test_every_message_is_once_on_every_leg_and_in_every_sink_whatever_is_killed(
    java: str, database: str | None, tmp_path: Path
) -> None:
    del java
    drivers = servers = 0
    table = tmp_path / "table"
    if database is not None:
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute("CREATE TABLE numbers (n bigint NOT NULL)")
    with local() as server:
        for number, kills in enumerate(RUNS, start=1):
            count = number * MESSAGES_PER_RUN
            wanted = [one for one in kills if database is not None or one[0] != "rows"]
            code, killed = run_driver(
                server,
                {
                    "url": server.url,
                    "limit": count,
                    "database": database,
                    "table": str(table),
                    "kills": wanted,
                },
                tmp_path / "log",
            )
            assert code in (0, -signal.SIGKILL), (tmp_path / "log").read_text()[-5_000:]
            drivers += code != 0
            servers += killed
        assert code == 0
        assert drivers + servers >= 6
        assert min(drivers, servers) >= 2
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
    assert DeltaTable(table).to_pyarrow_table().sort_by("n")["n"].to_pylist() == good
    if database is not None:
        with psycopg.connect(database) as connection:
            assert [n for (n,) in connection.execute("SELECT n FROM numbers ORDER BY ctid")] == good
            assert connection.execute("SELECT count(*) FROM numbers_staging").fetchone() == (0,)
    print(f"{drivers} drivers and {servers} servers were killed; {count} messages, each once")
