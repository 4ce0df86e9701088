"""The faults of a virtual disk or store: faults of single operations, and losses of power."""

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final, Literal, Protocol, TypeAlias, get_args

# ---- faults of operations ------------------------------------------------------------------------
# The virtual disk and the virtual store call `faults.before` before each operation. It returns the
# fault of the operation, or None.


class Death(Exception):
    """Raised to end the process during an operation; every later operation raises it again."""


class Killed(Death):
    """Raised if the process is killed. The machine continues, so the page cache is kept."""


class PowerLost(Death):
    """Raised if the machine loses power; `VirtualDisk.crash` chooses the unsynced data to keep."""


@dataclass(frozen=True, slots=True)
class Fail:
    """Raise `error` instead of the operation or, if `is_after`, after the operation took effect."""

    error: Exception
    is_after: bool = False


@dataclass(frozen=True, slots=True)
class ShortWrite:
    """Write only the first `written_bytes` bytes, and return that number."""

    written_bytes: int


@dataclass(frozen=True, slots=True)
class LostSync:
    """Fail a sync the way Linux does: raise an error, and mark the pages clean.

    Readers still see the bytes, but the disk never gets them, although the next sync succeeds. Only
    writing the bytes again and syncing makes them durable.
    """


Fault: TypeAlias = Fail | ShortWrite | LostSync


class Faults(Protocol):
    """An object that chooses the fault of each operation."""

    def before(self, operation: str, name: str, size: int) -> Fault | None:
        """Return the fault of an operation of `size` bytes on the file `name`, or None."""


class FaultyStorage:
    """The base class of the virtual disk and the virtual store: it injects the faults.

    Attributes:
        faults: its `before` is called before every operation.
        on_operation: called with (operation, name) after each operation that changes something.
        operations: the number of operations that have changed something.
        capacity_bytes: the maximum size of the content; can be changed at any time.
    """

    def __init__(self, *, capacity_bytes: int | None = None, faults: Faults | None = None) -> None:
        self.faults = faults
        self.on_operation: Callable[[str, str], None] | None = None
        self.operations = 0
        self.capacity_bytes = capacity_bytes
        self._death: Death | None = None

    def _check_alive(self) -> None:
        """Raise the Death that has ended the process, if there was one."""
        if self._death is not None:
            raise self._death

    def _begin(self, operation: str, name: str, size: int) -> Fault | None:
        """Return the fault of an operation; raise its error if that replaces the operation."""
        self._check_alive()
        fault = self.faults.before(operation, name, size) if self.faults is not None else None
        assert not isinstance(fault, ShortWrite) or operation == "write", "only writes are short"
        assert not isinstance(fault, LostSync) or "sync" in operation, "only syncs are lost"
        if isinstance(fault, Fail) and not fault.is_after:
            self._raise(fault)
        return fault

    def _end(self, operation: str, name: str, fault: Fault | None) -> None:
        """Count an operation that has taken effect; raise the error of its fault, if any."""
        self.operations += 1
        if self.on_operation is not None:
            self.on_operation(operation, name)
        self._raise(fault)

    def _raise(self, fault: Fault | None) -> None:
        if isinstance(fault, LostSync):
            raise system_error(errno.EIO)
        if isinstance(fault, Fail):
            if isinstance(fault.error, Death):
                self._death = fault.error
            raise fault.error


def refuse(code: int) -> Fail:
    """Return a fault that raises an OSError with this errno instead of the operation."""
    return Fail(system_error(code))


def system_error(code: int, name: str | None = None) -> OSError:
    """Return the OSError for an errno; Python chooses the subclass."""
    return OSError(code, os.strerror(code), name)


# ---- changes -------------------------------------------------------------------------------------
# Changes of files and of names that are in the page cache and not yet on the disk.


@dataclass(frozen=True, slots=True)
class Write:
    """A write of bytes at a position of a file."""

    inode: int
    position: int
    data: bytes

    def apply(self, content: bytes) -> bytes:
        """Return the changed content; a gap before the write is filled with zeros."""
        if not self.data:
            return content
        before = content[: self.position].ljust(self.position, b"\0")
        return b"".join((before, self.data, content[self.position + len(self.data) :]))


@dataclass(frozen=True, slots=True)
class Grow:
    """A new length for a file; the new bytes are zero."""

    inode: int
    size: int

    def apply(self, content: bytes) -> bytes:
        """Return the content, extended to `size` bytes; longer content stays as it is."""
        return content.ljust(self.size, b"\0")


@dataclass(frozen=True, slots=True)
class Link:
    """A new name, of a new file."""

    name: str
    inode: int

    def names(self) -> set[str]:
        return {self.name}

    def apply(self, names: dict[str, int]) -> None:
        names[self.name] = self.inode


@dataclass(frozen=True, slots=True)
class Rename:
    """A rename of a file; a file that had the new name before loses it."""

    old: str
    new: str
    inode: int

    def names(self) -> set[str]:
        return {self.old, self.new}

    def apply(self, names: dict[str, int]) -> None:
        """Give the file its new name, and remove the old one if it still belongs to the file.

        After a lost sync, the old name may be missing or belong to another file.
        """
        if names.get(self.old) == self.inode:
            del names[self.old]
        names[self.new] = self.inode


@dataclass(frozen=True, slots=True)
class Unlink:
    """The removal of a name."""

    name: str
    inode: int

    def names(self) -> set[str]:
        return {self.name}

    def apply(self, names: dict[str, int]) -> None:
        """Remove the name if it still belongs to this file."""
        if names.get(self.name) == self.inode:
            del names[self.name]


FileChange: TypeAlias = Write | Grow
NameChange: TypeAlias = Link | Rename | Unlink
Change: TypeAlias = FileChange | NameChange


# ---- power loss ----------------------------------------------------------------------------------
# The effect of a power loss is a list of changes, which are applied in order to the durable
# content. A torn write becomes a shorter write, and a garbled write becomes a write of other bytes.
# So a power loss changes no byte outside an unsynced write.


SECTOR_BYTES: Final = 512

CrashMode: TypeAlias = Literal[
    "all_kept",
    "all_dropped",
    "sequential",  # a prefix of all changes; if its last change is a write, it may be torn
    "reordered",  # each write has its own result, any of `_RESULTS`
    # In the modes below, at least one write has the result that the mode names.
    "torn_bytes",  # truncated at any byte
    "torn_sectors",  # only some sectors are written
    "garbage",  # some sectors have random bytes
    "zeros",  # the space is allocated, and the bytes are zero
]
CRASH_MODES: Final[tuple[CrashMode, ...]] = get_args(CrashMode)

_Result: TypeAlias = Literal["kept", "dropped", "torn_bytes", "torn_sectors", "garbage", "zeros"]
_RESULTS: Final[tuple[_Result, ...]] = get_args(_Result)


def survivors(pending: Sequence[Change], rng: Random, mode: CrashMode) -> list[Change]:
    """Return the changes that are on the disk after a power loss, whole or damaged.

    `pending` are the unsynced changes, oldest first. Raises ValueError if there is no such mode.
    """
    match mode:
        case "all_kept":
            return list(pending)
        case "all_dropped":
            return []
        case "sequential":
            return _prefix(pending, rng)
        case "reordered":
            # "kept" and "dropped" have double weight. Otherwise a reordering without damaged writes
            # would be rare.
            return _independent(pending, rng, (*_RESULTS, "kept", "dropped"), None)
        case "torn_bytes" | "torn_sectors" | "garbage" | "zeros":
            return _independent(pending, rng, ("kept", "dropped", mode), mode)
        case _:
            raise ValueError(f"no such crash mode: {mode}")


def _prefix(pending: Sequence[Change], rng: Random) -> list[Change]:
    kept = list(pending[: rng.randint(0, len(pending))])
    if kept and isinstance(last := kept[-1], Write) and rng.random() < 0.5:
        kept[-1:] = _damage(last, "torn_bytes", rng)
    return kept


def _independent(
    pending: Sequence[Change], rng: Random, results: Sequence[_Result], certain: _Result | None
) -> list[Change]:
    """Draw a result for each change; return the changes that are kept, whole or damaged.

    If `certain` is not None, at least one write has that result.
    """
    writes = [index for index, change in enumerate(pending) if isinstance(change, Write)]
    certain_index = rng.choice(writes) if certain and writes else None
    names = _kept_names(pending, rng)
    kept: list[Change] = []
    for index, change in enumerate(pending):
        if isinstance(change, Write):
            result = certain if certain and index == certain_index else rng.choice(results)
            kept += _damage(change, result, rng)
        elif isinstance(change, Grow):
            if certain == "zeros" or rng.random() < 0.5:
                kept.append(change)
        elif index in names:
            kept.append(change)
    return kept


def _kept_names(pending: Sequence[Change], rng: Random) -> set[int]:
    """Return the indexes of the changes of names that are kept.

    With a change, every older change of the same names is kept, because the change depends on it.
    For example, "rename a to b" without "create a" would rename nothing. A second "create a"
    without "rename a to b" before it would replace the old file with the new one.
    """
    kept: set[int] = set()
    needed: set[str] = set()
    for index in reversed(range(len(pending))):
        change = pending[index]
        if isinstance(change, FileChange):
            continue
        if rng.random() < 0.5 or change.names() & needed:
            kept.add(index)
            needed |= change.names()
    return kept


def _damage(write: Write, result: _Result, rng: Random) -> list[Write]:
    match result:
        case "kept":
            return [write]
        case "dropped":
            return []
        case "torn_bytes":
            return [replace(write, data=write.data[: rng.randrange(len(write.data))])]
        case "torn_sectors":
            return _torn(_sectors(write), rng)
        case "garbage":
            return _garbled(_sectors(write), rng)
        case "zeros":
            return [replace(write, data=bytes(len(write.data)))]


def _torn(sectors: list[Write], rng: Random) -> list[Write]:
    """Return some of the sectors, never all: a prefix or, as disks reorder writes, any subset."""
    if rng.random() < 0.5:
        return sectors[: rng.randrange(len(sectors))]
    lost = rng.randrange(len(sectors))
    return [sector for index, sector in enumerate(sectors) if index != lost and rng.random() < 0.5]


def _garbled(sectors: list[Write], rng: Random) -> list[Write]:
    garbled = rng.randrange(len(sectors))
    return [
        replace(sector, data=rng.randbytes(len(sector.data)))
        if index == garbled or rng.random() < 0.5
        else sector
        for index, sector in enumerate(sectors)
    ]


def _sectors(write: Write) -> list[Write]:
    """Return a write as several writes, split at the boundaries of sectors."""
    pieces = []
    start = 0
    while start < len(write.data):
        position = write.position + start
        end = start + SECTOR_BYTES - position % SECTOR_BYTES
        pieces.append(Write(write.inode, position, write.data[start:end]))
        start = end
    return pieces
