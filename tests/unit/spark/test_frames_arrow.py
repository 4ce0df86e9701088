"""Pages of frames as columns: the same messages as from the client's own decoder."""

import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.model.messages import Header, encode_extras
from semel.model.slices import Slice, SliceProducer
from semel.spark.source.frames import FrameRows, rows_of
from semel.wire.bodies import BadFormat, decode_frames, encode_frames

KEYS = st.none() | st.binary(max_size=5)
TIMES = st.none() | st.integers(-(2**53) + 1, 2**53 - 1)
HEADERS = st.lists(st.tuples(st.text("abc", min_size=1), st.binary(max_size=4)), max_size=2)


@st.composite
def pieces(draw: st.DrawFn) -> list[Slice]:
    found: list[Slice] = []
    offset = 0
    for _ in range(draw(st.integers(0, 5))):
        offset += draw(st.integers(0, 3))
        messages = draw(st.lists(st.binary(min_size=1, max_size=20), min_size=1, max_size=5))
        count = len(messages)
        is_joined = count > 1 and draw(st.booleans())
        extras = encode_extras(
            count,
            keys=draw(st.none() | st.lists(KEYS, min_size=count, max_size=count)),
            timestamps=draw(st.none() | st.lists(TIMES, min_size=count, max_size=count)),
            headers=draw(st.none() | st.lists(HEADERS, min_size=count, max_size=count)),
        )
        producer = SliceProducer("till", 1, 2, 3) if draw(st.booleans()) else None
        lengths = struct.pack(f"<{count}I", *map(len, messages)) if count > 1 else b""
        payload = (b"," if is_joined else b"").join(messages)
        time_ms = draw(st.integers(0, 2**53 - 1))
        found.append(Slice(offset, count, payload, lengths, is_joined, time_ms, extras, producer))
        offset += count
    return found


def body_of(found: list[Slice]) -> bytes:
    end = found[-1].offset + found[-1].count if found else 0
    return encode_frames("application/json", found, next_offset=end, tail=end)


def listed(rows: FrameRows) -> list[tuple[bytes, int, int, bytes | None, list[Header] | None]]:
    count = len(rows.offsets)
    keys = [None] * count if rows.keys is None else rows.keys.to_pylist()
    headers = [None] * count if rows.headers is None else rows.headers
    columns = (rows.values.to_pylist(), rows.offsets.tolist(), rows.times_us.tolist())
    return list(zip(*columns, keys, headers, strict=True))


@given(pieces())
def test_a_page_has_the_messages_the_plain_decoder_finds(found: list[Slice]) -> None:
    body = body_of(found)
    expected = []
    for piece in decode_frames(body).slices:
        carried = zip(
            piece.messages(), piece.timestamps(), piece.keys(), piece.headers(), strict=True
        )
        for rank, (message, time_ms, key, headers) in enumerate(carried):
            expected.append((message, piece.offset + rank, time_ms * 1000, key, headers or None))
    rows = rows_of(body, has_headers=True)
    assert listed(rows) == expected
    assert rows.stored_ms.tolist() == [piece.time_ms for piece in found for _ in range(piece.count)]


@given(pieces(), st.integers(0, 40))
def test_a_page_is_cut_at_an_offset(found: list[Slice], end: int) -> None:
    rows = rows_of(body_of(found), has_headers=True)
    assert listed(rows.before(end)) == [row for row in listed(rows) if row[1] < end]


@given(pieces(), st.data())
def test_a_page_that_is_cut_short_or_damaged_is_refused_and_never_read_past_its_end(
    found: list[Slice], data: st.DataObject
) -> None:
    body = body_of(found)
    with pytest.raises(BadFormat):
        rows_of(body[: data.draw(st.integers(0, len(body) - 1))])
    at = data.draw(st.integers(0, len(body) - 1))
    damaged = body[:at] + data.draw(st.binary(min_size=1, max_size=4)) + body[at + 4 :]
    with suppress(BadFormat):
        rows_of(damaged).values.validate(full=True)


def test_extras_that_reach_beyond_their_end_are_refused() -> None:
    extras = encode_extras(1, keys=[b"abc"], timestamps=[5])
    body = body_of([Slice(0, 1, b"x", b"", False, 1, extras)])
    longer_key = body.replace(struct.pack("<I", 3) + b"abc", struct.pack("<I", 9) + b"abc")
    assert longer_key != body
    with pytest.raises(BadFormat, match="keys or timestamps of a slice are truncated"):
        rows_of(longer_key)
    no_room = encode_extras(1, keys=[b""])
    body = body_of([Slice(0, 1, b"x", b"", False, 1, no_room)])
    with pytest.raises(BadFormat, match="keys or timestamps of a slice are truncated"):
        rows_of(body.replace(no_room, struct.pack("<I", 2) + no_room[4:]))


def test_lengths_that_do_not_fit_their_piece_are_refused() -> None:
    two = Slice(0, 2, b"ab", struct.pack("<2I", 1, 1), False, 1)
    body = body_of([two])
    with pytest.raises(BadFormat, match="total length of the messages differs"):
        rows_of(body.replace(two.lengths, struct.pack("<2I", 1, 0)))
    none = struct.pack("<4sHHIQQ", b"SMF1", 0, 0, 1, 0, 0) + struct.pack("<QQIII", 0, 1, 0, 1, 0)
    with pytest.raises(BadFormat, match="one length for each message"):
        rows_of(none + b"x")
