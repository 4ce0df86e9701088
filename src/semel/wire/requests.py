"""Parses the query, headers and body of a request on a stream into a command or a problem.

The checks of a POST are numbered: for example, the comment `# 3` marks check 3. This module
performs checks 1 to 4. The engine performs the later checks, because they need the stream.

Invalid JSON is refused later, by check 14. This module only stores the JSON error in the command.
"""

from collections.abc import Callable, Set
from typing import Final

from msgspec import Struct

from semel.model.commands import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    Append,
    Batch,
    Create,
    Delete,
    ForkRequest,
    ProducerTag,
    SwitchDedup,
    Trim,
    TxnTag,
)
from semel.model.limits import (
    BODY_BYTES_MAX,
    IDEMPOTENCY_KEY_BYTES_MAX,
    NUMBER_MAX,
    STREAM_SEQ_BYTES_MAX,
)
from semel.model.messages import is_json, normalise
from semel.model.offsets import parse_offset
from semel.model.steps import Steps
from semel.wire.append_headers import (
    names_producer,
    parse_producer,
    parse_transaction,
    speaks_x,
)
from semel.wire.bodies import BadFormat, DecodedBatch, decode_batch, decode_batch_steps
from semel.wire.headers import (
    BATCH,
    FRAMES,
    Headers,
    accepts_gzip,
    accepts_type,
    read_canonical,
    read_content_type,
    read_flag,
    read_if_match,
    read_instant,
    read_switch,
    read_text,
    refuse_encoding,
    refuse_repeated,
    to_position,
)
from semel.wire.json_mode import EMPTY_ARRAY, split_json, split_steps
from semel.wire.paths import parse_query, read_choice, stream_path
from semel.wire.problems import MalformedRequest, Problem, bad_header, bad_request, parser

_TTL_SECONDS_MAX: Final = NUMBER_MAX // 1000


class AppendPlan(Struct, frozen=True, gc=False):
    """The parsed headers of an append. Appends that differ only in body and sequence share a plan.

    If `is_named` is False, the server has chosen the producer id, and the plan is for one append
    only. If `is_common` is False, `append_response_lines` cannot build the response.
    """

    path: str
    # A Problem if the Content-Type is malformed. The Problem is sent only if the append has a body.
    media_type: str | Problem | None
    is_opaque: bool  # the whole body is one message and is not parsed
    is_closing: bool
    producer: ProducerTag | None
    stream_seq: str | None
    if_match: int | None
    key: str | None
    is_x: bool
    is_named: bool
    is_common: bool
    transaction: TxnTag | None = None


@parser
def plan_post(
    path: str,
    headers: Headers,
    repeated: Set[str],
    *,
    is_strict: bool = False,
    fresh_id: Callable[[], str] | None = None,
) -> AppendPlan:
    """Parse the headers of a POST. A POST appends to a stream, closes the stream, or does both.

    If a request with `Producer-Mode: sparse` has no producer id, `fresh_id` is called to get one.
    Without `fresh_id`, the request is refused. `is_strict` acts like `Producer-Strict: true`.
    """
    refuse_repeated(repeated)  # 1
    refuse_encoding(headers)
    producer = parse_producer(headers, is_strict=is_strict, fresh_id=fresh_id)
    key = read_text(headers, "idempotency-key", IDEMPOTENCY_KEY_BYTES_MAX)
    if key is not None and producer is not None:
        raise bad_request(
            "idempotency_key_conflict", "Idempotency-Key cannot be combined with producer headers"
        )
    transaction = parse_transaction(headers, is_strict=is_strict)
    stream_seq = read_text(headers, "stream-seq", STREAM_SEQ_BYTES_MAX)
    if_match = read_if_match(headers)
    is_closing = read_flag(headers, "stream-closed")
    media_type: str | Problem | None
    try:
        media_type = read_content_type(headers)
    except MalformedRequest as refusal:
        media_type = refusal.problem
    is_x = producer is not None and speaks_x(headers)
    is_named = producer is None or is_x or names_producer(headers)
    return AppendPlan(
        path=path,
        media_type=media_type,
        is_opaque=isinstance(media_type, str)
        and not is_json(media_type)
        and normalise(media_type) != BATCH,
        is_closing=is_closing,
        producer=producer,
        stream_seq=stream_seq,
        if_match=if_match,
        key=key,
        is_x=is_x,
        is_named=is_named,
        is_common=is_named and not (is_closing or is_x or key is not None),
        transaction=transaction,
    )


# The media type of the messages in a body, the batch, and an error text. If the messages are valid,
# the error text is None. If not, the batch is None. All are None if there is no body.
Content = tuple[str | None, Batch | None, str | None]


def append_of(plan: AppendPlan, body: bytes, *, now_ms: int, seq: bytes = b"") -> Append | Problem:
    """Return the append command for a plan and a body, or a problem if the body is refused.

    If `seq` is not empty, it replaces the sequence in the plan. The caller must ensure that `seq`
    contains only digits and is not longer than a valid sequence.
    """
    media_type = plan.media_type
    if plan.is_opaque and type(media_type) is str and 0 < len(body) <= BODY_BYTES_MAX:
        # The common case: the body is one message, and is not parsed.
        return _append(plan, media_type, Batch(body), None, now_ms, seq)
    if body:
        try:
            content = _read_body(plan, body)
        except MalformedRequest as refusal:
            return refusal.problem
    elif plan.is_closing:
        content = None, None, None
    else:
        message = "an append needs a body or the header Stream-Closed: true"
        return bad_request("empty_body", message).problem  # 2
    return _append(plan, *content, now_ms, seq)


def append_steps(plan: AppendPlan, body: bytes, *, now_ms: int, seq: bytes) -> Steps[Append]:
    """Return the append command for a plan and a long body, in steps.

    The body must not be opaque. Raises MalformedRequest if it is refused.
    """
    media_type = read_type(plan.media_type, body)
    if is_json(media_type):
        content = _json_content(media_type, (yield from split_steps(body)))
    else:
        try:
            content = _batch_content((yield from decode_batch_steps(body)))
        except BadFormat as error:
            raise bad_batch(error) from None
    return _append(plan, *content, now_ms, seq)


def _append(
    plan: AppendPlan,
    media_type: str | None,
    batch: Batch | None,
    error: str | None,
    now_ms: int,
    seq: bytes,
) -> Append:
    tag = plan.producer
    if seq and tag is not None:
        tag = renumbered(tag, seq)
    return Append(  # positional arguments, because this runs for every append and keywords are slow
        plan.path,
        now_ms,
        media_type,
        batch,
        error,
        plan.is_closing,
        tag,
        plan.stream_seq,
        plan.if_match,
        plan.key,
        plan.transaction,
    )


def renumbered(tag: ProducerTag, seq: bytes) -> ProducerTag:
    """Return the tag of a plan with another sequence.

    The parser of the plan has checked the tag, and the caller must have checked the sequence.
    """
    number, cursor, is_strict = int(seq), tag.cursor, tag.is_strict
    return ProducerTag(
        tag.id,
        number,
        number,
        tag.epoch,
        tag.session,
        tag.mode,
        cursor,
        is_strict,
        tag.expires_ms,
        True,
    )


def _read_body(plan: AppendPlan, body: bytes) -> Content:
    """Return the content of a body that `append_of` cannot use as it is.

    Raises MalformedRequest if the media type, the size or the batch format is wrong.
    """
    media_type = read_type(plan.media_type, body)
    if is_json(media_type):
        return _json_content(media_type, split_json(body))
    try:
        return _batch_content(decode_batch(body))
    except BadFormat as error:
        raise bad_batch(error) from None


def read_type(media_type: str | Problem | None, body: bytes) -> str:
    """Return the media type of a body. Raises MalformedRequest if it or the size is wrong."""
    if media_type is None:
        raise bad_request("missing_content_type", "a body needs a Content-Type header")  # 3
    if isinstance(media_type, Problem):
        raise MalformedRequest(media_type)
    _refuse_size(body)  # 4
    return media_type


def _json_content(media_type: str, batch: Batch | str | None) -> Content:
    if isinstance(batch, Batch):
        return media_type, batch, None
    return media_type, None, batch or EMPTY_ARRAY


def _batch_content(decoded: DecodedBatch) -> Content:
    return decoded.content_type, decoded.batch, decoded.error


def bad_batch(error: BadFormat) -> MalformedRequest:
    """Return the exception for a body that is not in the format of its media type."""
    # The engine's checks need a media type. It is unknown here, so the body is refused now.
    return bad_request("bad_body", str(error))


def _refuse_size(body: bytes) -> None:
    if len(body) > BODY_BYTES_MAX:
        raise MalformedRequest(
            Problem(
                413,
                "body_too_large",
                f"a request body can have at most {BODY_BYTES_MAX} bytes",
                {"bytes_max": BODY_BYTES_MAX},
            )
        )


def parse_put(
    path: str,
    headers: Headers,
    repeated: Set[str],
    body: bytes,
    *,
    now_ms: int,
    incarnation: str,
    source_type: Callable[[str], str | None] | None = None,
) -> Steps[Create]:
    """Parse a request to create a stream, in steps. Raises MalformedRequest.

    If a fork has a body but no Content-Type, the body has the media type of the fork's source. The
    function `source_type` takes the path of the source and returns this type.
    """
    refuse_repeated(repeated)
    dedup = read_switch(headers, "stream-dedup")
    refuse_encoding(headers)
    ttl_ms, expires_at_ms = _read_expiry(headers)
    fork = parse_fork(headers)
    content_type = _read_stream_type(headers)
    if content_type is None and body and fork is not None and source_type is not None:
        # The fork continues the messages of its source, so the body has the same media type.
        content_type = source_type(fork.source)
    batch, error = yield from _read_first_content(content_type, body)
    return Create(
        path=path,
        now_ms=now_ms,
        incarnation=incarnation,
        content_type=content_type,
        ttl_ms=ttl_ms,
        expires_at_ms=expires_at_ms,
        closed=read_flag(headers, "stream-closed"),
        batch=batch,
        body_error=error,
        fork=fork,
        dedup=dedup,
        inherits=dedup is None and "stream-dedup" in headers,
    )


@parser
def parse_patch(path: str, headers: Headers, repeated: Set[str], *, now_ms: int) -> SwitchDedup:
    """Parse a request to change a stream's configuration. Only Stream-Dedup can be changed."""
    refuse_repeated(repeated)
    if "stream-dedup" not in headers:
        raise bad_header(
            "stream-dedup",
            "is missing: send 'on', 'off' or 'inherit' (no other setting can be changed)",
        )
    return SwitchDedup(path, now_ms, read_switch(headers, "stream-dedup"))


def _read_expiry(headers: Headers) -> tuple[int | None, int | None]:
    if "stream-ttl" in headers and "stream-expires-at" in headers:
        raise bad_request("expiry_conflict", "use Stream-TTL or Stream-Expires-At, not both")
    ttl = read_canonical(headers, "stream-ttl", _TTL_SECONDS_MAX)
    expires_at_ms = read_instant(headers, "stream-expires-at")
    return None if ttl is None else ttl * 1000, expires_at_ms


def _read_stream_type(headers: Headers) -> str | None:
    content_type = read_content_type(headers)
    if content_type is not None and normalise(content_type) == BATCH:
        raise bad_header("content-type", "must be the media type of the messages, not of a batch")
    return content_type


def _read_first_content(
    content_type: str | None, body: bytes
) -> Steps[tuple[Batch | None, str | None]]:
    if not body:
        return None, None
    _refuse_size(body)
    if content_type is None or not is_json(content_type):
        return Batch(body), None
    batch = yield from split_steps(body)
    return (None, batch) if isinstance(batch, str) else (batch, None)


def parse_fork(headers: Headers) -> ForkRequest | None:
    """Return the fork that the headers ask for; None if they do not ask for a fork.

    Raises MalformedRequest if a header about the fork is malformed.
    """
    source = headers.get("stream-forked-from")
    at = headers.get("stream-fork-offset")
    offset = None if at is None else parse_offset(at)
    if at is not None and offset is None:
        raise bad_header("stream-fork-offset", "must be an offset in the source stream")
    if source is None:
        for name in ("stream-fork-offset", "stream-fork-sub-offset"):
            if name in headers:
                raise bad_header(name, "needs Stream-Forked-From")
        return None
    sub_offset = read_canonical(headers, "stream-fork-sub-offset") or 0
    path = stream_path(source)
    if isinstance(path, Problem):
        raise bad_header(
            "stream-forked-from", "must be a stream of this server, such as /v1/stream/source"
        )
    return ForkRequest(path, offset, sub_offset)


# ---- reads and deletions -------------------------------------------------------------------------


CATCH_UP: Final = "catch-up"
LONG_POLL: Final = "long-poll"
SSE: Final = "sse"
# The values of the parameter `isolation`. The numbers are the short forms of the names.
_ISOLATIONS: Final = {
    READ_UNCOMMITTED: READ_UNCOMMITTED,
    READ_COMMITTED: READ_COMMITTED,
    "0": READ_UNCOMMITTED,
    "1": READ_COMMITTED,
}


class ReadRequest(Struct, frozen=True, gc=False):
    """A read that starts at `offset`, or at the tail if `is_now` is True.

    If `offset` is None and `is_now` is False, the read starts at the head. If `incarnation` is not
    None, the read is refused unless the stream has this incarnation.
    """

    offset: int | None = None
    is_now: bool = False
    live: str = CATCH_UP
    cursor: int | None = None
    isolation: str = READ_UNCOMMITTED
    is_frames: bool = False
    accepts_gzip: bool = False
    if_none_match: str | None = None
    incarnation: str | None = None


_READ_PARAMETERS: Final = ("offset", "live", "cursor", "isolation", "incarnation")


@parser
def parse_get(query: str, headers: Headers) -> ReadRequest:
    """Parse a read request. Repeated headers are allowed, because all headers used are lists."""
    parameters = parse_query(query, _READ_PARAMETERS) if query else {}
    offset, is_now = _read_offset(parameters.get("offset"))
    live = parameters.get("live", CATCH_UP)
    live = live if live in (LONG_POLL, SSE) else CATCH_UP
    if live != CATCH_UP and "offset" not in parameters:
        raise bad_request("offset_required", f"live={live} needs an offset", field="offset")
    return ReadRequest(
        offset=offset,
        is_now=is_now,
        live=live,
        cursor=parse_cursor(parameters.get("cursor")),
        isolation=_ISOLATIONS[read_choice(parameters, "isolation", _ISOLATIONS, READ_UNCOMMITTED)],
        is_frames=accepts_type(headers, FRAMES),
        accepts_gzip=accepts_gzip(headers),
        if_none_match=headers.get("if-none-match"),
        incarnation=parameters.get("incarnation"),
    )


def _read_offset(text: str | None) -> tuple[int | None, bool]:
    if text is None or text == "-1":
        return None, False
    if text == "now":
        return None, True
    offset = parse_offset(text)
    if offset is None:
        message = "the parameter 'offset' must be -1, 'now' or an offset that this server returned"
        raise bad_request("invalid_offset", message, field="offset")
    return offset, False


@parser
def parse_delete(path: str, query: str, *, now_ms: int) -> Delete | Trim:
    """Parse a DELETE: a trim if the query has the parameter `before`, otherwise a deletion."""
    text = parse_query(query, ("before",)).get("before")
    if text is None:
        return Delete(path, now_ms)
    before = to_position(text)
    if before is None:
        raise bad_request(
            "invalid_offset", "the parameter 'before' must be an offset", field="before"
        )
    return Trim(path, now_ms, before)


# ---- read cursors --------------------------------------------------------------------------------
# Time is divided into numbered intervals, and a read cursor is the number of one of them. The
# client sends the read cursor in the URL of its next live read. So the URL changes with time, and a
# cache cannot send the same stored response forever (protocol 1.9).

_EPOCH_MS: Final = 1_728_432_000_000  # 2024-10-09T00:00:00Z
_INTERVAL_MS: Final = 20_000
_INTERVAL_S: Final = _INTERVAL_MS // 1000
JITTER_S_MAX: Final = 3600


def parse_cursor(text: str | None) -> int | None:
    """Return the read cursor that a client sent; None if it is absent or malformed."""
    if text is None or len(text) > 16 or not (text.isascii() and text.isdigit()):
        return None
    return min(int(text), NUMBER_MAX)


def next_cursor(previous: int | None, *, now_ms: int, jitter_s: int) -> int:
    """Return the read cursor for a response. `previous` is the read cursor in the request.

    A read cursor is the number of a 20-second interval. The result is higher than `previous`:
    - If `previous` is None or a past interval, the result is the current interval.
    - Otherwise, the result is `previous` plus `jitter_s`, rounded up to whole intervals. The
      caller chooses `jitter_s` at random, from 1 to JITTER_S_MAX seconds.
    """
    current = max(0, (now_ms - _EPOCH_MS) // _INTERVAL_MS)
    if previous is None or previous < current:
        return current
    return previous + max(1, -(-jitter_s // _INTERVAL_S))
