"""One-shot commits: appends, positions and preconditions, all or nothing. Pure: no sockets."""

from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from semel.client import errors, server_calls
from semel.client.errors import Indeterminate, PayloadMismatch, ProtocolError
from semel.client.flows import Flow
from semel.client.positions import KnownPositions, MovePlanner, moves_of
from semel.client.requests import AppendHeaders, TransactionHeaders
from semel.client.server_calls import decoded, post
from semel.client.stream_calls import ServerConfig, StreamCalls
from semel.client.transport import random_id
from semel.client.txn_calls import TRANSACTIONS, BeginResponse, PrepareResponse, action_target
from semel.client.txn_values import (
    KIND_STAGED,
    CommitResult,
    Moves,
    Offset,
    StreamResult,
    moves_document,
    offset_of,
    parse_token,
    token_of,
)
from semel.client.values import PREENCODED, Extras, Receipt, encode
from semel.model.limits import BATCH_MESSAGES_MAX
from semel.model.media import is_json
from semel.wire.headers import BATCH, read_flag

COMMITS: Final = "/v1/commits"
_AGAIN: Final = (
    "commit the same again, with the same producer_id, epoch and seq: it is done once, and"
    " `duplicate` tells whether it was done before"
)
_KNOWN_STREAMS_MAX: Final = 10_000


class KnownStreams:
    """The streams a client has written to by other ways than their own calls: their media types."""

    def __init__(self, site: ServerConfig) -> None:
        self.site = site
        self._calls: dict[str, StreamCalls] = {}

    def calls(self, path: str) -> StreamCalls:
        """Give the calls of a stream; ValueError if no stream can have that path."""
        found = self._calls.get(path)
        if found is None:
            if len(self._calls) >= _KNOWN_STREAMS_MAX:
                self._calls.clear()
            found = self._calls[path] = StreamCalls(self.site, path)
        return found


class CommitId(Struct, frozen=True):
    """The number a commit has, by which it is done once."""

    producer_id: str
    epoch: int
    seq: int


class Parts(Struct, frozen=True):
    """What a commit does: `appends` by stream, `offsets` by group, `expects` by stream.

    `transactions` are tokens of staged ones.
    """

    appends: Mapping[str, Iterable[Any]] = {}
    offsets: Mapping[str, Moves] = {}
    expects: Mapping[str, Offset] = {}
    transactions: Sequence[str] = ()


def commit_parts(
    known: KnownStreams, mark: CommitId, parts: Parts, *, silence_seconds: float = inf
) -> Flow[CommitResult]:
    """Commit all of it or nothing; sent again under the same number."""
    document: dict[str, Any] = {
        "producer_id": mark.producer_id,
        "producer_epoch": mark.epoch,
        "producer_seq": mark.seq,
        **(yield from parts_document(known, parts)),
    }
    site = known.site
    target = site.address.target(COMMITS)
    try:
        asked = yield from post(site, target, document, silence_seconds=silence_seconds)
    except Indeterminate as error:
        error.advice = _AGAIN
        raise
    answer = asked.expect(200)
    if read_flag(answer.headers, "producer-payload-mismatch"):
        told = f"{mark.producer_id} has committed something else as number {mark.seq}"
        raise PayloadMismatch(told, status=answer.status, facts={"producer_seq": mark.seq})
    return decoded(answer, CommitResult)


def commit_known_parts(
    known: KnownStreams, mark: CommitId, parts: Parts, positions: KnownPositions
) -> Flow[CommitResult]:
    """Commit; groups are moved from where this client was told they are."""
    moving = MovePlanner(positions)
    offsets = {}
    for group, moves in parts.offsets.items():
        planned = moving.plan(group, moves)
        moving.accepted(group, planned)
        offsets[group] = moves_of(planned)
    result = yield from commit_parts(known, mark, replace(parts, offsets=offsets))
    moving.done(is_repeat=result.duplicate)
    return result


def parts_document(known: KnownStreams, parts: Parts) -> Flow[dict[str, Any]]:
    """Word what a commit does, whoever commits."""
    document: dict[str, Any] = {}
    appends: list[dict[str, Any]] = []
    for path, values in parts.appends.items():
        content_type = yield from known.calls(path).known_type()
        messages = [_message(value, content_type) for value in _listed(path, values)]
        appends += [
            {"stream": path, "messages": messages[at : at + BATCH_MESSAGES_MAX]}
            for at in range(0, len(messages), BATCH_MESSAGES_MAX)
        ]
    if appends:
        document["appends"] = appends
    if parts.offsets:
        document["offsets"] = {
            group: moves_document(moves) for group, moves in parts.offsets.items()
        }
    if parts.expects:
        document["if"] = {path: offset_of(end) for path, end in parts.expects.items()}
    if parts.transactions:
        listed = map(parse_token, parts.transactions)
        document["transactions"] = [{"id": name, "epoch": epoch} for name, epoch in listed]
    return document


def _listed(path: str, values: Iterable[Any]) -> Iterable[Any]:
    if isinstance(values, str | bytes | Mapping):
        kind = type(values).__name__
        raise TypeError(f"{path} takes a list of values, not a {kind}")
    return values


def _message(value: Any, content_type: str) -> Any:
    """Word a message as the stream's media type wants it."""
    raw = encode(value, content_type)
    if is_json(content_type):
        if isinstance(value, PREENCODED):
            _require_json(raw)
        return Raw(raw)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(raw).decode("ascii")}


def _require_json(raw: bytes) -> None:
    """Refuse what would tear the document it is put into."""
    try:
        msgspec.json.decode(raw, type=Raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"the bytes of a message are no JSON: {error}") from None


# ---- sink calls ----------------------------------------------------------------------------------
# Sinks: versions that are staged by tasks and decided by one commit. Pure: flows, no sockets.


T = TypeVar("T")
_VERSION_AGAIN: Final = (
    "commit the same version again, with the same input: it is done once, and `duplicate` tells"
    " whether it was done before"
)


class SinkVersion(Struct, frozen=True):
    """A version that was committed: the digest of its input, and what it put where."""

    version: int
    input: str | None = None
    streams: dict[str, StreamResult] | None = None


class SinkInfo(Struct, frozen=True):
    """What the server knows of a sink; `versions`, if asked for, are those that are kept."""

    app: str
    query_id: str
    last_version: int
    open_transactions: int = 0
    versions: list[SinkVersion] = []


class Version(Struct, frozen=True):
    """A version of a sink, and where it stands in the chain of its inputs."""

    app: str
    query_id: str
    version: int
    input: str | None = None
    previous: str | None = None


class TaskCalls:
    """One attempt of one task: a staged transaction, its numbers, and what it holds."""

    def __init__(self, site: ServerConfig, app: str, version: int, partition: int) -> None:
        self.site = site
        self.id = random_id()  # another attempt is another transaction
        self.epoch = 0
        self.chunks = 0
        self.messages: Counter[str] = Counter()
        self.is_prepared = False
        self._owner = {"app": app, "version": version, "partition": partition}
        self._is_in_doubt = False

    @property
    def token(self) -> str:
        """The name the commit lists it by."""
        return token_of(self.id, self.epoch)

    def begin(self) -> Flow[None]:
        """Open it; once is enough, and again changes nothing."""
        if self.epoch:
            return
        document = {"transaction_id": self.id, "kind": KIND_STAGED, "sink": self._owner}
        asked = yield from post(self.site, self.site.address.target(TRANSACTIONS), document)
        self.epoch = decoded(asked.expect(200, 201), BeginResponse).transaction_epoch

    def append(self, calls: StreamCalls, values: Sequence[Any], extras: Extras) -> Flow[Receipt]:
        """Stage messages under the next number; sent again under the same one."""
        self._require_open()
        return (
            yield from self._numbered(
                calls, len(values), calls.append(values, self._conditions(), extras)
            )
        )

    def append_batch(self, calls: StreamCalls, body: bytes, count: int) -> Flow[Receipt]:
        """Stage a body of `count` messages in the batch format."""
        self._require_open()
        sent = calls.post(BATCH, body, self._conditions())
        return (yield from self._numbered(calls, count, sent))

    def prepare(self) -> Flow[str]:
        """Seal it, if the server holds what was sent; gives the token."""
        if not self.is_prepared:
            self._require_open()
        document = {
            "transaction_epoch": self.epoch,
            "chunks": self.chunks,
            "messages": dict(self.messages),
        }
        asked = yield from post(self.site, action_target(self.site, self.id, "prepare"), document)
        token = decoded(asked.expect(200), PrepareResponse).token
        self.is_prepared = True
        return token

    def abort(self) -> Flow[None]:
        """Drop it; again if it is dropped already, and nothing if it never began."""
        if self.epoch:
            yield from abort_version(self.site, self.token)

    def _conditions(self) -> AppendHeaders:
        return AppendHeaders(branch=TransactionHeaders(self.id, self.epoch, self.chunks))

    def _numbered(self, calls: StreamCalls, count: int, sent: Flow[Receipt]) -> Flow[Receipt]:
        # Until there is an answer nobody knows whether the number is used.
        self._is_in_doubt = True
        try:
            receipt = yield from sent
        except (errors.Refused, errors.Unavailable, TypeError, ValueError):
            self._is_in_doubt = False
            raise
        self._is_in_doubt = False
        self.chunks += 1
        self.messages[calls.path] += count
        return receipt

    def _require_open(self) -> None:
        if not self.epoch:
            raise _wrong_state("has not begun")
        if self.is_prepared:
            raise _wrong_state("is prepared, and takes no more")
        if self._is_in_doubt:
            raise _wrong_state("has an append that got no answer; abort it and do the task again")


def _wrong_state(told: str) -> errors.InvalidTransactionState:
    return errors.InvalidTransactionState(f"the task {told}")


# ---- decisions -----------------------------------------------------------------------------------


def commit_version(
    known: KnownStreams, version: Version, parts: Parts, *, silence_seconds: float = inf
) -> Flow[CommitResult]:
    """Make the listed tasks visible, in this order, and all others of the version never.

    What else is in `parts` is done with it, or not at all.
    """
    document = {"sink": version, **(yield from parts_document(known, parts))}
    # A decision is asked for as long as the time allows.
    site = replace(known.site, retries=None)
    try:
        target = site.address.target(COMMITS)
        asked = yield from post(site, target, document, silence_seconds=silence_seconds)
    except Indeterminate as error:
        error.advice = _VERSION_AGAIN
        raise
    return decoded(asked.expect(200), CommitResult)


def commit_version_known(
    known: KnownStreams, version: Version, parts: Parts, positions: KnownPositions
) -> Flow[CommitResult]:
    """Commit; groups are moved from where the reader of an offset was told they are.

    Offsets that no message had are sent as they are: the sink is the one that moved them last, or
    the server refuses. Its version is what keeps it from moving twice.
    """
    moving = MovePlanner(positions)
    offsets = {}
    for group, moves in parts.offsets.items():
        planned, rest = moving.plan_read(group, moves)
        moving.accepted(group, planned)
        offsets[group] = {**moves_of(planned), **rest}
    result = yield from commit_version(known, version, replace(parts, offsets=offsets))
    moving.done(is_repeat=result.duplicate)
    return result


def abort_version(site: ServerConfig, token: str) -> Flow[None]:
    """Drop a task that is not decided; TransactionCommitted if it is committed."""
    name, epoch = parse_token(token)
    target = action_target(site, name, "abort")
    asked = yield from post(site, target, {"transaction_epoch": epoch})
    asked.expect(200)


# ---- looking after them --------------------------------------------------------------------------


def list_sink_infos(site: ServerConfig) -> Flow[list[SinkInfo]]:
    """List the sinks."""
    found = yield from server_calls.list_sinks(site)
    return [_converted(one, SinkInfo) for one in found]


def show_sink_info(site: ServerConfig, app: str) -> Flow[SinkInfo]:
    """Tell all about a sink."""
    return _converted((yield from server_calls.show_sink(site, app)), SinkInfo)


def rebind_sink_info(
    site: ServerConfig, app: str, query_id: str, last_version: int
) -> Flow[SinkInfo]:
    """Give a sink to another query, at a version."""
    found = yield from server_calls.rebind_sink(site, app, query_id, last_version)
    return _converted(found, SinkInfo)


def forget_sink_info(site: ServerConfig, app: str) -> Flow[None]:
    """Drop what is known of a sink."""
    yield from server_calls.forget_sink(site, app)


def _converted(document: Mapping[str, Any], kind: type[T]) -> T:
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"the answer is not what was asked for: {error}") from None
