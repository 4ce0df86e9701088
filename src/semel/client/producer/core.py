"""The idempotent producer as a pure object: no threads, no sockets, no clock.

`append` adds a message, `next_to_send` returns the next batch to send, `on_response` processes a
response, and `acks` has the outcomes of the batches, in order. The time is an argument, in seconds
of any monotonic clock.

These rules ensure that every message is stored exactly once:

1. A batch gets its sequence when it is first sent. From then on it is never renumbered, split or
   merged, and every attempt has the same bytes. (If the server reports that the first messages of a
   sparse batch are stored, they are removed; the other messages keep their sequences.)
2. Batches are sent in order, over one connection. When the connection is lost, all batches without
   a response are sent again, in order.
3. The second batch is sent after the response to the first one, because only that response shows
   that the epoch belongs to this instance. (After a claim this is certain from the start.) In
   sparse mode every batch waits for the response to the previous one, because the server would
   accept a batch although the previous one was refused.
4. After a refusal that allows a retry, nothing is sent until every batch in flight has a response.
   Batches that were sent after the refused one, or overtook it on the way, are refused because of
   the gap, and are sent again. A gap is fatal if the missing sequence was already confirmed when
   the batch was sent.
5. A fatal refusal ends the producer, because the server would refuse every later sequence.
6. The epoch is raised only at the start, and only if no attempt with the old epoch is
   indeterminate: a batch that may be stored must not be sent with another epoch. It is also raised
   if the first batch is reported as stored although this instance has not stored it: another
   instance has used its sequence.
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
    """The pause after failures. It doubles with every failure in a row; `jitter` shortens it."""

    def __init__(self, jitter: Jitter) -> None:
        self._jitter = jitter
        self._failures = 0
        self.last_error: ClientError | None = None
        self.ends_at = 0.0

    def begin(self, now: float, error: ClientError, at_least: float | None = None) -> None:
        """Begin a pause after a failure, not shorter than the server's Retry-After."""
        seconds = backoff_seconds(self._failures, _SECONDS_MIN, _SECONDS_MAX)
        self._failures += 1
        self.last_error = error
        self.ends_at = max(self.ends_at, now + max(self._jitter(seconds), at_least or 0.0))

    def reset(self) -> None:
        """Make the next pause short again, because a batch was stored."""
        self._failures = 0


_DONE: Final = frozenset({200, 201, 204})
_WORTH_A_RETRY: Final = frozenset({408, 425, 429, 500, 502, 503, 504, 507})
_AMBIGUOUS: Final = (
    "the first batch is stored, but it is unknown whether by this instance or an earlier one:"
    " an attempt got no response, and the server does not report the epochs it has stored"
)
_FOREIGN: Final = (
    "the server reports the batch as a duplicate, but this instance has not sent it before: it"
    " seems that an earlier instance used the same epoch; pass a higher epoch= after each restart"
)
_NO_SESSIONS: Final = (
    "the server does not support Producer-Session; pass epoch= or auto_claim=True to producer()"
)


def _no_jitter(seconds: float) -> float:
    return seconds


class ProducerCore:
    """One producer of one stream. `encode` encodes messages as a body, `jitter` shortens pauses.

    `is_counting`: the server is semel, whose offsets count messages.
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
        self._unsettled: deque[ProducerBatch] = deque()  # with sequences, in order
        self._next_seq = 0
        self._stored_seq = -1  # sparse mode: the last one that earlier instances have stored
        self._is_stalled = False  # rule 4: nothing is sent until all responses are received
        self._is_idle = True  # the sender waits for `append` to return True
        self.acks = Acknowledgements()
        self.failure: ClientError | None = None
        self.in_flight_count = 0

    @property
    def epoch(self) -> int | None:
        """The epoch of this instance; None until the server has assigned one."""
        return self._identity.epoch

    @property
    def pending_count(self) -> int:
        """The number of messages that are neither stored nor given up.

        They are counted on each access. Ctrl-C could interrupt `append` between adding a message
        and increasing a counter, which would then be wrong.
        """
        return sum(batch.count for batch in self._unsettled) + self._builder.count

    @property
    def appended_count(self) -> int:
        """The number of messages that were appended since the producer was created."""
        return self.acks.settled_count + self.pending_count

    # ---- called by the owner ---------------------------------------------------------------------

    def resume(self, epoch: int | None, last_seq: int | None, cursor: str | None) -> None:
        """Set the stored state of this producer, before the first message.

        A sparse producer skips the messages that are stored. A dense producer starts again at
        sequence 0, and only reports these values.
        """
        self._identity.resume(epoch)
        self._set_past(last_seq, cursor)

    def take_over(self, epoch: int, last_seq: int | None, cursor: str | None) -> None:
        """Set the epoch and the stored state that a claim has returned; see `resume`."""
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
        """Add a message; return whether the sender must be woken."""
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
        """Send the gathered messages without waiting for the linger time."""
        self._builder.hurry()

    # ---- called by the sender --------------------------------------------------------------------

    def is_ready(self, now: float) -> bool:
        """Return whether a batch can be sent now. The sender needs a connection for it."""
        wake_at = self.wake_at()
        is_ready = wake_at is not None and wake_at <= now
        self._is_idle = not (is_ready or self._is_full)
        return is_ready

    def next_to_send(self, now: float) -> ProducerBatch | None:
        """Return the batch to send next, or None if none can be sent now."""
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
        """Return the producer headers of a batch that `next_to_send` has just returned."""
        return self._identity.headers(batch)

    def wake_at(self) -> float | None:
        """Return the time at which a batch can be sent; None if that depends on another event."""
        if self._is_full:
            return None
        due_at = self._backoff.ends_at if self._retry() is not None else self._builder.due_at()
        return None if due_at is None else max(due_at, self._backoff.ends_at)

    def expires_at(self) -> float | None:
        """Return the time at which the oldest message expires; None if there is no message."""
        born = self._unsettled[0].born if self._unsettled else self._builder.born
        return None if born is None else born + self._settings.delivery_timeout

    def tick(self, now: float) -> None:
        """Fail the producer if a message has waited for longer than the delivery timeout."""
        expires_at = self.expires_at()
        if expires_at is not None and now >= expires_at:
            self._fail(self._timeout_error())

    def on_response(
        self, batch: ProducerBatch, status: int, headers: Mapping[str, str], body: bytes, now: float
    ) -> None:
        """Process the response to a batch that is in flight."""
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
        """Mark the batches in flight as indeterminate, to be sent again after a pause."""
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
        """End the producer: nothing more is sent, and batches without an acknowledgement fail."""
        if self.failure is None:
            self._fail(error)

    # ---- choosing the next batch -----------------------------------------------------------------

    @property
    def _is_full(self) -> bool:
        """Whether nothing can be sent before the next response."""
        if self.failure is not None or self._is_stalled:
            return True
        is_alone = self._is_sparse or not self._identity.is_established  # rule 3
        return self.in_flight_count >= (1 if is_alone else self._settings.max_in_flight)

    def _retry(self) -> ProducerBatch | None:
        """Return the first batch that must be sent again, or None."""
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
        is_ambiguous = self._identity.is_ambiguous(batch)  # before `confirm` changes the identity
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
        """Return the offset of the first of `count` messages; None if it cannot be calculated."""
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
        """Return whether the missing sequence is a batch of this instance without a response."""
        if not isinstance(error, SequenceGap):
            return False
        first = batch.first_unsettled
        assert first is not None
        assert batch.seq is not None
        return first < batch.seq and (error.expected is None or error.expected >= first)

    def _can_send_again(self, error: ClientError, batch: ProducerBatch) -> bool:
        """Return whether the batch can be sent again, with fewer messages or a higher epoch."""
        if isinstance(error, BatchOverlap):
            return self._remove_stored(batch, error.last_seq)
        return self._identity.claim(error, batch)

    def _remove_stored(self, batch: ProducerBatch, last_seq: int | None) -> bool:
        """Remove the stored messages from a sparse batch. Return whether there were any."""
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
            and error.code == "bad_request"  # not semel, which has a code for each cause
        )
        return ProtocolError(_NO_SESSIONS) if is_unknown_session else error

    # ---- failure ---------------------------------------------------------------------------------

    def _timeout_error(self) -> ClientError:
        oldest = self._unsettled[0] if self._unsettled else None
        error = self._backoff.last_error
        reason = "" if error is None else f": {error}"
        message = f"not delivered within {self._settings.delivery_timeout:g} seconds{reason}"
        if oldest is not None and (oldest.is_indeterminate or oldest.is_in_flight):
            return Indeterminate(message)
        return Unavailable(message)

    def _fail(self, error: ClientError, refused: ProducerBatch | None = None) -> None:
        """Fail the producer and settle every batch. `refused`: the batch that caused it."""
        self.failure = error
        if refused is not None and isinstance(error, ProducerFenced):
            # A proxy may have sent the request twice. The first copy may have been stored before
            # the producer was fenced, and this may be the response to the second copy.
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
    """Return whether no later batch can be stored, because this sequence stays missing."""
    is_definite = isinstance(error, Refused) and error.applied == NO
    return is_definite and not refused.is_indeterminate and not isinstance(error, PayloadMismatch)
