"""Correct histories with one change each, which the checker must report."""

from collections.abc import Callable, Hashable
from random import Random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from semel.testing.txn.check import check_transactions
from semel.testing.txn.history import RecordedTransaction
from tests.unit.testing.txn_histories import STREAMS, Logs, TxnWorld, names

SEEDS = st.integers(0, 2**32)
Damage = Callable[[TxnWorld, Logs, Logs], set[str]]


def a_value_of(world: TxnWorld, log: Logs, *, of: str) -> tuple[str, Hashable]:
    """Return a random stream and value in the log whose transaction has the outcome `of`."""
    ids = {each.id for each in world.history.transactions if each.outcome == of}
    found = [
        (stream, value)
        for stream in STREAMS
        for value, transaction in world.logs[stream]
        if transaction.id in ids and value in log[stream]
    ]
    assume(found)
    return world.random.choice(found)


def drop_a_message(world: TxnWorld, committed: Logs, uncommitted: Logs) -> set[str]:
    stream, value = a_value_of(world, committed, of="committed")
    committed[stream].remove(value)
    uncommitted[stream].remove(value)
    return {"lost", "torn"}


def drop_a_transaction(world: TxnWorld, committed: Logs, uncommitted: Logs) -> set[str]:
    _, value = a_value_of(world, committed, of="committed")
    for log in (committed, uncommitted):
        for stream in STREAMS:
            own = {v for v, each in world.logs[stream] if each is owner(world, value)}
            log[stream] = [v for v in log[stream] if v not in own]
    return {"lost"}


def show_what_is_aborted(world: TxnWorld, committed: Logs, uncommitted: Logs) -> set[str]:
    stream, value = a_value_of(world, uncommitted, of="aborted")
    committed[stream] = [v for v in uncommitted[stream] if v == value or v in committed[stream]]
    return {"G1a"}


def double_a_message(world: TxnWorld, committed: Logs, uncommitted: Logs) -> set[str]:
    stream, value = a_value_of(world, committed, of="committed")
    committed[stream].append(value)
    uncommitted[stream].append(value)
    return {"duplicate"}


def swap_the_ends(world: TxnWorld, committed: Logs, uncommitted: Logs) -> set[str]:
    stream = max(STREAMS, key=lambda name: len(committed[name]))
    first, last = committed[stream][0], committed[stream][-1]
    for log in (committed[stream], uncommitted[stream]):
        i, j = log.index(first), log.index(last)
        log[i], log[j] = log[j], log[i]
    return {"order"}


def owner(world: TxnWorld, value: Hashable) -> RecordedTransaction:
    pairs = (pair for log in world.logs.values() for pair in log)
    return next(transaction for found, transaction in pairs if found == value)


@pytest.mark.parametrize(
    "damage",
    [drop_a_message, drop_a_transaction, show_what_is_aborted, double_a_message, swap_the_ends],
)
@given(seed=SEEDS)
def test_damage_to_what_the_streams_hold_is_found(damage: Damage, seed: int) -> None:
    world = TxnWorld(Random(seed))
    world.run(40)
    committed, uncommitted = world.committed(), world.uncommitted()
    expected = damage(world, committed, uncommitted)
    report = check_transactions(world.history, committed, uncommitted, positions=world.positions)
    assert names(report) & expected


@given(SEEDS)
def test_a_reader_that_does_not_wait_for_decisions_is_found(seed: int) -> None:
    world = TxnWorld(Random(seed))
    world.read = lambda stream: [value for value, _ in world.logs[stream]]  # type: ignore[method-assign]
    world.run(40)
    del world.read
    assert names(world.check()) & {"G1a", "G1b"}


@given(SEEDS)
def test_a_decision_that_forgets_a_stream_is_found(seed: int) -> None:
    world = TxnWorld(Random(seed))
    commit = world._commit

    def forgetting(transaction: RecordedTransaction) -> None:
        commit(transaction)
        if not transaction.is_inline:
            world.logs["y"] = [pair for pair in world.logs["y"] if pair[1] is not transaction]

    world._commit = forgetting  # type: ignore[method-assign]
    world.run(40)
    assert names(world.check()) & {"torn", "lost"}


@given(SEEDS)
def test_a_message_missing_from_what_a_reader_was_given_is_found(seed: int) -> None:
    world = TxnWorld(Random(seed))
    world.run(40)
    reads = [read for read in world.history.reads if len(read.values) > 2]
    assume(reads)
    read = world.random.choice(reads)
    at = world.random.randrange(len(read.values) - 1)
    read.values = [*read.values[:at], *read.values[at + 1 :]]
    assert "lost" in names(world.check())


@given(SEEDS)
def test_a_commit_that_forgets_the_positions_is_found(seed: int) -> None:
    world = TxnWorld(Random(seed))
    world.run(40)
    assume(world.positions)
    where = world.random.choice(sorted(world.positions))
    del world.positions[where]
    assert "torn" in names(world.check())
