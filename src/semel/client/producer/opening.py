"""Opening a producer: its options, its claim, and the identity under which it appends.

An instance that needs the stored state claims the producer id: the server first fences the earlier
instance, and then returns the state. Without the fence, a request from the earlier instance could
be stored after the state was read. The new instance would then store the same messages again.

An instance that does not need the state sends its first batch at once. Its session is new, so this
batch fences the earlier instance.
"""

import secrets
import threading
from collections.abc import Callable
from typing import Final, Generic, TypedDict, TypeVar
from weakref import WeakSet

from msgspec import Struct

from semel.client.errors import (
    ClientError,
    NotSupported,
    ProtocolError,
    Refused,
)
from semel.client.flows import Flow
from semel.client.producer.outcomes import BatchAck, FailedBatch
from semel.client.producer.settings import (
    EXPIRES_SECONDS,
    GeneratedId,
    ProducerSettings,
    default_id,
)
from semel.client.server_calls import claim_producer, producers
from semel.client.stream_calls import DedupKnowledge, StreamCalls
from semel.client.values import ProducerClaim, ProducerState
from semel.model.commands import DENSE
from semel.model.limits import BATCH_MESSAGES_MAX, MIB

OnBatchAck = Callable[[BatchAck], object]
OnError = Callable[[ClientError, FailedBatch], object]

PENDING_BYTES_MAX: Final = 64 * MIB
_NOT_SERVED: Final = frozenset({404, 405, 501})
_DEDUP_OFF: Final = "dedup_off"
_UNGUARDED_STREAM: Final = (
    "the stream does not recognise duplicates (Stream-Dedup: off), so a producer could store a"
    " message twice. Switch dedup on, or use append_many"
)


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


class Past(Struct, frozen=True):
    """What a server has stored for a producer before this instance.

    - `claim`: the stored state and the new epoch, or None if the producer was not claimed.
    - `states`: a list with the stored state, or an empty list if nothing is stored. After a claim,
      or if the server does not report the state, `states` is None.
    """

    claim: ProducerClaim | None = None
    states: list[ProducerState] | None = None


class OpenResult(Struct, frozen=True):
    """What is known about the stream and the producer when the first message is appended.

    `known` is what is known about the recognition of duplicates in the stream.
    """

    content_type: str
    is_semel: bool
    known: DedupKnowledge = DedupKnowledge()
    past: Past = Past()


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
        content_type = yield from calls.known_type(settings.content_type)
        if calls.is_unguarded:
            raise ProtocolError(_UNGUARDED_STREAM)
        return OpenResult(content_type, not calls.is_foreign, calls.known())
    info = yield from calls.head()
    content_type = settings.content_type or info.content_type
    if not calls.is_semel:
        return OpenResult(content_type, is_semel=False)
    if calls.is_unguarded:
        raise ProtocolError(_UNGUARDED_STREAM)
    past = yield from read_past(calls, settings)
    return OpenResult(content_type, True, calls.known(), past)


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
            return Past(claim)
    return Past(states=(yield from _stored(calls, settings.id)))


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
