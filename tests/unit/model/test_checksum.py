"""The two checksum functions, and the checksums of many ranges."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.model import checksum
from semel.model.checksum import Ranges, crc32c, digest_of, matching_ranges


def test_crc32c_is_the_castagnoli_one() -> None:
    assert crc32c(b"123456789") == 0xE3069283


def test_the_digest_is_both_checksums_side_by_side() -> None:
    assert digest_of(b"123456789") == 0xE3069283CBF43926
    assert digest_of(b"") == 0


@given(st.binary(max_size=64), st.binary(max_size=64))
def test_the_digest_goes_on_over_the_extras(payload: bytes, extras: bytes) -> None:
    assert digest_of(payload, extras) == digest_of(payload + extras)


@given(st.binary(max_size=64))
def test_a_digest_fits_64_bits(payload: bytes) -> None:
    assert 0 <= digest_of(payload) < 2**64


@given(st.binary(min_size=1, max_size=64), st.data())
def test_one_flipped_bit_is_another_digest(payload: bytes, data: st.DataObject) -> None:
    bit = data.draw(st.integers(0, 8 * len(payload) - 1))
    other = bytearray(payload)
    other[bit // 8] ^= 1 << bit % 8
    assert digest_of(bytes(other)) != digest_of(payload)


@given(st.binary(max_size=64), st.binary(max_size=64), st.integers(0, 2**32 - 1))
def test_crc32c_goes_on_where_it_stopped(one: bytes, other: bytes, seed: int) -> None:
    assert crc32c(other, crc32c(one, seed)) == crc32c(one + other, seed)


# ---- many ranges ---------------------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_exactly_the_ranges_with_the_right_checksum_match(seed: int, choice: int) -> None:
    random = Random(choice)
    data = random.randbytes(5_000)
    ranges = Ranges([], [], [])
    right = []
    for index in range(random.randrange(40)):
        start, end = sorted(random.choices(range(len(data) + 1), k=2))
        is_right = random.random() < 0.5
        wrong = 0 if is_right else random.randrange(1, 2**32)
        ranges.starts.append(start)
        ranges.ends.append(end)
        ranges.checksums.append(crc32c(data[start:end], seed) ^ wrong)
        right += [index] * is_right
    assert matching_ranges(data, ranges, seed) == right


def test_ranges_are_checked_in_several_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checksum, "_RANGES_MAX", 3)
    data = bytes(range(200))
    starts, ends = list(range(10)), list(range(100, 110))
    checksums = [crc32c(data[a:b], 9) for a, b in zip(starts, ends, strict=True)]
    assert matching_ranges(data, Ranges(starts, ends, checksums), 9) == list(range(10))


def test_long_ranges_match() -> None:
    data = bytes(70_000) + b"x" + bytes(70_000)
    ranges = Ranges([0, 1, 8], [len(data)] * 3, [0, 0, 0])
    for index, start in enumerate(ranges.starts):
        ranges.checksums[index] = crc32c(data[start:], 3)
    assert matching_ranges(data, ranges, 3) == [0, 1, 2]
    assert matching_ranges(data, ranges, 4) == []
