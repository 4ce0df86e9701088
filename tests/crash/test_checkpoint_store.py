"""The file of the checkpoint of a running server: failing writes, and readers that are killed."""

import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner

from semel.cli.doctor import doctor_command
from semel.journal.lmdb_store import LmdbStore
from semel.model.commands import Append, Batch, Create
from semel.model.outcomes import Appended
from tests.crash.conftest import Report
from tests.crash.directory import CHECKPOINT, checkpoints, page_count
from tests.crash.process import ROOT, Process, Zygote, start_alone
from tests.crash.protocol import Hangup, Job, Text
from tests.crash.script import do

pytestmark = pytest.mark.crash

CHECKPOINTS: Final = 6


def job_of(path: Path) -> Job:
    return Job("serve", str(path), segment_bytes=64 * 1024)


def write(process: Process, number: int) -> None:
    outcome = process.link.ask("submit", Append("s", 0, "text/plain", Batch(b"%d" % number)))
    assert isinstance(outcome, Appended), outcome


def messages(process: Process) -> list[int]:
    text = process.link.ask("read", "s", 0)
    assert isinstance(text, Text), text
    return [int(message) for message in text.messages]


def verify(path: Path) -> int:
    arguments = ["--verify", "--json", "--data", str(path)]
    result = CliRunner().invoke(doctor_command, arguments, standalone_mode=False)
    assert result.exception is None, result.output
    return int(result.return_value)


# ---- failing writes ------------------------------------------------------------------------------


# rows: P25
@pytest.mark.parametrize("at_call", ["1", "2", "3", "4", "2+", "3+"])
@pytest.mark.parametrize("fault", ["error=ENOSPC", "error=EIO", "retval=10"])
def test_no_failing_write_of_the_checkpoint_is_called_corruption(
    zygote: Zygote, tmp_path: Path, fault: str, at_call: str
) -> None:
    """LMDB refuses all calls after a failed write of a meta page.

    The server opens the file again and goes on, or it ends with 74. Nothing is lost.
    """
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    path = tmp_path / "data"
    process = zygote.serve(job_of(path))
    do(process, Create("s", 0, "i", "text/plain"))
    process.link.ask("close")
    process.close()
    inject = f"inject=pwrite64:{fault}:when={at_call}"  # only LMDB uses this call
    prefix = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=pwrite64", "-e", inject]
    process = start_alone(job_of(path), prefix)
    written = 0
    is_alive = False
    with suppress(Hangup):
        process.ready()
        for number in range(CHECKPOINTS):
            write(process, number)
            written += 1
            process.link.ask("checkpoint")
            assert messages(process) == list(range(written))
        is_alive = True
        process.link.ask("close")
    code = process.wait()
    assert code in (0, 74), f"{code}: {process.stderr()}"
    if fault == "error=ENOSPC" and "+" not in at_call:
        assert is_alive, f"a full disk must not end the process: {process.stderr()}"
    process.close()
    assert verify(path) == 0
    process = zygote.serve(job_of(path))
    assert messages(process) == list(range(written))
    before = checkpoints(path)
    write(process, written)
    process.link.ask("checkpoint")
    assert checkpoints(path) > before
    process.close()


COMMIT: Final = """
import sys
import lmdb
from semel.journal.lmdb_store import LmdbStore
from semel.journal.store import StoreFull

store = LmdbStore(sys.argv[1])
store.make_writable()
broken = []

def value():
    with store.read() as view:
        return view.get("keys", b"key")

def read_and_reopen():
    try:
        store._env.begin().abort()
    except lmdb.PanicError:
        broken.append(True)
    assert value() == b"old", value()
    store._reopen_if_broken()

writer = store.write()
writer.put("keys", b"key", b"new")
writer._reopen = read_and_reopen
try:
    writer.commit()
except StoreFull:
    assert value() == b"old", value()
    writer = store.write()
    writer.put("keys", b"key", b"new")
    writer.commit()
assert value() == b"new", value()
print("broken" if broken else "usable")
"""


def test_a_read_between_a_failed_commit_and_the_reopen_gets_the_old_rows(tmp_path: Path) -> None:
    """LMDB refuses reads too after a failed write of a meta page. Then the read opens the file."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    found = []
    for at_call in (1, 2, 3):
        path = tmp_path / f"{at_call}.mdb"
        store = LmdbStore(str(path))
        store.make_writable()
        writer = store.write()
        writer.put("keys", b"key", b"old")
        writer.commit()
        store.close()
        inject = f"inject=pwrite64:error=ENOSPC:when={at_call}"
        prefix = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=pwrite64", "-e", inject]
        done = subprocess.run(
            [*prefix, sys.executable, "-c", COMMIT, str(path)],
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert done.returncode == 0, f"call {at_call}: {done.stderr}"
        found.append(done.stdout.strip())
    assert "broken" in found, found


# ---- readers that are killed ---------------------------------------------------------------------

READER: Final = """
import sys
from semel.cli.read_only import open_store
store = open_store(sys.argv[1], is_shared=True)
with store.read() as view:
    assert view.get("meta", b"position")
    print("reading", flush=True)
    sys.stdin.read()
"""


def pages_after_checkpoints(zygote: Zygote, path: Path, *, reader_is_killed: bool) -> int:
    """Return the number of pages of the file after 60 checkpoints of a running server."""
    process = zygote.serve(job_of(path))
    for number in range(60):
        do(process, Create(f"s-{number}", 0, "i", "text/plain"))
    process.link.ask("checkpoint")
    if reader_is_killed:
        reader = subprocess.Popen(
            [sys.executable, "-c", READER, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert reader.stdout is not None
        assert reader.stdin is not None
        assert reader.stdout.readline() == b"reading\n"
        reader.kill()
        reader.wait()
        reader.stdout.close()
        reader.stdin.close()
    for _ in range(60):
        for number in range(60):
            do(process, Append(f"s-{number}", 0, "text/plain", Batch(b"x")))
        process.link.ask("checkpoint")
    process.close()
    return page_count(path / CHECKPOINT)


def test_a_reader_that_is_killed_does_not_make_the_checkpoint_grow(
    zygote: Zygote, tmp_path: Path, figure: Report
) -> None:
    control = pages_after_checkpoints(zygote, tmp_path / "control", reader_is_killed=False)
    found = pages_after_checkpoints(zygote, tmp_path / "data", reader_is_killed=True)
    figure(f"a killed reader: {found} pages after 60 checkpoints, {control} without it")
    assert found <= control + control // 4
