"""The exceptions of the engine. All but InvariantBroken are caused by the environment.

    SemelError
    ├── EngineError             the engine cannot start or continue; sets the exit code
    │   ├── CorruptData         65  data on disk is damaged or missing
    │   ├── DirectoryLocked     73  another process owns the directory
    │   └── DiskFailed          74  the operating system refused a read, write or sync
    ├── ReadFailed              a stored frame cannot be read, but other frames can
    │   └── CorruptRead         a stored frame is damaged
    ├── EngineStopped           the engine has stopped or failed
    └── InvariantBroken         a bug in semel

Refusals such as a gap or a closed stream are values, not exceptions (see `outcomes.py`).
"""

from typing import ClassVar


class SemelError(Exception):
    """Base class for the exceptions that semel raises."""

    code: str = "error"


class EngineError(SemelError):
    """The engine cannot start or continue. The process ends with `exit_code`."""

    exit_code: ClassVar[int] = 70


class CorruptData(EngineError):
    """Data on disk is damaged or missing. The engine left the data as it was."""

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

    The engine must be restarted, because only recovery can determine what is on disk.
    """

    code = "disk_failed"
    exit_code = 74


class ReadFailed(SemelError):
    """A stored frame could not be read. Nothing was changed."""

    code = "read_failed"


class CorruptRead(ReadFailed):
    """The bytes of a durable frame are not the bytes that were written."""

    code = "corrupt_data"

    def __init__(self, message: str, *, file: str, position: int) -> None:
        super().__init__(f"{file} at byte {position}: {message}")
        self.file = file
        self.position = position


class EngineStopped(SemelError):
    """The engine has stopped or failed. To continue, open the engine again."""

    code = "engine_stopped"


class InvariantBroken(SemelError):
    """An invariant does not hold. This is a bug in semel."""

    code = "invariant_broken"


def invariant(condition: bool, message: str) -> None:
    """Raise InvariantBroken if `condition` is false. Unlike `assert`, this also works with `-O`."""
    if not condition:
        raise InvariantBroken(message)
