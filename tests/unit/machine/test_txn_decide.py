"""The end of a transaction: prepare, commit, abort, fence, timeout, and what is remembered."""

import pytest
from msgspec.structs import replace

from semel.machine.rows import OutcomeRow
from semel.machine.txn.lookup import is_outcome_retained
from semel.model.commands import (
    BY_FENCE,
    BY_OPERATOR,
    BY_REAPER,
    BY_REQUEST,
    BY_TIMEOUT,
    COMMITTED,
    TXN_STAGED,
    Delete,
    ExpireTxn,
    PositionResult,
    SinkTag,
    StreamResult,
    TxnResult,
)
from semel.model.limits import NUMBER_MAX, OUTCOME_HOURS, OUTCOMES_PER_PRODUCER_MAX
from semel.model.outcomes import EpochExhausted, StaleEpoch, StillAlive, StreamClosed
from semel.model.outcomes_txn import (
    AbortDone,
    AlreadyAborted,
    AlreadyCommitted,
    BranchIncomplete,
    CommitDone,
    InvalidTxnState,
    NotOwner,
    Prepared,
    StaleTransaction,
    StreamRefused,
    TxnTimedOut,
    UnknownTransaction,
)
from tests.unit.machine.builders import append, create, dense, hours, unchanged
from tests.unit.machine.txn_builders import (
    TxnMachine,
    abort,
    add_positions,
    begin,
    by,
    chunk,
    commit,
    fence,
    one_shot,
    prepare,
    publish,
    stage,
    sunk,
    txn_machine,
)

DAY_MS = 24 * 60 * 60 * 1000


def offsets(machine: TxnMachine) -> list[tuple[int, int, int]]:
    return [(row.stream, row.base, row.count) for row in machine.placed]


# ---- commit --------------------------------------------------------------------------------------


def test_a_commit_puts_one_control_record_into_each_stream_written() -> None:
    machine = txn_machine(append(), begin(), publish(0), publish(1), publish(0, path="r"))
    result = TxnResult((StreamResult("r", 0, 2, 1), StreamResult("s", 1, 4, 2)))
    assert machine.execute(commit()) == CommitDone("t", 1, result)
    assert [section.base for section in machine.journal[-1].sections] == [3, 1]
    assert machine.stable() == machine.stream().tail.tail == 4
    assert not machine.aborted


def test_a_commit_is_answered_again_with_its_first_result() -> None:
    machine = txn_machine(begin(), publish(0))
    first = machine.execute(commit())
    assert isinstance(first, CommitDone)
    assert machine.execute(commit()) == replace(first, is_duplicate=True)
    assert machine.execute(abort()) == AlreadyCommitted()
    assert machine.execute(prepare()) == InvalidTxnState(COMMITTED)


def test_a_commit_moves_positions_and_an_abort_does_not() -> None:
    machine = txn_machine(append(), begin(), add_positions(("s", 1), ("r", 0)))
    outcome = machine.execute(commit())
    moved = (PositionResult("g", "r", 0), PositionResult("g", "s", 1))
    assert outcome == CommitDone("t", 1, TxnResult((), moved))
    assert machine.stream().positions["g"].offset == 1  # type: ignore[index]
    machine.execute(begin("u"))
    machine.execute(add_positions(("s", 0), txn="u"))
    machine.execute(abort("u"))
    assert machine.stream().positions["g"].offset == 1  # type: ignore[index]


def test_chunks_get_their_offsets_in_their_order() -> None:
    machine = txn_machine(append(), stage(), chunk(0), chunk(1, path="r"), chunk(2))
    machine.execute(append())
    result = TxnResult((StreamResult("r", 0, 1, 1), StreamResult("s", 2, 4, 2)))
    assert machine.execute(commit()) == CommitDone("t", 1, result)
    assert offsets(machine) == [(1, 2, 1), (2, 0, 1), (1, 3, 1)]
    assert [row.lsn for row in machine.placed] == [320, 384, 448]
    assert machine.stream().tail.tail == machine.stable() == 4


def test_a_closed_stream_takes_no_chunks_and_the_transaction_stays_open() -> None:
    machine = txn_machine(create("q"), begin("t", kind="staged", streams=("q", "s", "r")))
    for seq, path in enumerate(("r", "s")):
        machine.execute(chunk(seq, path=path))
    for path in ("q", "s", "r"):
        machine.execute(append(None, path=path, close=True))
    assert unchanged(machine, commit()) == StreamRefused("r", StreamClosed(0))
    assert machine.execute(abort()) == AbortDone("t", 1, BY_REQUEST)


def test_a_deleted_stream_is_named_by_the_commit() -> None:
    machine = txn_machine(append(path="r"), stage(), chunk(0), chunk(1, path="r"))
    machine.execute(add_positions(("s", 0), ("r", 1)))
    machine.execute(prepare())
    machine.execute(Delete("s", 0))
    result = TxnResult((StreamResult("r", 1, 2, 1),), (PositionResult("g", "r", 1),), ("s",))
    assert machine.execute(commit()) == CommitDone("t", 1, result)


def test_a_stream_that_has_but_a_position_is_named_too() -> None:
    machine = txn_machine(begin(streams=("r",)), add_positions(("s", 0)), prepare())
    machine.execute(Delete("s", 0))
    assert machine.execute(commit()) == CommitDone("t", 1, TxnResult(deleted=("s",)))


def test_only_a_one_shot_commit_decides_what_a_sink_staged() -> None:
    machine = txn_machine(stage(owner=sunk()))
    assert unchanged(machine, commit()) == InvalidTxnState("sink")
    assert machine.execute(abort()) == AbortDone("t", 1, BY_REQUEST)


# ---- ownership -----------------------------------------------------------------------------------


def test_a_call_names_a_transaction_that_is_there() -> None:
    machine = txn_machine(begin(), abort(), begin())
    for call in (commit, abort, prepare):
        assert unchanged(machine, call(epoch=3)) == UnknownTransaction()
        assert unchanged(machine, call("nope")) == UnknownTransaction()
        assert unchanged(machine, call(epoch=1)) == StaleTransaction(2)


def test_a_call_comes_from_the_owner_or_an_operator() -> None:
    machine = txn_machine(begin(owner=by(epoch=2)))
    assert unchanged(machine, commit(producer_id="q", producer_epoch=2)) == NotOwner()
    assert unchanged(machine, commit(producer_id="p", producer_epoch=3)) == StaleEpoch(2, 3)
    own = commit(producer_id="p", producer_epoch=2)
    assert isinstance(machine.execute(own), CommitDone)
    machine.execute(begin("u", by(epoch=2)))
    outcome = machine.execute(abort("u", producer_id="q", by_operator=True))
    assert outcome == AbortDone("u", 1, BY_OPERATOR)
    machine.execute(begin("v", by(epoch=2)))
    assert isinstance(machine.execute(commit("v", producer_id="q", by_operator=True)), CommitDone)
    assert machine.journal[-1].event.by_operator  # type: ignore[union-attr]


# ---- abort ---------------------------------------------------------------------------------------


def test_an_abort_hides_exactly_what_was_written_and_the_control_record_behind_it() -> None:
    machine = txn_machine(begin(), publish(0), publish(1), append(), publish(2), append())
    assert machine.execute(abort()) == AbortDone("t", 1, BY_REQUEST)
    assert [(row.first, row.next) for row in machine.aborted] == [(0, 2), (3, 4)]
    assert machine.execute(abort()) == AbortDone("t", 1, BY_REQUEST)
    assert machine.execute(commit()) == AlreadyAborted(BY_REQUEST)
    assert machine.stable() == machine.stream().tail.tail == 6


def test_pages_of_extents_join() -> None:
    machine = txn_machine(begin())
    for seq in range(300):
        machine.execute(publish(seq))
        machine.execute(append())
    assert len(machine.state.transactions["t"].chunk_blocks) == 2
    machine.execute(abort())
    assert [(row.first, row.next) for row in machine.aborted] == [
        (2 * n, 2 * n + 1) for n in range(300)
    ]


def test_an_aborted_staged_transaction_leaves_nothing() -> None:
    machine = txn_machine(stage(), chunk(0), abort())
    assert machine.stream().tail.tail == 0
    assert not (machine.aborted or machine.placed or machine.state.by_txn)


# ---- fence ---------------------------------------------------------------------------------------


def test_a_fence_aborts_and_raises_the_epoch() -> None:
    machine = txn_machine(begin(), publish(0), prepare(), begin("u"), publish(1, txn="u"))
    assert machine.execute(fence("u")) == AbortDone("u", 1, BY_OPERATOR)
    assert machine.execute(commit()) == AlreadyAborted(BY_FENCE)
    assert machine.state.registry["p"].epoch == 1
    assert unchanged(machine, begin()) == StaleEpoch(1, 0)
    assert machine.execute(fence("u")) == AbortDone("u", 1, BY_OPERATOR)
    assert machine.state.registry["p"].epoch == 1
    markers = [section.base for section in machine.journal[-1].sections]
    assert markers == [2, 3]


def test_a_fence_of_a_sink_only_aborts_and_an_epoch_has_an_end() -> None:
    machine = txn_machine(stage(owner=sunk()), begin("u", by(epoch=NUMBER_MAX)))
    assert machine.execute(fence()) == AbortDone("t", 1, BY_OPERATOR)
    assert unchanged(machine, fence("u")) == EpochExhausted(NUMBER_MAX)


# ---- timeout -------------------------------------------------------------------------------------


def test_a_transaction_times_out_at_its_deadline() -> None:
    machine = txn_machine(begin(timeout=10), publish(0))
    assert unchanged(machine, ExpireTxn(10**9, "t", 1, 9)) == StillAlive()
    assert machine.execute(ExpireTxn(0, "t", 1, 10)) == AbortDone("t", 1, BY_TIMEOUT)
    assert machine.execute(commit()) == TxnTimedOut()
    assert machine.execute(prepare()) == TxnTimedOut()
    assert machine.execute(abort()) == AbortDone("t", 1, BY_TIMEOUT)
    assert unchanged(machine, ExpireTxn(10, "t", 1, 10)) == UnknownTransaction()


def test_a_timeout_passes_whatever_the_time_of_the_frames() -> None:
    """After one frame with a wrong clock, frame time is far ahead of every later command."""
    machine = txn_machine(begin(timeout=10), publish(0, now=10**12))
    assert unchanged(machine, ExpireTxn(9, "t", 1, 9)) == StillAlive()
    assert machine.execute(ExpireTxn(10, "t", 1, 10)) == AbortDone("t", 1, BY_TIMEOUT)


def test_a_prepared_transaction_waits_as_long_as_it_takes() -> None:
    machine = txn_machine(begin(timeout=10), prepare())
    assert unchanged(machine, ExpireTxn(10**9, "t", 1, 10**9)) == StillAlive()


def test_what_a_sink_left_untouched_for_a_day_is_reaped_prepared_or_not() -> None:
    machine = txn_machine(stage(owner=sunk()), chunk(0, now=5), prepare(now=7))
    assert unchanged(machine, ExpireTxn(DAY_MS + 6, "t", 1, DAY_MS - 1)) == StillAlive()
    assert machine.execute(ExpireTxn(DAY_MS + 7, "t", 1, DAY_MS)) == AbortDone("t", 1, BY_REAPER)


# ---- prepare -------------------------------------------------------------------------------------


def test_prepare_compares_what_is_staged_with_what_was_counted() -> None:
    machine = txn_machine(stage(), chunk(0), chunk(1))
    incomplete = BranchIncomplete("t", 2, 2)
    assert unchanged(machine, prepare(chunks=3)) == incomplete
    assert unchanged(machine, prepare(messages=(("s", 1),))) == incomplete
    assert unchanged(machine, prepare(messages=(("s", 2), ("q", 1)))) == incomplete
    done = Prepared("t", 1, "t:1")
    assert machine.execute(prepare(chunks=2, messages=(("s", 2), ("r", 0)))) == done
    assert unchanged(machine, prepare(chunks=9)) == done


def test_an_inline_transaction_is_prepared_without_counts() -> None:
    machine = txn_machine(begin(), publish(0))
    assert machine.execute(prepare(chunks=9)) == Prepared("t", 1, "t:1")
    assert isinstance(machine.execute(commit()), CommitDone)


# ---- remembered outcomes -------------------------------------------------------------------------


def test_an_outcome_is_kept_for_a_week_and_among_ten_thousand() -> None:
    machine = txn_machine(begin(), commit(), stage("k", sunk()), abort("k"))
    produced, sink = machine.outcomes["t", 1], machine.outcomes["k", 1]
    for hour in hours(OUTCOME_HOURS):
        machine.execute(hour)
    assert is_outcome_retained(machine.state, produced)
    machine.execute(*hours(1))
    assert not is_outcome_retained(machine.state, produced)
    machine.state.hours = 0
    row = machine.state.registry["p"]
    machine.state.registry["p"] = replace(row, decided=OUTCOMES_PER_PRODUCER_MAX)
    assert is_outcome_retained(machine.state, produced)
    machine.state.registry["p"] = replace(row, decided=OUTCOMES_PER_PRODUCER_MAX + 1)
    assert not is_outcome_retained(machine.state, produced)
    assert is_outcome_retained(machine.state, sink)
    machine.execute(one_shot(sink=SinkTag("app", "q", 1)))
    assert not is_outcome_retained(machine.state, sink)


# rows: X25
def test_an_id_that_was_forgotten_begins_above_all_its_producer_had() -> None:
    machine = txn_machine(begin(), commit(), begin(), commit(epoch=2), begin("u", by("q")))
    row = machine.state.registry["p"]
    assert row.txn_epoch == 2
    assert machine.execute(begin("v")).epoch == 1  # type: ignore[attr-defined]
    machine.execute(abort("v"))
    machine.state.registry["p"] = replace(row, decided=OUTCOMES_PER_PRODUCER_MAX + 1)
    machine.outcomes.clear()
    begun = machine.execute(begin())
    assert begun.epoch == 3  # type: ignore[attr-defined]
    # Delayed calls of the first two transactions must not end this one.
    for late in (commit(), abort(), commit(epoch=2)):
        assert unchanged(machine, late) == StaleTransaction(3)
    machine.execute(fence(epoch=3))
    assert machine.state.registry["p"].txn_epoch == 3, "also after a fence"
    assert machine.execute(begin("x", by("q"), kind=TXN_STAGED)).epoch == 1  # type: ignore[attr-defined]
    assert machine.execute(begin("y", sunk(), kind=TXN_STAGED)).epoch == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("decision", [commit, abort])
def test_outcomes_are_numbered_over_all_and_for_each_producer(decision: object) -> None:
    machine = txn_machine(begin(), begin("u", by("q")))
    for txn_id in ("t", "u"):
        machine.execute(decision(txn_id))  # type: ignore[operator]
    machine.execute(begin())
    machine.execute(commit(epoch=2))
    rows: list[OutcomeRow] = list(machine.outcomes.values())
    assert [(row.number, row.ordinal) for row in rows] == [(1, 0), (2, 0), (3, 1)]


def test_sequences_are_not_taken_back_by_an_abort() -> None:
    machine = txn_machine(begin(), publish(0), publish(1), abort())
    row = machine.stream().producers["p"]  # type: ignore[index]
    assert row.latest_seq == 1
    assert machine.execute(append(by=dense(2, epoch=0))).code == "ok"
