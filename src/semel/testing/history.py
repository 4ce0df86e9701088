"""What clients did to one stream and what they were told, written down for `check_history`.

    history = History()
    operation = history.append("one anvil", producer="shop-1", seq=0)
    operation.ok(offset=0)         # or .refuse(); or nothing, if nobody knows how it ended
    started_at = history.clock()
    history.read(["one anvil"], invoked_at=started_at)

An operation is what the application wanted once: its retries belong to it and are not operations of
their own. Values must be unique, so that the stream tells which operation put each message there.
"""

from collections.abc import Callable, Hashable, Sequence
from time import monotonic_ns
from typing import Final, Literal

from msgspec import Struct

_Outcome = Literal["ok", "refused", "indeterminate"]


class Operation(Struct):
    """One append of one message. Until it is told otherwise, nobody knows how it ended."""

    value: Hashable
    invoked_at: int
    clock: Callable[[], int]
    producer: str | None = None
    epoch: int = 0
    seq: int | None = None
    index: int = 0
    outcome: _Outcome = "indeterminate"
    offset: int | None = None
    returned_at: int | None = None

    def ok(self, offset: int | None) -> None:
        """The answer said that the message is durable, at this offset; None if it did not say."""
        self.outcome, self.offset, self.returned_at = "ok", offset, self.clock()

    def refuse(self) -> None:
        """The answer said that the message was not and will not be stored."""
        self.outcome, self.returned_at = "refused", self.clock()


class Read(Struct):
    """One read: these values from that offset on; up to date if it said that there was no more."""

    values: Sequence[Hashable]
    offset: int
    reader: str
    invoked_at: int
    returned_at: int
    is_up_to_date: bool


class History:
    """Operations and reads of one stream. Threads may share it.

    `clock` gives integers that never go back and that all clients share.
    """

    def __init__(self, clock: Callable[[], int] = monotonic_ns) -> None:
        self.clock: Final = clock
        self.operations: Final[list[Operation]] = []
        self.reads: Final[list[Read]] = []

    def append(
        self,
        value: Hashable,
        *,
        producer: str | None = None,
        epoch: int = 0,
        seq: int | None = None,
        index: int = 0,
    ) -> Operation:
        """Write down that an append begins; `index` is the message's place in its batch."""
        operation = Operation(value, self.clock(), self.clock, producer, epoch, seq, index)
        self.operations.append(operation)
        return operation

    def read(
        self,
        values: Sequence[Hashable],
        *,
        invoked_at: int,
        offset: int = 0,
        reader: str = "reader",
        is_up_to_date: bool = True,
    ) -> None:
        """Write down that a read begun at `invoked_at` (`history.clock()`) has returned."""
        self.reads.append(Read(values, offset, reader, invoked_at, self.clock(), is_up_to_date))
