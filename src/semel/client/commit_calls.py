"""The client's calls for sinks, tasks and one-shot commits, as generators without sockets."""

from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct
from msgspec.structs import replace

from semel.client import errors
from semel.client.extras import Extras, key_bytes
from semel.client.flows import Flow
from semel.client.known_streams import KnownStreams
from semel.client.positions import (
    KnownPositions,
    MovePlanner,
    Planned,
    moves_by_member,
    moves_of,
)
from semel.client.requests import AppendHeaders, TransactionHeaders
from semel.client.response_parser import Response
from semel.client.server_calls import decoded, get, post, send
from semel.client.stream_calls import ServerConfig, StreamCalls
from semel.client.subscription_values import AckedWake, commit_wakes
from semel.client.topic_values import Keyed
from semel.client.transport import ProcessOwner, random_id
from semel.client.values import (
    KIND_STAGED,
    PREENCODED,
    CommitResult,
    Metadata,
    Moves,
    Offset,
    Receipt,
    encode,
    offset_of,
    parse_token,
    targets_of,
    token_of,
)
from semel.model.commands import Batch
from semel.model.limits import BATCH_MESSAGES_MAX
from semel.model.messages import is_json
from semel.wire.headers import BATCH, read_flag
from semel.wire.json_mode import split_json
from semel.wire.paths import COMMITS, SINKS, TRANSACTIONS
from semel.wire.schema.commits import (
    Base64Message,
    CommitRequest,
    CommitSink,
    ListedTransaction,
    RebindRequest,
    SinkInfo,
    SinksPage,
    StreamAppend,
)
from semel.wire.schema.transactions import (
    BeginRequest,
    BeginResponse,
    PrepareRequest,
    PrepareResponse,
    TaskOwner,
    TxnRequest,
)

__all__ = [
    "CommitId",
    "KnownStreams",
    "Parts",
    "SinkInfo",
    "TaskCalls",
    "Version",
    "abort_version",
    "commit_known_parts",
    "commit_parts",
    "commit_version",
    "commit_version_known",
    "find_unstorable",
    "list_sink_infos",
    "rebind_sink_info",
    "show_sink_info",
]

Version = CommitSink
_AGAIN: Final = (
    "it is safe to repeat the commit with the same producer_id, epoch and seq; the result has"
    " duplicate=True if an earlier attempt was applied"
)
_VERSION_AGAIN: Final = (
    "it is safe to commit the same version again with the same input; the result has"
    " duplicate=True if an earlier attempt was applied"
)


class CommitId(Struct, frozen=True):
    """Identifies a commit. The server recognises a repeated commit because it has the same id."""

    producer_id: str
    epoch: int
    seq: int


class Parts(Struct, frozen=True):
    """The content of a commit.

    - `appends`: the values to append to each stream.
    - `offsets`: the new positions of each group.
    - `expects`: the tail that each stream must have, or the commit is refused.
    - `transactions`: the tokens of staged transactions to commit.
    - `metadata`: what is stored with the positions, for each group and stream.
    - `member`, `epochs`: the member that moves positions of its group, and its epochs of the
      streams, by path.
    - `wakes`: the acks of wakes. If one of the wakes has ended, the commit is refused.
    """

    appends: Mapping[str, Iterable[Any]] = {}
    offsets: Mapping[str, Moves] = {}
    expects: Mapping[str, Offset] = {}
    transactions: Sequence[str] = ()
    metadata: Mapping[str, Mapping[str, Metadata]] = {}
    member: str | None = None
    epochs: Mapping[str, int] = {}
    wakes: Sequence[AckedWake] = ()


def commit_parts(
    streams: KnownStreams, commit_id: CommitId, parts: Parts, *, silence_seconds: float = inf
) -> Flow[CommitResult]:
    """Commit all parts or nothing, and return the result.

    The server recognises a retry by its `commit_id`, and applies the commit only once. Raises
    PayloadMismatch if the same `commit_id` was used for different parts.
    """
    producer_id, epoch, seq = commit_id.producer_id, commit_id.epoch, commit_id.seq
    request = replace(
        (yield from _request_of(streams, parts)),
        producer_id=producer_id,
        producer_epoch=epoch,
        producer_seq=seq,
    )
    response = yield from _commit(streams, streams.site, request, _AGAIN, silence_seconds)
    if read_flag(response.headers, "producer-payload-mismatch"):
        raise errors.PayloadMismatch(
            f"the producer {producer_id} has already used sequence {seq} for a different commit",
            status=response.status,
            facts={"producer_seq": seq},
        )
    return decoded(response, CommitResult)


def commit_version(
    streams: KnownStreams, version: Version, parts: Parts, *, silence_seconds: float = inf
) -> Flow[CommitResult]:
    """Commit all parts of one version (a numbered batch of a sink) or nothing.

    `parts.transactions` lists the transactions that wrote the version, in the order in which to
    apply them. The sink's other pending transactions for this and older versions are aborted.
    """
    request = replace((yield from _request_of(streams, parts)), sink=version)
    # The request is retried until the timeout, because the caller needs the outcome.
    site = replace(streams.site, retries=None)
    response = yield from _commit(streams, site, request, _VERSION_AGAIN, silence_seconds)
    return decoded(response, CommitResult)


# After these refusals, the streams have perhaps another media type than the client assumes.
_OF_MESSAGES: Final = (errors.BadRequest, errors.ContentTypeConflict)
_OF_STREAMS: Final = (errors.StreamGone, errors.StreamNotFound)


def _commit(
    streams: KnownStreams,
    site: ServerConfig,
    request: CommitRequest,
    advice: str,
    silence_seconds: float,
) -> Flow[Response]:
    target = site.address.target(COMMITS)
    try:
        exchange = yield from send(site, target, request, silence_seconds=silence_seconds)
        return exchange.expect(200)
    except errors.Indeterminate as error:
        error.advice = advice
        raise
    except errors.TooLarge:
        raise
    except (*_OF_MESSAGES, *_OF_STREAMS):
        for append in request.appends:
            streams.calls(append.stream).is_stale = True
        raise


def commit_known_parts(
    streams: KnownStreams, commit_id: CommitId, parts: Parts, positions: KnownPositions
) -> Flow[CommitResult]:
    """Commit the parts. The commit is refused if a group is not at the expected position.

    If a move has no expected position, `positions.find` supplies the position.
    """
    planner = MovePlanner(positions)
    planned = _planned(planner, parts, lambda group, moves: (planner.plan(group, moves), {}))
    result = yield from commit_parts(streams, commit_id, planned)
    planner.done(is_repeat=result.duplicate)
    return result


def commit_version_known(
    streams: KnownStreams, version: Version, parts: Parts, positions: KnownPositions
) -> Flow[CommitResult]:
    """Commit a version of a sink. If a move in `parts.offsets` is refused, nothing is committed.

    - A move with an expected offset is refused if the group is at a different offset.
    - A move to a message's offset is refused if the group is not at the position that the
      message's reader expects.
    - Any other move is refused if a different producer or sink moved the group last.
    """
    # A move without a condition is safe: a version is committed once, so no retry repeats the move.
    planner = MovePlanner(positions)
    result = yield from commit_version(
        streams, version, _planned(planner, parts, planner.plan_read)
    )
    planner.done(is_repeat=result.duplicate)
    return result


def _planned(
    planner: MovePlanner,
    parts: Parts,
    plan: Callable[[str, Moves], tuple[Planned, Moves]],
) -> Parts:
    """Return `parts` with the caller's moves replaced by the moves to send.

    `plan` is called for each group. It returns two mappings: the moves that are sent with a
    condition, and the other moves, which are sent unchanged.
    """
    offsets: dict[str, Moves] = {}
    members = {(each, group) for each, group in ((parts.member, ""),) if each is not None}
    epochs = dict(parts.epochs)
    for group, moves in parts.offsets.items():
        planned, rest = plan(group, moves)
        planner.accepted(group, planned)
        offsets[group] = {**moves_of(planned), **rest}
        for part in moves_by_member(planned):
            if part.member is not None:
                members.add((part.member, group))
                epochs.update(part.epochs)
    if len(members) > 1:
        raise ValueError(
            "one commit can move positions of one member of a group only; use a transaction for the"
            " messages of several consumers"
        )
    return replace(
        parts,
        offsets=offsets,
        member=next((member for member, _ in members), None),
        epochs=epochs,
    )


def _request_of(streams: KnownStreams, parts: Parts) -> Flow[CommitRequest]:
    """Return the request to commit `parts`. The caller adds the producer or the sink."""
    appends: list[StreamAppend] = []
    for stream, values in parts.appends.items():
        _require_list(streams, stream, values)
        appends += _appends_of((yield from streams.find(stream)), list(values))
    return CommitRequest(
        appends=appends,
        offsets={
            group: targets_of(parts.offsets.get(group, {}), parts.metadata.get(group))
            for group in (*parts.offsets, *(parts.metadata.keys() - parts.offsets))
        },
        expects={path: offset_of(tail) for path, tail in parts.expects.items()},
        transactions=[ListedTransaction(*parse_token(token)) for token in parts.transactions],
        member=parts.member,
        epochs=dict(parts.epochs),
        subscriptions=commit_wakes(parts.wakes),
    )


def _require_list(streams: KnownStreams, stream: object, values: object) -> None:
    path = streams.calls(stream).path
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise TypeError(
            f"pass a list of values for the stream {path}, not a {type(values).__name__}"
        )


def find_unstorable(
    streams: KnownStreams, appends: Mapping[str, Iterable[Any]]
) -> Flow[Exception | None]:
    """Return why the values cannot be encoded for their streams, or None if they can be."""
    for stream, values in appends.items():
        try:
            _require_list(streams, stream, values)
        except (TypeError, ValueError) as error:
            return error
        calls = yield from streams.find(stream)
        try:
            _appends_of(calls, list(values))
        except Exception as error:  # noqa: BLE001 - values can run code of the application
            return error
    return None


def _appends_of(calls: StreamCalls, values: list[Any]) -> list[StreamAppend]:
    """Return the appends of a commit to one stream or topic. Its media type must be known."""
    content_type = calls.content_type
    assert content_type is not None
    try:
        messages = [_message(_plain(value), content_type) for value in values]
        keys = [_key_text(value) for value in values]
    except (TypeError, ValueError):
        calls.is_stale = True
        raise
    has_keys = any(key is not None for key in keys)
    return [
        StreamAppend(
            calls.path,
            Raw(b"[" + b",".join(messages[at : at + BATCH_MESSAGES_MAX]) + b"]"),
            keys[at : at + BATCH_MESSAGES_MAX] if has_keys else UNSET,
        )
        for at in range(0, len(messages), BATCH_MESSAGES_MAX)
    ]


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Keyed) else value


def _key_text(value: Any) -> str | Base64Message | None:
    if not isinstance(value, Keyed) or value.key is None:
        return None
    raw = key_bytes(value.key)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return Base64Message(b64encode(raw).decode("ascii"))


def _message(value: Any, content_type: str) -> bytes:
    """Return a message in the JSON form that a commit request contains.

    In a JSON stream, this is the value itself. In any other stream, it is a string if the message
    is UTF-8, and otherwise an object that contains the message in base64.
    """
    raw = encode(value, content_type)
    if is_json(content_type):
        if isinstance(value, PREENCODED):
            _require_json(raw)
        return raw
    try:
        return msgspec.json.encode(raw.decode())
    except UnicodeDecodeError:
        return msgspec.json.encode(Base64Message(b64encode(raw).decode("ascii")))


def _require_json(raw: bytes) -> None:
    """Raise ValueError if `raw` is not JSON, because the server would refuse the whole request."""
    batch = split_json(b"[" + raw + b"]")
    if isinstance(batch, Batch) and batch.count == 1:
        return
    reason = batch if isinstance(batch, str) else "expected exactly one value"
    raise ValueError(f"a message was passed as bytes that are not JSON: {reason}")


# ---- tasks of a sink -----------------------------------------------------------------------------


class TaskCalls:
    """One attempt to write a partition of a version (a sink's batch), as a staged transaction.

    `chunks` is the number of successful appends. `messages` maps each stream to the number of
    messages in these appends.
    """

    def __init__(self, site: ServerConfig, app: str, version: int, partition: int) -> None:
        self.site = site
        self.id = random_id()  # each attempt is a new transaction
        self.owner = ProcessOwner("a task")
        self.epoch = 0
        self.chunks = 0
        self.messages: Counter[str] = Counter()
        self.is_prepared = False
        self._owner = TaskOwner(app, version, partition)
        self._is_indeterminate = False

    @property
    def token(self) -> str:
        """The token that identifies the transaction in a commit."""
        return token_of(self.id, self.epoch)

    def begin(self, streams: Sequence[str] = ()) -> Flow[None]:
        """Begin the transaction, unless it has begun. It can write to `streams`, or anywhere."""
        if self.epoch:
            self.owner.check()
            return
        if self.owner.is_parent:
            self.id = random_id()
            self.owner.adopt()
        target = self.site.address.target(TRANSACTIONS)
        names = list(streams) or UNSET
        request = BeginRequest(self.id, kind=KIND_STAGED, sink=self._owner, streams=names)
        response = yield from post(self.site, target, request, BeginResponse, 200, 201)
        self.epoch = response.transaction_epoch

    def append(self, calls: StreamCalls, values: Sequence[Any], extras: Extras) -> Flow[Receipt]:
        """Stage messages with the next sequence number. A retry has the same number."""
        self._require_open()
        append = calls.append(values, self._conditions(), extras)
        return (yield from self._numbered(calls, len(values), append))

    def append_batch(self, calls: StreamCalls, body: bytes, count: int) -> Flow[Receipt]:
        """Stage messages. `body` contains `count` messages in the format of `encode_batch`."""
        self._require_open()
        append = calls.post(BATCH, body, self._conditions())
        return (yield from self._numbered(calls, count, append))

    def prepare(self) -> Flow[str]:
        """Prepare the transaction and return its token.

        Raises BranchIncomplete if `chunks` or `messages` differs from what the server has staged.
        """
        self.owner.check()
        if not self.is_prepared:
            self._require_open()
        request = PrepareRequest(
            transaction_epoch=self.epoch, chunks=self.chunks, messages=dict(self.messages)
        )
        target = self.site.address.target(TRANSACTIONS, self.id, "prepare")
        response = yield from post(self.site, target, request, PrepareResponse, 200)
        self.is_prepared = True
        return response.token

    def abort(self) -> Flow[None]:
        """Abort the transaction. Do nothing if the transaction has not begun."""
        if self.epoch:
            self.owner.check()
            yield from abort_version(self.site, self.token)

    def _conditions(self) -> AppendHeaders:
        return AppendHeaders(transaction=TransactionHeaders(self.id, self.epoch, self.chunks))

    def _numbered(self, calls: StreamCalls, count: int, append: Flow[Receipt]) -> Flow[Receipt]:
        # Until a response comes, it is unknown whether the server has stored this sequence.
        self._is_indeterminate = True
        try:
            receipt = yield from append
        except (errors.Refused, errors.Unavailable, TypeError, ValueError):
            self._is_indeterminate = False
            raise
        self._is_indeterminate = False
        self.chunks += 1
        self.messages[calls.path] += count
        return receipt

    def _require_open(self) -> None:
        if not self.epoch:
            raise _wrong_state("it has not begun; use it in a with block")
        self.owner.check()
        if self.is_prepared:
            raise _wrong_state("it is prepared; begin a new task for more messages")
        if self._is_indeterminate:
            raise _wrong_state("an append got no response; abort the task and begin a new one")


def _wrong_state(state: str) -> errors.InvalidTransactionState:
    return errors.InvalidTransactionState(f"the task cannot continue: {state}")


def abort_version(site: ServerConfig, token: str) -> Flow[None]:
    """Abort a pending task. Raises TransactionCommitted if the task is already committed."""
    name, epoch = parse_token(token)
    target = site.address.target(TRANSACTIONS, name, "abort")
    (yield from send(site, target, TxnRequest(transaction_epoch=epoch))).expect(200)


# ---- sinks ---------------------------------------------------------------------------------------


def list_sink_infos(site: ServerConfig) -> Flow[list[SinkInfo]]:
    """Return what the server stores about all sinks."""
    return (yield from get(site, site.address.target(SINKS), SinksPage[SinkInfo])).sinks


def show_sink_info(site: ServerConfig, app: str) -> Flow[SinkInfo]:
    """Return what the server stores about a sink."""
    return get(site, site.address.target(SINKS, app), SinkInfo)


def rebind_sink_info(
    site: ServerConfig, app: str, query_id: str, last_version: int
) -> Flow[SinkInfo]:
    """Bind a sink to a different query. The query continues after `last_version`."""
    request = RebindRequest(query_id, last_version)
    return post(site, site.address.target(SINKS, app, "rebind"), request, SinkInfo, 200)
