"""Requests and responses of `/v1/producers`: register, claim, show, explain, retire and forget."""

from typing import Any, Final

from msgspec import UNSET, Struct, UnsetType

from semel.model.commands import (
    DENSE,
    SPARSE,
    ClaimProducer,
    ForgetProducer,
    ProducerTag,
    Register,
)
from semel.model.limits import RETIRE_LIST_MAX, SESSION_BYTES_MAX
from semel.model.offsets import print_offset
from semel.model.outcomes import Appended, Claimed, Duplicate, Outcome, Registered, Retired
from semel.model.outcomes_topics import TopicStored
from semel.model.producer_commands import RetiredProducer, RetireProducers
from semel.wire.append_headers import IDLE_SECONDS, check_producer_id, to_idle_ms
from semel.wire.documents import read_document
from semel.wire.headers import (
    Headers,
    check_text,
    read_number,
    read_range,
    read_text,
)
from semel.wire.paths import parse_query, read_choice, read_limit
from semel.wire.problems import bad_request, parser
from semel.wire.rendering import STATUS, Response, has_strict_order, problem_of
from semel.wire.responses import json_response, outcome_response, responds_to
from semel.wire.schema.producers import (
    AssignedProducer,
    ClaimRequest,
    Explanation,
    ProducerClaim,
    RegisterRequest,
    Registration,
    RetiredEntry,
    RetireEntry,
    RetireRequest,
    RetireResponse,
)

# The first epoch of a producer in the older dialect. In `/v1/producers` the first epoch is 0.
FIRST_EPOCH_X: Final = 1
_MODES: Final = (DENSE, SPARSE)


class ProducerQuery(Struct, frozen=True):
    """A query for producers.

    With only `stream`, it returns all producers of the stream. With `stream` and `id`, it returns
    one producer of the stream. With only `id`, it returns the registration of the producer id.
    """

    stream: str | None
    id: str | None
    after: str
    limit: int


class ExplainQuery(Struct, frozen=True):
    """A query to explain an append: the append's stream and its producer tag."""

    stream: str
    tag: ProducerTag


# ---- requests ------------------------------------------------------------------------------------


@parser
def parse_register(headers: Headers, body: bytes, *, now_ms: int) -> Register:
    """Parse a request to register a producer. If the body is empty, the server chooses the id."""
    document = read_document(headers, body, RegisterRequest)
    producer_id = document.producer_id
    if producer_id is not None:
        check_producer_id(producer_id, "producer-id")
    return Register(now_ms, producer_id, expires_ms=_idle_ms(document.expires))


@parser
def parse_claim(headers: Headers, body: bytes, *, now_ms: int) -> ClaimProducer:
    """Parse a claim: the stream, the producer, and the session that takes over the producer."""
    claim = read_document(headers, body, ClaimRequest)
    if claim.mode not in _MODES:
        raise bad_request("bad_body", "'mode' must be 'dense' or 'sparse'", field="mode")
    name = check_producer_id(claim.producer_id, "producer-id")
    session = check_text(claim.session, "producer-session", SESSION_BYTES_MAX)
    expires_ms = _idle_ms(claim.expires)
    return ClaimProducer(claim.stream, now_ms, name, session, claim.mode, expires_ms)


def _idle_ms(seconds: int | UnsetType) -> int:
    """Return a declared idle time in milliseconds; 0 if there is none."""
    expires_ms = 0 if seconds is UNSET else to_idle_ms(seconds)
    if expires_ms is None:
        message = f"'expires' must be an integer from {IDLE_SECONDS}, in seconds"
        raise bad_request("bad_body", message, field="expires")
    return expires_ms


@parser
def parse_retire(headers: Headers, body: bytes, *, now_ms: int) -> RetireProducers:
    """Parse a request to retire producers."""
    entries = read_document(headers, body, RetireRequest).producers
    if not 0 < len(entries) <= RETIRE_LIST_MAX:
        message = f"'producers' must have 1 to {RETIRE_LIST_MAX:,} entries"
        raise bad_request("invalid_request", message, field="producers")
    return RetireProducers(now_ms, tuple(map(_retired, entries)))


def _retired(entry: RetireEntry) -> RetiredProducer:
    name = check_producer_id(entry.producer_id, "producer-id")
    if entry.session is not None:
        check_text(entry.session, "producer-session", SESSION_BYTES_MAX)
    if entry.stream is None and entry.session is not None:
        message = "'session' needs 'stream'; a registration has only an epoch"
        raise bad_request("bad_body", message, field="session")
    if entry.producer_epoch is None and entry.session is None:
        message = "each producer needs 'producer_epoch' or, with 'stream', 'session'"
        raise bad_request("bad_body", message, field="producer_epoch")
    return RetiredProducer(name, entry.stream, entry.producer_epoch, entry.session)


@parser
def parse_producer_query(query: str) -> ProducerQuery:
    """Parse the query that selects which producers to show."""
    parameters = parse_query(query, ("stream", "id", "after", "limit"))
    if "stream" not in parameters and "id" not in parameters:
        raise bad_request("invalid_query", "the query needs 'stream' or 'id'", field="stream")
    return ProducerQuery(
        stream=parameters.get("stream"),
        id=parameters.get("id"),
        after=parameters.get("after", ""),
        limit=read_limit(parameters.get("limit")),
    )


@parser
def parse_forget(query: str, *, now_ms: int) -> ForgetProducer:
    """Parse a request to forget a producer in one stream."""
    parameters = parse_query(query, ("stream", "id"), required=("id", "stream"))
    return ForgetProducer(parameters["stream"], now_ms, parameters["id"])


@parser
def parse_explain_query(query: str) -> ExplainQuery:
    """Parse the query that describes the append to explain.

    The parameters are checked like the producer headers of an append.
    """
    names = ("stream", "id", "epoch", "session", "seq", "mode")
    parameters = parse_query(query, names, required=("id", "seq", "stream"))
    mode = read_choice(parameters, "mode", _MODES, DENSE)
    name = check_producer_id(parameters["id"], "id")
    if mode == SPARSE:
        first, last = read_range(parameters, "seq") or (0, 0)
    else:
        first = last = read_number(parameters, "seq") or 0
    session = read_text(parameters, "session", SESSION_BYTES_MAX)
    tag = ProducerTag(name, first, last, read_number(parameters, "epoch"), session, mode)
    return ExplainQuery(parameters["stream"], tag)


# ---- responses -----------------------------------------------------------------------------------


@responds_to(Registered)
def register_response(outcome: Registered) -> Response:
    """Return the response to a registration: 201 for a new producer id, 200 for a new epoch."""
    response = Registration(outcome.producer_id, outcome.epoch)
    return json_response(200 if outcome.epoch else 201, response)


def assigned_response(outcome: Outcome) -> Response:
    """Return the response to `POST /v1/stream/{path}/producer`, an older way to register."""
    if not isinstance(outcome, Registered):
        return outcome_response(outcome, is_x=True)
    return json_response(201, AssignedProducer(outcome.producer_id, outcome.epoch))


@responds_to(Claimed)
def claim_response(outcome: Claimed, *, path: str, is_topic: bool = False) -> Response:
    """Return the response to a claim: new epoch, last sequence, last offset and last cursor.

    A topic has no offsets of its own.
    """
    last_offset = None if is_topic else outcome.last_offset
    response = ProducerClaim(
        stream=path,
        producer_id=outcome.producer_id,
        producer_epoch=outcome.epoch,
        last_seq=outcome.last_seq,
        last_offset=None if last_offset is None else print_offset(last_offset),
        cursor=None if outcome.cursor is None else outcome.cursor.decode("utf-8", "replace"),
    )
    return json_response(200, response)


@responds_to(Retired)
def retire_response(outcome: Retired) -> Response:
    """Return the response to a retirement: what became of each producer."""
    entries = [
        RetiredEntry(
            result.id,
            result.path,
            result.refusal is None,
            UNSET if result.refusal is None else result.refusal.code,
        )
        for result in outcome.results
    ]
    return json_response(200, RetireResponse(entries))


# ---- explanations --------------------------------------------------------------------------------


def explain_outcome(
    outcome: Outcome,
    tag: ProducerTag,
    *,
    epoch: int | None,
    last_seq: int | None,
    is_topic: bool = False,
) -> Explanation:
    """Explain `outcome`, which is the outcome that an append with `tag` would have.

    `epoch` and `last_seq` are the producer's epoch and last sequence in the stream. Both are None
    if the stream does not know the producer. If `is_topic`, the offsets in the outcome are not
    shown, because a topic has none.
    """
    if isinstance(outcome, TopicStored):
        outcome = _without_parts(outcome)
    if isinstance(outcome, Appended):
        reason = _why_stored(outcome, tag, epoch, last_seq)
        facts: dict[str, Any] = {"epoch": outcome.epoch}
        if not is_topic:
            facts = {"first_offset": print_offset(outcome.first_offset), **facts}
        return Explanation(outcome.code, 200, reason, facts)
    if isinstance(outcome, Duplicate):
        facts = {"epoch": outcome.epoch, "last_seq": outcome.seq}
        if not is_topic and outcome.first_offset is not None and outcome.next_offset is not None:
            facts["first_offset"] = print_offset(outcome.first_offset)
            facts["next_offset"] = print_offset(outcome.next_offset)
        status = STATUS[TopicStored if is_topic else Duplicate]
        return Explanation(outcome.code, status, _why_repeated(outcome, tag), facts)
    problem = problem_of(outcome, is_strict_order=has_strict_order(tag))
    return Explanation(problem.code, problem.status, problem.message, dict(problem.facts))


def _without_parts(stored: TopicStored) -> Appended | Duplicate:
    """Return what an append to a topic and an append to a stream have in common.

    The offsets are not those of the partitions. They only show whether the receipt is retained.
    """
    if stored.is_duplicate:
        number = None if stored.parts is None else 0
        return Duplicate(number, number, False, stored.epoch, stored.seq, stored.is_mismatch)
    return Appended(0, 0, False, stored.epoch, stored.seq, stored.is_unguarded)


def _why_stored(
    outcome: Appended, tag: ProducerTag, epoch: int | None, last_seq: int | None
) -> str:
    if outcome.is_unguarded:
        return "the append would be stored, because the stream does not recognise duplicates"
    begin = f"the append would be stored under epoch {outcome.epoch}"
    if epoch is None or outcome.epoch is None:
        return f"{begin}, because the stream does not know the producer yet"
    if outcome.epoch > epoch:
        return f"{begin}; this would begin a new epoch and fence epoch {epoch}"
    if last_seq is not None and last_seq < 0:
        return f"{begin}, because it is the first append since the producer was claimed"
    return f"{begin}, because sequence {tag.first_seq} follows the last sequence {last_seq}"


def _why_repeated(outcome: Duplicate, tag: ProducerTag) -> str:
    if outcome.next_offset is None:
        # Sparse producers take no part in transactions. Of a dense one, it is not retained whether
        # a sequence was used in a transaction, and whether that was aborted.
        used = "" if tag.mode == SPARSE else " or was used in a transaction, also an aborted one"
        return (
            "the append would be confirmed but not stored, because its sequence is already stored"
            f"{used}; the offsets are not retained"
        )
    if outcome.is_mismatch:
        return (
            "the append would be confirmed but not stored, because its sequence is already stored"
            " with a different payload; the stored payload stays"
        )
    return "the append would be confirmed but not stored again, because it is already stored"
