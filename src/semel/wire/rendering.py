"""Defines `Response`, the headers of every response, and the error response for each refusal."""

import zlib
from collections.abc import Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from semel.model import outcomes as out
from semel.model import outcomes_access as access_out
from semel.model import outcomes_groups as group_out
from semel.model import outcomes_subscriptions as subscription_out
from semel.model import outcomes_topics as topic_out
from semel.model import outcomes_txn as txn_out
from semel.model.commands import ProducerTag, TxnTag
from semel.model.offsets import print_offset
from semel.model.validation import is_assigned_id
from semel.wire.problems import Entry, Fields, Problem
from semel.wire.refusal_table import OUT_OF_ORDER, REFUSALS

_REQUEST_HEADERS: Final = (
    "Content-Type",
    "Authorization",
    "Accept",
    "If-Match",
    "If-None-Match",
    "Stream-TTL",
    "Stream-Expires-At",
    "Stream-Closed",
    "Stream-Seq",
    "Stream-Forked-From",
    "Stream-Fork-Offset",
    "Stream-Fork-Sub-Offset",
    "Stream-Partition",
    "Topic-Partition-Hint",
    "Topic-Partitions",
    "Message-Key",
    "Message-Key*",
    "Message-Key-Pointer",
    "Leader-Epoch",
    "Producer-Id",
    "Producer-Id*",
    "Producer-Epoch",
    "Producer-Seq",
    "Producer-Session",
    "Producer-Mode",
    "Producer-Cursor",
    "Producer-Expires",
    "Producer-Strict",
    "Stream-Dedup",
    "Idempotency-Key",
    "Transaction-Id",
    "Transaction-Epoch",
    "Transaction-Seq",
    "X-Producer-Id",
    "X-Producer-Id*",
    "X-Producer-Epoch",
    "X-Producer-Seq",
)
_RESPONSE_HEADERS: Final = (
    "Stream-Next-Offset",
    "Stream-Up-To-Date",
    "Stream-Closed",
    "Stream-Cursor",
    "Stream-TTL",
    "Stream-Expires-At",
    "Stream-Incarnation",
    "Stream-Generation",
    "Stream-SSE-Data-Encoding",
    "Stream-Dedup",
    "Stream-Dedup-From",
    "Stream-Dedup-Source",
    "Stream-Dedup-Policy",
    "Stream-Dedup-Pending",
    "Stream-Stable-Offset",
    "Stream-Blocked-By",
    "Stream-Blocked-Since",
    "Stream-Partition",
    "Topic-Partitions",
    "Topic-Partitioner",
    "Topic-Incarnation",
    "Topic-Growth-Offsets",
    "Transaction-Epoch",
    "Transaction-Next-Seq",
    "Producer-Id",
    "Producer-Epoch",
    "Producer-Seq",
    "Producer-Dedup",
    "Producer-Expected-Seq",
    "Producer-Received-Seq",
    "Producer-Payload-Mismatch",
    "Producer-Receipt",
    "Idempotency-Window",
    "Idempotent-Replayed",
    "X-Stream-Offset",
    "X-Producer-Epoch",
    "X-Expected-Seq",
    "X-Received-Seq",
    "X-Error",
    "X-Current-Epoch",
    "ETag",
    "Location",
    "Retry-After",
)

METHODS: Final = "GET, POST, PUT, PATCH, DELETE, HEAD, OPTIONS"
GZIP_BYTES_MIN: Final = 1024
_GZIP_LEVEL: Final = 1  # the fastest level, so that other requests do not wait long
_GZIP_WINDOW: Final = 31  # the value of `wbits` with which zlib writes the gzip format

# On every response, including errors (protocol 1.10), next to Cross-Origin-Resource-Policy, whose
# value is a setting.
NOSNIFF_HEADER: Final = ("X-Content-Type-Options", "nosniff")
# On every response that pages of other origins can read.
EXPOSED_HEADER: Final = ("Access-Control-Expose-Headers", ", ".join(_RESPONSE_HEADERS))
PREFLIGHT_HEADERS: Final[Fields] = [
    ("Access-Control-Allow-Methods", METHODS),
    ("Access-Control-Allow-Headers", ", ".join(_REQUEST_HEADERS)),
    ("Access-Control-Max-Age", "86400"),
]


class Response(Struct, frozen=True, gc=False):
    """A response without the constant headers and without the headers about the connection.

    If `is_streamed` is True, the body is sent later, as body chunks. If `is_to_gzip` is True, the
    headers announce gzip, but the body is still plain: call `compress` before you send it.
    """

    status: int
    headers: Fields
    body: bytes = b""
    is_streamed: bool = False
    is_to_gzip: bool = False


def compress(response: Response) -> Response:
    """Return the response with its body compressed. This function can be called in any thread."""
    body = zlib.compress(response.body, _GZIP_LEVEL, _GZIP_WINDOW)
    return replace(response, body=body, is_to_gzip=False)


def as_private(response: Response) -> Response:
    """Return the response to a read of a caller, which only a cache of this caller can use."""
    headers = []
    for name, value in response.headers:
        if name == "Cache-Control":
            headers.append((name, value.replace("public", "private")))
        elif name == "Vary":
            headers.append((name, f"{value}, Authorization"))
        else:
            headers.append((name, value))
    return replace(response, headers=headers)


# ---- outcomes ------------------------------------------------------------------------------------


DONE: Final[Mapping[type[out.Outcome], int]] = {
    out.Created: 201,
    out.Appended: 204,
    out.Duplicate: 204,
    out.Deleted: 204,
    out.Trimmed: 204,
    out.Switched: 204,
    out.PolicySet: 200,
    out.PolicyDeleted: 204,
    out.Expired: 204,
    out.Registered: 200,
    out.Claimed: 200,
    out.Forgotten: 204,
    out.Retired: 200,
    out.DropDone: 204,
    out.HourCounted: 204,
    txn_out.Begun: 201,
    txn_out.ExtendDone: 200,
    txn_out.Staged: 200,
    txn_out.Prepared: 200,
    txn_out.CommitDone: 200,
    txn_out.AbortDone: 200,
    txn_out.PositionsSet: 200,
    txn_out.Pinned: 200,
    txn_out.SinkChanged: 204,
    topic_out.TopicCreated: 201,
    topic_out.TopicGrown: 200,
    topic_out.TopicClosed: 200,
    topic_out.TopicDeleted: 204,
    topic_out.TopicStored: 200,
    group_out.Joined: 201,
    group_out.Released: 200,
    group_out.Left: 204,
    group_out.Rebalanced: 204,
    group_out.GroupDeleted: 204,
    subscription_out.SubscriptionCreated: 201,
    subscription_out.SubscriptionDeleted: 204,
    subscription_out.LinksChanged: 204,
    subscription_out.WakeChanged: 204,
    subscription_out.WakeClaimed: 200,
    subscription_out.WakeAcked: 200,
    access_out.TokenStored: 201,
    access_out.TokenEnded: 200,
    access_out.UsesNoted: 204,
    access_out.OwnerSet: 200,
}
_OUTCOMES: Final = {
    **vars(out),
    **vars(txn_out),
    **vars(topic_out),
    **vars(group_out),
    **vars(subscription_out),
    **vars(access_out),
}
REFUSED: Final[Mapping[type[out.Outcome], Entry]] = {
    _OUTCOMES[entry.outcome]: entry for entry in REFUSALS if entry.outcome
}
STATUS: Final[Mapping[type[out.Outcome], int]] = {
    **DONE,
    **{refusal: entry.status for refusal, entry in REFUSED.items()},
}

_NOTHING_YET: Final = -1  # the last sequence of a producer that has appended nothing since a claim
_OFFSETS: Final = frozenset({"next_offset", "head", "stable", "offset"})
# Fields that are omitted if they are None.
_OPTIONAL: Final = ("incarnation", "mover", "reason", "received_epoch", "next_offset")
_NO_RIGHT: Final = (access_out.Forbidden, access_out.ReservedPath)
_WORTH_A_RETRY: Final = (
    out.DiskReadFailed,
    out.DiskFull,
    out.Overloaded,
    txn_out.UnstableOffsets,
)


def has_strict_order(tag: ProducerTag | None, transaction: TxnTag | None = None) -> bool:
    """Return True if a missing sequence of an append has the code OUT_OF_ORDER_SEQUENCE."""
    return transaction is not None or (tag is not None and is_assigned_id(tag.id))


def problem_of(
    outcome: out.Outcome, *, is_x: bool = False, is_strict_order: bool = False
) -> Problem:
    """Return the error response for a refusal.

    If `is_x` is True, the producer headers are those of the X-Producer-* dialect. A missing
    sequence has two codes, and the body names the other one as `alias`. `is_strict_order` chooses:
    it is True for an append with `has_strict_order`, and for a one-shot commit.
    """
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
    if isinstance(outcome, access_out.Unauthenticated | subscription_out.TokenInvalid):
        headers.append(("WWW-Authenticate", 'Bearer realm="semel"'))
    headers.extend(_producer_headers(outcome, entry.status, facts, is_x=is_x))
    if isinstance(outcome, txn_out.InvalidTxnState):
        facts["expected_state"] = "open"
    if isinstance(outcome, txn_out.StaleTransaction):
        headers.append(("Transaction-Epoch", str(outcome.current_epoch)))
    code = outcome.code
    if isinstance(outcome, out.SequenceGap):
        code, facts["alias"] = (OUT_OF_ORDER, code) if is_strict_order else (code, OUT_OF_ORDER)
    text = entry.message
    message = text.format(outcome) if isinstance(text, str) else text(outcome)
    return Problem(entry.status, code, message, facts, headers, entry.applied)


def _facts_of(outcome: out.Outcome, entry: Entry) -> dict[str, object]:
    facts: dict[str, object] = {}
    for name in outcome.__struct_fields__:
        value = getattr(outcome, name)
        if value is None and name in _OPTIONAL:
            continue
        if value == "" and name == "id":  # of a subscription that the address names
            continue
        facts[entry.names.get(name, name)] = print_offset(value) if name in _OFFSETS else value
    if facts.get("last_seq") == _NOTHING_YET:
        facts["last_seq"] = None
    return facts


def _of_stream(outcome: txn_out.StreamRefused) -> Problem:
    """Return the error response for `outcome.cause`, with the stream's path added."""
    cause = problem_of(outcome.cause)
    return Problem(
        cause.status,
        cause.code,
        f"{outcome.path}: {cause.message}",
        {"stream": outcome.path, **cause.facts},
        cause.headers,
    )


def _producer_headers(
    outcome: out.Outcome, status: int, facts: Mapping[str, object], *, is_x: bool
) -> Fields:
    headers: Fields = []
    if is_x and status == 403 and not isinstance(outcome, _NO_RIGHT):
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
