"""The checkpoint's store on LMDB."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, cast

import lmdb

from semel.journal.checkpoint import FILE_NAME
from semel.journal.store import TABLES, StoreFull
from semel.model.errors import CorruptData, DiskFailed
from semel.model.limits import CHECKPOINT_BYTES_MAX

# What damaged pages lead to.
_DAMAGED: Final = (
    lmdb.BadDbiError,
    lmdb.BadTxnError,
    lmdb.BadValsizeError,
    lmdb.CorruptedError,
    lmdb.CursorFullError,
    lmdb.IncompatibleError,
    lmdb.InvalidError,
    lmdb.PageFullError,
    lmdb.PageNotFoundError,
    lmdb.PanicError,
    lmdb.VersionMismatchError,
)


class LmdbReader:
    """A view or a transaction."""

    def __init__(self, transaction: lmdb.Transaction, tables: dict[str, lmdb._Database]) -> None:
        self._transaction = transaction
        self._tables = tables

    def get(self, table: str, key: bytes) -> bytes | None:
        """Look a key up."""
        return cast("bytes | None", self._transaction.get(key, db=self._tables[table]))

    def scan(self, table: str, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Walk the keys upwards."""
        with self._transaction.cursor(db=self._tables[table]) as cursor:
            if cursor.set_range(start):
                yield from cast("Iterator[tuple[bytes, bytes]]", cursor.iternext())

    def last_before(self, table: str, key: bytes) -> tuple[bytes, bytes] | None:
        """Find the greatest key that is <= `key`."""
        with self._transaction.cursor(db=self._tables[table]) as cursor:
            if cursor.set_range(key):
                is_found = cursor.key() == key or cursor.prev()
            else:
                is_found = cursor.last()
            return cast("tuple[bytes, bytes]", cursor.item()) if is_found else None


class LmdbWriter(LmdbReader):
    """The one writing transaction."""

    def put(self, table: str, key: bytes, value: bytes) -> None:
        """Set a key."""
        with _translated():
            self._transaction.put(key, value, db=self._tables[table])

    def delete(self, table: str, key: bytes) -> None:
        """Remove a key."""
        with _translated():
            self._transaction.delete(key, db=self._tables[table])

    def commit(self) -> None:
        """Commit and sync."""
        with _translated():
            self._transaction.commit()

    def abort(self) -> None:
        """Drop the transaction."""
        self._transaction.abort()


@contextmanager
def _translated() -> Iterator[None]:
    """Tell a full disk from a damaged file, and both from a failed disk."""
    try:
        yield
    except (lmdb.MapFullError, lmdb.DiskError) as error:
        raise StoreFull(str(error)) from error
    except _DAMAGED as error:
        raise CorruptData(str(error), file=FILE_NAME) from error
    except lmdb.Error as error:
        code = error.args[0] if error.args else error
        raise DiskFailed(f"{FILE_NAME}: {code}") from error


def fill_to_length(env: lmdb.Environment, path: str) -> None:
    """Give the file all the pages it counts: LMDB maps it and would die of a missing one.

    A sound file may lack pages that one transaction took and gave back. Zeros in their place hurt
    nobody, and where a page is missing that holds something LMDB refuses them.
    """
    needed = counted_bytes(env)
    if os.path.getsize(path) < needed <= CHECKPOINT_BYTES_MAX:
        os.truncate(path, needed)


def counted_bytes(env: lmdb.Environment) -> int:
    """Tell how long the file is by LMDB's own count of pages."""
    return int((env.info()["last_pgno"] + 1) * env.stat()["psize"])


class LmdbStore:
    """The tables in one LMDB file."""

    def __init__(self, path: str) -> None:
        try:
            self._env = lmdb.open(
                path,
                map_size=CHECKPOINT_BYTES_MAX,
                subdir=False,
                max_dbs=len(TABLES),
                readahead=False,
                meminit=True,
            )
            fill_to_length(self._env, path)
            self._tables = {name: self._env.open_db(name.encode()) for name in TABLES}
        except (lmdb.DiskError, OSError) as error:
            raise DiskFailed(f"{FILE_NAME}: cannot be opened: {error}") from error
        except lmdb.Error as error:
            raise CorruptData(f"cannot be opened: {error}", file=FILE_NAME) from error

    @contextmanager
    def read(self) -> Iterator[LmdbReader]:
        """Open a view."""
        with _translated(), self._env.begin() as transaction:
            yield LmdbReader(transaction, self._tables)

    def write(self) -> LmdbWriter:
        """Begin the writing transaction."""
        with _translated():
            return LmdbWriter(self._env.begin(write=True), self._tables)

    def close(self) -> None:
        """Close the file."""
        self._env.close()
