"""What this machine has of what semel needs."""

import importlib
import importlib.metadata
import platform
import resource
import shutil
import sys
from typing import Final, Literal

from msgspec import Struct

from semel.cli.text import size_text
from semel.model.limits import RESERVE_BYTES_DEFAULT, SEGMENT_BYTES_DEFAULT

DEPENDENCIES: Final = ("click", "crc32c", "lmdb", "msgspec", "rich", "uvloop")
_PYTHON_MIN: Final = (3, 11)
_FILES_MIN: Final = 4_096
_FREE_BYTES_MIN: Final = 2 * SEGMENT_BYTES_DEFAULT + RESERVE_BYTES_DEFAULT

Status = Literal["ok", "info", "warn", "fail"]


class Check(Struct, frozen=True):
    """One question and its answer."""

    name: str
    status: Status
    detail: str


def check_environment() -> list[Check]:
    """Ask everything that needs no data directory."""
    dependencies = [_check_dependency(name) for name in DEPENDENCIES]
    return [_check_python(), *dependencies, _check_files()]


def _check_python() -> Check:
    is_good = sys.version_info >= _PYTHON_MIN
    wanted = "" if is_good else f"; semel needs {'.'.join(map(str, _PYTHON_MIN))} or newer"
    return Check("python", "ok" if is_good else "fail", platform.python_version() + wanted)


def _check_dependency(name: str) -> Check:
    try:
        importlib.import_module(name)
        return Check(name, "ok", importlib.metadata.version(name))
    except ImportError as error:
        return Check(name, "fail", f"cannot be imported ({error}); install semel again")


def _check_files() -> Check:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)  # a server takes what it may
    if hard == resource.RLIM_INFINITY:
        return Check("open files", "ok", "no limit")
    if hard >= _FILES_MIN:
        return Check("open files", "ok", f"up to {hard}")
    advice = f"raise it, e.g. `ulimit -n {_FILES_MIN}`"
    return Check("open files", "warn", f"only {hard}; {advice}")


def check_space(path: str) -> Check:
    """Ask how much room the file system has."""
    free = shutil.disk_usage(path).free
    if free >= _FREE_BYTES_MIN:
        return Check("free space", "ok", size_text(free))
    wanted = f"with default settings a server wants {size_text(_FREE_BYTES_MIN)}"
    return Check("free space", "warn", f"only {size_text(free)}; {wanted}")
