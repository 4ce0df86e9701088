"""Opening a producer: its options, its claim, its body encoder and its identity.

A new instance claims the producer id: the server first fences the earlier instance, and then
returns the stored state. Without the fence, a request from the earlier instance could be stored
after the state was read. The new instance would then store the same messages again.
"""

import os
import secrets
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Generic, TypedDict, TypeVar
from weakref import WeakSet

from msgspec import Struct

from semel.client.errors import (
    ClientError,
    NotSupported,
    PayloadMismatch,
    ProducerExpired,
    ProducerFenced,
    ProtocolError,
    Refused,
    TooLarge,
)
from semel.client.flows import Flow
from semel.client.producer.batches import (
    BatchAck,
    FailedBatch,
    ProducerBatch,
    ProducerSettings,
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
from semel.model.commands import DENSE, SPARSE
from semel.model.commands import Batch as Payloads
from semel.model.limits import BATCH_MESSAGES_MAX, BODY_BYTES_MAX, MIB, NUMBER_MAX
from semel.model.messages import is_json
from semel.wire.bodies import encode_batch
from semel.wire.headers import BATCH, read_flag, to_number
from semel.wire.json_depth import JSON_DEPTH_MAX
from semel.wire.json_mode import split_json

OnBatchAck = Callable[[BatchAck], object]
OnError = Callable[[ClientError, FailedBatch], object]

PENDING_BYTES_MAX: Final = 64 * MIB
_NOT_SERVED: Final = frozenset({404, 405, 501})
_DEDUP_OFF: Final = "dedup_off"
_MISMATCH: Final = "producer-payload-mismatch"


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
    """What the server returned when the producer was opened.

    - `claim`: the stored state and the new epoch, or None if the producer was not claimed.
    - `past`: a list with the stored state, or an empty list if nothing is stored. After a claim, or
      if the server does not report the state, `past` is None.
    """

    content_type: str
    is_semel: bool
    past: list[ProducerState] | None = None
    claim: ProducerClaim | None = None


def open_producer(calls: StreamCalls, settings: ProducerSettings) -> Flow[OpenResult]:
    """Read the stream's media type. Claim the producer, or read its stored state instead.

    The producer is not claimed if the caller passed an epoch, if the server does not support
    claims, or if the stream recognises duplicates only from its next append on.

    Raises ProtocolError if the stream does not recognise duplicates.
    """
    info = yield from calls.head()
    if not calls.is_semel:
        return OpenResult(info.content_type, is_semel=False)
    if calls.is_unguarded:
        raise ProtocolError(_UNGUARDED_STREAM)
    if settings.epoch is None:
        claim = yield from _claim(calls, settings)
        if claim is not None:
            return OpenResult(info.content_type, is_semel=True, claim=claim)
    past = yield from _past(calls, settings.id)
    return OpenResult(info.content_type, is_semel=True, past=past)


def _claim(calls: StreamCalls, settings: ProducerSettings) -> Flow[ProducerClaim | None]:
    """Claim the producer.

    Return None if the server does not support claims, or if dedup is off in the stream.
    """
    session = settings.session or secrets.token_hex(16)
    try:
        return (yield from claim_producer(calls, settings.id, session, settings.mode))
    except NotSupported:
        return None
    except Refused as error:
        if error.code == _DEDUP_OFF:
            return None
        raise


def _past(calls: StreamCalls, producer_id: str) -> Flow[list[ProducerState] | None]:
    try:
        states = yield from producers(calls, producer_id)
    except Refused as error:
        if error.status in _NOT_SERVED:
            return None
        raise
    return [state for state in states if state.producer_id == producer_id]


def default_id() -> str:
    """Return the value of the environment variable `PRODUCER_ID`.

    If the variable is not set, return the host name and the process id, joined by a hyphen.
    """
    return os.environ.get("PRODUCER_ID") or f"{socket.gethostname()}-{os.getpid()}"


class ProducerOptions(TypedDict, total=False):
    """The options of a producer. All have defaults.

    - `epoch`: an epoch that you choose. This works with every Durable Streams server. By default
      the server assigns the next epoch, and fences earlier instances when the producer starts. If
      you choose the epoch, earlier instances are fenced only when the first append is stored. Until
      then they can still store messages, and `cursor` can be out of date.
    - `auto_claim`: for servers that assign no epochs. The server's stored epoch plus one is used.
    - `mode`: "dense" or "sparse". In sparse mode you pass a sequence with each message. Sequences
      must increase, but can have gaps.
    - `max_in_flight`: the maximum number of batches that are sent and have no response yet.
    - `max_batch_bytes`, `max_batch_messages`: the maximum size of a batch.
    - `linger_ms`: how many milliseconds a batch waits for more messages.
    - `max_pending_bytes`: `append` waits while this many bytes are not acknowledged. Each message
      counts as its size plus 64 bytes.
    - `delivery_timeout`: the producer fails if a message is not stored after this many seconds.
    - `on_batch_ack(ack)`: called when a batch is stored.
    - `on_error(error, batch)`: called when a batch has failed.
    """

    epoch: int | None
    auto_claim: bool
    mode: str
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
    return ProducerSettings(
        id=default_id() if producer_id is None else producer_id,
        session=secrets.token_hex(16) if epoch is None else None,
        epoch=epoch,
        is_claiming=auto_claim,
        mode=options.get("mode", DENSE),
        max_in_flight=options.get("max_in_flight", 5),
        max_batch_bytes=options.get("max_batch_bytes", 1_000_000),
        max_batch_messages=options.get("max_batch_messages", BATCH_MESSAGES_MAX),
        linger=options.get("linger_ms", 0) / 1000,
        delivery_timeout=options.get("delivery_timeout", 120.0),
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


# ---- the identity --------------------------------------------------------------------------------

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


class ProducerIdentity:
    """An instance's epoch and session, and whether the server has accepted them."""

    def __init__(self, settings: ProducerSettings) -> None:
        self._settings = settings
        self._is_sparse = settings.mode == SPARSE
        self._is_unused = False  # the server has stored nothing with the present epoch
        self._is_semel = False  # the server compares payloads
        self._is_ours = False  # a batch was new, so no earlier instance has stored later batches
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
        settings = self._settings
        fields = [("Producer-Id", settings.id), ("Producer-Seq", batch.printed_seq)]
        if self.epoch is not None:
            fields.append(("Producer-Epoch", str(self.epoch)))
        if settings.session is not None:
            fields.append(("Producer-Session", settings.session))
        if self._is_sparse:
            fields.append(("Producer-Mode", SPARSE))
        if batch.cursor is not None:
            fields.append(("Producer-Cursor", batch.cursor))
        return fields

    def confirm(self, headers: Mapping[str, str], *, is_duplicate: bool) -> ClientError | None:
        """Check a successful response, and record its epoch.

        Return an error if the response shows that the producer must end. Otherwise return None.
        """
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
