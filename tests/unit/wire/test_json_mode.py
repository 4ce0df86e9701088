"""JSON bodies split into messages, byte for byte."""

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.model.commands import Batch
from semel.model.limits import BATCH_MESSAGES_MAX
from semel.wire import json_mode
from semel.wire.json_mode import JSON_DEPTH_MAX, split_json

SPACES = st.text(alphabet=" \t\r\n", max_size=3)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=20,
)  # fmt: skip


def split(body: bytes) -> list[bytes]:
    batch = split_json(body)
    if batch is None:
        return []
    assert isinstance(batch, Batch), batch
    if batch.count == 1:
        assert batch.lengths == b""
        return [batch.payload]
    messages, at = [], 0
    for size in struct.unpack(f"<{batch.count}I", batch.lengths):
        messages.append(batch.payload[at : at + size])
        at += size + 1
    assert b",".join(messages) == batch.payload
    return messages


@pytest.mark.parametrize(
    ("body", "messages"),
    [
        (b'{"a": 1}', [b'{"a": 1}']),
        (b" 1\n", [b"1"]),
        (b"null", [b"null"]),
        (b'"a"', [b'"a"']),
        (b"[1]", [b"1"]),
        (b"[1,2]", [b"1", b"2"]),
        (b' [ 1 ,\t{"a" : 2 }\n] ', [b"1", b'{"a" : 2 }']),
        (b"[[1,2],[3]]", [b"[1,2]", b"[3]"]),
        (b"[[]]", [b"[]"]),
        (b"[ [[]] ]", [b"[[]]"]),
        (b"[]", []),
        (b" [ ] ", []),
    ],
)
def test_a_top_level_array_is_flattened_one_level(body: bytes, messages: list[bytes]) -> None:
    """Protocol 1.11: scalars, null and nested arrays are preserved."""
    assert split(body) == messages


@pytest.mark.parametrize(
    "message",
    [
        b'{"a":1,"a":2}',
        b"123456789012345678901234567890",
        b"9" * 100_000,
        b"1.10",
        b"1E400",
        b"-0",
        b'"\\u00e9 \\/ \\b"',
        b'"\\ud800"',
        b'"\\ude00"',
        b'"\\ud83d\\u0041"',
        b'"\\uD83D\\uDE00"',
        b'"\\\\ud800"',
        b'{"\\udfff":[1, 2]}',
        '"\u00e9 \u2028 \U0001f600"'.encode(),
        b'"\x7f"',
    ],
)
def test_a_message_is_kept_byte_for_byte(message: bytes) -> None:
    """Reliability 5.4 "Bodies": duplicate keys, huge integers, lone surrogate escapes."""
    assert split(message) == [message]
    assert split(b"[" + message + b"]") == [message]
    assert split(b"[" + message + b" , " + message + b',"[1]"]') == [message, message, b'"[1]"']


@pytest.mark.parametrize(
    "body",
    [
        b"", b" ", b"[", b"[1", b"[1,]", b"[,1]", b"[1 2]", b"1 2", b"{", b"{]", b"nul", b"01",
        b"+1", b".5", b"1.", b"NaN", b"[NaN]", b"Infinity", b"-Infinity", b"'a'", b'"a', b'"\n"',
        b'"\x00"', b"\x00", b"1\x00", b'"\\x"', b'"\\u12"', b'"\\ud800', b'["\\ud800",]',
        b"\xef\xbb\xbf1", b"\xef\xbb\xbf[1]", b"[1]\x0b", b"{1:2}",
    ],
)  # fmt: skip
def test_what_is_not_json_is_refused(body: bytes) -> None:
    """Reliability 5.4 "Bodies": NaN, BOM, NUL and the rest."""
    error = split_json(body)
    assert isinstance(error, str)
    assert error.startswith("the text is not JSON")


@pytest.mark.parametrize("body", [b'"\xff"', b'["\xc3"]', b'"\xed\xa0\x80"', b'"\xc0\xaf"'])
def test_json_is_utf_8(body: bytes) -> None:
    assert str(split_json(body)).startswith("JSON must be UTF-8; byte ")


def nested(depth: int) -> bytes:
    """Return nested arrays and objects in turn, with a number inside."""
    opening = (b"[", b'{"a":')
    closing = (b"]", b"}")
    return (
        b"".join(opening[level % 2] for level in range(depth))
        + b"1"
        + b"".join(closing[level % 2] for level in reversed(range(depth)))
    )


@pytest.mark.parametrize("before", [b"", b'"' + b"[" * 200 + b'\\"{{",'])
def test_a_message_is_64_deep_at_most(before: bytes) -> None:
    """Reliability 5.3: the outer array and brackets inside strings do not count."""
    fine, deep = nested(JSON_DEPTH_MAX), nested(JSON_DEPTH_MAX + 1)
    assert split(b"[" + before + fine + b"]")[-1] == fine
    assert "deeper than 64" in str(split_json(b"[" + before + deep + b"]"))


def test_depth_is_counted_outside_an_array_too() -> None:
    objects = b'{"a":' * 65 + b"1" + b"}" * 65
    assert "deeper than 64" in str(split_json(objects))
    assert split(objects[5:-1]) == [objects[5:-1]]
    wide = b'{"a":[' + b",".join([b"[]"] * 200) + b"]}"
    assert split(wide) == [wide]


@pytest.mark.parametrize("place", [0, 31, 32, 98, 99])
@pytest.mark.parametrize("gap", [b",", b" , "])
def test_depth_is_found_wherever_it_stands_among_many(place: int, gap: bytes) -> None:
    messages = [b'{"a":[1,{"b":"%b"}]}' % (b"x" * number) for number in range(100)]
    wide = b"[" + b",".join([b"{}"] * 200) + b"]"
    for fine in (nested(JSON_DEPTH_MAX), wide, b'"' + b"[" * 200 + b'"'):
        messages[place] = fine
        assert split(b"[" + gap.join(messages) + b"]") == messages
    messages[place] = nested(JSON_DEPTH_MAX + 1)
    assert "deeper than 64" in str(split_json(b"[" + gap.join(messages) + b"]"))


def test_depth_is_found_in_the_shortest_text_that_has_it() -> None:
    for opening, core, closing in ((b"[", b"[]", b"]"), (b'{"":', b"{}", b"}")):
        fine = opening * (JSON_DEPTH_MAX - 1) + core + closing * (JSON_DEPTH_MAX - 1)
        assert split(b"[" + fine + b",1]") == [fine, b"1"]
        deep = opening + fine + closing
        assert "deeper than 64" in str(split_json(b"[" + deep + b",1]"))


@pytest.mark.parametrize("kind", [b"[]", b"{}"])
def test_depth_is_found_where_all_messages_have_many_brackets(kind: bytes) -> None:
    fine = b"[" + b",".join([kind] * 60) + b"]"
    assert split(b"[" + b",".join([fine] * 50) + b"]") == [fine] * 50
    deep = nested(JSON_DEPTH_MAX + 1)
    assert "deeper than 64" in str(split_json(b"[" + b",".join([fine] * 50 + [deep]) + b"]"))


@pytest.mark.parametrize("end", [b"", b'"\\ud800"'])
def test_no_depth_breaks_the_parser(end: bytes) -> None:
    assert "deeper than 64" in str(split_json(b"[" * 100_000 + end + b"]" * 100_000))


def test_surrogates_are_replaced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large body that is not JSON even after the replacement must not be searched twice."""
    seen: list[bytes] = []

    def replaced(body: bytes) -> bytes:
        seen.append(body)
        return body.replace(rb"\ud800", rb"\u0041")

    monkeypatch.setattr(json_mode, "_without_surrogates", replaced)
    assert "byte 12" in str(split_json(rb'["\ud800", {]'))
    assert len(seen) == 1


def test_a_lone_surrogate_does_not_hide_what_is_too_deep() -> None:
    bottomless = b'["\\ud800",' + b"[" * 100_000 + b"]" * 100_001
    assert "deeper than 64" in str(split_json(bottomless))
    deep = b'"\\ud800",' + b"[" * 65 + b"]" * 65
    assert "deeper than 64" in str(split_json(b"[" + deep + b"]"))
    assert isinstance(split_json(b'["\\ud800"' + b" " * 99 + b"x]"), str)


def test_a_batch_holds_10_000_messages_at_most() -> None:
    most = b"[" + b"1," * (BATCH_MESSAGES_MAX - 1) + b"1]"
    assert len(split(most)) == BATCH_MESSAGES_MAX
    assert "10000 messages" in str(split_json(most[:-1] + b",1]"))


@given(st.lists(VALUES, min_size=1), SPACES, SPACES, st.booleans())
def test_splitting_agrees_with_the_standard_parser(
    values: list[object], before: str, after: str, is_ascii: bool
) -> None:
    texts = [json.dumps(value, ensure_ascii=is_ascii) for value in values]
    body = before + "[" + ",".join(before + text + after for text in texts) + "]" + after
    encoded = body.encode("utf-8", "surrogatepass")
    found = split_json(encoded)
    if isinstance(found, str):
        assert "UTF-8" in found
        assert not is_ascii
    else:
        assert [json.loads(message) for message in split(encoded)] == values
        assert split(encoded) == [text.encode() for text in texts]


def is_json(text: str) -> bool:
    def refuse(constant: str) -> object:
        raise ValueError(constant)

    try:
        json.loads(text, parse_constant=refuse)
    except ValueError:
        return False
    return True


@given(st.text(alphabet='[]{},:" \\u0d8e1-.ntrue\n\x00é', max_size=24))
def test_what_is_json_is_decided_as_the_standard_parser_decides(text: str) -> None:
    assert isinstance(split_json(text.encode()), str) != is_json(text)
