"""Views and transactions of the LMDB file that contains the checkpoint, and LMDB's errors."""

import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, PROT_READ, mmap
from threading import Lock
from typing import Final, cast

import lmdb

from semel.journal.checkpoint import FILE_NAME
from semel.journal.disk import NO_ROOM, disk_failed
from semel.journal.lmdb_meta import METAS_BYTES_MAX, BadPage, Meta, newest_first, read_metas
from semel.journal.lmdb_pages import PageFile, Snapshot
from semel.journal.store import Row, StoreFull
from semel.model.errors import CorruptData, DiskFailed, EngineError
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
    lmdb.VersionMismatchError,
)

Tables = dict[str, lmdb._Database]


class LmdbReader:
    """Reads the tables inside one LMDB transaction, so that all reads see the same view.

    A missing table is read as an empty table. If its rows were lost, its digest in the checkpoint
    does not match and shows the loss.
    """

    def __init__(self, transaction: lmdb.Transaction | None, tables: Tables) -> None:
        self._transaction = cast("lmdb.Transaction", transaction)  # without tables it is not used
        self._tables = tables

    def get(self, table: str, key: bytes) -> bytes | None:
        if table not in self._tables:
            return None
        try:
            return cast("bytes | None", self._transaction.get(key, db=self._tables[table]))
        except lmdb.Error as error:
            raise as_store_errors(error) from error

    def scan(self, table: str, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        if table not in self._tables:
            return
        try:
            with self._transaction.cursor(db=self._tables[table]) as cursor:
                if cursor.set_range(start):
                    yield from cast("Iterator[tuple[bytes, bytes]]", cursor.iternext())
        except lmdb.Error as error:
            raise as_store_errors(error) from error

    def last_before(self, table: str, key: bytes) -> tuple[bytes, bytes] | None:
        if table not in self._tables:
            return None
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
    """A write transaction. LMDB allows only one write transaction at a time.

    The lock `committing` is held during the commit. `reopen` is called after a commit for which
    there was no space: it opens the file again if LMDB can no longer use it.
    """

    def __init__(
        self,
        transaction: lmdb.Transaction,
        tables: Tables,
        path: str,
        *,
        committing: Lock,
        reopen: Callable[[], None],
    ) -> None:
        super().__init__(transaction, tables)
        self._path = path
        self._committing = committing
        self._reopen = reopen
        self._change_count = 0
        self._is_over = False

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
        self._is_over = True
        try:
            with self._committing:
                self._transaction.commit()
        except lmdb.Error as error:
            failure = self._full_or(as_store_errors(error))
            if isinstance(failure, StoreFull):
                self._reopen()
            raise failure from error

    def abort(self) -> None:
        if not self._is_over:
            self._is_over = True
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


class SnapshotReader:
    """Reads the tables of one snapshot without LMDB. Its pages must have been checked.

    LMDB uses only the newer snapshot, and refuses a file with a damaged meta page. So as long as a
    file with such a page must not be changed, its sound snapshot is read in this way.
    """

    def __init__(self, path: str, meta: Meta) -> None:
        """Open the file. Raises CorruptData, DiskFailed or OSError.

        OSError is also raised if LMDB could not map the file later, because the address space is
        limited. A start must find this out before it changes a file.
        """
        mmap(-1, CHECKPOINT_BYTES_MAX, flags=MAP_PRIVATE | MAP_ANONYMOUS, prot=PROT_READ).close()
        self._file = open(path, "rb")  # noqa: SIM115 - `close` closes it
        try:
            self._snapshot = Snapshot(PageFile(self._file.fileno()), meta)
        except (BadPage, OSError) as error:
            self.close()
            raise _unreadable(error) from error

    def close(self) -> None:
        self._file.close()

    def get(self, table: str, key: bytes) -> bytes | None:
        row = self.last_before(table, key)
        return row[1] if row is not None and row[0] == key else None

    def scan(self, table: str, start: bytes = b"") -> Iterator[Row]:
        tree = self._snapshot.tables.get(table.encode())
        if tree is None or not tree.depth:
            return
        try:
            yield from self._rows_from(tree.root, tree.depth, start)
        except (BadPage, OSError) as error:
            raise _unreadable(error) from error

    def last_before(self, table: str, key: bytes) -> Row | None:
        tree = self._snapshot.tables.get(table.encode())
        if tree is None or not tree.depth:
            return None
        try:
            return self._last_before(tree.root, tree.depth, key)
        except (BadPage, OSError) as error:
            raise _unreadable(error) from error

    def _rows_from(self, page: int, depth: int, start: bytes) -> Iterator[Row]:
        nodes, keys = self._snapshot.read_nodes(page, is_leaf=depth == 1)
        if depth == 1:
            yield from self._snapshot.rows(page, nodes[bisect_left(keys, start) :])
            return
        # The keys of a child are not less than its key in the branch. The first key is not used.
        for _, child, _, _ in nodes[bisect_right(keys, start, lo=1) - 1 :]:
            yield from self._rows_from(child, depth - 1, start)

    def _last_before(self, page: int, depth: int, key: bytes) -> Row | None:
        nodes, keys = self._snapshot.read_nodes(page, is_leaf=depth == 1)
        if depth == 1:
            index = bisect_right(keys, key)
            return next(self._snapshot.rows(page, nodes[index - 1 : index]), None)
        # If all keys of a child are greater, the row is in an earlier child.
        for index in reversed(range(bisect_right(keys, key, lo=1))):
            row = self._last_before(nodes[index][1], depth - 1, key)
            if row is not None:
                return row
        return None


def _unreadable(error: BadPage | OSError) -> EngineError:
    """Return the error for a page that is damaged, or that the operating system did not read."""
    if isinstance(error, BadPage):
        return CorruptData(str(error), file=FILE_NAME)
    return refused("the file cannot be read", error)


def as_store_errors(error: lmdb.Error) -> Exception:
    """Translate an LMDB error.

    Return StoreFull if there is no space, CorruptData if the file is damaged, and DiskFailed for
    all other errors.
    """
    is_full = isinstance(error, lmdb.MapFullError | lmdb.DiskError)
    if is_full or getattr(error, "code", None) in NO_ROOM:
        return StoreFull(str(error))
    if isinstance(error, _DAMAGED):
        return CorruptData(str(error), file=FILE_NAME)
    return refused("the file cannot be used", error)


def refused(what: str, error: lmdb.Error | OSError) -> DiskFailed:
    """Return the error for a call that the operating system refused."""
    if isinstance(error, OSError):
        code, name = error.errno, os.path.basename(error.filename or FILE_NAME)
    else:
        code, name = getattr(error, "code", None), FILE_NAME
    if code is None or code <= 0:  # LMDB's own error numbers are negative
        return DiskFailed(f"{name}: {what}: {error}")
    return disk_failed(f"{name}: {what}", code)


def last_transaction(path: str) -> int:
    """Return the number of the last transaction that is stored. Raises BadPage or OSError."""
    with open(path, "rb") as file:
        metas = read_metas(file.read(METAS_BYTES_MAX))
    if None in metas:
        raise BadPage(metas.index(None), "is not a meta page")
    return newest_first(metas)[0].transaction
