"""What transactions leave behind: their outcomes, and the offsets that were aborted.

Like the index, what is new since the last checkpoint is in memory and older rows are in the store.
The state knows neither, so it does not grow with them.
"""

import struct
from bisect import bisect_right, insort
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Struct

from semel.journal.identity import BadSeal, unseal
from semel.journal.store import Store, StoreReader
from semel.journal.tables import TableWriter, table_keys
from semel.machine.retention import OFFSET_MAX
from semel.machine.rows import OutcomeRow
from semel.machine.state import Dirty, Effects
from semel.model.errors import CorruptRead
from semel.model.limits import OUTCOME_WINDOW_MS, OUTCOMES_PER_PRODUCER_MAX
from semel.model.transactions import Owner, ProducerOwner, SinkOwner

_NUMBER: Final = struct.Struct(">Q")
_RANGE_KEY: Final = struct.Struct(">QQ")
_LENGTH: Final = struct.Struct(">H")
_EPOCH_MAX: Final = (1 << 64) - 1
_DECODE: Final = msgspec.msgpack.Decoder(OutcomeRow).decode

Range = tuple[int, int]
Outcomes = dict[str, dict[int, OutcomeRow]]


class TxnHistoryCut(Struct, frozen=True):
    """What a checkpoint is to store."""

    outcomes: Outcomes
    aborted: dict[int, list[Range]]


# ---- keys ----------------------------------------------------------------------------------------


def outcome_key(txn_id: str, epoch: int) -> bytes:
    """Make the key of an outcome; the epochs of an id are neighbours."""
    name = txn_id.encode()
    return _LENGTH.pack(len(name)) + name + _NUMBER.pack(epoch)


def owner_prefix(owner: Owner) -> bytes:
    """Make the beginning of an owner's keys."""
    is_produced = isinstance(owner, ProducerOwner)
    name = (owner.id if isinstance(owner, ProducerOwner) else owner.app).encode()
    return (b"p" if is_produced else b"s") + _LENGTH.pack(len(name)) + name


def owner_key(row: OutcomeRow) -> bytes:
    """Make the key that orders the outcomes of one owner."""
    is_produced = isinstance(row.owner, ProducerOwner)
    return owner_prefix(row.owner) + _NUMBER.pack(row.ordinal if is_produced else row.number)


def range_key(stream: int, first: int) -> bytes:
    """Make the key of an aborted range."""
    return _RANGE_KEY.pack(stream, first)


def split_range_key(key: bytes) -> tuple[int, int]:
    """Read stream and first offset back; raises struct.error if it is no such key."""
    stream, first = _RANGE_KEY.unpack(key)
    return stream, first


def pack_end(end: int) -> bytes:
    """Make the value of an aborted range, or the key of an outcome's place in time."""
    return _NUMBER.pack(end)


def unpack_end(value: bytes) -> int:
    """Read the end of an aborted range."""
    end: int = _NUMBER.unpack(value)[0]
    return end


def read_outcome(key: bytes, sealed: bytes) -> OutcomeRow:
    """Read an outcome's row; raises BadSeal or DecodeError."""
    return _DECODE(unseal("outcomes", key, sealed))


# ---- the layers ----------------------------------------------------------------------------------


class TxnHistory:
    """Outcomes and aborted ranges of a running journal."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._fresh = TxnHistoryCut({}, {})
        self._sealing = TxnHistoryCut({}, {})

    def add(self, effects: Effects) -> None:
        """Add the outcomes and aborted ranges of one frame."""
        for span in effects.aborted:
            _add_range(self._fresh.aborted.setdefault(span.stream, []), span.first, span.next)
        for row in effects.outcomes:
            _add_outcome(self._fresh.outcomes, row)

    def forget(self, stream: int) -> None:
        """Drop what is in memory of a removed stream."""
        self._fresh.aborted.pop(stream, None)

    def cut(self) -> TxnHistoryCut:
        """Hand over all that is in memory; it stays readable until the checkpoint is done."""
        self._sealing, self._fresh = self._fresh, TxnHistoryCut({}, {})
        return self._sealing

    def finish_cut(self) -> None:
        """The checkpoint holds it now."""
        self._sealing = TxnHistoryCut({}, {})

    def undo_cut(self) -> None:
        """The checkpoint did not happen: take it back."""
        older, newer = self._sealing, self._fresh
        for epochs in newer.outcomes.values():
            for row in epochs.values():
                _add_outcome(older.outcomes, row)
        for stream, ranges in newer.aborted.items():
            known = older.aborted.setdefault(stream, [])
            for first, end in ranges:
                _add_range(known, first, end)
        self._fresh, self._sealing = older, TxnHistoryCut({}, {})

    # ---- looking up ------------------------------------------------------------------------------

    def outcome(self, txn_id: str, epoch: int) -> OutcomeRow | None:
        """Find how a transaction ended."""
        for layer in (self._fresh, self._sealing):
            row = layer.outcomes.get(txn_id, {}).get(epoch)
            if row is not None:
                return row
        key = outcome_key(txn_id, epoch)
        with self._store.read() as view:
            sealed = view.get("outcomes", key)
        return None if sealed is None else _checked(key, sealed)

    def last_outcome(self, txn_id: str, is_kept: Callable[[OutcomeRow], bool]) -> OutcomeRow | None:
        """Find the newest outcome of an id among those still kept.

        Not simply its newest: who owned that one may have let it go before older ones. Of those
        kept the newest has the highest epoch, for an id counts on from the highest kept.
        """
        for layer in (self._fresh, self._sealing):
            for row in reversed(layer.outcomes.get(txn_id, {}).values()):
                if is_kept(row):
                    return row
        epoch = _EPOCH_MAX
        with self._store.read() as view:
            while (found := _stored_before(view, txn_id, epoch)) is not None:
                if is_kept(found):
                    return found
                epoch = found.outcome.epoch - 1
        return None

    def next_aborted(self, stream: int, offset: int) -> Range | None:
        """Find the first aborted range of a stream that ends behind `offset`."""
        found = []
        for layer in (self._fresh, self._sealing):
            ranges = layer.aborted.get(stream)
            if ranges:
                at = bisect_right(ranges, offset, key=_end_of)
                found += ranges[at : at + 1]
        with self._store.read() as view:
            found += _stored_range(view, stream, offset)
        return min(found, default=None)


def _end_of(span: Range) -> int:
    return span[1]


def _add_range(ranges: list[Range], first: int, end: int) -> None:
    """Add a range; it becomes one with neighbours it touches."""
    at = bisect_right(ranges, (first, end))
    if at < len(ranges) and ranges[at][0] == end:
        end = ranges.pop(at)[1]
    if at and ranges[at - 1][1] == first:
        ranges[at - 1] = (ranges[at - 1][0], end)
    else:
        insort(ranges, (first, end))


def _add_outcome(outcomes: Outcomes, row: OutcomeRow) -> None:
    """Add an outcome as the newest of its id, also if its epoch was used before."""
    epochs = outcomes.setdefault(row.outcome.id, {})
    epochs.pop(row.outcome.epoch, None)
    epochs[row.outcome.epoch] = row


def _stored_before(view: StoreReader, txn_id: str, epoch: int) -> OutcomeRow | None:
    """Find the stored outcome of an id with the highest epoch up to this one."""
    key = outcome_key(txn_id, epoch)
    stored = view.last_before("outcomes", key)
    if stored is None or stored[0][: -_NUMBER.size] != key[: -_NUMBER.size]:
        return None
    return _checked(*stored)


def _checked(key: bytes, sealed: bytes) -> OutcomeRow:
    try:
        return read_outcome(key, sealed)
    except (BadSeal, msgspec.DecodeError) as error:
        raise CorruptRead(str(error), file="checkpoint", position=0) from error


def _stored_range(view: StoreReader, stream: int, offset: int) -> list[Range]:
    key = range_key(stream, offset)
    before = view.last_before("aborted", key)
    if before is not None:
        found = _range_of(before, stream)
        if found is not None and found[1] > offset:
            return [found]
    for row in view.scan("aborted", key):
        found = _range_of(row, stream)
        return [] if found is None else [found]
    return []


def _range_of(row: tuple[bytes, bytes], stream: int) -> Range | None:
    key, sealed = row
    try:
        owner, first = split_range_key(key)
        if owner != stream:
            return None
        return first, unpack_end(unseal("aborted", key, sealed))
    except (BadSeal, struct.error) as error:
        raise CorruptRead(str(error), file="checkpoint", position=0) from error


# ---- memory rows ---------------------------------------------------------------------------------
# Storing outcomes and aborted ranges with a checkpoint, and letting old ones go.


# How many outcomes one checkpoint lets go for their age: the next goes on.
_OLD_MAX: Final = 100_000

_encode: Final = msgspec.msgpack.Encoder().encode


def put_txn_history(tables: TableWriter, memory: TxnHistoryCut, dirty: Dirty, time_ms: int) -> None:
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
    for app, floor in sorted(dirty.forgotten_sink_cutoffs.items()):
        _drop_of_sink(tables, app, floor)
    _drop_expired(tables, time_ms - OUTCOME_WINDOW_MS)


def _put_outcome(tables: TableWriter, row: OutcomeRow) -> None:
    key = outcome_key(row.outcome.id, row.outcome.epoch)
    _drop_outcome(tables, key)
    tables.put("outcomes", key, _encode(row))
    tables.put("outcome_order", pack_end(row.number), key)
    tables.put("outcome_owners", owner_key(row), key)
    if isinstance(row.owner, ProducerOwner) and row.ordinal >= OUTCOMES_PER_PRODUCER_MAX:
        oldest = owner_prefix(row.owner) + pack_end(row.ordinal - OUTCOMES_PER_PRODUCER_MAX)
        _drop_owned(tables, oldest)


def _drop_outcome(tables: TableWriter, key: bytes) -> None:
    """Remove an outcome and what points to it, if it is there."""
    sealed = tables.writer.get("outcomes", key)
    if sealed is None:
        return
    row = read_outcome(key, sealed)
    tables.delete("outcomes", key)
    tables.delete("outcome_order", pack_end(row.number))
    tables.delete("outcome_owners", owner_key(row))


def _drop_owned(tables: TableWriter, key: bytes) -> None:
    sealed = tables.writer.get("outcome_owners", key)
    if sealed is not None:
        _drop_outcome(tables, unseal("outcome_owners", key, sealed))


def _drop_of_sink(tables: TableWriter, app: str, outcomes_from: int) -> None:
    prefix = owner_prefix(SinkOwner(app, 0, 0))
    end = prefix + pack_end(outcomes_from)
    for key in table_keys(tables.writer, "outcome_owners", prefix):
        if key >= end:
            return
        _drop_owned(tables, key)


def _drop_expired(tables: TableWriter, before_ms: int) -> None:
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


def prune_aborted(tables: TableWriter, stream: int, kept: tuple[int, int]) -> None:
    """Remove the aborted ranges of a stream that lie outside the offsets still kept."""
    start, end = kept
    gone = []
    for key, sealed in tables.writer.scan("aborted", range_key(stream, 0)):
        owner, first = split_range_key(key)
        if owner != stream:
            break
        if unpack_end(unseal("aborted", key, sealed)) <= start or first >= end:
            gone.append(key)
        elif end == OFFSET_MAX:
            break
    for key in gone:
        tables.delete("aborted", key)
