"""Verifying the rows of transactions, groups and sinks, and the transaction history."""

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Any, Final

from semel.journal.store import StoreReader
from semel.journal.txn_history import outcome_key, owner_key, pack_end, split_range_key, unpack_end
from semel.journal.verify.report import StoredCheckpoint
from semel.machine.rows import (
    NUMBER_KEY,
    OWNED_KEY,
    PAIR_KEY,
    ChunkBlockRow,
    OutcomeRow,
    PositionRow,
    TxnRow,
    TxnStreamRow,
)
from semel.machine.txn.draft import CHUNK_BYTES, lsns_of
from semel.model.commands import TXN_STAGED

# The tables of the state that need more than a check row by row.
CHECKED_HERE: Final = ("transactions", "txn_streams", "parts", "positions")
_NO_TXN: Final = "belongs to a transaction that is not there"


class TxnRowCheck:
    """Checks the rows of one view of the store.

    `sound` yields the rows of a table that have their checksum, `decoded` those that are also of
    the given type; both report the others. `corrupt` reports a row.
    """

    def __init__(
        self,
        view: StoreReader,
        stored: StoredCheckpoint,
        sound: Callable[[str], Iterator[tuple[bytes, bytes]]],
        decoded: Callable[[str, Any], Iterator[tuple[bytes, Any]]],
        corrupt: Callable[[str, bytes, str], None],
    ) -> None:
        self._view = view
        self._stored = stored
        self._sound = sound
        self._decoded = decoded
        self._corrupt = corrupt
        self._txns: dict[int, TxnRow] = {}

    def check(self) -> None:
        """Check all of them and report damage."""
        for key, row in self._decoded("transactions", TxnRow):
            if key != NUMBER_KEY.encode(row.number):
                self._corrupt("transactions", key, f"is transaction {row.number} once more")
            self._txns[row.number] = row
        self._check_streams()
        self._check_parts()
        self._check_positions()
        self._check_outcomes()
        self._check_aborted()

    def _check_stream(self, table: str, key: bytes, number: int) -> None:
        if number not in self._stored.state.by_number:
            self._corrupt(table, key, "belongs to a stream that is not there")

    def _check_streams(self) -> None:
        for key, _ in self._decoded("txn_streams", TxnStreamRow):
            txn_number, number = PAIR_KEY.decode(key)
            if txn_number not in self._txns:
                self._corrupt("txn_streams", key, _NO_TXN)
            self._check_stream("txn_streams", key, number)

    def _check_positions(self) -> None:
        """Check that no transaction names a version of a position that it never had."""
        versions: dict[bytes, int] = {}
        for key, row in self._decoded("positions", PositionRow):
            self._check_stream("positions", key, OWNED_KEY.decode(key)[0])
            versions[key] = row.version
        for txn in self._txns.values():
            key = NUMBER_KEY.encode(txn.number)
            for named in txn.positions:
                self._check_stream("transactions", key, named.stream)
                stored = versions.get(OWNED_KEY.encode((named.stream, named.group)), 0)
                if named.guard > stored:
                    message = f"names version {named.guard} of a position that has {stored}"
                    self._corrupt("transactions", key, message)

    def _check_parts(self) -> None:
        """Check that the chunk blocks of a transaction have no gap, and that its chunks exist."""
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
                self._corrupt("parts", key, "does not follow the block before it")
            blocks[number] = block + 1
            if txn.kind == TXN_STAGED and self._stored.is_readable:
                for lsn in sorted(lsns_of(row.packed)):
                    at = bisect_right(firsts, lsn) - 1
                    if at < 0 or not lsn < min(spans[at][1], self._stored.position.lsn):
                        self._corrupt("parts", key, f"no segment holds its chunk at {lsn}")

    def _check_outcomes(self) -> None:
        """Check that every outcome is found by its id, by time and by owner."""
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
            row_count = sum(1 for _ in self._sound(table))
            if row_count != count:
                message = f"{row_count} rows for {count} outcomes"
                self._corrupt(table, PAIR_KEY.encode((row_count, count)), message)

    def _check_aborted(self) -> None:
        """Check that the aborted ranges of a stream are within it, in order and without overlap."""
        last = (-1, 0)
        for key, value in self._sound("aborted"):
            try:
                number, first = split_range_key(key)
                end = unpack_end(value)
            except struct.error:
                self._corrupt("aborted", key, "does not decode")
                continue
            self._check_stream("aborted", key, number)
            stream = self._stored.state.by_number.get(number)
            previous_end = last[1] if last[0] == number else 0
            if not previous_end <= first < end or (stream is not None and end > stream.tail.stable):
                self._corrupt("aborted", key, f"offsets {first} to {end - 1} are out of order")
            last = (number, end)
