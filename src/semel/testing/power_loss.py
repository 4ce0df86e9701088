"""What a power loss leaves of the operations that were not yet synced.

The answer is again a list of operations, to be done in order on what is durable. A torn write is a
shorter write, a garbled one a write of other bytes. So no byte outside an un-synced write changes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final, Literal, TypeAlias, get_args

# ---- changes -------------------------------------------------------------------------------------
# Changes of files and of names: what lies between the platter and the page cache.


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes for a file."""

    inode: int
    position: int
    data: bytes

    def apply(self, content: bytes) -> bytes:
        """Do it; a gap before it is filled with zeros."""
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
        """Do it; never makes a file shorter."""
        return content.ljust(self.size, b"\0")


@dataclass(frozen=True, slots=True)
class Link:
    """A name for a new file."""

    name: str
    inode: int

    def names(self) -> set[str]:
        """Tell which names it is about."""
        return {self.name}

    def apply(self, names: dict[str, int]) -> None:
        """Do it."""
        names[self.name] = self.inode


@dataclass(frozen=True, slots=True)
class Rename:
    """Another name for a file; whatever had the new name loses it."""

    old: str
    new: str
    inode: int

    def names(self) -> set[str]:
        """Tell which names it is about."""
        return {self.old, self.new}

    def apply(self, names: dict[str, int]) -> None:
        """Do it; after a lost sync the old name may be gone, or another file's."""
        if names.get(self.old) == self.inode:
            del names[self.old]
        names[self.new] = self.inode


@dataclass(frozen=True, slots=True)
class Unlink:
    """A name taken away."""

    name: str
    inode: int

    def names(self) -> set[str]:
        """Tell which names it is about."""
        return {self.name}

    def apply(self, names: dict[str, int]) -> None:
        """Do it, if the name is still this file's."""
        if names.get(self.name) == self.inode:
            del names[self.name]


FileChange: TypeAlias = Write | Grow
NameChange: TypeAlias = Link | Rename | Unlink
Change: TypeAlias = FileChange | NameChange


# ---- power loss ----------------------------------------------------------------------------------


SECTOR_BYTES: Final = 512

CrashMode: TypeAlias = Literal[
    "all_kept",
    "all_dropped",
    "sequential",  # a prefix of everything in its order, the last write of it maybe torn
    "reordered",  # each operation has a fate of its own: any of `_FATES`
    "torn_bytes",  # from here on: one write for sure, others perhaps. Cut at any byte
    "torn_sectors",  # some sectors arrived
    "garbage",  # some sectors hold noise
    "zeros",  # the space was taken, the bytes never arrived
]
CRASH_MODES: Final[tuple[CrashMode, ...]] = get_args(CrashMode)

_Fate: TypeAlias = Literal["kept", "dropped", "torn_bytes", "torn_sectors", "garbage", "zeros"]
_FATES: Final[tuple[_Fate, ...]] = get_args(_Fate)


def survivors(pending: Sequence[Change], rng: Random, mode: CrashMode) -> list[Change]:
    """Choose what of `pending` (oldest first) is found after the power is back."""
    match mode:
        case "all_kept":
            return list(pending)
        case "all_dropped":
            return []
        case "sequential":
            return _prefix(pending, rng)
        case "reordered":
            # Whole writes at double weight, else a reordering alone would be rare.
            return _independent(pending, rng, (*_FATES, "kept", "dropped"), None)
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
    pending: Sequence[Change], rng: Random, fates: Sequence[_Fate], certain: _Fate | None
) -> list[Change]:
    """Draw a fate for each; if one fate is `certain`, some write meets it."""
    writes = [index for index, change in enumerate(pending) if isinstance(change, Write)]
    victim = rng.choice(writes) if certain and writes else None
    names = _kept_names(pending, rng)
    kept: list[Change] = []
    for index, change in enumerate(pending):
        if isinstance(change, Write):
            fate = certain if certain and index == victim else rng.choice(fates)
            kept += _damage(change, fate, rng)
        elif isinstance(change, Grow):
            if certain == "zeros" or rng.random() < 0.5:
                kept.append(change)
        elif index in names:
            kept.append(change)
    return kept


def _kept_names(pending: Sequence[Change], rng: Random) -> set[int]:
    """Keep some changes of the directory, and every older one that a kept one builds on.

    Without that, keeping "rename a to b" and dropping "create a" would rename nothing, and keeping
    "create a" after dropping "rename a to b" would make an old file vanish under a new one.
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


def _damage(write: Write, fate: _Fate, rng: Random) -> list[Write]:
    match fate:
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
    """Lose the end, or any sectors: a disk may write them in any order. Never keep all."""
    if rng.random() < 0.5:
        return sectors[: rng.randrange(len(sectors))]
    lost = rng.randrange(len(sectors))
    return [sector for index, sector in enumerate(sectors) if index != lost and rng.random() < 0.5]


def _garbled(sectors: list[Write], rng: Random) -> list[Write]:
    spoiled = rng.randrange(len(sectors))
    return [
        replace(sector, data=rng.randbytes(len(sector.data)))
        if index == spoiled or rng.random() < 0.5
        else sector
        for index, sector in enumerate(sectors)
    ]


def _sectors(write: Write) -> list[Write]:
    """Cut a write where the disk's sectors end."""
    pieces = []
    start = 0
    while start < len(write.data):
        position = write.position + start
        end = start + SECTOR_BYTES - position % SECTOR_BYTES
        pieces.append(Write(write.inode, position, write.data[start:end]))
        start = end
    return pieces
