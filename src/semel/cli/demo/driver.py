"""The Spark driver of the demo: a separate process that is watched, killed and started again."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

import msgspec

from semel.cli.demo.job import Job
from semel.cli.demo.plan import CHECKPOINTS, DRIVER_LOG
from semel.model.errors import EngineError

START_SECONDS_MAX: Final = 20.0
_GONE_SECONDS_MAX: Final = 30.0
_ERROR: Final = re.compile(r"[\w.]*(Error|Exception|Missing)\b.*: ")


class DriverFailed(EngineError):
    """The driver ended with an error of its own."""


class Driver:
    """The Spark driver with its Python, its JVM and their workers; can be started repeatedly."""

    def __init__(self, home: Path) -> None:
        self._log = home / DRIVER_LOG
        self._process: subprocess.Popen[bytes] | None = None
        self.kills = 0

    @property
    def pid(self) -> int | None:
        """The id of the process; None if it was never started."""
        return None if self._process is None else self._process.pid

    def start(self, job: Job) -> None:
        """Start it, after the previous one was killed; it ends when this process ends."""
        self.close()
        with self._log.open("ab") as log:
            self._process = _start(job, log)

    def is_running(self) -> bool:
        """Return whether it runs; raises DriverFailed if it ended with an error."""
        assert self._process is not None
        code = self._process.poll()
        if code is None:
            return True
        if code:
            raise DriverFailed(f"the Spark driver ended with code {code}: {self._last_error()}")
        return False

    def kill(self) -> None:
        """Send SIGKILL to all its processes, and wait until they have ended."""
        assert self._process is not None
        kill_session(self._process.pid)
        self._process.wait()
        self.kills += 1

    def close(self) -> None:
        """Kill it if it runs, and release its input."""
        if self._process is None:
            return
        kill_session(self._process.pid)
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()

    def _last_error(self) -> str:
        """Return the last error in the log: Python writes its own after everything of Java."""
        lines = self._log.read_text(errors="replace").splitlines()
        errors = [line for line in lines if _ERROR.match(line)]
        return f"{errors[-1] if errors else 'no error message'} (its log is {self._log})"


def _start(job: Job, log: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - our own command
        [sys.executable, "-m", "semel.cli.demo.job", msgspec.json.encode(job).decode()],
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )


def kill_session(leader: int) -> None:
    """Kill every process of a session; Spark's Python workers have their own process groups."""
    until = time.monotonic() + _GONE_SECONDS_MAX
    while time.monotonic() < until:
        members = session_members(leader)
        for pid in members:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not members:
            return
        time.sleep(0.01)


def session_members(leader: int) -> list[int]:
    """Return the processes of a session that have not ended."""
    pids = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with suppress(OSError):
            # pid (command) state ppid pgrp session; the command may contain brackets
            fields = Path("/proc", name, "stat").read_text(errors="replace").rpartition(")")[2]
            state, _, _, session = fields.split()[:4]
            if int(session) == leader and state not in "ZX":
                pids.append(int(name))
    return pids


class Checkpoint:
    """The progress of a query, read from its Spark checkpoint."""

    def __init__(self, home: Path, query: str) -> None:
        self._path = home / CHECKPOINTS / query
        self.query = query

    @property
    def committed(self) -> int:
        """The last batch that has ended; -1 if none has."""
        return self._last("commits")

    @property
    def in_flight(self) -> int | None:
        """The batch that is running, if there is one."""
        committed = self.committed
        begun = self._last("offsets")
        return begun if begun > committed else None

    def _last(self, log: str) -> int:
        try:
            names = os.listdir(self._path / log)
        except FileNotFoundError:
            return -1
        return max((int(name) for name in names if name.isdigit()), default=-1)


class MidBatch:
    """Detects when all queries are in the middle of a batch, and `naive` has written part of its.

    If that does not happen soon, it is enough that those of `exact` are; in the end any time is.
    """

    def __init__(
        self, exact: Sequence[Checkpoint], naive: Checkpoint, naive_rows: Callable[[], int]
    ) -> None:
        self._exact = exact
        self._naive = naive
        self._naive_rows = naive_rows
        self._batch: int | None = None
        self._rows_before = 0
        self._began = time.monotonic()

    def is_now(self) -> bool:
        """Return whether it is so now; must be called repeatedly."""
        batch, rows = self._naive.in_flight, self._naive_rows()
        if batch != self._batch:
            self._batch, self._rows_before = batch, rows
        waited = time.monotonic() - self._began
        is_naive = batch is not None and rows > self._rows_before
        is_exact = all(query.in_flight is not None for query in self._exact)
        is_late = waited > START_SECONDS_MAX
        return (is_exact and (is_naive or is_late)) or waited > 2 * START_SECONDS_MAX
