"""Checks of the final streams: transactions are atomic, as acknowledged, and in order."""

from collections.abc import Hashable, Iterator, Sequence

from semel.testing.txn.facts import Anomaly, HistoryFacts, Log, Sent, appends_of, name_of
from semel.testing.txn.history import RecordedTransaction, TransactionAppend


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
