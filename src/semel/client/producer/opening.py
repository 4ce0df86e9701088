"""Opening a producer: its options, its claim and its body encoder.

An instance that needs the stored state claims the producer id: the server first fences the earlier
instance, and then returns the state. Without the fence, a request from the earlier instance could
be stored after the state was read. The new instance would then store the same messages again.

An instance that does not need the state sends its first batch at once. Its session is new, so this
batch fences the earlier instance.
"""

import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Generic, TypedDict, TypeVar
from weakref import WeakSet

from msgspec import Struct

from semel.client.errors import ClientError, NotSupported, Refused, TooLarge
from semel.client.flows import Flow
from semel.client.producer.batches import BatchAck, FailedBatch
from semel.client.producer.settings import (
    EXPIRES_SECONDS,
    GeneratedId,
    ProducerSettings,
    default_id,
)
from semel.client.server_calls import claim_producer, producers
from semel.client.stream_calls import StreamCalls
from semel.client.values import (
    PREENCODED,
    Extra,
    Headers,
    Key,
    ProducerClaim,
    ProducerState,
    columns_of,
    encode,
    encode_json,
    extra_of,
)
from semel.model.commands import DENSE
from semel.model.commands import Batch as Payloads
from semel.model.limits import BATCH_MESSAGES_MAX, BODY_BYTES_MAX, MIB
from semel.model.messages import is_json
from semel.wire.bodies import encode_batch
from semel.wire.headers import BATCH
from semel.wire.json_depth import JSON_DEPTH_MAX
from semel.wire.json_mode import split_json

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
    - `past`: a list with the stored state, or an empty list if nothing is stored. After a claim, or
      if the server does not report the state, `past` is None.
    """

    content_type: str
    is_semel: bool
    past: list[ProducerState] | None = None
    claim: ProducerClaim | None = None


def open_producer(calls: StreamCalls, settings: ProducerSettings) -> Flow[OpenResult]:
    """Return the stream's media type and, if it is needed now, the producer's stored state.

    Nothing is sent if the media type is known and the state is not needed. In that case the first
    request of the producer is its first batch, and the server is assumed to be semel: no other
    server accepts a batch that has a session and no epoch.
    """
    if not settings.is_claimed_first:
        content_type = settings.content_type or (yield from calls.known_type())
        return OpenResult(content_type, is_semel=not calls.is_foreign)
    info = yield from calls.head()
    content_type = settings.content_type or info.content_type
    if not calls.is_semel:
        return OpenResult(content_type, is_semel=False)
    claim, past = yield from read_past(calls, settings)
    return OpenResult(content_type, is_semel=True, past=past, claim=claim)


Past = tuple[ProducerClaim | None, list[ProducerState] | None]


def read_past(
    calls: StreamCalls, settings: ProducerSettings, *, is_claiming: bool = True
) -> Flow[Past]:
    """Return what a semel server has stored for the producer: a claim or its state.

    The producer is not claimed if `is_claiming` is False, if the caller passed an epoch, if the
    server does not support claims, or if the stream does not recognise duplicates.
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
      first message has the sequence `initial_seq` (by default 0), and each later one the next.
    - `initial_seq`: the first sequence that a sparse producer assigns itself.
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
        raise TypeError(f"a producer has no option {unknown[0]!r}")
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


# ---- encoding ------------------------------------------------------------------------------------

_FRAME_BYTES: Final = 512  # for the brackets or the batch header that enclose a message
_DEEP_BYTES_MIN: Final = 2 * (JSON_DEPTH_MAX + 1)


class BodyEncoder:
    """Encodes values as messages, and messages as request bodies, for one media type.

    - If a message has extras (a key, headers or a timestamp), the body has semel's batch format.
    - Otherwise, JSON messages are encoded as a JSON array.
    - A single message of another media type is sent as it is. Two or more are sent to semel in the
      batch format, and are concatenated for other servers.
    """

    def __init__(self, content_type: str, *, is_semel: bool) -> None:
        self._content_type = content_type
        self._is_json = is_json(content_type)
        self._is_batching = is_semel and not self._is_json
        self._is_semel = is_semel
        self.to_raw: Callable[[Any], bytes] = self._to_json if self._is_json else self._to_bytes

    def content_type(self, count: int, extras: Mapping[int, Extra]) -> str:
        """Return the media type of a body that has `count` messages and these extras."""
        is_batch = extras or (self._is_batching and count > 1)
        return BATCH if is_batch else self._content_type

    def body(self, messages: Sequence[bytes], extras: Mapping[int, Extra]) -> bytes:
        """Return the request body for an append of these messages."""
        if extras:
            columns = columns_of(len(messages), extras)
            return encode_batch(
                self._content_type,
                messages,
                keys=columns.keys,
                headers=columns.headers,
                timestamps=columns.timestamps,
            )
        if self._is_json:
            return b"[" + b",".join(messages) + b"]"
        if self._is_batching and len(messages) > 1:
            return encode_batch(self._content_type, messages)
        return b"".join(messages)

    def checked_extra(
        self, raw: bytes, key: Key, headers: Headers, timestamp: datetime | None
    ) -> Extra | None:
        """Return the extras of a message, or None if the message has no extras.

        Raises NotSupported if there are extras and the server is not semel. Raises TooLarge if the
        message and its extras together are too large.
        """
        extra = extra_of(key, headers, timestamp)
        if extra is None:
            return None
        if not self._is_semel:
            raise NotSupported("this server does not support message keys, headers and timestamps")
        self._check_size(len(raw) + extra.size)
        return extra

    def _to_json(self, value: Any) -> bytes:
        """Encode a value as JSON.

        Raises ValueError if the value is invalid, because the server would refuse its whole batch.
        """
        raw = encode_json(value)
        if len(raw) >= _DEEP_BYTES_MIN or isinstance(value, PREENCODED):
            self._check_json(raw, is_ready=isinstance(value, PREENCODED))
        return raw

    def _check_json(self, raw: bytes, *, is_ready: bool) -> None:
        if is_ready or raw.count(b"[") + raw.count(b"{") > JSON_DEPTH_MAX:
            payloads = split_json(b"[" + raw + b"]")
            if not isinstance(payloads, Payloads) or payloads.count != 1:
                reason = payloads if isinstance(payloads, str) else "expected exactly one value"
                raise ValueError(f"the stream cannot store this message as JSON: {reason}")
        self._check_size(len(raw))

    def _to_bytes(self, value: Any) -> bytes:
        raw = encode(value, self._content_type)
        if not raw:
            raise ValueError("an empty message cannot be stored")
        self._check_size(len(raw))
        return raw

    def _check_size(self, size: int) -> None:
        if size > BODY_BYTES_MAX - _FRAME_BYTES and self._is_semel:
            raise TooLarge(
                f"the message has {size} bytes; the maximum is {BODY_BYTES_MAX - _FRAME_BYTES}"
            )
