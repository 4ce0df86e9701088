"""The faults that a virtual disk or store simulates: failing operations, and power losses."""

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final, Literal, Protocol, TypeAlias, get_args

# ---- faults of operations ------------------------------------------------------------------------
# The virtual disk and the virtual store call `faults.before` before each operation. The call
# returns the fault to inject into the operation, or None.


class Death(Exception):
    """Raised to simulate the end of the process during an operation.

    Every later operation raises the same exception again, until `kill` or `crash` is called.
    """


class Killed(Death):
    """Raised to simulate that the process is killed.

    The machine keeps running, so the page cache is kept.
    """


class PowerLost(Death):
    """Raised to simulate that the machine loses power.

    The test then calls `VirtualDisk.crash`, which chooses the unsynced data to keep.
    """


@dataclass(frozen=True, slots=True)
class Fail:
    """The operation raises `error` and has no effect.

    If `is_after` is true, the operation takes effect first and then raises `error`.
    """

    error: Exception
    is_after: bool = False


@dataclass(frozen=True, slots=True)
class ShortWrite:
    """The write stores only the first `written_bytes` bytes, and returns that number."""

    written_bytes: int


@dataclass(frozen=True, slots=True)
class LostSync:
    """The sync raises an error but marks the unwritten pages as clean, as Linux does.

    Readers still see the unwritten bytes, but later syncs skip these bytes because their pages are
    clean. To make the bytes durable, write them again and then sync.
    """


Fault: TypeAlias = Fail | ShortWrite | LostSync


class Faults(Protocol):
    """An object that chooses the fault to inject into each operation."""

    def before(self, operation: str, name: str, size: int) -> Fault | None:
        """Return the fault to inject into an operation on the file `name`, or None.

        `size` is a number of bytes. For the commit of a store, it is the number of changed tables.
        """


class FaultyStorage:
    """Base class for the virtual disk and the virtual store. It injects the faults.

    Attributes:
        faults: an object whose method `before` chooses a fault for each operation that can fail.
        on_operation: called with (operation, name) after each operation that changes something.
        operations: the number of operations that have changed something so far.
        capacity_bytes: the maximum size of the content. It can be changed at any time.
    """

    def __init__(self, *, capacity_bytes: int | None = None, faults: Faults | None = None) -> None:
        self.faults = faults
        self.on_operation: Callable[[str, str], None] | None = None
        self.operations = 0
        self.capacity_bytes = capacity_bytes
        self._death: Death | None = None

    def _check_alive(self) -> None:
        """If a Death has ended the simulated process, raise the same Death again."""
        if self._death is not None:
            raise self._death

    def _begin(self, operation: str, name: str, size: int) -> Fault | None:
        """Return the fault to inject into an operation, or None.

        If the fault prevents the operation, the error of the fault is raised instead.
        """
        self._check_alive()
        fault = self.faults.before(operation, name, size) if self.faults is not None else None
        assert not isinstance(fault, ShortWrite) or operation == "write", "only writes are short"
        assert not isinstance(fault, LostSync) or "sync" in operation, "only syncs are lost"
        if isinstance(fault, Fail) and not fault.is_after:
            self._raise(fault)
        return fault

    def _end(self, operation: str, name: str, fault: Fault | None) -> None:
        """Count an operation that has taken effect. If its fault has an error, raise the error."""
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
    """Return a fault that makes an operation fail with the errno `code` and have no effect."""
    return Fail(system_error(code))


def system_error(code: int, name: str | None = None) -> OSError:
    """Return the OSError for the errno `code`. Python chooses the matching subclass."""
    return OSError(code, os.strerror(code), name)


# ---- changes -------------------------------------------------------------------------------------
# Changes to files and to file names that are in the page cache but not yet on the disk.


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes that were written to a file at a position."""

    inode: int
    position: int
    data: bytes

    def apply(self, content: bytes) -> bytes:
        """Return `content` with this write applied. A gap before the write is filled with zeros."""
        if not self.data:
            return content
        before = content[: self.position].ljust(self.position, b"\0")
        return b"".join((before, self.data, content[self.position + len(self.data) :]))


@dataclass(frozen=True, slots=True)
class Grow:
    """The extension of a file to `size` bytes. The added bytes are zero."""

    inode: int
    size: int

    def apply(self, content: bytes) -> bytes:
        """Return the content, extended to `size` bytes. Longer content is not changed."""
        return content.ljust(self.size, b"\0")


@dataclass(frozen=True, slots=True)
class Link:
    """The creation of a file: a new name for a new inode."""

    name: str
    inode: int

    def names(self) -> set[str]:
        return {self.name}

    def apply(self, names: dict[str, int]) -> None:
        names[self.name] = self.inode


@dataclass(frozen=True, slots=True)
class Rename:
    """A rename of a file. If another file already has the new name, that file is replaced."""

    old: str
    new: str
    inode: int

    def names(self) -> set[str]:
        return {self.old, self.new}

    def apply(self, names: dict[str, int]) -> None:
        """Give the file its new name, and remove its old name.

        After a lost sync, the old name can be missing, or it can belong to a different file. In
        both cases, no name is removed.
        """
        if names.get(self.old) == self.inode:
            del names[self.old]
        names[self.new] = self.inode


@dataclass(frozen=True, slots=True)
class Unlink:
    """The removal of a file's name."""

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
# The effect of a power loss is a list of changes. They are applied to the durable content, in
# order. A torn write is represented by a shorter write, and a garbled write by a write of different
# bytes. Therefore a power loss changes no byte outside an unsynced write.


SECTOR_BYTES: Final = 512

CrashMode: TypeAlias = Literal[
    "all_kept",
    "all_dropped",
    "sequential",  # the oldest changes are kept; if the last of them is a write, it can be torn
    "reordered",  # each write gets its own random result, one of `_RESULTS`
    # In each mode below, at least one write gets the result that the mode is named after.
    "torn_bytes",  # truncated at any byte
    "torn_sectors",  # only some sectors are written
    "garbage",  # some sectors have random bytes
    "zeros",  # the space is allocated, and the bytes are zero
]
CRASH_MODES: Final[tuple[CrashMode, ...]] = get_args(CrashMode)

_Result: TypeAlias = Literal["kept", "dropped", "torn_bytes", "torn_sectors", "garbage", "zeros"]
_RESULTS: Final[tuple[_Result, ...]] = get_args(_Result)


def survivors(pending: Sequence[Change], rng: Random, mode: CrashMode) -> list[Change]:
    """Return the changes that are on the disk after a power loss. Some of them can be damaged.

    `pending` contains the unsynced changes, oldest first. Raises ValueError if `mode` is unknown.
    """
    match mode:
        case "all_kept":
            return list(pending)
        case "all_dropped":
            return []
        case "sequential":
            return _prefix(pending, rng)
        case "reordered":
            # "kept" and "dropped" are twice as likely as the other results. Otherwise it would be
            # rare that writes are reordered without damage.
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
    """Decide at random which changes are kept, and return these changes.

    Each write gets a random result from `results`, and some results damage the write. If `certain`
    is set, one write, chosen at random, gets the result `certain` instead.
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
    """Choose the name changes to keep, and return their indexes in `pending`.

    If a change is kept, all older changes to the same names are kept, too, because newer changes
    depend on older changes. For example, "rename a to b" without the earlier "create a" would
    rename nothing.
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
    """Return some of the sectors, but never all of them.

    In half of the cases, only sectors at the end are missing. In the other half, any sectors can be
    missing, because a disk can write sectors in any order.
    """
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
    """Split a write at the sector boundaries, and return the parts as writes."""
    pieces = []
    start = 0
    while start < len(write.data):
        position = write.position + start
        end = start + SECTOR_BYTES - position % SECTOR_BYTES
        pieces.append(Write(write.inode, position, write.data[start:end]))
        start = end
    return pieces
