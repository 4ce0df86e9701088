"""Bodies: JSON arrays, plain bytes, and semel's two binary formats."""

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from semel.model.commands import Batch
from semel.model.limits import BATCH_MESSAGES_MAX, MIB
from semel.model.messages import encode_extras
from semel.model.slices import Slice, SliceProducer
from semel.wire.bodies import (
    BadFormat,
    DecodedBatch,
    Frames,
    decode_batch,
    decode_batch_steps,
    decode_frames,
    encode_batch,
    encode_frames,
    to_bytes,
    to_json_array,
)
from tests.unit.wire.builders import piece

JSON = "application/json"
TEXT = "text/plain"
MESSAGES = st.lists(st.binary(min_size=1, max_size=9), min_size=1, max_size=9)


def test_json_reads_are_one_array() -> None:
    """Protocol 1.11."""
    pieces = [piece(0, b"1", b"[2]", joined=True), piece(2, b'{"a": 3}')]
    assert to_json_array(pieces) == b'[1,[2],{"a": 3}]'
    assert to_json_array([]) == b"[]"


def test_other_reads_are_the_bytes() -> None:
    assert to_bytes([piece(0, b"ab", b"c"), piece(2, b"d")]) == b"abcd"
    assert to_bytes([]) == b""


def test_the_broker_s_slices_fit() -> None:
    assert to_json_array([Slice(0, 1, b"1", b"", False, 0)]) == b"[1]"


@given(MESSAGES, st.booleans())
def test_a_piece_is_split_into_its_messages(messages: list[bytes], joined: bool) -> None:
    assert list(piece(0, *messages, joined=joined).messages()) == messages


# ---- the batch format ----------------------------------------------------------------------------


@given(MESSAGES)
def test_a_batch_of_bytes_comes_back(messages: list[bytes]) -> None:
    made = piece(0, *messages)
    found = decode_batch(encode_batch(TEXT, messages))
    assert found == DecodedBatch(TEXT, Batch(made.payload, made.count, made.lengths))


def test_a_batch_of_json_is_joined_by_commas() -> None:
    found = decode_batch(encode_batch(JSON, [b" 1\n", b"[2,3]", b'"\\ud800"']))
    assert found.batch == Batch(b'1,[2,3],"\\ud800"', 3, struct.pack("<3I", 1, 5, 8))
    assert decode_batch(encode_batch(JSON, [b"[1]"])).batch == Batch(b"[1]")


@pytest.mark.parametrize(
    "messages",
    [[b"1,2"], [b"[1", b"2]"], [b"1,[2", b"3]"], [b"x"], [b" "], [b"1", b" "], [b'"', b'"'],
     [b"[1],[2"], [b"1,2", b"3"]],
)  # fmt: skip
def test_each_message_of_a_json_batch_is_one_value(messages: list[bytes]) -> None:
    found = decode_batch(encode_batch(JSON, messages))
    assert found.batch is None
    assert found.error


@given(st.lists(st.text(alphabet='1,[]{}" ', min_size=1, max_size=5), min_size=1, max_size=4))
def test_no_trick_moves_the_borders_of_json_messages(texts: list[str]) -> None:
    messages = [text.encode() for text in texts]
    found = decode_batch(encode_batch(JSON, messages))
    if found.batch is not None:
        batch = found.batch
        lengths = batch.lengths
        got = Slice(0, batch.count, batch.payload, lengths, batch.count > 1, 0)
        assert list(got.messages()) == [message.strip() for message in messages]


def test_an_empty_message_is_refused_in_its_place() -> None:
    assert decode_batch(encode_batch(TEXT, [b"a", b""])) == DecodedBatch(
        TEXT, None, "a message is empty"
    )


RICH: dict[str, Any] = {
    "keys": [b"k", None],
    "headers": [[], [("n", b"v")]],
    "timestamps": [None, 5],
}
RICH_EXTRAS = encode_extras(2, **RICH)


def test_keys_headers_and_timestamps_travel_in_a_batch() -> None:
    found = decode_batch(encode_batch(TEXT, [b"ab", b"c"], **RICH))
    assert found == DecodedBatch(TEXT, Batch(b"abc", 2, struct.pack("<2I", 2, 1), RICH_EXTRAS))
    found = decode_batch(encode_batch(JSON, [b" 1", b"2"], **RICH))
    assert found == DecodedBatch(JSON, Batch(b"1,2", 2, struct.pack("<2I", 1, 1), RICH_EXTRAS))


def test_a_batch_without_any_is_the_batch_it_always_was() -> None:
    nothing = encode_batch(TEXT, [b"a"], keys=[None], headers=[[]], timestamps=[None])
    assert nothing == encode_batch(TEXT, [b"a"])
    assert nothing[4:6] == b"\0\0"


def test_what_is_wrong_inside_the_extras_is_left_to_the_machine() -> None:
    whole = encode_batch(TEXT, [b"a"], keys=[b"k"])
    found = decode_batch(whole.replace(struct.pack("<II", 1, 1), struct.pack("<II", 1, 9)))
    assert found.batch == Batch(b"a", extras=struct.pack("<II", 1, 9) + b"k")


def test_a_batch_has_its_limit() -> None:
    decode_batch(encode_batch(TEXT, [b"x"] * BATCH_MESSAGES_MAX))
    with pytest.raises(BadFormat, match="10000"):
        decode_batch(encode_batch(TEXT, [b"x"] * (BATCH_MESSAGES_MAX + 1)))


WHOLE = encode_batch(TEXT, [b"ab", b"c"])
RICH_BATCH = encode_batch(TEXT, [b"ab", b"c"], **RICH)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"SMB2" + WHOLE[4:],
        WHOLE[:4] + b"\x02" + WHOLE[5:],
        WHOLE[:4] + b"\x01" + WHOLE[5:],
        RICH_BATCH.replace(struct.pack("<I", len(RICH_EXTRAS)), bytes(4)),
        RICH_BATCH.replace(struct.pack("<I", len(RICH_EXTRAS)), b"\xff\xff\xff\xff"),
        *(RICH_BATCH[:size] for size in range(len(RICH_BATCH))),
        encode_batch(TEXT, []),
        encode_batch("", [b"a"]),
        encode_batch("a" * 257, [b"a"]),
        encode_batch("a\nb", [b"a"]),
        WHOLE.replace(b"text", b"t\xe9xt"),
        WHOLE + b"x",
        *(WHOLE[:size] for size in range(len(WHOLE))),
    ],
)
def test_what_is_no_batch_is_refused(body: bytes) -> None:
    with pytest.raises(BadFormat):
        decode_batch(body)


def test_a_long_batch_of_json_is_decoded_in_steps() -> None:
    message = b'"' + b"x" * MIB + b'"'
    steps = decode_batch_steps(encode_batch(JSON, [message]))
    assert len(list(steps)) == 2
    assert decode_batch(encode_batch(JSON, [message])).batch == Batch(message)


def test_long_extras_are_checked_here_and_short_ones_by_the_engine() -> None:
    headers = [[("name", b"value")] * 60] * 200
    for count, is_checked in ((200, True), (1, False)):
        body = encode_batch(TEXT, [b"x"] * count, headers=headers[:count])
        batch = decode_batch(body).batch
        assert batch is not None
        assert batch.is_checked == is_checked
    wrong = encode_batch(TEXT, [b"x"] * 200, headers=[*headers[:199], [("", b"value")]])
    decoded = decode_batch(wrong)
    assert decoded.batch is None
    assert "malformed" in str(decoded.error)


# ---- the frames format ---------------------------------------------------------------------------


@given(st.lists(MESSAGES, max_size=4), st.booleans(), st.integers(0, 3), st.integers(0, 1))
def test_frames_come_back(batches: list[list[bytes]], joined: bool, gap: int, behind: int) -> None:
    pieces, at = [], 0
    for messages in batches:
        pieces.append(piece(at, *messages, joined=joined, time=at))
        at += len(messages) + gap
    body = encode_frames(JSON, pieces, next_offset=at, tail=at + behind, is_closed=not behind)
    assert decode_frames(body) == Frames(JSON, pieces, at, at + behind, not behind, not behind)


PRODUCER = SliceProducer("pé", 2**53 - 1, 11, 11 + 2**32 - 1)
PLAIN = piece(3, b"ab", b"c", time=9)
RICH_PIECE = replace(PLAIN, extras=RICH_EXTRAS, producer=PRODUCER)


@pytest.mark.parametrize(
    "made",
    [RICH_PIECE, replace(RICH_PIECE, extras=b""), replace(RICH_PIECE, producer=None)],
    ids=["both", "producer", "extras"],
)
def test_extras_and_producers_come_back_in_frames(made: Slice) -> None:
    body = encode_frames(TEXT, [made, piece(5, b"d")], next_offset=6, tail=6)
    assert decode_frames(body).slices == [made, piece(5, b"d")]
    for size in range(len(body)):
        with pytest.raises(BadFormat):
            decode_frames(body[:size])


def test_the_range_of_sequences_of_a_sparse_producer_comes_back() -> None:
    producer = SliceProducer("p", 4, 5, 9)
    made = Slice(0, 1, b"x", b"", False, 3, encode_extras(1, keys=[b"k"]), producer)
    (found,) = decode_frames(encode_frames(TEXT, [made], next_offset=1, tail=1)).slices
    assert (found.producer, found.keys()) == (producer, [b"k"])


def test_a_piece_shows_what_its_messages_carry() -> None:
    assert list(RICH_PIECE.messages()) == [b"ab", b"c"]
    assert RICH_PIECE.keys() == [b"k", None]
    assert RICH_PIECE.headers() == [[], [("n", b"v")]]
    assert RICH_PIECE.timestamps() == [9, 5], "the default is the time of the write"


def test_a_piece_without_extras_shows_nothing_but_the_time_of_writing() -> None:
    assert PLAIN.keys() == [None, None]
    assert PLAIN.headers() == [[], []]
    assert PLAIN.timestamps() == [9, 9]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (RICH_EXTRAS[:4], struct.pack("<I", 8)),
        (struct.pack("<I", len(RICH_EXTRAS)), struct.pack("<I", len(RICH_EXTRAS) + 1)),
        (b"p\xc3\xa9", b"p\xff\xff"),
        (struct.pack("<H", 3) + b"p", struct.pack("<H", 0) + b"p"),
        (struct.pack("<H", 3) + b"p", struct.pack("<H", 257) + b"p"),
    ],
    ids=["columns", "size", "utf-8", "no id", "long id"],
)
def test_a_piece_that_lies_about_extras_or_producer_is_refused(old: bytes, new: bytes) -> None:
    made = replace(RICH_PIECE, payload=b"y" * 400, lengths=struct.pack("<II", 200, 200))
    body = encode_frames(TEXT, [made], next_offset=5, tail=5)
    assert body.count(old) == 1
    with pytest.raises(BadFormat):
        decode_frames(body.replace(old, new))


FRAMES = encode_frames(TEXT, [piece(3, b"ab", b"c"), piece(5, b"d")], next_offset=6, tail=6)


def damaged(at: int, value: bytes) -> bytes:
    return FRAMES[:at] + value + FRAMES[at + len(value) :]


HEAD_BYTES = 28 + len(TEXT)


@pytest.mark.parametrize(
    "body",
    [
        b"SMF2" + FRAMES[4:],
        damaged(4, b"\x05"),
        damaged(4, b"\x00"),
        damaged(12, b"\x05"),
        damaged(20, b"\x07"),
        damaged(20, b"\x05"),
        damaged(HEAD_BYTES, b"\x09"),
        damaged(HEAD_BYTES + 16, b"\x00"),
        damaged(HEAD_BYTES + 24, b"\x08"),
        damaged(HEAD_BYTES + 24, b"\x02"),
        damaged(HEAD_BYTES + 24, b"\x01"),
        damaged(HEAD_BYTES + 28, b"\x09"),
        FRAMES + b"x",
        *(FRAMES[:size] for size in range(len(FRAMES))),
    ],
)
def test_what_is_no_frames_body_is_refused(body: bytes) -> None:
    with pytest.raises(BadFormat):
        decode_frames(body)


@given(st.binary(max_size=80))
def test_no_bytes_break_the_decoders(body: bytes) -> None:
    for decode, magic in ((decode_batch, b"SMB1"), (decode_frames, b"SMF1")):
        with pytest.raises(BadFormat):
            decode(magic + b"\xff" + body)
