"""Calls on transactions: from a body to a command, or to the first thing wrong with it."""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from msgspec import Struct

from semel.model.limits import PRODUCER_ID_BYTES_MAX, TXN_ID_BYTES_MAX
from semel.model.transactions import (
    INLINE,
    STAGED,
    AbortTxn,
    AddPositions,
    AddStreams,
    Begin,
    CommitTxn,
    FenceTxn,
    Owner,
    Prepare,
    ProducerOwner,
    SinkOwner,
    TxnCall,
)
from semel.wire.commit_requests import Target, read_move
from semel.wire.documents import read_document, read_name
from semel.wire.headers import Headers, to_number
from semel.wire.problems import BadRequest, Problem, bad_request
from semel.wire.queries import parse_query, read_limit

C = TypeVar("C", bound=TxnCall)
AnyCall = AddStreams | AddPositions | Prepare | CommitTxn | AbortTxn | FenceTxn
OPEN: Final = "open"
PREPARED: Final = "prepared"
STUCK: Final = "stuck"
_LIST: Final = frozenset({"state", "stream", "after", "limit"})
_ONE: Final = frozenset({"epoch"})
_STATES: Final = (OPEN, PREPARED, STUCK)


class TxnLook(Struct, frozen=True):
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
    except BadRequest as refusal:
        return refusal.problem
    is_sink = isinstance(owner, SinkOwner)
    kind = wanted.kind or (STAGED if is_sink else INLINE)
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
    except BadRequest as refusal:
        return refusal.problem


def _parse_streams(name: str, headers: Headers, body: bytes, now_ms: int) -> AddStreams:
    call = read_document(headers, body, _Streams)
    return _word(AddStreams, call, name, now_ms, streams=tuple(dict.fromkeys(call.streams)))


def _parse_offsets(name: str, headers: Headers, body: bytes, now_ms: int) -> AddPositions:
    call = read_document(headers, body, _Offsets)
    positions = [read_move(call.group, path, target) for path, target in call.offsets.items()]
    return _word(AddPositions, call, name, now_ms, positions=tuple(positions))


def _parse_prepare(name: str, headers: Headers, body: bytes, now_ms: int) -> Prepare:
    call = read_document(headers, body, _Prepare)
    messages = None if call.messages is None else tuple(call.messages.items())
    return _word(Prepare, call, name, now_ms, chunks=call.chunks, messages=messages)


def _parse_commit(name: str, headers: Headers, body: bytes, now_ms: int) -> CommitTxn:
    return _word(CommitTxn, read_document(headers, body, _Call), name, now_ms)


def _parse_abort(name: str, headers: Headers, body: bytes, now_ms: int) -> AbortTxn:
    return _word(AbortTxn, read_document(headers, body, _Call), name, now_ms)


def _parse_fence(name: str, headers: Headers, body: bytes, now_ms: int) -> FenceTxn:
    call = read_document(headers, body, _Call)
    if not call.operator:
        message = 'only an operator fences: "operator": true'
        raise bad_request("invalid_request", message, field="operator")
    return _word(FenceTxn, call, name, now_ms)


def _word(kind: type[C], call: _Call, name: str, now_ms: int, **more: Any) -> C:
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


def parse_txn_look(query: str) -> TxnLook | Problem:
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
    except BadRequest as refusal:
        return refusal.problem
    return TxnLook(state, given.get("stream"), after, limit)


def parse_txn_epoch(query: str) -> int | Problem | None:
    """Read which transaction of an id to show; None: the newest."""
    try:
        return _read_number(parse_query(query, _ONE), "epoch")
    except BadRequest as refusal:
        return refusal.problem


def _read_number(given: Mapping[str, str], name: str) -> int | None:
    value = given.get(name)
    number = None if value is None else to_number(value)
    if value is not None and number is None:
        raise bad_request("invalid_query", f"{name} must be a number", field=name)
    return number
