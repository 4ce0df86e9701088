"""One run of the demo.

A run starts the server, the producers and Spark. It kills the server and the Spark driver, and
starts them again. At the end, it compares the stored rows with the expected rows.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, Protocol

import msgspec
from msgspec import Struct

from semel.cli.demo.lanes import Produced, ProducerLane
from semel.cli.demo.plan import (
    CHECKPOINTS,
    DATA,
    DRIVER_LOG,
    Enriched,
    Job,
    Order,
    Plan,
    Row,
    StreamVerdict,
    Total,
    expected_enriched,
    expected_raw,
    expected_totals,
    judge_stream,
    parse,
)
from semel.client.local import LocalProcess
from semel.client.sync.client import Client
from semel.model.errors import EngineError
from semel.model.messages import JSON_MEDIA_TYPE
from semel.model.offsets import parse_offset
from semel.testing.fault_plan import FaultPlan

# ---- the Spark driver ----------------------------------------------------------------------------


START_SECONDS_MAX: Final = 20.0
_ERROR: Final = re.compile(r"[\w.]*(Error|Exception|Missing)\b.*: ")


class DriverFailed(EngineError):
    """The Spark driver ended with an error, although the demo did not kill it."""


class Driver:
    """The processes of the Spark driver: Python, the JVM and the workers.

    The driver can be started again after it has ended or was killed.
    """

    def __init__(self, home: Path) -> None:
        self._log = home / DRIVER_LOG
        self._process: subprocess.Popen[bytes] | None = None
        self.kills = 0

    @property
    def pid(self) -> int | None:
        """The process id of the driver, or None if it was never started."""
        return None if self._process is None else self._process.pid

    def start(self, job: Job) -> None:
        """Start the driver. If an earlier driver is running, kill it first.

        When the demo's process ends, the driver ends too.
        """
        self.close()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                [sys.executable, "-m", "semel.cli.demo.job", msgspec.json.encode(job).decode()],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def is_running(self) -> bool:
        """Return True if the driver is running. Raises DriverFailed if it ended with an error."""
        assert self._process is not None
        code = self._process.poll()
        if code is None:
            return True
        if code:
            raise DriverFailed(f"the Spark driver ended with code {code}: {self._last_error()}")
        return False

    def kill(self) -> None:
        """Kill all processes of the driver, wait until they have ended, and count the kill."""
        self.close()
        self.kills += 1

    def close(self) -> None:
        """Kill the driver if it is running, and close its standard input."""
        if self._process is None:
            return
        kill_session(self._process.pid)
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()

    def _last_error(self) -> str:
        """Return the last error in the log, and the path of the log."""
        lines = self._log.read_text(errors="replace").splitlines()
        errors = [line for line in lines if _ERROR.match(line)]  # Python logs after Java
        return f"{errors[-1] if errors else 'no error message'} (see the log {self._log})"


def kill_session(leader: int) -> None:
    """Kill every process in the session that `leader` leads, and wait until they have ended.

    Killing the process group is not enough, because Spark's Python workers have their own process
    groups. Give up after 30 seconds.
    """
    until = time.monotonic() + 30.0
    while time.monotonic() < until:
        members = session_members(leader)
        for pid in members:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not members:
            return
        time.sleep(0.01)


def session_members(leader: int) -> list[int]:
    """Return the ids of the live processes in the session that `leader` leads."""
    pids = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with suppress(OSError):
            # The fields are: pid (command) state ppid pgrp session. The command itself can contain
            # parentheses.
            fields = Path("/proc", name, "stat").read_text(errors="replace").rpartition(")")[2]
            state, _, _, session = fields.split()[:4]
            if int(session) == leader and state not in "ZX":
                pids.append(int(name))
    return pids


class Checkpoint:
    """The progress of a Spark query, read from its Spark checkpoint."""

    def __init__(self, home: Path, query: str) -> None:
        self._path = home / CHECKPOINTS / query
        self.query = query

    @property
    def committed(self) -> int:
        """The number of the last batch that has ended, or -1 if no batch has ended."""
        return self._last("commits")

    @property
    def in_flight(self) -> int | None:
        """The number of the unfinished batch, or None if every batch has ended."""
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
    """Decides when to kill the driver: when all given queries are in the middle of a batch.

    In addition, the query `naive` must have written some rows of its batch. After
    START_SECONDS_MAX, the state of `naive` no longer matters. After twice that time, the driver is
    killed in any state.
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
        """Return True if the driver should be killed now.

        Call this repeatedly, because each call also checks whether a new batch has begun.
        """
        batch, rows = self._naive.in_flight, self._naive_rows()
        if batch != self._batch:
            self._batch, self._rows_before = batch, rows
        waited = time.monotonic() - self._began
        is_naive = batch is not None and rows > self._rows_before
        is_exact = all(query.in_flight is not None for query in self._exact)
        is_late = waited > START_SECONDS_MAX
        return (is_exact and (is_naive or is_late)) or waited > 2 * START_SECONDS_MAX


# ---- run -----------------------------------------------------------------------------------------


LANES: Final = (("exactly once", ""), ("plain retries", "-naive"))
_POLL_SECONDS: Final = 0.02
_STALL_SECONDS: Final = 240.0
_DRIVER_FAILURES_MAX: Final = 2  # on a busy machine, Spark can time out while workers start


class Stalled(EngineError):
    """Spark made no progress for too long."""


class LaneResult(Struct, frozen=True):
    """The result of one lane: exactly-once writes or plain retries.

    `verdicts` maps stream names to verdicts.
    """

    name: str
    produced: Produced
    dropped: int
    verdicts: dict[str, StreamVerdict]

    @property
    def complaints(self) -> list[str]:
        """One message for each faulty stream, and one if batches were stored at wrong offsets.

        A stream is faulty if any row is lost, duplicated, wrong or out of order.
        """
        complaints = [
            f"NOT exactly once: stream {name}: {verdict.complaint}"
            for name, verdict in self.verdicts.items()
            if not verdict.is_exactly_once
        ]
        if self.produced.misplaced:
            count = self.produced.misplaced
            complaints.append(f"NOT exactly once: {count:,} batches were stored at a wrong offset")
        return complaints


class RunFacts(Struct, frozen=True):
    """The number of kills and the duration of a run. Each kill affects both lanes."""

    server_kills: int
    driver_kills: int
    seconds: float


class Watcher(Protocol):
    """Prints what happens during a run."""

    def say(self, message: str) -> None:
        """Report the start or the end of a step."""

    def fault(self, message: str) -> None:
        """Report an injected fault."""

    def show(self, bar: str, done: int, total: int) -> None:
        """Report the progress of one stream. `bar` is the stream's path."""


class DemoRun:
    """One run of a plan in the directory `home`. Spark runs only if `has_spark` is True."""

    def __init__(self, home: Path, plan: Plan, watcher: Watcher, *, has_spark: bool) -> None:
        self._home = home
        self._plan = plan
        self._watcher = watcher
        self._has_spark = has_spark
        self._input = plan.input()
        self._totals = expected_totals(self._input)
        self._driver = Driver(home)
        self._kill_points = plan.kill_points()
        self._server_kills = 0
        self._dropped: dict[str, int] = {}
        messages = [expected_raw(order) for order in self._input]
        self._lanes = [
            ProducerLane(name, "orders" + end, messages, plan.batch_messages, is_naive=bool(end))
            for name, end in LANES
        ]
        names = ("enriched", "totals", "enriched-naive", "totals-naive")
        self._queries = [Checkpoint(home, name) for name in names]
        self._driver_failures = 0
        self._job: Job
        self._server: LocalProcess
        self._client: Client

    def run(self) -> tuple[list[LaneResult], RunFacts]:
        """Run the plan. Return one result for each lane, and the facts about the run.

        All processes have ended when this returns or raises.
        """
        began = time.monotonic()
        with ExitStack() as stack:
            self._server = LocalProcess(str(self._home / DATA), 0, {})
            stack.callback(self._server.stop)
            self._watcher.say(f"server started at {self._server.url}, process {self._server.pid}")
            self._client = stack.enter_context(Client(self._server.url))
            for index, lane in enumerate(self._lanes):
                stack.callback(lane.close)
                rates = {"drop_answer": self._plan.drop_share}
                lane.start(self._server.url, FaultPlan(rates, seed=self._plan.seed + index))
            stack.callback(self._driver.close)
            if self._has_spark:
                self._start_driver(is_last=False)
            self._watch_producers()
            if self._has_spark:
                self._watch_spark()
            self._watcher.say("reading everything back")
            lanes = zip(self._lanes, LANES, strict=True)
            results = [self._judge(lane, end) for lane, (_, end) in lanes]
        seconds = time.monotonic() - began
        return results, RunFacts(self._server_kills, self._driver.kills, seconds)

    # ---- producers -------------------------------------------------------------------------------

    def _watch_producers(self) -> None:
        while any([lane.is_running for lane in self._lanes]):  # noqa: C419 - each may raise
            self._note_producers()
            confirmed = self._lanes[0].produced.confirmed
            if self._kill_points and confirmed >= self._kill_points[0]:
                del self._kill_points[0]
                self._kill_server()
            time.sleep(_POLL_SECONDS)
        self._note_producers()
        for _ in self._kill_points:  # the producers ended before these points: kill the server now
            self._kill_server()
        self._watcher.say("all orders are confirmed")

    def _note_producers(self) -> None:
        for lane in self._lanes:
            self._watcher.show(lane.path, lane.produced.confirmed, len(self._input))
            dropped = lane.dropped - self._dropped.get(lane.path, 0)
            if dropped:
                self._watcher.fault(f"{lane.path}: dropped responses to stored appends: {dropped}")
            self._dropped[lane.path] = lane.dropped

    def _kill_server(self) -> None:
        pid = self._server.pid
        self._server.kill()
        self._server_kills += 1
        self._watcher.fault(f"SIGKILL was sent to the server, process {pid}")
        began = time.monotonic()
        self._server.restart()
        seconds = time.monotonic() - began
        self._watcher.say(f"server restarted after {seconds:.1f} s, process {self._server.pid}")

    # ---- Spark -----------------------------------------------------------------------------------

    def _start_driver(self, *, is_last: bool) -> None:
        for name in ("enriched", "totals"):
            for _, end in LANES:
                self._client.stream(name + end).create(JSON_MEDIA_TYPE, exist_ok=True)
        checkpoints = str(self._home / CHECKPOINTS)
        rows = self._plan.last_spark_rows if is_last else self._plan.spark_rows
        self._job = Job(self._server.url, checkpoints, rows, is_last)
        self._driver.start(self._job)
        self._watcher.say(f"Spark is starting (driver process {self._driver.pid}); please wait")

    def _watch_spark(self) -> None:
        exact, naive = self._queries[:2], self._queries[2]
        self._wait(lambda: exact[0].committed >= 0)
        self._watcher.say("Spark has committed its first batch")
        self._kill_server()
        self._wait(MidBatch(exact, naive, lambda: self._tail(naive.query)).is_now)
        self._kill_driver()
        self._start_driver(is_last=True)
        self._wait(lambda: not self._is_driver_running())
        self._show_spark()

    def _kill_driver(self) -> None:
        pid = self._driver.pid
        self._driver.kill()
        self._watcher.fault(
            f"SIGKILL was sent to the Spark driver, process {pid}, and to its JVM and workers"
        )
        self._watcher.say(self._in_flight())

    def _in_flight(self) -> str:
        batches = [(query.query, query.in_flight) for query in self._queries]
        listed = [f"batch {batch} of {query}" for query, batch in batches if batch is not None]
        return f"unfinished Spark batches: {', '.join(listed) or 'none'}"

    def _wait(self, is_over: Callable[[], bool]) -> None:
        """Wait until `is_over` returns True. Meanwhile show Spark's progress.

        Raises Stalled if Spark makes no progress for too long.
        """
        counts: list[int] = []
        moved_at = shown_at = time.monotonic()
        while not is_over():
            self._is_driver_running()
            now = time.monotonic()
            if now - shown_at > 10 * _POLL_SECONDS:
                shown_at, before, counts = now, counts, self._show_spark()
                moved_at = now if counts != before else moved_at
            if now - moved_at > _STALL_SECONDS:
                raise Stalled(
                    f"Spark made no progress for {_STALL_SECONDS:g} s; {self._in_flight()}"
                )
            time.sleep(_POLL_SECONDS / 2)

    def _is_driver_running(self) -> bool:
        """Return True if the driver is running. If the driver has failed, start it again.

        Raises DriverFailed after too many failures.
        """
        try:
            return self._driver.is_running()
        except DriverFailed as error:
            self._driver_failures += 1
            if self._driver_failures > _DRIVER_FAILURES_MAX:
                raise
            self._watcher.say(f"{error}; starting the driver again")
            self._driver.start(self._job)
            return True

    def _show_spark(self) -> list[int]:
        counts = []
        for name, total in (("enriched", len(self._input)), ("totals", len(self._totals))):
            for _, end in LANES:
                counts.append(self._tail(name + end))
                self._watcher.show(name + end, counts[-1], total)
        return counts

    def _tail(self, path: str) -> int:
        return parse_offset(self._client.stream(path).head().next_offset) or 0

    # ---- comparison ------------------------------------------------------------------------------

    def _judge(self, lane: ProducerLane, end: str) -> LaneResult:
        verdicts = {"orders": judge_stream(self._input, self._stored("orders" + end, Order))}
        if self._has_spark:
            rows = [expected_enriched(order) for order in self._input]
            totals = self._stored("totals" + end, Total)
            verdicts |= {
                "enriched": judge_stream(rows, self._stored("enriched" + end, Enriched)),
                "totals": judge_stream(self._totals, totals, is_ordered=False),
            }
        return LaneResult(lane.name, lane.produced, lane.dropped, verdicts)

    def _stored(self, path: str, kind: type[Row]) -> list[Row | None]:
        return parse((message.raw for message in self._client.stream(path).read()), kind)
