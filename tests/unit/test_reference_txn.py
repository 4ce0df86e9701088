"""The reference model against the tables of `transactions.md`, about one test per row."""

import pytest
from msgspec.structs import replace

from semel.model import commands as ask
from semel.model import commands as plain
from semel.model import outcomes as out
from semel.model import outcomes_txn as txn_out
from semel.model import sink_commands as sink_ask
from semel.model.commands import (
    TXN_INLINE,
    TXN_STAGED,
    Batch,
    EngineCommand,
    PositionMove,
    PositionResult,
    StreamResult,
    TxnResult,
    TxnTag,
)
from semel.model.limits import OUTCOME_HOURS
from semel.model.outcomes import Outcome
from tests.sim.reference import Model
from tests.sim.reference_txn import Bounds
from tests.unit.machine.builders import (
    JSON,
    append,
    create,
    dense,
    fork,
    hours,
    json_batch,
    sparse,
)
from tests.unit.machine.position_stories import STORIES
from tests.unit.machine.position_words import Expected, Story

MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS
OK = out.Appended


def owner(name: str = "p", epoch: int = 0) -> ask.ProducerOwner:
    return ask.ProducerOwner(name, epoch)


def begin(
    txn: str = "t",
    *,
    by: ask.Owner | None = None,
    kind: str = TXN_INLINE,
    now: int = 0,
    timeout: int | None = None,
    streams: tuple[str, ...] = (),
    implicit: bool = True,
) -> ask.Begin:
    return ask.Begin(now, txn, by or owner(), kind, timeout, streams, implicit)


def publish(
    seq: int,
    body: bytes | Batch = b"x",
    *,
    txn: str = "t",
    epoch: int = 1,
    path: str = "s",
    name: str = "p",
    producer_epoch: int = 0,
    now: int = 0,
    strict: bool = False,
) -> plain.Append:
    by = dense(seq, epoch=producer_epoch, name=name, strict=strict)
    return replace(append(body, path=path, now=now, by=by), transaction=TxnTag(txn, epoch))


def stage(
    seq: int | None,
    body: bytes | Batch = b"x",
    *,
    txn: str = "t",
    epoch: int = 1,
    path: str = "s",
    now: int = 0,
) -> plain.Append:
    return replace(append(body, path=path, now=now), transaction=TxnTag(txn, epoch, seq))


def commit(txn: str = "t", epoch: int = 1, now: int = 0) -> ask.CommitTxn:
    return ask.CommitTxn(now, txn, epoch)


def abort(txn: str = "t", epoch: int = 1, now: int = 0) -> ask.AbortTxn:
    return ask.AbortTxn(now, txn, epoch)


def prepare(txn: str = "t", epoch: int = 1, now: int = 0) -> ask.Prepare:
    return ask.Prepare(now, txn, epoch)


def one_shot(
    seq: int = 0,
    *appends: str,
    epoch: int = 0,
    listed: tuple[str, ...] = (),
    positions: tuple[PositionMove, ...] = (),
    expects: tuple[tuple[str, int], ...] = (),
) -> ask.Commit:
    return ask.Commit(
        0,
        "p",
        epoch,
        seq,
        appends=tuple(ask.CommitAppend(path, "text/plain", Batch(b"one")) for path in appends),
        transactions=tuple(ask.ListedTxn(txn, 1) for txn in listed),
        positions=positions,
        expects=expects,
    )


def sink_commit(
    version: int,
    *listed: str,
    given: str | None = None,
    previous: str | None = None,
    query: str = "q",
) -> ask.Commit:
    tag = ask.SinkTag("a", query, version, given, previous)
    return ask.Commit(0, sink=tag, transactions=tuple(ask.ListedTxn(txn, 1) for txn in listed))


def sink(txn: str, version: int = 0, *, app: str = "a", now: int = 0) -> ask.Begin:
    return begin(txn, by=ask.SinkOwner(app, version, 0), kind=TXN_STAGED, now=now)


def model_of(*commands: EngineCommand, bounds: Bounds | None = None) -> Model:
    model = Model(bounds=bounds)
    run(model, *commands)
    return model


def run(model: Model, *commands: EngineCommand) -> None:
    for command in commands:
        answer = model.execute(command)
        assert not isinstance(answer, out.Refusal), (command, answer)


def unchanged(model: Model, command: EngineCommand) -> Outcome:
    """Execute a command that must not change the state, and return its outcome."""
    before, notes = model.view(), list(model.txns.notes)
    outcome = model.execute(command)
    assert model.view() == before
    assert model.txns.notes == notes
    return outcome


def offsets(model: Model, path: str = "s", *, committed: bool = False) -> list[int]:
    return [offset for offset, _ in model.messages(path, committed=committed)]


def stable(model: Model, path: str = "s") -> int:
    return model.txns.stable(model.streams[path])


# ---- offsets and visible messages ----------------------------------------------------------------


# rows: R31, R32
def test_the_seeds_example_log() -> None:
    model = model_of(create(), append())  # 0
    run(model, begin("a"), publish(0, txn="a"))  # 1
    run(model, begin("c", by=owner("r")), publish(0, txn="c", name="r"))  # 2
    run(model, abort("a"), commit("c"), append())  # 3, 4, 5
    assert offsets(model) == [0, 1, 2, 5]
    assert offsets(model, committed=True) == [0, 2, 5]


def test_nothing_from_the_oldest_open_message_on_is_stable() -> None:
    model = model_of(create(), append(), begin(), publish(0), append())
    run(model, begin("u", by=owner("r")), publish(0, txn="u", name="r"))
    assert (stable(model), offsets(model, committed=True)) == (1, [0])
    run(model, commit())
    assert (stable(model), offsets(model, committed=True)) == (3, [0, 1, 2])
    run(model, commit("u"))
    assert (stable(model), offsets(model, committed=True)) == (6, [0, 1, 2, 3])


def test_a_decision_puts_one_control_record_into_each_stream_with_messages() -> None:
    model = model_of(create("s"), create("u"), create("v"))
    run(model, begin(streams=("s", "u", "v")), publish(0), publish(0, path="u"), publish(1))
    answer = model.execute(commit())
    streams = (StreamResult("s", 0, 3, 2), StreamResult("u", 0, 2, 1))
    assert answer == txn_out.CommitDone("t", 1, TxnResult(streams))
    assert [model.streams[path].tail for path in "suv"] == [3, 2, 0]


def test_an_aborted_extent_hides_the_transactions_messages_and_no_others() -> None:
    model = model_of(create(), begin(), publish(0), append(), publish(1), abort(), append())
    assert offsets(model, committed=True) == [1, 4]


def test_a_fork_sees_the_aborted_extents_of_its_source() -> None:
    model = model_of(create(), begin(), publish(0), abort(), append(), fork())
    assert (offsets(model, "f"), offsets(model, "f", committed=True)) == ([0, 2], [2])


# ---- begin ---------------------------------------------------------------------------------------


def test_a_sinks_transaction_is_staged() -> None:
    command = begin(by=ask.SinkOwner("a", 0, 0), kind=TXN_INLINE)
    assert unchanged(Model(), command) == out.InvalidRequest("kind")


def test_begin_again_finds_what_is_open() -> None:
    model = model_of(begin(now=5, timeout=10))
    again = replace(begin(now=9), due_ms=15)
    assert unchanged(model, again) == txn_out.Begun("t", 1, 15, is_new=False)


def test_begin_of_a_prepared_one_is_refused() -> None:
    model = model_of(begin(), prepare())
    assert unchanged(model, begin()) == txn_out.InvalidTxnState("prepared")


def test_begin_checks_the_producer() -> None:
    model = model_of(begin(by=owner(epoch=4)))
    assert unchanged(model, begin(by=owner("7"))) == out.UnknownProducer()
    assert unchanged(model, begin("u", by=owner(epoch=3))) == out.StaleEpoch(4, 3)


@pytest.mark.parametrize(
    "again",
    [
        begin(by=owner("r")),
        begin(kind=TXN_STAGED),
        begin(by=ask.SinkOwner("a", 0, 0), kind=TXN_STAGED),
    ],
)
def test_begin_of_an_id_in_other_hands_is_refused(again: ask.Begin) -> None:
    assert unchanged(model_of(begin()), again) == txn_out.ConcurrentTransactions("t")


def test_a_raised_epoch_ends_what_the_older_ones_began() -> None:
    model = model_of(create(), begin(), publish(0), begin("u", kind=TXN_STAGED))
    assert model.execute(begin(by=owner(epoch=1))) == txn_out.Begun("t", 2, MINUTE_MS, is_new=True)
    assert model.execute(commit()) == txn_out.AlreadyAborted("fenced")
    assert model.execute(commit("u")) == txn_out.AlreadyAborted("fenced")
    assert model.streams["s"].tail == 2
    assert model.registry == {"p": 1}


def test_one_inline_transaction_of_a_producer_at_a_time_unless_prepared() -> None:
    model = model_of(begin(), begin("w", kind=TXN_STAGED))
    assert unchanged(model, begin("u")) == txn_out.ConcurrentTransactions("t")
    run(model, prepare(), begin("u"))


def test_five_may_be_pending() -> None:
    model = model_of(*(begin(name, kind=TXN_STAGED) for name in "abcde"))
    assert unchanged(model, begin("f")) == txn_out.TooManyTransactions(5)


def test_begin_has_limits() -> None:
    bounds = Bounds(open_by_producers=1, open_by_sinks=1, streams=1)
    model = model_of(create("s"), create("u"), begin(), sink("k"), bounds=bounds)
    assert unchanged(model, begin("u", by=owner("r"))) == out.LimitReached("transactions", 1)
    assert unchanged(model, sink("m")) == out.LimitReached("sink_transactions", 1)
    run(model, abort())
    answer = unchanged(model, begin(streams=("s", "u")))
    assert answer == out.LimitReached("transaction_streams", 1)
    full = Model(registry_max=1)
    run(full, plain.Register(0))
    assert unchanged(full, begin()) == out.LimitReached("registry", 1)


def test_begin_names_streams_that_are_there() -> None:
    model = model_of(create(), fork(), plain.Delete("s", 0))
    gone = txn_out.StreamRefused("s", out.Gone())
    missing = txn_out.StreamRefused("z", out.NotFound())
    assert unchanged(model, begin(streams=("f", "s"))) == gone
    assert unchanged(model, begin(streams=("z", "s"))) == missing


def test_an_id_counts_its_epochs_as_long_as_an_outcome_is_known() -> None:
    model = model_of(begin(), abort(), begin(), abort(epoch=2))
    run(model, *hours(OUTCOME_HOURS))
    late_ms = 3_650 * DAY_MS
    assert model.execute(begin(now=late_ms, kind=TXN_STAGED)) == txn_out.Begun(
        "t", 3, late_ms + MINUTE_MS, is_new=True
    )
    model = model_of(begin(), abort(), *hours(OUTCOME_HOURS + 1))
    assert model.execute(begin()) == txn_out.Begun("t", 1, MINUTE_MS, is_new=True)


# ---- ownership -----------------------------------------------------------------------------------


def test_find_refuses_what_is_unknown_stale_or_someone_elses() -> None:
    model = model_of(begin(by=owner(epoch=2)))
    assert unchanged(model, commit("u")) == txn_out.UnknownTransaction()  # b
    assert unchanged(model, commit(epoch=0)) == txn_out.StaleTransaction(1)  # c
    assert unchanged(model, commit(epoch=2)) == txn_out.UnknownTransaction()  # d
    assert unchanged(model, ask.CommitTxn(0, "t", 1, "r", 2)) == txn_out.NotOwner()  # e
    assert unchanged(model, ask.CommitTxn(0, "t", 1, "p", 1)) == out.StaleEpoch(2, 1)  # f
    run(model, ask.CommitTxn(0, "t", 1, "r", 1, by_operator=True))


# rows: X25
def test_a_late_commit_cannot_end_the_next_transaction() -> None:
    model = model_of(begin(), abort(), begin())
    assert unchanged(model, commit()) == txn_out.AlreadyAborted("abort")
    assert unchanged(model, abort()) == txn_out.AbortDone("t", 1, "abort")
    assert unchanged(model, prepare()) == txn_out.InvalidTxnState("aborted", "abort")


def test_a_decision_never_changes() -> None:
    model = model_of(create(), begin(), publish(0), commit())
    again = txn_out.CommitDone("t", 1, TxnResult((StreamResult("s", 0, 2, 1),)), is_duplicate=True)
    assert unchanged(model, commit()) == again
    assert unchanged(model, abort()) == txn_out.AlreadyCommitted()
    assert unchanged(model, publish(1)) == txn_out.InvalidTxnState("committed")


def test_a_call_after_the_timeout_finds_the_transaction_aborted() -> None:
    model = model_of(create(), begin(timeout=10), publish(0, now=5))
    run(model, ask.ExpireTxn(10, "t", 1, 10))
    assert unchanged(model, publish(1, now=10)) == txn_out.TxnTimedOut()
    assert unchanged(model, commit()) == txn_out.TxnTimedOut()
    assert unchanged(model, abort()) == txn_out.AbortDone("t", 1, "timeout")
    assert model.execute(begin(now=10)) == txn_out.Begun("t", 2, 10 + MINUTE_MS, is_new=True)


# ---- adding --------------------------------------------------------------------------------------


def add(*paths: str) -> ask.AddStreams:
    return ask.AddStreams(0, "t", 1, streams=paths)


def moves(*positions: PositionMove) -> ask.AddPositions:
    return ask.AddPositions(0, "t", 1, positions=positions)


def test_streams_are_added_all_or_none_and_again_without_a_trace() -> None:
    model = model_of(create("s"), create("u"), begin(implicit=False))
    assert unchanged(model, add("s", "z")) == txn_out.StreamRefused("z", out.NotFound())
    assert unchanged(model, publish(0)) == txn_out.PartitionNotInTxn()
    assert model.execute(add("s", "u")) == txn_out.ExtendDone("t", 2)
    assert unchanged(model, add("u")) == txn_out.ExtendDone("t", 2)
    run(model, publish(0), prepare())
    assert unchanged(model, add("s")) == txn_out.InvalidTxnState("prepared")


def test_positions_move_with_the_commit_only() -> None:
    model = model_of(create(), append(), append(), begin(), moves(PositionMove("g", "s", 1)))
    assert model.execute(moves(PositionMove("g", "s", 2))) == txn_out.ExtendDone("t", 1)
    beyond = txn_out.StreamRefused("s", out.OffsetBeyondTail(2))
    assert unchanged(model, moves(PositionMove("g", "s", 3))) == beyond
    assert model.txns.positions.stored == {}
    moved = TxnResult((), (PositionResult("g", "s", 2),))
    assert model.execute(commit()) == txn_out.CommitDone("t", 1, moved)
    assert model.txns.positions.stored == {("g", 1): (2, 1, (True, "p"), ())}
    run(model, begin(), ask.AddPositions(0, "t", 2, positions=(PositionMove("g", "s", 0),)))
    other = ask.AddPositions(0, "t", 2, positions=(PositionMove("g", "s", 0, None, "other"),))
    seen = model.streams["s"].incarnation
    told = txn_out.PositionConflict("g", "s", 2, seen, 1, None, txn_out.BY_INCARNATION)
    assert unchanged(model, other) == told
    run(model, abort(epoch=2))
    assert model.txns.positions.stored == {("g", 1): (2, 1, (True, "p"), ())}


def test_additions_have_limits() -> None:
    bounds = Bounds(streams=1, positions=1)
    model = model_of(create("s"), create("u"), begin(streams=("s",)), bounds=bounds)
    assert unchanged(model, add("u")) == out.LimitReached("transaction_streams", 1)
    assert unchanged(model, publish(0, path="u")) == out.LimitReached("transaction_streams", 1)
    both = moves(PositionMove("g", "s", 0), PositionMove("h", "s", 0))
    assert unchanged(model, both) == out.LimitReached("transaction_positions", 1)  # A9c


def test_a_position_of_a_deleted_stream_still_counts() -> None:
    model = model_of(
        create(), begin(), moves(PositionMove("g", "s", 0)), bounds=Bounds(positions=1)
    )
    run(model, plain.Delete("s", 0), create())
    again = moves(PositionMove("g", "s", 0))
    assert unchanged(model, again) == out.LimitReached("transaction_positions", 1)


def test_a_stream_has_room_for_so_many_groups() -> None:
    bounds = Bounds(groups=2)
    model = model_of(
        create(), begin(), ask.SetPositions(0, (PositionMove("a", "s", 0),)), bounds=bounds
    )
    full = out.LimitReached("groups_per_stream", 2)
    two = (PositionMove("b", "s", 0), PositionMove("c", "s", 0))
    assert unchanged(model, moves(*two)) == full  # A9b: the first uses the last slot
    assert unchanged(model, ask.SetPositions(0, two)) == full
    assert unchanged(model, one_shot(0, positions=two)) == full
    known = (PositionMove("b", "s", 0), PositionMove("a", "s", 0), PositionMove("b", "s", 0, 0))
    assert model.execute(moves(*known)) == txn_out.ExtendDone("t", 2)
    run(model, ask.SetPositions(0, (PositionMove("c", "s", 0),)))
    assert unchanged(model, moves(PositionMove("d", "s", 0))) == full
    assert unchanged(model, moves(PositionMove("b", "s", 0, 0))) == txn_out.ExtendDone("t", 2)


@pytest.mark.parametrize("story", STORIES, ids=lambda story: f"{story.row}: {story.name}")
def test_a_row_about_positions(story: Story) -> None:
    model = model_of(create(), create("r"))
    for step in story.steps:
        if not isinstance(step, Expected):
            run(model, step)
        elif step.leaves_no_trace:
            assert unchanged(model, step.command) == step.outcome, step
        else:
            assert model.execute(step.command) == step.outcome, step


# ---- publishing inline ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "field"),
    [
        (replace(publish(0), close=True), "close"),
        (replace(publish(0), producer=None, key="k"), "idempotency_key"),
        (replace(publish(0), producer=None), "producer"),
        (replace(publish(0), producer=dense(0)), "producer"),
        (replace(publish(0), producer=sparse(0, epoch=0)), "producer"),
    ],
)
def test_an_inline_publish_has_one_shape(command: plain.Append, field: str) -> None:
    assert unchanged(model_of(create(), begin()), command) == out.InvalidRequest(field)


def test_the_first_publish_may_go_on_or_begin_at_zero() -> None:
    model = model_of(create(), plain.Register(0, "p"), append(by=dense(0, epoch=0)))
    run(model, append(by=dense(1, epoch=0)), begin())
    assert unchanged(model, publish(1)) == out.SequenceGap(2, 1)
    assert model.execute(publish(2)) == OK(2, 3, False, 0, 2)
    run(model, commit(), begin())
    assert model.execute(publish(0, epoch=2)) == OK(4, 5, False, 0, 0)
    assert unchanged(model, publish(0, epoch=2)) == out.Duplicate(4, 5, False, 0, 1)
    assert unchanged(model, publish(2, epoch=2)) == out.SequenceGap(1, 2)


def test_the_receipt_of_an_aborted_transaction_is_no_receipt() -> None:
    model = model_of(create(), begin(), publish(0), publish(1), abort(), begin())
    assert model.execute(publish(0, epoch=2)) == OK(3, 4, False, 0, 0)
    assert model.execute(publish(1, epoch=2)) == OK(4, 5, False, 0, 1)


def test_a_publish_with_another_payload_is_told_so() -> None:
    model = model_of(create(), begin(), publish(0))
    mismatch = out.Duplicate(0, 1, False, 0, 0, is_mismatch=True)
    assert unchanged(model, publish(0, b"y")) == mismatch
    assert unchanged(model, publish(0, b"y", strict=True)) == out.PayloadMismatch()


def test_outside_transactions_only_plain_receipts_count() -> None:
    model = model_of(create(), plain.Register(0, "p"), append(by=dense(0, epoch=0)), begin())
    run(model, publish(1), publish(2), commit())
    assert unchanged(model, append(by=dense(1, epoch=0))) == out.SequenceGap(3, 1)
    assert unchanged(model, append(by=dense(0, epoch=0))) == out.Duplicate(0, 1, False, 0, 2)
    assert model.execute(append(by=dense(3, epoch=0))) == OK(4, 5, False, 0, 3)


def test_a_sequence_that_began_again_does_not_lead_back_outside() -> None:
    model = model_of(create(), plain.Register(0, "p"))
    run(model, *(append(by=dense(n, epoch=0)) for n in range(3)), begin(), publish(0), commit())
    assert unchanged(model, append(by=dense(1, epoch=0))) == out.Duplicate(1, 2, False, 0, 2)
    assert model.execute(append(by=dense(3, epoch=0))) == OK(5, 6, False, 0, 3)


def test_a_producer_of_transactions_only_does_not_begin_at_zero_outside() -> None:
    model = model_of(create(), begin(), publish(0), commit())
    assert unchanged(model, append(by=dense(0, epoch=0))) == out.SequenceGap(1, 0)


def test_an_append_with_a_raised_epoch_fences_the_transaction_behind_its_message() -> None:
    model = model_of(create(), begin(), publish(0))
    assert model.execute(append(by=dense(0, epoch=1))) == OK(1, 2, False, 1, 0)
    assert offsets(model, committed=True) == [1]
    assert model.streams["s"].tail == 3
    assert model.execute(commit()) == txn_out.AlreadyAborted("fenced")


def test_registering_again_fences() -> None:
    model = model_of(create(), begin(), publish(0), plain.Register(0, "p"))
    assert unchanged(model, commit()) == txn_out.AlreadyAborted("fenced")
    assert unchanged(model, publish(1)) == txn_out.InvalidTxnState("aborted", "fenced")


def test_a_writing_producer_is_not_idle() -> None:
    model = model_of(create(), begin(), publish(0))
    assert unchanged(model, plain.ExpireProducer("s", 0, "p", 0)) == out.StillAlive()
    run(model, commit(), plain.ExpireProducer("s", 0, "p", 0))


# ---- publishing staged ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "field"),
    [
        (replace(stage(0), producer=dense(0, epoch=0)), "producer"),
        (replace(stage(0), stream_seq="1"), "stream_seq"),
        (replace(stage(0), if_match=0), "if_match"),
        (stage(None), "transaction_seq"),
    ],
)
def test_a_chunk_has_one_shape(command: plain.Append, field: str) -> None:
    assert unchanged(model_of(create(), begin(kind=TXN_STAGED)), command) == out.InvalidRequest(
        field
    )


def test_chunks_get_their_offsets_from_the_decision() -> None:
    model = model_of(create("s"), create("u"), begin(kind=TXN_STAGED))
    assert model.execute(stage(0, b"a")) == txn_out.Staged(1)
    run(model, stage(1, b"b", path="u"), append(b"between"), stage(2, b"c"))
    assert unchanged(model, stage(1, b"b", path="u")) == out.Duplicate(None, None, False)
    mismatch = out.Duplicate(None, None, False, is_mismatch=True)
    assert unchanged(model, stage(1, b"b")) == mismatch
    other = stage(1, b"other", path="u")
    assert unchanged(model, other) == mismatch
    assert other.transaction is not None
    strict = replace(other, transaction=replace(other.transaction, is_strict=True))
    assert unchanged(model, strict) == out.PayloadMismatch()
    assert unchanged(model, stage(4)) == out.SequenceGap(3, 4)
    assert stable(model) == 1
    result = TxnResult((StreamResult("s", 1, 3, 2), StreamResult("u", 0, 1, 1)))
    assert model.execute(commit()) == txn_out.CommitDone("t", 1, result)
    assert model.messages("s", committed=True) == [(0, b"between"), (1, b"a"), (2, b"c")]


def test_an_aborted_staged_transaction_leaves_nothing() -> None:
    model = model_of(create(), begin(kind=TXN_STAGED), stage(0), abort())
    assert (offsets(model), model.streams["s"].tail) == ([], 0)


def test_chunks_renew_the_deadline_and_inline_messages_do_not() -> None:
    model = model_of(create(), begin(kind=TXN_STAGED, timeout=10), stage(0, now=9))
    assert model.txns.open["t"].deadline_ms == 19
    model = model_of(create(), begin(timeout=10), publish(0, now=9))
    assert model.txns.open["t"].deadline_ms == 10


def test_a_chunk_meets_the_checks_of_an_append() -> None:
    model = model_of(create(), begin(kind=TXN_STAGED), bounds=Bounds(chunks=1))
    assert unchanged(model, stage(0, path="z")) == out.NotFound()
    wrong = replace(stage(0), content_type="a/b")
    assert unchanged(model, wrong) == out.ContentTypeConflict("text/plain")
    bad = replace(stage(0), batch=None, body_error="bad")
    assert unchanged(model, bad) == out.BadBody("bad")
    run(model, stage(0))
    assert unchanged(model, stage(1)) == out.LimitReached("chunks", 1)
    run(model, append(close=True))
    assert unchanged(model, stage(1)) == out.StreamClosed(1)


# ---- closed and deleted streams ------------------------------------------------------------------


def test_a_stream_in_an_inline_transaction_cannot_be_closed() -> None:
    model = model_of(create(), begin(), publish(0))
    assert unchanged(model, append(close=True)) == txn_out.StreamInTransaction("t")
    run(model, prepare())
    assert unchanged(model, append(None, close=True)) == txn_out.StreamInTransaction("t")
    run(model, commit(), append(None, close=True))


def test_a_deleted_stream_leaves_its_transactions_and_groups() -> None:
    model = model_of(create("s"), create("u"), begin(), publish(0), publish(0, path="u"))
    run(model, ask.SetPositions(0, (PositionMove("g", "s", 1),)), moves(PositionMove("g", "s", 0)))
    run(model, prepare(), plain.Delete("s", 0), create("s"))
    result = TxnResult((StreamResult("u", 0, 2, 1),), (), ("s",))
    assert model.execute(commit()) == txn_out.CommitDone("t", 1, result)
    assert (model.txns.positions.stored, model.streams["s"].tail) == ({}, 0)


def test_a_soft_deleted_stream_leaves_them_too() -> None:
    model = model_of(create(), append(), fork(), begin(), publish(0), plain.Delete("s", 0))
    assert model.execute(commit()) == txn_out.CommitDone("t", 1, TxnResult((), (), ("s",)))
    assert model.streams["s"].tail == 2


def test_a_trim_stops_at_what_is_stable() -> None:
    model = model_of(create(), append(), begin(), publish(0))
    assert unchanged(model, plain.Trim("s", 0, 2)) == txn_out.OffsetUnstable(1)
    assert unchanged(model, plain.Trim("s", 0, 3)) == out.OffsetBeyondTail(2)
    run(model, plain.Trim("s", 0, 1), abort(), plain.Trim("s", 0, 2))
    assert offsets(model, committed=True) == []


def test_a_fork_leaves_at_what_is_stable() -> None:
    model = model_of(create(), append(), begin(), publish(0), fork("f"))
    assert model.streams["f"].tail == 1
    assert unchanged(model, fork("g", offset=2)) == txn_out.OffsetUnstable(1)
    assert unchanged(model, fork("g", offset=1, sub=1)) == txn_out.OffsetUnstable(1)
    run(model, abort())
    assert unchanged(model, fork("g", offset=1, sub=1)) == out.SubOffsetInvalid()  # aborted
    assert unchanged(model, fork("g", offset=2, sub=1)) == out.SubOffsetInvalid()  # control


# ---- prepare, commit, abort, fence, expire -------------------------------------------------------


def test_prepare_compares_what_was_counted() -> None:
    model = model_of(create(kind=JSON), begin(kind=TXN_STAGED))
    run(model, replace(stage(0, json_batch(b"1", b"2")), content_type=JSON))
    short = txn_out.BranchIncomplete("t", 1, 2)
    assert unchanged(model, replace(prepare(), chunks=2)) == short
    assert unchanged(model, replace(prepare(), messages=(("s", 3),))) == short
    told = txn_out.Prepared("t", 1, "t:1")
    assert model.execute(replace(prepare(), chunks=1, messages=(("s", 2),))) == told
    assert unchanged(model, replace(prepare(), chunks=9)) == told


def test_a_prepared_one_has_no_deadline() -> None:
    model = model_of(begin(timeout=1), prepare())
    assert unchanged(model, ask.ExpireTxn(DAY_MS, "t", 1, DAY_MS)) == out.StillAlive()
    run(model, commit(now=DAY_MS))


def test_a_commit_into_a_closed_stream_leaves_the_transaction_open() -> None:
    model = model_of(create(), begin(kind=TXN_STAGED), stage(0), append(None, close=True))
    refusal = txn_out.StreamRefused("s", out.StreamClosed(0))
    assert unchanged(model, commit()) == refusal
    run(model, abort())


def test_an_operator_may_decide_for_anybody() -> None:
    model = model_of(begin())
    by_hand = ask.AbortTxn(0, "t", 1, "r", 9, by_operator=True)
    assert model.execute(by_hand) == txn_out.AbortDone("t", 1, "operator")


def test_a_fence_ends_the_transaction_and_its_owner() -> None:
    model = model_of(begin(), begin("u", kind=TXN_STAGED))
    assert model.execute(ask.FenceTxn(0, "t", 1)) == txn_out.AbortDone("t", 1, "operator")
    assert model.execute(commit("u")) == txn_out.AlreadyAborted("fenced")
    assert unchanged(model, begin()) == out.StaleEpoch(1, 0)
    assert unchanged(model, ask.FenceTxn(0, "t", 1)) == txn_out.AbortDone("t", 1, "operator")
    run(model, sink("k"), ask.FenceTxn(0, "k", 1))


def test_a_deadline_ends_a_transaction_and_not_before() -> None:
    model = model_of(begin(timeout=10))
    assert unchanged(model, ask.ExpireTxn(DAY_MS, "t", 1, 9)) == out.StillAlive()
    assert unchanged(model, ask.ExpireTxn(10, "t", 2, 10)) == txn_out.UnknownTransaction()
    assert model.execute(ask.ExpireTxn(0, "t", 1, 10)) == txn_out.AbortDone("t", 1, "timeout")


def test_a_sinks_transaction_is_reaped_when_nobody_touches_it_for_a_day() -> None:
    model = model_of(create(), sink("k"), stage(0, txn="k", now=5), prepare("k", now=7))
    assert unchanged(model, ask.ExpireTxn(DAY_MS + 6, "k", 1, DAY_MS - 1)) == out.StillAlive()
    answer = model.execute(ask.ExpireTxn(DAY_MS + 7, "k", 1, DAY_MS))
    assert answer == txn_out.AbortDone("k", 1, "reaped")
    assert unchanged(model, sink_commit(0, "k")) == txn_out.BranchMissing("k")


def test_old_outcomes_of_a_producer_are_let_go() -> None:
    model = model_of(begin(), abort(), begin("u"), abort("u"), bounds=Bounds(outcomes=1))
    assert unchanged(model, abort()) == txn_out.UnknownTransaction()


# rows: X25
def test_an_id_that_was_forgotten_begins_above_all_its_producer_had() -> None:
    model = model_of(begin(), abort(), begin("u"), abort("u"), bounds=Bounds(outcomes=1))
    assert model.execute(begin()).epoch == 2  # type: ignore[attr-defined]
    assert unchanged(model, abort()) == txn_out.StaleTransaction(2)
    assert model.copy().execute(begin("x", by=owner("q"))).epoch == 1  # type: ignore[attr-defined]


# ---- one-shot commits ----------------------------------------------------------------------------


def test_a_one_shot_commit_appends_moves_and_decides_in_one_step() -> None:
    model = model_of(create("s"), create("u"), begin(kind=TXN_STAGED), stage(0, b"chunk"))
    command = one_shot(0, "s", "u", "s", listed=("t",), positions=(PositionMove("g", "s", 3),))
    streams = (StreamResult("s", 0, 3, 3), StreamResult("u", 0, 1, 1))
    result = TxnResult(streams, (PositionResult("g", "s", 3),))
    assert model.execute(command) == txn_out.CommitDone(None, None, result)
    again = txn_out.CommitDone(None, None, result, is_duplicate=True)
    assert unchanged(model, command) == again
    assert [body for _, body in model.messages("s")] == [b"one", b"one", b"chunk"]
    own = TxnResult((StreamResult("s", 2, 3, 1),))
    assert unchanged(model, commit()) == txn_out.CommitDone("t", 1, own, is_duplicate=True)


def test_a_one_shot_commit_checks_its_producer_and_sequence() -> None:
    model = model_of(create())
    assert unchanged(model, one_shot(0)) == out.InvalidRequest("appends")
    twice = one_shot(0, "s", expects=(("s", 0), ("s", 0)))
    assert unchanged(model, twice) == out.InvalidRequest("expects")
    assert unchanged(model, one_shot(1, "s")) == out.EpochMustStartAtZero(1)
    run(model, one_shot(0, "s", epoch=1), one_shot(1, "s", epoch=1))
    assert unchanged(model, one_shot(2, "s")) == out.StaleEpoch(1, 0)
    assert unchanged(model, one_shot(3, "s", epoch=1)) == out.SequenceGap(2, 3)
    run(model, one_shot(0, "s", epoch=2))


def test_old_results_are_let_go_but_not_the_sequence() -> None:
    model = model_of(create(), one_shot(0, "s"), one_shot(1, "s"), bounds=Bounds(results=1))
    answer = unchanged(model, one_shot(0, "s"))
    assert answer == txn_out.CommitDone(None, None, None, is_duplicate=True)


def test_a_one_shot_commit_lists_staged_transactions_of_its_owner_once() -> None:
    model = model_of(create(), begin(), begin("o", by=owner("r"), kind=TXN_STAGED), sink("k"))
    run(model, begin("d", kind=TXN_STAGED), abort("d"), begin("e", kind=TXN_STAGED))

    def listing(*names: str) -> Outcome:
        return unchanged(model, one_shot(0, listed=names))

    assert listing("t") == txn_out.InvalidTxnState("inline")
    assert listing("o") == txn_out.NotOwner()
    assert listing("k") == txn_out.NotOwner()
    assert listing("d") == txn_out.AlreadyAborted("abort")
    assert listing("z") == txn_out.UnknownTransaction()
    assert listing("e", "e") == out.InvalidRequest("transactions")


def test_a_one_shot_commit_checks_its_streams() -> None:
    model = model_of(create("s"), create("c", closed=True), create("j", kind=JSON))
    run(model, begin("t", kind=TXN_STAGED), create("x"), stage(0, path="x"))
    run(model, append(None, path="x", close=True))

    def refused(command: ask.Commit) -> out.Refusal:
        answer = unchanged(model, command)
        assert isinstance(answer, txn_out.StreamRefused)
        return answer.cause

    assert refused(one_shot(0, "z")) == out.NotFound()
    assert refused(one_shot(0, "s", expects=(("s", 1),))) == out.PreconditionFailed(0)
    assert refused(one_shot(0, "c")) == out.StreamClosed(0)
    assert refused(one_shot(0, "j")) == out.ContentTypeConflict(JSON)
    assert refused(one_shot(0, listed=("t",))) == out.StreamClosed(0)
    bad = ask.CommitAppend("s", "text/plain", None, "bad")
    assert refused(replace(one_shot(0), appends=(bad,))) == out.BadBody("bad")


def test_positions_compare_and_set() -> None:
    model = model_of(create(), append(), append())
    wrong = one_shot(0, positions=(PositionMove("g", "s", 1, 1),))
    assert unchanged(model, wrong) == txn_out.PositionConflict("g", "s", 0)  # wrong offset
    run(model, one_shot(0, positions=(PositionMove("g", "s", 1, 0),)))
    far = one_shot(1, "s", positions=(PositionMove("g", "s", 4, 1),))
    assert unchanged(model, far) == txn_out.StreamRefused("s", out.OffsetBeyondTail(3))
    back = ask.SetPositions(0, (PositionMove("g", "s", 0, 1), PositionMove("h", "s", 2)))
    assert model.execute(back) == txn_out.PositionsSet((2, 1))
    found = model.txns.positions.stored
    assert found == {("g", 1): (0, 2, (True, "p"), ()), ("h", 1): (2, 1, None, ())}
    lost = ask.SetPositions(0, (PositionMove("g", "z", 0),))
    assert unchanged(model, lost) == txn_out.StreamRefused("z", out.NotFound())


# ---- sinks ---------------------------------------------------------------------------------------


def test_a_sinks_version_is_committed_once() -> None:
    model = model_of(create(), sink("k", 3), stage(0, txn="k"), prepare("k"))
    result = TxnResult((StreamResult("s", 0, 1, 1),))
    assert model.execute(sink_commit(3, "k", given="A")) == txn_out.CommitDone(None, None, result)
    again = txn_out.CommitDone(None, None, result, is_duplicate=True)
    assert unchanged(model, sink_commit(3, "other", given="A")) == again
    assert unchanged(model, sink_commit(3, given="B")) == txn_out.CheckpointDiverged(3)
    unchecked = replace(again, is_unchecked=True)
    assert unchanged(model, sink_commit(3)) == unchecked
    assert unchanged(model, sink_commit(3, given="A", query="r")) == txn_out.AppBound("q")
    assert unchanged(model, sink_commit(2, given="A")) == txn_out.VersionForgotten(3)
    assert unchanged(model, sink_commit(4, previous="B")) == txn_out.CheckpointDiverged(3)
    run(model, sink_commit(4, given="C", previous="A"))
    assert unchanged(model, sink_commit(3)) == txn_out.CheckpointDiverged(4)


def test_old_versions_are_forgotten() -> None:
    model = model_of(sink_commit(0, given="A"), sink_commit(1), bounds=Bounds(versions=1))
    assert unchanged(model, sink_commit(0, given="A")) == txn_out.VersionForgotten(1)


def test_a_sink_lists_prepared_transactions_of_its_own() -> None:
    model = model_of(create(), sink("k", 1), begin(), sink("b", app="b"), prepare("b"))
    run(model, stage(0, txn="k"), sink("n", 2), prepare("n"))
    assert unchanged(model, sink_commit(1, "k")) == txn_out.BranchIncomplete("k", 1, 1)
    assert unchanged(model, sink_commit(1, "t")) == txn_out.NotOwner()
    assert unchanged(model, sink_commit(1, "b")) == txn_out.NotOwner()
    assert unchanged(model, sink_commit(1, "n")) == txn_out.NotOwner()
    assert unchanged(model, sink_commit(1, "z")) == txn_out.BranchMissing("z")
    assert unchanged(model, commit("k")) == txn_out.InvalidTxnState("sink")


def test_a_sink_does_not_commit_into_a_stream_that_is_gone_or_made_anew() -> None:
    model = model_of(create(), sink("k", 1), stage(0, txn="k"), prepare("k"), plain.Delete("s", 0))
    missing = txn_out.StreamRefused("s", out.NotFound())
    assert unchanged(model, sink_commit(1, "k")) == missing
    run(model, create(now=7))
    conflict = txn_out.IncarnationConflict("s", "i-s-7")
    assert unchanged(model, sink_commit(1, "k")) == conflict
    run(model, fork(), plain.Delete("s", 0))
    assert unchanged(model, sink_commit(1, "k")) == txn_out.StreamRefused("s", out.Gone())


def test_a_sinks_commit_drops_what_it_does_not_list() -> None:
    model = model_of(sink("k", 1), prepare("k"), sink("old", 1), sink("new", 2), sink("b", app="b"))
    run(model, sink_commit(1, "k"))
    assert sorted(model.txns.open) == ["b", "new"]
    assert unchanged(model, abort("old")) == txn_out.AbortDone("old", 1, "superseded")
    assert unchanged(model, abort("k")) == txn_out.AlreadyCommitted()
    run(model, sink_commit(2))
    assert unchanged(model, abort("k")) == txn_out.UnknownTransaction()


def test_a_sink_may_be_rebound_and_forgotten() -> None:
    model = model_of(sink_commit(1, given="A"), sink_commit(2, given="B"))
    back = sink_ask.RebindSink(0, "a", model.commits.sinks["a"].query_id, 1)
    run(model, back)
    assert unchanged(model, sink_commit(2, previous="B")) == txn_out.CheckpointDiverged(1)
    run(model, sink_commit(2, previous="A"), sink_ask.RebindSink(0, "a", "r", 1))
    assert unchanged(model, sink_commit(1, given="A", query="r")) == txn_out.VersionForgotten(1)
    run(model, sink_commit(2, previous="any", query="r"), sink_ask.RebindSink(0, "a", "s", -1))
    run(model, sink_commit(0, query="s"), sink_ask.ForgetSink(0, "a"))
    assert unchanged(model, sink_ask.ForgetSink(0, "a")) == txn_out.UnknownSink()
    assert unchanged(model, sink_ask.RebindSink(0, "a", "r", 1)) == txn_out.UnknownSink()


# ---- snapshots -----------------------------------------------------------------------------------


def test_the_first_to_pin_a_step_wins() -> None:
    model = model_of(create())
    here = (ask.SnapshotRange("s", "i-s-0", 0, 0),)
    assert model.execute(ask.PinSnapshot(0, "g", 5, here, "h")) == txn_out.Pinned(
        5, here, "h", is_new=True
    )
    told = txn_out.Pinned(5, here, "h", is_new=False)
    assert unchanged(model, ask.PinSnapshot(0, "g", 5, (), "other")) == told
    assert unchanged(model, ask.PinSnapshot(0, "g", 7, here, "h")) == txn_out.SnapshotConflict(5)
    there = (ask.SnapshotRange("s", "other", 0, 0),)
    conflict = txn_out.IncarnationConflict("s", "i-s-0")
    assert unchanged(model, ask.PinSnapshot(0, "g", 6, there, "h")) == conflict
    lost = (ask.SnapshotRange("z", "i", 0, 0),)
    missing = txn_out.StreamRefused("z", out.NotFound())
    assert unchanged(model, ask.PinSnapshot(0, "g", 6, lost, "h")) == missing
    run(model, ask.PinSnapshot(0, "g", 6, here, "h"))


def test_a_copy_lives_by_itself() -> None:
    model = model_of(create(), begin(), publish(0), sink_commit(0))
    twin = model.copy()
    before = twin.view()
    run(model, moves(PositionMove("g", "s", 1)), commit(), sink_commit(1), plain.Delete("s", 0))
    assert twin.view() == before
    assert twin.execute(commit()) == txn_out.CommitDone(
        "t", 1, TxnResult((StreamResult("s", 0, 2, 1),))
    )
