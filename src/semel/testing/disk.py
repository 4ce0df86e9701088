"""A directory in memory that simulates power losses, failing syncs and a full disk.

It replaces `RealDisk` in tests. Each file has two contents: `durable` is the content on the disk,
and `current` is the content in the page cache. A reader sees `current`.

Creating, renaming or removing a file is durable only after `sync_names`. All random choices come
from the `Random` that the test passes in.
"""

import contextlib
import errno
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from random import Random

from semel.model.errors import DirectoryLocked
from semel.testing.storage_faults import (
    Change,
    CrashMode,
    Faults,
    FaultyStorage,
    FileChange,
    Grow,
    Link,
    LostSync,
    NameChange,
    Rename,
    ShortWrite,
    Unlink,
    Write,
    survivors,
    system_error,
)


@dataclass(frozen=True, slots=True)
class _Inode:
    """The content of a file. An inode is immutable, so that a copy of the disk can share it."""

    durable: bytes = b""
    current: bytes = b""
    # True if a sync failed and marked unwritten pages as clean. A later sync does not write them.
    has_lost_pages: bool = False


class VirtualFile:
    """One open file of a VirtualDisk."""

    __slots__ = ("_disk", "_inode", "_is_open", "_process")

    def __init__(self, disk: "VirtualDisk", inode: int) -> None:
        self._disk = disk
        self._inode = inode
        self._process = disk._process
        self._is_open = True
        disk._open_counts[inode] += 1

    def write(self, position: int, buffers: Sequence[bytes]) -> int:
        """Write to the page cache, and return the number of bytes written.

        The number is smaller than requested if a fault or a full disk makes the write short.
        """
        return self._disk._write(self._opened(), position, b"".join(buffers))

    def sync(self) -> None:
        """Make the content of the file durable, but not its name."""
        self._disk._sync(self._opened())

    def read(self, position: int, size: int) -> bytes:
        """Return up to `size` bytes of the page cache, starting at `position`."""
        return self._disk._read(self._opened(), position, size)

    def size(self) -> int:
        return len(self._disk._inodes[self._opened()].current)

    def close(self) -> None:
        """Close the file. Do nothing if the process that opened the file has ended."""
        if self._process == self._disk._process:
            self._disk._open_counts[self._opened()] -= 1
            self._is_open = False

    def _opened(self) -> int:
        """Return the number of the inode. Raises OSError (EBADF) if the file is closed."""
        if not self._is_open or self._process != self._disk._process:
            raise system_error(errno.EBADF)
        return self._inode


class VirtualDisk(FaultyStorage):
    """A `Disk` for tests.

    `faults.before` is called before each operation: create, grow, write, sync, rename, unlink,
    sync_names, open or read. The method `create` performs three of them: create, grow and sync.

    If the disk has no room for a new file, `create` fails with ENOSPC. If it has room for only a
    part of a write, only that part is written. If it has no room for any part of a write, the
    write fails with ENOSPC.
    """

    def __init__(self, *, capacity_bytes: int | None = None, faults: Faults | None = None) -> None:
        super().__init__(capacity_bytes=capacity_bytes, faults=faults)
        self._inodes: dict[int, _Inode] = {}
        self._inode_last = 0
        self._durable_names: dict[str, int] = {}
        self._names: dict[str, int] = {}
        self._pending: list[Change] = []
        self._is_locked = False
        self._open_counts: Counter[int] = Counter()
        self._process = 0

    # ---- the interface of Disk -------------------------------------------------------------------

    def lock(self) -> None:
        """Lock the directory until `close`, `kill` or `crash` is called.

        Raises DirectoryLocked if the directory is already locked.
        """
        self._check_alive()
        if self._is_locked:
            raise DirectoryLocked("virtual disk: another process owns this directory")
        self._is_locked = True

    def begin_changes(self, file_bytes: int = 0) -> None:
        """Do nothing. A virtual directory has no lock file, and no limit but its capacity."""
        del file_bytes

    def cancel_changes(self) -> None:
        """Do nothing, because `begin_changes` does nothing."""

    def is_there(self) -> bool:
        """Return True. A virtual directory cannot be deleted."""
        return True

    def names(self) -> list[str]:
        """Return the names of all files, sorted."""
        self._check_alive()
        return sorted(self._names)

    def create(self, name: str, size: int) -> VirtualFile:
        """Create a file that contains `size` zero bytes.

        The length of the file is durable immediately. Its name is durable after `sync_names`.
        """
        fault = self._begin("create", name, size)
        if name in self._names:
            raise system_error(errno.EEXIST, name)
        if size > self._room_bytes():
            raise system_error(errno.ENOSPC, name)
        self._inode_last = inode = self._inode_last + 1
        self._inodes[inode] = _Inode()
        self._change_names(Link(name, inode))
        self._end("create", name, fault)
        try:
            self._grow(inode, size)
            self._sync(inode)
        except OSError:
            with contextlib.suppress(OSError):
                self.unlink(name)
            raise
        return VirtualFile(self, inode)

    def open(self, name: str) -> VirtualFile:
        """Open an existing file."""
        self._raise(self._begin("open", name, 0))
        return VirtualFile(self, self._find(name))

    def resize(self, name: str, size: int) -> VirtualFile:
        """Open a file and set its length, which is durable immediately.

        Raises OSError (ENOSPC), and changes nothing, if there is no room.
        """
        self._raise(self._begin("open", name, 0))
        inode = self._find(name)
        if size - len(self._inodes[inode].current) > self._room_bytes():
            raise system_error(errno.ENOSPC, name)
        self._grow(inode, size)
        self._sync(inode)
        old = self._inodes[inode]
        self._inodes[inode] = replace(old, durable=old.durable[:size], current=old.current[:size])
        return VirtualFile(self, inode)

    def rename(self, old: str, new: str) -> None:
        """Rename a file. The new name is visible immediately, and durable after `sync_names`."""
        fault = self._begin("rename", old, 0)
        inode = self._find(old)
        if old != new:
            self._change_names(Rename(old, new, inode))
        self._end("rename", old, fault)

    def unlink(self, name: str) -> None:
        """Remove a file. The removal is durable after `sync_names`."""
        fault = self._begin("unlink", name, 0)
        self._change_names(Unlink(name, self._find(name)))
        self._end("unlink", name, fault)

    def sync_names(self) -> None:
        """Make all creations, renames and removals of files durable."""
        fault = self._begin("sync_names", "", 0)
        changes = self._take_pending(lambda c: isinstance(c, NameChange))
        if not isinstance(fault, LostSync):
            self._make_durable(changes)
        self._forget_nameless()
        self._end("sync_names", "", fault)

    def close(self) -> None:
        """Release the lock."""
        self._is_locked = False

    # ---- for tests -------------------------------------------------------------------------------

    def kill(self) -> None:
        """Simulate the end of the process.

        The lock is released, and open files are closed. The page cache is kept.
        """
        self._is_locked = False
        self._open_counts.clear()
        self._process += 1
        self._death = None

    def crash(self, rng: Random, mode: CrashMode = "reordered") -> None:
        """Simulate a power loss. `mode` determines which unsynced changes are kept."""
        kept = survivors(self._pending, rng, mode)
        self.kill()
        self._pending.clear()
        self._make_durable(kept)
        self._names = dict(self._durable_names)
        for number, inode in self._inodes.items():
            self._inodes[number] = _Inode(inode.durable, inode.durable)
        self._forget_nameless()

    def copy(self) -> "VirtualDisk":
        """Return a copy of the disk, including its unsynced changes and its lock.

        `faults`, `on_operation` and open files are not copied. To release the lock, call `kill` or
        `crash` on the copy before a journal opens it.
        """
        twin = VirtualDisk(capacity_bytes=self.capacity_bytes)
        twin.operations = self.operations
        twin._inodes = self._inodes.copy()
        twin._inode_last = self._inode_last
        twin._durable_names = self._durable_names.copy()
        twin._names = self._names.copy()
        twin._pending = self._pending.copy()
        twin._is_locked = self._is_locked
        return twin

    def flip(self, name: str, position: int, bit: int) -> None:
        """Invert one bit of a file, both on the disk and in the page cache."""
        byte = self._inodes[self._find(name)].current[position]
        self.overwrite(name, position, bytes([byte ^ 1 << bit]))

    def overwrite(self, name: str, position: int, data: bytes) -> None:
        """Overwrite bytes of a file, both on the disk and in the page cache."""
        change = Write(self._find(name), position, data)
        inode = self._inodes[change.inode]
        assert 0 <= position <= len(inode.current) - len(data), "outside the file"
        self._inodes[change.inode] = replace(inode, current=change.apply(inode.current))
        self._make_durable([change])

    def files(self) -> dict[str, bytes]:
        """Return a mapping from each file name to the content that a reader would see."""
        return {name: self._inodes[self._names[name]].current for name in sorted(self._names)}

    def digest(self) -> str:
        """Return a digest of all file names and contents, both durable and current."""
        total = hashlib.sha256()
        for names in (self._durable_names, self._names):
            total.update(b"%d names" % len(names))
            for name in sorted(names):
                inode = self._inodes[names[name]]
                for part in (name.encode(), inode.durable, inode.current):
                    total.update(b"%d:" % len(part) + part)
        return total.hexdigest()

    # ---- for open files --------------------------------------------------------------------------

    def _write(self, number: int, position: int, data: bytes) -> int:
        assert position >= 0, "the position is before the start of the file"
        name = self._name_of(number)
        fault = self._begin("write", name, len(data))
        if isinstance(fault, ShortWrite):
            data = data[: fault.written_bytes]
        # The write that fills the disk is short, but it succeeds. Only the next write fails.
        size_max = len(self._inodes[number].current) + self._room_bytes()
        if data and position >= size_max:
            raise system_error(errno.ENOSPC)
        if position + len(data) > size_max:
            data = data[: int(size_max) - position]
        if data:
            if position + len(data) > len(self._inodes[number].current):
                self._change_file(Grow(number, position + len(data)))
            self._change_file(Write(number, position, data))
        self._end("write", name, fault)
        return len(data)

    def _grow(self, number: int, size: int) -> None:
        name = self._name_of(number)
        fault = self._begin("grow", name, size)
        self._change_file(Grow(number, size))
        self._end("grow", name, fault)

    def _sync(self, number: int) -> None:
        name = self._name_of(number)
        fault = self._begin("sync", name, 0)
        changes = self._take_pending(lambda c: isinstance(c, FileChange) and c.inode == number)
        inode = self._inodes[number]
        if isinstance(fault, LostSync):
            self._inodes[number] = replace(inode, has_lost_pages=True)
        elif inode.has_lost_pages:
            self._make_durable(changes)
        else:
            self._inodes[number] = replace(inode, durable=inode.current)
        self._end("sync", name, fault)

    def _read(self, number: int, position: int, size: int) -> bytes:
        self._raise(self._begin("read", self._name_of(number), size))
        return self._inodes[number].current[position : position + size]

    # ---- implementation --------------------------------------------------------------------------

    def _find(self, name: str) -> int:
        if name not in self._names:
            raise system_error(errno.ENOENT, name)
        return self._names[name]

    def _name_of(self, number: int) -> str:
        return next((name for name, inode in self._names.items() if inode == number), "")

    def _room_bytes(self) -> float:
        if self.capacity_bytes is None:
            return float("inf")
        used = sum(len(self._inodes[number].current) for number in self._names.values())
        return max(0, self.capacity_bytes - used)

    def _change_file(self, change: FileChange) -> None:
        self._pending.append(change)
        inode = self._inodes[change.inode]
        self._inodes[change.inode] = replace(inode, current=change.apply(inode.current))

    def _change_names(self, change: NameChange) -> None:
        self._pending.append(change)
        change.apply(self._names)

    def _take_pending(self, is_chosen: Callable[[Change], bool]) -> list[Change]:
        """Remove the chosen changes from the list of unsynced changes, and return them."""
        taken = [change for change in self._pending if is_chosen(change)]
        self._pending = [change for change in self._pending if not is_chosen(change)]
        return taken

    def _make_durable(self, changes: Iterable[Change]) -> None:
        for change in changes:
            if isinstance(change, NameChange):
                change.apply(self._durable_names)
            else:
                inode = self._inodes[change.inode]
                self._inodes[change.inode] = replace(inode, durable=change.apply(inode.durable))

    def _forget_nameless(self) -> None:
        """Drop files that have no name and are not open.

        Call this only if no name change is pending. In a crash, a pending change can give such a
        file a name.
        """
        reachable = {*self._durable_names.values(), *self._names.values(), *+self._open_counts}
        self._inodes = {n: inode for n, inode in self._inodes.items() if n in reachable}
        self._take_pending(lambda change: change.inode not in reachable)
