"""The transaction checker: it checks that transactions were atomic, also for readers.

It also checks workers that share a group: they must process every message once, and each must start
at the position where the previous one ended.

Values are unique, so each message identifies its transaction, and the checker need not search for
an order. It takes linear time in the size of the history. Only violations of what semel guarantees
are anomalies. These are not: reads of several streams are not a snapshot; a read may end before the
first message of an open inline transaction; and overlapping inline transactions may be in different
orders in different streams.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Final

from msgspec import Struct

from semel.testing.txn.facts import Anomaly, HistoryFacts, Log, Sent, appends_of, name_of
from semel.testing.txn.graph import Dependencies, cycles, graph_of
from semel.testing.txn.history import (
    RecordedTransaction,
    TransactionAppend,
    TransactionHistory,
    TransactionRead,
)
from semel.testing.txn.positions import check_shared

ANOMALIES_MAX: Final = 1_000


class TransactionReport(Struct, frozen=True):
    """The result of a check: the anomalies, and counts of what was checked.

    `committed` and `aborted` count the recorded outcomes. A transaction with an unknown outcome
    counts as `resolved_committed` if its messages or moves are visible, else as `resolved_aborted`.
    `edges` counts the edges of the dependency graph. `ranges` counts the ranges that committed
    transactions processed for shared groups. `refused` counts the transactions that were refused
    because of a position. `sets` and `deletes` count the sets and deletions that were done.
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
    """Compare a history with the final content of the streams; return the anomalies and counts.

    `committed` and `uncommitted` have every message of every stream, as read at read_committed and
    at read_uncommitted. `positions` are the final positions of groups, by group and stream.
    `incarnations` are the final incarnations of the streams in `positions`, as in the recorded
    moves. They are needed only if such a stream was deleted and created again. At most 1,000
    anomalies are returned. Before the call, every client and every transaction must have ended. No
    stream of the logs may be trimmed or deleted. Raises ValueError if a value was appended twice,
    or if too many moves of one group have no response.
    """
    facts = HistoryFacts(history, committed, uncommitted, positions or {})
    dependencies = Dependencies(facts)
    graph, edges = graph_of(dependencies)
    checks: tuple[Iterable[Anomaly], ...] = (
        check_ends(facts),
        check_order(facts),
        check_reads(facts),
        check_shared(facts, positions, incarnations),
        cycles(dependencies, graph),
    )
    every = list(zip(history.transactions, facts.is_committed, strict=True))
    outcomes = Counter((transaction.outcome, is_committed) for transaction, is_committed in every)
    return TransactionReport(
        list(islice(chain.from_iterable(checks), ANOMALIES_MAX)),
        committed=outcomes["committed", True],
        aborted=outcomes["aborted", False],
        resolved_committed=outcomes["unknown", True],
        resolved_aborted=outcomes["unknown", False],
        reads=sum(1 for _ in facts.reads()),
        edges=edges,
        ranges=sum(len(each.ranges) for each, is_committed in every if is_committed),
        refused=sum(each.refused_at is not None for each in history.transactions),
        sets=sum(change.is_done for change in history.sets),
        deletes=sum(change.is_done for change in history.deletes),
    )


# ---- reads ---------------------------------------------------------------------------------------
# Every read must return a part of the final stream. A read at read_committed must return only
# committed transactions, and each of them completely.


def check_reads(facts: HistoryFacts) -> Iterator[Anomaly]:
    """Check each read separately; yield the first anomaly of each."""
    for read in facts.reads():
        anomaly = _differs(facts, read) or _early(facts, read) or _incomplete(facts, read)
        if anomaly is not None:
            yield anomaly


def _differs(facts: HistoryFacts, read: TransactionRead) -> Anomaly | None:
    """Return the anomaly of the first difference between a read and the final stream, or None."""
    log = (facts.committed if read.is_committed else facts.uncommitted).get(read.stream, ())
    stored = list(log[read.start : read.end])
    if list(read.values) == stored:
        return None
    at = next(n for n, value in enumerate(read.values) if stored[n : n + 1] != [value])
    number, value = read.start + at, read.values[at]
    got = f"{read.reader} got {value!r} as number {number} of {read.stream}"
    sent = facts.sender(read.stream, value)
    if sent is None:
        return Anomaly("never_sent", f"{got}, and no transaction has sent it there")
    name, ids = name_of(sent.transaction), (sent.transaction.id,)
    final = (facts.numbers if read.is_committed else facts.raw_numbers)[read.stream].get(value)
    if final is None and read.is_committed and not facts.is_committed[sent.number]:
        return Anomaly("G1a", f"{got}, and {name} is not committed", ids)
    if final is None:
        return Anomaly("lost", f"{got}, and the final stream lacks it; {name} sent it", ids)
    if final < number:
        return Anomaly("duplicate", f"{got}, but in the final stream it is number {final}", ids)
    before = facts.sender(read.stream, log[number])
    text = f"{got}, and did not get {log[number]!r} before it"
    if before is None:
        return Anomaly("lost", text, ids)
    text += f", of {name_of(before.transaction)}"
    return Anomaly("lost", text, (before.transaction.id, *ids))


def _early(facts: HistoryFacts, read: TransactionRead) -> Anomaly | None:
    """Return the anomaly of a message that was read too early, or None.

    At read_committed that is before its commit was sent, otherwise before the message was sent.
    """
    for value in read.values:
        sent = facts.sender(read.stream, value)
        if sent is None:
            continue
        sent_at = sent.transaction.decide_at if read.is_committed else sent.append.invoked_at
        if sent_at is not None and sent_at > read.returned_at:
            what = "its commit" if read.is_committed else "it"
            text = (
                f"{read.reader} got {value!r} of {name_of(sent.transaction)} in {read.stream}"
                f" before {what} was sent"
            )
            return Anomaly("G1b", text, (sent.transaction.id,))
    return None


def _incomplete(facts: HistoryFacts, read: TransactionRead) -> Anomaly | None:
    """Return the anomaly of a message that a read lacks although its transaction was committed.

    There is one valid reason: an inline transaction was still open and has an earlier message. An
    anomaly is also a read of only a part of a transaction. Returns None if there is no anomaly.
    """
    if not (read.is_committed and read.is_up_to_date):
        return None
    log = facts.uncommitted.get(read.stream, ())
    for index in range(_first_unread(facts, read), len(log)):
        sent = facts.sender(read.stream, log[index])
        if sent is None:
            continue
        if facts.offset_times(sent)[0] > read.returned_at:
            return None  # this message, and all later ones, may have come after the read
        has_ended = facts.ended_by[sent.number] < read.invoked_at
        is_partly_read = _is_partly_read(facts, read, sent)
        if facts.is_committed[sent.number] and (has_ended or is_partly_read):
            return _torn(read, log[index], sent, is_partly_read=is_partly_read)
        if sent.transaction.is_inline and not has_ended:
            return None  # it may have been open during the read
    return None


def _first_unread(facts: HistoryFacts, read: TransactionRead) -> int:
    """Return the number, at read_uncommitted, of the message after the last one of a read."""
    log = facts.committed.get(read.stream, ())
    end = min(read.end, len(log))
    return facts.raw_numbers.get(read.stream, {}).get(log[end - 1], -1) + 1 if end else 0


def _is_partly_read(facts: HistoryFacts, read: TransactionRead, sent: Sent) -> bool:
    """Return whether the reader got another message of the same transaction in this stream."""
    numbers = facts.numbers.get(read.stream, {})
    return any(
        numbers.get(append.values[0], read.end) < read.end
        for append in appends_of(sent.transaction)
        if append.stream == read.stream and append.values
    )


def _torn(read: TransactionRead, value: Hashable, sent: Sent, *, is_partly_read: bool) -> Anomaly:
    name, ids = name_of(sent.transaction), (sent.transaction.id,)
    lacks = (
        f"{read.reader} read {read.stream} up to number {read.end} and did not get {value!r} of"
        f" {name}"
    )
    if is_partly_read:
        return Anomaly("G1b", f"{lacks}, of which it got another message there", ids)
    lacks += ", which was committed before the read"
    streams = {append.stream for append in appends_of(sent.transaction)}
    if len(streams) > 1:
        others = ", ".join(sorted(streams - {read.stream}))
        return Anomaly("torn", f"{lacks}; it is also in {others}", ids)
    return Anomaly("stale", lacks, ids)


# ---- final streams -------------------------------------------------------------------------------


def check_ends(facts: HistoryFacts) -> Iterator[Anomaly]:
    """Check the final content of the streams and the final positions of groups."""
    yield from _check_values(facts, facts.committed, "read_committed")
    yield from _check_values(facts, facts.uncommitted, "read_uncommitted")
    for number, transaction in enumerate(facts.history.transactions):
        yield from _check_visible(facts, transaction)
        yield from _check_refused(facts, transaction)
        if facts.is_committed[number] and transaction.decide_at is None:
            text = f"{name_of(transaction)} is visible, and its commit was never sent"
            yield Anomaly("G1a", text, (transaction.id,))
    # By group and stream, the transactions that move the position.
    movers: dict[tuple[str, str], list[int]] = {}
    for number, transaction in enumerate(facts.history.transactions):
        for where in transaction.moves:
            movers.setdefault(where, []).append(number)
    for where, numbers in movers.items():
        yield from _check_position(facts, where, numbers)


def _check_values(facts: HistoryFacts, logs: Log, isolation: str) -> Iterator[Anomaly]:
    """Check that every message was sent by a client and is stored only once."""
    for stream, log in logs.items():
        seen: set[Hashable] = set()
        for number, value in enumerate(log):
            sent = facts.sender(stream, value)
            where = f"{value!r} is number {number} of {stream} at {isolation}"
            if sent is None:
                yield Anomaly("never_sent", f"{where}, and no transaction has sent it there")
            elif value in seen:
                text = f"{where}, and was there before; {name_of(sent.transaction)} sent it once"
                yield Anomaly("duplicate", text, (sent.transaction.id,))
            seen.add(value)


def _check_visible(facts: HistoryFacts, transaction: RecordedTransaction) -> Iterator[Anomaly]:
    """Check that a transaction is completely visible if committed, and invisible if aborted."""
    visible: dict[str, Hashable] = {}  # the first value, by stream
    missing: dict[str, Hashable] = {}
    for append in appends_of(transaction):
        numbers = facts.numbers.get(append.stream, {})
        for value in append.values:
            (visible if value in numbers else missing).setdefault(append.stream, value)
    name, ids = name_of(transaction), (transaction.id,)
    if transaction.outcome == "aborted":
        if visible:
            yield Anomaly("G1a", f"{name} is aborted, and {_shown(visible)} is visible", ids)
    elif missing and visible:
        text = f"of {name}, {_shown(visible)} is visible, and {_shown(missing)} is not"
        yield Anomaly("torn", text, ids)
    elif missing and transaction.outcome == "committed":
        yield Anomaly("lost", f"{name} was acknowledged, and {_shown(missing)} is missing", ids)
    elif missing and facts.has_moved(transaction):
        text = f"{name} has moved a position, and {_shown(missing)} is missing"
        yield Anomaly("torn", text, ids)


def _check_refused(facts: HistoryFacts, transaction: RecordedTransaction) -> Iterator[Anomaly]:
    """Check that no message of a refused append is stored."""
    for step in transaction.steps:
        if not (isinstance(step, TransactionAppend) and step.is_refused):
            continue
        stored = [v for v in step.values if v in facts.raw_numbers.get(step.stream, {})]
        if stored:
            what = _shown({step.stream: stored[0]})
            text = f"an append of {name_of(transaction)} was refused, and {what} is stored"
            yield Anomaly("G1a", text, (transaction.id,))


def _check_position(
    facts: HistoryFacts, where: tuple[str, str], numbers: list[int]
) -> Iterator[Anomaly]:
    """Check that the final position of a group is the one of its last committed move.

    `numbers` are the transactions that move this position.
    """
    transactions = facts.history.transactions
    position = facts.positions.get(where)
    here = f"group {where[0]} is at {position} in {where[1]}"
    committed = [transactions[number] for number in numbers if facts.is_committed[number]]
    last = next((n for n in numbers if transactions[n].moves[where] == position), None)
    if last is None:
        if position is not None or committed:
            ids = tuple(transaction.id for transaction in committed[-1:])
            yield Anomaly("torn", f"{here}, and no transaction has moved it there", ids)
        return
    name, id = name_of(transactions[last]), transactions[last].id
    if not facts.is_committed[last]:
        yield Anomaly("G1a", f"{here}, and only {name} moves it there", (id,))
        return
    for later in committed:
        if later.decide_at is not None and later.decide_at > facts.ended_by[last]:
            text = f"{here}, where {name} moved it, and {name_of(later)} moved it after that"
            yield Anomaly("torn", text, (id, later.id))
            return


def _shown(values: Mapping[str, Hashable]) -> str:
    return ", ".join(f"{value!r} in {stream}" for stream, value in values.items())


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
    """Check that messages are in the order of time.

    If a message had its offset before another one was sent, it must be before the other one.
    """
    latest: tuple[int, Hashable, Sent] | None = None
    for value in log:
        sent = facts.sender(stream, value)
        if sent is None:
            continue
        sent_at, stored_by = facts.offset_times(sent)
        if latest is not None and stored_by < latest[0]:
            text = (
                f"{value!r} of {name_of(sent.transaction)} was in {stream} before {latest[1]!r} of"
                f" {name_of(latest[2].transaction)} was sent, but is stored after it"
            )
            yield Anomaly("order", text, (latest[2].transaction.id, sent.transaction.id))
        if latest is None or sent_at > latest[0]:
            latest = (sent_at, value, sent)


def _check_isolations(
    facts: HistoryFacts, stream: str, log: Sequence[Hashable]
) -> Iterator[Anomaly]:
    """Check that read_uncommitted has all messages of read_committed, in the same order."""
    numbers = facts.raw_numbers.get(stream, {})
    before = -1
    for value in log:
        number = numbers.get(value)
        if number is None:
            text = f"{value!r} is in {stream} at read_committed, and not at read_uncommitted"
            yield Anomaly("lost", text)
        elif number < before:
            text = f"{value!r} is in another order in {stream} at read_committed"
            yield Anomaly("order", f"{text} than at read_uncommitted")
        else:
            before = number


def _check_own(facts: HistoryFacts, transaction: RecordedTransaction) -> Iterator[Anomaly]:
    """Check that the messages of a transaction are in the order in which it appended them.

    Unless the transaction is inline, they must also be adjacent in each stream.
    """
    last: dict[str, tuple[int, Hashable]] = {}
    for append in appends_of(transaction):
        numbers = facts.raw_numbers.get(append.stream, {})
        for value in append.values:
            number = numbers.get(value)
            if number is None:
                continue
            before, earlier = last.get(append.stream, (number - 1, None))
            last[append.stream] = (number, value)
            if number != before + 1 and not (transaction.is_inline and number > before):
                text = (
                    f"{name_of(transaction)} appended {earlier!r} and then {value!r} to"
                    f" {append.stream}, which are its numbers {before} and {number}"
                )
                yield Anomaly("order", text, (transaction.id,))
