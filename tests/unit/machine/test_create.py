"""Creating streams: the table "Create" of `machine.md`, except forks."""

import pytest

from semel.machine import MachineLimits, decide
from semel.model import commands as ask
from semel.model import outcomes as out
from semel.model.commands import Batch, Create, ForkRequest
from tests.unit.machine.builders import (
    JSON,
    TEXT,
    Machine,
    append,
    create,
    fork,
    json_batch,
    machine_of,
    unchanged,
)


def test_a_stream_begins_empty_with_the_next_number() -> None:
    machine = machine_of(create("a"))
    answer = machine.execute(create("b", kind=None))
    assert answer == out.Created("i-b-0", "application/octet-stream", 0, False, True)
    assert [machine.stream(path).row.number for path in "ab"] == [1, 2]


def test_a_stream_may_begin_with_a_body_and_closed() -> None:
    machine = Machine()
    answer = machine.execute(create(kind=JSON, batch=json_batch(b"1", b"22"), closed=True))
    assert answer == out.Created("i-s-0", JSON, 2, True, True)
    (section,) = machine.journal[0].sections
    assert (section.base, section.count, section.is_joined) == (0, 2, True)


def test_a_single_message_is_not_joined() -> None:
    machine = machine_of(create(kind=JSON, batch=json_batch(b"1")))
    assert not machine.journal[0].sections[0].is_joined


def test_a_soft_deleted_stream_holds_its_path() -> None:
    machine = machine_of(create(), fork(), ask.Delete("s", 0))
    assert unchanged(machine, create()) == out.ConfigConflict("deleted")


def test_creating_again_with_an_equal_configuration_ignores_the_body() -> None:
    machine = machine_of(create(now=5), append())
    again = create(now=9, kind="Text/Plain; charset=utf-8", batch=Batch(b"y"), error="bad")
    assert unchanged(machine, again) == out.Created("i-s-5", TEXT, 1, False, False)


@pytest.mark.parametrize(
    ("again", "field"),
    [
        (create(kind=JSON, ttl=1), "content_type"),
        (create(kind=None), "content_type"),
        (create(ttl=8, expires_at=9), "ttl"),
        (create(ttl=7, expires_at=9, closed=True), "expires_at"),
        (create(ttl=7, closed=True, fork=ForkRequest("z")), "closed"),
        (create(ttl=7, fork=ForkRequest("z")), "fork"),
    ],
)
def test_creating_again_names_the_first_field_that_differs(again: Create, field: str) -> None:
    assert unchanged(machine_of(create(ttl=7)), again) == out.ConfigConflict(field)


def test_a_bad_body_speaks_before_the_limit_of_streams() -> None:
    machine = machine_of(create(), limits=MachineLimits(streams=1))
    assert unchanged(machine, create("t", error="no")) == out.BadBody("no")
    assert unchanged(machine, create("t")) == out.LimitReached("streams", 1)


def test_soft_deleted_streams_count_as_streams() -> None:
    machine = machine_of(create(), fork(), ask.Delete("s", 0), limits=MachineLimits(streams=2))
    assert unchanged(machine, create("t")) == out.LimitReached("streams", 2)


# rows: X16
def test_a_path_created_anew_knows_nothing_of_the_one_before() -> None:
    """Keys and Stream-Seq belong to the incarnation of a stream, not to its path."""
    machine = machine_of(create(), append(key="k", stream_seq="a"), ask.Delete("s", 0))
    machine.execute(create(now=1))
    stream = machine.stream()
    assert (stream.row.number, stream.row.incarnation, stream.tail.tail) == (2, "i-s-1", 0)
    assert machine.execute(append(key="k", stream_seq="a")) == out.Appended(0, 1, False)


def test_creating_needs_room_on_disk() -> None:
    """A decision that adds data is refused on a full disk. See `Decision.grows`."""
    machine = machine_of(create())
    assert decide(machine.state, create("t")).grows
    assert not decide(machine.state, ask.Delete("s", 0)).grows
