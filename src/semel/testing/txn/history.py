"""What clients did in transactions and what they were told, for `check_transactions`.

    history = TransactionHistory()
    transfer = history.begin("transfer-7", kind="inline")
    transfer.append("checking", ["7: -10"]).ok()
    transfer.append("savings", ["7: +10"]).ok()
    transfer.decide()               # the commit is about to be sent
    transfer.committed()            # or .aborted(); or nothing, if nobody knows how it ended
    started_at = history.clock()
    history.read("savings", ["7: +10"], start=0, invoked_at=started_at)

A transaction is what the application wanted once: the retries of its requests belong to it. Values
must be unique, so that the streams tell which transaction put each message there.

Workers that share a group say what each transaction took: `move(..., start=)`. The group may also
be set by hand, and an input may be deleted and made anew:

    transfer.move("workers", "orders", 7, start=3, incarnation="o-1")  # it took 3, 4, 5 and 6
    history.set_position("workers", "orders", 0, incarnation="o-1").ok()
    history.delete("orders", incarnation="o-1").ok()
"""

from collections.abc import Callable, Hashable, Sequence
from time import monotonic_ns
from typing import Final, Literal

from msgspec import Struct

TransactionKind = Literal["inline", "staged", "one-shot"]
_Outcome = Literal["committed", "aborted", "unknown"]


class TransactionAppend(Struct, eq=False):
    """One append in a transaction. Without an answer it may have been taken or not."""

    stream: str
    values: Sequence[Hashable]
    invoked_at: int
    clock: Callable[[], int]
    returned_at: int | None = None
    is_refused: bool = False

    def ok(self) -> None:
        """The answer said that the messages are taken."""
        self.returned_at = self.clock()

    def refuse(self) -> None:
        """The answer said that the messages were not taken, and will not be."""
        self.is_refused, self.returned_at = True, self.clock()


class TransactionRead(Struct, eq=False):
    """One answer to a read: these values, of which the first is number `start` of its stream.

    Numbers count what a reader is given, from 0, and know nothing of offsets. `is_up_to_date`: it
    came to the end of what it may see. `is_committed`: it was made at read_committed.
    """

    stream: str
    values: Sequence[Hashable]
    start: int
    reader: str
    invoked_at: int
    returned_at: int
    is_up_to_date: bool
    is_committed: bool

    @property
    def end(self) -> int:
        """The number behind the last value."""
        return self.start + len(self.values)


class TransactionRange(Struct, frozen=True):
    """The messages of a stream that a transaction took for a group: from `start` up to `to`."""

    start: int
    to: int
    incarnation: str = ""


class RecordedChange(Struct, eq=False):
    """A plain set of a group's position, or the end of a stream; done once or more, or never.

    Until it is told otherwise, nobody knows whether it was done. `group` and `to` are those of a
    set.
    """

    stream: str
    incarnation: str
    invoked_at: int
    clock: Callable[[], int]
    group: str = ""
    to: int = 0
    returned_at: int | None = None
    is_refused: bool = False

    def ok(self) -> None:
        """The answer said that it is done."""
        self.returned_at = self.clock()

    def refuse(self) -> None:
        """The answer said that it was not done, and will not be."""
        self.is_refused, self.returned_at = True, self.clock()


class RecordedTransaction(Struct, eq=False):
    """One transaction. Until it is told otherwise, nobody knows how it ended.

    `steps` are its appends, and the reads its client made before them, one after another. `moves`
    are the positions of groups it moves, by group and stream, and `ranges` what it took for groups
    that it shares with others. `refused_at`: a call of it was refused because of a position.
    """

    id: str
    kind: TransactionKind
    invoked_at: int
    clock: Callable[[], int]
    steps: list[TransactionAppend | TransactionRead] = []
    moves: dict[tuple[str, str], int] = {}
    decide_at: int | None = None
    outcome: _Outcome = "unknown"
    returned_at: int | None = None
    ranges: dict[tuple[str, str], TransactionRange] = {}
    prepare_at: int | None = None
    prepared_at: int | None = None
    refused_at: int | None = None

    @property
    def is_inline(self) -> bool:
        """Whether its messages have their places before the decision."""
        return self.kind == "inline"

    def append(self, stream: str, values: Sequence[Hashable]) -> TransactionAppend:
        """Write down that an append begins; of a one-shot commit, what it has for a stream."""
        step = TransactionAppend(stream, values, self.clock(), self.clock)
        self.steps.append(step)
        return step

    def read(
        self,
        stream: str,
        values: Sequence[Hashable],
        *,
        start: int,
        invoked_at: int,
        is_up_to_date: bool = True,
    ) -> None:
        """Write down a read at read_committed on which what comes next in it may depend."""
        reader = f"transaction {self.id}"
        self.steps.append(
            TransactionRead(
                stream, values, start, reader, invoked_at, self.clock(), is_up_to_date, True
            )
        )

    def move(
        self,
        group: str,
        stream: str,
        to: int,
        *,
        start: int | None = None,
        incarnation: str = "",
    ) -> None:
        """Write down that its commit moves a group.

        Without `start` nobody else moves the group, and `to` is unique for group and stream. With
        it others may: the transaction takes the messages from `start`, where the client was told
        that the group is, up to `to`. If the stream may be deleted and made anew, `incarnation`
        names the one that was read, by any word that no other stream of that path has.
        """
        if start is None:
            self.moves[group, stream] = to
        else:
            self.ranges[group, stream] = TransactionRange(start, to, incarnation)

    def prepare(self) -> None:
        """Write down that a prepare is about to be sent."""
        self.prepare_at = self.clock()

    def prepared(self) -> None:
        """The answer said that it is prepared: its commit can no longer be refused."""
        self.prepared_at = self.clock()

    def decide(self) -> None:
        """Write down that the commit is about to be sent; the first of several calls counts."""
        if self.decide_at is None:
            self.decide_at = self.clock()

    def refused(self) -> None:
        """A call of it was refused because another worker has moved a position, or may move it.

        That is no end: call `aborted()` when it is aborted, or at once if it is a one-shot commit.
        """
        self.refused_at = self.clock()

    def committed(self) -> None:
        """The answer said that it is committed."""
        self.outcome, self.returned_at = "committed", self.clock()

    def aborted(self) -> None:
        """The answer said that it is aborted, or was refused and is not open any more."""
        self.outcome, self.returned_at = "aborted", self.clock()


class TransactionHistory:
    """Transactions and reads of any number of streams. Threads may share it.

    `clock` gives integers that never go back and that all clients share.
    """

    def __init__(self, clock: Callable[[], int] = monotonic_ns) -> None:
        self.clock: Final = clock
        self.transactions: Final[list[RecordedTransaction]] = []
        self.reads: Final[list[TransactionRead]] = []
        self.sets: Final[list[RecordedChange]] = []
        self.deletes: Final[list[RecordedChange]] = []

    def begin(self, id: str, *, kind: TransactionKind = "inline") -> RecordedTransaction:
        """Write down that a transaction begins; `id` is a name for people."""
        transaction = RecordedTransaction(id, kind, self.clock(), self.clock)
        self.transactions.append(transaction)
        return transaction

    def read(
        self,
        stream: str,
        values: Sequence[Hashable],
        *,
        start: int,
        invoked_at: int,
        reader: str = "reader",
        is_up_to_date: bool = True,
        is_committed: bool = True,
    ) -> None:
        """Write down that a read begun at `invoked_at` (`history.clock()`) has returned.

        Reads of one `reader` are made one after another, of whatever streams.
        """
        self.reads.append(
            TransactionRead(
                stream,
                values,
                start,
                reader,
                invoked_at,
                self.clock(),
                is_up_to_date,
                is_committed,
            )
        )

    def set_position(
        self, group: str, stream: str, to: int, *, incarnation: str = ""
    ) -> RecordedChange:
        """Write down that a group is about to be set to an offset, without a transaction.

        Wherever the group is then: a set that compares, and is sent once, counts as one as well.
        """
        change = RecordedChange(stream, incarnation, self.clock(), self.clock, group, to)
        self.sets.append(change)
        return change

    def delete(self, stream: str, *, incarnation: str = "") -> RecordedChange:
        """Write down that a stream that groups read is about to be deleted."""
        change = RecordedChange(stream, incarnation, self.clock(), self.clock)
        self.deletes.append(change)
        return change
