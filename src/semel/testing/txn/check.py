"""The transaction checker: were transactions atomic, and did readers see them so?

It also checks that workers that share a group process every message once, each from the position
where the one before ended.

Values are unique, so each message identifies its transaction, and no order has to be searched for:
the time is linear in the size of the history. What semel does not guarantee is not an anomaly:
reads of several streams are not a snapshot, a read may end before the first message of an open
inline transaction, and overlapping inline transactions may be in different orders in different
streams.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Final

from msgspec import Struct

from semel.testing.txn.facts import Anomaly, HistoryFacts, Log, Sent, appends_of, name_of
from semel.testing.txn.graph import Moments, cycles, graph_of
from semel.testing.txn.history import (
    RecordedChange,
    RecordedTransaction,
    TransactionAppend,
    TransactionHistory,
    TransactionRead,
)
from semel.testing.txn.positions import check_shared

ANOMALIES_MAX: Final = 1_000


class TransactionReport(Struct, frozen=True):
    """The result of a check: what was checked, and the anomalies.

    `committed` and `aborted` count recorded outcomes. Transactions with an unknown outcome are
    resolved by what is visible. `edges` are those of the dependency graph, `ranges` those that
    committed transactions processed for shared groups, `refused` the transactions that were refused
    because of a position, `sets` and `deletes` those that were done.
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
    """Compare a history with the final content of the streams, when no transaction is open.

    `committed` and `uncommitted` have every message of every stream as read at read_committed and
    at read_uncommitted; `positions` are those of groups, by group and stream. `incarnations` are
    those of the streams with such positions, as in the recorded moves; they are needed only if such
    a stream was deleted and created again. At most 1,000 anomalies are returned. Every client must
    have ended before, and no stream of the logs may be trimmed or deleted. Raises ValueError if a
    value was appended twice, or if too many moves of one group have no response.
    """
    facts = HistoryFacts(history, committed, uncommitted, positions or {})
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


def _count_ranges(facts: HistoryFacts) -> int:
    every = zip(facts.history.transactions, facts.is_committed, strict=True)
    return sum(len(transaction.ranges) for transaction, is_committed in every if is_committed)


def _count_done(changes: Iterable[RecordedChange]) -> int:
    return sum(change.returned_at is not None and not change.is_refused for change in changes)


def _listed(checks: Iterable[Iterable[Anomaly]]) -> list[Anomaly]:
    return list(islice(chain.from_iterable(checks), ANOMALIES_MAX))


# ---- reads ---------------------------------------------------------------------------------------
# Every read must return a part of the final stream, with whole, committed transactions only.


def check_reads(facts: HistoryFacts) -> Iterator[Anomaly]:
    """Check each read alone; yield the first anomaly of each."""
    for read in facts.reads():
        anomaly = _differs(facts, read) or _early(facts, read) or _behind(facts, read)
        if anomaly is not None:
            yield anomaly


def _differs(facts: HistoryFacts, read: TransactionRead) -> Anomaly | None:
    """Compare a read with the stream."""
    logs = facts.committed if read.is_committed else facts.uncommitted
    log = logs.get(read.stream, ())
    if list(read.values) == list(log[read.start : read.end]):
        return None
    there = [*log[read.start : read.end], *[None] * len(read.values)]
    at = next(i for i, value in enumerate(read.values) if value != there[i])
    return _difference(facts, read, read.start + at, read.values[at])


def _difference(
    facts: HistoryFacts, read: TransactionRead, number: int, value: Hashable
) -> Anomaly:
    """Name what is wrong with a value that is not number `number` of its stream in the end."""
    who = f"{read.reader} was given {value!r} as number {number} of {read.stream}"
    sent = facts.sender(read.stream, value)
    if sent is None:
        return Anomaly("never_sent", f"{who}, and nobody has sent it there")
    by = name_of(sent.transaction)
    ids: tuple[str, ...] = (sent.transaction.id,)
    places = (facts.place if read.is_committed else facts.raw_place)[read.stream]
    place = places.get(value)
    if place is None:
        if read.is_committed and not facts.is_committed[sent.number]:
            return Anomaly("G1a", f"{who}, and {by} is not committed", ids)
        return Anomaly("lost", f"{who}, and in the end {by} is not there", ids)
    if place < number:
        return Anomaly("duplicate", f"{who}, but in the end it is number {place}", ids)
    log = facts.committed if read.is_committed else facts.uncommitted
    skipped = log[read.stream][number]
    passed = facts.sender(read.stream, skipped)
    whose = "" if passed is None else f" of {name_of(passed.transaction)}"
    ids = ids if passed is None else (passed.transaction.id, *ids)
    return Anomaly("lost", f"{who}, and was never given {skipped!r}{whose} before it", ids)


def _early(facts: HistoryFacts, read: TransactionRead) -> Anomaly | None:
    """Find a message that was seen before its transaction could have been decided."""
    for value in read.values:
        sent = facts.sender(read.stream, value)
        if sent is None:
            continue
        asked_at = sent.transaction.decide_at if read.is_committed else sent.append.invoked_at
        if asked_at is not None and asked_at > read.returned_at:
            asked = "its commit" if read.is_committed else "it"
            text = (
                f"{read.reader} was given {value!r} in {read.stream} before {asked} was sent,"
                f" by {name_of(sent.transaction)}"
            )
            return Anomaly("G1b", text, (sent.transaction.id,))
    return None


def _behind(facts: HistoryFacts, read: TransactionRead) -> Anomaly | None:
    """Find a message that a read lacks though it was decided, and that nothing held up.

    Only an inline transaction that was still open can hold it up, with a message before it.
    """
    if not (read.is_committed and read.is_up_to_date):
        return None
    log = facts.uncommitted.get(read.stream, ())
    for index in range(_first_unseen(facts, read), len(log)):
        sent = facts.sender(read.stream, log[index])
        if sent is None:
            continue
        begun_at, _ = facts.placed_between(sent)
        if begun_at is not None and begun_at > read.returned_at:
            return None  # this, and all behind it, came later
        decided_by = facts.decided_by[sent.number]
        is_decided = decided_by is not None and decided_by < read.invoked_at
        is_partly_seen = facts.is_committed[sent.number] and _is_seen(facts, read, sent)
        if facts.is_committed[sent.number] and (is_decided or is_partly_seen):
            return _torn(read, log[index], sent, is_partly_seen=is_partly_seen)
        if sent.transaction.is_inline and not is_decided:
            return None  # it may have been open
    return None


def _first_unseen(facts: HistoryFacts, read: TransactionRead) -> int:
    """Find where the uncommitted log goes on behind what a reader has seen."""
    log = facts.committed.get(read.stream, ())
    end = min(read.end, len(log))
    return facts.raw_place.get(read.stream, {}).get(log[end - 1], -1) + 1 if end else 0


def _is_seen(facts: HistoryFacts, read: TransactionRead, sent: Sent) -> bool:
    """Whether the reader has seen another message of the same transaction in this stream."""
    places = facts.place.get(read.stream, {})
    return any(
        places.get(append.values[0], read.end) < read.end
        for append in appends_of(sent.transaction)
        if append.stream == read.stream and append.values
    )


def _torn(read: TransactionRead, value: Hashable, sent: Sent, *, is_partly_seen: bool) -> Anomaly:
    by, ids = name_of(sent.transaction), (sent.transaction.id,)
    lacks = f"{read.reader} read {read.stream} up to number {read.end} and lacks {value!r} of {by}"
    if is_partly_seen:
        return Anomaly("G1b", f"{lacks}, of which it has seen another message there", ids)
    streams = {append.stream for append in appends_of(sent.transaction)}
    if len(streams) > 1:
        others = ", ".join(sorted(streams - {read.stream}))
        text = f"{lacks}, which was known to be committed before; it is also in {others}"
        return Anomaly("torn", text, ids)
    return Anomaly("stale", f"{lacks}, which was known to be committed before", ids)


# ---- final streams -------------------------------------------------------------------------------
# Checks of the final streams: transactions are atomic, as acknowledged, and in order.


def check_ends(facts: HistoryFacts) -> Iterator[Anomaly]:
    """Check the final content of the streams, and the final positions of the groups."""
    yield from _check_values(facts, facts.committed, "read_committed")
    yield from _check_values(facts, facts.uncommitted, "read_uncommitted")
    for number, transaction in enumerate(facts.history.transactions):
        yield from _check_transaction(facts, transaction)
        yield from _check_refused(facts, transaction)
        if facts.is_committed[number]:
            yield from _check_asked(transaction)
    yield from _check_positions(facts)


def _check_values(facts: HistoryFacts, logs: Log, isolation: str) -> Iterator[Anomaly]:
    """Check that every message was sent, and is stored once."""
    for stream, log in logs.items():
        seen: set[Hashable] = set()
        for number, value in enumerate(log):
            sent = facts.sender(stream, value)
            where = f"{value!r} is number {number} of {stream} at {isolation}"
            if sent is None:
                yield Anomaly("never_sent", f"{where}, and nobody has sent it there")
            elif value in seen:
                text = (
                    f"{where}, and was there before; {name_of(sent.transaction)} appended it once"
                )
                yield Anomaly("duplicate", text, (sent.transaction.id,))
            seen.add(value)


def _check_transaction(facts: HistoryFacts, transaction: RecordedTransaction) -> Iterator[Anomaly]:
    """Check that all of a committed transaction is visible, and nothing of another one."""
    visible: dict[str, list[Hashable]] = {}
    missing: dict[str, list[Hashable]] = {}
    for append in appends_of(transaction):
        places = facts.place.get(append.stream, {})
        for value in append.values:
            part = visible if value in places else missing
            part.setdefault(append.stream, []).append(value)
    who, ids = name_of(transaction), (transaction.id,)
    if transaction.outcome == "aborted":
        if visible:
            yield Anomaly("G1a", f"{who} is aborted, and {_shown(visible)} is visible", ids)
        return
    if missing and visible:
        text = f"of {who} {_shown(visible)} is visible, and {_shown(missing)} is not"
        yield Anomaly("torn", text, ids)
    elif missing and transaction.outcome == "committed":
        yield Anomaly("lost", f"{who} was acknowledged, and {_shown(missing)} is not there", ids)
    elif missing and any(facts.positions.get(at) == to for at, to in transaction.moves.items()):
        text = f"of {who} a position has moved, and {_shown(missing)} is not there"
        yield Anomaly("torn", text, ids)


def _check_refused(facts: HistoryFacts, transaction: RecordedTransaction) -> Iterator[Anomaly]:
    """Check that no message of a refused append is stored."""
    for step in transaction.steps:
        if not (isinstance(step, TransactionAppend) and step.is_refused):
            continue
        present = [value for value in step.values if value in facts.raw_place.get(step.stream, {})]
        if present:
            what = _shown({step.stream: present})
            text = f"an append of {name_of(transaction)} was refused, and {what} is there"
            yield Anomaly("G1a", text, (transaction.id,))


def _check_asked(transaction: RecordedTransaction) -> Iterator[Anomaly]:
    """Check that a commit was requested."""
    if transaction.decide_at is None:
        text = f"{name_of(transaction)} is visible, and nobody has asked to commit it"
        yield Anomaly("G1a", text, (transaction.id,))


def _check_positions(facts: HistoryFacts) -> Iterator[Anomaly]:
    """Check that a group is where a committed transaction moved it, and no later one moved it.

    A transaction with an unknown outcome counts as committed if its values are visible.
    """
    movers: dict[tuple[str, str], list[int]] = {}
    for number, transaction in enumerate(facts.history.transactions):
        for where in transaction.moves:
            movers.setdefault(where, []).append(number)
    for where, numbers in movers.items():
        yield from _check_position(facts, where, numbers)


def _check_position(
    facts: HistoryFacts, where: tuple[str, str], numbers: list[int]
) -> Iterator[Anomaly]:
    transactions = facts.history.transactions
    stands = facts.positions.get(where)
    here = f"group {where[0]} stands at {stands} in {where[1]}"
    committed = [number for number in numbers if facts.is_committed[number]]
    last = next((n for n in numbers if transactions[n].moves[where] == stands), None)
    if last is None:
        if stands is not None or committed:
            ids = tuple(transactions[number].id for number in committed[-1:])
            yield Anomaly("torn", f"{here}, where no transaction has moved it", ids)
        return
    left = name_of(transactions[last])
    if not facts.is_committed[last]:
        yield Anomaly("G1a", f"{here}, as {left} would have it", (transactions[last].id,))
        return
    decided_by = facts.decided_by[last]
    for later in (transactions[number] for number in committed):
        if decided_by is None or later.decide_at is None or later.decide_at <= decided_by:
            continue
        text = f"{here}, as {left} left it, and {name_of(later)} moved it after that"
        yield Anomaly("torn", text, (transactions[last].id, later.id))
        return


def _shown(values: dict[str, list[Hashable]]) -> str:
    return ", ".join(f"{found[0]!r} in {stream}" for stream, found in values.items())


# ---- order ---------------------------------------------------------------------------------------


def check_order(facts: HistoryFacts) -> Iterator[Anomaly]:
    """Check the order of every stream against the order in which its messages were sent."""
    for stream, log in facts.uncommitted.items():
        yield from _check_times(facts, stream, log)
    for stream, log in facts.committed.items():
        yield from _check_isolations(facts, stream, log)
    for transaction in facts.history.transactions:
        yield from _check_own(facts, transaction)


def _check_times(facts: HistoryFacts, stream: str, log: Sequence[Hashable]) -> Iterator[Anomaly]:
    """Check that no message is after one that was sent only when it already had its offset."""
    latest: tuple[int, Hashable, Sent] | None = None
    for value in log:
        sent = facts.sender(stream, value)
        if sent is None:
            continue
        begun_at, placed_by = facts.placed_between(sent)
        if latest is not None and placed_by is not None and placed_by < latest[0]:
            text = (
                f"{value!r} of {name_of(sent.transaction)} was in {stream} before {latest[1]!r} of"
                f" {name_of(latest[2].transaction)} was sent, and stands behind it"
            )
            yield Anomaly("order", text, (latest[2].transaction.id, sent.transaction.id))
        if begun_at is not None and (latest is None or begun_at > latest[0]):
            latest = (begun_at, value, sent)


def _check_isolations(
    facts: HistoryFacts, stream: str, log: Sequence[Hashable]
) -> Iterator[Anomaly]:
    """Check that both isolation levels have the same order, and read_uncommitted has everything."""
    places = facts.raw_place.get(stream, {})
    before = -1
    for value in log:
        place = places.get(value)
        if place is None:
            text = f"{value!r} is in {stream} at read_committed, and not at read_uncommitted"
            yield Anomaly("lost", text)
        elif place < before:
            yield Anomaly("order", f"{value!r} has moved in {stream} between the two isolations")
        else:
            before = place


def _check_own(facts: HistoryFacts, transaction: RecordedTransaction) -> Iterator[Anomaly]:
    """Check that messages of a transaction are in order; adjacent, if they got offsets at once."""
    last: dict[str, tuple[int, Hashable]] = {}
    for append in appends_of(transaction):
        places = facts.raw_place.get(append.stream, {})
        for value in append.values:
            place = places.get(value)
            if place is None:
                continue
            before = last.get(append.stream)
            last[append.stream] = (place, value)
            if before is None or place == before[0] + 1:
                continue
            if transaction.is_inline and place > before[0]:
                continue
            text = (
                f"{name_of(transaction)} appended {before[1]!r} and then {value!r} to "
                f"{append.stream}, which are its numbers {before[0]} and {place}"
            )
            yield Anomaly("order", text, (transaction.id,))
