"""The seal on every row of the checkpoint: a checksum of table, key and value.

The store has none of its own: most single-bit flips in its file read back as other values.
"""

from typing import Final

from semel.model.checksum import crc32c

SEAL_BYTES: Final = 4


class BadSeal(Exception):
    """A row is not what was written."""

    def __init__(self, table: str, key: bytes) -> None:
        super().__init__(f"row {key.hex()} of table {table!r} fails its checksum")


def _checksum(table: str, key: bytes, value: bytes) -> bytes:
    return crc32c(value, crc32c(key, crc32c(table.encode()))).to_bytes(SEAL_BYTES, "little")


def seal(table: str, key: bytes, value: bytes) -> bytes:
    """Add the checksum."""
    return value + _checksum(table, key, value)


def unseal(table: str, key: bytes, sealed: bytes) -> bytes:
    """Check and take off the checksum."""
    value, checksum = sealed[:-SEAL_BYTES], sealed[-SEAL_BYTES:]
    if checksum != _checksum(table, key, value):
        raise BadSeal(table, key)
    return value
