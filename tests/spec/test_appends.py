"""POST: the checks, their order, and closing a stream."""

from collections.abc import Iterator
from itertools import combinations
from typing import Any, Final

import pytest

from semel.model.limits import BODY_BYTES_MAX
from tests.spec.process import Answer, Server, Stream, offset_of

JSON: Final = "application/json"

# ---- the order of checks -------------------------------------------------------------------------

Fault = tuple[str, dict[str, Any], tuple[int, str | None]]

# The faults in the order of their checks: the change to a valid append, and the response.
FAULTS: Final[list[Fault]] = [
    ("1 syntax", {"producer_session": ""}, (400, "invalid_header")),
    ("2 empty", {"body": b""}, (400, "empty_body")),
    ("3 no type", {"content_type": None}, (400, "missing_content_type")),
    ("5 missing", {"to": "missing"}, (404, "stream_not_found")),
    ("7 stale", {"producer_epoch": 4}, (403, "PRODUCER_FENCED")),
    ("8 duplicate", {"producer_seq": 1}, (204, None)),
    ("9 closed", {"to": "closed"}, (409, "stream_closed")),
    ("10 media type", {"content_type": "text/plain"}, (409, "content_type_conflict")),
    ("11 gap", {"producer_seq": 9}, (409, "producer_seq_conflict")),
    ("12 stream seq", {"stream_seq": "1"}, (409, "stream_seq_conflict")),
    ("13 if match", {"if_match": "0"}, (412, "precondition_failed")),
    ("14 bad json", {"body": b"{"}, (400, "bad_body")),
]
PAIRS: Final = [
    pytest.param(one, two, id=f"{one[0]} before {two[0]}")
    for one, two in combinations(FAULTS, 2)
    if not one[1].keys() & two[1].keys()
]


@pytest.fixture(scope="module")
def table(server: Server) -> Iterator[dict[str, Stream]]:
    """Two streams with a producer at epoch 5 and sequence 1, which no test may change."""
    streams = {name: server.stream() for name in ("missing", "open", "closed")}
    for name in ("open", "closed"):
        streams[name].create(b"", JSON)
        for seq in range(2):
            assert good_append(streams[name], producer_seq=seq, stream_seq=f"5{seq}").status == 200
    streams["closed"].post(stream_closed="true")
    yield streams
    assert streams["open"].text == streams["closed"].text == "[1,1]"


def good_append(stream: Stream, **changes: Any) -> Answer:
    given: dict[str, Any] = {
        "body": b"[1]",
        "content_type": JSON,
        "producer_id": "p",
        "producer_epoch": 5,
        "producer_seq": 2,
        **changes,
    }
    return stream.post(**given)


def answer_to(table: dict[str, Stream], changes: dict[str, Any]) -> tuple[int, str | None]:
    given = {name: value for name, value in changes.items() if name != "to"}
    answer = good_append(table[changes.get("to", "open")], **given)
    return answer.status, None if answer.status == 204 else answer.code


# rows: D32, X26, X09
@pytest.mark.spec("design 4")
@pytest.mark.parametrize("fault", FAULTS, ids=[fault[0] for fault in FAULTS])
def test_each_fault_alone_has_its_answer(table: dict[str, Stream], fault: Fault) -> None:
    assert answer_to(table, fault[1]) == fault[2]


# rows: D32, X26
@pytest.mark.spec("design 4")
@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_of_two_faults_the_one_that_stands_first_speaks(
    table: dict[str, Stream], first: Fault, second: Fault
) -> None:
    assert answer_to(table, first[1] | second[1]) == first[2]


@pytest.mark.spec("design 4")
@pytest.mark.parametrize("to", ["missing", "open", "closed"])
def test_a_body_over_the_limit_is_413_before_the_stream_is_looked_at(
    table: dict[str, Stream], to: str
) -> None:
    body = b"1" * (BODY_BYTES_MAX + 1)
    assert answer_to(table, {"to": to, "body": body}) == (413, "body_too_large")


# rows: D34
def test_a_refused_append_advances_nothing(stream: Stream) -> None:
    stream.create(b"", JSON)
    for changes in ({"body": b"{"}, {"if_match": "7"}, {"content_type": "text/plain"}):
        answer = good_append(stream, producer_seq=0, stream_seq="5", **changes)
        assert answer.json["applied"] == "no"
    answer = good_append(stream, producer_seq=0, stream_seq="5")
    assert (answer.status, answer.next_offset) == (200, offset_of(1))


# ---- If-Match, Stream-Seq ------------------------------------------------------------------------


# rows: D30
def test_if_match_compares_with_the_end_of_the_stream(stream: Stream) -> None:
    stream.create(b"a")
    for value in ("1", f'"{offset_of(2)}"', offset_of(3), '"4"'):
        assert stream.post(b"b", if_match=value).status == 204, value
    answer = stream.post(b"x", if_match=offset_of(1))
    assert (answer.status, answer.code) == (412, "precondition_failed")
    assert answer.next_offset == offset_of(5)
    assert stream.text == "abbbb"


# rows: D30, D32
def test_a_retry_that_carries_if_match_and_stream_seq_is_204(stream: Stream) -> None:
    stream.create()
    headers: dict[str, Any] = {"producer_id": "p", "producer_epoch": 0, "producer_seq": 0}
    for status in (200, 204):
        answer = stream.post(b"a", if_match="0", stream_seq="1", **headers)
        assert (answer.status, answer.next_offset) == (status, offset_of(1))


# rows: D29
def test_stream_seq_grows_byte_by_byte(stream: Stream) -> None:
    stream.create()
    for value, status in (("2", 204), ("10", 409), ("2", 409), ("a", 204), ("B", 409)):
        answer = stream.post(b".", stream_seq=value)
        assert answer.status == status, value
        if status == 409:
            assert answer.code == "stream_seq_conflict"


# ---- closing -------------------------------------------------------------------------------------


@pytest.mark.spec("protocol 1.4.2")
def test_closing_alone_ignores_the_content_type_and_can_be_repeated(stream: Stream) -> None:
    stream.create(b"a")
    for content_type in (None, "application/json", "text/plain"):
        answer = stream.post(stream_closed="TRUE", content_type=content_type)
        assert (answer.status, answer.headers["stream-closed"]) == (204, "true")
        assert answer.next_offset == offset_of(1)
    missing = stream.server.stream().post(stream_closed="true")
    assert (missing.status, missing.code) == (404, "stream_not_found")


# rows: D41
@pytest.mark.spec("protocol 1.4.2")
def test_an_append_to_a_closed_stream_is_409_with_its_final_offset(stream: Stream) -> None:
    stream.create(b"a")
    assert stream.post(b"b", stream_closed="true").headers["stream-closed"] == "true"
    answer = stream.post(b"c")
    assert (answer.status, answer.code) == (409, "stream_closed")
    assert answer.headers["stream-closed"] == "true"
    assert answer.next_offset == offset_of(2)
    assert stream.text == "ab"


# rows: D41, U14
@pytest.mark.spec("protocol 1.15")
def test_a_retry_after_the_close_is_204_with_its_own_offset(stream: Stream) -> None:
    stream.create()
    headers: dict[str, Any] = {"producer_id": "p", "producer_epoch": 0}
    for seq in range(3):
        stream.post(b"a", producer_seq=seq, **headers)
    close = stream.post(b"z", producer_seq=3, stream_closed="true", **headers)
    assert (close.status, close.headers["stream-closed"]) == (200, "true")
    for seq in range(3):
        answer = stream.post(b"a", producer_seq=seq, **headers)
        assert (answer.status, answer.next_offset) == (204, offset_of(seq + 1))
        assert answer.headers["stream-closed"] == "true"
    again = stream.post(b"z", producer_seq=3, stream_closed="true", **headers)
    assert (again.status, again.next_offset) == (204, close.next_offset)
    beyond = stream.post(b"z", producer_seq=9, **headers)
    assert (beyond.status, beyond.headers["stream-closed"]) == (409, "true")
    assert stream.text == "aaaz"


@pytest.mark.spec("protocol 1.15")
def test_closing_with_a_used_sequence_does_not_close_and_does_not_say_so(stream: Stream) -> None:
    stream.create()
    headers: dict[str, Any] = {"producer_id": "p", "producer_epoch": 0}
    stream.post(b"a", producer_seq=0, **headers)
    stream.post(b"b", producer_seq=1, **headers)
    answer = stream.post(producer_seq=0, stream_closed="true", **headers)
    assert (answer.status, answer.headers["producer-payload-mismatch"]) == (204, "true")
    assert "stream-closed" not in answer.headers
    assert "stream-closed" not in stream.head().headers
    assert stream.post(b"c", producer_seq=2, **headers).status == 200


@pytest.mark.spec("protocol 1.4.2")
def test_closing_alone_with_a_producer_takes_a_sequence(stream: Stream) -> None:
    stream.create()
    headers: dict[str, Any] = {"producer_id": "p", "producer_epoch": 0, "stream_closed": "true"}
    for _ in range(2):
        answer = stream.post(producer_seq=0, **headers)
        assert (answer.status, answer.headers["stream-closed"]) == (204, "true")
        assert (answer.headers["producer-epoch"], answer.headers["producer-seq"]) == ("0", "0")
    assert stream.post(producer_seq=1, **headers).code == "stream_closed"


# ---- bodies --------------------------------------------------------------------------------------


@pytest.mark.spec("protocol 1.4")
def test_a_chunked_body_is_stored_whole(stream: Stream) -> None:
    stream.create()
    head = f"POST {stream.target} HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
    body = "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n"
    answer = stream.server.raw((head + body).encode())
    assert answer is not None
    assert answer.status == 204
    assert stream.text == "abcdefg"
