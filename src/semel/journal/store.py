"""The tables of the checkpoint: the interface of their store, and their checksums.

A store has ordered tables, which atomic and durable transactions change. In production it is LMDB
(`lmdb_store.py`); `semel.testing` has a store for the simulator.
"""

import struct
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import cache
from itertools import takewhile
from typing import Final, Protocol

from semel.machine.state import STATE_TABLES
from semel.model.checksum import crc32c

# The tables that a start loads and checks as a whole.
LOADED: Final = (*STATE_TABLES, "segments")
# The tables that grow with history. Their rows are looked up one by one; only `doctor --verify`
# checks such a table as a whole.
LOOKED_UP: Final = ("outcomes", "outcome_order", "outcome_owners", "aborted")
# The tables that have a row count and a digest, which are stored in `meta`. The table `index` has
# none: its rows are checked when they are read.
DIGESTED: Final = (*LOADED, *LOOKED_UP)
TABLES: Final = ("meta", "index", *DIGESTED)


class StoreFull(Exception):
    """There is no room for the transaction; nothing was changed."""


class StoreReader(Protocol):
    """One consistent view of all tables."""

    def get(self, table: str, key: bytes) -> bytes | None:
        """Return the value of a key; None if there is no such key."""

    def scan(self, table: str, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yield keys and values in order, from `start` on."""

    def last_before(self, table: str, key: bytes) -> tuple[bytes, bytes] | None:
        """Return the row with the greatest key that is <= `key`; None if there is none."""


class StoreWriter(StoreReader, Protocol):
    """A transaction. It reads its own changes; nothing is durable before `commit` returns."""

    def put(self, table: str, key: bytes, value: bytes) -> None:
        """Set a key. Raises StoreFull."""

    def delete(self, table: str, key: bytes) -> None:
        """Remove a key, if it exists."""

    def commit(self) -> None:
        """Make all changes durable at once. Raises StoreFull if nothing was changed, or OSError."""

    def abort(self) -> None:
        """Discard all changes."""


class TableReader(Protocol):
    """The tables of one data directory, for reading."""

    def read(self) -> AbstractContextManager[StoreReader]:
        """Open a view; leaving the block closes it."""


class Store(TableReader, Protocol):
    """The tables of one data directory, for reading and writing."""

    def write(self) -> StoreWriter:
        """Begin a transaction; only one can exist at a time."""

    def close(self) -> None: ...


# ---- seals ---------------------------------------------------------------------------------------
# Every row of the checkpoint has a checksum of its table, key and value. LMDB has no checksums:
# without seals, a flipped bit in its file would mostly be read as another value.

SEAL_BYTES: Final = 4


class BadSeal(Exception):
    """The checksum of a row does not match its table, key and value."""

    def __init__(self, table: str, key: bytes) -> None:
        super().__init__(f"row {key.hex()} of table {table!r} fails its checksum")


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
    """Return a sealed value without its checksum. Raises BadSeal if that does not match."""
    value = sealed[:-SEAL_BYTES]
    if _checksum(table, key, value) != seal_of(sealed):
        raise BadSeal(table, key)
    return value


def read_row(reader: StoreReader, table: str, key: bytes) -> bytes | None:
    """Return the value of a sealed row; None if there is none. Raises BadSeal."""
    sealed = reader.get(table, key)
    return None if sealed is None else unseal(table, key, sealed)


# ---- digests -------------------------------------------------------------------------------------
# A table has a row count and a digest of its seals, so that a missing or surplus row is detected.

_DIGEST_PREFIX: Final = b"digest/"
_DIGEST: Final = struct.Struct("<QQ")
DIGEST_MODULUS: Final = 1 << 64


class TableWriter:
    """A transaction that updates the row count and digest of each table."""

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
        """Store the counts and digests: the last call before the commit."""
        for table, (count, digest) in self._digests.items():
            key = _DIGEST_PREFIX + table.encode()
            self.writer.put("meta", key, seal("meta", key, _DIGEST.pack(count, digest)))


def table_keys(reader: StoreReader, table: str, prefix: bytes) -> list[bytes]:
    """Return the keys that begin with `prefix`."""
    rows = reader.scan(table, prefix)
    return [key for key, _ in takewhile(lambda row: row[0].startswith(prefix), rows)]


def read_digest(reader: StoreReader, table: str) -> tuple[int, int]:
    """Return the row count and digest of a table. Raises BadSeal."""
    value = read_row(reader, "meta", _DIGEST_PREFIX + table.encode())
    return (0, 0) if value is None else _DIGEST.unpack(value)
