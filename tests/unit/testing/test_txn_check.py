from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.testing.txn.check import ANOMALIES_MAX, TransactionReport, check_transactions
from semel.testing.txn.facts import Anomaly
from semel.testing.txn.history import RecordedTransaction, TransactionHistory, TransactionKind
from tests.unit.testing.histories import Clock
from tests.unit.testing.txn_histories import Logs, TxnWorld, names

SEEDS = st.integers(0, 2**32)


def only(report: TransactionReport) -> Anomaly:
    (anomaly,) = report.anomalies
    return anomaly


class Story:
    """A hand-written history. Every call ends before the next one begins."""

    def __init__(self) -> None:
        self.history = TransactionHistory(Clock())

    def begin(
        self, id: str, kind: TransactionKind = "staged", **appends: str
    ) -> RecordedTransaction:
        """Begin a transaction, and append the letters of each value to the stream of that name."""
        transaction = self.history.begin(id, kind=kind)
        for stream, letters in appends.items():
            transaction.append(stream, list(letters)).ok()
        return transaction

    def commit(
        self, id: str, kind: TransactionKind = "staged", **appends: str
    ) -> RecordedTransaction:
        transaction = self.begin(id, kind, **appends)
        transaction.decide()
        transaction.committed()
        return transaction

    def read(self, stream: str, letters: str, start: int = 0, reader: str = "r") -> None:
        self.history.read(
            stream, list(letters), start=start, invoked_at=self.history.clock(), reader=reader
        )

    def check(self, uncommitted: Logs | None = None, /, **committed: str) -> TransactionReport:
        logs: Logs = {stream: list(letters) for stream, letters in committed.items()}
        return check_transactions(self.history, logs, uncommitted or logs)


# ---------------------------------------------------------------- correct histories pass


@given(SEEDS, st.integers(0, 60))
def test_a_history_of_a_server_that_keeps_its_promises_passes(seed: int, count: int) -> None:
    world = TxnWorld(Random(seed))
    world.run(count)
    assert world.check().anomalies == []


def test_the_figures_are_told() -> None:
    story = Story()
    story.commit("t1", x="a", y="b")
    story.begin("t2", x="c").aborted()
    story.begin("t3", x="d").decide()
    story.begin("t4", x="e").decide()
    story.read("x", "a")
    report = story.check(x="ad", y="b")
    assert str(report) == (
        "transactions: 1 committed, 1 aborted, 1 without a response but visible, 1 without a"
        " response and not visible; 1 reads, 3 dependencies, 0 anomalies"
    )


def test_reads_of_two_streams_are_no_snapshot() -> None:
    story = Story()
    reader = story.begin("reader", z="r")
    reader.read("x", [], start=0, invoked_at=story.history.clock())
    story.commit("t1", x="a", y="b")
    reader.read("y", ["b"], start=0, invoked_at=story.history.clock())
    reader.decide()
    reader.committed()
    assert story.check(x="a", y="b", z="r").anomalies == []


def test_inline_transactions_that_overlap_may_stand_in_two_orders() -> None:
    story = Story()
    one, two = story.begin("t1", "inline"), story.begin("t2", "inline")
    one.append("x", ["a"]).ok()
    two.append("x", ["b"]).ok()
    two.append("y", ["c"]).ok()
    one.append("y", ["d"]).ok()
    for each in (one, two):
        each.decide()
        each.committed()
    assert story.check(x="ab", y="cd").anomalies == []


def test_an_open_inline_transaction_holds_up_what_stands_behind_it() -> None:
    story = Story()
    slow = story.begin("slow", "inline", x="a")
    story.commit("quick", x="b", y="c")
    story.read("x", "")
    story.read("y", "c")
    slow.decide()
    slow.committed()
    story.read("x", "ab")
    assert story.check(x="ab", y="c").anomalies == []


def test_one_that_is_aborted_later_holds_up_as_well_and_may_part_a_transaction() -> None:
    story = Story()
    one = story.begin("t1", "inline", x="a")
    slow = story.begin("slow", "inline", x="b")
    one.append("x", ["c"]).ok()
    one.decide()
    one.committed()
    story.read("x", "a")
    slow.aborted()
    story.read("x", "ac")
    assert story.check({"x": ["a", "b", "c"]}, x="ac").anomalies == []


def test_what_nobody_was_told_may_be_there_wholly_or_not_at_all() -> None:
    story = Story()
    story.begin("t1", x="a", y="b").decide()
    assert story.check(x="a", y="b").resolved_committed == 1
    assert story.check(x="", y="").resolved_aborted == 1
    assert names(story.check(x="a", y="")) == {"torn"}


# ---------------------------------------------------------------- every anomaly is reported


def test_g0_two_decisions_stand_in_two_orders() -> None:
    story = Story()
    one, two = story.begin("t1", x="a", y="b"), story.begin("t2", x="c", y="d")
    for each in (one, two):
        each.decide()
    for each in (one, two):
        each.committed()
    anomaly = only(story.check(x="ac", y="db"))
    assert anomaly.name == "G0"
    assert anomaly.transactions == ("t1", "t2")
    assert str(anomaly) == (
        "G0: these facts form a cycle, so no order of the operations is possible:\n"
        "  1. the commit of transaction t1 (staged, committed) stored 'a' in x before the commit of"
        " transaction t2 (staged, committed) stored 'c' there [ww]\n"
        "  2. the commit of transaction t2 (staged, committed) stored 'd' in y before the commit of"
        " transaction t1 (staged, committed) stored 'b' there [ww]"
    )


def test_g0_an_inline_transaction_has_its_appends_in_the_order_they_were_made() -> None:
    story = Story()
    inline, staged = story.begin("t1", "inline"), story.begin("t2", x="c", y="d")
    staged.decide()
    first = inline.append("x", ["a"])
    first.ok()
    inline.append("y", ["b"]).ok()
    inline.decide()
    staged.committed()
    inline.committed()
    assert story.check(x="ac", y="db").anomalies == []
    anomaly = only(story.check(x="ca", y="bd"))
    assert anomaly.name == "G0"


def test_g1a_an_aborted_transaction_is_visible() -> None:
    story = Story()
    story.begin("t1", x="a").aborted()
    anomaly = only(story.check(x="a"))
    assert str(anomaly) == (
        "G1a: transaction t1 (staged, aborted) is aborted, but 'a' in x is visible"
    )


def test_g1a_a_reader_saw_what_was_aborted() -> None:
    story = Story()
    story.begin("t1", "inline", x="a").aborted()
    story.read("x", "a")
    anomaly = only(story.check({"x": ["a"]}, x=""))
    assert anomaly == Anomaly(
        "G1a",
        "r got 'a' as message 0 of x, but transaction t1 (inline, aborted), which sent it,"
        " is not committed",
        ("t1",),
    )


def test_g1a_nobody_has_asked_for_the_commit() -> None:
    story = Story()
    story.begin("t1", x="a")
    assert "its commit was never sent" in only(story.check(x="a")).text


def test_g1a_a_refused_append_is_there() -> None:
    story = Story()
    transaction = story.begin("t1", "inline", x="a")
    transaction.append("x", ["b"]).refuse()
    transaction.decide()
    transaction.committed()
    assert story.check(x="a").anomalies == []
    assert only(story.check(x="ab")).name == "G1a"


def test_g1b_a_message_is_read_before_its_commit_was_sent() -> None:
    story = Story()
    transaction = story.begin("t1", "inline", x="a")
    story.read("x", "a")
    transaction.decide()
    transaction.committed()
    assert only(story.check(x="a")).name == "G1b"


def test_g1b_a_message_is_read_at_read_uncommitted_before_it_was_sent() -> None:
    story = Story()
    at = story.history.clock()
    story.history.read("x", ["a"], start=0, invoked_at=at, is_committed=False)
    story.commit("t1", "inline", x="a")
    assert only(story.check(x="a")).name == "G1b"


def test_g1b_a_reader_saw_a_part_of_a_transaction_in_one_stream() -> None:
    story = Story()
    transaction = story.begin("t1", x="ab")
    transaction.decide()
    story.read("x", "a")
    transaction.committed()
    anomaly = only(story.check(x="ab"))
    assert anomaly.name == "G1b"
    assert "but got a different message of that transaction" in anomaly.text


def test_g1c_two_transactions_have_read_each_other() -> None:
    story = Story()
    one, two = story.begin("t1", x="a"), story.begin("t2", y="b")
    one.decide()
    two.decide()
    one.read("y", ["b"], start=0, invoked_at=story.history.clock())
    two.read("x", ["a"], start=0, invoked_at=story.history.clock())
    one.committed()
    two.committed()
    anomaly = only(story.check(x="a", y="b"))
    assert anomaly.name == "G1c"
    assert set(anomaly.transactions) == {"t1", "t2"}
    assert anomaly.text.count("[wr]") == 2


def test_g1c_what_was_read_stands_behind_what_was_written_after() -> None:
    story = Story()
    one, two = story.begin("t1", x="a", y="b"), story.begin("t2", x="c")
    one.decide()
    two.decide()
    two.read("y", ["b"], start=0, invoked_at=story.history.clock())
    one.committed()
    two.committed()
    assert only(story.check(x="ca", y="b")).name == "G1c"


def test_g_single_a_reader_goes_back() -> None:
    story = Story()
    transaction = story.begin("t1", x="a")
    transaction.decide()
    story.read("x", "a")
    transaction.outcome = "unknown"
    story.history.reads[0].returned_at += 10  # so that the reads overlap in time
    story.read("x", "")
    anomaly = only(story.check(x="a"))
    assert anomaly.name == "G-single"
    assert "did not see 'a' in x, but a read of x up to message 1 by r saw" in anomaly.text


def test_g2_two_readers_see_two_streams_grow_in_two_orders() -> None:
    story = Story()
    one, two = story.begin("t1", x="a"), story.begin("t2", y="b")
    one.decide()
    two.decide()
    for stream, letters, reader in (
        ("x", "a", "r"),
        ("y", "b", "s"),
        ("y", "", "r"),
        ("x", "", "s"),
    ):
        story.read(stream, letters, reader=reader)
    for read in story.history.reads:
        read.invoked_at, read.returned_at = 0, 1_000  # all at once
    assert names(story.check(x="a", y="b")) == {"G2"}


def test_torn_a_stream_of_a_committed_transaction_lacks_it() -> None:
    story = Story()
    story.commit("t1", x="a", y="b")
    anomaly = only(story.check(x="a", y=""))
    assert str(anomaly) == (
        "torn: only a part of transaction t1 (staged, committed) is visible: 'a' in x, but not"
        " 'b' in y"
    )


def test_torn_a_read_behind_the_commit_lacks_one_stream() -> None:
    story = Story()
    story.commit("t1", x="a", y="b")
    story.read("x", "a")
    story.read("y", "")
    anomaly = only(story.check(x="a", y="b"))
    assert anomaly.name == "torn"
    assert "and the transaction also wrote to x" in anomaly.text


def test_torn_one_reader_has_seen_it_and_a_later_one_has_not() -> None:
    story = Story()
    story.begin("t1", x="a", y="b").decide()
    story.read("x", "a", reader="early")
    story.read("y", "", reader="late")
    assert only(story.check(x="a", y="b")).name == "torn"


def test_stale_a_read_behind_the_commit_lacks_its_only_stream() -> None:
    story = Story()
    story.commit("t1", x="a")
    story.read("x", "")
    assert only(story.check(x="a")).name == "stale"


def test_stale_a_read_lacks_a_message_whose_append_was_refused() -> None:
    story = Story()
    transaction = story.begin("t1", y="b")
    transaction.append("x", ["a"]).refuse()
    transaction.decide()
    transaction.committed()
    story.read("x", "")
    assert [anomaly.name for anomaly in story.check(x="a", y="b").anomalies] == ["G1a", "stale"]


def test_lost_nothing_of_a_committed_transaction_is_there() -> None:
    story = Story()
    story.commit("t1", x="a", y="b")
    assert str(only(story.check(x="", y=""))) == (
        "lost: transaction t1 (staged, committed) was acknowledged,"
        " but 'a' in x, 'b' in y is missing"
    )


def test_lost_a_reader_was_never_given_a_message() -> None:
    story = Story()
    story.commit("t1", x="abc")
    at = story.history.clock()
    story.history.read("x", ["a", "c"], start=0, invoked_at=at, is_up_to_date=False)
    assert "did not get the earlier message 'b'" in only(story.check(x="abc")).text


def test_lost_a_reader_saw_what_is_not_there_in_the_end() -> None:
    story = Story()
    story.commit("t1", x="a", y="b")
    story.read("x", "a")
    assert names(story.check(x="", y="")) == {"lost"}


def test_lost_a_message_is_only_there_at_read_committed() -> None:
    story = Story()
    story.commit("t1", x="a")
    assert names(story.check({"x": []}, x="a")) == {"lost"}


def test_duplicate_a_message_is_there_twice() -> None:
    story = Story()
    story.commit("t1", x="ab")
    assert "duplicate" in names(story.check(x="aba"))


def test_duplicate_a_reader_was_given_a_message_twice() -> None:
    story = Story()
    story.commit("t1", x="ab")
    at = story.history.clock()
    story.history.read("x", ["a", "a"], start=0, invoked_at=at, is_up_to_date=False)
    assert only(story.check(x="ab")).name == "duplicate"


def test_never_sent_a_message_or_one_for_another_stream() -> None:
    story = Story()
    story.commit("t1", x="a", y="b")
    assert names(story.check(x="aq", y="b")) == {"never_sent"}
    assert names(story.check(x="ab", y="b")) == {"never_sent"}
    story.read("x", "q", start=1)
    assert names(story.check(x="a", y="b")) == {"never_sent"}


def test_order_a_later_transaction_stands_first() -> None:
    story = Story()
    story.commit("t1", x="a")
    story.commit("t2", x="b")
    anomaly = only(story.check(x="ba"))
    assert anomaly.name == "order"
    assert anomaly.transactions == ("t2", "t1")


def test_order_the_messages_of_one_transaction_are_mixed_up() -> None:
    story = Story()
    story.commit("t1", x="ab")
    assert names(story.check(x="ba")) == {"order"}


def test_order_something_stands_within_a_decision() -> None:
    story = Story()
    one, two = story.begin("t1", x="ab"), story.begin("t2", x="c")
    for each in (one, two):
        each.decide()
    assert "order" in names(story.check(x="acb"))


def test_order_the_isolations_differ() -> None:
    story = Story()
    one, two = story.begin("t1", x="a"), story.begin("t2", x="b")
    for each in (one, two):
        each.decide()
    assert names(story.check({"x": ["b", "a"]}, x="ab")) == {"order"}


# ---------------------------------------------------------------- positions of groups


def moved(*, ends: str = "committed") -> Story:
    story = Story()
    for number in (1, 2):
        transaction = story.begin(f"t{number}", x=f"{number}")
        transaction.move("g", "in", number)
        transaction.decide()
        if number == 1 or ends == "committed":
            transaction.committed()
        elif ends == "aborted":
            transaction.aborted()
    return story


def check_moved(story: Story, x: str, at: int | None) -> TransactionReport:
    log: Logs = {"x": list(x)}
    positions = {} if at is None else {("g", "in"): at}
    return check_transactions(story.history, log, log, positions=positions)


def test_a_position_moves_with_its_transaction() -> None:
    assert check_moved(moved(), "12", 2).anomalies == []
    assert check_moved(moved(ends="aborted"), "1", 1).anomalies == []
    assert check_moved(moved(ends="unknown"), "1", 1).anomalies == []
    assert check_moved(moved(ends="unknown"), "12", 2).anomalies == []


def test_a_position_that_does_not_move_with_its_transaction_is_torn() -> None:
    assert names(check_moved(moved(), "12", 1)) == {"torn"}
    assert names(check_moved(moved(), "12", None)) == {"torn"}
    assert names(check_moved(moved(), "12", 7)) == {"torn"}
    assert names(check_moved(moved(ends="unknown"), "12", 1)) == {"torn"}
    assert names(check_moved(moved(ends="unknown"), "1", 2)) == {"torn"}
    assert names(check_moved(moved(ends="aborted"), "1", 2)) == {"G1a"}


# ---------------------------------------------------------------- the checker itself


def test_a_value_must_be_unique() -> None:
    story = Story()
    story.commit("t1", x="a", y="a")
    with pytest.raises(ValueError, match="'a' is appended twice"):
        story.check(x="a", y="a")


def test_a_great_many_anomalies_are_not_all_listed() -> None:
    story = Story()
    for number in range(ANOMALIES_MAX + 10):
        transaction = story.history.begin(f"t{number}", kind="one-shot")
        transaction.append("x", [number])
        transaction.decide()
        transaction.committed()
    assert len(story.check(x="").anomalies) == ANOMALIES_MAX
