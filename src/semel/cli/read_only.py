"""Read-only access to a data directory, for `semel doctor`."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import lmdb

from semel.journal.checkpoint import FILE_NAME
from semel.journal.disk import CANNOT_LOCK, LOCK_NAME, RealFile
from semel.journal.lmdb_pages import check_pages
from semel.journal.lmdb_store import LmdbReader
from semel.journal.store import TABLES
from semel.model.errors import CorruptData


def is_in_use(path: str) -> bool:
    """Return True if a process has locked the directory or its lock file.

    This function does not keep the lock. The directory itself is checked because the lock file may
    have been removed while a server runs.
    """
    return any(_is_locked(name) for name in (path, os.path.join(path, LOCK_NAME)))


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


class ReadOnlyDisk:
    """The files of a directory, opened for reading only."""

    def __init__(self, path: str) -> None:
        self._path = path

    def names(self) -> list[str]:
        return sorted(os.listdir(self._path))

    def open(self, name: str) -> RealFile:
        return RealFile(os.open(os.path.join(self._path, name), os.O_RDONLY | os.O_CLOEXEC))


class _Reader(LmdbReader):
    """Reads a checkpoint. A missing table is read as an empty table.

    If the table's rows were lost, its digest in the checkpoint does not match and shows the loss.
    """

    def get(self, table: str, key: bytes) -> bytes | None:
        return super().get(table, key) if table in self._tables else None

    def scan(self, table: str, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        return super().scan(table, start) if table in self._tables else iter(())

    def last_before(self, table: str, key: bytes) -> tuple[bytes, bytes] | None:
        return super().last_before(table, key) if table in self._tables else None


def _open(file: str, *, is_shared: bool) -> lmdb.Environment:
    return lmdb.open(
        file, subdir=False, readonly=True, lock=is_shared, max_dbs=len(TABLES), readahead=False
    )


class ReadOnlyStore:
    """The checkpoint of a directory, opened for reading only.

    `is_shared` means that a server uses the directory. In that case, this reader registers in
    LMDB's reader table, so that the server does not reuse pages that are being read. Otherwise
    nothing is written to the directory.
    """

    def __init__(self, path: str, *, is_shared: bool) -> None:
        file = os.path.join(path, FILE_NAME)
        with _as_corruption():
            check_pages(file)
            self._env = _open(file, is_shared=is_shared)
            self._tables = dict(self._open_tables())

    def _open_tables(self) -> Iterator[tuple[str, lmdb._Database]]:
        for name in TABLES:
            try:
                yield name, self._env.open_db(name.encode(), create=False)
            except lmdb.NotFoundError:
                continue

    @contextmanager
    def read(self) -> Iterator[LmdbReader]:
        with _as_corruption(), self._env.begin() as transaction:
            yield _Reader(transaction, self._tables)

    def close(self) -> None:
        self._env.close()


class NoStore:
    """The store of a directory without a checkpoint. It has no rows."""

    @contextmanager
    def read(self) -> Iterator[LmdbReader]:
        yield _Reader(None, {})  # type: ignore[arg-type]  # without tables nothing is looked up

    def close(self) -> None:
        """Do nothing, because no file is open."""


class DamagedStore:
    """The store of a checkpoint that cannot be opened. Every read raises `error`."""

    def __init__(self, error: CorruptData) -> None:
        self._error = error

    def read(self) -> AbstractContextManager[LmdbReader]:
        raise self._error


@contextmanager
def _as_corruption() -> Iterator[None]:
    try:
        yield
    except lmdb.Error as error:
        raise CorruptData(f"the file cannot be read: {error}", file=FILE_NAME) from error


def open_store(path: str, *, is_shared: bool) -> ReadOnlyStore | NoStore:
    """Open the checkpoint for reading. Return a NoStore if the directory has no checkpoint.

    Raises CorruptData if the checkpoint cannot be read.
    """
    if not os.path.exists(os.path.join(path, FILE_NAME)):
        return NoStore()
    return ReadOnlyStore(path, is_shared=is_shared)
