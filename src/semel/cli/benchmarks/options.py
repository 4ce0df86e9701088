"""What the command line may choose, and where the bytes go."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from msgspec import Struct

# Unlike the usual temporary directory this one is on a disk by convention.
DIRECTORY_DEFAULT: Final = "/var/tmp"  # noqa: S108 - only made-up names below it are used
MEMORY_FILE_SYSTEMS: Final = frozenset({"tmpfs", "ramfs"})

_MOUNTS: Final = Path("/proc/self/mounts")
_QUICK_SECONDS: Final = 0.3
_QUICK_SHARE: Final = 50


class Options(Struct, frozen=True):
    """`seconds`: of one measured round."""

    directory: str = DIRECTORY_DEFAULT
    is_quick: bool = False
    seconds: float = 3.0
    node_modules: str = "build/node_modules"

    @property
    def round_seconds(self) -> float:
        """How long a round is measured."""
        return min(self.seconds, _QUICK_SECONDS) if self.is_quick else self.seconds

    @property
    def warm_seconds(self) -> float:
        """How long a round runs before it is measured."""
        return self.round_seconds / 6

    @property
    def rounds(self) -> int:
        """How many rounds each side gets."""
        return 1 if self.is_quick else 5

    def scaled(self, count: int) -> int:
        """So many of something; few in a trial."""
        return max(2, count // _QUICK_SHARE) if self.is_quick else count


@contextmanager
def scratch(options: Options) -> Iterator[str]:
    """Give a directory of its own to one benchmark, and remove it afterwards."""
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="semel-bench-") as name:
        yield name


def file_system(directory: str) -> str:
    """Tell the type of the file system a directory is on."""
    path = os.path.realpath(directory)
    best, kind = "", "unknown"
    for line in _MOUNTS.read_text().splitlines() if _MOUNTS.exists() else ():
        _, mount, found, *_ = line.split(" ")
        point = mount.rstrip("/") + "/"
        if f"{path}/".startswith(point) and len(point) > len(best):
            best, kind = point, found
    return kind
