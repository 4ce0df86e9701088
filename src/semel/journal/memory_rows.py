"""Storing outcomes and aborted ranges with a checkpoint, and letting old ones go."""

from typing import Final

import msgspec

from semel.journal.memory import (
    MemoryCut,
    outcome_key,
    owner_key,
    owner_prefix,
    pack_end,
    range_key,
    read_outcome,
    split_range_key,
    unpack_end,
)
from semel.journal.seal import unseal
from semel.journal.tables import Tables, keys_of
from semel.machine.state import EVERYTHING, Dirty
from semel.machine.txn_rows import OutcomeRow
from semel.model.limits import OUTCOME_WINDOW_MS, OUTCOMES_PER_PRODUCER_MAX
from semel.model.transactions import ProducerOwner, SinkOwner

# How many outcomes one checkpoint lets go for their age: the next goes on.
_OLD_MAX: Final = 100_000

_encode: Final = msgspec.msgpack.Encoder().encode


def put_memory(tables: Tables, memory: MemoryCut, dirty: Dirty, time_ms: int) -> None:
    """Store what is new, and drop what is no longer to be remembered."""
    for _, epochs in sorted(memory.outcomes.items()):
        for _, row in sorted(epochs.items()):
            _put_outcome(tables, row)
    for stream, ranges in sorted(memory.aborted.items()):
        for first, end in ranges:
            tables.put("aborted", range_key(stream, first), pack_end(end))
    for app, sink in sorted(dirty.sinks.items()):
        if sink is not None:
            _drop_of_sink(tables, app, sink.outcomes_from)
    for app, floor in sorted(dirty.floors.items()):
        _drop_of_sink(tables, app, floor)
    _drop_old(tables, time_ms - OUTCOME_WINDOW_MS)


def _put_outcome(tables: Tables, row: OutcomeRow) -> None:
    key = outcome_key(row.outcome.id, row.outcome.epoch)
    _drop_outcome(tables, key)
    tables.put("outcomes", key, _encode(row))
    tables.put("outcome_order", pack_end(row.number), key)
    tables.put("outcome_owners", owner_key(row), key)
    if isinstance(row.owner, ProducerOwner) and row.ordinal >= OUTCOMES_PER_PRODUCER_MAX:
        oldest = owner_prefix(row.owner) + pack_end(row.ordinal - OUTCOMES_PER_PRODUCER_MAX)
        _drop_owned(tables, oldest)


def _drop_outcome(tables: Tables, key: bytes) -> None:
    """Remove an outcome and what points to it, if it is there."""
    sealed = tables.writer.get("outcomes", key)
    if sealed is None:
        return
    row = read_outcome(key, sealed)
    tables.delete("outcomes", key)
    tables.delete("outcome_order", pack_end(row.number))
    tables.delete("outcome_owners", owner_key(row))


def _drop_owned(tables: Tables, key: bytes) -> None:
    sealed = tables.writer.get("outcome_owners", key)
    if sealed is not None:
        _drop_outcome(tables, unseal("outcome_owners", key, sealed))


def _drop_of_sink(tables: Tables, app: str, outcomes_from: int) -> None:
    prefix = owner_prefix(SinkOwner(app, 0, 0))
    end = prefix + pack_end(outcomes_from)
    for key in keys_of(tables.writer, "outcome_owners", prefix):
        if key >= end:
            return
        _drop_owned(tables, key)


def _drop_old(tables: Tables, before_ms: int) -> None:
    """Drop outcomes whose time is over; they stand in the order of time."""
    old: list[bytes] = []
    for key, sealed in tables.writer.scan("outcome_order"):
        name = unseal("outcome_order", key, sealed)
        found = tables.writer.get("outcomes", name)
        is_old = found is not None and read_outcome(name, found).outcome.time_ms <= before_ms
        if not is_old or len(old) >= _OLD_MAX:
            break
        old.append(name)
    for name in old:
        _drop_outcome(tables, name)


def prune_aborted(tables: Tables, stream: int, kept: tuple[int, int]) -> None:
    """Remove the aborted ranges of a stream that lie outside the offsets still kept."""
    start, end = kept
    gone = []
    for key, sealed in tables.writer.scan("aborted", range_key(stream, 0)):
        owner, first = split_range_key(key)
        if owner != stream:
            break
        if unpack_end(unseal("aborted", key, sealed)) <= start or first >= end:
            gone.append(key)
        elif end == EVERYTHING:
            break
    for key in gone:
        tables.delete("aborted", key)
