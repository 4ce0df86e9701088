"""Changes of files and of names: what lies between the platter and the page cache."""

from dataclasses import dataclass
from typing import TypeAlias


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
