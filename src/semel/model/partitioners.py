"""Partitioners: functions from the key of a message to the number of a partition.

The results are those of other systems, so that messages with the same key meet in the same
partition whoever writes them: `crc32` is that of librdkafka's default `consistent` partitioner, and
`murmur2` that of Kafka's Java client.
"""

from collections.abc import Callable, Mapping
from struct import iter_unpack
from typing import Final
from zlib import crc32

CRC32: Final = "crc32"
MURMUR2: Final = "murmur2"

_MASK: Final = 0xFFFF_FFFF
_POSITIVE: Final = 0x7FFF_FFFF
_SEED: Final = 0x9747_B28C
_MULTIPLIER: Final = 0x5BD1_E995


def murmur2(data: bytes) -> int:
    """Return the 32-bit MurmurHash2 of `data`, with the seed of Kafka's Java client."""
    length = len(data)
    whole = length & ~3
    value = (_SEED ^ length) & _MASK
    for (word,) in iter_unpack("<I", data[:whole]):
        mixed = (word * _MULTIPLIER) & _MASK
        mixed ^= mixed >> 24
        value = ((value * _MULTIPLIER) & _MASK) ^ ((mixed * _MULTIPLIER) & _MASK)
    rest = data[whole:]
    if rest:
        value ^= int.from_bytes(rest, "little")
        value = (value * _MULTIPLIER) & _MASK
    value ^= value >> 13
    value = (value * _MULTIPLIER) & _MASK
    return value ^ (value >> 15)


def _positive_murmur2(data: bytes) -> int:
    return murmur2(data) & _POSITIVE


# The hash of each partitioner. The partition is the hash modulo the number of partitions.
HASHES: Final[Mapping[str, Callable[[bytes], int]]] = {CRC32: crc32, MURMUR2: _positive_murmur2}


def partition_of(partitioner: str, key: bytes, partitions: int) -> int:
    """Return the partition of a key in a topic with this number of partitions."""
    return HASHES[partitioner](key) % partitions
