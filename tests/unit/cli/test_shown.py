"""How messages are printed."""

import json

import pytest

from semel.cli.output import Style, render_messages
from semel.client.values import Message

FIRST = "0000000000000000_0000000000000007"


def lines(content_type: str, style: Style, *messages: bytes) -> list[bytes]:
    found = [Message(raw, content_type, 7 + at, 8 + at, 1234) for at, raw in enumerate(messages)]
    return list(render_messages(found, style))


def test_raw_is_the_bytes_and_nothing_else() -> None:
    assert lines("text/plain", Style.RAW, b"a\n", b"\x1b") == [b"a\n", b"\x1b"]


def test_a_line_ends_once() -> None:
    assert lines("text/plain", Style.LINES, b"a", b"b\n", b"\n\n") == [b"a\n", b"b\n", b"\n\n"]


def test_a_json_value_is_one_line() -> None:
    value = b'{\n\t"a": "\\n"\r\n}'
    (line,) = lines("application/json", Style.LINES, value)
    assert line.count(b"\n") == 1
    assert json.loads(line) == {"a": "\n"}


@pytest.mark.parametrize("content_type", ["text/plain", "application/json"])
@pytest.mark.parametrize("evil", ["\x1b[2J", "\x9b31m", "\u202e", "\U000e0001", "\x7f"])
def test_a_terminal_gets_no_control_characters(content_type: str, evil: str) -> None:
    message = f'"{evil}"'.encode()
    (line,) = lines(content_type, Style.SAFE_LINES, message)
    assert line.decode().rstrip("\n").isprintable()


def test_an_escaped_json_value_still_means_the_same() -> None:
    message = '"\x9b\x7f\u202e\U000e0001"'.encode()
    (line,) = lines("application/json", Style.SAFE_LINES, message)
    assert json.loads(line) == json.loads(message)


def test_bytes_that_are_no_text_reach_a_terminal_escaped() -> None:
    assert lines("text/plain", Style.SAFE_LINES, b"\xff\n") == [b"\\xff\n"]


def test_json_output_has_offset_time_and_what_kind_of_value_it_is() -> None:
    shown = [
        json.loads(lines("application/json", Style.JSON, b'{"a":\n1}')[0]),
        json.loads(lines("text/plain", Style.JSON, "ä".encode())[0]),
        json.loads(lines("text/plain", Style.JSON, b"\xff")[0]),
    ]
    assert [one.pop("offset") for one in shown] == [FIRST] * 3
    assert [one.pop("written_at_ms") for one in shown] == [1234] * 3
    assert shown == [{"value": {"a": 1}}, {"text": "ä"}, {"base64": "/w=="}]


def test_json_output_has_what_a_message_carries() -> None:
    message = Message(
        b"1", "application/json", 7, 8, 1234, b"k", [("a", b"b"), ("a", b"\xff")], time_ms=-5
    )
    shown = json.loads(b"".join(render_messages([message], Style.JSON)))
    assert shown == {
        "offset": FIRST,
        "written_at_ms": 1234,
        "timestamp_ms": -5,
        "key": "k",
        "headers": [["a", "b"], ["a", {"base64": "/w=="}]],
        "value": 1,
    }
    message = Message(b"x", "text/plain", 7, 8, 1234, b"\xff")
    shown = json.loads(b"".join(render_messages([message], Style.JSON)))
    assert (shown["key"], shown["text"]) == ({"base64": "/w=="}, "x")
    assert "headers" not in shown
