"""The environment of the torture test: drivers, the server, the proxy and the producer."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, Self

import msgspec

from semel import Client
from semel.testing import FaultPlan, FaultProxy
from tests.spark.torture_driver import Job
from tests.spec.process import Server

ROOT: Final = Path(__file__).resolve().parents[2]
SECONDS_MAX: Final = 240.0  # for a start of Spark on a busy machine
AHEAD_BATCHES: Final = 4  # how far the source is ahead; the last driver reads the rest
STALL_SECONDS: Final = 60.0
COMMITS: Final = "POST /v1/commits"
_TAIL_BYTES: Final = 4_000
_PROGRAM: Final = "from tests.spark.torture_driver import main; main()"
# Each of the dozen Python processes of a driver would compile pyspark from a zip.
_SITE: Final = """
import sys
sys.path[:] = [path for path in sys.path if not path.endswith(".zip")]
"""


class Failed(Exception):
    """Something happened that must not happen."""


class Driver:
    """A driver, which waits for its job. Its JVM and its Python workers are in its session."""

    def __init__(self, home: Path, number: int) -> None:
        self._log = home / f"driver-{number}.log"
        paths = [str(home), str(ROOT), os.environ.get("PYTHONPATH", "")]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def begin(self, job: Job) -> None:
        """Send the job to the driver."""
        assert self._process.stdin is not None
        with self._process.stdin as line:
            line.write(msgspec.json.encode(job) + b"\n")

    def kill(self) -> None:
        """Send SIGKILL to the program and its JVM. Remaining workers end later by themselves."""
        self.require_alive()
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def require_alive(self) -> None:
        """Fail if the driver ended by itself: no fault of the test may end the query."""
        if self._process.poll() is not None:
            raise Failed(f"the driver ended by itself:\n{self._log_tail()}")

    def finish(self) -> None:
        """Wait for the end of the driver, which must succeed."""
        if self._process.wait(SECONDS_MAX) != 0:
            raise Failed(f"the last driver failed:\n{self._log_tail()}")

    def sweep(self) -> None:
        """Kill all remaining processes of the driver."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if os.getsid(int(process.name)) == self._process.pid:
                    os.kill(int(process.name), signal.SIGKILL)
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()

    def _log_tail(self) -> str:
        return self._log.read_bytes()[-_TAIL_BYTES:].decode(errors="replace")


class World:
    """A server that can be killed, a proxy in front of the server, and a checkpoint."""

    def __init__(self, home: Path, rows_per_batch: int, seed: int) -> None:
        self.home = home
        self.rows_per_batch = rows_per_batch
        self.rows = 0
        self.commits_held = 0
        self._plan = FaultPlan({"drop_answer": 0.2}, only=COMMITS, seed=seed)
        self._is_over = threading.Event()
        self._feeder = threading.Thread(target=self._feed, name="feeder")
        self._feeder_error: Exception | None = None
        self._drivers: list[Driver] = []

    def __enter__(self) -> Self:
        (self.home / "sitecustomize.py").write_text(_SITE)
        with ExitStack() as stack:
            self.server = Server(self.home / "data")
            stack.callback(self._kill_last_server)
            self.client = stack.enter_context(Client(self.server.url))
            self.proxy = stack.enter_context(FaultProxy(self.server.url, self._plan))
            self.client.stream("in").create("application/json")
            self._feeder.start()
            stack.callback(self._feeder.join)
            stack.callback(self._is_over.set)
            stack.callback(self._sweep)
            self._drivers.append(Driver(self.home, 0))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def _sweep(self) -> None:
        for driver in self._drivers:
            driver.sweep()

    # ---- drivers ---------------------------------------------------------------------------------

    def start(self, job: Job) -> Driver:
        """Start the job on the waiting driver, and start the process of the next driver."""
        driver = self._drivers[-1]
        driver.begin(job)
        if not job.is_last:
            self._drivers.append(Driver(self.home, len(self._drivers)))
        return driver

    def batches(self) -> int:
        """Return the number of batches that Spark has recorded as committed."""
        done = (self.home / "checkpoint" / "commits").glob("[0-9]*")
        return max((int(path.name) + 1 for path in done), default=0)

    def wait_for(self, is_true: Callable[[], bool], driver: Driver, what: str) -> None:
        """Wait for a condition while the driver runs."""
        deadline = time.monotonic() + SECONDS_MAX
        while not is_true():
            driver.require_alive()
            if time.monotonic() > deadline:
                raise Failed(f"no {what} in {SECONDS_MAX} s")
            time.sleep(0.01)

    def wait_for_batches(self, count: int, driver: Driver) -> None:
        """Wait for `count` more batches."""
        until = self.batches() + count
        self.wait_for(lambda: self.batches() >= until, driver, "batch")

    def hold_append(self, driver: Driver) -> None:
        """Hold back the response to an append of a task."""
        with self._held("POST /v1/stream/", driver):
            pass

    def hold_commit(self, driver: Driver, seconds: float = STALL_SECONDS) -> None:
        """Let the server commit a batch, and hold back the response for some seconds."""
        with self._held(COMMITS, driver, seconds):
            self.wait_for(self._is_committed, driver, "commit")
        self.commits_held += 1

    @contextmanager
    def _held(self, only: str, driver: Driver, seconds: float = STALL_SECONDS) -> Iterator[None]:
        before = self._drawn()
        self.proxy.plan = FaultPlan({"half_open_after": 1.0}, only=only, stall_seconds=seconds)
        try:
            self.wait_for(lambda: self._drawn() > before, driver, f"request {only}")
            yield
        finally:
            self.proxy.plan = self._plan

    def _drawn(self) -> int:
        return self.proxy.counts["half_open_after"]

    def _is_committed(self) -> bool:
        """Return whether the server has the batch that Spark will record next."""
        metadata = msgspec.json.decode((self.home / "checkpoint" / "metadata").read_bytes())
        return self.client.sink(metadata["id"]).info().last_version >= self.batches()

    def noted(self, name: str) -> int:
        """Return how often drivers counted an event."""
        path = self.home / name
        return path.stat().st_size if path.exists() else 0

    # ---- the server ------------------------------------------------------------------------------

    def kill_server(self) -> None:
        """Kill the server with SIGKILL, and restart it on the same port."""
        self._require_sound()
        self.server.kill()
        self.server = Server(self.home / "data", port=self.server.port)

    def _kill_last_server(self) -> None:
        self.server.kill()

    def _require_sound(self) -> None:
        if not self.server.is_sound():
            raise Failed(f"the server is unhealthy or wrote to stderr:\n{self.server.stderr}")

    # ---- the producer ----------------------------------------------------------------------------

    def stop_feeding(self) -> None:
        """Stop the producer of the source; raise its error if it failed."""
        self._is_over.set()
        self._feeder.join()
        if self._feeder_error is not None:
            raise Failed("nothing can be written to the source") from self._feeder_error
        self._require_sound()

    def _feed(self) -> None:
        try:
            with self.client.stream("in").producer("feeder") as producer:
                while not self._is_over.wait(0.02):
                    until = (self.batches() + AHEAD_BATCHES) * self.rows_per_batch
                    while self.rows < until:
                        producer.append(row(self.rows))
                        self.rows += 1
        except Exception as error:  # noqa: BLE001 - raised by stop_feeding
            self._feeder_error = error


def row(number: int) -> dict[str, object]:
    return {"n": number, "pad": "x" * (number % 100)}
