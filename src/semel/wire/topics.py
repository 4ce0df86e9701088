"""Requests and responses of `/v1/topics`.

An append to a topic has the producer headers, the idempotency key and the transaction headers of an
append to a stream. Each message goes to one partition: that of its key, or the one that the request
names. The rules are in `docs/reference/topics.md`.
"""

from collections.abc import Callable, Set
from typing import Final

import msgspec
from msgspec import UNSET, Struct, UnsetType

from semel.model.commands import Batch, ProducerTag, SwitchDedup, TxnTag
from semel.model.limits import (
    BODY_BYTES_MAX,
    IDEMPOTENCY_KEY_BYTES_MAX,
    NUMBER_MAX,
    TOPIC_PARTITIONS_MAX,
)
from semel.model.messages import JSON_MEDIA_TYPE, is_json, normalise
from semel.model.offsets import OFFSET_PREFIX, print_offset
from semel.model.outcomes import Outcome
from semel.model.outcomes_topics import PartResult, Parts, TopicGrown, TopicStored
from semel.model.outcomes_txn import Staged
from semel.model.partitioners import HASHES
from semel.model.policies import DedupSource
from semel.model.steps import Steps, finish
from semel.model.topic_commands import AppendTopic, CloseTopic, CreateTopic, GrowTopic
from semel.wire.append_headers import (
    TOPIC_PARTITIONS,
    names_producer,
    parse_producer,
    parse_transaction,
    read_grouping,
    speaks_x,
)
from semel.wire.bodies import BadFormat, decode_batch_steps, decode_parts_steps
from semel.wire.documents import read_document
from semel.wire.headers import (
    BATCH,
    TOPIC_BATCH,
    Headers,
    parse_instant,
    read_canonical,
    read_content_type,
    read_number,
    read_text,
    refuse_encoding,
    refuse_repeated,
)
from semel.wire.json_mode import EMPTY_ARRAY, split_steps
from semel.wire.message_keys import (
    Pointer,
    extras_of_key,
    keyed_steps,
    read_message_key,
    read_pointer,
    with_key,
)
from semel.wire.policies import dedup_fields
from semel.wire.problems import Fields, MalformedRequest, Problem, bad_header, bad_request, parser
from semel.wire.rendering import Response, has_strict_order
from semel.wire.requests import bad_batch, read_type, renumbered
from semel.wire.responses import json_response, key_headers, outcome_response
from semel.wire.schema.topics import (
    TopicAppendResponse,
    TopicChange,
    TopicDocument,
    TopicPart,
    TopicRequest,
)

_FORBIDDEN: Final = ("stream-seq", "if-match", "stream-closed")
_PARTITION: Final = "stream-partition"
_HINT: Final = "topic-partition-hint"
_SWITCHES: Final = {"on": True, "off": False, "inherit": None}
_DEFAULT_SOURCE: Final = DedupSource()
# A longer header would be refused by many clients and proxies. The document has the offsets, too.
_GROWTH_OFFSETS_MAX: Final = 100


class TopicPlan(Struct, frozen=True, gc=False):
    """The parsed headers of an append to a topic.

    Appends that differ only in body, sequence and `Message-Key` share a plan. `is_opaque`,
    `is_named` and `is_common` are as in `AppendPlan`.
    """

    name: str
    media_type: str
    is_opaque: bool
    message_key: bytes | None
    pointer: Pointer | None
    partition: int | None
    hint: int | None
    partitions: int | None
    partitioner: str | None
    producer: ProducerTag | None
    key: str | None
    transaction: TxnTag | None
    leader_epoch: int | None
    is_named: bool
    is_common: bool
    json_name: bytes  # the name as JSON, without the quotation mark at its end


# ---- appends -------------------------------------------------------------------------------------


@parser
def plan_topic_post(
    name: str,
    headers: Headers,
    repeated: Set[str],
    *,
    is_strict: bool = False,
    fresh_id: Callable[[], str] | None = None,
) -> TopicPlan:
    """Parse the headers of an append to the topic `name`. The arguments are as in `plan_post`."""
    refuse_repeated(repeated)
    refuse_encoding(headers)
    for header in _FORBIDDEN:
        if header in headers:
            raise bad_header(header, "is not allowed in an append to a topic")
    if speaks_x(headers):
        message = "an append to a topic needs Producer-* headers instead of X-Producer-*"
        raise bad_request("producer_headers_conflict", message)
    producer = parse_producer(headers, is_strict=is_strict, fresh_id=fresh_id)
    key = read_text(headers, "idempotency-key", IDEMPOTENCY_KEY_BYTES_MAX)
    if key is not None and producer is not None:
        raise bad_request(
            "idempotency_key_conflict", "Idempotency-Key cannot be combined with producer headers"
        )
    media_type = read_content_type(headers)
    if media_type is None:
        raise bad_request("missing_content_type", "a body needs a Content-Type header")
    form = normalise(media_type)
    partitions, partitioner = read_grouping(headers)
    is_named = producer is None or names_producer(headers)
    plan = TopicPlan(
        name=name,
        media_type=media_type,
        is_opaque=not is_json(media_type) and form not in (BATCH, TOPIC_BATCH),
        message_key=read_message_key(headers),
        pointer=read_pointer(headers),
        partition=read_canonical(headers, _PARTITION, TOPIC_PARTITIONS_MAX - 1),
        hint=read_number(headers, _HINT),
        partitions=partitions,
        partitioner=partitioner,
        producer=producer,
        key=key,
        transaction=parse_transaction(headers, is_strict=is_strict),
        leader_epoch=read_number(headers, "leader-epoch"),
        is_named=is_named,
        is_common=is_named and key is None,
        json_name=msgspec.json.encode(name)[:-1],
    )
    _check_combination(plan, form)
    return plan


def _check_combination(plan: TopicPlan, form: str) -> None:
    """Raise MalformedRequest if headers of an append contradict each other, or its media type."""
    has_key = plan.message_key is not None
    if has_key and plan.pointer is not None:
        raise bad_header("message-key-pointer", "cannot be combined with Message-Key")
    if plan.partition is not None and plan.hint is not None:
        raise bad_header(_HINT, "cannot be combined with Stream-Partition")
    if form in (BATCH, TOPIC_BATCH) and has_key:
        raise bad_header("message-key", "cannot be combined with a batch, which has its own keys")
    if plan.pointer is not None and not is_json(form):
        raise bad_header("message-key-pointer", "needs a JSON body")
    if form != TOPIC_BATCH:
        return
    if plan.partitions is None:
        raise bad_header(TOPIC_PARTITIONS, f"is required with {TOPIC_BATCH}")
    for name, value in ((_PARTITION, plan.partition), (_HINT, plan.hint)):
        if value is not None:
            raise bad_header(name, f"cannot be combined with {TOPIC_BATCH}")


def topic_append_of(
    plan: TopicPlan, body: bytes, *, now_ms: int, seq: bytes = b"", message_key: bytes = b""
) -> AppendTopic:
    """Return the command for a plan and a body. Raises MalformedRequest if the body is refused.

    If `seq` and `message_key` are not empty, they replace the values in the plan. The caller must
    have checked them.
    """
    if not (plan.is_opaque and 0 < len(body) <= BODY_BYTES_MAX):
        steps = topic_append_steps(plan, body, now_ms=now_ms, seq=seq, message_key=message_key)
        return finish(steps)
    # The common case: the body is one message, and is not parsed.
    key, tag = message_key or plan.message_key, plan.producer
    if seq and tag is not None:
        tag = renumbered(tag, seq)
    return AppendTopic(  # as `_append`, which has a `_Content` more
        plan.name,
        now_ms,
        plan.media_type,
        Batch(body) if key is None else Batch(body, 1, b"", extras_of_key(key), True),
        (),
        None,
        plan.partition,
        plan.hint,
        plan.partitions,
        plan.partitioner,
        tag,
        plan.key,
        plan.transaction,
    )


def topic_append_steps(
    plan: TopicPlan, body: bytes, *, now_ms: int, seq: bytes, message_key: bytes
) -> Steps[AppendTopic]:
    """Do the same as `topic_append_of`, in steps, for any body."""
    if not body:
        raise bad_request("empty_body", "an append to a topic needs a body")
    media_type = read_type(plan.media_type, body)
    try:
        if normalise(media_type) == TOPIC_BATCH:
            decoded = yield from decode_parts_steps(body)
            parts = () if decoded.error else decoded.parts
            content = _Content(decoded.content_type, None, parts, decoded.error)
        elif normalise(media_type) == BATCH:
            single = yield from decode_batch_steps(body)
            content = _Content(single.content_type, single.batch, (), single.error)
        else:
            key = message_key or plan.message_key
            content = yield from _message_content(plan, media_type, body, key)
    except BadFormat as error:
        raise bad_batch(error) from None
    return _append(plan, content, now_ms, seq)


class _Content(Struct, frozen=True, gc=False):
    """The content of a body: the media type of the messages, and their batch or batches.

    If the messages are invalid, there is no batch, and `error` is the reason.
    """

    media_type: str
    batch: Batch | None
    parts: tuple[tuple[int, Batch], ...] = ()
    error: str | None = None


def _message_content(
    plan: TopicPlan, media_type: str, body: bytes, key: bytes | None
) -> Steps[_Content]:
    """Return the content of a body that has the media type of the messages."""
    batch: Batch | str = Batch(body)
    if is_json(media_type):
        batch = (yield from split_steps(body)) or EMPTY_ARRAY
        if isinstance(batch, Batch) and plan.pointer is not None:
            batch = yield from keyed_steps(batch, plan.pointer)
    if isinstance(batch, str):
        return _Content(media_type, None, (), batch)
    return _Content(media_type, batch if key is None else with_key(batch, key))


def _append(plan: TopicPlan, content: _Content, now_ms: int, seq: bytes) -> AppendTopic:
    tag = plan.producer
    if seq and tag is not None:
        tag = renumbered(tag, seq)
    return AppendTopic(
        plan.name,
        now_ms,
        content.media_type,
        content.batch,
        content.parts,
        content.error,
        partition=plan.partition,
        hint=plan.hint,
        partitions=plan.partitions,
        partitioner=plan.partitioner,
        producer=tag,
        key=plan.key,
        transaction=plan.transaction,
    )


def stale_leader(generation: int) -> Problem:
    """Return the problem of an append whose `Leader-Epoch` is not the server's generation."""
    message = f"Leader-Epoch must be the generation of the server, {generation}"
    return Problem(409, "stale_leader", message, {"generation": generation})


# ---- responses to appends ------------------------------------------------------------------------

_LINES: Final = (
    f"Content-Type: {JSON_MEDIA_TYPE}\r\nCache-Control: no-store\r\nTopic-Partitions: %d\r\n"
    f"Stream-Partition: %d\r\nStream-Next-Offset: {OFFSET_PREFIX}%016d\r\n"
).encode()
_PRODUCED_LINES: Final = _LINES + b"Producer-Epoch: %d\r\nProducer-Seq: %d\r\n"
_ONE_PART: Final = (
    b'{"topic":%b","duplicate":false,"parts":[{"partition":%d,"stream":%b/%d",'
    + f'"offset":"{OFFSET_PREFIX}%016d","next_offset":"{OFFSET_PREFIX}%016d"}}]}}'.encode()
)


def topic_append_lines(
    outcome: TopicStored, part: PartResult, plan: TopicPlan, partitions: int
) -> tuple[bytes, bytes]:
    """Return the encoded header lines and the body of the response to a stored append.

    `topic_append_response` would build the same response, but more slowly. Use this function only
    for a common plan, and for an outcome with one part that is neither a duplicate nor unguarded.
    """
    number, first, end = part.partition, part.first_offset, part.next_offset
    name = plan.json_name
    body = _ONE_PART % (name, number, name, number, first, end)
    if outcome.epoch is None:
        return _LINES % (partitions, number, end), body
    return _PRODUCED_LINES % (partitions, number, end, outcome.epoch, outcome.seq), body


def topic_append_response(
    outcome: Outcome, command: AppendTopic, *, is_named: bool, partitions: int | None
) -> Response:
    """Return the response to an append. `partitions` is the topic's number of partitions.

    If `is_named` is False, the server has chosen the producer id, so the response contains the id.
    `partitions` is None if the topic does not exist any more.
    """
    headers: Fields = [] if partitions is None else [("Topic-Partitions", str(partitions))]
    chunk = None if command.transaction is None else command.transaction.seq
    if isinstance(outcome, Staged):
        outcome = TopicStored(None)  # a chunk has no offsets before its transaction is committed
    if not isinstance(outcome, TopicStored):
        is_strict_order = has_strict_order(command.producer, command.transaction)
        return outcome_response(outcome, is_strict_order=is_strict_order)
    parts = outcome.parts
    if parts is not None and len(parts) == 1:
        headers.append(("Stream-Partition", str(parts[0].partition)))
        headers.append(("Stream-Next-Offset", print_offset(parts[0].next_offset)))
    if chunk is not None:
        headers.append(("Transaction-Next-Seq", str(chunk + 1)))
    headers += _stored_headers(outcome, command, is_chunk=chunk is not None)
    if not is_named and command.producer is not None:
        headers.append(("Producer-Id", command.producer.id))
    shown = None if parts is None else topic_parts(command.path, parts)
    next_seq = UNSET if chunk is None else chunk + 1
    body = TopicAppendResponse(command.path, outcome.is_duplicate, shown, next_seq)
    return json_response(200, body, headers)


def _stored_headers(outcome: TopicStored, command: AppendTopic, *, is_chunk: bool) -> Fields:
    headers: Fields = []
    if outcome.parts is None and not is_chunk:
        headers.append(("Producer-Receipt", "expired"))
    if outcome.is_mismatch:
        headers.append(("Producer-Payload-Mismatch", "true"))
    if outcome.seq is not None:
        if outcome.epoch is not None:
            headers.append(("Producer-Epoch", str(outcome.epoch)))
        headers.append(("Producer-Seq", str(outcome.seq)))
        if outcome.is_unguarded:
            headers.append(("Producer-Dedup", "off"))
    if command.key is not None:
        is_unguarded, is_replay = outcome.is_unguarded, outcome.is_duplicate
        headers += key_headers(is_unguarded=is_unguarded, is_replay=is_replay)
    return headers


def topic_parts(name: str, parts: Parts) -> list[TopicPart]:
    """Return the parts of an append to the topic `name` as a response shows them."""
    return [
        TopicPart(
            part.partition,
            f"{name}/{part.partition}",
            print_offset(part.first_offset),
            print_offset(part.next_offset),
        )
        for part in parts
    ]


# ---- create and change ---------------------------------------------------------------------------


@parser
def parse_topic_put(
    name: str, headers: Headers, body: bytes, *, now_ms: int, incarnation: str
) -> CreateTopic:
    """Parse a request that creates a topic."""
    request = read_document(headers, body, TopicRequest)
    if request.partitioner not in HASHES:
        raise _invalid("partitioner", f"must be {' or '.join(sorted(HASHES))}")
    if request.ttl_seconds is not None and request.expires_at is not None:
        raise bad_request("expiry_conflict", "use ttl_seconds or expires_at, not both")
    return CreateTopic(
        path=name,
        now_ms=now_ms,
        incarnation=incarnation,
        partitions=_checked_count(request.partitions),
        content_type=_read_topic_type(request.content_type),
        partitioner=request.partitioner,
        ttl_ms=_read_ttl(request.ttl_seconds),
        expires_at_ms=_read_expiry(request.expires_at),
        dedup=None if request.dedup is None else _read_switch(request.dedup, ("on", "off")),
    )


def _invalid(field: str, reason: str) -> MalformedRequest:
    return bad_request("invalid_request", f"'{field}' {reason}", field=field)


def _checked_count(partitions: int) -> int:
    if not 0 < partitions <= TOPIC_PARTITIONS_MAX:
        raise _invalid("partitions", f"must be an integer from 1 to {TOPIC_PARTITIONS_MAX}")
    return partitions


def _read_topic_type(value: str | None) -> str | None:
    if value is None:
        return None
    try:
        content_type = read_content_type({"content-type": value})
    except MalformedRequest:
        content_type = None
    if content_type is None:
        raise _invalid("content_type", "must be a media type such as application/json")
    if normalise(content_type) in (BATCH, TOPIC_BATCH):
        raise _invalid("content_type", "must be the media type of the messages, not of a batch")
    return content_type


def _read_ttl(seconds: int | None) -> int | None:
    maximum = NUMBER_MAX // 1000
    if seconds is not None and not 0 <= seconds <= maximum:
        raise _invalid("ttl_seconds", f"must be an integer from 0 to {maximum}")
    return None if seconds is None else seconds * 1000


def _read_expiry(value: str | None) -> int | None:
    try:
        return None if value is None else parse_instant(value)
    except ValueError as error:
        raise _invalid("expires_at", str(error)) from None


def _read_switch(value: str, allowed: tuple[str, ...]) -> bool | None:
    if value not in allowed:
        raise _invalid("dedup", f"must be {' or '.join(map(repr, allowed))}")
    return _SWITCHES[value]


@parser
def parse_topic_patch(
    name: str, headers: Headers, body: bytes, *, now_ms: int, incarnation: str
) -> GrowTopic | CloseTopic | SwitchDedup:
    """Parse a request that changes a topic. `incarnation` is that of new partitions."""
    change = read_document(headers, body, TopicChange)
    given = [each for each in (change.partitions, change.dedup, change.closed) if each is not UNSET]
    if len(given) != 1 or (change.partitions is UNSET and change.keys_may_move is not UNSET):
        message = (
            "the body must have exactly one of 'partitions' (with or without 'keys_may_move'),"
            " 'dedup' and 'closed'"
        )
        raise bad_request("invalid_request", message, field="partitions")
    if change.partitions is not UNSET:
        may_move = change.keys_may_move is True
        return GrowTopic(name, now_ms, incarnation, _checked_count(change.partitions), may_move)
    if change.dedup is not UNSET:
        return SwitchDedup(name, now_ms, _read_switch(change.dedup, tuple(_SWITCHES)))
    if change.closed is not True:
        raise _invalid("closed", "must be true: a closed topic cannot be opened again")
    return CloseTopic(name, now_ms)


def topic_response(
    document: TopicDocument,
    *,
    status: int = 200,
    source: DedupSource = _DEFAULT_SOURCE,
    location: str | None = None,
    grown: TopicGrown | None = None,
) -> Response:
    """Return the response with a topic. `grown` is the outcome of the growth that it answers.

    `source` is where the topic's setting for duplicates comes from.
    """
    headers: Fields = [
        ("Topic-Partitions", str(document.partition_count)),
        ("Topic-Partitioner", document.partitioner),
        ("Topic-Incarnation", document.incarnation),
        *dedup_fields(document.dedup_from, source),
    ]
    if document.growths and len(document.growths[-1].offsets) <= _GROWTH_OFFSETS_MAX:
        headers.append(("Topic-Growth-Offsets", ",".join(document.growths[-1].offsets)))
    if location is not None:
        headers.append(("Location", location))
    moved_at: list[str] | UnsetType = UNSET
    if grown is not None:
        moved_at = [print_offset(offset) for offset in grown.moved_at]
    return json_response(status, msgspec.structs.replace(document, moved_at=moved_at), headers)
