"""Seeded bugs in the lifetimes of producers: idle times, retirement and tombstones."""

import importlib
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from semel.broker.producer_timers import ProducerLives
from semel.journal import checkpoint
from semel.machine import lifetimes
from semel.machine.events import ProducerExpired
from semel.machine.producer_counts import ProducerCounts, Producers
from semel.machine.rows import ProducerRow
from semel.machine.state import Dirty, State, Stream


def count_tombstones() -> Any:
    """Tombstones count as producers of their stream."""
    return patch.object(Producers, "lasting", property(lambda self: len(self) - self.expiring))


def count_expiring_producers_with_the_others() -> Any:
    """Expiring producers use up the limit of those that stay."""
    lasting = property(lambda self: len(self) - len(self.tombstones))
    return patch.object(Producers, "lasting", lasting)


def keep_no_tombstone() -> Any:
    """A producer that has expired leaves no tombstone."""

    def expired(state: State, event: Any, _sections: Any, _time_ms: int) -> None:
        lifetimes._drop(state, state.by_number[event.stream], event.id)

    module = importlib.import_module("semel.machine.apply")
    return patch.dict(module._APPLIERS, {ProducerExpired: expired})


def retire_by_forgetting() -> Any:
    """A retired producer leaves no tombstone, so that a late copy of its append is accepted."""

    def make_tombstone(
        state: State, stream: Stream, name: str, time_ms: int, *, is_brief: bool
    ) -> None:
        if is_brief:
            lifetimes._drop(state, stream, name)
        else:
            real(state, stream, name, time_ms, is_brief=is_brief)

    real = lifetimes._make_tombstone
    return patch.object(lifetimes, "_make_tombstone", make_tombstone)


def expire_an_active_producer() -> Any:
    """Appends do not restart the idle time of an expiring producer."""
    real = ProducerLives._mark_of

    def mark_of(self: ProducerLives, number: int, producer_id: str) -> Any:
        mark, limit_ms, hour = real(self, number, producer_id)
        return ("used" if isinstance(mark, tuple) else mark), limit_ms, hour

    return patch.object(ProducerLives, "_mark_of", mark_of)


def count_the_hour_of_a_use() -> Any:
    """The hour in which a producer was used counts as passed, although it was not complete."""

    def proven_ms(state: State, hour: int, hour_ms: int) -> int:
        return (state.hours - hour) * hour_ms if hour >= 0 else 0

    return patch("semel.broker.producer_timers.proven_ms", proven_ms)


def checkpoint_without_the_hours_of_uses() -> Any:
    """The checkpoint has no hours of the last uses of producers, as if these were long ago."""
    return _checkpoint_without(hour=0)


def keep_the_hour_of_the_first_use() -> Any:
    """An append does not note the hour."""
    module = importlib.import_module("semel.machine.apply")
    real = module._record_producer

    def record(state: State, stream: Stream, stamp: Any, *rest: Any) -> None:
        old = (stream.producers or {}).get(stamp.id)
        real(state, stream, stamp, *rest)
        assert stream.producers is not None
        if old is not None and old.expires_ms:
            row = replace(stream.producers[stamp.id], hour=old.hour)
            state.dirty.producers[stream.row.number, stamp.id] = row
            stream.producers[stamp.id] = row

    return patch.object(module, "_record_producer", record)


def drop_brief_tombstones_at_once() -> Any:
    """The tombstone of a retired producer leaves at the next look."""
    return patch.object(lifetimes, "TOMBSTONE_MS", 1)


def keep_all_tombstones() -> Any:
    """A stream keeps any number of tombstones."""
    real = lifetimes._make_tombstone

    def make_tombstone(
        state: State, stream: Stream, name: str, time_ms: int, *, is_brief: bool
    ) -> None:
        limits, unlimited = state.limits, replace(state.limits, tombstones_per_stream=1 << 40)
        object.__setattr__(state, "limits", unlimited)
        real(state, stream, name, time_ms, is_brief=is_brief)
        object.__setattr__(state, "limits", limits)

    return patch.object(lifetimes, "_make_tombstone", make_tombstone)


def register_below_the_rows_of_streams() -> Any:
    """A registration begins at its first epoch, whatever its streams have stored."""
    return patch("semel.machine.claims._highest_epoch", lambda _state, _producer_id: -1)


def drop_a_named_registration_at_once() -> Any:
    """A retired registration with a name is dropped, with the results of its commits."""
    return patch.object(lifetimes, "is_assigned_id", lambda producer_id: True)


def _checkpoint_without(**fields: Any) -> Any:
    real = checkpoint._put_rows

    def put(tables: Any, dirty: Any) -> None:
        for key, row in dirty.producers.items():
            if row is not None:
                dirty.producers[key] = replace(row, **fields)
        real(tables, dirty)

    return patch.object(checkpoint, "_put_rows", put)


def checkpoint_without_idle_times() -> Any:
    """The checkpoint omits the idle times that producers have declared."""
    return _checkpoint_without(expires_ms=0)


def checkpoint_without_the_order_of_tombstones() -> Any:
    """The checkpoint omits which tombstone is the oldest."""
    return _checkpoint_without(tombstone=0)


def replay_without_idle_times() -> Any:
    """Recovery and the running server do not store a declared idle time."""
    real = ProducerCounts.put

    def put(self: ProducerCounts, producers: Producers, *rest: Any) -> None:
        stream, producer_id, row = rest
        assert isinstance(row, ProducerRow)
        real(self, producers, stream, producer_id, replace(row, expires_ms=0))

    return patch.object(ProducerCounts, "put", put)


def change_the_rows_of_a_cut() -> Any:
    """Appends change rows in place while the checkpoint that has them is written."""

    def take_dirty(self: State) -> Dirty:
        rest = Dirty()
        for name in Dirty.__struct_fields__:
            taken, empty = getattr(self.dirty, name), getattr(rest, name)
            setattr(rest, name, taken)
            setattr(self.dirty, name, empty)
        return rest

    return patch.object(State, "take_dirty", take_dirty)


LIVES_MUTANTS = (
    change_the_rows_of_a_cut,
    count_tombstones,
    count_expiring_producers_with_the_others,
    keep_no_tombstone,
    retire_by_forgetting,
    expire_an_active_producer,
    count_the_hour_of_a_use,
    checkpoint_without_the_hours_of_uses,
    keep_the_hour_of_the_first_use,
    drop_brief_tombstones_at_once,
    keep_all_tombstones,
    register_below_the_rows_of_streams,
    drop_a_named_registration_at_once,
    checkpoint_without_idle_times,
    checkpoint_without_the_order_of_tombstones,
    replay_without_idle_times,
)
