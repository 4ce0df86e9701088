"""Facts about a recorded history of transactions. Several checks use these facts."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct

from semel.testing.txn.history import (
    RecordedTransaction,
    TransactionAppend,
    TransactionHistory,
    TransactionRead,
)

NEVER: Final = 2**63  # later than any time

Log = Mapping[str, Sequence[Hashable]]


class Anomaly(Struct, frozen=True):
    """A violation of one guarantee.

    `text` describes the evidence. `transactions` contains the ids of the transactions involved.
    """

    name: str
    text: str
    transactions: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}: {self.text}"


class Sent(Struct, frozen=True):
    """The append that sent a value.

    `number` is the index of the transaction in the history. `step` is the index of the append in
    `transaction.steps`.
    """

    number: int
    step: int
    transaction: RecordedTransaction
    append: TransactionAppend


class HistoryFacts:
    """The place of every value in its stream, and the outcome of every transaction.

    `numbers[stream][value]` is the index of a value in its stream at read_committed.
    `raw_numbers[stream][value]` is the index at read_uncommitted.

    `is_committed` and `ended_by` have one entry for each transaction. A transaction with an unknown
    outcome counts as committed if any of its values or new positions is visible at the end.
    `ended_by` contains the latest time at which each transaction can have ended.
    """

    def __init__(
        self,
        history: TransactionHistory,
        committed: Log,
        uncommitted: Log,
        positions: Mapping[tuple[str, str], int],
    ) -> None:
        self.history: Final = history
        self.committed: Final = committed
        self.uncommitted: Final = uncommitted
        self.positions: Final = positions
        self.sent: Final = _sent(history.transactions)
        self.numbers: Final = {stream: _numbers(log) for stream, log in committed.items()}
        self.raw_numbers: Final = {stream: _numbers(log) for stream, log in uncommitted.items()}
        self.is_committed: Final = [self._is_committed(each) for each in history.transactions]
        self.ended_by: Final = [time_or_never(each.returned_at) for each in history.transactions]
        for read in self.reads():
            for value in read.values if read.is_committed else ():
                sent = self.sent.get(value)
                if sent is not None and self.is_committed[sent.number]:
                    self.ended_by[sent.number] = min(self.ended_by[sent.number], read.returned_at)

    def reads(self) -> Iterator[TransactionRead]:
        """Yield all reads: first the reads outside transactions, then the reads in transactions."""
        yield from self.history.reads
        for transaction in self.history.transactions:
            for step in transaction.steps:
                if isinstance(step, TransactionRead):
                    yield step

    def offset_times(self, sent: Sent) -> tuple[int, int]:
        """Return the earliest and the latest possible time at which an append got its offsets."""
        if sent.transaction.is_inline:
            return sent.append.invoked_at, time_or_never(sent.append.returned_at)
        decide_at = sent.transaction.decide_at
        return -NEVER if decide_at is None else decide_at, self.ended_by[sent.number]

    def sender(self, stream: str, value: Hashable) -> Sent | None:
        """Return the append that sent `value` to `stream`, or None if there is no such append."""
        sent = self.sent.get(value)
        return sent if sent is not None and sent.append.stream == stream else None

    def _is_committed(self, transaction: RecordedTransaction) -> bool:
        if transaction.outcome != "unknown":
            return transaction.outcome == "committed"
        return self.has_moved(transaction) or any(
            value in self.numbers.get(append.stream, {})
            for append in appends_of(transaction)
            for value in append.values
        )

    def has_moved(self, transaction: RecordedTransaction) -> bool:
        """Return True if a group's final position is the one to which this transaction moves it.

        If so, the transaction is committed, because no other transaction sets the same position.
        """
        return any(self.positions.get(where) == to for where, to in transaction.moves.items())


def time_or_never(time: int | None) -> int:
    return NEVER if time is None else time


def appends_of(transaction: RecordedTransaction) -> Iterator[TransactionAppend]:
    """Yield all appends of a transaction except the refused appends."""
    for step in transaction.steps:
        if isinstance(step, TransactionAppend) and not step.is_refused:
            yield step


def name_of(transaction: RecordedTransaction) -> str:
    """Return the id, kind and outcome of a transaction, for use in the text of an anomaly."""
    return f"transaction {transaction.id} ({transaction.kind}, {transaction.outcome})"


def _numbers(log: Sequence[Hashable]) -> dict[Hashable, int]:
    """Return a mapping from each value to the index of its first occurrence in `log`."""
    return {value: number for number, value in reversed([*enumerate(log)])}


def _sent(transactions: Sequence[RecordedTransaction]) -> dict[Hashable, Sent]:
    by_value: dict[Hashable, Sent] = {}
    for number, transaction in enumerate(transactions):
        for index, step in enumerate(transaction.steps):
            if not isinstance(step, TransactionAppend):
                continue
            sent = Sent(number, index, transaction, step)
            for value in step.values:
                if value in by_value:
                    raise ValueError(f"{value!r} is appended twice; make each value unique")
                by_value[value] = sent
    return by_value
