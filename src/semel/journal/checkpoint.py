"""The checkpoint: the state at an LSN, as sealed rows in the store.

The loop makes a `Cut` in no time (rows are frozen, references suffice); once the cut is durable
another thread commits it: rows, index, live segments and LSN in one transaction. So the store never
holds anything a crash could take back.
"""

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from semel.journal.identity import BadSeal, seal, seal_of, unseal
from semel.journal.index import IndexBlock, block_key, decode_block, encode_block, split_key
from semel.journal.store import Store, StoreFull, StoreReader, StoreWriter
from semel.journal.tables import DIGEST_MODULUS, DIGESTED, TableWriter, read_digest
from semel.journal.txn_history import TxnHistoryCut, prune_aborted, put_txn_history
from semel.machine.rows import (
    ChunkBlockRow,
    KeyRow,
    MetaRow,
    PositionRow,
    ProducerRow,
    RegistryRow,
    Row,
    SinkRow,
    SnapshotRow,
    StreamRow,
    TailRow,
    TxnRow,
    TxnStreamRow,
)
from semel.machine.state import OFFSET_MAX, Dirty, MachineLimits, State
from semel.machine.txn.chunk_list import lsns_of
from semel.model.errors import CorruptData

FILE_NAME: Final = "checkpoint.mdb"
POSITION_KEY: Final = b"position"
COUNTERS_KEY: Final = b"counters"
CHUNK_COUNT: Final = struct.Struct("<Q")
_NUMBER: Final = struct.Struct(">Q")
_PAIR: Final = struct.Struct(">QQ")
# How many keys are sorted at once: neighbours in the store, without a long pause for the loop.
_SORT_MAX: Final = 4096

K = TypeVar("K", int, str, tuple[int, str], tuple[int, int])

_encode: Final = msgspec.msgpack.Encoder().encode


class CheckpointPosition(Struct, frozen=True, array_like=True):
    """Where replay starts, and which segments (first LSN, end) hold live data before that."""

    lsn: int
    previous_crc: int
    segments: tuple[tuple[int, int], ...]


class Cut(Struct, frozen=True):
    """The work order for one checkpoint.

    `open_pages` name the chunks no decision has placed yet: their segments have to stay.
    """

    lsn: int
    previous_crc: int
    meta: MetaRow
    dirty: Dirty
    chunks: dict[int, IndexBlock]
    kept: dict[int, tuple[int, int]]
    segments: tuple[tuple[int, int], ...]
    txn_history: TxnHistoryCut
    open_blocks: list[bytes]


class Loaded(Struct, frozen=True):
    """A checkpoint read back."""

    state: State
    position: CheckpointPosition


# ---- keys ----------------------------------------------------------------------------------------


def number_key(number: int) -> bytes:
    """Make the key of a stream or segment."""
    return _NUMBER.pack(number)


def owned_key(number: int, name: str) -> bytes:
    """Make the key of something that belongs to a stream."""
    return _NUMBER.pack(number) + name.encode()


def split_owned(key: bytes) -> tuple[int, str]:
    """Read stream and name back."""
    return _NUMBER.unpack_from(key)[0], key[_NUMBER.size :].decode()


def pair_key(pair: tuple[int, int]) -> bytes:
    """Make the key of something that belongs to a transaction."""
    return _PAIR.pack(*pair)


def split_pair(key: bytes) -> tuple[int, int]:
    """Read the transaction and what it numbers back."""
    owner, number = _PAIR.unpack(key)
    return owner, number


# ---- writing -------------------------------------------------------------------------------------


def commit_cut(store: Store, cut: Cut) -> list[int]:
    """Commit a durable cut; answer the segments that hold nothing live any more.

    Raises StoreFull (nothing happened, try again later), OSError or CorruptData.
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


def _fill(writer: StoreWriter, cut: Cut) -> list[int]:
    tables = TableWriter(writer)
    _put_rows(tables, cut.dirty)
    put_txn_history(tables, cut.txn_history, cut.dirty, cut.meta.time_ms)
    _drop_streams(tables, cut.dirty.dropped)
    _drop_transactions(tables, cut.dirty.decided)
    counts: dict[int, int] = {}
    _put_chunks(writer, cut, counts)
    for number in sorted(cut.dirty.dropped):
        _prune(writer, number, (0, 0), counts)
    for number, kept in sorted(cut.kept.items()):
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
    _put_table(tables, "streams", dirty.streams, number_key)
    _put_table(tables, "tails", dirty.tails, number_key)
    _put_table(tables, "producers", dirty.producers, _owned_key)
    _put_table(tables, "keys", dirty.keys, _owned_key)
    _put_table(tables, "registry", dirty.registry, str.encode)
    _put_table(tables, "transactions", dirty.transactions, number_key)
    _put_table(tables, "txn_streams", dirty.txn_streams, pair_key)
    _put_table(tables, "parts", dirty.parts, pair_key)
    _put_table(tables, "positions", dirty.positions, _owned_key)
    _put_table(tables, "snapshots", dirty.snapshots, str.encode)
    _put_table(tables, "sinks", dirty.sinks, str.encode)


def _owned_key(owned: tuple[int, str]) -> bytes:
    return owned_key(*owned)


def _put_table(
    tables: TableWriter, table: str, rows: Mapping[K, Row | None], key_of: Callable[[K], bytes]
) -> None:
    for some in _slices(rows):
        for name in sorted(some):
            row = rows[name]
            if row is None:
                tables.delete(table, key_of(name))
            else:
                tables.put(table, key_of(name), _encode(row))


def _slices(names: Iterable[K]) -> Iterator[list[K]]:
    """Cut a long list into pieces: sorting it whole would keep the loop waiting."""
    names = iter(names)
    while some := list(islice(names, _SORT_MAX)):
        yield some


def drop_removed(cut: Cut) -> None:
    """Free a committed cut row by row: all at once would keep the loop waiting."""
    dirty = cut.dirty
    for table in (dirty.streams, dirty.tails, dirty.producers, dirty.keys, cut.chunks):
        while table:
            table.popitem()


def _drop_streams(tables: TableWriter, numbers: set[int]) -> None:
    for number in sorted(numbers):
        prefix = number_key(number)
        tables.delete("streams", prefix)
        tables.delete("tails", prefix)
        for table in ("producers", "keys", "positions", "aborted"):
            tables.delete_all(table, prefix)


def _drop_transactions(tables: TableWriter, numbers: set[int]) -> None:
    for number in sorted(numbers):
        prefix = number_key(number)
        tables.delete("transactions", prefix)
        tables.delete_all("txn_streams", prefix)
        tables.delete_all("parts", prefix)


# ---- the index and the segments it keeps alive ---------------------------------------------------


def _put_chunks(writer: StoreWriter, cut: Cut, counts: dict[int, int]) -> None:
    for some in _slices(cut.chunks):
        for stream in sorted(some):
            chunk = None if stream in cut.dirty.dropped else cut.chunks[stream]
            while chunk is not None:
                writer.put("index", block_key(stream, chunk.first), encode_block(stream, chunk))
                counts[chunk.segment] = counts.get(chunk.segment, 0) + 1
                chunk = chunk.older


def _prune(writer: StoreWriter, stream: int, kept: tuple[int, int], counts: dict[int, int]) -> None:
    """Remove the chunks of a stream that hold nothing of the offsets still kept."""
    start, end = kept
    gone = []
    for key, value in writer.scan("index", block_key(stream, 0)):
        if split_key(key)[0] != stream:
            break
        chunk = decode_block(key, value)
        if chunk.next <= start or chunk.first >= end:
            gone.append(key)
            counts[chunk.segment] = counts.get(chunk.segment, 0) - 1
        elif end == OFFSET_MAX:
            break
    for key in gone:
        writer.delete("index", key)


def _settle_segments(tables: TableWriter, cut: Cut, counts: dict[int, int]) -> set[int]:
    """Update how many chunks live in each segment; find those wholly below the cut with none."""
    dead = set()
    held = _held_segments(cut)
    for first, end in cut.segments:
        key = number_key(first)
        sealed = tables.writer.get("segments", key)
        old = 0 if sealed is None else CHUNK_COUNT.unpack(unseal("segments", key, sealed))[0]
        new = old + counts.get(first, 0)
        if new == 0 and end <= cut.lsn and first not in held:
            dead.add(first)
            tables.delete("segments", key)
        elif new != old or sealed is None:
            tables.put("segments", key, CHUNK_COUNT.pack(new))
    return dead


def _held_segments(cut: Cut) -> set[int]:
    """Find the segments that hold chunks of transactions which are not decided."""
    firsts = [first for first, _ in cut.segments]
    places = {place for page in cut.open_blocks for place in lsns_of(page)}
    return {firsts[bisect_right(firsts, place) - 1] for place in places}


# ---- reading -------------------------------------------------------------------------------------


def load(store: Store, limits: MachineLimits) -> Loaded | None:
    """Read a checkpoint and check all of it; None if there has been none."""
    state = State(limits)
    try:
        with store.read() as view:
            position = read_position(view)
            if position is None:
                _check_empty(view)
                return None
            _load_rows(view, state)
    except (BadSeal, struct.error, msgspec.DecodeError, UnicodeDecodeError, KeyError) as error:
        raise CorruptData(f"cannot be read: {error}", file=FILE_NAME) from error
    state.load_links()
    return Loaded(state, position)


def read_position(view: StoreReader) -> CheckpointPosition | None:
    """Read where a checkpoint stands; raises BadSeal or DecodeError."""
    sealed = view.get("meta", POSITION_KEY)
    if sealed is None:
        return None
    return msgspec.msgpack.decode(unseal("meta", POSITION_KEY, sealed), type=CheckpointPosition)


def _check_empty(view: StoreReader) -> None:
    for table in ("meta", *DIGESTED):
        for key, _ in view.scan(table):
            raise BadSeal(table, key)


def _decode(sealed: bytes | None, table: str, key: bytes, row: Any) -> Any:
    if sealed is None:
        raise BadSeal(table, key)
    return msgspec.msgpack.decode(unseal(table, key, sealed), type=row)


def _load_rows(view: StoreReader, state: State) -> None:
    state.load_meta(_decode(view.get("meta", COUNTERS_KEY), "meta", COUNTERS_KEY, MetaRow))
    tails = dict(_rows(view, "tails", TailRow))
    for key, stream in _rows(view, "streams", StreamRow):
        state.load_stream(stream, tails.pop(key))
    for key, producer in _rows(view, "producers", ProducerRow):
        state.load_producer(*split_owned(key), producer)
    for key, used in _rows(view, "keys", KeyRow):
        state.load_key(*split_owned(key), used)
    for key, registered in _rows(view, "registry", RegistryRow):
        state.registry[key.decode()] = registered
    _load_txn_rows(view, state)
    _check_digest(view, "segments", list(view.scan("segments")))


def _load_txn_rows(view: StoreReader, state: State) -> None:
    for _, row in _rows(view, "transactions", TxnRow):
        state.load_transaction(row)
    for key, row in _rows(view, "txn_streams", TxnStreamRow):
        state.load_txn_stream(*split_pair(key), row)
    for key, row in _rows(view, "parts", ChunkBlockRow):
        state.load_parts(*split_pair(key), row)
    for key, row in _rows(view, "positions", PositionRow):
        state.load_position(*split_owned(key), row)
    for key, row in _rows(view, "snapshots", SnapshotRow):
        state.snapshots[key.decode()] = row
    for key, row in _rows(view, "sinks", SinkRow):
        state.sinks[key.decode()] = row


def _rows(view: StoreReader, table: str, row: Any) -> list[tuple[bytes, Any]]:
    sealed = list(view.scan(table))
    _check_digest(view, table, sealed)
    decode = msgspec.msgpack.Decoder(row).decode
    return [(key, decode(unseal(table, key, value))) for key, value in sealed]


def _check_digest(view: StoreReader, table: str, sealed: list[tuple[bytes, bytes]]) -> None:
    total = 0
    for _, value in sealed:
        total += seal_of(value)
    if (len(sealed), total % DIGEST_MODULUS) != read_digest(view, table):
        raise CorruptData(f"table {table!r} lost, gained or changed a row", file=FILE_NAME)
