"""A start that is refused changes no file, and its exit code tells damage from a refused call.

Exit code 65 means that the data is damaged. If the operating system refused a call, the exit code
is 74: the data may be sound, and restoring a copy would be wrong.
"""

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from tests.crash.directory import (
    CHECKPOINT,
    IDENTITY,
    checkpoints,
    copy,
    doctor_in_process,
    flip,
    segments,
    snapshot,
)
from tests.crash.mounts import FragileDisk, mount, small_disk
from tests.crash.process import ROOT, Zygote
from tests.crash.protocol import Hangup, Job
from tests.crash.script import build, small

pytestmark = pytest.mark.crash

NOBODY: Final = 65_534
KIB: Final = 1024
LOCK: Final = "LOCK"
CHECKPOINT_LOCK: Final = "checkpoint.mdb-lock"
PAGE_BYTES: Final = 4096
SEED: Final = int(os.environ.get("SEMEL_SEED", "1"))
BOTH = pytest.mark.parametrize("state", ["closed", "killed"])


def assert_refused(zygote: Zygote, job: Job, code: int, *expected: str) -> None:
    """Expect this exit code, these texts in stderr, and an unchanged directory."""
    before = snapshot(Path(job.path))
    _, found, stderr = zygote.inspect(job)
    assert found == code, f"{found}: {stderr}"
    for text in expected:
        assert text in stderr
    after = snapshot(Path(job.path))
    changed = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    assert not changed, f"{stderr}: changed {changed}"


def files_of(path: Path) -> dict[str, tuple[object, ...]]:
    """Return everything about the files, but not about the directory itself.

    A start that needs space creates files and removes them again, which changes the directory's
    time of modification.
    """
    found = snapshot(path)
    del found[path.name]
    return found


def assert_unchanged(path: Path, before: dict[str, tuple[object, ...]], what: str) -> None:
    after = files_of(path)
    changed = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    assert not changed, f"{what}: changed {changed}"


def damage_a_meta_page(path: Path) -> None:
    """Overwrite the meta page of the older checkpoint. A start repairs it."""
    older = 1 - checkpoints(path) % 2
    with (path / CHECKPOINT).open("r+b") as file:
        file.seek(older * PAGE_BYTES)
        file.write(b"\xff" * 200)


def truncate(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


# ---- the data is damaged: 65 ---------------------------------------------------------------------


def first_segment(path: Path) -> Path:
    return segments(path)[0]


def last_segment(path: Path) -> Path:
    return segments(path)[-1]


def remove_segments(path: Path) -> None:
    for segment in segments(path):
        segment.unlink()


def remove_journal(path: Path) -> None:
    """Leave the checkpoint, as if the journal were on a volume that is not mounted."""
    remove_segments(path)
    (path / IDENTITY).unlink()


def remove_locks(path: Path) -> None:
    (path / LOCK).unlink()
    (path / CHECKPOINT_LOCK).unlink(missing_ok=True)


def keep_only_checkpoint(path: Path) -> None:
    remove_journal(path)
    remove_locks(path)
    for name in ("next.tmp", "reserve.tmp"):
        (path / name).unlink(missing_ok=True)


def swap_segments(path: Path) -> None:
    one, other, *_ = segments(path)
    one.rename(path / "swap")
    other.rename(one)
    (path / "swap").rename(other)


def foreign_identity(path: Path) -> None:
    (path / IDENTITY).write_bytes((path.parent / "foreign" / IDENTITY).read_bytes())


def newer_version(path: Path) -> None:
    data = bytearray((path / IDENTITY).read_bytes())
    data[11] = 9
    (path / IDENTITY).write_bytes(data)


def empty_first_segment_beside_others(path: Path) -> None:
    (path / IDENTITY).unlink()
    first = first_segment(path)
    first.write_bytes(bytes(first.stat().st_size))


DAMAGES: Final[dict[str, tuple[Callable[[Path], Any], str]]] = {
    "identity missing": (lambda path: (path / IDENTITY).unlink(), IDENTITY),
    "identity truncated": (lambda path: truncate(path / IDENTITY, 20), IDENTITY),
    "identity flipped": (lambda path: flip(path / IDENTITY, 100), IDENTITY),
    "identity of another directory": (foreign_identity, ""),
    "newer version": (newer_version, IDENTITY),
    "segments missing": (remove_segments, "missing"),
    "first segment missing": (lambda path: first_segment(path).unlink(), "missing"),
    "identity and segments missing": (remove_journal, "not mounted"),
    "everything but the checkpoint missing": (keep_only_checkpoint, "not mounted"),
    "identity missing beside an empty first segment": (empty_first_segment_beside_others, IDENTITY),
    "swapped segments": (swap_segments, ".seg"),
    "first segment flipped": (lambda path: flip(first_segment(path), 300), ".seg"),
    "last segment truncated": (lambda path: truncate(last_segment(path), 100), ".seg"),
    "last segment empty": (lambda path: truncate(last_segment(path), 0), ".seg"),
    "checkpoint of zeros": (
        lambda path: (path / CHECKPOINT).write_bytes(bytes(40_000)),
        CHECKPOINT,
    ),
    "checkpoint of noise": (
        lambda path: (path / CHECKPOINT).write_bytes(Random(SEED).randbytes(40_000)),
        CHECKPOINT,
    ),
}


@BOTH
@pytest.mark.parametrize("has_locks", [True, False])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_directory_is_refused_and_no_file_is_changed(
    zygote: Zygote,
    directory: Path,
    trial: Callable[[str], Path],
    state: str,
    damage: str,
    has_locks: bool,
) -> None:
    if not (directory / "foreign").exists():
        build(zygote, directory / "foreign", is_closed=True)
    path = trial(state)
    if not has_locks:
        remove_locks(path)
        # The lock files are made again only by a start that is not refused.
    act, expected = DAMAGES[damage]
    if has_locks or damage != "everything but the checkpoint missing":
        act(path)
        assert_refused(zygote, small(path), 65, expected)


def cuts(size: int) -> list[int]:
    """Return every page border of a file, one byte on either side, and some other lengths."""
    borders = range(PAGE_BYTES, size, PAGE_BYTES)
    near = [border + delta for border in borders for delta in (-1, 0, 1)]
    return sorted({1, 100, *near, *Random(SEED).sample(range(1, size), 40)})


# rows: P19
@BOTH
def test_a_cut_checkpoint_is_refused_unchanged_or_opened_and_doctor_agrees(
    zygote: Zygote, trial: Callable[[str], Path], state: str
) -> None:
    """`doctor --verify` calls a checkpoint sound only if the server starts with it."""
    size = (trial(state) / CHECKPOINT).stat().st_size
    refused = 0
    for cut in cuts(size):
        path = trial(state)
        truncate(path / CHECKPOINT, cut)
        verdict = doctor_in_process(path)
        before = snapshot(path)
        _, code, stderr = zygote.inspect(small(path))
        assert code in (0, 65), f"cut at {cut}: {code}: {stderr}"
        assert verdict == code, f"cut at {cut}: doctor says {verdict}, the server {code}: {stderr}"
        if code:
            refused += 1
            assert snapshot(path) == before, f"cut at {cut}"
    assert refused > 20


# ---- another process owns the directory: 73 ------------------------------------------------------


def wait_until_stopped(pid: int) -> None:
    """Wait until no thread of the process runs. A signal takes effect a moment after it is sent."""
    deadline = time.monotonic() + 60
    while {stat.read_text().rpartition(")")[2].split()[0] for stat in stats_of(pid)} != {"T"}:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def stats_of(pid: int) -> list[Path]:
    return list(Path(f"/proc/{pid}/task").glob("*/stat"))


def test_a_second_server_changes_no_file(zygote: Zygote, trial: Callable[[str], Path]) -> None:
    path = trial("closed")
    first = zygote.serve(small(path))
    first.link.ask("settle")
    first.signal(signal.SIGSTOP)  # so that only the second server could change a file
    wait_until_stopped(first.pid)
    try:
        assert_refused(zygote, small(path), 73, "another process")
    finally:
        first.signal(signal.SIGCONT)
        first.close()


# ---- the operating system refuses: 74 ------------------------------------------------------------


FILES: Final = (LOCK, IDENTITY, CHECKPOINT, CHECKPOINT_LOCK, "first", "last")


def file_of(path: Path, name: str) -> Path:
    match name:
        case "first":
            return first_segment(path)
        case "last":
            return last_segment(path)
    return path / name


def give_away(path: Path) -> None:
    """Give the directory and its files to a user without the rights of root."""
    for each in (path, *path.iterdir()):
        os.chown(each, NOBODY, NOBODY)


def as_nobody(path: Path) -> Job:
    return replace(small(path), user_id=NOBODY)


# rows: P25
@pytest.mark.root
@BOTH
@pytest.mark.parametrize("mode", [0o000, 0o444])
@pytest.mark.parametrize("name", FILES)
def test_a_file_without_rights_is_refused_by_its_name_and_not_called_corrupt(
    zygote: Zygote, trial: Callable[[str], Path], state: str, name: str, mode: int
) -> None:
    path = trial(state)
    if name == CHECKPOINT_LOCK:
        (path / name).touch()
    give_away(path)
    file = file_of(path, name)
    os.chown(file, 0, 0)
    file.chmod(mode)
    assert_refused(zygote, as_nobody(path), 74, file.name, "Permission denied", "chown")


@pytest.mark.root
@pytest.mark.parametrize("mode", [0o000, 0o555])
@pytest.mark.parametrize("has_locks", [True, False])
@BOTH
def test_a_directory_without_rights_is_refused_and_not_called_corrupt(
    zygote: Zygote, trial: Callable[[str], Path], state: str, has_locks: bool, mode: int
) -> None:
    path = trial(state)
    (path / CHECKPOINT_LOCK).touch()
    give_away(path)
    if not has_locks:
        remove_locks(path)
    os.chown(path, 0, 0)
    path.chmod(mode)
    assert_refused(zygote, as_nobody(path), 74, "Permission denied", "chown")


@pytest.mark.root
def test_spare_files_without_rights_are_made_again(
    zygote: Zygote, trial: Callable[[str], Path]
) -> None:
    path = trial("killed")
    (path / "reserve.tmp").write_bytes(bytes(100))
    give_away(path)
    for name in ("next.tmp", "reserve.tmp"):
        os.chown(path / name, 0, 0)
        (path / name).chmod(0o000)
    found, code, stderr = zygote.inspect(as_nobody(path))
    assert (len(found), code) == (2, 0), stderr


@BOTH
def test_too_little_address_space_is_refused_and_not_called_corrupt(
    zygote: Zygote, trial: Callable[[str], Path], state: str
) -> None:
    """The checkpoint is mapped with 64 GiB of addresses, which `ulimit -v` forbids."""
    limits = ((resource.RLIMIT_AS, 8 * KIB**3),)
    job = replace(small(trial(state)), resource_limits=limits)
    assert_refused(zygote, job, 74, CHECKPOINT, "Cannot allocate memory", "ulimit -v")


def test_too_little_address_space_for_a_new_directory_is_not_called_corrupt(
    zygote: Zygote, tmp_path: Path
) -> None:
    limits = ((resource.RLIMIT_AS, 8 * KIB**3),)
    job = small(tmp_path / "data")
    _, code, stderr = zygote.inspect(replace(job, resource_limits=limits))
    assert code == 74, stderr
    assert "ulimit -v" in stderr
    found, code, stderr = zygote.inspect(job)
    assert (len(found), code) == (2, 0), stderr


@BOTH
def test_too_few_files_are_refused_and_not_called_corrupt(
    zygote: Zygote, trial: Callable[[str], Path], state: str
) -> None:
    codes = []
    for limit in range(5, 60):
        path = trial(state)
        job = replace(small(path), resource_limits=((resource.RLIMIT_NOFILE, limit),))
        _, code, stderr = zygote.inspect(job)
        if "asyncio" in stderr and "Traceback" in stderr:
            continue  # the interpreter itself needs more files
        assert code in (0, 74), f"{limit} files: {code}: {stderr}"
        if code:
            assert "ulimit -n" in stderr, stderr
        codes.append(code)
        _, code, stderr = zygote.inspect(small(path))
        assert code == 0, f"after a start with {limit} files: {code}: {stderr}"
    assert codes.count(74) > 2, codes
    assert codes[-1] == 0, codes


@pytest.mark.parametrize("size", [1000, 5000, 10_000, 50_000])
def test_a_limit_on_the_size_of_files_is_refused_for_a_new_directory(
    zygote: Zygote, tmp_path: Path, size: int
) -> None:
    path = tmp_path / "data"
    limits = ((resource.RLIMIT_FSIZE, size),)
    _, code, stderr = zygote.inspect(replace(small(path), resource_limits=limits))
    assert code in (0, 74), f"{code}: {stderr}"
    if code:
        assert "ulimit -f" in stderr, stderr
    assert code == 74 or size == 50_000
    _, code, stderr = zygote.inspect(small(path))
    assert code == 0, stderr


def empty_the_lock_file(path: Path) -> None:
    (path / CHECKPOINT_LOCK).write_bytes(b"")


def damage_a_meta_page_and_remove_locks(path: Path) -> None:
    damage_a_meta_page(path)
    remove_locks(path)


def leave_a_rewritten_segment(path: Path) -> None:
    """Leave what a recovery leaves that was killed."""
    (path / "rewrite.tmp").write_bytes(b"x" * 100)


CONDITIONS: Final[dict[str, Callable[[Path], None]]] = {
    "as it was": lambda path: None,
    "no lock files": remove_locks,
    "empty lock file": empty_the_lock_file,
    "damaged meta page": damage_a_meta_page,
    "damaged meta page and no lock files": damage_a_meta_page_and_remove_locks,
    "interrupted recovery": leave_a_rewritten_segment,
}
EACH_CONDITION = pytest.mark.parametrize("condition", CONDITIONS)


@EACH_CONDITION
@pytest.mark.parametrize(("size", "segment_bytes"), [(1000, 8192), (5000, 8192), (8192, 65536)])
@BOTH
def test_a_limit_on_the_size_of_files_is_refused_and_no_file_is_changed(
    zygote: Zygote,
    trial: Callable[[str], Path],
    state: str,
    size: int,
    segment_bytes: int,
    condition: str,
) -> None:
    path = trial(state)
    (path / "reserve.tmp").write_bytes(bytes(3000))
    CONDITIONS[condition](path)
    before = files_of(path)
    job = replace(small(path), segment_bytes=segment_bytes)
    limits = ((resource.RLIMIT_FSIZE, size),)
    _, code, stderr = zygote.inspect(replace(job, resource_limits=limits))
    assert code == 74, stderr
    assert "ulimit -f" in stderr, stderr
    assert_unchanged(path, before, stderr)
    found, code, stderr = zygote.inspect(job)
    assert (len(found), code) == (2, 0), stderr
    assert not (path / "rewrite.tmp").exists()


@pytest.mark.parametrize("size", [10_000, 50_000])
@BOTH
def test_a_limit_above_the_size_of_a_segment_is_not_called_corrupt(
    zygote: Zygote, trial: Callable[[str], Path], state: str, size: int
) -> None:
    """The server may start, and end later because the checkpoint reaches the limit."""
    path = trial(state)
    limits = ((resource.RLIMIT_FSIZE, size),)
    _, code, stderr = zygote.inspect(replace(small(path), resource_limits=limits))
    assert code in (0, 74), f"{code}: {stderr}"
    if code:
        assert "ulimit -f" in stderr, stderr
    assert code == 74 or size == 50_000
    found, code, stderr = zygote.inspect(small(path))
    assert (len(found), code) == (2, 0), stderr


@BOTH
def test_a_reserve_above_the_limit_on_the_size_of_files_is_refused_and_no_file_is_changed(
    zygote: Zygote, trial: Callable[[str], Path], state: str
) -> None:
    path = trial(state)
    before = files_of(path)
    limits = ((resource.RLIMIT_FSIZE, 100_000),)
    job = replace(small(path), reserve_bytes=200_000, resource_limits=limits)
    _, code, stderr = zygote.inspect(job)
    assert code == 74, stderr
    assert "ulimit -f" in stderr, stderr
    assert_unchanged(path, before, stderr)


@pytest.mark.root
@BOTH
def test_a_read_only_file_system_is_refused_by_name(
    zygote: Zygote, tmp_path: Path, trial: Callable[[str], Path], state: str
) -> None:
    with small_disk(tmp_path / "disk", 4 * KIB**2) as disk:
        path = copy(trial(state), disk / "data")
        mount(disk, "-o", "remount,ro")
        assert_refused(zygote, small(path), 74, "Read-only file system", str(path))


@pytest.mark.root
@BOTH
@EACH_CONDITION
@pytest.mark.parametrize("file_system", ["tmpfs", "ext4"])
def test_a_full_disk_is_never_called_corrupt_at_the_start(
    zygote: Zygote,
    tmp_path: Path,
    trial: Callable[[str], Path],
    state: str,
    condition: str,
    file_system: str,
) -> None:
    """A start succeeds, or is refused and changes no file. No signal ends the process."""
    with mounted(tmp_path, file_system) as disk:
        for left in (0, 4, 8, 12, 16, 24, 40):
            path = copy(trial(state), disk / "data")
            expected = dump_of(zygote, copy(path, tmp_path / "copy"))
            CONDITIONS[condition](path)
            fill_up(disk, left)
            before = files_of(path)
            process = zygote.start(small(path))
            try:
                process.ready()
                assert process.link.ask("dump") == expected
            except Hangup:
                assert process.wait() == 74, f"{left} KiB left: {process.stderr()}"
                assert "free" in process.stderr()
                assert_unchanged(path, before, f"{left} KiB left: {process.stderr()}")
            process.close()
            (disk / "filler").unlink()
            assert dump_of(zygote, path) == expected


@pytest.mark.root
@EACH_CONDITION
@pytest.mark.parametrize("kept", [(), ("next.tmp",), ("reserve.tmp",), ("next.tmp", "reserve.tmp")])
def test_a_full_disk_without_room_for_recovery_is_refused_and_no_file_is_changed(
    zygote: Zygote,
    tmp_path: Path,
    trial: Callable[[str], Path],
    condition: str,
    kept: tuple[str, ...],
) -> None:
    """The spare segment and the reserve together have less space than recovery needs."""
    with small_disk(tmp_path / "disk", 2 * KIB**2) as disk:
        path = copy(trial("killed"), disk / "data")
        expected = dump_of(zygote, copy(path, tmp_path / "copy"))
        (path / "next.tmp").unlink()
        for name in kept:
            (path / name).write_bytes(b"\xa5" * 4000)
        CONDITIONS[condition](path)
        fill_up(disk, 0)
        before = files_of(path)
        _, code, stderr = zygote.inspect(small(path))
        assert code == 74, stderr
        assert "free" in stderr, stderr
        assert_unchanged(path, before, stderr)
        (disk / "filler").unlink()
        assert dump_of(zygote, path) == expected


@pytest.mark.root
@pytest.mark.parametrize("name", ["next.tmp", "reserve.tmp", "rewrite.tmp"])
@pytest.mark.parametrize("size", [1, 2 * 8192])
def test_recovery_on_a_full_disk_uses_the_space_of_a_file_that_has_any_content(
    zygote: Zygote, tmp_path: Path, trial: Callable[[str], Path], name: str, size: int
) -> None:
    """With the last free bytes the file of 1 byte is enlarged. The larger file is cut."""
    with small_disk(tmp_path / "disk", 2 * KIB**2) as disk:
        path = copy(trial("killed"), disk / "data")
        expected = dump_of(zygote, copy(path, tmp_path / "copy"))
        (path / "next.tmp").unlink()
        (path / name).write_bytes(last_segment(path).read_bytes().ljust(size, b"\xa5")[-size:])
        fill_up(disk, 4 if size == 1 else 0)
        assert dump_of(zygote, path) == expected
        assert last_segment(path).stat().st_size == 8192
        (disk / "filler").unlink()
        assert doctor_in_process(path) == 0


@contextmanager
def mounted(folder: Path, file_system: str) -> Iterator[Path]:
    if file_system == "tmpfs":
        with small_disk(folder / "disk", 2 * KIB**2) as disk:
            yield disk
        return
    fragile = FragileDisk(folder, "ext4", 8)
    fragile.plug_in()
    try:
        yield fragile.path
    finally:
        fragile.pull_out()


def dump_of(zygote: Zygote, path: Path) -> object:
    process = zygote.serve(small(path))
    try:
        return process.link.ask("dump")
    finally:
        process.close()


def fill_up(disk: Path, left_kib: int) -> None:
    with (disk / "filler").open("wb", buffering=0) as filler:
        try:
            while filler.write(bytes(4 * KIB)) == 4 * KIB:
                pass
        except OSError:
            pass
        filler.truncate(max(0, filler.tell() // KIB // 4 * 4 - left_kib) * KIB)


# ---- from the command line -----------------------------------------------------------------------


def semel(*arguments: str, prefix: tuple[str, ...] = ()) -> tuple[int, str]:
    done = subprocess.run(
        [*prefix, sys.executable, "-m", "semel", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    return done.returncode, done.stdout + done.stderr


def test_serve_says_what_to_do_if_the_address_space_is_limited(
    trial: Callable[[str], Path],
) -> None:
    path = trial("closed")
    before = snapshot(path)
    limited = ("bash", "-c", 'ulimit -v 8388608; exec "$@"', "limited")
    code, text = semel("serve", "--port", "0", "--data", str(path), prefix=limited)
    assert code == 74, text
    assert "ulimit -v" in text
    assert "Traceback" not in text
    assert snapshot(path) == before


def test_serve_with_too_few_files_never_calls_the_data_corrupt_or_the_port_wrong(
    trial: Callable[[str], Path],
) -> None:
    path = trial("closed")
    before = snapshot(path)
    for limit in range(5, 20):
        limited = ("bash", "-c", f'ulimit -n {limit}; exec "$@"', "limited")
        code, text = semel("serve", "--port", "0", "--data", str(path), prefix=limited)
        assert code == 74, f"{limit} files: {text}"
        assert "ulimit -n" in text
        assert len(text.splitlines()) == 1, f"{limit} files: {text}"
    assert snapshot(path) == before


def test_the_advice_for_a_full_disk_is_not_only_about_the_limit_on_the_size_of_files() -> None:
    script = """
import errno, resource
from semel.journal.disk import disk_failed
print(disk_failed("f", errno.ENOSPC))
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 40, 1 << 40))
print(disk_failed("f", errno.ENOSPC))
print(disk_failed("f", errno.EFBIG))
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    unlimited, full, limited = done.stdout.splitlines()
    assert "free space" in unlimited
    assert "ulimit" not in unlimited
    assert "free space" in full
    assert "ulimit -f" in full
    assert "free space" not in limited


# ---- commands that are run as root ---------------------------------------------------------------


def strangers(path: Path) -> list[str]:
    """Return the files that do not belong to the owner of the directory."""
    owner = path.stat()
    return [
        each.name
        for each in path.iterdir()
        if (each.stat().st_uid, each.stat().st_gid) != (owner.st_uid, owner.st_gid)
    ]


@pytest.mark.root
@BOTH
def test_a_restore_by_root_leaves_files_that_the_owner_can_use(
    zygote: Zygote, trial: Callable[[str], Path], state: str
) -> None:
    path = trial(state)
    remove_locks(path)
    give_away(path)
    code, text = semel("restore", "--data", str(path))
    assert code == 0, text
    assert not strangers(path)
    found, code, stderr = zygote.inspect(as_nobody(path))
    assert (len(found), code) == (2, 0), stderr


@pytest.mark.root
@pytest.mark.parametrize("state", ["closed", "killed", "no checkpoint", "new"])
def test_a_server_that_root_runs_once_leaves_files_that_the_owner_can_use(
    zygote: Zygote, trial: Callable[[str], Path], state: str
) -> None:
    path = trial(state if state in ("closed", "killed") else "closed")
    remove_locks(path)
    if state == "new":
        for each in path.iterdir():
            each.unlink()
    if state == "no checkpoint":  # a new directory with a finished journal
        for each in path.iterdir():
            each.unlink()
        found, code, stderr = zygote.inspect(small(path))
        assert (len(found), code) == (2, 0), stderr
        (path / CHECKPOINT).unlink()
    give_away(path)
    as_root = replace(small(path), reserve_bytes=8192)
    found, code, stderr = zygote.inspect(as_root)
    assert (len(found), code) == (2, 0), stderr
    assert not strangers(path)
    found, code, stderr = zygote.inspect(replace(as_root, user_id=NOBODY))
    assert (len(found), code) == (2, 0), stderr


@pytest.mark.root
@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("name", [*FILES, "directory"])
def test_doctor_does_not_call_a_file_corrupt_that_it_may_not_read(
    trial: Callable[[str], Path], name: str, verify: bool
) -> None:
    path = trial("closed")
    (path / CHECKPOINT_LOCK).touch()
    give_away(path)
    file = path if name == "directory" else file_of(path, name)
    os.chown(file, 0, 0)
    file.chmod(0o000)
    prefix = ("setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups")
    options = ("--verify",) if verify else ()
    code, text = semel("doctor", *options, "--data", str(path), prefix=prefix)
    if "failed to import" in text or "No module named" in text:
        pytest.skip("this user cannot read the installation")
    if name == CHECKPOINT_LOCK:
        assert code == 0, text  # doctor does not need it if no server uses the directory
        return
    assert code == 74, text
    assert "CORRUPT" not in text
    assert file.name in text
    assert "Permission denied" in text
