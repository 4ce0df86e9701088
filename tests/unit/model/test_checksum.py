"""The two checksum functions."""

from hypothesis import given
from hypothesis import strategies as st

from semel.model.checksum import crc32c, digest_of


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
