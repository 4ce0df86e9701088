"""Generated histories of a correct transaction server, for the tests of the checker."""

from collections.abc import Hashable, Iterator
from random import Random

from semel.testing.txn.check import TransactionReport, check_transactions
from semel.testing.txn.history import RecordedTransaction, TransactionHistory, TransactionKind
from tests.unit.testing.histories import Clock

Logs = dict[str, list[Hashable]]
STREAMS = ("x", "y", "z")
KINDS: tuple[TransactionKind, ...] = ("inline", "staged", "one-shot")


def names(report: TransactionReport) -> set[str]:
    return {anomaly.name for anomaly in report.anomalies}


class TxnWorld:
    """Clients whose requests are interleaved: each is sent, takes effect, and gets a response."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.history = TransactionHistory(Clock())
        self.logs: dict[str, list[tuple[Hashable, RecordedTransaction]]] = {s: [] for s in STREAMS}
        self.is_open: dict[str, bool] = {}
        self.visible: set[str] = set()  # the ids of committed transactions
        self.positions: dict[tuple[str, str], int] = {}
        self._count = 0

    def run(self, transactions: int, clients: int = 5) -> None:
        share = transactions // clients + 1
        turns = [self._client(f"c{i}", share) for i in range(clients)]
        turns += [self._reader(f"r{i}", share) for i in range(3)]
        while turns:
            turn = self.random.choice(turns)
            if next(turn, self) is self:
                turns.remove(turn)

    def committed(self) -> dict[str, list[Hashable]]:
        return {stream: self.read(stream) for stream in STREAMS}

    def uncommitted(self) -> dict[str, list[Hashable]]:
        return {stream: [value for value, _ in log] for stream, log in self.logs.items()}

    def check(self) -> TransactionReport:
        logs = self.committed(), self.uncommitted()
        return check_transactions(self.history, *logs, positions=self.positions)

    def read(self, stream: str) -> list[Hashable]:
        """Return the committed values before the first message of an open transaction."""
        found = []
        for value, transaction in self.logs[stream]:
            if transaction.is_inline and self.is_open[transaction.id]:
                break
            if transaction.id in self.visible:
                found.append(value)
        return found

    # ---- the clients -----------------------------------------------------------------------------

    def _client(self, name: str, count: int) -> Iterator[None]:
        for number in range(count):
            kind = self.random.choice(KINDS)
            transaction = self.history.begin(f"{name}-{number}", kind=kind)
            self.is_open[transaction.id] = True
            yield from self._work(transaction)
            if self.random.random() < 0.3:
                transaction.move(name, "x", number)
            yield from self._decide(transaction)

    def _work(self, transaction: RecordedTransaction) -> Iterator[None]:
        for _ in range(self.random.randint(1, 4)):
            stream = self.random.choice(STREAMS)
            if self.random.random() < 0.3:
                yield from self._read_in(transaction, stream)
            self._count += 1
            value = f"v{self._count}"
            append = transaction.append(stream, [value])
            if transaction.kind == "one-shot":
                continue
            yield
            if transaction.is_inline:
                self.logs[stream].append((value, transaction))
            yield
            append.ok()

    def _read_in(self, transaction: RecordedTransaction, stream: str) -> Iterator[None]:
        invoked_at = self.history.clock()
        yield
        seen = self.read(stream)
        yield
        start = self.random.randint(0, len(seen))
        transaction.read(stream, seen[start:], start=start, invoked_at=invoked_at)

    def _decide(self, transaction: RecordedTransaction) -> Iterator[None]:
        fate = self.random.random()
        if fate > 0.2:
            transaction.decide()
        yield
        if fate > 0.3:
            self._commit(transaction)
        self.is_open[transaction.id] = False
        yield
        if self.random.random() < 0.1:
            return  # the response is lost
        (transaction.committed if fate > 0.3 else transaction.aborted)()

    def _commit(self, transaction: RecordedTransaction) -> None:
        self.visible.add(transaction.id)
        self.positions.update(transaction.moves)
        if transaction.is_inline:
            return
        for step in transaction.steps:
            if hasattr(step, "clock"):  # an append
                self.logs[step.stream] += [(value, transaction) for value in step.values]

    def _reader(self, name: str, count: int) -> Iterator[None]:
        for _ in range(count):
            stream = self.random.choice(STREAMS)
            invoked_at = self.history.clock()
            is_committed = self.random.random() < 0.8
            yield
            seen = self.read(stream) if is_committed else self.uncommitted()[stream]
            is_whole = self.random.random() < 0.7
            start = self.random.randint(0, len(seen))
            end = len(seen) if is_whole else self.random.randint(start, len(seen))
            yield
            self.history.read(
                stream,
                seen[start:end],
                start=start,
                invoked_at=invoked_at,
                reader=name,
                is_up_to_date=is_whole,
                is_committed=is_committed,
            )
