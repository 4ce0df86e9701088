"""The identity of a data directory: 16 random bytes that seed every checksum in it.

The file appears last when a directory is made, so a directory that has it has everything else.
"""

import contextlib
from functools import cache
from typing import Final, Protocol

from semel.journal.disk import Disk, File
from semel.model.checksum import crc32c
from semel.model.errors import CorruptData, DiskFailed

IDENTITY_NAME: Final = "identity"
IDENTITY_BYTES: Final = 16
FORMAT_VERSION: Final = 1
IDENTITY_TEMPORARY_NAME: Final = "identity.tmp"
_MAGIC: Final = b"semel data\n"
_FILE_BYTES: Final = len(_MAGIC) + 1 + IDENTITY_BYTES + 4


def write_identity(disk: Disk, identity: bytes) -> None:
    """Write the identity file: the directory is complete then."""
    assert len(identity) == IDENTITY_BYTES
    body = _MAGIC + bytes([FORMAT_VERSION]) + identity
    with contextlib.suppress(FileNotFoundError):
        disk.unlink(IDENTITY_TEMPORARY_NAME)
    file = disk.create(IDENTITY_TEMPORARY_NAME, _FILE_BYTES)
    written = file.write(0, [body + crc32c(body).to_bytes(4, "little")])
    if written != _FILE_BYTES:
        raise DiskFailed(
            f"{IDENTITY_TEMPORARY_NAME}: short write, {written} of {_FILE_BYTES} bytes"
        )
    file.sync()
    file.close()
    disk.rename(IDENTITY_TEMPORARY_NAME, IDENTITY_NAME)
    disk.sync_names()


class _Opener(Protocol):
    def open(self, name: str) -> File: ...


def read_identity(disk: _Opener) -> bytes:
    """Return the identity of a directory. Raises CorruptData if it is damaged, or OSError."""
    file = disk.open(IDENTITY_NAME)
    data = file.read(0, _FILE_BYTES + 1)
    file.close()
    body, checksum = data[:-4], data[-4:]
    if len(data) != _FILE_BYTES or crc32c(body).to_bytes(4, "little") != checksum:
        raise CorruptData("the identity is damaged", file=IDENTITY_NAME)
    if not body.startswith(_MAGIC) or body[len(_MAGIC)] != FORMAT_VERSION:
        raise CorruptData(
            f"written in another format; this semel reads version {FORMAT_VERSION}",
            file=IDENTITY_NAME,
        )
    return body[-IDENTITY_BYTES:]


# ---- seal ----------------------------------------------------------------------------------------
# The checksum of table, key and value on every row of the checkpoint. LMDB has none: most single
# bit flips in its file are read as other values.


SEAL_BYTES: Final = 4


class BadSeal(Exception):
    """A row is not what was written."""

    def __init__(self, table: str, key: bytes) -> None:
        super().__init__(f"row {key.hex()} of table {table!r} fails its checksum")


@cache
def _table_seed(table: str) -> int:
    return crc32c(table.encode())


def _checksum(table: str, key: bytes, value: bytes) -> int:
    return crc32c(value, crc32c(key, _table_seed(table)))


def seal(table: str, key: bytes, value: bytes) -> bytes:
    """Return a value with its checksum."""
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
