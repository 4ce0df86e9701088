"""What readers saw: pieces of the streams as they are in the end, decided and whole."""

from collections.abc import Hashable, Iterator

from semel.testing.txn_facts import Anomaly, Facts, Sent, appends_of, told
from semel.testing.txn_history import TransactionRead


def check_reads(facts: Facts) -> Iterator[Anomaly]:
    """Judge every read by itself; the first thing that is wrong with each."""
    for read in facts.reads():
        anomaly = _differs(facts, read) or _early(facts, read) or _behind(facts, read)
        if anomaly is not None:
            yield anomaly


def _differs(facts: Facts, read: TransactionRead) -> Anomaly | None:
    """Compare a read with the stream."""
    logs = facts.committed if read.is_committed else facts.uncommitted
    log = logs.get(read.stream, ())
    if list(read.values) == list(log[read.start : read.end]):
        return None
    there = [*log[read.start : read.end], *[None] * len(read.values)]
    at = next(i for i, value in enumerate(read.values) if value != there[i])
    return _difference(facts, read, read.start + at, read.values[at])


def _difference(facts: Facts, read: TransactionRead, number: int, value: Hashable) -> Anomaly:
    """Name what is wrong with a value that is not number `number` of its stream in the end."""
    who = f"{read.reader} was given {value!r} as number {number} of {read.stream}"
    sent = facts.sender(read.stream, value)
    if sent is None:
        return Anomaly("never_sent", f"{who}, and nobody has sent it there")
    by = told(sent.transaction)
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
    whose = "" if passed is None else f" of {told(passed.transaction)}"
    ids = ids if passed is None else (passed.transaction.id, *ids)
    return Anomaly("lost", f"{who}, and was never given {skipped!r}{whose} before it", ids)


def _early(facts: Facts, read: TransactionRead) -> Anomaly | None:
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
                f" by {told(sent.transaction)}"
            )
            return Anomaly("G1b", text, (sent.transaction.id,))
    return None


def _behind(facts: Facts, read: TransactionRead) -> Anomaly | None:
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


def _first_unseen(facts: Facts, read: TransactionRead) -> int:
    """Find where the uncommitted log goes on behind what a reader has seen."""
    log = facts.committed.get(read.stream, ())
    end = min(read.end, len(log))
    return facts.raw_place.get(read.stream, {}).get(log[end - 1], -1) + 1 if end else 0


def _is_seen(facts: Facts, read: TransactionRead, sent: Sent) -> bool:
    """Whether the reader has seen another message of the same transaction in this stream."""
    places = facts.place.get(read.stream, {})
    return any(
        places.get(append.values[0], read.end) < read.end
        for append in appends_of(sent.transaction)
        if append.stream == read.stream and append.values
    )


def _torn(read: TransactionRead, value: Hashable, sent: Sent, *, is_partly_seen: bool) -> Anomaly:
    by, ids = told(sent.transaction), (sent.transaction.id,)
    lacks = f"{read.reader} read {read.stream} up to number {read.end} and lacks {value!r} of {by}"
    if is_partly_seen:
        return Anomaly("G1b", f"{lacks}, of which it has seen another message there", ids)
    streams = {append.stream for append in appends_of(sent.transaction)}
    if len(streams) > 1:
        others = ", ".join(sorted(streams - {read.stream}))
        text = f"{lacks}, which was known to be committed before; it is also in {others}"
        return Anomaly("torn", text, ids)
    return Anomaly("stale", f"{lacks}, which was known to be committed before", ids)
