"""The checkpoint: the state at an LSN, as sealed rows in the store.

The loop makes a `Cut` in no time (rows are frozen, references suffice); once the cut is durable
another thread commits it: rows, index, live segments and LSN in one transaction. So the store never
holds anything a crash could take back.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from semel.journal.index import Chunk, chunk_key, decode_chunk, encode_chunk, split_key
from semel.journal.seal import BadSeal, seal, seal_of, unseal
from semel.journal.store import Reader, Store, StoreFull, Writer
from semel.machine.rows import KeyRow, MetaRow, ProducerRow, RegistryRow, Row, StreamRow, TailRow
from semel.machine.state import EVERYTHING, Dirty, MachineLimits, State
from semel.model.errors import CorruptData

FILE_NAME: Final = "checkpoint.mdb"
POSITION_KEY: Final = b"position"
COUNTERS_KEY: Final = b"counters"
_DIGEST_PREFIX: Final = b"digest/"
_DIGEST: Final = struct.Struct("<QQ")
CHUNK_COUNT: Final = struct.Struct("<Q")
_NUMBER: Final = struct.Struct(">Q")
DIGEST_MODULUS: Final = 1 << 64
DIGESTED: Final = ("streams", "tails", "producers", "keys", "registry", "segments")


# How many keys are sorted at once: neighbours in the store, without a long pause for the loop.
_SORT_MAX: Final = 4096

K = TypeVar("K", int, str, tuple[int, str])

_encode: Final = msgspec.msgpack.Encoder().encode


class Position(Struct, frozen=True, array_like=True):
    """Where replay starts, and which segments (first LSN, end) hold live data before that."""

    lsn: int
    previous_crc: int
    segments: tuple[tuple[int, int], ...]


class Cut(Struct, frozen=True):
    """The work order for one checkpoint."""

    lsn: int
    previous_crc: int
    meta: MetaRow
    dirty: Dirty
    chunks: dict[int, Chunk]
    kept: dict[int, tuple[int, int]]
    segments: tuple[tuple[int, int], ...]


class Loaded(Struct, frozen=True):
    """A checkpoint read back."""

    state: State
    position: Position


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


# ---- writing -------------------------------------------------------------------------------------


class _Tables:
    """A transaction that keeps each table's row count and digest."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self._digests = {table: read_digest(writer, table) for table in DIGESTED}

    def put(self, table: str, key: bytes, value: bytes) -> None:
        sealed = seal(table, key, value)
        self._account(table, self.writer.get(table, key), sealed)
        self.writer.put(table, key, sealed)

    def delete(self, table: str, key: bytes) -> None:
        self._account(table, self.writer.get(table, key), None)
        self.writer.delete(table, key)

    def _account(self, table: str, old: bytes | None, new: bytes | None) -> None:
        count, digest = self._digests[table]
        if old is not None:
            count, digest = count - 1, digest - seal_of(old)
        if new is not None:
            count, digest = count + 1, digest + seal_of(new)
        self._digests[table] = count, digest % DIGEST_MODULUS

    def finish(self) -> None:
        for table, (count, digest) in self._digests.items():
            key = _DIGEST_PREFIX + table.encode()
            self.writer.put("meta", key, seal("meta", key, _DIGEST.pack(count, digest)))


def read_digest(reader: Reader, table: str) -> tuple[int, int]:
    """Read a table's row count and digest."""
    key = _DIGEST_PREFIX + table.encode()
    sealed = reader.get("meta", key)
    if sealed is None:
        return 0, 0
    count, digest = _DIGEST.unpack(unseal("meta", key, sealed))
    return count, digest


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


def _fill(writer: Writer, cut: Cut) -> list[int]:
    tables = _Tables(writer)
    _put_rows(tables, cut.dirty)
    _drop_streams(tables, cut.dirty.dropped)
    counts: dict[int, int] = {}
    _put_chunks(writer, cut, counts)
    for number in sorted(cut.dirty.dropped):
        _prune(writer, number, (0, 0), counts)
    for number, kept in sorted(cut.kept.items()):
        _prune(writer, number, kept, counts)
    dead = _settle_segments(tables, cut, counts)
    live = tuple(span for span in cut.segments if span[0] not in dead)
    _put_meta(writer, POSITION_KEY, Position(cut.lsn, cut.previous_crc, live))
    _put_meta(writer, COUNTERS_KEY, cut.meta)
    tables.finish()
    return sorted(dead)


def _put_meta(writer: Writer, key: bytes, row: Struct) -> None:
    writer.put("meta", key, seal("meta", key, _encode(row)))


def _put_rows(tables: _Tables, dirty: Dirty) -> None:
    _put_table(tables, "streams", dirty.streams, number_key)
    _put_table(tables, "tails", dirty.tails, number_key)
    _put_table(tables, "producers", dirty.producers, _owned_key)
    _put_table(tables, "keys", dirty.keys, _owned_key)
    _put_table(tables, "registry", dirty.registry, str.encode)


def _owned_key(owned: tuple[int, str]) -> bytes:
    return owned_key(*owned)


def _put_table(
    tables: _Tables, table: str, rows: Mapping[K, Row | None], key_of: Callable[[K], bytes]
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


def let_go(cut: Cut) -> None:
    """Free a committed cut row by row: all at once would keep the loop waiting."""
    dirty = cut.dirty
    for table in (dirty.streams, dirty.tails, dirty.producers, dirty.keys, cut.chunks):
        while table:
            table.popitem()


def _drop_streams(tables: _Tables, numbers: set[int]) -> None:
    for number in sorted(numbers):
        prefix = number_key(number)
        tables.delete("streams", prefix)
        tables.delete("tails", prefix)
        for table in ("producers", "keys"):
            owned = []
            for key, _ in tables.writer.scan(table, prefix):
                if not key.startswith(prefix):
                    break
                owned.append(key)
            for key in owned:
                tables.delete(table, key)


# ---- the index and the segments it keeps alive ---------------------------------------------------


def _put_chunks(writer: Writer, cut: Cut, counts: dict[int, int]) -> None:
    for some in _slices(cut.chunks):
        for stream in sorted(some):
            chunk = None if stream in cut.dirty.dropped else cut.chunks[stream]
            while chunk is not None:
                writer.put("index", chunk_key(stream, chunk.first), encode_chunk(stream, chunk))
                counts[chunk.segment] = counts.get(chunk.segment, 0) + 1
                chunk = chunk.older


def _prune(writer: Writer, stream: int, kept: tuple[int, int], counts: dict[int, int]) -> None:
    """Remove the chunks of a stream that hold nothing of the offsets still kept."""
    start, end = kept
    gone = []
    for key, value in writer.scan("index", chunk_key(stream, 0)):
        if split_key(key)[0] != stream:
            break
        chunk = decode_chunk(key, value)
        if chunk.next <= start or chunk.first >= end:
            gone.append(key)
            counts[chunk.segment] = counts.get(chunk.segment, 0) - 1
        elif end == EVERYTHING:
            break
    for key in gone:
        writer.delete("index", key)


def _settle_segments(tables: _Tables, cut: Cut, counts: dict[int, int]) -> set[int]:
    """Update how many chunks live in each segment; find those wholly below the cut with none."""
    dead = set()
    for first, end in cut.segments:
        key = number_key(first)
        sealed = tables.writer.get("segments", key)
        old = 0 if sealed is None else CHUNK_COUNT.unpack(unseal("segments", key, sealed))[0]
        new = old + counts.get(first, 0)
        if new == 0 and end <= cut.lsn:
            dead.add(first)
            tables.delete("segments", key)
        elif new != old or sealed is None:
            tables.put("segments", key, CHUNK_COUNT.pack(new))
    return dead


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


def read_position(view: Reader) -> Position | None:
    """Read where a checkpoint stands; raises BadSeal or DecodeError."""
    sealed = view.get("meta", POSITION_KEY)
    if sealed is None:
        return None
    return msgspec.msgpack.decode(unseal("meta", POSITION_KEY, sealed), type=Position)


def _check_empty(view: Reader) -> None:
    for table in ("meta", *DIGESTED):
        for key, _ in view.scan(table):
            raise BadSeal(table, key)


def _decode(sealed: bytes | None, table: str, key: bytes, row: Any) -> Any:
    if sealed is None:
        raise BadSeal(table, key)
    return msgspec.msgpack.decode(unseal(table, key, sealed), type=row)


def _load_rows(view: Reader, state: State) -> None:
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
    _check_digest(view, "segments", list(view.scan("segments")))


def _rows(view: Reader, table: str, row: Any) -> list[tuple[bytes, Any]]:
    sealed = list(view.scan(table))
    _check_digest(view, table, sealed)
    decode = msgspec.msgpack.Decoder(row).decode
    return [(key, decode(unseal(table, key, value))) for key, value in sealed]


def _check_digest(view: Reader, table: str, sealed: list[tuple[bytes, bytes]]) -> None:
    total = 0
    for _, value in sealed:
        total += seal_of(value)
    if (len(sealed), total % DIGEST_MODULUS) != read_digest(view, table):
        raise CorruptData(f"table {table!r} lost, gained or changed a row", file=FILE_NAME)
