"""The log checker: compares the content of a stream with the recorded operations of its clients.

Every value must be unique. Therefore the stream itself shows the order of the appends, and the
checker does not search for a valid order. The check takes O(n log n) time.
"""

from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import accumulate, chain, islice
from time import monotonic_ns
from typing import Any, Final, Literal

from msgspec import Struct

# ---- history -------------------------------------------------------------------------------------
# A history records the operations of clients on one stream, and the responses. `check_history`
# checks it.
#
#     history = History()
#     operation = history.append("one anvil", producer="shop-1", seq=0)
#     operation.ok(offset=0)         # or .refuse(), or no call if the outcome is indeterminate
#     started_at = history.clock()
#     history.read(["one anvil"], invoked_at=started_at)
#
# An operation includes its retries. A retry is not a separate operation. Every value must be
# unique, so that each message identifies the operation that appended it.


_Outcome = Literal["ok", "refused", "indeterminate"]


class Operation(Struct):
    """One append of one message.

    The outcome is indeterminate until `ok` or `refuse` is called.
    """

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
        """Record that the server acknowledged the append: the message is durable.

        Pass None as `offset` if the offset of the message is not known.
        """
        self.outcome, self.offset, self.returned_at = "ok", offset, self.clock()

    def refuse(self) -> None:
        """Record that the server refused the append: the message will never be stored."""
        self.outcome, self.returned_at = "refused", self.clock()


class Read(Struct):
    """One read: the values that it returned, in order, starting at `offset`.

    `is_up_to_date` is true if the response said that the read reached the tail.
    """

    values: Sequence[Hashable]
    offset: int
    reader: str
    invoked_at: int
    returned_at: int
    is_up_to_date: bool


class History:
    """The recorded operations and reads of one stream. Several threads can share a history.

    `clock` must return integers that never decrease. All clients must use the same clock.
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
        """Record the start of an append. Call `ok` or `refuse` on the result after the response.

        Without a response, call neither. `index` is the index of the message in its batch.
        """
        operation = Operation(
            value, self.clock(), self.clock, producer=producer, epoch=epoch, seq=seq, index=index
        )
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
        """Record a read that has just returned.

        Call `history.clock()` before the read starts, and pass the result as `invoked_at`.
        """
        self.reads.append(Read(values, offset, reader, invoked_at, self.clock(), is_up_to_date))


# ---- check ---------------------------------------------------------------------------------------


VIOLATIONS_MAX: Final = 1_000
_NEVER: Final = -1


class Violation(Struct, frozen=True):
    """The name of a violated guarantee, and the facts that prove the violation."""

    name: str
    facts: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.name}: " + ", ".join(f"{k}={v!r}" for k, v in self.facts.items())


def check_history(
    history: History, log: Sequence[Hashable], *, first_offset: int = 0
) -> list[Violation]:
    """Compare a history with the final content of the stream, and return the violations.

    `log` contains every message of the stream. `first_offset` is the offset of the first message in
    `log`. All threads that use the history must have ended.

    At most 1,000 violations are returned. Raises ValueError if two operations append the same
    value.
    """
    checks = _Checks(history, log, first_offset)
    every = (
        checks.values(),
        checks.outcomes(),
        checks.real_time_order(),
        checks.producer_order(),
        checks.reads(),
        checks.stale_reads(),
        checks.readers(),
    )
    return list(islice(chain.from_iterable(every), VIOLATIONS_MAX))


class _Checks:
    """The checks, one method for each guarantee. All of them use the same table of offsets."""

    def __init__(self, history: History, log: Sequence[Hashable], first_offset: int) -> None:
        self._history = history
        self._log = log
        self._first = first_offset
        self._by_value = _by_value(history.operations)
        # Maps each value to the first offset at which the value is stored.
        self._where = {value: offset for offset, value in reversed([*enumerate(log, first_offset)])}
        self._placed = [self._by_value.get(value) for value in log]

    def values(self) -> Iterator[Violation]:
        """Check that each stored message was sent by a client, and that none is stored twice."""
        for offset, value in enumerate(self._log, self._first):
            if value not in self._by_value:
                yield Violation("never_sent", {"value": value, "offset": offset})
            elif self._where[value] != offset:
                facts = {"value": value, "offset": offset, "first_offset": self._where[value]}
                yield Violation("duplicated", facts)

    def outcomes(self) -> Iterator[Violation]:
        """Check every outcome against the log.

        An acknowledged message must be at the acknowledged offset, unless it was trimmed. A refused
        message must not be stored.
        """
        for operation in self._history.operations:
            value, acknowledged = operation.value, operation.offset
            offset = self._where.get(value)
            if operation.outcome == "refused" and offset is not None:
                yield Violation("refused_but_present", {"value": value, "offset": offset})
            if operation.outcome != "ok":
                continue
            if offset is None and not self._may_be_trimmed(acknowledged):
                yield Violation("lost", {"value": value, "acknowledged_offset": acknowledged})
            elif offset is not None and acknowledged not in (None, offset):
                facts = {"value": value, "acknowledged_offset": acknowledged, "offset": offset}
                yield Violation("wrong_offset", facts)

    def _may_be_trimmed(self, acknowledged: int | None) -> bool:
        return self._first > 0 if acknowledged is None else acknowledged < self._first

    def real_time_order(self) -> Iterator[Violation]:
        """Check that the order of the log agrees with the times of the appends.

        If append A returned before append B started, A's message must have the lower offset.
        """
        latest: Operation | None = None
        for offset, operation in enumerate(self._placed, self._first):
            if operation is None:
                continue
            returned_at = operation.returned_at
            if latest and returned_at is not None and returned_at < latest.invoked_at:
                yield Violation(
                    "real_time_order",
                    {
                        "value": operation.value,
                        "offset": offset,
                        "returned_at": returned_at,
                        "before": latest.value,
                        "invoked_at": latest.invoked_at,
                    },
                )
            if latest is None or operation.invoked_at > latest.invoked_at:
                latest = operation

    def producer_order(self) -> Iterator[Violation]:
        """Check that each producer's messages are ordered by epoch, sequence and batch index."""
        last: dict[str, tuple[int, int, int]] = {}
        for offset, operation in enumerate(self._placed, self._first):
            if operation is None or operation.producer is None or operation.seq is None:
                continue
            here = (operation.epoch, operation.seq, operation.index)
            before = last.get(operation.producer)
            if before is not None and here <= before:
                facts = {"producer": operation.producer, "offset": offset}
                yield Violation("producer_order", {**facts, "here": here, "before": before})
            else:
                last[operation.producer] = here

    def reads(self) -> Iterator[Violation]:
        """Check that every read returned a part of the log.

        A read must not return a message whose append started after the read had ended.
        """
        for read in self._history.reads:
            skipped = max(0, self._first - read.offset)  # messages trimmed after the read
            start = read.offset + skipped - self._first
            values = list(read.values[skipped:])
            stored = list(self._log[start : start + len(values)])
            if values != stored:
                yield _differs(read, values, stored, start + self._first)
                continue
            for operation in self._placed[start : start + len(values)]:
                if operation is not None and operation.invoked_at > read.returned_at:
                    facts = {"reader": read.reader, "value": operation.value}
                    yield Violation("read_before_sent", facts)

    def stale_reads(self) -> Iterator[Violation]:
        """Check that each up-to-date read reached all messages acknowledged before it started."""
        times, ends = _acknowledged(self._history.operations)
        for read in self._history.reads:
            count = bisect_left(times, read.invoked_at)
            if not (read.is_up_to_date and count):
                continue
            end = read.offset + len(read.values)
            if end < ends[count - 1]:
                facts = {"reader": read.reader, "next_offset": end}
                yield Violation("stale_read", {**facts, "acknowledged_until": ends[count - 1]})

    def readers(self) -> Iterator[Violation]:
        """Check that no up-to-date read ends before an offset its reader had already reached."""
        furthest: dict[str, tuple[int, int]] = {}
        for read in sorted(self._history.reads, key=lambda read: read.invoked_at):
            end = read.offset + len(read.values)
            returned_at, before = furthest.get(read.reader, (_NEVER, 0))
            if read.is_up_to_date and returned_at <= read.invoked_at and end < before:
                facts = {"reader": read.reader, "next_offset": end, "seen_until": before}
                yield Violation("read_went_back", facts)
            elif end > before:
                furthest[read.reader] = (read.returned_at, end)


def _by_value(operations: Sequence[Operation]) -> dict[Hashable, Operation]:
    by_value: dict[Hashable, Operation] = {}
    for operation in operations:
        if by_value.setdefault(operation.value, operation) is not operation:
            raise ValueError(f"two operations append {operation.value!r}; make each value unique")
    return by_value


def _differs(read: Read, values: list[Hashable], stored: list[Hashable], start: int) -> Violation:
    pairs = enumerate(zip(values, stored, strict=False))
    at = next((i for i, (value, actual) in pairs if value != actual), len(stored))
    facts: dict[str, Any] = {"reader": read.reader, "offset": start + at, "read": values[at]}
    facts["log"] = stored[at] if at < len(stored) else None
    return Violation("read_differs", facts)


def _acknowledged(operations: Sequence[Operation]) -> tuple[list[int], list[int]]:
    """Return the sorted times of all acknowledgements, and a lower bound for the tail at each time.

    The lower bound is the highest offset that was acknowledged by that time, plus one.
    """
    acknowledged = sorted(
        (operation.returned_at, operation.offset + 1)
        for operation in operations
        if operation.returned_at is not None and operation.offset is not None
    )
    ends = accumulate((end for _, end in acknowledged), max)
    return [returned_at for returned_at, _ in acknowledged], list(ends)
