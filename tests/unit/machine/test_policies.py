"""Policies: which one decides, when it takes effect, and that it changes no stream by itself."""

from unittest.mock import patch

import msgspec
import pytest
from msgspec.structs import replace

from semel.journal.frame import encode_meta
from semel.machine import State, apply, policies
from semel.machine.decide import dry_run
from semel.machine.events import DedupSwitched, PolicyChanged, StreamAppended, StreamConfigured
from semel.machine.policies import dedup_source, due_switch, prefixes_of
from semel.machine.rows import TailRow
from semel.machine.state import STATE_TABLES, Stream
from semel.model import commands as ask
from semel.model.commands import Register
from semel.model.outcomes import (
    Appended,
    ConfigConflict,
    Created,
    Duplicate,
    InvalidRequest,
    LimitReached,
    PolicyDeleted,
    PolicySet,
    SequenceGap,
    Switched,
    UnknownPolicy,
)
from semel.model.policies import DedupSource, DeletePolicy, SetPolicy
from tests.unit.machine.builders import (
    Machine,
    append,
    create,
    dense,
    fork,
    machine_of,
    reloaded,
    snapshot,
    unchanged,
)
from tests.unit.machine.txn_builders import TxnMachine, abort, begin, publish


def policy(prefix: str, dedup: bool | None, *, now: int = 0) -> SetPolicy:
    return SetPolicy(now, prefix, dedup)


def drop(prefix: str) -> DeletePolicy:
    return DeletePolicy(0, prefix)


def inherit(path: str = "s") -> ask.SwitchDedup:
    return ask.SwitchDedup(path, 0, None)


def is_on(machine: Machine, path: str = "s") -> bool:
    return machine.stream(path).tail.dedup_from is not None


def source(machine: Machine, path: str = "s") -> DedupSource:
    return dedup_source(machine.state.policies, path, machine.stream(path).tail)


# ---- create --------------------------------------------------------------------------------------


@pytest.mark.parametrize("own", [None, True, False])
@pytest.mark.parametrize("root", [None, True, False])
def test_a_creation_reports_the_setting_of_the_stream_and_where_it_comes_from(
    own: bool | None, root: bool | None
) -> None:
    machine = machine_of(*([] if root is None else [policy("", root)]))
    command = replace(create(), dedup=own)
    created = machine.execute(command)
    assert isinstance(created, Created)
    assert (created.dedup_from is not None) == is_on(machine)
    assert created.source == source(machine)
    assert unchanged(machine, command) == replace(created, is_new=False)


def test_a_creation_again_reports_what_the_stream_has_now() -> None:
    machine = machine_of(create(), append(), ask.SwitchDedup("s", 0, False))
    machine.execute(ask.SwitchDedup("s", 0, True))
    again = unchanged(machine, create())
    assert isinstance(again, Created)
    assert (again.dedup_from, again.source) == (1, DedupSource(is_own=True))
    machine.execute(inherit())
    machine.execute(policy("", False))
    again = unchanged(machine, create())
    assert isinstance(again, Created)
    assert (again.dedup_from, again.source) == (1, DedupSource(prefix="", pending=False))


# ---- set, delete ---------------------------------------------------------------------------------


def test_a_policy_is_set_replaced_and_deleted() -> None:
    machine = Machine()
    assert machine.execute(policy("a", False, now=5)) == PolicySet("a", False, 5, is_new=True)
    assert unchanged(machine, policy("a", False, now=9)) == PolicySet("a", False, 5, is_new=False)
    assert machine.execute(policy("a", True, now=9)) == PolicySet("a", True, 9, is_new=False)
    assert unchanged(machine, drop("b")) == UnknownPolicy()
    assert machine.execute(drop("a")) == PolicyDeleted()
    assert machine.state.policies == {}


def test_a_policy_must_set_something_and_its_prefix_is_bounded() -> None:
    machine = Machine()
    assert unchanged(machine, policy("a", None)) == InvalidRequest("dedup")
    assert unchanged(machine, policy("a" * 501, True)) == InvalidRequest("prefix")
    assert unchanged(machine, drop("a" * 501)) == InvalidRequest("prefix")
    assert isinstance(machine.execute(policy("a" * 500, True)), PolicySet)


def test_the_number_of_policies_is_bounded_and_the_root_always_has_room() -> None:
    with patch.object(policies, "POLICIES_MAX", 2):
        machine = machine_of(policy("a", True), policy("b", True))
        assert unchanged(machine, policy("c", True)) == LimitReached("policies", 2)
        assert isinstance(machine.execute(policy("", False)), PolicySet)
        assert unchanged(machine, policy("c", True)) == LimitReached("policies", 2)
        assert isinstance(machine.execute(policy("a", False)), PolicySet)


# rows: P19
@pytest.mark.parametrize("streams", [1, 100_000])
def test_a_policy_changes_no_stream_and_no_row_of_one(streams: int) -> None:
    machine = machine_of(*[create(f"s/{i}") for i in range(streams)])
    machine.state.take_dirty()
    with patch.object(policies, "find_dedup", side_effect=AssertionError):  # no stream is compared
        machine.execute(policy("s", False))
    event = machine.journal[-1].event
    assert event == PolicyChanged("s", machine.state.policies["s"])
    assert len(encode_meta(event)) == 6
    dirty = machine.state.dirty
    changed = [name for name in dirty.__struct_fields__ if getattr(dirty, name)]
    assert changed == ["policies"]


# ---- which policy decides ------------------------------------------------------------------------


def test_prefixes_are_whole_segments_the_longest_first() -> None:
    assert list(prefixes_of("a/bc/d")) == ["a/bc/d", "a/bc", "a", ""]


@pytest.mark.parametrize(
    ("path", "expected"),
    [("o", "o"), ("o/x", "o"), ("o2", ""), ("o/eu", "o/eu"), ("o/eu/x", "o/eu"), ("o/eux", "o")],
)
def test_the_longest_prefix_of_whole_segments_decides(path: str, expected: str) -> None:
    machine = machine_of(policy("", True), policy("o", False), policy("o/eu", True), create(path))
    assert is_on(machine, path) == (expected != "o")
    assert source(machine, path) == DedupSource(prefix=expected)
    assert source(machine, path).name == "policy"


def test_without_policies_the_built_in_setting_decides() -> None:
    machine = machine_of(create())
    assert source(machine) == DedupSource()
    assert source(machine).name == "built-in"
    assert due_switch(machine.state, machine.stream()) is None


def test_a_stream_s_own_setting_wins_until_it_is_removed() -> None:
    machine = machine_of(policy("", False), replace(create(), dedup=True), append(by=dense(0)))
    assert source(machine) == DedupSource(is_own=True)
    assert source(machine).name == "own"
    machine.execute(append(by=dense(1)))
    assert is_on(machine)
    assert machine.execute(inherit()) == Switched(0, 2, DedupSource(prefix="", pending=False))
    assert unchanged(machine, inherit()) == Switched(0, 2, DedupSource(prefix="", pending=False))
    assert len(machine.stream().producers or ()) == 1, "nothing is dropped before an append"
    machine.execute(append(by=dense(0)))
    assert not is_on(machine)


def test_a_switch_makes_the_setting_the_stream_s_own_even_if_its_value_stays() -> None:
    machine = machine_of(create(), append(by=dense(0)))
    assert machine.execute(ask.SwitchDedup("s", 0, True)) == Switched(0, 1)
    assert machine.stream().producers
    machine.execute(policy("", False))
    assert isinstance(machine.execute(append(by=dense(0))), Duplicate)
    machine.execute(ask.SwitchDedup("s", 0, False))
    assert isinstance(machine.journal[-1].event, DedupSwitched)
    machine.execute(policy("", True))
    machine.execute(append(by=dense(0)))
    assert not is_on(machine)


# ---- forks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("own", [True, False])
def test_a_fork_has_its_source_s_own_setting(own: bool) -> None:
    machine = machine_of(policy("", not own), replace(create(), dedup=own), fork())
    assert (is_on(machine, "f"), source(machine, "f")) == (own, DedupSource(is_own=True))


def test_a_fork_can_be_told_to_inherit_from_the_policies() -> None:
    machine = machine_of(replace(create(), dedup=False), replace(fork(), inherits=True))
    assert (is_on(machine, "f"), source(machine, "f")) == (True, DedupSource())
    assert isinstance(machine.execute(replace(fork(), inherits=True)), Created)


def test_a_create_is_compared_with_the_stream_s_own_setting_only() -> None:
    on, off, inherit = ({"dedup": True}, {"dedup": False}, {"inherits": True})
    conflict = ConfigConflict("dedup")
    for switch, equal in ((None, inherit), (True, on), (False, off)):
        machine = machine_of(create(), ask.SwitchDedup("s", 0, switch))
        for given in (on, off, inherit):
            answer = machine.execute(replace(create(), **given))
            assert isinstance(answer, Created) if given is equal else answer == conflict
        assert isinstance(machine.execute(create()), Created)


def test_a_fork_of_a_stream_that_inherits_is_as_the_policies_of_its_own_path_say() -> None:
    machine = machine_of(policy("f", False), create(), fork())
    assert not is_on(machine, "f")
    assert source(machine, "f") == DedupSource(prefix="f")


# ---- when it takes effect ------------------------------------------------------------------------


# rows: P19
def test_the_next_append_carries_the_switch_off_and_drops_what_was_stored() -> None:
    machine = machine_of(create(), append(by=dense(0, epoch=0)), append(key="k"))
    machine.execute(policy("", False))
    assert source(machine) == DedupSource(prefix="", pending=False)
    assert is_on(machine)
    answer = machine.execute(append(by=dense(0, epoch=0)))
    assert answer == Appended(2, 3, False, 0, 0, is_unguarded=True)
    event = machine.journal[-1].event
    assert event == StreamConfigured(1, None, False, append=StreamAppended(1))
    stream = machine.stream()
    assert (stream.producers, stream.keys, machine.state.producer_counts.live) == (None, None, 0)
    assert source(machine) == DedupSource(prefix="")


# rows: P19, P26
@pytest.mark.parametrize("tagged", [{}, {"by": dense(0)}, {"key": "k"}])
def test_the_next_append_carries_the_switch_on_and_is_the_first_that_is_recognised(
    tagged: dict[str, object],
) -> None:
    machine = machine_of(policy("", False), create(), append(), append(by=dense(0)), drop(""))
    first = machine.execute(append(**tagged))  # type: ignore[arg-type]
    assert isinstance(first, Appended)
    assert (first.first_offset, first.is_unguarded) == (2, False)
    assert machine.stream().tail.dedup_from == 2
    if tagged:
        assert isinstance(machine.execute(append(**tagged)), Duplicate)  # type: ignore[arg-type]


def test_a_refused_append_switches_nothing() -> None:
    machine = machine_of(policy("", False), create(), append(by=dense(4)), drop(""))
    assert unchanged(machine, append(by=dense(5))) == SequenceGap(0, 5)
    assert not is_on(machine)
    assert isinstance(machine.execute(append(by=dense(0))), Appended)
    assert is_on(machine)


def test_a_closed_stream_keeps_its_switch() -> None:
    machine = machine_of(create(), append(by=dense(0)), append(None, close=True))
    machine.execute(policy("", False))
    assert source(machine) == DedupSource(prefix="")
    assert isinstance(unchanged(machine, append(by=dense(0))), Duplicate)


def test_an_append_that_switches_also_declares_an_idle_time() -> None:
    machine = machine_of(policy("", False), create(), policy("", True))
    tag = replace(dense(0), expires_ms=60_000)
    assert isinstance(machine.execute(append(by=tag)), Appended)
    producers = machine.stream().producers
    assert is_on(machine)
    assert producers is not None
    assert (producers["p"].expires_ms, producers.expiring) == (60_000, 1)


def test_an_append_that_switches_also_fences_older_transactions() -> None:
    machine = TxnMachine()
    for command in (policy("s", False), create(), create("r"), Register(0, "p")):
        machine.execute(command)
    machine.execute(begin(streams=("r",)))
    machine.execute(publish(path="r"))
    machine.execute(drop("s"))
    machine.execute(append(by=dense(0, epoch=3)))
    event = machine.journal[-1].event
    assert isinstance(event, StreamConfigured)
    assert len(event.ended) == 1
    assert machine.state.transactions == {}
    assert machine.stream().tail.dedup_from == 0


@pytest.mark.parametrize("starts_on", [True, False])
def test_a_transaction_continues_with_the_switch_it_had(starts_on: bool) -> None:
    machine = TxnMachine()
    for command in (policy("", starts_on), create(), Register(0, "p")):
        machine.execute(command)
    machine.execute(begin(streams=("s",)))
    machine.execute(publish())
    machine.execute(policy("", not starts_on))
    for seq in (1, 2):
        machine.execute(append())
        again = machine.execute(publish(seq))
        assert isinstance(again, Appended)
        assert again.is_unguarded is not starts_on
    assert is_on(machine) is starts_on
    machine.execute(abort())
    assert is_on(machine) is starts_on, "the end of the transaction is no append"
    machine.execute(append())
    assert is_on(machine) is not starts_on


def test_a_stream_is_compared_once_for_each_version_of_the_policies() -> None:
    machine = machine_of(create(), append())
    with patch.object(policies, "find_dedup", side_effect=AssertionError):
        machine.execute(append(by=dense(0)))
        machine.execute(append(by=dense(1)))
    machine.execute(policy("other", False))
    machine.execute(append(by=dense(2)))
    with patch.object(policies, "find_dedup", side_effect=AssertionError):
        machine.execute(append(by=dense(3)))


def test_a_dry_run_is_that_of_an_append_after_the_switch() -> None:
    machine = machine_of(create(), append(by=dense(0, epoch=0)), policy("", False))
    run = dry_run(machine.state, "s", dense(0, epoch=0), now_ms=0)
    assert run.outcome == Appended(1, 2, False, 0, 0, is_unguarded=True)
    assert run.other is None


# ---- replay, checkpoint, data of before ----------------------------------------------------------


def test_a_replay_and_a_checkpoint_restore_the_state() -> None:
    machine = machine_of(
        policy("", False),
        policy("a/b", True),
        create("a"),
        create("a/b"),
        replace(create("own"), dedup=True),
        append(path="a/b", by=dense(0)),
        drop(""),
        append(path="a", by=dense(0)),
        inherit("own"),
    )
    twin = State()
    for written in machine.journal:
        apply(twin, *written)
    assert snapshot(twin) == snapshot(machine.state)
    loaded = reloaded(machine.state)
    assert loaded.policies == machine.state.policies
    assert {path: stream.tail for path, stream in loaded.by_path.items()} == {
        path: stream.tail for path, stream in machine.state.by_path.items()
    }


@pytest.mark.parametrize(("since", "is_own"), [(0, False), (7, False), (None, True)])
def test_a_stream_of_before_keeps_off_as_its_own_setting(since: int | None, is_own: bool) -> None:
    old = msgspec.msgpack.encode([0, 9, False, False, None, 9, since, 9, 0])
    state = machine_of(create()).state
    STATE_TABLES["tails"].load(state, 1, msgspec.msgpack.decode(old, type=TailRow))
    assert state.by_number[1].tail.dedup_own is is_own


def test_a_frame_of_before_that_switched_on_makes_the_stream_inherit() -> None:
    machine = machine_of(replace(create(), dedup=False), append())
    apply(machine.state, DedupSwitched(1, 1), (), 0)
    tail = machine.stream().tail
    assert (tail.dedup_from, tail.dedup_own) == (1, False)


def test_the_version_is_no_part_of_a_stream_s_rows() -> None:
    assert "policy_version" not in TailRow.__struct_fields__
    assert "policy_version" in Stream.__struct_fields__
