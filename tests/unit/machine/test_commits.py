"""One-shot commits: the table, row by row."""

from msgspec.structs import replace

from semel.machine import MachineLimits
from semel.machine.rows import PositionRow
from semel.machine.txn.draft import EXTENT_BYTES, push_result
from semel.model.commands import (
    BY_FENCE,
    BY_REQUEST,
    COMMITTED,
    Batch,
    CommitAppend,
    ExpireTxn,
    PositionMove,
    PositionResult,
    Register,
    StreamResult,
    TxnResult,
)
from semel.model.limits import GROUPS_PER_STREAM_MAX, RESULTS_BYTES_MAX, RESULTS_KEPT
from semel.model.outcomes import (
    BadBody,
    BatchTooLarge,
    ContentTypeConflict,
    EpochMustStartAtZero,
    InvalidRequest,
    LimitReached,
    NotFound,
    OffsetBeyondTail,
    PreconditionFailed,
    SequenceGap,
    StaleEpoch,
    StreamClosed,
    UnknownProducer,
)
from semel.model.outcomes_txn import (
    BY_OFFSET,
    AlreadyAborted,
    CommitDone,
    InvalidTxnState,
    NotOwner,
    PositionConflict,
    StreamRefused,
    TxnTimedOut,
    UnknownTransaction,
)
from tests.unit.machine.builders import JSON, append, unchanged
from tests.unit.machine.txn_builders import (
    abort,
    add_positions,
    begin,
    by,
    chunk,
    commit,
    one_shot,
    publish,
    stage,
    txn_machine,
)


def done(*streams: StreamResult, positions: tuple[PositionResult, ...] = ()) -> CommitDone:
    return CommitDone(None, None, TxnResult(streams, positions))


def test_appends_to_many_streams_are_one_frame() -> None:
    machine = txn_machine(append())
    outcome = machine.execute(one_shot(("s", b"a"), ("r", b"b"), ("s", b"c")))
    assert outcome == done(StreamResult("r", 0, 1, 1), StreamResult("s", 1, 3, 2))
    assert machine.payloads() == [b"x", b"a", b"c"]
    assert machine.stable() == machine.stream().tail.tail == 3


def test_a_commit_again_is_told_its_first_result() -> None:
    machine = txn_machine()
    first = machine.execute(one_shot(("s", b"a")))
    machine.execute(one_shot(("s", b"b"), seq=1))
    assert isinstance(first, CommitDone)
    again = unchanged(machine, one_shot(("r", b"other")))
    assert again == replace(first, is_duplicate=True)


def test_a_sequence_that_brought_something_else_is_told() -> None:
    machine = txn_machine()
    first, other = one_shot(("s", b"a")), one_shot(("s", b"b"))
    done_first = machine.execute(replace(first, digest=1))
    machine.execute(replace(one_shot(("s", b"c"), seq=1), digest=2))
    assert isinstance(done_first, CommitDone)
    again = replace(done_first, is_duplicate=True)
    assert unchanged(machine, replace(first, digest=1)) == again
    assert unchanged(machine, replace(other, digest=2)) == replace(again, is_mismatch=True)
    assert machine.payloads() == [b"a", b"c"]


def test_a_result_kept_without_a_digest_is_compared_with_nothing() -> None:
    machine = txn_machine()
    machine.execute(replace(one_shot(("s", b"a")), digest=1))
    state = machine.state
    state.registry["p"] = replace(state.registry["p"], digests=())
    again = unchanged(machine, replace(one_shot(("s", b"a")), digest=2))
    assert isinstance(again, CommitDone)
    assert (again.is_duplicate, again.is_mismatch) == (True, False)


def test_a_result_long_gone_is_confirmed_without() -> None:
    machine = txn_machine()
    for seq in range(RESULTS_KEPT + 1):
        machine.execute(one_shot(("s", b"a"), seq=seq))
    gone = CommitDone(None, None, None, is_duplicate=True)
    assert unchanged(machine, one_shot(("s", b"a"))) == gone
    assert unchanged(machine, one_shot(("s", b"a"), seq=1)) != gone


def test_results_are_few_and_small_together() -> None:
    large = bytes(RESULTS_BYTES_MAX)
    assert push_result((b"a", b"b"), b"c") == (b"a", b"b", b"c")
    assert push_result((b"a", large), b"c") == (b"c",)
    assert push_result((b"a",), large + b"more") == (large + b"more",)


def test_commits_are_numbered_from_0_in_each_epoch() -> None:
    machine = txn_machine()
    assert unchanged(machine, one_shot(("s", b"a"), seq=1)) == EpochMustStartAtZero(1)
    machine.execute(one_shot(("s", b"a")))
    assert unchanged(machine, one_shot(("s", b"a"), seq=2)) == SequenceGap(1, 2)
    assert unchanged(machine, one_shot(("s", b"a"), seq=1, epoch=1)) == EpochMustStartAtZero(1)
    assert machine.execute(one_shot(("s", b"a"), epoch=1)).code == "ok"
    assert unchanged(machine, one_shot(("s", b"a"), seq=1)) == StaleEpoch(1, 0)
    assert machine.execute(one_shot(("s", b"a"), seq=1, epoch=1)).code == "ok"


def test_a_commit_needs_an_identity_that_is_known_or_new() -> None:
    machine = txn_machine(limits=MachineLimits(registry=1))
    assert unchanged(machine, one_shot(("s", b"a"), producer="7")) == UnknownProducer()
    machine.execute(Register(0))
    assert unchanged(machine, one_shot(("s", b"a"))) == LimitReached("registry", 1)


def test_a_commit_at_a_raised_epoch_fences_what_was_open() -> None:
    machine = txn_machine(begin(), publish(0))
    outcome = machine.execute(one_shot(("s", b"a"), epoch=1))
    assert outcome == done(StreamResult("s", 1, 2, 1))
    assert machine.stable() == machine.stream().tail.tail == 3
    assert machine.execute(commit()) == AlreadyAborted(BY_FENCE)


def test_staged_transactions_follow_the_appends_in_the_order_listed() -> None:
    machine = txn_machine(stage("a"), stage("b"), stage("c"))
    machine.execute(chunk(0, b"1", txn="a"))
    machine.execute(chunk(0, b"2", txn="b"))
    machine.execute(chunk(1, b"3", txn="b", path="r"))
    machine.execute(add_positions(("s", 0), txn="b"))
    listed = (("b", 1), ("a", 1))
    outcome = machine.execute(one_shot(("s", b"0"), listed=listed))
    moved = (PositionResult("g", "s", 0),)
    streams = (StreamResult("r", 0, 1, 1), StreamResult("s", 0, 3, 3))
    assert outcome == done(*streams, positions=moved)
    assert [(row.stream, row.base) for row in machine.placed] == [(1, 1), (2, 0), (1, 2)]
    assert list(machine.state.transactions) == ["c"]
    own = machine.outcomes["a", 1].outcome.result
    assert own == TxnResult((StreamResult("s", 2, 3, 1),))


def test_a_listed_transaction_is_staged_open_and_the_committers() -> None:
    machine = txn_machine(begin("i"), stage("o", by("q")), stage("a"), abort("a"))
    machine.execute(stage("c"))
    machine.execute(commit("c"))

    def listing(*names: str) -> object:
        return machine.execute(one_shot(listed=tuple((name, 1) for name in names)))

    assert listing("i") == InvalidTxnState("inline")
    assert listing("o") == NotOwner()
    assert listing("a") == AlreadyAborted(BY_REQUEST)
    assert listing("c") == InvalidTxnState(COMMITTED)
    assert listing("nope") == UnknownTransaction()
    machine.execute(stage("d"))
    assert listing("d", "d") == InvalidRequest("transactions")
    machine.execute(ExpireTxn(0, "d", 1, 60_000))
    assert listing("d") == TxnTimedOut()


def test_every_stream_named_has_to_be_there() -> None:
    machine = txn_machine()
    missing = StreamRefused("nope", NotFound())
    assert unchanged(machine, one_shot(("s", b"a"), ("nope", b"b"))) == missing
    position = PositionMove("g", "nope", 0)
    assert unchanged(machine, one_shot(positions=(position,))) == missing
    assert unchanged(machine, one_shot(expects=(("nope", 0),))) == missing


def test_what_is_expected_has_to_be_the_tail() -> None:
    machine = txn_machine(append())
    refusal = unchanged(machine, one_shot(("r", b"a"), expects=(("r", 0), ("s", 0))))
    assert refusal == StreamRefused("s", PreconditionFailed(1))
    assert machine.execute(one_shot(expects=(("r", 0), ("s", 1)))) == done()


def test_each_append_is_checked_as_any_append_is() -> None:
    machine = txn_machine(append(None, path="r", close=True))
    closed = StreamRefused("r", StreamClosed(0))
    assert unchanged(machine, one_shot(("s", b"a"), ("r", b"b"))) == closed
    plain = one_shot(("s", b"a"))
    other = replace(plain, appends=(CommitAppend("s", JSON, Batch(b"a")),))
    conflict = StreamRefused("s", ContentTypeConflict("text/plain"))
    assert unchanged(machine, other) == conflict
    untyped = replace(plain, appends=(CommitAppend("s", None, Batch(b"a")),))
    assert unchanged(machine, untyped) == conflict
    parameters = (CommitAppend("s", "text/plain; charset=utf-8", Batch(b"a")),)
    bad = replace(plain, appends=(CommitAppend("s", "text/plain", None, "bad"),))
    assert unchanged(machine, bad) == StreamRefused("s", BadBody("bad"))
    assert machine.execute(replace(plain, appends=parameters)).code == "ok"


def test_a_closed_stream_takes_no_listed_chunks() -> None:
    machine = txn_machine(stage(), chunk(0), append(None, close=True))
    assert unchanged(machine, one_shot(listed=(("t", 1),))) == StreamRefused("s", StreamClosed(0))


def test_positions_are_compared_and_set() -> None:
    machine = txn_machine(append())
    moved = one_shot(positions=(PositionMove("g", "s", 1, 0),))
    assert machine.execute(moved) == done(positions=(PositionResult("g", "s", 1),))
    conflict = PositionConflict("g", "s", 1, version=1, reason=BY_OFFSET)
    again = one_shot(("s", b"a"), seq=1, positions=(PositionMove("g", "s", 2, 0),))
    assert unchanged(machine, again) == conflict
    beyond = one_shot(("s", b"a"), seq=1, positions=(PositionMove("g", "s", 3, 1),))
    assert unchanged(machine, beyond) == StreamRefused("s", OffsetBeyondTail(2))
    own = one_shot(("s", b"a"), seq=1, positions=(PositionMove("g", "s", 2, 1),))
    assert machine.execute(own).code == "ok"


def test_listed_transactions_are_too_large_together() -> None:
    limits = MachineLimits(chunks=2)
    machine = txn_machine(stage(), chunk(0), chunk(1), stage("u"), chunk(0, txn="u"), limits=limits)
    both = one_shot(listed=(("t", 1), ("u", 1)))
    assert unchanged(machine, both) == BatchTooLarge(2 * EXTENT_BYTES)
    assert machine.execute(one_shot(listed=(("t", 1),))).code == "ok"
    assert machine.execute(one_shot(seq=1, listed=(("u", 1),))).code == "ok"


def test_there_is_an_end_to_the_groups_of_a_stream() -> None:
    machine = txn_machine(append())
    groups = dict.fromkeys(map(str, range(GROUPS_PER_STREAM_MAX)))
    machine.stream().positions = groups  # type: ignore[assignment]
    limit = LimitReached("groups_per_stream", GROUPS_PER_STREAM_MAX)
    assert unchanged(machine, one_shot(positions=(PositionMove("g", "s", 0),))) == limit
    del groups["0"]
    known = PositionRow(0, 0)
    machine.stream().positions["1"] = known  # type: ignore[index]
    one = (PositionMove("g", "s", 0), PositionMove("1", "s", 1))
    two = (*one, PositionMove("h", "s", 0))
    assert unchanged(machine, one_shot(positions=two)) == limit, "the first uses the last slot"
    assert machine.execute(one_shot(positions=one)).code == "ok"
