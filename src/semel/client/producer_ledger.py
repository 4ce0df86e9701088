"""What a producer has taken, and what became of it."""

from typing import Final

from semel.client.errors import NO, UNKNOWN
from semel.client.producer_batches import Batch, BatchAck, FailedBatch, ProducerStats

# What a message takes in memory beside its own bytes.
_KEEPING_BYTES: Final = 64

Event = BatchAck | FailedBatch


class Ledger:
    """Counts of messages, and the events nobody has taken yet. Messages are settled in order."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self.settled_count = 0
        self.pending_bytes = 0
        self.last_seq: int | None = None
        self.cursor: str | None = None
        self.stats = ProducerStats()

    def take(self, size: int) -> None:
        """Count a message of so many bytes."""
        self.pending_bytes += size + _KEEPING_BYTES

    def acknowledge(self, ack: BatchAck, batch: Batch) -> None:
        """Count messages that are stored."""
        self._release(batch)
        self.last_seq = ack.seq
        self.cursor = self.cursor if ack.cursor is None else ack.cursor
        self.stats.batches_acked += 1
        self.stats.messages_acked += ack.count
        self.stats.duplicates += ack.duplicate
        self._events.append(ack)

    def give_up(self, batch: Batch, *, is_certain: bool) -> None:
        """Count messages that will not be sent again."""
        self._release(batch)
        self.stats.messages_failed += batch.count
        applied = NO if is_certain else UNKNOWN
        self._events.append(
            FailedBatch(batch.count, batch.messages, batch.seq, applied, batch.cursor)
        )

    def take_events(self) -> list[Event]:
        """Hand out what became of batches since the last time, in order."""
        events, self._events = self._events, []
        return events

    def _release(self, batch: Batch) -> None:
        self.settled_count += batch.count
        self.pending_bytes -= sum(map(len, batch.messages)) + batch.count * _KEEPING_BYTES
        if batch.extras:
            self.pending_bytes -= sum(extra.size for extra in batch.extras.values())
