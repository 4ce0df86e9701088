"""Figures that show operators the condition of a running engine."""

from msgspec import Struct

from semel.broker.engine import Engine
from semel.journal.space import SegmentSpace
from semel.machine import State
from semel.model.commands import BY_TIMEOUT, COMMITTED, TXN_INLINE


class EngineFigures(Struct, frozen=True, kw_only=True):
    """Counters since the start of the process, and current sizes.

    The fields that end in `_ms` are points in time, in milliseconds since 1970.
    """

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
    oldest_txn_ms: int | None  # when the oldest pending transaction began
    stable_lag: int  # over all streams, the largest distance from the stable offset to the tail
    stable_lag_ms: int | None  # when the oldest transaction that causes such a distance began
    sinks: int
    segments: list[SegmentSpace]  # at the last survey; see `semel.journal.space`


def engine_figures(engine: Engine) -> EngineFigures:
    """Return counters since the process started, and current sizes."""
    broker = engine.broker
    state, ended = broker.state, broker.txns_ended
    rows = [txn.row for txn in state.by_txn.values()]
    lag, lag_ms = _stable_lag(state)
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
        oldest_txn_ms=min((row.begun_ms for row in rows), default=None),
        stable_lag=lag,
        stable_lag_ms=lag_ms,
        sinks=len(state.sinks),
        segments=engine.space.segments,
    )


def _stable_lag(state: State) -> tuple[int, int | None]:
    holders = [
        (state.by_number[number].tail, txn.row.begun_ms)
        for txn in state.by_txn.values()
        if txn.row.kind == TXN_INLINE
        for number, extent in txn.streams.items()
        if extent.first >= 0
    ]
    lag = max((tail.tail - tail.stable for tail, _ in holders), default=0)
    return lag, min((begun_ms for _, begun_ms in holders), default=None)
