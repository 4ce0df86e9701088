"""The figures about transactions: how many, how they ended, who keeps readers waiting."""

from collections.abc import Iterator

from semel.broker.broker import Broker
from semel.machine import State
from semel.model.transactions import INLINE

Figure = tuple[str, str, str, float]


def txn_figures(broker: Broker, *, now_ms: int) -> Iterator[Figure]:
    """Give name, kind, help and value of each."""
    tally, state = broker.txn_tally, broker.state
    for name, text, value in (
        ("started", "Transactions begun.", tally.started),
        ("committed", "Transactions committed.", tally.committed),
        ("aborted", "Transactions aborted, whatever the reason.", tally.aborted.total()),
        ("timed_out", "Transactions aborted because they took too long.", tally.timed_out),
    ):
        yield f"semel_transactions_{name}_total", "counter", text, value
    rows = [txn.row for txn in state.by_txn.values()]
    prepared = sum(row.is_prepared for row in rows)
    begun_ms = min([row.begun_ms for row in rows], default=now_ms)
    lag, since_ms = _stable_lag(state)
    gauges: tuple[tuple[str, str, float], ...] = (
        ("transactions_active", "Transactions open or prepared.", len(rows)),
        ("transactions_prepared", "Transactions that wait for their decision.", prepared),
        ("oldest_transaction_seconds", "Age of the oldest.", _seconds(now_ms, begun_ms)),
        ("stable_lag_offsets", "The most a stream's stable offset is behind its end.", lag),
        ("stable_lag_seconds", "For how long, at most.", _seconds(now_ms, since_ms)),
        ("sinks", "Sinks that have committed.", len(state.sinks)),
    )
    for name, text, figure in gauges:
        yield f"semel_{name}", "gauge", text, figure


def _seconds(now_ms: int, since_ms: int | None) -> float:
    return 0.0 if since_ms is None else max(0, now_ms - since_ms) / 1000


def _stable_lag(state: State) -> tuple[int, int | None]:
    """Find the widest gap between what is decided and the end, and the oldest that makes one."""
    lag, since_ms = 0, None
    for txn in state.by_txn.values():
        if txn.row.kind != INLINE:
            continue
        for number, known in txn.streams.items():
            if known.first < 0:
                continue
            tail = state.by_number[number].tail
            lag = max(lag, tail.tail - tail.stable)
            begun_ms = txn.row.begun_ms
            since_ms = begun_ms if since_ms is None else min(since_ms, begun_ms)
    return lag, since_ms
