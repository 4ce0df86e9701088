"""JSON bodies split into messages, byte for byte."""

import json
import re
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.model.commands import Batch
from semel.model.limits import BATCH_MESSAGES_MAX
from semel.model.steps import STEP_BYTES, Steps, finish
from semel.wire import json_depth, json_mode
from semel.wire.documents import read_document
from semel.wire.json_depth import JSON_DEPTH_MAX, is_too_deep
from semel.wire.json_mode import first_elements, prepare_limits, split_json, split_steps
from semel.wire.problems import MalformedRequest
from semel.wire.schema.producers import RegisterRequest
from semel.wire.schema.transactions import SetPositionsRequest
from tests.unit.wire.builders import JSON

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

    def replaced(body: bytes) -> Steps[bytes]:
        seen.append(body)
        yield
        return body.replace(rb"\ud800", rb"\u0041")

    monkeypatch.setattr(json_mode, "without_surrogates", replaced)
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


# ---- long bodies ---------------------------------------------------------------------------------


@pytest.mark.parametrize("element", [b'""', b"0", b"[]", b"{}", b"[[0,1],2]", b'"\\ud800"'])
def test_elements_after_the_limit_are_not_read(element: bytes) -> None:
    """What follows is not JSON, so it cannot have been read."""
    prepare_limits()
    body = b"[" + b",".join([element] * (BATCH_MESSAGES_MAX + 1)) + b", not JSON"
    assert "10000 messages" in str(split_json(body))
    assert len(split(b"[" + b",".join([element] * BATCH_MESSAGES_MAX) + b"]")) == 10_000


@pytest.mark.parametrize(("count", "limit"), [(2, 3), (3, 3), (4, 3), (4, 1)])
def test_the_elements_of_an_array_are_found_or_there_are_too_many(count: int, limit: int) -> None:
    elements = [b'{"a": [1, 2, 3]}'] * count
    found = first_elements(b"[" + b", ".join(elements) + b"]", limit)
    assert (None if found is None else list(map(bytes, found))) == (
        elements if count <= limit else None
    )


@pytest.mark.parametrize(
    "body",
    [
        b"[" + b",".join([b"[]"] * 400_000) + b"]",
        b"[" + b",".join([b'"["'] * 300_000) + b"]",
        b"[" + b",".join([rb'"\ud800"'] * 150_000) + b"]",
        b'{"a":[' + b",".join([b"{}"] * 400_000) + b"]}",
        b'{"a":"' + b"[" * 70 + b'\\"' * 600_000 + b'"}',
    ],
    ids=["arrays", "strings", "surrogates", "objects", "one string"],
)
def test_a_long_message_is_checked_in_steps(body: bytes) -> None:
    """Each step looks at STEP_BYTES, so the number of steps shows that none looks at more."""
    steps = split_steps(b"[" + body + b"]")
    assert len(list(steps)) >= len(body) // STEP_BYTES
    assert split_json(b"[" + body + b"]") == Batch(body)


def test_many_long_messages_are_checked_in_steps() -> None:
    message = b"[" + b"[]," * 100 + b"[]]"
    body = b"[" + b",".join([message] * 5_000) + b"]"
    assert len(list(split_steps(body))) >= len(body) // STEP_BYTES - 1
    assert len(split(body)) == 5_000


@pytest.mark.parametrize("depth", [JSON_DEPTH_MAX, JSON_DEPTH_MAX + 1])
@pytest.mark.parametrize("before", [0, 1, STEP_BYTES - 70, STEP_BYTES, 3 * STEP_BYTES])
@pytest.mark.parametrize("text", [b"x", b"[", b'\\"', b"\\\\"])
def test_a_step_may_end_anywhere(before: int, depth: int, text: bytes) -> None:
    """Also within a string, an escape, or in the middle of nested arrays."""
    string = b'"' + text * (before // len(text)) + b'"'
    message = b"[" * (depth - 1) + string + b",[]" + b"]" * (depth - 1)
    assert is_too_deep(message) == (depth > JSON_DEPTH_MAX)
    assert is_too_deep(b"[" + b"[]," * 70 + message[1:]) == (depth > JSON_DEPTH_MAX)


def test_a_text_that_is_not_json_is_not_too_deep() -> None:
    assert not is_too_deep(b"[" * 10 + b'"' + b"[" * 100)
    assert not is_too_deep(b"[" * 10 + b'"' + b"[" * 100 + b"\\")


def test_a_long_string_is_looked_at_once() -> None:
    """The search for its end goes on where the last step ended."""
    message = b'{"a":"' + b"[" * 70 + b'\\"' * (2 * STEP_BYTES) + b'"}'
    looked_at = 0
    real = json_depth._end_of

    def end_of(pattern: re.Pattern[bytes], text: bytes, start: int) -> int:
        nonlocal looked_at
        looked_at += min(STEP_BYTES, len(text) - start)
        return real(pattern, text, start)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_depth, "_end_of", end_of)
        assert not is_too_deep(message)
    assert looked_at < len(message) + 3 * STEP_BYTES


def nest(children: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.lists(children, max_size=4) | st.dictionaries(st.text("[}", max_size=3), children)


def depth_of(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value
    return 1 + max(map(depth_of, inner), default=0) if isinstance(value, list | dict) else 0


TEXTS = st.text('[]{}\\"a\u00e9\ud800', max_size=9)
LONG_TEXTS = st.text('[]{}\\"a\u00e9\n', max_size=60)


@given(st.recursive(LONG_TEXTS, nest, max_leaves=20), st.integers(2, 30), st.booleans())
def test_steps_that_end_within_strings_find_the_depth(
    value: object, step: int, is_ascii: bool
) -> None:
    message = json.dumps(value, ensure_ascii=is_ascii).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_depth, "JSON_DEPTH_MAX", 3)
        patch.setattr(json_depth, "STEP_BYTES", step)
        assert is_too_deep(message) == (depth_of(json.loads(message)) > 3)


@given(st.recursive(TEXTS | st.integers(), nest, max_leaves=60))
def test_steps_of_any_size_find_the_same(value: object) -> None:
    body = json.dumps([value, value]).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_depth, "JSON_DEPTH_MAX", 3)
        patch.setattr(json_depth, "_DEEP_BYTES_MIN", 0)
        patch.setattr(json_depth, "_DEEP_OBJECTS_BYTES_MIN", 0)
        whole = finish(split_steps(body))
        patch.setattr(json_mode, "STEP_BYTES", 24)
        patch.setattr(json_depth, "STEP_BYTES", 24)
        assert finish(split_steps(body)) == whole
    assert isinstance(whole, Batch) == (depth_of(value) <= 3)


@pytest.mark.parametrize("entry", [b'"s":0', b'"a,b":{"to":"x\\"y"}'])
def test_a_document_with_too_many_entries_is_not_read(entry: bytes) -> None:
    """What follows is not JSON, so it cannot have been read."""
    body = b'{"offsets":{' + b",".join([entry] * 30_000) + b", not JSON"
    with pytest.raises(MalformedRequest, match="too many entries"):
        read_document(JSON, body, SetPositionsRequest)


def test_the_longest_documents_are_read() -> None:
    """Commas within strings do not count as entries."""
    move = '{"from": "1", "to": "2", "incarnation": "%s", "version": 3}' % ("," * 64)
    moves = ", ".join([f'"{"," * 500}{number:04}": {move}' for number in range(1_000)])
    found = read_document(JSON, f'{{"offsets": {{{moves}}}}}'.encode(), SetPositionsRequest)
    assert len(found.offsets) == 1_000


def test_a_long_document_with_half_a_surrogate_pair_is_not_searched() -> None:
    body = b'{"offsets": {"' + rb"\ud800" * STEP_BYTES + b'": 1}}'
    with pytest.raises(MalformedRequest, match="surrogate pair"):
        read_document(JSON, body, SetPositionsRequest)


def test_half_a_surrogate_pair_does_not_hide_that_a_document_is_too_deep() -> None:
    body = rb'{"x": ["\ud800", ' + b"[" * 5_000 + b"]" * 5_001 + b"}"
    with pytest.raises(MalformedRequest, match="nested too deeply"):
        read_document(JSON, body, RegisterRequest)
