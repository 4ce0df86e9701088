"""The outcomes of a producer's batches: what callbacks are called with, and counters."""

from collections.abc import Sequence

from msgspec import Struct

from semel.client.errors import NO


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


BatchEvent = BatchAck | FailedBatch
