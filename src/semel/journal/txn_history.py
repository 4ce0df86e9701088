"""The transaction history: outcomes of ended transactions, and offset ranges that were aborted.

New rows are in memory until a checkpoint stores them. The rows are not part of the state, because
the state must not grow with the number of ended transactions.
"""

import struct
from bisect import bisect_right, insort
from collections.abc import Callable
from operator import itemgetter
from typing import Final

import msgspec
from msgspec import Struct

from semel.journal.store import (
    Store,
    StoreReader,
    TableWriter,
    read_row,
    reading,
    rows_around,
    table_keys,
    unseal,
)
from semel.machine.rows import NUMBER_KEY, PAIR_KEY, OutcomeRow
from semel.machine.state import Dirty, Effects
from semel.machine.streams import OFFSET_MAX
from semel.model.commands import Owner, ProducerOwner, SinkOwner
from semel.model.limits import OUTCOMES_PER_PRODUCER_MAX

_LENGTH: Final = struct.Struct(">H")
_EPOCH_MAX: Final = (1 << 64) - 1
_EPOCH_BYTES: Final = 8
_DECODE: Final = msgspec.msgpack.Decoder(OutcomeRow).decode

Range = tuple[int, int]
Outcomes = dict[str, dict[int, OutcomeRow]]


class TxnHistoryCut(Struct, frozen=True):
    """The new rows that a checkpoint has to store.

    `outcomes` is keyed by transaction id, and then by transaction epoch. `aborted` maps stream
    numbers to aborted ranges.
    """

    outcomes: Outcomes
    aborted: dict[int, list[Range]]


# ---- keys ----------------------------------------------------------------------------------------


def outcome_key(txn_id: str, epoch: int) -> bytes:
    """Return the key of an outcome. All keys with the same transaction id are adjacent."""
    name = txn_id.encode()
    return _LENGTH.pack(len(name)) + name + NUMBER_KEY.encode(epoch)


def owner_prefix(owner: Owner) -> bytes:
    """Return the prefix that all keys of an owner have in the table `outcome_owners`."""
    kind, name = (b"p", owner.id) if isinstance(owner, ProducerOwner) else (b"s", owner.app)
    return kind + _LENGTH.pack(len(name.encode())) + name.encode()


def outcome_owner_key(row: OutcomeRow) -> bytes:
    """Return the key of an outcome in the table `outcome_owners`.

    The keys sort by owner (a producer or a sink). For each owner, the oldest outcome comes first.
    """
    ordinal = row.ordinal if isinstance(row.owner, ProducerOwner) else row.number
    return owner_prefix(row.owner) + NUMBER_KEY.encode(ordinal)


# ---- rows in memory ------------------------------------------------------------------------------


class TxnHistory:
    """The transaction outcomes and the aborted offset ranges of a running engine."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._fresh = TxnHistoryCut({}, {})
        self._sealing = TxnHistoryCut({}, {})

    def add(self, effects: Effects) -> None:
        """Add the outcomes and aborted ranges that one frame produced."""
        for span in effects.aborted:
            _add_range(self._fresh.aborted.setdefault(span.stream, []), span.first, span.next)
        for row in effects.outcomes:
            _add_outcome(self._fresh.outcomes, row)

    def forget(self, stream: int) -> None:
        """Drop a removed stream's aborted ranges from memory."""
        self._fresh.aborted.pop(stream, None)

    def cut(self) -> TxnHistoryCut:
        """Return all rows in memory, to be stored by a checkpoint.

        The rows stay readable until the checkpoint is done.
        """
        self._sealing, self._fresh = self._fresh, TxnHistoryCut({}, {})
        return self._sealing

    def finish_cut(self) -> None:
        """Drop the rows that `cut` returned, because the checkpoint now contains them."""
        self._sealing = TxnHistoryCut({}, {})

    def undo_cut(self) -> None:
        """Restore the rows that `cut` returned, because the checkpoint was not made."""
        older, newer = self._sealing, self._fresh
        for epochs in newer.outcomes.values():
            for row in epochs.values():
                _add_outcome(older.outcomes, row)
        for stream, ranges in newer.aborted.items():
            for first, end in ranges:
                _add_range(older.aborted.setdefault(stream, []), first, end)
        self._fresh, self._sealing = older, TxnHistoryCut({}, {})

    def outcome(self, txn_id: str, epoch: int) -> OutcomeRow | None:
        """Return the outcome of a transaction, or None if no outcome is stored.

        Raises CorruptRead if the stored row is damaged.
        """
        for layer in (self._fresh, self._sealing):
            row = layer.outcomes.get(txn_id, {}).get(epoch)
            if row is not None:
                return row
        key = outcome_key(txn_id, epoch)
        with reading(self._store) as view:
            stored = rows_around(view, "outcomes", key)[0]
            return _DECODE(stored[1]) if stored is not None and stored[0] == key else None

    def last_outcome(self, txn_id: str, is_kept: Callable[[OutcomeRow], bool]) -> OutcomeRow | None:
        """Return the newest outcome with this transaction id that `is_kept` accepts, or None.

        Outcomes with the same id can belong to different producers or sinks. So the newest outcome
        can expire while an older one is still kept. Raises CorruptRead if a stored row is damaged.
        """
        for layer in (self._fresh, self._sealing):
            for row in reversed(layer.outcomes.get(txn_id, {}).values()):
                if is_kept(row):
                    return row
        # In the store, the newest retained row has the highest epoch: a new transaction always gets
        # a higher epoch than all retained outcomes with its id.
        epoch = _EPOCH_MAX
        with reading(self._store) as view:
            while (stored := _stored_before(view, txn_id, epoch)) is not None:
                if is_kept(stored):
                    return stored
                epoch = stored.outcome.epoch - 1
        return None

    def next_aborted(self, stream: int, offset: int) -> Range | None:
        """Return the stream's first aborted range whose end is greater than `offset`.

        Return None if there is no such range. Raises CorruptRead if the stored row is damaged.
        """
        candidates = []
        for layer in (self._fresh, self._sealing):
            ranges = layer.aborted.get(stream)
            if ranges:
                at = bisect_right(ranges, offset, key=itemgetter(1))
                candidates += ranges[at : at + 1]
        with reading(self._store) as view:
            candidates += _stored_range(view, stream, offset)
        return min(candidates, default=None)


def _add_range(ranges: list[Range], first: int, end: int) -> None:
    """Add a range to a sorted list, and merge it with the ranges adjacent to it."""
    at = bisect_right(ranges, (first, end))
    if at < len(ranges) and ranges[at][0] == end:
        end = ranges.pop(at)[1]
    if at and ranges[at - 1][1] == first:
        ranges[at - 1] = (ranges[at - 1][0], end)
    else:
        insort(ranges, (first, end))


def _add_outcome(outcomes: Outcomes, row: OutcomeRow) -> None:
    """Add an outcome as the newest outcome. Remove an older outcome with the same id and epoch."""
    epochs = outcomes.setdefault(row.outcome.id, {})
    epochs.pop(row.outcome.epoch, None)
    epochs[row.outcome.epoch] = row


def _stored_before(view: StoreReader, txn_id: str, epoch: int) -> OutcomeRow | None:
    """Return the stored outcome with this id and the highest epoch <= `epoch`, or None."""
    key = outcome_key(txn_id, epoch)
    stored = rows_around(view, "outcomes", key)[0]
    if stored is None or stored[0][:-_EPOCH_BYTES] != key[:-_EPOCH_BYTES]:
        return None
    return _DECODE(stored[1])


def _stored_range(view: StoreReader, stream: int, offset: int) -> list[Range]:
    for row in rows_around(view, "aborted", PAIR_KEY.encode((stream, offset))):
        if row is not None:
            owner, first = PAIR_KEY.decode(row[0])
            end = NUMBER_KEY.decode(row[1])
            if owner == stream and end > offset:
                return [(first, end)]
    return []


# ---- rows of the checkpoint ----------------------------------------------------------------------


# The maximum number of expired outcomes that one checkpoint removes. The next checkpoint continues.
_OLD_MAX: Final = 100_000

_encode: Final = msgspec.msgpack.Encoder().encode


def put_txn_history(tables: TableWriter, cut: TxnHistoryCut, dirty: Dirty, from_hour: int) -> None:
    """Store the new rows in the checkpoint, and remove the outcomes of hours before `from_hour`."""
    for _, epochs in sorted(cut.outcomes.items()):
        for _, row in sorted(epochs.items()):
            _put_outcome(tables, row)
    for stream, ranges in sorted(cut.aborted.items()):
        for first, end in ranges:
            tables.put("aborted", PAIR_KEY.encode((stream, first)), NUMBER_KEY.encode(end))
    cutoffs = [(app, sink.outcomes_from) for app, sink in dirty.sinks.items() if sink is not None]
    for app, cutoff in sorted([*cutoffs, *dirty.forgotten_sink_cutoffs.items()]):
        _drop_of_sink(tables, app, cutoff)
    _drop_expired(tables, from_hour)


def _put_outcome(tables: TableWriter, row: OutcomeRow) -> None:
    key = outcome_key(row.outcome.id, row.outcome.epoch)
    _drop_outcome(tables, key)
    tables.put("outcomes", key, _encode(row))
    tables.put("outcome_order", NUMBER_KEY.encode(row.number), key)
    tables.put("outcome_owners", outcome_owner_key(row), key)
    if isinstance(row.owner, ProducerOwner) and row.ordinal >= OUTCOMES_PER_PRODUCER_MAX:
        oldest = NUMBER_KEY.encode(row.ordinal - OUTCOMES_PER_PRODUCER_MAX)
        _drop_owned(tables, owner_prefix(row.owner) + oldest)


def _drop_outcome(tables: TableWriter, key: bytes) -> None:
    """Remove an outcome, if it exists, and the rows that point to it."""
    value = read_row(tables.writer, "outcomes", key)
    if value is not None:
        row = _DECODE(value)
        tables.delete("outcomes", key)
        tables.delete("outcome_order", NUMBER_KEY.encode(row.number))
        tables.delete("outcome_owners", outcome_owner_key(row))


def _drop_owned(tables: TableWriter, key: bytes) -> None:
    name = read_row(tables.writer, "outcome_owners", key)
    if name is not None:
        _drop_outcome(tables, name)


def _drop_of_sink(tables: TableWriter, app: str, outcomes_from: int) -> None:
    prefix = owner_prefix(SinkOwner(app, 0, 0))
    end = prefix + NUMBER_KEY.encode(outcomes_from)
    for key in table_keys(tables.writer, "outcome_owners", prefix):
        if key >= end:
            return
        _drop_owned(tables, key)


def _drop_expired(tables: TableWriter, from_hour: int) -> None:
    """Remove the outcomes of transactions that ended in an hour before `from_hour`.

    The oldest are removed first. One call removes at most `_OLD_MAX` outcomes.
    """
    old: list[bytes] = []
    for key, sealed in tables.writer.scan("outcome_order"):
        name = unseal("outcome_order", key, sealed)
        value = read_row(tables.writer, "outcomes", name)
        is_old = value is not None and _DECODE(value).hour < from_hour
        if not is_old or len(old) >= _OLD_MAX:
            break
        old.append(name)
    for name in old:
        _drop_outcome(tables, name)


def prune_aborted(tables: TableWriter, stream: int, kept: tuple[int, int]) -> None:
    """Remove a stream's aborted ranges that are completely outside the range `kept`."""
    start, end = kept
    removed = []
    for key, sealed in tables.writer.scan("aborted", PAIR_KEY.encode((stream, 0))):
        owner, first = PAIR_KEY.decode(key)
        if owner != stream:
            break
        if NUMBER_KEY.decode(unseal("aborted", key, sealed)) <= start or first >= end:
            removed.append(key)
        elif end == OFFSET_MAX:
            break
    for key in removed:
        tables.delete("aborted", key)
