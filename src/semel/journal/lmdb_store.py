"""The store that keeps the checkpoint in an LMDB file.

A store is opened for reading only, and changes no file until `make_writable` is called. So a start
that is refused leaves the directory as it was.
"""

import contextlib
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from mmap import ACCESS_READ, mmap
from threading import Lock, RLock
from typing import Final, cast

import lmdb

from semel.journal.checkpoint import FILE_NAME
from semel.journal.disk import FILE_MODE, allocate_file, disk_failed, publish_file, sync_file
from semel.journal.lmdb_pages import BadPage, check_pages, newest, read_metas
from semel.journal.store import TABLES, StoreFull
from semel.model.errors import CorruptData, DiskFailed
from semel.model.limits import CHECKPOINT_BYTES_MAX, KIB

TEMPORARY_NAME: Final = "checkpoint.tmp"
_LOCK_SUFFIX: Final = "-lock"
_LOCK_BYTES: Final = 8 * KIB
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
    """A write transaction. LMDB allows only one write transaction at a time."""

    def __init__(self, transaction: lmdb.Transaction, store: "LmdbStore") -> None:
        super().__init__(transaction, store.tables)
        self._store = store
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
            with self._store.committing:
                self._transaction.commit()
        except lmdb.Error as error:
            failure = self._full_or(as_store_errors(error))
            if isinstance(failure, StoreFull):
                self._store.reopen_if_broken()
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
        disk = os.statvfs(self._store.path)
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
    return _refused("the file cannot be used", error)


def _refused(what: str, error: lmdb.Error | OSError) -> DiskFailed:
    """Return the error for a call that the operating system refused."""
    if isinstance(error, OSError):
        code, name = error.errno, os.path.basename(error.filename or FILE_NAME)
    else:
        code, name = getattr(error, "code", None), FILE_NAME
    if code is None or code <= 0:  # LMDB's own error numbers are negative
        return DiskFailed(f"{name}: {what}: {error}")
    return disk_failed(f"{name}: {what}", code)


class LmdbStore:
    """The checkpoint's tables, stored in one LMDB file.

    One thread can write while another thread reads.
    """

    def __init__(self, path: str, *, is_shared: bool = False) -> None:
        """Check the file at `path` and open it for reading only. Nothing is written.

        A missing or empty file has no rows. `is_shared` means that a running server uses the file.
        Then this reader registers in LMDB's reader table, so that the server does not reuse the
        pages that are being read. Raises CorruptData or DiskFailed.
        """
        self.path: Final = path
        self.tables: Tables = {}
        self.committing: Final = Lock()
        self._env: lmdb.Environment | None = None
        self._lock = RLock()  # held while a view is open, and while the file is opened again
        self._transaction_id = 0
        try:
            if has_content(path):
                check_pages(path)
                self._open(is_shared=is_shared)
        except OSError as error:
            raise _refused("the file cannot be read", error) from error

    def make_writable(self) -> None:
        """Open the file for writing, and create it if it is missing. Raises DiskFailed."""
        with self._lock:
            self.close()
            try:
                if not has_content(self.path):
                    _create(self.path)
                self._open_writable()
            except OSError as error:
                raise _refused("the file cannot be written", error) from error

    def _open_writable(self) -> None:
        """Open the file and LMDB's lock file, which LMDB maps. Raises DiskFailed or OSError."""
        with open(self.path, "r+b"):
            pass  # if this is not permitted, the lock file must not be changed either
        allocate_file(self.path + _LOCK_SUFFIX, _LOCK_BYTES)
        self._open(is_writable=True)

    def _open(self, *, is_writable: bool = False, is_shared: bool = False) -> None:
        try:
            self._env = _open_env(
                self.path, readonly=not is_writable, lock=is_writable or is_shared
            )
            self.tables = dict(_open_tables(self._env, is_writable=is_writable))
        except lmdb.Error as error:
            # The pages are sound, so the operating system has refused something.
            self.close()
            raise _refused("the file cannot be opened", error) from error

    @contextmanager
    def read(self) -> Iterator[LmdbReader]:
        with self._lock:
            if self._env is None:
                yield LmdbReader(None, {})
                return
            try:
                transaction = self._env.begin()
            except lmdb.PanicError:
                self.reopen_if_broken()
                transaction = self._env.begin()
            except lmdb.Error as error:
                raise as_store_errors(error) from error
            with transaction:
                yield LmdbReader(transaction, self.tables)

    def write(self) -> LmdbWriter:
        assert self._env is not None, "the store is not writable yet"
        try:
            # Readers that were killed would otherwise keep their pages in use for ever.
            self._env.reader_check()
            self._transaction_id = self._env.info()["last_txnid"]
            return LmdbWriter(self._env.begin(write=True), self)
        except lmdb.Error as error:
            raise as_store_errors(error) from error

    def reopen_if_broken(self) -> None:
        """Open the file again if LMDB can no longer use it.

        If the write of a meta page fails, LMDB tries to restore the page, and refuses all further
        calls. Raises DiskFailed if the file does not contain exactly the last checkpoint: then only
        a new start can tell what is stored.
        """
        with self._lock, self.committing:
            assert self._env is not None
            try:
                self._env.begin().abort()
            except lmdb.PanicError:
                self.close()
                try:
                    sync_file(self.path)
                    is_unchanged = _newest_transaction(self.path) == self._transaction_id
                except (OSError, BadPage) as error:
                    raise DiskFailed(f"{FILE_NAME}: a meta page is not written: {error}") from error
                if not is_unchanged:
                    raise disk_failed(
                        f"{FILE_NAME}: a meta page cannot be written", errno.ENOSPC
                    ) from None
                self._open(is_writable=True)

    def close(self) -> None:
        if self._env is not None:
            self._env.close()
            self._env = None
            self.tables = {}


def has_content(path: str) -> bool:
    """Return False if the file is missing or empty. Raises OSError."""
    try:
        return os.stat(path).st_size > 0
    except FileNotFoundError:
        return False


def _newest_transaction(path: str) -> int:
    """Return the number of the last transaction that is stored. Raises BadPage or OSError."""
    with open(path, "rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
        return newest(read_metas(data)).transaction


def _create(path: str) -> None:
    """Create a file with empty tables. Raises DiskFailed or OSError.

    LMDB does not sync the first pages of a new file. So the file gets its name only when it is
    complete and durable.
    """
    temporary = os.path.join(os.path.dirname(path), TEMPORARY_NAME)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
    try:
        env = _open_env(temporary, readonly=False, lock=False)
        with contextlib.closing(env), env.begin(write=True) as transaction:
            for name in TABLES:
                env.open_db(name.encode(), transaction)
        publish_file(temporary, path)
    except (lmdb.Error, OSError) as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise _refused("the file cannot be created", error) from error


def _open_env(path: str, *, readonly: bool, lock: bool) -> lmdb.Environment:
    return lmdb.open(
        path,
        map_size=CHECKPOINT_BYTES_MAX,
        subdir=False,
        readonly=readonly,
        lock=lock,
        mode=FILE_MODE,
        max_dbs=len(TABLES),
        readahead=False,
        meminit=True,
    )


def _open_tables(
    env: lmdb.Environment, *, is_writable: bool
) -> Iterator[tuple[str, lmdb._Database]]:
    for name in TABLES:
        try:
            yield name, env.open_db(name.encode(), create=is_writable)
        except lmdb.NotFoundError:
            continue
