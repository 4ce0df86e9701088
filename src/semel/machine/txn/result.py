"""The result of a commit, computed from its frame: the same live and in recovery."""

from collections.abc import Iterable
from typing import Final

import msgspec

from semel.machine.events import SECTION_DATA, Decided, Ended, Section
from semel.machine.rows import TxnRow
from semel.machine.state import State, Txn
from semel.machine.txn.draft import extents_of
from semel.model.commands import PositionResult, StreamResult, TxnResult
from semel.model.limits import RESULTS_BYTES_MAX, RESULTS_KEPT

Extents = Iterable[tuple[int, int, int, int]]
Moves = Iterable[tuple[str, int, int]]


def result_of(state: State, txn: Txn, ended: Ended, extents: Extents) -> TxnResult:
    """Return the result of the end of one transaction; `extents` are those of its chunks."""
    if not ended.is_committed:
        return TxnResult(deleted=deleted_of(txn.row))
    spans = {number: (txn.streams[number].first, at + 1) for number, at in ended.markers}
    counts = {number: txn.streams[number].messages for number in spans}
    for number, first, end in _joined((stream, base, count) for _, stream, base, count in extents):
        spans[number], counts[number] = (first, end), end - first
    return TxnResult(
        _sorted(
            StreamResult(state.by_number[number].row.path, *span, counts[number])
            for number, span in spans.items()
        ),
        _positions(state, _moves_of(txn.row)),
        deleted_of(txn.row),
    )


def deleted_of(row: TxnRow) -> tuple[str, ...]:
    """Return the paths of streams that ended while the transaction was pending."""
    return tuple(sorted({*row.deleted, *(path for _, path in row.lost)}))


def _moves_of(row: TxnRow) -> list[tuple[str, int, int]]:
    return [(named.group, named.stream, named.to) for named in row.positions]


def result_of_commit(state: State, event: Decided, sections: Iterable[Section]) -> TxnResult:
    """Return the result of a one-shot commit, before it is applied."""
    added = [(s.stream, s.base, s.count) for s in sections if s.kind == SECTION_DATA]
    added += [(stream, base, count) for _, stream, base, count in extents_of(event.extents)]
    listed = [state.by_txn[ended.txn].row for ended in event.ended if ended.is_committed]
    moves = [move for row in listed for move in _moves_of(row)]
    return TxnResult(
        _sorted(
            StreamResult(state.by_number[number].row.path, first, end, end - first)
            for number, first, end in _joined(added)
        ),
        _positions(state, [*moves, *event.positions]),
        tuple(sorted({path for row in listed for path in deleted_of(row)})),
    )


def _joined(added: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Return (stream, first, end) for consecutive (stream, base, count) of each stream."""
    spans: dict[int, tuple[int, int]] = {}
    for number, base, count in added:
        first, _ = spans.get(number, (base, base))
        spans[number] = (first, base + count)
    return [(number, first, end) for number, (first, end) in spans.items()]


def _positions(state: State, moves: Moves) -> tuple[PositionResult, ...]:
    by_number = state.by_number
    last = {(group, by_number[number].row.path): offset for group, number, offset in moves}
    return tuple(PositionResult(*name, offset) for name, offset in sorted(last.items()))


def _sorted(results: Iterable[StreamResult]) -> tuple[StreamResult, ...]:
    return tuple(sorted(results, key=lambda result: result.path))


# ---- packed results ------------------------------------------------------------------------------
# A producer keeps the results of its newest one-shot commits, a sink one per version.


pack_result: Final = msgspec.msgpack.Encoder().encode
unpack_result: Final = msgspec.msgpack.Decoder(TxnResult).decode


def push_result(kept: tuple[bytes, ...], packed: bytes) -> tuple[bytes, ...]:
    """Return the kept results with a new one, within the limits; the new one is always kept."""
    results = [*kept[1 - RESULTS_KEPT :], packed]
    size = sum(map(len, results))
    while size > RESULTS_BYTES_MAX and len(results) > 1:
        size -= len(results.pop(0))
    return tuple(results)
