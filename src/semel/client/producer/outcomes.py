"""The outcomes of a producer's batches: what callbacks are called with, and counters."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from semel.client.errors import NO, UNKNOWN
from semel.model.offsets import parse_offset, print_offset
from semel.wire.schema.topics import TopicPart

if TYPE_CHECKING:
    from semel.client.producer.batches import ProducerBatch


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
    - `parts`: in a topic, the offsets in each partition. `offset` and `next_offset` are None if the
      batch has messages for several partitions.
    """

    count: int
    seq: int
    next_offset: str | None = None
    duplicate: bool = False
    cursor: str | None = None
    offset: str | None = None
    closed: bool = False
    parts: tuple[TopicPart, ...] = ()

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


BatchEvent = BatchAck | FailedBatch


# ---- recording -----------------------------------------------------------------------------------

# An estimate of the memory that a pending message uses in addition to its own bytes.
_OVERHEAD_BYTES: Final = 64


def ack_of(
    batch: "ProducerBatch",
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
        duplicate=is_duplicate,
        cursor=batch.cursor,
        offset=first,
        closed=batch.is_closing,
        parts=batch.parts,
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

    def acknowledge(self, ack: BatchAck, batch: "ProducerBatch") -> None:
        """Record that a batch is stored, and count its messages."""
        self._release(batch)
        self.last_seq = ack.seq
        self.cursor = self.cursor if ack.cursor is None else ack.cursor
        self.stats.batches_acked += 1
        self.stats.messages_acked += ack.count
        self.stats.duplicates += ack.duplicate
        self._events.append(ack)

    def give_up(self, batch: "ProducerBatch", *, is_certain: bool) -> None:
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

    def _release(self, batch: "ProducerBatch") -> None:
        self.settled_count += batch.units
        self.pending_bytes -= sum(map(len, batch.messages)) + batch.count * _OVERHEAD_BYTES
        if batch.extras:
            self.pending_bytes -= sum(extra.size for extra in batch.extras.values())
