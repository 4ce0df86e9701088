"""Verifying the checkpoint: each row by itself, the rows among each other, the index as a whole."""

import struct
from collections.abc import Iterable, Iterator
from itertools import groupby, pairwise
from typing import Any, Final

import msgspec

from semel.journal.checkpoint import (
    BLOCK_COUNT,
    COUNTERS_KEY,
    FILE_NAME,
    POSITION_KEY,
    CheckpointPosition,
)
from semel.journal.identity import BadSeal, seal_of, unseal
from semel.journal.index import KEY_BYTES, IndexBlock, decode_block, split_key
from semel.journal.segments import segment_name
from semel.journal.store import DIGESTED, StoreReader
from semel.journal.tables import DIGEST_MODULUS, read_digest
from semel.journal.verify.report import Progress, Report, StoredCheckpoint
from semel.journal.verify.transactions import CHECKED_HERE, TxnRowCheck
from semel.machine.rows import NUMBER_KEY, OF_STREAM, OWNED_KEY, MetaRow, StreamRow, TailRow
from semel.machine.state import STATE_TABLES, Stream, add_fork
from semel.machine.streams import retained_range

_PROGRESS_ROWS: Final = 4_096


class RowCheck:
    """Checks the rows of one view of the store."""

    def __init__(
        self, view: StoreReader, stored: StoredCheckpoint, report: Report, tick: Progress
    ) -> None:
        self._view = view
        self._stored = stored
        self._report = report
        self._tick = tick
        self._retained_from: dict[int, int] = {}

    def check(self) -> None:
        """Check all rows and report damage; `stored` holds afterwards what can be trusted."""
        self._check_meta()
        self._check_streams()
        for name in STATE_TABLES:
            if name not in ("streams", "tails", *CHECKED_HERE):
                self._check_table(name)
        TxnRowCheck(self._view, self._stored, self._sound, self._decoded, self._corrupt).check()
        self._check_index()
        self._check_segments()

    def _check_table(self, name: str) -> None:
        """Check that the rows of a table decode, and that the streams they belong to exist."""
        table = STATE_TABLES[name]
        for key, _ in self._decoded(name, table.row):
            if table.owner == OF_STREAM:
                number = OWNED_KEY.decode(key)[0]
                if number not in self._stored.state.by_number:
                    self._corrupt(name, key, "belongs to a stream that is not there")

    def _corrupt(self, table: str, key: bytes, message: str) -> None:
        self._report.corrupt(FILE_NAME, None, f"table {table}, row {key.hex()}: {message}")

    def _check_meta(self) -> None:
        for key, sealed in self._view.scan("meta"):
            self._report.row_count += 1
            self._unsealed("meta", key, sealed)
        position = self._meta(POSITION_KEY, CheckpointPosition)
        if position is not None:
            self._stored.position, self._stored.is_readable = position, True
            self._report.checkpoint_lsn = position.lsn
            self._meta(COUNTERS_KEY, MetaRow)
        elif self._view.get("meta", POSITION_KEY) is None:
            self._stored.is_readable = not any(
                True for name in DIGESTED for _ in self._view.scan(name)
            )
            if not self._stored.is_readable:
                self._corrupt("meta", POSITION_KEY, "is missing, though there are other rows")

    def _meta(self, key: bytes, row: Any) -> Any:
        sealed = self._view.get("meta", key)
        if sealed is None:
            if self._stored.is_readable:
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
        """Yield the rows of a table that have their checksum; report the others.

        At the end the digest shows whether a row is missing, outdated or surplus.
        """
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
        state = self._stored.state
        tails: dict[bytes, TailRow] = dict(self._decoded("tails", TailRow))
        rows: list[tuple[bytes, StreamRow]] = list(self._decoded("streams", StreamRow))
        for key, row in rows:
            tail = tails.pop(key, None)
            if key != NUMBER_KEY.encode(row.number) or row.path in state.by_path:
                self._corrupt("streams", key, f"is stream {row.number} ({row.path}) once more")
            elif tail is None:
                self._corrupt("tails", key, "is missing or damaged")
            else:
                STATE_TABLES["streams"].load(state, row.number, row)
                STATE_TABLES["tails"].load(state, row.number, tail)
        for key in tails:
            self._corrupt("tails", key, "belongs to a stream that is not there")
        for number, stream in state.by_number.items():
            fork = stream.row.fork
            if fork is not None and fork.source in state.by_number:
                add_fork(state.by_number[fork.source], number)
            elif fork is not None:
                self._corrupt(
                    "streams", NUMBER_KEY.encode(number), "forks a stream that is not there"
                )
        self._report.stream_count = len(state.by_number)

    # ---- the index ------------------------------------------------------------------------------

    def _check_index(self) -> None:
        state = self._stored.state
        indexed: set[int] = set()
        rows = self._view.scan("index")
        for number, own in groupby(rows, key=lambda row: split_key(row[0])[0]):
            indexed.add(number)
            stream = state.by_number.get(number)
            if stream is None:
                count = sum(1 for _ in own)
                self._corrupt(
                    "index", NUMBER_KEY.encode(number), f"{count} rows of an unknown stream"
                )
            else:
                self._check_rows_of(stream, own)
        for number, stream in state.by_number.items():
            start, end = self._kept(stream)
            if number not in indexed and start < end:
                self._hole(stream, start, end)

    def _kept(self, stream: Stream) -> tuple[int, int]:
        """Return the offsets that a stream itself must still have."""
        own = 0 if stream.row.fork is None else stream.row.fork.start
        start, end = retained_range(self._stored.state, stream, self._retained_from)
        return max(own, start), min(end, stream.tail.tail)

    def _check_rows_of(self, stream: Stream, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Check that the index blocks of a stream cover what it keeps, without a gap."""
        retained, end = self._kept(stream)
        expected: int | None = None
        is_first = True
        for key, sealed in rows:
            self._report.index_row_count += 1
            if self._report.index_row_count % _PROGRESS_ROWS == 0:
                self._tick("table index", self._report.index_row_count, 0)
            block = self._block(key, sealed)
            if block is None:
                expected, is_first = None, False
                continue
            start = min(block.first, retained) if is_first else expected
            if start is not None and block.first != start:
                self._hole(stream, start, block.first)
            expected, is_first = block.next, False
            self._stored.keys.setdefault(block.segment, bytearray()).extend(key)
        is_short = expected is not None and expected < end
        is_long = expected is not None and expected > stream.tail.tail
        if expected is not None and (is_short or is_long):
            self._hole(stream, expected, end)

    def _hole(self, stream: Stream, start: int, stop: int) -> None:
        what = "the index has nothing for" if start < stop else "the index goes back over"
        first, last = min(start, stop), max(start, stop) - 1
        label = self._stored.label(stream.row.number)
        self._report.corrupt(FILE_NAME, None, f"{label}: {what} offsets {first} to {last}")

    def _block(self, key: bytes, sealed: bytes) -> IndexBlock | None:
        try:
            block = decode_block(key, sealed)
        except (BadSeal, struct.error):
            self._corrupt("index", key, f"{self._index_label(key)} fails its checksum")
            return None
        offsets, positions = block.offsets, block.positions
        is_orderly = (
            bool(offsets)
            and offsets[0] == 0
            and all(a < b for a, b in pairwise(offsets))
            and block.first + offsets[-1] < block.next
        )
        if self._stored.is_readable and is_orderly:
            # Only what is durable is in a checkpoint.
            is_orderly = block.segment + positions[-1] < self._stored.position.lsn
        if not is_orderly:
            self._corrupt("index", key, f"{self._index_label(key)} is out of order")
            return None
        return block

    def _index_label(self, key: bytes) -> str:
        number, first = split_key(key)
        return f"{self._stored.label(number)} from offset {first}"

    def _check_segments(self) -> None:
        """Check the stored number of index rows of each segment, and that all are listed."""
        counted = {}
        for key, value in self._sound("segments"):
            counted[int.from_bytes(key, "big")] = BLOCK_COUNT.unpack(value)[0]
        if not self._stored.is_readable:
            return
        listed = {first for first, _ in self._stored.position.segments}
        counts = {first: len(keys) // KEY_BYTES for first, keys in self._stored.keys.items()}
        for first in sorted(listed | counted.keys() | counts.keys()):
            count = counts.get(first, 0)
            if first not in listed:
                message = f"{count} index rows point into it, but the checkpoint does not list it"
                self._report.corrupt(segment_name(first), None, message)
            elif counted.get(first) != count and self._report.is_sound:
                message = f"should have {counted.get(first)} index rows and has {count}"
                self._corrupt(
                    "segments", NUMBER_KEY.encode(first), f"{segment_name(first)} {message}"
                )
