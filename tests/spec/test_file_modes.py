"""The rights to the data directory and its files: only their owner has any."""

import os
import shlex
import signal
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.http.harness import eventually
from tests.spec.process import PATIENCE_SECONDS, SEMEL, Server

SMALL = ("--segment-bytes", "8192", "--checkpoint-bytes", "4096", "--checkpoint-seconds", "0.05")
RESERVE = ("--reserve-bytes", "65536")  # the last one of an option counts


@contextmanager
def umask(mask: int) -> Iterator[None]:
    """Set the mask that a process inherits."""
    earlier = os.umask(mask)
    try:
        yield
    finally:
        os.umask(earlier)


@contextmanager
def started(data: Path, *options: str, mask: int = 0o022) -> Iterator[Server]:
    with umask(mask):
        server = Server(data, *SMALL, *options)
    try:
        yield server
    finally:
        server.kill()


def modes(path: Path) -> dict[str, str]:
    """Return the rights to everything in a directory. The server can remove a file meanwhile."""
    found = {}
    for name in os.listdir(path):
        try:
            found[name] = oct(stat.S_IMODE((path / name).lstat().st_mode))
        except FileNotFoundError:
            continue
    return found


def check(path: Path) -> set[str]:
    """Check the rights to a directory and all its files; return the names of the files."""
    assert oct(stat.S_IMODE(path.stat().st_mode)) == "0o700"
    found = modes(path)
    assert set(found.values()) == {"0o600"}, found
    return set(found)


def segments(path: Path) -> set[str]:
    return {name for name in os.listdir(path) if name.endswith(".seg")}


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077, 0o277])
def test_only_the_owner_has_rights_whatever_the_umask_is(tmp_path: Path, mask: int) -> None:
    data = tmp_path / "above" / "data"
    (tmp_path / "above").mkdir()
    with started(data, *RESERVE, mask=mask) as server:
        first = check(data)
        assert {"LOCK", "identity", "checkpoint.mdb", "checkpoint.mdb-lock"} < first
        stream = server.stream("a")
        stream.create()
        rolled = segments(data)
        for _ in range(40):
            assert stream.post(b"x" * 1000).status == 204
            check(data)
        assert segments(data) - rolled, "no new segment"
        made = "semel_checkpoints_total 0\n"
        assert eventually(lambda: made not in server.ask("GET", "/metrics").body.decode())
        check(data)
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
    check(data)
    with started(data, *RESERVE, mask=mask) as server:
        check(data)
        assert server.stream("a").post(b"y").status == 204
        assert server.stderr == ""
    check(data)  # after SIGKILL
    with started(data, *RESERVE, mask=mask) as server:
        assert server.stream("a").post(b"y").status == 204
        check(data)
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
    with umask(mask):
        restore = [str(SEMEL), "restore", "--data", str(data)]
        subprocess.run(restore, check=True, timeout=PATIENCE_SECONDS, capture_output=True)
    check(data)


def test_a_directory_that_others_may_read_is_reported_and_not_changed(tmp_path: Path) -> None:
    data = tmp_path / "my data"
    data.mkdir()
    for mode, is_reported in ((0o755, True), (0o750, True), (0o711, True), (0o700, False)):
        data.chmod(mode)
        with started(data) as server:
            assert server.ask("GET", "/health").status == 200
            assert (f"run: chmod 700 {shlex.quote(str(data))}" in server.stderr) == is_reported
            assert ("other users have rights" in server.stderr) == is_reported
        assert stat.S_IMODE(data.stat().st_mode) == mode
        assert set(modes(data).values()) == {"0o600"}, "the files are closed to others"
