"""Figures that show operators the condition of a running engine."""

from collections.abc import Iterable

from msgspec import Struct

from semel.broker.engine import Engine
from semel.journal.space import SegmentSpace
from semel.machine import State
from semel.machine.rows import TailRow
from semel.machine.state import Txn
from semel.model.commands import BY_TIMEOUT, COMMITTED, TXN_INLINE


class EngineFigures(Struct, frozen=True, kw_only=True):
    """Counters since the start of the process, and current sizes and ages."""

    streams: int  # including soft-deleted streams
    durable_bytes: int  # the durable watermark
    end_bytes: int  # the end of the journal
    sync_count: int
    checkpoint_count: int
    replayed_bytes: int
    is_full: bool
    producers: int  # excluding tombstones
    txns_started: int
    txns_committed: int
    txns_aborted: int
    txns_timed_out: int
    txns_pending: int
    txns_prepared: int
    oldest_txn_age_ms: int  # of the pending transactions; 0 if there are none
    stable_lag: int  # over all streams, the largest distance from the stable offset to the tail
    stable_lag_age_ms: int  # of the oldest transaction that causes such a distance, or 0
    sinks: int
    clock_ahead_ms: int  # how far the time of the newest frame is ahead of the clock, or 0
    # At the last survey, or None before the first one is complete; see `semel.journal.space`.
    segments: list[SegmentSpace] | None
    segments_age_seconds: float  # the time since that survey


def engine_figures(engine: Engine) -> EngineFigures:
    """Return counters since the process started, and current sizes."""
    broker = engine.broker
    state, ended = broker.state, broker.txns_ended
    now_ms = engine.clock.now_ms()
    rows = [txn.row for txn in state.by_txn.values()]

    def age_ms(txns: Iterable[Txn]) -> int:
        begun = (broker.deadlines.dates(txn, now_ms).begun_ms for txn in txns)
        return max(0, now_ms - min(begun, default=now_ms))

    holders = _holders(state)
    return EngineFigures(
        streams=len(broker.durable_view.by_path),
        durable_bytes=broker.durable,
        end_bytes=broker.end,
        sync_count=engine.sync_count,
        checkpoint_count=engine.checkpoint_count,
        replayed_bytes=engine.replayed_bytes,
        is_full=broker.is_full,
        producers=state.live_producers,
        txns_started=broker.txns_begun,
        txns_committed=ended[COMMITTED],
        txns_aborted=ended.total() - ended[COMMITTED],
        txns_timed_out=ended[BY_TIMEOUT],
        txns_pending=len(rows),
        txns_prepared=sum(row.is_prepared for row in rows),
        oldest_txn_age_ms=age_ms(state.by_txn.values()),
        stable_lag=max((tail.tail - tail.stable for _, tail in holders), default=0),
        stable_lag_age_ms=age_ms(txn for txn, _ in holders),
        sinks=len(state.sinks),
        clock_ahead_ms=max(0, state.time_ms - now_ms),
        segments=engine.space.segments,
        segments_age_seconds=engine.space.age_seconds,
    )


def _holders(state: State) -> list[tuple[Txn, TailRow]]:
    """Return pairs: a transaction that holds back a stable offset, and the stream's tail."""
    return [
        (txn, state.by_number[number].tail)
        for txn in state.by_txn.values()
        if txn.row.kind == TXN_INLINE
        for number, extent in txn.streams.items()
        if extent.first >= 0
    ]
