"""Seeded bugs in the lives of producers: idle times, retirement and tombstones."""

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
from semel.machine.state import State, Stream


def count_tombstones() -> Any:
    """Tombstones count as producers of their stream."""
    return patch.object(Producers, "lasting", property(lambda self: len(self) - self.expiring))


def count_expiring_producers_with_the_others() -> Any:
    """Expiring producers use up the limit of those that stay."""
    lasting = property(lambda self: len(self) - len(self.tombstones))
    return patch.object(Producers, "lasting", lasting)


def keep_no_tombstone() -> Any:
    """A producer that has expired leaves nothing behind."""

    def expired(state: State, event: Any, _sections: Any, _time_ms: int) -> None:
        lifetimes._drop(state, state.by_number[event.stream], event.id)

    module = importlib.import_module("semel.machine.apply")
    return patch.dict(module._APPLIERS, {ProducerExpired: expired})


def retire_by_forgetting() -> Any:
    """A retired producer leaves nothing behind, so that a late copy of its append is accepted."""

    def bury(state: State, stream: Stream, name: str, time_ms: int, *, is_brief: bool) -> None:
        if is_brief:
            lifetimes._drop(state, stream, name)
        else:
            real(state, stream, name, time_ms, is_brief=is_brief)

    real = lifetimes._bury
    return patch.object(lifetimes, "_bury", bury)


def expire_an_active_producer() -> Any:
    """Appends do not restart the idle time of an expiring producer."""
    real = ProducerLives._mark_of

    def mark_of(self: ProducerLives, number: int, producer_id: str) -> Any:
        mark, limit_ms = real(self, number, producer_id)
        return ("used" if isinstance(mark, tuple) else mark), limit_ms

    return patch.object(ProducerLives, "_mark_of", mark_of)


def drop_brief_tombstones_at_once() -> Any:
    """The tombstone of a retired producer leaves at the next look."""
    return patch.object(lifetimes, "TOMBSTONE_MS", 1)


def keep_all_tombstones() -> Any:
    """A stream keeps any number of tombstones."""
    real = lifetimes._bury

    def bury(state: State, stream: Stream, name: str, time_ms: int, *, is_brief: bool) -> None:
        limits, unlimited = state.limits, replace(state.limits, tombstones_per_stream=1 << 40)
        object.__setattr__(state, "limits", unlimited)
        real(state, stream, name, time_ms, is_brief=is_brief)
        object.__setattr__(state, "limits", limits)

    return patch.object(lifetimes, "_bury", bury)


def drop_a_named_registration_at_once() -> Any:
    """A retired registration with a name is dropped, with what is known of its commits."""
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


LIVES_MUTANTS = (
    count_tombstones,
    count_expiring_producers_with_the_others,
    keep_no_tombstone,
    retire_by_forgetting,
    expire_an_active_producer,
    drop_brief_tombstones_at_once,
    keep_all_tombstones,
    drop_a_named_registration_at_once,
    checkpoint_without_idle_times,
    checkpoint_without_the_order_of_tombstones,
    replay_without_idle_times,
)
