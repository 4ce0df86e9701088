"""How the plain appends of a client are sent: one lane for each stream. No I/O and no locks.

A lane has the queue of the stream's appends and a producer of its own, so that the server
recognises a repeat. An append whose response is lost is then sent again, and stored once. These are
the rules:

1. A pair of epoch and sequence is used for one request only. A repeat has the same bytes.
2. Only a response that the request is stored makes the sequence advance. After any other end of a
   request (refused, timed out, interrupted), the next request has a higher epoch. The server then
   refuses late copies of all earlier requests.
3. After a refusal of the producer, such as an expired one, the append is sent again with a higher
   epoch, but only if no earlier attempt may have been stored. Otherwise it is Indeterminate.
4. A request is not sent again later than four minutes after its first response was lost. The server
   keeps the producer of a lane for ten minutes.
5. Without a producer, an append is sent again only if nothing was applied. This is so with another
   server than semel, in a stream that does not recognise duplicates, after the stream's limit of
   producers was reached, and with the client's option `retry_appends=False`.
6. While a stream does not recognise duplicates, the first append after each pause of a minute asks
   the server whether this has changed. So appends become numbered again without other calls.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from msgspec.structs import replace

from semel.client import errors
from semel.client.append_queue import AppendQueue, HeldBytes
from semel.client.errors import ClientClosed, ClientError, Indeterminate, Refused
from semel.client.flows import Exchanged, Flow, RetrySafety, ask
from semel.client.pending_append import PLAIN, AppendBatch, PendingAppend
from semel.client.requests import AppendHeaders, ProducerHeaders, Request
from semel.client.stream_calls import StreamCalls, is_unguarded_append
from semel.client.values import Receipt
from semel.model.messages import normalise
from semel.wire.schema.producers import RetireEntry

Clock = Callable[[], float]

EXPIRES_SECONDS: Final = 600
IDLE_SECONDS_MAX: Final = 300.0
RESEND_SECONDS_MAX: Final = 240.0
LIMIT_PAUSE_SECONDS: Final = 60.0
DEDUP_PAUSE_SECONDS: Final = 60.0
LANES_MAX: Final = 10_000
_RENEWALS_MAX: Final = 3
_NUMBERED: Final = AppendHeaders(tag=ProducerHeaders("", 0))
_PRODUCER_LIMITS: Final = frozenset({"expiring_producers_per_stream", "producers_per_stream"})
# The server looks for a repeat before it refuses an append for one of these reasons. So after a
# lost response they show that the earlier attempt was not stored.
_AFTER_REPEATS: Final = (
    errors.PartitionsChanged,
    errors.StreamClosed,
    errors.PreconditionFailed,
    errors.StreamSeqConflict,
)


class EncodeAgain(Exception):
    """The media type was learned, or it or the partitions of the topic have changed.

    Nothing was applied.
    """


class SendAlone(Exception):
    """The server refused the body of several appends. Nothing was applied."""

    def __init__(self, *, is_too_large: bool) -> None:
        super().__init__()
        self.is_too_large = is_too_large


class LaneProducer:
    """The producer of a lane: its epoch and its next sequence."""

    def __init__(self, producer_id: str) -> None:
        self.id = producer_id
        self.epoch = 0
        self.stored_at: float | None = None  # when the server last stored something of this epoch
        self._seq = 0
        self._is_spent = False  # the epoch and sequence were sent, and their end is not known
        self._begun_at: float | None = None

    def begin(self, now: float) -> ProducerHeaders:
        """Return the headers of a new request."""
        is_idle = self._begun_at is not None and now - self._begun_at > IDLE_SECONDS_MAX
        if self._is_spent or is_idle:
            self.epoch += 1
            self._seq = 0
            self.stored_at = None
        self._is_spent = True
        self._begun_at = now
        return ProducerHeaders(self.id, self._seq, self.epoch, expires=EXPIRES_SECONDS)

    def confirm(self, now: float) -> None:
        """Record that the request of the last `begin` is stored."""
        self._seq += 1
        self._is_spent = False
        self.stored_at = now


class AppendLane:
    """The plain appends of one stream."""

    def __init__(self, calls: StreamCalls, held: HeldBytes, producer_id: str, clock: Clock) -> None:
        self.calls = calls
        self.queue = AppendQueue(held)
        self.producer = LaneProducer(producer_id)
        self.is_retrying = True
        self._clock = clock
        self._limited_until = 0.0
        self._unguarded_since: float | None = None

    @property
    def content_type(self) -> str | None:
        """The media type of the stream, or None if it must be learned before appends can share."""
        calls = self.calls
        return calls.content_type if calls.is_semel and not calls.is_stale else None

    def prepare(self, append: PendingAppend) -> None:
        """Encode an append, if the stream's media type is known.

        Raises TypeError, ValueError or TooLarge if the append cannot be stored. If the media type
        is perhaps another one, a TypeError or ValueError is raised later, when it is known.
        """
        calls = self.calls
        content_type = calls.content_type if calls.is_semel else None
        if content_type is not None and append.count:
            try:
                append.encode(content_type)
            except (TypeError, ValueError):
                if calls.is_stale:
                    return
                calls.is_stale = True
                raise
            if not self.queue.is_idle:
                append.check()

    # ---- the results of `deliver` ----------------------------------------------------------------

    def take(self, now: float) -> tuple[AppendBatch | None, list[PendingAppend]]:
        """Return the next batch, and the appends that are done because they cannot be encoded."""
        # If the media type is not known any more, some appends are encoded and others are not.
        content_type = self.content_type
        is_sharing = content_type is not None or not (self.calls.is_semel or self.calls.is_foreign)
        return self.queue.take(now, content_type, is_sharing=is_sharing)

    def fail(self, batch: AppendBatch, error: Exception) -> list[PendingAppend]:
        """Record why `deliver` failed. Return the appends that are done now."""
        if isinstance(error, EncodeAgain):
            self.queue.encode_again(batch)
        elif isinstance(error, SendAlone):
            self.queue.send_alone(batch, is_too_large=error.is_too_large)
        else:
            return self.queue.fail(batch, error)
        return []

    # ---- sending ---------------------------------------------------------------------------------

    def deliver(self, batch: AppendBatch) -> Flow[Receipt]:
        """Send a batch and return the receipt of its last append.

        Raises EncodeAgain or SendAlone if its appends must be queued again, and the error of all
        its appends otherwise.
        """
        first = batch.appends[0]
        content_type = batch.content_type
        if first.count and (content_type is None or content_type != self.content_type):
            yield from self._prepare(batch)
        if not first.count or self.calls.is_foreign:
            batch.is_posted = True
            return (yield from send_unshared(self.calls, first))
        try:
            return (yield from self._post(batch, first.conditions))
        except Refused as error:
            if len(batch.appends) > 1 and _is_bad_body(error):
                raise SendAlone(is_too_large=error.status == 413) from None
            if isinstance(error, errors.PartitionsChanged) and self.calls.grouper is not None:
                self.calls.grouper.note_refusal(error, batch.grouped)
                raise EncodeAgain from None
            if not isinstance(error, errors.ContentTypeConflict) or first.has_been_retyped:
                raise
            info = yield from self.calls.head()
            if normalise(info.content_type) == normalise(batch.content_type or ""):
                raise
        for append in batch.appends:
            append.has_been_retyped = True
        raise EncodeAgain

    def _prepare(self, batch: AppendBatch) -> Flow[None]:
        """Learn what the server is, if it is not known. Encode the batch, if it has one append."""
        calls, is_shared = self.calls, len(batch.appends) > 1
        content_type = self.content_type
        if content_type is None and not calls.is_foreign:
            content_type = (yield from calls.head()).content_type
            if is_shared:
                raise EncodeAgain
        if content_type is None or calls.is_foreign or batch.encoded is not None:
            return
        if batch.content_type != content_type:
            if is_shared:
                raise EncodeAgain
            batch.encode(content_type)

    def _post(self, batch: AppendBatch, conditions: AppendHeaders) -> Flow[Receipt]:
        if self.calls.is_unguarded and self._must_ask():
            yield from self.calls.head()
        for _ in range(_RENEWALS_MAX):
            # A request that was interrupted keeps its number, because it may be stored.
            if batch.tag is None and not self._has_producer(conditions):
                break
            error = yield from self._post_numbered(batch, conditions)
            if isinstance(error, Receipt):
                return error
            batch.tag, batch.is_repeatable = None, False
            if isinstance(error, errors.LimitReached):
                self._limited_until = self._clock() + LIMIT_PAUSE_SECONDS
            else:  # perhaps another client has switched dedup off and on, or replaced the stream
                yield from self.calls.head()
            batch.regroup(self.calls.grouper)
        batch.is_posted = True
        body = batch.body(self.calls.grouper)
        return (yield from self.calls.post(*body, conditions, batch.fields))

    def _must_ask(self) -> bool:
        """Return True if the server must be asked whether it recognises duplicates (rule 6)."""
        now = self._clock()
        if self._unguarded_since is None or not self.is_retrying:
            self._unguarded_since = now
        elif now - self._unguarded_since >= DEDUP_PAUSE_SECONDS:
            self._unguarded_since = None
            return True
        return False

    def _has_producer(self, conditions: AppendHeaders) -> bool:
        """Return True if the append is numbered, so that a repeat is recognised.

        The server does not accept an idempotency key together with a producer.
        """
        return (
            self.is_retrying
            and self.calls.has_dedup
            and conditions.idempotency_key is None
            and (not self._limited_until or self._clock() >= self._limited_until)
        )

    def _post_numbered(
        self, batch: AppendBatch, conditions: AppendHeaders
    ) -> Flow[Receipt | Refused]:
        """Send a batch with the lane's producer. Return the receipt.

        If the server refuses the producer and nothing was stored, return this refusal. The batch
        can then be sent in another way.
        """
        tag = batch.tag
        limit = _ResendLimit(self._clock)
        if tag is None:
            batch.known = self.calls.known()
            tag = batch.tag = self.producer.begin(self._clock())
        elif batch.was_lost and not (yield from self._may_resend(batch, limit)):
            raise Indeterminate(
                "the request was interrupted while it was in flight, and the stream perhaps does"
                " not recognise a repeat"
            )
        batch.is_posted = batch.is_repeatable = True
        body_type, body = batch.body(self.calls.grouper)
        more = () if conditions is PLAIN else conditions.headers
        headers = (("Content-Type", body_type), *batch.fields, *_printed(tag), *more)
        exchange = yield from ask(
            Request("POST", self.calls.target, headers, body),
            RetrySafety.REPEATABLE,
            retries=self.calls.site.retries,
            on_retry=limit.check,
            still_safe=partial(self._may_resend, batch, limit),
            stream=self.calls.path,
        )
        was_lost = batch.was_lost or exchange.was_lost
        if exchange.response.status < 400:
            return self._stored(exchange, was_lost=was_lost)
        error = exchange.error()
        if was_lost and not isinstance(error, _AFTER_REPEATS):
            raise Indeterminate(
                "it is unknown whether the append was stored. An earlier attempt got no response."
                f" The server refused the repeat: {error.message}",
                status=exchange.response.status,
            )
        if isinstance(error, Refused) and _is_of_producer(error):
            return error
        raise error

    def _may_resend(self, batch: AppendBatch, limit: "_ResendLimit") -> Flow[bool]:
        """Return True if a repeat is in time, and the server would recognise it."""
        is_recognised = yield from self.calls.is_still_recognised(_NUMBERED, batch.known)
        return is_recognised and not limit.has_passed()

    def _stored(self, exchange: Exchanged, *, was_lost: bool) -> Receipt:
        """Return the receipt for a stored append, and record it in the lane's producer."""
        response = exchange.response
        receipt = self.calls.receipt(exchange.expect(200, 204), _NUMBERED)
        if receipt.mismatch:
            raise errors.PayloadMismatch(
                "the server has already stored different messages with this sequence",
                status=response.status,
            )
        if is_unguarded_append(response):
            self.calls.is_unguarded = True
            if was_lost:
                raise Indeterminate(
                    "the append is stored, but perhaps twice. An earlier attempt got no response,"
                    " and the stream does not recognise duplicates any more"
                )
        self.producer.confirm(self._clock())
        self.calls.end = receipt.next_offset or self.calls.end
        # A duplicate is an earlier attempt of this same call.
        return replace(receipt, duplicate=False)


class _ResendLimit:
    """The time until which a request is sent again (rule 4)."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lost_at: float | None = None

    def has_passed(self) -> bool:
        return self._lost_at is not None and self._clock() - self._lost_at > RESEND_SECONDS_MAX

    def check(self, error: ClientError, _: int) -> None:
        """Record a failed attempt. Raises Indeterminate if there is no time for another one."""
        if error.applied != errors.NO and self._lost_at is None:
            self._lost_at = self._clock()
        if self.has_passed():
            raise Indeterminate(
                f"no response within {RESEND_SECONDS_MAX:g} seconds: {error.message}"
            )


def _printed(tag: ProducerHeaders) -> tuple[tuple[str, str], ...]:
    return (
        ("Producer-Id", tag.producer_id),
        ("Producer-Epoch", str(tag.epoch)),
        ("Producer-Seq", str(tag.seq)),
        ("Producer-Expires", str(tag.expires)),
    )


def _is_bad_body(error: Refused) -> bool:
    is_of_one = error.code == "bad_body" or isinstance(error, errors.PartitionNotFound)
    return error.applied == errors.NO and (is_of_one or error.status == 413)


def _is_of_producer(error: Refused) -> bool:
    """Return True if the producer was refused, or its stream has as many as it may have."""
    if isinstance(error, errors.LimitReached):
        return error.facts.get("limit") in _PRODUCER_LIMITS
    return isinstance(error, errors.ProducerRefused)


# ---- all lanes of a client -----------------------------------------------------------------------


class AppendLanes:
    """The lanes of a client. `new_id` returns a random id."""

    def __init__(self, new_id: Callable[[], str], clock: Clock, *, is_retrying: bool) -> None:
        self.is_closed = False
        self._new_id = new_id
        self._clock = clock
        self._is_retrying = is_retrying
        self._lanes: dict[str, AppendLane] = {}
        self._held = HeldBytes()
        self._producer_id = _producer_id(new_id())

    @property
    def is_idle(self) -> bool:
        """True if no append waits or is in flight."""
        return all(lane.queue.is_idle for lane in self._lanes.values())

    @property
    def busy(self) -> list[AppendLane]:
        """The lanes in which an append waits or is in flight."""
        return [lane for lane in self._lanes.values() if not lane.queue.is_idle]

    def find(self, calls: StreamCalls) -> AppendLane | None:
        """Return the lane of a stream, or None if it has none yet."""
        return self._lanes.get(calls.target)

    def open_lane(self, calls: StreamCalls) -> AppendLane:
        """Return the lane of a stream. Raises ClientClosed after `close`."""
        self.check_open()
        lane = self._lanes.get(calls.target)
        if lane is None:
            if len(self._lanes) >= LANES_MAX:
                self._drop_idle()
            lane = AppendLane(calls, self._held, self._producer_id, self._clock)
            lane.is_retrying = self._is_retrying
            self._lanes[calls.target] = lane
        return lane

    def check_open(self) -> None:
        """Raise ClientClosed if `close` has been called."""
        if self.is_closed:
            raise ClientClosed("the client is closed")

    def _drop_idle(self) -> None:
        """Drop the older half of the idle lanes. Their producers expire."""
        idle = [target for target, lane in self._lanes.items() if lane.queue.is_idle]
        for target in idle[: (len(idle) + 1) // 2]:
            del self._lanes[target]
        # A dropped lane may be made again. Its producer must not use the same epoch.
        self._producer_id = _producer_id(self._new_id())

    def reset(self) -> None:
        """Forget everything, in a forked process or another event loop."""
        self._lanes = {}
        self._held = HeldBytes()
        self._producer_id = _producer_id(self._new_id())

    def retirements(self) -> list[RetireEntry]:
        """Return the producers that the server still has."""
        oldest = self._clock() - EXPIRES_SECONDS
        return [
            RetireEntry(lane.producer.id, lane.calls.place.path, lane.producer.epoch)
            for lane in self._lanes.values()
            if lane.calls.place.path is not None
            and lane.producer.stored_at is not None
            and lane.producer.stored_at > oldest
        ]


def _producer_id(random: str) -> str:
    return f"append-{random[:16]}"


def send_unshared(calls: StreamCalls, append: PendingAppend) -> Flow[Receipt]:
    """Send an append that has no producer and shares its request with no other.

    This is the close of a stream, or an append with another server than semel.
    """
    if not append.count:
        return calls.close(append.conditions)
    return calls.append(append.values, append.conditions, append.extras)
