"""A producer's batches, the batch builder, and the outcomes of batches."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from semel.client.errors import NO, UNKNOWN
from semel.client.producer.settings import ProducerSettings, check_cursor
from semel.client.values import Extra
from semel.model.commands import SPARSE
from semel.model.limits import NUMBER_MAX, SEQUENCE_SPAN_MAX
from semel.model.offsets import parse_offset, print_offset

# Encodes messages as a body. The second argument maps the index of a message to its extras.
Encode = Callable[[Sequence[bytes], Mapping[int, Extra]], bytes]


class BatchAck(Struct, frozen=True):
    """The acknowledgement of a stored batch.

    - `count`: the number of messages in the batch.
    - `seq`: the batch's sequence, or the sequence of its last message in sparse mode.
    - `next_offset`: the offset after the batch, or None if the server did not report it.
    - `duplicate`: True if an earlier attempt or an earlier instance stored the batch.
    - `cursor`: the cursor stored with the batch, or None.
    - `offset`: the offset of the batch's first message. It is None if `next_offset` is None, or if
      the server is not semel.
    - `closed`: True if the batch has closed the stream.
    """

    count: int
    seq: int
    next_offset: str | None = None
    duplicate: bool = False
    cursor: str | None = None
    offset: str | None = None
    closed: bool = False

    @property
    def units(self) -> int:
        """The number of messages, and one more if the batch has closed the stream."""
        return self.count + self.closed


class FailedBatch(Struct, frozen=True):
    """A batch that the producer has abandoned. It will not be sent again.

    - `count`: the number of messages in the batch.
    - `values`: the messages as bytes.
    - `seq`: the batch's sequence, or the sequence of its first message in sparse mode. In dense
      mode it is None if the batch was never sent.
    - `applied`: "no" if the batch is certainly not stored, otherwise "unknown".
    - `cursor`: the cursor that was to be stored with the batch, or None.
    - `closing`: True if the batch was to close the stream.
    """

    count: int
    values: Sequence[bytes]
    seq: int | None = None
    applied: str = NO
    cursor: str | None = None
    closing: bool = False

    @property
    def units(self) -> int:
        """The number of messages, and one more if the batch was to close the stream."""
        return self.count + self.closing


class ProducerStats(Struct):
    """Counters of one producer, from the time it was opened."""

    messages_acked: int = 0
    messages_failed: int = 0
    messages_skipped: int = 0
    batches_acked: int = 0
    duplicates: int = 0
    retries: int = 0


class ProducerBatch:
    """The messages that one append request sends, until they are stored or abandoned.

    `is_indeterminate` is True if it is unknown whether an earlier attempt stored the batch.
    `is_closing` is True if the batch closes the stream. Only such a batch can have no messages.
    `first_unsettled` is the lowest sequence that was unconfirmed when the batch was last sent. If
    the server reports that a lower sequence is missing, no retry can close this gap.
    """

    __slots__ = (
        "ack",
        "body",
        "born",
        "cursor",
        "extras",
        "first_unsettled",
        "is_closing",
        "is_in_flight",
        "is_indeterminate",
        "last_seq",
        "messages",
        "seq",
        "seqs",
        "size",
    )

    def __init__(
        self,
        messages: list[bytes],
        seqs: list[int],
        size: int,
        born: float,
        cursor: str | None,
        extras: dict[int, Extra],
    ) -> None:
        self.messages = messages
        self.extras = extras  # keyed by the index of the message
        self.seqs = seqs  # sparse mode only
        self.size = size
        self.born = born
        self.cursor = cursor
        self.seq: int | None = seqs[0] if seqs else None
        self.last_seq: int | None = seqs[-1] if seqs else None
        self.first_unsettled: int | None = None
        self.body = b""
        self.is_in_flight = False
        self.is_indeterminate = False
        self.is_closing = False
        self.ack: BatchAck | None = None

    @property
    def count(self) -> int:
        return len(self.messages)

    @property
    def units(self) -> int:
        """The number of messages, and one more if the batch closes the stream."""
        return len(self.messages) + self.is_closing

    def split_off(self, count: int) -> "ProducerBatch":
        """Remove the first `count` messages of a sparse batch, and return them as a new batch."""
        extras = self.extras
        removed = {index: extra for index, extra in extras.items() if index < count}
        first = ProducerBatch(self.messages[:count], self.seqs[:count], 0, self.born, None, removed)
        self.messages, self.seqs = self.messages[count:], self.seqs[count:]
        self.extras = {index - count: extra for index, extra in extras.items() if index >= count}
        if self.seqs:
            self.seq = self.seqs[0]
        return first

    @property
    def printed_seq(self) -> str:
        """The sequence, or the range of sequences, as the Producer-Seq header shows it."""
        return f"{self.seq}" if self.seq == self.last_seq else f"{self.seq}-{self.last_seq}"


# ---- gathering messages into batches -------------------------------------------------------------

# The bytes to add for each message in a body, for the comma or the length that the encoding needs.
MESSAGE_OVERHEAD_BYTES = 4


_MIXED: Final = (
    "pass seq= with every message or with none; with initial_seq=, the producer assigns all"
    " sequences"
)


class BatchBuilder:
    """Gathers messages into batches, in order.

    A batch is due when it is full, or when the linger time after its first message has passed.
    """

    def __init__(self, settings: ProducerSettings) -> None:
        self._bytes_max = settings.max_batch_bytes
        self._messages_max = settings.max_batch_messages
        self._linger = settings.linger
        self._is_sparse = settings.mode == SPARSE
        self._full: list[ProducerBatch] = []
        self._messages: list[bytes] = []
        self._seqs: list[int] = []
        self._extras: dict[int, Extra] = {}
        self._size = 0
        self._born = 0.0
        self._cursor: str | None = None
        self._is_hurried = False
        # Sparse mode: True if the caller passes the sequences; None until the first message.
        self._is_numbered: bool | None = None if settings.initial_seq is None else False
        self._assigned_seq = (settings.initial_seq or 0) - 1  # sparse mode: the last assigned one
        self.last_seq = -1  # sparse mode: the sequence of the newest message

    @property
    def count(self) -> int:
        """The number of gathered messages that `take` has not returned yet."""
        return sum(batch.count for batch in self._full) + len(self._messages)

    @property
    def units(self) -> int:
        """The number of gathered messages, and one more if the stream is to be closed."""
        return sum(batch.units for batch in self._full) + len(self._messages)

    @property
    def born(self) -> float | None:
        """The time at which the oldest message was appended, or None if there is no message."""
        if self._full:
            return self._full[0].born
        return self._born if self._messages else None

    def due_at(self) -> float | None:
        """Return the time at which the next batch is due, or None if there is no message."""
        if self._full:
            return self._full[0].born
        if not self._messages:
            return None
        return self._born if self._is_hurried else self._born + self._linger

    def number(self, seq: int | None) -> int:
        """Return the sequence of a sparse producer's next message.

        Raises ValueError if the caller passes sequences with some messages and not with others.
        """
        if self._is_numbered is None:
            self._is_numbered = seq is not None
        if self._is_numbered is (seq is None):
            raise ValueError(_MIXED)
        if seq is None:
            seq = self._assigned_seq = self._assigned_seq + 1
        return seq

    def append(
        self,
        raw: bytes,
        now: float,
        cursor: str | None,
        seq: int | None,
        extra: Extra | None = None,
    ) -> bool:
        """Add a message. Return True if the message began a new batch.

        After a new batch has begun, the caller must look at `due_at` again. Raises ValueError if
        the sequence or the cursor is invalid.
        """
        if self._is_sparse or seq is not None:
            self._check_seq(seq)
        if cursor is not None:
            check_cursor(cursor)
        own = len(raw) + MESSAGE_OVERHEAD_BYTES
        if extra is not None:
            own += extra.size
        size = self._size + own
        messages = self._messages
        is_fitting = 0 < len(messages) < self._messages_max and size <= self._bytes_max
        if not is_fitting or (seq is not None and seq - self._seqs[0] > SEQUENCE_SPAN_MAX):
            if messages:
                self._finish_batch()
                messages = self._messages
            size = own
            self._born = now
            is_fitting = False
        if extra is not None:
            self._extras[len(messages)] = extra
        elif self._extras:
            self._extras.pop(len(messages), None)  # from an append that Ctrl-C interrupted
        self._size = size
        if seq is not None:
            del self._seqs[len(messages) :]  # from an append that Ctrl-C interrupted
            self._seqs.append(seq)
            self.last_seq = seq
        if cursor is not None:
            self._cursor = cursor
        # This is the last change, so an append that is interrupted earlier adds no message.
        messages.append(raw)
        return not is_fitting

    def close_stream(self, now: float, cursor: str | None, stored_seq: int) -> None:
        """Make the last batch close the stream. If there is no batch, add one without messages.

        In sparse mode, a batch without messages gets the sequence after the last one, which is not
        lower than `stored_seq`.
        """
        if cursor is not None:
            check_cursor(cursor)
        if self._messages:
            self._cursor = self._cursor if cursor is None else cursor
            self._finish_batch()
        elif not self._full or cursor is not None:
            last_seq = max(self.last_seq, stored_seq, self._assigned_seq)
            seqs = [last_seq + 1] if self._is_sparse else []
            self._full = [*self._full, ProducerBatch([], seqs, 0, now, cursor, {})]
        self._full[-1].is_closing = True

    def hurry(self) -> None:
        """Make the gathered messages due immediately, without the linger time."""
        self._is_hurried = True

    def take(self) -> ProducerBatch:
        """Remove the next batch and return it. There must be at least one message."""
        if not self._full:
            self._finish_batch()
        return self._full.pop(0)

    def take_all(self) -> list[ProducerBatch]:
        """Remove all batches and return them."""
        if self._messages:
            self._finish_batch()
        batches, self._full = self._full, []
        return batches

    def _finish_batch(self) -> None:
        batch = ProducerBatch(
            self._messages, self._seqs, self._size, self._born, self._cursor, self._extras
        )
        # The lists change in one statement without a call. Ctrl-C cannot interrupt it in the
        # middle, which would leave a message in both lists.
        self._full, self._messages, self._seqs = [*self._full, batch], [], []
        self._extras, self._size, self._cursor = {}, 0, None
        self._is_hurried = False

    def _check_seq(self, seq: int | None) -> None:
        if not self._is_sparse:
            raise ValueError(
                "pass seq= only with mode='sparse'; a dense producer assigns the sequences itself"
            )
        assert seq is not None  # `ProducerCore` has assigned one
        if not self.last_seq < seq <= NUMBER_MAX:
            raise ValueError(
                f"seq={seq} is invalid; it must be above {self.last_seq} and at most {NUMBER_MAX}"
            )


# ---- the outcomes of batches ---------------------------------------------------------------------

# An estimate of the memory that a pending message uses in addition to its own bytes.
_OVERHEAD_BYTES: Final = 64

BatchEvent = BatchAck | FailedBatch


def ack_of(
    batch: ProducerBatch,
    next_offset: str | None,
    *,
    is_duplicate: bool,
    is_counting: bool = True,
) -> BatchAck:
    """Return the acknowledgement of a batch that is stored up to `next_offset`.

    `is_counting` is True if the server's offsets count messages, as semel's offsets do.
    """
    assert batch.last_seq is not None
    end = parse_offset(next_offset) if next_offset is not None and is_counting else None
    first = None if end is None or end < batch.count else print_offset(end - batch.count)
    return BatchAck(
        batch.count,
        batch.last_seq,
        next_offset,
        is_duplicate,
        batch.cursor,
        first,
        batch.is_closing,
    )


class Acknowledgements:
    """Counts messages, and collects the outcomes of batches until `take_events` returns them."""

    def __init__(self) -> None:
        self._events: list[BatchEvent] = []
        self.settled_count = 0
        self.pending_bytes = 0
        self.last_seq: int | None = None
        self.cursor: str | None = None
        self.stats = ProducerStats()

    def add(self, size: int) -> None:
        """Count a pending message of `size` bytes."""
        self.pending_bytes += size + _OVERHEAD_BYTES

    def acknowledge(self, ack: BatchAck, batch: ProducerBatch) -> None:
        """Record that a batch is stored, and count its messages."""
        self._release(batch)
        self.last_seq = ack.seq
        self.cursor = self.cursor if ack.cursor is None else ack.cursor
        self.stats.batches_acked += 1
        self.stats.messages_acked += ack.count
        self.stats.duplicates += ack.duplicate
        self._events.append(ack)

    def give_up(self, batch: ProducerBatch, *, is_certain: bool) -> None:
        """Record that a batch failed, and count its messages.

        `is_certain` is True if it is certain that the batch is not stored.
        """
        self._release(batch)
        self.stats.messages_failed += batch.count
        self._events.append(
            FailedBatch(
                batch.count,
                batch.messages,
                batch.seq,
                NO if is_certain else UNKNOWN,
                batch.cursor,
                batch.is_closing,
            )
        )

    def take_events(self) -> list[BatchEvent]:
        """Remove the outcomes that were recorded since the last call, and return them in order."""
        events, self._events = self._events, []
        return events

    def _release(self, batch: ProducerBatch) -> None:
        self.settled_count += batch.units
        self.pending_bytes -= sum(map(len, batch.messages)) + batch.count * _OVERHEAD_BYTES
        if batch.extras:
            self.pending_bytes -= sum(extra.size for extra in batch.extras.values())
