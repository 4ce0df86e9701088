"""What is tortured, and what it is tortured with: drivers, the server, who writes meanwhile."""

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
from tests.spark.torture_driver import Life
from tests.spec.process import Server

ROOT: Final = Path(__file__).resolve().parents[2]
SECONDS_MAX: Final = 240.0  # for a start of Spark on a busy machine
AHEAD_BATCHES: Final = 4  # how far the source is ahead, so that the end is not far away
STALL_SECONDS: Final = 60.0
COMMITS: Final = "POST /v1/commits"
_TAIL_BYTES: Final = 4_000
_PROGRAM: Final = "from tests.spark.torture_driver import main; main()"
# A driver starts a dozen Python processes, each of which would compile pyspark from a zip.
_SITE: Final = """
import sys
sys.path[:] = [path for path in sys.path if not path.endswith(".zip")]
"""


class Failed(Exception):
    """What must not happen."""


class Driver:
    """A driver, which waits for its life; its JVM and its Python are in its session."""

    def __init__(self, home: Path, number: int) -> None:
        self._log = home / f"driver-{number}.log"
        paths = [str(home), str(ROOT), os.environ.get("PYTHONPATH", "")]
        with self._log.open("wb") as words:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                stdin=subprocess.PIPE,
                stdout=words,
                stderr=words,
                start_new_session=True,
            )

    def begin(self, life: Life) -> None:
        """Let it run."""
        assert self._process.stdin is not None
        with self._process.stdin as line:
            line.write(msgspec.json.encode(life) + b"\n")

    def kill(self) -> None:
        """Kill -9 the program and its JVM. Workers it leaves find out, later, by themselves."""
        self.require_alive()
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def require_alive(self) -> None:
        """Fail if it ended by itself: nothing that is done to it may be seen by the query."""
        if self._process.poll() is not None:
            raise Failed(f"the driver ended by itself:\n{self._last_words()}")

    def finish(self) -> None:
        """Wait for its end."""
        if self._process.wait(SECONDS_MAX) != 0:
            raise Failed(f"the last driver failed:\n{self._last_words()}")

    def sweep(self) -> None:
        """Leave no process behind."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if os.getsid(int(process.name)) == self._process.pid:
                    os.kill(int(process.name), signal.SIGKILL)
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()

    def _last_words(self) -> str:
        return self._log.read_bytes()[-_TAIL_BYTES:].decode(errors="replace")


class World:
    """A server that can be killed, a proxy before it, and a checkpoint."""

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

    def start(self, life: Life) -> Driver:
        """Let the driver run that waits, and make the next one ready meanwhile."""
        driver = self._drivers[-1]
        driver.begin(life)
        if not life.is_last:
            self._drivers.append(Driver(self.home, len(self._drivers)))
        return driver

    def batches(self) -> int:
        """How many batches Spark has noted as done."""
        done = (self.home / "checkpoint" / "commits").glob("[0-9]*")
        return max((int(path.name) + 1 for path in done), default=0)

    def wait_for(self, is_true: Callable[[], bool], driver: Driver, what: str) -> None:
        """Wait while the driver works."""
        deadline = time.monotonic() + SECONDS_MAX
        while not is_true():
            driver.require_alive()
            if time.monotonic() > deadline:
                raise Failed(f"no {what} in {SECONDS_MAX} s")
            time.sleep(0.01)

    def wait_for_batches(self, count: int, driver: Driver) -> None:
        """Wait for that many more."""
        until = self.batches() + count
        self.wait_for(lambda: self.batches() >= until, driver, "batch")

    def hold_append(self, driver: Driver) -> None:
        """Keep the answer to a task that is in the middle of its rows."""
        with self._held("POST /v1/stream/", driver):
            pass

    def hold_commit(self, driver: Driver, seconds: float = STALL_SECONDS) -> None:
        """Let the server commit a batch, and keep its answer, for a while."""
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
        """Tell whether the server has the batch that Spark is about to note."""
        metadata = msgspec.json.decode((self.home / "checkpoint" / "metadata").read_bytes())
        return self.client.sink(metadata["id"]).info().last_version >= self.batches()

    def noted(self, name: str) -> int:
        """How often drivers noted something."""
        path = self.home / name
        return path.stat().st_size if path.exists() else 0

    # ---- the server ------------------------------------------------------------------------------

    def kill_server(self) -> None:
        """Kill -9 it, and start it again where it was."""
        self._require_sound()
        self.server.kill()
        self.server = Server(self.home / "data", port=self.server.port)

    def _kill_last_server(self) -> None:
        self.server.kill()

    def _require_sound(self) -> None:
        if not self.server.is_sound():
            raise Failed(f"the server complains:\n{self.server.stderr}")

    # ---- who writes meanwhile --------------------------------------------------------------------

    def stop_feeding(self) -> None:
        """Let the source end."""
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
        except Exception as error:  # noqa: BLE001 - told when it is asked for
            self._feeder_error = error


def row(number: int) -> dict[str, object]:
    """Make a row."""
    return {"n": number, "pad": "x" * (number % 100)}
