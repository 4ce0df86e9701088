"""The row checksums, and the interface of the store that contains the checkpoint's tables.

A store has ordered tables. Every transaction is atomic and durable. In production, the store is
LMDB (`lmdb_store.py`). `semel.testing` has a store for the simulator.
"""

import struct
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from itertools import takewhile
from typing import Final, Protocol

import msgspec

from semel.machine.state import STATE_TABLES
from semel.model.checksum import crc32c
from semel.model.errors import CorruptData, CorruptRead

# The tables that are loaded and checked completely at every start.
LOADED: Final = (*STATE_TABLES, "segments")
# The tables that grow with the transaction history. They are checked completely at every start,
# but they are not loaded: their rows are looked up one by one.
LOOKED_UP: Final = ("outcomes", "outcome_order", "outcome_owners", "aborted")
# The tables for which `meta` contains a row count and a digest. The table `index` has no row count
# and no digest, because its rows are checked when they are read.
DIGESTED: Final = (*LOADED, *LOOKED_UP)
TABLES: Final = ("meta", "index", *DIGESTED)


Row = tuple[bytes, bytes]  # key and value


class StoreFull(Exception):
    """Raised if the store has no room for a transaction. Nothing was changed."""


class StoreReader(Protocol):
    """One consistent view of all tables."""

    def get(self, table: str, key: bytes) -> bytes | None:
        """Return the value of a key, or None if the key does not exist."""

    def scan(self, table: str, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yield the keys and values of a table in the order of keys, starting at `start`."""

    def last_before(self, table: str, key: bytes) -> tuple[bytes, bytes] | None:
        """Return the key and value of the row with the greatest key <= `key`, or None."""


class StoreWriter(StoreReader, Protocol):
    """A transaction. Its reads see its own changes. Nothing is durable before `commit` returns."""

    def put(self, table: str, key: bytes, value: bytes) -> None:
        """Set the value of a key. Raises StoreFull."""

    def delete(self, table: str, key: bytes) -> None:
        """Remove a key, if it exists."""

    def commit(self) -> None:
        """Make all changes durable together.

        Raises StoreFull if the store has no room. Then nothing is changed. Also raises CorruptData,
        DiskFailed or OSError.
        """

    def abort(self) -> None:
        """Discard all changes."""


class TableReader(Protocol):
    """Read access to the tables of one data directory."""

    def read(self) -> AbstractContextManager[StoreReader]:
        """Open a view for a `with` block. The view is closed at the end of the block."""


class Store(TableReader, Protocol):
    """Read and write access to the tables of one data directory."""

    def begin_changes(self) -> None:
        """Allocate the space that `make_writable` needs. Raises DiskFailed.

        No existing byte is changed. If this fails, nothing at all is changed.
        """

    def cancel_changes(self) -> None:
        """Undo `begin_changes`, because a start is refused after it."""

    def make_writable(self) -> None:
        """Prepare the store for writing, and create it if it does not exist.

        Before this call, the store changes no existing byte on disk. Raises DiskFailed.
        """

    def write(self) -> StoreWriter:
        """Begin a transaction. Only one transaction can exist at a time."""

    def check_rest(self) -> None:
        """Check what was not checked when the store was opened, to save time. Raises CorruptData.

        Call it before the first `write`.
        """

    def close(self) -> None: ...


# ---- seals ---------------------------------------------------------------------------------------
# Every row of the checkpoint has a seal: a checksum of its table, key and value. The seals are
# needed because LMDB has no checksums. Without them, a flipped bit in the LMDB file would usually
# not be detected, and a wrong value would be read.

SEAL_BYTES: Final = 4


class BadSeal(Exception):
    """Raised if the checksum of a row does not match its table, key and value."""

    def __init__(self, table: str, key: bytes) -> None:
        super().__init__(f"row {key.hex()} of table {table!r} does not match its checksum")


@cache
def _table_seed(table: str) -> int:
    return crc32c(table.encode())


def _checksum(table: str, key: bytes, value: bytes) -> int:
    return crc32c(value, crc32c(key, _table_seed(table)))


def seal(table: str, key: bytes, value: bytes) -> bytes:
    """Return a value with its checksum appended."""
    return value + _checksum(table, key, value).to_bytes(SEAL_BYTES, "little")


def seal_of(sealed: bytes) -> int:
    """Return the checksum of a sealed value."""
    return int.from_bytes(sealed[-SEAL_BYTES:], "little")


def unseal(table: str, key: bytes, sealed: bytes) -> bytes:
    """Return a sealed value without its checksum. Raises BadSeal if the checksum is wrong."""
    value = sealed[:-SEAL_BYTES]
    if _checksum(table, key, value) != seal_of(sealed):
        raise BadSeal(table, key)
    return value


@contextmanager
def reading(store: TableReader) -> Iterator[StoreReader]:
    """Open a view for one read of a running engine.

    If the read meets damage, it raises CorruptRead, and the engine continues.
    """
    try:
        with store.read() as view:
            yield view
    except (BadSeal, CorruptData, struct.error, msgspec.DecodeError) as error:
        raise CorruptRead(str(error), file="checkpoint", position=0) from error


def rows_around(view: StoreReader, table: str, key: bytes) -> tuple[Row | None, Row | None]:
    """Return the row with the greatest key <= `key` and the row with the least key > `key`.

    The values are without their checksums. Raises BadSeal if one of the rows is damaged. Therefore
    the caller can rely on the absence of a row: if the key of a row is damaged, the row is still at
    its old place, so it is one of the two.
    """
    before = view.last_before(table, key)
    after = next(view.scan(table, key + b"\0"), None)
    if before is not None and before[0] > key:
        raise BadSeal(table, before[0])
    if after is not None and after[0] <= key:
        raise BadSeal(table, after[0])
    return _unsealed(table, before), _unsealed(table, after)


def _unsealed(table: str, row: Row | None) -> Row | None:
    return None if row is None else (row[0], unseal(table, *row))


def read_row(reader: StoreReader, table: str, key: bytes) -> bytes | None:
    """Return the value of a sealed row, or None if there is no such row. Raises BadSeal."""
    sealed = reader.get(table, key)
    return None if sealed is None else unseal(table, key, sealed)


# ---- digests -------------------------------------------------------------------------------------
# For each table, the store keeps the number of rows and a digest of their seals. They show whether
# a row is missing or surplus. The digest is the sum of the seals.

_DIGEST_PREFIX: Final = b"digest/"
_DIGEST: Final = struct.Struct("<QQ")
DIGEST_MODULUS: Final = 1 << 64


class TableWriter:
    """A transaction that also updates the row count and the digest of each changed table."""

    def __init__(self, writer: StoreWriter) -> None:
        self.writer = writer
        self._digests = {table: read_digest(writer, table) for table in DIGESTED}

    def put(self, table: str, key: bytes, value: bytes) -> None:
        sealed = seal(table, key, value)
        self._account(table, self.writer.get(table, key), sealed)
        self.writer.put(table, key, sealed)

    def delete(self, table: str, key: bytes) -> None:
        self._account(table, self.writer.get(table, key), None)
        self.writer.delete(table, key)

    def _account(self, table: str, old: bytes | None, new: bytes | None) -> None:
        count, digest = self._digests[table]
        if old is not None:
            count, digest = count - 1, digest - seal_of(old)
        if new is not None:
            count, digest = count + 1, digest + seal_of(new)
        self._digests[table] = count, digest % DIGEST_MODULUS

    def delete_all(self, table: str, prefix: bytes) -> None:
        """Remove the rows whose keys begin with `prefix`."""
        for key in table_keys(self.writer, table, prefix):
            self.delete(table, key)

    def finish(self) -> None:
        """Store the row counts and digests. This must be the last call before the commit.

        Raises BadSeal if more rows were removed than the stored count has: then the row with the
        count was not found, because its key was damaged while the server ran.
        """
        for table, (count, digest) in self._digests.items():
            key = _DIGEST_PREFIX + table.encode()
            if count < 0:
                raise BadSeal("meta", key)
            self.writer.put("meta", key, seal("meta", key, _DIGEST.pack(count, digest)))


def table_keys(reader: StoreReader, table: str, prefix: bytes) -> list[bytes]:
    """Return a table's keys that begin with `prefix`."""
    rows = reader.scan(table, prefix)
    return [key for key, _ in takewhile(lambda row: row[0].startswith(prefix), rows)]


def read_digest(reader: StoreReader, table: str) -> tuple[int, int]:
    """Return the stored row count and digest of a table. Raises BadSeal."""
    value = read_row(reader, "meta", _DIGEST_PREFIX + table.encode())
    return (0, 0) if value is None else _DIGEST.unpack(value)
