"""Writing rows of the checkpoint, with the row count and digest that guard each table."""

import struct
from itertools import takewhile
from typing import Final

from semel.journal.identity import seal, seal_of, unseal
from semel.journal.store import DIGESTED, StoreReader, StoreWriter

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
    key = _DIGEST_PREFIX + table.encode()
    sealed = reader.get("meta", key)
    if sealed is None:
        return 0, 0
    count, digest = _DIGEST.unpack(unseal("meta", key, sealed))
    return count, digest
