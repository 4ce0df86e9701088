"""Verifying the rows of transactions, groups and sinks, and what transactions left behind."""

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from semel.journal.checkpoint import number_key, owned_key, pair_key, split_owned, split_pair
from semel.journal.findings import Known
from semel.journal.memory import outcome_key, owner_key, pack_end, split_range_key, unpack_end
from semel.journal.store import Reader
from semel.machine.parts import PART_BYTES, places_of
from semel.machine.txn_rows import (
    OutcomeRow,
    PartsRow,
    PositionRow,
    SinkRow,
    SnapshotRow,
    TxnRow,
    TxnStreamRow,
)
from semel.model.transactions import STAGED

Rows = Callable[[str], Iterator[tuple[bytes, bytes]]]
Corrupt = Callable[[str, bytes, str], None]

_GONE: Final = "belongs to a transaction that is not there"


class TxnRowCheck:
    """Checks the rows of one view; `rows` walks a table's sound rows, `corrupt` reports."""

    def __init__(self, view: Reader, known: Known, rows: Rows, corrupt: Corrupt) -> None:
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
        for key, row in self._decoded("parts", PartsRow):
            number, page = split_pair(key)
            txn = self._txns.get(number)
            if txn is None:
                self._corrupt("parts", key, _GONE)
                continue
            if page != pages.get(number, 0) or len(row.packed) % PART_BYTES:
                self._corrupt("parts", key, "does not follow the page before it")
            pages[number] = page + 1
            if txn.kind == STAGED and self._known.is_readable:
                for place in sorted(places_of(row.packed)):
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
