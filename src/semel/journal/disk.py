"""The data directory in the file system, and its identity.

The journal uses files only through `Disk` and `File`. Only `RealDisk` and `RealFile` make system
calls; `semel.testing` has an implementation that simulates a loss of power.
"""

import contextlib
import errno
import fcntl
import os
from collections.abc import Sequence
from typing import Final, Protocol

from semel.model.checksum import crc32c
from semel.model.errors import CorruptData, DirectoryLocked, DiskFailed

LOCK_NAME: Final = "LOCK"
LOCK_LOST: Final = (
    "the lock file of the data directory was removed or replaced while the process was running; if"
    " the directory still exists, start the server again"
)
# The error numbers that report a full disk or an exhausted quota. The disk itself is not broken.
NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
# The error numbers that report too many open files.
NO_FILES: Final = frozenset({errno.EMFILE, errno.ENFILE})
_IOV_MAX: Final = 1024
# The error numbers with which file systems refuse to lock a directory.
CANNOT_LOCK: Final = frozenset({errno.EBADF, errno.EINVAL, errno.EISDIR, errno.ENOTSUP})


class File(Protocol):
    """One open file. Every method can raise OSError."""

    def write(self, position: int, buffers: Sequence[bytes]) -> int:
        """Write the buffers one after another, and return the number of bytes written."""

    def sync(self) -> None:
        """Make all written bytes durable."""

    def read(self, position: int, size: int) -> bytes:
        """Return `size` bytes starting at `position`, or fewer if the file ends earlier."""

    def size(self) -> int:
        """Return the length of the file in bytes."""

    def close(self) -> None: ...


class Files(Protocol):
    """One directory whose files can be read. Every method can raise OSError."""

    def names(self) -> list[str]:
        """Return the names of the files, sorted."""

    def open(self, name: str) -> File:
        """Open a file for reading. The subclass `Disk` opens it for reading and writing."""


class Disk(Files, Protocol):
    """One directory whose files can be read and changed. Every method can raise OSError."""

    def lock(self) -> None:
        """Lock the directory until `close` is called or the process ends.

        Raises DirectoryLocked if a different process has the lock. Also raises DiskFailed.
        """

    def is_there(self) -> bool:
        """Return True if the directory still contains the lock file that this process locked."""

    def create(self, name: str, size: int) -> File:
        """Create a file of `size` zero bytes. Its space is allocated, and its length is durable."""

    def rename(self, old: str, new: str) -> None:
        """Rename a file. The new name is durable after `sync_names`."""

    def unlink(self, name: str) -> None:
        """Remove a file. The removal is durable after `sync_names`."""

    def sync_names(self) -> None:
        """Make all creations, renames and removals of files durable."""

    def close(self) -> None:
        """Close the directory and release the lock."""


class RealFile:
    """An open file, accessed through its file descriptor."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def write(self, position: int, buffers: Sequence[bytes]) -> int:
        """Write with as few system calls as possible. Stop at the first short write."""
        if len(buffers) <= _IOV_MAX:
            return os.pwritev(self._fd, buffers, position)
        written = 0
        for start in range(0, len(buffers), _IOV_MAX):
            some = buffers[start : start + _IOV_MAX]
            count = os.pwritev(self._fd, some, position + written)
            written += count
            if count < sum(map(len, some)):
                break
        return written

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def read(self, position: int, size: int) -> bytes:
        data = os.pread(self._fd, size, position)
        if len(data) == size or not data:
            return data
        parts = [data]
        missing = size - len(data)
        while missing and (data := os.pread(self._fd, missing, position + size - missing)):
            parts.append(data)
            missing -= len(data)
        return b"".join(parts)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        os.close(self._fd)


class RealDisk:
    """A directory in the file system."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            os.makedirs(path, exist_ok=True)
            self._dir_fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise DiskFailed(f"{path}: cannot open the data directory: {error.strerror}") from error
        self._lock_fd = -1

    def lock(self) -> None:
        """Lock the directory itself, and then the lock file.

        The lock of the directory still holds if a user removes or replaces the lock file. Some
        network file systems cannot lock a directory. There only the lock file is locked.
        """
        self._flock(self._dir_fd, ignored=CANNOT_LOCK)
        try:
            fd = os.open(
                LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644, dir_fd=self._dir_fd
            )
        except OSError as error:
            raise DiskFailed(f"{self.path}: cannot open the lock file: {error.strerror}") from error
        self._lock_fd = fd
        self._flock(fd)

    def _flock(self, fd: int, ignored: frozenset[int] = frozenset()) -> None:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in {errno.EAGAIN, errno.EACCES}:
                message = f"{self.path}: another process owns this directory"
                raise DirectoryLocked(message) from error
            if error.errno not in ignored:
                raise DiskFailed(f"{self.path}: cannot lock: {error.strerror}") from error

    def is_there(self) -> bool:
        """Return True if the lock file in the directory is the file that this process has locked.

        The number of links is not enough: a copy made of hard links keeps the file alive.
        """
        try:
            found = os.stat(LOCK_NAME, dir_fd=self._dir_fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(found, os.fstat(self._lock_fd))

    def names(self) -> list[str]:
        return sorted(os.listdir(self._dir_fd))

    def create(self, name: str, size: int) -> RealFile:
        """Create, allocate and sync a file. If that fails, remove the file again."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        fd = os.open(name, flags, 0o644, dir_fd=self._dir_fd)
        try:
            if size:
                os.posix_fallocate(fd, 0, size)
            os.fsync(fd)
        except OSError:
            os.close(fd)
            with contextlib.suppress(OSError):
                self.unlink(name)
            raise
        return RealFile(fd)

    def open(self, name: str) -> RealFile:
        return RealFile(os.open(name, os.O_RDWR | os.O_CLOEXEC, dir_fd=self._dir_fd))

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new, src_dir_fd=self._dir_fd, dst_dir_fd=self._dir_fd)

    def unlink(self, name: str) -> None:
        os.unlink(name, dir_fd=self._dir_fd)

    def sync_names(self) -> None:
        os.fsync(self._dir_fd)

    def close(self) -> None:
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
        os.close(self._dir_fd)


def finish_file(disk: Disk, file: File, temporary: str, name: str, data: bytes) -> None:
    """Write `data` to a new file, make the file durable, and rename it from `temporary` to `name`.

    Raises OSError or DiskFailed.
    """
    written = file.write(0, [data])
    if written != len(data):
        raise DiskFailed(f"{temporary}: only {written} of {len(data)} bytes were written")
    file.sync()
    file.close()
    disk.rename(temporary, name)
    disk.sync_names()


# ---- identity ------------------------------------------------------------------------------------
# The identity is 16 random bytes. They seed the checksum of every frame in the directory. When a
# directory is created, the identity file is written last. Therefore a directory that has an
# identity file is complete.

IDENTITY_NAME: Final = "identity"
IDENTITY_BYTES: Final = 16
FORMAT_VERSION: Final = 1
IDENTITY_TEMPORARY_NAME: Final = "identity.tmp"
_MAGIC: Final = b"semel data\n"
_FILE_BYTES: Final = len(_MAGIC) + 1 + IDENTITY_BYTES + 4


def write_identity(disk: Disk, identity: bytes) -> None:
    """Write the identity file. This is the last step of creating a directory."""
    assert len(identity) == IDENTITY_BYTES
    body = _MAGIC + bytes([FORMAT_VERSION]) + identity
    with contextlib.suppress(FileNotFoundError):
        disk.unlink(IDENTITY_TEMPORARY_NAME)
    file = disk.create(IDENTITY_TEMPORARY_NAME, _FILE_BYTES)
    data = body + crc32c(body).to_bytes(4, "little")
    finish_file(disk, file, IDENTITY_TEMPORARY_NAME, IDENTITY_NAME, data)


def read_identity(disk: Files) -> bytes:
    """Return the identity of a directory.

    Raises CorruptData if the identity file is damaged, or if the directory has an unknown format.
    Also raises OSError.
    """
    with contextlib.closing(disk.open(IDENTITY_NAME)) as file:
        data = file.read(0, _FILE_BYTES + 1)
    body, checksum = data[:-4], data[-4:]
    if len(data) != _FILE_BYTES or crc32c(body).to_bytes(4, "little") != checksum:
        raise CorruptData("the identity is damaged", file=IDENTITY_NAME)
    if not body.startswith(_MAGIC) or body[len(_MAGIC)] != FORMAT_VERSION:
        raise CorruptData(
            f"the format of the directory is unknown; this semel reads format {FORMAT_VERSION}",
            file=IDENTITY_NAME,
        )
    return body[-IDENTITY_BYTES:]
