"""The log checker: does a stream hold what its clients were told, in an order they can accept?

Values are unique and answers carry offsets, so the stream itself is the order of all appends, and
nothing has to be searched for. The time taken grows with the size of the history (and with the
logarithm of it, for a sort by time).
"""

from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterator, Sequence
from time import monotonic_ns
from typing import Any, Final, Literal

from msgspec import Struct

# ---- history -------------------------------------------------------------------------------------
# What clients did to one stream and what they were told, written down for `check_history`.
#
#     history = History()
#     operation = history.append("one anvil", producer="shop-1", seq=0)
#     operation.ok(offset=0)         # or .refuse(); or nothing, if nobody knows how it ended
#     started_at = history.clock()
#     history.read(["one anvil"], invoked_at=started_at)
#
# An operation is what the application wanted once: its retries belong to it and are not operations
# of their own. Values must be unique, so that a message shows which operation appended it.


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


# ---- check ---------------------------------------------------------------------------------------


VIOLATIONS_MAX: Final = 1_000
_NEVER: Final = -1


class Violation(Struct, frozen=True):
    """One promise that was not kept, and what shows it."""

    name: str
    facts: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.name}: " + ", ".join(f"{k}={v!r}" for k, v in self.facts.items())


def check_history(
    history: History, log: Sequence[Hashable], *, first_offset: int = 0
) -> list[Violation]:
    """Compare a history with what the stream holds at its end; an empty list is good.

    `log` has every message of the stream, of which the first has `first_offset` (more than 0 if the
    stream was trimmed). At most 1,000 violations are listed. Every thread must have ended before.
    """
    found: list[Violation] = []
    checks = _Checks(history, log, first_offset)
    for check in (
        checks.values,
        checks.outcomes,
        checks.real_time_order,
        checks.producer_order,
        checks.reads,
        checks.stale_reads,
        checks.readers,
    ):
        for violation in check():
            found.append(violation)
            if len(found) == VIOLATIONS_MAX:
                return found
    return found


class _Checks:
    """One walk for each promise. Where an operation is in the log is looked up once, for all."""

    def __init__(self, history: History, log: Sequence[Hashable], first_offset: int) -> None:
        self._history = history
        self._log = log
        self._first = first_offset
        self._by_value = _by_value(history.operations)
        self._where: dict[Hashable, int] = {}
        for offset, value in enumerate(log, first_offset):
            self._where.setdefault(value, offset)
        self._placed = [self._by_value.get(value) for value in log]

    def values(self) -> Iterator[Violation]:
        """Every message was sent by somebody, and is there once."""
        for offset, value in enumerate(self._log, self._first):
            if value not in self._by_value:
                yield Violation("never_sent", {"value": value, "offset": offset})
            elif self._where[value] != offset:
                facts = {"value": value, "offset": offset, "first_offset": self._where[value]}
                yield Violation("duplicated", facts)

    def outcomes(self) -> Iterator[Violation]:
        """What was acknowledged is there, where it was said to be; what was refused is not."""
        for operation in self._history.operations:
            value, told = operation.value, operation.offset
            offset = self._where.get(value)
            if operation.outcome == "refused" and offset is not None:
                yield Violation("refused_but_present", {"value": value, "offset": offset})
            if operation.outcome != "ok":
                continue
            if offset is None and not self._may_be_trimmed(told):
                yield Violation("lost", {"value": value, "acknowledged_offset": told})
            elif offset is not None and told not in (None, offset):
                facts = {"value": value, "acknowledged_offset": told, "offset": offset}
                yield Violation("wrong_offset", facts)

    def _may_be_trimmed(self, told: int | None) -> bool:
        return self._first > 0 if told is None else told < self._first

    def real_time_order(self) -> Iterator[Violation]:
        """Nothing stands behind what began only after it had been acknowledged."""
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
        """Each producer's messages stand in the order of its epochs and sequences."""
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
        """Every read saw what the log has there, and nothing that was not yet sent."""
        for read in self._history.reads:
            skipped = max(0, self._first - read.offset)  # trimmed since
            start = read.offset + skipped - self._first
            seen = list(read.values[skipped:])
            there = list(self._log[start : start + len(seen)])
            if seen != there:
                yield _differs(read, seen, there, start + self._first)
                continue
            for operation in self._placed[start : start + len(seen)]:
                if operation is not None and operation.invoked_at > read.returned_at:
                    facts = {"reader": read.reader, "value": operation.value}
                    yield Violation("read_before_sent", facts)

    def stale_reads(self) -> Iterator[Violation]:
        """A read that says it has everything has all that was acknowledged before it began."""
        times, ends = _acknowledged(self._history.operations)
        for read in self._history.reads:
            known = bisect_left(times, read.invoked_at)
            if not (read.is_up_to_date and known):
                continue
            end = read.offset + len(read.values)
            if end < ends[known - 1]:
                facts = {"reader": read.reader, "next_offset": end}
                yield Violation("stale_read", {**facts, "acknowledged_until": ends[known - 1]})

    def readers(self) -> Iterator[Violation]:
        """No reader sees the end of the stream go back."""
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
    found = {operation.value: operation for operation in operations}
    if len(found) == len(operations):
        return found
    seen: set[Hashable] = set()
    for operation in operations:
        if operation.value in seen:
            raise ValueError(f"two operations append {operation.value!r}; make each value unique")
        seen.add(operation.value)
    return found


def _differs(read: Read, seen: list[Hashable], there: list[Hashable], start: int) -> Violation:
    pairs = enumerate(zip(seen, there, strict=False))
    at = next((i for i, (mine, real) in pairs if mine != real), len(there))
    facts: dict[str, Any] = {"reader": read.reader, "offset": start + at, "read": seen[at]}
    facts["log"] = there[at] if at < len(there) else None
    return Violation("read_differs", facts)


def _acknowledged(operations: Sequence[Operation]) -> tuple[list[int], list[int]]:
    """When something was acknowledged, and how far the stream must have reached by then."""
    told = sorted(
        (operation.returned_at, operation.offset + 1)
        for operation in operations
        if operation.returned_at is not None and operation.offset is not None
    )
    times, ends, furthest = [], [], 0
    for returned_at, end in told:
        furthest = max(furthest, end)
        times.append(returned_at)
        ends.append(furthest)
    return times, ends
