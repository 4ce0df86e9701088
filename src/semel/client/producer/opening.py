"""Opening a producer: its options, its claim, and the identity under which it appends.

An instance that needs the stored state claims the producer id: the server first fences the earlier
instance, and then returns the state. Without the fence, a request from the earlier instance could
be stored after the state was read. The new instance would then store the same messages again.

An instance that does not need the state sends its first batch at once. Its session is new, so this
batch fences the earlier instance.
"""

import secrets
import threading
from collections.abc import Callable, Mapping
from typing import Final, Generic, TypedDict, TypeVar
from weakref import WeakSet

from msgspec import Struct

from semel.client.errors import (
    ClientError,
    Indeterminate,
    NotSupported,
    PayloadMismatch,
    ProducerExpired,
    ProducerFenced,
    ProtocolError,
    Refused,
)
from semel.client.flows import Flow
from semel.client.producer.batches import ProducerBatch
from semel.client.producer.outcomes import BatchAck, FailedBatch
from semel.client.producer.settings import (
    EXPIRES_SECONDS,
    GeneratedId,
    ProducerSettings,
    default_id,
)
from semel.client.requests import producer_id_field
from semel.client.server_calls import claim_producer, producers
from semel.client.stream_calls import DedupKnowledge, StreamCalls
from semel.client.values import ProducerClaim, ProducerState
from semel.model.commands import DENSE, SPARSE
from semel.model.limits import BATCH_MESSAGES_MAX, MIB, NUMBER_MAX
from semel.wire.headers import read_flag, to_number

OnBatchAck = Callable[[BatchAck], object]
OnError = Callable[[ClientError, FailedBatch], object]

PENDING_BYTES_MAX: Final = 64 * MIB
_NOT_SERVED: Final = frozenset({404, 405, 501})
_DEDUP_OFF: Final = "dedup_off"


P = TypeVar("P")


class OpenProducers(Generic[P]):
    """A client's open producers. They are closed together with the client."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._producers: WeakSet[P] = WeakSet()

    def add(self, producer: P) -> None:
        with self._lock:
            self._producers.add(producer)

    def remove_all(self) -> list[P]:
        """Remove all producers and return them."""
        with self._lock:
            producers = list(self._producers)
            self._producers.clear()
            return producers


class OpenResult(Struct, frozen=True):
    """What is known about the stream and the producer when the first message is appended.

    - `claim`: the stored state and the new epoch, or None if the producer was not claimed.
    - `known`: what is known about the recognition of duplicates in the stream.
    - `past`: a list with the stored state, or an empty list if nothing is stored. After a claim, or
      if the server does not report the state, `past` is None.
    """

    content_type: str
    is_semel: bool
    known: DedupKnowledge = DedupKnowledge()
    past: list[ProducerState] | None = None
    claim: ProducerClaim | None = None


def open_producer(calls: StreamCalls, settings: ProducerSettings) -> Flow[OpenResult]:
    """Return the stream's media type and, if it is needed now, the producer's stored state.

    Nothing is sent if the media type is known and the state is not needed. In that case the first
    request of the producer is its first batch, and the server is assumed to be semel: no other
    server accepts a batch that has a session and no epoch.

    What is known can be out of date. If the media type is wrong, the server refuses the first
    batch. If the stream no longer recognises duplicates, the first response shows it.

    Raises ProtocolError if the stream does not recognise duplicates.
    """
    if not settings.is_claimed_first:
        if calls.is_unguarded:  # perhaps another client has switched it on
            yield from calls.head()
        content_type = settings.content_type or (yield from calls.known_type())
        if calls.is_unguarded:
            raise ProtocolError(_UNGUARDED_STREAM)
        return OpenResult(content_type, not calls.is_foreign, calls.known())
    info = yield from calls.head()
    content_type = settings.content_type or info.content_type
    if not calls.is_semel:
        return OpenResult(content_type, is_semel=False)
    if calls.is_unguarded:
        raise ProtocolError(_UNGUARDED_STREAM)
    claim, past = yield from read_past(calls, settings)
    return OpenResult(content_type, True, calls.known(), past, claim)


Past = tuple[ProducerClaim | None, list[ProducerState] | None]


def read_past(
    calls: StreamCalls, settings: ProducerSettings, *, is_claiming: bool = True
) -> Flow[Past]:
    """Return what a semel server has stored for the producer: a claim or its state.

    The producer is not claimed if `is_claiming` is False, if the caller passed an epoch, if the
    server does not support claims, or if the stream recognises duplicates only from its next append
    on.
    """
    if is_claiming and settings.epoch is None:
        claim = yield from _claim(calls, settings)
        if claim is not None:
            return claim, None
    return None, (yield from _stored(calls, settings.id))


def _claim(calls: StreamCalls, settings: ProducerSettings) -> Flow[ProducerClaim | None]:
    """Claim the producer.

    Return None if the server does not support claims, or if dedup is off in the stream.
    """
    assert settings.session is not None
    try:
        return (
            yield from claim_producer(
                calls, settings.id, settings.session, settings.mode, settings.expires
            )
        )
    except NotSupported:
        return None
    except Refused as error:
        if error.code == _DEDUP_OFF:
            return None
        raise


def _stored(calls: StreamCalls, producer_id: str) -> Flow[list[ProducerState] | None]:
    try:
        states = yield from producers(calls, producer_id)
    except Refused as error:
        if error.status in _NOT_SERVED:
            return None
        raise
    return [state for state in states if state.producer_id == producer_id]


# ---- options -------------------------------------------------------------------------------------


class ProducerOptions(TypedDict, total=False):
    """The options of a producer. All have defaults.

    - `content_type`: the stream's media type. By default the client requests it from the server,
      unless this stream object has already learned it.
    - `epoch`: an epoch that you choose. This works with every Durable Streams server. By default
      the server assigns the next epoch when the first batch is stored, or when `cursor` or
      `last_seq` is read. This fences earlier instances. If you choose the epoch, earlier instances
      are fenced only when the first batch is stored. Until then `cursor` can be out of date.
    - `auto_claim`: claim the next epoch when the producer is opened. This also works with servers
      that assign no epochs: then the stored epoch plus one is used.
    - `mode`: "dense" or "sparse". In sparse mode each message has a sequence. Sequences must
      increase, but can have gaps. Pass `seq` with every message or with none. Without `seq`, the
      first message has the sequence after the last stored one (0 for a new id), and each later one
      the next.
    - `initial_seq`: the first sequence that a sparse producer assigns itself. Messages up to the
      last stored sequence are then skipped, because an earlier instance has stored them.
    - `max_in_flight`: the maximum number of batches that are sent and have no response yet.
    - `max_batch_bytes`, `max_batch_messages`: the maximum size of a batch.
    - `linger_ms`: how many milliseconds a batch waits for more messages.
    - `max_pending_bytes`: `append` waits while this many bytes are not acknowledged. Each message
      counts as its size plus 64 bytes.
    - `delivery_timeout`: the producer fails if a message is not stored after this many seconds.
    - `on_batch_ack(ack)`: called when a batch is stored.
    - `on_error(error, batch)`: called when a batch has failed.
    """

    content_type: str | None
    epoch: int | None
    auto_claim: bool
    mode: str
    initial_seq: int | None
    max_in_flight: int
    max_batch_bytes: int
    max_batch_messages: int
    linger_ms: float
    max_pending_bytes: int
    delivery_timeout: float
    on_batch_ack: OnBatchAck | None
    on_error: OnError | None


def settings_of(producer_id: str | None, options: ProducerOptions) -> ProducerSettings:
    """Return the producer's settings.

    Raises TypeError for an unknown option, and ValueError for an invalid value.
    """
    unknown = sorted(set(options) - ProducerOptions.__annotations__.keys())
    if unknown:
        options_text = ", ".join(ProducerOptions.__annotations__)
        raise TypeError(f"a producer has no option {unknown[0]!r}; the options are {options_text}")
    epoch, auto_claim = options.get("epoch"), options.get("auto_claim", False)
    name = default_id() if producer_id is None else producer_id
    return ProducerSettings(
        id=str(name),
        session=secrets.token_hex(16) if epoch is None else None,
        epoch=epoch,
        is_claiming=auto_claim,
        mode=options.get("mode", DENSE),
        max_in_flight=options.get("max_in_flight", 5),
        max_batch_bytes=options.get("max_batch_bytes", 1_000_000),
        max_batch_messages=options.get("max_batch_messages", BATCH_MESSAGES_MAX),
        linger=options.get("linger_ms", 0) / 1000,
        delivery_timeout=options.get("delivery_timeout", 120.0),
        expires=EXPIRES_SECONDS if isinstance(name, GeneratedId) else None,
        initial_seq=options.get("initial_seq"),
        content_type=options.get("content_type"),
    )


# ---- the identity --------------------------------------------------------------------------------

_MISMATCH: Final = "producer-payload-mismatch"
_IGNORED: Final = (
    "the append was stored, but the server ignored its producer headers: the response has no"
    " Producer-Epoch. Sending the append again would store it twice"
)
_UNGUARDED_STREAM: Final = (
    "the stream does not recognise duplicates (Stream-Dedup: off), so a producer could store a"
    " message twice. Switch dedup on, or use append_many"
)
_UNGUARDED: Final = (
    "the stream does not recognise duplicates (Stream-Dedup: off). The append is stored, but"
    " sending it again would store it twice. Switch dedup on, or use append_many"
)

_AMBIGUOUS: Final = (
    "a request got no response, and the server does not report the epoch of stored batches;"
    " it is therefore unknown whether the first batch was stored by this instance or an earlier one"
)
_FOREIGN: Final = (
    "an earlier instance has probably used the same epoch, because the server reports a new batch"
    " as a duplicate; pass a higher epoch= after each restart"
)
_TAKEN: Final = (
    "another instance has stored messages with the sequences that this one has assigned; let only"
    " one instance use the id at a time, or pass seq= with every message"
)
_NO_SESSIONS: Final = (
    "the server does not support producer sessions; pass epoch= or auto_claim=True to producer()"
)


class ProducerIdentity:
    """An instance's epoch and session, and whether the server has accepted them."""

    def __init__(self, settings: ProducerSettings) -> None:
        self._settings = settings
        self._is_sparse = settings.mode == SPARSE
        self._is_unused = False  # the server has stored nothing with the present epoch
        self._is_semel = False  # the server compares payloads
        self._is_ours = False  # a batch was new, so no earlier instance has stored later batches
        self._id_field = producer_id_field(settings.id)
        self._fixed = _fixed_headers(settings)
        self.epoch = 0 if settings.is_claiming else settings.epoch
        self.is_established = False

    def resume(self, stored_epoch: int | None) -> None:
        """Record the epoch that the server has stored. Call this before the first batch.

        `stored_epoch` is None if nothing is stored. With the setting `is_claiming`, this instance
        uses the stored epoch plus one, or 0 if nothing is stored.
        """
        self._is_unused = self._is_semel = True
        if self._settings.is_claiming and stored_epoch is not None:
            self.epoch = stored_epoch + 1

    def take_over(self, epoch: int) -> None:
        """Set the epoch that a claim has returned.

        The epoch belongs to this instance from now on, even before the first batch.
        """
        self.epoch = epoch
        self.is_established = True

    def headers(self, batch: ProducerBatch) -> list[tuple[str, str]]:
        """Return the producer headers for a batch."""
        fields = [self._id_field, ("Producer-Seq", batch.printed_seq)]
        if self.epoch is not None:
            fields.append(("Producer-Epoch", str(self.epoch)))
        fields += self._fixed
        if batch.cursor is not None:
            fields.append(("Producer-Cursor", batch.cursor))
        if batch.is_closing:
            fields.append(("Stream-Closed", "true"))
        return fields

    def accept(
        self,
        headers: Mapping[str, str],
        batch: ProducerBatch,
        *,
        is_duplicate: bool,
        has_new_seqs: bool = False,
    ) -> ClientError | None:
        """Check a successful response to `batch`, and record its epoch.

        `has_new_seqs` is True if no earlier instance has used the batch's sequences. Return an
        error if the response shows that the producer must end. Otherwise return None.
        """
        # These must be computed before `_confirm` changes the identity.
        is_taken = has_new_seqs and self.is_taken(headers, batch)
        is_ambiguous = self.is_ambiguous(batch)
        is_foreign = self.is_foreign(headers, batch)
        error = self._confirm(headers, is_duplicate=is_duplicate)
        if error is None and is_duplicate and is_ambiguous:
            return Indeterminate(_AMBIGUOUS)
        if error is None and is_duplicate and is_foreign:
            return Indeterminate(_FOREIGN)
        if error is None and is_duplicate and is_taken:
            return Indeterminate(_TAKEN)
        return error

    def _confirm(self, headers: Mapping[str, str], *, is_duplicate: bool) -> ClientError | None:
        if read_flag(headers, _MISMATCH):
            return PayloadMismatch(
                "the server has already stored different messages with this sequence",
                status=204,
                facts={"current_epoch": self.epoch},
            )
        if headers.get("producer-dedup", "").lower() == "off":
            return ProtocolError(_UNGUARDED)
        epoch = _epoch_in(headers)
        if epoch is None:
            return ProtocolError(_IGNORED)
        if is_duplicate and self._is_sparse:
            return None  # an earlier instance can have stored it, with a different epoch
        if self.epoch not in (None, epoch):
            return ProtocolError(
                f"the request had epoch {self.epoch}, but the response has epoch {epoch}"
            )
        self.epoch = epoch
        self.is_established = True
        self._is_ours = self._is_ours or not is_duplicate
        return None

    def renew(self, stored_epoch: int | None = None) -> bool:
        """Move to a higher epoch, because the server may have forgotten the producer.

        Return False if that is not possible. Call this only if no batch without an acknowledgement
        can be stored. The session stays the same, so that the server refuses late copies of
        earlier requests.
        """
        known = [epoch for epoch in (self.epoch, stored_epoch) if epoch is not None]
        if not known or max(known) >= NUMBER_MAX:
            return False
        self.epoch = max(known) + 1
        self.is_established = False
        return True

    def explained(self, error: ClientError) -> ClientError:
        """Return the error to raise for a refusal of a batch.

        If the server seems not to know sessions, return an error that says so.
        """
        is_unknown_session = (
            self._settings.session is not None
            and not self._settings.is_claiming
            and not self.is_established
            and isinstance(error, Refused)
            and error.status == 400
            and error.code == "bad_request"  # semel sends a more specific code
        )
        return ProtocolError(_NO_SESSIONS) if is_unknown_session else error

    def claim(self, error: ClientError, batch: ProducerBatch) -> bool:
        """Move to a higher epoch if the producer was fenced or has expired.

        Return True if the epoch has changed. It changes only with the setting `is_claiming`, and
        only before the server has accepted an epoch of this instance. If an earlier attempt may
        have stored `batch`, the epoch stays the same: with a new epoch, `batch` could be stored
        twice.
        """
        if not isinstance(error, ProducerFenced | ProducerExpired) or batch.is_indeterminate:
            return False
        return self._raise_above(error.current_epoch)

    def reclaim(self, headers: Mapping[str, str], batch: ProducerBatch) -> bool:
        """Move to a higher epoch if an earlier instance has stored messages with this epoch.

        Call this if the server reports `batch` as a duplicate. Return True if the epoch changes. In
        that case `batch` itself is not stored yet, and must be sent again.

        The epoch changes only in dense mode with the setting `is_claiming`, and only before the
        server has accepted an epoch of this instance. If this instance may have stored `batch`
        itself, the epoch stays the same: with a new epoch, `batch` could be stored twice.
        """
        # An attempt got no response, or the epoch was unused and a proxy sent the request twice.
        is_own = not read_flag(headers, _MISMATCH) and (batch.is_indeterminate or self._is_unused)
        return not (is_own or self._is_sparse) and self._raise_above(_epoch_in(headers))

    def is_foreign(self, headers: Mapping[str, str], batch: ProducerBatch) -> bool:
        """Return True if an earlier instance has probably used the epoch and sequence of `batch`.

        Use the result only if the server reports `batch` as a duplicate. The result is True only if
        the caller passed the epoch: in that case an earlier instance can have stored different
        messages with the same epoch and sequence. A server that cannot compare payloads reports
        `batch` as a duplicate of these messages.
        """
        if self._settings.epoch is None or self._is_sparse or self._is_ours:
            return False
        if self._is_semel:
            # If this instance had stored the batch, the receipt would be recent and still retained.
            return headers.get("producer-receipt", "").lower() == "expired"
        return not batch.is_indeterminate

    def is_taken(self, headers: Mapping[str, str], batch: ProducerBatch) -> bool:
        """Return True if another instance has stored the sequences of `batch`.

        Use the result only if the server reports `batch` as a duplicate. A duplicate that this
        instance has stored has its epoch, and the receipt is retained.
        """
        if _epoch_in(headers) != self.epoch and (
            self.epoch is not None or not batch.is_indeterminate
        ):
            return True
        if self._is_semel:
            return headers.get("producer-receipt", "").lower() == "expired"
        return not batch.is_indeterminate and not self.is_established

    def is_ambiguous(self, batch: ProducerBatch) -> bool:
        """Return True if it is unknown whether this instance or an earlier one stored `batch`."""
        is_at_start = self._settings.is_claiming and not self.is_established
        return is_at_start and batch.is_indeterminate and not (self._is_unused or self._is_sparse)

    def _raise_above(self, epoch: int | None) -> bool:
        is_allowed = self._settings.is_claiming and not self.is_established
        if not is_allowed or epoch is None or epoch >= NUMBER_MAX:
            return False
        self.epoch = epoch + 1
        self._is_unused = True
        return True


def _epoch_in(headers: Mapping[str, str]) -> int | None:
    return to_number(headers.get("producer-epoch", ""))


def _fixed_headers(settings: ProducerSettings) -> tuple[tuple[str, str], ...]:
    """Return the headers that are the same for every batch, except the id."""
    fields = []
    if settings.session is not None:
        fields.append(("Producer-Session", settings.session))
    if settings.mode == SPARSE:
        fields.append(("Producer-Mode", SPARSE))
    if settings.expires is not None:
        fields.append(("Producer-Expires", str(settings.expires)))
    return tuple(fields)
