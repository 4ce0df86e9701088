"""The store that keeps the checkpoint in an LMDB file.

A store is opened for reading only. Before `make_writable` changes a file, `begin_changes` allocates
the space for that, and `cancel_changes` can undo it. So a start that is refused leaves the
directory as it was.
"""

import contextlib
import errno
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from threading import Condition, Lock
from typing import Final

import lmdb

from semel.journal.checkpoint import FILE_NAME
from semel.journal.disk import (
    FILE_MODE,
    allocate_file,
    create_empty_file,
    disk_failed,
    publish_file,
    release_file,
    sync_file,
)
from semel.journal.lmdb_meta import BadPage, Meta, restore_meta
from semel.journal.lmdb_pages import check_pages
from semel.journal.lmdb_transactions import (
    LmdbReader,
    LmdbWriter,
    SnapshotReader,
    Tables,
    as_store_errors,
    last_transaction,
    refused,
)
from semel.journal.store import TABLES, StoreReader
from semel.model.errors import CorruptData, DiskFailed
from semel.model.limits import CHECKPOINT_BYTES_MAX, KIB

# lmdb imports this module when it opens the first file. Then the process may have too few files, or
# no rights to read it.
with contextlib.suppress(ImportError):
    import_module("lmdb._envid")

log = logging.getLogger("semel")

TEMPORARY_NAME: Final = "checkpoint.tmp"
_LOCK_SUFFIX: Final = "-lock"
_LOCK_BYTES: Final = 8 * KIB


class LmdbStore:
    """The checkpoint's tables, stored in one LMDB file.

    One thread can write while other threads read.
    """

    def __init__(self, path: str, *, is_shared: bool = False) -> None:
        """Check the file at `path` and open it for reading only. Nothing is written.

        A missing or empty file has no rows. `is_shared` means that a running server uses the file.
        Then this reader registers in LMDB's reader table, so that the server does not reuse the
        pages that are being read. Raises CorruptData or DiskFailed.

        If one meta page is damaged, the snapshot of the other one is used, and `damage` says so.
        """
        self._path = path
        self._tables: Tables = {}
        self._committing = Lock()
        self._env: lmdb.Environment | None = None
        self._lock = Condition()  # held while the file is opened or closed
        self._view_count = 0  # the file is opened again only while no view is open
        self._transaction_id = 0
        self.damage: str | None = None  # until `make_writable` repairs it
        self._sound_meta: Meta | None = None
        self._snapshot: SnapshotReader | None = None
        self._is_checked = True
        self._has_begun = self._is_writable = False
        self._lock_before: os.stat_result | None = None  # LMDB's lock file before `begin_changes`
        try:
            self._is_missing = not has_content(path)
            if not self._is_missing:
                self._check_and_open(is_shared=is_shared)
        except OSError as error:
            raise refused("the file cannot be read", error) from error

    def _check_and_open(self, *, is_shared: bool) -> None:
        checked = check_pages(self._path, is_quick=True)
        self._is_checked = checked.is_complete
        if checked.damage is None or checked.meta is None:
            self._open(is_shared=is_shared)
            return
        self._sound_meta = checked.meta
        self._snapshot = SnapshotReader(self._path, checked.meta)
        self.damage = (
            f"{checked.damage}, as after a loss of power; the other meta page leads to a sound"
            " checkpoint, and a start continues from it and repairs the page"
        )

    def begin_changes(self) -> None:
        """Create a missing file under a temporary name, and allocate LMDB's lock file.

        No byte of an existing file is changed. Raises DiskFailed. Then nothing is changed.
        """
        if self._has_begun or self._is_writable:
            return
        try:
            if self._is_missing:
                _create(self._temporary)
            else:
                with open(self._path, "r+b"):
                    pass  # if this is not permitted, the lock file must not be changed either
            self._lock_before = allocate_file(self._path + _LOCK_SUFFIX, _LOCK_BYTES)
        except OSError as error:
            self._remove_temporary()
            raise refused("the file cannot be written", error) from error
        self._has_begun = True

    def cancel_changes(self) -> None:
        """Undo `begin_changes`, unless the file is writable already."""
        if self._has_begun:
            self._has_begun = False
            release_file(self._path + _LOCK_SUFFIX, self._lock_before)
            self._remove_temporary()

    @property
    def _temporary(self) -> str:
        return os.path.join(os.path.dirname(self._path), TEMPORARY_NAME)

    def _remove_temporary(self) -> None:
        if self._is_missing:
            with contextlib.suppress(OSError):
                os.unlink(self._temporary)

    def make_writable(self) -> None:
        """Open the file for writing. Create it if it is missing, and repair a damaged meta page.

        Raises DiskFailed.
        """
        self.begin_changes()
        with self._lock:
            self.close()
            try:
                if self._is_missing:
                    publish_file(self._temporary, self._path)
                    self._is_missing = False
                self._open_writable()
            except OSError as error:
                raise refused("the file cannot be written", error) from error
            self._has_begun, self._is_writable = False, True

    def _open_writable(self) -> None:
        """Repair a damaged meta page, and open the file. Raises DiskFailed or OSError."""
        if self._sound_meta is not None:
            restore_meta(self._path, self._sound_meta)
            log.warning("%s: %s", FILE_NAME, self.damage)
            self._sound_meta = self.damage = None
        self._open(is_writable=True)

    def _open(self, *, is_writable: bool = False, is_shared: bool = False) -> None:
        try:
            self._env = _open_env(
                self._path, readonly=not is_writable, lock=is_writable or is_shared
            )
            self._tables = dict(_open_tables(self._env, is_writable=is_writable))
        except lmdb.Error as error:
            # The pages are sound, so the operating system has refused something.
            self.close()
            raise refused("the file cannot be opened", error) from error

    @contextmanager
    def read(self) -> Iterator[StoreReader]:
        if self._is_missing:
            yield LmdbReader(None, {})
            return
        if self._snapshot is not None:
            yield self._snapshot
            return
        with self._lock:
            transaction = self._begin()
            self._view_count += 1
        try:
            with transaction:
                yield LmdbReader(transaction, self._tables)
        finally:
            with self._lock:
                self._view_count -= 1
                self._lock.notify_all()

    def _begin(self) -> lmdb.Transaction:
        if self._env is None:
            raise DiskFailed(f"{FILE_NAME}: the file is closed")
        try:
            return self._env.begin()
        except lmdb.PanicError:
            self._reopen_if_broken()
            return self._env.begin()
        except lmdb.Error as error:
            raise as_store_errors(error) from error

    def write(self) -> LmdbWriter:
        assert self._env is not None, "the store is not writable yet"
        try:
            # Readers that were killed would otherwise keep their pages in use for ever.
            self._env.reader_check()
            self._transaction_id = self._env.info()["last_txnid"]
            return LmdbWriter(
                self._env.begin(write=True),
                self._tables,
                self._path,
                committing=self._committing,
                reopen=self._reopen_if_broken,
            )
        except lmdb.Error as error:
            raise as_store_errors(error) from error

    def check_rest(self) -> None:
        if self._is_checked:
            return
        try:
            checked = check_pages(self._path)
        except OSError as error:
            raise refused("the file cannot be read", error) from error
        if checked.damage is not None:  # in the snapshot that is in use
            raise CorruptData(checked.damage, file=FILE_NAME)
        self._is_checked = True

    def _reopen_if_broken(self) -> None:
        """Open the file again if LMDB can no longer use it.

        If the write of a meta page fails, LMDB tries to restore the page, and refuses all further
        calls. Raises DiskFailed if the file does not contain exactly the last checkpoint: then only
        a new start can find out what is stored.
        """
        with self._lock, self._committing:
            self._lock.wait_for(lambda: not self._view_count)
            assert self._env is not None
            try:
                self._env.begin().abort()
            except lmdb.PanicError:
                self.close()
                try:
                    sync_file(self._path)
                    is_unchanged = last_transaction(self._path) == self._transaction_id
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
            self._tables = {}
        if self._snapshot is not None:
            self._snapshot.close()
            self._snapshot = None


def has_content(path: str) -> bool:
    """Return False if the file is missing or empty. Raises OSError."""
    try:
        return os.stat(path).st_size > 0
    except FileNotFoundError:
        return False


def _create(temporary: str) -> None:
    """Create a file with empty tables. Raises DiskFailed or OSError.

    LMDB does not sync the first pages of a new file. So the file has a temporary name until it is
    complete and durable.
    """
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
    try:
        create_empty_file(temporary)  # LMDB would leave its rights to the umask
        env = _open_env(temporary, readonly=False, lock=False)
        with contextlib.closing(env), env.begin(write=True) as transaction:
            for name in TABLES:
                env.open_db(name.encode(), transaction)
    except (lmdb.Error, OSError) as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise refused("the file cannot be created", error) from error


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
