"""Producer ids that are registered, forgotten and expired."""

import pytest

from semel.machine import MachineLimits
from semel.model import commands as ask
from semel.model import outcomes as out
from semel.model.limits import NUMBER_MAX
from tests.unit.machine.builders import Machine, append, bury, create, dense, machine_of, unchanged


# rows: R01, R02, P06
def test_identities_are_counted_and_known_ones_raised() -> None:
    machine = Machine()
    assert machine.execute(ask.Register(0)) == out.Registered("1", 0)
    assert machine.execute(ask.Register(0)) == out.Registered("2", 0)
    assert machine.execute(ask.Register(0, "1")) == out.Registered("1", 1)
    assert machine.execute(ask.Register(0)) == out.Registered("3", 0)


def test_a_name_may_register_itself_but_a_number_may_not() -> None:
    machine = Machine()
    assert machine.execute(ask.Register(0, "p")) == out.Registered("p", 0)
    assert unchanged(machine, ask.Register(0, "3")) == out.UnknownProducer()


def test_a_registered_epoch_cannot_pass_the_largest_number() -> None:
    tag = dense(0, epoch=NUMBER_MAX)
    machine = machine_of(create(), ask.Register(0, "p"), append(by=tag))
    assert unchanged(machine, ask.Register(0, "p")) == out.EpochExhausted(NUMBER_MAX)


def test_a_first_registration_is_above_every_epoch_that_a_stream_has_of_the_name() -> None:
    machine = machine_of(create(), create("t"), create("u"), ask.Register(0, "other"))
    for path, epoch in (("s", 3), ("t", 7)):
        machine.execute(append(path=path, by=dense(0, epoch=epoch)))
    machine.execute(bury(path="t"))
    assert machine.execute(ask.Register(0, "p")) == out.Registered("p", 8)
    assert machine.execute(append(by=dense(0, epoch=8))) == out.Appended(1, 2, False, 8, 0)
    assert machine.execute(ask.Register(0, "new")) == out.Registered("new", 0)


def test_a_first_registration_cannot_pass_the_largest_number() -> None:
    machine = machine_of(create(), append(by=dense(0, epoch=NUMBER_MAX)))
    assert unchanged(machine, ask.Register(0, "p")) == out.EpochExhausted(NUMBER_MAX)
    assert machine.execute(ask.Register(0, "q", 5)) == out.Registered("q", 5)


def test_an_operator_may_forget_a_producer_or_its_tombstone() -> None:
    machine = machine_of(create(), append(by=dense(0)), bury())
    assert machine.execute(ask.ForgetProducer("s", 0, "p")) == out.Forgotten()
    assert unchanged(machine, ask.ForgetProducer("s", 0, "p")) == out.UnknownProducer()
    assert machine.execute(append(by=dense(0))) == out.Appended(1, 2, False, 1, 0)


def test_a_stream_without_producers_knows_none() -> None:
    machine = machine_of(create())
    assert unchanged(machine, ask.ForgetProducer("s", 0, "p")) == out.UnknownProducer()
    assert unchanged(machine, bury()) == out.UnknownProducer()


# rows: D16
def test_only_an_idle_producer_becomes_a_tombstone_and_only_once() -> None:
    """The idle time is what the broker measured, whatever the clock says."""
    machine = machine_of(create(), append(now=5, by=dense(0)))
    assert unchanged(machine, ask.ExpireProducer("s", 99, "p", 10, 9)) == out.StillAlive()
    assert machine.execute(ask.ExpireProducer("s", 0, "p", 10, 10)) == out.Forgotten()
    assert unchanged(machine, ask.ExpireProducer("s", 99, "p", 10)) == out.UnknownProducer()


def test_a_full_registry_refuses_new_ids_and_still_raises_known_ones() -> None:
    machine = machine_of(ask.Register(0), ask.Register(0, "p"), limits=MachineLimits(registry=2))
    full = out.LimitReached("registry", 2)
    assert unchanged(machine, ask.Register(0)) == full
    assert unchanged(machine, ask.Register(0, "q")) == full
    assert machine.execute(ask.Register(0, "p")) == out.Registered("p", 1)


# rows: D18
def test_a_new_id_may_begin_with_another_epoch_and_is_raised_from_there() -> None:
    machine = machine_of(create())
    assert machine.execute(ask.Register(0, "p", 1)) == out.Registered("p", 1)
    assert machine.execute(ask.Register(0, "p", 1)) == out.Registered("p", 2)
    assert machine.execute(ask.Register(0, None, 1)) == out.Registered("1", 1)
    assert machine.execute(ask.Register(0, "q", -1)) == out.InvalidRequest("producer_epoch")


# rows: D04, D18
@pytest.mark.parametrize("epoch", [None, 1])
def test_an_id_that_begins_with_epoch_1_can_write_bare_and_with_that_epoch(
    epoch: int | None,
) -> None:
    machine = machine_of(create(), ask.Register(0, "p", 1))
    assert machine.execute(append(by=dense(0, epoch=epoch))) == out.Appended(0, 1, False, 1, 0)
