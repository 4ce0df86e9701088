"""Verifying the checkpoint: each row by itself, the rows among each other, the index as a whole."""

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby, pairwise
from typing import Any, Final

import msgspec

from semel.journal.checkpoint import (
    CHUNK_COUNT,
    COUNTERS_KEY,
    FILE_NAME,
    POSITION_KEY,
    CheckpointPosition,
    number_key,
    owned_key,
    pair_key,
    split_owned,
    split_pair,
)
from semel.journal.findings import Progress, Report, StreamLabels
from semel.journal.identity import BadSeal, seal_of, unseal
from semel.journal.index import KEY_BYTES, IndexBlock, decode_block, split_key
from semel.journal.segments import segment_name
from semel.journal.store import StoreReader
from semel.journal.tables import DIGEST_MODULUS, DIGESTED, read_digest
from semel.journal.txn_history import outcome_key, owner_key, pack_end, split_range_key, unpack_end
from semel.machine.rows import (
    ChunkBlockRow,
    KeyRow,
    MetaRow,
    OutcomeRow,
    PositionRow,
    ProducerRow,
    RegistryRow,
    SinkRow,
    SnapshotRow,
    StreamRow,
    TailRow,
    TxnRow,
    TxnStreamRow,
)
from semel.machine.state import Stream, add_fork, retained_range
from semel.machine.txn.chunk_list import CHUNK_BYTES, lsns_of
from semel.model.transactions import TXN_STAGED

_PROGRESS_ROWS: Final = 4_096
_OWNED: Final[dict[str, type]] = {"producers": ProducerRow, "keys": KeyRow}


class RowCheck:
    """Checks the rows of one view."""

    def __init__(
        self, view: StoreReader, known: StreamLabels, report: Report, tick: Progress
    ) -> None:
        self._view = view
        self._known = known
        self._report = report
        self._tick = tick
        self._kept_from: dict[int, int] = {}

    def check(self) -> None:
        """Check all of it; `known` holds what can be believed afterwards."""
        self._check_meta()
        self._check_streams()
        for table, row in _OWNED.items():
            for key, _ in self._decoded(table, row):
                if split_owned(key)[0] not in self._known.state.by_number:
                    self._corrupt(table, key, "belongs to a stream that is not there")
        for _ in self._decoded("registry", RegistryRow):
            pass
        TxnRowCheck(self._view, self._known, self._sound, self._corrupt).check()
        self._check_index()
        self._check_segments()

    def _corrupt(self, table: str, key: bytes, message: str) -> None:
        self._report.corrupt(FILE_NAME, None, f"table {table}, row {key.hex()}: {message}")

    def _check_meta(self) -> None:
        known = self._known
        for key, sealed in self._view.scan("meta"):
            self._report.row_count += 1
            self._unsealed("meta", key, sealed)
        position = self._meta(POSITION_KEY, CheckpointPosition)
        if position is not None:
            known.position, known.is_readable = position, True
            self._report.checkpoint_lsn = position.lsn
            self._meta(COUNTERS_KEY, MetaRow)
        elif self._view.get("meta", POSITION_KEY) is None:
            known.is_readable = not any(True for t in DIGESTED for _ in self._view.scan(t))
            if not known.is_readable:
                self._corrupt("meta", POSITION_KEY, "is missing, though there are other rows")

    def _meta(self, key: bytes, row: Any) -> Any:
        sealed = self._view.get("meta", key)
        if sealed is None:
            if self._known.is_readable:
                self._corrupt("meta", key, "is missing")
            return None
        try:
            return msgspec.msgpack.decode(unseal("meta", key, sealed), type=row)
        except (BadSeal, msgspec.DecodeError):
            return None

    def _unsealed(self, table: str, key: bytes, sealed: bytes) -> bytes | None:
        try:
            return unseal(table, key, sealed)
        except BadSeal:
            self._corrupt(table, key, "fails its checksum")
            return None

    def _sound(self, table: str) -> Iterator[tuple[bytes, bytes]]:
        """Walk a table's rows; the digest tells of one that is lost, too old or too many."""
        count = total = bad = 0
        for key, sealed in self._view.scan(table):
            count += 1
            total += seal_of(sealed)
            if count % _PROGRESS_ROWS == 0:
                self._tick(f"table {table}", count, 0)
            value = self._unsealed(table, key, sealed)
            if value is None:
                bad += 1
            else:
                yield key, value
        self._report.row_count += count
        try:
            is_right = read_digest(self._view, table) == (count, total % DIGEST_MODULUS)
        except (BadSeal, struct.error):
            return  # the meta row was reported already
        if not (is_right or bad):
            self._report.corrupt(FILE_NAME, None, f"table {table} lost, gained or kept an old row")

    def _decoded(self, table: str, row: Any) -> Iterator[tuple[bytes, Any]]:
        read = msgspec.msgpack.Decoder(row).decode
        for key, value in self._sound(table):
            try:
                decoded = read(value)
            except msgspec.DecodeError as error:
                self._corrupt(table, key, f"does not decode: {error}")
            else:
                yield key, decoded

    def _check_streams(self) -> None:
        state = self._known.state
        tails: dict[bytes, TailRow] = dict(self._decoded("tails", TailRow))
        rows: list[tuple[bytes, StreamRow]] = list(self._decoded("streams", StreamRow))
        for key, row in rows:
            tail = tails.pop(key, None)
            if key != number_key(row.number) or row.path in state.by_path:
                self._corrupt("streams", key, f"is stream {row.number} ({row.path}) once more")
            elif tail is None:
                self._corrupt("tails", key, "is missing or damaged")
            else:
                state.load_stream(row, tail)
        for key in tails:
            self._corrupt("tails", key, "belongs to a stream that is not there")
        for number, stream in state.by_number.items():
            fork = stream.row.fork
            if fork is not None and fork.source in state.by_number:
                add_fork(state.by_number[fork.source], number)
            elif fork is not None:
                self._corrupt("streams", number_key(number), "forks a stream that is not there")
        self._report.stream_count = len(state.by_number)

    # ---- the index ------------------------------------------------------------------------------

    def _check_index(self) -> None:
        state = self._known.state
        indexed: set[int] = set()
        rows = self._view.scan("index")
        for number, own in groupby(rows, key=lambda row: split_key(row[0])[0]):
            indexed.add(number)
            stream = state.by_number.get(number)
            if stream is None:
                count = sum(1 for _ in own)
                self._corrupt("index", number_key(number), f"{count} rows of an unknown stream")
            else:
                self._check_rows_of(stream, own)
        for number, stream in state.by_number.items():
            start, end = self._kept(stream)
            if number not in indexed and start < end:
                self._hole(stream, start, end)

    def _kept(self, stream: Stream) -> tuple[int, int]:
        """Find the offsets a stream must still have of its own."""
        own = 0 if stream.row.fork is None else stream.row.fork.start
        start, end = retained_range(self._known.state, stream, self._kept_from)
        return max(own, start), min(end, stream.tail.tail)

    def _check_rows_of(self, stream: Stream, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Check that a stream's chunks join, from what it keeps up to its tail."""
        floor, end = self._kept(stream)
        expected: int | None = None
        is_first = True
        for key, sealed in rows:
            self._report.index_row_count += 1
            if self._report.index_row_count % _PROGRESS_ROWS == 0:
                self._tick("table index", self._report.index_row_count, 0)
            chunk = self._chunk(key, sealed)
            if chunk is None:
                expected, is_first = None, False
                continue
            wanted = min(chunk.first, floor) if is_first else expected
            if wanted is not None and chunk.first != wanted:
                self._hole(stream, wanted, chunk.first)
            expected, is_first = chunk.next, False
            self._known.keys.setdefault(chunk.segment, bytearray()).extend(key)
        is_short = expected is not None and expected < end
        is_long = expected is not None and expected > stream.tail.tail
        if expected is not None and (is_short or is_long):
            self._hole(stream, expected, end)

    def _hole(self, stream: Stream, start: int, stop: int) -> None:
        what = "the index has nothing for" if start < stop else "the index goes back over"
        first, last = min(start, stop), max(start, stop) - 1
        label = self._known.label(stream.row.number)
        self._report.corrupt(FILE_NAME, None, f"{label}: {what} offsets {first} to {last}")

    def _chunk(self, key: bytes, sealed: bytes) -> IndexBlock | None:
        try:
            chunk = decode_block(key, sealed)
        except (BadSeal, struct.error):
            self._corrupt("index", key, f"{self._index_label(key)} fails its checksum")
            return None
        offsets, positions = chunk.offsets, chunk.positions
        is_orderly = (
            bool(offsets)
            and offsets[0] == 0
            and all(a < b for a, b in pairwise(offsets))
            and chunk.first + offsets[-1] < chunk.next
        )
        if self._known.is_readable and is_orderly:
            # Only what is durable is ever in a checkpoint.
            is_orderly = chunk.segment + positions[-1] < self._known.position.lsn
        if not is_orderly:
            self._corrupt("index", key, f"{self._index_label(key)} is out of order")
            return None
        return chunk

    def _index_label(self, key: bytes) -> str:
        number, first = split_key(key)
        return f"{self._known.label(number)} from offset {first}"

    def _check_segments(self) -> None:
        """Check how many index rows each segment is said to have, and that all are listed."""
        counted = {}
        for key, value in self._sound("segments"):
            counted[int.from_bytes(key, "big")] = CHUNK_COUNT.unpack(value)[0]
        if not self._known.is_readable:
            return
        listed = {first for first, _ in self._known.position.segments}
        found = {first: len(keys) // KEY_BYTES for first, keys in self._known.keys.items()}
        for first in sorted(listed | counted.keys() | found.keys()):
            count = found.get(first, 0)
            if first not in listed:
                message = f"{count} index rows point into it, but the checkpoint does not list it"
                self._report.corrupt(segment_name(first), None, message)
            elif counted.get(first) != count and self._report.is_sound:
                message = f"should have {counted.get(first)} index rows and has {count}"
                self._corrupt("segments", number_key(first), f"{segment_name(first)} {message}")


# ---- verify txns ---------------------------------------------------------------------------------
# Verifying the rows of transactions, groups and sinks, and what transactions left behind.


Rows = Callable[[str], Iterator[tuple[bytes, bytes]]]
Corrupt = Callable[[str, bytes, str], None]

_GONE: Final = "belongs to a transaction that is not there"


class TxnRowCheck:
    """Checks the rows of one view; `rows` walks a table's sound rows, `corrupt` reports."""

    def __init__(
        self, view: StoreReader, known: StreamLabels, rows: Rows, corrupt: Corrupt
    ) -> None:
        self._view = view
        self._known = known
        self._rows = rows
        self._corrupt = corrupt
        self._txns: dict[int, TxnRow] = {}

    def check(self) -> None:
        """Check all of them."""
        for key, row in self._decoded("transactions", TxnRow):
            if key != number_key(row.number):
                self._corrupt("transactions", key, f"is transaction {row.number} once more")
            self._txns[row.number] = row
        self._check_streams()
        self._check_parts()
        self._check_positions()
        for table, kind in (("snapshots", SnapshotRow), ("sinks", SinkRow)):
            for _ in self._decoded(table, kind):
                pass
        self._check_outcomes()
        self._check_aborted()

    def _decoded(self, table: str, kind: Any) -> Iterator[tuple[bytes, Any]]:
        read = msgspec.msgpack.Decoder(kind).decode
        for key, value in self._rows(table):
            try:
                row = read(value)
            except msgspec.DecodeError as error:
                self._corrupt(table, key, f"does not decode: {error}")
            else:
                yield key, row

    def _check_stream(self, table: str, key: bytes, number: int) -> None:
        if number not in self._known.state.by_number:
            self._corrupt(table, key, "belongs to a stream that is not there")

    def _check_streams(self) -> None:
        for key, _ in self._decoded("txn_streams", TxnStreamRow):
            txn_number, number = split_pair(key)
            if txn_number not in self._txns:
                self._corrupt("txn_streams", key, _GONE)
            self._check_stream("txn_streams", key, number)

    def _check_positions(self) -> None:
        """Check that what transactions name was there to be named."""
        versions: dict[bytes, int] = {}
        for key, row in self._decoded("positions", PositionRow):
            self._check_stream("positions", key, split_owned(key)[0])
            versions[key] = row.version
        for txn in self._txns.values():
            key = number_key(txn.number)
            for named in txn.positions:
                self._check_stream("transactions", key, named.stream)
                stored = versions.get(owned_key(named.stream, named.group), 0)
                if named.guard > stored:
                    message = f"names version {named.guard} of a position that has {stored}"
                    self._corrupt("transactions", key, message)

    def _check_parts(self) -> None:
        """Check that the pages of a transaction join, and that its chunks are still there."""
        spans = self._known.position.segments
        firsts = [first for first, _ in spans]
        pages: dict[int, int] = {}
        for key, row in self._decoded("parts", ChunkBlockRow):
            number, page = split_pair(key)
            txn = self._txns.get(number)
            if txn is None:
                self._corrupt("parts", key, _GONE)
                continue
            if page != pages.get(number, 0) or len(row.packed) % CHUNK_BYTES:
                self._corrupt("parts", key, "does not follow the page before it")
            pages[number] = page + 1
            if txn.kind == TXN_STAGED and self._known.is_readable:
                for place in sorted(lsns_of(row.packed)):
                    at = bisect_right(firsts, place) - 1
                    if at < 0 or not place < min(spans[at][1], self._known.position.lsn):
                        self._corrupt("parts", key, f"no segment holds its chunk at {place}")

    def _check_outcomes(self) -> None:
        """Check that every outcome is found by its id, its time and its owner, and back."""
        count = 0
        for key, row in self._decoded("outcomes", OutcomeRow):
            count += 1
            if key != outcome_key(row.outcome.id, row.outcome.epoch):
                self._corrupt("outcomes", key, "is another transaction's")
            for table, name in (
                ("outcome_order", pack_end(row.number)),
                ("outcome_owners", owner_key(row)),
            ):
                if self._view.get(table, name) is None:
                    self._corrupt(table, name, "is missing")
        for table in ("outcome_order", "outcome_owners"):
            found = sum(1 for _ in self._rows(table))
            if found != count:
                message = f"{found} rows for {count} outcomes"
                self._corrupt(table, pair_key((found, count)), message)

    def _check_aborted(self) -> None:
        """Check that aborted ranges lie within their streams, one behind the other."""
        last = (-1, 0)
        for key, value in self._rows("aborted"):
            try:
                number, first = split_range_key(key)
                end = unpack_end(value)
            except struct.error:
                self._corrupt("aborted", key, "does not decode")
                continue
            self._check_stream("aborted", key, number)
            stream = self._known.state.by_number.get(number)
            floor = last[1] if last[0] == number else 0
            if not floor <= first < end or (stream is not None and end > stream.tail.stable):
                self._corrupt("aborted", key, f"offsets {first} to {end - 1} are out of order")
            last = (number, end)
