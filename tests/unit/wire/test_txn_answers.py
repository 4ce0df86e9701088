"""Responses of the calls for transactions, commits, groups and sinks."""

import json
from typing import Any

import pytest
from msgspec import to_builtins

from semel.machine.txn.draft import pack_result
from semel.machine.txn.views import (
    PositionView,
    SinkVersionView,
    SinkView,
    SnapshotView,
    TxnStreamView,
    TxnView,
)
from semel.model.commands import (
    AbortTxn,
    AddPositions,
    AddStreams,
    Commit,
    CommitTxn,
    PositionResult,
    Prepare,
    ProducerOwner,
    SinkOwner,
    SinkTag,
    SnapshotRange,
    StreamResult,
    TxnOutcome,
    TxnResult,
)
from semel.model.offsets import print_offset
from semel.model.outcomes_txn import (
    AbortDone,
    AlreadyCommitted,
    Begun,
    CommitDone,
    ExtendDone,
    Prepared,
    TooManyTransactions,
    UnknownTransaction,
    VersionForgotten,
)
from semel.model.steps import STEP_BYTES, finish
from semel.wire.commits import commit_response, sink_steps, sinks_response
from semel.wire.groups import snapshot_response
from semel.wire.rendering import Response
from semel.wire.transactions import (
    begin_response,
    call_response,
    ended_transaction,
    pending_transaction,
)

RESULT = TxnResult((StreamResult("s", 3, 6, 2),), (PositionResult("g", "s", 4),), ("gone",))
SHOWN = {
    "streams": {
        "s": {"first_offset": print_offset(3), "next_offset": print_offset(6), "messages": 2}
    },
    "offsets": {"g": {"s": print_offset(4)}},
    "deleted": ["gone"],
}
WHICH = {"transaction_id": "t", "transaction_epoch": 1}


def told(response: Response) -> tuple[int, Any]:
    return response.status, json.loads(response.body)


# rows: R14, R15
def test_a_begin_tells_the_epoch_and_the_deadline() -> None:
    found = {**WHICH, "state": "open", "deadline": "1970-01-01T00:00:01.000Z"}
    assert told(begin_response(Begun("t", 1, 1000, True))) == (201, found)
    assert told(begin_response(Begun("t", 1, 1000, False))) == (200, found)
    assert told(begin_response(Begun("t", 1, None, True)))[1]["deadline"] is None
    assert begin_response(TooManyTransactions(5)).status == 429


# rows: R16, R19, R20
def test_every_call_tells_what_became_of_it() -> None:
    assert told(call_response(ExtendDone("t", 2), AddStreams(0, "t", 1, streams=()))) == (
        200,
        {**WHICH, "stream_count": 2},
    )
    assert told(call_response(ExtendDone("t", 2), AddPositions(0, "t", 1, positions=()))) == (
        200,
        {**WHICH, "offset_count": 2},
    )
    assert told(call_response(Prepared("t", 1, "t:1"), Prepare(0, "t", 1))) == (
        200,
        {**WHICH, "state": "prepared", "token": "t:1"},
    )
    assert told(call_response(AbortDone("t", 1, "abort"), AbortTxn(0, "t", 1))) == (
        200,
        {**WHICH, "state": "aborted", "reason": "abort"},
    )
    assert told(call_response(CommitDone("t", 1, RESULT), CommitTxn(0, "t", 1))) == (
        200,
        {**WHICH, "state": "committed", "duplicate": False, **SHOWN},
    )
    assert call_response(AlreadyCommitted(), AbortTxn(0, "t", 1)).status == 409


def test_a_commit_tells_whose_it_is() -> None:
    produced = Commit(0, "p", 1, 7)
    assert told(commit_response(CommitDone(None, None, RESULT), produced)) == (
        200,
        {
            "duplicate": False,
            **SHOWN,
            "producer_id": "p",
            "producer_epoch": 1,
            "producer_seq": 7,
        },
    )
    forgotten = CommitDone(None, None, None, is_duplicate=True)
    _, found = told(commit_response(forgotten, produced))
    assert (found["duplicate"], found["streams"], found["offsets"]) == (True, None, None)
    other = CommitDone(None, None, RESULT, is_duplicate=True, is_mismatch=True)
    response = commit_response(other, produced)
    assert "a different commit" in told(response)[1]["warning"]
    assert ("Producer-Payload-Mismatch", "true") in response.headers
    sunk = Commit(0, sink=SinkTag("A", "Q", 17))
    status, found = told(commit_response(CommitDone(None, None, RESULT), sunk))
    assert (status, found) == (
        200,
        {"duplicate": False, **SHOWN, "sink": {"app": "A", "version": 17}},
    )
    unchecked = CommitDone(None, None, RESULT, is_duplicate=True, is_unchecked=True)
    assert "warning" in told(commit_response(unchecked, sunk))[1]
    assert commit_response(VersionForgotten(9), sunk).status == 409


# ---- documents -----------------------------------------------------------------------------------


# rows: R21, R35
@pytest.mark.parametrize(
    ("decision", "reason", "phase"),
    [
        ("committed", "", "CompleteCommit"),
        ("aborted", "abort", "CompleteAbort"),
        ("aborted", "timeout", "Dead"),
    ],
)
def test_a_decided_transaction_has_the_names_of_the_seed_too(
    decision: str, reason: str, phase: str
) -> None:
    outcome = TxnOutcome("t", 1, decision, reason, 5, RESULT)
    assert to_builtins(ended_transaction(outcome)) == {
        **WHICH,
        "state": decision,
        "phase": phase,
        "reason": reason or None,
        "decided_at": "1970-01-01T00:00:00.005Z",
        **SHOWN,
    }


def view(owner: ProducerOwner | SinkOwner, *, state: str = "open", touched_ms: int = 0) -> TxnView:
    streams = (TxnStreamView("s", 3, 2, 0), TxnStreamView("r", None, 0, 0))
    positions = (PositionView("g", "s", 4),)
    due_ms = 60_000 if state == "open" else None
    return TxnView(
        "t",
        1,
        9,
        "inline",
        owner,
        state,
        False,
        0,
        touched_ms,
        due_ms,
        0,
        0,
        streams,
        positions,
        (),
    )


# rows: R21
def test_an_open_transaction_tells_who_holds_what_and_since_when() -> None:
    pending = pending_transaction(view(ProducerOwner("p", 2), touched_ms=5), 7)
    assert to_builtins(pending) == {
        **WHICH,
        "number": 9,
        "kind": "inline",
        "state": "open",
        "phase": "Ongoing",
        "stuck": False,
        "producer_id": "p",
        "producer_epoch": 2,
        "implicit": False,
        "begun_at": "1970-01-01T00:00:00.000Z",
        "age_ms": 7,
        "idle_ms": 2,
        "deadline": "1970-01-01T00:01:00.000Z",
        "chunks": 0,
        "next_seq": 0,
        "streams": {
            "s": {"first_offset": print_offset(3), "messages": 2, "chunks": 0},
            "r": {"first_offset": None, "messages": 0, "chunks": 0},
        },
        "offsets": {"g": {"s": print_offset(4)}},
        "deleted": [],
    }


def test_what_nobody_touched_for_the_longest_timeout_is_stuck() -> None:
    sunk = view(SinkOwner("A", 17, 3), state="prepared")
    young, old = (to_builtins(pending_transaction(sunk, now)) for now in (899_999, 900_000))
    assert (young["stuck"], old["stuck"]) == (False, True)
    assert (old["phase"], old["deadline"]) == ("Prepared", None)
    assert old["sink"] == {"app": "A", "version": 17, "partition": 3}
    assert "producer_id" not in old


def test_a_clock_that_went_back_makes_no_negative_ages() -> None:
    early = pending_transaction(view(ProducerOwner("p", 2), touched_ms=5), -3)
    assert (early.age_ms, early.idle_ms) == (0, 0)


def test_a_step_is_shown_as_it_is_asked_for() -> None:
    pinned = SnapshotView("g", 4, (SnapshotRange("s", "i", 1, 2),), "h")
    assert told(snapshot_response(pinned)) == (
        200,
        {
            "group": "g",
            "number": 4,
            "ranges": {"s": {"incarnation": "i", "from": print_offset(1), "to": print_offset(2)}},
            "hash": "h",
        },
    )


def test_a_sink_is_shown_with_its_versions_when_asked_for_alone() -> None:
    sink = SinkView("A", "Q", 17, (SinkVersionView(17, None, pack_result(RESULT)),), 2)
    short = {"app": "A", "query_id": "Q", "last_version": 17, "open_transactions": 2}
    assert told(sinks_response([sink])) == (200, {"sinks": [short]})
    assert told(finish(sink_steps(sink))) == (
        200,
        {**short, "versions": [{"version": 17, "input": None, **SHOWN}]},
    )


def test_a_sink_with_long_results_is_shown_in_steps() -> None:
    """A step ends after STEP_BYTES of the response, so the number of steps is a measure of each."""
    streams = tuple(StreamResult(f"s{index:05}", 0, 1, 1) for index in range(500))
    version = SinkVersionView(0, None, pack_result(TxnResult(streams)))
    steps = sink_steps(SinkView("A", "Q", 17, (version,) * 20, 0))
    pauses = 0
    while True:
        try:
            next(steps)
        except StopIteration as done:
            body = done.value.body
            break
        pauses += 1
    assert pauses >= len(body) // (2 * STEP_BYTES) > 5
    assert len(json.loads(body)["versions"][19]["streams"]) == 500


def test_what_is_not_there_is_404() -> None:
    assert begin_response(UnknownTransaction()).status == 404
