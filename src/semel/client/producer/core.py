"""The idempotent producer as an object that uses no threads, no sockets and no clock.

The time is passed as an argument, in seconds of any monotonic clock.

These rules ensure that every message is stored exactly once:

1. Every attempt to send a batch has the same bytes and the same sequence. In dense mode, the batch
   gets its sequence with the first attempt. In sparse mode, each message gets its sequence when it
   is appended, and messages that the server reports as stored are taken out of the batch. This is
   not so for sequences that continue after the stored ones: such messages are new, so a report that
   another instance has stored their sequences ends the producer.
2. Batches are sent in order, over one connection. When the connection is lost, all batches without
   a response are sent again, in order. Before that, a HEAD request to a semel server must show
   that the stream recognises duplicates, and did so when the batches may have been stored.
3. The second batch waits for the response to the first batch, because only that response shows that
   the epoch belongs to this instance. After a claim, the second batch does not wait. In sparse
   mode, every batch waits for the response to the previous batch, because the server would accept a
   batch even if the previous batch was refused.
4. After a refusal that allows a retry, nothing is sent until every batch in flight has a response.
   Then all refused batches are sent again. If a function computes the token, the refusal of the
   token allows one retry of each batch.
5. A fatal refusal ends the producer, because the server would refuse every later sequence.
6. The producer moves to a higher epoch only at the start, and only if no batch can have been
   stored with the old epoch. With the new epoch, such a batch would be stored a second time. A
   producer whose id no other instance uses also moves after an idle time, because the server may
   have forgotten it. All its batches must be acknowledged, or certainly not stored.
7. The batch that closes the stream is the last one. If the server reports it as stored and the
   stream is still open, an earlier instance has stored the messages without closing the stream.
   Then a batch without messages closes the stream. If that batch is refused because the stream is
   already closed, the producer has nothing left to do.
8. A batch that is grouped for a topic with other partitions is encoded and sent again. The server
   compares them after it has looked for a repeat, so no attempt was stored.
"""

from collections import deque
from collections.abc import Mapping
from typing import Final

from semel.client.errors import (
    UNKNOWN,
    BatchOverlap,
    ClientError,
    PartitionsChanged,
    ProducerExpired,
    ProducerFenced,
    ProtocolError,
    StreamClosed,
)
from semel.client.extras import Extra
from semel.client.flows import error_of, is_lasting_limit
from semel.client.producer.batches import (
    WORTH_A_RETRY,
    Backoff,
    BatchBuilder,
    DedupCheck,
    Encode,
    Jitter,
    ProducerBatch,
    Regroup,
    is_end_of,
    is_own_gap,
    never_regroup,
    no_jitter,
)
from semel.client.producer.identity import ProducerIdentity
from semel.client.producer.outcomes import Acknowledgements, BatchAck, ack_of
from semel.client.producer.settings import RENEWAL_SECONDS, ProducerSettings
from semel.client.stream_calls import NO_KNOWLEDGE, DedupKnowledge
from semel.model.commands import SPARSE
from semel.wire.headers import read_flag

_DONE: Final = frozenset({200, 201, 204})
_NOT_CLOSED: Final = "the server has accepted the close of the stream, but the stream is open"


class ProducerCore:
    """The state of one producer that writes to one stream.

    `encode` encodes messages as a request body. `jitter` shortens the pauses between retries.
    `is_semel` is True if the server is semel: its offsets count messages, and a HEAD request shows
    whether the stream recognises duplicates. `known` is what is known about this now.
    `renews_token` is True if a function computes the token of each request. `regroup`: see rule 8.
    """

    def __init__(
        self,
        settings: ProducerSettings,
        encode: Encode,
        jitter: Jitter = no_jitter,
        *,
        is_semel: bool = False,
        stream: str | None = None,
        known: DedupKnowledge = NO_KNOWLEDGE,
        renews_token: bool = False,
        regroup: Regroup = never_regroup,
    ) -> None:
        self._settings = settings
        self._regroup = regroup
        self._renews_token = renews_token
        self._encode = encode
        self._is_semel = is_semel
        self._stream = stream
        self._backoff = Backoff(jitter)
        self._check = DedupCheck(
            self._backoff, known, is_semel=is_semel, stream=stream, renews_token=renews_token
        )
        self._is_sparse = settings.mode == SPARSE
        self._identity = ProducerIdentity(settings)
        self._builder = BatchBuilder(settings)
        self._unsettled: deque[ProducerBatch] = deque()  # batches that have sequences, in order
        self._next_seq = 0
        self._stored_seq = -1  # sparse mode: the last sequence that earlier instances have stored
        self._expiry: ProducerExpired | None = None  # rule 6: the server has forgotten the producer
        self._responded_at = 0.0
        self._is_stalled = False  # rule 4: nothing is sent until all responses are received
        self._is_idle = True  # the sender sleeps until `append` returns True
        self.acks = Acknowledgements()
        self.failure: ClientError | None = None
        self.in_flight_count = 0
        self.is_closing = False  # rule 7: no more messages can be appended
        self.is_used = False  # a batch was sent

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
        """The number of messages appended since the producer was created.

        A request to close the stream counts as one more.
        """
        pending = sum(batch.units for batch in self._unsettled) + self._builder.units
        return self.acks.settled_count + pending

    @property
    def is_established(self) -> bool:
        """True if the server has accepted the identity of this instance."""
        return self._identity.is_established

    # ---- called by the owner ---------------------------------------------------------------------

    def resume(self, epoch: int | None, last_seq: int | None, cursor: str | None) -> None:
        """Record the state that the server has stored for this producer. Call this before `append`.

        In sparse mode, `append` then skips messages up to `last_seq`, because they are stored. If
        neither the messages have sequences nor `initial_seq` is set, sequences continue after
        `last_seq`. In dense mode, sequences start again at 0.
        """
        self._identity.resume(epoch)
        self._set_past(last_seq, cursor)

    def take_over(self, epoch: int, last_seq: int | None, cursor: str | None) -> None:
        """Set the epoch and the stored state that a claim has returned. Call this before `append`.

        In sparse mode, `append` then skips messages up to `last_seq`, because they are stored.
        """
        self._identity.take_over(epoch)
        self._set_past(last_seq, cursor)

    def hold(self) -> bool:
        """Send nothing until `take_over`, `resume` or `release` is called.

        Return False, and hold nothing, if a batch was already sent.
        """
        if self.is_used:
            return False
        self._is_stalled = True
        return True

    def release(self) -> None:
        """End what `hold` has begun."""
        self._is_stalled = False

    def _set_past(self, last_seq: int | None, cursor: str | None) -> None:
        self.acks.last_seq = last_seq
        self.acks.cursor = cursor
        self._is_stalled = False
        if self._is_sparse and last_seq is not None:
            self._stored_seq = last_seq
            self._builder.continue_after(last_seq)

    def append(
        self,
        raw: bytes,
        now: float,
        cursor: str | None = None,
        seq: int | None = None,
        extra: Extra | None = None,
    ) -> bool:
        """Add a message. Return True if the caller must wake the sender."""
        if self._is_sparse:
            seq = self._builder.number(seq)
            if 0 <= seq <= self._stored_seq:
                self.acks.stats.messages_skipped += 1
                return False
        is_due_earlier = self._builder.append(raw, now, cursor, seq, extra)
        self.acks.add(len(raw) if extra is None else len(raw) + extra.size)
        if is_due_earlier and self._is_idle:
            self._is_idle = False
            return True
        return False

    def close_stream(self, now: float, cursor: str | None = None) -> None:
        """Make the last batch close the stream. Nothing can be appended after that."""
        self._builder.close_stream(now, cursor, self._stored_seq)
        self.is_closing = True
        self._is_idle = False

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
        if not self.is_ready(now) or self._check.is_due:
            return None
        batch = self._retry()
        if batch is None:
            if self._settings.expires is not None and not self._unsettled:
                self._renew_after_idleness(now)
            batch = self._first_try()
        else:
            self.acks.stats.retries += 1
        batch.first_unsettled = self._unsettled[0].seq
        batch.is_in_flight = True
        self.is_used = True
        self.in_flight_count += 1
        return batch

    def headers(self, batch: ProducerBatch) -> list[tuple[str, str]]:
        """Return the producer headers for a batch that `next_to_send` has just returned."""
        return self._identity.headers(batch)

    def starts_check(self, now: float) -> bool:
        """Return True if the caller must send a HEAD request now, and pass on its response."""
        return self.is_ready(now) and self._check.start()

    def on_check(self, status: int, headers: Mapping[str, str], body: bytes, now: float) -> None:
        """Process the response to the HEAD request that `starts_check` has asked for."""
        error = self._check.on_response(status, headers, body, now)
        if error is not None and self.failure is None:
            self._fail(error)

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
            oldest = self._unsettled[0] if self._unsettled else None
            self._fail(self._backoff.timeout_error(self._settings.delivery_timeout, oldest))

    def on_response(
        self, batch: ProducerBatch, status: int, headers: Mapping[str, str], body: bytes, now: float
    ) -> None:
        """Process the server's response to a batch that is in flight."""
        assert batch.is_in_flight
        batch.is_in_flight = False
        self.in_flight_count -= 1
        if self.failure is not None:
            return
        self._responded_at = now
        if status in _DONE:
            self._accepted(batch, status, headers, now)
        else:
            self._refused(batch, status, headers, body, now)
        if self._is_stalled and not self.in_flight_count:
            self._end_stall()

    def connection_lost(self, now: float, error: ClientError) -> None:
        """Mark the batches in flight as indeterminate. They are sent again after a pause."""
        if self._check.lost():
            self._backoff.begin(now, error)
        if not self.in_flight_count:
            return
        for batch in self._unsettled:
            if batch.is_in_flight:
                batch.is_in_flight = False
                batch.is_indeterminate = True
        self.in_flight_count = 0
        self._check.require()
        self._backoff.begin(now, error)
        self._end_stall()

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
        if self.failure is not None or self._is_stalled or self._check.is_in_flight:
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
        if batch.messages:
            batch.encode(self._encode)
        self._unsettled.append(batch)
        return batch

    # ---- moving to a higher epoch ----------------------------------------------------------------

    def _renew_after_idleness(self, now: float) -> None:
        is_idle = self._identity.is_established and now - self._responded_at >= RENEWAL_SECONDS
        if is_idle and self._is_semel and self._identity.renew():
            self._next_seq = 0

    def _end_stall(self) -> None:
        """Allow sending again. If the server has forgotten the producer, move to a higher epoch."""
        self._is_stalled = False
        expiry, self._expiry = self._expiry, None
        if expiry is None or self.failure is not None:
            return
        is_unsure = any(batch.is_indeterminate or batch.ack for batch in self._unsettled)
        if is_unsure or not self._identity.renew(expiry.current_epoch):
            self._fail(expiry)
        elif not self._is_sparse:
            for seq, batch in enumerate(self._unsettled):
                batch.seq = batch.last_seq = seq
            self._next_seq = len(self._unsettled)

    # ---- responses -------------------------------------------------------------------------------

    def _accepted(
        self, batch: ProducerBatch, status: int, headers: Mapping[str, str], now: float
    ) -> None:
        is_duplicate = status == 204 and bool(batch.messages)  # without messages it is always 204
        if is_duplicate and self._identity.reclaim(headers, batch):
            return
        has_new_seqs = self._builder.has_new_seqs
        error = self._identity.accept(
            headers, batch, is_duplicate=is_duplicate, has_new_seqs=has_new_seqs
        )
        is_open = batch.is_closing and not read_flag(headers, "stream-closed")
        if error is None and is_open and not batch.messages:
            error = ProtocolError(_NOT_CLOSED)
        if error is not None:
            batch.is_indeterminate |= error.applied == UNKNOWN
            self._fail(error, batch)
            return
        self._backoff.reset()
        if is_open:
            self._close_later(batch, now)
        next_offset = headers.get("stream-next-offset")
        batch.ack = ack_of(
            batch, next_offset, is_duplicate=is_duplicate, is_counting=self._is_semel
        )
        self._settle()

    def _close_later(self, batch: ProducerBatch, now: float) -> None:
        """Close the stream with a batch of its own, because `batch` has not closed it (rule 7)."""
        batch.is_closing = False
        self.close_stream(now)

    def _settle(self) -> None:
        while self._unsettled and (ack := self._unsettled[0].ack) is not None:
            self._check.note(ack)
            self.acks.acknowledge(ack, self._unsettled.popleft())

    def _refused(
        self, batch: ProducerBatch, status: int, headers: Mapping[str, str], body: bytes, now: float
    ) -> None:
        error = error_of(status, headers, body, self._stream)
        batch.is_indeterminate |= error.applied == UNKNOWN
        if status in WORTH_A_RETRY and not is_lasting_limit(status, headers):
            self._is_stalled = True
            self._backoff.begin(now, error, error.retry_after)
            if error.applied == UNKNOWN:
                self._check.require()
        elif self._renews_token and batch.may_renew_token(error):
            batch.has_renewed_token = self._is_stalled = True
        elif is_own_gap(error, batch):
            self._is_stalled = True
        elif isinstance(error, PartitionsChanged) and self._regroup(error, batch.body):
            batch.is_indeterminate, self._is_stalled = False, True  # rule 8
            batch.encode(self._encode)
        elif self._is_renewable(error, batch):
            assert isinstance(error, ProducerExpired)
            self._is_stalled, self._expiry = True, error
        elif isinstance(error, StreamClosed) and self._is_lone_close(batch):
            batch.ack = ack_of(batch, error.next_offset, is_duplicate=True)
            self._settle()
        elif not self._can_send_again(error, batch, now):
            self._fail(self._identity.explained(error), batch)

    def _is_renewable(self, error: ClientError, batch: ProducerBatch) -> bool:
        is_own = self._settings.expires is not None and not batch.is_indeterminate
        return is_own and isinstance(error, ProducerExpired)

    def _is_lone_close(self, batch: ProducerBatch) -> bool:
        """Return True if `batch` only closes the stream, and everything before it is stored."""
        return batch.is_closing and not batch.messages and batch is self._unsettled[0]

    def _can_send_again(self, error: ClientError, batch: ProducerBatch, now: float) -> bool:
        """Prepare a refused batch to be sent again. Return False if that is not possible.

        After BatchOverlap, take the stored messages out of `batch`. After any other error, move to
        a higher epoch if this is allowed.
        """
        if isinstance(error, BatchOverlap):
            return self._remove_stored(batch, error.last_seq, now)
        return self._identity.claim(error, batch)

    def _remove_stored(self, batch: ProducerBatch, last_seq: int | None, now: float) -> bool:
        """Take the messages up to `last_seq` out of a sparse batch, and record them as stored.

        Return False if the batch has no such messages, or if it is not sparse.
        """
        if not (self._is_sparse and batch.messages) or last_seq is None:
            return False
        if last_seq < batch.seqs[0] or self._builder.has_new_seqs:
            return False
        stored = batch.split_off(sum(seq <= last_seq for seq in batch.seqs))
        rest = batch.count
        ack = BatchAck(stored.count, last_seq, None, True, None if rest else batch.cursor)
        if rest:
            batch.encode(self._encode)
        else:
            self._unsettled.remove(batch)
            if batch.is_closing:
                self._close_later(batch, now)
        self.acks.acknowledge(ack, stored)
        return True

    # ---- failure ---------------------------------------------------------------------------------

    def _fail(self, error: ClientError, refused: ProducerBatch | None = None) -> None:
        """End the producer, and record for every batch whether it was stored or failed.

        `refused` is the batch whose response caused the failure, or None.
        """
        self.failure = error
        if refused is not None and isinstance(error, ProducerFenced):
            # A proxy sometimes sends a request twice. It is possible that the first copy was stored
            # before the producer was fenced, and that this is the response to the second copy.
            refused.is_indeterminate = True
        is_end = refused is not None and is_end_of(error, refused)
        for batch in (*self._unsettled, *self._builder.take_all()):
            if batch.ack is not None:
                self.acks.acknowledge(batch.ack, batch)
                continue
            may_be_stored = batch.is_indeterminate or (batch.is_in_flight and not is_end)
            self.acks.give_up(batch, is_certain=not may_be_stored)
        self._unsettled.clear()
