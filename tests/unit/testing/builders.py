"""Helpers: a disk with a file, a single fault, and many crashes of the same disk."""

from dataclasses import dataclass
from random import Random

from semel.testing import SECTOR_BYTES, CrashMode, Fault, VirtualDisk, VirtualFile

SIZE = 4 * SECTOR_BYTES


@dataclass
class Once:
    """Injects one fault at the first operation of a kind."""

    operation: str
    fault: Fault | None

    def before(self, operation: str, name: str, size: int) -> Fault | None:
        if operation != self.operation:
            return None
        fault, self.fault = self.fault, None
        return fault


def a_disk_with_a_file(name: str = "a") -> tuple[VirtualDisk, VirtualFile]:
    disk = VirtualDisk()
    file = disk.create(name, SIZE)
    disk.sync_names()
    return disk, file


def outcomes(disk: VirtualDisk, mode: CrashMode, count: int = 200) -> list[dict[str, bytes]]:
    found = []
    for seed in range(count):
        twin = disk.copy()
        twin.crash(Random(seed), mode)
        found.append(twin.files())
    return found
