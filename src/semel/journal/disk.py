"""The data directory in the file system.

The journal uses files only through `Disk` and `File`. Only `RealDisk` and `RealFile` make system
calls; `semel.testing` has an implementation that simulates a loss of power.
"""

import contextlib
import errno
import fcntl
import os
import resource
from collections.abc import Sequence
from typing import Final, Protocol

from semel.model.errors import DirectoryLocked, DiskFailed

LOCK_NAME: Final = "LOCK"
LOCK_LOST: Final = (
    "the data directory was deleted, or its lock file was removed or replaced, while the process"
    " was running; if the directory still exists, start the server again"
)
# The error numbers that report a full disk or an exhausted quota. The disk itself is not broken.
NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
# The error numbers that report too many open files.
NO_FILES: Final = frozenset({errno.EMFILE, errno.ENFILE})
# Only the owner may read the messages, whatever the umask of the process is.
DIRECTORY_MODE: Final = 0o700
FILE_MODE: Final = 0o600
OTHERS_MODE: Final = 0o077  # the rights of the group and of all others
# A start opens about this many files after its checks.
_FILES_NEEDED: Final = 8
_IOV_MAX: Final = 1024
# The error numbers with which file systems refuse to lock a directory.
CANNOT_LOCK: Final = frozenset({errno.EBADF, errno.EINVAL, errno.EISDIR, errno.ENOTSUP})

_OWNER_ADVICE: Final = "run semel as the owner of the files, or change the owner with chown"
_ROOM_ADVICE: Final = "free space on the disk, and start again"
_FILES_ADVICE: Final = "raise the limit on open files (ulimit -n)"
_ADVICE: Final = {
    errno.EACCES: _OWNER_ADVICE,
    errno.EPERM: _OWNER_ADVICE,
    errno.EROFS: "mount the file system with write access",
    errno.EMFILE: _FILES_ADVICE,
    errno.ENFILE: _FILES_ADVICE,
    errno.ENOMEM: "raise the limit on address space (ulimit -v), or free memory; the checkpoint"
    " needs 64 GiB of addresses, but only little memory",
    errno.ENOSPC: _ROOM_ADVICE,
    errno.EDQUOT: _ROOM_ADVICE,
    errno.EFBIG: "raise the limit on the size of files (ulimit -f)",
}


def disk_failed(what: str, code: int | None) -> DiskFailed:
    """Return the error for a system call that failed with the error number `code`.

    `what` names the file and what could not be done. The message adds the reason, and what a user
    can do about it.
    """
    reason = os.strerror(code) if code else "the operating system refused it"
    advice = _ADVICE.get(code or 0, "check the disk")
    is_limited = resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY
    if is_limited and code in (errno.EIO, errno.ENOSPC):
        # LMDB also reports a write that reaches the limit on the size of files in this way.
        advice += f"; if that does not help, {_ADVICE[errno.EFBIG]}"
    return DiskFailed(f"{what}: {reason}; {advice}")


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
        """Lock the directory until `close` is called or the process ends. Change no file.

        Raises DirectoryLocked if a different process has the lock. Also raises DiskFailed.
        """

    def begin_changes(self, file_bytes: int = 0) -> None:
        """Create the lock file if it is missing, and check what the process may do.

        It must be permitted to open more files, to create files in the directory, and to create a
        file of `file_bytes` bytes. Call this before the first change of the directory, and after
        all checks of its content, so that a refused start changes nothing. Raises DirectoryLocked
        or DiskFailed. Then nothing is changed.
        """

    def cancel_changes(self) -> None:
        """Remove the lock file if `begin_changes` has created it. Call this if a start is refused.

        The directory itself stays locked.
        """

    def is_there(self) -> bool:
        """Return True if the directory still contains the lock file that this process locked."""

    def create(self, name: str, size: int) -> File:
        """Create a file of `size` zero bytes. Its space is allocated, and its length is durable."""

    def resize(self, name: str, size: int) -> File:
        """Open a file, allocate its first `size` bytes, and set its length to `size`.

        Bytes that are added are zero. If there is no room, OSError is raised and the file is not
        changed.
        """

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


def make_directory(path: str) -> None:
    """Create a directory and the missing ones above it, and make their names durable.

    Only the directory itself is closed to other users. The umask decides for those above it.
    """
    missing = []
    parent = os.path.abspath(path)
    while not os.path.lexists(parent):
        missing.append(parent)
        parent = os.path.dirname(parent)
    os.makedirs(path, DIRECTORY_MODE, exist_ok=True)
    if missing:
        with contextlib.suppress(OSError):  # a file system without such rights
            os.chmod(path, DIRECTORY_MODE)
    for created in missing:
        parent_fd = os.open(os.path.dirname(created), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(parent_fd)
        finally:
            os.close(parent_fd)


class RealDisk:
    """A directory in the file system."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            make_directory(path)
            self._dir_fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise disk_failed(f"{path}: cannot open the data directory", error.errno) from error
        self._lock_fd = -1
        self._is_lock_new = False

    def lock(self) -> None:
        """Lock the directory itself, and then the lock file, if it exists.

        The lock of the directory still holds if a user removes or replaces the lock file. Some
        network file systems cannot lock a directory. There only the lock file is locked, and it is
        created if it is missing.
        """
        is_locked = self._flock(self._dir_fd, ignored=CANNOT_LOCK)
        if not is_locked or self._has_lock_file():
            self._open_lock_file()

    def _has_lock_file(self) -> bool:
        return os.access(LOCK_NAME, os.F_OK, dir_fd=self._dir_fd, follow_symlinks=False)

    def begin_changes(self, file_bytes: int = 0) -> None:
        self._check_open_files()
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        if limit != resource.RLIM_INFINITY and file_bytes > limit:
            what = f"{self.path}: a file of {file_bytes} bytes is needed, the limit is {limit}"
            raise disk_failed(what, errno.EFBIG)
        if self._lock_fd < 0:
            self._open_lock_file()
            self._is_lock_new = True
        elif not os.access(".", os.W_OK | os.X_OK, dir_fd=self._dir_fd, effective_ids=True):
            raise disk_failed(f"{self.path}: cannot create files", errno.EACCES)

    def cancel_changes(self) -> None:
        if self._is_lock_new:
            with contextlib.suppress(OSError):
                self.unlink(LOCK_NAME)

    def _check_open_files(self) -> None:
        opened: list[int] = []
        try:
            while len(opened) < _FILES_NEEDED:
                opened.append(os.dup(self._dir_fd))
        except OSError as error:
            raise disk_failed(f"{self.path}: cannot open the files", error.errno) from error
        finally:
            for fd in opened:
                os.close(fd)

    def _open_lock_file(self) -> None:
        """Open and lock the lock file, and create it if it is missing.

        A symbolic link is refused: `is_there` would take it for another file than the locked one.
        Raises DirectoryLocked or DiskFailed.
        """
        is_new = not self._has_lock_file()
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self._lock_fd = os.open(LOCK_NAME, flags, FILE_MODE, dir_fd=self._dir_fd)
        except OSError as error:
            file = os.path.join(self.path, LOCK_NAME)
            if error.errno == errno.ELOOP:
                message = f"{file}: {LOCK_NAME} is a symbolic link; remove it, and start again"
                raise DiskFailed(message) from error
            raise disk_failed(f"{file}: cannot open the lock file", error.errno) from error
        if is_new:
            _set_rights(self._lock_fd, self._dir_fd)
        self._flock(self._lock_fd)

    def _flock(self, fd: int, ignored: frozenset[int] = frozenset()) -> bool:
        """Lock a file or directory. Return False if its file system cannot do that."""
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in {errno.EAGAIN, errno.EACCES}:
                message = f"{self.path}: another process owns this directory"
                raise DirectoryLocked(message) from error
            if error.errno not in ignored:
                raise disk_failed(f"{self.path}: cannot lock", error.errno) from error
            return False
        return True

    def is_there(self) -> bool:
        """Return True if the lock file in the directory is the file that this process has locked.

        The number of links is not enough: a copy made of hard links keeps the file alive. Raises
        DiskFailed if the disk cannot be read.
        """
        try:
            found = os.stat(LOCK_NAME, dir_fd=self._dir_fd, follow_symlinks=False)
            return os.path.samestat(found, os.fstat(self._lock_fd))
        except FileNotFoundError:
            return False
        except OSError as error:
            raise disk_failed(f"{self.path}: the directory cannot be read", error.errno) from error

    def names(self) -> list[str]:
        return sorted(os.listdir(self._dir_fd))

    def create(self, name: str, size: int) -> RealFile:
        """Create, allocate and sync a file. If that fails, remove the file again."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        fd = os.open(name, flags, FILE_MODE, dir_fd=self._dir_fd)
        _set_rights(fd, self._dir_fd)
        try:
            if size:
                os.posix_fallocate(fd, 0, size)
            os.fsync(fd)
        except OSError as error:
            os.close(fd)
            with contextlib.suppress(OSError):
                self.unlink(name)
            error.filename = name
            raise
        return RealFile(fd)

    def open(self, name: str) -> RealFile:
        return RealFile(os.open(name, os.O_RDWR | os.O_CLOEXEC, dir_fd=self._dir_fd))

    def resize(self, name: str, size: int) -> RealFile:
        fd = os.open(name, os.O_RDWR | os.O_CLOEXEC, dir_fd=self._dir_fd)
        try:
            _allocate(fd, size)
            os.ftruncate(fd, size)
            os.fsync(fd)
        except OSError as error:
            os.close(fd)
            error.filename = name
            raise
        return RealFile(fd)

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


def create_empty_file(path: str) -> None:
    """Create a file that another library then opens. Raises OSError, also if it exists."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    try:
        _set_rights(fd, os.path.dirname(path) or ".")
    finally:
        os.close(fd)


def sync_file(path: str) -> None:
    """Make the content of a file durable. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def overwrite_file(path: str, position: int, data: bytes) -> None:
    """Overwrite a range of an existing file, and make it durable. Raises DiskFailed or OSError."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        written = os.pwrite(fd, data, position)
        if written != len(data):
            name = os.path.basename(path)
            raise DiskFailed(f"{name}: only {written} of {len(data)} bytes were written")
        os.fsync(fd)
    finally:
        os.close(fd)


def allocate_file(path: str, size: int) -> os.stat_result | None:
    """Create a file if it is missing, and allocate its first `size` bytes.

    A write to a mapped file without allocated space would kill the process on a full disk. Return
    the facts about the file before this call, or None if it was missing. `release_file` undoes the
    call. Raises OSError. Then nothing is changed.
    """
    try:
        before = os.stat(path)
    except FileNotFoundError:
        before = None
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        if before is None:
            _set_rights(fd, os.path.dirname(path) or ".")
        _allocate(fd, size)
    except OSError as error:
        if before is None:
            os.unlink(path)
        error.filename = path
        raise
    finally:
        os.close(fd)
    return before


def release_file(path: str, before: os.stat_result | None) -> None:
    """Undo `allocate_file`, which returned `before`. Errors are ignored."""
    with contextlib.suppress(OSError):
        if before is None:
            os.unlink(path)
        else:
            os.truncate(path, before.st_size)
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _allocate(fd: int, size: int) -> None:
    """Allocate the first `size` bytes of a file. Raises OSError. Then the file is not changed."""
    before = os.fstat(fd)
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(fd, before.st_size)
            os.utime(fd, ns=(before.st_atime_ns, before.st_mtime_ns))
        raise


def _set_rights(fd: int, directory: int | str) -> None:
    """Give only the owner rights to a new file. If root runs this, that of the directory owns it.

    Otherwise a command that is run once as root would leave files that the server, which runs as
    the owner, cannot open. If the file system refuses a change, the file stays as it is.
    """
    with contextlib.suppress(OSError):
        os.fchmod(fd, FILE_MODE)
    owner = os.stat(directory)
    if os.geteuid() == 0 and owner.st_uid != 0:
        with contextlib.suppress(OSError):
            os.fchown(fd, owner.st_uid, owner.st_gid)


def publish_file(temporary: str, path: str) -> None:
    """Make a new file durable under a temporary name, and then rename it. Raises OSError.

    So a file with the name `path` is complete, also after a loss of power.
    """
    sync_file(temporary)
    os.replace(temporary, path)
    sync_file(os.path.dirname(path) or ".")
