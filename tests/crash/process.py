"""Starts, kills and waits for the processes of these tests."""

import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tests.crash.protocol import READY, Hangup, Job, Link, Ready

ROOT: Final = Path(__file__).resolve().parents[2]
_CHILD: Final = "tests.crash.child"


class Process:
    """A process and the connection to it."""

    def __init__(self, pid: int, link: Link, stderr: Any, reap: Any) -> None:
        self.pid = pid
        self.link = link
        self._stderr = stderr
        self._reap = reap
        self._code: int | None = None

    def ready(self) -> Ready:
        """Wait until the process serves requests."""
        value = self.link.wait_for(READY)
        assert isinstance(value, Ready), value
        return value

    def signal(self, number: int) -> None:
        assert self._code is None, "the process has already ended"
        os.kill(self.pid, number)

    def kill(self) -> int:
        """Send SIGKILL, unless the process has ended; return what `wait` returns."""
        if self._code is None:
            os.kill(self.pid, signal.SIGKILL)
        return self.wait()

    def wait(self) -> int:
        """Wait for the end of the process; return the exit code, or minus the signal number."""
        if self._code is None:
            self._code = self._reap(self.pid)
        return self._code

    def stderr(self) -> str:
        self._stderr.seek(0)
        text: str = self._stderr.read().decode()
        return text

    def close(self) -> None:
        """Kill the process and release all resources."""
        self.kill()
        self.link.close()
        self._stderr.close()


class Zygote:
    """Forks processes from a process that has already imported all modules."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", _CHILD, str(theirs.fileno())]
        self._popen = subprocess.Popen(command, pass_fds=[theirs.fileno()], cwd=ROOT)
        theirs.close()

    def start(self, job: Job) -> Process:
        ours, theirs = socket.socketpair()
        stderr = tempfile.TemporaryFile()  # noqa: SIM115 - Process.close closes it
        socket.send_fds(self._control, [pickle.dumps(job)], [theirs.fileno(), stderr.fileno()])
        theirs.close()
        pid: int = pickle.loads(self._control.recv(1 << 10))
        return Process(pid, Link(ours), stderr, self._reap)

    def _reap(self, pid: int) -> int:
        self._control.send(pickle.dumps(pid))
        code: int = pickle.loads(self._control.recv(1 << 10))
        return code

    def serve(self, job: Job) -> Process:
        """Start a server and wait until it is ready."""
        process = self.start(job)
        try:
            process.ready()
        except Hangup:
            process.kill()
            raise AssertionError(f"not started: {process.wait()}: {process.stderr()}") from None
        return process

    def refusal(self, job: Job) -> tuple[int, str]:
        """Start a process that must exit by itself; return its exit code and stderr text."""
        process = self.start(job)
        for _ in process.link.drain():
            pass
        code, stderr = process.wait(), process.stderr()
        process.close()
        return code, stderr

    def inspect(self, job: Job) -> tuple[list[object], int, str]:
        """Inspect a directory in two runs; return the results, exit code and stderr text."""
        process = self.start(replace(job, name="inspect"))
        found = [value for number, value in process.link.drain() if number == READY]
        code, stderr = process.wait(), process.stderr()
        process.close()
        return found, code, stderr

    def close(self) -> None:
        self._control.close()
        self._popen.wait(timeout=10)


def start_alone(job: Job, prefix: list[str]) -> Process:
    """Start a job without the zygote, under another program such as strace."""
    ours, theirs = socket.socketpair()
    stderr = tempfile.TemporaryFile()  # noqa: SIM115 - Process.close closes it
    command = [*prefix, sys.executable, "-m", _CHILD]
    popen = subprocess.Popen(
        [*command, str(theirs.fileno()), pickle.dumps(job).hex()],
        pass_fds=[theirs.fileno()],
        stderr=stderr,
        cwd=ROOT,
    )
    theirs.close()
    return Process(popen.pid, Link(ours), stderr, lambda _pid: popen.wait())
