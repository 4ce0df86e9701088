"""Rows of docs/reference/seeds.md that a server keeps, each word for word with a real server.

`tests/row_mutants` has a bug of the server for each row here, and the row's test must fail with it.
"""

import time
from datetime import datetime
from typing import Any, Final

import pytest

from tests.spec.process import Answer, Server, Stream, offset_of
from tests.spec.test_sinks import Sink
from tests.spec.txn_calls import Txn, call, commit, fresh, refusal

JSON: Final = "application/json"
TOLERANCE_SECONDS: Final = 5.0


@pytest.fixture
def sink(server: Server) -> Sink:
    return Sink(server)


def dense(stream: Stream, body: bytes, epoch: int, seq: int, **headers: Any) -> Answer:
    return stream.post(body, producer_id="p", producer_epoch=epoch, producer_seq=seq, **headers)


# ---- sequences -----------------------------------------------------------------------------------


# rows: D03
def test_a_sequence_counts_requests_and_not_messages_and_begins_at_zero(stream: Stream) -> None:
    stream.create(content_type=JSON)
    early = stream.post(b"[0]", x_producer_id="p", x_producer_seq=1, content_type=JSON)
    assert (early.status, early.headers["x-expected-seq"]) == (409, "0")
    for seq, body in enumerate((b"[1,2,3]", b"[4,5]", b"[6]")):
        answer = stream.post(body, x_producer_id="p", x_producer_seq=seq, content_type=JSON)
        assert answer.status == 201, answer
    skipped = stream.post(b"[7]", x_producer_id="p", x_producer_seq=6, content_type=JSON)
    assert (skipped.status, skipped.headers["x-expected-seq"]) == (409, "3")
    assert stream.text == "[1,2,3,4,5,6]"


# rows: R04
def test_a_retry_is_a_duplicate_with_its_original_offset(stream: Stream) -> None:
    stream.create(content_type=JSON)
    first = dense(stream, b"[1,2]", 0, 0, content_type=JSON)
    assert (first.status, first.next_offset) == (200, offset_of(2))
    stream.post(b"[3]", content_type=JSON)
    assert dense(stream, b"[4]", 0, 1, content_type=JSON).next_offset == offset_of(4)
    again = dense(stream, b"[1,2]", 0, 0, content_type=JSON)
    assert (again.status, again.next_offset) == (204, offset_of(2))
    asked = {"producer_id": fresh("p"), "producer_epoch": 0, "producer_seq": 0}
    appends = [{"stream": stream.path, "messages": [5, 6]}]
    told = [commit(stream.server, **asked, appends=appends).json for _ in range(2)]
    assert [one["duplicate"] for one in told] == [False, True]
    assert {one["streams"][stream.path]["first_offset"] for one in told} == {offset_of(4)}
    assert stream.text == "[1,2,3,4,5,6]"


# rows: U12
def test_of_two_epochs_only_the_higher_is_kept(stream: Stream) -> None:
    stream.create()
    for seq in range(4):
        assert dense(stream, b"%d" % seq, 0, seq).status == 200
    assert dense(stream, b"a", 1, 0).status == 200
    (shown,) = call(stream.server, "GET", f"/v1/producers?stream={stream.path}&id=p").json[
        "producers"
    ]
    assert (shown["epoch"], shown["last_seq"], len(shown["receipts"])) == (1, 0, 1)
    stale = dense(stream, b"1", 0, 1)
    assert (stale.status, stale.headers["producer-epoch"]) == (403, "1")
    # The sequences of the older epoch are free again, also for the same payloads.
    for seq in (1, 2, 3):
        assert dense(stream, b"%d" % seq, 1, seq).status == 200, seq
    assert stream.text == "0123a123"


# rows: D33, U13
def test_appends_without_headers_are_never_compared(stream: Stream) -> None:
    stream.create()
    assert dense(stream, b"a", 0, 0).status == 200
    for count in range(3):
        answer = stream.post(b"a")
        assert (answer.status, answer.next_offset) == (204, offset_of(count + 2))
        assert not [name for name in answer.headers if name.startswith("producer-")]
    assert stream.text == "aaaa"


# rows: R13
def test_a_batch_reports_base_count_and_duplicate_and_is_stored_whole_or_not_at_all(
    stream: Stream,
) -> None:
    stream.create(content_type=JSON)
    closed = stream.server.stream()
    closed.create()
    assert closed.post(stream_closed="true", content_type=None).status == 204
    whole = [{"stream": stream.path, "messages": [1, 2, 3]}]
    half = [*whole, {"stream": closed.path, "messages": ["x"]}]
    asked = {"producer_id": fresh("p"), "producer_epoch": 0, "producer_seq": 0}
    assert refusal(commit(stream.server, **asked, appends=half)) == (409, "stream_closed")
    assert stream.tail == offset_of(0)
    for is_again in (False, True):
        told = commit(stream.server, **asked, appends=whole).json
        assert told["duplicate"] is is_again
        assert told["streams"][stream.path] == {
            "first_offset": offset_of(0),
            "next_offset": offset_of(3),
            "messages": 3,
        }
    assert stream.text == "[1,2,3]"


# ---- concurrent writers --------------------------------------------------------------------------


# rows: D31
def test_a_writer_that_was_overtaken_is_refused_with_if_match_and_accepted_with_a_producer(
    stream: Stream,
) -> None:
    stream.create(b"[1,2,3,4,5]", JSON)
    read = stream.get("offset=-1").next_offset
    assert read == offset_of(5)
    assert stream.post(b"[6]", content_type=JSON, if_match=read).next_offset == offset_of(6)
    late = stream.post(b"[7]", content_type=JSON, if_match=read)
    assert (late.status, late.next_offset) == (412, offset_of(6))
    produced = dense(stream, b"[7]", 0, 0, content_type=JSON)
    assert (produced.status, produced.next_offset) == (200, offset_of(7))
    assert stream.text == "[1,2,3,4,5,6,7]"


# ---- transactions --------------------------------------------------------------------------------


# rows: R14
@pytest.mark.parametrize(("more", "seconds"), [({}, 60.0), ({"timeout_ms": 7_000}, 7.0)])
def test_a_transaction_has_sixty_seconds_unless_it_names_another_time(
    server: Server, more: dict[str, Any], seconds: float
) -> None:
    txn = Txn(server)
    began = time.time()
    answer = txn.begin(**more)
    assert answer.status == 201
    assert answer.json["transaction_id"] == txn.id
    deadline = datetime.fromisoformat(answer.json["deadline"]).timestamp()
    assert began + seconds - 0.01 <= deadline <= began + seconds + TOLERANCE_SECONDS
    assert txn.abort().status == 200


# ---- sinks ---------------------------------------------------------------------------------------


# rows: K14
def test_a_sink_may_begin_anywhere_and_leave_out_versions(sink: Sink, stream: Stream) -> None:
    stream.create()
    first = sink.commit(17, sink.filled(17, stream, b"a"), batch=17, previous=16)
    assert first.status == 200, first
    assert first.json["duplicate"] is False
    assert sink.commit(18, sink.filled(18, stream, b"b"), batch=18, previous=17).status == 200
    assert sink.commit(30, sink.filled(30, stream, b"c"), batch=30, previous=18).status == 200
    shown = sink.look().json
    assert shown["last_version"] == 30
    assert [one["version"] for one in shown["versions"]] == [17, 18, 30], "gaps are shown"
    assert stream.text == "abc"
