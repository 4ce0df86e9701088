"""What a producer is told to do, what it sends, and what became of it: values."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from semel.client.errors import NO, UNKNOWN
from semel.client.values import Extra
from semel.model.commands import DENSE, SPARSE
from semel.model.limits import BATCH_MESSAGES_MAX, PRODUCER_ID_BYTES_MAX

BATCH_BYTES_MAX: Final = 4_000_000  # with what stands around the messages, a body of 4 MiB

# Makes a body of messages, and of what some of them carry, by their places among the messages.
Encode = Callable[[Sequence[bytes], Mapping[int, Extra]], bytes]


class ProducerSettings(Struct, frozen=True, kw_only=True):
    """Who the producer is and how it gathers. Times in seconds, sizes in bytes.

    How the epoch is found: the caller declares it as `epoch`, the producer raises the one it meets
    at its start (`is_claiming`), or the server counts sessions. A claim carries a session, too: it
    tells two instances that claim the same epoch apart.
    """

    id: str
    session: str | None = None
    epoch: int | None = None
    is_claiming: bool = False
    mode: str = DENSE
    max_in_flight: int = 5
    max_batch_bytes: int = 1_000_000
    max_batch_messages: int = BATCH_MESSAGES_MAX
    linger: float = 0.0
    delivery_timeout: float = 120.0

    def __post_init__(self) -> None:
        is_name = self.id.isascii() and self.id.isprintable() and self.id == self.id.strip()
        if not is_name or not 0 < len(self.id) <= PRODUCER_ID_BYTES_MAX:
            raise ValueError(
                f"a producer id is 1 to {PRODUCER_ID_BYTES_MAX} printable ASCII characters,"
                f" not {self.id!r}"
            )
        if self.epoch is not None and (self.is_claiming or self.session is not None):
            raise ValueError("pass epoch= or auto_claim=True, not both")
        if self.epoch is None and not self.is_claiming and self.session is None:
            raise ValueError("a producer needs a session, an epoch or a claim")
        if self.epoch is not None and self.epoch < 0:
            raise ValueError("epoch must not be negative")
        if self.mode not in (DENSE, SPARSE):
            raise ValueError(f"mode must be 'dense' or 'sparse', not {self.mode!r}")
        if not 0 < self.max_batch_messages <= BATCH_MESSAGES_MAX:
            raise ValueError(f"max_batch_messages must be from 1 to {BATCH_MESSAGES_MAX}")
        if not 0 < self.max_batch_bytes <= BATCH_BYTES_MAX:
            raise ValueError(f"max_batch_bytes must be from 1 to {BATCH_BYTES_MAX}")
        if self.max_in_flight < 1:
            raise ValueError("max_in_flight must be at least 1")
        if self.linger < 0 or self.delivery_timeout <= 0:
            raise ValueError("linger_ms must not be negative, delivery_timeout must be positive")


class BatchAck(Struct, frozen=True):
    """A batch that is stored. `duplicate`: it was stored by an earlier attempt or instance.

    `seq` is its number; in sparse mode the last one of its messages. `next_offset` is where the
    stream went on after it, None if the server no longer knows. `offset` is where its first message
    is; only semel's offsets can be counted back from the end, so it is None elsewhere.
    """

    count: int
    seq: int
    next_offset: str | None = None
    duplicate: bool = False
    cursor: str | None = None
    offset: str | None = None


class FailedBatch(Struct, frozen=True):
    """A batch that will not be sent again. `values` are its messages as bytes.

    `applied` is "no" if it is certain that none of it is stored, else "unknown". `seq` is None if
    it was never numbered.
    """

    count: int
    values: Sequence[bytes]
    seq: int | None = None
    applied: str = NO
    cursor: str | None = None


class ProducerStats(Struct):
    """What a producer has done so far."""

    messages_acked: int = 0
    messages_failed: int = 0
    messages_skipped: int = 0
    batches_acked: int = 0
    duplicates: int = 0
    retries: int = 0


class ProducerBatch:
    """Messages that travel together, for as long as they are not settled.

    `is_doubtful` once an attempt has ended without a word: it may be stored. `first_unsettled` is
    the lowest number that was not confirmed when it was last sent.
    """

    __slots__ = (
        "ack",
        "body",
        "born",
        "cursor",
        "extras",
        "first_unsettled",
        "is_doubtful",
        "is_in_flight",
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
        self.extras = extras  # by the place of the message
        self.seqs = seqs  # sparse mode only
        self.size = size
        self.born = born
        self.cursor = cursor
        self.seq: int | None = seqs[0] if seqs else None
        self.last_seq: int | None = seqs[-1] if seqs else None
        self.first_unsettled: int | None = None
        self.body = b""
        self.is_in_flight = False
        self.is_doubtful = False
        self.ack: BatchAck | None = None

    @property
    def count(self) -> int:
        """How many messages it holds."""
        return len(self.messages)

    def cut(self, count: int) -> "ProducerBatch":
        """Take the first messages out, those of a sparse batch that are stored already."""
        extras = self.extras
        gone = {at: extra for at, extra in extras.items() if at < count}
        taken = ProducerBatch(self.messages[:count], self.seqs[:count], 0, self.born, None, gone)
        self.messages, self.seqs = self.messages[count:], self.seqs[count:]
        self.extras = {at - count: extra for at, extra in extras.items() if at >= count}
        if self.seqs:
            self.seq = self.seqs[0]
        return taken

    @property
    def printed_seq(self) -> str:
        """Its number, or range, as the header has it."""
        return f"{self.seq}" if self.seq == self.last_seq else f"{self.seq}-{self.last_seq}"


# ---- producer ledger -----------------------------------------------------------------------------
# What a producer has taken, and what became of it.


# What a message takes in memory beside its own bytes.
_OVERHEAD_BYTES: Final = 64

BatchEvent = BatchAck | FailedBatch


class Acknowledgements:
    """Counts of messages, and the events nobody has taken yet. Messages are settled in order."""

    def __init__(self) -> None:
        self._events: list[BatchEvent] = []
        self.settled_count = 0
        self.pending_bytes = 0
        self.last_seq: int | None = None
        self.cursor: str | None = None
        self.stats = ProducerStats()

    def take(self, size: int) -> None:
        """Count a message of so many bytes."""
        self.pending_bytes += size + _OVERHEAD_BYTES

    def acknowledge(self, ack: BatchAck, batch: ProducerBatch) -> None:
        """Count messages that are stored."""
        self._release(batch)
        self.last_seq = ack.seq
        self.cursor = self.cursor if ack.cursor is None else ack.cursor
        self.stats.batches_acked += 1
        self.stats.messages_acked += ack.count
        self.stats.duplicates += ack.duplicate
        self._events.append(ack)

    def give_up(self, batch: ProducerBatch, *, is_certain: bool) -> None:
        """Count messages that will not be sent again."""
        self._release(batch)
        self.stats.messages_failed += batch.count
        applied = NO if is_certain else UNKNOWN
        self._events.append(
            FailedBatch(batch.count, batch.messages, batch.seq, applied, batch.cursor)
        )

    def take_events(self) -> list[BatchEvent]:
        """Hand out what became of batches since the last time, in order."""
        events, self._events = self._events, []
        return events

    def _release(self, batch: ProducerBatch) -> None:
        self.settled_count += batch.count
        self.pending_bytes -= sum(map(len, batch.messages)) + batch.count * _OVERHEAD_BYTES
        if batch.extras:
            self.pending_bytes -= sum(extra.size for extra in batch.extras.values())
