"""The first milliseconds of a new directory: whatever power loss leaves, the next start succeeds.

strace lists the system calls of a first start, and kills the process at each of them. Then the
files that were not synced at that moment lose their content in several ways.
"""

import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Final

import pytest

from tests.crash.conftest import Report
from tests.crash.directory import doctor_in_process, quick_directory
from tests.crash.process import Zygote, start_alone
from tests.crash.protocol import Hangup, Job
from tests.crash.script import small

pytestmark = pytest.mark.crash

# The calls that change files or names, or make changes durable.
CALLS: Final = (
    "pwrite64",
    "pwritev",
    "ftruncate",
    "fallocate",
    "fsync",
    "fdatasync",
    "rename",
    "renameat",
    "unlink",
    "unlinkat",
)
_LINE: Final = re.compile(r"^(?:\d+ +)?(\w+)\((.*)\) += +(-?\d+)")
_FD: Final = re.compile(r"\d+<([^>]*)>")
_QUOTED: Final = re.compile(r'"([^"]*)"')
# LMDB maps its lock file, and writes it again at each start. Its content has no meaning.
IGNORED: Final = ("LOCK", "checkpoint.mdb-lock")


@pytest.fixture
def directory() -> Iterator[Path]:
    with quick_directory() as path:
        yield path


def trace(job: Job, log: Path, *more: str) -> int:
    """Start a server on a new directory under strace until it is ready; return its exit code."""
    command = ["strace", "-f", "-y", "-qq", "-s", "0", "-o", str(log), "-e"]
    process = start_alone(job, [*command, f"trace={','.join(CALLS)}", *more])
    try:
        process.ready()
        return 0
    except Hangup:
        return process.wait()
    finally:
        process.link.close()  # the server ends when its connection does
        process.wait()
        process.close()


class Call:
    """One system call on a file of the directory."""

    def __init__(self, name: str, files: list[str], ordinal: int) -> None:
        self.name = name
        self.files = files
        self.ordinal = ordinal  # the number of the call among all calls of this name


def calls_of(log: Path, path: Path) -> list[Call]:
    """Return the calls on files of the directory, in their order."""
    counts: dict[str, int] = {}
    found = []
    for line in log.read_text().splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        name, arguments, result = match.groups()
        counts[name] = counts.get(name, 0) + 1
        folders = [f for f in _FD.findall(arguments) if f.startswith(str(path))]
        names = [q for q in _QUOTED.findall(arguments) if q]
        files = [
            n if n.startswith("/") else f"{folders[0]}/{n}" for n in names if folders or n[0] == "/"
        ]
        files = files or folders
        if any(f.startswith(str(path)) for f in files) and int(result) >= 0:
            found.append(Call(name, files, counts[name]))
    return found


def unsynced(calls: list[Call]) -> set[str]:
    """Return the names of the files that are not durable after these calls."""
    dirty: dict[str, bool] = {}
    for call in calls:
        file = call.files[0]
        if call.name in ("fsync", "fdatasync"):
            dirty.pop(file, None)
        elif call.name.startswith("rename"):
            if dirty.pop(file, False):
                dirty[call.files[1]] = True
        elif call.name.startswith("unlink"):
            dirty.pop(file, None)
        else:
            dirty[file] = True
    return {os.path.basename(file) for file in dirty if os.path.basename(file) not in IGNORED}


LOSSES: Final[dict[str, Callable[[Path], object]]] = {
    "none": lambda path: None,
    "all": lambda path: path.write_bytes(b""),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "garbage": lambda path: path.write_bytes(Random(3).randbytes(path.stat().st_size)),
    "first half": lambda path: os.truncate(path, path.stat().st_size // 2),
    "name": lambda path: path.unlink(),
}


def test_a_new_directory_starts_again_wherever_the_power_failed(
    zygote: Zygote, directory: Path, figure: Report
) -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    path = directory / "data"
    assert trace(small(path), directory / "log") == 0
    calls = calls_of(directory / "log", path)
    assert {"fsync", "pwrite64"} <= {call.name for call in calls}, "strace shows no calls"
    images = damaged = 0
    for number, call in enumerate(calls):
        shutil.rmtree(path)
        inject = f"inject={call.name}:signal=SIGKILL:when={call.ordinal}"
        code = trace(small(path), directory / "log", "-e", inject)
        assert code != 0, f"not killed at {call.name} {call.ordinal}"
        # A call may be done or not when the signal arrives. Files that it changes may be lost.
        lost = unsynced([*calls[:number], call])
        for name, lose in LOSSES.items():
            image = shutil.copytree(path, directory / "image") if path.exists() else path
            for file in sorted(lost):
                if image is not path and (image / file).is_file():
                    lose(image / file)
                    damaged += name != "none"
            verdict = doctor_in_process(image) if image.exists() else 66
            assert verdict in (0, 66), f"{call.name} of {call.files}, lost {name}: {verdict}"
            found, code, stderr = zygote.inspect(small(directory / "image"))
            assert code == 0, f"killed at {call.name} of {call.files}, lost {name}: {stderr}"
            assert len(found) == 2
            shutil.rmtree(directory / "image")
            images += 1
    assert damaged > 10
    figure(f"a new directory: {len(calls)} calls, {images} images after a power loss, 0 refused")


# ---- rights --------------------------------------------------------------------------------------


def modes(path: Path) -> dict[str, str]:
    return {each.name: oct(stat.S_IMODE(each.stat().st_mode)) for each in (path, *path.iterdir())}


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o277])  # the last one removes rights
def test_only_the_owner_has_rights_to_what_is_created(
    zygote: Zygote, directory: Path, umask: int
) -> None:
    path = directory / "data"
    old = os.umask(umask)
    try:
        fresh = Zygote()  # a process keeps the umask with which it was started
    finally:
        os.umask(old)
    job = Job("serve", str(path), segment_bytes=8192, reserve_bytes=8192)
    process = fresh.serve(job)
    process.link.ask("checkpoint")
    found = modes(path)
    process.link.ask("close")
    process.close()
    fresh.close()
    assert found.pop("data") == "0o700"
    assert set(found.values()) == {"0o600"}, found
    assert {"LOCK", "identity", "checkpoint.mdb", "checkpoint.mdb-lock", "reserve.tmp"} < {*found}
    del zygote


def test_the_rights_of_an_existing_directory_are_not_changed(
    zygote: Zygote, directory: Path
) -> None:
    path = directory / "data"
    zygote.inspect(small(path))
    path.chmod(0o755)
    for each in path.iterdir():
        each.chmod(0o644)
    process = zygote.serve(small(path))
    process.link.ask("checkpoint")
    process.close()
    found = modes(path)
    assert found.pop("data") == "0o755"
    assert found.pop("next.tmp") == "0o600", "this file is made at every start"
    assert set(found.values()) == {"0o644"}, found
