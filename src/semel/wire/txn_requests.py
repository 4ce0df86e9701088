"""Calls on transactions: from a body to a command, or to the first thing wrong with it."""

import binascii
import struct
from base64 import b64decode
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from semel.model.checksum import digest_of
from semel.model.commands import Batch
from semel.model.limits import BATCH_MESSAGES_MAX, PRODUCER_ID_BYTES_MAX, TXN_ID_BYTES_MAX
from semel.model.media import JSON_MEDIA_TYPE, is_json
from semel.model.transactions import (
    TXN_INLINE,
    TXN_STAGED,
    AbortTxn,
    AddPositions,
    AddStreams,
    Begin,
    Commit,
    CommitAppend,
    CommitTxn,
    FenceTxn,
    ListedTxn,
    Owner,
    PositionMove,
    Prepare,
    ProducerOwner,
    SinkOwner,
    SinkTag,
    TxnCall,
)
from semel.wire.documents import Offset, read_document, read_name, read_offset
from semel.wire.headers import Headers, to_number
from semel.wire.json_mode import split_json
from semel.wire.problems import MalformedRequest, Problem, bad_request
from semel.wire.queries import parse_query, read_limit

# ---- commit requests -----------------------------------------------------------------------------
# `POST /v1/commits`: one request for appends, positions, preconditions and staged transactions.
#
# The messages of a JSON stream are JSON values and stay as they were sent, byte for byte. Those
# of any other stream are texts, stored as UTF-8, or `{"base64": "..."}`.


TypeOf = Callable[[str], str | None]

_NO_ARRAY: Final = "messages must be an array"
_NO_MESSAGE: Final = "an empty array holds no message"
_NO_TEXT: Final = 'a message of this stream is a text, or {"base64": "..."}'


class _Append(Struct, forbid_unknown_fields=True):
    stream: str
    messages: Raw


class _Listed(Struct, forbid_unknown_fields=True):
    id: str
    epoch: int


class MoveDocument(Struct, forbid_unknown_fields=True, kw_only=True, rename={"start": "from"}):
    """A position to set on conditions: where it is now, which stream the path has, its version."""

    start: Offset | UnsetType = UNSET
    to: Offset
    incarnation: str | UnsetType = UNSET
    version: int | UnsetType = UNSET


Target = int | str | MoveDocument


class _CommitSink(Struct, forbid_unknown_fields=True):
    app: str
    query_id: str
    version: int
    input: str | None = None
    previous: str | None = None


class _Commit(Struct, forbid_unknown_fields=True, rename={"expects": "if"}):
    producer_id: str | None = None
    producer_epoch: int | None = None
    producer_seq: int | None = None
    sink: _CommitSink | None = None
    appends: list[_Append] = []
    transactions: list[_Listed] = []
    offsets: dict[str, dict[str, Target]] = {}
    expects: dict[str, Offset] = {}


class _Packed(Struct, forbid_unknown_fields=True):
    base64: str


_messages: Final = msgspec.json.Decoder(list[str | _Packed])


def parse_commit(
    headers: Headers, body: bytes, *, now_ms: int, type_of: TypeOf
) -> Commit | Problem:
    """Read a one-shot commit; `type_of` tells the media type of a stream."""
    try:
        wanted = read_document(headers, body, _Commit)
        if wanted.producer_id is not None:
            read_name(wanted.producer_id, "producer_id", PRODUCER_ID_BYTES_MAX)
        listed = [
            ListedTxn(read_name(named.id, "transactions", TXN_ID_BYTES_MAX), named.epoch)
            for named in wanted.transactions
        ]
        positions = [
            read_move(group, path, target)
            for group, moves in wanted.offsets.items()
            for path, target in moves.items()
        ]
        expects = [(path, read_offset(end, "if")) for path, end in wanted.expects.items()]
    except MalformedRequest as refusal:
        return refusal.problem
    sink = wanted.sink
    return Commit(
        now_ms,
        wanted.producer_id,
        wanted.producer_epoch,
        wanted.producer_seq,
        None
        if sink is None
        else SinkTag(sink.app, sink.query_id, sink.version, sink.input, sink.previous),
        tuple([_read_append(append, type_of) for append in wanted.appends]),
        tuple(listed),
        tuple(positions),
        tuple(expects),
        _digest_of(wanted, positions),
    )


def _digest_of(wanted: _Commit, positions: list[PositionMove]) -> int:
    """Digest what is new in a commit. Preconditions may be others when it is sent again."""
    parts: list[object] = [(append.stream, bytes(append.messages)) for append in wanted.appends]
    parts += sorted((move.group, move.path, move.to) for move in positions)
    return digest_of(msgspec.msgpack.encode(parts))


def read_move(group: str, path: str, target: Target) -> PositionMove:
    """Read where a group shall stand: an offset, or one to set under conditions."""
    if not isinstance(target, MoveDocument):
        return PositionMove(group, path, read_offset(target, "offsets"))
    return PositionMove(
        group,
        path,
        read_offset(target.to, "to"),
        None if target.start is UNSET else read_offset(target.start, "from"),
        None if target.incarnation is UNSET else target.incarnation,
        None if target.version is UNSET else target.version,
    )


def _read_append(append: _Append, type_of: TypeOf) -> CommitAppend:
    """Read messages as the stream's media type wants; what is wrong with them speaks later."""
    # A stream that is not there will be refused; should it appear before, it must be JSON.
    content_type = type_of(append.stream) or JSON_MEDIA_TYPE
    raw = bytes(append.messages)
    if not raw.startswith(b"["):
        found: Batch | str = _NO_ARRAY
    elif is_json(content_type):
        found = split_json(raw) or _NO_MESSAGE
    else:
        found = _read_texts(raw)
    if isinstance(found, str):
        return CommitAppend(append.stream, content_type, None, found)
    return CommitAppend(append.stream, content_type, found)


def _read_texts(raw: bytes) -> Batch | str:
    try:
        messages = [_to_bytes(message) for message in _messages.decode(raw)]
    except (msgspec.DecodeError, binascii.Error, ValueError):
        return _NO_TEXT
    count = len(messages)
    if not count:
        return _NO_MESSAGE
    if count > BATCH_MESSAGES_MAX:
        return f"more than {BATCH_MESSAGES_MAX} messages in one batch"
    if not all(messages):
        return "a message is empty"
    lengths = struct.pack(f"<{count}I", *map(len, messages)) if count > 1 else b""
    return Batch(b"".join(messages), count, lengths)


def _to_bytes(message: str | _Packed) -> bytes:
    if isinstance(message, str):
        return message.encode()
    return b64decode(message.base64, validate=True)


# ---- txn requests --------------------------------------------------------------------------------


C = TypeVar("C", bound=TxnCall)
AnyCall = AddStreams | AddPositions | Prepare | CommitTxn | AbortTxn | FenceTxn
OPEN: Final = "open"
PREPARED: Final = "prepared"
STUCK: Final = "stuck"
_LIST: Final = frozenset({"state", "stream", "after", "limit"})
_ONE: Final = frozenset({"epoch"})
_STATES: Final = (OPEN, PREPARED, STUCK)


class TxnQuery(Struct, frozen=True):
    """Which transactions to show; `after` is a transaction's number."""

    state: str | None
    stream: str | None
    after: int
    limit: int


class _Sink(Struct, forbid_unknown_fields=True):
    app: str
    version: int
    partition: int


class _Begin(Struct, forbid_unknown_fields=True):
    transaction_id: str
    producer_id: str | None = None
    producer_epoch: int | None = None
    sink: _Sink | None = None
    kind: str | None = None
    timeout_ms: int | None = None
    streams: list[str] = []
    implicit: bool | None = None


class _Call(Struct, forbid_unknown_fields=True, kw_only=True):
    transaction_epoch: int
    producer_id: str | None = None
    producer_epoch: int | None = None
    operator: bool = False


class _Streams(_Call, forbid_unknown_fields=True, kw_only=True):
    streams: list[str]


class _Offsets(_Call, forbid_unknown_fields=True, kw_only=True):
    group: str
    offsets: dict[str, Target]


class _Prepare(_Call, forbid_unknown_fields=True, kw_only=True):
    chunks: int | None = None
    messages: dict[str, int] | None = None


# ---- begin ---------------------------------------------------------------------------------------


def parse_begin(headers: Headers, body: bytes, *, now_ms: int) -> Begin | Problem:
    """Read a begin: of a producer, or of a task of a sink."""
    try:
        wanted = read_document(headers, body, _Begin)
        name = read_name(wanted.transaction_id, "transaction_id", TXN_ID_BYTES_MAX)
        owner = _read_owner(wanted)
    except MalformedRequest as refusal:
        return refusal.problem
    is_sink = isinstance(owner, SinkOwner)
    kind = wanted.kind or (TXN_STAGED if is_sink else TXN_INLINE)
    streams = tuple(dict.fromkeys(wanted.streams))
    # A task of a sink learns its streams from its rows.
    is_implicit = is_sink if wanted.implicit is None else wanted.implicit
    return Begin(now_ms, name, owner, kind, wanted.timeout_ms, streams, is_implicit)


def _read_owner(wanted: _Begin) -> Owner:
    sink = wanted.sink
    producer_id, epoch = _read_producer(wanted.producer_id, wanted.producer_epoch)
    if (sink is None) == (producer_id is None):
        message = "producer_id and producer_epoch, or sink: one of the two begins a transaction"
        raise bad_request("invalid_request", message, field="producer_id")
    if sink is not None:
        return SinkOwner(sink.app, sink.version, sink.partition)
    assert producer_id is not None
    assert epoch is not None
    return ProducerOwner(producer_id, epoch)


def _read_producer(producer_id: str | None, epoch: int | None) -> tuple[str | None, int | None]:
    if (producer_id is None) != (epoch is None):
        message = "producer_id and producer_epoch belong together"
        raise bad_request("invalid_request", message, field="producer_epoch")
    if producer_id is not None:
        read_name(producer_id, "producer_id", PRODUCER_ID_BYTES_MAX)
    return producer_id, epoch


# ---- what follows --------------------------------------------------------------------------------


def parse_call(
    name: str, action: str, headers: Headers, body: bytes, *, now_ms: int
) -> AnyCall | Problem:
    """Read a call on the transaction `name`; `action` is one of ACTIONS."""
    try:
        return ACTIONS[action](name, headers, body, now_ms)
    except MalformedRequest as refusal:
        return refusal.problem


def _parse_streams(name: str, headers: Headers, body: bytes, now_ms: int) -> AddStreams:
    call = read_document(headers, body, _Streams)
    return _parse_action(AddStreams, call, name, now_ms, streams=tuple(dict.fromkeys(call.streams)))


def _parse_offsets(name: str, headers: Headers, body: bytes, now_ms: int) -> AddPositions:
    call = read_document(headers, body, _Offsets)
    positions = [read_move(call.group, path, target) for path, target in call.offsets.items()]
    return _parse_action(AddPositions, call, name, now_ms, positions=tuple(positions))


def _parse_prepare(name: str, headers: Headers, body: bytes, now_ms: int) -> Prepare:
    call = read_document(headers, body, _Prepare)
    messages = None if call.messages is None else tuple(call.messages.items())
    return _parse_action(Prepare, call, name, now_ms, chunks=call.chunks, messages=messages)


def _parse_commit(name: str, headers: Headers, body: bytes, now_ms: int) -> CommitTxn:
    return _parse_action(CommitTxn, read_document(headers, body, _Call), name, now_ms)


def _parse_abort(name: str, headers: Headers, body: bytes, now_ms: int) -> AbortTxn:
    return _parse_action(AbortTxn, read_document(headers, body, _Call), name, now_ms)


def _parse_fence(name: str, headers: Headers, body: bytes, now_ms: int) -> FenceTxn:
    call = read_document(headers, body, _Call)
    if not call.operator:
        message = 'only an operator fences: "operator": true'
        raise bad_request("invalid_request", message, field="operator")
    return _parse_action(FenceTxn, call, name, now_ms)


def _parse_action(kind: type[C], call: _Call, name: str, now_ms: int, **more: Any) -> C:
    producer_id, epoch = _read_producer(call.producer_id, call.producer_epoch)
    return kind(now_ms, name, call.transaction_epoch, producer_id, epoch, call.operator, **more)


ACTIONS: Final[Mapping[str, Callable[[str, Headers, bytes, int], AnyCall]]] = {
    "streams": _parse_streams,
    "offsets": _parse_offsets,
    "prepare": _parse_prepare,
    "commit": _parse_commit,
    "abort": _parse_abort,
    "fence": _parse_fence,
}


# ---- look ----------------------------------------------------------------------------------------


def parse_txn_query(query: str) -> TxnQuery | Problem:
    """Read which transactions to list."""
    try:
        given = parse_query(query, _LIST)
        state = given.get("state")
        if state is not None and state not in _STATES:
            raise bad_request(
                "invalid_query", f"state must be one of {', '.join(_STATES)}", field="state"
            )
        after = _read_number(given, "after") or 0
        limit = read_limit(given.get("limit"))
    except MalformedRequest as refusal:
        return refusal.problem
    return TxnQuery(state, given.get("stream"), after, limit)


def parse_txn_epoch(query: str) -> int | Problem | None:
    """Read which transaction of an id to show; None: the newest."""
    try:
        return _read_number(parse_query(query, _ONE), "epoch")
    except MalformedRequest as refusal:
        return refusal.problem


def _read_number(given: Mapping[str, str], name: str) -> int | None:
    value = given.get(name)
    number = None if value is None else to_number(value)
    if value is not None and number is None:
        raise bad_request("invalid_query", f"{name} must be a number", field=name)
    return number
