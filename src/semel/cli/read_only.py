"""Read-only access to a data directory, for `semel doctor` and `semel restore`."""

import contextlib
import fcntl
import os
from contextlib import AbstractContextManager

from rich.console import Console
from rich.text import Text

from semel.cli.output import EXIT_DISK, EXIT_NO_INPUT, CommandRefused, printable
from semel.journal.checkpoint import FILE_NAME
from semel.journal.disk import CANNOT_LOCK, LOCK_NAME, OTHERS_MODE, RealFile
from semel.journal.identity import IDENTITY_NAME
from semel.journal.lmdb_store import LmdbStore
from semel.journal.store import StoreReader
from semel.journal.verify import Finding, Report
from semel.model.errors import CorruptData


def check_directory(path: str) -> None:
    """Raise CommandRefused unless `path` is a data directory that can be read."""
    if not os.path.isdir(path):
        what = "is not a directory" if os.path.exists(path) else "does not exist"
        raise CommandRefused(
            f"{path} {what}; pass the same --data as to `semel serve`", EXIT_NO_INPUT
        )
    try:
        names = os.listdir(path)
    except OSError as error:
        message = f"{path} cannot be read ({error.strerror}); run as the user that runs the server"
        raise CommandRefused(message, EXIT_DISK) from error
    if not any(name in {IDENTITY_NAME, FILE_NAME} or name.endswith(".seg") for name in names):
        raise CommandRefused(
            f"{path} is not a semel data directory; pass the same --data as to `semel serve`",
            EXIT_NO_INPUT,
        )


def is_in_use(path: str) -> bool:
    """Return True if a process holds a lock of the directory. This function keeps no lock.

    A server locks the directory itself and the lock file. Raises OSError.
    """
    return _is_locked(path) or _is_locked(os.path.join(path, LOCK_NAME))


def _is_locked(path: str) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in CANNOT_LOCK
    finally:
        os.close(fd)
    return False


def wide_rights(path: str) -> list[str]:
    """Return the names of the files that other users than the owner have any rights to.

    The directory itself has the name `.`. Files of other programs are listed, too. A symbolic link
    has no rights of its own.
    """
    found = ["."] if os.stat(path).st_mode & OTHERS_MODE else []
    with os.scandir(path) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):  # a running server can remove files
                if not entry.is_symlink() and entry.stat().st_mode & OTHERS_MODE:
                    found.append(entry.name)
    return sorted(found)


class ReadOnlyDisk:
    """The files of a directory, opened for reading only."""

    def __init__(self, path: str) -> None:
        self._path = path

    def names(self) -> list[str]:
        return sorted(os.listdir(self._path))

    def open(self, name: str) -> RealFile:
        return RealFile(os.open(os.path.join(self._path, name), os.O_RDONLY | os.O_CLOEXEC))


class DamagedStore:
    """The store of a checkpoint that cannot be opened. Every read raises `error`."""

    def __init__(self, error: CorruptData) -> None:
        self._error = error

    def read(self) -> AbstractContextManager[StoreReader]:
        raise self._error


def open_store(path: str, *, is_shared: bool) -> LmdbStore:
    """Check the checkpoint of a directory and open it for reading. If it is missing, it is empty.

    `is_shared` means that a server uses the directory. Raises CorruptData or DiskFailed.
    """
    store = LmdbStore(os.path.join(path, FILE_NAME), is_shared=is_shared)
    try:
        store.check_rest()
    except BaseException:
        store.close()  # a process can open the file only once
        raise
    return store


def print_findings(console: Console, report: Report) -> None:
    """Print the findings of a verification, and whether the data is sound."""
    for finding in report.findings:
        console.print(_finding_text(finding), soft_wrap=True)
    if report.omitted_count:
        console.print(f"and {report.omitted_count:,} more findings")
    damage = sum(not finding.is_note for finding in report.findings)
    if report.is_sound:
        console.print(Text("the data is sound: all checks have passed", style="green"))
    else:
        count = f"{damage:,} finding" + ("" if damage == 1 else "s")
        console.print(
            Text(f"the data is CORRUPT; see the {count} above (no data was changed)", "bold red")
        )


def _finding_text(finding: Finding) -> Text:
    where = finding.file
    if finding.position is not None:
        where += f" at byte {finding.position}"
    label = Text("note     ", "cyan") if finding.is_note else Text("CORRUPT  ", "bold red")
    return label.append(f"{printable(where)}: {printable(finding.message)}", style="default")
