"""What is known of a history of transactions before anything is judged: places, ends, times."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct

from semel.testing.txn.history import (
    RecordedTransaction,
    TransactionAppend,
    TransactionHistory,
    TransactionRead,
)

Log = Mapping[str, Sequence[Hashable]]


class Anomaly(Struct, frozen=True):
    """One promise that was not kept, and what shows it; `transactions` are the ids involved."""

    name: str
    text: str
    transactions: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}: {self.text}"


class Sent(Struct, frozen=True):
    """Who sent a value: the number of the transaction and of the step in it."""

    number: int
    step: int
    transaction: RecordedTransaction
    append: TransactionAppend


class HistoryFacts:
    """Where every value is, and what became of every transaction.

    A transaction of unknown outcome is committed if any of its values or moves is visible in the
    end, and aborted if none is.
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
        self.place: Final = {name: _places(log) for name, log in committed.items()}
        self.raw_place: Final = {name: _places(log) for name, log in uncommitted.items()}
        self.is_committed: Final = [self._is_committed(each) for each in history.transactions]
        # By when a transaction was decided for certain, if that is known; by number.
        self.decided_by: Final = [each.returned_at for each in history.transactions]
        for read in self.reads():
            self._note_read(read)

    def reads(self) -> Iterator[TransactionRead]:
        """Return all reads: those of readers, then those made in transactions."""
        yield from self.history.reads
        for transaction in self.history.transactions:
            for step in transaction.steps:
                if isinstance(step, TransactionRead):
                    yield step

    def placed_between(self, sent: Sent) -> tuple[int | None, int | None]:
        """Return the times between which a value got its offset."""
        if sent.transaction.is_inline:
            return sent.append.invoked_at, sent.append.returned_at
        return sent.transaction.decide_at, self.decided_by[sent.number]

    def sender(self, stream: str, value: Hashable) -> Sent | None:
        """Find who sent a value to a stream."""
        sent = self.sent.get(value)
        return sent if sent is not None and sent.append.stream == stream else None

    def _is_committed(self, transaction: RecordedTransaction) -> bool:
        if transaction.outcome != "unknown":
            return transaction.outcome == "committed"
        return any(True for _ in self._visible(transaction)) or any(
            self.positions.get(where) == to for where, to in transaction.moves.items()
        )

    def _visible(self, transaction: RecordedTransaction) -> Iterator[Hashable]:
        for append in appends_of(transaction):
            places = self.place.get(append.stream, {})
            yield from (value for value in append.values if value in places)

    def _note_read(self, read: TransactionRead) -> None:
        """Whatever somebody has read at read_committed was decided by then."""
        if not read.is_committed:
            return
        for value in read.values:
            sent = self.sent.get(value)
            if sent is None or not self.is_committed[sent.number]:
                continue
            known = self.decided_by[sent.number]
            if known is None or read.returned_at < known:
                self.decided_by[sent.number] = read.returned_at


def appends_of(transaction: RecordedTransaction) -> Iterator[TransactionAppend]:
    """Yield the appends of a transaction that were not refused."""
    for step in transaction.steps:
        if isinstance(step, TransactionAppend) and not step.is_refused:
            yield step


def name_of(transaction: RecordedTransaction) -> str:
    """Name a transaction in a sentence."""
    return f"transaction {transaction.id} ({transaction.kind}, {transaction.outcome})"


def _places(log: Sequence[Hashable]) -> dict[Hashable, int]:
    found: dict[Hashable, int] = {}
    for number, value in enumerate(log):
        found.setdefault(value, number)
    return found


def _sent(transactions: Sequence[RecordedTransaction]) -> dict[Hashable, Sent]:
    found: dict[Hashable, Sent] = {}
    for number, transaction in enumerate(transactions):
        for index, step in enumerate(transaction.steps):
            if not isinstance(step, TransactionAppend):
                continue
            sent = Sent(number, index, transaction, step)
            for value in step.values:
                if value in found:
                    raise ValueError(f"{value!r} is appended twice; make each value unique")
                found[value] = sent
    return found
