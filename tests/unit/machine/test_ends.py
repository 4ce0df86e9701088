"""Delete, trim and expire, and the time that they use."""

import pytest

from semel.machine import Section, apply
from semel.machine.events import StreamAppended, StreamDeleted
from semel.model import commands as ask
from semel.model import outcomes as out
from semel.model.commands import Command
from semel.model.errors import InvariantBroken
from tests.unit.machine.builders import append, create, dense, fork, machine_of, unchanged


def test_time_never_runs_backwards() -> None:
    machine = machine_of(create(now=50), append(now=10))
    assert (machine.stream().tail.written_ms, machine.state.time_ms) == (50, 50)


@pytest.mark.parametrize(
    "command",
    [
        append(),
        ask.Delete("s", 0),
        ask.Trim("s", 0, 0),
        ask.Expire("s", 0, 0),
        ask.ClaimProducer("s", 0, "p", "x"),
        ask.ForgetProducer("s", 0, "p"),
        ask.ExpireProducer("s", 0, "p", 0),
    ],
)
def test_a_stream_that_is_not_there_is_told_from_one_that_is_gone(command: Command) -> None:
    assert unchanged(machine_of(), command) == out.NotFound()
    gone = machine_of(create(), fork(), ask.Delete("s", 0))
    assert unchanged(gone, command) == out.Gone()


def test_a_deleted_stream_is_removed() -> None:
    machine = machine_of(create(), append(by=dense(0)))
    assert machine.execute(ask.Delete("s", 0)) == out.Deleted(is_soft=False)
    assert (machine.state.by_path, machine.state.by_number) == ({}, {})
    assert machine.state.dirty.dropped == {1}


def test_a_stream_with_forks_is_deleted_softly() -> None:
    machine = machine_of(create(), append(), fork())
    assert machine.execute(ask.Delete("s", 0)) == out.Deleted(is_soft=True)
    assert machine.stream().tail.is_deleted


def test_the_last_fork_takes_its_soft_deleted_sources_along() -> None:
    machine = machine_of(create("a"), fork("b", "a"), fork("c", "b"))
    assert machine.execute(ask.Delete("b", 0)) == out.Deleted(is_soft=True)
    assert machine.execute(ask.Delete("a", 0)) == out.Deleted(is_soft=True)
    assert machine.execute(ask.Delete("c", 0)) == out.Deleted(is_soft=False)
    assert machine.state.by_path == {}


def test_a_source_stays_while_it_is_undeleted_or_has_another_fork() -> None:
    machine = machine_of(create(), fork("f"), fork("g"), fork("h", "g"), ask.Delete("f", 0))
    machine.execute(ask.Delete("s", 0))
    machine.execute(ask.Delete("h", 0))
    assert sorted(machine.state.by_path) == ["g", "s"]


def test_the_end_of_a_stream_may_free_data_all_the_way_up() -> None:
    machine = machine_of(create("a"), fork("b", "a"), fork("c", "b"))
    machine.state.take_dirty()
    machine.execute(ask.Delete("c", 0))
    assert machine.state.dirty.pruned == {1, 2, 3}


def test_a_trim_gives_up_what_lies_before_and_is_no_write() -> None:
    machine = machine_of(create(), append(), append())
    assert machine.execute(ask.Trim("s", 7, 1)) == out.Trimmed(1)
    tail = machine.stream().tail
    assert (tail.head, tail.tail, tail.written_ms) == (1, 2, 0)


def test_a_trim_below_the_head_changes_nothing() -> None:
    machine = machine_of(create(), append(), ask.Trim("s", 0, 1))
    assert unchanged(machine, ask.Trim("s", 9, 0)) == out.Trimmed(1)
    assert unchanged(machine, ask.Trim("s", 9, 1)) == out.Trimmed(1)


def test_a_trim_past_the_tail_is_refused() -> None:
    assert unchanged(machine_of(create()), ask.Trim("s", 9, 1)) == out.OffsetBeyondTail(0)


def test_a_stream_expires_at_its_date_whatever_its_use() -> None:
    machine = machine_of(create(expires_at=10))
    assert unchanged(machine, ask.Expire("s", 9, 0)) == out.StillAlive()
    assert machine.execute(ask.Expire("s", 10, 0)) == out.Expired()
    assert machine.state.by_path == {}


def test_a_stream_expires_when_unused_for_its_time() -> None:
    machine = machine_of(create(ttl=10), append(now=3), ask.Trim("s", 8, 1))
    assert unchanged(machine, ask.Expire("s", 10**9, 9)) == out.StillAlive()
    assert machine.execute(ask.Expire("s", 0, 10)) == out.Expired()


def test_a_stream_with_a_date_and_a_time_expires_at_the_first_of_both() -> None:
    for ended in (ask.Expire("s", 10, 10), ask.Expire("s", 100, 0)):
        machine = machine_of(create(ttl=10, expires_at=100))
        assert unchanged(machine, ask.Expire("s", 99, 9)) == out.StillAlive()
        assert machine.execute(ended) == out.Expired()


def test_a_clock_that_was_far_ahead_once_does_not_end_a_date_to_come() -> None:
    machine = machine_of(create(expires_at=50), append(now=1_000))
    assert unchanged(machine, ask.Expire("s", 49, 0)) == out.StillAlive()
    assert machine.execute(ask.Expire("s", 50, 0)) == out.Expired()


def test_a_clock_that_was_far_ahead_once_does_not_switch_a_ttl_off() -> None:
    machine = machine_of(create(ttl=10), append(now=1_000))
    assert unchanged(machine, ask.Expire("s", 20, 9)) == out.StillAlive()
    assert machine.execute(ask.Expire("s", 20, 10)) == out.Expired()


def test_a_stream_without_expiry_never_expires() -> None:
    assert unchanged(machine_of(create()), ask.Expire("s", 98, 98)) == out.StillAlive()


def test_a_stream_with_forks_expires_softly() -> None:
    machine = machine_of(create(ttl=1), fork(expires_at=99))
    assert machine.execute(ask.Expire("s", 98, 1)) == out.Expired()
    assert unchanged(machine, append()) == out.Gone()


# ---- frames that only a bug can write ------------------------------------------------------------


def test_a_frame_from_before_the_last_one_is_not_applied() -> None:
    machine = machine_of(create(now=5))
    with pytest.raises(InvariantBroken, match="time"):
        apply(machine.state, StreamDeleted(1), (), 4)


@pytest.mark.parametrize("section", [Section(1, 1, 1, b"x"), Section(2, 0, 1, b"x")])
def test_messages_that_do_not_join_the_tail_are_not_applied(section: Section) -> None:
    machine = machine_of(create(), create("t"))
    with pytest.raises(InvariantBroken, match="does not begin at the tail"):
        apply(machine.state, StreamAppended(1), (section,), 0)


def test_an_append_to_a_closed_stream_is_not_applied() -> None:
    machine = machine_of(create(closed=True))
    with pytest.raises(InvariantBroken, match="closed or deleted"):
        apply(machine.state, StreamAppended(1), (), 0)


def test_a_stream_that_skips_a_number_or_takes_a_path_is_not_applied() -> None:
    created = machine_of(create(), create("t")).journal
    machine = machine_of(create())
    with pytest.raises(InvariantBroken, match="next free number"):
        machine.replay(created[0])
    machine.state.next_stream = 1
    with pytest.raises(InvariantBroken, match="path already exists"):
        machine.replay(created[0])
