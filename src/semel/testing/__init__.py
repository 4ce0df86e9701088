"""Stand-ins for the world: a disk that loses power and a store that fails, for tests of durability.

    disk = VirtualDisk()
    file = disk.create("a", 4096)
    file.write(0, [b"hello"])
    disk.crash(Random(7), "torn_bytes")  # the name "a" was never synced either

Give them an object with `before(operation, name, size)` as `faults` to have an operation fail, come
up short, lie or end the process. Everything random comes from the `Random` a test passes in.
"""

from semel.testing.disk import VirtualDisk, VirtualFile
from semel.testing.faults import (
    Death,
    Fail,
    Fault,
    Faults,
    Killed,
    LostSync,
    PowerLost,
    ShortWrite,
    refuse,
)
from semel.testing.power_loss import CRASH_MODES, SECTOR_BYTES, CrashMode
from semel.testing.store import VirtualReader, VirtualStore, VirtualWriter

__all__ = [
    "CRASH_MODES",
    "SECTOR_BYTES",
    "CrashMode",
    "Death",
    "Fail",
    "Fault",
    "Faults",
    "Killed",
    "LostSync",
    "PowerLost",
    "ShortWrite",
    "VirtualDisk",
    "VirtualFile",
    "VirtualReader",
    "VirtualStore",
    "VirtualWriter",
    "refuse",
]
