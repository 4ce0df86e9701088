"""Messages of an error stream as dead letters, and the calls that are made from them again."""

import json
from base64 import b64encode
from typing import Any

import pytest

from semel.client.dead_letters import Envelope, decode_envelope, letter_of
from semel.client.values import Message
from semel.model.messages import JSON_MEDIA_TYPE
from semel.model.offsets import print_offset
from semel.pipeline.error_stream import (
    MESSAGE_BYTES_MAX,
    RETRIES,
    Call,
    InputMessage,
    call_again,
    error_message,
    retry_stream,
)
from semel.pipeline.evaluate import Evaluation, evaluate
from tests.unit.pipeline.graphs import same
from tests.unit.pipeline.test_evaluate import evaluation, joined

HEADERS = (("trace", b"abc"), ("raw", b"\xff"), ("trace", b"def"))
FULL = InputMessage("in", "s-in", 7, b'{"n": 1}', "b9156c8ac498a351", b"key", HEADERS, 1_700, 2)


def fail(*_: Any, **__: Any) -> Any:
    raise ValueError("no")


def failed(found: Evaluation, call: Call) -> bytes:
    ((stream, raw),) = evaluate(found, [call])
    assert stream == "errors"
    return raw


def again(found: Evaluation, raw: bytes) -> Call:
    """Return the call that is made from a message of the retry stream."""
    return call_again(found.inputs, InputMessage(RETRIES, RETRIES, 0, raw))


def test_an_error_message_is_a_dead_letter_of_the_processor() -> None:
    raw = failed(evaluation(fail), (FULL,))
    assert isinstance(decode_envelope(raw), Envelope)
    letter = letter_of(Message(raw, JSON_MEDIA_TYPE, 4, 5))
    assert (letter.group, letter.attempts, letter.cause) == ("g/p", 3, "ValueError: no")
    assert (letter.origin.stream, letter.origin.offset) == ("s-in", print_offset(7))
    assert (letter.value, letter.key, letter.is_whole) == ({"n": 1}, b"key", True)
    assert letter.message.time_ms == 1_700
    assert sorted(letter.message.headers) == sorted(HEADERS)
    assert letter.offset == print_offset(4)
    assert retry_stream("g", "p") == "__semel/retry/g%2Fp"


def test_a_call_is_made_again_from_its_error_message() -> None:
    found = evaluation(fail)
    (message,) = again(found, failed(found, (FULL,)))
    assert sorted(message.headers) == sorted(HEADERS)
    assert message._replace(headers=HEADERS) == FULL._replace(attempts=3)
    once_more = json.loads(failed(found, (message,)))
    assert (once_more["attempts"], once_more["offset"]) == (4, print_offset(7))
    assert once_more["inputs"] == json.loads(failed(found, (FULL,)))["inputs"]


def test_a_join_is_called_again_with_all_its_messages() -> None:
    inputs = {"left": "s-left", "right": "s-right"}
    found = evaluation(lambda left, right: fail(), in_=inputs)
    (call,) = joined({"left": {"n": 1}, "right": None})
    raw = failed(found, call)
    assert json.loads(raw)["value"] == {"left": {"n": 1}, "right": None}
    assert [one._replace(attempts=0) for one in again(found, raw)] == list(call)
    assert [one.attempts for one in again(found, raw)] == [1, 1]
    mended = evaluation(lambda left, right: [left, right], in_=inputs)
    assert list(evaluate(mended, [again(mended, raw)])) == [("out", b'[{"n":1},null]')]


def test_an_alternative_is_called_again_with_the_binding_of_its_stream() -> None:
    inputs = {"x": "s-x", "y": "s-y"}
    found = evaluation(lambda message, binding: fail(), in_=None, alts=inputs)
    raw = failed(found, (InputMessage("y", "s-y", 3, b"1"),))
    mended = evaluation(lambda message, binding: [binding, message], in_=None, alts=inputs)
    assert list(evaluate(mended, [again(mended, raw)])) == [("out", b'["y",1]')]


def test_a_changed_input_still_takes_the_message_and_a_changed_join_fails_again() -> None:
    raw = failed(evaluation(fail), (FULL,))
    moved = evaluation(same, in_="elsewhere")
    assert list(evaluate(moved, [again(moved, raw)])) == [("out", b'{"n":1}')]
    join = evaluation(lambda left, right: [left, right], in_={"left": "a", "right": "b"})
    error = json.loads(failed(join, again(join, raw)))
    assert (error["cause"]["class"], error["attempts"]) == ("TypeError", 4)


def test_a_value_that_fits_only_once_can_still_be_processed_again() -> None:
    big = json.dumps("y" * (MESSAGE_BYTES_MAX * 2 // 3)).encode()
    found = evaluation(fail)
    raw = failed(found, (FULL._replace(raw=big),))
    assert len(raw) <= MESSAGE_BYTES_MAX
    assert json.loads(raw)["inputs"][0]["left_away_bytes"] == len(big)
    assert again(found, raw)[0].raw == big


def test_a_value_that_does_not_fit_is_named_and_not_whole() -> None:
    big = json.dumps("y" * MESSAGE_BYTES_MAX).encode()
    raw = failed(evaluation(fail), (FULL._replace(raw=big),))
    letter = letter_of(Message(raw, JSON_MEDIA_TYPE, 0, 1))
    assert (letter.is_whole, letter.origin.stream) == (False, "s-in")
    assert json.loads(raw)["left_out_bytes"] == len(big)


def test_a_value_that_python_cannot_decode_is_kept_as_bytes() -> None:
    digits = b"1" + b"0" * 5_000
    found = evaluation(same)
    raw = failed(found, (FULL._replace(raw=digits),))
    assert json.loads(raw)["base64"] == b64encode(digits).decode()
    assert again(found, raw)[0].raw == digits
    join = evaluation(lambda left, right: fail(), in_={"left": "a", "right": "b"})
    call = (FULL._replace(binding="left", raw=digits), FULL._replace(binding="right"))
    assert not letter_of(Message(failed(join, call), JSON_MEDIA_TYPE, 0, 1)).is_whole


def test_the_message_to_process_again_can_be_another_one_than_that_in_the_row() -> None:
    found = evaluation(fail)
    row = InputMessage("", "s-in", 7, b'{"tax": 1}')
    raw = error_message(found, (row,), ValueError("no"), FULL)
    assert json.loads(raw)["inputs"][0]["value"] == {"tax": 1}
    assert again(found, raw)[0].raw == FULL.raw
    gone = error_message(found, (row,), ValueError("no"), None)
    assert not letter_of(Message(gone, JSON_MEDIA_TYPE, 0, 1)).is_whole


@pytest.mark.parametrize(
    "raw",
    [
        b'{"id": 7}',
        b"[1]",
        b'{"stream": "s", "offset": "x", "content_type": "text/plain", "value": 1}',
        b'{"stream": "s", "offset": "x", "base64": "abc"}',
    ],
)
def test_what_is_not_a_dead_letter_is_a_message_of_the_first_input(raw: bytes) -> None:
    (message,) = again(evaluation(same), raw)
    assert (message.binding, message.raw) == ("in", raw)


def test_a_dead_letter_of_a_group_is_a_message_of_the_input() -> None:
    letter = b"""{"group": "g", "stream": "s-in", "offset": "%s", "value": [1], "attempts": 5}"""
    (message,) = again(evaluation(same), letter % print_offset(9).encode())
    assert message == InputMessage("in", "s-in", 9, b"[1]", attempts=5, headers=[])
