"""The page `GET /metrics`, with counters and gauges in the Prometheus text format."""

from collections import Counter
from collections.abc import Mapping
from heapq import nsmallest
from operator import attrgetter
from typing import Final

from semel.broker.figures import EngineFigures, WakeFigures
from semel.journal.segments import segment_name
from semel.journal.space import SegmentSpace
from semel.model.limits import GROUPS_SHOWN_MAX, SEGMENTS_SHOWN_MAX
from semel.model.outcomes import Appended, Duplicate, Outcome
from semel.model.outcomes_topics import TopicStored
from semel.model.outcomes_txn import (
    AbortDone,
    AlreadyAborted,
    AlreadyCommitted,
    CommitDone,
    ExtendDone,
)
from semel.server.unread_budget import UnreadBudget

# Outcomes whose label is not the name of their class. Labels must not change, because dashboards
# use them.
_LABELS: Final[Mapping[type[Outcome], str]] = {
    AbortDone: "Aborted",
    AlreadyAborted: "TxnAborted",
    AlreadyCommitted: "TxnCommitted",
    CommitDone: "Committed",
    ExtendDone: "TxnExtended",
}

APPENDED: Final = Appended.__name__  # the label of a stored append
DUPLICATE: Final = Duplicate.__name__

# The shares for which the page counts segments.
_SHARES: Final = (0.1, 0.5)

Metric = tuple[str, str, str, float]  # name without `semel_`, type, help, value


class OutcomeCounts:
    """Counts the writes since the server started, by outcome."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.mismatches = 0
        self.below_window = 0

    def note(self, outcome: Outcome) -> None:
        """Count the outcome of one write."""
        kind = type(outcome)
        label = _LABELS.get(kind, kind.__name__)
        if isinstance(outcome, TopicStored):
            label = DUPLICATE if outcome.is_duplicate else APPENDED
            self.mismatches += outcome.is_mismatch
            self.below_window += outcome.is_duplicate and outcome.parts is None
        elif isinstance(outcome, Duplicate):
            self.mismatches += outcome.is_mismatch
            self.below_window += outcome.next_offset is None
        self.outcomes[label] += 1


def render_metrics(
    figures: EngineFigures,
    tally: OutcomeCounts,
    *,
    live_readers: int,
    gaps_held: int,
    unread: UnreadBudget,
) -> str:
    """Return the text of the metrics page: the help, the type and the value of every metric."""
    metrics = [
        *_engine_metrics(figures, live_readers),
        *_connection_metrics(unread),
        *_producer_metrics(figures, tally, gaps_held),
        *_txn_metrics(figures),
        *_group_metrics(figures),
        *_wake_metrics(figures.wakes),
        *_space_metrics(figures),
    ]
    lines = [
        f"# HELP semel_{name} {text}\n# TYPE semel_{name} {kind}\nsemel_{name} {value}"
        for name, kind, text, value in metrics
    ]
    lines.append("# HELP semel_outcomes_total Responses to writes, for each outcome.")
    lines.append("# TYPE semel_outcomes_total counter")
    lines.extend(
        f'semel_outcomes_total{{outcome="{name}"}} {count}'
        for name, count in sorted(tally.outcomes.items())
    )
    lines.extend(_lag_lines(figures.group_lags))
    if figures.segments is not None:
        lines.extend(_segment_lines(figures.segments))
    return "\n".join(lines) + "\n"


def _engine_metrics(figures: EngineFigures, live_readers: int) -> list[Metric]:
    return [
        ("streams", "gauge", "Streams, including soft-deleted streams.", figures.streams),
        ("policies", "gauge", "Policies that hold for streams below a prefix.", figures.policies),
        ("journal_durable_bytes", "counter", "Durable end of the journal.", figures.durable_bytes),
        ("journal_end_bytes", "counter", "End of the journal, durable or not.", figures.end_bytes),
        ("journal_syncs_total", "counter", "Completed journal syncs.", figures.sync_count),
        ("checkpoints_total", "counter", "Completed checkpoints.", figures.checkpoint_count),
        ("disk_full", "gauge", "1 while the disk is full, otherwise 0.", int(figures.is_full)),
        ("live_readers", "gauge", "Open long-polls and event streams.", live_readers),
        ("replayed_bytes", "gauge", "Journal bytes replayed at start.", figures.replayed_bytes),
        (
            "clock_ahead_seconds",
            "gauge",
            "How far the time of the newest message is ahead of the clock, in seconds.",
            figures.clock_ahead_ms / 1000,
        ),
    ]


def _connection_metrics(unread: UnreadBudget) -> list[Metric]:
    counts = unread.counts
    unread_bytes = unread.bytes + unread.short_bytes
    return [
        ("connections", "gauge", "Open connections.", counts.connections),
        ("tls_handshakes", "gauge", "TLS handshakes under way.", counts.handshakes),
        (
            "tls_handshakes_dropped_total",
            "counter",
            "TLS handshakes closed before their end, because too many were under way.",
            counts.handshakes_dropped,
        ),
        ("unread_bytes", "gauge", "Long responses that clients have not read.", unread_bytes),
        ("reads_waiting", "gauge", "Reads that wait for memory.", counts.reads_waiting),
        (
            "reads_refused_total",
            "counter",
            "Reads refused because too many waited for memory, or for too long.",
            counts.reads_refused,
        ),
        (
            "stalled_connections_closed_total",
            "counter",
            "Connections closed because the client did not read.",
            counts.stalled_closed,
        ),
    ]


def _producer_metrics(figures: EngineFigures, tally: OutcomeCounts, gaps_held: int) -> list[Metric]:
    count, producers = tally.outcomes, figures.producers
    fenced = count["StaleEpoch"] + count["StaleSession"] + count["SessionConflict"]
    mismatches = tally.mismatches + count["PayloadMismatch"]
    totals = (
        ("duplicates", "Appends that repeat a stored append.", count["Duplicate"]),
        ("gaps", "Appends refused because earlier appends are missing.", count["SequenceGap"]),
        ("fenced", "Writes refused because the producer is fenced.", fenced),
        ("payload_mismatches", "Repeated appends with a different payload.", mismatches),
        (
            "below_window",
            "Repeated appends whose first result is no longer stored.",
            tally.below_window,
        ),
    )
    return [
        ("producers", "gauge", "Producers that have not expired, in all streams.", producers),
        (
            "producers_expiring",
            "gauge",
            "Producers that have declared an idle time, in all streams; semel_producers has them.",
            figures.expiring_producers,
        ),
        (
            "producer_tombstones",
            "gauge",
            "Expired and retired producers whose late retries are refused, in all streams.",
            figures.tombstones,
        ),
        (
            "producers_limit_ratio",
            "gauge",
            "Largest share of a limit on producers that a stream uses; at 1, new ones are refused.",
            figures.producers_share,
        ),
        ("gaps_held", "gauge", "Appends that are held until earlier appends arrive.", gaps_held),
        *((f"producer_{name}_total", "counter", text, value) for name, text, value in totals),
        # Two of these metrics are repeated under the names that other servers of this protocol use.
        ("idempotent_producers_active", "gauge", "Same value as semel_producers.", producers),
        (
            "idempotent_duplicates_total",
            "counter",
            "Same value as semel_producer_duplicates_total.",
            count["Duplicate"],
        ),
    ]


def _txn_metrics(figures: EngineFigures) -> list[Metric]:
    totals = (
        ("started", "Started transactions.", figures.txns_started),
        ("committed", "Committed transactions.", figures.txns_committed),
        ("aborted", "Aborted transactions, including timeouts.", figures.txns_aborted),
        ("timed_out", "Transactions that timed out.", figures.txns_timed_out),
    )
    gauges: tuple[tuple[str, str, float], ...] = (
        ("transactions_active", "Transactions that are open or prepared.", figures.txns_pending),
        (
            "transactions_prepared",
            "Prepared transactions.",
            figures.txns_prepared,
        ),
        (
            "oldest_transaction_seconds",
            "Age of the oldest open or prepared transaction, in seconds.",
            figures.oldest_txn_age_ms / 1000,
        ),
        (
            "stable_lag_offsets",
            "Largest distance from the stable offset to the tail, over all streams, in offsets.",
            figures.stable_lag,
        ),
        (
            "stable_lag_seconds",
            "Age of the oldest transaction that holds back a stable offset, in seconds.",
            figures.stable_lag_age_ms / 1000,
        ),
        ("sinks", "Sinks that have committed at least once.", figures.sinks),
    )
    return [
        *((f"transactions_{name}_total", "counter", text, value) for name, text, value in totals),
        *((name, "gauge", text, value) for name, text, value in gauges),
    ]


# ---- topics and groups ---------------------------------------------------------------------------


def _group_metrics(figures: EngineFigures) -> list[Metric]:
    return [
        ("topics", "gauge", "Topics, without their partitions.", figures.topics),
        ("groups", "gauge", "Groups with positions, members or a pinned step.", figures.groups),
        ("group_members", "gauge", "Members of all groups.", figures.members),
        (
            "group_streams_owned",
            "gauge",
            "Streams that members own, in all groups.",
            figures.shared_streams,
        ),
        (
            "group_rebalances_total",
            "counter",
            "Changes of the owners of streams, in all groups.",
            figures.rebalances,
        ),
        (
            "group_members_expired_total",
            "counter",
            "Members whose session has timed out.",
            figures.expired_members,
        ),
    ]


def _wake_metrics(figures: WakeFigures) -> list[Metric]:
    totals = (
        ("wakes_issued", "Wakes issued to webhooks and pull workers.", figures.issued),
        ("wakes_expired", "Wakes that ended because their lease expired.", figures.expired),
        ("webhook_deliveries", "Deliveries that were answered by 2xx.", figures.delivered),
        ("webhook_failures", "Deliveries that failed, and are repeated.", figures.failed),
    )
    gauges: tuple[tuple[str, str, float], ...] = (
        ("subscriptions", "Subscriptions.", figures.subscriptions),
        ("subscriptions_pending", "Subscriptions with something to process.", figures.pending),
        ("subscriptions_leased", "Wakes that a worker or a receiver has.", figures.leased),
        ("subscriptions_failing", "Webhooks whose last delivery has failed.", figures.failing),
        (
            "subscriptions_suspended",
            "Webhooks that are not delivered any more, after too many failures.",
            figures.suspended,
        ),
        (
            "oldest_wake_seconds",
            "Age of the oldest wake that is in flight, in seconds.",
            figures.oldest_age_ms / 1000,
        ),
    )
    return [
        *((name, "gauge", text, value) for name, text, value in gauges),
        *((f"{name}_total", "counter", text, value) for name, text, value in totals),
    ]


def _lag_lines(lags: list[tuple[str, int]]) -> list[str]:
    """Return the lag of the groups that are furthest behind.

    The number of lines is limited, because there can be very many groups.
    """
    if not lags:
        return []
    return [
        "# HELP semel_group_lag_offsets Offsets that a group has not read, in all its streams; also"
        f" control records and aborted messages. At most {GROUPS_SHOWN_MAX} groups.",
        "# TYPE semel_group_lag_offsets gauge",
        *(f'semel_group_lag_offsets{{group="{_label(group)}"}} {lag}' for group, lag in lags),
    ]


def _label(text: str) -> str:
    """Return the value of a label, with the escapes of the text format."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


# ---- disk space ----------------------------------------------------------------------------------
# The segments are those of the last survey (see `semel.journal.space`). Before the first survey is
# complete, the page does not have these figures.


def _space_metrics(figures: EngineFigures) -> list[Metric]:
    segments = figures.segments
    if segments is None:
        return []
    age = figures.segments_age_seconds
    disk_bytes = sum(segment.disk_bytes for segment in segments)
    live_bytes = sum(segment.live_bytes for segment in segments)
    return [
        ("segments", "gauge", "Segments of the journal, at the last survey.", len(segments)),
        ("segments_disk_bytes", "gauge", "Size of all segments on disk.", disk_bytes),
        ("segments_live_bytes", "gauge", "Bytes of all segments that are needed.", live_bytes),
        ("segments_age_seconds", "gauge", "Seconds since the survey of the segments.", age),
    ]


def _segment_lines(segments: list[SegmentSpace]) -> list[str]:
    """Return how many segments are nearly empty, and the live bytes of those that are emptiest.

    The number of lines is limited, because a directory can have many thousands of segments.
    """
    emptiest = nsmallest(SEGMENTS_SHOWN_MAX, segments, key=_share_and_place)
    return [
        "# HELP semel_segments_below_share Segments of which less than this share is needed.",
        "# TYPE semel_segments_below_share gauge",
        *(
            f'semel_segments_below_share{{share="{share}"}}'
            f" {sum(segment.live_share < share for segment in segments)}"
            for share in _SHARES
        ),
        "# HELP semel_segment_live_bytes Needed bytes of the segments with the smallest needed"
        f" share, at most {SEGMENTS_SHOWN_MAX}.",
        "# TYPE semel_segment_live_bytes gauge",
        *(
            f'semel_segment_live_bytes{{segment="{segment_name(segment.first)}"}}'
            f" {segment.live_bytes}"
            for segment in sorted(emptiest, key=attrgetter("first"))
        ),
    ]


def _share_and_place(segment: SegmentSpace) -> tuple[float, int]:
    return segment.live_share, segment.first
