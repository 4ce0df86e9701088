"""What every client of one stream writes down."""

import threading
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Final

from semel.client.producer.batches import ProducerStats
from semel.client.values import Receipt
from semel.model.offsets import parse_offset
from semel.testing import History, Operation

Work = Callable[["Notes", Random], None]


class Notes:
    """One stream: where clients find it, its history, what was counted, and when to end.

    Through `single_url` no request is doubled: nothing protects an append without any number.
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
        self.surprises: Final[list[Exception]] = []  # what no producer should end with here
        self._lock = threading.Lock()

    def count(self, name: str, number: int = 1) -> None:
        with self._lock:
            self.counts[name] += number

    def begin(self, writer: str, number: int, *, is_ordered: bool = True) -> Operation:
        """Write down that a writer's next message is about to be sent.

        Not `is_ordered`: it may be stored after later ones, if its end is unknown.
        """
        producer = writer if is_ordered else None
        return self.history.append(f"{writer}:{number}", producer=producer, seq=number)

    def encoded(self, operation: Operation) -> bytes:
        """The message of an operation as the stream holds it."""
        text = str(operation.value)
        return (f'"{text}"' if self.content_type == "application/json" else text).encode()

    def settle(self, kind: str, operation: Operation, receipt: Receipt) -> None:
        """Write down that an append has returned."""
        operation.ok(last_offset(receipt.next_offset))
        self.count(f"acknowledged: {kind}")
        self.count("duplicates refused", receipt.duplicate)

    def fail(self, operation: Operation, *, is_certain: bool) -> None:
        """Write down that an append failed; `is_certain`: nothing of it is or will be stored."""
        if is_certain:
            operation.refuse()
        self.count("appends not applied" if is_certain else "appends indeterminate")

    def close_life(self, stats: ProducerStats) -> None:
        """Add what an instance of a producer has done."""
        self.count("producer instances")
        self.count("retries", stats.retries)
        self.count("duplicates refused", stats.duplicates)


def last_offset(next_offset: str | None) -> int | None:
    """Read where the last message of an append is."""
    if next_offset is None:
        return None
    place = parse_offset(next_offset)
    assert place is not None, next_offset
    return place - 1
