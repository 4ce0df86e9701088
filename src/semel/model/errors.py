"""The errors that the environment can cause, and the one that only a bug can cause.

    SemelError
    ├── EngineError             the engine cannot start, or must stop; has an exit code
    │   ├── CorruptData         65  data on disk is damaged or missing
    │   ├── DirectoryLocked     73  another process owns the directory
    │   └── DiskFailed          74  the operating system refused a read, write or sync
    ├── ReadFailed              one stored frame cannot be read; others can
    │   └── CorruptRead         one stored frame is damaged
    ├── EngineStopped           the engine had stopped before the call
    └── InvariantBroken         a bug

Refusals that a caller must expect (gap, fenced, closed, ...) are values, not errors: see
`outcomes.py`.
"""

from typing import ClassVar


class SemelError(Exception):
    """The base of all errors that semel raises."""

    code: str = "error"


class EngineError(SemelError):
    """The engine cannot start or continue; the process ends with `exit_code`."""

    exit_code: ClassVar[int] = 70


class CorruptData(EngineError):
    """Data on disk is damaged or missing. The engine did not change it."""

    code = "corrupt_data"
    exit_code = 65

    def __init__(self, message: str, *, file: str, position: int | None = None) -> None:
        where = file if position is None else f"{file} at byte {position}"
        super().__init__(f"{where}: {message}")
        self.file = file
        self.position = position


class DirectoryLocked(EngineError):
    """Another process has locked this directory."""

    code = "directory_locked"
    exit_code = 73


class DiskFailed(EngineError):
    """A system call on the data directory failed.

    The engine must be restarted: only recovery can find out what is on disk.
    """

    code = "disk_failed"
    exit_code = 74


class ReadFailed(SemelError):
    """The operating system refused to read a stored frame; nothing was changed."""

    code = "read_failed"


class CorruptRead(ReadFailed):
    """The bytes of a durable frame are not the bytes that were written."""

    code = "corrupt_data"

    def __init__(self, message: str, *, file: str, position: int) -> None:
        super().__init__(f"{file} at byte {position}: {message}")
        self.file = file
        self.position = position


class EngineStopped(SemelError):
    """The engine has stopped. The caller must open it again."""

    code = "engine_stopped"


class InvariantBroken(SemelError):
    """An invariant does not hold. This is a bug in semel."""

    code = "invariant_broken"


def invariant(condition: bool, message: str) -> None:
    """Raise InvariantBroken if a condition does not hold; `-O` does not disable this check."""
    if not condition:
        raise InvariantBroken(message)
