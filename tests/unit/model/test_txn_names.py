"""Validation of the values in transaction commands."""

import pytest
from msgspec.structs import replace

from semel.model.commands import (
    AddPositions,
    AddStreams,
    Append,
    Batch,
    Begin,
    Commit,
    CommitAppend,
    CommitTxn,
    EngineCommand,
    ExpireTxn,
    ListedTxn,
    PinSnapshot,
    PositionMove,
    ProducerOwner,
    SetPositions,
    SinkOwner,
    SinkTag,
    SnapshotRange,
    TxnTag,
)
from semel.model.limits import NUMBER_MAX, TXN_TIMEOUT_MS_MAX
from semel.model.sink_commands import ForgetSink, RebindSink
from semel.model.validation import find_invalid_field

LONG = "x" * 257
TOO_MUCH = NUMBER_MAX + 1
BEGIN = Begin(0, "t", ProducerOwner("p", 0))
SUNK = Begin(0, "t", SinkOwner("a", 0, 0), "staged")
CALL = CommitTxn(0, "t", 1)
SINK = SinkTag("a", "q", 0, "i", "j")
COMMIT = Commit(
    0,
    "p",
    0,
    0,
    None,
    (CommitAppend("s", "t/p", Batch(b"x")), CommitAppend("s", "t/p", None, "bad")),
    (ListedTxn("t", 1),),
    (PositionMove("g", "s", 0, 1, metadata=(("n", "x" * 4088),)),),
    (("s", 0),),
)
SUNK_COMMIT = Commit(0, sink=SINK)
MOVE = PositionMove("g", "s", 0)
PIN = PinSnapshot(0, "g", 0, (SnapshotRange("s", "i", 0, 1),), "h")

SOUND: list[EngineCommand] = [
    BEGIN,
    replace(BEGIN, timeout_ms=1),
    replace(BEGIN, timeout_ms=TXN_TIMEOUT_MS_MAX, kind="staged", streams=("s",)),
    SUNK,
    CALL,
    replace(CALL, producer_id="p", producer_epoch=0),
    AddStreams(0, "t", 1, streams=("s",)),
    AddPositions(0, "t", 1, positions=(MOVE,)),
    ExpireTxn(0, "t", 1),
    COMMIT,
    SUNK_COMMIT,
    replace(SUNK_COMMIT, sink=SinkTag("a", "q", 0)),
    SetPositions(0, (MOVE,)),
    PIN,
    RebindSink(0, "a", "q", -1),
    ForgetSink(0, "a"),
    Append("s", 0, transaction=TxnTag("t", 1)),
    Append("s", 0, transaction=TxnTag("t", 1, 0)),
]

BROKEN: list[tuple[EngineCommand, str]] = [
    (replace(BEGIN, now_ms=TOO_MUCH), "now"),
    (replace(BEGIN, id=LONG), "transaction_id"),
    (replace(BEGIN, kind="other"), "kind"),
    (replace(BEGIN, timeout_ms=0), "timeout_ms"),
    (replace(BEGIN, timeout_ms=TXN_TIMEOUT_MS_MAX + 1), "timeout_ms"),
    (replace(SUNK, timeout_ms=1), "timeout_ms"),
    (replace(BEGIN, owner=ProducerOwner("", 0)), "producer_id"),
    (replace(BEGIN, owner=ProducerOwner("p", -1)), "producer_epoch"),
    (replace(SUNK, owner=SinkOwner("", 0, 0)), "sink"),
    (replace(SUNK, owner=SinkOwner("a", TOO_MUCH, 0)), "sink"),
    (replace(SUNK, owner=SinkOwner("a", 0, -1)), "sink"),
    (replace(BEGIN, streams=("s", "")), "path"),
    (replace(CALL, id=""), "transaction_id"),
    (replace(CALL, epoch=-1), "transaction_epoch"),
    (replace(CALL, producer_id=""), "producer_id"),
    (replace(CALL, producer_epoch=-1), "producer_epoch"),
    (ExpireTxn(0, "", 1), "transaction_id"),
    (AddStreams(0, "", 1, streams=()), "transaction_id"),
    (AddStreams(0, "t", 1, streams=("",)), "path"),
    (AddPositions(0, "", 1, positions=()), "transaction_id"),
    (AddPositions(0, "t", 1, positions=(PositionMove("", "s", 0),)), "group"),
    (AddPositions(0, "t", 1, positions=(PositionMove("g", "s", 0, -1),)), "positions"),
    (AddPositions(0, "t", 1, positions=(PositionMove("g", "s", 0, version=-1),)), "positions"),
    *(
        (AddPositions(0, "t", 1, positions=(replace(MOVE, metadata=metadata),)), "metadata")
        for metadata in (
            (("n", "x" * 4089),),
            (("n", 2**63),),
            (("n", -(2**63) - 1),),
            (("n", 1), ("n", 2)),
            (("\ud800", 1),),
        )
    ),
    (Commit(0), "commit"),
    (Commit(0, "p", 0, 0), "commit"),
    (replace(COMMIT, transactions=(ListedTxn("t", 1),) * 1_001), "commit"),
    (replace(COMMIT, sink=SINK), "sink"),
    (replace(COMMIT, producer_id=None), "producer"),
    (replace(COMMIT, producer_epoch=None), "producer"),
    (replace(COMMIT, producer_seq=None), "producer"),
    (replace(COMMIT, producer_seq=-1), "producer_seq"),
    (replace(COMMIT, producer_epoch=-1), "producer_epoch"),
    (replace(SUNK_COMMIT, sink=replace(SINK, app="")), "sink"),
    (replace(SUNK_COMMIT, sink=replace(SINK, query_id="")), "sink"),
    (replace(SUNK_COMMIT, sink=replace(SINK, version=-1)), "sink"),
    (replace(SUNK_COMMIT, sink=replace(SINK, input=LONG)), "sink"),
    (replace(COMMIT, appends=(CommitAppend("", None, Batch(b"x")),)), "path"),
    (replace(COMMIT, appends=(CommitAppend("s"),)), "appends"),
    (replace(COMMIT, appends=(CommitAppend("s", None, Batch(b"x", 0)),)), "batch"),
    (replace(COMMIT, transactions=(ListedTxn("", 1),)), "transactions"),
    (replace(COMMIT, transactions=(ListedTxn("t", -1),)), "transactions"),
    (replace(COMMIT, positions=(MOVE, MOVE)), "positions"),
    (replace(COMMIT, positions=(PositionMove("g", "", 0),)), "path"),
    (replace(COMMIT, positions=(PositionMove("g", "s", -1),)), "positions"),
    (replace(COMMIT, positions=(PositionMove("g", "s", 0, -1),)), "positions"),
    (replace(COMMIT, positions=(PositionMove("g", "s", 0, 1, "i" * 65),)), "incarnation"),
    (replace(COMMIT, expects=(("s", 0), ("s", 0))), "expects"),
    (replace(COMMIT, expects=(("s", -1),)), "expects"),
    (replace(COMMIT, expects=(("", 0),)), "path"),
    (SetPositions(0, ()), "positions"),
    (SetPositions(0, (MOVE, MOVE)), "positions"),
    (replace(PIN, group=LONG), "group"),
    (replace(PIN, number=-1), "number"),
    (replace(PIN, hash=""), "hash"),
    (replace(PIN, ranges=PIN.ranges * 1_001), "ranges"),
    (replace(PIN, ranges=(SnapshotRange("", "i", 0, 1),)), "ranges"),
    (replace(PIN, ranges=(SnapshotRange("s", "", 0, 1),)), "ranges"),
    (replace(PIN, ranges=(SnapshotRange("s", "i", 2, 1),)), "ranges"),
    (RebindSink(0, "a", "", 0), "sink"),
    (RebindSink(0, "a", "q", -2), "sink"),
    (ForgetSink(0, ""), "sink"),
    (Append("s", 0, transaction=TxnTag("", 1)), "transaction_id"),
    (Append("s", 0, transaction=TxnTag("t", -1)), "transaction_epoch"),
    (Append("s", 0, transaction=TxnTag("t", 1, -1)), "transaction_seq"),
]


@pytest.mark.parametrize("command", SOUND, ids=repr)
def test_what_is_within_bounds_is_let_through(command: EngineCommand) -> None:
    assert find_invalid_field(command) is None


@pytest.mark.parametrize(("command", "field"), BROKEN)
def test_a_field_out_of_bounds_is_named(command: EngineCommand, field: str) -> None:
    assert find_invalid_field(command) == field
