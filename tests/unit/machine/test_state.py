"""The rows that a checkpoint stores, and the state loaded from them."""

import pytest

from semel.machine import MachineLimits, State, apply
from semel.machine.rows import MetaRow, RegistryRow
from semel.machine.state import STATE_TABLES, Dirty
from semel.model import commands as ask
from tests.unit.machine.builders import (
    append,
    bury,
    create,
    dense,
    fork,
    machine_of,
    snapshot,
    sparse,
)


@pytest.mark.parametrize(
    "limit", ["receipts", "streams", "producers_per_stream", "keys", "key_hours", "outcome_hours"]
)
def test_a_limit_of_nothing_is_no_limit_to_work_with(limit: str) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        MachineLimits(**{limit: 0})


STORY = (
    create(ttl=9),
    append(key="k"),
    append(key="a"),
    ask.Register(3),
    ask.Register(4, "p"),
    append(by=dense(0, session="x", cursor=b"c")),
    append(by=sparse(5, 7, name="q")),
    bury("q"),
    fork(),
    append(path="f", by=dense(0)),
)


# rows: P16
def test_a_state_loaded_from_its_rows_is_the_state_that_was() -> None:
    state = machine_of(*STORY).state
    dirty = state.take_dirty()
    twin = State(state.limits)
    twin.load_meta(state.meta_row())
    for name, table in STATE_TABLES.items():
        for key, row in sorted(getattr(dirty, name).items()):
            table.load(twin, key, row)
    twin.load_links()
    assert snapshot(twin) == snapshot(state)


def test_a_stream_without_its_tail_is_not_loaded() -> None:
    state = machine_of(create()).state
    dirty = state.take_dirty()
    twin = State(state.limits)
    for key, row in dirty.streams.items():
        STATE_TABLES["streams"].load(twin, key, row)
    with pytest.raises(KeyError):
        twin.load_links()


def test_the_counters_are_a_row() -> None:
    assert machine_of(*STORY).state.meta_row() == MetaRow(3, 2, 4, next_tombstone=2)


def test_what_changed_is_handed_over_once() -> None:
    state = machine_of(*STORY).state
    dirty = state.take_dirty()
    assert set(dirty.streams) == set(dirty.tails) == {1, 2}
    assert snapshot(state.dirty) == snapshot(Dirty())


def test_a_forgotten_producer_is_a_change() -> None:
    machine = machine_of(*STORY)
    machine.state.take_dirty()
    machine.execute(ask.ForgetProducer("s", 0, "p"))
    assert machine.state.dirty.producers == {(1, "p"): None}


def test_an_abandoned_checkpoint_gives_back_what_nothing_newer_replaced() -> None:
    machine = machine_of(*STORY)
    older = machine.state.take_dirty()
    for command in (append(by=dense(0, epoch=1)), ask.Delete("f", 0)):
        machine.execute(command)
    newer = machine.state.dirty
    tail, producer = newer.tails[1], newer.producers[1, "p"]
    newer.absorb(older)
    assert (newer.tails[1], newer.producers[1, "p"]) == (tail, producer)
    assert newer.producers[1, "q"] == older.producers[1, "q"]
    assert newer.keys == older.keys
    assert newer.registry == older.registry | {"p": RegistryRow(1)}
    assert (newer.dropped, newer.pruned) == ({2}, {1, 2})


def test_whoever_applies_learns_which_streams_were_touched() -> None:
    machine = machine_of(create(), fork(), append())
    (written,) = machine_of(create(), fork(), append(), append()).journal[3:]
    effects = apply(machine.state, *written)
    assert list(effects.streams) == [machine.stream()]
    assert not (effects.outcomes or effects.aborted or effects.placed)
