from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from semel.client.reading import join_messages
from semel.client.values import Message, decode, encode


@dataclass
class Order:
    id: int


@pytest.mark.parametrize(
    ("value", "content_type", "raw"),
    [
        ({"a": [1, None]}, "application/json", b'{"a":[1,null]}'),
        ("grün", "application/json; charset=utf-8", '"grün"'.encode()),
        (Order(7), "application/json", b'{"id":7}'),
        (b' {"ready": 1}', "application/json", b' {"ready": 1}'),
        ("\ud800", "application/json", rb'"\ud800"'),
        (b"\xff", "image/png", b"\xff"),
        (bytearray(b"a"), "image/png", b"a"),
        (memoryview(b"a"), "text/plain", b"a"),
        ("grün", "text/plain", "grün".encode()),
    ],
)
def test_a_value_becomes_the_bytes_of_a_message(value: Any, content_type: str, raw: bytes) -> None:
    assert encode(value, content_type) == raw


@pytest.mark.parametrize(
    ("value", "content_type", "hint"),
    [
        ("text", "image/png", "accepts only bytes, not str"),
        ({"a": 1}, "text/plain", "accepts only bytes or str, not dict"),
        (object(), "application/json", "object"),
    ],
)
def test_a_value_the_stream_cannot_hold_is_refused(
    value: Any, content_type: str, hint: str
) -> None:
    with pytest.raises(TypeError, match=hint):
        encode(value, content_type)


@pytest.mark.parametrize(
    ("raw", "content_type", "value"),
    [
        (b'{"a": 1}', "application/json", {"a": 1}),
        (rb'"\ud800"', "application/json", "\ud800"),
        (b"123456789012345678901234567890", "application/json", 123456789012345678901234567890),
        ("grün".encode(), "text/plain", "grün"),
        (b"\xff", "image/png", b"\xff"),
    ],
)
def test_a_message_means_a_value(raw: bytes, content_type: str, value: Any) -> None:
    assert decode(raw, content_type) == value


def test_a_message_is_decoded_once_and_only_when_asked() -> None:
    broken = Message(b"{", "application/json")
    assert broken.offset is None
    with pytest.raises(ValueError, match="Expecting"):
        _ = broken.value
    message = Message(b"[1]", "application/json", 3, 4, 1_700_000_000_123)
    assert message.value is message.value
    assert message.offset == "0000000000000000_0000000000000003"
    assert message.next_offset == "0000000000000000_0000000000000004"
    assert message.timestamp == datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)
    assert "0003" in repr(message)


def test_messages_of_bytes_can_be_joined_and_those_of_json_cannot() -> None:
    assert join_messages([Message(b"a", "text/plain"), Message(b"b", "text/plain")]) == b"ab"
    with pytest.raises(TypeError, match="use read"):
        join_messages([Message(b"1", "application/json")])
