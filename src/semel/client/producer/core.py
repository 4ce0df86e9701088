"""The idempotent producer as a pure object: no threads, no sockets, no clock.

Messages go in by `append`, batches to write come out of `next_to_send`, answers go in by
`answered`, and what became of each batch comes out of the ledger, in order. Time is an
argument, in seconds of any clock that does not go back.

The rules, all for the sake of exactly once:

1. A batch gets its number when it is first sent. From then on it is never renumbered, split or
   merged, and every attempt has the same bytes. (A sparse range of which the server says that its
   first part is stored is cut there: its messages keep their numbers.)
2. Batches are sent in order, over one connection. When it breaks, all that were not answered are
   sent again, in order.
3. Nothing is sent behind the first batch until it is answered: only then is the epoch known to be
   ours. (A claim tells before.) In sparse mode this holds for every batch, for the server would
   take the next one though the one before was refused.
4. After a refusal worth a retry nothing is sent until all that is in flight is answered. What was
   sent behind it comes back as a gap, and so does what overtook it on the way. A gap below what was
   confirmed when the batch was sent is fatal.
5. A fatal refusal ends the producer: a later number could not be accepted.
6. The epoch is raised only at the start, and only if no attempt under the old one is in doubt:
   what may be stored must not be sent under another epoch. A first batch that counts as stored
   though we did not store it is sent under a higher epoch, too: its number was another's.
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
from semel.client.flows import backoff_seconds
from semel.client.producer.batches import (
    Acknowledgements,
    BatchAck,
    Encode,
    ProducerBatch,
    ProducerSettings,
)
from semel.client.producer.gather import BatchBuilder
from semel.client.producer.opening import ProducerIdentity
from semel.client.refusals import error_of, retry_after_of
from semel.client.values import Extra
from semel.model.commands import SPARSE
from semel.model.offsets import parse_offset, print_offset

# ---- producer pauses -----------------------------------------------------------------------------
# How long to wait before trying again.


Jitter = Callable[[float], float]

_SECONDS_MIN: Final = 0.05
_SECONDS_MAX: Final = 5.0


class Backoff:
    """Pauses that double with every trouble in a row, shortened by `jitter`."""

    def __init__(self, jitter: Jitter) -> None:
        self._jitter = jitter
        self._troubles = 0
        self.trouble: ClientError | None = None  # the last one
        self.ends_at = 0.0

    def begin(self, now: float, trouble: ClientError, at_least: float | None = None) -> None:
        """Wait after a trouble, and not less than the server asked for."""
        seconds = backoff_seconds(self._troubles, _SECONDS_MIN, _SECONDS_MAX)
        self._troubles += 1
        self.trouble = trouble
        self.ends_at = max(self.ends_at, now + max(self._jitter(seconds), at_least or 0.0))

    def forget(self) -> None:
        """Begin anew: something went well."""
        self._troubles = 0


# ---- producer core -------------------------------------------------------------------------------


_DONE: Final = frozenset({200, 201, 204})
_WORTH_A_RETRY: Final = frozenset({408, 425, 429, 500, 502, 503, 504, 507})
_AMBIGUOUS: Final = (
    "the first batch is stored, but whether by this instance or an earlier one cannot be told:"
    " an attempt was lost, and the server does not tell the epochs it knows"
)
_FOREIGN: Final = (
    "the batch counts as stored, but this instance has sent it only now: an earlier one used the"
    " same epoch, it seems; pass a higher epoch= after each restart"
)
_NO_SESSIONS: Final = (
    "the server does not know Producer-Session; pass epoch= or auto_claim=True to producer()"
)


def _no_jitter(seconds: float) -> float:
    return seconds


class ProducerCore:
    """One producer of one stream. `encode` makes a body of messages, `jitter` shortens pauses.

    `is_counting`: the server's offsets are semel's, which count messages.
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
        self._pauses = Backoff(jitter)
        self._is_sparse = settings.mode == SPARSE
        self._identity = ProducerIdentity(settings)
        self._gatherer = BatchBuilder(settings)
        self._unsettled: deque[ProducerBatch] = deque()  # numbered, in order
        self._next_seq = 0
        self._stored_seq = -1  # sparse: what the server had before we began
        self._is_stalled = False  # rule 4
        self._is_idle = True  # the sender waits for news from `append`
        self.ledger = Acknowledgements()
        self.failure: ClientError | None = None
        self.in_flight_count = 0

    @property
    def epoch(self) -> int | None:
        """The epoch we write under; None until the server has given us one."""
        return self._identity.epoch

    @property
    def pending_count(self) -> int:
        """How many messages are not settled.

        They are counted where they are: to keep a number would be a second step, and Ctrl-C may
        come in between.
        """
        return sum(batch.count for batch in self._unsettled) + self._gatherer.count

    @property
    def appended_count(self) -> int:
        """How many messages were ever taken."""
        return self.ledger.settled_count + self.pending_count

    # ---- what the caller does --------------------------------------------------------------------

    def resume(self, epoch: int | None, last_seq: int | None, cursor: str | None) -> None:
        """Take over what the server knows of this producer, before the first message.

        A sparse producer skips the messages it has; a dense one begins anew, and only tells.
        """
        self._identity.resume(epoch)
        self._note_past(last_seq, cursor)

    def take_over(self, epoch: int, last_seq: int | None, cursor: str | None) -> None:
        """Begin with the epoch of a claim; the rest as `resume` does."""
        self._identity.take_over(epoch)
        self._note_past(last_seq, cursor)

    def _note_past(self, last_seq: int | None, cursor: str | None) -> None:
        self.ledger.last_seq = last_seq
        self.ledger.cursor = cursor
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
        """Take a message; True if whoever sends should look."""
        if seq is not None and 0 <= seq <= self._stored_seq:
            self.ledger.stats.messages_skipped += 1
            return False
        is_news = self._gatherer.append(raw, now, cursor, seq, extra)
        self.ledger.take(len(raw) if extra is None else len(raw) + extra.size)
        if is_news and self._is_idle:
            self._is_idle = False
            return True
        return False

    def hurry(self) -> None:
        """Let what has been gathered go without lingering."""
        self._gatherer.hurry()

    # ---- what the sender does --------------------------------------------------------------------

    def is_ready(self, now: float) -> bool:
        """Tell whether there is something to send, and so a need for a connection."""
        wake_at = self.wake_at()
        is_ready = wake_at is not None and wake_at <= now
        self._is_idle = not (is_ready or self._is_full)
        return is_ready

    def next_to_send(self, now: float) -> ProducerBatch | None:
        """Choose what to write to the connection next; None if there is nothing to write now."""
        if not self.is_ready(now):
            return None
        batch = self._retry()
        if batch is None:
            batch = self._first_try()
        else:
            self.ledger.stats.retries += 1
        batch.first_unsettled = self._unsettled[0].seq
        batch.is_in_flight = True
        self.in_flight_count += 1
        return batch

    def headers(self, batch: ProducerBatch) -> list[tuple[str, str]]:
        """Tag a batch, which has just been chosen."""
        return self._identity.headers(batch)

    def wake_at(self) -> float | None:
        """When there will be something to send though nothing has happened; None if never."""
        if self._is_full:
            return None
        due_at = self._pauses.ends_at if self._retry() is not None else self._gatherer.due_at()
        return None if due_at is None else max(due_at, self._pauses.ends_at)

    def expires_at(self) -> float | None:
        """When the oldest message will be given up; None if there is none."""
        if self._unsettled:
            return self._unsettled[0].born + self._settings.delivery_timeout
        if self._gatherer.is_empty:
            return None
        return self._gatherer.born + self._settings.delivery_timeout

    def tick(self, now: float) -> None:
        """Give up on what has waited for longer than the delivery timeout."""
        expires_at = self.expires_at()
        if expires_at is not None and now >= expires_at:
            self._fail(self._timeout_error())

    def answered(
        self, batch: ProducerBatch, status: int, headers: Mapping[str, str], body: bytes, now: float
    ) -> None:
        """Take the answer to a batch that is in flight."""
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
        """Take note that no more answers will come to what is in flight."""
        if not self.in_flight_count:
            return
        for batch in self._unsettled:
            if batch.is_in_flight:
                batch.is_in_flight = False
                batch.is_doubtful = True
        self.in_flight_count = 0
        self._is_stalled = False
        self._pauses.begin(now, error)

    def connect_failed(self, now: float, error: ClientError) -> None:
        """Take note that there is no connection."""
        self._pauses.begin(now, error)

    def fail(self, error: ClientError) -> None:
        """End the producer: nothing is sent any more, and what is not settled has failed."""
        if self.failure is None:
            self._fail(error)

    # ---- choosing --------------------------------------------------------------------------------

    @property
    def _room(self) -> int:
        is_alone = self._is_sparse or not self._identity.is_established  # rule 3
        return 1 if is_alone else self._settings.max_in_flight

    @property
    def _is_full(self) -> bool:
        """Whether nothing can be sent before an answer comes."""
        is_ended = self.failure is not None or self._is_stalled
        return is_ended or self.in_flight_count >= self._room

    def _retry(self) -> ProducerBatch | None:
        """Find the first batch that must be sent again."""
        if len(self._unsettled) > self.in_flight_count:
            for batch in self._unsettled:
                if not batch.is_in_flight and batch.ack is None:
                    return batch
        return None

    def _first_try(self) -> ProducerBatch:
        batch = self._gatherer.take()
        if not self._is_sparse:
            batch.seq = batch.last_seq = self._next_seq  # rule 1
            self._next_seq += 1
        batch.body = self._encode(batch.messages, batch.extras)
        self._unsettled.append(batch)
        return batch

    # ---- answers ---------------------------------------------------------------------------------

    def _accepted(self, batch: ProducerBatch, status: int, headers: Mapping[str, str]) -> None:
        is_duplicate = status == 204
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
            batch.is_doubtful |= error.applied == UNKNOWN
            self._fail(error, batch)
            return
        self._pauses.forget()
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
        self._settle()

    def _first_offset(self, next_offset: str | None, count: int) -> str | None:
        """Count back from the end of an append; None if that cannot be done."""
        end = parse_offset(next_offset) if next_offset is not None and self._is_counting else None
        return None if end is None or end < count else print_offset(end - count)

    def _settle(self) -> None:
        """Report what is acknowledged, in order."""
        while self._unsettled and self._unsettled[0].ack is not None:
            batch = self._unsettled.popleft()
            assert batch.ack is not None
            self.ledger.acknowledge(batch.ack, batch)

    def _refused(
        self, batch: ProducerBatch, status: int, headers: Mapping[str, str], body: bytes, now: float
    ) -> None:
        error = error_of(status, headers, body)
        batch.is_doubtful |= error.applied == UNKNOWN
        if status in _WORTH_A_RETRY:
            self._is_stalled = True
            self._pauses.begin(now, error, retry_after_of(headers))
        elif self._is_explained(error, batch):
            self._is_stalled = True
        elif not self._is_mended(error, batch):
            self._fail(self._with_hint(error), batch)

    def _is_explained(self, error: ClientError, batch: ProducerBatch) -> bool:
        """Tell whether this is a gap that comes from a batch of ours: late, or to be sent again."""
        if not isinstance(error, SequenceGap):
            return False
        first = batch.first_unsettled
        assert first is not None
        assert batch.seq is not None
        return first < batch.seq and (error.expected is None or error.expected >= first)

    def _is_mended(self, error: ClientError, batch: ProducerBatch) -> bool:
        """Change what can be changed about a batch, so that it may be sent again."""
        if isinstance(error, BatchOverlap):
            return self._cut(batch, error.last_seq)
        return self._identity.claim(error, batch)

    def _cut(self, batch: ProducerBatch, last_seq: int | None) -> bool:
        """Drop the messages of a sparse batch that are stored; False if that changes nothing."""
        if not self._is_sparse or last_seq is None or last_seq < batch.seqs[0]:
            return False
        stored = batch.cut(sum(seq <= last_seq for seq in batch.seqs))
        rest = batch.count
        ack = BatchAck(stored.count, last_seq, None, True, None if rest else batch.cursor)
        if rest:
            batch.body = self._encode(batch.messages, batch.extras)
        else:
            self._unsettled.remove(batch)
        self.ledger.acknowledge(ack, stored)
        return True

    def _with_hint(self, error: ClientError) -> ClientError:
        is_unknown_session = (
            self._settings.session is not None
            and not self._settings.is_claiming
            and not self._identity.is_established
            and isinstance(error, Refused)
            and error.status == 400
            and error.code == "bad_request"  # another server's; ours have codes of their own
        )
        return ProtocolError(_NO_SESSIONS) if is_unknown_session else error

    # ---- trouble ---------------------------------------------------------------------------------

    def _timeout_error(self) -> ClientError:
        oldest = self._unsettled[0] if self._unsettled else None
        trouble = self._pauses.trouble
        reason = f": {trouble}" if trouble is not None else ""
        seconds = self._settings.delivery_timeout
        message = f"not delivered within {seconds:g} seconds{reason}"
        if oldest is not None and (oldest.is_doubtful or oldest.is_in_flight):
            return Indeterminate(message)
        return Unavailable(message)

    def _fail(self, error: ClientError, refused: ProducerBatch | None = None) -> None:
        """Settle everything; `refused` is the batch whose answer is the reason."""
        self.failure = error
        if refused is not None and isinstance(error, ProducerFenced):
            # Something on the way may have sent two copies: one was stored before we were fenced,
            # and this is the answer to the other.
            refused.is_doubtful = True
        is_end = refused is not None and self._is_end(error, refused)
        for batch in (*self._unsettled, *self._gatherer.take_all()):
            if batch.ack is not None:
                self.ledger.acknowledge(batch.ack, batch)
                continue
            is_open = batch.is_doubtful or (batch.is_in_flight and not is_end)
            self.ledger.give_up(batch, is_certain=not is_open)
        self._unsettled.clear()

    def _is_end(self, error: ClientError, refused: ProducerBatch) -> bool:
        """Tell whether nothing behind a refused batch can be stored: its number stays missing."""
        is_definite = isinstance(error, Refused) and error.applied == NO
        return is_definite and not refused.is_doubtful and not isinstance(error, PayloadMismatch)
