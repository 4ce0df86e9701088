"""Keys, timestamps and headers: encoded, validated, decoded and sliced."""

import struct
from collections.abc import Callable
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.model.limits import (
    HEADER_NAME_CHARACTERS_MAX,
    HEADER_VALUE_BYTES_MAX,
    HEADERS_PER_MESSAGE_MAX,
    MESSAGE_KEY_BYTES_MAX,
    NUMBER_MAX,
)
from semel.model.messages import (
    Header,
    encode_extras,
    extras_fault_steps,
    find_extras_fault,
    headers_of,
    keys_of,
    slice_extras,
    timestamps_of,
)


class Row(NamedTuple):
    key: bytes | None
    time: int | None
    headers: list[Header]


names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=5)
rows = st.builds(
    Row,
    st.none() | st.binary(max_size=5),
    st.none() | st.integers(-NUMBER_MAX, NUMBER_MAX),
    st.lists(st.tuples(names, st.binary(max_size=5)), max_size=3),
)
tables = st.lists(rows, min_size=1, max_size=6)


def packed(table: list[Row]) -> bytes:
    return encode_extras(
        len(table),
        keys=[row.key for row in table],
        headers=[row.headers for row in table],
        timestamps=[row.time for row in table],
    )


def unpacked(extras: bytes, count: int) -> list[Row]:
    assert find_extras_fault(extras, count) is None
    columns = (keys_of(extras, count), timestamps_of(extras, count), headers_of(extras, count))
    return [Row(*fields) for fields in zip(*columns, strict=True)]


def is_blank(table: list[Row]) -> bool:
    return all(row == Row(None, None, []) for row in table)


# ---- round trips ---------------------------------------------------------------------------------


@given(tables)
def test_what_messages_carry_comes_back(table: list[Row]) -> None:
    extras = packed(table)
    assert (not extras) == is_blank(table)
    if extras:
        assert unpacked(extras, len(table)) == table


@given(tables, st.data())
def test_a_part_of_an_append_keeps_what_its_messages_carry(
    table: list[Row], data: st.DataObject
) -> None:
    if is_blank(table):
        return
    start = data.draw(st.integers(0, len(table) - 1))
    end = data.draw(st.integers(start + 1, len(table)))
    assert slice_extras(packed(table), len(table), start, end) == packed(table[start:end])


def test_a_part_of_an_append_is_cut_without_decoding_its_headers() -> None:
    # To decode these elements would be refused: they are not headers. To decode the headers of a
    # whole batch takes 80 ms, even if a reader needs one message of it.
    packed_headers = msgspec.msgpack.encode(["first", "second", "third"])
    part = slice_extras(headers_block(data=packed_headers), 3, 1, 3)
    assert part == headers_block(data=msgspec.msgpack.encode(["second", "third"]))


def test_a_part_of_an_append_without_headers_has_no_column_of_headers() -> None:
    extras = headers_block(data=b"\x93\xc0\x90\x91\x92\xa1n\xc4\x01v")
    assert slice_extras(extras, 3, 0, 2) == b""
    assert headers_of(slice_extras(extras, 3, 1, 3), 2) == [[], [("n", b"v")]]


def test_the_layout_is_the_one_that_is_written_down() -> None:
    extras = encode_extras(2, keys=[b"k", None], headers=[[], [("n", b"v")]], timestamps=[None, -5])
    packed_headers = b"\x92\xc0\x91\x92\xa1n\xc4\x01v"
    assert extras == (
        struct.pack("<I", 7)
        + struct.pack("<2q", -(2**63), -5)
        + struct.pack("<2I", 1, 2**32 - 1)
        + b"k"
        + struct.pack("<I", len(packed_headers))
        + packed_headers
    )


def test_an_empty_key_is_a_key() -> None:
    assert keys_of(encode_extras(2, keys=[b"", None]), 2) == [b"", None]


def test_columns_that_say_nothing_are_left_out() -> None:
    assert encode_extras(1) == b""
    assert encode_extras(2, keys=[None, None], headers=[[], []], timestamps=[None, None]) == b""
    assert encode_extras(1, keys=[b"k"], timestamps=[None])[:4] == struct.pack("<I", 1)


@pytest.mark.parametrize(
    "column", [{"keys": [b"k"]}, {"headers": [[("n", b"v")]]}, {"timestamps": [1]}]
)
def test_a_column_has_an_element_for_each_message(column: dict[str, list[bytes]]) -> None:
    with pytest.raises(ValueError, match="2 messages"):
        encode_extras(2, **column)  # type: ignore[arg-type]


# ---- invalid extras ------------------------------------------------------------------------------

WHOLE = encode_extras(
    2, keys=[b"key", b""], headers=[[("name", b"value")], []], timestamps=[1, NUMBER_MAX]
)


def test_extras_cut_at_any_byte_are_refused() -> None:
    assert find_extras_fault(WHOLE, 2) is None
    for size in range(len(WHOLE)):
        assert find_extras_fault(WHOLE[:size], 2)


def test_anything_behind_the_extras_is_refused() -> None:
    assert find_extras_fault(WHOLE + b"\0", 2)
    assert find_extras_fault(encode_extras(1, keys=[b"k"]) + b"\0", 1)
    assert find_extras_fault(encode_extras(1, timestamps=[1]) + b"\0", 1)


@pytest.mark.parametrize("count", [1, 3, 10_000, 2**32 - 1])
def test_extras_of_another_number_of_messages_are_refused(count: int) -> None:
    assert find_extras_fault(WHOLE, count)
    assert find_extras_fault(encode_extras(2, headers=[[("n", b"v")], []]), count)


def headers_block(*, data: bytes) -> bytes:
    return struct.pack("<II", 4, len(data)) + data


@pytest.mark.parametrize(
    "extras",
    [
        struct.pack("<I", 0),
        struct.pack("<I", 8) + bytes(8),
        struct.pack("<I", 15) + WHOLE[4:],
        struct.pack("<II", 1, 9),
        struct.pack("<II", 1, 2**32 - 2),
        headers_block(data=b""),
        headers_block(data=b"\xc1"),
        headers_block(data=b"\xc0"),
        headers_block(data=b"\x90"),
        headers_block(data=b"\x91\x90\xc0"),
        headers_block(data=b"\xdd\xff\xff\xff\xff"),
        headers_block(data=b"\x91\xdd\xff\xff\xff\xff"),
        headers_block(data=b"\x91\x91\x92\xdb\xff\xff\xff\xffname\xc4\x01v"),
        headers_block(data=b"\x91\x91\x91\xa1n"),
        headers_block(data=b"\x91\x91\x92\xc4\x01n\xc4\x01v"),
        headers_block(data=b"\x91\x91\x92\xa1n\xa1v"),
        headers_block(data=b"\x91\x91\x92\xa1n\xc0"),
        headers_block(data=b"\x91\x91\x92\xa1\xff\xc4\x01v"),
        headers_block(data=b"\x91\x91\x92\xa0\xc4\x01v"),
        headers_block(data=b"\x91" * 100_000),
    ],
)  # fmt: skip
def test_lies_about_columns_and_lengths_are_refused(extras: bytes) -> None:
    assert find_extras_fault(extras, 1)


@given(st.binary(max_size=60), st.integers(1, 5))
def test_no_bytes_break_the_check(data: bytes, count: int) -> None:
    for columns in range(9):
        extras = struct.pack("<I", columns) + data
        if find_extras_fault(extras, count) is None:
            assert len(unpacked(extras, count)) == count


def key(size: int) -> bytes:
    return encode_extras(2, keys=[None, bytes(size)])


def name(size: int) -> bytes:
    return encode_extras(2, headers=[[], [("é" * size, b"")]])


def value(size: int) -> bytes:
    return encode_extras(2, headers=[[], [("n", bytes(size))]])


def headers(size: int) -> bytes:
    return encode_extras(2, headers=[[], [("n", b"v")] * size])


def late(size: int) -> bytes:
    return encode_extras(2, timestamps=[None, size])


def early(size: int) -> bytes:
    return encode_extras(2, timestamps=[None, -size])


@pytest.mark.parametrize(
    ("make", "limit"),
    [
        (key, MESSAGE_KEY_BYTES_MAX),
        (name, HEADER_NAME_CHARACTERS_MAX),
        (value, HEADER_VALUE_BYTES_MAX),
        (headers, HEADERS_PER_MESSAGE_MAX),
        (late, NUMBER_MAX),
        (early, NUMBER_MAX),
    ],
)
def test_every_limit_is_kept(make: Callable[[int], bytes], limit: int) -> None:
    assert find_extras_fault(make(limit), 2) is None
    assert find_extras_fault(make(limit + 1), 2)


def test_another_spelling_of_the_same_headers_is_read() -> None:
    long_way = msgspec.msgpack.encode([[]]).replace(b"\x90", b"\xdc\x00\x00")
    assert find_extras_fault(headers_block(data=long_way), 1) is None
    assert headers_of(headers_block(data=long_way), 1) == [[]]


# ---- long extras ---------------------------------------------------------------------------------


def test_many_headers_are_checked_in_steps() -> None:
    count = 2_300
    extras = encode_extras(count, headers=[[("name", b"value")] * 20] * count)
    assert len(list(extras_fault_steps(extras, count))) == 5
    assert find_extras_fault(extras, count) is None
    assert find_extras_fault(extras, count + 1)


@pytest.mark.parametrize("place", [0, 499, 500, 2_299])
def test_a_bad_header_is_found_in_any_step(place: int) -> None:
    headers = [[("name", b"value")] * 20 for _ in range(2_300)]
    headers[place] = [("", b"value")]
    assert find_extras_fault(encode_extras(2_300, headers=headers), 2_300)
