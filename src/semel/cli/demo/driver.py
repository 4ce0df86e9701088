"""The demo's Spark driver: a process of its own, watched from outside, killed and started again."""

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
    """The driver ended when nobody had killed it."""


class Driver:
    """The Spark driver through all its lives: its Python, its JVM and their workers."""

    def __init__(self, home: Path) -> None:
        self._log = home / DRIVER_LOG
        self._process: subprocess.Popen[bytes] | None = None
        self.kills = 0

    @property
    def pid(self) -> int | None:
        """The process, if it runs."""
        return None if self._process is None else self._process.pid

    def start(self, job: Job) -> None:
        """Start it; it ends with this process, however that ends."""
        self.close()
        with self._log.open("ab") as log:
            self._process = _start(job, log)

    def is_running(self) -> bool:
        """Tell whether it still works; raises if it failed."""
        assert self._process is not None
        code = self._process.poll()
        if code is None:
            return True
        if code:
            raise DriverFailed(f"the Spark driver ended with code {code}: {self._last_words()}")
        return False

    def kill(self) -> None:
        """Send SIGKILL to all of it, and wait until it is gone."""
        assert self._process is not None
        kill_session(self._process.pid)
        self._process.wait()
        self.kills += 1

    def close(self) -> None:
        """End it, finished or not."""
        if self._process is None:
            return
        kill_session(self._process.pid)
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()

    def _last_words(self) -> str:
        """Find the error in the log: a Python one ends the text, whatever Java wrote before."""
        lines = self._log.read_text(errors="replace").splitlines()
        errors = [line for line in lines if _ERROR.match(line)]
        return f"{errors[-1] if errors else 'it said nothing'} (all of it is in {self._log})"


def _start(job: Job, log: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - our own command
        [sys.executable, "-m", "semel.cli.demo.job", msgspec.json.encode(job).decode()],
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )


def kill_session(leader: int) -> None:
    """Kill every process of a session; Spark's Python workers have groups of their own in it."""
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
    """Find the processes of a session that are not dead yet."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with suppress(OSError):
            # pid (command) state ppid pgrp session; the command may hold anything, even brackets
            fields = Path("/proc", name, "stat").read_text(errors="replace").rpartition(")")[2]
            state, _, _, session = fields.split()[:4]
            if int(session) == leader and state not in "ZX":
                found.append(int(name))
    return found


class Checkpoint:
    """What a query's checkpoint tells to somebody who only looks at it."""

    def __init__(self, home: Path, query: str) -> None:
        self._path = home / CHECKPOINTS / query
        self.query = query

    @property
    def committed(self) -> int:
        """The last batch that is over; -1 if none is."""
        return self._last("commits")

    @property
    def in_flight(self) -> int | None:
        """The batch that is under way, if one is."""
        committed = self.committed
        begun = self._last("offsets")
        return begun if begun > committed else None

    def _last(self, log: str) -> int:
        try:
            names = os.listdir(self._path / log)
        except FileNotFoundError:
            return -1
        return max((int(name) for name in names if name.isdigit()), default=-1)


class Middle:
    """Finds a moment in the middle of a batch of all of them; `naive` has written a part of it.

    If there is none soon, the middle of a batch of `exact` will do, and in the end any moment.
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
        """Tell whether this is such a moment."""
        batch, rows = self._naive.in_flight, self._naive_rows()
        if batch != self._batch:
            self._batch, self._rows_before = batch, rows
        waited = time.monotonic() - self._began
        is_naive = batch is not None and rows > self._rows_before
        is_exact = all(query.in_flight is not None for query in self._exact)
        is_late = waited > START_SECONDS_MAX
        return (is_exact and (is_naive or is_late)) or waited > 2 * START_SECONDS_MAX
