"""Messages in transactions: inline messages have offsets, staged ones do not."""

import struct

from msgspec.structs import replace

from semel.machine import MachineLimits
from semel.model.commands import (
    ABORTED,
    BY_FENCE,
    Batch,
    Delete,
    ExpireProducer,
    ExpireTxn,
    ForgetProducer,
    SwitchDedup,
    Trim,
    TxnTag,
)
from semel.model.limits import NUMBER_MAX, OUTCOME_HOURS
from semel.model.outcomes import (
    Appended,
    BadBody,
    Claimed,
    ContentTypeConflict,
    Duplicate,
    EpochExhausted,
    Forgotten,
    InvalidRequest,
    LimitReached,
    ModeConflict,
    NotFound,
    PayloadMismatch,
    PreconditionFailed,
    SequenceGap,
    SessionConflict,
    StaleEpoch,
    StillAlive,
    StreamClosed,
    StreamSeqConflict,
    SubOffsetInvalid,
    Switched,
    UnknownProducer,
)
from semel.model.outcomes_txn import (
    AlreadyAborted,
    InvalidTxnState,
    NotOwner,
    OffsetUnstable,
    PartitionNotInTxn,
    Staged,
    StaleTransaction,
    StreamInTransaction,
    TxnTimedOut,
    UnknownTransaction,
)
from tests.unit.machine.builders import (
    DAY_MS,
    JSON,
    append,
    bury,
    claim,
    create,
    dense,
    fork,
    hours,
    json_batch,
    sparse,
    unchanged,
)
from tests.unit.machine.txn_builders import (
    abort,
    begin,
    by,
    chunk,
    commit,
    prepare,
    publish,
    stage,
    sunk,
    txn_machine,
)

# ---- ownership -----------------------------------------------------------------------------------


def test_a_publish_names_a_transaction_that_is_there() -> None:
    machine = txn_machine(begin(), abort(), begin())
    assert machine.execute(publish(0, epoch=1)) == InvalidTxnState(ABORTED, "abort")
    assert unchanged(machine, publish(0, epoch=3)) == UnknownTransaction()
    assert unchanged(machine, publish(0, txn="nope")) == UnknownTransaction()
    assert unchanged(machine, publish(0, epoch=1)) == StaleTransaction(2)
    assert unchanged(machine, publish(0, path="nope")) == NotFound()


def test_after_its_time_a_transaction_takes_nothing_more() -> None:
    machine = txn_machine(begin(timeout=10), ExpireTxn(10, "t", 1, 10))
    assert machine.execute(publish(0)) == TxnTimedOut()


def test_an_outcome_is_believed_for_seven_days_and_only_of_that_transaction() -> None:
    machine = txn_machine(begin(), abort(), *hours(OUTCOME_HOURS))
    fact, last = machine.facts("t", 1)
    assert machine.execute(publish(0, now=3_650 * DAY_MS)) == InvalidTxnState(ABORTED, "abort")
    machine.execute(*hours(1))
    assert machine.execute(publish(0)) == UnknownTransaction()
    wrong = replace(publish(0), transaction=TxnTag("u", 1, remembered=fact, last_epoch=last))
    assert unchanged(machine, wrong) == UnknownTransaction()


def test_a_publish_comes_from_the_owner_at_its_epoch() -> None:
    machine = txn_machine(begin(owner=by(epoch=2)), stage("k", sunk()))
    assert unchanged(machine, publish(tag=dense(0, epoch=2, name="q"))) == NotOwner()
    assert unchanged(machine, publish(tag=dense(0, epoch=3))) == StaleEpoch(2, 3)
    assert unchanged(machine, publish(txn="k")) == NotOwner()
    assert unchanged(machine, publish(tag=dense(0))) == InvalidRequest("producer")
    assert unchanged(machine, publish(tag=sparse(0, epoch=2))) == InvalidRequest("producer")
    assert unchanged(machine, chunk(0)) == InvalidRequest("producer")


def test_a_publish_brings_a_body_and_neither_a_close_nor_a_key() -> None:
    machine = txn_machine(begin())
    assert unchanged(machine, publish(0, close=True)) == InvalidRequest("close")
    keyed = replace(chunk(0), key="k")
    assert unchanged(machine, keyed) == InvalidRequest("idempotency_key")
    assert unchanged(machine, publish(0, None)) == InvalidRequest("batch")


def test_a_stream_has_to_be_added_first_unless_that_is_implicit() -> None:
    machine = txn_machine(begin(streams=("r",)), begin("i", by("q"), streams=(), implicit=True))
    assert unchanged(machine, publish(0)) == PartitionNotInTxn()
    tag = dense(0, epoch=0, name="q")
    assert machine.execute(publish(txn="i", tag=tag)) == Appended(0, 1, False, 0, 0)


def test_a_prepared_transaction_takes_nothing_more() -> None:
    machine = txn_machine(begin(), prepare())
    assert unchanged(machine, publish(0)) == InvalidTxnState("prepared")


# ---- inline: offsets, the stable offset, sequences -----------------------------------------------


def test_what_an_open_transaction_wrote_is_not_stable() -> None:
    machine = txn_machine(append(), begin(), publish(0), append())
    assert (machine.stable(), machine.stream().tail.tail) == (1, 3)
    machine.execute(commit())
    assert machine.stable() == machine.stream().tail.tail == 4


def test_the_oldest_of_several_open_transactions_holds_the_stream() -> None:
    machine = txn_machine(begin(), begin("u", by("q")), publish(0))
    machine.execute(publish(txn="u", tag=dense(0, epoch=0, name="q")))
    assert machine.stable() == 0
    machine.execute(abort())
    assert machine.stable() == 1
    machine.execute(commit("u"))
    assert machine.stable() == machine.stream().tail.tail == 4


def test_a_transaction_begins_with_sequence_0_or_the_next() -> None:
    machine = txn_machine(append(by=dense(0, epoch=0)), append(by=dense(1, epoch=0)), begin())
    assert unchanged(machine, publish(1)) == SequenceGap(2, 1)
    assert unchanged(machine, publish(3)) == SequenceGap(2, 3)
    assert machine.execute(publish(2)) == Appended(2, 3, False, 0, 2)
    machine.execute(commit())
    machine.execute(begin("u"))
    assert machine.execute(publish(0, txn="u")) == Appended(4, 5, False, 0, 0)
    assert unchanged(machine, publish(3, txn="u")) == SequenceGap(1, 3)
    assert machine.execute(publish(1, txn="u")) == Appended(5, 6, False, 0, 1)


def test_a_repeated_publish_gets_its_first_offsets() -> None:
    machine = txn_machine(begin(), publish(0, b"a"), publish(1, b"b"))
    assert unchanged(machine, publish(0, b"a")) == Duplicate(0, 1, False, 0, 1)
    other = Duplicate(1, 2, False, 0, 1, is_mismatch=True)
    assert unchanged(machine, publish(1, b"other")) == other
    strict = publish(1, b"other", tag=dense(1, epoch=0, strict=True))
    assert unchanged(machine, strict) == PayloadMismatch()


def test_an_earlier_transactions_sequences_are_no_repeats_of_this_one() -> None:
    machine = txn_machine(begin(), publish(0, b"a"), abort(), begin("u"))
    assert machine.execute(publish(0, b"a", txn="u")) == Appended(2, 3, False, 0, 0)


def test_a_long_transaction_confirms_early_sequences_without_offsets() -> None:
    machine = txn_machine(begin(), limits=MachineLimits(receipts=3))
    for seq in range(6):
        machine.execute(publish(seq))
    assert unchanged(machine, publish(0)) == Duplicate(0, 1, False, 0, 5)
    assert unchanged(machine, publish(2)) == Duplicate(None, None, False, 0, 5)
    assert unchanged(machine, publish(4)) == Duplicate(4, 5, False, 0, 5)
    assert unchanged(machine, publish(7)) == SequenceGap(6, 7)


def test_a_sequence_used_outside_is_never_confirmed_inside() -> None:
    limits = MachineLimits(receipts=5)
    machine = txn_machine(begin(), publish(0), append(by=dense(1, epoch=0)), limits=limits)
    for seq in range(2, 6):
        machine.execute(publish(seq))
    assert unchanged(machine, publish(1)) == SequenceGap(6, 1)
    machine.execute(publish(6))
    assert unchanged(machine, publish(1)) == SequenceGap(7, 1)
    assert unchanged(machine, publish(2)) == SequenceGap(7, 2)  # no receipt, so possibly outside
    assert unchanged(machine, publish(3)) == Duplicate(3, 4, False, 0, 6)


def test_a_transaction_in_between_costs_no_receipt_outside() -> None:
    machine = txn_machine(append(by=dense(0, epoch=0)), append(by=dense(1, epoch=0)), begin())
    for command in (publish(2), publish(3), append(by=dense(4, epoch=0)), commit()):
        machine.execute(command)
    machine.execute(append(by=dense(5, epoch=0)))
    offsets = {0: 0, 1: 1, 4: 4, 5: 6}
    for seq, offset in offsets.items():
        found = unchanged(machine, append(by=dense(seq, epoch=0)))
        assert found == Duplicate(offset, offset + 1, False, 0, 5)


def test_outside_a_transaction_its_sequences_are_used_up_but_nobodys_repeats() -> None:
    machine = txn_machine(append(b"a", by=dense(0, epoch=0)), begin(), publish(1), publish(2))
    assert unchanged(machine, append(by=dense(1, epoch=0))) == SequenceGap(3, 1)
    assert machine.execute(append(b"d", by=dense(3, epoch=0))) == Appended(3, 4, False, 0, 3)
    assert unchanged(machine, append(b"a", by=dense(0, epoch=0))) == Duplicate(0, 1, False, 0, 3)
    assert unchanged(machine, append(by=dense(2, epoch=0))) == Duplicate(None, None, False, 0, 3)
    assert unchanged(machine, publish(1)) == Duplicate(1, 2, False, 0, 3)
    assert unchanged(machine, publish(3)) == SequenceGap(4, 3)
    assert machine.execute(publish(4)) == Appended(4, 5, False, 0, 4)
    machine.execute(commit())
    assert machine.execute(append(by=dense(5, epoch=0))) == Appended(6, 7, False, 0, 5)


def test_a_lower_sequence_inside_does_not_move_the_one_outside() -> None:
    machine = txn_machine(append(by=dense(0, epoch=0)), append(by=dense(1, epoch=0)), begin())
    machine.execute(publish(0))
    assert machine.execute(append(by=dense(2, epoch=0))) == Appended(3, 4, False, 0, 2)


def test_a_bare_restart_fences_the_transaction_that_came_first() -> None:
    machine = txn_machine(begin(), publish(0))
    outcome = machine.execute(append(by=dense(0)))
    assert outcome == Appended(1, 2, False, 1, 0)
    assert not machine.state.transactions


def test_a_raised_epoch_begins_the_sequences_anew_inside_too() -> None:
    machine = txn_machine(append(by=dense(0, epoch=0, session="x", cursor=b"c")))
    machine.execute(begin(owner=by(epoch=1)))
    tag = dense(1, epoch=1)
    assert unchanged(machine, publish(tag=tag)) == SequenceGap(0, 1)
    assert machine.execute(publish(tag=dense(0, epoch=1))) == Appended(1, 2, False, 1, 0)
    row = machine.stream().producers["p"]  # type: ignore[index]
    assert (row.epoch, row.session, row.old_sessions, row.cursor) == (1, None, ("x",), b"c")
    assert row.receipts == b""
    assert machine.execute(append(by=dense(1, epoch=1))) == Appended(2, 3, False, 1, 1)


def test_a_session_inside_is_remembered_like_one_outside() -> None:
    machine = txn_machine(begin(), publish(tag=dense(0, epoch=0, session="x")))
    machine.execute(publish(tag=dense(1, epoch=0)))
    row = machine.stream().producers["p"]  # type: ignore[index]
    assert (row.session, row.last_seq, row.latest_seq) == ("x", -1, 1)


def test_the_mode_on_a_stream_binds_a_transaction_too() -> None:
    machine = txn_machine(append(by=sparse(0, epoch=0)), begin())
    assert unchanged(machine, publish(0)) == ModeConflict("sparse")


def test_stream_seq_and_if_match_work_inside() -> None:
    machine = txn_machine(begin(), publish(0, stream_seq="b"))
    assert machine.stream().tail.stream_seq == "b"
    assert unchanged(machine, publish(1, stream_seq="a")) == StreamSeqConflict("b")
    assert unchanged(machine, publish(1, if_match=0)) == PreconditionFailed(1)
    assert unchanged(machine, publish(1, None, error="bad")) == BadBody("bad")
    assert unchanged(machine, publish(1, kind=JSON)) == ContentTypeConflict("text/plain")


def test_a_stream_that_does_not_look_for_duplicates_does_not_inside_either() -> None:
    machine = txn_machine(SwitchDedup("s", 0, False), begin())
    for first in (0, 1):
        outcome = Appended(first, first + 1, False, 0, 0, is_unguarded=True)
        assert machine.execute(publish(0)) == outcome
    assert not machine.stream().producers
    assert unchanged(machine, publish(1, kind=JSON)) == ContentTypeConflict("text/plain")


def test_producers_are_counted_and_limited_inside_too() -> None:
    machine = txn_machine(
        append(by=dense(0, epoch=0, name="q")),
        begin(),
        limits=MachineLimits(producers_per_stream=1),
    )
    assert unchanged(machine, publish(0)) == LimitReached("producers_per_stream", 1)
    machine.execute(publish(0, path="r"))
    assert machine.state.producer_counts.live == 2


# ---- streams with an open transaction ------------------------------------------------------------


def test_a_stream_with_an_open_inline_transaction_is_not_closed() -> None:
    machine = txn_machine(begin(), publish(0))
    assert unchanged(machine, append(None, close=True)) == StreamInTransaction("t")
    assert unchanged(machine, append(close=True, by=dense(0, name="q"))) == (
        StreamInTransaction("t")
    )
    machine.execute(commit())
    assert machine.execute(append(None, close=True)) == Appended(2, 2, True)


def test_a_trim_stops_at_what_is_stable() -> None:
    machine = txn_machine(append(), begin(), publish(0))
    assert unchanged(machine, Trim("s", 0, 2)) == OffsetUnstable(1)
    assert machine.execute(Trim("s", 0, 1)).code == "ok"


def test_a_fork_leaves_at_what_is_stable() -> None:
    machine = txn_machine(append(), begin(), publish(0))
    assert unchanged(machine, fork("f", offset=2)) == OffsetUnstable(1)
    assert unchanged(machine, fork("f", offset=1, sub=1)) == OffsetUnstable(1)
    machine.execute(fork("f"))
    assert machine.stream("f").tail.tail == 1
    machine.execute(commit())
    assert unchanged(machine, fork("g", offset=3, sub=1)) == SubOffsetInvalid()


def test_a_producer_is_not_let_go_while_its_transaction_is_open() -> None:
    machine = txn_machine(begin(), publish(0))
    assert unchanged(machine, bury()) == StillAlive()
    machine.execute(commit())
    assert machine.execute(ExpireProducer("s", 0, "p", 0)).code == "ok"
    machine.execute(begin("u", by(epoch=1)))
    assert machine.execute(publish(txn="u", tag=dense(0, epoch=1))) == Appended(2, 3, False, 1, 0)
    assert machine.state.producer_counts.live == 1


def test_the_receipts_of_an_open_transaction_are_not_dropped_by_hand() -> None:
    machine = txn_machine(append(by=dense(0, name="q", epoch=0)), begin(), publish(0))
    for command in (SwitchDedup("s", 0, dedup=False), ForgetProducer("s", 0, "p")):
        assert unchanged(machine, command) == StreamInTransaction("t")
        assert unchanged(machine, publish(0)) == Duplicate(1, 2, False, 0, 0)
    machine.execute(prepare())
    assert unchanged(machine, ForgetProducer("s", 0, "p")) == StreamInTransaction("t")
    assert machine.execute(ForgetProducer("s", 0, "q")) == Forgotten()
    assert unchanged(machine, ForgetProducer("r", 0, "p")) == UnknownProducer()
    machine.execute(commit())
    assert machine.execute(ForgetProducer("s", 0, "p")) == Forgotten()
    assert machine.execute(SwitchDedup("s", 0, dedup=False)) == Switched(None, 3)


def test_duplicates_are_switched_on_under_a_transaction() -> None:
    machine = txn_machine(SwitchDedup("s", 0, dedup=False), begin(), publish(0))
    assert machine.execute(SwitchDedup("s", 0, dedup=True)) == Switched(1, 1)
    assert machine.execute(publish(0)) == Appended(1, 2, False, 0, 0)


# ---- claims --------------------------------------------------------------------------------------


def test_a_claim_ends_what_the_instance_before_left_open() -> None:
    machine = txn_machine(append(by=dense(0, epoch=0)), begin(), publish(1), stage("u"))
    assert machine.execute(claim("c")) == Claimed("p", 1, 0, 1)
    assert [row.outcome.reason for row in machine.outcomes.values()] == [BY_FENCE, BY_FENCE]
    assert machine.stable() == machine.stream().tail.tail == 3
    assert machine.execute(commit()) == AlreadyAborted(BY_FENCE)
    assert machine.state.registry["p"].epoch == 1


def test_a_claim_ends_a_transaction_that_has_not_come_to_the_stream_yet() -> None:
    machine = txn_machine(begin(owner=by(epoch=7), implicit=True))
    assert machine.execute(claim("c")) == Claimed("p", 8)
    over = InvalidTxnState(ABORTED, "fenced")
    assert machine.execute(publish(tag=dense(0, epoch=7))) == over


def test_no_claim_goes_past_the_last_epoch_of_a_transaction() -> None:
    machine = txn_machine(begin(owner=by(epoch=NUMBER_MAX)))
    assert unchanged(machine, claim("c")) == EpochExhausted(NUMBER_MAX)


def test_a_claim_tells_the_last_append_outside_though_a_transaction_raised_the_epoch() -> None:
    machine = txn_machine(append(by=dense(0, epoch=0, cursor=b"c")), begin(owner=by(epoch=1)))
    machine.execute(publish(tag=dense(0, epoch=1)))
    assert machine.execute(claim("c")) == Claimed("p", 2, 0, 1, b"c")


def test_a_cursor_does_not_move_with_a_message_that_may_be_aborted() -> None:
    machine = txn_machine(begin())
    tag = dense(0, epoch=0, cursor=b"c")
    assert unchanged(machine, publish(tag=tag)) == InvalidRequest("producer_cursor")


def test_a_session_that_has_written_inside_is_no_retry_of_its_claim() -> None:
    machine = txn_machine(begin(), claim("c"), begin("u", by(epoch=1)))
    assert unchanged(machine, claim("c")) == Claimed("p", 1)
    machine.execute(publish(txn="u", tag=dense(0, epoch=1)))
    assert unchanged(machine, claim("c")) == SessionConflict(1)


def test_what_was_before_a_claim_is_no_receipt_behind_it() -> None:
    machine = txn_machine(append(by=dense(0, epoch=0)), begin(), claim("c"))
    machine.execute(begin("u", by(epoch=1)))
    machine.execute(publish(txn="u", tag=dense(0, epoch=1)))
    assert machine.execute(append(by=dense(1, epoch=1))) == Appended(2, 3, False, 1, 1)
    assert unchanged(machine, append(by=dense(0, epoch=1))) == Duplicate(None, None, False, 1, 1)
    assert machine.execute(claim("d")) == Claimed("p", 2, 1, 3)


# ---- staged --------------------------------------------------------------------------------------


def test_chunks_have_no_offsets_and_hold_nobody_up() -> None:
    machine = txn_machine(stage(now=5), chunk(0, now=6))
    assert machine.stream().tail.tail == machine.stable() == 0
    assert machine.execute(chunk(1, path="r", now=9)) == Staged(2)
    assert machine.state.transactions["t"].row.deadline_ms == 9 + 60_000
    assert machine.execute(append(None, close=True)) == Appended(0, 0, True)


def test_chunks_are_numbered_without_gaps() -> None:
    machine = txn_machine(stage(), chunk(0))
    assert unchanged(machine, chunk(0)) == Duplicate(None, None, False)
    assert unchanged(machine, chunk(2)) == SequenceGap(1, 2)
    assert unchanged(machine, chunk(None)) == InvalidRequest("transaction_seq")


def test_a_chunk_that_differs_from_the_one_of_its_number_is_told_apart() -> None:
    machine = txn_machine(stage(), *(chunk(seq, b"%d" % seq) for seq in range(300)))
    mismatch = Duplicate(None, None, False, is_mismatch=True)
    for seq in (0, 1, 255, 256, 299):
        assert unchanged(machine, chunk(seq, b"%d" % seq)) == Duplicate(None, None, False)
        other = chunk(seq, b"other")
        assert unchanged(machine, other) == mismatch
        assert unchanged(machine, chunk(seq, b"%d" % seq, path="r")) == mismatch
        assert unchanged(machine, chunk(seq, None, error="bad")) == mismatch
        assert other.transaction is not None
        strict = replace(other, transaction=replace(other.transaction, is_strict=True))
        assert unchanged(machine, strict) == PayloadMismatch()


def test_chunks_of_the_same_bytes_differ_in_where_messages_end() -> None:
    first, other = (Batch(b"abc", 2, struct.pack("<II", *ends)) for ends in ((2, 1), (1, 2)))
    machine = txn_machine(stage(), chunk(0, first))
    assert unchanged(machine, chunk(0, first)) == Duplicate(None, None, False)
    mismatch = Duplicate(None, None, False, is_mismatch=True)
    assert unchanged(machine, chunk(0, other)) == mismatch


def test_chunks_take_no_producer_and_no_precondition() -> None:
    machine = txn_machine(stage())
    tagged = replace(chunk(0), producer=dense(0, epoch=0))
    assert unchanged(machine, tagged) == InvalidRequest("producer")
    assert unchanged(machine, chunk(0, if_match=0)) == InvalidRequest("if_match")
    assert unchanged(machine, replace(chunk(0), stream_seq="a")) == InvalidRequest("stream_seq")


def test_a_chunk_is_checked_as_an_append_is() -> None:
    machine = txn_machine(stage(), append(None, close=True))
    assert unchanged(machine, chunk(0)) == StreamClosed(0)
    assert unchanged(machine, chunk(0, path="r", kind=JSON)) == ContentTypeConflict("text/plain")
    assert unchanged(machine, chunk(0, None, path="r", error="bad")) == BadBody("bad")


def test_there_is_an_end_to_chunks() -> None:
    limits = MachineLimits(chunks=3)
    machine = txn_machine(stage(), *(chunk(seq) for seq in range(3)), limits=limits)
    assert unchanged(machine, chunk(3)) == LimitReached("chunks", 3)
    assert isinstance(unchanged(machine, chunk(2)), Duplicate)


def test_an_implicit_staged_transaction_finds_its_streams() -> None:
    machine = txn_machine(create("j", kind=JSON), begin(kind="staged", streams=(), implicit=True))
    assert machine.execute(chunk(0, json_batch(b"1", b"2"), path="j", kind=JSON)) == Staged(1)
    section = machine.journal[-1].sections[0]
    assert (section.count, section.is_joined, section.base) == (2, True, 0)


def test_a_deleted_stream_leaves_its_transactions() -> None:
    machine = txn_machine(begin(), publish(0), publish(0, path="r"), Delete("s", 0))
    txn = machine.state.transactions["t"]
    assert (list(txn.streams), txn.row.deleted) == ([2], ("s",))
    machine.execute(abort())
    assert [(row.stream, row.first, row.next) for row in machine.aborted] == [(2, 0, 2)]
