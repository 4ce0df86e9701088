"""Verification of the checkpoint: each row, the references between rows, and the index."""

import struct
from bisect import bisect_right
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
    read_meta,
)
from semel.journal.index import KEY_BYTES, IndexBlock, decode_block, split_key
from semel.journal.segments import segment_name
from semel.journal.store import (
    DIGEST_MODULUS,
    DIGESTED,
    BadSeal,
    StoreReader,
    read_digest,
    seal_of,
    unseal,
)
from semel.journal.txn_history import outcome_key, outcome_owner_key
from semel.journal.verify.report import Progress, Report
from semel.journal.verify.subscriptions import SUBSCRIPTION_TABLES, check_subscriptions
from semel.journal.verify.tables import (
    ACCESS_TABLES,
    GROUP_TABLES,
    check_groups,
    check_owners,
    check_tokens,
    check_topics,
    parts_problem,
)
from semel.machine.rows import (
    NUMBER_KEY,
    OF_STREAM,
    OWNED_KEY,
    PAIR_KEY,
    ChunkBlockRow,
    KeyRow,
    MetaRow,
    OutcomeRow,
    PolicyRow,
    ProducerRow,
    StreamRow,
    TailRow,
    TxnRow,
    TxnStreamRow,
    is_prefix_key,
    is_topic,
)
from semel.machine.state import STATE_TABLES, State, Stream, add_fork
from semel.machine.streams import retained_range
from semel.machine.txn.draft import CHUNK_BYTES, lsns_of
from semel.model.commands import TXN_STAGED
from semel.model.limits import NUMBER_MAX

_PROGRESS_ROWS: Final = 4_096
# The state tables for which it is not enough that their rows can be decoded. The rows of most of
# them refer to each other.
_CHECKED_TOGETHER: Final = (
    ACCESS_TABLES
    | GROUP_TABLES
    | SUBSCRIPTION_TABLES
    | {"streams", "tails", "topics", "policies", "transactions", "txn_streams", "parts"}
)
_NO_TXN: Final = "the row belongs to a transaction that does not exist"


class StoredCheckpoint:
    """The undamaged rows of the checkpoint."""

    def __init__(self) -> None:
        self.position = CheckpointPosition(0, 0, ())
        self.is_readable = False
        self.state = State()
        # For each segment, the keys of the index rows that point into it, joined together.
        self.keys: dict[int, bytearray] = {}

    def label(self, number: int) -> str:
        """Return a text with the stream's number and path, for use in messages."""
        stream = self.state.by_number.get(number)
        return f"stream {number}" if stream is None else f"stream {number} ({stream.row.path})"


class RowCheck:
    """Checks all rows in one view of the store."""

    def __init__(
        self, view: StoreReader, stored: StoredCheckpoint, report: Report, tick: Progress
    ) -> None:
        self._view = view
        self._stored = stored
        self._report = report
        self._tick = tick
        self._retained_from: dict[int, int] = {}
        self._txns: dict[int, TxnRow] = {}
        self._next_tombstone = NUMBER_MAX

    def check(self) -> None:
        """Check all rows, report damage, and collect the undamaged rows as a StoredCheckpoint."""
        self._check_meta()
        self._check_streams()
        check_topics(self._decoded, self._stored.state, self._corrupt)
        for name in STATE_TABLES:
            if name not in _CHECKED_TOGETHER:
                self._check_table(name)
        self._check_policies()
        self._check_txns()
        check_subscriptions(self._decoded, self._stored.state, self._corrupt)
        check_tokens(self._decoded, self._corrupt)
        pending = {txn.id for txn in self._txns.values()}
        check_owners(self._decoded, self._view, pending, self._corrupt)
        self._check_index()
        self._check_segments()

    def _check_table(self, name: str) -> None:
        """Check that all rows of a table can be decoded.

        If the rows belong to streams, also check that these streams exist.
        """
        table = STATE_TABLES[name]
        for key, row in self._decoded(name, table.row):
            if table.owner == OF_STREAM:
                self._check_stream(name, key, OWNED_KEY.decode(key)[0])
            if isinstance(row, ProducerRow | KeyRow):
                problem = parts_problem(self._stored.state, OWNED_KEY.decode(key)[0], row)
                if problem is not None:
                    self._corrupt(name, key, problem)
            if isinstance(row, ProducerRow):
                self._check_tombstone(key, row)

    def _check_tombstone(self, key: bytes, row: ProducerRow) -> None:
        """Check that a tombstone has no more than it keeps, and that nothing else is numbered."""
        if row.tombstone >= self._next_tombstone:
            self._corrupt("producers", key, f"the tombstone has the unused number {row.tombstone}")
        if row.is_expired and (row.receipts or row.expires_ms):
            self._corrupt("producers", key, "a tombstone has receipts or an idle time")
        if row.tombstone and not row.is_expired:
            self._corrupt("producers", key, "a producer that has not ended has a tombstone number")

    def _check_policies(self) -> None:
        for key, row in self._decoded("policies", PolicyRow):
            if not is_prefix_key(key):
                self._corrupt("policies", key, "the key is not a prefix of whole segments")
            if row.dedup is None:
                self._corrupt("policies", key, "the policy sets nothing")

    def _check_stream(self, table: str, key: bytes, number: int) -> None:
        if number not in self._stored.state.by_number:
            self._corrupt(table, key, "the row belongs to a stream that does not exist")

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
            counters = self._meta(COUNTERS_KEY, MetaRow)
            self._next_tombstone = NUMBER_MAX if counters is None else counters.next_tombstone
            if counters is not None:
                self._stored.state.next_stream = counters.next_stream
        elif self._view.get("meta", POSITION_KEY) is None:
            self._stored.is_readable = not any(
                True for name in DIGESTED for _ in self._view.scan(name)
            )
            if not self._stored.is_readable:
                self._corrupt(
                    "meta",
                    POSITION_KEY,
                    "the checkpoint's position is missing, but other tables have rows",
                )

    def _meta(self, key: bytes, row: Any) -> Any:
        try:
            stored = read_meta(self._view, key, row)
        except (BadSeal, msgspec.DecodeError):
            return None
        if stored is None and self._stored.is_readable:
            self._corrupt("meta", key, "the row is missing")
        return stored

    def _unsealed(self, table: str, key: bytes, sealed: bytes) -> bytes | None:
        try:
            return unseal(table, key, sealed)
        except BadSeal:
            self._corrupt(table, key, "the row does not match its checksum")
            return None

    def _sound(self, table: str) -> Iterator[tuple[bytes, bytes]]:
        """Yield a table's rows that match their checksums, and report all other rows.

        If every row matches its checksum, but the table does not match its digest, report that a
        row is missing, surplus or outdated.
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
            self._report.corrupt(
                FILE_NAME, None, f"table {table} has a missing, surplus or outdated row"
            )

    def _decoded(self, table: str, row: Any) -> Iterator[tuple[bytes, Any]]:
        read = msgspec.msgpack.Decoder(row).decode
        for key, value in self._sound(table):
            try:
                decoded = read(value)
            except msgspec.DecodeError as error:
                self._corrupt(table, key, f"the row cannot be decoded: {error}")
            else:
                yield key, decoded

    def _check_streams(self) -> None:
        state = self._stored.state
        tails: dict[bytes, TailRow] = dict(self._decoded("tails", TailRow))
        rows: list[tuple[bytes, StreamRow]] = list(self._decoded("streams", StreamRow))
        for key, row in rows:
            tail = tails.pop(key, None)
            if key != NUMBER_KEY.encode(row.number) or row.path in state.by_path:
                self._corrupt(
                    "streams",
                    key,
                    f"the key is wrong for stream {row.number}, or another stream also has the path"
                    f" {row.path}",
                )
            elif tail is None:
                self._corrupt("tails", key, "the row is missing or damaged")
            else:
                STATE_TABLES["streams"].load(state, row.number, row)
                STATE_TABLES["tails"].load(state, row.number, tail)
        for key in tails:
            self._corrupt("tails", key, "the row belongs to a stream that does not exist")
        for number, stream in state.by_number.items():
            fork = stream.row.fork
            if fork is not None and fork.source in state.by_number:
                add_fork(state.by_number[fork.source], number)
            elif fork is not None:
                self._corrupt(
                    "streams",
                    NUMBER_KEY.encode(number),
                    "the stream is a fork of a stream that does not exist",
                )
        self._report.stream_count = len(state.by_number)

    # ---- the index ------------------------------------------------------------------------------

    def _check_index(self) -> None:
        state = self._stored.state
        indexed: set[int] = set()
        for number, own in groupby(self._index_rows(), key=lambda row: split_key(row[0])[0]):
            indexed.add(number)
            stream = state.by_number.get(number)
            if stream is None:
                self._corrupt(
                    "index",
                    NUMBER_KEY.encode(number),
                    f"{sum(1 for _ in own)} rows belong to a stream that does not exist",
                )
            else:
                self._check_rows_of(stream, own)
        for number, stream in state.by_number.items():
            start, end = self._kept(stream)
            if number not in indexed and start < end:
                self._hole(stream, start, end)

    def _index_rows(self) -> Iterator[tuple[bytes, bytes]]:
        for key, sealed in self._view.scan("index"):
            if len(key) == KEY_BYTES:
                yield key, sealed
            else:
                self._corrupt("index", key, "the key is invalid")

    def _kept(self, stream: Stream) -> tuple[int, int]:
        """Return the range of offsets that the index must contain for a stream.

        For a fork, the range does not include the offsets that are read from its source.
        """
        if is_topic(stream.row):
            return 0, 0  # its tail counts messages, which are in its partitions
        own = 0 if stream.row.fork is None else stream.row.fork.start
        start, end = retained_range(self._stored.state, stream, self._retained_from)
        return max(own, start), min(end, stream.tail.tail)

    def _check_rows_of(self, stream: Stream, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Check that a stream's index blocks contain every retained offset exactly once."""
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
        if expected is not None and not end <= expected <= stream.tail.tail:
            self._hole(stream, expected, end)

    def _hole(self, stream: Stream, start: int, stop: int) -> None:
        what = "the index lacks offsets" if start < stop else "the index repeats offsets"
        first, last = min(start, stop), max(start, stop) - 1
        label = self._stored.label(stream.row.number)
        self._report.corrupt(FILE_NAME, None, f"{label}: {what} {first} to {last}")

    def _block(self, key: bytes, sealed: bytes) -> IndexBlock | None:
        try:
            block = decode_block(key, sealed)
        except (BadSeal, struct.error):
            self._corrupt("index", key, f"{self._index_label(key)} does not match its checksum")
            return None
        offsets, durable = block.offsets, self._stored.position.lsn
        is_orderly = (
            bool(offsets)
            and offsets[0] == 0
            and all(a < b for a, b in pairwise(offsets))
            and block.first + offsets[-1] < block.next
            # A checkpoint contains only durable frames.
            and not (self._stored.is_readable and block.segment + block.positions[-1] >= durable)
        )
        if not is_orderly:
            self._corrupt("index", key, f"{self._index_label(key)} has invalid entries")
            return None
        return block

    def _index_label(self, key: bytes) -> str:
        number, first = split_key(key)
        return f"the index block of {self._stored.label(number)} from offset {first}"

    def _check_segments(self) -> None:
        """Check the list of segments in the checkpoint.

        If an index row points into a segment, the segment must be listed. For each segment, the
        checkpoint also stores how many index rows point into it. This number must be correct.
        """
        counted = {
            int.from_bytes(key, "big"): BLOCK_COUNT.unpack(value)[0]
            for key, value in self._sound("segments")
        }
        if not self._stored.is_readable:
            return
        listed = {first for first, _ in self._stored.position.segments}
        counts = {first: len(keys) // KEY_BYTES for first, keys in self._stored.keys.items()}
        for first in sorted(listed | counted.keys() | counts.keys()):
            count = counts.get(first, 0)
            if first not in listed:
                self._report.corrupt(
                    segment_name(first),
                    None,
                    f"{count} index rows point into this segment, but the checkpoint does not list"
                    " this segment",
                )
            elif counted.get(first) != count and self._report.is_sound:
                self._corrupt(
                    "segments",
                    NUMBER_KEY.encode(first),
                    f"{count} index rows point into {segment_name(first)}"
                    f", but the stored number of these rows is {counted.get(first)}",
                )

    # ---- transactions, groups and sinks, and the transaction history -----------------------------

    def _check_txns(self) -> None:
        for key, row in self._decoded("transactions", TxnRow):
            if key != NUMBER_KEY.encode(row.number):
                self._corrupt("transactions", key, f"the key is wrong for transaction {row.number}")
            self._txns[row.number] = row
        self._check_txn_streams()
        self._check_parts()
        state = self._stored.state
        check_groups(self._decoded, state, self._txns.values(), self._corrupt)
        self._check_outcomes()
        self._check_aborted()

    def _check_txn_streams(self) -> None:
        for key, _ in self._decoded("txn_streams", TxnStreamRow):
            txn_number, number = PAIR_KEY.decode(key)
            if txn_number not in self._txns:
                self._corrupt("txn_streams", key, _NO_TXN)
            self._check_stream("txn_streams", key, number)

    def _check_parts(self) -> None:
        """Check the chunk blocks. A chunk block is a stored list of chunks of one transaction.

        A transaction's block numbers must have no gap. If the transaction is staged, the checkpoint
        must list the segments that contain its chunks.
        """
        spans = self._stored.position.segments
        firsts = [first for first, _ in spans]
        blocks: dict[int, int] = {}
        for key, row in self._decoded("parts", ChunkBlockRow):
            number, block = PAIR_KEY.decode(key)
            txn = self._txns.get(number)
            if txn is None:
                self._corrupt("parts", key, _NO_TXN)
                continue
            if block != blocks.get(number, 0) or len(row.packed) % CHUNK_BYTES:
                self._corrupt(
                    "parts",
                    key,
                    "a block is missing before this block, or this block has a wrong size",
                )
            blocks[number] = block + 1
            if txn.kind == TXN_STAGED and self._stored.is_readable:
                for lsn in sorted(lsns_of(row.packed)):
                    at = bisect_right(firsts, lsn) - 1
                    if at < 0 or not lsn < min(spans[at][1], self._stored.position.lsn):
                        self._corrupt("parts", key, f"no segment contains the chunk at LSN {lsn}")

    def _check_outcomes(self) -> None:
        """Check that every outcome has a row in `outcome_order` and one in `outcome_owners`."""
        count = 0
        for key, row in self._decoded("outcomes", OutcomeRow):
            count += 1
            if key != outcome_key(row.outcome.id, row.outcome.epoch):
                self._corrupt("outcomes", key, "the row belongs to a different transaction")
            for table, name in (
                ("outcome_order", NUMBER_KEY.encode(row.number)),
                ("outcome_owners", outcome_owner_key(row)),
            ):
                if self._view.get(table, name) is None:
                    self._corrupt(table, name, "the row is missing")
        for table in ("outcome_order", "outcome_owners"):
            row_count = sum(1 for _ in self._sound(table))
            if row_count != count:
                self._corrupt(
                    table,
                    PAIR_KEY.encode((row_count, count)),
                    f"the table has {row_count} rows, but there are {count} outcomes",
                )

    def _check_aborted(self) -> None:
        """Check the aborted ranges of all streams.

        The ranges of a stream must be in order, must not overlap, and must not extend past the
        stream's tail. They can extend past its stable offset: an earlier transaction may be
        pending.
        """
        last = (-1, 0)
        for key, value in self._sound("aborted"):
            try:
                number, first = PAIR_KEY.decode(key)
                end = NUMBER_KEY.decode(value)
            except struct.error:
                self._corrupt("aborted", key, "the row cannot be decoded")
                continue
            self._check_stream("aborted", key, number)
            stream = self._stored.state.by_number.get(number)
            previous_end = last[1] if last[0] == number else 0
            if not previous_end <= first < end or (stream is not None and end > stream.tail.tail):
                self._corrupt(
                    "aborted", key, f"the aborted offsets {first} to {end - 1} are invalid"
                )
            last = (number, end)
