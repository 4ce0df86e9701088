"""The partitioners, compared with the hashes of other implementations.

`tests/data/partitioners.txt` has 1,000 keys with hashes that Java computed. It says how.
"""

from pathlib import Path

import pytest

from semel.model.partitioners import CRC32, HASHES, MURMUR2, murmur2, partition_of

PAIRS = Path(__file__).resolve().parents[2] / "data" / "partitioners.txt"

# From `testMurmur2` of Kafka's Java client, which has signed numbers.
KAFKA_VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}
# From the tests of `rdmurmur2.c` in librdkafka.
LIBRDKAFKA_VECTORS = {
    b"kafka": 0xD067CF64,
    b"giberish123456789": 0x8F552B0C,
    b"1234": 0x9FC97B14,
    b"234": 0xE7C009CA,
    b"34": 0x873930DA,
}


def pairs() -> list[tuple[bytes, int, int]]:
    """Return each key of the data file with its CRC-32 and its MurmurHash2."""
    lines = PAIRS.read_text(encoding="ascii").splitlines()
    rows = [line.split(" ") for line in lines if not line.startswith("#")]
    return [
        (b"" if key == "-" else bytes.fromhex(key), int(crc, 16), int(murmur, 16))
        for key, crc, murmur in rows
    ]


def test_the_pairs_have_every_length_unicode_and_the_empty_key() -> None:
    keys = [key for key, _, _ in pairs()]
    assert len(keys) == len(set(keys)) == 1_000
    assert {len(key) for key in keys} >= set(range(256))
    assert sum("😀" in key.decode(errors="ignore") for key in keys) > 100


def test_crc32_has_the_hashes_of_others() -> None:
    assert [HASHES[CRC32](key) for key, _, _ in pairs()] == [crc for _, crc, _ in pairs()]
    assert HASHES[CRC32](b"123456789") == 0xCBF43926  # the check value of CRC-32


def test_murmur2_has_the_hashes_of_others() -> None:
    assert [murmur2(key) for key, _, _ in pairs()] == [murmur for _, _, murmur in pairs()]
    assert {key: murmur2(key) for key in LIBRDKAFKA_VECTORS} == LIBRDKAFKA_VECTORS
    signed = {key: int.from_bytes(murmur2(key).to_bytes(4), signed=True) for key in KAFKA_VECTORS}
    assert signed == KAFKA_VECTORS


@pytest.mark.parametrize("partitions", [1, 2, 7, 12, 1_000])
def test_the_partition_is_the_hash_modulo_the_number_of_partitions(partitions: int) -> None:
    for key, crc, murmur in pairs():
        assert partition_of(CRC32, key, partitions) == crc % partitions
        # Kafka's Java client clears the sign bit first.
        assert partition_of(MURMUR2, key, partitions) == (murmur & 0x7FFF_FFFF) % partitions
