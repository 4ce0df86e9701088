import pickle

import msgspec
import pytest

import semel
from semel.client import errors
from semel.client.errors import ClientError
from semel.client.flows import error_of
from semel.client.response_parser import Response
from semel.model import outcomes
from semel.wire.rendering import REFUSED
from tests.unit.client.hand import answer, problem


def read(given: Response) -> ClientError:
    return error_of(given.status, given.headers, given.body)


@pytest.mark.parametrize(
    ("given", "kind", "applied"),
    [
        (problem(404, "stream_not_found"), errors.StreamNotFound, "no"),
        (problem(410, "stream_gone"), errors.StreamGone, "no"),
        (problem(410, "offset_trimmed", head="5"), errors.OffsetTrimmed, "no"),
        (problem(409, "stream_closed", next_offset="7"), errors.StreamClosed, "no"),
        (problem(409, "config_conflict"), errors.ConfigConflict, "no"),
        (problem(422, "idempotency_key_reused"), errors.KeyReused, "no"),
        (problem(429, "limit_reached"), errors.LimitReached, "no"),
        (problem(507, "disk_full"), errors.DiskFull, "no"),
        (problem(413, "body_too_large"), errors.TooLarge, "no"),
        (problem(400, "something_new"), errors.BadRequest, "no"),
        (problem(409, "something_new"), errors.Refused, "no"),
        (problem(503, "overloaded"), errors.Unavailable, "no"),
        (problem(500, "corrupt_data"), errors.CorruptData, "no"),
        (problem(500, "internal_error", "unknown"), errors.Indeterminate, "unknown"),
        (answer(401), errors.Unauthenticated, "no"),
        (answer(403), errors.Forbidden, "no"),
        (answer(403, producer_epoch="3"), errors.ProducerFenced, "no"),
        (answer(409, stream_closed="TRUE"), errors.StreamClosed, "no"),
        (answer(418), errors.BadRequest, "no"),
        # A proxy does not know whether the server applied the request.
        (answer(503), errors.Indeterminate, "unknown"),
        (answer(502), errors.Indeterminate, "unknown"),
        (answer(504, b"<html>", content_type="text/html"), errors.Indeterminate, "unknown"),
        (answer(301), errors.Refused, "no"),
    ],
)
def test_an_answer_that_says_no_becomes_the_right_error(
    given: Response, kind: type[ClientError], applied: str
) -> None:
    error = read(given)
    assert type(error) is kind
    assert error.applied == applied
    assert str(given.status) in str(error)


# rows: R43
def test_every_refusal_of_the_engine_keeps_its_code() -> None:
    for refusal, rule in REFUSED.items():
        error = read(problem(rule.status, refusal.code))
        if isinstance(error, errors.Refused):
            assert error.code == refusal.code
            assert error.advice or type(error) is errors.Refused, refusal
        else:
            assert refusal in (outcomes.Overloaded, outcomes.DiskReadFailed)


def test_facts_come_from_the_body_or_else_from_headers() -> None:
    gap = read(answer(409, producer_expected_seq="4", producer_received_seq="9"))
    assert isinstance(gap, errors.SequenceGap)
    assert (gap.expected, gap.received) == (4, 9)
    fenced = read(problem(403, "PRODUCER_FENCED", current_epoch=8))
    assert isinstance(fenced, errors.ProducerFenced)
    assert (fenced.current_epoch, fenced.last_seq) == (8, None)
    failed = read(answer(412, stream_next_offset="00012"))
    assert isinstance(failed, errors.PreconditionFailed)
    assert failed.next_offset == "00012"
    trimmed = read(problem(410, "offset_trimmed", head="5"))
    assert isinstance(trimmed, errors.OffsetTrimmed)
    assert trimmed.head == "5"
    beyond = read(problem(400, "OFFSET_BEYOND_TAIL", next_offset="5"))
    assert isinstance(beyond, errors.OffsetBeyondTail)
    assert beyond.next_offset == "5"
    closed = read(problem(409, "stream_closed", next_offset="6"))
    assert isinstance(closed, errors.StreamClosed)
    assert closed.next_offset == "6"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b'{"error": {"code": "X"}}'])
def test_a_body_that_says_little_is_no_harm(body: bytes) -> None:
    error = read(answer(400, body, content_type="application/json"))
    assert isinstance(error, errors.BadRequest)


@pytest.mark.parametrize(("value", "seconds"), [("2", 2.0), ("soon", None), ("-1", None)])
def test_retry_after_is_read_in_seconds(value: str, seconds: float | None) -> None:
    error = read(answer(429, retry_after=value))
    assert isinstance(error, errors.LimitReached)
    assert error.retry_after == seconds


def test_errors_survive_the_way_to_another_process() -> None:
    first = read(problem(409, "producer_seq_conflict", expected_seq=1, received_seq=3))
    second = pickle.loads(pickle.dumps(first))
    assert isinstance(second, errors.SequenceGap)
    assert (second.expected, second.status, second.code) == (1, 409, "producer_seq_conflict")
    assert str(second) == str(first)
    for kind in (errors.Unavailable, errors.Indeterminate, errors.ProtocolError):
        assert str(pickle.loads(pickle.dumps(kind("no")))) == str(kind("no"))


def test_every_error_of_the_tree_says_what_to_do_and_stands_in_the_picture() -> None:
    def below(kind: type[ClientError]) -> list[type[ClientError]]:
        found = kind.__subclasses__()
        return found + [each for child in found for each in below(child)]

    drawn = semel.errors.__doc__ or ""
    for kind in below(ClientError):
        if kind.__module__ != errors.__name__:
            continue
        assert kind.__name__ in drawn
        assert kind.advice or kind is errors.Refused
        assert kind.code != "error"


def test_the_message_of_a_problem_is_shown() -> None:
    body = msgspec.json.encode({"detail": "no room"})
    assert "no room" in str(error_of(400, {"content-type": "application/json"}, body))
