"""CRC32C, the CRC32C of many ranges of the same bytes, and the payload digest."""

import sys
from array import array
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import repeat
from operator import sub, xor
from typing import Final, NamedTuple
from zlib import crc32

from crc32c import crc32c

__all__ = ["Ranges", "crc32", "crc32c", "digest_of", "matching_ranges"]

_POLYNOMIAL: Final = 0x82F63B78
_BITS: Final = 32
# The number of ranges that are checked together. It limits the memory.
_RANGES_MAX: Final = 1 << 16
_BYTE_ORDER: Final = range(4) if sys.byteorder == "little" else range(3, -1, -1)
# For each bit of a byte, a table that translates a byte to the digit 0 or 1.
_BINARY_DIGITS: Final = [bytes(48 + (byte >> bit & 1) for byte in range(256)) for bit in range(8)]


def digest_of(payload: bytes, extras: bytes = b"") -> int:
    """Return the 64-bit digest of a payload and its extras.

    The digest detects a producer's mistakes. It does not protect against an attacker.
    """
    # The upper half is CRC32C, the lower half CRC32. Their polynomials differ, so together they
    # miss a difference about as rarely as a 64-bit CRC.
    if extras:
        checks = crc32c(extras, crc32c(payload)), crc32(extras, crc32(payload))
        return checks[0] << 32 | checks[1]
    return crc32c(payload) << 32 | crc32(payload)


# ---- the checksums of many ranges ----------------------------------------------------------------
# The CRC32C of a range follows from those of the two prefixes that end at its bounds: the checksum
# of the shorter prefix, after as many zero bytes as the range has, is removed from the longer one.
# To append 2^k zero bytes is a linear map of the 32 bits of a checksum. It is applied to all ranges
# at once: a `plane` is an integer that has one bit of each checksum.


class Ranges(NamedTuple):
    """Ranges of bytes: their starts, their ends, and the checksum that each should have."""

    starts: list[int]
    ends: list[int]
    checksums: list[int]


def matching_ranges(data: bytes, ranges: Ranges, seed: int) -> list[int]:
    """Return the indexes of the ranges whose CRC32C, seeded with `seed`, is the expected one.

    The ranges may overlap. The time depends on the length of `data` and on the number of ranges,
    but not on the lengths of the ranges.
    """
    prefixes = _prefix_checksums(data, ranges.starts + ranges.ends)
    found = []
    for first in range(0, len(ranges.starts), _RANGES_MAX):
        some = Ranges(*(part[first : first + _RANGES_MAX] for part in ranges))
        found += [first + index for index in _matching(some, prefixes, seed)]
    return found


def _prefix_checksums(data: bytes, bounds: list[int]) -> dict[int, int]:
    view = memoryview(data)
    prefixes = {}
    last = checksum = 0
    for bound in sorted(bounds):
        checksum = prefixes[bound] = crc32c(view[last:bound], checksum)
        last = bound
    return prefixes


def _matching(ranges: Ranges, prefixes: dict[int, int], seed: int) -> Iterator[int]:
    starts, ends, checksums = ranges
    prefix_of = prefixes.__getitem__
    planes = _planes(map(xor, map(prefix_of, starts), repeat(seed)))
    counts = _planes(map(sub, ends, starts))
    for columns, is_added in zip(_zero_maps(), counts, strict=True):
        if is_added:
            mapped = _apply(columns, planes)
            planes = [
                old ^ ((old ^ new) & is_added) for old, new in zip(planes, mapped, strict=True)
            ]
    wanted = _planes(map(xor, map(prefix_of, ends), checksums))
    differs = 0
    for plane, other in zip(planes, wanted, strict=True):
        differs |= plane ^ other
    bits = f"{differs:0{len(starts)}b}"
    index = bits.find("0")
    while index >= 0:
        yield index
        index = bits.find("0", index + 1)


def _planes(values: Iterable[int]) -> list[int]:
    """Return 32 integers. Integer k has bit k of each value, the first value in the highest bit."""
    data = array("I", values).tobytes()
    lanes = [data[byte::4] for byte in _BYTE_ORDER]
    return [int(lane.translate(digits), 2) for lane in lanes for digits in _BINARY_DIGITS]


def _apply(columns: list[int], planes: list[int]) -> list[int]:
    """Return the planes after a linear map. Column k is the image of bit k."""
    result = [0] * _BITS
    for column, plane in zip(columns, planes, strict=True):
        for bit in range(_BITS):
            if column >> bit & 1:
                result[bit] ^= plane
    return result


@cache
def _zero_maps() -> list[list[int]]:
    """Return 32 linear maps. Map k appends 2^k zero bytes."""
    columns = []
    for bit in range(_BITS):
        value = 1 << bit
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        columns.append(value)
    maps = []
    for _ in range(_BITS):
        maps.append(columns)
        columns = [_image(columns, column) for column in columns]
    return maps


def _image(columns: list[int], value: int) -> int:
    result = 0
    for bit, column in enumerate(columns):
        if value >> bit & 1:
            result ^= column
    return result
