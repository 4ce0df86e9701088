"""The idempotent producer as an object that uses no threads, no sockets and no clock.

The time is passed as an argument, in seconds of any monotonic clock.

These rules ensure that every message is stored exactly once:

1. Every attempt to send a batch has the same bytes and the same sequence. In dense mode, the batch
   gets its sequence with the first attempt. In sparse mode, the caller passes the sequences, and
   messages that the server reports as stored are taken out of the batch.
2. Batches are sent in order, over one connection. When the connection is lost, all batches without
   a response are sent again, in order.
3. The second batch waits for the response to the first batch, because only that response shows that
   the epoch belongs to this instance. After a claim, the second batch does not wait. In sparse
   mode, every batch waits for the response to the previous batch, because the server would accept a
   batch even if the previous batch was refused.
4. After a refusal that allows a retry, nothing is sent until every batch in flight has a response.
   Then all refused batches are sent again.
5. A fatal refusal ends the producer, because the server would refuse every later sequence.
6. The producer moves to a higher epoch only at the start, and only if no batch can have been
   stored with the old epoch. With the new epoch, such a batch would be stored a second time.
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from semel.client.errors import (
    NO,
    UNKNOWN,
    BatchOverlap,
    ClientError,
    Indeterminate,
    PayloadMismatch,
    ProducerFenced,
    ProtocolError,
    Refused,
    SequenceGap,
    Unavailable,
)
from semel.client.flows import backoff_seconds, error_of
from semel.client.producer.batches import (
    Acknowledgements,
    BatchAck,
    BatchBuilder,
    Encode,
    ProducerBatch,
    ProducerSettings,
)
from semel.client.producer.opening import ProducerIdentity
from semel.client.values import Extra
from semel.model.commands import SPARSE
from semel.model.offsets import parse_offset, print_offset

Jitter = Callable[[float], float]

_SECONDS_MIN: Final = 0.05
_SECONDS_MAX: Final = 5.0


class Backoff:
    """The pause after a failure. It doubles with each consecutive failure, up to five seconds.

    `jitter` shortens each pause by a random amount.
    """

    def __init__(self, jitter: Jitter) -> None:
        self._jitter = jitter
        self._failures = 0
        self.last_error: ClientError | None = None
        self.ends_at = 0.0

    def begin(self, now: float, error: ClientError, at_least: float | None = None) -> None:
        """Begin a pause after a failure. The pause is at least `at_least` seconds long."""
        seconds = backoff_seconds(self._failures, _SECONDS_MIN, _SECONDS_MAX)
        self._failures += 1
        self.last_error = error
        self.ends_at = max(self.ends_at, now + max(self._jitter(seconds), at_least or 0.0))

    def reset(self) -> None:
        """Make the next pause short again. Called when a batch was stored."""
        self._failures = 0


_DONE: Final = frozenset({200, 201, 204})
_WORTH_A_RETRY: Final = frozenset({408, 425, 429, 500, 502, 503, 504, 507})
_AMBIGUOUS: Final = (
    "a request got no response, and the server does not report the epoch of stored batches;"
    " it is therefore unknown whether the first batch was stored by this instance or an earlier one"
)
_FOREIGN: Final = (
    "an earlier instance has probably used the same epoch, because the server reports a new batch"
    " as a duplicate; pass a higher epoch= after each restart"
)
_NO_SESSIONS: Final = (
    "the server does not support producer sessions; pass epoch= or auto_claim=True to producer()"
)


def _no_jitter(seconds: float) -> float:
    return seconds


class ProducerCore:
    """The state of one producer that writes to one stream.

    `encode` encodes messages as a request body. `jitter` shortens the pauses between retries.
    `is_counting` is True if the server's offsets count messages, as semel's offsets do.
    """

    def __init__(
        self,
        settings: ProducerSettings,
        encode: Encode,
        jitter: Jitter = _no_jitter,
        *,
        is_counting: bool = False,
    ) -> None:
        self._settings = settings
        self._encode = encode
        self._is_counting = is_counting
        self._backoff = Backoff(jitter)
        self._is_sparse = settings.mode == SPARSE
        self._identity = ProducerIdentity(settings)
        self._builder = BatchBuilder(settings)
        self._unsettled: deque[ProducerBatch] = deque()  # batches that have sequences, in order
        self._next_seq = 0
        self._stored_seq = -1  # sparse mode: the last sequence that earlier instances have stored
        self._is_stalled = False  # rule 4: nothing is sent until all responses are received
        self._is_idle = True  # the sender sleeps until `append` returns True
        self.acks = Acknowledgements()
        self.failure: ClientError | None = None
        self.in_flight_count = 0

    @property
    def epoch(self) -> int | None:
        """The epoch of this instance, or None until the server has assigned one."""
        return self._identity.epoch

    @property
    def pending_count(self) -> int:
        """The number of messages that are neither stored nor abandoned.

        They are counted on each access, because Ctrl-C during `append` could make a counter wrong.
        """
        return sum(batch.count for batch in self._unsettled) + self._builder.count

    @property
    def appended_count(self) -> int:
        """The number of messages appended since the producer was created."""
        return self.acks.settled_count + self.pending_count

    # ---- called by the owner ---------------------------------------------------------------------

    def resume(self, epoch: int | None, last_seq: int | None, cursor: str | None) -> None:
        """Record the state that the server has stored for this producer. Call this before `append`.

        In sparse mode (the caller numbers the messages), `append` then skips messages up to
        `last_seq`, because they are stored. In dense mode, sequences start again at 0.
        """
        self._identity.resume(epoch)
        self._set_past(last_seq, cursor)

    def take_over(self, epoch: int, last_seq: int | None, cursor: str | None) -> None:
        """Set the epoch and the stored state that a claim has returned. Call this before `append`.

        In sparse mode, `append` then skips messages up to `last_seq`, because they are stored.
        """
        self._identity.take_over(epoch)
        self._set_past(last_seq, cursor)

    def _set_past(self, last_seq: int | None, cursor: str | None) -> None:
        self.acks.last_seq = last_seq
        self.acks.cursor = cursor
        if self._is_sparse and last_seq is not None:
            self._stored_seq = last_seq

    def append(
        self,
        raw: bytes,
        now: float,
        cursor: str | None = None,
        seq: int | None = None,
        extra: Extra | None = None,
    ) -> bool:
        """Add a message. Return True if the caller must wake the sender."""
        if seq is not None and 0 <= seq <= self._stored_seq:
            self.acks.stats.messages_skipped += 1
            return False
        is_due_earlier = self._builder.append(raw, now, cursor, seq, extra)
        self.acks.add(len(raw) if extra is None else len(raw) + extra.size)
        if is_due_earlier and self._is_idle:
            self._is_idle = False
            return True
        return False

    def hurry(self) -> None:
        """Make the gathered messages ready to be sent, without the linger time."""
        self._builder.hurry()

    # ---- called by the sender --------------------------------------------------------------------

    def is_ready(self, now: float) -> bool:
        """Return True if a batch could be sent now over an open connection."""
        wake_at = self.wake_at()
        is_ready = wake_at is not None and wake_at <= now
        self._is_idle = not (is_ready or self._is_full)
        return is_ready

    def next_to_send(self, now: float) -> ProducerBatch | None:
        """Return the batch to send next, or None if no batch can be sent now."""
        if not self.is_ready(now):
            return None
        batch = self._retry()
        if batch is None:
            batch = self._first_try()
        else:
            self.acks.stats.retries += 1
        batch.first_unsettled = self._unsettled[0].seq
        batch.is_in_flight = True
        self.in_flight_count += 1
        return batch

    def headers(self, batch: ProducerBatch) -> list[tuple[str, str]]:
        """Return the producer headers for a batch that `next_to_send` has just returned."""
        return self._identity.headers(batch)

    def wake_at(self) -> float | None:
        """Return the time at which a batch can be sent.

        Return None if a response or a new message must come first, or if the producer has failed.
        """
        if self._is_full:
            return None
        due_at = self._backoff.ends_at if self._retry() is not None else self._builder.due_at()
        return None if due_at is None else max(due_at, self._backoff.ends_at)

    def expires_at(self) -> float | None:
        """Return the time at which the oldest pending message reaches its delivery timeout.

        Return None if no message is pending.
        """
        born = self._unsettled[0].born if self._unsettled else self._builder.born
        return None if born is None else born + self._settings.delivery_timeout

    def tick(self, now: float) -> None:
        """Fail the producer if the oldest pending message has reached its delivery timeout."""
        expires_at = self.expires_at()
        if expires_at is not None and now >= expires_at:
            self._fail(self._timeout_error())

    def on_response(
        self, batch: ProducerBatch, status: int, headers: Mapping[str, str], body: bytes, now: float
    ) -> None:
        """Process the server's response to a batch that is in flight."""
        assert batch.is_in_flight
        batch.is_in_flight = False
        self.in_flight_count -= 1
        if self.failure is not None:
            return
        if status in _DONE:
            self._accepted(batch, status, headers)
        else:
            self._refused(batch, status, headers, body, now)
        if self._is_stalled and not self.in_flight_count:
            self._is_stalled = False

    def connection_lost(self, now: float, error: ClientError) -> None:
        """Mark the batches in flight as indeterminate. They are sent again after a pause."""
        if not self.in_flight_count:
            return
        for batch in self._unsettled:
            if batch.is_in_flight:
                batch.is_in_flight = False
                batch.is_indeterminate = True
        self.in_flight_count = 0
        self._is_stalled = False
        self._backoff.begin(now, error)

    def connect_failed(self, now: float, error: ClientError) -> None:
        """Begin a pause before the next attempt to connect."""
        self._backoff.begin(now, error)

    def fail(self, error: ClientError) -> None:
        """End the producer. Nothing more is sent, and all batches that are not stored fail."""
        if self.failure is None:
            self._fail(error)

    # ---- choosing the next batch -----------------------------------------------------------------

    @property
    def _is_full(self) -> bool:
        """True if nothing can be sent: the producer has failed or must wait for a response."""
        if self.failure is not None or self._is_stalled:
            return True
        is_alone = self._is_sparse or not self._identity.is_established  # rule 3
        return self.in_flight_count >= (1 if is_alone else self._settings.max_in_flight)

    def _retry(self) -> ProducerBatch | None:
        """Return the first batch that must be sent again, or None if there is none."""
        if len(self._unsettled) > self.in_flight_count:
            for batch in self._unsettled:
                if not batch.is_in_flight and batch.ack is None:
                    return batch
        return None

    def _first_try(self) -> ProducerBatch:
        batch = self._builder.take()
        if not self._is_sparse:
            batch.seq = batch.last_seq = self._next_seq  # rule 1
            self._next_seq += 1
        batch.body = self._encode(batch.messages, batch.extras)
        self._unsettled.append(batch)
        return batch

    # ---- responses -------------------------------------------------------------------------------

    def _accepted(self, batch: ProducerBatch, status: int, headers: Mapping[str, str]) -> None:
        is_duplicate = status == 204
        # Both must be computed before `confirm` changes the identity.
        is_ambiguous = self._identity.is_ambiguous(batch)
        is_foreign = self._identity.is_foreign(headers, batch)
        if is_duplicate and self._identity.reclaim(headers, batch):
            return
        error = self._identity.confirm(headers, is_duplicate=is_duplicate)
        if error is None and is_duplicate and is_ambiguous:
            error = Indeterminate(_AMBIGUOUS)
        if error is None and is_duplicate and is_foreign:
            error = Indeterminate(_FOREIGN)
        if error is not None:
            batch.is_indeterminate |= error.applied == UNKNOWN
            self._fail(error, batch)
            return
        self._backoff.reset()
        assert batch.last_seq is not None
        next_offset = headers.get("stream-next-offset")
        batch.ack = BatchAck(
            batch.count,
            batch.last_seq,
            next_offset,
            is_duplicate,
            batch.cursor,
            self._first_offset(next_offset, batch.count),
        )
        while self._unsettled and (ack := self._unsettled[0].ack) is not None:
            self.acks.acknowledge(ack, self._unsettled.popleft())

    def _first_offset(self, next_offset: str | None, count: int) -> str | None:
        """Return the offset of a batch's first message, or None if it cannot be calculated.

        The batch has `count` messages, and `next_offset` is the offset after the last message.
        """
        end = parse_offset(next_offset) if next_offset is not None and self._is_counting else None
        return None if end is None or end < count else print_offset(end - count)

    def _refused(
        self, batch: ProducerBatch, status: int, headers: Mapping[str, str], body: bytes, now: float
    ) -> None:
        error = error_of(status, headers, body)
        batch.is_indeterminate |= error.applied == UNKNOWN
        if status in _WORTH_A_RETRY:
            self._is_stalled = True
            self._backoff.begin(now, error, error.retry_after)
        elif self._is_own_gap(error, batch):
            self._is_stalled = True
        elif not self._can_send_again(error, batch):
            self._fail(self._with_hint(error), batch)

    def _is_own_gap(self, error: ClientError, batch: ProducerBatch) -> bool:
        """Return True if `error` is a sequence gap that a retry of earlier batches will close.

        The server reports a gap if it refused an earlier batch or has not received it yet. If the
        missing sequence was already confirmed when `batch` was sent, no retry can close the gap.
        """
        if not isinstance(error, SequenceGap):
            return False
        first = batch.first_unsettled
        assert first is not None
        assert batch.seq is not None
        return first < batch.seq and (error.expected is None or error.expected >= first)

    def _can_send_again(self, error: ClientError, batch: ProducerBatch) -> bool:
        """Prepare a refused batch to be sent again. Return False if that is not possible.

        After BatchOverlap, take the stored messages out of `batch`. After any other error, move to
        a higher epoch if this is allowed.
        """
        if isinstance(error, BatchOverlap):
            return self._remove_stored(batch, error.last_seq)
        return self._identity.claim(error, batch)

    def _remove_stored(self, batch: ProducerBatch, last_seq: int | None) -> bool:
        """Take the messages up to `last_seq` out of a sparse batch, and record them as stored.

        Return False if the batch has no such messages, or if it is not sparse.
        """
        if not self._is_sparse or last_seq is None or last_seq < batch.seqs[0]:
            return False
        stored = batch.split_off(sum(seq <= last_seq for seq in batch.seqs))
        rest = batch.count
        ack = BatchAck(stored.count, last_seq, None, True, None if rest else batch.cursor)
        if rest:
            batch.body = self._encode(batch.messages, batch.extras)
        else:
            self._unsettled.remove(batch)
        self.acks.acknowledge(ack, stored)
        return True

    def _with_hint(self, error: ClientError) -> ClientError:
        is_unknown_session = (
            self._settings.session is not None
            and not self._settings.is_claiming
            and not self._identity.is_established
            and isinstance(error, Refused)
            and error.status == 400
            and error.code == "bad_request"  # semel sends a more specific code
        )
        return ProtocolError(_NO_SESSIONS) if is_unknown_session else error

    # ---- failure ---------------------------------------------------------------------------------

    def _timeout_error(self) -> ClientError:
        oldest = self._unsettled[0] if self._unsettled else None
        error = self._backoff.last_error
        reason = "" if error is None else f": {error}"
        message = (
            "a message was not delivered within"
            f" {self._settings.delivery_timeout:g} seconds{reason}"
        )
        if oldest is not None and (oldest.is_indeterminate or oldest.is_in_flight):
            return Indeterminate(message)
        return Unavailable(message)

    def _fail(self, error: ClientError, refused: ProducerBatch | None = None) -> None:
        """End the producer, and record for every batch whether it was stored or failed.

        `refused` is the batch whose response caused the failure, or None.
        """
        self.failure = error
        if refused is not None and isinstance(error, ProducerFenced):
            # A proxy sometimes sends a request twice. It is possible that the first copy was stored
            # before the producer was fenced, and that this is the response to the second copy.
            refused.is_indeterminate = True
        is_end = refused is not None and _is_end(error, refused)
        for batch in (*self._unsettled, *self._builder.take_all()):
            if batch.ack is not None:
                self.acks.acknowledge(batch.ack, batch)
                continue
            may_be_stored = batch.is_indeterminate or (batch.is_in_flight and not is_end)
            self.acks.give_up(batch, is_certain=not may_be_stored)
        self._unsettled.clear()


def _is_end(error: ClientError, refused: ProducerBatch) -> bool:
    """Return True if no later batch can be stored, because the sequence of `refused` is missing."""
    is_definite = isinstance(error, Refused) and error.applied == NO
    return is_definite and not refused.is_indeterminate and not isinstance(error, PayloadMismatch)
