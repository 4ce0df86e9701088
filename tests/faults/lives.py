"""The instances of a producer, and what is known about their messages."""

from collections import deque
from collections.abc import Hashable, Iterator
from random import Random
from typing import Any, Final

from semel.client.errors import NO, ClientError, Indeterminate, ProducerFenced, Unavailable
from semel.client.producer.async_producer import AsyncProducer
from semel.client.producer.outcomes import BatchAck, FailedBatch
from semel.client.producer.sync_producer import Producer
from semel.testing import Operation
from tests.faults.notes import Notes, last_offset

MODES: Final[dict[str, dict[str, Any]]] = {
    "session": {},
    "epoch": {"epoch": 0},
    "claim": {"auto_claim": True},
    "sparse": {"mode": "sparse"},
}
_PENDING_BYTES_MAX: Final = 1_000
_MESSAGES_MAX: Final = 400
_LEFT_SHARE: Final = 0.2
_GHOST_SHARE: Final = 0.2
_HASTY_SHARE: Final = 0.5
_PATIENCE_SECONDS: Final = 120.0
HASTE_SECONDS: Final = 0.3
_EXPECTED: Final = (Unavailable, Indeterminate, ProducerFenced)


class Writer:
    """A producer id and all its instances.

    An indeterminate message stays indeterminate, except in sparse mode: there the next instance
    sends it again, and learns from the server what was stored.

    Messages must be in the order of the epochs of their acknowledgements; in sparse mode, in the
    order of their sequences alone. The first append of an instance may be stored after those of a
    newer instance, with a higher epoch. So the order of an indeterminate message is unknown.
    """

    def __init__(self, notes: Notes, random: Random, name: str, kind: str, mode: str) -> None:
        self.notes: Final = notes
        self.name: Final = name
        self.mode: Final = mode
        self._kind = f"{kind}, {mode}"
        self._random = random
        self._instances = 0
        self._number = 0
        self._doubtful: dict[Hashable, Operation] = {}  # in the order they were sent

    def next_instance(self) -> "Instance":
        self._instances += 1
        return Instance(self, self._random, self._instances)

    def operations(self, last_seq: int | None, count: int) -> Iterator[Operation]:
        """Yield what an instance has to append; the server has everything up to `last_seq`."""
        for operation in [*self._doubtful.values()]:
            assert operation.seq is not None
            if last_seq is not None and operation.seq <= last_seq:
                self.stored(operation, None, 0)
                self.notes.count("found stored by the next instance")
            else:
                yield operation
        for _ in range(count):
            if self.notes.over.is_set():
                return
            self._number += 1
            yield self.notes.begin(self.name, self._number - 1)

    def stored(self, operation: Operation, offset: int | None, epoch: int) -> None:
        operation.epoch = 0 if self.mode == "sparse" else epoch
        operation.ok(offset)
        self._doubtful.pop(operation.value, None)
        self.notes.count(f"acknowledged: {self._kind}")

    def failed(self, operation: Operation, *, is_certain: bool) -> None:
        if operation.value in self._doubtful:
            return  # whether an earlier instance has stored it is still unknown
        self.notes.fail(operation, is_certain=is_certain)
        if is_certain:
            return
        if self.mode == "sparse":
            self._doubtful[operation.value] = operation
        else:
            operation.producer = None


class Instance:
    """One instance: its options, how much it writes, and how it ends.

    An instance may be closed before its messages are stored, or become a ghost: it stays open
    while the next one starts. (Not in sparse mode: the next one must know what is indeterminate.)
    """

    def __init__(self, writer: Writer, random: Random, number: int) -> None:
        self._writer = writer
        self._unsettled: deque[Operation] = deque()  # in the order they were sent
        self.producer: Producer | AsyncProducer | None = None
        self.length: Final = random.randint(1, _MESSAGES_MAX)
        self.close_timeout: Final = 0.0 if random.random() < _LEFT_SHARE else None
        self.is_ghost: Final = writer.mode != "sparse" and random.random() < _GHOST_SHARE
        self.is_hasty: Final = random.random() < _HASTY_SHARE
        self.options: Final[dict[str, Any]] = {
            **MODES[writer.mode],
            "max_in_flight": random.randint(1, 8),
            "max_batch_messages": random.randint(1, 4),
            "linger_ms": random.choice((0, 0, 1)),
            "max_pending_bytes": _PENDING_BYTES_MAX,
            "delivery_timeout": random.choice((_PATIENCE_SECONDS, _PATIENCE_SECONDS, 0.5)),
            "on_batch_ack": self._on_ack,
            "on_error": self._on_error,
        }
        if writer.mode == "epoch":
            self.options["epoch"] = number

    def begin(self, operation: Operation) -> dict[str, Any]:
        """Record that an operation is about to be appended; return the options for `append`."""
        self._unsettled.append(operation)
        return {"seq": operation.seq} if self._writer.mode == "sparse" else {}

    def was_refused(self) -> None:
        """Record that `append` did not accept the last operation."""
        self._writer.failed(self._unsettled.pop(), is_certain=True)

    def _on_ack(self, ack: BatchAck) -> None:
        assert self.producer is not None
        epoch = self.producer.epoch or 0
        last = last_offset(ack.next_offset)
        for left in reversed(range(ack.count)):
            operation = self._unsettled.popleft()
            self._writer.stored(operation, None if last is None else last - left, epoch)

    def _on_error(self, error: ClientError, batch: FailedBatch) -> None:
        if not isinstance(error, _EXPECTED):
            self._writer.notes.unexpected_errors.append(error)
        for _ in range(batch.count):
            self._writer.failed(self._unsettled.popleft(), is_certain=batch.applied == NO)
