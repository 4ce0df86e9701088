"""The switch that turns the deduplication of a stream on or off."""

import msgspec
import pytest
from msgspec.structs import replace

from semel.machine import State, apply, decide
from semel.machine.events import (
    DedupSwitched,
    StreamConfigured,
    StreamCreated,
    UnguardedCreated,
)
from semel.machine.rows import TailRow
from semel.model import commands as ask
from semel.model.commands import Command
from semel.model.outcomes import (
    Appended,
    ConfigConflict,
    ContentTypeConflict,
    Created,
    Duplicate,
    Gone,
    NotFound,
    StreamClosed,
    StreamSeqConflict,
    Switched,
)
from tests.unit.machine.builders import (
    Machine,
    append,
    create,
    dense,
    fork,
    machine_of,
    snapshot,
    sparse,
    unchanged,
)


def switch(dedup: bool, path: str = "s") -> ask.SwitchDedup:
    return ask.SwitchDedup(path, 0, dedup)


def off(path: str = "s") -> ask.Create:
    return replace(create(path), dedup=False)


# ---- creation ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "kind", "since", "is_own"),
    [
        (None, StreamCreated, 0, False),
        (True, StreamConfigured, 0, True),
        (False, UnguardedCreated, None, True),
    ],
)
def test_a_stream_begins_as_asked(
    given: bool | None, kind: type, since: int | None, is_own: bool
) -> None:
    wanted = replace(create(), dedup=given)
    assert type(decide(State(), wanted).event) is kind
    tail = machine_of(wanted).stream().tail
    assert (tail.dedup_from, tail.dedup_own) == (since, is_own)


def test_only_a_given_switch_is_compared_with_a_stream_that_is_there() -> None:
    machine = machine_of(replace(create(), dedup=True))
    assert isinstance(unchanged(machine, create()), Created)
    assert isinstance(unchanged(machine, replace(create(), dedup=True)), Created)
    assert unchanged(machine, off()) == ConfigConflict("dedup")


@pytest.mark.parametrize(("given", "since"), [(None, None), (True, 0), (False, None)])
def test_a_fork_is_as_its_source_unless_told(given: bool | None, since: int | None) -> None:
    machine = machine_of(off(), replace(fork(), dedup=given))
    assert machine.stream("f").tail.dedup_from == since


def test_a_fork_of_a_stream_switched_on_late_recognises_its_own_from_the_start() -> None:
    machine = machine_of(off(), append(), switch(True), fork())
    assert machine.stream("f").tail.dedup_from == 0


def test_a_row_of_a_checkpoint_without_the_switch_recognises_from_the_beginning() -> None:
    old = msgspec.msgpack.encode([0, 5, False, False, None, 9])
    assert msgspec.msgpack.decode(old, type=TailRow) == TailRow(0, 5, False, False, None, 9, 0)


# ---- deduplication off ---------------------------------------------------------------------------


# rows: P19
def test_while_off_everything_is_stored_and_nothing_remembered() -> None:
    machine = machine_of(off())
    for _ in range(2):
        answer = machine.execute(append(by=dense(7, epoch=3)))
        assert isinstance(answer, Appended)
        assert (answer.epoch, answer.seq, answer.is_unguarded) == (3, 7, True)
        assert machine.execute(append(by=sparse(4, 9))) == Appended(
            answer.next_offset, answer.next_offset + 1, False, None, 9, is_unguarded=True
        )
    machine.execute(append(key="k"))
    assert machine.execute(append(b"other", key="k")) == Appended(5, 6, False, is_unguarded=True)
    assert machine.execute(append(by=dense(0, name="77"))) == Appended(
        6, 7, False, None, 0, is_unguarded=True
    )
    assert machine.execute(append()) == Appended(7, 8, False)
    stream = machine.stream()
    assert (stream.producers, stream.keys, machine.state.producer_counts.live) == (None, None, 0)


def test_while_off_a_registered_epoch_is_not_raised() -> None:
    machine = machine_of(off(), ask.Register(0, "p"), append(by=dense(0, epoch=9)))
    assert machine.state.registry["p"].epoch == 0


def test_while_off_the_stream_s_own_rules_hold() -> None:
    machine = machine_of(off(), append(stream_seq="b", by=dense(0, epoch=0)))
    again = append(stream_seq="a", by=dense(0, epoch=0))
    assert machine.execute(again) == StreamSeqConflict("b")
    assert machine.execute(append(kind="a/b", by=dense(0, epoch=0))) == ContentTypeConflict(
        "text/plain"
    )
    machine.execute(append(None, close=True, by=dense(1, epoch=0)))
    assert machine.execute(append(by=dense(2, epoch=0))) == StreamClosed(1)
    closed_again = append(None, close=True, by=dense(1, epoch=0))
    assert unchanged(machine, closed_again) == Appended(1, 1, True, 0, 1, is_unguarded=True)


# ---- switching -----------------------------------------------------------------------------------


# rows: P19
def test_switching_off_forgets_producers_and_keys_in_one_frame() -> None:
    machine = machine_of(
        create(),
        append(by=dense(0, epoch=0)),
        append(by=sparse(3, name="q")),
        append(key="k"),
    )
    number = machine.stream().row.number
    machine.state.take_dirty()
    assert machine.execute(switch(False)) == Switched(None, 3)
    assert machine.journal[-1].event == DedupSwitched(number, None)
    stream, dirty = machine.stream(), machine.state.dirty
    assert (stream.producers, stream.keys, stream.next_key) == (None, None, 0)
    assert machine.state.producer_counts.live == 0
    assert dirty.producers == {(number, "p"): None, (number, "q"): None}
    assert dirty.keys == {(number, "k"): None}
    assert dirty.tails == {number: stream.tail}


# rows: P19, P26
def test_switching_on_begins_empty_and_tells_from_where() -> None:
    machine = machine_of(create(), append(by=dense(0, epoch=0)), switch(False))
    machine.execute(append(by=dense(0, epoch=0)))
    assert machine.execute(switch(True)) == Switched(2, 2)
    first = machine.execute(append(b"new", by=dense(0, epoch=0)))
    assert first == Appended(2, 3, False, 0, 0), "earlier appends are not recognised"
    assert isinstance(machine.execute(append(b"new", by=dense(0, epoch=0))), Duplicate)


def test_a_producer_that_went_on_while_off_loses_nothing_when_it_is_on_again() -> None:
    """B06: with the old sequence 0 still stored, the new one would be dropped as a duplicate."""
    machine = machine_of(create(), append(b"a", by=dense(0, session="x")))
    machine.execute(switch(False))
    machine.execute(switch(True))
    machine.execute(append(b"b", by=dense(0, session="x")))
    assert machine.payloads() == [b"a", b"b"]


@pytest.mark.parametrize("is_on", [True, False])
def test_switching_to_what_it_is_changes_nothing(is_on: bool) -> None:
    machine = machine_of(create(), append(by=dense(0)), switch(is_on))
    assert unchanged(machine, switch(is_on)) == Switched(0 if is_on else None, 1)
    assert machine.state.producer_counts.live == is_on


def test_switching_finds_no_stream_or_a_deleted_one() -> None:
    machine = machine_of(create(), fork(), ask.Delete("s", 0))
    assert unchanged(machine, switch(False)) == Gone()
    assert unchanged(machine, switch(False, "none")) == NotFound()


def test_a_trim_an_append_and_a_deletion_keep_the_switch() -> None:
    machine = machine_of(off(), append(), append(), ask.Trim("s", 0, 1), fork())
    machine.execute(ask.Delete("s", 0))
    tail = machine.stream().tail
    assert (tail.dedup_from, tail.head, tail.is_deleted) == (None, 1, True)


def test_live_producers_are_counted_through_every_end_of_one() -> None:
    """G18."""
    machine = Machine()

    def count_after(*commands: Command) -> int:
        for command in commands:
            machine.execute(command)
        return machine.state.producer_counts.live

    assert count_after(create(), append(by=dense(0)), append(by=dense(0, name="q"))) == 2
    assert count_after(ask.ExpireProducer("s", 0, "q", 0)) == 1
    assert count_after(ask.ForgetProducer("s", 0, "q")) == 1
    assert count_after(ask.ForgetProducer("s", 0, "p")) == 0
    assert count_after(append(by=dense(0)), ask.ExpireProducer("s", 0, "p", 0)) == 0
    assert count_after(append(b"new", by=dense(0))) == 1, "it replaces its tombstone"
    assert count_after(fork(), append(path="f", by=dense(0))) == 2
    assert count_after(ask.Delete("s", 0)) == 1, "a soft-deleted stream has no producers"
    assert count_after(ask.Delete("f", 0)) == 0


def test_replaying_switches_gives_the_state_that_was() -> None:
    machine = machine_of(
        off(), append(by=dense(0)), switch(True), append(by=dense(0)), append(key="k"), fork()
    )
    twin = State()
    for written in machine.journal:
        apply(twin, *written)
    assert snapshot(twin) == snapshot(machine.state)
