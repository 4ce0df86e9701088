"""CRC32C and the payload digest."""

import zlib

from crc32c import crc32c

__all__ = ["crc32c", "digest_of"]


def digest_of(payload: bytes, extras: bytes = b"") -> int:
    """Tell two payloads, with what goes with them, apart with 64 bits: CRC32C beside CRC32.

    Two independent polynomials miss a difference only where one of degree 64 would. It guards a
    producer against its own mistakes, not against an attacker, who could only fool himself.
    """
    if extras:
        checks = crc32c(extras, crc32c(payload)), zlib.crc32(extras, zlib.crc32(payload))
        return checks[0] << 32 | checks[1]
    return crc32c(payload) << 32 | zlib.crc32(payload)
