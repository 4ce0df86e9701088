"""A token is sent to the server, and is nowhere in what Spark prints, logs or stores.

Spark runs in a process of its own, because its logs and its event log are set up at its start.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from semel import Client
from tests.integration.recorder import Recorder, forwarding
from tests.integration.test_tokens_client import HIDDEN, TOKEN, tokens
from tests.spec.process import Server
from tests.spec.txn_calls import fresh

ROOT = Path(__file__).resolve().parents[2]
LOGS = """
status = error
rootLogger.level = debug
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {file}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %p %c: %m%n%ex
logger.sql.name = org.apache.spark.sql
logger.sql.level = trace
logger.web.name = org.sparkproject.jetty
logger.web.level = info
"""
PLAN_LOG = "org.apache.spark.sql.catalyst"


@pytest.fixture
def door(server: Server) -> Iterator[Recorder]:
    """A server that passes every request on, and keeps it."""
    with Recorder(forwarding(server.port)) as it:
        yield it


def run_spark(folder: Path, door: Recorder, way: str, **variables: str) -> str:
    """Run the program below in a new process; return what it has printed."""
    logs = folder / "log4j2.properties"
    logs.write_text(LOGS.format(file=folder / "spark.log"))
    (folder / "events").mkdir()
    stream = fresh("in")
    with Client(door.url, token="") as client:
        client.stream(stream).create("application/json").append_many(list(range(20)))
    del door.requests[:]
    process = subprocess.run(
        [sys.executable, "-m", "tests.spark.token_program", way, door.url, stream, str(folder)],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert process.returncode == 0, process.stdout[-3000:] + process.stderr[-3000:]
    return process.stdout + process.stderr


def files_with(folder: Path, text: str) -> list[str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [str(path.relative_to(folder)) for path in files if text.encode() in path.read_bytes()]


def check_secrecy(folder: Path, printed: str) -> None:
    """Fail if the token is in a file of Spark or in its output, or if nothing was looked at."""
    assert HIDDEN not in printed
    assert files_with(folder, HIDDEN) == []
    # What could have contained it is there.
    for part in ("== Analyzed Logical Plan ==", "UI 200", "StreamMissing", "raise_error", "sql?"):
        assert part in printed, part
    (events,) = (folder / "events").iterdir()
    assert '"Event":"org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionStart"' in (
        events.read_text()
    )
    assert PLAN_LOG in (folder / "spark.log").read_text()
    assert {"offsets/0", "commits/0"} <= {
        f"{path.parent.name}/{path.name}" for path in (folder / "checkpoint").rglob("*")
    }


# A run takes about 25 seconds. `make test` runs those that differ most, TOKEN_WAYS=all runs all.
WAYS = ["option", "environment", "replaced-settings", "pipeline-file"]
MORE_WAYS = ["file", "pipeline"] if os.environ.get("TOKEN_WAYS") == "all" else []


@pytest.mark.parametrize("way", [*WAYS, *MORE_WAYS])
def test_a_token_is_sent_and_never_written(tmp_path: Path, door: Recorder, way: str) -> None:
    private = tmp_path / "private"
    private.mkdir()
    (private / "token").write_text(TOKEN)
    folder = tmp_path / "spark"
    folder.mkdir()
    variables = {"SEMEL_TOKEN": TOKEN} if way == "environment" else {}
    variables["TOKEN_FILE"] = str(private / "token")
    printed = run_spark(folder, door, way, **variables)
    assert len(door.requests) > 10
    assert set(tokens(door.requests)) == {TOKEN}
    if way.startswith("pipeline"):
        assert HIDDEN not in printed
        assert files_with(folder, HIDDEN) == []
        assert "ENDED p 20" in printed
        assert "ENDED q 20" in printed
    else:
        check_secrecy(folder, printed)
