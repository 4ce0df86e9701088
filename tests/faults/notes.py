"""The shared record of all clients of one stream."""

import threading
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Final

from semel.client.producer.outcomes import ProducerStats
from semel.client.values import Receipt
from semel.model.offsets import parse_offset
from semel.testing import History, Operation

Work = Callable[["Notes", Random], None]


class Notes:
    """One stream: its URLs, its recorded history, its counts, and the event that ends the run.

    The proxy at `single_url` never duplicates a request, for appends without deduplication.
    """

    def __init__(
        self, url: str, single_url: str, path: str, content_type: str, over: threading.Event
    ) -> None:
        self.url: Final = url
        self.single_url: Final = single_url
        self.path: Final = path
        self.content_type: Final = content_type
        self.over: Final = over
        self.history: Final = History()
        self.counts: Final[Counter[str]] = Counter()
        self.unexpected_errors: Final[list[Exception]] = []  # of producers
        self._lock = threading.Lock()

    def count(self, name: str, number: int = 1) -> None:
        with self._lock:
            self.counts[name] += number

    def begin(self, writer: str, number: int, *, is_ordered: bool = True) -> Operation:
        """Record that the next message of a writer is about to be sent.

        If not `is_ordered`, the message may be stored after later ones when it is indeterminate.
        """
        producer = writer if is_ordered else None
        return self.history.append(f"{writer}:{number}", producer=producer, seq=number)

    def encoded(self, operation: Operation) -> bytes:
        """Return the message of an operation in the format of the stream."""
        text = str(operation.value)
        return (f'"{text}"' if self.content_type == "application/json" else text).encode()

    def settle(self, kind: str, operation: Operation, receipt: Receipt) -> None:
        """Record that an append succeeded."""
        operation.ok(last_offset(receipt.next_offset))
        self.count(f"acknowledged: {kind}")
        self.count("duplicates refused", receipt.duplicate)

    def fail(self, operation: Operation, *, is_certain: bool) -> None:
        """Record that an append failed; `is_certain` if it will never be stored."""
        if is_certain:
            operation.refuse()
        self.count("appends not applied" if is_certain else "appends indeterminate")

    def count_instance(self, stats: ProducerStats) -> None:
        """Add the statistics of a closed instance of a producer."""
        self.count("producer instances")
        self.count("retries", stats.retries)
        self.count("duplicates refused", stats.duplicates)


def last_offset(next_offset: str | None) -> int | None:
    """Return the ordinal of the last message of an append."""
    if next_offset is None:
        return None
    ordinal = parse_offset(next_offset)
    assert ordinal is not None, next_offset
    return ordinal - 1
