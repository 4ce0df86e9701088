"""The transaction checker: checks that transactions are atomic.

A read must never return only a part of a transaction's messages in a stream. Workers that share a
group must process every message once. Each worker must start where the previous worker ended.

Every appended value must be unique, so that each message identifies its transaction.

An anomaly is a violation of a guarantee. These cases are allowed, so they are not anomalies:

- Reads of several streams are not a snapshot.
- A read can end before the first message of an open inline transaction. Such a transaction stores
  its messages in the stream before the commit.
- Overlapping inline transactions can be in different orders in different streams.
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

    - `committed` and `aborted` count the transactions with a recorded outcome.
    - `resolved_committed` counts the transactions with an unknown outcome and a visible effect: a
      message or a new position. `resolved_aborted` counts those without a visible effect.
    - `reads` counts the reads. `edges` counts the edges of the dependency graph.
    - `ranges` counts the ranges of messages that committed transactions processed for groups.
    - `refused` counts the transactions that were refused because of a group's position.
    - `sets` counts the acknowledged requests that set a position outside any transaction.
    - `deletes` counts the acknowledged deletions of streams.
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
                f" {self.ranges:,} ranges processed for groups, {self.refused:,} transactions"
                f" refused, {self.sets:,} positions set, {self.deletes:,} streams deleted;"
            )
        return (
            f"transactions: {self.committed:,} committed, {self.aborted:,} aborted,"
            f" {self.resolved_committed:,} without a response but visible,"
            f" {self.resolved_aborted:,} without a response and not visible;"
            f"{shared} {self.reads:,} reads, {self.edges:,} dependencies,"
            f" {len(self.anomalies)} anomalies"
        )


def check_transactions(
    history: TransactionHistory,
    committed: Log,
    uncommitted: Log,
    *,
    positions: Mapping[tuple[str, str], int] | None = None,
    incarnations: Mapping[str, str] | None = None,
) -> TransactionReport:
    """Compare a history with the final content of the streams. Return the anomalies and counts.

    `committed` and `uncommitted` map each output stream to all its messages, as read at
    read_committed and at read_uncommitted. Output streams must never have been trimmed or deleted.
    All clients and all transactions must have ended.

    `positions` maps each group and input stream to the group's final position. If an input stream
    was deleted and created again, pass `incarnations`. It maps each input stream to its final
    incarnation: the string that was passed to `move`.

    At most 1,000 anomalies are returned. Raises ValueError if a value was appended twice, or if too
    many changes of one group's position have no response.
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
# messages of committed transactions, and must not return only a part of a transaction.


def check_reads(facts: HistoryFacts) -> Iterator[Anomaly]:
    """Check each read separately. Yield at most one anomaly for each read."""
    for read in facts.reads():
        anomaly = _differs(facts, read) or _early(facts, read) or _incomplete(facts, read)
        if anomaly is not None:
            yield anomaly


def _differs(facts: HistoryFacts, read: TransactionRead) -> Anomaly | None:
    """Return an anomaly that describes the first difference between a read and the final stream.

    Return None if there is no difference.
    """
    log = (facts.committed if read.is_committed else facts.uncommitted).get(read.stream, ())
    stored = list(log[read.start : read.end])
    if list(read.values) == stored:
        return None
    at = next(n for n, value in enumerate(read.values) if stored[n : n + 1] != [value])
    number, value = read.start + at, read.values[at]
    got = f"{read.reader} got {value!r} as message {number} of {read.stream}"
    sent = facts.sender(read.stream, value)
    if sent is None:
        return Anomaly("never_sent", f"{got}, but this message was never sent to this stream")
    name, ids = name_of(sent.transaction), (sent.transaction.id,)
    final = (facts.numbers if read.is_committed else facts.raw_numbers)[read.stream].get(value)
    if final is None and read.is_committed and not facts.is_committed[sent.number]:
        return Anomaly("G1a", f"{got}, but {name}, which sent it, is not committed", ids)
    if final is None:
        return Anomaly("lost", f"{got}, but this message of {name} is not in the final stream", ids)
    if final < number:
        return Anomaly("duplicate", f"{got}, but it is message {final} of the final stream", ids)
    before = facts.sender(read.stream, log[number])
    text = f"{got}, but did not get the earlier message {log[number]!r}"
    if before is None:
        return Anomaly("lost", text, ids)
    text += f"; the missing message was sent by {name_of(before.transaction)}"
    return Anomaly("lost", text, (before.transaction.id, *ids))


def _early(facts: HistoryFacts, read: TransactionRead) -> Anomaly | None:
    """Return an anomaly if a message was read too early. Otherwise return None.

    At read_uncommitted, a message must not be read before it was sent. At read_committed, it must
    not be read before the commit of its transaction was sent.
    """
    for value in read.values:
        sent = facts.sender(read.stream, value)
        if sent is None:
            continue
        sent_at = sent.transaction.decide_at if read.is_committed else sent.append.invoked_at
        if sent_at is not None and sent_at > read.returned_at:
            what = "the commit" if read.is_committed else "the message"
            text = (
                f"{read.reader} got {value!r} of {name_of(sent.transaction)} in {read.stream}"
                f" before {what} was sent"
            )
            return Anomaly("G1b", text, (sent.transaction.id,))
    return None


def _incomplete(facts: HistoryFacts, read: TransactionRead) -> Anomaly | None:
    """Return an anomaly if a read did not return all required messages. Otherwise return None.

    Only reads at read_committed that reached the end of the stream are checked. Such a read must
    return all messages of a transaction if it returned one of them, or if the transaction was
    committed before the read. However, a read can stop where an open inline transaction begins.
    """
    if not (read.is_committed and read.is_up_to_date):
        return None
    log = facts.uncommitted.get(read.stream, ())
    for index in range(_first_unread(facts, read), len(log)):
        sent = facts.sender(read.stream, log[index])
        if sent is None:
            continue
        if facts.offset_times(sent)[0] > read.returned_at:
            return None  # this message and all later messages may have come after the read
        has_ended = facts.ended_by[sent.number] < read.invoked_at
        is_partly_read = _is_partly_read(facts, read, sent)
        if facts.is_committed[sent.number] and (has_ended or is_partly_read):
            return _torn(read, log[index], sent, is_partly_read=is_partly_read)
        if sent.transaction.is_inline and not has_ended:
            return None  # this transaction may have been open during the read
    return None


def _first_unread(facts: HistoryFacts, read: TransactionRead) -> int:
    """Return the index in `facts.uncommitted[read.stream]` of the first message after `read`.

    This index can differ from `read.end`, because `read.end` counts only committed messages.
    """
    log = facts.committed.get(read.stream, ())
    end = min(read.end, len(log))
    return facts.raw_numbers.get(read.stream, {}).get(log[end - 1], -1) + 1 if end else 0


def _is_partly_read(facts: HistoryFacts, read: TransactionRead, sent: Sent) -> bool:
    """Return True if `sent.transaction` has a message in this stream before the end of `read`."""
    numbers = facts.numbers.get(read.stream, {})
    return any(
        numbers.get(append.values[0], read.end) < read.end
        for append in appends_of(sent.transaction)
        if append.stream == read.stream and append.values
    )


def _torn(read: TransactionRead, value: Hashable, sent: Sent, *, is_partly_read: bool) -> Anomaly:
    name, ids = name_of(sent.transaction), (sent.transaction.id,)
    lacks = (
        f"{read.reader} read {read.stream} up to message {read.end} and did not get {value!r} of"
        f" {name}"
    )
    if is_partly_read:
        return Anomaly("G1b", f"{lacks}, but got a different message of that transaction", ids)
    lacks += "; that transaction was committed before the read"
    streams = {append.stream for append in appends_of(sent.transaction)}
    if len(streams) > 1:
        others = ", ".join(sorted(streams - {read.stream}))
        return Anomaly("torn", f"{lacks}, and the transaction also wrote to {others}", ids)
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
            text = f"{name_of(transaction)} is visible, but its commit was never sent"
            yield Anomaly("G1a", text, (transaction.id,))
    # Maps each group and stream to the transactions that move the position.
    movers: dict[tuple[str, str], list[int]] = {}
    for number, transaction in enumerate(facts.history.transactions):
        for where in transaction.moves:
            movers.setdefault(where, []).append(number)
    for where, numbers in movers.items():
        yield from _check_position(facts, where, numbers)


def _check_values(facts: HistoryFacts, logs: Log, isolation: str) -> Iterator[Anomaly]:
    """Check that each stored message was sent by a transaction, and is stored only once."""
    for stream, log in logs.items():
        seen: set[Hashable] = set()
        for number, value in enumerate(log):
            sent = facts.sender(stream, value)
            where = f"{value!r} is message {number} of {stream} at {isolation}"
            if sent is None:
                yield Anomaly("never_sent", f"{where}, but was never sent to this stream")
            elif value in seen:
                text = f"{where} and also occurs earlier; {name_of(sent.transaction)} sent it once"
                yield Anomaly("duplicate", text, (sent.transaction.id,))
            seen.add(value)


def _check_visible(facts: HistoryFacts, transaction: RecordedTransaction) -> Iterator[Anomaly]:
    """Check that a transaction is completely visible if committed, and invisible if aborted."""
    visible: dict[str, Hashable] = {}  # maps each stream to the first visible value
    missing: dict[str, Hashable] = {}  # maps each stream to the first missing value
    for append in appends_of(transaction):
        numbers = facts.numbers.get(append.stream, {})
        for value in append.values:
            (visible if value in numbers else missing).setdefault(append.stream, value)
    name, ids = name_of(transaction), (transaction.id,)
    if transaction.outcome == "aborted":
        if visible:
            yield Anomaly("G1a", f"{name} is aborted, but {_shown(visible)} is visible", ids)
    elif missing and visible:
        text = f"only a part of {name} is visible: {_shown(visible)}, but not {_shown(missing)}"
        yield Anomaly("torn", text, ids)
    elif missing and transaction.outcome == "committed":
        yield Anomaly("lost", f"{name} was acknowledged, but {_shown(missing)} is missing", ids)
    elif missing and facts.has_moved(transaction):
        text = f"{name} has moved a group's position, but {_shown(missing)} is missing"
        yield Anomaly("torn", text, ids)


def _check_refused(facts: HistoryFacts, transaction: RecordedTransaction) -> Iterator[Anomaly]:
    """Check that no message of a refused append is stored."""
    for step in transaction.steps:
        if not (isinstance(step, TransactionAppend) and step.is_refused):
            continue
        stored = [v for v in step.values if v in facts.raw_numbers.get(step.stream, {})]
        if stored:
            what = _shown({step.stream: stored[0]})
            text = f"an append of {name_of(transaction)} was refused, but {what} is stored"
            yield Anomaly("G1a", text, (transaction.id,))


def _check_position(
    facts: HistoryFacts, where: tuple[str, str], numbers: list[int]
) -> Iterator[Anomaly]:
    """Check that a group's final position is where the last committed transaction moved it.

    `where` contains the group and the stream. `numbers` contains the indexes of all transactions
    that move the group's position in this stream.
    """
    transactions = facts.history.transactions
    position = facts.positions.get(where)
    here = f"group {where[0]} is at position {position} in {where[1]}"
    committed = [transactions[number] for number in numbers if facts.is_committed[number]]
    last = next((n for n in numbers if transactions[n].moves[where] == position), None)
    if last is None:
        if position is not None or committed:
            ids = tuple(transaction.id for transaction in committed[-1:])
            yield Anomaly("torn", f"{here}, but no transaction moved it there", ids)
        return
    name, id = name_of(transactions[last]), transactions[last].id
    if not facts.is_committed[last]:
        yield Anomaly("G1a", f"{here}, but {name}, which moves it there, is not committed", (id,))
        return
    for later in committed:
        if later.decide_at is not None and later.decide_at > facts.ended_by[last]:
            text = f"{here}, where {name} moved it, but {name_of(later)} then moved it away"
            yield Anomaly("torn", text, (id, later.id))
            return


def _shown(values: Mapping[str, Hashable]) -> str:
    return ", ".join(f"{value!r} in {stream}" for stream, value in values.items())


# ---- order ---------------------------------------------------------------------------------------


def check_order(facts: HistoryFacts) -> Iterator[Anomaly]:
    """Check that the messages of every stream are in the order in which they were sent."""
    for stream, log in facts.uncommitted.items():
        yield from _check_times(facts, stream, log)
    for stream, log in facts.committed.items():
        yield from _check_isolations(facts, stream, log)
    for transaction in facts.history.transactions:
        yield from _check_own(facts, transaction)


def _check_times(facts: HistoryFacts, stream: str, log: Sequence[Hashable]) -> Iterator[Anomaly]:
    """Check that the order of a stream agrees with the times of its appends.

    If message A got its offset before message B could get one, A must be before B in the stream.
    """
    latest: tuple[int, Hashable, Sent] | None = None
    for value in log:
        sent = facts.sender(stream, value)
        if sent is None:
            continue
        sent_at, stored_by = facts.offset_times(sent)
        if latest is not None and stored_by < latest[0]:
            text = (
                f"{value!r} of {name_of(sent.transaction)} is stored after {latest[1]!r} of"
                f" {name_of(latest[2].transaction)} in {stream}, but got its offset earlier"
            )
            yield Anomaly("order", text, (latest[2].transaction.id, sent.transaction.id))
        if latest is None or sent_at > latest[0]:
            latest = (sent_at, value, sent)


def _check_isolations(
    facts: HistoryFacts, stream: str, log: Sequence[Hashable]
) -> Iterator[Anomaly]:
    """Check that both isolation levels agree.

    A read at read_uncommitted must contain all committed messages, in the same order.
    """
    numbers = facts.raw_numbers.get(stream, {})
    before = -1
    for value in log:
        number = numbers.get(value)
        if number is None:
            text = f"{value!r} is in {stream} at read_committed, but not at read_uncommitted"
            yield Anomaly("lost", text)
        elif number < before:
            text = f"{value!r} has different places in {stream} at the two isolation levels"
            yield Anomaly("order", f"{text}, read_committed and read_uncommitted")
        else:
            before = number


def _check_own(facts: HistoryFacts, transaction: RecordedTransaction) -> Iterator[Anomaly]:
    """Check that the messages of a transaction are in the order in which they were appended.

    In a staged transaction or a one-shot commit, they must also be adjacent in each stream.
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
                    f"{append.stream} has messages in the wrong places: {name_of(transaction)}"
                    f" appended {earlier!r} (message {before}), then {value!r} (message {number})"
                )
                yield Anomaly("order", text, (transaction.id,))
