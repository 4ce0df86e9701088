"""What the command line may choose, and where the bytes go."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from msgspec import Struct

# Unlike the usual temporary directory this one is on a disk by convention.
DIRECTORY_DEFAULT = "/var/tmp"
MEMORY_FILE_SYSTEMS = frozenset({"tmpfs", "ramfs"})


class Options(Struct, frozen=True):
    directory: str = DIRECTORY_DEFAULT
    is_quick: bool = False
    gib: float = 2.0
    streams: int = 100_000


@contextmanager
def scratch(options: Options) -> Iterator[Path]:
    """A directory of its own for one benchmark, removed afterwards."""
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="semel-bench-") as name:
        yield Path(name)


def file_system(directory: str) -> str:
    """The type of the file system a directory is on."""
    path = os.path.realpath(directory)
    found = ("", "unknown")
    for mount in psutil.disk_partitions(all=True):
        point = mount.mountpoint.rstrip("/") + "/"
        if f"{path}/".startswith(point) and len(point) > len(found[0]):
            found = (point, mount.fstype)
    return found[1]
