"""The seal on every row of the checkpoint: a checksum of table, key and value.

The store has none of its own: most single-bit flips in its file read back as other values.
"""

from typing import Final

from semel.journal.store import TABLES
from semel.model.checksum import crc32c

SEAL_BYTES: Final = 4
_SEEDS: Final = {table: crc32c(table.encode()) for table in TABLES}


class BadSeal(Exception):
    """A row is not what was written."""

    def __init__(self, table: str, key: bytes) -> None:
        super().__init__(f"row {key.hex()} of table {table!r} fails its checksum")


def _checksum(table: str, key: bytes, value: bytes) -> int:
    return crc32c(value, crc32c(key, _SEEDS[table]))


def seal(table: str, key: bytes, value: bytes) -> bytes:
    """Add the checksum."""
    return value + _checksum(table, key, value).to_bytes(SEAL_BYTES, "little")


def seal_of(sealed: bytes) -> int:
    """Read a row's checksum."""
    return int.from_bytes(sealed[-SEAL_BYTES:], "little")


def unseal(table: str, key: bytes, sealed: bytes) -> bytes:
    """Check and take off the checksum."""
    value = sealed[:-SEAL_BYTES]
    if _checksum(table, key, value) != seal_of(sealed):
        raise BadSeal(table, key)
    return value
