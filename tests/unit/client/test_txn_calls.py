"""Transactions, commits, groups and processing, run without a network."""

from typing import Any

import msgspec
import pytest

from semel.client import commit_calls, errors, group_calls, known_streams, txn_calls
from semel.client.commit_calls import CommitId, KnownStreams, Parts
from semel.client.extras import Extras
from semel.client.flows import Flow, Lost, NotSent, Pause, RetrySafety
from semel.client.group_calls import GroupCursor, GroupReader
from semel.client.positions import KnownPositions
from semel.client.processing import (
    InputBatch,
    ProcessLoop,
    ProducerPool,
    check_owner,
    group_producer_id,
)
from semel.client.reading import PageReader
from semel.client.txn_calls import TransactionCalls
from semel.client.values import (
    CommitResult,
    Message,
    PinnedRange,
    PinnedStep,
    Registration,
    StreamResult,
    offset_of,
    parse_token,
)
from semel.model.offsets import print_offset
from semel.wire.schema.producers import RetireEntry
from tests.unit.client.hand import SITE, Played, answer, body_of, calls, document, play, problem
from tests.unit.client.test_reading import frames

LOST = Lost("reset")
OWNER = Registration("p", 3)
NONE = Extras()
HEAD = answer(200, stream_next_offset=print_offset(0), stream_incarnation="i")
STORED = answer(200, stream_next_offset=print_offset(1))
REPEAT = answer(204, stream_next_offset=print_offset(1))
DONE = {"state": "committed", "streams": {}, "offsets": {}, "deleted": []}


def opened(kind: str = "inline") -> TransactionCalls:
    txn = TransactionCalls(SITE, "t/1", kind, 60)
    play(txn.begin(OWNER, []), document({"transaction_epoch": 7, "deadline": None}, 201))
    return txn


def append(txn: TransactionCalls, *values: Any, path: str = "orders") -> Flow[Any]:
    return txn.append(calls(path), list(values), NONE)


# ---- begin ---------------------------------------------------------------------------------------


# rows: R14
def test_a_transaction_begins_under_its_producer() -> None:
    txn = TransactionCalls(SITE, "t", "staged", 1.5)
    begun = document({"transaction_epoch": 1}, 201)
    (sent,) = Played(txn.begin(OWNER, ["a"]), [begun]).sends
    assert (sent.request.target, sent.kind) == ("/v1/transactions", RetrySafety.REPEATABLE)
    assert body_of(sent) == {
        "transaction_id": "t",
        "producer_id": "p",
        "producer_epoch": 3,
        "kind": "staged",
        "timeout_ms": 1500,
        "streams": ["a"],
        "implicit": False,
    }
    assert (txn.state, txn.epoch, txn.token) == ("open", 1, "t:1")


def status(**facts: Any) -> Any:
    return document({"transaction_id": "t", "transaction_epoch": 1, "state": "open", **facts})


# rows: R15
@pytest.mark.parametrize(
    "facts",
    [
        {"streams": {"a": {"messages": 1}}},
        {"next_seq": 1},
        {"offsets": {"g": {"a": print_offset(1)}}},
        {"state": "prepared"},
    ],
)
def test_what_is_open_with_something_in_it_is_not_joined(facts: Any) -> None:
    again = document({"transaction_epoch": 1})
    flow = TransactionCalls(SITE, "t", "inline", 60).begin(OWNER, [])
    played = Played(flow, [LOST, again, status(**facts)])
    assert isinstance(played.error, errors.ConcurrentTransactions)
    assert played.error.other == "t"


# rows: R15
def test_an_empty_one_is_ours_unless_this_client_has_it_already() -> None:
    again = document({"transaction_epoch": 1})
    unresolved: dict[str, TransactionCalls] = {}
    txn = TransactionCalls(SITE, "t", "inline", 60, unresolved)
    play(txn.begin(OWNER, ["a"]), again, status(streams={"a": {"messages": 0}}))
    assert txn.state == "open"
    second = TransactionCalls(SITE, "t", "inline", 60, unresolved)
    assert isinstance(Played(second.begin(OWNER, []), [again]).error, errors.ConcurrentTransactions)
    txn.remove()
    assert unresolved == {}


def test_a_transaction_that_makes_no_sense_is_refused_here() -> None:
    with pytest.raises(ValueError, match="kind"):
        TransactionCalls(SITE, "t", "other", 60)
    for seconds in (0, 901):
        with pytest.raises(ValueError, match="timeout"):
            TransactionCalls(SITE, "t", "inline", seconds)
    txn = TransactionCalls(SITE, "t", "inline", 60)
    for flow in (append(txn, 1), txn.commit(), txn.abort(), txn.prepare()):
        with pytest.raises(errors.InvalidTransactionState, match="has not begun"):
            play(flow)


def test_another_server_has_no_transactions() -> None:
    txn = TransactionCalls(SITE, "t", "inline", 60)
    assert isinstance(
        Played(txn.begin(OWNER, []), [answer(404, b"none")]).error, errors.NotSupported
    )


def test_a_client_registers_an_id_once_and_lends_its_own_to_one_at_a_time() -> None:
    known = ProducerPool()
    assert known.take("p") is None
    known.add("p", OWNER)
    assert known.take("p") is known.take("p") is OWNER
    lent = known.add(None, Registration("1", 0))
    assert known.take(None) is None
    known.give_back(None, lent, {"b", "a"})
    known.give_back("p", OWNER, {"a"})
    assert (known.take(None), known.take(None)) == (lent, None)
    assert check_owner("p", None) is None
    assert check_owner("p", 3) == OWNER
    with pytest.raises(ValueError, match="producer_id"):
        check_owner(None, 3)


def test_generated_ids_that_no_transaction_uses_are_retired_last_of_all() -> None:
    known = ProducerPool()
    assert known.remove_idle() == []
    first, second = (known.add(None, Registration(name, 0)) for name in ("1", "2"))
    known.give_back(None, first, {"b", "a"})
    known.take(None)
    known.give_back(None, first, {"c"})
    known.give_back("p", OWNER, {"a"})
    assert known.remove_idle() == [RetireEntry("1", path, 0) for path in ("a", "b", "c", None)]
    assert known.remove_idle() == []
    known.give_back(None, second, ())
    assert known.remove_idle() == [RetireEntry("2", None, 0)]


# ---- appends -------------------------------------------------------------------------------------


# rows: R18
def test_appends_are_numbered_by_stream_and_sent_again_with_the_same_number() -> None:
    txn = opened()
    first = Played(append(txn, {"id": 1}), [LOST, HEAD, REPEAT])
    asked = [send.request for send in first.sends]
    assert (asked[0], asked[1].method) == (asked[2], "HEAD")
    assert first.result.duplicate
    headers = dict(first.sends[0].request.headers)
    assert headers == {
        "Content-Type": "application/json",
        "Producer-Id": "p",
        "Producer-Seq": "0",
        "Producer-Epoch": "3",
        "Transaction-Id": "t/1",
        "Transaction-Epoch": "7",
    }
    numbers = []
    for path in ("orders", "other", "orders"):
        (sent,) = Played(append(txn, 1, path=path), [STORED]).sends
        numbers.append(dict(sent.request.headers)["Producer-Seq"])
    assert numbers == ["1", "0", "2"]


def test_staged_appends_are_numbered_over_all_streams() -> None:
    txn = opened("staged")
    found = []
    for path in ("a", "b", "a"):
        played = Played(append(txn, 1, path=path), [answer(200, transaction_next_seq="1")])
        assert played.result.next_offset is None
        found.append(dict(played.sends[0].request.headers))
    assert [headers["Transaction-Seq"] for headers in found] == ["0", "1", "2"]
    assert "Producer-Id" not in found[0]


def test_a_yes_without_the_next_number_is_not_believed() -> None:
    (staged, inline) = opened("staged"), opened()
    for txn, missing in ((staged, "Transaction-Next-Seq"), (inline, "Stream-Next-Offset")):
        error = Played(append(txn, 1), [answer(200)]).error
        assert isinstance(error, errors.ProtocolError)
        assert missing in str(error)


def test_a_refused_append_does_not_use_its_number() -> None:
    txn = opened()
    refused = Played(append(txn, 1), [problem(409, "PARTITION_NOT_IN_TXN")])
    assert isinstance(refused.error, errors.PartitionNotInTransaction)
    with pytest.raises(TypeError):
        play(txn.append(calls(content_type="text/plain"), [1], NONE))
    (sent,) = Played(append(txn, 1), [STORED]).sends
    assert dict(sent.request.headers)["Producer-Seq"] == "0"


@pytest.mark.parametrize("ending", ["no answer", "another payload", "given up"])
def test_a_transaction_with_an_append_in_doubt_can_only_be_aborted(ending: str) -> None:
    txn = opened()
    if ending == "no answer":
        lost = Played(append(txn, 1), [LOST, False]).error
        assert isinstance(lost, errors.Indeterminate)
        assert "abort the transaction and run it again" in lost.advice
    elif ending == "another payload":
        other = answer(204, stream_next_offset="1", producer_payload_mismatch="true")
        assert isinstance(Played(append(txn, 1), [other]).error, errors.PayloadMismatch)
    else:
        next(append(txn, 1))  # sent, but the flow is not continued
    for flow in (append(txn, 2), txn.prepare(), txn.commit()):
        with pytest.raises(errors.InvalidTransactionState, match="abort the transaction"):
            play(flow)
    play(txn.abort(), document({}))
    assert txn.state == "aborted"


# ---- decisions -----------------------------------------------------------------------------------


# rows: R16, R19, R20
def test_every_call_says_whose_transaction_it_is() -> None:
    txn = opened()
    played = [
        Played(txn.add_streams(["b"]), [document({})]),
        Played(txn.add_offsets("g", {"a": 5}), [document({})]),
        Played(txn.prepare(), [document({"token": "t/1:7"})]),
        Played(txn.commit(), [document(DONE)]),
    ]
    owner = {"producer_id": "p", "producer_epoch": 3, "transaction_epoch": 7}
    sent = [(one.sends[0].request.target, body_of(one.sends[0])) for one in played]
    start = "/v1/transactions/t%2F1/"
    move = {"from": print_offset(0), "to": print_offset(5), "version": 0}
    assert sent == [
        (start + "streams", {**owner, "streams": ["b"]}),
        (start + "offsets", {**owner, "group": "g", "offsets": {"a": move}}),
        (start + "prepare", owner),
        (start + "commit", owner),
    ]
    assert played[2].result == "t/1:7"
    assert txn.state == "committed"


# rows: R20
def test_a_lost_answer_to_a_commit_is_asked_for_until_it_is_known() -> None:
    txn = opened()
    stream = {"first_offset": "0", "next_offset": "2", "messages": 1}
    told = document({**DONE, "duplicate": True, "streams": {"a": stream}})
    result = play(txn.commit(), LOST, NotSent("no"), answer(502), told)
    assert result.streams == {"a": StreamResult("0", "2", 1)}
    assert play(txn.commit()) is txn.result is result


def test_a_commit_nobody_has_answered_says_how_to_find_out() -> None:
    txn = opened()
    played = Played(txn.commit(), [LOST, False])
    assert isinstance(played.error, errors.Indeterminate)
    assert played.error.applied == "unknown"
    assert "transaction_status('t/1:7')" in played.error.advice
    assert txn.state == "deciding"
    assert play(txn.commit(), document(DONE)).duplicate is False
    assert txn.state == "committed"


@pytest.mark.parametrize(
    ("code", "facts", "expected", "state"),
    [
        ("TRANSACTION_TIMED_OUT", {}, errors.TransactionTimedOut, "aborted"),
        ("txn_aborted", {"reason": "operator"}, errors.TransactionAborted, "aborted"),
        ("txn_aborted", {"reason": "fenced"}, errors.TransactionFenced, "aborted"),
        ("PRODUCER_FENCED", {"current_epoch": 4}, errors.TransactionFenced, "open"),
        ("INVALID_TXN_STATE", {"state": "aborted"}, errors.InvalidTransactionState, "aborted"),
        (
            "INVALID_TXN_STATE",
            {"state": "aborted", "reason": "fenced"},
            errors.TransactionFenced,
            "aborted",
        ),
        ("INVALID_TXN_STATE", {"state": "sink"}, errors.InvalidTransactionState, "open"),
        ("INVALID_TXN_ID", {}, errors.UnknownTransaction, "open"),
        ("stream_closed", {"stream": "a"}, errors.StreamClosed, "open"),
    ],
)
def test_what_a_refused_commit_means(code: str, facts: Any, expected: type, state: str) -> None:
    txn = opened()
    status = 404 if code == "INVALID_TXN_ID" else 409
    played = Played(txn.commit(), [problem(status, code, **facts)])
    assert type(played.error) is expected
    assert txn.state == state


# rows: R43
def test_what_is_permanent_is_not_tried_again_and_what_passes_is() -> None:
    txn = opened()
    fenced = Played(txn.commit(), [problem(403, "PRODUCER_FENCED")])
    assert len(fenced.sends) == 1
    assert isinstance(fenced.error, errors.ProducerFenced)
    assert isinstance(fenced.error, errors.TransactionRefused)
    assert play(txn.commit(), problem(503, "overloaded"), document(DONE)) is not None


def test_an_abort_is_done_once_and_a_committed_one_cannot_be() -> None:
    txn = opened()
    play(txn.abort(), LOST, document({}))
    play(txn.abort())
    late = opened()
    assert isinstance(
        Played(late.abort(), [problem(409, "txn_committed")]).error, errors.TransactionCommitted
    )
    assert late.state == "committed"
    assert late.is_ended


def test_a_prepared_one_is_decided_by_its_token() -> None:
    played = Played(txn_calls.end_transaction_call(SITE, "a:b:2", "commit"), [document(DONE)])
    (sent,) = played.sends
    assert sent.request.target == "/v1/transactions/a%3Ab/commit"
    assert body_of(sent) == {"transaction_epoch": 2}
    doubt = Played(txn_calls.end_transaction_call(SITE, "a:2", "abort"), [LOST, False]).error
    assert isinstance(doubt, errors.Indeterminate)
    assert "transaction_status" in doubt.advice
    for token in ("", "a", ":1", "a:", "a:x"):
        with pytest.raises(ValueError, match="token"):
            parse_token(token)


def test_the_status_of_a_transaction_is_asked_for_by_token_or_id() -> None:
    told = document({"transaction_id": "t", "transaction_epoch": 2, "state": "aborted"})
    by_token = Played(txn_calls.status(SITE, "t:2"), [told])
    assert by_token.sends[0].request.target == "/v1/transactions/t?epoch=2"
    assert by_token.result.state == "aborted"
    by_id = Played(txn_calls.status(SITE, "t"), [told])
    assert by_id.sends[0].request.target == "/v1/transactions/t"
    strange = Played(txn_calls.status(SITE, "t:2"), [problem(404, "INVALID_TXN_ID"), told])
    assert strange.sends[1].request.target == "/v1/transactions/t%3A2"


# ---- one-shot commits ----------------------------------------------------------------------------


def known(**types: str) -> KnownStreams:
    found = KnownStreams(SITE)
    for path, content_type in types.items():
        found.calls(path).content_type = content_type
    return found


def test_a_commit_says_all_of_it_in_one_request() -> None:
    streams = known(a="application/json", b="text/plain", c="application/octet-stream")
    parts = Parts(
        {"a": [{"x": 1}, b"[2, 3]"], "b": ["text"], "c": [b"ok", b"\xff"], "a/none": []},
        {"g": {"a": 1, "b": (2, print_offset(3))}},
        {"a": 4},
        ["t:1"],
    )
    streams.calls("a/none").content_type = "text/plain"
    flow = commit_calls.commit_parts(streams, CommitId("p", 1, 2), parts)
    played = Played(flow, [LOST, document({**DONE, "duplicate": True})])
    assert played.result.duplicate
    assert len({send.request for send in played.sends}) == 1
    assert body_of(played.sends[0]) == {
        "producer_id": "p",
        "producer_epoch": 1,
        "producer_seq": 2,
        "appends": [
            {"stream": "a", "messages": [{"x": 1}, [2, 3]]},
            {"stream": "b", "messages": ["text"]},
            {"stream": "c", "messages": ["ok", {"base64": "/w=="}]},
        ],
        "offsets": {
            "g": {"a": print_offset(1), "b": {"from": print_offset(2), "to": print_offset(3)}}
        },
        "if": {"a": print_offset(4)},
        "transactions": [{"id": "t", "epoch": 1}],
    }


def test_a_commit_nobody_has_answered_is_to_be_sent_again() -> None:
    flow = commit_calls.commit_parts(known(), CommitId("p", 0, 0), Parts(expects={"a": 0}))
    error = Played(flow, [LOST, False]).error
    assert isinstance(error, errors.Indeterminate)
    assert "the same producer_id, epoch and seq" in error.advice


@pytest.mark.parametrize("value", [b"1]}", b"1,2", b"", b"{"])
def test_bytes_that_are_no_json_do_not_tear_the_document(value: bytes) -> None:
    flow = commit_calls.commit_parts(
        known(a="application/json"), CommitId("p", 0, 0), Parts({"a": [value]})
    )
    with pytest.raises(ValueError, match="not JSON"):
        play(flow)


@pytest.mark.parametrize("values", ["text", b"bytes", {"a": 1}])
def test_one_value_where_a_list_is_due_is_refused(values: Any) -> None:
    flow = commit_calls.commit_parts(
        known(a="application/json"), CommitId("p", 0, 0), Parts({"a": values})
    )
    with pytest.raises(TypeError, match="a list of values"):
        play(flow)


def test_results_that_are_no_longer_held_are_none() -> None:
    told = document({"duplicate": True, "streams": None, "offsets": None, "deleted": None})
    flow = commit_calls.commit_parts(known(), CommitId("p", 0, 0), Parts(expects={"a": 0}))
    assert play(flow, told) == CommitResult(duplicate=True)


def test_a_number_that_was_used_for_something_else_is_an_error() -> None:
    body = msgspec.json.encode({**DONE, "duplicate": True})
    told = answer(
        200, body, content_type="application/json", **{"producer-payload-mismatch": "true"}
    )
    flow = commit_calls.commit_parts(known(), CommitId("p", 0, 7), Parts(expects={"a": 0}))
    with pytest.raises(errors.PayloadMismatch, match="used sequence 7 for a different commit"):
        play(flow, told)


@pytest.mark.parametrize("offset", [None, -1, "-1", "now", "x"])
def test_what_is_no_offset_moves_nobody(offset: Any) -> None:
    with pytest.raises(ValueError, match="not an offset"):
        offset_of(offset)


# ---- groups --------------------------------------------------------------------------------------


def standing(**offsets: int) -> Any:
    printed = {path: print_offset(offset) for path, offset in offsets.items()}
    return document({"group": "g", "offsets": printed})


def conflict(offset: int, **more: str) -> Any:
    facts = {"group": "g", "stream": "orders", "offset": print_offset(offset), **more}
    return problem(409, "position_conflict", **facts)


def message(next_offset: int | str | None) -> Message:
    return Message(b"1", "application/json", None, next_offset)


def test_a_group_is_moved_by_stream() -> None:
    replies = [standing(x=0), standing(x=1)]
    played = Played(group_calls.set_positions(SITE, "a b", {"x": 1}), replies)
    assert played.sends[0].request.target == "/v1/groups/a%20b/offsets"
    assert played.result.offsets == {"x": print_offset(1)}
    with pytest.raises(ValueError, match="no position is given"):
        play(group_calls.set_positions(SITE, "g", {}))
    with pytest.raises(ValueError, match="name"):
        play(group_calls.positions(SITE, ""))


def test_a_move_whose_answer_was_lost_is_done_if_the_group_stands_there() -> None:
    moves = {"orders": (0, 1)}
    wanted = {"orders": print_offset(1)}
    flow = group_calls.set_positions(SITE, "g", moves)
    assert play(flow, LOST, conflict(1), standing(orders=1)).offsets == wanted
    elsewhere = Played(
        group_calls.set_positions(SITE, "g", moves), [LOST, conflict(2), standing(orders=2)]
    )
    assert isinstance(elsewhere.error, errors.PositionConflict)
    anew = Played(
        group_calls.set_positions(SITE, "g", {"orders": (0, 1, "i1")}),
        [LOST, conflict(1, incarnation="i2")],
    )
    assert isinstance(anew.error, errors.PositionConflict)
    assert anew.error.incarnation == "i2"
    other = Played(group_calls.set_positions(SITE, "g", moves), [LOST, problem(404, "stream_gone")])
    assert isinstance(other.error, errors.StreamGone)


def cursor_at(offset: int = 0) -> GroupCursor:
    cursor = GroupCursor(SITE, "g", "orders", KnownPositions())
    cursor.position.offset = offset
    return cursor


def group_reader(cursor: GroupCursor, on_commit: Any) -> GroupReader:
    return GroupReader(calls(), "-1", cursor, on_commit, isolation="read_committed")


def test_a_message_moves_the_group_from_where_it_stood() -> None:
    cursor = cursor_at(2)
    moved = Played(cursor.move(message(5)), [standing(orders=5)])
    move = {"from": print_offset(2), "to": print_offset(5), "version": 0}
    assert body_of(moved.sends[0]) == {"offsets": {"orders": move}}
    play(cursor.move(message(4)))  # already committed by the later message
    refused = Played(cursor.move(message(print_offset(6))), [conflict(9)])
    assert isinstance(refused.error, errors.PositionConflict)
    assert (refused.error.group, refused.error.stream) == ("g", "orders")
    assert refused.error.offset == print_offset(9)
    with pytest.raises(ValueError, match="next_offset"):
        play(cursor.move(message(None)))
    with pytest.raises(ValueError, match="group"):
        message(1).commit()


def test_a_move_in_doubt_is_found_by_the_next_one() -> None:
    cursor = cursor_at()
    assert isinstance(Played(cursor.move(message(1)), [LOST, False]).error, errors.Indeterminate)
    after = Played(cursor.move(message(2)), [conflict(1), standing(orders=2)])
    assert body_of(after.sends[1]) == {
        "offsets": {"orders": {"from": print_offset(1), "to": print_offset(2)}}
    }
    # A move that an earlier attempt has made is not made again.
    next(cursor.move(message(5)))
    play(cursor.move(message(4)), conflict(5))
    play(cursor.move(message(5)))


def test_a_move_in_doubt_is_not_found_in_another_stream() -> None:
    cursor = cursor_at()
    cursor.position.incarnation = "i1"
    Played(cursor.move(message(1)), [LOST, False])
    after = Played(cursor.move(message(2)), [conflict(1, incarnation="i2")])
    assert isinstance(after.error, errors.PositionConflict)
    assert len(after.sends) == 1


def test_a_message_moves_the_group_only_in_the_stream_it_was_read_from() -> None:
    cursor = cursor_at()
    reader = group_reader(cursor, None)
    first = frames(b"1", stream_incarnation="i1")
    played = Played(reader.next_page(), [standing(), first])
    (sent,) = Played(cursor.move(played.result[0]), [standing(orders=1)]).sends
    move = {"from": print_offset(0), "to": print_offset(1), "incarnation": "i1", "version": 0}
    assert body_of(sent) == {"offsets": {"orders": move}}


def test_a_tail_of_a_group_begins_where_it_stands() -> None:
    seen: list[Message] = []
    cursor = cursor_at()
    reader = group_reader(cursor, lambda message, _metadata: seen.append(message))
    played = Played(reader.next_page(), [standing(orders=3), frames(b"3", start=3)])
    assert "offset=0000000000000000_0000000000000003&" in played.sends[1].request.target
    played.result[0].commit()
    assert seen == played.result
    fresh = group_reader(cursor, lambda message, _metadata: seen.append(message))
    sent = Played(fresh.next_page(), [standing(), frames(b"1")]).sends
    assert "offset=-1&" in sent[1].request.target
    with pytest.raises(ValueError, match="sse"):
        GroupReader(calls(), "-1", cursor, print, live="sse", isolation="read_committed")


# ---- isolation -----------------------------------------------------------------------------------


# rows: R31, R32, R33
def test_only_decided_messages_are_asked_for_unless_told_otherwise() -> None:
    reader = PageReader(calls(), "-1", is_live=False)
    sent = Played(reader.next_page(), [frames(b"1")]).sends[0]
    assert sent.request.target == "/v1/stream/orders?offset=-1&isolation=read_committed"
    raw = PageReader(calls(), "-1", is_live=False, isolation="read_uncommitted")
    assert "isolation" not in Played(raw.next_page(), [frames(b"1")]).sends[0].request.target
    with pytest.raises(ValueError, match="isolation"):
        PageReader(calls(), "-1", is_live=False, isolation="serializable")


def test_a_server_that_is_not_semel_is_not_told_of_isolation() -> None:
    reader = PageReader(calls(), "-1", is_live=True)
    foreign = answer(200, b"[1]", content_type="application/json", stream_next_offset="a")
    play(reader.next_page(), foreign)
    sent = Played(reader.next_page(), [answer(204, stream_next_offset="a")]).sends[0]
    assert "isolation" not in sent.request.target


# ---- processing ----------------------------------------------------------------------------------

REGISTERED = document({"producer_id": "me", "producer_epoch": 4})


def page(*bodies: bytes, start: int = 0, tail: int | None = None) -> Any:
    count = len(bodies)
    end = start + count if tail is None else tail
    return frames(*bodies, start=start, tail=end)


def begun(*inputs: str, **options: Any) -> ProcessLoop:
    found = ProcessLoop(SITE, "g", inputs, producer_id="me", **options)
    played = Played(found.begin(), [REGISTERED, standing(a=2)])
    # The older instance is fenced first, then the position of the group is read.
    targets = [send.request.target for send in played.sends]
    assert targets == ["/v1/producers", "/v1/groups/g/offsets"]
    found._known.calls("out").content_type = "application/json"
    return found


# rows: R40
def test_outputs_and_place_are_committed_by_one_request() -> None:
    processor = begun("a", is_live=False, max_messages=2)
    batch = play(processor.next_batch(), page(b"2", b"3", b"4", start=2))
    assert batch is not None
    assert (batch.stream, [each.value for each in batch], len(batch)) == ("a", [2, 3], 2)
    first = Played(processor.commit(batch, {"out": [5]}), [LOST, document(DONE)])
    assert len({send.request for send in first.sends}) == 1
    assert body_of(first.sends[0]) == {
        "producer_id": "me",
        "producer_epoch": 4,
        "producer_seq": 0,
        "appends": [{"stream": "out", "messages": [5]}],
        "offsets": {"g": {"a": {"from": print_offset(2), "to": print_offset(4)}}},
    }
    rest = play(processor.next_batch())
    assert rest is not None
    (sent,) = Played(processor.commit(rest, None), [document(DONE)]).sends
    assert body_of(sent) == {
        "producer_id": "me",
        "producer_epoch": 4,
        "producer_seq": 1,
        "offsets": {"g": {"a": {"from": print_offset(4), "to": print_offset(5)}}},
    }
    assert play(processor.next_batch()) is None


# rows: R40
def test_a_place_is_committed_only_in_the_stream_it_was_read_from() -> None:
    processor = begun("b", is_live=False)
    batch = play(processor.next_batch(), frames(b"1", stream_incarnation="i1"))
    assert batch is not None
    (sent,) = Played(processor.commit(batch, None), [document(DONE)]).sends
    move = {"from": print_offset(0), "to": print_offset(1), "incarnation": "i1", "version": 0}
    assert body_of(sent)["offsets"] == {"g": {"b": move}}


def next_of(processor: ProcessLoop, *replies: Any) -> InputBatch:
    batch = play(processor.next_batch(), *replies)
    assert batch is not None
    return batch


def test_a_batch_that_makes_too_much_comes_again_in_halves() -> None:
    processor = begun("b", is_live=False, max_messages=3)
    bodies = [b"1", b"2", b"3", b"4", b"5", b"6"]
    batch = next_of(processor, page(*bodies))
    too_large = problem(413, "body_too_large")
    assert play(processor.commit(batch, {"out": [1]}), too_large) is False
    sizes = []
    for number in range(3):  # the batches grow again while they fit
        batch = next_of(processor)
        sizes.append(len(batch))
        played = Played(processor.commit(batch, {"out": [1]}), [document(DONE)])
        assert played.result is True
        assert body_of(played.sends[0])["producer_seq"] == number
    assert sizes == [1, 2, 3]
    assert play(processor.next_batch()) is None


def test_a_message_that_makes_too_much_for_one_commit_is_named() -> None:
    processor = begun("b", is_live=False)
    batch = next_of(processor, page(b"1"))
    error = Played(processor.commit(batch, {"out": [1]}), [problem(413, "body_too_large")]).error
    assert isinstance(error, errors.TooLarge)
    assert f"the message at {print_offset(0)} in b" in str(error)


def test_many_messages_for_one_stream_are_sent_as_many_appends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("semel.client.commit_calls.BATCH_MESSAGES_MAX", 2)
    processor = begun("b", is_live=False)
    batch = next_of(processor, page(b"1"))
    (sent,) = Played(processor.commit(batch, {"out": [1, 2, 3]}), [document(DONE)]).sends
    parts = [{"stream": "out", "messages": [1, 2]}, {"stream": "out", "messages": [3]}]
    assert body_of(sent)["appends"] == parts


# rows: R41
@pytest.mark.parametrize(
    ("refusal", "expected"),
    [
        (problem(403, "PRODUCER_FENCED", current_epoch=5), errors.TransactionFenced),
        (conflict(7), errors.PositionConflict),
    ],
)
def test_an_instance_that_was_overtaken_stops(refusal: Any, expected: type) -> None:
    processor = begun("a")
    batch = InputBatch("a", [message(3)])
    played = Played(processor.commit(batch, {"out": [1]}), [refusal])
    assert type(played.error) is expected
    assert len(played.sends) == 1


def test_several_inputs_are_asked_in_turn() -> None:
    processor = begun("a", "b")
    empty = page(start=0, tail=0)
    first = Played(
        processor.next_batch(), [page(start=2, tail=2), empty, page(start=2, tail=2), page(b"1")]
    )
    assert first.result.stream == "b"
    assert len([step for step in first.steps if isinstance(step, Pause)]) == 1
    assert all("live" not in send.request.target for send in first.sends)
    # The other input is read next.
    second = play(processor.next_batch(), page(b"2", start=2))
    assert second is not None
    assert second.stream == "a"


def test_one_live_input_is_waited_for() -> None:
    processor = begun("a")
    quiet = page(start=2, tail=2)
    played = Played(processor.next_batch(), [quiet, page(b"1", start=2)])
    assert "live=long-poll" in played.sends[1].request.target
    assert not played.pauses


def test_processing_that_makes_no_sense_is_refused_here() -> None:
    with pytest.raises(ValueError, match="inputs"):
        ProcessLoop(SITE, "g", [])
    with pytest.raises(ValueError, match="max_messages"):
        ProcessLoop(SITE, "g", "a", max_messages=0)
    processor = begun("a")
    with pytest.raises(errors.NotSupported):
        play(processor.commit(InputBatch("a", [message(None)]), None))


def test_the_name_of_a_processor_is_that_of_its_group_and_inputs() -> None:
    name = group_producer_id("Abrechnung ü", ["b", "a"])
    assert name == group_producer_id("Abrechnung ü", ["a", "b"])
    assert name != group_producer_id("Abrechnung ü", ["a"])
    assert name.isascii()
    assert len(group_producer_id("ü" * 128, ["a"])) <= 256


def test_a_client_forgets_streams_before_they_fill_its_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(known_streams, "_KNOWN_STREAMS_MAX", 2)
    found = KnownStreams(SITE)
    first = found.calls("a")
    assert found.calls("a") is first
    for path in ("b", "c"):
        found.calls(path)
    assert found.calls("a") is not first


# ---- steps ---------------------------------------------------------------------------------------

STEP = PinnedStep(2, {"a": PinnedRange("i", print_offset(0), print_offset(5))}, "hash")
STEP_DOCUMENT = {
    "group": "g/p",
    "number": 2,
    "ranges": {"a": {"incarnation": "i", "from": print_offset(0), "to": print_offset(5)}},
    "hash": "hash",
}


@pytest.mark.parametrize("status", [200, 201])
def test_a_step_is_pinned_and_the_one_that_counts_is_told(status: int) -> None:
    played = Played(group_calls.pin(SITE, "g/p", STEP), [document(STEP_DOCUMENT, status)])
    (sent,) = played.sends
    assert sent.request.target == "/v1/groups/g%2Fp/snapshot"
    assert sent.kind is RetrySafety.REPEATABLE
    assert body_of(sent) == {name: STEP_DOCUMENT[name] for name in ("number", "ranges", "hash")}
    assert played.result == STEP


def test_a_pinned_step_is_asked_for() -> None:
    assert play(group_calls.snapshot(SITE, "g"), document(STEP_DOCUMENT)) == STEP
    assert play(group_calls.snapshot(SITE, "g"), problem(404, "snapshot_not_found")) is None
    with pytest.raises(errors.Refused):
        play(group_calls.snapshot(SITE, "g"), problem(403, "forbidden"))
