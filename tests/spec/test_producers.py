"""Exactly-once appends in every dialect of producer headers."""

from itertools import pairwise
from typing import Any

import pytest

from semel.model.limits import RECEIPTS_DEFAULT
from tests.spec.process import Answer, Server, Stream, offset_of


def dense(stream: Stream, body: bytes, epoch: int, seq: int, **headers: Any) -> Answer:
    return stream.post(body, producer_id="p", producer_epoch=epoch, producer_seq=seq, **headers)


def spoken(stream: Stream, body: bytes, seq: int, session: str) -> Answer:
    return stream.post(body, producer_id="p", producer_seq=seq, producer_session=session)


def sparse(stream: Stream, body: bytes, seqs: str, **headers: Any) -> Answer:
    return stream.post(body, producer_id="p", producer_mode="sparse", producer_seq=seqs, **headers)


def crossed(stream: Stream, body: bytes, seq: int, **headers: Any) -> Answer:
    return stream.post(body, x_producer_id="p", x_producer_seq=seq, **headers)


# ---- client epochs -------------------------------------------------------------------------------


# rows: D39, U01, U05, U06, X09
@pytest.mark.spec("protocol 1.4.1")
def test_an_accepted_append_is_200_and_a_repeat_204_with_the_first_offset(stream: Stream) -> None:
    stream.create()
    first, second = dense(stream, b"a", 0, 0), dense(stream, b"b", 0, 1)
    again = dense(stream, b"a", 0, 0)
    assert (first.status, second.status, again.status) == (200, 200, 204)
    assert again.next_offset == first.next_offset == offset_of(1)
    assert again.headers["producer-epoch"] == "0"
    assert again.headers["producer-seq"] == "1", "the highest accepted, not the repeated one"
    assert stream.text == "ab"


# rows: D08, D17, D38, U03, U07, X15
@pytest.mark.spec("protocol 1.4.1")
def test_a_gap_is_409_with_both_sequences_and_changes_nothing(stream: Stream) -> None:
    stream.create()
    for expected, received in ((0, 1), (1, 3)):
        answer = dense(stream, b"x", 0, received)
        assert (answer.status, answer.code) == (409, "producer_seq_conflict")
        assert answer.headers["producer-expected-seq"] == str(expected)
        assert answer.headers["producer-received-seq"] == str(received)
        assert answer.json["expected_seq"] == expected
        assert answer.json["applied"] == "no"
        assert dense(stream, b"y", 0, expected).status == 200
    assert stream.text == "yy"


# rows: D09, D36, U02, U09, U10
@pytest.mark.spec("protocol 1.4.1")
def test_a_stale_epoch_is_403_and_a_raised_one_begins_at_zero(stream: Stream) -> None:
    stream.create()
    dense(stream, b"a", 0, 0)
    must = dense(stream, b"x", 7, 1)
    assert (must.status, must.code) == (400, "epoch_must_start_at_zero")
    raised = dense(stream, b"b", 7, 0)
    assert (raised.status, raised.headers["producer-epoch"]) == (200, "7")
    stale = dense(stream, b"x", 0, 1)
    assert (stale.status, stale.code) == (403, "PRODUCER_FENCED")
    assert stale.headers["producer-epoch"] == "7"
    assert (stale.json["current_epoch"], stale.json["received_epoch"]) == (7, 0)
    assert "with epoch 7; the received epoch is 0" in stale.json["message"]
    assert stream.text == "ab"


# rows: D37
@pytest.mark.spec("design 6")
def test_a_repeat_with_another_payload_keeps_the_first_and_says_so(stream: Stream) -> None:
    stream.create()
    dense(stream, b"a", 0, 0)
    answer = dense(stream, b"b", 0, 0)
    assert (answer.status, answer.headers["producer-payload-mismatch"]) == (204, "true")
    assert stream.text == "a"


@pytest.mark.spec("design 6")
def test_a_repeat_whose_receipt_is_gone_is_204_without_an_offset(stream: Stream) -> None:
    stream.create()
    for seq in range(RECEIPTS_DEFAULT + 3):
        assert dense(stream, b".", 0, seq).status == 200
    forgotten, zero = dense(stream, b".", 0, 1), dense(stream, b".", 0, 0)
    assert (forgotten.status, forgotten.headers["producer-receipt"]) == (204, "expired")
    assert "stream-next-offset" not in forgotten.headers
    assert (zero.status, zero.next_offset) == (204, offset_of(1))


# rows: D14, P02, R03, U11, X16
def test_one_producer_has_its_own_state_on_each_stream(server: Server) -> None:
    one, two = server.stream(), server.stream()
    one.create()
    two.create()
    assert [dense(it, b"a", 0, 0).status for it in (one, two, one)] == [200, 200, 204]


# rows: D19, U14
def test_a_json_array_is_one_batch_and_one_sequence(stream: Stream) -> None:
    stream.create(b"", "application/json")
    for _ in range(2):
        answer = dense(stream, b"[1,2,3]", 0, 0, content_type="application/json")
        assert answer.next_offset == offset_of(3)
    assert dense(stream, b"[4]", 0, 1, content_type="application/json").status == 200
    assert stream.text == "[1,2,3,4]"


@pytest.mark.spec("protocol 1.4.1; design 6")
def test_an_all_digit_id_that_was_never_given_out_is_404(stream: Stream) -> None:
    stream.create()
    answer = stream.post(b"x", producer_id="7700000077", producer_epoch=0, producer_seq=0)
    assert (answer.status, answer.code) == (404, "UNKNOWN_PRODUCER_ID")


# ---- server epochs: sessions ---------------------------------------------------------------------


# rows: X01
@pytest.mark.spec("design 7.2")
def test_a_session_gets_its_epoch_from_the_server(stream: Stream) -> None:
    stream.create()
    first, second = spoken(stream, b"a", 0, "one"), spoken(stream, b"b", 1, "one")
    assert [answer.headers["producer-epoch"] for answer in (first, second)] == ["1", "1"]
    restarted = spoken(stream, b"c", 0, "two")
    assert (restarted.status, restarted.headers["producer-epoch"]) == (200, "2")
    retried = spoken(stream, b"c", 0, "two")
    assert (retried.status, retried.next_offset) == (204, restarted.next_offset)
    assert stream.text == "abc"


# rows: P07
@pytest.mark.spec("machine: identity h; dense 3")
def test_a_session_that_was_replaced_is_403_and_a_new_one_begins_at_zero(stream: Stream) -> None:
    stream.create()
    spoken(stream, b"a", 0, "one")
    unknown = spoken(stream, b"x", 1, "two")
    assert (unknown.status, unknown.code) == (409, "session_unknown")
    assert (unknown.headers["producer-epoch"], unknown.headers["producer-seq"]) == ("1", "0")
    spoken(stream, b"b", 0, "two")
    stale = spoken(stream, b"x", 1, "one")
    assert (stale.status, stale.code) == (403, "stale_session")
    assert stream.text == "ab"


# rows: P07
@pytest.mark.spec("machine: identity g")
def test_two_sessions_cannot_share_an_epoch(stream: Stream) -> None:
    stream.create()
    dense(stream, b"a", 4, 0, producer_session="one")
    answer = dense(stream, b"b", 4, 1, producer_session="two")
    assert (answer.status, answer.code) == (403, "session_conflict")


# ---- sparse --------------------------------------------------------------------------------------


# rows: P09, P12
@pytest.mark.spec("design 7.2; machine: sparse")
def test_sparse_ranges_may_leave_holes_but_never_overlap(stream: Stream) -> None:
    stream.create()
    first = sparse(stream, b"a", "10-19")
    assert (first.status, first.headers["producer-seq"]) == (200, "19")
    assert sparse(stream, b"b", "40").status == 200
    again = sparse(stream, b"a", "10-19")
    assert (again.status, again.next_offset) == (204, first.next_offset)
    for seqs, code in (
        ("15-25", "batch_overlap"),
        ("39-41", "batch_overlap"),
        ("25-30", "sequence_hole"),
    ):
        answer = sparse(stream, b"x", seqs)
        assert (answer.status, answer.code) == (409, code), seqs
        assert answer.headers["producer-seq"] == "40"
    assert stream.text == "ab"


# rows: X28, P12
@pytest.mark.spec("machine: sparse 5 and 6")
@pytest.mark.parametrize("seqs", ["5", "99", "11-98", "5-10"])
def test_a_sequence_that_was_never_stored_is_never_confirmed(
    server: Server, stream: Stream, seqs: str
) -> None:
    """Below the retained receipts the server cannot tell what was skipped: it says so."""
    stream.create()
    for seq in (10, *range(100, 106 + RECEIPTS_DEFAULT)):
        assert sparse(stream, b".", f"{seq}").status == 200
    answer = sparse(stream, b"x", seqs)
    assert (answer.status, answer.code) == (409, "sequence_expired")
    assert answer.json["applied"] == "unknown"
    assert (answer.json["last_seq"], answer.json["expired_seq"]) == (169, 105)
    query = f"stream={stream.path}&id=p&seq={seqs}&mode=sparse"
    explained = server.ask("GET", f"/v1/producers/explain?{query}").json
    assert (explained["outcome"], explained["status"]) == ("sequence_expired", 409)
    assert "not known" in explained["reason"]
    assert stream.text == "." * 71


@pytest.mark.spec("machine: sparse 5")
@pytest.mark.parametrize("seqs", ["0", "7", "3-5", "36"])
def test_a_repeat_within_a_run_of_stored_sequences_is_confirmed(stream: Stream, seqs: str) -> None:
    """Sequences 0 to 36 were stored without a gap, so the server knows about each of them."""
    stream.create(b"", "application/json")
    spans = ["0", "1-3", "4", *map(str, range(5, 37 + RECEIPTS_DEFAULT))]
    for span in spans:
        body = b"[1,2,3]" if "-" in span else b"1"
        assert sparse(stream, body, span, content_type="application/json").status == 200
    answer = sparse(stream, b"1", seqs, content_type="application/json")
    assert (answer.status, answer.headers["producer-receipt"]) == (204, "expired")


@pytest.mark.spec("machine: identity b")
def test_a_producer_keeps_its_mode(stream: Stream) -> None:
    stream.create()
    sparse(stream, b"a", "5")
    answer = dense(stream, b"b", 1, 0)
    assert (answer.status, answer.code) == (400, "producer_mode_conflict")
    assert answer.json["mode"] == "sparse"


# ---- the X dialect -------------------------------------------------------------------------------


# rows: D02, D04, D05, D06, D07
def test_the_x_dialect_answers_201_with_its_own_headers_and_204_again(stream: Stream) -> None:
    stream.create(b"[1,2]", "application/json")
    first = crossed(stream, b"[3,4]", 0, content_type="application/json")
    second = crossed(stream, b"[5]", 1, content_type="application/json")
    assert (first.status, second.status) == (201, 201)
    assert first.headers["x-producer-epoch"] == "1"
    assert first.headers["x-stream-offset"] == "00000002"
    assert second.headers["x-stream-offset"] == "00000004"
    assert "producer-epoch" not in first.headers
    again = crossed(stream, b"[3,4]", 0, content_type="application/json")
    assert (again.status, again.headers["x-stream-offset"]) == (204, "00000002")
    assert stream.text == "[1,2,3,4,5]"


# rows: D08
def test_a_gap_in_the_x_dialect_is_409_with_its_own_headers(stream: Stream) -> None:
    stream.create()
    answer = crossed(stream, b"x", 2)
    assert (answer.status, answer.code) == (409, "producer_seq_conflict")
    assert (answer.headers["x-expected-seq"], answer.headers["x-received-seq"]) == ("0", "2")


# rows: D09, D10, D11, U10
def test_a_restart_in_the_x_dialect_raises_the_epoch_and_fences_the_old(stream: Stream) -> None:
    stream.create()
    crossed(stream, b"a", 0)
    restarted = crossed(stream, b"b", 0)
    assert (restarted.status, restarted.headers["x-producer-epoch"]) == (201, "2")
    zombie = crossed(stream, b"x", 1, x_producer_epoch=1)
    assert (zombie.status, zombie.headers["x-error"]) == (403, "stale-epoch")
    assert zombie.headers["x-current-epoch"] == "2"
    assert stream.text == "ab"


@pytest.mark.spec("design 6")
def test_a_bare_repeat_with_another_payload_is_never_an_ack(stream: Stream) -> None:
    stream.create()
    crossed(stream, b"a", 0)
    crossed(stream, b"b", 1)
    answer = crossed(stream, b"x", 1)
    assert (answer.status, answer.code) == (409, "producer_restart_ambiguous")
    assert (answer.json["current_epoch"], answer.json["last_seq"]) == (1, 1)
    assert stream.text == "ab"


@pytest.mark.spec("design 6")
def test_two_dialects_at_once_are_400(stream: Stream) -> None:
    stream.create()
    answer = crossed(stream, b"x", 0, producer_id="p", producer_epoch=0, producer_seq=0)
    assert (answer.status, answer.code) == (400, "producer_headers_conflict")
    key = dense(stream, b"x", 0, 0, idempotency_key="k")
    assert (key.status, key.code) == (400, "idempotency_key_conflict")


# ---- Idempotency-Key -----------------------------------------------------------------------------


@pytest.mark.spec("design 6")
def test_an_idempotency_key_stores_once_and_states_its_window(stream: Stream) -> None:
    stream.create()
    first = stream.post(b"a", idempotency_key="k")
    stream.post(b"b")
    again = stream.post(b"a", idempotency_key="k")
    assert (first.status, again.status) == (204, 204)
    assert again.next_offset == first.next_offset
    assert first.headers["idempotency-window"] == "86400; keys=10000"
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    assert stream.text == "ab"


@pytest.mark.spec("design 6")
def test_an_idempotency_key_with_another_payload_is_422(stream: Stream) -> None:
    stream.create()
    stream.post(b"a", idempotency_key="k")
    answer = stream.post(b"b", idempotency_key="k")
    assert (answer.status, answer.code) == (422, "idempotency_key_reused")
    assert stream.text == "a"


# ---- Producer-Cursor -----------------------------------------------------------------------------


@pytest.mark.spec("design 7.2")
def test_a_producer_cursor_of_one_kibibyte_is_taken_and_a_longer_one_refused(
    stream: Stream,
) -> None:
    stream.create()
    assert dense(stream, b"a", 0, 0, producer_cursor="c" * 1024).status == 200
    answer = dense(stream, b"b", 0, 1, producer_cursor="c" * 1025)
    assert (answer.status, answer.code) == (400, "invalid_header")


# ---- concurrent requests -------------------------------------------------------------------------


# rows: D20
def test_five_batches_in_flight_on_one_connection_keep_their_order(stream: Stream) -> None:
    stream.create()
    head = f"POST {stream.target} HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
    requests = [
        f"{head}Producer-Id: p\r\nProducer-Epoch: 0\r\nProducer-Seq: {seq}\r\n"
        f"Content-Length: 1\r\n\r\n{seq % 10}"
        for seq in range(50)
    ]
    connection = stream.server.connect()
    connection.connect()
    try:
        connection.sock.sendall("".join(requests).encode())
        received = b""
        while received.count(b"HTTP/1.1 ") < 50 or not received.endswith(b"\r\n\r\n"):
            received += connection.sock.recv(65_536)
    finally:
        connection.close()
    offsets = [
        line.partition(b": ")[2]
        for line in received.split(b"\r\n")
        if line.lower().startswith(b"stream-next-offset: ")
    ]
    assert received.count(b"HTTP/1.1 200 ") == 50
    assert all(one < two for one, two in pairwise(offsets))
    assert stream.text == "0123456789" * 5


def test_an_append_without_a_sequence_is_refused_also_after_many_with_one(stream: Stream) -> None:
    stream.create()
    for seq in range(4):
        answer = stream.post(b"x", producer_id="p", producer_epoch=0, producer_seq=seq)
        assert answer.status == 200
    answer = stream.post(b"lost", producer_id="p", producer_epoch=0)
    assert (answer.status, answer.code) == (400, "producer_headers_incomplete")
    assert stream.get("?offset=-1").body == b"xxxx"
