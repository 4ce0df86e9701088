"""Server-sent events, read back by a minimal parser."""

import json
import re
from base64 import b64decode
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.model.limits import BODY_BYTES_MAX
from semel.model.offsets import print_offset
from semel.wire import sse
from semel.wire.sse import (
    EVENT_STEP_BYTES,
    HELD_BYTES_MAX,
    SseEncoder,
    control_event,
    data_event,
    data_event_parts,
    parts_of,
)
from tests.unit.wire.builders import piece

EURO = "\u20ac".encode()


def events_of(stream: bytes) -> list[tuple[str, str]]:
    """Return the events of a stream, parsed as in a browser."""
    events: list[tuple[str, str]] = []
    kind, data = "", list[str]()
    for line in re.split("\r\n|\r|\n", stream.decode()):
        if not line:
            if data:
                events.append((kind, "\n".join(data)))
            kind, data = "", []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            kind = value
        elif field == "data":
            data.append(value)
    return events


def as_lines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def test_an_event_looks_as_the_suite_wants_it() -> None:
    """Protocol 1.8: no space after `data:`."""
    assert data_event(b"line1\nline2") == b"event: data\ndata:line1\ndata:line2\n\n"
    assert data_event(b" x") == b"event: data\ndata:  x\n\n"


@pytest.mark.parametrize(
    "text",
    [
        "a\n\nevent: control\ndata:{}", "a\r\rdata: b", "a\r\n\r\nid: 1", "event:x", ":", "\n",
        " a", "  a\n b", "data:", "\x0b\x0c\x1c\x85", "\u2028",
    ],
)  # fmt: skip
def test_a_payload_cannot_break_out_of_its_event(text: str) -> None:
    """Protocol 1.8: injection by CRLF, CR and LF; reliability 5.4 "Bodies"."""
    assert events_of(data_event(text.encode())) == [("data", as_lines(text))]


@given(st.text(alphabet=st.characters(codec="utf-8"), min_size=1))
def test_every_text_comes_back(text: str) -> None:
    assert events_of(data_event(text.encode())) == [("data", as_lines(text))]


# ---- steps ---------------------------------------------------------------------------------------


def at_once(payload: bytes) -> bytes:
    """Return the data event of a payload, made line by line."""
    lines = payload.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    spaced = [b" " + line if line.startswith(b" ") else line for line in lines]
    return b"event: data\n" + b"".join(b"data:%b\n" % line for line in spaced) + b"\n"


_BYTES = st.lists(
    st.sampled_from([b"\n", b"\r", b"\r\n", b" ", b"a", b"\xff", *(EURO[at:] for at in range(3))])
).map(b"".join)


@given(_BYTES, st.integers(1, 8))
def test_an_event_made_in_steps_has_the_same_bytes(payload: bytes, step_bytes: int) -> None:
    text = payload.decode("utf-8", "replace").encode()
    with patch.object(sse, "EVENT_STEP_BYTES", step_bytes):
        assert data_event(payload) == at_once(payload)
        assert b"".join(parts_of(data_event_parts(payload, is_text=True))) == at_once(text)


@pytest.mark.parametrize("line_end", [b"\n", b"\r", b"\r\n", b"\r\n\n\r", b"\n ", b"\xff\n"])
@pytest.mark.parametrize("content_type", ["text/plain", "application/json"])
def test_no_step_of_an_event_takes_more_than_its_share(content_type: str, line_end: bytes) -> None:
    payload = line_end * (BODY_BYTES_MAX // len(line_end))
    taken: list[int] = []
    real = sse._with_fields

    def take(lines: bytes) -> bytes:
        taken.append(len(lines))
        return real(lines)

    parts = SseEncoder(content_type, 0).data_parts([piece(0, payload)], next_offset=1)
    with patch.object(sse, "_with_fields", take):
        count = 0
        for part in parts:
            count += 1
            assert len(taken) == count
            assert len(part) < 8 * EVENT_STEP_BYTES
    # An invalid byte is replaced with three bytes.
    assert max(taken) <= 2 * EVENT_STEP_BYTES + 1
    assert len(taken) == count + 1 >= BODY_BYTES_MAX // EVENT_STEP_BYTES


# ---- control -------------------------------------------------------------------------------------


def control_of(event: bytes) -> object:
    ((kind, data),) = events_of(event)
    assert kind == "control"
    return json.loads(data)


def test_a_control_event_says_where_the_reader_stands() -> None:
    """Protocol 1.8: a cursor while open, none at the end of a closed stream."""
    assert control_of(control_event(5)) == {"streamNextOffset": print_offset(5)}
    assert control_of(control_event(5, cursor=9, is_up_to_date=True)) == {
        "streamNextOffset": print_offset(5),
        "streamCursor": "9",
        "upToDate": True,
    }
    assert control_of(control_event(5, cursor=9, is_up_to_date=True, is_closed=True)) == {
        "streamNextOffset": print_offset(5),
        "streamClosed": True,
        "upToDate": True,
    }


# ---- data ----------------------------------------------------------------------------------------


def test_a_control_event_names_the_transaction_a_reader_waits_for() -> None:
    """Semantics 5.6."""
    blocked = json.loads(events_of(control_event(5, cursor=7, blocked_by="t"))[0][1])
    assert blocked == {
        "streamNextOffset": print_offset(5),
        "streamCursor": "7",
        "blockedBy": "t",
    }
    free = control_event(5, is_up_to_date=True, blocked_by="t")
    assert "blockedBy" not in json.loads(events_of(free)[0][1])


def test_json_is_one_array_per_event() -> None:
    encoder = SseEncoder("application/json; v=1", 3)
    assert encoder.next_offset == 3
    event = encoder.data([piece(3, b"1", b"2", joined=True), piece(5, b"3")], next_offset=6)
    assert events_of(event) == [("data", "[1,2,3]")]
    assert encoder.next_offset == 6


def test_bytes_are_base64() -> None:
    """Protocol 1.8: with padding, so that each event can be decoded alone."""
    event = SseEncoder("image/png", 0).data([piece(0, b"\xff\n"), piece(1, b"\x00")], next_offset=2)
    ((_, data),) = events_of(event)
    assert b64decode(data, validate=True) == b"\xff\n\x00"


@pytest.mark.parametrize("content_type", ["application/json", "text/plain", "image/png"])
def test_a_read_of_nothing_is_no_event(content_type: str) -> None:
    encoder = SseEncoder(content_type, 0)
    assert encoder.data([], next_offset=4) == b""
    assert encoder.next_offset == 4


# ---- text split inside a character ---------------------------------------------------------------


def test_a_message_that_ends_inside_a_character_waits_for_the_rest() -> None:
    encoder = SseEncoder("text/plain", 0)
    event = encoder.data([piece(0, b"a"), piece(1, b"b" + EURO[:1])], next_offset=2)
    assert events_of(event) == [("data", "a")]
    assert encoder.next_offset == 1
    assert encoder.data([piece(2, EURO[1:2])], next_offset=3) == b""
    assert encoder.next_offset == 1
    event = encoder.data([piece(3, EURO[2:] + b"c")], next_offset=4)
    assert events_of(event) == [("data", "b\u20acc")]
    assert encoder.next_offset == 4


def test_only_the_messages_with_the_broken_character_wait() -> None:
    encoder = SseEncoder("text/plain", 0)
    event = encoder.data([piece(0, b"a", EURO[:1], EURO[1:2])], next_offset=3)
    assert events_of(event) == [("data", "a")]
    assert encoder.next_offset == 1


def test_a_chain_of_broken_characters_waits_from_its_beginning() -> None:
    encoder = SseEncoder("text/plain", 0)
    assert encoder.data([piece(0, EURO[:1])], next_offset=1) == b""
    assert encoder.data([piece(1, EURO[1:] + EURO[:2])], next_offset=2) == b""
    assert encoder.next_offset == 0
    event = encoder.data([piece(2, EURO[2:])], next_offset=3)
    assert (events_of(event), encoder.next_offset) == ([("data", "\u20ac\u20ac")], 3)


def test_no_more_than_64_kib_wait() -> None:
    encoder = SseEncoder("text/plain", 0)
    large = EURO * (HELD_BYTES_MAX // 3)
    assert encoder.data([piece(0, large + EURO[:1])], next_offset=1) == b""
    event = encoder.data([piece(1, EURO[1:] + EURO[:1])], next_offset=2)
    assert events_of(event) == [("data", (large + EURO).decode())]
    assert (encoder.next_offset, encoder.is_holding) == (2, True)
    assert encoder.data([piece(2, EURO[1:2])], next_offset=3) == b""
    assert encoder.next_offset == 2
    assert events_of(encoder.data([piece(3, EURO[2:])], next_offset=4)) == [("data", "\u20ac")]
    assert not encoder.is_holding


def test_the_end_of_a_stream_lets_everything_go() -> None:
    encoder = SseEncoder("text/plain", 0)
    assert encoder.data([piece(0, EURO[:2])], next_offset=1) == b""
    assert events_of(encoder.data([], next_offset=1, is_final=True)) == [("data", "\ufffd")]
    assert encoder.next_offset == 1


def test_what_can_never_be_text_is_replaced_and_not_held() -> None:
    event = SseEncoder("text/plain", 0).data([piece(0, b"a\xff")], next_offset=1)
    assert events_of(event) == [("data", "a\ufffd")]


@given(st.text(alphabet="a\u00e9\u20ac\U0001f600", min_size=1), st.lists(st.integers(1, 5)))
def test_text_cut_anywhere_arrives_whole(text: str, sizes: list[int]) -> None:
    rest, encoder, events, controls = text.encode(), SseEncoder("text/plain", 0), b"", [0]
    for offset, size in enumerate([*sizes, len(rest)]):
        message, rest = rest[:size], rest[size:]
        if message:
            events += encoder.data([piece(offset, message)], next_offset=offset + 1)
            controls.append(encoder.next_offset)
    assert "".join(data for _, data in events_of(events)) == text
    assert controls == sorted(controls)
