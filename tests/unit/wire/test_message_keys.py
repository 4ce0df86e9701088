"""The keys of messages: headers, pointers, and the extras that store them."""

import json

import pytest

from semel.model.commands import Batch
from semel.model.limits import BODY_BYTES_MAX, MESSAGE_KEY_BYTES_MAX
from semel.model.messages import keys_of
from semel.model.steps import STEP_BYTES, finish
from semel.wire.json_mode import split_json
from semel.wire.message_keys import keyed_steps, read_message_key, read_pointer, with_key, with_keys
from semel.wire.problems import MalformedRequest


def batch_of(text: bytes) -> Batch:
    batch = split_json(text)
    assert isinstance(batch, Batch)
    return batch


def keys_at(pointer: str, *values: object) -> list[bytes | None] | str:
    names = read_pointer({"message-key-pointer": pointer})
    assert names is not None
    batch = batch_of(json.dumps(list(values), ensure_ascii=False).encode())
    found = finish(keyed_steps(batch, names))
    return found if isinstance(found, str) else list(keys_of(found.extras, found.count))


def test_a_key_is_printable_ascii_or_encoded_text() -> None:
    assert read_message_key({}) is None
    assert read_message_key({"message-key": "a b"}) == b"a b"
    assert read_message_key({"message-key*": "UTF-8''%C3%A4"}) == "ä".encode()
    assert read_message_key({"message-key*": "UTF-8''"}) == b""


@pytest.mark.parametrize(
    "headers",
    [
        {"message-key": "a", "message-key*": "UTF-8''a"},
        {"message-key": "\xe4"},
        {"message-key": ""},
        {"message-key": "x" * (MESSAGE_KEY_BYTES_MAX + 1)},
        {"message-key*": "a"},
        {"message-key*": "UTF-8''%FF"},
    ],
)
def test_a_bad_key_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(MalformedRequest) as refusal:
        read_message_key(headers)
    assert refusal.value.problem.code == "invalid_header"


def test_a_pointer_has_names() -> None:
    assert read_pointer({}) is None
    assert read_pointer({"message-key-pointer": "/a/b~1c/d~0e/~01"}) == ("a", "b/c", "d~e", "~1")
    for value in ("", "a", "/a~", "/a~2", "/" + "x" * 1_024):
        with pytest.raises(MalformedRequest):
            read_pointer({"message-key-pointer": value})


def test_a_pointer_finds_strings_and_integers() -> None:
    assert keys_at("/a", {"a": "x"}, {"a": "ä"}, {"a": ""}) == [b"x", "ä".encode(), b""]
    assert keys_at("/a", {"a": 7}, {"a": -7}, {"a": 10**30}) == [b"7", b"-7", b"1" + b"0" * 30]
    assert keys_at("/a/b", {"a": {"b": "x"}}) == [b"x"]
    assert keys_at("/1", ["x", "y"]) == [b"y"]
    assert keys_at("/a~1b", {"a/b": "x"}) == [b"x"]
    assert keys_at("/", {"": "x"}) == [b"x"]


def test_minus_zero_and_zero_are_one_key() -> None:
    batch = batch_of(b'[{"a": -0}, {"a": 0}]')
    found = finish(keyed_steps(batch, ("a",)))
    assert isinstance(found, Batch)
    assert list(keys_of(found.extras, 2)) == [b"0", b"0"]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({}, "'a' is missing"),
        ({"b": 1}, "'a' is missing"),
        (7, "'a' is missing"),
        ("a", "'a' is missing"),
        (["a"], "'a' is missing"),
        ({"a": None}, "must be a string or an integer"),
        ({"a": 1.0}, "must be a string or an integer"),
        ({"a": True}, "must be a string or an integer"),
        ({"a": {}}, "must be a string or an integer"),
        ({"a": "x" * (MESSAGE_KEY_BYTES_MAX + 1)}, "at most"),
    ],
)
def test_a_message_without_a_key_is_named(value: object, reason: str) -> None:
    found = keys_at("/a", {"a": 1}, value)
    assert isinstance(found, str)
    assert found.startswith("message 1 (counted from 0): ")
    assert reason in found


@pytest.mark.parametrize("pointer", ["/9", "/01", "/-1", "/x", "/999999999"])
def test_an_element_that_is_not_there_is_missing(pointer: str) -> None:
    assert "is missing" in keys_at(pointer, ["a"])


def test_a_key_with_a_lone_surrogate_is_refused() -> None:
    found = finish(keyed_steps(batch_of(b'[{"a": "\\ud800"}]'), ("a",)))
    assert isinstance(found, str)
    assert "surrogate" in found


@pytest.mark.parametrize(
    ("pointer", "text", "key"),
    [
        ("/a", r'{"a": "x", "b": "\ud800"}', b"x"),
        ("/a", r'{"\ud800": 1, "a": "x"}', b"x"),
        ("/b", r'{"a": {"z": "\ud800"}, "b": -0}', b"0"),
        ("/a", r'{"a": 123456789012345678901234567890, "b": "\udc00"}', b"1234567890" * 3),
        ("/a", r'{"a": "\ud83d\ude00", "b": "\udc00"}', "\U0001f600".encode()),
        ("/1/a", r'["\ud800", {"a": 7}]', b"7"),
        ("/a", r'{"a": 1, "b": "\ud800", "a": "last"}', b"last"),
    ],
)
def test_a_lone_surrogate_beside_the_key_does_not_matter(
    pointer: str, text: str, key: bytes
) -> None:
    names = read_pointer({"message-key-pointer": pointer})
    assert names is not None
    found = finish(keyed_steps(batch_of(f"[{text}]".encode()), names))
    assert isinstance(found, Batch), found
    assert list(keys_of(found.extras, 1)) == [key]


@pytest.mark.parametrize(
    ("pointer", "text", "reason"),
    [
        ("/a", r'{"a": "\ud800"}', "surrogate"),
        ("/a", r'{"b": "\ud800"}', "'a' is missing"),
        ("/2", r'["\ud800", 1]', "'2' is missing"),
        ("/a", r'["\ud800", 1]', "'a' is missing"),
        ("/a/b", r'{"a": 1, "c": "\ud800"}', "'b' is missing"),
        ("/a", r'{"a": 1.5, "c": "\ud800"}', "must be a string or an integer"),
        ("/a", r'{"a": true, "c": "\ud800"}', "must be a string or an integer"),
        ("/a", r'{"a": 1, "c": "\ud800%s"}' % ("x" * STEP_BYTES), "surrogate"),
    ],
)
def test_a_message_with_a_lone_surrogate_can_have_no_key(
    pointer: str, text: str, reason: str
) -> None:
    names = read_pointer({"message-key-pointer": pointer})
    assert names is not None
    found = finish(keyed_steps(batch_of(f"[{text}]".encode()), names))
    assert isinstance(found, str)
    assert reason in found


def test_the_keys_of_a_long_body_are_found_in_steps() -> None:
    text = json.dumps([{"a": "x", "b": "y" * STEP_BYTES}] * 3).encode()
    steps = keyed_steps(batch_of(text), ("a",))
    next(steps)
    found = finish(steps)
    assert isinstance(found, Batch)
    assert list(keys_of(found.extras, 3)) == [b"x"] * 3


def test_all_messages_of_a_batch_can_have_one_key() -> None:
    assert list(keys_of(with_key(Batch(b"x"), b"k").extras, 1)) == [b"k"]
    many = batch_of(b"[1, 2, 3]")
    keyed = with_key(many, b"k")
    assert list(keys_of(keyed.extras, 3)) == [b"k"] * 3
    assert keyed.payload == many.payload
    assert list(keys_of(with_keys(many, [b"a", None, b""]).extras, 3)) == [b"a", None, b""]
    with pytest.raises(MalformedRequest) as refusal:
        with_key(many, b"k" * (BODY_BYTES_MAX // 2))
    assert refusal.value.problem.status == 413
