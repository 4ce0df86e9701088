"""The recorded transactions of clients and their responses, for `check_transactions`.

    history = TransactionHistory()
    transfer = history.begin("transfer-7", kind="inline")
    transfer.append("checking", ["7: -10"]).ok()
    transfer.append("savings", ["7: +10"]).ok()
    transfer.decide()               # the commit is about to be sent
    transfer.committed()            # or .aborted(), or no call if the outcome is unknown
    started_at = history.clock()
    history.read("savings", ["7: +10"], start=0, invoked_at=started_at)

A transaction includes the retries of its requests. Values must be unique, so that each message
identifies the transaction that appended it.

Workers that share a group record the range that each transaction processed, with
`move(..., start=)`. The group may also be set without a transaction, and an input may be deleted
and created again:

    transfer.move("workers", "orders", 7, start=3, incarnation="o-1")  # it processed 3, 4, 5 and 6
    history.set_position("workers", "orders", 0, incarnation="o-1").ok()
    history.delete("orders", incarnation="o-1").ok()
"""

from collections.abc import Callable, Hashable, Sequence
from time import monotonic_ns
from typing import Final, Literal

from msgspec import Struct

TransactionKind = Literal["inline", "staged", "one-shot"]
_Outcome = Literal["committed", "aborted", "unknown"]


class _RecordedRequest(Struct, eq=False, kw_only=True):
    """A request; its outcome is indeterminate until `ok` or `refuse` is called."""

    stream: str
    invoked_at: int
    clock: Callable[[], int]
    returned_at: int | None = None
    is_refused: bool = False

    @property
    def is_done(self) -> bool:
        """Whether a response said that the request was done."""
        return self.returned_at is not None and not self.is_refused

    def ok(self) -> None:
        """Record a response: the request was done."""
        self.returned_at = self.clock()

    def refuse(self) -> None:
        """Record a response: the request was not done and will not be done."""
        self.is_refused, self.returned_at = True, self.clock()


class TransactionAppend(_RecordedRequest, eq=False):
    """One append in a transaction."""

    values: Sequence[Hashable]


class TransactionRead(Struct, eq=False):
    """One response to a read. Its first value is number `start` of the stream.

    Numbers count the messages that a reader gets, from 0. They are not offsets. `is_up_to_date` is
    true if the read reached the end of the messages visible to it. `is_committed` is true for a
    read at read_committed.
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
        """The number after the last value."""
        return self.start + len(self.values)


class TransactionRange(Struct, frozen=True):
    """The messages of a stream that a transaction processed for a group.

    They are the messages from the offset `start` up to `to`, which is excluded.
    """

    start: int
    to: int
    incarnation: str = ""


class RecordedChange(_RecordedRequest, eq=False):
    """A set of a group's position without a transaction, or the deletion of a stream.

    Until `ok` or `refuse` is called, it may have been done never, once or several times. Only a set
    has a `group` and the position `to`.
    """

    incarnation: str
    group: str = ""
    to: int = 0


class RecordedTransaction(Struct, eq=False):
    """One transaction; its outcome is unknown until `committed` or `aborted` is called.

    `steps` are its appends and the reads of its client, in order. `moves` are the positions to
    which it moves groups, by group and stream. `ranges` are the messages it processed for groups
    that it shares with other transactions. `decide_at` is the time at which its commit was sent.
    `refused_at` is set if one of its requests was refused because of a position.
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
        """Whether its messages get their offsets before the transaction ends."""
        return self.kind == "inline"

    def append(self, stream: str, values: Sequence[Hashable]) -> TransactionAppend:
        """Record the start of an append and return it, to record its response.

        For a one-shot commit, record its messages for one stream.
        """
        step = TransactionAppend(values, stream=stream, invoked_at=self.clock(), clock=self.clock)
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
        """Record a read at read_committed on which later appends of this transaction may depend."""
        self.steps.append(
            TransactionRead(
                stream,
                values,
                start,
                reader=f"transaction {self.id}",
                invoked_at=invoked_at,
                returned_at=self.clock(),
                is_up_to_date=is_up_to_date,
                is_committed=True,
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
        """Record that the commit of this transaction moves the position of a group to `to`.

        With `start`, other transactions may move the group, too. `start` is the position of the
        group that the server reported, and the transaction processes the messages from `start` up
        to `to`, which is excluded. Without `start`, every move of this group in this stream must be
        to a different position. If the stream may be deleted and created again, pass as
        `incarnation` any string that is unique for the incarnation that was read.
        """
        if start is None:
            self.moves[group, stream] = to
        else:
            self.ranges[group, stream] = TransactionRange(start, to, incarnation)

    def prepare(self) -> None:
        """Record that a prepare is about to be sent."""
        self.prepare_at = self.clock()

    def prepared(self) -> None:
        """Record a response: the transaction is prepared. Its commit must not be refused now."""
        self.prepared_at = self.clock()

    def decide(self) -> None:
        """Record that the commit is about to be sent; only the first call counts."""
        if self.decide_at is None:
            self.decide_at = self.clock()

    def refused(self) -> None:
        """Record that a request was refused because another worker moved or may move a position.

        This does not end the transaction. Call `aborted()` when it is aborted; for a one-shot
        commit, call it at once.
        """
        self.refused_at = self.clock()

    def committed(self) -> None:
        """Record a response: the transaction is committed."""
        self.outcome, self.returned_at = "committed", self.clock()

    def aborted(self) -> None:
        """Record a response: the transaction is aborted, or it was refused and is not open."""
        self.outcome, self.returned_at = "aborted", self.clock()


class TransactionHistory:
    """The recorded transactions and reads of any number of streams. Threads may share a history.

    `clock` returns integers that never decrease. All clients must use the same clock.
    """

    def __init__(self, clock: Callable[[], int] = monotonic_ns) -> None:
        self.clock: Final = clock
        self.transactions: Final[list[RecordedTransaction]] = []
        self.reads: Final[list[TransactionRead]] = []
        self.sets: Final[list[RecordedChange]] = []
        self.deletes: Final[list[RecordedChange]] = []

    def begin(self, id: str, *, kind: TransactionKind = "inline") -> RecordedTransaction:
        """Record the begin of a transaction and return it; `id` is only for texts of anomalies."""
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
        """Record a read that has just returned; `invoked_at` is `history.clock()` at its start.

        The reads of one `reader` must not overlap in time, even if they read different streams.
        """
        self.reads.append(
            TransactionRead(
                stream,
                values,
                start,
                reader=reader,
                invoked_at=invoked_at,
                returned_at=self.clock(),
                is_up_to_date=is_up_to_date,
                is_committed=is_committed,
            )
        )

    def set_position(
        self, group: str, stream: str, to: int, *, incarnation: str = ""
    ) -> RecordedChange:
        """Record that a group is about to be set to an offset without a transaction.

        Returns the change, to record its response. A set with an expected offset can be recorded,
        too, if it is sent only once.
        """
        change = RecordedChange(
            incarnation, group, to, stream=stream, invoked_at=self.clock(), clock=self.clock
        )
        self.sets.append(change)
        return change

    def delete(self, stream: str, *, incarnation: str = "") -> RecordedChange:
        """Record that a stream that groups read is about to be deleted.

        Returns the change, to record its response.
        """
        change = RecordedChange(
            incarnation, stream=stream, invoked_at=self.clock(), clock=self.clock
        )
        self.deletes.append(change)
        return change
