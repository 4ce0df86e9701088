"""`decide` does not change the state, and `apply` depends only on the state and the frame."""

import pytest

from semel.machine import State, apply, decide
from semel.model import commands as ask
from semel.model.commands import Batch, Command, StoredAppend
from semel.model.producer_commands import CountHour
from tests.unit.machine.builders import (
    DAY_MS,
    JSON,
    append,
    bury,
    create,
    dense,
    fork,
    json_batch,
    machine_of,
    snapshot,
    sparse,
)

STORY: tuple[Command, ...] = (
    create(ttl=9),
    append(b"abc", stream_seq="b"),
    append(key="k"),
    append(b"0", by=dense(0, session="x")),
    append(b"5-7", by=sparse(5, 7, name="q")),
    append(by=dense(0, name="t")),
    bury("t"),
    create("j", kind=JSON, batch=json_batch(b"1", b"2")),
    create("closed", closed=True),
    create("gone"),
    fork("child", "gone"),
    ask.Delete("gone", 0),
    ask.Register(0),
    ask.Register(0, "p"),
)
EVERYTHING: tuple[Command, ...] = (
    create(),
    create("new", batch=Batch(b"x")),
    create("gone"),
    create(error="bad"),
    fork("new"),
    fork("new", offset=0, sub=2, stored=StoredAppend(1, 0, 3, b"abc")),
    fork("new", "gone"),
    fork("child", "gone"),
    append(),
    append(path="none"),
    append(path="gone"),
    append(path="closed"),
    append(None, close=True),
    append(None, path="closed", close=True),
    append(stream_seq="a"),
    append(if_match=0),
    append(error="bad"),
    append(key="k"),
    append(b"other", key="k"),
    append(key="k", now=DAY_MS),
    CountHour(0),
    append(key="new"),
    *[append(by=dense(n, epoch=e)) for n in (0, 1, 2) for e in (None, 0, 1, 2)],
    *[append(by=dense(n, session=s)) for n in (0, 1, 2) for s in "xy"],
    *[append(by=sparse(a, b, name="q")) for a, b in ((5, 7), (5, 6), (1, 2), (7, 9), (8, 8))],
    append(by=sparse(0, name="t")),
    append(by=dense(0, name="t")),
    append(b"other", by=dense(0, name="t")),
    append(by=dense(0, name="1")),
    append(by=dense(0, name="2")),
    append(by=dense(0, name="new")),
    ask.Delete("s", 0),
    ask.Delete("gone", 0),
    ask.Delete("child", 0),
    ask.Trim("s", 0, 1),
    ask.Trim("s", 0, 99),
    ask.Expire("s", 99, 99),
    ask.Expire("s", 0, 0),
    ask.Register(0),
    ask.Register(0, "1"),
    ask.Register(0, "new"),
    ask.ClaimProducer("s", 0, "p", "claimer"),
    ask.ClaimProducer("s", 0, "t", "claimer"),
    ask.ClaimProducer("s", 0, "claimed", "claimer"),
    ask.ForgetProducer("s", 0, "p"),
    ask.ForgetProducer("s", 0, "t"),
    bury("p"),
    bury("t"),
)


# rows: P03
@pytest.mark.parametrize("command", EVERYTHING, ids=lambda command: type(command).__name__)
def test_deciding_changes_nothing_and_twice_is_the_same(command: Command) -> None:
    state = machine_of(*STORY).state
    before = snapshot(state)
    first = decide(state, command)
    assert snapshot(state) == before
    assert decide(state, command) == first


# rows: P05, D15
def test_replaying_the_frames_gives_the_state_that_was() -> None:
    machine = machine_of(*STORY)
    for command in EVERYTHING:
        machine.execute(command)
    twin = State()
    for written in machine.journal:
        apply(twin, *written)
    assert snapshot(twin) == snapshot(machine.state)
