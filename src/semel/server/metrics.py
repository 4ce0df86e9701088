"""`GET /metrics`: the engine's figures in the Prometheus text format."""

from collections import Counter

from semel.broker.engine import Engine
from semel.broker.seen import Seen


def render_metrics(engine: Engine, outcomes: Counter[str], live_readers: int) -> str:
    """Print every figure with its help and type."""
    broker = engine.broker
    seen: Seen = broker.seen
    lines: list[str] = []
    _add(lines, "semel_streams", "gauge", "Streams, forked dead ones too.", len(seen.by_path))
    _add(lines, "semel_journal_durable_bytes", "counter", "Durable watermark.", broker.durable)
    _add(lines, "semel_journal_end_bytes", "counter", "End of the journal.", broker.end)
    _add(lines, "semel_checkpoints_total", "counter", "Checkpoints.", engine.checkpoint_count)
    _add(lines, "semel_disk_full", "gauge", "1 while growth is refused.", int(broker.is_full))
    _add(lines, "semel_live_readers", "gauge", "Long-polls and event streams.", live_readers)
    _add(lines, "semel_replayed_bytes", "gauge", "Replayed at start.", engine.replayed_bytes)
    lines.append("# HELP semel_outcomes_total Answers to writes, by outcome.")
    lines.append("# TYPE semel_outcomes_total counter")
    lines.extend(
        f'semel_outcomes_total{{outcome="{name}"}} {count}'
        for name, count in sorted(outcomes.items())
    )
    return "\n".join(lines) + "\n"


def _add(lines: list[str], name: str, kind: str, text: str, value: int) -> None:
    lines.append(f"# HELP {name} {text}")
    lines.append(f"# TYPE {name} {kind}")
    lines.append(f"{name} {value}")
