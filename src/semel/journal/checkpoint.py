"""The checkpoint: the state at an LSN, as rows with checksums in the store.

The event loop makes a `Cut`, which refers to the changed rows. The rows of a cut are not changed
any more, so it does not need copies.

When every frame before the cut's LSN is durable, a different thread commits the cut to the store in
one transaction. Therefore the store never contains a change that the journal can lose in a crash.
"""

import struct
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from semel.journal.index import Index, IndexBlock, block_key, decode_block, encode_block, split_key
from semel.journal.segments import Segments
from semel.journal.store import (
    DIGEST_MODULUS,
    DIGESTED,
    LOOKED_UP,
    BadSeal,
    Store,
    StoreFull,
    StoreReader,
    StoreWriter,
    TableWriter,
    read_digest,
    read_row,
    seal,
    seal_of,
    unseal,
)
from semel.journal.txn_history import TxnHistory, TxnHistoryCut, prune_aborted, put_txn_history
from semel.machine.rows import NUMBER_KEY, OF_STREAM, OF_TXN, AnyRow, MetaRow
from semel.machine.state import STATE_TABLES, Dirty, State
from semel.machine.streams import OFFSET_MAX, retained_range
from semel.machine.txn.draft import lsns_of
from semel.model.commands import TXN_STAGED
from semel.model.errors import CorruptData
from semel.model.limits import MachineLimits

FILE_NAME: Final = "checkpoint.mdb"
POSITION_KEY: Final = b"position"
COUNTERS_KEY: Final = b"counters"
BLOCK_COUNT: Final = struct.Struct("<Q")
# The maximum number of keys in one sort. Sorting a longer list would stall the event loop.
_SORT_MAX: Final = 4096

T = TypeVar("T")

_encode: Final = msgspec.msgpack.Encoder().encode


class CheckpointPosition(Struct, frozen=True, array_like=True):
    """The LSN at which replay starts, and the segments that are still needed.

    `previous_crc` is the checksum of the frame before `lsn`. `segments` has one pair per segment:
    its first LSN and its end. The end of an open segment is OPEN_END.
    """

    lsn: int
    previous_crc: int
    segments: tuple[tuple[int, int], ...]


class Cut(Struct, frozen=True):
    """The changes that one checkpoint commits to the store.

    `kept` maps stream numbers to the range of offsets that must stay in the index. Outcomes of
    hours before `outcomes_from_hour` are removed. `chunk_blocks` lists the chunks of pending
    transactions. The segments that contain these chunks must stay.
    """

    lsn: int
    previous_crc: int
    meta: MetaRow
    dirty: Dirty
    index_blocks: dict[int, IndexBlock]
    kept: dict[int, tuple[int, int]]
    segments: tuple[tuple[int, int], ...]
    txn_history: TxnHistoryCut
    outcomes_from_hour: int
    chunk_blocks: list[bytes]


def make_cut(
    state: State,
    lsn: int,
    *,
    previous_crc: int,
    run_ms: int,
    index: Index,
    segments: Segments,
    txn_history: TxnHistory,
) -> Cut:
    """Return the cut of the current state. The rows that have changed are then no longer dirty."""
    dirty = state.take_dirty()
    pruned = (state.by_number[n] for n in dirty.pruned if n in state.by_number)
    starts: dict[int, int] = {}
    staged = (txn for txn in state.by_txn.values() if txn.row.kind == TXN_STAGED)
    return Cut(
        lsn=lsn,
        previous_crc=previous_crc,
        meta=state.meta_row(run_ms=run_ms),
        dirty=dirty,
        index_blocks=index.cut(),
        kept={stream.row.number: retained_range(state, stream, starts) for stream in pruned},
        segments=segments.spans(),
        txn_history=txn_history.cut(),
        outcomes_from_hour=state.hours - state.limits.outcome_hours,
        chunk_blocks=[block for txn in staged for block in txn.chunk_blocks],
    )


# ---- writing -------------------------------------------------------------------------------------


def commit_cut(store: Store, cut: Cut) -> list[int]:
    """Commit a cut to the store, and return the segments that are no longer needed.

    All frames before the cut's LSN must be durable. Raises StoreFull if the store has no room. Then
    nothing is changed, and a retry is possible. Also raises CorruptData, DiskFailed or OSError.
    """
    writer = store.write()
    try:
        dead = _fill(writer, cut)
        writer.commit()
    except BadSeal as error:
        writer.abort()
        raise CorruptData(str(error), file=FILE_NAME) from error
    except StoreFull:
        writer.abort()
        raise
    return dead


def commit_if_room(store: Store, cut: Cut) -> list[int] | None:
    """Do the same as `commit_cut`, but return None if the store has no room."""
    try:
        return commit_cut(store, cut)
    except StoreFull:
        return None


def _fill(writer: StoreWriter, cut: Cut) -> list[int]:
    tables = TableWriter(writer)
    _put_rows(tables, cut.dirty)
    put_txn_history(tables, cut.txn_history, cut.dirty, cut.outcomes_from_hour)
    _drop_owned(tables, OF_STREAM, cut.dirty.dropped)
    _drop_owned(tables, OF_TXN, cut.dirty.decided)
    counts: Counter[int] = Counter()
    _put_index(writer, cut, counts)
    for number, kept in sorted((cut.kept | dict.fromkeys(cut.dirty.dropped, (0, 0))).items()):
        _prune(writer, number, kept, counts)
        prune_aborted(tables, number, kept)
    dead = _settle_segments(tables, cut, counts)
    live = tuple(span for span in cut.segments if span[0] not in dead)
    _put_meta(writer, POSITION_KEY, CheckpointPosition(cut.lsn, cut.previous_crc, live))
    _put_meta(writer, COUNTERS_KEY, cut.meta)
    tables.finish()
    return sorted(dead)


def _put_meta(writer: StoreWriter, key: bytes, row: Struct) -> None:
    writer.put("meta", key, seal("meta", key, _encode(row)))


def _put_rows(tables: TableWriter, dirty: Dirty) -> None:
    for name, table in STATE_TABLES.items():
        _put_table(tables, name, getattr(dirty, name), table.key.encode)


def _put_table(
    tables: TableWriter,
    table: str,
    rows: Mapping[Any, AnyRow | None],
    key_of: Callable[[Any], bytes],
) -> None:
    for names in _slices(rows):
        for name in sorted(names):
            row = rows[name]
            if row is None:
                tables.delete(table, key_of(name))
            else:
                tables.put(table, key_of(name), _encode(row))


def _slices(names: Iterable[T]) -> Iterator[list[T]]:
    """Yield the names in short lists. Sorting one long list would stall the event loop."""
    names = iter(names)
    while names_slice := list(islice(names, _SORT_MAX)):
        yield names_slice


def drop_removed(cut: Cut) -> None:
    """Free the rows of a committed cut one by one.

    Freeing all rows in one step would stall the event loop.
    """
    for rows in (*(getattr(cut.dirty, name) for name in STATE_TABLES), cut.index_blocks):
        while rows:
            rows.popitem()


def _drop_owned(tables: TableWriter, owner: str, numbers: set[int]) -> None:
    """Remove all rows of these streams or transactions. `owner` is OF_STREAM or OF_TXN."""
    names = [name for name, table in STATE_TABLES.items() if table.owner == owner]
    for number in sorted(numbers):
        for name in names:
            tables.delete_all(name, NUMBER_KEY.encode(number))


# ---- the index, and the segments it points into --------------------------------------------------


def _put_index(writer: StoreWriter, cut: Cut, counts: Counter[int]) -> None:
    for streams in _slices(cut.index_blocks):
        for stream in sorted(streams):
            block = None if stream in cut.dirty.dropped else cut.index_blocks[stream]
            while block is not None:
                writer.put("index", block_key(stream, block.first), encode_block(stream, block))
                counts[block.segment] += 1
                block = block.older


def _prune(writer: StoreWriter, stream: int, kept: tuple[int, int], counts: Counter[int]) -> None:
    """Remove a stream's index blocks that are completely outside the range `kept`.

    A damaged block stays, and with it the segment that it may point into. Otherwise the deletion of
    a stream with a damaged block would stop the server at every checkpoint.
    """
    start, end = kept
    removed = []
    for key, value in writer.scan("index", block_key(stream, 0)):
        try:
            if split_key(key)[0] != stream:
                break
            block = decode_block(key, value)
        except BadSeal:
            continue
        if block.next <= start or block.first >= end:
            removed.append(key)
            counts[block.segment] -= 1
        elif end == OFFSET_MAX:
            break
    for key in removed:
        writer.delete("index", key)


def _settle_segments(tables: TableWriter, cut: Cut, counts: Counter[int]) -> set[int]:
    """Update the stored number of index blocks for each segment.

    Return the segments that are no longer needed.
    """
    dead = set()
    held = _held_segments(cut)
    for first, end in cut.segments:
        key = NUMBER_KEY.encode(first)
        value = read_row(tables.writer, "segments", key)
        old = 0 if value is None else BLOCK_COUNT.unpack(value)[0]
        new = old + counts[first]
        if new == 0 and end <= cut.lsn and first not in held:
            dead.add(first)
            tables.delete("segments", key)
        elif new != old or value is None:
            tables.put("segments", key, BLOCK_COUNT.pack(new))
    return dead


def _held_segments(cut: Cut) -> set[int]:
    """Return the segments that contain chunks of pending transactions."""
    firsts = [first for first, _ in cut.segments]
    lsns = {lsn for block in cut.chunk_blocks for lsn in lsns_of(block)}
    return {firsts[bisect_right(firsts, lsn) - 1] for lsn in lsns}


# ---- reading -------------------------------------------------------------------------------------


def load(store: Store, limits: MachineLimits) -> tuple[State, CheckpointPosition]:
    """Load and check the checkpoint. Return the state and the position at which replay starts.

    If there is no checkpoint, the state is empty and replay starts at LSN 0. Raises CorruptData if
    the checkpoint is damaged.
    """
    state = State(limits)
    try:
        with store.read() as view:
            position = read_position(view)
            if position is None:
                _check_empty(view)
                return state, CheckpointPosition(0, 0, ())
            _load_rows(view, state)
            state.load_links()
    except (BadSeal, struct.error, msgspec.DecodeError, UnicodeDecodeError, KeyError) as error:
        raise CorruptData(f"the file cannot be read: {error}", file=FILE_NAME) from error
    return state, position


def read_position(view: StoreReader) -> CheckpointPosition | None:
    """Return the position of the checkpoint, or None if there is no checkpoint.

    Raises BadSeal or DecodeError.
    """
    return read_meta(view, POSITION_KEY, CheckpointPosition)


def read_meta(view: StoreReader, key: bytes, row: type[T]) -> T | None:
    """Return the row with this key in the table `meta`, or None if there is no such row.

    `row` is the type of the row. Raises BadSeal or DecodeError if the row is damaged.
    """
    value = read_row(view, "meta", key)
    return None if value is None else msgspec.msgpack.decode(value, type=row)


def _check_empty(view: StoreReader) -> None:
    for table in ("meta", *DIGESTED):
        for key, _ in view.scan(table):
            raise BadSeal(table, key)


def _load_rows(view: StoreReader, state: State) -> None:
    for key, sealed in view.scan("meta"):
        unseal("meta", key, sealed)
    meta = read_meta(view, COUNTERS_KEY, MetaRow)
    if meta is None:
        raise BadSeal("meta", COUNTERS_KEY)
    state.load_meta(meta)
    for name, table in STATE_TABLES.items():
        for key, row in _rows(view, name, table.row):
            table.load(state, table.key.decode(key), row)
    for name in ("segments", *LOOKED_UP):
        _check_table(view, name)


def _rows(view: StoreReader, table: str, row: Any) -> list[tuple[bytes, Any]]:
    sealed = list(view.scan(table))
    _check_digest(view, table, sealed)
    decode = msgspec.msgpack.Decoder(row).decode
    return [(key, decode(unseal(table, key, value))) for key, value in sealed]


def _check_table(view: StoreReader, table: str) -> None:
    """Check the rows of a table that is not loaded."""
    count = total = 0
    for key, sealed in view.scan(table):
        unseal(table, key, sealed)
        count += 1
        total += seal_of(sealed)
    if (count, total % DIGEST_MODULUS) != read_digest(view, table):
        raise CorruptData(f"table {table!r} lost, gained or changed a row", file=FILE_NAME)


def _check_digest(view: StoreReader, table: str, sealed: list[tuple[bytes, bytes]]) -> None:
    total = sum([seal_of(value) for _, value in sealed])
    if (len(sealed), total % DIGEST_MODULUS) != read_digest(view, table):
        raise CorruptData(f"table {table!r} has a missing, surplus or outdated row", file=FILE_NAME)
