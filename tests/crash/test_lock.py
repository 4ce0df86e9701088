"""Only one server uses a directory, whatever happens to the lock file."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from semel.cli.read_only import is_in_use
from semel.journal.disk import LOCK_NAME, RealDisk
from semel.model.errors import DirectoryLocked
from tests.crash.directory import quick_directory
from tests.spec.process import PATIENCE_SECONDS, Server

pytestmark = pytest.mark.crash

_LOCKED: Final = 73
_DISK_FAILED: Final = 74
_CHECKED_SECONDS: Final = 2.5  # a server looks for its lock file every second


def remove(data: Path) -> None:
    (data / LOCK_NAME).unlink()


def replace(data: Path) -> None:
    """Put another file in the place of the lock file, as an editor or a restored copy does."""
    other = data / "other"
    other.touch()
    other.rename(data / LOCK_NAME)


def remove_and_create(data: Path) -> None:
    remove(data)
    (data / LOCK_NAME).touch()


def remove_one_of_two_links(data: Path) -> None:
    """Copy the directory with hard links, as backup tools do, and remove the original lock."""
    shutil.copytree(data, data.with_name("backup"), copy_function=os.link)
    remove(data)


def replace_with_a_symlink(data: Path) -> None:
    """Move the lock file away and leave a link to it."""
    (data / LOCK_NAME).rename(data.with_name("moved-lock"))
    (data / LOCK_NAME).symlink_to(data.with_name("moved-lock"))


MISTAKES: Final[tuple[Callable[[Path], None], ...]] = (
    remove,
    replace,
    remove_and_create,
    remove_one_of_two_links,
    replace_with_a_symlink,
)


@pytest.fixture
def data() -> Iterator[Path]:
    with quick_directory() as directory:
        yield directory / "data"


def append_until_it_ends(server: Server, count_max: int) -> int:
    """Append numbered messages; return how many were acknowledged."""
    for number in range(count_max):
        try:
            answer = server.stream("s").post(b"%d;" % number)
        except OSError:
            return number
        assert answer.status == 204, answer
    return count_max


def stored(data: Path) -> list[bytes]:
    """Return the messages that a new server finds. It must not end after its check of the lock."""
    server = Server(data)
    try:
        assert server.greeting, server.stderr
        time.sleep(_CHECKED_SECONDS)
        assert server.process.poll() is None, server.stderr
        return b"".join(server.stream("s").pages()).split(b";")[:-1]
    finally:
        server.kill()


def assert_link_is_refused(data: Path) -> None:
    """A lock file that is a symbolic link is refused by its name, and not changed."""
    target = (data / LOCK_NAME).readlink()
    server = Server(data)
    try:
        assert not server.greeting, "the server has started"
        assert server.wait() == _DISK_FAILED, server.stderr
        assert "LOCK is a symbolic link; remove it" in server.stderr
    finally:
        server.kill()
    assert (data / LOCK_NAME).readlink() == target


def assert_refused(path: Path) -> None:
    second = Server(path)
    try:
        assert not second.greeting, "the second server has started"
        assert second.wait() == _LOCKED, second.stderr
        assert "another process" in second.stderr
    finally:
        second.kill()


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_second_server_is_refused_after_every_mistake_with_the_lock_file(
    data: Path, mistake: Callable[[Path], None]
) -> None:
    first = Server(data)
    try:
        first.stream("s").create()
        first.signal(signal.SIGSTOP)  # it cannot notice the mistake yet
        mistake(data)
        for _ in range(2):
            assert_refused(data)
        first.signal(signal.SIGCONT)
        acked = append_until_it_ends(first, 10_000)
        assert acked < 10_000, "the first server did not notice"
        assert first.wait() == _DISK_FAILED, first.stderr
        assert "lock file" in first.stderr
    finally:
        first.kill()
    if (data / LOCK_NAME).is_symlink():
        assert_link_is_refused(data)
        remove(data)
    found = stored(data)
    # The message after the last acknowledged one may have been stored without an acknowledgement.
    assert len(found) in (acked, acked + 1)
    assert found == [b"%d" % number for number in range(len(found))]


@pytest.mark.parametrize("has_target", [True, False])
def test_a_lock_file_that_is_a_symbolic_link_is_refused(data: Path, has_target: bool) -> None:
    Server(data).kill()
    replace_with_a_symlink(data)
    target = data.with_name("moved-lock")
    if not has_target:
        target.unlink()
    assert_link_is_refused(data)
    assert target.exists() == has_target
    remove(data)
    assert stored_nothing(data)


def stored_nothing(data: Path) -> bool:
    server = Server(data)
    try:
        return server.stream("s").get("offset=-1").status == 404
    finally:
        server.kill()


def test_a_renamed_directory_still_belongs_to_its_server(data: Path) -> None:
    first = Server(data)
    try:
        first.stream("s").create()
        moved = data.with_name("moved")
        data.rename(moved)
        assert_refused(moved)
        deadline = time.monotonic() + 2.5
        acked = 0
        while time.monotonic() < deadline:
            assert first.stream("s").post(b"%d;" % acked).status == 204
            acked += 1
        assert first.process.poll() is None
        elsewhere = Server(data)  # the old name is free: this is a new directory
        assert elsewhere.stream("s").get("offset=-1").status == 404
        elsewhere.kill()
    finally:
        first.kill()
    assert len(stored(moved)) == acked


def test_a_copy_by_hard_links_is_refused_while_its_original_is_in_use(data: Path) -> None:
    first = Server(data)
    try:
        copy = data.with_name("copy")
        shutil.copytree(data, copy, copy_function=os.link)
        assert_refused(copy)
    finally:
        first.kill()


def test_doctor_sees_that_a_directory_is_in_use_without_its_lock_file(data: Path) -> None:
    disk = RealDisk(str(data))
    disk.lock()
    disk.begin_changes()
    assert is_in_use(str(data))
    remove(data)
    assert is_in_use(str(data))
    disk.close()
    assert not is_in_use(str(data))


def test_a_lock_that_a_child_inherits_does_not_outlive_the_server(data: Path) -> None:
    """Descriptors are closed on exec, so a program started by the server keeps no lock."""
    disk = RealDisk(str(data))
    disk.lock()
    disk.begin_changes()
    sleeper = subprocess.Popen(["sleep", str(PATIENCE_SECONDS)], close_fds=False)
    try:
        disk.close()
        RealDisk(str(data)).lock()
    finally:
        sleeper.kill()
        sleeper.wait()


# ---- seeded bugs ---------------------------------------------------------------------------------


def lock_only_the_file(patch: pytest.MonkeyPatch) -> None:
    """Do not lock the directory itself."""
    flock = RealDisk._flock

    def skipping(disk: RealDisk, fd: int, ignored: frozenset[int] = frozenset()) -> None:
        if fd != disk._dir_fd:
            flock(disk, fd, ignored)

    patch.setattr(RealDisk, "_flock", skipping)


def count_links(patch: pytest.MonkeyPatch) -> None:
    """Take a lock file for present as long as it has a name anywhere."""
    patch.setattr(RealDisk, "is_there", lambda disk: os.fstat(disk._lock_fd).st_nlink > 0)


def is_safe(data: Path) -> bool:
    """Return whether a second process is refused, and the first notices, after each mistake."""
    for number, mistake in enumerate(MISTAKES):
        path = data.with_name(f"{number}") / "data"
        first, second = RealDisk(str(path)), RealDisk(str(path))
        first.lock()
        first.begin_changes()
        mistake(path)
        try:
            second.lock()
        except DirectoryLocked:
            is_refused = True
        else:
            is_refused = False
        is_noticed = not first.is_there()
        first.close()
        second.close()
        if not (is_refused and is_noticed):
            return False
    return True


def test_two_processes_are_kept_apart(data: Path) -> None:
    assert is_safe(data)


@pytest.mark.parametrize("mutant", [lock_only_the_file, count_links])
def test_a_lock_with_a_bug_is_found_out(
    data: Path, mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    assert not is_safe(data)
