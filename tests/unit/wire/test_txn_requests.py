"""The calls for transactions: valid and invalid request bodies."""

from typing import Any

import msgspec
import pytest

from semel.model.commands import (
    TXN_INLINE,
    TXN_STAGED,
    AbortTxn,
    AddPositions,
    AddStreams,
    Begin,
    CommitTxn,
    FenceTxn,
    PositionMove,
    Prepare,
    ProducerOwner,
    SinkOwner,
)
from semel.model.offsets import print_offset
from semel.wire.transactions import (
    TxnQuery,
    parse_begin,
    parse_call,
    parse_txn_epoch,
    parse_txn_query,
)
from tests.unit.wire.builders import JSON, refused

PRODUCER = {"producer_id": "p", "producer_epoch": 2}
SINK = {"app": "A", "version": 17, "partition": 3}


def begin(**document: Any) -> object:
    return parse_begin(JSON, msgspec.json.encode(document), now_ms=5)


def call(action: str, **document: Any) -> object:
    return parse_call("t", action, JSON, msgspec.json.encode(document), now_ms=5)


# rows: R14
def test_a_producer_begins_inline_unless_it_says_otherwise() -> None:
    owner = ProducerOwner("p", 2)
    assert begin(transaction_id="t", **PRODUCER) == Begin(5, "t", owner)
    assert begin(
        transaction_id="t",
        **PRODUCER,
        kind="staged",
        timeout_ms=9,
        streams=["a", "b", "a"],
        implicit=True,
    ) == Begin(5, "t", owner, TXN_STAGED, 9, ("a", "b"), True)


def test_a_task_of_a_sink_stages_and_learns_its_streams_from_its_rows() -> None:
    owner = SinkOwner("A", 17, 3)
    assert begin(transaction_id="t", sink=SINK) == Begin(
        5, "t", owner, TXN_STAGED, is_implicit=True
    )
    plain = begin(transaction_id="t", sink=SINK, implicit=False, kind="inline")
    assert plain == Begin(5, "t", owner, TXN_INLINE)


@pytest.mark.parametrize(
    ("document", "code"),
    [
        ({}, "bad_body"),
        ({"transaction_id": None}, "bad_body"),
        ({"transaction_id": "t", **PRODUCER, "more": 1}, "bad_body"),
        ({"transaction_id": "t", "sink": {**SINK, "more": 1}}, "bad_body"),
        ({"transaction_id": "t", **PRODUCER, "producer_epoch": "2"}, "bad_body"),
        ({"transaction_id": "t", **PRODUCER, "producer_epoch": 1.5}, "bad_body"),
        ({"transaction_id": "t", **PRODUCER, "implicit": 1}, "bad_body"),
        ({"transaction_id": "t", **PRODUCER, "streams": "a"}, "bad_body"),
        ({"transaction_id": "", **PRODUCER}, "invalid_request"),
        ({"transaction_id": "t\n", **PRODUCER}, "invalid_request"),
        ({"transaction_id": "t", "producer_id": "\u0085", "producer_epoch": 0}, "invalid_request"),
        ({"transaction_id": "t"}, "invalid_request"),
        ({"transaction_id": "t", "producer_id": "p"}, "invalid_request"),
        ({"transaction_id": "t", "producer_epoch": 0}, "invalid_request"),
        ({"transaction_id": "t", "sink": SINK, **PRODUCER}, "invalid_request"),
    ],
)
def test_a_begin_that_means_nothing_is_refused(document: dict[str, Any], code: str) -> None:
    assert refused(begin(**document)) == (400, code)


@pytest.mark.parametrize(
    "body", [b"[]", b"{", b"\xff", b'{"transaction_id": "\xff"}', b"[" * 99999]
)
def test_a_body_that_is_no_document_is_refused(body: bytes) -> None:
    assert refused(parse_begin(JSON, body, now_ms=5)) == (400, "bad_body")
    assert refused(parse_call("t", "commit", JSON, body, now_ms=5)) == (400, "bad_body")


def test_a_compressed_body_is_refused() -> None:
    answer = parse_begin({"content-encoding": "gzip"}, b"x", now_ms=5)
    assert refused(answer) == (415, "unsupported_encoding")


# ---- calls on an open transaction ----------------------------------------------------------------


# rows: R16, R19, R20
def test_every_call_names_its_transaction_and_who_calls() -> None:
    who = {"transaction_epoch": 1, **PRODUCER}
    head = (5, "t", 1, "p", 2, False)
    added = call("streams", **who, streams=["b", "a", "b"])
    assert added == AddStreams(*head, streams=("b", "a"))
    targets = {"a": 7, "b": print_offset(8), "c": {"to": 9, "incarnation": "i"}}
    moves = call("offsets", **who, group="g", offsets=targets)
    positions = (
        PositionMove("g", "a", 7),
        PositionMove("g", "b", 8),
        PositionMove("g", "c", 9, None, "i"),
    )
    assert moves == AddPositions(*head, positions=positions)
    assert call("prepare", **who) == Prepare(*head)
    counted = call("prepare", **who, chunks=2, messages={"a": 3})
    assert counted == Prepare(*head, chunks=2, messages=(("a", 3),))
    assert call("commit", **who) == CommitTxn(*head)
    assert call("abort", **who) == AbortTxn(*head)


def test_a_call_need_not_say_who_calls() -> None:
    assert call("commit", transaction_epoch=1) == CommitTxn(5, "t", 1)


def test_an_operator_says_so() -> None:
    assert call("abort", transaction_epoch=1, operator=True) == AbortTxn(
        5, "t", 1, None, None, True
    )
    assert call("fence", transaction_epoch=1, operator=True) == FenceTxn(
        5, "t", 1, None, None, True
    )
    assert refused(call("fence", transaction_epoch=1)) == (400, "invalid_request")


@pytest.mark.parametrize(
    ("action", "document", "code"),
    [
        ("commit", {}, "bad_body"),
        ("commit", {"transaction_epoch": True}, "bad_body"),
        ("commit", {"transaction_epoch": 1, "streams": []}, "bad_body"),
        ("abort", {"transaction_epoch": 1, "producer_id": "p"}, "invalid_request"),
        (
            "abort",
            {"transaction_epoch": 1, "producer_id": "", "producer_epoch": 0},
            "invalid_request",
        ),
        ("streams", {"transaction_epoch": 1}, "bad_body"),
        ("offsets", {"transaction_epoch": 1, "group": "g"}, "bad_body"),
        ("offsets", {"transaction_epoch": 1, "group": "g", "offsets": {"a": None}}, "bad_body"),
        (
            "offsets",
            {"transaction_epoch": 1, "group": "g", "offsets": {"a": "7"}},
            "invalid_offset",
        ),
        ("offsets", {"transaction_epoch": 1, "group": "g", "offsets": {"a": -1}}, "invalid_offset"),
        ("prepare", {"transaction_epoch": 1, "chunks": "1"}, "bad_body"),
    ],
)
def test_a_call_that_means_nothing_is_refused(
    action: str, document: dict[str, Any], code: str
) -> None:
    assert refused(call(action, **document)) == (400, code)


# ---- reading the state ---------------------------------------------------------------------------


def test_one_lists_all_or_those_of_a_state_or_stream() -> None:
    assert parse_txn_query("") == TxnQuery(None, None, 0, 100)
    assert parse_txn_query("state=stuck&stream=a%2Fb&after=7&limit=2") == TxnQuery(
        "stuck", "a/b", 7, 2
    )
    for query in (
        "state=",
        "state=gone",
        "after=x",
        "after=-1",
        "limit=0",
        "state=open&state=open",
    ):
        assert refused(parse_txn_query(query)) == (400, "invalid_query")


def test_one_looks_at_the_newest_or_at_an_epoch() -> None:
    assert parse_txn_epoch("") is None
    assert parse_txn_epoch("epoch=3") == 3
    assert refused(parse_txn_epoch("epoch=")) == (400, "invalid_query")
