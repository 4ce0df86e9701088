"""Views of transactions, groups and sinks: plain values for operators and clients."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice

from msgspec import Struct

from semel.machine.rows import PositionRow, SinkRow, VersionRow
from semel.machine.state import State, Stream, Txn
from semel.machine.txn.decide_end import chunks_of, deadline_of
from semel.machine.txn.draft import deleted_of, unpack_result
from semel.model.commands import Owner, SnapshotRange, TxnResult

OPEN = "open"
PREPARED = "prepared"


class TxnDates(Struct, frozen=True, gc=False):
    """When a pending transaction began, when it was last used, and when it times out.

    `due_ms` is None if the transaction has no timeout.
    """

    begun_ms: int
    touched_ms: int
    due_ms: int | None


Dates = Callable[[Txn], TxnDates]


def stored_dates(txn: Txn) -> TxnDates:
    """Return the dates of a transaction in frame time, as they are stored.

    Clients need the broker's dates instead, because frame time can be far ahead of the clock.
    """
    return TxnDates(txn.row.begun_ms, txn.row.touched_ms, deadline_of(txn))


class TxnStreamView(Struct, frozen=True):
    """A stream that a transaction can write to.

    `first_offset` is the transaction's first offset in the stream. It is None if the transaction
    has no offsets there yet.
    """

    path: str
    first_offset: int | None
    messages: int
    chunks: int


class PositionView(Struct, frozen=True):
    """A group's position in a stream that a transaction will set."""

    group: str
    path: str
    offset: int


class PendingView(Struct, frozen=True):
    """A move of a group's position to the offset `to`, by a pending transaction.

    `id`, `epoch`, `state` and `due_ms` describe the transaction, as in `TxnView`.
    """

    path: str
    id: str
    epoch: int
    state: str
    to: int
    due_ms: int | None


class GroupView(Struct, frozen=True):
    """A group's stored positions by path, and its pending moves, with at most one for each path.

    The positions are in no order, because there can be very many. The pending moves are sorted.
    """

    group: str
    positions: Mapping[str, PositionRow]
    pending: tuple[PendingView, ...]


class TxnView(Struct, frozen=True):
    """A pending transaction. Its dates are those of `TxnDates`."""

    id: str
    epoch: int
    number: int
    kind: str
    owner: Owner
    state: str
    is_implicit: bool
    begun_ms: int
    touched_ms: int
    due_ms: int | None
    chunks: int
    next_seq: int
    streams: tuple[TxnStreamView, ...]
    positions: tuple[PositionView, ...]
    deleted: tuple[str, ...]


class SnapshotView(Struct, frozen=True):
    """The step that a group has pinned."""

    group: str
    number: int
    ranges: tuple[SnapshotRange, ...]
    hash: str


class SinkVersionView(Struct, frozen=True):
    """A version that a sink has committed. `packed` is the packed result of its commit."""

    version: int
    input: str | None
    packed: bytes

    @property
    def result(self) -> TxnResult:
        """The result of the version's commit. It is unpacked each time, and can have many rows."""
        return unpack_result(self.packed)


class SinkView(Struct, frozen=True):
    """A sink. `versions` are its retained versions, oldest first.

    `open_transactions` is the number of its pending transactions.
    """

    app: str
    query_id: str
    last_version: int
    versions: tuple[SinkVersionView, ...]
    open_transactions: int


def transactions(
    state: State,
    state_filter: str | None = None,
    stream: str | None = None,
    after: int = 0,
    *,
    dates: Dates = stored_dates,
) -> Iterator[TxnView]:
    """Yield the pending transactions with numbers greater than `after`, oldest first.

    If `state_filter` is set, only transactions in that state are included. If `stream` is set, only
    transactions that can write to that stream or name a position in it are included.
    """
    return (
        txn_view(state, txn, dates)
        for txn in pending_txns(state, stream, after)
        if state_filter in (None, txn_state(txn))
    )


def pending_txns(state: State, path: str | None, after: int) -> Iterator[Txn]:
    """Yield the same transactions as `transactions`, without a view and without a filter by state.

    A view of a transaction with many streams is long. So a caller that needs few views makes them.
    """
    numbers: Iterable[int] = state.by_txn
    if path is not None:
        stream = state.by_path.get(path)
        numbers = () if stream is None else stream.txns or ()
    ordered = sorted(numbers)
    for number in islice(ordered, bisect_right(ordered, after), None):
        yield state.by_txn[number]


def transaction(state: State, txn_id: str, dates: Dates = stored_dates) -> TxnView | None:
    """Return the pending transaction with the id `txn_id`, or None if there is none."""
    txn = state.transactions.get(txn_id)
    return None if txn is None else txn_view(state, txn, dates)


def holding_view(state: State, path: str, dates: Dates = stored_dates) -> TxnView | None:
    """Return the pending transaction that keeps a stream's stable offset from moving forward.

    Return None if the stream does not exist, or if no pending inline transaction has messages in
    the stream.
    """
    stream = state.by_path.get(path)
    if stream is None or not stream.open:
        return None
    return txn_view(state, state.by_txn[next(iter(stream.open))], dates)


def txn_state(txn: Txn) -> str:
    """Return the state of a pending transaction: OPEN or PREPARED."""
    return PREPARED if txn.row.is_prepared else OPEN


def txn_view(state: State, txn: Txn, dates: Dates) -> TxnView:
    """Return the view of a pending transaction."""
    row, by_number, dated = txn.row, state.by_number, dates(txn)
    streams = (
        TxnStreamView(
            by_number[number].row.path,
            None if stream.first < 0 else stream.first,
            stream.messages,
            stream.chunks,
        )
        for number, stream in txn.streams.items()
    )
    return TxnView(
        id=row.id,
        epoch=row.epoch,
        number=row.number,
        kind=row.kind,
        owner=row.owner,
        state=txn_state(txn),
        is_implicit=row.is_implicit,
        begun_ms=dated.begun_ms,
        touched_ms=dated.touched_ms,
        due_ms=dated.due_ms,
        chunks=chunks_of(txn),
        next_seq=row.next_seq,
        streams=tuple(streams),
        positions=tuple(
            PositionView(named.group, by_number[named.stream].row.path, named.to)
            for named in row.positions
        ),
        deleted=deleted_of(row),
    )


def group_view(
    state: State,
    group: str,
    *,
    stream: str | None = None,
    transaction: str | None = None,
    dates: Dates = stored_dates,
) -> GroupView:
    """Return the positions of a group and its pending moves.

    If `stream` is set, only positions and moves in that stream are included. `transaction` is the
    id of the caller's own transaction. Its moves are left out.
    """
    stored, named = state.groups.get(group, {}), state.named.get(group, {})
    if stream is None:
        positions = stored.copy()
        numbers: Iterable[int] = named
    else:
        positions = {stream: stored[stream]} if stream in stored else {}
        only = state.by_path.get(stream)
        numbers = [only.row.number] if only is not None and only.row.number in named else []
    own = None if transaction is None else state.transactions.get(transaction)
    exempt = None if own is None else own.row.number
    streams = [state.by_number[number] for number in numbers]
    moves = [
        (each, _moving_txn(state, each, group, named[each.row.number], exempt)) for each in streams
    ]
    return GroupView(group, positions, _pending_views(group, moves, dates))


def _moving_txn(
    state: State, stream: Stream, group: str, numbers: set[int], exempt: int | None
) -> Txn | None:
    """Return the transaction whose move of a position is shown, or None if there is none.

    It is the transaction that holds the position or, if there is none, the oldest of `numbers`.
    The transaction `exempt` is ignored.
    """
    holder = stream.holds.get(group) if stream.holds else None
    if exempt in numbers:
        others = sorted(numbers - {exempt})
        prepared = (number for number in others if state.by_txn[number].row.is_prepared)
        chosen = next(prepared, others[0] if others else None)
    else:
        chosen = min(numbers) if holder is None else holder
    return None if chosen is None else state.by_txn[chosen]


def _pending_views(
    group: str, moves: Iterable[tuple[Stream, Txn | None]], dates: Dates
) -> tuple[PendingView, ...]:
    """Return the views of moves, sorted by path. A move without a transaction is left out."""
    # For each transaction: its offset in each stream, and its deadline.
    known: dict[int, tuple[dict[int, int], int | None]] = {}
    found = []
    for stream, txn in moves:
        if txn is None:
            continue
        row = txn.row
        if row.number not in known:
            targets = {each.stream: each.to for each in row.positions if each.group == group}
            known[row.number] = targets, dates(txn).due_ms
        targets, due_ms = known[row.number]
        to, path = targets[stream.row.number], stream.row.path
        found.append(PendingView(path, row.id, row.epoch, txn_state(txn), to, due_ms))
    return tuple(sorted(found, key=lambda view: view.path))


def snapshot(state: State, group: str) -> SnapshotView | None:
    """Return the step that a group has pinned, or None if it has not pinned a step."""
    row = state.snapshots.get(group)
    return None if row is None else SnapshotView(group, row.number, row.ranges, row.hash)


def sinks(state: State) -> list[SinkView]:
    """Return all sinks, sorted by id, without their versions."""
    return [_sink_view(state, app, row, ()) for app, row in sorted(state.sinks.items())]


def sink(state: State, app: str) -> SinkView | None:
    """Return the sink with the id `app` and its versions, or None if there is none."""
    row = state.sinks.get(app)
    return None if row is None else _sink_view(state, app, row, row.versions)


def _sink_view(state: State, app: str, row: SinkRow, versions: Iterable[VersionRow]) -> SinkView:
    shown = (SinkVersionView(each.version, each.input, each.result) for each in versions)
    count = len(state.owned.get((False, app), ()))
    return SinkView(app, row.query_id, row.last_version, tuple(shown), count)
