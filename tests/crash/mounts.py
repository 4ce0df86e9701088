"""File systems for tests: small ones, read-only ones and ones that lose power."""

import fcntl
import os
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

# FS_IOC_SHUTDOWN of ext4, and XFS_IOC_GOINGDOWN of xfs, which is the same number. Flag 2: do not
# flush the log either, as in a power failure.
_SHUTDOWN: Final = 0x8004587D
_NO_LOG_FLUSH: Final = struct.pack("I", 2)


def _run(*command: str) -> None:
    """Run a system tool; if it fails, skip the test with its error message."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except OSError as error:
        pytest.skip(f"{command[0]}: {error.strerror}")
    if done.returncode:
        pytest.skip(f"{' '.join(command[:3])}: {done.stderr.strip()}")


def mount(target: Path, *options: str) -> None:
    _run("mount", *options, str(target))


def unmount(target: Path) -> None:
    """Unmount; retry while the file system is busy, then unmount lazily."""
    for _ in range(50):
        done = subprocess.run(["umount", str(target)], capture_output=True, check=False)
        if done.returncode == 0:
            return
        time.sleep(0.05)
    subprocess.run(["umount", "-l", str(target)], check=False)


@contextmanager
def small_disk(target: Path, size_bytes: int) -> Iterator[Path]:
    """Mount a tmpfs of a limited size."""
    target.mkdir()
    mount(target, "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs")
    try:
        yield target
    finally:
        unmount(target)


# The command that makes a file system, and the size of its image in MiB: xfs has a minimum.
_FILE_SYSTEMS: Final = {
    "ext4": (("mkfs.ext4", "-q", "-F"), 64),
    "xfs": (("mkfs.xfs", "-q", "-f"), 320),
}
FILE_SYSTEMS: Final = tuple(_FILE_SYSTEMS)


class FragileDisk:
    """A file system in an image file that can lose power. Its kind is one of FILE_SYSTEMS."""

    def __init__(self, directory: Path, kind: str, image_mib: int | None = None) -> None:
        self._image = directory / "image"
        self.path = directory / "disk"
        self.path.mkdir()
        self._is_mounted = self._was_mounted = False
        command, usual_mib = _FILE_SYSTEMS[kind]
        with self._image.open("wb") as file:
            file.truncate((image_mib or usual_mib) * 1024 * 1024)
        _run(*command, str(self._image))

    def plug_in(self) -> None:
        """Mount it. The test is skipped if this machine cannot mount it for the first time."""
        try:
            mount(self.path, "-o", "loop", str(self._image))
        except pytest.skip.Exception as error:
            if self._was_mounted:
                raise AssertionError(f"the file system does not come back: {error}") from error
            raise
        self._is_mounted = self._was_mounted = True

    def cut_power(self) -> None:
        """Shut the file system down; data that was not synced is lost."""
        directory = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(directory, _SHUTDOWN, _NO_LOG_FLUSH)
        except OSError as error:
            pytest.skip(f"cannot cut the power: {error.strerror}")
        finally:
            os.close(directory)

    def pull_out(self) -> None:
        if self._is_mounted:  # after a cut, xfs does not even tell that it is mounted
            unmount(self.path)
            self._is_mounted = False
