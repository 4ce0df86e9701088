"""Records what clients sent and which responses they got, for `check_transactions`.

    history = TransactionHistory()
    transfer = history.begin("transfer-7", kind="inline")
    transfer.append("checking", ["7: -10"]).ok()
    transfer.append("savings", ["7: +10"]).ok()
    transfer.decide()               # the commit is about to be sent
    transfer.committed()            # or .aborted(), or no call if the outcome is unknown
    started_at = history.clock()
    history.read("savings", ["7: +10"], start=0, invoked_at=started_at)

Record a retried request only once. Every value must be unique, so that each message identifies its
transaction.

Workers that share a group use `move(..., start=)` to record the range that each transaction
processed. A history can also contain changes outside any transaction: the position of a group is
set, or an input stream is deleted and created again. For example:

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
    """A recorded request. Its outcome is unknown until `ok` or `refuse` is called."""

    stream: str
    invoked_at: int
    clock: Callable[[], int]
    returned_at: int | None = None
    is_refused: bool = False

    @property
    def is_done(self) -> bool:
        """True if a response said that the request was carried out."""
        return self.returned_at is not None and not self.is_refused

    def ok(self) -> None:
        """Record a response that says that the request was carried out."""
        self.returned_at = self.clock()

    def refuse(self) -> None:
        """Record a refusal: the request was not carried out and never will be."""
        self.is_refused, self.returned_at = True, self.clock()


class TransactionAppend(_RecordedRequest, eq=False):
    """One append in a transaction."""

    values: Sequence[Hashable]


class TransactionRead(Struct, eq=False):
    """One read and the values that it returned. `start` is the number of the first value.

    Numbers are not offsets: they count the messages visible at the read's isolation level, from 0.

    `is_up_to_date` is true if the read reached the last visible message. `is_committed` is true for
    a read at read_committed.
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
        """The number of the first message after the end of this read."""
        return self.start + len(self.values)


class TransactionRange(Struct, frozen=True):
    """The messages of a stream that a transaction processed for a group.

    The range begins at the offset `start` and ends before the offset `to`.
    """

    start: int
    to: int
    incarnation: str = ""


class RecordedChange(_RecordedRequest, eq=False):
    """A change outside any transaction: a group's position was set, or a stream was deleted.

    Until `ok` or `refuse` is called, the change may have happened once, several times or never.
    `group` and the new position `to` are used only if a position was set.
    """

    incarnation: str
    group: str = ""
    to: int = 0


class RecordedTransaction(Struct, eq=False):
    """One transaction. Its outcome is unknown until `committed` or `aborted` is called.

    `steps` contains its appends and the reads of its client, in order. A call of `move` without
    `start` adds the new position to `moves`. A call of `move` with `start` adds the processed range
    to `ranges`. The keys of `moves` and `ranges` are (group, stream).

    `prepare_at` and `decide_at` are the times at which the prepare and the commit were sent.
    `prepared_at` is the time of the response to the prepare. `refused_at` is the time of a refusal
    because of a group's position.
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
        """True if messages get their offsets when they are appended, not at the commit."""
        return self.kind == "inline"

    def append(self, stream: str, values: Sequence[Hashable]) -> TransactionAppend:
        """Record that an append is about to be sent.

        To record the response, call `ok` or `refuse` on the returned append. For a one-shot commit,
        call `append` once for each stream.
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
        """Record a read with the isolation `read_committed` by this transaction's client.

        The read is not part of the transaction, but later appends can depend on its result.
        """
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

        If several transactions move this position, pass `start`: the position before the move, as
        the server reported it. This records that the messages from `start` up to, but not
        including, `to` were processed. Without `start`, each transaction must use a different `to`.

        If the stream can be deleted and created again, pass `incarnation`: any string that is
        unique for the incarnation that was read.
        """
        if start is None:
            self.moves[group, stream] = to
        else:
            self.ranges[group, stream] = TransactionRange(start, to, incarnation)

    def prepare(self) -> None:
        """Record that the prepare request is about to be sent."""
        self.prepare_at = self.clock()

    def prepared(self) -> None:
        """Record a response that says that the transaction is prepared.

        From now on, it is an anomaly if the commit is refused because of a group's position.
        """
        self.prepared_at = self.clock()

    def decide(self) -> None:
        """Record that the commit request is about to be sent. Only the first call has an effect."""
        if self.decide_at is None:
            self.decide_at = self.clock()

    def refused(self) -> None:
        """Record that a request was refused because of a group's position.

        The reason is that a different worker has moved the position, or holds it. The transaction
        stays open: call `aborted()` when it is aborted. For a one-shot commit, call `aborted()`
        immediately after this method.
        """
        self.refused_at = self.clock()

    def committed(self) -> None:
        """Record a response that says that the transaction is committed."""
        self.outcome, self.returned_at = "committed", self.clock()

    def aborted(self) -> None:
        """Record that the transaction ended without a commit, because of an abort or a refusal."""
        self.outcome, self.returned_at = "aborted", self.clock()


class TransactionHistory:
    """The recorded transactions and reads of any number of streams.

    Several threads can share a history. `clock` must return integers that never decrease. All
    clients must use the same clock.
    """

    def __init__(self, clock: Callable[[], int] = monotonic_ns) -> None:
        self.clock: Final = clock
        self.transactions: Final[list[RecordedTransaction]] = []
        self.reads: Final[list[TransactionRead]] = []
        self.sets: Final[list[RecordedChange]] = []
        self.deletes: Final[list[RecordedChange]] = []

    def begin(self, id: str, *, kind: TransactionKind = "inline") -> RecordedTransaction:
        """Record that a transaction begins, and return the transaction.

        `id` is used only in the texts of anomalies.
        """
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
        """Record a read that has just returned.

        Call `history.clock()` before the read, and pass the result as `invoked_at`. Reads with the
        same `reader` must not overlap in time, even if they read different streams.
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
        """Record that a group's position is about to be set to `to`, outside any transaction.

        To record the response, call `ok` or `refuse` on the returned change. Do not retry a request
        with an expected offset: the retry can be refused although the first attempt took effect.
        """
        change = RecordedChange(
            incarnation, group, to, stream=stream, invoked_at=self.clock(), clock=self.clock
        )
        self.sets.append(change)
        return change

    def delete(self, stream: str, *, incarnation: str = "") -> RecordedChange:
        """Record that an input stream of a group is about to be deleted.

        To record the response, call `ok` or `refuse` on the returned change.
        """
        change = RecordedChange(
            incarnation, stream=stream, invoked_at=self.clock(), clock=self.clock
        )
        self.deletes.append(change)
        return change
