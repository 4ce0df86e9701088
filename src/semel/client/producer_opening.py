"""What a producer must know before its first message: the stream, and its own past there.

To ask for the past is not enough. What an earlier instance has sent may still be under way, and
would be stored behind the answer; whoever went on from there would store it again. So the producer
claims: the server refuses the earlier instance first, and then tells.
"""

import os
import secrets
import socket
from collections.abc import Callable
from typing import Final, TypedDict

from msgspec import Struct

from semel.client.calls import StreamCalls
from semel.client.errors import ClientError, NotSupported, Refused
from semel.client.flows import Flow
from semel.client.producer_batches import DENSE, BatchAck, FailedBatch, ProducerSettings
from semel.client.site_calls import claim_producer, producers
from semel.client.values import ProducerClaim, ProducerState
from semel.model.limits import BATCH_MESSAGES_MAX, MIB

OnBatchAck = Callable[[BatchAck], object]
OnError = Callable[[ClientError, FailedBatch], object]

PENDING_BYTES_MAX: Final = 64 * MIB
_NOT_SERVED: Final = frozenset({404, 405, 501})


_DEDUP_OFF: Final = "dedup_off"


class Opening(Struct, frozen=True):
    """What the server told: `claim`, if the producer is ours now, else `past`, what it knows of it.

    An empty `past` is not the same as None: then the server was not able to tell.
    """

    content_type: str
    is_semel: bool
    past: list[ProducerState] | None = None
    claim: ProducerClaim | None = None


def open_producer(calls: StreamCalls, settings: ProducerSettings) -> Flow[Opening]:
    """Ask for the stream's media type, take the producer over, and learn what it has written.

    A caller's own epoch is the caller's business: then the server is only asked.
    """
    info = yield from calls.head()
    if not calls.is_semel:
        return Opening(info.content_type, is_semel=False)
    if settings.epoch is None:
        claim = yield from _claim(calls, settings)
        if claim is not None:
            return Opening(info.content_type, is_semel=True, claim=claim)
    past = yield from _past(calls, settings.id)
    return Opening(info.content_type, is_semel=True, past=past)


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
