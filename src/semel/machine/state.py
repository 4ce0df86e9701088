"""The state of the engine: its tables, and the rows that `apply` has changed since a checkpoint."""

from collections.abc import Mapping, Sequence
from operator import setitem
from typing import Annotated, Final

import msgspec
from msgspec import Struct

from semel.machine import subscribers
from semel.machine.matching import PatternStreams
from semel.machine.pending import (
    add_named_position,
    add_position,
    add_transaction,
    hold_positions,
    index_stream,
    mark_open_in,
)
from semel.machine.producer_counts import ProducerCounts, Producers, note_unused, sort_tombstones
from semel.machine.rows import (
    MEMBER_KEY,
    NAME_KEY,
    NUMBER_KEY,
    OF_STREAM,
    OF_TXN,
    OWNED_KEY,
    OWNER_KEY,
    PAIR_KEY,
    PREFIX_KEY,
    AbortedRow,
    ChunkBlockRow,
    GroupRow,
    KeyCodec,
    KeyRow,
    MemberRow,
    MetaRow,
    OutcomeRow,
    OwnedKey,
    OwnerKey,
    OwnerRow,
    PolicyRow,
    PositionRow,
    ProducerRow,
    RegistryRow,
    Row,
    ShareRow,
    SinkRow,
    SnapshotRow,
    StreamRow,
    Table,
    TailRow,
    TokenRow,
    TopicRow,
    TxnRow,
    TxnStreamRow,
    is_topic,
    tables_of,
)
from semel.machine.shares import Share, load_group, load_member, load_share, load_shares
from semel.machine.subscribers import Subscriptions, note_moved
from semel.machine.subscription_events import LinkRow, SubscriptionRow, WakeRow
from semel.model.commands import TXN_INLINE
from semel.model.limits import MachineLimits


class Stream(Struct, gc=False, eq=False):
    """The current rows of a stream, and indexes derived from other tables.

    The garbage collector does not track these objects, because there can be a million of them.
    """

    row: StreamRow
    tail: TailRow
    producers: Producers | None = None
    keys: dict[str, KeyRow] | None = None
    next_key: int = 0
    forks: set[int] | None = None
    positions: dict[str, PositionRow] | None = None
    open: dict[int, int] | None = None  # inline transaction -> its first offset; lowest first
    txns: set[int] | None = None  # pending transactions that can write here or name a position
    holds: dict[str, int] | None = None  # group -> the prepared transaction that holds its position
    # The version of the policies with which the stream agrees; -1 if it is not known or a topic.
    policy_version: int = -1
    topic: TopicRow | None = None  # set if this is a topic, and not a stream
    sharing: set[str] | None = None  # the groups whose members share the stream
    links: subscribers.Names | None = None  # the subscriptions that follow the stream
    watchers: subscribers.Names | None = None  # those of them for which nothing of it is pending


class Txn(Struct, gc=False, eq=False):
    """The current rows of a pending transaction."""

    row: TxnRow
    streams: dict[int, TxnStreamRow]
    chunk_blocks: list[bytes]


class Effects(Struct, frozen=True, gc=False, eq=False):
    """The effects of one frame, as `apply` returns them.

    `streams` lists the streams that were removed and the streams whose tail changed. It can list
    a stream more than once. The journal stores the rows in the other fields. These rows are not
    part of the state. `placed` has the packed extents of all chunks that the frame commits.
    """

    streams: Sequence[Stream] = ()
    outcomes: Sequence[OutcomeRow] = ()
    aborted: Sequence[AbortedRow] = ()
    placed: bytes = b""


NO_EFFECTS: Final = Effects()


# ---- loading a checkpoint ------------------------------------------------------------------------
# Each table is loaded in the order of its keys.

# A placeholder for the tail of a stream until its tail row is loaded.
_NO_TAIL: Final = TailRow(0, 0, False, False, None, 0)


def _load_stream(state: "State", number: int, row: StreamRow) -> None:
    state.by_number[number] = state.by_path[row.path] = Stream(row, _NO_TAIL)


def _load_tail(state: "State", number: int, row: TailRow) -> None:
    if row.stable < 0:  # written by a version without transactions
        row = msgspec.structs.replace(row, stable=row.tail)
    if row.dedup_own is None:  # written by a version without policies
        row = msgspec.structs.replace(row, dedup_own=row.dedup_from is None)
    state.by_number[number].tail = row


def _load_producer(state: "State", key: tuple[int, str], row: ProducerRow) -> None:
    number, producer_id = key
    stream = state.by_number[number]
    if stream.tail.is_deleted:  # an older version has kept the producers of soft-deleted streams
        state.dirty.producers[key] = None
        return
    if row.hour < 0 and (row.is_expired or row.expires_ms):  # of an older version: it starts now
        row = state.dirty.producers[key] = msgspec.structs.replace(row, hour=state.hours)
    put_producer(state, stream, producer_id, row)


def _load_key(state: "State", key: tuple[int, str], row: KeyRow) -> None:
    number, idempotency_key = key
    stream = state.by_number[number]
    if stream.keys is None:
        stream.keys = {}
    stream.keys[idempotency_key] = row


def _load_registered(state: "State", producer_id: str, row: RegistryRow) -> None:
    if row.expires_ms and row.used_hour < 0:  # of an older version: its time starts now
        row = msgspec.structs.replace(row, used_hour=state.hours)
        state.dirty.registry[producer_id] = row
    state.registry[producer_id] = row
    if row.expires_ms or row.retired_hour >= 0:
        state.producer_counts.to_watch.append((0, producer_id))


def _load_transaction(state: "State", _number: int, row: TxnRow) -> None:
    txn = Txn(row, {}, [])
    add_transaction(state, txn)
    for named in row.positions:
        add_named_position(state, row.number, named)
    if row.is_prepared:
        hold_positions(state, txn)


def _load_txn_stream(state: "State", key: tuple[int, int], row: TxnStreamRow) -> None:
    txn_number, number = key
    state.by_txn[txn_number].streams[number] = row
    index_stream(state.by_number[number], txn_number)


def _load_chunk_block(state: "State", key: tuple[int, int], row: ChunkBlockRow) -> None:
    txn_number, block = key
    blocks = state.by_txn[txn_number].chunk_blocks
    if block != len(blocks):
        raise KeyError(key)
    blocks.append(row.packed)


def _load_position(state: "State", key: tuple[int, str], row: PositionRow) -> None:
    number, group = key
    add_position(state, state.by_number[number], group, row)


def _load_topic(state: "State", number: int, row: TopicRow) -> None:
    state.by_number[number].topic = row


def _load_owner(state: "State", key: OwnedKey, row: OwnerRow) -> None:
    state.owners[key] = row.principal


def _by_name(table: str, row: type[Row], key: KeyCodec = NAME_KEY) -> Table:
    """Return the declaration of a table whose rows are in a mapping of the state, by their keys."""
    return Table(key, row, lambda state, name, row: setitem(getattr(state, table), name, row))


# ---- the tables ----------------------------------------------------------------------------------


class Dirty(Struct, eq=False):
    """The rows that have changed since the last checkpoint. None means that a row was removed.

    Every field with an `Annotated` type declares a table of the checkpoint (see `rows.py`). To add
    a table, add a field.
    """

    streams: Annotated[
        dict[int, StreamRow], Table(NUMBER_KEY, StreamRow, _load_stream, OF_STREAM)
    ] = {}
    tails: Annotated[dict[int, TailRow], Table(NUMBER_KEY, TailRow, _load_tail, OF_STREAM)] = {}
    producers: Annotated[
        dict[tuple[int, str], ProducerRow | None],
        Table(OWNED_KEY, ProducerRow, _load_producer, OF_STREAM),
    ] = {}
    keys: Annotated[
        dict[tuple[int, str], KeyRow | None], Table(OWNED_KEY, KeyRow, _load_key, OF_STREAM)
    ] = {}
    registry: Annotated[
        dict[str, RegistryRow | None], Table(NAME_KEY, RegistryRow, _load_registered)
    ] = {}
    transactions: Annotated[
        dict[int, TxnRow], Table(NUMBER_KEY, TxnRow, _load_transaction, OF_TXN)
    ] = {}
    txn_streams: Annotated[
        dict[tuple[int, int], TxnStreamRow | None],
        Table(PAIR_KEY, TxnStreamRow, _load_txn_stream, OF_TXN),
    ] = {}
    parts: Annotated[
        dict[tuple[int, int], ChunkBlockRow | None],
        Table(PAIR_KEY, ChunkBlockRow, _load_chunk_block, OF_TXN),
    ] = {}
    positions: Annotated[
        dict[tuple[int, str], PositionRow | None],
        Table(OWNED_KEY, PositionRow, _load_position, OF_STREAM),
    ] = {}
    snapshots: Annotated[dict[str, SnapshotRow | None], _by_name("snapshots", SnapshotRow)] = {}
    sinks: Annotated[dict[str, SinkRow | None], _by_name("sinks", SinkRow)] = {}
    policies: Annotated[
        dict[str, PolicyRow | None], _by_name("policies", PolicyRow, PREFIX_KEY)
    ] = {}
    tokens: Annotated[dict[str, TokenRow | None], _by_name("tokens", TokenRow)] = {}
    owners: Annotated[dict[OwnedKey, OwnerRow | None], Table(OWNER_KEY, OwnerRow, _load_owner)] = {}
    topics: Annotated[dict[int, TopicRow], Table(NUMBER_KEY, TopicRow, _load_topic, OF_STREAM)] = {}
    groups: Annotated[dict[str, GroupRow | None], Table(NAME_KEY, GroupRow, load_group)] = {}
    members: Annotated[
        dict[tuple[str, str], MemberRow | None], Table(MEMBER_KEY, MemberRow, load_member)
    ] = {}
    shares: Annotated[
        dict[tuple[int, str], ShareRow | None],
        Table(OWNED_KEY, ShareRow, load_share, OF_STREAM),
    ] = {}
    subscriptions: Annotated[
        dict[str, SubscriptionRow | None],
        Table(NAME_KEY, SubscriptionRow, subscribers.load_subscription),
    ] = {}
    wakes: Annotated[
        dict[str, WakeRow | None], Table(NAME_KEY, WakeRow, subscribers.load_wake)
    ] = {}
    links: Annotated[
        dict[tuple[int, str], LinkRow | None],
        Table(OWNED_KEY, LinkRow, subscribers.load_link, OF_STREAM),
    ] = {}
    # Maps each forgotten sink to a number. The checkpoint removes the sink's outcomes below it.
    forgotten_sink_cutoffs: dict[str, int] = {}
    dropped: set[int] = set()  # streams that are removed with all their rows
    pruned: set[int] = set()  # streams that can have messages that are no longer needed
    decided: set[int] = set()  # transactions that are removed with all their rows

    def absorb(self, older: "Dirty") -> None:
        """Add the changes in `older`, whose checkpoint failed. Newer changes take precedence."""
        for name in self.__struct_fields__:  # dicts and sets both have `|`
            setattr(self, name, getattr(older, name) | getattr(self, name))


STATE_TABLES: Final = tables_of(Dirty)


class State:
    """The state of the engine, computed by applying every frame of the journal in order."""

    __slots__ = (
        "access_version",
        "by_number",
        "by_path",
        "by_txn",
        "cuts",
        "dirty",
        "forgotten_sink_cutoffs",
        "groups",
        "hours",
        "limits",
        "named",
        "next_outcome",
        "next_producer",
        "next_stream",
        "next_tombstone",
        "next_txn",
        "owned",
        "owners",
        "patterns",
        "policies",
        "policy_version",
        "producer_counts",
        "registry",
        "run_ms",
        "shares",
        "sink_txn_count",
        "sinks",
        "snapshots",
        "subscriptions",
        "time_ms",
        "tokens",
        "transactions",
        "unsettled",
        "wanted",
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
        # Maps each forgotten sink to a number. The sink's outcomes below that number are invalid.
        # The mapping is not stored, because a checkpoint removes these outcomes.
        self.forgotten_sink_cutoffs: dict[str, int] = {}
        self.snapshots: dict[str, SnapshotRow] = {}
        self.tokens: dict[str, TokenRow] = {}
        self.access_version = 0  # counts the changes of tokens since the start of the process
        self.owners: dict[OwnedKey, str] = {}
        # groups[group][path] is the same row as that in `positions` of the stream. So all positions
        # of a group can be copied at once, however many there are.
        self.groups: dict[str, dict[str, PositionRow]] = {}
        self.shares: dict[str, Share] = {}
        # The groups whose owners may have to change, because streams or transactions have changed.
        # Not stored: after a start, these are all groups that have members.
        self.unsettled: set[str] = set()
        # The groups whose members name a stream or a topic, by its path. It can have too many.
        self.wanted: dict[str, set[str]] = {}
        self.patterns = PatternStreams(self.by_number)
        self.subscriptions = Subscriptions()
        # named[group][stream] is the set of pending transactions that name this position.
        self.named: dict[str, dict[int, set[int]]] = {}
        self.next_stream = self.next_producer = self.next_txn = self.next_outcome = 1
        self.time_ms = self.policy_version = 0
        self.cuts = 0  # how often `take_dirty` was called
        self.hours = 0  # during which servers have run on this data
        self.run_ms = 0  # of the next hour, when the last checkpoint was made
        self.policies: Mapping[str, PolicyRow] = {}  # by prefix; a change replaces the mapping
        self.next_tombstone = 1
        self.producer_counts = ProducerCounts()
        self.dirty = Dirty()

    def frame_time(self, now_ms: int) -> int:
        """Return the time for a frame written at `now_ms`. Frame times never go backwards."""
        return now_ms if now_ms > self.time_ms else self.time_ms

    def take_dirty(self) -> Dirty:
        """Return the rows that have changed since the last call, and reset `dirty` to empty."""
        dirty, self.dirty = self.dirty, Dirty()
        self.cuts += 1
        return dirty

    def meta_row(self, *, run_ms: int = 0) -> MetaRow:
        """Return the counters of the state as a row.

        `run_ms` is the time that a server has run since the last hour was counted.
        """
        return MetaRow(
            next_stream=self.next_stream,
            next_producer=self.next_producer,
            time_ms=self.time_ms,
            next_txn=self.next_txn,
            next_outcome=self.next_outcome,
            hours=self.hours,
            run_ms=run_ms,
            next_tombstone=self.next_tombstone,
        )

    def load_meta(self, row: MetaRow) -> None:
        """Restore the counters from a stored row."""
        self.next_stream, self.next_producer = row.next_stream, row.next_producer
        self.time_ms, self.hours, self.run_ms = row.time_ms, row.hours, row.run_ms
        self.next_txn, self.next_outcome = row.next_txn, row.next_outcome
        self.next_tombstone = row.next_tombstone

    def load_links(self) -> None:
        """Compute the derived data after all rows are loaded.

        The derived data are: each stream's forks, the first offsets of pending inline transactions,
        and the order of idempotency keys. Raises KeyError if a row refers to a missing row.
        """
        for txn_number, txn in self.by_txn.items():
            if txn.row.kind == TXN_INLINE:
                for number, row in txn.streams.items():
                    if row.first >= 0:
                        mark_open_in(self.by_number[number], txn_number, row.first)
        for number, stream in self.by_number.items():
            if stream.tail is _NO_TAIL or is_topic(stream.row) != (stream.topic is not None):
                raise KeyError(number)
            if stream.row.fork is not None:
                add_fork(self.by_number[stream.row.fork.source], number)
            if stream.keys:
                ordered = sorted(stream.keys.items(), key=lambda item: item[1].number)
                stream.keys = dict(ordered)
                stream.next_key = ordered[-1][1].number + 1
            if stream.open:
                stream.open = dict(sorted(stream.open.items(), key=lambda item: item[1]))
            sort_tombstones(stream.producers)
        load_shares(self)


# ---- streams -------------------------------------------------------------------------------------


def put_producer(state: State, stream: Stream, producer_id: str, row: ProducerRow) -> None:
    """Store a stream's row for a producer, and count it."""
    if stream.producers is None:
        stream.producers = Producers()
    state.producer_counts.put(stream.producers, stream.row.number, producer_id, row)
    if state.producer_counts.unused:
        note_unused(state)


def find_producer(stream: Stream, producer_id: str) -> ProducerRow | None:
    """Return the stream's row for a producer, or None if the stream has no such row."""
    return stream.producers.get(producer_id) if stream.producers else None


def add_fork(source: Stream, number: int) -> None:
    """Record that the stream with this number is a fork of `source`."""
    source.forks = source.forks or set()
    source.forks.add(number)


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
    """Move the tail of a stream to `tail`, and update the stable offset.

    The arguments are positional because that is faster, and this function runs for every append.
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
        old.dedup_own,
        old.controls,
    )
    if stream.watchers and stream.tail.stable > old.stable:
        note_moved(state, stream, stream.watchers)


def stable_of(stream: Stream, tail: int) -> int:
    """Return the stable offset that a stream has when its tail is `tail`."""
    return next(iter(stream.open.values())) if stream.open else tail


def set_owner(state: State, key: OwnedKey, owner: str) -> None:
    """Store the owner of a producer, a transaction id or a sink."""
    state.owners[key] = owner
    state.dirty.owners[key] = OwnerRow(owner)


def drop_owner(state: State, key: OwnedKey) -> str | None:
    """Drop the owner of a thing, and return it. Return None if the thing has no owner."""
    owner = state.owners.pop(key, None) if state.owners else None
    if owner is not None:
        state.dirty.owners[key] = None
    return owner
