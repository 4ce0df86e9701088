"""CRC32C and the payload digest."""

import zlib

from crc32c import crc32c

__all__ = ["crc32c", "digest_of"]


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
