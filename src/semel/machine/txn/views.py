"""Views of transactions, groups and sinks: plain values for operators and clients."""

from collections.abc import Callable, Iterator

from msgspec import Struct

from semel.machine.rows import SinkRow
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
    """A group's stored position in a stream, or a position that a transaction will set.

    `version` is the number of times that the stored position was moved. For a position that a
    transaction will set, `time_ms` is None and `version` is 0.
    """

    group: str
    path: str
    offset: int
    time_ms: int | None = None
    version: int = 0


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
    """A group's stored positions and its pending moves, with at most one move for each path."""

    group: str
    positions: tuple[PositionView, ...]
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
    """A version that a sink has committed."""

    version: int
    input: str | None
    result: TxnResult


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
        _view(state, txn, dates)
        for txn in _of_stream(state, stream)
        if txn.row.number > after and state_filter in (None, _state_of(txn))
    )


def _of_stream(state: State, path: str | None) -> Iterator[Txn]:
    numbers = sorted(state.by_txn)
    if path is not None:
        stream = state.by_path.get(path)
        numbers = sorted(stream.txns or ()) if stream is not None else []
    return (state.by_txn[number] for number in numbers)


def transaction(state: State, txn_id: str, dates: Dates = stored_dates) -> TxnView | None:
    """Return the pending transaction with the id `txn_id`, or None if there is none."""
    txn = state.transactions.get(txn_id)
    return None if txn is None else _view(state, txn, dates)


def holding_view(state: State, path: str, dates: Dates = stored_dates) -> TxnView | None:
    """Return the pending transaction that keeps a stream's stable offset from moving forward.

    Return None if the stream does not exist, or if no pending inline transaction has messages in
    the stream.
    """
    stream = state.by_path.get(path)
    if stream is None or not stream.open:
        return None
    return _view(state, state.by_txn[next(iter(stream.open))], dates)


def _state_of(txn: Txn) -> str:
    return PREPARED if txn.row.is_prepared else OPEN


def _view(state: State, txn: Txn, dates: Dates) -> TxnView:
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
        state=_state_of(txn),
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
    numbers = {*state.groups.get(group, ()), *state.named.get(group, ())}
    if stream is not None:
        only = state.by_path.get(stream)
        numbers &= set() if only is None else {only.row.number}
    streams = sorted((state.by_number[number] for number in numbers), key=lambda s: s.row.path)
    stored = (_position_view(each, group) for each in streams)
    pending = (_pending_view(state, each, group, transaction, dates) for each in streams)
    return GroupView(
        group,
        tuple(view for view in stored if view is not None),
        tuple(view for view in pending if view is not None),
    )


def _position_view(stream: Stream, group: str) -> PositionView | None:
    row = stream.positions.get(group) if stream.positions else None
    if row is None:
        return None
    return PositionView(group, stream.row.path, row.offset, row.time_ms, row.version)


def _pending_view(
    state: State, stream: Stream, group: str, exempt: str | None, dates: Dates
) -> PendingView | None:
    """Return a pending move of the group's position in the stream, or None if there is none.

    If a transaction holds the position, return that transaction's move, otherwise the oldest move.
    The transaction with the id `exempt` is ignored.
    """
    number = stream.row.number
    txns = [state.by_txn[each] for each in state.named.get(group, {}).get(number, ())]
    txns = [txn for txn in txns if txn.row.id != exempt]
    if not txns:
        return None
    txn = min(txns, key=lambda txn: (not txn.row.is_prepared, txn.row.number))
    to = next(
        named.to for named in txn.row.positions if (named.group, named.stream) == (group, number)
    )
    row = txn.row
    due_ms = dates(txn).due_ms
    return PendingView(stream.row.path, row.id, row.epoch, _state_of(txn), to, due_ms)


def snapshot(state: State, group: str) -> SnapshotView | None:
    """Return the step that a group has pinned, or None if it has not pinned a step."""
    row = state.snapshots.get(group)
    return None if row is None else SnapshotView(group, row.number, row.ranges, row.hash)


def sinks(state: State) -> list[SinkView]:
    return [_sink_view(state, app, row) for app, row in sorted(state.sinks.items())]


def sink(state: State, app: str) -> SinkView | None:
    """Return the sink with the id `app`, or None if there is none."""
    row = state.sinks.get(app)
    return None if row is None else _sink_view(state, app, row)


def _sink_view(state: State, app: str, row: SinkRow) -> SinkView:
    versions = tuple(
        SinkVersionView(version.version, version.input, unpack_result(version.result))
        for version in row.versions
    )
    count = len(state.owned.get((False, app), ()))
    return SinkView(app, row.query_id, row.last_version, versions, count)
