"""The state: every table the journal folds into, and what changed since the last checkpoint."""

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct

from semel.machine.rows import (
    AbortedRow,
    ChunkBlockRow,
    KeyRow,
    MetaRow,
    NamedPosition,
    OutcomeRow,
    OwnerKey,
    PlacedChunkRow,
    PositionRow,
    ProducerRow,
    RegistryRow,
    SinkRow,
    SnapshotRow,
    StreamRow,
    TailRow,
    TxnRow,
    TxnStreamRow,
)
from semel.model import limits as default
from semel.model.transactions import TXN_INLINE, Owner, ProducerOwner

OFFSET_MAX: Final = 1 << 63


class MachineLimits(Struct, frozen=True):
    """The limits a deployment may set; part of the machine's behaviour, so keep them stable."""

    receipts: int = default.RECEIPTS_DEFAULT
    streams: int = default.STREAMS_MAX
    producers_per_stream: int = default.PRODUCERS_PER_STREAM_MAX
    keys: int = default.IDEMPOTENCY_KEYS_MAX
    key_window_ms: int = default.IDEMPOTENCY_WINDOW_MS
    registry: int = default.REGISTRY_MAX
    chunks: int = default.TXN_CHUNKS_MAX
    txn_streams: int = default.TXN_STREAMS_MAX

    def __post_init__(self) -> None:
        if min(msgspec.structs.astuple(self)) < 1:
            raise ValueError("every limit must be at least 1")


class Stream(Struct, gc=False, eq=False):
    """One stream: frozen rows behind a mutable holder.

    There may be a million of these; the garbage collector has no business walking them.
    """

    row: StreamRow
    tail: TailRow
    producers: dict[str, ProducerRow] | None = None
    keys: dict[str, KeyRow] | None = None
    next_key: int = 0
    forks: set[int] | None = None
    positions: dict[str, PositionRow] | None = None
    open: dict[int, int] | None = None  # inline transaction -> its first offset, oldest first
    txns: set[int] | None = None  # every transaction that knows the stream
    holds: dict[str, int] | None = None  # group -> the prepared transaction that holds its position


class Txn(Struct, gc=False, eq=False):
    """One transaction that is not decided: frozen rows behind a mutable holder."""

    row: TxnRow
    streams: dict[int, TxnStreamRow]
    chunk_blocks: list[bytes]


class Effects(Struct, frozen=True, gc=False, eq=False):
    """What one frame changed outside the state's own tables, as `apply` returns it.

    `streams` are those whose tail changed or that were removed; one may occur twice. The other rows
    belong to tables of the journal that the state does not keep.
    """

    streams: Sequence[Stream] = ()
    outcomes: Sequence[OutcomeRow] = ()
    aborted: Sequence[AbortedRow] = ()
    placed: Sequence[PlacedChunkRow] = ()


NO_EFFECTS: Final = Effects()


class Dirty:
    """The rows changed since the last checkpoint, by table; None means removed.

    `dropped` streams and `decided` transactions are removed with all their rows; `pruned` streams
    may have lost data. `forgotten_sink_cutoffs`: per forgotten sink, the outcome number below which
    its outcomes are removed.
    """

    __slots__ = (
        "decided",
        "dropped",
        "forgotten_sink_cutoffs",
        "keys",
        "parts",
        "positions",
        "producers",
        "pruned",
        "registry",
        "sinks",
        "snapshots",
        "streams",
        "tails",
        "transactions",
        "txn_streams",
    )

    def __init__(self) -> None:
        self.streams: dict[int, StreamRow] = {}
        self.tails: dict[int, TailRow] = {}
        self.producers: dict[tuple[int, str], ProducerRow | None] = {}
        self.keys: dict[tuple[int, str], KeyRow | None] = {}
        self.registry: dict[str, RegistryRow] = {}
        self.transactions: dict[int, TxnRow] = {}
        self.txn_streams: dict[tuple[int, int], TxnStreamRow | None] = {}
        self.parts: dict[tuple[int, int], ChunkBlockRow | None] = {}
        self.positions: dict[tuple[int, str], PositionRow | None] = {}
        self.snapshots: dict[str, SnapshotRow] = {}
        self.sinks: dict[str, SinkRow | None] = {}
        self.forgotten_sink_cutoffs: dict[str, int] = {}
        self.dropped: set[int] = set()
        self.pruned: set[int] = set()
        self.decided: set[int] = set()

    def absorb(self, older: "Dirty") -> None:
        """Take back what an abandoned checkpoint was to store; newer rows win."""
        self.streams = older.streams | self.streams
        self.tails = older.tails | self.tails
        self.producers = older.producers | self.producers
        self.keys = older.keys | self.keys
        self.registry = older.registry | self.registry
        self.transactions = older.transactions | self.transactions
        self.txn_streams = older.txn_streams | self.txn_streams
        self.parts = older.parts | self.parts
        self.positions = older.positions | self.positions
        self.snapshots = older.snapshots | self.snapshots
        self.sinks = older.sinks | self.sinks
        self.forgotten_sink_cutoffs = older.forgotten_sink_cutoffs | self.forgotten_sink_cutoffs
        self.dropped |= older.dropped
        self.pruned |= older.pruned
        self.decided |= older.decided


class State:
    """The fold of the journal.

    `live_producers` counts the producers of all streams that are not tombstones.
    `forgotten_sink_cutoffs`: per forgotten sink, the lowest outcome number still valid; only needed
    until the next start, when older rows are gone. `named` are the pending transactions that name a
    position: by group, then by stream.
    """

    __slots__ = (
        "by_number",
        "by_path",
        "by_txn",
        "dirty",
        "forgotten_sink_cutoffs",
        "groups",
        "limits",
        "live_producers",
        "named",
        "next_outcome",
        "next_producer",
        "next_stream",
        "next_txn",
        "owned",
        "registry",
        "sink_txn_count",
        "sinks",
        "snapshots",
        "time_ms",
        "transactions",
    )

    def __init__(self, limits: MachineLimits | None = None) -> None:
        self.limits: Final = limits or MachineLimits()
        self.by_path: dict[str, Stream] = {}
        self.by_number: dict[int, Stream] = {}
        self.registry: dict[str, RegistryRow] = {}
        self.transactions: dict[str, Txn] = {}
        self.by_txn: dict[int, Txn] = {}
        self.owned: dict[OwnerKey, set[int]] = {}
        self.sink_txn_count = 0
        self.sinks: dict[str, SinkRow] = {}
        self.forgotten_sink_cutoffs: dict[str, int] = {}
        self.snapshots: dict[str, SnapshotRow] = {}
        self.groups: dict[str, set[int]] = {}
        self.named: dict[str, dict[int, set[int]]] = {}
        self.next_stream = 1
        self.next_producer = 1
        self.next_txn = 1
        self.next_outcome = 1
        self.time_ms = 0
        self.live_producers = 0
        self.dirty = Dirty()

    def frame_time(self, now_ms: int) -> int:
        """Tell the time of a frame written now: it never goes back."""
        return now_ms if now_ms > self.time_ms else self.time_ms

    def take_dirty(self) -> Dirty:
        """Hand over what changed and start collecting anew."""
        dirty, self.dirty = self.dirty, Dirty()
        return dirty

    def meta_row(self) -> MetaRow:
        """Freeze the counters."""
        return MetaRow(
            self.next_stream, self.next_producer, self.time_ms, self.next_txn, self.next_outcome
        )

    # ---- loading a checkpoint; rows arrive in any order within a table, streams first ----

    def load_meta(self, row: MetaRow) -> None:
        """Restore the counters."""
        self.next_stream, self.next_producer = row.next_stream, row.next_producer
        self.time_ms = row.time_ms
        self.next_txn, self.next_outcome = row.next_txn, row.next_outcome

    def load_stream(self, row: StreamRow, tail: TailRow) -> None:
        """Restore a stream."""
        if tail.stable < 0:  # written before there were transactions
            tail = msgspec.structs.replace(tail, stable=tail.tail)
        stream = Stream(row, tail)
        self.by_number[row.number] = stream
        self.by_path[row.path] = stream

    def load_producer(self, number: int, producer_id: str, row: ProducerRow) -> None:
        """Restore a producer."""
        stream = self.by_number[number]
        if stream.producers is None:
            stream.producers = {}
        stream.producers[producer_id] = row
        self.live_producers += not row.is_expired

    def load_key(self, number: int, key: str, row: KeyRow) -> None:
        """Restore an idempotency key."""
        stream = self.by_number[number]
        if stream.keys is None:
            stream.keys = {}
        stream.keys[key] = row

    def load_position(self, number: int, group: str, row: PositionRow) -> None:
        """Restore a group's position."""
        add_position(self, self.by_number[number], group, row)

    def load_transaction(self, row: TxnRow) -> None:
        """Restore a transaction."""
        txn = Txn(row, {}, [])
        add_transaction(self, txn)
        for named in row.positions:
            add_named_position(self, row.number, named)
        if row.is_prepared:
            hold_positions(self, txn)

    def load_txn_stream(self, txn_number: int, number: int, row: TxnStreamRow) -> None:
        """Restore a stream of a transaction."""
        self.by_txn[txn_number].streams[number] = row
        index_stream(self.by_number[number], txn_number)

    def load_parts(self, txn_number: int, page: int, row: ChunkBlockRow) -> None:
        """Restore a page of a transaction's parts; pages arrive in order."""
        pages = self.by_txn[txn_number].chunk_blocks
        if page != len(pages):
            raise KeyError((txn_number, page))
        pages.append(row.packed)

    def load_links(self) -> None:
        """Restore what is derived: who forks whom, who is open where, and the order of keys."""
        for txn_number, txn in self.by_txn.items():
            if txn.row.kind == TXN_INLINE:
                for number, row in txn.streams.items():
                    if row.first >= 0:
                        mark_open_in(self.by_number[number], txn_number, row.first)
        for number, stream in self.by_number.items():
            if stream.row.fork is not None:
                add_fork(self.by_number[stream.row.fork.source], number)
            if stream.keys:
                ordered = sorted(stream.keys.items(), key=lambda item: item[1].number)
                stream.keys = dict(ordered)
                stream.next_key = ordered[-1][1].number + 1
            if stream.open:
                stream.open = dict(sorted(stream.open.items(), key=lambda item: item[1]))


def live_producers(stream: Stream) -> int:
    """Count a stream's producers that are no tombstones."""
    return sum(not row.is_expired for row in (stream.producers or {}).values())


def add_fork(source: Stream, number: int) -> None:
    """Note that stream `number` reads from `source`."""
    if source.forks is None:
        source.forks = set()
    source.forks.add(number)


def owner_key(owner: Owner) -> OwnerKey:
    """Tell who is behind an owner."""
    if isinstance(owner, ProducerOwner):
        return True, owner.id
    return False, owner.app


def add_transaction(state: State, txn: Txn) -> None:
    """Take a transaction in."""
    row = txn.row
    state.transactions[row.id] = txn
    state.by_txn[row.number] = txn
    state.owned.setdefault(owner_key(row.owner), set()).add(row.number)
    state.sink_txn_count += not isinstance(row.owner, ProducerOwner)


def remove_transaction(state: State, txn: Txn) -> None:
    """Let a transaction go."""
    row = txn.row
    del state.transactions[row.id]
    del state.by_txn[row.number]
    key = owner_key(row.owner)
    state.owned[key].discard(row.number)
    if not state.owned[key]:
        del state.owned[key]
    state.sink_txn_count -= not isinstance(row.owner, ProducerOwner)


def index_stream(stream: Stream, txn_number: int) -> None:
    """Note that a transaction knows a stream."""
    if stream.txns is None:
        stream.txns = set()
    stream.txns.add(txn_number)


def mark_open_in(stream: Stream, txn_number: int, first: int) -> None:
    """Note that an inline transaction has messages in a stream from `first` on."""
    if stream.open is None:
        stream.open = {}
    stream.open[txn_number] = first


def add_named_position(state: State, txn_number: int, named: NamedPosition) -> None:
    """Note that a transaction names a position."""
    index_stream(state.by_number[named.stream], txn_number)
    streams = state.named.setdefault(named.group, {})
    streams.setdefault(named.stream, set()).add(txn_number)


def remove_named_position(state: State, txn_number: int, named: NamedPosition) -> None:
    """Note that a transaction no longer names a position, nor holds it."""
    streams = state.named[named.group]
    others = streams[named.stream]
    others.discard(txn_number)
    if not others:
        del streams[named.stream]
    if not streams:
        del state.named[named.group]
    holds = state.by_number[named.stream].holds
    if holds and holds.get(named.group) == txn_number:
        del holds[named.group]
        for number in sorted(others, reverse=True):
            if state.by_txn[number].row.is_prepared:
                holds[named.group] = number


def hold_positions(state: State, txn: Txn) -> None:
    """Note that a prepared transaction holds the positions it names.

    Before positions were held, several could be prepared that name one; the oldest holds it.
    """
    number = txn.row.number
    for named in txn.row.positions:
        stream = state.by_number[named.stream]
        if stream.holds is None:
            stream.holds = {}
        stream.holds[named.group] = min(number, stream.holds.get(named.group, number))


def add_position(state: State, stream: Stream, group: str, row: PositionRow) -> None:
    """Note where a group stands."""
    if stream.positions is None:
        stream.positions = {}
    stream.positions[group] = row
    state.groups.setdefault(group, set()).add(stream.row.number)


def set_tail(state: State, stream: Stream, tail: TailRow) -> None:
    """Store the tail row of a stream."""
    stream.tail = state.dirty.tails[stream.row.number] = tail


def advance_tail(
    state: State,
    stream: Stream,
    tail: int,
    time_ms: int,
    stream_seq: str | None = None,
    close: bool = False,
) -> None:
    """Move the tail of a stream to `tail`, and the stable offset with it.

    The arguments are positional because this runs once per append.
    """
    old = stream.tail
    stream.tail = state.dirty.tails[stream.row.number] = TailRow(
        old.head,
        tail,
        close or old.is_closed,
        False,
        old.stream_seq if stream_seq is None else stream_seq,
        time_ms,
        old.dedup_from,
        stable_of(stream, tail) if stream.open else tail,
        old.aborted_end,
    )


def stable_of(stream: Stream, tail: int) -> int:
    """Tell the first offset that is not decided, if the stream's tail is `tail`."""
    return next(iter(stream.open.values())) if stream.open else tail


def retained_range(state: State, stream: Stream, known: dict[int, int]) -> tuple[int, int]:
    """Find the offsets of a stream that it or any fork of it still reads: from, up to.

    `known` remembers what was found for others on the way.
    """
    if not stream.tail.is_deleted:
        return retained_from(state, stream, known), OFFSET_MAX
    starts = [fork_start(state.by_number[number]) for number in stream.forks or ()]
    return retained_from(state, stream, known), max(starts, default=0)


def fork_start(fork: Stream) -> int:
    """Tell where a fork stops reading its source."""
    assert fork.row.fork is not None
    return fork.row.fork.start


def retained_from(state: State, stream: Stream, known: dict[int, int]) -> int:
    """Find the first offset of a stream that it or any fork of it still reads."""
    if stream.row.number in known:
        return known[stream.row.number]
    floor = stream.tail.tail if stream.tail.is_deleted else stream.tail.head
    for number in stream.forks or ():
        child = state.by_number[number]
        needed = retained_from(state, child, known)
        if needed < fork_start(child):
            floor = min(floor, needed)
    known[stream.row.number] = floor
    return floor


def is_expired(stream: Stream, touched_ms: int, *, now_ms: int, time_ms: int) -> bool:
    """Tell whether a stream's time is over, given its latest use.

    A date is compared with the clock, a window with the journal's time, which never goes back: a
    clock that jumped far ahead once must not end every date to come.
    """
    row = stream.row
    if row.expires_at_ms is not None and now_ms >= row.expires_at_ms:
        return True
    return row.ttl_ms is not None and time_ms >= key_window_end_ms(stream, touched_ms)


def key_window_end_ms(stream: Stream, touched_ms: int) -> int:
    """Tell when a stream's sliding window ends."""
    assert stream.row.ttl_ms is not None
    return max(stream.tail.written_ms, touched_ms) + stream.row.ttl_ms
