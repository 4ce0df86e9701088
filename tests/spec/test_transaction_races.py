"""Concurrent transaction requests over HTTP, and changes of streams with open transactions.

Requests in a wrong order are tested in `test_transactions.py`: a second commit, an abort after the
commit, a decision after the timeout or by another producer, appends to an unknown or ended
transaction, a second begin, a close inside, a newer epoch, and SIGTERM. `test_process.py` tests two
servers on one directory; `tests/http/test_clock_transactions.py` tests retries after a year.
"""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import pytest

from tests.spec.process import Answer, Server, Stream, offset_of
from tests.spec.test_sinks import Sink
from tests.spec.txn_calls import (
    COMMITTED,
    Txn,
    begun,
    commit,
    committed,
    fresh,
    positions,
    refusal,
)

ROUNDS: Final = 8
KINDS = pytest.mark.parametrize("kind", ["inline", "staged"])

pytestmark = pytest.mark.spec("reliability 5.4")


@pytest.fixture
def other(server: Server) -> Stream:
    return server.stream()


def at_once(*calls: Callable[[], Answer]) -> list[Answer]:
    """Make all calls at the same time; return the responses in the order of the calls."""
    found: dict[int, Answer] = {}
    start = threading.Barrier(len(calls))

    def make(index: int, ask: Callable[[], Answer]) -> None:
        start.wait()
        found[index] = ask()

    threads = [threading.Thread(target=make, args=each) for each in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[index] for index in range(len(calls))]


def statuses(answers: Sequence[Answer]) -> Counter[int]:
    return Counter(answer.status for answer in answers)


def write(txn: Txn, stream: Stream, body: bytes, kind: str, seq: int = 0) -> Answer:
    return txn.post(stream, body) if kind == "inline" else txn.stage(stream, body, seq)


def filled(kind: str, body: bytes, *streams: Stream, **more: Any) -> Txn:
    """Return an open transaction with one message in each stream."""
    txn = begun(*streams, kind=kind, **more)
    for seq, stream in enumerate(streams):
        assert write(txn, stream, body, kind, seq).status == 200
    return txn


def close(stream: Stream) -> Answer:
    return stream.post(stream_closed="true", content_type=None)


# ---- concurrent begins ---------------------------------------------------------------------------


def test_of_many_that_begin_one_id_at_once_one_begins_it(server: Server) -> None:
    for _ in range(ROUNDS):
        txn = Txn(server)
        answers = at_once(*[txn.begin] * 6)
        assert statuses(answers) == {201: 1, 200: 5}
        assert {answer.json["transaction_epoch"] for answer in answers} == {1}
        assert len({answer.json["deadline"] for answer in answers}) == 1


def test_of_many_owners_that_begin_one_id_at_once_one_has_it(server: Server) -> None:
    for _ in range(ROUNDS):
        name = fresh()
        owners = [Txn(server, name=name) for _ in range(5)]
        answers = at_once(*[owner.begin for owner in owners])
        assert statuses(answers) == {201: 1, 409: 4}
        winner = next(o for o, a in zip(owners, answers, strict=True) if a.status == 201)
        assert {a.code for a in answers if a.status == 409} == {"CONCURRENT_TRANSACTIONS"}
        assert winner.commit().status == 200


def test_of_many_transactions_a_producer_begins_at_once_one_is_inline(server: Server) -> None:
    producer = fresh("p")
    txns = [Txn(server, producer) for _ in range(5)]
    answers = at_once(*[txn.begin for txn in txns])
    assert statuses(answers) == {201: 1, 409: 4}


# ---- concurrent decisions ------------------------------------------------------------------------


@KINDS
def test_a_commit_sent_by_many_at_once_is_one(stream: Stream, other: Stream, kind: str) -> None:
    stream.create()
    other.create()
    for number in range(ROUNDS):
        body = b"%d" % number
        txn = filled(kind, body, stream, other)
        answers = at_once(*[txn.commit] * 5)
        assert statuses(answers) == {200: 5}
        assert sum(not answer.json["duplicate"] for answer in answers) == 1
        assert len({str(answer.json["streams"]) for answer in answers}) == 1
    whole = b"".join(b"%d" % number for number in range(ROUNDS))
    assert (committed(stream).body, committed(other).body) == (whole, whole)


@KINDS
def test_what_is_written_while_it_is_committed_is_in_or_refused(stream: Stream, kind: str) -> None:
    stream.create()
    expected = ""
    for number in range(ROUNDS):
        txn = filled(kind, b"<%d" % number, stream)
        _, written = at_once(txn.commit, partial(write, txn, stream, b"+", kind, 1))
        if written.status == 200:
            expected += f"<{number}+"
        else:
            assert refusal(written) == (409, "INVALID_TXN_STATE")
            expected += f"<{number}"
        assert committed(stream).body.decode() == expected
        assert committed(stream).headers["stream-up-to-date"] == "true"


def test_streams_and_positions_added_while_it_is_committed_are_in_or_refused(
    stream: Stream, other: Stream
) -> None:
    stream.create(b"0")
    other.create()
    for _ in range(ROUNDS):
        group = fresh("g")
        txn = filled("inline", b"x", stream)
        move = {stream.path: offset_of(1)}
        decided, added, moved = at_once(
            txn.commit,
            partial(txn.streams, other),
            partial(txn.call, "offsets", group=group, offsets=move),
        )
        assert decided.status == 200
        for answer in (added, moved):
            assert answer.status == 200 or refusal(answer) == (409, "INVALID_TXN_STATE")
        assert positions(stream.server, group) == (move if moved.status == 200 else {})


def test_prepare_and_a_decision_at_once_end_in_the_decision(stream: Stream) -> None:
    stream.create()
    for action in ("commit", "abort") * (ROUNDS // 2):
        txn = filled("staged", b"x", stream)
        decided, prepared = at_once(partial(txn.call, action), partial(txn.call, "prepare"))
        assert decided.status == 200
        assert prepared.status == 200 or prepared.code == "INVALID_TXN_STATE"
        expected = {"commit": "committed", "abort": "aborted"}[action]
        assert txn.status().json["state"] == expected


def test_a_commit_and_its_time_out_agree(stream: Stream) -> None:
    stream.create()
    expected = b""
    for number in range(ROUNDS):
        txn, body = begun(stream, timeout_ms=20 + number), b"%d" % number
        written = txn.post(stream, body)
        answers = at_once(*[txn.commit] * 4)  # at about the deadline
        state = txn.status().json
        if state["state"] == "committed":
            expected += body * (written.status == 200)
            assert statuses(answers) == {200: 4}
        else:
            assert state["reason"] == "timeout"
            assert {answer.code for answer in answers} == {"TRANSACTION_TIMED_OUT"}
        assert committed(stream).body == expected
        assert committed(stream).headers["stream-up-to-date"] == "true"


def test_a_commit_and_an_operators_fence_at_once_end_in_one_of_them(stream: Stream) -> None:
    stream.create()
    expected = b""
    by_hand = {"producer_id": None, "producer_epoch": None, "operator": True}
    for number in range(ROUNDS):
        txn = filled("inline", b"%d" % number, stream)
        decided, fenced = at_once(txn.commit, partial(txn.call, "fence", **by_hand))
        assert {decided.status, fenced.status} == {200, 409}
        if decided.status == 200:
            assert fenced.code == "txn_committed"
            expected += b"%d" % number
            assert txn.begin().status == 201
        else:
            assert decided.code == "txn_aborted"
            assert refusal(txn.begin()) == (403, "PRODUCER_FENCED")
        assert committed(stream).body == expected


def test_a_staged_one_listed_by_two_commits_at_once_enters_once(stream: Stream) -> None:
    stream.create()
    server = stream.server
    for number in range(ROUNDS):
        txn = filled("staged", b"%d" % number, stream)
        named = {
            "transactions": [{"id": txn.id, "epoch": txn.epoch}],
            "producer_id": txn.producer,
            "producer_epoch": 0,
        }
        one_shot, plain = at_once(partial(commit, server, **named, producer_seq=0), txn.commit)
        assert plain.status == 200, "it was committed by one of the requests"
        assert one_shot.status == 200 or refusal(one_shot) == (409, "INVALID_TXN_STATE")
        assert one_shot.status != 200 or plain.json["duplicate"] is True
    assert committed(stream).body == b"".join(b"%d" % number for number in range(ROUNDS))


def test_two_versions_of_a_sink_at_once_are_one_after_the_other(stream: Stream) -> None:
    stream.create()
    for _ in range(ROUNDS // 2):
        sink = Sink(stream.server)
        first = sink.filled(1, stream, b"1")
        second = sink.filled(2, stream, b"2")
        low, high = at_once(
            partial(sink.commit, 1, first, batch=1),
            partial(sink.commit, 2, second, batch=2),
        )
        assert high.status == 200
        if low.status != 200:  # version 2 came first, so version 1 is refused
            assert low.status == 409
            assert first.status().json["reason"] == "superseded"
        assert sink.look().json["last_version"] == 2
    assert committed(stream).body.count(b"2") == ROUNDS // 2


# ---- closed streams ------------------------------------------------------------------------------


def test_a_publish_that_would_close_is_refused_in_a_staged_one_too(stream: Stream) -> None:
    stream.create()
    txn = begun(stream, kind="staged")
    answer = txn.stage(stream, b"x", 0, stream_closed="true")
    assert refusal(answer) == (400, "invalid_request")
    assert txn.status().json["chunks"] == 0
    assert "stream-closed" not in stream.head().headers


def test_a_stream_is_not_closed_under_a_prepared_transaction(stream: Stream) -> None:
    stream.create()
    txn = filled("inline", b"x", stream)
    assert txn.call("prepare").status == 200
    for answer in (close(stream), stream.post(b"last", stream_closed="true")):
        assert refusal(answer) == (409, "stream_in_transaction")
        assert answer.json["transaction_id"] == txn.id
    assert txn.abort().status == 200
    assert close(stream).status == 204
    assert committed(stream).body == b""


def test_what_was_staged_for_a_stream_closed_since_can_only_be_aborted(
    stream: Stream, other: Stream
) -> None:
    stream.create()
    other.create()
    txn = filled("staged", b"x", other, stream)
    assert close(stream).status == 204
    assert refusal(txn.stage(stream, b"y", 2)) == (409, "stream_closed")
    named = {"transactions": [{"id": txn.id, "epoch": 1}], "producer_seq": 0}
    owner = {"producer_id": txn.producer, "producer_epoch": 0}
    for answer in (txn.commit(), commit(stream.server, **named, **owner)):
        assert refusal(answer) == (409, "stream_closed")
        assert answer.json["stream"] == stream.path
    assert txn.abort().status == 200
    assert (stream.tail, other.tail) == (offset_of(0), offset_of(0))


@KINDS
def test_a_close_and_a_commit_at_once_come_one_after_the_other(server: Server, kind: str) -> None:
    for _ in range(ROUNDS):
        stream = server.stream()
        stream.create(b"0")
        txn = filled(kind, b"x", stream)
        closed, decided = at_once(partial(close, stream), txn.commit)
        if closed.status == 204 and decided.status == 200:
            assert committed(stream).body == b"0x"
        elif kind == "inline":
            assert (refusal(closed), decided.status) == ((409, "stream_in_transaction"), 200)
            assert committed(stream).body == b"0x"
        else:
            assert (closed.status, refusal(decided)) == (204, (409, "stream_closed"))
            assert committed(stream).body == b"0"


# ---- deleted streams -----------------------------------------------------------------------------


@KINDS
def test_a_deleted_stream_made_anew_gets_nothing_of_the_old_one(
    stream: Stream, other: Stream, kind: str
) -> None:
    stream.create()
    other.create()
    txn = filled(kind, b"x", stream, other)
    txn.call("offsets", group=(group := fresh("g")), offsets={other.path: 0})
    assert stream.delete().status == 204
    stream.create(b"new")
    late = write(txn, stream, b"late", kind, 2)
    assert refusal(late) == (409, "PARTITION_NOT_IN_TXN")
    answer = txn.commit()
    assert (answer.json["deleted"], list(answer.json["streams"])) == ([stream.path], [other.path])
    assert (committed(stream).body, committed(other).body) == (b"new", b"x")
    assert list(positions(stream.server, group)) == [other.path]


@KINDS
def test_a_prepared_one_outlives_every_stream_it_wrote(
    stream: Stream, other: Stream, kind: str
) -> None:
    stream.create()
    other.create()
    txn = filled(kind, b"x", stream, other)
    assert txn.call("prepare").status == 200
    for each in (stream, other):
        assert each.delete().status == 204
    answer = txn.commit()
    assert answer.json["deleted"] == sorted([stream.path, other.path])
    assert answer.json["streams"] == {}
    assert txn.commit().json["duplicate"] is True


@KINDS
def test_a_delete_and_a_commit_at_once_come_one_after_the_other(
    server: Server, other: Stream, kind: str
) -> None:
    other.create()
    for number in range(ROUNDS):
        stream = server.stream()
        stream.create()
        txn = filled(kind, b"%d" % number, stream, other)
        gone, decided = at_once(stream.delete, txn.commit)
        assert (gone.status, decided.status) == (204, 200)
        is_first = stream.path in decided.json["deleted"]
        assert (stream.path in decided.json["streams"]) is not is_first
        assert stream.head().status == 404
    assert committed(other).body == b"".join(b"%d" % number for number in range(ROUNDS))


def test_a_listener_blocked_by_a_transaction_is_told_of_the_end_of_its_stream(
    stream: Stream,
) -> None:
    stream.create(b"0")
    txn = filled("inline", b"x", stream)
    with stream.listen(f"-1&{COMMITTED}") as events:
        first, control = events.next(), events.next()
        assert first is not None
        assert control is not None
        assert (first.data, control.json["blockedBy"]) == ("0", txn.id)
        stream.delete()
        rest = events.rest()
    assert not [event for event in rest if event.kind == "data"], "no undecided message is sent"
    assert txn.commit().json["deleted"] == [stream.path]


def test_a_source_deleted_under_a_transaction_stays_for_its_fork_as_it_was(
    stream: Stream, other: Stream
) -> None:
    stream.create(b"0")
    txn = filled("inline", b"x", stream)
    assert other.put(stream_forked_from=stream.target).status == 201
    assert stream.delete().status == 204
    assert stream.get("offset=-1").status == 410
    assert txn.commit().json["deleted"] == [stream.path]
    assert committed(other).body == b"0"
    assert other.post(b"1").status == 204
    assert committed(other).body == b"01"


def test_a_stream_whose_time_is_over_leaves_its_transaction(stream: Stream, other: Stream) -> None:
    stream.create(stream_ttl=1)
    other.create()
    txn = filled("inline", b"x", stream, other)
    while stream.head().status == 200:
        pass
    answer = txn.commit()
    assert (answer.json["deleted"], list(answer.json["streams"])) == ([stream.path], [other.path])
    assert committed(other).body == b"x"


# ---- forks and trims -----------------------------------------------------------------------------


def test_a_fork_and_its_source_are_decided_apart(stream: Stream, other: Stream) -> None:
    stream.create(b"0")
    before = filled("inline", b"1", stream)
    assert other.put(stream_forked_from=stream.target).status == 201
    inside = filled("inline", b"f", other)
    assert before.commit().status == 200
    assert committed(stream).body == b"01"
    blocked = committed(other)
    assert (blocked.body, blocked.headers["stream-blocked-by"]) == (b"0", inside.id)
    assert inside.commit().status == 200
    assert (committed(stream).body, committed(other).body) == (b"01", b"0f")


def test_an_undecided_message_is_not_divided_by_a_fork(stream: Stream, other: Stream) -> None:
    stream.create(content_type="application/json")
    plain = {"content_type": "application/json"}
    txn = begun(stream)
    assert txn.post(stream, b"[1,2,3]", **plain).status == 200
    part: dict[str, Any] = {
        "stream_forked_from": stream.target,
        "stream_fork_offset": offset_of(0),
        "stream_fork_sub_offset": 2,
    }
    assert refusal(other.put(**part)) == (409, "offset_unstable")
    assert txn.commit().status == 200
    assert other.put(**part).status == 201
    assert other.get("offset=-1").json == [1, 2]


def test_a_fork_and_a_decision_at_once_leave_a_fork_of_all_or_nothing(server: Server) -> None:
    for action in ("commit", "abort") * (ROUNDS // 2):
        stream, fork = server.stream(), server.stream()
        stream.create(b"0")
        txn = begun(stream)
        txn.post(stream, b"1")
        txn.post(stream, b"2")
        made, _ = at_once(
            partial(fork.put, stream_forked_from=stream.target),
            partial(txn.call, action),
        )
        assert made.status == 201
        whole = (b"0", b"012") if action == "commit" else (b"0",)
        assert committed(fork).body in whole
        assert committed(fork).headers["stream-up-to-date"] == "true"


def test_a_trim_leaves_what_is_staged_and_moves_no_group_back(stream: Stream) -> None:
    stream.create(b"0")
    stream.post(b"1")
    txn = filled("staged", b"x", stream)
    group = fresh("g")
    assert txn.call("offsets", group=group, offsets={stream.path: offset_of(1)}).status == 200
    assert stream.delete(f"before={offset_of(2)}").status == 204
    assert txn.commit().status == 200
    assert positions(stream.server, group) == {stream.path: offset_of(1)}
    assert committed(stream, f"offset={offset_of(2)}").body == b"x"
    assert committed(stream, f"offset={offset_of(1)}").status == 410


def test_a_trim_and_a_decision_at_once_come_one_after_the_other(server: Server) -> None:
    for action in ("commit", "abort") * (ROUNDS // 2):
        stream = server.stream()
        stream.create(b"0")
        txn = filled("inline", b"1", stream)
        trimmed, decided = at_once(
            partial(stream.delete, f"before={offset_of(2)}"),
            partial(txn.call, action),
        )
        assert decided.status == 200
        assert trimmed.status == 204 or refusal(trimmed) == (409, "offset_unstable")
        stream.post(b"3")
        head = 2 if trimmed.status == 204 else 0
        kept = {0: b"013" if action == "commit" else b"03", 2: b"3"}[head]
        assert committed(stream, f"offset={offset_of(head)}").body == kept


# ---- receipts and producers ----------------------------------------------------------------------


def test_receipts_of_an_open_transaction_cannot_be_dropped(stream: Stream) -> None:
    stream.create()
    txn = filled("inline", b"x", stream)
    server = stream.server
    switched = server.ask("PATCH", stream.target, stream_dedup="off")
    forgotten = server.ask("DELETE", f"/v1/producers?stream={stream.path}&id={txn.producer}")
    for answer in (switched, forgotten):
        assert refusal(answer) == (409, "stream_in_transaction")
    assert txn.post(stream, b"x", producer_seq=0).status == 204
    assert txn.commit().status == 200
    assert server.ask("PATCH", stream.target, stream_dedup="off").status == 204


def test_a_producer_that_starts_anew_at_once_with_its_commit_is_fenced_or_too_late(
    stream: Stream,
) -> None:
    stream.create()
    server = stream.server
    expected = b""
    for number in range(ROUNDS):
        txn, body = filled("inline", b"%d" % number, stream), b"%d" % number
        heir = Txn(server, txn.producer, epoch=1)
        decided, taken = at_once(txn.commit, heir.begin)
        assert taken.status == 201
        if decided.status == 200:
            expected += body
        else:
            assert refusal(decided) in ((409, "txn_aborted"), (403, "PRODUCER_FENCED"))
        assert committed(stream).body == expected
