"""A real disk that fails on demand."""

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass

from semel.journal.disk import File, RealDisk


@dataclass(slots=True)
class Plan:
    """Which calls fail: from the `calls_left`-th on, every `sync`, `write` or `short` write."""

    operation: str = ""
    calls_left: int = 0
    code: int = errno.EIO

    def is_due(self, operation: str) -> bool:
        if operation != self.operation:
            return False
        self.calls_left -= 1
        return self.calls_left <= 0

    def check(self, operation: str) -> None:
        if self.is_due(operation):
            raise OSError(self.code, os.strerror(self.code))


PLAN = Plan()


class FaultyFile:
    """A file whose calls fail according to the plan."""

    def __init__(self, file: File) -> None:
        self._file = file

    def write(self, position: int, buffers: Sequence[bytes]) -> int:
        PLAN.check("write")
        if not PLAN.is_due("short"):
            return self._file.write(position, buffers)
        data = b"".join(buffers)
        return self._file.write(position, [data[: len(data) // 2]])

    def sync(self) -> None:
        PLAN.check("sync")
        self._file.sync()

    def read(self, position: int, size: int) -> bytes:
        return self._file.read(position, size)

    def size(self) -> int:
        return self._file.size()

    def close(self) -> None:
        self._file.close()


class FaultyDisk(RealDisk):
    """A disk whose files are FaultyFiles."""

    def create(self, name: str, size: int) -> FaultyFile:  # type: ignore[override]
        return FaultyFile(super().create(name, size))

    def resize(self, name: str, size: int) -> FaultyFile:  # type: ignore[override]
        return FaultyFile(super().resize(name, size))

    def open(self, name: str) -> FaultyFile:  # type: ignore[override]
        return FaultyFile(super().open(name))
