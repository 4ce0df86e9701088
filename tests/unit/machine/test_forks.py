"""Forks: rows 3 to 9 of the table "Create", and what a fork inherits."""

from unittest.mock import patch

import pytest

from semel.machine import streams
from semel.machine.rows import ForkRow
from semel.machine.streams import OFFSET_MAX, retained_from, retained_range
from semel.model import commands as ask
from semel.model import outcomes as out
from semel.model.commands import Batch, Create, ForkRequest, StoredAppend
from semel.model.limits import FORK_DEPTH_MAX
from tests.unit.machine.builders import (
    JSON,
    TEXT,
    Machine,
    append,
    create,
    dense,
    fork,
    json_batch,
    machine_of,
    unchanged,
)

ABC = StoredAppend(stream=1, offset=0, units=3, payload=b"abc")


@pytest.mark.parametrize("offset", [None, 1])
def test_a_fork_created_again_may_omit_its_offset(offset: int | None) -> None:
    machine = machine_of(create(ttl=7), append(), fork(), append())
    assert unchanged(machine, fork(offset=offset)) == out.Created("i-f-0", TEXT, 1, False, False)


@pytest.mark.parametrize(
    "again", [fork(offset=0), fork(source="t"), fork(offset=1, sub=1), create("f")]
)
def test_a_fork_created_again_from_elsewhere_is_a_conflict(again: Create) -> None:
    machine = machine_of(create(), append(), fork(offset=1))
    assert unchanged(machine, again) == out.ConfigConflict("fork")


def test_a_fork_with_its_own_expiry_does_not_match_one_that_omits_it() -> None:
    machine = machine_of(create(ttl=7), fork(ttl=9))
    assert unchanged(machine, fork()) == out.ConfigConflict("ttl")
    assert unchanged(machine, fork(ttl=9)) == out.Created("i-f-0", TEXT, 0, False, False)


def test_a_fork_needs_a_source() -> None:
    assert unchanged(Machine(), fork()) == out.NotFound()


def test_a_soft_deleted_source_cannot_be_forked() -> None:
    machine = machine_of(create(), fork(), ask.Delete("s", 0))
    assert unchanged(machine, fork("g")) == out.ForkSourceGone()


def test_a_fork_of_another_media_type_is_refused() -> None:
    wanted = create("f", kind=JSON, fork=ForkRequest("s", 99))
    assert unchanged(machine_of(create()), wanted) == out.ContentTypeConflict(TEXT)


def test_a_fork_may_spell_its_media_type_in_its_own_way() -> None:
    machine = machine_of(create(), create("f", kind="TEXT/plain;a=b", fork=ForkRequest("s")))
    assert machine.stream("f").row.content_type == "TEXT/plain;a=b"


def test_a_fork_beyond_the_tail_is_refused() -> None:
    assert unchanged(machine_of(create(), append()), fork(offset=2)) == out.OffsetBeyondTail(1)


def test_a_fork_below_the_head_is_refused() -> None:
    machine = machine_of(create(), append(), append(), ask.Trim("s", 0, 1))
    assert unchanged(machine, fork(offset=0)) == out.OffsetTrimmed(1)


@pytest.mark.parametrize(
    "stored",
    [
        None,
        StoredAppend(1, 0, 1, b"a"),
        StoredAppend(2, 0, 3, b"abc"),
        StoredAppend(1, 1, 3, b"abc"),
    ],
    ids=["absent", "too-short", "of-another-stream", "of-another-offset"],
)
def test_a_sub_offset_needs_a_stored_append_that_reaches_it(stored: StoredAppend | None) -> None:
    machine = machine_of(create(), append(b"abc"))
    assert unchanged(machine, fork(offset=0, sub=2, stored=stored)) == out.SubOffsetInvalid()


@pytest.mark.parametrize("sub", [2, 3])
def test_a_byte_sub_offset_copies_the_beginning_of_the_message(sub: int) -> None:
    machine = machine_of(create(), append(b"abc"))
    machine.execute(fork(offset=0, sub=sub, stored=ABC, batch=Batch(b"own")))
    assert machine.payloads("f") == [b"abc"[:sub], b"own"]
    assert machine.stream("f").row.fork == ForkRow(1, "s", 0, sub, 0)
    assert machine.stream("f").tail.tail == 2


def test_a_json_sub_offset_inherits_that_many_messages() -> None:
    machine = machine_of(create(kind=JSON), append(json_batch(b"0", b"1", b"2"), kind=JSON))
    answer = machine.execute(fork(offset=1, sub=1, stored=StoredAppend(1, 1, 2)))
    assert answer == out.Created("i-f-0", JSON, 2, False, True)
    assert machine.payloads("f") == []
    assert machine.stream("f").row.fork == ForkRow(1, "s", 1, 1, 2)


def test_the_chain_of_sources_has_at_most_64_streams() -> None:
    machine = machine_of(create("0"), *[fork(str(i + 1), str(i)) for i in range(FORK_DEPTH_MAX)])
    last = fork("over", str(FORK_DEPTH_MAX), error="bad")
    assert unchanged(machine, last) == out.LimitReached("fork_depth", FORK_DEPTH_MAX)


def test_a_bad_body_of_a_fork_is_refused() -> None:
    assert unchanged(machine_of(create()), fork(error="bad")) == out.BadBody("bad")


# rows: D42
def test_a_fork_inherits_type_and_expiry_but_no_producer_key_or_stream_seq() -> None:
    """A fork does not inherit producers."""
    machine = machine_of(create(ttl=7), append(by=dense(0), stream_seq="a"), append(key="k"))
    machine.execute(append(None, close=True))
    assert machine.execute(fork(now=3)) == out.Created("i-f-3", TEXT, 2, False, True)
    child = machine.stream("f")
    assert (child.row.ttl_ms, child.row.inherits_expiry, child.tail.written_ms) == (7, True, 3)
    assert (child.producers, child.keys, child.tail.stream_seq) == (None, None, None)


def test_a_fork_of_a_trimmed_source_starts_at_its_head() -> None:
    machine = machine_of(create(), append(), append(), ask.Trim("s", 0, 1), fork())
    assert (machine.stream("f").tail.head, machine.stream("f").tail.tail) == (1, 2)


def test_what_a_fork_inherits_is_kept_when_its_source_is_trimmed() -> None:
    machine = machine_of(create(), *[append()] * 4, fork(offset=2), ask.Trim("s", 0, 4))
    source = machine.stream()
    assert (source.tail.head, retained_from(machine.state, source, {})) == (4, 0)
    machine.execute(ask.Trim("f", 0, 1))
    assert retained_from(machine.state, source, {}) == 1


def test_a_fork_that_reads_nothing_of_its_source_keeps_nothing_there() -> None:
    machine = machine_of(create(), *[append()] * 4, fork(offset=2), ask.Trim("s", 0, 4))
    machine.execute(ask.Trim("f", 0, 2))
    assert retained_from(machine.state, machine.stream(), {}) == 4


def test_a_deleted_source_keeps_only_what_its_forks_read() -> None:
    machine = machine_of(create(), *[append()] * 3, fork(), ask.Trim("f", 0, 2))
    machine.execute(ask.Delete("s", 0))
    assert retained_from(machine.state, machine.stream(), {}) == 2


def test_a_source_has_so_many_forks() -> None:
    machine = machine_of(create(), append(b"x"), fork("f0"))
    with patch.object(streams, "FORKS_PER_STREAM_MAX", 1):
        assert unchanged(machine, fork("f1")) == out.LimitReached("forks_per_stream", 1)


def test_a_deleted_source_keeps_nothing_behind_its_last_fork() -> None:
    machine = machine_of(create(), *[append(b"x")] * 6, fork("f", offset=2), fork("g", offset=4))
    assert retained_range(machine.state, machine.stream(), {}) == (0, OFFSET_MAX)
    machine.execute(ask.Delete("s", 0))
    assert retained_range(machine.state, machine.stream(), {}) == (0, 4)
    machine.execute(ask.Delete("g", 0))
    assert retained_range(machine.state, machine.stream(), {}) == (0, 2)
