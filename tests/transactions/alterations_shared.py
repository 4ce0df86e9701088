"""Alterations of the evidence of a correct run, for workers that share groups."""

from collections.abc import Iterator
from random import Random
from typing import Final

from semel.testing import RecordedTransaction, TransactionRange
from tests.transactions.alterations import Alteration
from tests.transactions.judge import Evidence

_FAR: Final = 1_000_000
_Name = tuple[str, str]  # group and stream
_Move = tuple[_Name, TransactionRange, RecordedTransaction]


def _moves(evidence: Evidence) -> list[_Move]:
    """Return the ranges that committed transactions consumed, in the order of their responses."""
    found = [
        (name, taken, each)
        for each in evidence.history.transactions
        if each.outcome == "committed"
        for name, taken in each.ranges.items()
    ]
    return sorted(found, key=lambda move: move[2].returned_at or 0)


def _joined(evidence: Evidence) -> Iterator[tuple[_Move, _Move]]:
    """Yield adjacent ranges whose commits cannot overlap, with no set of the group in between."""
    last: dict[tuple[_Name, str], _Move] = {}
    for move in _moves(evidence):
        name, taken, later = move
        before = last.get((name, taken.incarnation))
        last[name, taken.incarnation] = move
        if before is None or before[1].to != taken.start or later.decide_at is None:
            continue
        begun, ended = before[2].invoked_at, later.returned_at or 0
        is_set = any(
            (each.group, each.stream) == name
            and each.invoked_at < ended
            and (each.returned_at is None or each.returned_at > begun)
            for each in evidence.history.sets
        )
        if not is_set and (before[2].returned_at or 0) < later.decide_at:
            yield before, move


def take_messages_twice(evidence: Evidence, random: Random) -> None:
    (_, first, _), (name, taken, later) = random.choice(list(_joined(evidence)))
    later.ranges[name] = TransactionRange(first.start, taken.to, taken.incarnation)


def skip_messages(evidence: Evidence, random: Random) -> None:
    _, (name, taken, later) = random.choice(list(_joined(evidence)))
    # A transaction of unknown outcome could explain a small gap, so the gap must be large.
    start, to = taken.start + _FAR, taken.to + _FAR
    later.ranges[name] = TransactionRange(start, to, taken.incarnation)


def forget_the_sets(evidence: Evidence, random: Random) -> None:
    evidence.history.sets.clear()


def refuse_what_was_prepared(evidence: Evidence, random: Random) -> None:
    prepared = [each for _, _, each in _moves(evidence) if each.prepared_at is not None]
    transaction = random.choice(prepared)
    transaction.refused_at = transaction.decide_at


def move_what_is_held(evidence: Evidence, random: Random) -> None:
    held = [move for move in _moves(evidence) if move[2].prepared_at is not None]
    (group, stream), taken, transaction = random.choice(held)
    assert transaction.prepared_at is not None
    assert transaction.decide_at is not None
    change = evidence.history.set_position(
        group, stream, taken.start, incarnation=taken.incarnation
    )
    change.invoked_at = transaction.prepared_at + 1
    change.returned_at = transaction.decide_at - 1


def delete_before_a_commit(evidence: Evidence, random: Random) -> None:
    plain = [move for move in _moves(evidence) if move[2].prepare_at is None]
    (_, stream), taken, transaction = random.choice(plain)
    assert transaction.decide_at is not None
    change = evidence.history.delete(stream, incarnation=taken.incarnation)
    change.returned_at = transaction.decide_at - 1


def put_a_shared_group_elsewhere(evidence: Evidence, random: Random) -> None:
    (name, _, _) = random.choice(_moves(evidence))
    evidence.positions[name] = evidence.positions.get(name, 0) + 1


# Each alteration, and the anomaly that must be reported.
SHARED_ALTERATIONS: Final[tuple[tuple[Alteration, str], ...]] = (
    (take_messages_twice, "double"),
    (skip_messages, "position"),
    (forget_the_sets, "double"),
    (refuse_what_was_prepared, "position"),
    (move_what_is_held, "position"),
    (delete_before_a_commit, "position"),
    (put_a_shared_group_elsewhere, "position"),
)
