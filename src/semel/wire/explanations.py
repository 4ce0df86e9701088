"""What would happen to an append, and why, in words."""

from collections.abc import Mapping

from semel.model.commands import ProducerTag
from semel.model.offsets import print_offset
from semel.model.outcomes import Appended, Duplicate, Outcome
from semel.wire.refusals import STATUS, problem_of

_STORED = 200


def explain(
    outcome: Outcome, tag: ProducerTag, *, epoch: int | None, last_seq: int | None
) -> Mapping[str, object]:
    """Tell an outcome of an append; `epoch` and `last_seq` are what the stream knows, if it does.

    `outcome` is the stable code, `reason` is for people, `facts` are what the answer would carry.
    """
    if isinstance(outcome, Appended):
        reason = _why_stored(outcome, tag, epoch, last_seq)
        facts: Mapping[str, object] = {
            "first_offset": print_offset(outcome.first_offset),
            "epoch": outcome.epoch,
        }
        return _told(outcome, _STORED, reason, facts)
    if isinstance(outcome, Duplicate):
        return _told(outcome, STATUS[Duplicate], _why_repeated(outcome), _place_of(outcome))
    problem = problem_of(outcome)
    return _told(outcome, problem.status, problem.message, problem.facts)


def _told(
    outcome: Outcome, status: int, reason: str, facts: Mapping[str, object]
) -> Mapping[str, object]:
    return {"outcome": outcome.code, "status": status, "reason": reason, "facts": facts}


def _why_stored(
    outcome: Appended, tag: ProducerTag, epoch: int | None, last_seq: int | None
) -> str:
    if outcome.is_unguarded:
        return "it would be stored: the stream recognises no duplicates"
    begin = f"it would be stored under epoch {outcome.epoch}"
    if epoch is None or outcome.epoch is None:
        return f"{begin}: the stream does not know the producer yet"
    if outcome.epoch > epoch:
        return f"{begin}: a new epoch begins, and epoch {epoch} is fenced off"
    if last_seq is not None and last_seq < 0:
        return f"{begin}: it is the first one since the producer was claimed"
    return f"{begin}: sequence {tag.first_seq} comes after {last_seq}, the last one stored"


def _why_repeated(outcome: Duplicate) -> str:
    if outcome.next_offset is None:
        return (
            "it would be confirmed and not stored again: the sequence was stored, so long ago that"
            " its place is no longer remembered"
        )
    if outcome.is_mismatch:
        return (
            "it would be confirmed and not stored: the sequence was stored with another payload,"
            " and the first one stays"
        )
    return "it would be confirmed and not stored again: the same was stored before"


def _place_of(outcome: Duplicate) -> Mapping[str, object]:
    facts: dict[str, object] = {"epoch": outcome.epoch, "last_seq": outcome.seq}
    if outcome.first_offset is not None and outcome.next_offset is not None:
        facts["first_offset"] = print_offset(outcome.first_offset)
        facts["next_offset"] = print_offset(outcome.next_offset)
    return facts
