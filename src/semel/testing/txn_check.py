"""The transaction checker: were transactions all or nothing, and did readers see only that?

And did workers that share a group take every message once, each from where the one before ended?

Values are unique, so the streams tell who put each message where, and nothing has to be searched
for: the time taken grows with the size of the history. What semel does not promise is no anomaly:
reads of several streams are no snapshot, a read may end before the first message of an open inline
transaction, and inline transactions that overlap may stand in one order here and in another there.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from msgspec import Struct

from semel.testing.txn_cycles import cycles, graph_of
from semel.testing.txn_ends import check_ends
from semel.testing.txn_facts import Anomaly, Facts, Log
from semel.testing.txn_graph import Moments
from semel.testing.txn_history import RecordedChange, TransactionHistory
from semel.testing.txn_order import check_order
from semel.testing.txn_positions import check_shared
from semel.testing.txn_reads import check_reads

ANOMALIES_MAX: Final = 1_000


class TransactionReport(Struct, frozen=True):
    """What was checked, and what was found; no anomalies is good.

    `committed` and `aborted` are what clients were told. What nobody was told is resolved by what
    is visible. `edges` are those of the dependency graph. `ranges` are those that committed
    transactions took for groups they share, `refused` the transactions that were refused because
    of a position, `sets` and `deletes` those that were done.
    """

    anomalies: list[Anomaly]
    committed: int
    aborted: int
    resolved_committed: int
    resolved_aborted: int
    reads: int
    edges: int
    ranges: int = 0
    refused: int = 0
    sets: int = 0
    deletes: int = 0

    def __str__(self) -> str:
        shared = ""
        if self.ranges or self.refused or self.sets:
            shared = (
                f" {self.ranges:,} ranges taken by groups, {self.refused:,} refused, {self.sets:,}"
                f" sets, {self.deletes:,} deletes;"
            )
        return (
            f"{self.committed:,} committed, {self.aborted:,} aborted, unknown resolved as"
            f" {self.resolved_committed:,} committed and {self.resolved_aborted:,} aborted;"
            f"{shared} {self.reads:,} reads, {self.edges:,} edges, {len(self.anomalies)} anomalies"
        )


def check_transactions(
    history: TransactionHistory,
    committed: Log,
    uncommitted: Log,
    *,
    positions: Mapping[tuple[str, str], int] | None = None,
    incarnations: Mapping[str, str] | None = None,
) -> TransactionReport:
    """Compare a history with what the streams hold at its end, when nothing is open any more.

    `committed` and `uncommitted` have every message of every stream as a reader is given them at
    read_committed and at read_uncommitted; `positions` where groups are, by group and stream.
    `incarnations` names the streams that those positions are in, with the words that moves used for
    them; it is needed only if a stream with such positions was deleted and made anew. At most 1,000
    anomalies are listed. Every client must have ended before, and no stream of the logs may be
    trimmed or deleted. ValueError if a value was appended twice, or if too many moves of one group
    have no answer.
    """
    facts = Facts(history, committed, uncommitted, positions or {})
    moments = Moments(facts)
    graph, edges = graph_of(moments)
    checks: tuple[Iterable[Anomaly], ...] = (
        check_ends(facts),
        check_order(facts),
        check_reads(facts),
        check_shared(facts, positions, incarnations),
        cycles(moments, graph),
    )
    anomalies = _listed(checks)
    outcomes = [each.outcome for each in history.transactions]
    unknown = [
        end for end, told in zip(facts.is_committed, outcomes, strict=True) if told == "unknown"
    ]
    return TransactionReport(
        anomalies,
        committed=outcomes.count("committed"),
        aborted=outcomes.count("aborted"),
        resolved_committed=sum(unknown),
        resolved_aborted=len(unknown) - sum(unknown),
        reads=sum(1 for _ in facts.reads()),
        edges=edges,
        ranges=_count_ranges(facts),
        refused=sum(each.refused_at is not None for each in history.transactions),
        sets=_count_done(history.sets),
        deletes=_count_done(history.deletes),
    )


def _count_ranges(facts: Facts) -> int:
    every = zip(facts.history.transactions, facts.is_committed, strict=True)
    return sum(len(transaction.ranges) for transaction, is_committed in every if is_committed)


def _count_done(changes: Iterable[RecordedChange]) -> int:
    return sum(change.returned_at is not None and not change.is_refused for change in changes)


def _listed(checks: Iterable[Iterable[Anomaly]]) -> list[Anomaly]:
    found: list[Anomaly] = []
    for anomaly in _all(checks):
        found.append(anomaly)
        if len(found) == ANOMALIES_MAX:
            break
    return found


def _all(checks: Iterable[Iterable[Anomaly]]) -> Iterator[Anomaly]:
    for check in checks:
        yield from check
