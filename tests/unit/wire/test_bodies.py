"""Bodies: JSON arrays, plain bytes, and our two binary formats."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.broker.reader import Slice
from semel.model.commands import Batch
from semel.model.limits import BATCH_MESSAGES_MAX
from semel.wire.bodies import (
    BadFormat,
    CarriedBatch,
    Frames,
    Piece,
    decode_batch,
    decode_frames,
    encode_batch,
    encode_frames,
    messages_of,
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
    assert list(messages_of(piece(0, *messages, joined=joined))) == messages


# ---- the batch format ----------------------------------------------------------------------------


@given(MESSAGES)
def test_a_batch_of_bytes_comes_back(messages: list[bytes]) -> None:
    made = piece(0, *messages)
    found = decode_batch(encode_batch(TEXT, messages))
    assert found == CarriedBatch(TEXT, Batch(made.payload, made.count, made.lengths))


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
        got = messages_of(Piece(0, batch.count, batch.payload, lengths, batch.count > 1, 0))
        assert list(got) == [message.strip() for message in messages]


def test_an_empty_message_is_refused_in_its_place() -> None:
    assert decode_batch(encode_batch(TEXT, [b"a", b""])) == CarriedBatch(
        TEXT, None, "a message is empty"
    )


def test_a_batch_has_its_limit() -> None:
    decode_batch(encode_batch(TEXT, [b"x"] * BATCH_MESSAGES_MAX))
    with pytest.raises(BadFormat, match="10000"):
        decode_batch(encode_batch(TEXT, [b"x"] * (BATCH_MESSAGES_MAX + 1)))


WHOLE = encode_batch(TEXT, [b"ab", b"c"])


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"SMB2" + WHOLE[4:],
        WHOLE[:4] + b"\x01" + WHOLE[5:],
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


# ---- the frames format ---------------------------------------------------------------------------


@given(st.lists(MESSAGES, max_size=4), st.booleans(), st.integers(0, 3), st.integers(0, 1))
def test_frames_come_back(batches: list[list[bytes]], joined: bool, gap: int, behind: int) -> None:
    pieces, at = [], 0
    for messages in batches:
        pieces.append(piece(at, *messages, joined=joined, time=at))
        at += len(messages) + gap
    body = encode_frames(JSON, pieces, next_offset=at, tail=at + behind, is_closed=not behind)
    assert decode_frames(body) == Frames(JSON, pieces, at, at + behind, not behind, not behind)


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
