"""An in-memory store for checkpoints. Its commits are atomic, and a test can make them fail.

It replaces LMDB in tests. A commit is durable when it returns, so a power loss drops only the open
transaction.

A commit replaces tables with new tables and never changes an existing table. Therefore an open
reader does not see later commits, and a copy of the store can share its tables.
"""

import errno
import hashlib
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Final

from semel.journal.store import TABLES, StoreFull
from semel.testing.storage_faults import Faults, FaultyStorage, system_error

KEY_BYTES_MAX: Final = 511  # the default limit of LMDB


@dataclass(slots=True)
class _Table:
    rows: dict[bytes, bytes] = field(default_factory=dict)
    keys: list[bytes] = field(default_factory=list)  # sorted

    def copy(self) -> "_Table":
        return _Table(self.rows.copy(), self.keys.copy())

    def put(self, key: bytes, value: bytes) -> None:
        if key not in self.rows:
            insort(self.keys, key)
        self.rows[key] = value

    def delete(self, key: bytes) -> None:
        if self.rows.pop(key, None) is not None:
            del self.keys[bisect_left(self.keys, key)]

    def size_bytes(self) -> int:
        return sum(len(key) + len(value) for key, value in self.rows.items())


class VirtualReader:
    """A read-only view of the tables as they were when the view was opened."""

    __slots__ = ("_is_open", "_tables")

    def __init__(self, tables: Mapping[str, _Table]) -> None:
        self._tables = tables
        self._is_open = True

    def get(self, table: str, key: bytes) -> bytes | None:
        return self._find(table).rows.get(_checked(key))

    def scan(self, table: str, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows whose key is `start` or greater, in the order of their keys.

        A write transaction uses this method, too, and can safely change rows during the scan.
        """
        rows = self._find(table)
        index = bisect_left(rows.keys, start)
        while index < len(rows.keys):
            key = rows.keys[index]
            yield key, rows.rows[key]
            rows = self._find(table)
            index = bisect_right(rows.keys, key)

    def last_before(self, table: str, key: bytes) -> tuple[bytes, bytes] | None:
        """Return the row with the greatest key <= `key`, or None if there is no such row."""
        rows = self._find(table)
        index = bisect_right(rows.keys, key)
        if not index:
            return None
        last = rows.keys[index - 1]
        return last, rows.rows[last]

    def close(self) -> None:
        self._is_open = False

    def _find(self, table: str) -> _Table:
        assert self._is_open, "the view is closed"
        return self._tables[table]


class VirtualWriter:
    """A write transaction of a VirtualStore. Only one can be open at a time."""

    __slots__ = ("_changed", "_is_full", "_room_bytes", "_store", "_tables", "_view")

    def __init__(
        self, store: "VirtualStore", tables: Mapping[str, _Table], room_bytes: int | None
    ) -> None:
        self._store = store
        self._tables = dict(tables)
        self._view = VirtualReader(self._tables)
        self._changed: set[str] = set()
        self._room_bytes = room_bytes
        self._is_full = False

    def get(self, table: str, key: bytes) -> bytes | None:
        return self._open_view().get(table, key)

    def scan(self, table: str, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows whose key is `start` or greater, in the order of their keys.

        The changes of this transaction are included.
        """
        return self._open_view().scan(table, start)

    def last_before(self, table: str, key: bytes) -> tuple[bytes, bytes] | None:
        """Return the row with the greatest key <= `key`, or None if there is no such row.

        The changes of this transaction are included.
        """
        return self._open_view().last_before(table, key)

    def put(self, table: str, key: bytes, value: bytes) -> None:
        """Set the value of a key.

        Raises StoreFull if the store has no room for the value. After this error, the transaction
        cannot be committed. It can only be aborted.
        """
        self._take_room(table, _checked(key), len(key) + len(value))
        self._own(table).put(key, value)

    def delete(self, table: str, key: bytes) -> None:
        """Remove a key. Do nothing if the key does not exist."""
        self._take_room(table, _checked(key), 0)
        self._own(table).delete(key)

    def commit(self) -> None:
        """Replace the tables of the store atomically, and end the transaction.

        Raises StoreFull if a `put` of this transaction has raised StoreFull. If a fault is
        injected, the error of the fault is raised.
        """
        self._open_view().close()
        self._store._commit(self._tables, len(self._changed), is_full=self._is_full)

    def abort(self) -> None:
        """Drop all changes, and end the transaction. Do nothing if it has already ended."""
        self._view.close()
        self._store._abort(self)

    def _open_view(self) -> VirtualReader:
        """Return the view that includes the changes of this transaction.

        Raises OSError (EBADF) if the transaction has ended.
        """
        self._store._check_open(self)
        return self._view

    def _own(self, table: str) -> _Table:
        """Return the transaction's own copy of a table. The first call for a table copies it."""
        if table not in self._changed:
            self._tables[table] = self._tables[table].copy()
            self._changed.add(table)
        return self._tables[table]

    def _take_room(self, table: str, key: bytes, size: int) -> None:
        self._store._check_open(self)
        if self._room_bytes is None:
            return
        old = self._tables[table].rows.get(key)
        growth = size if old is None else size - len(key) - len(old)
        if self._is_full or growth > max(0, self._room_bytes):
            self._is_full = True
            raise StoreFull("virtual store: no room")
        self._room_bytes -= growth


class VirtualStore(FaultyStorage):
    """A `Store` for tests.

    `faults.before` is called only for the operation "commit", with an empty `name` and with the
    number of changed tables as `size`. A `Fail` can raise StoreFull, an OSError or a Death, before
    or after the commit takes effect.

    A `put` that exceeds the capacity raises StoreFull. A new capacity applies to transactions that
    begin later.
    """

    def __init__(self, *, capacity_bytes: int | None = None, faults: Faults | None = None) -> None:
        super().__init__(capacity_bytes=capacity_bytes, faults=faults)
        self._tables: Mapping[str, _Table] = {name: _Table() for name in TABLES}
        self._writer: VirtualWriter | None = None

    # ---- the interface of Store ------------------------------------------------------------------

    @contextmanager
    def read(self) -> Iterator[VirtualReader]:
        """Open a read-only view for a `with` block. Later commits are not visible in the view."""
        self._check_alive()
        view = VirtualReader(self._tables)
        try:
            yield view
        finally:
            view.close()

    def begin_changes(self) -> None:
        """Do nothing. A store in memory needs no files."""

    def cancel_changes(self) -> None:
        """Do nothing, because `begin_changes` does nothing."""

    def make_writable(self) -> None:
        """Do nothing. A store in memory is always writable."""

    def write(self) -> VirtualWriter:
        """Begin a write transaction. Only one can be open at a time."""
        self._check_alive()
        assert self._writer is None, "a write transaction is already open"
        self._writer = VirtualWriter(self, self._tables, self._room_bytes())
        return self._writer

    def check_rest(self) -> None:
        """Do nothing, because nothing in memory is damaged."""

    def close(self) -> None:
        """Drop any open transaction."""
        self._writer = None

    # ---- for tests -------------------------------------------------------------------------------

    def kill(self) -> None:
        """Simulate the end of the process.

        The open transaction is dropped, and committed transactions are kept.
        """
        self._writer = None
        self._death = None

    def crash(self, _rng: Random) -> None:
        """Simulate a power loss. This does the same as `kill`, because every commit is synced."""
        self.kill()

    def copy(self) -> "VirtualStore":
        """Return a copy of the store with its committed tables.

        `faults`, `on_operation` and the open transaction are not copied.
        """
        twin = VirtualStore(capacity_bytes=self.capacity_bytes)
        twin.operations = self.operations
        twin._tables = self._tables
        return twin

    def digest(self) -> str:
        """Return a digest of the committed tables."""
        total = hashlib.sha256()
        for name in TABLES:
            table = self._tables[name]
            total.update(b"%d rows" % len(table.keys))
            for key in table.keys:
                value = table.rows[key]
                total.update(b"%d:%d:" % (len(key), len(value)) + key + value)
        return total.hexdigest()

    # ---- for transactions ------------------------------------------------------------------------

    def _check_open(self, writer: VirtualWriter) -> None:
        self._check_alive()
        if self._writer is not writer:
            raise system_error(errno.EBADF)

    def _commit(self, tables: Mapping[str, _Table], changed_count: int, *, is_full: bool) -> None:
        """Replace the tables of the store. The transaction ends even if this raises an error."""
        self._writer = None
        if is_full:
            raise StoreFull("virtual store: no room")
        fault = self._begin("commit", "", changed_count)
        self._tables = tables
        self._end("commit", "", fault)

    def _abort(self, writer: VirtualWriter) -> None:
        if self._writer is writer:
            self._writer = None

    def _room_bytes(self) -> int | None:
        if self.capacity_bytes is None:
            return None
        return self.capacity_bytes - sum(table.size_bytes() for table in self._tables.values())


def _checked(key: bytes) -> bytes:
    assert 0 < len(key) <= KEY_BYTES_MAX, "a key must have 1 to 511 bytes, as in LMDB"
    return key
