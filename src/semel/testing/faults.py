"""What a test may ask the virtual disk and the virtual store to do wrong.

Both ask their `faults` before each operation. No answer means that all goes well.
"""

import os
from dataclasses import dataclass
from typing import Protocol, TypeAlias


class Death(Exception):
    """The process ends inside an operation; nothing it does afterwards reaches the disk."""


class Killed(Death):
    """The process dies; the machine, and with it the page cache, lives on."""


class PowerLost(Death):
    """The machine dies; what was not synced is at the mercy of `VirtualDisk.crash`."""


@dataclass(frozen=True, slots=True)
class Fail:
    """Raise `error`: instead of the operation, or after it took effect all the same."""

    error: Exception
    is_after: bool = False


@dataclass(frozen=True, slots=True)
class ShortWrite:
    """Let only the first bytes of a write in, and answer so."""

    written_bytes: int


@dataclass(frozen=True, slots=True)
class LostSync:
    """Fail a sync the way Linux does: raise, and mark the pages clean.

    Readers go on seeing the bytes, the platter never gets them, and the next sync says all is well.
    Only writing the bytes again helps.
    """


Fault: TypeAlias = Fail | ShortWrite | LostSync


class Faults(Protocol):
    """Decides what goes wrong."""

    def before(self, operation: str, name: str, size: int) -> Fault | None:
        """Choose the fate of one operation on the file `name`, moving `size` bytes."""


def refuse(code: int) -> Fail:
    """Answer with an errno of the operating system; nothing happens."""
    return Fail(system_error(code))


def system_error(code: int, name: str | None = None) -> OSError:
    """Build the error as the operating system words it; Python picks the subclass."""
    return OSError(code, os.strerror(code), name)
