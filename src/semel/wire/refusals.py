"""From outcomes to what the server answers: a status, or the problem of a refusal."""

from collections.abc import Mapping
from typing import Final

from semel.model import outcomes as out
from semel.model import outcomes_txn as txn_out
from semel.model.offsets import print_offset
from semel.wire.problems import Entry, Fields, Problem
from semel.wire.refusal_table import REFUSALS

DONE: Final[Mapping[type[out.Outcome], int]] = {
    out.Created: 201,
    out.Appended: 204,
    out.Duplicate: 204,
    out.Deleted: 204,
    out.Trimmed: 204,
    out.Switched: 204,
    out.Expired: 204,
    out.Registered: 200,
    out.Claimed: 200,
    out.Forgotten: 204,
    txn_out.Begun: 201,
    txn_out.ExtendDone: 200,
    txn_out.Staged: 200,
    txn_out.Prepared: 200,
    txn_out.CommitDone: 200,
    txn_out.AbortDone: 200,
    txn_out.PositionsSet: 200,
    txn_out.Pinned: 200,
    txn_out.SinkChanged: 204,
}
_OUTCOMES: Final = {**vars(out), **vars(txn_out)}
REFUSED: Final[Mapping[type[out.Outcome], Entry]] = {
    _OUTCOMES[entry.outcome]: entry for entry in REFUSALS if entry.outcome
}
STATUS: Final[Mapping[type[out.Outcome], int]] = {
    **DONE,
    **{refusal: entry.status for refusal, entry in REFUSED.items()},
}

_NOTHING_YET: Final = -1  # the last sequence of a producer that was claimed and has not written
_OFFSETS: Final = frozenset({"next_offset", "head", "stable", "offset"})
_OPTIONAL: Final = ("incarnation", "mover", "reason")  # omitted if they are None
_WORTH_A_RETRY: Final = (
    out.DiskReadFailed,
    out.DiskFull,
    out.Overloaded,
    txn_out.UnstableOffsets,
)


def problem_of(outcome: out.Outcome, *, is_x: bool = False) -> Problem:
    """Return the problem that answers a refusal; `is_x` in the X-Producer-* dialect."""
    if isinstance(outcome, txn_out.StreamRefused):
        return _of_stream(outcome)
    entry = REFUSED[type(outcome)]
    facts = _facts_of(outcome, entry)
    headers: Fields = []
    if "next_offset" in facts:
        headers.append(("Stream-Next-Offset", str(facts["next_offset"])))
    if isinstance(outcome, out.StreamClosed):
        headers.append(("Stream-Closed", "true"))
    if isinstance(outcome, _WORTH_A_RETRY):
        headers.append(("Retry-After", "1"))
    headers.extend(_producer_headers(outcome, entry.status, facts, is_x=is_x))
    if isinstance(outcome, txn_out.InvalidTxnState):
        facts["expected_state"] = "open"
    if isinstance(outcome, txn_out.StaleTransaction):
        headers.append(("Transaction-Epoch", str(outcome.current_epoch)))
    text = entry.message
    message = text.format(outcome) if isinstance(text, str) else text(outcome)
    return Problem(entry.status, outcome.code, message, facts, headers)


def _facts_of(outcome: out.Outcome, entry: Entry) -> dict[str, object]:
    facts: dict[str, object] = {}
    for name in outcome.__struct_fields__:
        value = getattr(outcome, name)
        if value is None and name in _OPTIONAL:
            continue
        facts[entry.names.get(name, name)] = print_offset(value) if name in _OFFSETS else value
    if facts.get("last_seq") == _NOTHING_YET:
        facts["last_seq"] = None
    return facts


def _of_stream(outcome: txn_out.StreamRefused) -> Problem:
    """Return the problem of the one stream of several that refuses, with its path."""
    cause = problem_of(outcome.cause)
    message = f"{outcome.path}: {cause.message}"
    facts = {"stream": outcome.path, **cause.facts}
    return Problem(cause.status, cause.code, message, facts, cause.headers)


def _producer_headers(
    outcome: out.Outcome, status: int, facts: Mapping[str, object], *, is_x: bool
) -> Fields:
    headers: Fields = []
    if is_x and status == 403:
        headers.append(("X-Error", "stale-epoch"))
    if "current_epoch" in facts:
        name = "X-Current-Epoch" if is_x else "Producer-Epoch"
        headers.append((name, str(facts["current_epoch"])))
    if facts.get("last_seq") is not None and not is_x:
        headers.append(("Producer-Seq", str(facts["last_seq"])))
    if isinstance(outcome, out.SequenceGap):
        prefix = "X" if is_x else "Producer"
        headers.append((f"{prefix}-Expected-Seq", str(outcome.expected)))
        headers.append((f"{prefix}-Received-Seq", str(outcome.received)))
    return headers
