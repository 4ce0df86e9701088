"""The calls of a transaction, as flows: they build requests and interpret responses. No sockets."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from semel.client import errors
from semel.client.flows import Exchanged, Flow, T
from semel.client.group_calls import cursor_of, end_offset_of
from semel.client.positions import KnownPositions, MovePlanner, Planned, moves_of
from semel.client.requests import AppendHeaders, ProducerHeaders, TransactionHeaders, query
from semel.client.server_calls import decoded, get, send
from semel.client.stream_calls import ServerConfig, StreamCalls
from semel.client.values import (
    KIND_INLINE,
    KIND_STAGED,
    CommitResult,
    Extras,
    Message,
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
    TxnRequest,
)

R = TypeVar("R", bound=TxnRequest)

NEW: Final = "new"
OPEN: Final = "open"
PREPARED: Final = "prepared"
ENDING: Final = "deciding"  # a commit was sent, and has no response yet
COMMITTED: Final = "committed"
ABORTED: Final = "aborted"
FENCED: Final = "fenced"  # the reason of an abort by a newer instance

_FIND_OUT: Final = "a repeat is safe: call commit() again, or client.transaction_status({token!r})"
_DO_AGAIN: Final = "abort the transaction and repeat it: nothing of it is visible before its commit"
_REFUSED: Final = (
    "was refused a position, or got no response; add it again, or abort and begin with a new tail"
)
_INDETERMINATE: Final = "has an append without a response; abort it and repeat it"


# The transactions of a client that may still be pending, by token.
Unresolved = dict[str, "TransactionCalls"]


class TransactionCalls:
    """One transaction of a producer: its calls, the sequences of its appends, and its state."""

    def __init__(
        self,
        site: ServerConfig,
        transaction_id: str,
        kind: str,
        timeout: float,
        unresolved: Unresolved | None = None,
        positions: KnownPositions | None = None,
    ) -> None:
        if kind not in (KIND_INLINE, KIND_STAGED):
            raise ValueError(f"kind must be {KIND_INLINE} or {KIND_STAGED}, not {kind!r}")
        self.timeout_ms = round(timeout * 1000)
        if not 0 < self.timeout_ms <= TXN_TIMEOUT_MS_MAX:
            raise ValueError(f"timeout must be up to {TXN_TIMEOUT_MS_MAX // 1000} seconds")
        self.site = site
        self.id = transaction_id
        self.kind = kind
        self.state = NEW
        self.epoch = 0
        self.result: CommitResult | None = None
        self._producer = Registration("", 0)
        self._next: dict[str, int] = {}  # sequences by stream; a staged one has one, under ""
        self._is_indeterminate = False  # an append got no response
        self._refused: set[tuple[str, str]] = set()  # positions whose moves are not accepted
        self._unresolved: Unresolved = {} if unresolved is None else unresolved
        self._moving = MovePlanner(positions or KnownPositions())

    @property
    def token(self) -> str:
        return token_of(self.id, self.epoch)

    @property
    def is_ended(self) -> bool:
        return self.state in (COMMITTED, ABORTED)

    def remove(self) -> None:
        """Remove the transaction from the pending transactions of its client."""
        self._unresolved.pop(self.token, None)

    def begin(self, producer: Registration, streams: Sequence[str]) -> Flow[None]:
        """Begin the transaction. If `streams` is empty, it may write to any stream.

        Raises ConcurrentTransactions if another client has begun a transaction with this id.
        """
        if self.state != NEW:
            raise self._wrong_state(f"is {self.state}, and cannot begin again; make a new one")
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
        # 200 means that it was open already. If it is empty, an earlier attempt of this client has
        # begun it. Otherwise another client has begun it, and has used its first sequences.
        is_ours = self._unresolved.setdefault(self.token, self) is self
        if is_ours and exchange.response.status == 200:
            is_ours = (yield from status(self.site, self.token)).is_empty
        if not is_ours:
            raise errors.ConcurrentTransactions(
                f"the transaction {self.id} is open already",
                status=exchange.response.status,
                facts={"transaction_id": self.id},
            )
        self.state = OPEN

    def add_streams(self, streams: Iterable[str]) -> Flow[None]:
        """Allow the transaction to write to more streams."""
        yield from self._call("streams", AddStreamsRequest, streams=list(streams))

    def append(self, calls: StreamCalls, values: Sequence[Any], extras: Extras) -> Flow[Receipt]:
        """Append messages with the next sequence. A retry has the same sequence."""
        self._require_open()
        self._require_sure()
        name = calls.path if self.kind == KIND_INLINE else ""
        seq = self._next.get(name, 0)
        # It is unknown whether the sequence is used until a response comes. The flag also stays set
        # if this flow is not continued.
        self._is_indeterminate = True
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
                f"{self.id} has stored something else in {calls.path} with sequence {seq}"
            )
        self._is_indeterminate = False
        self._next[name] = seq + 1
        return receipt

    def add_offsets(self, group: str, moves: Moves) -> Flow[None]:
        """Add moves of a group to the commit, from the positions that this client has read."""
        yield from self._add(group, self._moving.plan(group, moves))

    def add_message(self, message: Message) -> Flow[None]:
        """Add to the commit a move of the message's group to the offset after the message."""
        cursor = cursor_of(message)
        planned = self._moving.plan_from(
            (cursor.group, cursor.path), cursor.position, end_offset_of(message)
        )
        yield from self._add(cursor.group, planned)

    def _add(self, group: str, planned: Planned) -> Flow[None]:
        targets = targets_of(moves_of(planned))
        # The transaction must not be committed without these moves. So the positions are in
        # `_refused` until the server has accepted them, also if this flow is not continued.
        names = {(group, path) for path in planned}
        self._refused |= names
        yield from self._call("offsets", AddOffsetsRequest, group=group, offsets=targets)
        self._refused -= names
        self._moving.accepted(group, planned)

    def prepare(self) -> Flow[str]:
        """Prepare the transaction and return its token. After that it has no deadline."""
        if self.state != PREPARED:
            self._require_open()
            self._require_sure()
        exchange = yield from self._call("prepare", TxnRequest)
        self.state = PREPARED
        return decoded(exchange.response, PrepareResponse).token

    def commit(self) -> Flow[CommitResult]:
        """Commit the transaction and return the result: all of it becomes visible at once.

        The request is retried until a response comes, or until the timeout.
        """
        if self.result is not None:
            return self.result
        self._require_begun()
        self._require_sure()
        before, self.state = self.state, ENDING
        try:
            exchange = yield from self._call("commit", TxnRequest)
        except errors.Indeterminate as error:
            error.advice = _FIND_OUT.format(token=self.token)
            raise
        except errors.Refused:
            self.state = self.state if self.is_ended else before
            raise
        self.result = decoded(exchange.response, CommitResult)
        self.committed()
        return self.result

    def committed(self) -> None:
        """Record that the transaction is committed, by this or another call."""
        self.state = COMMITTED
        self._moving.done()

    def abort(self) -> Flow[None]:
        """Abort the transaction. Does nothing if it is aborted already."""
        if self.state == ABORTED:
            return
        yield from self._call("abort", TxnRequest)
        self.aborted()

    def aborted(self) -> None:
        """Record that the transaction is aborted, by this or another call."""
        self.state = ABORTED
        self._moving.dropped()

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
        # A commit or an abort is retried until the timeout: the caller needs the outcome.
        site = replace(self.site, retries=None) if action in ("commit", "abort") else self.site
        return self._ours(_sent(site, request, self.id, action))

    def _ours(self, flow: Flow[T]) -> Flow[T]:
        """Run a call. If a refusal reports that the transaction has ended, record that."""
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
            raise self._wrong_state("has not begun; use it in a with block")

    def _require_open(self) -> None:
        self._require_begun()
        if self.state != OPEN:
            raise self._wrong_state(f"is {self.state}, and accepts no more changes")

    def _require_sure(self) -> None:
        if self._is_indeterminate:
            raise self._wrong_state(_INDETERMINATE)
        if self._refused:
            raise self._wrong_state(_REFUSED)

    def _wrong_state(self, state: str) -> errors.InvalidTransactionState:
        message = f"the transaction {self.id} {state}"
        return errors.InvalidTransactionState(message, facts={"state": self.state})


# ---- transactions by token -----------------------------------------------------------------------


def status(site: ServerConfig, token: str) -> Flow[TransactionStatus]:
    """Return the status of the transaction with a token, or of the newest one with an id."""
    with suppress(ValueError, errors.UnknownTransaction):
        return (yield from _status(site, *parse_token(token)))
    return (yield from _status(site, token, None))  # an id, which may look like a token


def end_transaction_call(
    site: ServerConfig, token: str, action: str, unresolved: Unresolved | None = None
) -> Flow[CommitResult]:
    """Commit or abort a prepared transaction by its token. Another client may have begun it."""
    transaction_id, epoch = parse_token(token)
    own = (unresolved or {}).get(token)
    request = TxnRequest(transaction_epoch=epoch)
    try:
        exchange = yield from _sent(replace(site, retries=None), request, transaction_id, action)
    except errors.Indeterminate as error:
        error.advice = "a repeat is safe: call this again, or client.transaction_status(token)"
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
    """Record that a one-shot commit has committed the listed transactions of this client."""
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
