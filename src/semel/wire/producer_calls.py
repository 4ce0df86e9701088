"""The calls about producers themselves: register, claim, look, ask what would happen, reset."""

from collections.abc import Mapping, Set
from typing import Final

import msgspec
from msgspec import Struct

from semel.model.commands import (
    DENSE,
    SPARSE,
    ClaimProducer,
    ForgetProducer,
    ProducerTag,
    Register,
)
from semel.model.limits import PRODUCER_ID_BYTES_MAX, SESSION_BYTES_MAX
from semel.model.offsets import print_offset
from semel.model.outcomes import Appended, Claimed, Duplicate, Outcome, Registered
from semel.wire.headers import Headers, read_number, read_range, read_text, refuse_encoding
from semel.wire.problems import MalformedRequest, Problem, bad_request
from semel.wire.queries import parse_query, read_limit
from semel.wire.refusals import STATUS, problem_of
from semel.wire.rendering import Response
from semel.wire.responses import json_response, outcome_response

# The epoch of an identity in the older dialect; `/v1/producers` counts from 0.
FIRST_EPOCH_X: Final = 1
_LIST: Final = frozenset({"stream", "id", "after", "limit"})
_ONE: Final = frozenset({"stream", "id"})
_EXPLAIN: Final = frozenset({"stream", "id", "epoch", "session", "seq", "mode"})
_CREATED, _OK = 201, 200


class ProducerQuery(Struct, frozen=True):
    """Which producers to show: those of a stream, one of a stream, or an id's registration."""

    stream: str | None
    id: str | None
    after: str
    limit: int


class ExplainQuery(Struct, frozen=True):
    """The append somebody thinks of making."""

    stream: str
    tag: ProducerTag


# ---- register ------------------------------------------------------------------------------------


class _Register(Struct):
    producer_id: str | None = None


def parse_register(headers: Headers, body: bytes, *, now_ms: int) -> Register | Problem:
    """Read `{"producer_id": ...}`, or nothing at all for an id the server chooses."""
    try:
        refuse_encoding(headers)
        wanted = _read_register(body)
    except MalformedRequest as refusal:
        return refusal.problem
    return Register(now_ms, wanted)


def _read_register(body: bytes) -> str | None:
    if not body:
        return None
    try:
        wanted = msgspec.json.decode(body, type=_Register).producer_id
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        message = f'the body must be {{}} or {{"producer_id": "..."}}: {error}'
        raise bad_request("bad_body", message) from None
    if wanted is None:
        return None
    return read_text({"producer-id": wanted}, "producer-id", PRODUCER_ID_BYTES_MAX)


def register_response(outcome: Outcome) -> Response:
    """Answer a registration: 201 for a new id, 200 for a raised epoch."""
    if not isinstance(outcome, Registered):
        return outcome_response(outcome)
    found = {"producer_id": outcome.producer_id, "producer_epoch": outcome.epoch}
    return json_response(_OK if outcome.epoch else _CREATED, found)


def assigned_response(outcome: Outcome) -> Response:
    """Answer a stream's `/producer`, in the words of the older dialect."""
    if not isinstance(outcome, Registered):
        return outcome_response(outcome, is_x=True)
    found = {"producerId": outcome.producer_id, "epoch": outcome.epoch}
    return json_response(_CREATED, found)


# ---- claim ---------------------------------------------------------------------------------------


class _Claim(Struct):
    stream: str
    producer_id: str
    session: str
    mode: str = DENSE


def parse_claim(headers: Headers, body: bytes, *, now_ms: int) -> ClaimProducer | Problem:
    """Read who takes over which producer of which stream."""
    try:
        refuse_encoding(headers)
        return _read_claim(body, now_ms)
    except MalformedRequest as refusal:
        return refusal.problem


def _read_claim(body: bytes, now_ms: int) -> ClaimProducer:
    try:
        claim = msgspec.json.decode(body, type=_Claim)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        message = f'the body must be {{"stream", "producer_id", "session"}}: {error}'
        raise bad_request("bad_body", message) from None
    if claim.mode not in (DENSE, SPARSE):
        raise bad_request("bad_body", "mode must be dense or sparse", field="mode")
    given = {"producer-id": claim.producer_id, "producer-session": claim.session}
    name = read_text(given, "producer-id", PRODUCER_ID_BYTES_MAX)
    session = read_text(given, "producer-session", SESSION_BYTES_MAX)
    return ClaimProducer(claim.stream, now_ms, name or "", session or "", claim.mode)


def claim_response(outcome: Outcome, *, path: str) -> Response:
    """Answer a claim with the epoch it has, and what was stored before it."""
    if not isinstance(outcome, Claimed):
        return outcome_response(outcome)
    offset, cursor = outcome.last_offset, outcome.cursor
    found = {
        "stream": path,
        "producer_id": outcome.producer_id,
        "producer_epoch": outcome.epoch,
        "last_seq": outcome.last_seq,
        "last_offset": None if offset is None else print_offset(offset),
        "cursor": None if cursor is None else cursor.decode("utf-8", "replace"),
    }
    return json_response(_OK, found)


# ---- look, ask, reset ----------------------------------------------------------------------------


def parse_producer_query(query: str) -> ProducerQuery | Problem:
    """Read which producers to show."""
    try:
        given = parse_query(query, _LIST)
        if "stream" not in given and "id" not in given:
            raise bad_request("invalid_query", "stream or id must be given", field="stream")
        limit = read_limit(given.get("limit"))
    except MalformedRequest as refusal:
        return refusal.problem
    return ProducerQuery(given.get("stream"), given.get("id"), given.get("after", ""), limit)


def parse_forget(query: str, *, now_ms: int) -> ForgetProducer | Problem:
    """Read a reset of one producer on one stream."""
    try:
        given = _read_all(query, _ONE, _ONE)
    except MalformedRequest as refusal:
        return refusal.problem
    return ForgetProducer(given["stream"], now_ms, given["id"])


def parse_explain_query(query: str) -> ExplainQuery | Problem:
    """Read an append that is only thought of."""
    try:
        given = _read_all(query, _EXPLAIN, frozenset({"stream", "id", "seq"}))
        mode = given.get("mode", DENSE)
        if mode not in (DENSE, SPARSE):
            raise bad_request("invalid_query", "mode must be dense or sparse", field="mode")
        tag = _read_tag(given, mode)
    except MalformedRequest as refusal:
        return refusal.problem
    return ExplainQuery(given["stream"], tag)


def _read_tag(given: dict[str, str], mode: str) -> ProducerTag:
    """Read the parameters as the headers of the same meaning would be read."""
    name = read_text(given, "id", PRODUCER_ID_BYTES_MAX)
    span = read_range(given, "seq") if mode == SPARSE else None
    seq = read_number(given, "seq") if span is None else None
    session = read_text(given, "session", SESSION_BYTES_MAX)
    first, last = span or (seq or 0, seq or 0)
    return ProducerTag(name or "", first, last, read_number(given, "epoch"), session, mode)


def _read_all(query: str, known: Set[str], needed: Set[str]) -> dict[str, str]:
    given = parse_query(query, known)
    for name in sorted(needed - given.keys()):
        raise bad_request("invalid_query", f"{name} must be given", field=name)
    return given


# ---- explanations --------------------------------------------------------------------------------
# What would happen to an append, and why, in words.


_STORED = 200


def explain_outcome(
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
        return _sentence_of(outcome, _STORED, reason, facts)
    if isinstance(outcome, Duplicate):
        return _sentence_of(
            outcome, STATUS[Duplicate], _why_repeated(outcome), _offsets_text(outcome)
        )
    problem = problem_of(outcome)
    return _sentence_of(outcome, problem.status, problem.message, problem.facts)


def _sentence_of(
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


def _offsets_text(outcome: Duplicate) -> Mapping[str, object]:
    facts: dict[str, object] = {"epoch": outcome.epoch, "last_seq": outcome.seq}
    if outcome.first_offset is not None and outcome.next_offset is not None:
        facts["first_offset"] = print_offset(outcome.first_offset)
        facts["next_offset"] = print_offset(outcome.next_offset)
    return facts
