"""CRC32C, the CRC32C of many ranges of the same bytes, and the payload digest."""

import zlib
from collections.abc import Iterable
from functools import cache
from typing import Final

from crc32c import crc32c

__all__ = ["RangeChecksums", "crc32c", "digest_of"]

_POLYNOMIAL: Final = 0x82F63B78
_POWERS_MAX: Final = 33  # ranges of up to 2^33 bytes


def digest_of(payload: bytes, extras: bytes = b"") -> int:
    """Return the 64-bit digest of a payload and its extras.

    The digest detects a producer's mistakes. It does not protect against an attacker.
    """
    # The upper half is CRC32C, the lower half CRC32. Their polynomials differ, so together they
    # miss a difference about as rarely as a 64-bit CRC.
    if extras:
        checks = crc32c(extras, crc32c(payload)), zlib.crc32(extras, zlib.crc32(payload))
        return checks[0] << 32 | checks[1]
    return crc32c(payload) << 32 | zlib.crc32(payload)


class RangeChecksums:
    """The CRC32C of many ranges of `data`, which may overlap. Every byte is read only once.

    `bounds` contains the start and the end of every range. The checksum of a range follows from the
    checksums of the two prefixes of `data` that end at its bounds.
    """

    def __init__(self, data: bytes, bounds: Iterable[int]) -> None:
        self._prefixes: dict[int, int] = {}
        view = memoryview(data)
        last = checksum = 0
        for bound in sorted(set(bounds)):
            checksum = crc32c(view[last:bound], checksum)
            self._prefixes[bound] = checksum
            last = bound

    def checksum(self, start: int, end: int, seed: int) -> int:
        """Return the CRC32C of `data[start:end]`, seeded with `seed`."""
        return self._prefixes[end] ^ _append_zeros(self._prefixes[start] ^ seed, end - start)


def _append_zeros(checksum: int, count: int) -> int:
    """Return the CRC32C after `count` more zero bytes.

    The initial and the final inversion of CRC32C are left out, so the result is linear.
    """
    for tables in _zero_tables():
        if count & 1:
            checksum = _multiply(tables, checksum)
        count >>= 1
        if not count:
            break
    return checksum


def _multiply(tables: list[list[int]], checksum: int) -> int:
    first, second, third, fourth = tables
    return (
        first[checksum & 255]
        ^ second[checksum >> 8 & 255]
        ^ third[checksum >> 16 & 255]
        ^ fourth[checksum >> 24]
    )


@cache
def _zero_tables() -> list[list[list[int]]]:
    """Return tables that append 1, 2, 4, 8 and so on zero bytes.

    Appending zeros is a linear map of the 32 bits. Each map has one table for each of the four
    bytes of a checksum.
    """
    columns = []
    for bit in range(32):
        value = 1 << bit
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        columns.append(value)
    powers = []
    for _ in range(_POWERS_MAX):
        tables = [_byte_table(columns[8 * byte : 8 * byte + 8]) for byte in range(4)]
        powers.append(tables)
        columns = [_multiply(tables, column) for column in columns]
    return powers


def _byte_table(columns: list[int]) -> list[int]:
    table = [0]
    for column in columns:
        table += [value ^ column for value in table]
    return table
