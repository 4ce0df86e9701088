"""Where a demo writes. Only what a demo made is ever removed."""

import os
import shutil
from pathlib import Path
from typing import Final

from semel.cli.exits import Refused
from semel.cli.read_only import is_in_use

DATA: Final = "data"
CHECKPOINTS: Final = "checkpoints"
DRIVER_LOG: Final = "spark.log"
_MARKER_NAME: Final = "DEMO"
_MARKER_TEXT: Final = "Made by `semel demo`; `semel demo --force` may replace it.\n"
_OWN_NAMES: Final = frozenset({_MARKER_NAME, DATA, CHECKPOINTS, DRIVER_LOG})


def prepare(path: str, *, is_forced: bool) -> Path:
    """Have an empty directory that says whose it is."""
    if os.path.exists(path) and not os.path.isdir(path):
        raise Refused(f"{path} is not a directory; choose another with --data")
    os.makedirs(path, exist_ok=True)
    names = os.listdir(path)
    if names:
        _check_replaceable(path, names, is_forced=is_forced)
    for name in names:
        _remove(os.path.join(path, name))
    home = Path(path).absolute()
    (home / _MARKER_NAME).write_text(_MARKER_TEXT, encoding="utf-8")
    return home


def _check_replaceable(path: str, names: list[str], *, is_forced: bool) -> None:
    if _MARKER_NAME not in names:
        raise Refused(f"{path} is not empty and no demo made it; choose another with --data")
    if not is_forced:
        raise Refused(f"{path} is not empty; add --force to replace what an earlier demo left")
    foreign = [name for name in names if name not in _OWN_NAMES]
    if foreign:
        raise Refused(f"{path} also holds {foreign[0]}, which is not ours to remove")
    if is_in_use(os.path.join(path, DATA)):
        raise Refused(f"{path} is in use by a running process; end that first")


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)
