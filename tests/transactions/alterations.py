"""Alterations of the evidence of a correct run, one for each anomaly the checker can report."""

from collections.abc import Callable, Hashable
from random import Random
from typing import Final

from semel.testing import RecordedTransaction, TransactionAppend, TransactionRead
from tests.transactions.judge import Evidence
from tests.transactions.writers import STREAMS

Alteration = Callable[[Evidence, Random], None]
_LATE: Final = 2**62


def _appends(transaction: RecordedTransaction) -> list[TransactionAppend]:
    return [step for step in transaction.steps if isinstance(step, TransactionAppend)]


def _drawn(
    evidence: Evidence, random: Random, fits: Callable[[RecordedTransaction], bool]
) -> RecordedTransaction:
    return random.choice([each for each in evidence.history.transactions if fits(each)])


def _is_wide(transaction: RecordedTransaction) -> bool:
    return transaction.outcome == "committed" and len(_appends(transaction)) > 1


def _remove(evidence: Evidence, append: TransactionAppend) -> None:
    for logs in (evidence.committed, evidence.uncommitted):
        logs[append.stream].remove(append.values[0])


def _read(evidence: Evidence, random: Random, length: int) -> TransactionRead:
    reads = (read for read in evidence.history.reads if read.is_committed)
    return random.choice([read for read in reads if len(read.values) >= length])


def lose_a_stream(evidence: Evidence, random: Random) -> None:
    _remove(evidence, random.choice(_appends(_drawn(evidence, random, _is_wide))))


def lose_a_transaction(evidence: Evidence, random: Random) -> None:
    for append in _appends(_drawn(evidence, random, _is_wide)):
        _remove(evidence, append)


def tell_an_end_wrongly(evidence: Evidence, random: Random) -> None:
    _drawn(evidence, random, _is_wide).outcome = "aborted"


def double_a_message(evidence: Evidence, random: Random) -> None:
    append = _appends(_drawn(evidence, random, _is_wide))[0]
    for logs in (evidence.committed, evidence.uncommitted):
        logs[append.stream].append(append.values[0])


def turn_a_stream_around(evidence: Evidence, random: Random) -> None:
    stream = random.choice(STREAMS)
    for logs in (evidence.committed, evidence.uncommitted):
        logs[stream].reverse()


def read_too_early(evidence: Evidence, random: Random) -> None:
    read = _read(evidence, random, 1)
    values = set(read.values)
    owner = _drawn(evidence, random, lambda each: bool(values & set(_values(each))))
    assert owner.decide_at is not None
    read.returned_at = owner.decide_at - 1


def _values(transaction: RecordedTransaction) -> list[Hashable]:
    return [append.values[0] for append in _appends(transaction)]


def skip_a_message(evidence: Evidence, random: Random) -> None:
    read = _read(evidence, random, 3)
    read.values = [read.values[0], *read.values[2:]]


def read_a_message_twice(evidence: Evidence, random: Random) -> None:
    read = _read(evidence, random, 2)
    read.values = [read.values[0], read.values[0], *read.values[1:]]


def read_what_was_aborted(evidence: Evidence, random: Random) -> None:
    aborted = _drawn(
        evidence,
        random,
        lambda each: each.outcome == "aborted" and bool(_appends(each)),
    )
    append = _appends(aborted)[0]
    reads = [read for read in evidence.history.reads if read.stream == append.stream]
    read = random.choice([read for read in reads if read.is_committed])
    read.values = [*read.values, append.values[0]]


def end_a_read_early(evidence: Evidence, random: Random) -> None:
    """Remove the last value from every complete read that began after the value was committed.

    One such read is not enough: an open older transaction may have hidden the value from that read.
    """
    ends = {
        value: each.returned_at or _LATE
        for each in evidence.history.transactions
        for value in _values(each)
        if each.outcome == "committed" and len(_appends(each)) > 1
    }
    for read in evidence.history.reads:
        is_whole = read.is_up_to_date and read.is_committed and read.values
        if is_whole and ends.get(read.values[-1], _LATE) < read.invoked_at:
            read.values = read.values[:-1]


def read_in_a_circle(evidence: Evidence, random: Random) -> None:
    """Record that two transactions read values of each other."""
    one, two = _drawn(evidence, random, _is_wide), _drawn(evidence, random, _is_wide)
    while set(_streams(one)) & set(_streams(two)):
        two = _drawn(evidence, random, _is_wide)
    for reader, other in ((one, two), (two, one)):
        append = _appends(other)[0]
        start = evidence.committed[append.stream].index(append.values[0])
        reader.read(append.stream, append.values, start=start, invoked_at=0, is_up_to_date=False)


def _streams(transaction: RecordedTransaction) -> list[str]:
    return [append.stream for append in _appends(transaction)]


def place_in_two_orders(evidence: Evidence, random: Random) -> None:
    """Swap two one-shot commits in one of the streams they share, and drop all reads."""
    shots = [
        each for each in evidence.history.transactions if _is_wide(each) and each.kind == "one-shot"
    ]
    pairs = (
        (one, two)
        for one in shots
        for two in shots
        if one is not two and len(set(_streams(one)) & set(_streams(two))) > 1
    )
    one, two = next(pairs)
    stream = next(stream for stream in _streams(one) if stream in _streams(two))
    mine = next(each.values[0] for each in _appends(one) if each.stream == stream)
    other = next(each.values[0] for each in _appends(two) if each.stream == stream)
    for logs in (evidence.committed, evidence.uncommitted):
        log = logs[stream]
        i, j = log.index(mine), log.index(other)
        log[i], log[j] = log[j], log[i]
    evidence.history.reads.clear()
    for each in evidence.history.transactions:
        each.steps = list(_appends(each))


def put_a_group_back(evidence: Evidence, random: Random) -> None:
    moved = {where for where, place in evidence.positions.items() if place > 1}
    own = {where for each in evidence.history.transactions for where in each.moves}
    del evidence.positions[random.choice(sorted(moved & own))]


def go_back(evidence: Evidence, random: Random) -> None:
    """Record an empty read by a reader that has read values before."""
    read = _read(evidence, random, 1)
    evidence.history.read(read.stream, [], start=0, invoked_at=0, reader=read.reader)


# Each alteration, and the anomalies of which at least one must be reported.
ALTERATIONS: Final[tuple[tuple[Alteration, str], ...]] = (
    (lose_a_stream, "torn"),
    (lose_a_transaction, "lost"),
    (tell_an_end_wrongly, "G1a"),
    (double_a_message, "duplicate"),
    (turn_a_stream_around, "order"),
    (read_too_early, "G1b"),
    (skip_a_message, "lost"),
    (read_a_message_twice, "duplicate"),
    (read_what_was_aborted, "G1a"),
    (end_a_read_early, "torn"),
    (read_in_a_circle, "G1c"),
    (place_in_two_orders, "G0"),
    (put_a_group_back, "torn"),
    (go_back, "G-single|G2"),
)
