"""The transaction checker on groups that several workers share."""

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from semel.testing.txn.check import TransactionReport, check_transactions
from semel.testing.txn.facts import Anomaly
from semel.testing.txn.history import (
    RecordedTransaction,
    TransactionHistory,
    TransactionKind,
    TransactionRange,
)
from tests.unit.testing.histories import Clock
from tests.unit.testing.shared_histories import GROUP, INPUT, SharedWorld
from tests.unit.testing.txn_histories import names

SEEDS = st.integers(0, 2**32)
AT = (GROUP, INPUT)


class Story:
    """A hand-written history. Every call ends before the next one begins."""

    def __init__(self) -> None:
        self.history = TransactionHistory(Clock())

    def begin(
        self, id: str, start: int, to: int, incarnation: str = "", kind: TransactionKind = "staged"
    ) -> RecordedTransaction:
        transaction = self.history.begin(id, kind=kind)
        transaction.append("out", [id]).ok()
        transaction.move(GROUP, INPUT, to, start=start, incarnation=incarnation)
        return transaction

    def commit(self, id: str, start: int, to: int, incarnation: str = "") -> RecordedTransaction:
        transaction = self.begin(id, start, to, incarnation)
        transaction.decide()
        transaction.committed()
        return transaction

    def prepare(self, id: str, start: int, to: int, incarnation: str = "") -> RecordedTransaction:
        transaction = self.begin(id, start, to, incarnation)
        transaction.prepare()
        transaction.prepared()
        return transaction

    def set(self, to: int, incarnation: str = "") -> None:
        self.history.set_position(GROUP, INPUT, to, incarnation=incarnation).ok()

    def delete(self, incarnation: str = "") -> None:
        self.history.delete(INPUT, incarnation=incarnation).ok()

    def check(self, *visible: str, end: int | None = None, **more: str) -> TransactionReport:
        logs = {"out": list(visible)}
        positions = None if end is None else {AT: end}
        return check_transactions(
            self.history, logs, logs, positions=positions, incarnations=more or None
        )


def only(report: TransactionReport) -> Anomaly:
    (anomaly,) = report.anomalies
    return anomaly


# ---- correct histories pass ----------------------------------------------------------------------


@given(SEEDS)
def test_workers_of_a_server_that_keeps_its_promises_pass(seed: int) -> None:
    world = SharedWorld(Random(seed))
    world.run()
    assert world.check().anomalies == []


def test_one_after_another_passes_and_is_counted() -> None:
    story = Story()
    story.commit("a", 0, 3)
    story.begin("b", 0, 2).refused()
    story.history.transactions[-1].aborted()
    story.commit("c", 3, 5)
    story.set(1)
    story.commit("d", 1, 2)
    report = story.check("a", "c", "d", end=2)
    assert report.anomalies == []
    assert (report.ranges, report.refused, report.sets, report.deletes) == (3, 1, 1, 0)
    shown = "; 3 ranges processed for groups, 1 transactions refused, 1 positions set, 0 streams"
    assert f"{shown} deleted;" in str(report)


def test_a_transaction_may_move_a_group_back_itself() -> None:
    story = Story()
    story.commit("a", 0, 3)
    story.commit("b", 3, 0)
    story.commit("c", 0, 2)
    assert story.check("a", "b", "c", end=2).anomalies == []


def test_a_stream_made_anew_is_another_one() -> None:
    story = Story()
    story.commit("a", 0, 3, "in-0")
    story.delete("in-0")
    story.commit("b", 0, 2, "in-1")
    assert story.check("a", "b", end=2, **{INPUT: "in-1"}).anomalies == []


def test_what_was_prepared_may_be_committed_after_the_end_of_its_stream() -> None:
    story = Story()
    prepared = story.prepare("a", 0, 3, "in-0")
    story.delete("in-0")
    prepared.decide()
    prepared.committed()
    assert story.check("a", end=0, **{INPUT: "in-1"}).anomalies == []


def test_a_refused_set_moves_nothing_and_one_without_an_answer_may() -> None:
    story = Story()
    story.commit("a", 0, 3)
    story.history.set_position(GROUP, INPUT, 0).refuse()
    story.commit("b", 3, 4)
    assert story.check("a", "b", end=4).anomalies == []
    story.history.set_position(GROUP, INPUT, 0)
    assert story.check("a", "b", end=4).anomalies == []
    story.commit("c", 0, 1)
    assert story.check("a", "b", "c", end=1).anomalies == []


def test_a_transaction_without_messages_that_nobody_knows_of_may_have_moved_a_group() -> None:
    story = Story()
    unknown = story.history.begin("a", kind="one-shot")
    unknown.move(GROUP, INPUT, 3, start=0)
    unknown.decide()
    assert story.check(end=3).anomalies == []
    assert story.check(end=0).anomalies == []
    assert names(story.check(end=2)) == {"position"}


def test_groups_of_one_worker_are_judged_as_before() -> None:
    story = Story()
    alone = story.commit("a", 0, 3)
    alone.ranges.clear()
    alone.move(GROUP, INPUT, 3)
    story.set(0)
    assert story.check("a", end=3).anomalies == []


# ---- every anomaly is reported -------------------------------------------------------------------


def test_double_two_workers_took_the_same() -> None:
    story = Story()
    story.commit("a", 0, 3)
    story.commit("b", 2, 5)
    anomaly = only(story.check("a", "b", end=5))
    assert anomaly.name == "double"
    assert anomaly.transactions == ("a", "b")
    assert anomaly.text == (
        "group g in in: transaction b (staged, committed) processed 2 to 5 after transaction a"
        " (staged, committed) processed 0 to 3, although the position was not set back between them"
    )


def test_double_a_set_long_before_is_no_excuse() -> None:
    story = Story()
    story.commit("a", 0, 3)
    story.set(0)
    story.commit("b", 0, 3)
    story.commit("c", 0, 3)
    anomaly = only(story.check("a", "b", "c", end=3))
    assert (anomaly.name, anomaly.transactions) == ("double", ("b", "c"))


def test_double_nobody_was_told_of_one_of_them() -> None:
    story = Story()
    story.begin("a", 0, 3).decide()
    story.commit("b", 0, 3)
    assert only(story.check("a", "b", end=3)).name == "double"
    assert story.check("b", end=3).anomalies == []


def test_position_a_move_does_not_start_where_the_group_was() -> None:
    story = Story()
    story.commit("a", 0, 3)
    story.commit("b", 4, 5)
    anomaly = only(story.check("a", "b", end=5))
    assert anomaly.name == "position"
    assert anomaly.text == (
        "group g was at 3 in in, where transaction a (staged, committed) moved it, but transaction"
        " b (staged, committed) processed 4 to 5"
    )


def test_position_the_first_one_does_not_start_at_the_beginning() -> None:
    story = Story()
    story.commit("a", 1, 3, "in-0")
    anomaly = only(story.check("a"))
    assert anomaly.text == (
        "group g was at 0 in in (in-0), where every group begins, but transaction a (staged,"
        " committed) processed 1 to 3"
    )


def test_position_a_group_is_elsewhere_in_the_end() -> None:
    story = Story()
    story.commit("a", 0, 3)
    story.set(1)
    anomaly = only(story.check("a", end=3))
    assert anomaly.name == "position"
    assert anomaly.text == (
        "group g was at 1 in in, where a request to set a position moved it, but its final position"
        " is 3"
    )


def test_position_in_which_stream_a_group_is_in_the_end_must_be_known() -> None:
    story = Story()
    story.commit("a", 0, 3, "in-0")
    story.delete("in-0")
    story.commit("b", 0, 2, "in-1")
    assert story.check("a", "b", end=9).anomalies == []
    assert names(story.check("a", "b", end=9, **{INPUT: "in-1"})) == {"position"}
    assert names(story.check("a", "b", end=9, **{INPUT: "in-2"})) == {"position"}


def test_position_what_was_prepared_is_refused() -> None:
    story = Story()
    prepared = story.prepare("a", 0, 3)
    prepared.decide()
    prepared.refused()
    prepared.aborted()
    anomaly = only(story.check(end=0))
    assert anomaly.text == (
        "transaction a (staged, aborted) was refused after its prepare because of a group's"
        " position"
    )


def test_position_a_refused_prepare_is_none() -> None:
    story = Story()
    transaction = story.begin("a", 0, 3)
    transaction.prepare()
    transaction.refused()
    transaction.aborted()
    assert story.check(end=0).anomalies == []


@pytest.mark.parametrize("is_set", [True, False])
def test_position_a_group_was_moved_while_another_one_held_it(is_set: bool) -> None:
    story = Story()
    prepared = story.prepare("a", 0, 3)
    if is_set:
        story.set(0)
    else:
        story.commit("b", 0, 0)
    prepared.decide()
    prepared.committed()
    (first, *_) = story.check(*([] if is_set else ["b"]), "a").anomalies
    processed = "transaction b (staged, committed) processed 0 to 0"
    meanwhile = "the position was set to 0" if is_set else processed
    assert first == Anomaly(
        "position",
        "while prepared transaction a (staged, committed) held group g's position in in,"
        f" {meanwhile}",
        ("a",) if is_set else ("a", "b"),
    )


def test_position_a_commit_after_the_end_of_its_stream() -> None:
    story = Story()
    late = story.begin("a", 0, 3, "in-0")
    story.delete("in-0")
    late.decide()
    late.committed()
    anomaly = only(story.check("a"))
    assert anomaly.text == (
        "transaction a (staged, committed) processed 0 to 3 of in (in-0) for group g, but that"
        " stream was deleted before the commit"
    )


# ---- servers with bugs, and wrong histories ------------------------------------------------------


@pytest.mark.parametrize(
    ("bug", "expected"),
    [
        ({"compares": False}, {"double"}),
        ({"holds": False}, {"double", "position"}),
        ({"minds_deletes": False}, {"double", "position"}),
    ],
)
def test_a_server_with_a_bug_is_found_out(bug: dict[str, bool], expected: set[str]) -> None:
    found: set[str] = set()
    for seed in range(100):
        world = SharedWorld(Random(seed), **bug)
        world.run()
        found |= names(world.check())
    assert expected <= found


def take_more(world: SharedWorld, transaction: RecordedTransaction) -> None:
    taken = transaction.ranges[AT]
    transaction.ranges[AT] = TransactionRange(taken.start + 9, taken.to + 9, taken.incarnation)


def be_elsewhere(world: SharedWorld, _transaction: RecordedTransaction) -> None:
    now = world.now
    world.now = type(now)(now.incarnation, now.offset + 99, 1)


def be_refused(world: SharedWorld, _transaction: RecordedTransaction) -> None:
    prepared = [each for each in world.history.transactions if each.prepared_at is not None]
    assume(prepared)
    prepared[-1].refused_at = prepared[-1].decide_at


@pytest.mark.parametrize("damage", [take_more, be_elsewhere, be_refused])
@given(seed=SEEDS)
def test_a_history_told_wrongly_is_found_out(
    damage: Callable[[SharedWorld, RecordedTransaction], None], seed: int
) -> None:
    world = SharedWorld(Random(seed))
    world.run()
    transactions = world.history.transactions
    committed = [each for each in transactions if each.outcome == "committed"]
    assume(committed)
    damage(world, world.random.choice(committed))
    assert names(world.check()) & {"double", "position"}


def test_a_history_without_its_sets_shows_messages_taken_twice() -> None:
    found: set[str] = set()
    for seed in range(20):
        world = SharedWorld(Random(seed))
        world.run()
        world.history.sets.clear()
        found |= names(world.check())
    assert "double" in found
