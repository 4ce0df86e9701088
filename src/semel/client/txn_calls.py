"""The calls that a client makes for a transaction, written as flows.

A flow builds requests and interprets responses. It does not use sockets.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from semel.client import errors
from semel.client.extras import Extras
from semel.client.flows import Exchanged, Flow, T
from semel.client.group_calls import GroupCursor, cursor_of, end_offset_of
from semel.client.known_streams import KnownStreams
from semel.client.positions import KnownPositions, MovePlanner, Planned, moves_by_member
from semel.client.requests import AppendHeaders, ProducerHeaders, TransactionHeaders, query
from semel.client.server_calls import decoded, get, send
from semel.client.stream_calls import ServerConfig, StreamCalls
from semel.client.subscription_values import AckedWake, commit_wakes
from semel.client.transport import ProcessOwner, random_id
from semel.client.values import (
    KIND_INLINE,
    KIND_STAGED,
    CommitResult,
    Message,
    Metadata,
    Moves,
    Receipt,
    Registration,
    TransactionStatus,
    parse_token,
    targets_of,
    token_of,
)
from semel.model.limits import TXN_TIMEOUT_MS_MAX
from semel.wire.paths import TRANSACTIONS
from semel.wire.schema import StrictRequest
from semel.wire.schema.transactions import (
    AddOffsetsRequest,
    AddStreamsRequest,
    BeginRequest,
    BeginResponse,
    PrepareResponse,
    TxnCommitRequest,
    TxnRequest,
)

R = TypeVar("R", bound=TxnRequest)

NEW: Final = "new"
OPEN: Final = "open"
PREPARED: Final = "prepared"
ENDING: Final = "deciding"  # a commit was sent, and no response has arrived yet
COMMITTED: Final = "committed"
ABORTED: Final = "aborted"
FENCED: Final = "fenced"  # the abort reason if a newer instance fenced the producer

_FIND_OUT: Final = (
    "call commit() again (this is safe), or call client.transaction_status({token!r})"
)
_DO_AGAIN: Final = (
    "abort the transaction and run it again; read_committed readers skip the aborted messages"
)
_REFUSED: Final = (
    "the server has not confirmed a group's new position; repeat the call that sets the position,"
    " or abort the transaction and start again with a new tail(group=...)"
)
_INDETERMINATE: Final = (
    "the server has not confirmed an append; abort the transaction and run it again"
)


# The client's transactions that can still be pending, keyed by token.
Unresolved = dict[str, "TransactionCalls"]


class TransactionCalls:
    """One transaction of a producer: its calls, its state, and the sequences of its appends.

    If `transaction_id` is None, the id is random, and another one in each forked process.
    """

    def __init__(
        self,
        site: ServerConfig,
        transaction_id: str | None,
        kind: str,
        timeout: float,
        unresolved: Unresolved | None = None,
        positions: KnownPositions | None = None,
    ) -> None:
        if kind not in (KIND_INLINE, KIND_STAGED):
            raise ValueError(
                f"kind={kind!r} is invalid; expected {KIND_INLINE!r} or {KIND_STAGED!r}"
            )
        self.timeout_ms = round(timeout * 1000)
        if not 0 < self.timeout_ms <= TXN_TIMEOUT_MS_MAX:
            raise ValueError(
                f"timeout={timeout:g} is invalid; expected more than 0 and at most"
                f" {TXN_TIMEOUT_MS_MAX // 1000} seconds"
            )
        self.site = site
        self.id = transaction_id or random_id()
        self.owner = ProcessOwner("a transaction")
        self._has_own_id = transaction_id is None
        self.kind = kind
        self.state = NEW
        self.epoch = 0
        self.result: CommitResult | None = None
        self._producer = Registration("", 0)
        # The next sequence for each path. A staged transaction uses only the path "".
        self._next: dict[str, int] = {}
        # The streams in which the server stores the producer of this transaction.
        self.written: set[str] = set()
        self._is_indeterminate = False  # True while an append may or may not be stored
        self._refused: set[tuple[str, str]] = set()  # positions whose moves are not accepted yet
        self._unresolved: Unresolved = {} if unresolved is None else unresolved
        self._moving = MovePlanner(positions or KnownPositions())
        self._cursors: dict[tuple[str, str], GroupCursor] = {}  # of messages that it commits
        self._wakes: list[AckedWake] = []  # what the commit says of wakes

    @property
    def token(self) -> str:
        return token_of(self.id, self.epoch)

    @property
    def is_ended(self) -> bool:
        return self.state in (COMMITTED, ABORTED)

    def remove(self) -> None:
        """Remove the transaction from the client's pending transactions."""
        self._unresolved.pop(self.token, None)

    def begin(self, producer: Registration, streams: Sequence[str]) -> Flow[None]:
        """Begin the transaction.

        If `streams` is empty, the transaction is allowed to write to any stream. Raises
        ConcurrentTransactions if a transaction with this id is already open and this object did not
        begin it.
        """
        if self.state != NEW:
            raise self._wrong_state(
                f"a transaction that is {self.state} cannot begin; create a new transaction"
            )
        if self._has_own_id and self.owner.is_parent:
            self.id = random_id()
        self.owner.adopt()
        self._producer = producer
        request = BeginRequest(
            self.id,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            kind=self.kind,
            timeout_ms=self.timeout_ms,
            streams=list(streams),
            implicit=not streams,
        )
        exchange = yield from self._ours(_sent(self.site, request))
        self.epoch = decoded(exchange.response, BeginResponse).transaction_epoch
        # Status 200 means that the transaction was open already. If the transaction is empty, an
        # earlier attempt of this client began it. If it is not empty, another client began it and
        # has used its first sequences.
        is_ours = self._unresolved.setdefault(self.token, self) is self
        if is_ours and exchange.response.status == 200:
            is_ours = (yield from status(self.site, self.token)).is_empty
        if not is_ours:
            raise errors.ConcurrentTransactions(
                f"the transaction {self.id} is already open, and a different caller began it",
                status=exchange.response.status,
                facts={"transaction_id": self.id},
            )
        self.state = OPEN

    def add_streams(self, streams: Iterable[str]) -> Flow[None]:
        """Allow the transaction to write to more streams."""
        yield from self._call("streams", AddStreamsRequest, streams=list(streams))

    def append_to(
        self, streams: KnownStreams, stream: object, values: Sequence[Any], extras: Extras
    ) -> Flow[Receipt]:
        """Append messages to a stream or a topic. See `append`."""
        self._require_open()
        return (yield from self.append((yield from streams.find(stream)), values, extras))

    def append(self, calls: StreamCalls, values: Sequence[Any], extras: Extras) -> Flow[Receipt]:
        """Append messages with the next sequence. A retry uses the same sequence again."""
        self._require_open()
        self._require_sure()
        name = calls.path if self.kind == KIND_INLINE else ""
        seq = self._next.get(name, 0)
        # Until a response arrives, it is unknown whether the server has used the sequence. The flag
        # also stays set if the caller abandons this flow.
        self._is_indeterminate = True
        if name:
            self.written.add(name)
        try:
            receipt = yield from self._ours(calls.append(values, self._conditions(seq), extras))
        except (errors.Refused, errors.Unavailable, TypeError, ValueError):
            self._is_indeterminate = False
            raise
        except errors.Indeterminate as error:
            error.advice = _DO_AGAIN
            raise
        if receipt.mismatch:
            raise errors.PayloadMismatch(
                f"the transaction {self.id} already stored a different payload in {calls.path} with"
                f" sequence {seq}"
            )
        self._is_indeterminate = False
        self._next[name] = seq + 1
        return receipt

    def add_offsets(
        self, group: str, moves: Moves, metadata: Mapping[str, Metadata] | None = None
    ) -> Flow[None]:
        """Move positions of a group when the transaction commits.

        `moves` maps each stream's path to a move. A move that is only a target offset starts at the
        position that this client expects the group to have.
        """
        yield from self._add(group, self._moving.plan(group, moves), metadata)

    def add_message(self, message: Message, metadata: Metadata | None = None) -> Flow[None]:
        """Move the group's position past the message when the transaction commits."""
        cursor = cursor_of(message)
        planned = self._moving.plan_from(
            (cursor.group, cursor.path), cursor.position, end_offset_of(message)
        )
        try:
            yield from self._add(cursor.group, planned, {cursor.path: metadata})
        except errors.PositionRefused as error:
            cursor.note_refusal(error)
            raise
        self._cursors[cursor.group, cursor.path] = cursor

    def _add(
        self, group: str, planned: Planned, metadata: Mapping[str, Metadata | None] | None
    ) -> Flow[None]:
        targets_of({path: move for path, (move, _) in planned.items()}, metadata)  # checks both
        # The transaction must not be committed without these moves. Therefore the positions stay
        # in `_refused` until the server has accepted the moves, even if the caller abandons this
        # flow.
        names = {(group, path) for path in planned}
        self._refused |= names
        for part in moves_by_member(planned):
            yield from self._call(
                "offsets",
                AddOffsetsRequest,
                group=group,
                offsets=targets_of(part.moves, _only(part.moves, metadata)),
                member=part.member,
                epochs=part.epochs,
            )
        self._refused -= names
        self._moving.accepted(group, planned)

    def add_wake(self, ack: AckedWake) -> None:
        """Let the commit ack a wake. Raises ValueError if it has one of the same subscription."""
        self._require_open()
        commit_wakes([*self._wakes, ack])
        self._wakes.append(ack)

    def prepare(self) -> Flow[str]:
        """Prepare the transaction and return its token. A prepared transaction has no deadline."""
        if self.state != PREPARED:
            self._require_open()
            self._require_sure()
        exchange = yield from self._call("prepare", TxnRequest)
        self.state = PREPARED
        return decoded(exchange.response, PrepareResponse).token

    def commit(self) -> Flow[CommitResult]:
        """Commit the transaction and return the result.

        Everything in the transaction becomes visible together. The request is retried until a
        response arrives or the timeout has passed.
        """
        if self.result is not None:
            return self.result
        self._require_begun()
        self._require_sure()
        before, self.state = self.state, ENDING
        try:
            wakes = commit_wakes(self._wakes)
            exchange = yield from self._call("commit", TxnCommitRequest, subscriptions=wakes)
        except errors.Indeterminate as error:
            error.advice = _FIND_OUT.format(token=self.token)
            raise
        except errors.Refused as error:
            self.state = self.state if self.is_ended else before
            self._note_refusal(error)
            raise
        self.result = decoded(exchange.response, CommitResult)
        self.committed()
        return self.result

    def committed(self) -> None:
        """Record that the transaction was committed, either by `commit` or by a different call."""
        self.state = COMMITTED
        self._moving.done()

    def abort(self) -> Flow[None]:
        """Abort the transaction. Do nothing if it is already aborted."""
        if self.state == ABORTED:
            return
        yield from self._call("abort", TxnRequest)
        self.aborted()

    def aborted(self) -> None:
        """Record that the transaction was aborted, either by `abort` or by a different call."""
        self.state = ABORTED
        self._moving.dropped()

    def _note_refusal(self, error: errors.Refused) -> None:
        """Tell the reader whose position could not be moved."""
        if isinstance(error, errors.PositionRefused):
            cursor = self._cursors.get((error.group or "", error.stream or ""))
            if cursor is not None:
                cursor.note_refusal(error)

    def _conditions(self, seq: int) -> AppendHeaders:
        if self.kind == KIND_STAGED:
            return AppendHeaders(transaction=TransactionHeaders(self.id, self.epoch, seq))
        producer = self._producer
        tag = ProducerHeaders(producer.producer_id, seq, producer.producer_epoch)
        return AppendHeaders(tag=tag, transaction=TransactionHeaders(self.id, self.epoch))

    def _call(self, action: str, kind: type[R], **members: Any) -> Flow[Exchanged]:
        self._require_begun()
        request = kind(
            producer_id=self._producer.producer_id,
            producer_epoch=self._producer.producer_epoch,
            transaction_epoch=self.epoch,
            **members,
        )
        # A commit or an abort is retried until the timeout, because the caller needs the outcome.
        site = replace(self.site, retries=None) if action in ("commit", "abort") else self.site
        return self._ours(_sent(site, request, self.id, action))

    def _ours(self, flow: Flow[T]) -> Flow[T]:
        """Run `flow`. If the server refuses a request, raise the error.

        If the refusal shows that the transaction has ended, update `state` first. If a newer
        instance has fenced the producer, raise TransactionFenced instead of the original error.
        """
        try:
            return (yield from flow)
        except (errors.TransactionRefused, errors.ProducerFenced) as error:
            state = error.state if isinstance(error, errors.InvalidTransactionState) else None
            if isinstance(error, errors.TransactionCommitted) or state == COMMITTED:
                self.committed()
            elif isinstance(error, errors.TransactionAborted) or state == ABORTED:
                self.aborted()
            if isinstance(error, errors.ProducerFenced) or error.facts.get("reason") == FENCED:
                raise errors.TransactionFenced(
                    error.message, status=error.status, facts=error.facts
                ) from None
            raise

    def _require_begun(self) -> None:
        if self.state == NEW:
            raise self._wrong_state("the transaction has not begun; use it in a with block")
        self.owner.check()

    def _require_open(self) -> None:
        self._require_begun()
        if self.state != OPEN:
            raise self._wrong_state(f"a transaction that is {self.state} accepts no changes")

    def _require_sure(self) -> None:
        if self._is_indeterminate:
            raise self._wrong_state(_INDETERMINATE)
        if self._refused:
            raise self._wrong_state(_REFUSED)

    def _wrong_state(self, state: str) -> errors.InvalidTransactionState:
        message = f"transaction {self.id}: {state}"
        return errors.InvalidTransactionState(message, facts={"state": self.state})


def _only(
    moves: Mapping[str, object], metadata: Mapping[str, Metadata | None] | None
) -> dict[str, Metadata | None]:
    """Return the metadata of the streams in `moves`."""
    return {path: each for path, each in (metadata or {}).items() if path in moves}


# ---- transactions by token -----------------------------------------------------------------------


def status(site: ServerConfig, token: str) -> Flow[TransactionStatus]:
    """Return the status of the transaction with this token.

    `token` can also be a transaction id, which means the newest transaction with that id.
    """
    with suppress(ValueError, errors.UnknownTransaction):
        return (yield from _status(site, *parse_token(token)))
    return (yield from _status(site, token, None))  # an id; some ids look like a token


def end_transaction_call(
    site: ServerConfig, token: str, action: str, unresolved: Unresolved | None = None
) -> Flow[CommitResult]:
    """Commit or abort the prepared transaction with this token.

    It does not matter which client began the transaction.
    """
    transaction_id, epoch = parse_token(token)
    own = (unresolved or {}).get(token)
    request = TxnRequest(transaction_epoch=epoch)
    try:
        exchange = yield from _sent(replace(site, retries=None), request, transaction_id, action)
    except errors.Indeterminate as error:
        error.advice = "repeat the call (this is safe), or call client.transaction_status(token)"
        raise
    result = decoded(exchange.response, CommitResult)
    if own is not None:
        if action == "commit":
            own.result = result
            own.committed()
        else:
            own.aborted()
        own.remove()
    return result


def note_listed(unresolved: Unresolved, tokens: Iterable[str]) -> None:
    """Record that a call of `client.commit` has committed the transactions with these tokens.

    Tokens that are not in `unresolved` are ignored.
    """
    for own in [unresolved[token] for token in tokens if token in unresolved]:
        own.committed()
        own.remove()


def _status(site: ServerConfig, transaction_id: str, epoch: int | None) -> Flow[TransactionStatus]:
    target = site.address.target(TRANSACTIONS, transaction_id) + query(epoch=epoch)
    return get(site, target, TransactionStatus)


def _sent(site: ServerConfig, request: StrictRequest, *names: str) -> Flow[Exchanged]:
    exchange = yield from send(site, site.address.target(TRANSACTIONS, *names), request)
    exchange.expect(200, 201)
    return exchange
