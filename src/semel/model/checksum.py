"""CRC32C and the payload digest."""

import zlib

from crc32c import crc32c

__all__ = ["crc32c", "digest_of"]


def digest_of(payload: bytes) -> int:
    """Tell two payloads apart with 64 bits: CRC32C beside CRC32.

    Two independent polynomials miss a difference only where one of degree 64 would. It guards a
    producer against its own mistakes, not against an attacker, who could only fool himself.
    """
    return crc32c(payload) << 32 | zlib.crc32(payload)
