"""The store that keeps the checkpoint in an LMDB file."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, cast

import lmdb

from semel.journal.checkpoint import FILE_NAME
from semel.journal.lmdb_pages import check_pages
from semel.journal.store import TABLES, StoreFull
from semel.model.errors import CorruptData, DiskFailed
from semel.model.limits import CHECKPOINT_BYTES_MAX, KIB

_PAGE_BYTES_MAX: Final = 64 * KIB
_PAGES_BESIDE: Final = 64
# The errors that LMDB raises for damaged pages.
_DAMAGED: Final = (
    lmdb.BadDbiError,
    lmdb.BadTxnError,
    lmdb.BadValsizeError,
    lmdb.CorruptedError,
    lmdb.CursorFullError,
    lmdb.IncompatibleError,
    lmdb.InvalidError,
    lmdb.MapResizedError,  # the map has its final size from the start, so a page count is wrong
    lmdb.PageFullError,
    lmdb.PageNotFoundError,
    lmdb.PanicError,
    lmdb.VersionMismatchError,
)


class LmdbReader:
    """Reads the tables inside one LMDB transaction, so that all reads see the same view."""

    def __init__(self, transaction: lmdb.Transaction, tables: dict[str, lmdb._Database]) -> None:
        self._transaction = transaction
        self._tables = tables

    def get(self, table: str, key: bytes) -> bytes | None:
        try:
            return cast("bytes | None", self._transaction.get(key, db=self._tables[table]))
        except lmdb.Error as error:
            raise as_store_errors(error) from error

    def scan(self, table: str, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        try:
            with self._transaction.cursor(db=self._tables[table]) as cursor:
                if cursor.set_range(start):
                    yield from cast("Iterator[tuple[bytes, bytes]]", cursor.iternext())
        except lmdb.Error as error:
            raise as_store_errors(error) from error

    def last_before(self, table: str, key: bytes) -> tuple[bytes, bytes] | None:
        try:
            with self._transaction.cursor(db=self._tables[table]) as cursor:
                if cursor.set_range(key):
                    is_found = cursor.key() == key or cursor.prev()
                else:
                    is_found = cursor.last()
                return cast("tuple[bytes, bytes]", cursor.item()) if is_found else None
        except lmdb.Error as error:
            raise as_store_errors(error) from error


class LmdbWriter(LmdbReader):
    """A write transaction. LMDB allows only one write transaction at a time."""

    def __init__(
        self, transaction: lmdb.Transaction, tables: dict[str, lmdb._Database], path: str
    ) -> None:
        super().__init__(transaction, tables)
        self._path = path
        self._change_count = 0

    def put(self, table: str, key: bytes, value: bytes) -> None:
        self._change_count += 1
        try:
            self._transaction.put(key, value, db=self._tables[table])
        except lmdb.Error as error:
            raise self._full_or(as_store_errors(error)) from error

    def delete(self, table: str, key: bytes) -> None:
        self._change_count += 1
        try:
            self._transaction.delete(key, db=self._tables[table])
        except lmdb.Error as error:
            raise self._full_or(as_store_errors(error)) from error

    def commit(self) -> None:
        try:
            self._transaction.commit()
        except lmdb.Error as error:
            raise self._full_or(as_store_errors(error)) from error

    def abort(self) -> None:
        self._transaction.abort()

    def _full_or(self, error: Exception) -> Exception:
        """Return `error`, or StoreFull if `error` is an I/O error and the disk is nearly full.

        On a nearly full disk, LMDB reports a short write as an I/O error. Such a write damages
        nothing, because LMDB never overwrites the pages of the last committed transaction.
        """
        disk = os.statvfs(self._path)
        needed = (self._change_count + _PAGES_BESIDE) * _PAGE_BYTES_MAX
        is_full = isinstance(error, DiskFailed) and disk.f_bavail * disk.f_frsize < needed
        return StoreFull(str(error)) if is_full else error


def as_store_errors(error: lmdb.Error) -> Exception:
    """Translate an LMDB error.

    Return StoreFull if there is no space, CorruptData if the file is damaged, and DiskFailed for
    all other errors.
    """
    if isinstance(error, lmdb.MapFullError | lmdb.DiskError):
        return StoreFull(str(error))
    if isinstance(error, _DAMAGED):
        return CorruptData(str(error), file=FILE_NAME)
    return DiskFailed(f"{FILE_NAME}: {error.args[0] if error.args else error}")


class LmdbStore:
    """The checkpoint's tables, stored in one LMDB file."""

    def __init__(self, path: str) -> None:
        """Check the file and open it, or create it. Raises CorruptData or DiskFailed."""
        self._path = path
        try:
            if os.path.exists(path):
                check_pages(path, is_quick=True)
            self._env = lmdb.open(
                path,
                map_size=CHECKPOINT_BYTES_MAX,
                subdir=False,
                max_dbs=len(TABLES),
                readahead=False,
                meminit=True,
            )
            self._tables = {name: self._env.open_db(name.encode()) for name in TABLES}
        except (lmdb.Error, OSError) as error:
            # The pages are sound, so the operating system has refused something.
            raise DiskFailed(f"{FILE_NAME}: the file cannot be opened: {error}") from error

    @contextmanager
    def read(self) -> Iterator[LmdbReader]:
        try:
            transaction = self._env.begin()
        except lmdb.Error as error:
            raise as_store_errors(error) from error
        with transaction:
            yield LmdbReader(transaction, self._tables)

    def write(self) -> LmdbWriter:
        try:
            return LmdbWriter(self._env.begin(write=True), self._tables, self._path)
        except lmdb.Error as error:
            raise as_store_errors(error) from error

    def check_rest(self) -> None:
        check_pages(self._path)

    def close(self) -> None:
        self._env.close()
