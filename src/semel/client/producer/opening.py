"""What a producer must know before its first message: the stream, and its own past there.

To ask for the past is not enough. What an earlier instance has sent may still be under way, and
would be stored behind the answer; whoever went on from there would store it again. So the producer
claims: the server refuses the earlier instance first, and then tells.
"""

import os
import secrets
import socket
from collections.abc import Callable, Mapping
from typing import Final, TypedDict

from msgspec import Struct

from semel.client.errors import (
    ClientError,
    NotSupported,
    PayloadMismatch,
    ProducerExpired,
    ProducerFenced,
    ProtocolError,
    Refused,
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
from semel.client.values import ProducerClaim, ProducerState
from semel.model.commands import DENSE, SPARSE
from semel.model.limits import BATCH_MESSAGES_MAX, MIB, NUMBER_MAX
from semel.wire.headers import to_number

OnBatchAck = Callable[[BatchAck], object]
OnError = Callable[[ClientError, FailedBatch], object]

PENDING_BYTES_MAX: Final = 64 * MIB
_NOT_SERVED: Final = frozenset({404, 405, 501})


_DEDUP_OFF: Final = "dedup_off"


class OpenResult(Struct, frozen=True):
    """What the server told: `claim`, if the producer is ours now, else `past`, what it knows of it.

    An empty `past` is not the same as None: then the server was not able to tell.
    """

    content_type: str
    is_semel: bool
    past: list[ProducerState] | None = None
    claim: ProducerClaim | None = None


def open_producer(calls: StreamCalls, settings: ProducerSettings) -> Flow[OpenResult]:
    """Ask for the stream's media type, take the producer over, and learn what it has written.

    A caller's own epoch is the caller's business: then the server is only asked.
    """
    info = yield from calls.head()
    if not calls.is_semel:
        return OpenResult(info.content_type, is_semel=False)
    if settings.epoch is None:
        claim = yield from _claim(calls, settings)
        if claim is not None:
            return OpenResult(info.content_type, is_semel=True, claim=claim)
    past = yield from _past(calls, settings.id)
    return OpenResult(info.content_type, is_semel=True, past=past)


def _claim(calls: StreamCalls, settings: ProducerSettings) -> Flow[ProducerClaim | None]:
    """Claim; None if this server, or this stream, has no claims."""
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
        found = yield from producers(calls, producer_id)
    except Refused as error:
        if error.status in _NOT_SERVED:
            return None
        raise
    return [state for state in found if state.producer_id == producer_id]


def default_id() -> str:
    """Name this process: `PRODUCER_ID`, or else its host and number."""
    return os.environ.get("PRODUCER_ID") or f"{socket.gethostname()}-{os.getpid()}"


class ProducerOptions(TypedDict, total=False):
    """How a producer works; all may be left away.

    - `epoch`: your own epoch. Works with every Durable Streams server. By default the server counts
      the instances of a producer, and each takes the next epoch at its start. `auto_claim`: take
      the epoch above the one the server knows; for servers that do not count. With your own epoch
      the first append that is stored fences an earlier instance, not the start: until then what
      that one has under way may still be stored, and `cursor` may be too old.
    - `mode`: "sparse" takes numbers of yours, one with each message, which grow and may have holes.
    - `max_in_flight`: batches sent and not yet answered. `max_batch_bytes`, `max_batch_messages`:
      where a batch ends. `linger_ms`: how long a batch waits for more messages.
    - `max_pending_bytes`: `append` waits when so much is not yet acknowledged; each message counts
      with 64 bytes more than it has.
    - `delivery_timeout`: seconds after which a message is given up, and the producer with it.
    - `on_batch_ack(ack)`: called when a batch is stored. `on_error(error, batch)`: when it failed.
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
    """Read what a producer is made with; ValueError or TypeError if it makes no sense."""
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


# ---- producer identity ---------------------------------------------------------------------------
# Who a producer says it is: the epoch it writes under, and how it came by it.


_IGNORED = (
    "the append was taken, but not as that of a producer: the answer has no Producer-Epoch."
    " It is stored, but sending it again would store it twice"
)
_UNGUARDED = (
    "the stream recognises no duplicates (Stream-Dedup: off). The append is stored, but sending it"
    " again would store it twice: switch it on, or use append_many"
)


class ProducerIdentity:
    """The epoch, the session and whether the server has accepted them."""

    def __init__(self, settings: ProducerSettings) -> None:
        self._settings = settings
        self._is_sparse = settings.mode == SPARSE
        self._is_unused = False  # nobody has written under our epoch, as far as the server knows
        self._is_told = False  # by a server that compares payloads
        self._is_ours = False  # it took a batch of ours as new: so will be all behind it
        self.epoch = 0 if settings.is_claiming else settings.epoch
        self.is_established = False

    def resume(self, known_epoch: int | None) -> None:
        """Take note of the epoch the server knows, before the first batch; None: it knows none."""
        self._is_unused = self._is_told = True
        if self._settings.is_claiming and known_epoch is not None:
            self.epoch = known_epoch + 1

    def take_over(self, epoch: int) -> None:
        """Take the epoch a claim has got: it is ours alone before the first batch."""
        self.epoch = epoch
        self.is_established = True

    def headers(self, batch: ProducerBatch) -> list[tuple[str, str]]:
        """Tag a batch."""
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
        """Learn from an answer that says yes; an error if it is not meant for us."""
        if _is_mismatch(headers):
            message = "the batch's number was used before, with other messages"
            return PayloadMismatch(message, status=204, facts={"current_epoch": self.epoch})
        if headers.get("producer-dedup", "").lower() == "off":
            return ProtocolError(_UNGUARDED)
        epoch = _epoch_in(headers)
        if epoch is None:
            return ProtocolError(_IGNORED)
        if is_duplicate and self._is_sparse:
            return None  # stored by an earlier instance, perhaps: then the epoch is that one's
        if self.epoch not in (None, epoch):
            return ProtocolError(f"sent under epoch {self.epoch}, answered under {epoch}")
        self.epoch = epoch
        self.is_established = True
        self._is_ours = self._is_ours or not is_duplicate
        return None

    def claim(self, error: ClientError, batch: ProducerBatch) -> bool:
        """Raise the epoch above the one that fenced us, or that was let go, if allowed and safe.

        It is not if an attempt is in doubt: it may have been stored under the epoch we had, and
        fenced only afterwards. A second copy under a new epoch would be a duplicate.
        """
        if not isinstance(error, ProducerFenced | ProducerExpired) or batch.is_doubtful:
            return False
        return self._raise_above(error.current_epoch)

    def reclaim(self, headers: Mapping[str, str], batch: ProducerBatch) -> bool:
        """Raise the epoch if a first batch counts as a duplicate, and of somebody else's.

        An earlier instance wrote under the epoch we began with. To take its number 0 for ours
        would lose our messages. But if nobody had used it, something on the way has sent a copy of
        our request first: to send it again would be a duplicate.
        """
        is_own = not _is_mismatch(headers) and (batch.is_doubtful or self._is_unused)
        return not (is_own or self._is_sparse) and self._raise_above(_epoch_in(headers))

    def is_foreign(self, headers: Mapping[str, str], batch: ProducerBatch) -> bool:
        """Tell whether a duplicate under a declared epoch is an earlier instance's, perhaps.

        It may have stored other messages under our numbers, and a server that does not compare, or
        no longer can, would take ours for a repeat.
        """
        if self._settings.epoch is None or self._is_sparse or self._is_ours:
            return False
        if self._is_told:
            # Our own would be among the last ones, which it remembers.
            return headers.get("producer-receipt", "").lower() == "expired"
        return not batch.is_doubtful

    def is_ambiguous(self, batch: ProducerBatch) -> bool:
        """Tell whether a duplicate may be ours or that of an instance under the same epoch."""
        is_at_start = self._settings.is_claiming and not self.is_established
        return is_at_start and batch.is_doubtful and not (self._is_unused or self._is_sparse)

    def _raise_above(self, epoch: int | None) -> bool:
        is_allowed = self._settings.is_claiming and not self.is_established
        if not is_allowed or epoch is None or epoch >= NUMBER_MAX:
            return False
        self.epoch = epoch + 1
        self._is_unused = True
        return True


def _is_mismatch(headers: Mapping[str, str]) -> bool:
    return headers.get("producer-payload-mismatch", "").lower() == "true"


def _epoch_in(headers: Mapping[str, str]) -> int | None:
    return to_number(headers.get("producer-epoch", ""))
