"""Helpers that copy, damage and inspect the files of a data directory."""

import os
import shutil
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

CHECKPOINT: Final = "checkpoint.mdb"
IDENTITY: Final = "identity"
_PAGE_BYTES: Final = 4096
_LAST_PAGE_AT: Final = 136
_TRANSACTION_AT: Final = 144
_NUMBER: Final = struct.Struct("<Q")


def segments(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.seg"))


def _meta(path: Path, at: int) -> list[int]:
    """Read one number from both meta pages of an LMDB file."""
    data = path.read_bytes()[: 2 * _PAGE_BYTES]
    return [_NUMBER.unpack_from(data, page + at)[0] for page in (0, _PAGE_BYTES)]


def checkpoints(directory: Path) -> int:
    """Return the number of transactions that LMDB has committed."""
    return max(_meta(directory / CHECKPOINT, _TRANSACTION_AT))


def page_count(path: Path) -> int:
    """Return the number of pages according to the meta pages of an LMDB file."""
    return max(_meta(path, _LAST_PAGE_AT)) + 1


def vital_files(directory: Path) -> list[Path]:
    """Return the files that hold data: no lock files and no reserved space."""
    return [directory / IDENTITY, directory / CHECKPOINT, *segments(directory)]


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in vital_files(directory)}


def snapshot(directory: Path) -> dict[str, tuple[object, ...]]:
    """Return everything about the directory and its files that a program can change."""
    found: dict[str, tuple[object, ...]] = {}
    for path in (directory, *sorted(directory.iterdir())):
        facts = path.lstat()
        data = path.read_bytes() if path.is_file() else b""
        owner = (facts.st_uid, facts.st_gid, facts.st_mode)
        found[path.name] = (facts.st_ino, *owner, facts.st_size, facts.st_mtime_ns, data)
    return found


def flip(path: Path, bit: int) -> None:
    with path.open("r+b", buffering=0) as file:
        file.seek(bit // 8)
        byte = file.read(1)[0]
        file.seek(bit // 8)
        file.write(bytes([byte ^ 1 << bit % 8]))


def copy(source: Path, target: Path) -> Path:
    if target.exists():
        shutil.rmtree(target)
    shutil.copytree(source, target)
    return target


@contextmanager
def quick_directory() -> Iterator[Path]:
    """Yield a temporary directory, in memory if possible, for tests that need no real disk."""
    memory = "/dev/shm"
    where = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="semel-", dir=where) as path:
        yield Path(path)


def doctor_in_process(path: Path) -> int:
    """Return the exit code of `doctor --verify`, after a check that it changed no file."""
    from click.testing import CliRunner

    from semel.cli.doctor import doctor_command
    from semel.cli.output import CommandRefused

    before = snapshot(path)
    result = CliRunner().invoke(
        doctor_command, ["--verify", "--json", "--data", str(path)], standalone_mode=False
    )
    assert snapshot(path) == before
    if isinstance(result.exception, CommandRefused):
        return result.exception.code
    assert result.exception is None, (result.exception, result.output)
    return int(result.return_value)
