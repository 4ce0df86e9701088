"""Starting, killing and waiting for the processes of these tests."""

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
    """One process: its connection, its fate."""

    def __init__(self, pid: int, link: Link, stderr: Any, reap: Any) -> None:
        self.pid = pid
        self.link = link
        self._stderr = stderr
        self._reap = reap
        self._code: int | None = None

    def ready(self) -> Ready:
        """Wait until it serves."""
        value = self.link.wait_for(READY)
        assert isinstance(value, Ready), value
        return value

    def signal(self, number: int) -> None:
        assert self._code is None, "it is gone already"
        os.kill(self.pid, number)

    def kill(self) -> int:
        """Kill -9, unless it is dead already; answer how it ended."""
        if self._code is None:
            os.kill(self.pid, signal.SIGKILL)
        return self.wait()

    def wait(self) -> int:
        """Answer the exit code, or the signal that ended it as a negative number."""
        if self._code is None:
            self._code = self._reap(self.pid)
        return self._code

    def stderr(self) -> str:
        self._stderr.seek(0)
        text: str = self._stderr.read().decode()
        return text

    def close(self) -> None:
        """Let go of everything; no process stays behind."""
        self.kill()
        self.link.close()
        self._stderr.close()


class Zygote:
    """Forks processes from one that has imported everything already."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", _CHILD, str(theirs.fileno())]
        self._popen = subprocess.Popen(command, pass_fds=[theirs.fileno()], cwd=ROOT)
        theirs.close()

    def start(self, job: Job) -> Process:
        ours, theirs = socket.socketpair()
        stderr = tempfile.TemporaryFile()  # noqa: SIM115 - the process closes it
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
            raise AssertionError(f"no start: {process.wait()}: {process.stderr()}") from None
        return process

    def refusal(self, job: Job) -> tuple[int, str]:
        """Start a process that is expected to end by itself; answer its code and last words."""
        process = self.start(job)
        for _ in process.link.drain():
            pass
        code, words = process.wait(), process.stderr()
        process.close()
        return code, words

    def inspect(self, job: Job) -> tuple[list[object], int, str]:
        """Read a directory wholly, in two lives; answer what was found, the code and last words."""
        process = self.start(replace(job, name="inspect"))
        found = [value for number, value in process.link.drain() if number == READY]
        code, words = process.wait(), process.stderr()
        process.close()
        return found, code, words

    def close(self) -> None:
        self._control.close()
        self._popen.wait(timeout=10)


def start_alone(job: Job, prefix: list[str]) -> Process:
    """Start a job as a program of its own, under another program such as strace."""
    ours, theirs = socket.socketpair()
    stderr = tempfile.TemporaryFile()  # noqa: SIM115 - the process closes it
    command = [*prefix, sys.executable, "-m", _CHILD]
    popen = subprocess.Popen(
        [*command, str(theirs.fileno()), pickle.dumps(job).hex()],
        pass_fds=[theirs.fileno()],
        stderr=stderr,
        cwd=ROOT,
    )
    theirs.close()
    return Process(popen.pid, Link(ours), stderr, lambda _pid: popen.wait())
