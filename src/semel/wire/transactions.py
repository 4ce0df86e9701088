"""Requests and responses of `/v1/transactions`: begin, extend, end, list and show transactions."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec import UNSET, Struct, UnsetType

from semel.machine.txn.views import PositionView, TxnView
from semel.model.commands import (
    ABORTED,
    BY_TIMEOUT,
    COMMITTED,
    TXN_INLINE,
    TXN_STAGED,
    AbortTxn,
    AddPositions,
    AddStreams,
    Begin,
    CommitTxn,
    FenceTxn,
    Owner,
    PositionResult,
    Prepare,
    ProducerOwner,
    SinkOwner,
    TxnOutcome,
    TxnResult,
)
from semel.model.limits import TXN_ID_BYTES_MAX, TXN_TIMEOUT_MS_MAX
from semel.model.offsets import print_offset
from semel.model.outcomes import Outcome
from semel.model.outcomes_txn import AbortDone, Begun, CommitDone, ExtendDone, Prepared
from semel.wire.documents import check_epochs, check_name, check_producer, read_document
from semel.wire.groups import read_move
from semel.wire.headers import Headers, print_instant, to_number
from semel.wire.paths import parse_query, read_limit
from semel.wire.problems import bad_request, parser
from semel.wire.rendering import Response
from semel.wire.responses import json_response, outcome_response, responds_to
from semel.wire.schema.transactions import (
    AbortResponse,
    AddOffsetsRequest,
    AddStreamsRequest,
    BeginRequest,
    BeginResponse,
    EndedTransaction,
    ExtendResponse,
    GroupOffsets,
    PendingStream,
    PendingTransaction,
    PrepareRequest,
    PrepareResponse,
    StreamResult,
    StreamResults,
    TaskOwner,
    TxnCommitRequest,
    TxnCommitResponse,
    TxnRequest,
)
from semel.wire.wake_acks import TokenReader, next_wakes, read_no_token, read_wakes

TxnAction = AddStreams | AddPositions | Prepare | CommitTxn | AbortTxn | FenceTxn
OPEN: Final = "open"
PREPARED: Final = "prepared"
STUCK: Final = "stuck"
_STATES: Final = (OPEN, PREPARED, STUCK)
# Maps each state to Kafka's name for it.
_PHASES: Final[Mapping[str, str]] = {
    OPEN: "Ongoing",
    PREPARED: "Prepared",
    COMMITTED: "CompleteCommit",
    ABORTED: "CompleteAbort",
}
_TIMED_OUT_PHASE: Final = "Dead"


class TxnQuery(Struct, frozen=True):
    """A query for a page of pending transactions, filtered by state and stream.

    If a filter is None, it accepts everything. The page begins after transaction number `after`.
    """

    state: str | None
    stream: str | None
    after: int
    limit: int


# ---- requests ------------------------------------------------------------------------------------


@parser
def parse_begin(headers: Headers, body: bytes, *, now_ms: int) -> Begin:
    """Parse a request to begin a transaction, sent by a producer or a sink task."""
    request = read_document(headers, body, BeginRequest)
    name = check_name(request.transaction_id, "transaction_id", TXN_ID_BYTES_MAX)
    owner = _read_owner(request)
    is_sink = isinstance(owner, SinkOwner)
    kind = request.kind or (TXN_STAGED if is_sink else TXN_INLINE)
    streams = () if request.streams is UNSET else tuple(dict.fromkeys(request.streams))
    # A sink task writes to the streams that its rows name. The rows come after the begin, so the
    # task cannot list its streams now. They are added implicitly.
    is_implicit = is_sink if request.implicit is None else request.implicit
    return Begin(now_ms, name, owner, kind, request.timeout_ms, streams, is_implicit)


def _read_owner(request: BeginRequest) -> Owner:
    sink = request.sink
    producer_id, epoch = _read_producer(request)
    if sink is not None and producer_id is None:
        return SinkOwner(sink.app, sink.version, sink.partition)
    if sink is not None or producer_id is None or epoch is None:
        message = "the request must contain either 'sink', or producer_id and producer_epoch"
        raise bad_request("invalid_request", message, field="producer_id")
    return ProducerOwner(producer_id, epoch)


def _read_producer(request: BeginRequest | TxnRequest) -> tuple[str | None, int | None]:
    producer_id, epoch = request.producer_id, request.producer_epoch
    if (producer_id is None) != (epoch is None):
        message = "producer_id and producer_epoch must be sent together"
        raise bad_request("invalid_request", message, field="producer_epoch")
    if producer_id is not None:
        check_producer(producer_id)
    return producer_id, epoch


ACTIONS: Final[Mapping[str, tuple[type[TxnAction], type[TxnRequest]]]] = {
    "streams": (AddStreams, AddStreamsRequest),
    "offsets": (AddPositions, AddOffsetsRequest),
    "prepare": (Prepare, PrepareRequest),
    "commit": (CommitTxn, TxnCommitRequest),
    "abort": (AbortTxn, TxnRequest),
    "fence": (FenceTxn, TxnRequest),
}


@parser
def parse_call(
    name: str,
    action: str,
    headers: Headers,
    body: bytes,
    *,
    now_ms: int,
    read_token: TokenReader = read_no_token,
) -> TxnAction:
    """Parse a request that changes the transaction with the id `name`.

    `action` is a key of ACTIONS, such as `commit`. `read_token` reads the tokens of wakes.
    """
    command, kind = ACTIONS[action]
    request = read_document(headers, body, kind)
    if command is FenceTxn and not request.operator:
        message = 'fence requires "operator": true'
        raise bad_request("invalid_request", message, field="operator")
    more = _own_fields(request, read_token)
    owner = _read_producer(request)
    return command(now_ms, name, request.transaction_epoch, *owner, request.operator, **more)


def _own_fields(request: TxnRequest, read_token: TokenReader) -> dict[str, Any]:
    """Return the command's fields that are specific to this type of request, such as `streams`."""
    match request:
        case TxnCommitRequest(subscriptions=wakes):
            return {"wakes": read_wakes(wakes, read_token)}
        case AddStreamsRequest(streams=streams):
            return {"streams": tuple(dict.fromkeys(streams))}
        case AddOffsetsRequest(group=group, offsets=offsets):
            moves = [read_move(group, path, target, request) for path, target in offsets.items()]
            check_epochs(request, offsets)
            return {"positions": tuple(moves)}
        case PrepareRequest(chunks=chunks, messages=messages):
            counts = None if messages is None else tuple(messages.items())
            return {"chunks": chunks, "messages": counts}
    return {}


@parser
def parse_txn_query(query: str) -> TxnQuery:
    """Parse the query that selects which transactions to list."""
    parameters = parse_query(query, ("state", "stream", "after", "limit"))
    state = parameters.get("state")
    if state is not None and state not in _STATES:
        message = f"the parameter 'state' must be one of {', '.join(_STATES)}"
        raise bad_request("invalid_query", message, field="state")
    after = _read_number(parameters, "after") or 0
    limit = read_limit(parameters.get("limit"))
    return TxnQuery(state, parameters.get("stream"), after, limit)


@parser
def parse_txn_epoch(query: str) -> int | None:
    """Return the transaction epoch of the transaction to show; None if the query has no epoch.

    Several transactions can have the same id. Without an epoch, the newest of them is shown.
    """
    return _read_number(parse_query(query, ("epoch",)), "epoch")


def _read_number(parameters: Mapping[str, str], name: str) -> int | None:
    value = parameters.get(name)
    number = None if value is None else to_number(value)
    if value is not None and number is None:
        raise bad_request("invalid_query", f"the parameter {name!r} must be a number", field=name)
    return number


# ---- responses -----------------------------------------------------------------------------------


@responds_to(Begun)
def begin_response(outcome: Begun) -> Response:
    """Return the response to a begin: 201, or 200 if the transaction was already open."""
    response = BeginResponse(
        transaction_id=outcome.id,
        transaction_epoch=outcome.epoch,
        state=OPEN,
        deadline=None if outcome.deadline_ms is None else print_instant(outcome.deadline_ms),
    )
    return json_response(201 if outcome.is_new else 200, response)


def call_response(
    outcome: Outcome, command: TxnAction, wakes: Iterable[tuple[str, bool]] = ()
) -> Response:
    """Return the response to a request that changes a transaction (see ACTIONS).

    `wakes` is as in `next_wakes`.
    """
    name, epoch = command.id, command.epoch
    response: ExtendResponse | PrepareResponse | AbortResponse | TxnCommitResponse
    match outcome:
        case ExtendDone(count=count) if isinstance(command, AddStreams):
            response = ExtendResponse(name, epoch, stream_count=count)
        case ExtendDone(count=count):
            response = ExtendResponse(name, epoch, offset_count=count)
        case Prepared(token=token):
            response = PrepareResponse(
                transaction_id=name, transaction_epoch=epoch, state=PREPARED, token=token
            )
        case AbortDone(reason=reason):
            response = AbortResponse(name, epoch, ABORTED, reason)
        case CommitDone(result=result):
            is_repeat = outcome.is_duplicate
            parts = results_of(result)
            following = next_wakes(wakes) or UNSET
            response = TxnCommitResponse(name, epoch, COMMITTED, is_repeat, *parts, following)
        case _:
            return outcome_response(outcome)
    return json_response(200, response)


def results_of(
    result: TxnResult | None,
) -> tuple[StreamResults | None, GroupOffsets | None, list[str] | None]:
    """Return the parts of a commit's result: stream results, group positions and deleted streams.

    All three parts are None if the result is no longer retained.
    """
    if result is None:
        return None, None, None
    streams = {
        stream.path: StreamResult(
            print_offset(stream.first_offset), print_offset(stream.next_offset), stream.messages
        )
        for stream in result.streams
    }
    return streams, group_offsets(result.positions), list(result.deleted)


def group_offsets(positions: Iterable[PositionResult | PositionView]) -> GroupOffsets:
    """Return the offset of each position as text, keyed by group and then by path."""
    groups: GroupOffsets = {}
    for position in positions:
        groups.setdefault(position.group, {})[position.path] = print_offset(position.offset)
    return groups


def ended_transaction(
    outcome: TxnOutcome, owner: str | UnsetType | None = UNSET
) -> EndedTransaction:
    """Return the JSON document that describes a transaction that has ended.

    `owner` is the principal that owns the transaction id; UNSET if it is not shown.
    """
    state = outcome.decision
    is_timed_out = state == ABORTED and outcome.reason == BY_TIMEOUT
    return EndedTransaction(
        outcome.id,
        outcome.epoch,
        state,
        _TIMED_OUT_PHASE if is_timed_out else _PHASES[state],
        outcome.reason if state == ABORTED else None,
        print_instant(outcome.time_ms),
        *results_of(outcome.result),
        owner=owner,
    )


def pending_transaction(
    view: TxnView, now_ms: int, owner: str | UnsetType | None = UNSET
) -> PendingTransaction:
    """Return the JSON document that describes an open or prepared transaction.

    `owner` is the principal that owns the transaction id; UNSET if it is not shown.
    """
    beginner = view.owner
    by_owner: dict[str, Any] = (
        {"sink": TaskOwner(beginner.app, beginner.version, beginner.partition)}
        if isinstance(beginner, SinkOwner)
        else {"producer_id": beginner.id, "producer_epoch": beginner.epoch}
    )
    return PendingTransaction(
        transaction_id=view.id,
        transaction_epoch=view.epoch,
        number=view.number,
        kind=view.kind,
        state=view.state,
        phase=_PHASES[view.state],
        stuck=is_stuck(view.touched_ms, now_ms),
        implicit=view.is_implicit,
        begun_at=print_instant(view.begun_ms),
        age_ms=max(0, now_ms - view.begun_ms),
        idle_ms=max(0, now_ms - view.touched_ms),
        deadline=None if view.due_ms is None else print_instant(view.due_ms),
        chunks=view.chunks,
        next_seq=view.next_seq,
        streams={
            stream.path: PendingStream(
                None if stream.first_offset is None else print_offset(stream.first_offset),
                stream.messages,
                stream.chunks,
            )
            for stream in view.streams
        },
        offsets=group_offsets(view.positions),
        deleted=list(view.deleted),
        owner=owner,
        **by_owner,
    )


def is_stuck(touched_ms: int, now_ms: int) -> bool:
    """Return True if a transaction has been idle for at least the longest allowed timeout.

    `touched_ms` is when the transaction was last used.
    """
    return now_ms - touched_ms >= TXN_TIMEOUT_MS_MAX
