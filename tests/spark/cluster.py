"""A Spark cluster on loopback: a master and workers, each with its own address."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pyspark

SPARK_CLASS: Final = Path(pyspark.__file__).parent / "bin" / "spark-class"
SECONDS_MAX: Final = 120.0
DEPLOY: Final = "org.apache.spark.deploy"


class Daemon:
    """One master or worker. Its child processes are in its process group and are killed with it."""

    def __init__(self, home: Path, address: str, *command: str) -> None:
        self.log = home / f"{address}.{command[0].rpartition('.')[2]}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [str(SPARK_CLASS), *command, "--host", address, "--port", "0"],
                cwd=home,
                env={
                    **os.environ,
                    "SPARK_LOCAL_IP": address,
                    "SPARK_DAEMON_MEMORY": "256m",
                    "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1",
                },
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_for(self, pattern: str) -> str:
        """Wait until the log matches the pattern; return the first group of the match."""
        deadline = time.monotonic() + SECONDS_MAX
        while time.monotonic() < deadline and self.process.poll() is None:
            if found := re.search(pattern, self.log.read_text(errors="replace")):
                return found[1]
            time.sleep(0.1)
        raise AssertionError(f"no match for {pattern} in:\n{self.log.read_text(errors='replace')}")

    def kill(self) -> None:
        """Send SIGKILL to the whole process group at once, like a power failure of the host."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Cluster:
    """A master on 127.0.0.1 and one worker of one core on each of the other addresses."""

    def __init__(self, home: Path, addresses: tuple[str, ...]) -> None:
        self.workers: dict[str, Daemon] = {}
        self.master = Daemon(home, "127.0.0.1", f"{DEPLOY}.master.Master", "--webui-port", "0")
        try:
            self.url = self.master.wait_for(r"Starting Spark master at (spark://\S+)")
            for address in addresses:
                self.workers[address] = self._start_worker(home, address)
            for worker in self.workers.values():
                worker.wait_for(r"(Successfully registered) with master")
        except BaseException:
            self.kill()
            raise

    def _start_worker(self, home: Path, address: str) -> Daemon:
        size = ("--cores", "1", "--memory", "1g", "--webui-port", "0")
        place = ("--work-dir", str(home / f"work-{address}"))
        return Daemon(home, address, f"{DEPLOY}.worker.Worker", self.url, *size, *place)

    def kill(self) -> None:
        """Kill every remaining process of the cluster."""
        for daemon in [*self.workers.values(), self.master]:
            daemon.kill()


@contextmanager
def cluster(home: Path, *addresses: str) -> Iterator[Cluster]:
    """Run a cluster until the end of the block."""
    it = Cluster(home, addresses)
    try:
        yield it
    finally:
        it.kill()
