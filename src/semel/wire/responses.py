"""The responses to requests on streams, and the responses that all resources share.

`semel.wire.rendering` builds the `Problem` for each refusal.
"""

import re
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Concatenate, Final, ParamSpec, TypeVar

import msgspec
from msgspec import Struct

from semel.model.commands import READ_COMMITTED, Append
from semel.model.limits import HOUR_MS, IDEMPOTENCY_HOURS, IDEMPOTENCY_KEYS_MAX
from semel.model.messages import JSON_MEDIA_TYPE, is_json, is_text
from semel.model.offsets import OFFSET_PREFIX, print_offset
from semel.model.outcomes import Appended, Created, Duplicate, Outcome, Refusal, Switched
from semel.model.outcomes_txn import Staged
from semel.model.policies import DedupSource
from semel.model.slices import Slice
from semel.wire.bodies import encode_frames, to_bytes, to_json_array
from semel.wire.headers import EVENTS, FRAMES, PROBLEM, print_instant
from semel.wire.policies import dedup_fields
from semel.wire.problems import Fields, Problem
from semel.wire.rendering import (
    GZIP_BYTES_MIN,
    METHODS,
    PREFLIGHT_HEADERS,
    STATUS,
    Response,
    has_strict_order,
    problem_of,
)
from semel.wire.requests import LONG_POLL, ReadRequest

K = TypeVar("K", bound=Outcome)
P = ParamSpec("P")
Respond = Callable[Concatenate[K, P], Response]

_NO_STORE: Final = ("Cache-Control", "no-store")
_REVALIDATE: Final = ("Cache-Control", "no-cache")
# The messages before the tail do not change while the stream exists.
_CACHE: Final = ("Cache-Control", "public, max-age=60, stale-while-revalidate=300")
_VARY: Final = ("Vary", "Accept, Accept-Encoding")
# A browser that shows the response runs none of its scripts and loads nothing that it names. These
# would have the origin of the server, so they could read and write every stream.
_INERT: Final = (
    "Content-Security-Policy",
    "default-src 'none'; sandbox; frame-ancestors 'none'",
)
# The media types of which browsers run nothing, and the same with simple parameters. Anything else
# may be a document for a browser. For example, with a comma, it is of the type after the comma.
_PLAIN_TYPES: Final = frozenset({JSON_MEDIA_TYPE, "application/octet-stream", "text/plain"})
_PLAIN_TYPE: Final = re.compile(
    r"(?:application/json|application/octet-stream|text/plain)(?:; ?[a-z0-9_-]+=[a-z0-9._-]+)*",
    re.ASCII | re.IGNORECASE,
)
_CLOSED: Final = ("Stream-Closed", "true")
_UP_TO_DATE: Final = ("Stream-Up-To-Date", "true")
# How long idempotency keys are retained, in seconds, and how many of them are retained.
_WINDOW: Final = f"{IDEMPOTENCY_HOURS * HOUR_MS // 1000}; keys={IDEMPOTENCY_KEYS_MAX}"
_NO_WINDOW: Final = "0; keys=0"


def key_headers(*, is_unguarded: bool, is_replay: bool) -> Fields:
    """Return the headers of the response to an append with an idempotency key."""
    headers: Fields = [("Idempotency-Window", _NO_WINDOW if is_unguarded else _WINDOW)]
    if is_replay:
        headers.append(("Idempotent-Replayed", "true"))
    return headers


class Blocker(Struct, frozen=True, gc=False):
    """The pending transaction that readers at `read_committed` wait for, and its start time."""

    transaction: str
    since_ms: int


def content_id(incarnation: str, generation: int) -> str:
    """Return an id of a stream's messages. Messages with the same id and offset are the same."""
    return incarnation if generation == 1 else f"{incarnation}.{generation}"


class StreamFacts(Struct, frozen=True, gc=False):
    """The parts of a stream's durable state that responses contain.

    `stable` is the stable offset; None if the stable offset is the tail. `blocker` is the pending
    transaction that starts at the stable offset. Readers at `read_committed` wait for it. `blocker`
    is None if there is no such transaction, or if it was not looked up.

    `generation` is that of the data directory. It is raised when an older copy is restored.
    """

    incarnation: str
    content_type: str
    tail: int
    is_closed: bool = False
    ttl_ms: int | None = None
    expires_at_ms: int | None = None
    dedup_from: int | None = 0
    dedup_source: DedupSource = DedupSource()
    stable: int | None = None
    blocker: Blocker | None = None
    generation: int = 1

    @property
    def content_id(self) -> str:
        """See `content_id`."""
        return content_id(self.incarnation, self.generation)

    @property
    def stable_offset(self) -> int:
        """The stable offset. All messages at lower offsets have been committed or aborted."""
        return self.tail if self.stable is None else self.stable


# ---- any request ---------------------------------------------------------------------------------


def problem_response(problem: Problem) -> Response:
    """Return the HTTP response for a problem. Its body contains the problem as JSON."""
    body = {
        "code": problem.code,
        "message": problem.message,
        "applied": problem.applied,
        **problem.facts,
    }
    headers = [("Content-Type", PROBLEM), _NO_STORE, *problem.headers]
    return Response(problem.status, headers, msgspec.json.encode(body))


def outcome_response(
    outcome: Outcome, *, is_x: bool = False, is_strict_order: bool = False
) -> Response:
    """Return the response for an outcome: a problem document for a refusal, else an empty body."""
    if isinstance(outcome, Refusal):
        return problem_response(problem_of(outcome, is_x=is_x, is_strict_order=is_strict_order))
    if isinstance(outcome, Staged):
        return Response(STATUS[Staged], [("Transaction-Next-Seq", str(outcome.next_seq))])
    return Response(STATUS[type(outcome)], [])


def responds_to(kind: type[K]) -> Callable[[Respond[K, P]], Respond[Outcome, P]]:
    """Return a decorator for a function that builds the response for outcomes of the type `kind`.

    The decorated function accepts any outcome. If the outcome has a different type, the decorated
    function returns the result of `outcome_response`.
    """

    def decorate(respond: Respond[K, P]) -> Respond[Outcome, P]:
        @wraps(respond)
        def response_to(outcome: Outcome, /, *arguments: P.args, **options: P.kwargs) -> Response:
            if isinstance(outcome, kind):
                return respond(outcome, *arguments, **options)
            return outcome_response(outcome)

        return response_to

    return decorate


def json_response(status: int, value: object, more: Sequence[tuple[str, str]] = ()) -> Response:
    """Return a response whose body is `value` as JSON. `more` are additional headers."""
    headers = [("Content-Type", JSON_MEDIA_TYPE), _NO_STORE, *more]
    return Response(status, headers, msgspec.json.encode(value))


def options_response() -> Response:
    """Return the response to a CORS preflight."""
    return Response(204, [("Allow", METHODS), *PREFLIGHT_HEADERS])


# ---- writes --------------------------------------------------------------------------------------


@responds_to(Created)
def put_response(outcome: Created, *, location: str) -> Response:
    """Return the response to a request that creates a stream.

    `location` is the stream's absolute URL.
    """
    headers: Fields = [
        ("Content-Type", outcome.content_type),
        ("Stream-Next-Offset", print_offset(outcome.next_offset)),
        ("Stream-Incarnation", outcome.incarnation),
    ]
    if outcome.is_new:
        headers.append(("Location", location))
    if outcome.is_closed:
        headers.append(_CLOSED)
    headers += dedup_fields(outcome.dedup_from, outcome.source)
    return Response(201 if outcome.is_new else 200, headers)


def post_response(
    outcome: Outcome,
    command: Append,
    *,
    is_x: bool = False,
    is_named: bool = True,
) -> Response:
    """Return the response to an append.

    `is_x` means that the request used the X-Producer-* dialect. If `is_named` is False, the server
    has chosen the producer id, so the response contains the id.
    """
    if isinstance(outcome, Appended):
        status = 204
        headers: Fields = [("Stream-Next-Offset", print_offset(outcome.next_offset))]
        if command.producer is not None and outcome.next_offset > outcome.first_offset:
            status = 201 if is_x else 200
    elif isinstance(outcome, Duplicate):
        status, headers = 204, _duplicate_headers(outcome, command)
    else:
        is_strict_order = has_strict_order(command.producer, command.transaction)
        return outcome_response(outcome, is_x=is_x, is_strict_order=is_strict_order)
    if outcome.is_closed:
        headers.append(_CLOSED)
    is_unguarded = isinstance(outcome, Appended) and outcome.is_unguarded
    if outcome.seq is not None:
        headers += _producer_headers(outcome, is_x=is_x)
        if is_unguarded:
            headers.append(("Producer-Dedup", "off"))
    if not is_named and command.producer is not None:
        headers.append(("Producer-Id", command.producer.id))
    if command.key is not None:
        is_replay = isinstance(outcome, Duplicate)
        headers += key_headers(is_unguarded=is_unguarded, is_replay=is_replay)
    return Response(status, headers)


# The first line is that of `print_offset`, but a call less for each append.
_PLAIN_LINES: Final = f"Stream-Next-Offset: {OFFSET_PREFIX}%016d\r\n".encode()
_PRODUCED_LINES: Final = _PLAIN_LINES + b"Producer-Epoch: %d\r\nProducer-Seq: %d\r\n"


def append_response_lines(outcome: Appended) -> tuple[int, bytes]:
    """Return the status and the encoded header lines of the response to a stored append.

    `post_response` would build the same response, but more slowly. Use this function only if
    `is_common` is true for the append's plan and `outcome.is_unguarded` is false.
    """
    if outcome.epoch is None:
        return 204, _PLAIN_LINES % outcome.next_offset
    return 200, _PRODUCED_LINES % (outcome.next_offset, outcome.epoch, outcome.seq)


def _duplicate_headers(outcome: Duplicate, command: Append) -> Fields:
    headers: Fields = []
    # A chunk has no offset before its transaction is committed.
    is_chunk = command.transaction is not None and command.transaction.seq is not None
    if outcome.next_offset is not None and not is_chunk:
        headers.append(("Stream-Next-Offset", print_offset(outcome.next_offset)))
    elif not is_chunk:
        headers.append(("Producer-Receipt", "expired"))
    if outcome.is_mismatch:
        headers.append(("Producer-Payload-Mismatch", "true"))
    return headers


def _producer_headers(outcome: Appended | Duplicate, *, is_x: bool) -> Fields:
    headers: Fields = []
    if outcome.epoch is not None:
        headers.append(("X-Producer-Epoch" if is_x else "Producer-Epoch", str(outcome.epoch)))
    first = outcome.first_offset
    if not is_x:
        headers.append(("Producer-Seq", str(outcome.seq)))
    elif first is not None and first != outcome.next_offset:  # equal if the request only closes
        headers.append(("X-Stream-Offset", f"{first:08d}"))
    return headers


@responds_to(Switched)
def patch_response(outcome: Switched) -> Response:
    """Return the response to a request that changes a stream's recognition of duplicates."""
    headers: Fields = [("Stream-Next-Offset", print_offset(outcome.next_offset))]
    if outcome.dedup_from is not None:
        headers.append(("Stream-Dedup", "on"))
    return Response(204, headers + dedup_fields(outcome.dedup_from, outcome.source))


# ---- reads ---------------------------------------------------------------------------------------


def head_response(facts: StreamFacts) -> Response:
    """Return the response to a HEAD request."""
    headers: Fields = [
        ("Content-Type", facts.content_type),
        ("Stream-Next-Offset", print_offset(facts.tail)),
        ("Stream-Stable-Offset", print_offset(facts.stable_offset)),
        ("Stream-Incarnation", facts.incarnation),
        ("Stream-Generation", str(facts.generation)),
        _NO_STORE,
    ]
    if _may_run(facts.content_type):
        headers.append(_INERT)
    if facts.is_closed:
        headers.append(_CLOSED)
    if facts.ttl_ms is not None:
        headers.append(("Stream-TTL", str(facts.ttl_ms // 1000)))
    if facts.expires_at_ms is not None:
        headers.append(("Stream-Expires-At", print_instant(facts.expires_at_ms)))
    return Response(200, headers + dedup_fields(facts.dedup_from, facts.dedup_source))


def read_response(
    facts: StreamFacts,
    request: ReadRequest,
    slices: Sequence[Slice],
    *,
    start: int,
    next_offset: int,
    cursor: int | None = None,
) -> Response:
    """Return the response to a read: the messages from `start` up to `next_offset`.

    If the request's If-None-Match contains the response's ETag, the response is 304 with no body.
    """
    is_at_tail = next_offset >= facts.tail
    is_closed = facts.is_closed and is_at_tail
    is_gzip = request.accepts_gzip and sum([len(each.payload) for each in slices]) >= GZIP_BYTES_MIN
    is_committed = request.isolation == READ_COMMITTED
    headers = _state_headers(facts, next_offset, cursor, is_committed=is_committed)
    is_at_end = next_offset >= facts.stable_offset if is_committed else is_at_tail
    headers.append(_cache_field(request, is_at_end=is_at_end))
    headers.append(_VARY)
    if _may_run(facts.content_type):
        headers.append(_INERT)
    if not request.is_now:
        etag = etag_of(
            facts.content_id,
            start,
            next_offset,
            is_up_to_date=is_at_tail,
            is_closed=is_closed,
            is_committed=is_committed,
            is_frames=request.is_frames,
            is_gzip=is_gzip,
        )
        headers.append(("ETag", etag))
        if request.if_none_match is not None and is_match(etag, request.if_none_match):
            return Response(304, headers)
    if is_gzip:
        headers.append(("Content-Encoding", "gzip"))
    headers.append(("Content-Type", FRAMES if request.is_frames else facts.content_type))
    body = _body(facts, request, slices, next_offset)
    return Response(200, headers, body, is_to_gzip=is_gzip)


def _body(
    facts: StreamFacts, request: ReadRequest, slices: Sequence[Slice], next_offset: int
) -> bytes:
    if request.is_frames:
        is_closed = facts.is_closed and next_offset >= facts.tail
        return encode_frames(
            facts.content_type,
            slices,
            next_offset=next_offset,
            tail=facts.tail,
            is_closed=is_closed,
        )
    return to_json_array(slices) if is_json(facts.content_type) else to_bytes(slices)


def _state_headers(
    facts: StreamFacts, next_offset: int, cursor: int | None, *, is_committed: bool
) -> Fields:
    """Return the headers about the state of the stream and of the reader.

    They contain the reader's next offset and whether the reader is at the tail. With
    `is_committed`, they also name the transaction that blocks the reader, if there is one.
    """
    headers: Fields = [
        ("Stream-Next-Offset", print_offset(next_offset)),
        ("Stream-Stable-Offset", print_offset(facts.stable_offset)),
        ("Stream-Incarnation", facts.incarnation),
        ("Stream-Generation", str(facts.generation)),
    ]
    if next_offset >= facts.tail:
        headers.append(_UP_TO_DATE)
        if facts.is_closed:
            headers.append(_CLOSED)
    elif is_committed and facts.blocker is not None and next_offset >= facts.stable_offset:
        headers.append(("Stream-Blocked-By", facts.blocker.transaction))
        headers.append(("Stream-Blocked-Since", print_instant(facts.blocker.since_ms)))
    if cursor is not None:
        headers.append(("Stream-Cursor", str(cursor)))
    return headers


def _may_run(content_type: str) -> bool:
    """Return True unless browsers are known to run nothing of a content of this media type.

    The stream may have been created by an earlier version, which accepted types with commas.
    """
    return content_type not in _PLAIN_TYPES and _PLAIN_TYPE.fullmatch(content_type) is None


def _cache_field(request: ReadRequest, *, is_at_end: bool) -> tuple[str, str]:
    """Return the Cache-Control header of a response to a read.

    - The read starts at the tail (`request.is_now`): a cache must not store the response.
    - The address does not name the incarnation: a cache must revalidate the response, because the
      stream may have been deleted and created again. The ETag contains the incarnation.
    - A long-poll: a cache can use the response. The reader's next request has a new offset, so the
      cache does not answer that request with this response.
    - Otherwise, with `is_at_end`: the response ends at the last offset that can be read now. A
      cache must revalidate the response, because later messages will extend it.
    - Otherwise, without `is_at_end`: a cache can use the response.
    """
    if request.is_now:
        return _NO_STORE
    if request.incarnation is None or (is_at_end and request.live != LONG_POLL):
        return _REVALIDATE
    return _CACHE


def empty_poll_response(
    facts: StreamFacts,
    *,
    next_offset: int,
    cursor: int | None = None,
    is_committed: bool = False,
) -> Response:
    """Return the response to a long-poll that has no messages to return.

    Either the wait has timed out, or the stream is closed and the reader is at its tail.
    """
    headers = _state_headers(facts, next_offset, cursor, is_committed=is_committed)
    return Response(204, [*headers, _NO_STORE])


def sse_response(facts: StreamFacts) -> Response:
    """Return the status and headers of an event stream. The events follow as body chunks."""
    headers: Fields = [
        ("Content-Type", EVENTS),
        ("Cache-Control", "no-cache"),
        ("X-Accel-Buffering", "no"),
        ("Stream-Incarnation", facts.incarnation),
        ("Stream-Generation", str(facts.generation)),
    ]
    if not (is_json(facts.content_type) or is_text(facts.content_type)):
        headers.append(("Stream-SSE-Data-Encoding", "base64"))
    return Response(200, headers, is_streamed=True)


# ---- etags ---------------------------------------------------------------------------------------
# Two responses with the same ETag are equal.

_TAG: Final = re.compile(r'[ \t,]*(?:W/)?("[\x21\x23-\x7e\x80-\xff]*")[ \t]*(?:,|$)')


def etag_of(
    content_id: str,
    start: int,
    end: int,
    *,
    is_up_to_date: bool = False,
    is_closed: bool = False,
    is_committed: bool = False,
    is_frames: bool = False,
    is_gzip: bool = False,
) -> str:
    """Return the ETag of a response with the messages from `start` up to `end`.

    The ETag includes the flags, because each flag changes the body or the headers.
    """
    marks = (
        (is_up_to_date, "u"),
        (is_closed, "c"),
        (is_committed, "r"),
        (is_frames, "f"),
        (is_gzip, "z"),
    )
    return f'"{content_id}:{start}:{end}:{"".join(mark for is_set, mark in marks if is_set)}"'


def is_match(etag: str, if_none_match: str) -> bool:
    """Return True if the header If-None-Match is `*` or a list that contains `etag`.

    The comparison is weak: it ignores the prefix `W/`. If the list is malformed, only the tags
    before the syntax error are compared.
    """
    if if_none_match.strip() == "*":
        return True
    at = 0
    while at < len(if_none_match):
        tag = _TAG.match(if_none_match, at)
        if tag is None:
            return False
        if tag[1] == etag:
            return True
        at = tag.end()
    return False
