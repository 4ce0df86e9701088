"""CRC32C and the payload digest."""

import zlib

from crc32c import crc32c

__all__ = ["crc32c", "digest_of"]


def digest_of(payload: bytes, extras: bytes = b"") -> int:
    """Return the 64-bit digest of a payload and its extras.

    The upper half is a CRC32C, the lower half a CRC32. Two independent polynomials miss a
    difference as rarely as one polynomial of degree 64. The digest protects a producer against its
    own mistakes, not against an attacker.
    """
    if extras:
        checks = crc32c(extras, crc32c(payload)), zlib.crc32(extras, zlib.crc32(payload))
        return checks[0] << 32 | checks[1]
    return crc32c(payload) << 32 | zlib.crc32(payload)
