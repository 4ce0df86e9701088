"""Groups that several workers share: each message is taken once, unless somebody sets a group back.

For every group, stream and incarnation there must be an order of all that moved it in which each
committed transaction starts where the group was, from 0 on.
"""

from collections.abc import Iterator, Mapping

from semel.testing.txn_chain import NEVER, Chain, Step, Stuck
from semel.testing.txn_facts import Anomaly, Facts, appends_of, told
from semel.testing.txn_history import RecordedChange, RecordedTransaction

_Name = tuple[str, str, str]  # group, stream, incarnation


def check_shared(
    facts: Facts,
    positions: Mapping[tuple[str, str], int] | None,
    incarnations: Mapping[str, str] | None,
) -> Iterator[Anomaly]:
    """Judge the moves of groups by transactions that say where they started.

    `positions` and `incarnations` are what there is in the end; None: nobody has looked.
    """
    for transaction in facts.history.transactions:
        yield from _check_prepared(transaction)
    yield from _check_deletes(facts)
    steps = _steps(facts)
    ends = _ends(steps, positions, incarnations)
    for name in sorted(steps.keys() | ends.keys()):
        for stuck in Chain(steps.get(name, ()), ends.get(name)).stuck():
            yield _anomaly(name, stuck)


def _check_prepared(transaction: RecordedTransaction) -> Iterator[Anomaly]:
    """What is prepared is not refused any more."""
    prepared_at, refused_at = transaction.prepared_at, transaction.refused_at
    if prepared_at is not None and refused_at is not None and refused_at >= prepared_at:
        text = f"{told(transaction)} was prepared, and then refused because of a position"
        yield Anomaly("position", text, (transaction.id,))


def _check_deletes(facts: Facts) -> Iterator[Anomaly]:
    """Nothing that was taken from a stream is committed after its end, unless it was prepared."""
    ended: dict[tuple[str, str], int] = {}
    for change in facts.history.deletes:
        if change.returned_at is not None and not change.is_refused:
            ended[change.stream, change.incarnation] = change.returned_at
    for number, transaction in enumerate(facts.history.transactions):
        prepare_at, decide_at = transaction.prepare_at, transaction.decide_at
        asked_at = decide_at if prepare_at is None else prepare_at
        if asked_at is None or not facts.is_committed[number]:
            continue
        for (group, stream), taken in transaction.ranges.items():
            if ended.get((stream, taken.incarnation), NEVER) < asked_at:
                path = _path(stream, taken.incarnation)
                text = (
                    f"{told(transaction)} took {taken.start} to {taken.to} of {path} for group"
                    f" {group}; the stream was deleted before its commit was sent"
                )
                yield Anomaly("position", text, (transaction.id,))


def _path(stream: str, incarnation: str) -> str:
    return f"{stream} ({incarnation})" if incarnation else stream


# ---- what is known of every move -----------------------------------------------------------------


def _steps(facts: Facts) -> dict[_Name, list[Step]]:
    found: dict[_Name, list[Step]] = {}
    others = {where for each in facts.history.transactions for where in each.moves}
    for change in facts.history.sets:
        name = change.group, change.stream, change.incarnation
        if name[:2] not in others and not change.is_refused:
            found.setdefault(name, []).append(_step_of_set(change))
    for number, transaction in enumerate(facts.history.transactions):
        is_sure = facts.is_committed[number]
        is_open = transaction.outcome == "unknown" and not any(appends_of(transaction))
        if not (is_sure or is_open):
            continue
        for (group, stream), taken in transaction.ranges.items():
            low, high = _times(facts, number)
            step = Step(low, high, taken.start, taken.to, transaction, is_sure)
            found.setdefault((group, stream, taken.incarnation), []).append(step)
    return found


def _step_of_set(change: RecordedChange) -> Step:
    high = NEVER if change.returned_at is None else change.returned_at
    return Step(change.invoked_at, high, None, change.to)


def _times(facts: Facts, number: int) -> tuple[int, int]:
    """Return when a transaction moved its groups: not before, and not after."""
    transaction = facts.history.transactions[number]
    low = transaction.invoked_at if transaction.decide_at is None else transaction.decide_at
    known = (facts.decided_by[number], transaction.prepared_at)
    return low, min((time for time in known if time is not None), default=NEVER)


def _ends(
    steps: Mapping[_Name, object],
    positions: Mapping[tuple[str, str], int] | None,
    incarnations: Mapping[str, str] | None,
) -> dict[_Name, int]:
    """Return where groups are in the end, as far as it is known in which stream."""
    if positions is None:
        return {}
    known: dict[str, set[str]] = {}
    for _, stream, incarnation in steps:
        known.setdefault(stream, set()).add(incarnation)
    if incarnations is not None:
        known = {stream: {incarnations[stream]} for stream in known if stream in incarnations}
    found = {}
    for group, stream, _ in steps:
        if len(known.get(stream, ())) == 1:
            (incarnation,) = known[stream]
            found[group, stream, incarnation] = positions.get((group, stream), 0)
    return found


# ---- in words ------------------------------------------------------------------------------------


def _anomaly(name: _Name, stuck: Stuck) -> Anomaly:
    group, stream, incarnation = name
    path = _path(stream, incarnation)
    step, last = stuck.step, stuck.before[-1] if stuck.before else None
    ids = _ids(last, step, *stuck.inside)
    if stuck.inside:
        others = ", ".join(_made(each) for each in stuck.inside)
        text = f"{_who(step)} was prepared and held group {group} in {path}; meanwhile {others}"
        return Anomaly("position", text, ids)
    where = f"group {group} was at {stuck.position} in {path}, {_left(last)}"
    if step.is_end:
        return Anomaly("position", f"{where}, and in the end it is at {step.to}", ids)
    took = f"{_who(step)} took {step.start} to {step.to}"
    for earlier in stuck.before:
        if _is_shared(earlier, step):
            text = (
                f"{took} of {path} for group {group}, of which {_who(earlier)} had taken"
                f" {earlier.start} to {earlier.to}, and nobody set the group back between them"
            )
            return Anomaly("double", text, _ids(earlier, step))
    return Anomaly("position", f"{where}, and {took}", ids)


def _is_shared(one: Step, other: Step) -> bool:
    if one.start is None or other.start is None:
        return False
    return one.start < other.to and other.start < one.to


def _who(step: Step) -> str:
    return "a set" if step.transaction is None else told(step.transaction)


def _made(step: Step) -> str:
    if step.start is None:
        return f"it was set to {step.to}"
    return f"{_who(step)} took {step.start} to {step.to}"


def _left(step: Step | None) -> str:
    return "where it begins" if step is None else f"where {_who(step)} left it"


def _ids(*steps: Step | None) -> tuple[str, ...]:
    transactions = [step.transaction for step in steps if step is not None]
    return tuple(dict.fromkeys(each.id for each in transactions if each is not None))
