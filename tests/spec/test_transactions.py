"""Transactions with a real server: begin, appends, decisions, and their visibility."""

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from semel.wire.bodies import decode_frames
from tests.spec.process import Event, Events, Later, Server, Stream, offset_of, sound_server
from tests.spec.txn_calls import COMMITTED, Txn, begun, call, committed, fresh, positions, refusal

FRAMES = "application/vnd.semel.frames"


@pytest.fixture
def other(server: Server) -> Stream:
    return server.stream()


# ---- begin ---------------------------------------------------------------------------------------


# rows: R14
@pytest.mark.spec("design 7.2")
def test_a_transaction_begins_with_a_deadline(server: Server) -> None:
    txn = Txn(server)
    answer = txn.begin()
    assert answer.status == 201
    found = answer.json
    assert found.pop("deadline").endswith("Z")
    assert found == {"transaction_id": txn.id, "transaction_epoch": 1, "state": "open"}


# rows: R15
@pytest.mark.spec("design 7.2")
def test_beginning_what_is_open_finds_it(server: Server) -> None:
    txn = Txn(server)
    first, again = txn.begin(timeout_ms=30_000), txn.begin()
    assert (first.status, again.status) == (201, 200)
    assert first.json == again.json


# rows: R15
@pytest.mark.spec("semantics 5.5")
def test_a_second_inline_transaction_of_a_producer_is_in_the_way_of_the_first(
    server: Server,
) -> None:
    txn = Txn(server)
    txn.begin()
    second = Txn(server, txn.producer)
    answer = second.begin()
    assert refusal(answer) == (409, "CONCURRENT_TRANSACTIONS")
    assert answer.json["transaction_id"] == txn.id
    stranger = Txn(server, name=txn.id)
    assert refusal(stranger.begin()) == (409, "CONCURRENT_TRANSACTIONS")


# rows: R22, X07
@pytest.mark.spec("semantics 1.4")
def test_a_producer_has_at_most_five_pending(server: Server) -> None:
    producer = fresh("p")
    for _ in range(5):
        txn = Txn(server, producer)
        assert txn.begin().status == 201
        assert txn.call("prepare").status == 200
    sixth = Txn(server, producer)
    assert refusal(sixth.begin()) == (429, "TOO_MANY_TRANSACTIONS")
    assert txn.commit().status == 200
    assert sixth.begin().status == 201


# rows: R10
@pytest.mark.spec("design 6")
def test_an_id_of_digits_that_was_never_given_out_begins_nothing(server: Server) -> None:
    assert refusal(Txn(server, "4711471147").begin()) == (404, "UNKNOWN_PRODUCER_ID")


# rows: R01, R02, R09
@pytest.mark.spec("design 6")
def test_a_raised_epoch_aborts_what_the_older_instance_had_open(stream: Stream) -> None:
    stream.create()
    txn = begun(stream)
    assert txn.post(stream, b"old").status == 200
    raised = call(stream.server, "POST", "/v1/producers", {"producer_id": txn.producer})
    assert raised.json["producer_epoch"] == 1
    assert refusal(txn.commit()) == (409, "txn_aborted")
    assert txn.status().json["reason"] == "fenced"
    late = txn.post(stream, b"late", producer_seq=1)
    assert refusal(late) == (409, "INVALID_TXN_STATE")
    assert late.json["reason"] == "fenced"
    stale = Txn(stream.server, txn.producer)
    answer = stale.begin()
    assert refusal(answer) == (403, "PRODUCER_FENCED")
    assert answer.headers["producer-epoch"] == "1"
    assert committed(stream).body == b""


# rows: R02, R41
@pytest.mark.spec("design 6")
def test_beginning_with_a_higher_epoch_fences_the_older_instance(stream: Stream) -> None:
    stream.create()
    old = begun(stream)
    old.post(stream, b"old")
    new = Txn(stream.server, old.producer, name=old.id, epoch=1)
    assert new.begin(streams=[stream.path]).json["transaction_epoch"] == 2
    assert refusal(old.commit()) == (409, "txn_aborted")
    assert refusal(old.call("streams", streams=[])) == (409, "INVALID_TXN_STATE")
    assert new.post(stream, b"new").status == 200
    assert new.commit().status == 200
    assert committed(stream).body == b"new"


@pytest.mark.spec("design 7.2")
@pytest.mark.parametrize(
    ("document", "code"),
    [
        ({}, "bad_body"),
        ({"transaction_id": 7}, "bad_body"),
        ({"transaction_id": "t"}, "invalid_request"),
        ({"transaction_id": "t", "producer_id": "p"}, "invalid_request"),
        ({"transaction_id": "t", "producer_id": "p", "producer_epoch": -1}, "invalid_request"),
        ({"transaction_id": "", "producer_id": "p", "producer_epoch": 0}, "invalid_request"),
        ({"transaction_id": "t" * 257, "producer_id": "p", "producer_epoch": 0}, "invalid_request"),
        ({"transaction_id": "é", "producer_id": "p", "producer_epoch": 0}, "invalid_request"),
        (
            {"transaction_id": "t", "producer_id": "p", "producer_epoch": 0, "timeout_ms": 0},
            "invalid_request",
        ),
        (
            {"transaction_id": "t", "producer_id": "p", "producer_epoch": 0, "timeout_ms": 900_001},
            "invalid_request",
        ),
        (
            {"transaction_id": "t", "producer_id": "p", "producer_epoch": 0, "kind": "other"},
            "invalid_request",
        ),
        (
            {"transaction_id": "t", "producer_id": "p", "producer_epoch": 0, "extra": 1},
            "bad_body",
        ),
        (
            {
                "transaction_id": "t",
                "sink": {"app": "a", "version": 1, "partition": 0},
                "kind": "inline",
            },
            "invalid_request",
        ),
    ],
)
def test_a_begin_that_means_nothing_is_refused(
    server: Server, document: dict[str, Any], code: str
) -> None:
    assert refusal(call(server, "POST", "/v1/transactions", document)) == (400, code)


def test_an_unknown_field_is_refused_by_its_name(server: Server) -> None:
    answer = call(server, "POST", "/v1/transactions", {"transaction_id": "t", "colour": 1})
    assert "colour" in answer.json["message"]


def test_a_begin_in_a_stream_that_is_not_there_names_it(server: Server) -> None:
    missing = server.stream()
    answer = Txn(server).begin(streams=[missing.path])
    assert refusal(answer) == (404, "stream_not_found")
    assert answer.json["stream"] == missing.path


# ---- publish -------------------------------------------------------------------------------------


# rows: R16, R17
@pytest.mark.spec("design 7.2")
def test_a_stream_must_be_added_before_anything_is_written(stream: Stream, other: Stream) -> None:
    stream.create()
    other.create()
    txn = begun(stream)
    refused = txn.post(other)
    assert refusal(refused) == (409, "PARTITION_NOT_IN_TXN")
    assert other.tail == offset_of(0)
    added = txn.streams(stream, other)
    assert added.json == {
        "transaction_id": txn.id,
        "transaction_epoch": 1,
        "stream_count": 2,
    }
    assert txn.post(other).status == 200


# rows: R16
def test_adding_streams_is_all_or_nothing(stream: Stream, other: Stream) -> None:
    stream.create()
    other.create()
    txn = begun(stream)
    missing = stream.server.stream()
    assert refusal(txn.streams(other, missing)) == (404, "stream_not_found")
    assert refusal(txn.post(other)) == (409, "PARTITION_NOT_IN_TXN")


# rows: R17
def test_an_implicit_transaction_takes_any_stream(stream: Stream) -> None:
    stream.create()
    txn = Txn(stream.server)
    txn.begin(implicit=True)
    assert txn.post(stream).status == 200
    assert list(txn.commit().json["streams"]) == [stream.path]


# rows: R18
@pytest.mark.spec("design 6")
def test_a_publish_has_its_offset_at_once_and_a_retry_gets_the_same(stream: Stream) -> None:
    stream.create()
    txn = begun(stream)
    first = txn.post(stream, b"a")
    again = txn.post(stream, b"a", producer_seq=0)
    assert (first.status, again.status) == (200, 204)
    assert first.next_offset == again.next_offset == offset_of(1)
    assert stream.tail == offset_of(1)


# rows: R08
def test_a_gap_inside_a_transaction_is_refused(stream: Stream) -> None:
    stream.create()
    txn = begun(stream)
    txn.post(stream)
    answer = txn.post(stream, producer_seq=5)
    assert refusal(answer) == (409, "OUT_OF_ORDER_SEQUENCE")
    assert answer.json["expected_seq"] == 1


def test_publishing_needs_a_whole_identity(stream: Stream) -> None:
    stream.create()
    txn = begun(stream)
    bare = stream.post(b"x", transaction_id=txn.id, transaction_epoch=1)
    assert refusal(bare) == (400, "invalid_request")
    part = stream.post(b"x", transaction_id=txn.id)
    assert refusal(part) == (400, "transaction_headers_incomplete")
    alone = stream.post(b"x", transaction_seq=0)
    assert refusal(alone) == (400, "transaction_headers_incomplete")
    odd = stream.post(b"x", transaction_id=txn.id, transaction_epoch="1.5")
    assert refusal(odd) == (400, "invalid_header")
    keyed = stream.post(b"x", transaction_id=txn.id, transaction_epoch=1, idempotency_key="k")
    assert refusal(keyed) == (400, "invalid_request")
    assert stream.tail == offset_of(0)


def test_headers_of_transactions_are_given_once(stream: Stream) -> None:
    stream.create()
    head = f"POST {stream.target} HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
    twice = "Transaction-Id: a\r\nTransaction-Id: b\r\nTransaction-Epoch: 1\r\n"
    answer = stream.server.raw(f"{head}{twice}Content-Length: 1\r\n\r\nx".encode())
    assert answer is not None
    assert refusal(answer) == (400, "invalid_header")


# ---- decide --------------------------------------------------------------------------------------


# rows: R20, R29
@pytest.mark.spec("design 7.2")
def test_a_commit_tells_what_it_did_and_does_so_again(stream: Stream, other: Stream) -> None:
    stream.create()
    other.create(b"before")
    txn = begun(stream, other)
    txn.post(stream, b"a")
    txn.post(other, b"b")
    txn.post(other, b"c")
    first = txn.commit()
    assert first.status == 200
    assert first.json == {
        "transaction_id": txn.id,
        "transaction_epoch": 1,
        "state": "committed",
        "duplicate": False,
        "streams": {
            stream.path: {
                "first_offset": offset_of(0),
                "next_offset": offset_of(2),
                "messages": 1,
            },
            other.path: {
                "first_offset": offset_of(1),
                "next_offset": offset_of(4),
                "messages": 2,
            },
        },
        "offsets": {},
        "deleted": [],
    }
    assert txn.commit().json == {**first.json, "duplicate": True}
    assert committed(stream).body == b"a"
    assert committed(other).body == b"beforebc"


# rows: R20
def test_an_abort_hides_everything_and_can_be_repeated(stream: Stream) -> None:
    stream.create()
    txn = begun(stream)
    txn.post(stream, b"a")
    for _ in range(2):
        answer = txn.abort()
        assert answer.status == 200
        assert (answer.json["state"], answer.json["reason"]) == ("aborted", "abort")
    assert committed(stream).body == b""
    assert stream.get("offset=-1").body == b"a", "read_uncommitted may return aborted messages"


# rows: X05, X06
@pytest.mark.spec("reliability 5.4")
def test_a_decision_never_flips(stream: Stream) -> None:
    stream.create()
    kept, dropped = begun(stream), begun(stream)
    kept.post(stream, b"kept")
    dropped.post(stream, b"dropped")
    assert kept.commit().status == 200
    assert dropped.abort().status == 200
    for _ in range(2):
        assert refusal(kept.abort()) == (409, "txn_committed")
        answer = dropped.commit()
        assert refusal(answer) == (409, "txn_aborted")
        assert answer.json["reason"] == "abort"
    assert committed(stream).body == b"kept"


# rows: R36
@pytest.mark.spec("semantics 5.5")
def test_what_comes_after_the_decision_is_told_the_state(stream: Stream) -> None:
    stream.create()
    txn = begun(stream)
    txn.commit()
    for answer in (
        txn.streams(stream),
        txn.call("offsets", group="g", offsets={stream.path: 0}),
        txn.call("prepare"),
        txn.post(stream, b"late"),
    ):
        assert refusal(answer) == (409, "INVALID_TXN_STATE")
        assert (answer.json["state"], answer.json["expected_state"]) == ("committed", "open")
    assert stream.tail == offset_of(0)


# rows: R36
@pytest.mark.spec("semantics 5.5")
def test_a_transaction_nobody_began_is_unknown(stream: Stream) -> None:
    stream.create()
    txn = Txn(stream.server)
    for answer in (
        txn.streams(stream),
        txn.call("offsets", group="g", offsets={stream.path: 0}),
        txn.call("prepare"),
        txn.post(stream),
        txn.commit(),
        txn.abort(),
        txn.status(),
    ):
        assert refusal(answer) == (404, "INVALID_TXN_ID")
    assert stream.tail == offset_of(0)


# rows: X25
@pytest.mark.spec("semantics 5.5")
def test_an_older_transaction_epoch_is_fenced(stream: Stream) -> None:
    stream.create()
    txn = begun(stream)
    txn.commit()
    again = Txn(stream.server, txn.producer, name=txn.id)
    assert again.begin(streams=[stream.path]).json["transaction_epoch"] == 2
    assert txn.commit().status == 200, "the outcome of the first transaction is kept"
    assert refusal(txn.abort()) == (409, "txn_committed")
    assert again.status().json["state"] == "open", "the second transaction must not change"
    never = Txn(stream.server, txn.producer, name=txn.id)
    never.epoch = 0
    answer = never.commit()
    assert refusal(answer) == (403, "PRODUCER_FENCED")
    assert answer.headers["transaction-epoch"] == "2"
    assert "producer-epoch" not in answer.headers
    never.epoch = 3
    assert refusal(never.commit()) == (404, "INVALID_TXN_ID")


@pytest.mark.spec("reliability 5.4")
def test_somebody_else_cannot_decide(stream: Stream) -> None:
    stream.create()
    txn = begun(stream)
    txn.post(stream, b"a")
    thief = Txn(stream.server, name=txn.id)
    for answer in (thief.commit(), thief.abort(), thief.streams(stream), thief.post(stream)):
        assert refusal(answer) == (403, "PRODUCER_FENCED")
    assert txn.commit().status == 200


# rows: R11
def test_an_abort_does_not_take_sequences_back(stream: Stream) -> None:
    stream.create()
    txn = begun(stream)
    txn.post(stream, b"a")
    txn.post(stream, b"b")
    txn.abort()
    txn.begin(streams=[stream.path])
    assert txn.epoch == 2
    assert txn.post(stream, b"c").status == 200, "the sequence continues after the aborted ones"
    txn.abort()
    txn.begin(streams=[stream.path])
    assert txn.post(stream, b"d", producer_seq=0).status == 200, "or the sequence restarts at zero"
    assert txn.post(stream, b"e", producer_seq=1).status == 200
    txn.commit()
    assert committed(stream).body == b"de"


# ---- prepare -------------------------------------------------------------------------------------


# rows: R21
@pytest.mark.spec("semantics 5.5")
def test_a_prepared_transaction_only_waits_for_its_decision(stream: Stream) -> None:
    stream.create()
    txn = begun(stream, timeout_ms=60_000)
    txn.post(stream, b"a")
    first, again = txn.call("prepare"), txn.call("prepare")
    assert first.status == again.status == 200
    assert first.json == again.json
    assert (first.json["state"], first.json["token"]) == ("prepared", f"{txn.id}:1")
    assert refusal(txn.post(stream)) == (409, "INVALID_TXN_STATE")
    assert refusal(txn.streams(stream)) == (409, "INVALID_TXN_STATE")
    assert refusal(txn.begin()) == (409, "INVALID_TXN_STATE")
    found = txn.status().json
    assert (found["state"], found["phase"], found["deadline"]) == ("prepared", "Prepared", None)
    assert txn.commit().status == 200
    assert committed(stream).body == b"a"


# ---- timeouts ------------------------------------------------------------------------------------


# rows: R35, X21
@pytest.mark.spec("semantics 5.5")
def test_a_transaction_that_takes_too_long_is_aborted(stream: Stream) -> None:
    stream.create()
    txn = begun(stream, timeout_ms=1)
    waiting = Later(stream, f"offset=-1&live=long-poll&{COMMITTED}")
    while txn.status().json["state"] == "open":
        pass
    waiting.answer()
    for answer in (txn.commit(), txn.streams(stream), txn.post(stream)):
        assert refusal(answer) == (409, "TRANSACTION_TIMED_OUT")
    assert txn.abort().status == 200
    found = txn.status().json
    assert (found["state"], found["reason"], found["phase"]) == ("aborted", "timeout", "Dead")
    assert stream.tail == offset_of(0)
    assert txn.begin().json["transaction_epoch"] == 2


# ---- positions -----------------------------------------------------------------------------------


# rows: R19, X24
@pytest.mark.spec("design 7.2")
def test_positions_move_with_the_commit_and_not_with_an_abort(stream: Stream) -> None:
    stream.create(b"x")
    server, group = stream.server, fresh("g")
    dropped, kept = begun(stream), begun(stream)
    added = dropped.call("offsets", group=group, offsets={stream.path: offset_of(1)})
    assert (added.status, added.json["offset_count"]) == (200, 1)
    assert positions(server, group) == {}
    dropped.abort()
    assert positions(server, group) == {}
    kept.call("offsets", group=group, offsets={stream.path: 1})
    answer = kept.commit()
    assert answer.json["offsets"] == {group: {stream.path: offset_of(1)}}
    assert positions(server, group) == {stream.path: offset_of(1)}


def test_a_position_past_the_end_is_refused(stream: Stream) -> None:
    stream.create(b"x")
    txn = begun(stream)
    answer = txn.call("offsets", group="g", offsets={stream.path: 2})
    assert refusal(answer) == (400, "OFFSET_BEYOND_TAIL")
    assert answer.json["stream"] == stream.path
    for odd in ("-1", "now", -1, 2**53):
        answer = txn.call("offsets", group="g", offsets={stream.path: odd})
        assert refusal(answer) == (400, "invalid_offset")


# ---- visibility ----------------------------------------------------------------------------------


def example(server: Server) -> Stream:
    """Make the example log of the seed: offsets 3 and 4 are control records, 1 is aborted."""
    stream = server.stream()
    stream.create()
    assert stream.post(b"0").status == 204
    dropped = begun(stream)
    kept = begun(stream)
    dropped.post(stream, b"1")
    kept.post(stream, b"2")
    assert dropped.abort().status == 200
    assert kept.commit().status == 200
    assert stream.post(b"5").next_offset == offset_of(6)
    return stream


def offsets_of(stream: Stream, query: str) -> list[int]:
    body = stream.get(query, accept=FRAMES).body
    return [piece.offset for piece in decode_frames(body).slices]


# rows: C34, R31, R32, R33
@pytest.mark.spec("semantics 1.4")
def test_the_example_log_reads_as_the_seed_says(server: Server) -> None:
    stream = example(server)
    assert offsets_of(stream, "offset=-1") == [0, 1, 2, 5]
    assert offsets_of(stream, "offset=-1&isolation=read_uncommitted") == [0, 1, 2, 5]
    assert offsets_of(stream, "offset=-1&isolation=0") == [0, 1, 2, 5]
    assert offsets_of(stream, f"offset=-1&{COMMITTED}") == [0, 2, 5]
    assert offsets_of(stream, "offset=-1&isolation=1") == [0, 2, 5]
    assert offsets_of(stream, "offset=-1&isolation=1&live=long-poll") == [0, 2, 5]
    assert offsets_of(stream, "offset=-1&isolation=0&live=long-poll") == [0, 1, 2, 5]
    for isolation, expected in (("0", "0125"), ("1", "025")):
        with stream.listen(f"-1&isolation={isolation}") as events:
            event = events.next()
            assert event is not None
            assert event.data == expected
    assert stream.get("offset=-1").body == b"0125"
    assert committed(stream).body == b"025"
    assert committed(stream, f"offset={offset_of(3)}").body == b"5"


# rows: R31
def test_another_isolation_is_refused(stream: Stream) -> None:
    stream.create()
    for value in ("2", "-1", "01", "serializable", "", "READ_COMMITTED"):
        answer = stream.get(f"offset=-1&isolation={value}")
        assert refusal(answer) == (400, "invalid_query")
        assert answer.json["field"] == "isolation"


# rows: X20
def test_an_abort_hides_nothing_elsewhere(stream: Stream, other: Stream) -> None:
    stream.create()
    other.create(b"kept")
    txn = begun(stream, other)
    txn.post(stream, b"dropped")
    plain = {"producer_id": txn.producer, "producer_epoch": 0}
    assert other.post(b"too", **plain, producer_seq=0).status == 200
    txn.abort()
    assert committed(stream).body == b""
    assert committed(other).body == b"kepttoo"


# rows: R34
def test_what_the_same_producer_writes_later_is_not_hidden(stream: Stream) -> None:
    stream.create()
    txn = begun(stream)
    txn.post(stream, b"dropped")
    txn.abort()
    plain = {"producer_id": txn.producer, "producer_epoch": 0}
    assert stream.post(b"after", **plain, producer_seq=1).status == 200
    txn.begin(streams=[stream.path])
    txn._seqs[stream.path] = 2
    txn.post(stream, b"kept")
    txn.commit()
    assert committed(stream).body == b"afterkept"


# rows: R29, R32, X03
@pytest.mark.spec("semantics 5.6")
def test_nothing_undecided_is_seen_by_any_kind_of_read(stream: Stream) -> None:
    stream.create(b"0")
    txn = begun(stream)
    txn.post(stream, b"1")
    stream.post(b"2")
    assert committed(stream).body == b"0"
    assert offsets_of(stream, f"offset=-1&{COMMITTED}") == [0]
    assert committed(stream, "offset=-1&live=long-poll").body == b"0"
    blocked = committed(stream, f"offset={offset_of(1)}&live=long-poll")
    assert (blocked.status, blocked.body) == (204, b"")
    with stream.listen(f"-1&{COMMITTED}") as events:
        data, control = events.next(), events.next()
        assert data is not None
        assert control is not None
        assert data.data == "0"
        assert control.json["blockedBy"] == txn.id
        assert "upToDate" not in control.json
        txn.commit()
        after = events.next()
        assert after is not None
        assert after.data == "12"
        last = events.next()
        assert last is not None
        assert last.json["upToDate"] is True


# rows: R29
@pytest.mark.spec("issue: answers tell caught up from blocked")
def test_a_blocked_reader_is_told_by_whom(stream: Stream) -> None:
    stream.create(b"0")
    txn = begun(stream)
    free = committed(stream)
    assert free.headers["stream-up-to-date"] == "true"
    assert "stream-blocked-by" not in free.headers
    txn.post(stream, b"1")
    stream.post(b"2")
    for query in ("offset=-1", f"offset={offset_of(1)}", "offset=now"):
        answer = committed(stream, query)
        assert answer.next_offset == offset_of(1)
        assert answer.headers["stream-stable-offset"] == offset_of(1)
        assert answer.headers["stream-blocked-by"] == txn.id
        assert answer.headers["stream-blocked-since"] == txn.status().json["begun_at"]
        assert "stream-up-to-date" not in answer.headers
        assert answer.headers["cache-control"] in ("no-cache", "no-store")
    beyond = committed(stream, f"offset={offset_of(2)}")
    assert (beyond.status, beyond.body, beyond.next_offset) == (200, b"", offset_of(2))
    anyhow = stream.get("offset=-1")
    assert anyhow.headers["stream-up-to-date"] == "true"
    assert "stream-blocked-by" not in anyhow.headers
    assert stream.head().headers["stream-stable-offset"] == offset_of(1)
    txn.abort()
    caught_up = committed(stream)
    assert caught_up.body == b"02"
    assert caught_up.next_offset == offset_of(4)
    assert caught_up.headers["stream-up-to-date"] == "true"
    assert stream.head().headers["stream-stable-offset"] == offset_of(4)


@pytest.mark.spec("semantics 5.6")
def test_a_long_poll_waits_for_the_decision(server: Server, tmp_path: Path) -> None:
    patient = Server(tmp_path / "data", "--long-poll-timeout", "60")
    try:
        stream = patient.stream("s")
        stream.create()
        txn = begun(stream)
        txn.post(stream, b"a")
        waiting = Later(stream, f"offset={offset_of(0)}&live=long-poll&{COMMITTED}")
        stream.post(b"b")  # moves the end, but decides nothing
        txn.commit()
        answer = waiting.answer()
        assert (answer.status, answer.body) == (200, b"ab")
        assert answer.next_offset == offset_of(3)
    finally:
        patient.kill()


@pytest.mark.spec("design 6")
def test_control_records_alone_wake_nobody(server: Server, tmp_path: Path) -> None:
    patient = Server(tmp_path / "data", "--long-poll-timeout", "60")
    try:
        stream = patient.stream("s")
        stream.create()
        txn = begun(stream)
        txn.post(stream, b"a")
        waits = [
            Later(stream, f"offset={offset_of(1)}&live=long-poll&isolation={isolation}")
            for isolation in ("read_committed", "read_uncommitted")
        ]
        txn.abort()
        stream.post(b"b")
        for waiting in waits:
            answer = waiting.answer()
            assert (answer.body, answer.next_offset) == (b"b", offset_of(3))
    finally:
        patient.kill()


@pytest.mark.spec("design 6")
def test_the_etag_tells_isolations_apart(server: Server) -> None:
    stream = example(server)
    tag = stream.get("offset=-1").headers["etag"]
    other = committed(stream).headers["etag"]
    assert tag != other
    assert stream.get(f"offset=-1&{COMMITTED}", if_none_match=tag).status == 200
    assert stream.get(f"offset=-1&{COMMITTED}", if_none_match=other).status == 304


# rows: R23, R28, R29, X04
@pytest.mark.crash
def test_what_is_decided_stays_so_over_a_kill(tmp_path: Path) -> None:
    server = Server(tmp_path / "data")
    try:
        stream = server.stream("s")
        stream.create(b"0")
        kept, dropped, undecided = (begun(stream) for _ in range(3))
        kept.post(stream, b"1")
        dropped.post(stream, b"2")
        undecided.post(stream, b"3")
        assert kept.commit().status == 200
        assert dropped.abort().status == 200
        server.kill()
        server = Server(tmp_path / "data")
        stream = server.stream("s")
        for txn in (kept, dropped, undecided):
            txn.server = server
        assert committed(stream).body == b"01"
        assert offsets_of(stream, f"offset=-1&{COMMITTED}") == [0, 1]
        assert committed(stream, "offset=-1&live=long-poll").body == b"01"
        blocked = committed(stream, f"offset={offset_of(3)}&live=long-poll")
        assert (blocked.status, blocked.headers["stream-blocked-by"]) == (204, undecided.id)
        with stream.listen(f"-1&{COMMITTED}") as events:
            first = events.next()
            assert first is not None
            assert first.data == "01"
        assert refusal(kept.abort()) == (409, "txn_committed")
        assert kept.commit().json["duplicate"] is True
        assert refusal(dropped.commit()) == (409, "txn_aborted")
        assert undecided.commit().status == 200
        assert committed(stream).body == b"013"
    finally:
        server.kill()


# ---- order and races -----------------------------------------------------------------------------


@pytest.mark.spec("reliability 5.4")
def test_a_stream_with_undecided_messages_cannot_be_closed(stream: Stream) -> None:
    stream.create()
    txn = begun(stream)
    inside = txn.post(stream, b"x", stream_closed="true")
    assert refusal(inside) == (400, "invalid_request")
    txn.post(stream, b"a")
    answer = stream.post(stream_closed="true", content_type=None)
    assert refusal(answer) == (409, "stream_in_transaction")
    assert answer.json["transaction_id"] == txn.id
    txn.commit()
    assert stream.post(stream_closed="true", content_type=None).status == 204
    read = committed(stream)
    assert (read.body, read.headers["stream-closed"]) == (b"a", "true")


@pytest.mark.spec("reliability 5.4")
def test_a_staged_commit_into_a_closed_stream_applies_nothing(
    stream: Stream, other: Stream
) -> None:
    stream.create()
    other.create()
    txn = begun(stream, other, kind="staged")
    assert txn.stage(other, b"b", 0).status == 200
    assert txn.stage(stream, b"a", 1).status == 200
    stream.post(stream_closed="true", content_type=None)
    answer = txn.commit()
    assert refusal(answer) == (409, "stream_closed")
    assert answer.json["stream"] == stream.path
    assert other.tail == offset_of(0)
    assert txn.status().json["state"] == "open"


@pytest.mark.spec("reliability 5.4")
def test_deleting_a_stream_takes_it_out_of_the_transaction(stream: Stream, other: Stream) -> None:
    stream.create()
    other.create()
    txn = begun(stream, other)
    txn.post(stream, b"a")
    txn.post(other, b"b")
    assert stream.delete().status == 204
    answer = txn.commit()
    assert answer.json["deleted"] == [stream.path]
    assert list(answer.json["streams"]) == [other.path]
    assert committed(other).body == b"b"


@pytest.mark.spec("design 6")
def test_a_fork_holds_nothing_undecided(stream: Stream, other: Stream) -> None:
    stream.create(b"0")
    txn = begun(stream)
    txn.post(stream, b"1")
    explicit = other.put(stream_forked_from=stream.target, stream_fork_offset=offset_of(2))
    assert refusal(explicit) == (409, "offset_unstable")
    assert explicit.json["stable_offset"] == offset_of(1)
    assert other.put(stream_forked_from=stream.target).status == 201
    assert (other.text, other.tail) == ("0", offset_of(1))


@pytest.mark.spec("design 6")
def test_nothing_undecided_is_trimmed(stream: Stream) -> None:
    stream.create(b"0")
    txn = begun(stream)
    txn.post(stream, b"1")
    assert refusal(stream.delete(f"before={offset_of(2)}")) == (409, "offset_unstable")
    assert stream.delete(f"before={offset_of(1)}").status == 204
    txn.commit()
    assert stream.delete(f"before={offset_of(2)}").status == 204


@pytest.mark.spec("reliability 5.4")
def test_of_a_commit_and_an_abort_at_once_one_wins_for_good(stream: Stream) -> None:
    stream.create()
    for _ in range(10):
        txn = begun(stream)
        txn.post(stream, b"x")
        answers: dict[str, Any] = {}

        def ask(action: str, txn: Txn = txn, answers: dict[str, Any] = answers) -> None:
            answers[action] = txn.call(action)

        threads = [threading.Thread(target=ask, args=(word,)) for word in ("commit", "abort")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        statuses = {word: answer.status for word, answer in answers.items()}
        state = txn.status().json["state"]
        expected = {"commit": 200, "abort": 409}
        if state == "aborted":
            expected = {"commit": 409, "abort": 200}
        assert statuses == expected


@pytest.mark.spec("reliability 5.4")
def test_of_two_instances_that_take_over_at_once_one_is_fenced(stream: Stream) -> None:
    stream.create()
    old = begun(stream)
    old.post(stream, b"old")
    heirs = [Txn(stream.server, old.producer, name=old.id, epoch=epoch) for epoch in (1, 2)]

    def take_over(heir: Txn) -> None:
        heir.begin(streams=[stream.path])
        heir.post(stream, b"%d" % heir.producer_epoch)
        heir.commit()

    threads = [threading.Thread(target=take_over, args=(heir,)) for heir in heirs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert refusal(old.commit()) == (409, "txn_aborted")
    assert heirs[1].commit().status == 200
    assert committed(stream).body in (b"2", b"12"), "the older one came first, or not at all"


@pytest.mark.spec("reliability 5.4")
def test_a_reader_that_waits_for_a_decision_is_told_when_the_stream_is_gone(
    tmp_path: Path,
) -> None:
    patient = Server(tmp_path / "data", "--long-poll-timeout", "60")
    try:
        stream = patient.stream("s")
        stream.create()
        txn = begun(stream)
        txn.post(stream, b"a")
        waiting = Later(stream, f"offset={offset_of(0)}&live=long-poll&{COMMITTED}")
        stream.delete()
        assert refusal(waiting.answer()) == (404, "stream_not_found")
        assert txn.commit().json["deleted"] == ["s"]
    finally:
        patient.kill()


@pytest.mark.spec("semantics 5.6")
def test_many_listeners_of_both_kinds_hear_the_same_decision(stream: Stream) -> None:
    stream.create(b"0")
    txn = begun(stream)
    with ExitStack() as stack:
        kinds = [COMMITTED] * 3 + ["isolation=read_uncommitted"] * 3
        listeners = [stack.enter_context(stream.listen(f"-1&{kind}")) for kind in kinds]
        heard = [[event.data for event in _until_up_to_date(one)] for one in listeners]
        assert heard == [["0"]] * 6
        txn.post(stream, b"1")
        later = [[event.data for event in _until_up_to_date(one)] for one in listeners[3:]]
        assert later == [["1"]] * 3, "read_uncommitted returns the message at once"
        stream.post(b"2")
        assert [[e.data for e in _until_up_to_date(one)] for one in listeners[3:]] == [["2"]] * 3
        txn.commit()
        decided = ["".join(e.data for e in _until_up_to_date(one)) for one in listeners[:3]]
        assert decided == ["12"] * 3


def _until_up_to_date(events: Events) -> list[Event]:
    """Return the data events before the control event that says `upToDate`."""
    found: list[Event] = []
    while (event := events.next()) is not None:
        if event.kind == "data":
            found.append(event)
        elif event.json.get("upToDate"):
            return found
    raise AssertionError("the events have ended")


@pytest.mark.crash
def test_a_server_told_to_end_answers_a_commit_or_leaves_it_undecided(tmp_path: Path) -> None:
    server = Server(tmp_path / "data")
    stream = server.stream("s")
    stream.create()
    txn = begun(stream)
    txn.post(stream, b"a")
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(_maybe(txn)))
    thread.start()
    server.signal(signal.SIGTERM)
    thread.join()
    assert server.wait() == 0
    server.kill()
    server = Server(tmp_path / "data")
    try:
        txn.server = server
        state = txn.status().json["state"]
        if answers[0] is not None and answers[0].status == 200:
            assert state == "committed"
        else:
            assert state in ("open", "committed")
        assert txn.commit().status == 200
        assert committed(server.stream("s")).body == b"a"
    finally:
        server.kill()


def _maybe(txn: Txn) -> Any:
    try:
        return txn.commit()
    except OSError:
        return None


# ---- staged --------------------------------------------------------------------------------------


@pytest.mark.spec("design 6")
def test_a_staged_transaction_blocks_nobody_and_commits_in_order(stream: Stream) -> None:
    stream.create()
    txn = begun(stream, kind="staged")
    first = txn.stage(stream, b"a", 0)
    assert (first.status, first.headers["transaction-next-seq"]) == (200, "1")
    assert "stream-next-offset" not in first.headers
    again = txn.stage(stream, b"a", 0)
    assert again.status == 204
    assert "producer-receipt" not in again.headers
    gap = txn.stage(stream, b"c", 2)
    assert refusal(gap) == (409, "OUT_OF_ORDER_SEQUENCE")
    assert gap.json["expected_seq"] == 1
    txn.stage(stream, b"b", 1)
    stream.post(b"plain")
    assert committed(stream).headers["stream-up-to-date"] == "true"
    answer = txn.commit()
    assert answer.json["streams"][stream.path] == {
        "first_offset": offset_of(1),
        "next_offset": offset_of(3),
        "messages": 2,
    }
    assert committed(stream).body == b"plainab"


@pytest.mark.spec("design 7.2")
def test_a_number_used_for_another_chunk_is_told(stream: Stream, other: Stream) -> None:
    stream.create()
    other.create()
    txn = begun(stream, other, kind="staged")
    assert txn.stage(stream, b"a", 0).status == 200
    again = txn.stage(stream, b"a", 0)
    assert (again.status, "producer-payload-mismatch" in again.headers) == (204, False)
    for answer in (txn.stage(stream, b"b", 0), txn.stage(other, b"a", 0)):
        assert (answer.status, answer.headers["producer-payload-mismatch"]) == (204, "true")
    strict = txn.stage(stream, b"b", 0, producer_strict="true")
    assert refusal(strict) == (422, "payload_mismatch")
    assert txn.commit().status == 200
    assert (committed(stream).body, committed(other).body) == (b"a", b"")


# ---- the operator --------------------------------------------------------------------------------


def listed(server: Server, query: str) -> list[dict[str, Any]]:
    answer = call(server, "GET", f"/v1/transactions?{query}")
    assert answer.status == 200, answer
    found: list[dict[str, Any]] = answer.json["transactions"]
    return found


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Server]:
    with sound_server(tmp_path / "alone") as it:
        yield it


# rows: R39
@pytest.mark.spec("issue: operator view")
def test_an_operator_sees_who_holds_what(alone: Server) -> None:
    stream, other = alone.stream("a"), alone.stream("b")
    stream.create(b"0")
    other.create()
    inline, staged = begun(stream), begun(other, kind="staged")
    inline.post(stream, b"1")
    staged.stage(other, b"2", 0)
    staged.call("prepare")
    found = listed(alone, "")
    assert [txn["transaction_id"] for txn in found] == [inline.id, staged.id]
    first, second = found
    assert (first["state"], first["kind"], first["phase"]) == ("open", "inline", "Ongoing")
    assert (first["producer_id"], first["producer_epoch"]) == (inline.producer, 0)
    assert first["streams"] == {
        "a": {"first_offset": offset_of(1), "messages": 1, "chunks": 0},
    }
    assert first["age_ms"] >= first["idle_ms"] >= 0
    assert first["stuck"] is False
    assert (second["state"], second["chunks"], second["deadline"]) == ("prepared", 1, None)
    assert second["streams"]["b"] == {"first_offset": None, "messages": 1, "chunks": 1}
    assert [txn["transaction_id"] for txn in listed(alone, "state=open")] == [inline.id]
    assert [txn["transaction_id"] for txn in listed(alone, "state=prepared")] == [staged.id]
    assert listed(alone, "state=stuck") == []
    assert [txn["transaction_id"] for txn in listed(alone, "stream=b")] == [staged.id]
    assert listed(alone, "stream=none") == []
    page = call(alone, "GET", "/v1/transactions?limit=1").json
    assert page["transactions"] == [
        inline.status().json
        | {
            "age_ms": page["transactions"][0]["age_ms"],
            "idle_ms": page["transactions"][0]["idle_ms"],
        }
    ]
    assert [txn["transaction_id"] for txn in listed(alone, f"after={page['next']}")] == [staged.id]
    assert inline.status().json["state"] == "open"


@pytest.mark.spec("issue: operator view")
def test_an_operator_decides_whoever_owns_it(stream: Stream) -> None:
    stream.create()
    by_hand = {"producer_id": None, "producer_epoch": None, "operator": True}
    kept, dropped, fenced = (begun(stream) for _ in range(3))
    for txn, body in ((kept, b"a"), (dropped, b"b"), (fenced, b"c")):
        txn.post(stream, body)
    assert kept.commit(**by_hand).status == 200
    answer = dropped.abort(**by_hand)
    assert (answer.status, answer.json["reason"]) == (200, "operator")
    assert dropped.begin().status == 201, "the producer may begin again"
    refused = fenced.call("fence")
    assert refusal(refused) == (400, "invalid_request")
    answer = fenced.call("fence", **by_hand)
    assert (answer.status, answer.json["reason"]) == (200, "operator")
    assert refusal(fenced.begin()) == (403, "PRODUCER_FENCED"), "the producer may not begin again"
    assert committed(stream).body == b"a"


@pytest.mark.parametrize(
    ("query", "code"),
    [("state=odd", "invalid_query"), ("limit=0", "invalid_query"), ("after=x", "invalid_query")],
)
def test_a_list_that_means_nothing_is_refused(server: Server, query: str, code: str) -> None:
    assert refusal(call(server, "GET", f"/v1/transactions?{query}")) == (400, code)


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("DELETE", "/v1/transactions", 405),
        ("POST", "/v1/transactions/t", 405),
        ("GET", "/v1/transactions/t/commit", 405),
        ("POST", "/v1/transactions/t/finish", 404),
        ("POST", "/v1/transactions/t/commit/now", 404),
        ("GET", "/v1/transactions/%zz", 400),
        ("GET", "/v1/transactions/%ff", 400),
        ("GET", "/v1/transactions/t?epoch=x", 400),
        ("GET", "/v1/transactionsx", 404),
        ("GET", "/v1/commits", 405),
    ],
)
def test_addresses_and_methods_that_are_not_there(
    server: Server, method: str, target: str, status: int
) -> None:
    answer = call(server, method, target)
    assert answer.status == status
    assert answer.code


def test_an_id_may_have_slashes(stream: Stream) -> None:
    stream.create()
    txn = Txn(stream.server, name=f"a/b?{fresh()}")
    assert txn.begin(streams=[stream.path]).status == 201
    assert txn.post(stream).status == 200
    assert txn.commit().status == 200
    assert txn.status().json["transaction_id"] == txn.id


# ---- metrics -------------------------------------------------------------------------------------


def figures(server: Server) -> dict[str, float]:
    lines = server.ask("GET", "/metrics").body.decode().splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
    return {name: float(value) for name, value in pairs}


# rows: R38, R39
@pytest.mark.spec("semantics 5.9 G18")
def test_the_figures_count_how_transactions_went(alone: Server) -> None:
    stream = alone.stream("s")
    stream.create()
    kept, dropped, late, waiting = (begun(stream) for _ in range(4))
    slow = begun(stream, timeout_ms=1)
    for txn in (kept, dropped, late, waiting):
        txn.post(stream, b"x")
    kept.post(stream, b"x", producer_seq=0)
    kept.commit()
    dropped.abort()
    call(alone, "POST", "/v1/producers", {"producer_id": late.producer})
    while slow.status().json["state"] == "open":
        pass
    found = figures(alone)
    assert found["semel_transactions_started_total"] == 5
    assert found["semel_transactions_committed_total"] == 1
    assert found["semel_transactions_aborted_total"] == 3
    assert found["semel_transactions_timed_out_total"] == 1
    assert found["semel_transactions_active"] == 1
    assert found["semel_transactions_prepared"] == 0
    assert found["semel_idempotent_duplicates_total"] == 1
    assert found["semel_idempotent_producers_active"] == 4
    assert found["semel_stable_lag_offsets"] == 4, "one message and three control records"
    assert found["semel_stable_lag_seconds"] == found["semel_oldest_transaction_seconds"] > 0
    waiting.commit()
    found = figures(alone)
    assert found["semel_transactions_active"] == found["semel_stable_lag_offsets"] == 0
    assert found["semel_oldest_transaction_seconds"] == 0
