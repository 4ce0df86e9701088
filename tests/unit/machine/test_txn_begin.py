"""Beginning a transaction, and what it may write and move: the table of begin, row by row."""

import pytest
from msgspec.structs import replace

from semel.machine import MachineLimits
from semel.machine.rows import NamedPosition
from semel.machine.state import Txn
from semel.model.commands import BY_FENCE, TXN_STAGED, Delete, Register
from semel.model.limits import (
    GROUPS_PER_STREAM_MAX,
    SINK_TXN_OPEN_MAX,
    TXN_OPEN_MAX,
    TXN_TIMEOUT_MS_DEFAULT,
)
from semel.model.outcomes import (
    Gone,
    InvalidRequest,
    LimitReached,
    NotFound,
    OffsetBeyondTail,
    Registered,
    StaleEpoch,
    UnknownProducer,
)
from semel.model.outcomes_txn import (
    AlreadyAborted,
    Begun,
    ConcurrentTransactions,
    ExtendDone,
    InvalidTxnState,
    StreamRefused,
    TooManyTransactions,
)
from tests.unit.machine.builders import append, create, dense, fork, unchanged
from tests.unit.machine.txn_builders import (
    TxnMachine,
    abort,
    add_positions,
    add_streams,
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


def test_a_transaction_begins_with_epoch_1_and_a_deadline() -> None:
    machine = txn_machine()
    assert machine.execute(begin(now=5)) == Begun("t", 1, 5 + TXN_TIMEOUT_MS_DEFAULT, is_new=True)
    assert machine.execute(begin("u", by("q"), timeout=7, now=5)) == Begun("u", 1, 12, is_new=True)
    assert machine.state.registry["p"].epoch == 0


def test_a_sink_has_no_deadline_and_stages_only() -> None:
    machine = txn_machine()
    assert unchanged(machine, begin(owner=sunk())) == InvalidRequest("kind")
    assert machine.execute(stage(owner=sunk())) == Begun("t", 1, None, is_new=True)
    assert not machine.state.registry


def test_the_same_begin_finds_the_transaction_open() -> None:
    machine = txn_machine(begin(now=5))
    again = Begun("t", 1, 5 + TXN_TIMEOUT_MS_DEFAULT, is_new=False)
    assert unchanged(machine, replace(begin(now=9), due_ms=again.deadline_ms)) == again
    machine.execute(prepare())
    assert unchanged(machine, begin()) == InvalidTxnState("prepared")


def test_a_new_instance_takes_the_id_over_and_aborts_what_was_open() -> None:
    machine = txn_machine(begin(), publish(0))
    assert machine.execute(begin(owner=by(epoch=1))) == Begun(
        "t", 2, TXN_TIMEOUT_MS_DEFAULT, is_new=True
    )
    assert machine.execute(commit(epoch=1)) == AlreadyAborted(BY_FENCE)
    assert machine.stream().tail.tail == machine.stable() == 2
    assert [(row.first, row.next) for row in machine.aborted] == [(0, 2)]


def test_a_begin_at_a_raised_epoch_fences_all_older_transactions() -> None:
    machine = txn_machine(begin("a"), publish(0, txn="a"), prepare("a"), stage("b"))
    machine.execute(begin("c", by(epoch=3)))
    assert list(machine.state.transactions) == ["c"]
    assert machine.state.registry["p"].epoch == 3
    assert unchanged(machine, begin("d", by(epoch=2))) == StaleEpoch(3, 2)


@pytest.mark.parametrize("other", [by("q"), sunk(), by("p", 0)])
def test_an_id_in_use_is_not_to_be_had(other: object) -> None:
    machine = txn_machine(stage(owner=by("p", 1)), begin("u", by("q")), abort("u"))
    kind = TXN_STAGED
    refusal = unchanged(machine, begin(owner=other, kind=kind))  # type: ignore[arg-type]
    is_older = other == by("p", 0)
    assert refusal == (StaleEpoch(1, 0) if is_older else ConcurrentTransactions("t"))


def test_a_sinks_id_is_not_to_be_had_by_a_producer_and_a_kind_does_not_change() -> None:
    machine = txn_machine(stage(owner=sunk()), begin("u"))
    assert unchanged(machine, stage()) == ConcurrentTransactions("t")
    assert unchanged(machine, stage("u")) == ConcurrentTransactions("u")


def test_an_all_digit_id_must_have_been_given_out() -> None:
    machine = txn_machine()
    assert unchanged(machine, begin(owner=by("1"))) == UnknownProducer()
    machine.execute(Register(0))
    assert isinstance(machine.execute(begin(owner=by("1"))), Begun)


def test_one_inline_transaction_is_open_at_a_time_and_five_are_pending() -> None:
    machine = txn_machine(begin("a"))
    assert unchanged(machine, begin("b")) == ConcurrentTransactions("a")
    machine.execute(prepare("a"))
    for txn_id in ("b", "c", "d", "e"):
        assert isinstance(machine.execute(stage(txn_id)), Begun)
    assert unchanged(machine, begin("f")) == TooManyTransactions(5)
    assert isinstance(machine.execute(begin("f", by("q"))), Begun)


def test_there_is_an_end_to_open_transactions() -> None:
    machine = txn_machine(begin("a"), stage("b", sunk()))
    machine.state.sink_txn_count = SINK_TXN_OPEN_MAX
    limit = LimitReached("sink_transactions", SINK_TXN_OPEN_MAX)
    assert unchanged(machine, stage("c", sunk())) == limit
    machine.state.sink_txn_count = 2 - TXN_OPEN_MAX
    limit = LimitReached("transactions", TXN_OPEN_MAX)
    assert unchanged(machine, begin("c", by("q"))) == limit


def test_a_new_producer_needs_room_in_the_registry() -> None:
    machine = txn_machine(begin("a"), limits=MachineLimits(registry=1))
    assert unchanged(machine, begin("b", by("q"))) == LimitReached("registry", 1)


def test_named_streams_have_to_be_there() -> None:
    machine = txn_machine(append(), create("x"), fork("f", "x", 0), Delete("x", 0))
    missing = StreamRefused("nope", NotFound())
    assert unchanged(machine, begin(streams=("s", "nope"))) == missing
    assert unchanged(machine, begin(streams=("x",))) == StreamRefused("x", Gone())


def test_a_thousand_streams_are_enough() -> None:
    machine = TxnMachine()
    paths = tuple(f"s{n}" for n in range(1_001))
    for path in paths:
        machine.execute(create(path))
    limit = LimitReached("transaction_streams", 1_000)
    assert unchanged(machine, begin(streams=paths)) == limit
    machine.execute(begin(streams=paths[:1_000], implicit=True))
    assert machine.execute(add_streams("s0", "s999")) == ExtendDone("t", 1_000)
    assert unchanged(machine, add_streams("s1000")) == limit
    assert unchanged(machine, publish(0, path="s1000")) == limit
    machine.execute(abort())
    machine.execute(begin("u", kind=TXN_STAGED, streams=paths[:1_000], implicit=True))
    assert unchanged(machine, chunk(0, txn="u", path="s1000")) == limit


def test_streams_are_added_once_and_positions_again_and_again() -> None:
    machine = txn_machine(append(), begin(streams=()))
    assert machine.execute(add_streams("s", "r", "s")) == ExtendDone("t", 2)
    assert unchanged(machine, add_streams("r")) == ExtendDone("t", 2)
    assert machine.execute(add_positions(("s", 0), ("s", 1))) == ExtendDone("t", 1)
    assert unchanged(machine, add_positions(("s", 1))) == ExtendDone("t", 1)
    assert machine.execute(add_positions(("s", 0))) == ExtendDone("t", 1)
    assert machine.state.transactions["t"].row.positions == (NamedPosition("g", 1, 0),)


def test_what_is_added_has_to_be_there_and_open() -> None:
    machine = txn_machine(begin())
    assert unchanged(machine, add_streams("nope")) == StreamRefused("nope", NotFound())
    assert unchanged(machine, add_positions(("nope", 0))) == StreamRefused("nope", NotFound())
    beyond = StreamRefused("s", OffsetBeyondTail(0))
    assert unchanged(machine, add_positions(("s", 1))) == beyond
    machine.execute(prepare())
    assert unchanged(machine, add_streams("s")) == InvalidTxnState("prepared")
    machine.execute(abort())
    assert machine.execute(add_streams("s")) == InvalidTxnState("aborted", "abort")
    assert machine.execute(add_positions(("s", 0))) == InvalidTxnState("aborted", "abort")


def test_a_transaction_moves_a_thousand_positions_and_a_stream_knows_ten_thousand_groups() -> None:
    machine = txn_machine(begin())
    txn = machine.state.transactions["t"]
    known = tuple(NamedPosition(f"g{n}", 1, 0) for n in range(1_000))
    assert isinstance(txn, Txn)
    txn.row = replace(txn.row, positions=known)
    limit = LimitReached("transaction_positions", 1_000)
    assert unchanged(machine, add_positions(("s", 0), group="one more")) == limit
    txn.row = replace(txn.row, positions=known[1:], lost=(("g0", "gone"),))
    assert unchanged(machine, add_positions(("s", 0), group="one more")) == limit
    txn.row = replace(txn.row, positions=(), lost=txn.row.lost * 999)
    last = add_positions(("s", 0), group="the last")
    assert machine.execute(last) == ExtendDone("t", 1_000)
    machine.execute(abort())
    groups = dict.fromkeys(map(str, range(GROUPS_PER_STREAM_MAX)))
    machine.stream().positions = groups  # type: ignore[assignment]
    machine.execute(begin("u"))
    limit = LimitReached("groups_per_stream", GROUPS_PER_STREAM_MAX)
    assert unchanged(machine, add_positions(("s", 0), txn="u")) == limit


def test_registering_again_fences_the_open_transaction() -> None:
    machine = txn_machine(Register(0, "p"), begin(), publish(0))
    assert machine.execute(Register(0, "p")) == Registered("p", 1)
    assert machine.execute(commit()) == AlreadyAborted(BY_FENCE)
    assert machine.stable() == machine.stream().tail.tail == 2


def test_an_append_at_a_raised_epoch_fences_the_open_transaction_in_its_frame() -> None:
    machine = txn_machine(begin(), publish(0), publish(0, path="r"))
    outcome = machine.execute(append(by=dense(0, epoch=1)))
    assert (outcome.first_offset, outcome.next_offset) == (1, 2)  # type: ignore[attr-defined]
    assert len(machine.journal[-1].sections) == 3
    assert machine.stream().tail.tail == machine.stable() == 3
    assert machine.stable("r") == 2
    assert machine.execute(commit()) == AlreadyAborted(BY_FENCE)


def test_an_append_at_the_same_epoch_leaves_the_transaction_alone() -> None:
    machine = txn_machine(begin(), publish(0), append(by=dense(1, epoch=0)))
    assert machine.stable() == 0
    assert "t" in machine.state.transactions


def test_the_next_transaction_of_an_id_has_the_next_epoch() -> None:
    machine = txn_machine(begin(), commit())
    assert machine.execute(begin()) == Begun("t", 2, TXN_TIMEOUT_MS_DEFAULT, is_new=True)
