"""`/v1/producers`: register, claim, show, explain and forget."""

from collections.abc import Set
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
from semel.wire.problems import bad_request, parser
from semel.wire.rendering import STATUS, Response, problem_of
from semel.wire.requests import parse_query, read_limit
from semel.wire.responses import json_response, outcome_response
from semel.wire.schema.producers import (
    AssignedProducer,
    ClaimRequest,
    Explanation,
    ProducerClaim,
    RegisterRequest,
    Registration,
)

# The epoch of an identity in the older dialect; `/v1/producers` counts from 0.
FIRST_EPOCH_X: Final = 1
_LIST_PARAMETERS: Final = frozenset({"stream", "id", "after", "limit"})
_FORGET_PARAMETERS: Final = frozenset({"stream", "id"})
_EXPLAIN_PARAMETERS: Final = frozenset({"stream", "id", "epoch", "session", "seq", "mode"})
_EXPLAIN_REQUIRED: Final = frozenset({"stream", "id", "seq"})
_STORED: Final = 200


class ProducerQuery(Struct, frozen=True):
    """Which producers to show: those of a stream, one of a stream, or an id's registration."""

    stream: str | None
    id: str | None
    after: str
    limit: int


class ExplainQuery(Struct, frozen=True):
    """The append to explain."""

    stream: str
    tag: ProducerTag


# ---- requests ------------------------------------------------------------------------------------


@parser
def parse_register(headers: Headers, body: bytes, *, now_ms: int) -> Register:
    """Parse a registration; with an empty body the server chooses the id."""
    refuse_encoding(headers)
    try:
        producer_id = msgspec.json.decode(body or b"{}", type=RegisterRequest).producer_id
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        message = f'the body must be {{}} or {{"producer_id": "..."}}: {error}'
        raise bad_request("bad_body", message) from None
    if producer_id is not None:
        read_text({"producer-id": producer_id}, "producer-id", PRODUCER_ID_BYTES_MAX)
    return Register(now_ms, producer_id)


@parser
def parse_claim(headers: Headers, body: bytes, *, now_ms: int) -> ClaimProducer:
    """Parse a claim: the stream, the producer and the session that takes it over."""
    refuse_encoding(headers)
    try:
        claim = msgspec.json.decode(body, type=ClaimRequest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        message = f'the body must be {{"stream", "producer_id", "session"}}: {error}'
        raise bad_request("bad_body", message) from None
    if claim.mode not in (DENSE, SPARSE):
        raise bad_request("bad_body", "mode must be dense or sparse", field="mode")
    as_headers = {"producer-id": claim.producer_id, "producer-session": claim.session}
    name = read_text(as_headers, "producer-id", PRODUCER_ID_BYTES_MAX)
    session = read_text(as_headers, "producer-session", SESSION_BYTES_MAX)
    return ClaimProducer(claim.stream, now_ms, name or "", session or "", claim.mode)


@parser
def parse_producer_query(query: str) -> ProducerQuery:
    """Parse which producers to show."""
    parameters = parse_query(query, _LIST_PARAMETERS)
    if "stream" not in parameters and "id" not in parameters:
        raise bad_request("invalid_query", "stream or id must be given", field="stream")
    limit = read_limit(parameters.get("limit"))
    stream, name = parameters.get("stream"), parameters.get("id")
    return ProducerQuery(stream, name, parameters.get("after", ""), limit)


@parser
def parse_forget(query: str, *, now_ms: int) -> ForgetProducer:
    """Parse a request to forget one producer of one stream."""
    parameters = _parse_required(query, _FORGET_PARAMETERS, _FORGET_PARAMETERS)
    return ForgetProducer(parameters["stream"], now_ms, parameters["id"])


@parser
def parse_explain_query(query: str) -> ExplainQuery:
    """Parse the append to explain; its parameters are checked like the headers of an append."""
    parameters = _parse_required(query, _EXPLAIN_PARAMETERS, _EXPLAIN_REQUIRED)
    mode = parameters.get("mode", DENSE)
    if mode not in (DENSE, SPARSE):
        raise bad_request("invalid_query", "mode must be dense or sparse", field="mode")
    name = read_text(parameters, "id", PRODUCER_ID_BYTES_MAX) or ""
    if mode == SPARSE:
        first, last = read_range(parameters, "seq") or (0, 0)
    else:
        first = last = read_number(parameters, "seq") or 0
    session = read_text(parameters, "session", SESSION_BYTES_MAX)
    epoch = read_number(parameters, "epoch")
    tag = ProducerTag(name, first, last, epoch, session, mode)
    return ExplainQuery(parameters["stream"], tag)


def _parse_required(query: str, names: Set[str], required: Set[str]) -> dict[str, str]:
    parameters = parse_query(query, names)
    for name in sorted(required - parameters.keys()):
        raise bad_request("invalid_query", f"{name} must be given", field=name)
    return parameters


# ---- responses -----------------------------------------------------------------------------------


def register_response(outcome: Outcome) -> Response:
    """Answer a registration: 201 for a new id, 200 for a raised epoch."""
    if not isinstance(outcome, Registered):
        return outcome_response(outcome)
    response = Registration(outcome.producer_id, outcome.epoch)
    return json_response(200 if outcome.epoch else 201, response)


def assigned_response(outcome: Outcome) -> Response:
    """Answer the `/producer` of a stream, in the older dialect."""
    if not isinstance(outcome, Registered):
        return outcome_response(outcome, is_x=True)
    return json_response(201, AssignedProducer(outcome.producer_id, outcome.epoch))


def claim_response(outcome: Outcome, *, path: str) -> Response:
    """Return the epoch of a claim, and what was stored before it."""
    if not isinstance(outcome, Claimed):
        return outcome_response(outcome)
    offset, cursor = outcome.last_offset, outcome.cursor
    response = ProducerClaim(
        stream=path,
        producer_id=outcome.producer_id,
        producer_epoch=outcome.epoch,
        last_seq=outcome.last_seq,
        last_offset=None if offset is None else print_offset(offset),
        cursor=None if cursor is None else cursor.decode("utf-8", "replace"),
    )
    return json_response(200, response)


# ---- explanations --------------------------------------------------------------------------------


def explain_outcome(
    outcome: Outcome, tag: ProducerTag, *, epoch: int | None, last_seq: int | None
) -> Explanation:
    """Explain the outcome of an append; `epoch` and `last_seq` are the producer's in the stream.

    Both are None if the stream has no row of the producer.
    """
    if isinstance(outcome, Appended):
        reason = _why_stored(outcome, tag, epoch, last_seq)
        offset = print_offset(outcome.first_offset)
        facts = {"first_offset": offset, "epoch": outcome.epoch}
        return Explanation(outcome.code, _STORED, reason, facts)
    if isinstance(outcome, Duplicate):
        facts = {"epoch": outcome.epoch, "last_seq": outcome.seq}
        if outcome.first_offset is not None and outcome.next_offset is not None:
            facts["first_offset"] = print_offset(outcome.first_offset)
            facts["next_offset"] = print_offset(outcome.next_offset)
        return Explanation(outcome.code, STATUS[Duplicate], _why_repeated(outcome), facts)
    problem = problem_of(outcome)
    return Explanation(outcome.code, problem.status, problem.message, dict(problem.facts))


def _why_stored(
    outcome: Appended, tag: ProducerTag, epoch: int | None, last_seq: int | None
) -> str:
    if outcome.is_unguarded:
        return "it would be stored: the stream recognises no duplicates"
    begin = f"it would be stored under epoch {outcome.epoch}"
    if epoch is None or outcome.epoch is None:
        return f"{begin}: the stream has no state of the producer yet"
    if outcome.epoch > epoch:
        return f"{begin}: a new epoch begins, and epoch {epoch} is fenced"
    if last_seq is not None and last_seq < 0:
        return f"{begin}: it is the first one since the producer was claimed"
    return f"{begin}: sequence {tag.first_seq} comes after {last_seq}, the last one stored"


def _why_repeated(outcome: Duplicate) -> str:
    if outcome.next_offset is None:
        return (
            "it would be confirmed and not stored again: the sequence was stored, so long ago that"
            " its offsets are no longer retained"
        )
    if outcome.is_mismatch:
        return (
            "it would be confirmed and not stored: the sequence was stored with another payload,"
            " and the first one stays"
        )
    return "it would be confirmed and not stored again: the same was stored before"
