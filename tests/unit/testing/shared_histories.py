"""Generated histories of workers that share a group, on a correct or a faulty server."""

from collections.abc import Hashable, Iterator
from random import Random

from msgspec import Struct

from semel.testing.txn.check import TransactionReport, check_transactions
from semel.testing.txn.history import RecordedTransaction, TransactionHistory, TransactionKind
from tests.unit.testing.histories import Clock

GROUP, INPUT, OUTPUT = "g", "in", "out"
KINDS: tuple[TransactionKind, ...] = ("inline", "staged", "one-shot")


class GroupPosition(Struct, frozen=True):
    """The position of the group as the server reported it to a worker."""

    incarnation: str
    offset: int
    version: int


class SharedWorld:
    """Workers and an operator whose requests are interleaved at random.

    The server checks the position when a transaction names it and when the transaction commits,
    holds it for a prepared transaction, and refuses it after a delete. Flags disable these rules.
    """

    def __init__(
        self,
        random: Random,
        *,
        compares: bool = True,
        holds: bool = True,
        minds_deletes: bool = True,
    ) -> None:
        self.random = random
        self.history = TransactionHistory(Clock())
        self.log: list[Hashable] = []
        self.now = GroupPosition("in-0", 0, 0)
        self._count = 0
        self._compares = compares
        self._holds = holds
        self._minds_deletes = minds_deletes
        self._holder: str | None = None

    def run(self, workers: int = 4, turns: int = 8) -> None:
        acts = [self._worker(f"w{number}", turns) for number in range(workers)]
        acts.append(self._operator(turns))
        while acts:
            act = self.random.choice(acts)
            if next(act, self) is self:
                acts.remove(act)

    def check(self) -> TransactionReport:
        logs = {OUTPUT: self.log}
        return check_transactions(
            self.history,
            logs,
            logs,
            positions={(GROUP, INPUT): self.now.offset} if self.now.version else {},
            incarnations={INPUT: self.now.incarnation},
        )

    # ---- the clients -----------------------------------------------------------------------------

    def _worker(self, name: str, turns: int) -> Iterator[None]:
        for number in range(turns):
            known = self.now
            yield
            kind = self.random.choice(KINDS)
            transaction = self.history.begin(f"{name}-{number}", kind=kind)
            transaction.append(OUTPUT, [transaction.id])
            to = known.offset + self.random.randint(1, 3)
            transaction.move(GROUP, INPUT, to, start=known.offset, incarnation=known.incarnation)
            yield from self._transact(transaction, known)

    def _transact(self, transaction: RecordedTransaction, known: GroupPosition) -> Iterator[None]:
        is_one_shot = transaction.kind == "one-shot"
        if not is_one_shot and not self._may_name(known):
            transaction.refused()
            transaction.aborted()
            return
        yield
        is_prepared = not is_one_shot and self.random.random() < 0.4
        if is_prepared:
            transaction.prepare()
            yield
            if not self._may_end(transaction, known):
                transaction.refused()
                transaction.aborted()
                return
            self._holder = transaction.id if self._holds else None
            yield
            transaction.prepared()
            yield
        transaction.decide()
        yield
        may_end = is_prepared or self._may_end(transaction, known)
        if may_end and (not is_one_shot or self._may_name(known)):
            self._commit(transaction)
            outcome = transaction.committed
        else:
            transaction.refused()
            outcome = transaction.aborted
        if self._holder == transaction.id:
            self._holder = None
        yield
        if self.random.random() > 0.1:  # otherwise the response is lost
            outcome()

    def _operator(self, turns: int) -> Iterator[None]:
        for _ in range(turns):
            incarnation = self.now.incarnation
            if self.random.random() < 0.2:
                change = self.history.delete(INPUT, incarnation=incarnation)
                yield
                self._count += 1
                self.now, self._holder = GroupPosition(f"in-{self._count}", 0, 0), None
            else:
                to = self.random.randint(0, max(self.now.offset, 1))
                change = self.history.set_position(GROUP, INPUT, to, incarnation=incarnation)
                yield
                if self._holder is not None:
                    change.refuse()
                    continue
                for _ in range(self.random.randint(1, 2)):  # sent again after a lost response
                    self.now = GroupPosition(incarnation, to, self.now.version + 1)
                    yield
            yield
            change.ok()

    # ---- the server ------------------------------------------------------------------------------

    def _may_name(self, known: GroupPosition) -> bool:
        return known == self.now and self._holder is None

    def _may_end(self, transaction: RecordedTransaction, known: GroupPosition) -> bool:
        if known.incarnation != self.now.incarnation:
            return not self._minds_deletes
        if self._holder not in (None, transaction.id):
            return not self._compares
        return known.version == self.now.version or not self._compares

    def _commit(self, transaction: RecordedTransaction) -> None:
        taken = transaction.ranges[GROUP, INPUT]
        self.log.append(transaction.id)
        if taken.incarnation == self.now.incarnation:
            self.now = GroupPosition(taken.incarnation, taken.to, self.now.version + 1)
