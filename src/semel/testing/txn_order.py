"""The order of messages in each stream, against the order in which they were sent."""

from collections.abc import Hashable, Iterator, Sequence

from semel.testing.txn_facts import Anomaly, Facts, Sent, appends_of, told
from semel.testing.txn_history import RecordedTransaction


def check_order(facts: Facts) -> Iterator[Anomaly]:
    """Judge the order of every stream."""
    for stream, log in facts.uncommitted.items():
        yield from _check_times(facts, stream, log)
    for stream, log in facts.committed.items():
        yield from _check_isolations(facts, stream, log)
    for transaction in facts.history.transactions:
        yield from _check_own(facts, transaction)


def _check_times(facts: Facts, stream: str, log: Sequence[Hashable]) -> Iterator[Anomaly]:
    """Nothing stands behind what began only after it had its place."""
    latest: tuple[int, Hashable, Sent] | None = None
    for value in log:
        sent = facts.sender(stream, value)
        if sent is None:
            continue
        begun_at, placed_by = facts.placed_between(sent)
        if latest is not None and placed_by is not None and placed_by < latest[0]:
            text = (
                f"{value!r} of {told(sent.transaction)} was in {stream} before {latest[1]!r} of"
                f" {told(latest[2].transaction)} was sent, and stands behind it"
            )
            yield Anomaly("order", text, (latest[2].transaction.id, sent.transaction.id))
        if begun_at is not None and (latest is None or begun_at > latest[0]):
            latest = (begun_at, value, sent)


def _check_isolations(facts: Facts, stream: str, log: Sequence[Hashable]) -> Iterator[Anomaly]:
    """Both isolations have the same order, and read_uncommitted has everything."""
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


def _check_own(facts: Facts, transaction: RecordedTransaction) -> Iterator[Anomaly]:
    """The messages of a transaction stand in order; side by side, if it had them at once."""
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
                f"{told(transaction)} appended {before[1]!r} and then {value!r} to {append.stream},"
                f" which are its numbers {before[0]} and {place}"
            )
            yield Anomaly("order", text, (transaction.id,))
