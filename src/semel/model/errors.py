"""Errors the world can cause, and the one only a bug can.

    SemelError
    ├── EngineError             the engine cannot start, or must stop; has an exit code
    │   ├── CorruptData         65  a checksum, an order or a promise on disk is broken
    │   ├── DirectoryLocked     73  another process owns the directory
    │   └── DiskFailed          74  the operating system refused a read, write or sync
    ├── ReadFailed              one stored frame cannot be read; everything else serves
    │   └── CorruptRead         ... because it is not what was written
    ├── EngineStopped           the call came after the engine ended
    └── InvariantBroken         a bug

Refusals a caller must expect (duplicate, gap, fenced, closed, ...) are values, not errors: see
`outcomes.py`.
"""

from typing import ClassVar


class SemelError(Exception):
    """Everything semel raises on purpose."""

    code: str = "error"


class EngineError(SemelError):
    """The engine cannot start or go on; the process ends with `exit_code`."""

    exit_code: ClassVar[int] = 70


class CorruptData(EngineError):
    """What is on disk is not what was written. Nothing was changed."""

    code = "corrupt_data"
    exit_code = 65

    def __init__(self, message: str, *, file: str, position: int | None = None) -> None:
        where = file if position is None else f"{file} at byte {position}"
        super().__init__(f"{where}: {message}")
        self.file = file
        self.position = position


class DirectoryLocked(EngineError):
    """Another process serves this directory."""

    code = "directory_locked"
    exit_code = 73


class DiskFailed(EngineError):
    """A system call on the data directory failed; only a restart can tell what is on disk."""

    code = "disk_failed"
    exit_code = 74


class ReadFailed(SemelError):
    """The operating system refused to read a stored frame; nothing was changed."""

    code = "read_failed"


class CorruptRead(ReadFailed):
    """A sealed frame does not read back as it was written."""

    code = "corrupt_data"

    def __init__(self, message: str, *, file: str, position: int) -> None:
        super().__init__(f"{file} at byte {position}: {message}")
        self.file = file
        self.position = position


class EngineStopped(SemelError):
    """The engine has ended; open it again."""

    code = "engine_stopped"


class InvariantBroken(SemelError):
    """Something that only a bug can break is broken."""

    code = "invariant_broken"


def invariant(condition: bool, message: str) -> None:
    """Stop if a fact the design rests on does not hold; unlike assert, also under -O."""
    if not condition:
        raise InvariantBroken(message)
