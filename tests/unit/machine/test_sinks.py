"""Sinks: new versions, repeated versions, and versions of another history."""

from semel.model.commands import BY_COMMIT, Delete, ExpireTxn, SinkTag, StreamResult, TxnResult
from semel.model.limits import SINK_VERSIONS_KEPT, SINKS_MAX
from semel.model.outcomes import Gone, LimitReached, NotFound
from semel.model.outcomes_txn import (
    AppBound,
    BranchIncomplete,
    BranchMissing,
    CheckpointDiverged,
    CommitDone,
    IncarnationConflict,
    NotOwner,
    SinkChanged,
    StreamRefused,
    UnknownSink,
    VersionForgotten,
)
from semel.model.sink_commands import ForgetSink, RebindSink
from tests.unit.machine.builders import create, fork, unchanged
from tests.unit.machine.txn_builders import (
    TxnMachine,
    abort,
    chunk,
    one_shot,
    prepare,
    stage,
    sunk,
    txn_machine,
)


def tag(
    version: int, given: str | None = None, previous: str | None = None, query: str = "q"
) -> SinkTag:
    return SinkTag("app", query, version, given, previous)


def sink_machine() -> TxnMachine:
    """Return a machine whose sink has committed version 1 with input i1, and 2 with i2."""
    machine = txn_machine(stage("a", sunk(1)), chunk(0, txn="a"), prepare("a"))
    machine.execute(one_shot(sink=tag(1, "i1"), listed=(("a", 1),)))
    machine.execute(one_shot(sink=tag(2, "i2", "i1")))
    return machine


def test_a_version_is_committed_once() -> None:
    machine = sink_machine()
    first = TxnResult((StreamResult("s", 0, 1, 1),))
    again = CommitDone(None, None, first, is_duplicate=True)
    assert unchanged(machine, one_shot(sink=tag(1, "i1"))) == again
    assert machine.stream().tail.tail == 1


# rows: K18
def test_a_sink_that_was_silent_for_ten_years_knows_its_last_version() -> None:
    machine = sink_machine()
    later = 10 * 365 * 24 * 60 * 60 * 1000
    again = unchanged(machine, one_shot(sink=tag(2, "i2", "i1"), now=later))
    assert isinstance(again, CommitDone)
    assert again.is_duplicate
    diverged = one_shot(sink=tag(3, "i3", "other"), now=later)
    assert unchanged(machine, diverged) == CheckpointDiverged(2)
    assert machine.execute(one_shot(sink=tag(3, "i3", "i2"), now=later)).code == "ok"


def test_another_input_is_another_history() -> None:
    machine = sink_machine()
    assert unchanged(machine, one_shot(sink=tag(1, "other"))) == CheckpointDiverged(2)
    assert unchanged(machine, one_shot(sink=tag(3, "i3", "other"))) == CheckpointDiverged(2)
    assert machine.execute(one_shot(sink=tag(3, "i3", "i2"))).code == "ok"


def test_without_digests_only_the_last_version_is_answered_and_unchecked() -> None:
    machine = sink_machine()
    unchecked = CommitDone(None, None, TxnResult(), is_duplicate=True, is_unchecked=True)
    assert unchanged(machine, one_shot(sink=tag(2))) == unchecked
    assert unchanged(machine, one_shot(sink=tag(1))) == CheckpointDiverged(2)
    assert machine.execute(one_shot(sink=tag(3))).code == "ok"
    assert unchanged(machine, one_shot(sink=tag(3, "i3"))) == unchecked
    assert machine.execute(one_shot(sink=tag(4, "i4", "i3"))).code == "ok"


def test_a_version_too_old_to_be_told_is_refused() -> None:
    machine = txn_machine()
    for version in range(SINK_VERSIONS_KEPT + 1):
        machine.execute(one_shot(sink=tag(version, f"i{version}")))
    assert unchanged(machine, one_shot(sink=tag(0, "i0"))) == VersionForgotten(SINK_VERSIONS_KEPT)
    assert unchanged(machine, one_shot(sink=tag(1, "i1"))).code == "ok"


def test_a_sink_belongs_to_one_query_until_it_is_rebound() -> None:
    machine = sink_machine()
    assert unchanged(machine, one_shot(sink=tag(3, query="other"))) == AppBound("q")
    assert machine.execute(RebindSink(0, "app", "other", 1)) == SinkChanged()
    # The new query shares no history with the old one, so no replay can be recognised.
    assert unchanged(machine, one_shot(sink=tag(1, "i1", query="other"))) == VersionForgotten(1)
    assert machine.execute(one_shot(sink=tag(2, "new", "its own", query="other"))).code == "ok"
    assert machine.execute(RebindSink(0, "app", "third", 9)) == SinkChanged()
    assert unchanged(machine, one_shot(sink=tag(9, query="third"))) == VersionForgotten(9)
    assert machine.execute(one_shot(sink=tag(10, "x", "y", query="third"))).code == "ok"


def test_a_sink_goes_back_in_the_history_of_its_query() -> None:
    machine = sink_machine()
    machine.execute(RebindSink(0, "app", "q", 1))
    repeat = unchanged(machine, one_shot(sink=tag(1, "i1")))
    assert isinstance(repeat, CommitDone)
    assert repeat.is_duplicate
    assert unchanged(machine, one_shot(sink=tag(2, "new", "x"))) == CheckpointDiverged(1)
    assert machine.execute(one_shot(sink=tag(2, "new", "i1"))).code == "ok"


# rows: K07
def test_a_sink_may_begin_before_its_first_version() -> None:
    machine = sink_machine()
    machine.execute(RebindSink(0, "app", "other", -1))
    assert machine.execute(one_shot(sink=tag(0, "i0", query="other"))).code == "ok"


def test_a_forgotten_sink_begins_anew() -> None:
    machine = sink_machine()
    assert machine.execute(ForgetSink(0, "app")) == SinkChanged()
    assert unchanged(machine, ForgetSink(0, "app")) == UnknownSink()
    assert unchanged(machine, RebindSink(0, "app", "q", 0)) == UnknownSink()
    assert machine.execute(one_shot(sink=tag(0, query="other"))).code == "ok"


def test_there_is_an_end_to_sinks() -> None:
    machine = txn_machine()
    machine.state.sinks.update(dict.fromkeys(map(str, range(SINKS_MAX))))  # type: ignore[arg-type]
    assert unchanged(machine, one_shot(sink=tag(0))) == LimitReached("sinks", SINKS_MAX)


def test_a_commit_names_branches_that_are_there_sealed_and_its_own() -> None:
    machine = txn_machine(stage("a", sunk(1)), chunk(0, txn="a"), stage("p"), prepare("p"))
    machine.execute(stage("b", sunk(3)))
    machine.execute(stage("c", sunk(1, app="other")))
    machine.execute(stage("d", sunk(1)))
    machine.execute(abort("d"))
    listed = {name: one_shot(sink=tag(2), listed=((name, 1),)) for name in "abcdpx"}
    assert machine.execute(listed["a"]) == BranchIncomplete("a", 1, 1)
    for name in "bcp":
        assert machine.execute(listed[name]) == NotOwner()
    for name in "dx":
        assert machine.execute(listed[name]) == BranchMissing(name)
    machine.execute(ExpireTxn(0, "a", 1, 10**9))
    assert machine.execute(listed["a"]) == BranchMissing("a")


def test_a_commit_drops_what_else_was_staged_for_this_version_and_older_ones() -> None:
    machine = txn_machine(stage("old", sunk(1)), stage("twin", sunk(2, 1)), stage("new", sunk(3)))
    machine.execute(stage("a", sunk(2)))
    machine.execute(prepare("a"))
    machine.execute(one_shot(sink=tag(2), listed=(("a", 1),)))
    assert list(machine.state.transactions) == ["new"]
    ends = {name: row.outcome.reason for (name, _), row in machine.outcomes.items()}
    assert ends == {"a": "", "old": BY_COMMIT, "twin": BY_COMMIT}


def test_a_committed_branch_is_missing_for_the_next_version() -> None:
    machine = sink_machine()
    assert machine.execute(one_shot(sink=tag(3, "i3"), listed=(("a", 1),))) == BranchMissing("a")


def test_what_was_staged_for_a_stream_that_is_gone_is_not_left_out_in_silence() -> None:
    machine = txn_machine(stage("a", sunk(1)), chunk(0, txn="a"), prepare("a"))
    commit = one_shot(sink=tag(1, "i1"), listed=(("a", 1),))
    machine.execute(Delete("s", 0))
    assert unchanged(machine, commit) == StreamRefused("s", NotFound())
    machine.execute(create(now=7))
    assert unchanged(machine, commit) == IncarnationConflict("s", "i-s-7")
    machine.execute(fork())
    machine.execute(Delete("s", 0))
    assert unchanged(machine, commit) == StreamRefused("s", Gone())
