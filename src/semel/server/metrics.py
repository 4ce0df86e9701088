"""`GET /metrics`: the engine's figures in the Prometheus text format."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from semel.broker.broker import Broker
from semel.broker.durable_view import DurableView
from semel.broker.engine import Engine
from semel.machine import State
from semel.model.outcomes import Duplicate, Outcome
from semel.model.outcomes_txn import (
    AbortDone,
    AlreadyAborted,
    AlreadyCommitted,
    CommitDone,
    ExtendDone,
)
from semel.model.transactions import TXN_INLINE

# Labels that dashboards know, of outcomes whose class has another name.
_LABELS: Final[Mapping[type[Outcome], str]] = {
    AbortDone: "Aborted",
    AlreadyAborted: "TxnAborted",
    AlreadyCommitted: "TxnCommitted",
    CommitDone: "Committed",
    ExtendDone: "TxnExtended",
}


class OutcomeCounts:
    """What was answered to writes since the start."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.mismatches = 0
        self.below_window = 0

    def note(self, outcome: Outcome) -> None:
        """Count an answer."""
        kind = type(outcome)
        self.outcomes[_LABELS.get(kind, kind.__name__)] += 1
        if isinstance(outcome, Duplicate):
            self.mismatches += outcome.is_mismatch
            self.below_window += outcome.next_offset is None


def render_metrics(
    engine: Engine, tally: OutcomeCounts, *, live_readers: int, gaps_held: int
) -> str:
    """Print every figure with its help and type."""
    broker = engine.broker
    seen: DurableView = broker.durable_view
    lines: list[str] = []
    _add(lines, "semel_streams", "gauge", "Streams, forked dead ones too.", len(seen.by_path))
    _add(lines, "semel_journal_durable_bytes", "counter", "Durable watermark.", broker.durable)
    _add(lines, "semel_journal_end_bytes", "counter", "End of the journal.", broker.end)
    _add(lines, "semel_journal_syncs_total", "counter", "Syncs of the journal.", engine.sync_count)
    _add(lines, "semel_checkpoints_total", "counter", "Checkpoints.", engine.checkpoint_count)
    _add(lines, "semel_disk_full", "gauge", "1 while growth is refused.", int(broker.is_full))
    _add(lines, "semel_live_readers", "gauge", "Long-polls and event streams.", live_readers)
    _add(lines, "semel_replayed_bytes", "gauge", "Replayed at start.", engine.replayed_bytes)
    _add_producers(lines, engine, tally, gaps_held)
    for figure in txn_figures(engine.broker, now_ms=engine.clock.now_ms()):
        _add(lines, *figure)
    lines.append("# HELP semel_outcomes_total Answers to writes, by outcome.")
    lines.append("# TYPE semel_outcomes_total counter")
    lines.extend(
        f'semel_outcomes_total{{outcome="{name}"}} {count}'
        for name, count in sorted(tally.outcomes.items())
    )
    return "\n".join(lines) + "\n"


def _add_producers(lines: list[str], engine: Engine, tally: OutcomeCounts, gaps_held: int) -> None:
    count = tally.outcomes
    fenced = count["StaleEpoch"] + count["StaleSession"] + count["SessionConflict"]
    mismatches = tally.mismatches + count["PayloadMismatch"]
    alive = engine.broker.state.live_producers
    _add(lines, "semel_producers", "gauge", "Producers of all streams, no tombstones.", alive)
    _add(lines, "semel_gaps_held", "gauge", "Appends that wait for earlier ones.", gaps_held)
    for name, text, value in (
        ("duplicates", "Appends that were stored before.", count["Duplicate"]),
        ("gaps", "Appends refused because earlier ones are missing.", count["SequenceGap"]),
        ("fenced", "Appends of producers that were replaced.", fenced),
        ("payload_mismatches", "Repeats with another payload.", mismatches),
        ("below_window", "Repeats whose place is forgotten.", tally.below_window),
    ):
        _add(lines, f"semel_producer_{name}_total", "counter", text, value)
    # The names these two have where transactions come from.
    _add(lines, "semel_idempotent_producers_active", "gauge", "As semel_producers.", alive)
    repeats = count["Duplicate"]
    name = "semel_idempotent_duplicates_total"
    _add(lines, name, "counter", "As semel_producer_duplicates_total.", repeats)


def _add(lines: list[str], name: str, kind: str, text: str, value: float) -> None:
    lines.append(f"# HELP {name} {text}")
    lines.append(f"# TYPE {name} {kind}")
    lines.append(f"{name} {value}")


# ---- txn metrics ---------------------------------------------------------------------------------
# The figures about transactions: how many, how they ended, who keeps readers waiting.


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
        if txn.row.kind != TXN_INLINE:
            continue
        for number, known in txn.streams.items():
            if known.first < 0:
                continue
            tail = state.by_number[number].tail
            lag = max(lag, tail.tail - tail.stable)
            begun_ms = txn.row.begun_ms
            since_ms = begun_ms if since_ms is None else min(since_ms, begun_ms)
    return lag, since_ms
